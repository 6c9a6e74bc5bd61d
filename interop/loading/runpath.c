// Opens a library that only this program's DT_RUNPATH leads to, from several threads at once: `runpath NAME`.
#include "load.h"
#include <pthread.h>

#ifdef PLUGIN
int from_here = 42;
#else
static void *open_often(void *name)
{
	for (int i = 0; i < 200; i++) {
		void *handle = dlopen(name, RTLD_NOW), *verbs_handle = dlopen("libibverbs.so.1", RTLD_LAZY);

		MUST(handle && verbs_handle);
		MUST(*(int *)dlsym(handle, "from_here") == 42 && dlsym(verbs_handle, "ibv_open_device"));
		MUST(!dlclose(handle) && !dlclose(verbs_handle));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];

	MUST(argc == 2);
	for (int i = 0; i < 4; i++)
		MUST(!pthread_create(&threads[i], NULL, open_often, argv[1]));
	for (int i = 0; i < 4; i++)
		MUST(!pthread_join(threads[i], NULL));
	return 0;
}
#endif
