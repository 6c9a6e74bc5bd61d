// Loads libibverbs as NCCL does (dlopen of one name after the other, dlvsym for each function), moves data, closes the
// library and does it all again.
//
//   nccl FLAGS NAME...
#include "load.h"

int main(int argc, char **argv)
{
	MUST(argc > 2);
	for (int round = 0; round < 3; round++) {
		void *handle = open_one_of(argv + 2, flags_of(argv[1]));

		find_verbs(handle);

		struct ibv_context *context = open_device();

		// Again while it is open: the same library, and the same device.
		void *again = dlopen(argv[argc - 1], RTLD_NOW | RTLD_NOLOAD);

		MUST(again != NULL && dlsym(again, "ibv_open_device") != NULL);
		MUST(!dlclose(again));
		move_data(context);
		MUST(!verbs.ibv_close_device(context));
		MUST(!dlclose(handle));
	}
	return 0;
}
