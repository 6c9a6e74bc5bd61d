// A plugin that is linked to libibverbs, and its host, which opens it with the flags given: `plugin FLAGS PLUGIN`.
#include "load.h"

#ifdef PLUGIN
int devices(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	if (list)
		ibv_free_device_list(list);
	return n;
}
#else
int main(int argc, char **argv)
{
	MUST(argc == 3);

	void *plugin = dlopen(argv[2], flags_of(argv[1]));

	MUST(plugin != NULL);

	int (*devices)(void) = (int (*)(void))dlsym(plugin, "devices");

	MUST(devices != NULL);
	return devices() > 0 ? 0 : NO_DEVICE;
}
#endif
