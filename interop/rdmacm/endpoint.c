/* Endpoints: ids without a channel, whose calls wait for the answer themselves. */
#include "harness.h"

#include <pthread.h>

static struct ibv_qp_init_attr queue(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
}

static struct rdma_addrinfo *lookup(const struct where *w, int flags, uint16_t port, int ps)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = ps }, *res;
	char service[8];
	snprintf(service, sizeof(service), "%u", port);
	OK(rdma_getaddrinfo(w->text, service, &hints, &res));
	return res;
}

static struct rdma_cm_id *passive(const struct where *w)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr = queue();
	struct rdma_addrinfo *res = lookup(w, RAI_PASSIVE, 0, RDMA_PS_TCP);
	OK(rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	OK(rdma_listen(id, 4));
	TRUE(port_of(id) != 0);
	return id;
}

struct server {
	struct rdma_cm_id *listen, *id;
	bool reject;
};

static void *serve(void *arg)
{
	struct server *s = arg;
	OK(rdma_get_request(s->listen, &s->id));
	TRUE(s->id->event != NULL);
	IS(s->id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	IS(memcmp(s->id->event->param.conn.private_data, "sync", 4), 0);
	TRUE(s->id->channel != s->listen->channel);
	TRUE(s->id->qp != NULL);
	struct rdma_conn_param param = parameters("back", 4);
	if (s->reject)
		OK(rdma_reject(s->id, "no", 2));
	else
		OK(rdma_accept(s->id, &param));
	return NULL;
}

static void *leave(void *arg)
{
	struct rdma_cm_id *id = arg;
	OK(rdma_disconnect(id));
	IS(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
	return NULL;
}

static struct rdma_cm_id *active(const struct where *w, uint16_t port)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr = queue();
	struct rdma_addrinfo *res = lookup(w, 0, port, RDMA_PS_TCP);
	OK(rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	TRUE(id->qp != NULL);
	TRUE(id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	IS(attr.qp_type, IBV_QPT_RC);
	return id;
}

static void endpoints_connect(const struct where *w)
{
	struct server s = { .listen = passive(w) };
	pthread_t thread;
	IS(pthread_create(&thread, NULL, serve, &s), 0);
	struct rdma_cm_id *id = active(w, port_of(s.listen));
	struct rdma_conn_param param = parameters("sync", 4);
	OK(rdma_connect(id, &param));
	TRUE(id->event != NULL);
	IS(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	IS(memcmp(id->event->param.conn.private_data, "back", 4), 0);
	IS(pthread_join(thread, NULL), 0);
	traffic(id, s.id);
	/* Each side's disconnect waits until the other's has come. */
	IS(pthread_create(&thread, NULL, leave, s.id), 0);
	leave(id);
	IS(pthread_join(thread, NULL), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(s.id);
	rdma_destroy_ep(s.listen);
}

static void endpoint_rejected(const struct where *w)
{
	struct server s = { .listen = passive(w), .reject = true };
	pthread_t thread;
	IS(pthread_create(&thread, NULL, serve, &s), 0);
	struct rdma_cm_id *id = active(w, port_of(s.listen));
	struct rdma_conn_param param = parameters("sync", 4);
	FAILS(rdma_connect(id, &param), ECONNREFUSED);
	IS(id->event->event, RDMA_CM_EVENT_REJECTED);
	IS(id->event->status, 28);
	IS(memcmp(id->event->param.conn.private_data, "no", 2), 0);
	IS(pthread_join(thread, NULL), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(s.id);
	rdma_destroy_ep(s.listen);
}

static void endpoint_refused(const struct where *w)
{
	struct rdma_cm_id *listen = passive(w);
	uint16_t port = port_of(listen);
	rdma_destroy_ep(listen);
	struct rdma_cm_id *id = active(w, port);
	struct rdma_conn_param param = parameters(NULL, 0);
	FAILS(rdma_connect(id, &param), ECONNREFUSED);
	rdma_destroy_ep(id);
}

/* The calls of an id that was made without a channel wait as well. */
static void synchronous_id(const struct where *w)
{
	struct rdma_cm_id *id;
	struct sockaddr_storage s;
	OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	TRUE(id->event != NULL);
	IS(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	TRUE(id->verbs != NULL);
	OK(rdma_resolve_route(id, 2000));
	IS(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	OK(rdma_destroy_id(id));
}

static void endpoint_in_use(const struct where *w)
{
	struct rdma_cm_id *first = passive(w), *second;
	struct rdma_addrinfo *res = lookup(w, RAI_PASSIVE, port_of(first), RDMA_PS_TCP);
	FAILS(rdma_create_ep(&second, res, NULL, NULL), in_use(w));
	rdma_freeaddrinfo(res);
	rdma_destroy_ep(first);
}

static void endpoint_without_queue_pair(const struct where *w)
{
	struct rdma_cm_id *id;
	struct rdma_addrinfo *res = lookup(w, 0, 7471, RDMA_PS_TCP);
	OK(rdma_create_ep(&id, res, NULL, NULL));
	TRUE(id->qp == NULL && id->verbs != NULL && id->pd != NULL);
	IS(id->route.num_paths, 1);
	queue_pair(id);
	TRUE(id->qp != NULL);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
}

static void endpoint_for_datagrams(const struct where *w)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr = queue();
	struct rdma_addrinfo *res = lookup(w, 0, 7471, RDMA_PS_UDP);
	OK(rdma_create_ep(&id, res, NULL, &attr));
	IS(id->qp_type, IBV_QPT_UD);
	IS(id->qp->qp_type, IBV_QPT_UD);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
}

static void get_request_needs_no_channel(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *listen = listener(ch, w, RDMA_PS_TCP, 1), *id;
	FAILS(rdma_get_request(listen, &id), EINVAL);
}

/* Data that the addrinfo carries goes before the program's own. */
static void connect_data_of_the_addrinfo(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *listen = listener(ch, w, RDMA_PS_TCP, 1), *id;
	struct rdma_addrinfo *res = lookup(w, 0, port_of(listen), RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = queue();
	struct rdma_conn_param param = parameters("program", 7);
	struct rdma_event_channel *later = channel();
	res->ai_connect = strdup("header:");
	res->ai_connect_len = 7;
	OK(rdma_create_ep(&id, res, NULL, &attr));
	rdma_freeaddrinfo(res);
	/* With a channel of its own the connect does not wait. */
	OK(rdma_migrate_id(id, later));
	OK(rdma_connect(id, &param));
	struct event e = EXPECT(ch, CONNECT_REQUEST, 0);
	IS(memcmp(e.data, "header:program\0", 15), 0);
}

const struct test endpoint_tests[] = {
	{ "endpoints_connect", endpoints_connect, true, 0 },
	{ "endpoint_rejected", endpoint_rejected, true, 0 },
	{ "endpoint_refused", endpoint_refused, true, 0 },
	{ "synchronous_id", synchronous_id, true, 0 },
	{ "endpoint_in_use", endpoint_in_use, true, 0 },
	{ "endpoint_without_queue_pair", endpoint_without_queue_pair, true, 0 },
	{ "endpoint_for_datagrams", endpoint_for_datagrams, true, 0 },
	{ "get_request_needs_no_channel", get_request_needs_no_channel, false, 0 },
	{ "connect_data_of_the_addrinfo", connect_data_of_the_addrinfo, true, 0 },
	{ 0 },
};
