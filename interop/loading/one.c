// There is one device, in whatever way it is found: linked to libibverbs, opened by name, opened by path.
//
//   one NAME...
#include "load.h"

static void *first_device(struct ibv_device **(*list)(int *), void (*release)(struct ibv_device **))
{
	int n = 0;
	struct ibv_device **devices = list(&n);

	if (n < 1)
		exit(NO_DEVICE);

	void *first = devices[0];

	release(devices);
	return first;
}

// The number of mapped files named libsoftrnic.so, told apart by their inodes.
static int engines(void)
{
	char line[4096], path[4096];
	unsigned long inode, seen[16];
	int n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	MUST(maps != NULL);
	while (fgets(line, sizeof line, maps)) {
		int known = 0;

		if (sscanf(line, "%*s %*s %*s %*s %lu %4095s", &inode, path) != 2 || !strstr(path, "libsoftrnic.so"))
			continue;
		for (int i = 0; i < n; i++)
			known |= seen[i] == inode;
		if (!known && n < 16)
			seen[n++] = inode;
	}
	fclose(maps);
	return n;
}

int main(int argc, char **argv)
{
	void *linked = first_device(ibv_get_device_list, ibv_free_device_list);

	MUST(argc > 1);
	for (int i = 1; i < argc; i++) {
		void *handle = dlopen(argv[i], RTLD_NOW);

		MUST(handle != NULL);
		find_verbs(handle);
		MUST(first_device(verbs.ibv_get_device_list, verbs.ibv_free_device_list) == linked);

		struct ibv_context *context = open_device();

		move_data(context);
		// A device that one library opened, the other can close.
		MUST(!ibv_close_device(context));
	}
	MUST(engines() == 1);
	return 0;
}
