// dlvsym by version, as programs that load libibverbs by hand do it (NCCL asks for IBVERBS_1.1).
// args: @lib@
// run: alone
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>

static void *lib;

static void *get(const char *name, const char *version)
{
	void *found = dlvsym(lib, name, version);

	if (!found) {
		fprintf(stderr, "no %s@%s\n", name, version);
		failures++;
	}
	return found;
}

int main(int argc, char **argv)
{
	static const char *const nccl[] = {
		"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device", "ibv_close_device",
		"ibv_get_async_event", "ibv_ack_async_event", "ibv_query_device", "ibv_query_port", "ibv_query_gid", "ibv_query_qp",
		"ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr", "ibv_create_cq", "ibv_destroy_cq", "ibv_create_qp",
		"ibv_modify_qp", "ibv_destroy_qp", "ibv_fork_init", "ibv_event_type_str",
	};
	static const char *const later[][2] = {
		{ "ibv_rate_to_mult", "IBVERBS_1.0" }, { "ibv_create_comp_channel", "IBVERBS_1.0" },
		{ "ibv_get_pkey_index", "IBVERBS_1.5" }, { "ibv_qp_to_qp_ex", "IBVERBS_1.6" },
		{ "ibv_reg_mr_iova", "IBVERBS_1.7" }, { "ibv_reg_mr_iova2", "IBVERBS_1.8" },
		{ "ibv_get_device_index", "IBVERBS_1.9" }, { "ibv_import_device", "IBVERBS_1.10" },
		{ "ibv_query_ece", "IBVERBS_1.10" }, { "_ibv_query_gid_ex", "IBVERBS_1.11" },
		{ "ibv_reg_dmabuf_mr", "IBVERBS_1.12" }, { "ibv_is_fork_initialized", "IBVERBS_1.13" },
		{ "ibv_query_qp_data_in_order", "IBVERBS_1.14" }, { "ibv_reg_mr_ex", "IBVERBS_1.15" },
		{ "ibv_query_port_speed", "IBVERBS_1.16" }, { "ibv_alloc_buf", "IBVERBS_1.17" },
		{ "ibv_create_comp_cntr", "IBVERBS_1.18" }, { "ibv_query_gid_type", "IBVERBS_PRIVATE_34" },
	};

	MUST(argc == 2);
	lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		fprintf(stderr, "%s\n", dlerror());
	MUST(lib != NULL);
	for (size_t i = 0; i < sizeof nccl / sizeof *nccl; i++)
		get(nccl[i], "IBVERBS_1.1");
	for (size_t i = 0; i < sizeof later / sizeof *later; i++)
		get(later[i][0], later[i][1]);

	/* Without a version: the default one. */
	CHECK(dlsym(lib, "ibv_open_device") == get("ibv_open_device", "IBVERBS_1.1"));
	CHECK(get("ibv_open_device", "IBVERBS_1.0") != get("ibv_open_device", "IBVERBS_1.1"));
	CHECK(dlvsym(lib, "ibv_open_device", "IBVERBS_1.2") == NULL);
	CHECK(dlvsym(lib, "ibv_reg_mr_iova", "IBVERBS_1.1") == NULL);

	/* The oldest ABI finds no device. */
	struct ibv_device **(*old_list)(int *) = (struct ibv_device **(*)(int *))get("ibv_get_device_list", "IBVERBS_1.0");
	int (*old_query)(void *, void *) = (int (*)(void *, void *))get("ibv_query_device", "IBVERBS_1.0");

	NULLS(ENOSYS, old_list(NULL));
	NUMBER(ENOSYS, old_query(NULL, NULL));

	/* And the current one works through the pointer. */
	struct ibv_device **(*list)(int *) = (struct ibv_device **(*)(int *))get("ibv_get_device_list", "IBVERBS_1.1");
	void (*free_list)(struct ibv_device **) = (void (*)(struct ibv_device **))get("ibv_free_device_list", "IBVERBS_1.1");
	int n = 0;
	struct ibv_device **devices = list(&n);

	CHECK(devices != NULL && n >= 1);
	free_list(devices);
	return verdict();
}
