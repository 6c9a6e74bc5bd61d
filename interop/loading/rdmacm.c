// Loads libibverbs and librdmacm as NCCL does, connects to itself through the connection manager, and moves data.
//
//   rdmacm FLAGS VERBS-NAME RDMACM-NAME...
#include "load.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#define CM(X) \
	X(rdma_create_event_channel) X(rdma_destroy_event_channel) X(rdma_create_id) X(rdma_destroy_id) X(rdma_bind_addr) \
	X(rdma_resolve_addr) X(rdma_resolve_route) X(rdma_create_qp) X(rdma_destroy_qp) X(rdma_connect) X(rdma_listen) \
	X(rdma_accept) X(rdma_disconnect) X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_event_str) X(rdma_get_src_port)

static struct {
#define X(name) typeof(name) *name;
	CM(X)
#undef X
} cm;

static void find_cm(void *handle)
{
#define X(name) cm.name = (typeof(cm.name))find(handle, #name, "RDMACM_1.0");
	CM(X)
#undef X
	find(handle, "rdma_getaddrinfo", "RDMACM_1.0");
	find(handle, "rdma_create_qp_ex", "RDMACM_1.0");
	find(handle, "rdma_join_multicast_ex", "RDMACM_1.1");
	find(handle, "rdma_establish", "RDMACM_1.2");
	find(handle, "rdma_get_remote_ece", "RDMACM_1.3");
	MUST(dlvsym(handle, "rdma_create_id", "RDMACM_1.9") == NULL);
}

// Wait for this event, and return the id that it is for.
static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	MUST(!cm.rdma_get_cm_event(channel, &event));
	if (event->event != type)
		fprintf(stderr, "%s, status %d\n", cm.rdma_event_str(event->event), event->status);
	MUST(event->event == type);

	struct rdma_cm_id *id = event->id;

	MUST(!cm.rdma_ack_cm_event(event));
	return id;
}

int main(int argc, char **argv)
{
	static unsigned char data[2][65536];
	char *verbs_name[2] = { argc > 3 ? argv[2] : NULL, NULL };

	MUST(argc > 3);
	find_verbs(open_one_of(verbs_name, flags_of(argv[1])));
	find_cm(open_one_of(argv + 3, flags_of(argv[1])));
	verbs.ibv_close_device(open_device());

	struct rdma_event_channel *channel[2] = { cm.rdma_create_event_channel(), cm.rdma_create_event_channel() };
	struct rdma_cm_id *listener, *client;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	MUST(channel[0] && channel[1]);
	MUST(!cm.rdma_create_id(channel[1], &listener, NULL, RDMA_PS_TCP));
	MUST(!cm.rdma_bind_addr(listener, (struct sockaddr *)&address));
	MUST(!cm.rdma_listen(listener, 4));
	address.sin_port = cm.rdma_get_src_port(listener);
	MUST(!cm.rdma_create_id(channel[0], &client, NULL, RDMA_PS_TCP));
	MUST(!cm.rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 2000));
	expect(channel[0], RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(!cm.rdma_resolve_route(client, 2000));
	expect(channel[0], RDMA_CM_EVENT_ROUTE_RESOLVED);

	struct ibv_pd *pd = verbs.ibv_alloc_pd(client->verbs);
	struct ibv_cq *cq = verbs.ibv_create_cq(client->verbs, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1, .retry_count = 7, .rnr_retry_count = 7 };

	MUST(pd && cq);
	MUST(!cm.rdma_create_qp(client, pd, &init));
	MUST(!cm.rdma_connect(client, &param));

	struct rdma_cm_id *server = expect(channel[1], RDMA_CM_EVENT_CONNECT_REQUEST);

	// Either library finds the one device: its context from one library is that of the other's objects.
	MUST(server->verbs == client->verbs);
	MUST(!cm.rdma_create_qp(server, pd, &init));
	MUST(!cm.rdma_accept(server, &param));
	expect(channel[0], RDMA_CM_EVENT_ESTABLISHED);
	expect(channel[1], RDMA_CM_EVENT_ESTABLISHED);

	struct ibv_mr *mr = verbs.ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp[2] = { client->qp, server->qp };

	MUST(mr != NULL);
	send_and_compare(qp, cq, data, sizeof data[0], mr->lkey);
	MUST(!cm.rdma_disconnect(client));
	expect(channel[1], RDMA_CM_EVENT_DISCONNECTED);
	cm.rdma_disconnect(server);
	expect(channel[0], RDMA_CM_EVENT_DISCONNECTED);
	cm.rdma_destroy_qp(client);
	cm.rdma_destroy_qp(server);
	MUST(!verbs.ibv_dereg_mr(mr) && !verbs.ibv_destroy_cq(cq) && !verbs.ibv_dealloc_pd(pd));
	MUST(!cm.rdma_destroy_id(client) && !cm.rdma_destroy_id(server) && !cm.rdma_destroy_id(listener));
	cm.rdma_destroy_event_channel(channel[0]);
	cm.rdma_destroy_event_channel(channel[1]);
	return 0;
}
