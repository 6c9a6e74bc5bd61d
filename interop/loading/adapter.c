// Stands in for rdma-core's libibverbs on a machine with an adapter: one device, adapter0, whose functions note that they
// were called and with what, and return 77 or an object. It has no import and no ECE, as an old library.
#include <stddef.h>
#include <string.h>

const char *adapter_called = "";
const void *adapter_arguments[6];

// struct ibv_device: the name lies behind two pointers and two numbers.
static struct {
	void *ops[2];
	int kind[2];
	char name[64], dev_name[64], dev_path[256], ibdev_path[256];
} device = { .name = "adapter0" };

// A context begins with its device, every object with its context.
static struct {
	const void *owner;
	char rest[4096];
} context = { &device, "" }, object = { &context, "" };

static void *list[2] = { &device, NULL };

static void note(const char *name, const void *a, const void *b, const void *c, const void *d, const void *e, const void *f)
{
	const void *arguments[6] = { a, b, c, d, e, f };

	adapter_called = name;
	memcpy(adapter_arguments, arguments, sizeof arguments);
}

#define SIX void *a, void *b, void *c, void *d, void *e, void *f
#define NUMBER(name) int name(SIX) { note(#name, a, b, c, d, e, f); return 77; }
#define POINTER(name, value) void *name(SIX) { note(#name, a, b, c, d, e, f); return value; }

NUMBER(ibv_free_device_list) POINTER(ibv_get_device_name, device.name) NUMBER(ibv_get_device_guid)
POINTER(ibv_open_device, &context) NUMBER(ibv_close_device) NUMBER(ibv_query_device) NUMBER(ibv_query_port) NUMBER(ibv_query_gid)
NUMBER(ibv_query_pkey) POINTER(ibv_alloc_pd, &object) NUMBER(ibv_dealloc_pd) POINTER(ibv_reg_mr, &object) NUMBER(ibv_rereg_mr)
NUMBER(ibv_dereg_mr) POINTER(ibv_create_cq, &object) NUMBER(ibv_resize_cq) NUMBER(ibv_destroy_cq) NUMBER(ibv_get_cq_event)
NUMBER(ibv_ack_cq_events) POINTER(ibv_create_srq, &object) NUMBER(ibv_modify_srq) NUMBER(ibv_query_srq)
NUMBER(ibv_destroy_srq) POINTER(ibv_create_qp, &object) NUMBER(ibv_query_qp) NUMBER(ibv_modify_qp) NUMBER(ibv_destroy_qp)
POINTER(ibv_create_ah, &object) POINTER(ibv_create_ah_from_wc, &object) NUMBER(ibv_init_ah_from_wc) NUMBER(ibv_destroy_ah)
NUMBER(ibv_attach_mcast) NUMBER(ibv_detach_mcast) NUMBER(ibv_get_async_event) NUMBER(ibv_ack_async_event)
NUMBER(ibv_resolve_eth_l2_from_gid) POINTER(ibv_create_comp_channel, &object) NUMBER(ibv_destroy_comp_channel)
NUMBER(ibv_get_pkey_index) POINTER(ibv_qp_to_qp_ex, &object) POINTER(ibv_reg_mr_iova, &object)
POINTER(ibv_reg_mr_iova2, &object) NUMBER(ibv_get_device_index) NUMBER(_ibv_query_gid_ex) NUMBER(_ibv_query_gid_table)
NUMBER(ibv_unimport_mr) NUMBER(ibv_unimport_pd) POINTER(ibv_reg_dmabuf_mr, &object) POINTER(ibv_event_type_str, "of the adapter")

int ibv_fork_init(void)
{
	return 0;
}

void *ibv_get_device_list(int *count)
{
	*count = 1;
	return list;
}
