// softrnic0 and an adapter (adapter.c) in one program: every function goes to the library whose object it is given.
//
//   hardware NUMBER-OF-DEVICES
#include "load.h"
#include <errno.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

static const char **called;
static const void **arguments;

// Any of the functions, for a caller that passes more arguments than the function looks at.
typedef long any(void *, void *, void *, void *, void *, void *);

// Call a function on an object of the adapter, and check that it is called there, with all its arguments.
#define THERE(name, first) there((any *)(void *)name, #name, first)

static void there(any *function, const char *name, void *first)
{
	*called = "";
	function(first, (void *)2, (void *)3, (void *)4, (void *)5, (void *)6);
	if (strcmp(*called, name))
		fprintf(stderr, "%s was called, not %s\n", **called ? *called : "none of the adapter's", name);
	MUST(!strcmp(*called, name) && arguments[0] == first);
	for (long i = 1; i < 6; i++)
		MUST(arguments[i] == (void *)(i + 1));
}

// librdmacm's functions know softrnic0 alone, and fail where an adapter's object is given to them.
static void connections(struct ibv_pd *pd, struct ibv_cq *cq)
{
	typeof(rdma_get_devices) *get_devices = dlsym(RTLD_DEFAULT, "rdma_get_devices");
	typeof(rdma_free_devices) *free_devices = dlsym(RTLD_DEFAULT, "rdma_free_devices");
	typeof(rdma_create_id) *create_id = dlsym(RTLD_DEFAULT, "rdma_create_id");
	typeof(rdma_resolve_addr) *resolve_addr = dlsym(RTLD_DEFAULT, "rdma_resolve_addr");
	typeof(rdma_create_qp) *create_qp = dlsym(RTLD_DEFAULT, "rdma_create_qp");
	int (*create_srq)(struct rdma_cm_id *, struct ibv_pd *, struct ibv_srq_init_attr *) = dlsym(RTLD_DEFAULT, "rdma_create_srq");
	typeof(rdma_destroy_id) *destroy_id = dlsym(RTLD_DEFAULT, "rdma_destroy_id");
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr plain = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } }, foreign = plain;
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct rdma_cm_id *id;
	int n = 0;

	MUST(get_devices && free_devices && create_id && resolve_addr && create_qp && create_srq && destroy_id);
	*called = "";
	struct ibv_context **list = get_devices(&n);

	MUST(list && n == 1 && !strcmp(list[0]->device->name, "softrnic0"));
	free_devices(list);
	MUST(!create_id(NULL, &id, NULL, RDMA_PS_TCP)); // without a channel: calls wait for their events
	MUST(!resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
	MUST(!strcmp(id->verbs->device->name, "softrnic0"));
	errno = 0;
	MUST(create_qp(id, pd, &plain) == -1 && errno == EINVAL);
	foreign.send_cq = foreign.recv_cq = cq;
	errno = 0;
	MUST(create_qp(id, NULL, &foreign) == -1 && errno == EINVAL);
	errno = 0;
	MUST(create_srq(id, pd, &shared) == -1 && errno == EINVAL);
	MUST(!destroy_id(id));
	MUST(!strcmp(*called, ""));
}

static void adapter(struct ibv_device *device)
{
	THERE(ibv_get_device_name, device);
	THERE(ibv_get_device_guid, device);
	THERE(ibv_get_device_index, device);

	struct ibv_context *context = ibv_open_device(device);

	MUST(context && context->device == device);
	THERE(ibv_query_device, context);
	THERE(ibv_query_port, context);
	THERE(ibv_query_gid, context);
	THERE(ibv_query_pkey, context);
	THERE(ibv_get_pkey_index, context);
	THERE(ibv_init_ah_from_wc, context);
	THERE(ibv_resolve_eth_l2_from_gid, context);
	THERE(ibv_get_async_event, context);
	THERE(_ibv_query_gid_table, context);
	THERE(_ibv_query_gid_ex, context);

	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, channel, 0);
	struct ibv_async_event event = { .element.cq = cq, .event_type = IBV_EVENT_CQ_ERR };

	MUST(channel && channel->context == context && pd->context == context && cq->context == context);
	MUST(arguments[3] == channel);
	connections(pd, cq);
	THERE(ibv_get_cq_event, channel);
	THERE(ibv_ack_cq_events, cq);
	THERE(ibv_ack_async_event, &event);
	THERE(ibv_resize_cq, cq);
	THERE(ibv_reg_mr, pd);
	THERE(ibv_reg_mr_iova, pd);
	THERE(ibv_reg_mr_iova2, pd);
	THERE(ibv_reg_dmabuf_mr, pd);
	THERE(ibv_create_srq, pd);
	THERE(ibv_create_ah, pd);
	THERE(ibv_create_ah_from_wc, pd);
	THERE(ibv_create_qp, pd);

	// The adapter's objects look alike.
	struct ibv_mr *mr = (struct ibv_mr *)pd;
	struct ibv_srq *srq = (struct ibv_srq *)pd;
	struct ibv_ah *ah = (struct ibv_ah *)pd;
	struct ibv_qp *qp = (struct ibv_qp *)pd;

	THERE(ibv_unimport_mr, mr);
	THERE(ibv_unimport_pd, pd);
	THERE(ibv_rereg_mr, mr);
	THERE(ibv_dereg_mr, mr);
	THERE(ibv_modify_srq, srq);
	THERE(ibv_query_srq, srq);
	THERE(ibv_destroy_srq, srq);
	THERE(ibv_destroy_ah, ah);
	THERE(ibv_query_qp, qp);
	THERE(ibv_modify_qp, qp);
	THERE(ibv_attach_mcast, qp);
	THERE(ibv_detach_mcast, qp);
	THERE(ibv_qp_to_qp_ex, qp);
	THERE(ibv_destroy_qp, qp);
	THERE(ibv_destroy_cq, cq);
	THERE(ibv_dealloc_pd, pd);
	THERE(ibv_destroy_comp_channel, channel);

	// A function that its library does not have fails, and never reaches softrnic's.
	struct ibv_ece ece;

	MUST(ibv_query_ece(qp, &ece) == EOPNOTSUPP);
	MUST(ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	errno = 0;
	MUST(ibv_import_pd(context, 1) == NULL && errno == EOPNOTSUPP);
	THERE(ibv_close_device, context);
}

int main(int argc, char **argv)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	MUST(argc == 2 && n == atoi(argv[1]));
	MUST(!strcmp(ibv_get_device_name(list[0]), "softrnic0") && list[n] == NULL);
	if (n > 1) {
		called = dlsym(RTLD_DEFAULT, "adapter_called");
		arguments = dlsym(RTLD_DEFAULT, "adapter_arguments");
		MUST(called && arguments);
		adapter(list[1]);
	}

	// softrnic's functions work beside it.
	if (called)
		*called = "";
#define X(name) verbs.name = name;
	VERBS(X)
#undef X
	verbs.ibv_query_port = (typeof(verbs.ibv_query_port))ibv_query_port;

	struct ibv_context *context = ibv_open_device(list[0]);

	MUST(context != NULL);
	move_data(context);
	MUST(!ibv_close_device(context));
	MUST(!called || !strcmp(*called, ""));
	ibv_free_device_list(list);
	MUST(!called || !strcmp(*called, "ibv_free_device_list"));
	return 0;
}
