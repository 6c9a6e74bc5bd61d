/* Connections that do not come about: REJECTED with its reasons and data, UNREACHABLE, ends before the beginning. */
#include "harness.h"

#include <arpa/inet.h>

/* IBTA's reasons in a REJ, table "REJ message rejection reason". */
enum { REASON_SERVICE_ID = 8, REASON_CONSUMER = 28, REASON_VENDOR_OPTION = 35 };

enum { REJECT_DATA = 148 };

static void reject_with_data(const struct where *w)
{
	static const int lengths[] = { 0, 1, REJECT_DATA };
	for (int i = 0; i < 3; i++) {
		uint8_t data[256];
		struct event e;
		struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
		pattern(data, sizeof(data), i);
		OK(rdma_reject(p.server, data, lengths[i]));
		e = EXPECT(p.client_ch, REJECTED, REASON_CONSUMER);
		TRUE(e.id == p.client);
		PATTERN(&e, lengths[i], i, REJECT_DATA);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		OK(ibv_query_qp(p.client->qp, &attr, IBV_QP_STATE, &init));
		IS(attr.qp_state, IBV_QPS_ERR);
		QUIET(p.server_ch);
		destroyed(&p);
	}
}

static void reject_data_too_long(const struct where *w)
{
	uint8_t data[256] = { 0 };
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	FAILS(rdma_reject(p.server, data, REJECT_DATA + 1), EINVAL);
	FAILS(rdma_reject(p.server, data, 255), EINVAL);
	OK(rdma_reject(p.server, data, REJECT_DATA));
	EXPECT(p.client_ch, REJECTED, REASON_CONSUMER);
}

static void reject_ece(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	OK(rdma_reject_ece(p.server, "why", 3));
	e = EXPECT(p.client_ch, REJECTED, REASON_VENDOR_OPTION);
	IS(memcmp(e.data, "why", 3), 0);
}

static void no_listener(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *listen = listener(ch, w, RDMA_PS_TCP, 2);
	uint16_t port = port_of(listen);
	struct rdma_conn_param param = parameters("x", 1);
	OK(rdma_destroy_id(listen));
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port);
	queue_pair(id);
	OK(rdma_connect(id, &param));
	struct event e = EXPECT(ch, REJECTED, REASON_SERVICE_ID);
	TRUE(e.id == id);
	PATTERN(&e, 0, 0, REJECT_DATA);
	QUIET(ch);
}

/* Bound is not listening. */
static void bound_only(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *bound = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_bind_addr(bound, with_port(w, 0, &s)));
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port_of(bound));
	queue_pair(id);
	OK(rdma_connect(id, &param));
	EXPECT(ch, REJECTED, REASON_SERVICE_ID);
}

/* A listener for datagrams is none for connections. */
static void other_port_space(const struct where *w)
{
	struct rdma_event_channel *ch = channel(), *server_ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_UDP, 2);
	struct rdma_conn_param param = parameters(NULL, 0);
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port_of(listen));
	queue_pair(id);
	OK(rdma_connect(id, &param));
	EXPECT(ch, REJECTED, REASON_SERVICE_ID);
	QUIET(server_ch);
}

/* The server destroys the request instead of answering. */
static void destroyed_request(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	OK(rdma_destroy_id(p.server));
	EXPECT(p.client_ch, REJECTED, REASON_CONSUMER);
}

/* The listener goes, with a request that was not read. */
static void destroyed_listener(const struct where *w)
{
	struct rdma_event_channel *server_ch = channel(), *ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_TCP, 2);
	struct rdma_conn_param param = parameters(NULL, 0);
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port_of(listen));
	queue_pair(id);
	OK(rdma_connect(id, &param));
	struct pollfd p = { .fd = server_ch->fd, .events = POLLIN };
	IS(poll(&p, 1, PATIENCE), 1);
	OK(rdma_destroy_id(listen));
	EXPECT(ch, REJECTED, REASON_CONSUMER);
	QUIET(server_ch);
}

/* A request that was read outlives its listener. */
static void request_outlives_listener(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_destroy_id(p.listen));
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	EXPECT(p.client_ch, ESTABLISHED, 0);
	EXPECT(p.server_ch, ESTABLISHED, 0);
	traffic(p.client, p.server);
}

/* After a rejection the id is of no further use but to be destroyed, and another takes its place. */
static void again_after_rejection(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_reject(p.server, NULL, 0));
	EXPECT(p.client_ch, REJECTED, REASON_CONSUMER);
	FAILS(rdma_connect(p.client, &param), EINVAL);
	FAILS(rdma_accept(p.server, &param), EINVAL);
	OK(rdma_destroy_id(p.server));
	rdma_destroy_qp(p.client);
	OK(rdma_destroy_id(p.client));
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	queue_pair(p.client);
	OK(rdma_connect(p.client, &param));
	e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	queue_pair(e.id);
	OK(rdma_accept(e.id, &param));
	EXPECT(p.client_ch, ESTABLISHED, 0);
}

static void accept_twice(const struct where *w)
{
	struct pair p = connected(w);
	struct rdma_conn_param param = parameters(NULL, 0);
	FAILS(rdma_reject(p.server, NULL, 0), EINVAL);
	FAILS(rdma_connect(p.client, &param), EINVAL);
	traffic(p.client, p.server);
}

/*
 * The client takes its request back. Linux tells the server nothing of requests that it has not answered (ucma_event_handler:
 * no events before the id has its context, which accept gives it); accepting fails.
 */
static void client_gives_up(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_conn_param param = parameters(NULL, 0);
	queue_pair(p.server);
	rdma_destroy_qp(p.client);
	OK(rdma_destroy_id(p.client));
	QUIET(p.server_ch);
	FAILS(rdma_accept(p.server, &param), EINVAL);
	QUIET(p.server_ch);
}

/*
 * Another host, which does not answer: resolving fails, or connecting ends in UNREACHABLE. Which of the two depends on
 * the routes of this machine, so both are right; hanging is not.
 */
static void other_host(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_conn_param param = parameters(NULL, 0);
	struct event e;
	(void)w;
	inet_pton(AF_INET, "203.0.113.7", &in.sin_addr);
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&in, 500)) {
		TRUE(errno == ENETUNREACH || errno == EHOSTUNREACH || errno == ENODEV);
		return;
	}
	TRUE(next_event(ch, PATIENCE, &e));
	if (e.type == RDMA_CM_EVENT_ADDR_ERROR) {
		TRUE(e.status < 0);
		return;
	}
	IS(e.type, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_resolve_route(id, 500));
	TRUE(next_event(ch, PATIENCE, &e));
	if (e.type == RDMA_CM_EVENT_ROUTE_ERROR || e.type == RDMA_CM_EVENT_UNREACHABLE) {
		TRUE(e.status < 0);
		return;
	}
	IS(e.type, RDMA_CM_EVENT_ROUTE_RESOLVED);
	queue_pair(id);
	OK(rdma_connect(id, &param));
	TRUE(next_event(ch, 100000, &e));
	IS(e.type, RDMA_CM_EVENT_UNREACHABLE);
	IS(e.status, -ETIMEDOUT);
}

const struct test reject_tests[] = {
	{ "reject_with_data", reject_with_data, true, 0 },
	{ "reject_data_too_long", reject_data_too_long, true, 0 },
	{ "reject_ece", reject_ece, true, 0 },
	{ "no_listener", no_listener, true, 0 },
	{ "bound_only", bound_only, true, 0 },
	{ "other_port_space", other_port_space, true, 0 },
	{ "destroyed_request", destroyed_request, true, 0 },
	{ "destroyed_listener", destroyed_listener, true, 0 },
	{ "request_outlives_listener", request_outlives_listener, true, 0 },
	{ "again_after_rejection", again_after_rejection, true, 0 },
	{ "accept_twice", accept_twice, true, 0 },
	{ "client_gives_up", client_gives_up, true, 0 },
	{ "other_host", other_host, false, 120 },
	{ 0 },
};
