// Statically linked, with or without libibverbs in it.
#ifdef VERBS
#include <infiniband/verbs.h>
#endif

int main(void)
{
	int n = 0;
#ifdef VERBS
	struct ibv_device **list = ibv_get_device_list(&n);

	if (list)
		ibv_free_device_list(list);
#endif
	return n > 0 ? 0 : 3;
}
