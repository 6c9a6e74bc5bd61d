/* Connections: events and their parameters on both sides, addresses, data, the end. */
#include "harness.h"

#include <arpa/inet.h>

/* The room of REQ and REP behind the connection manager's own fields. */
enum { REQUEST_DATA = 56, REPLY_DATA = 196 };

static void connect_and_disconnect(const struct where *w)
{
	struct pair p = connected(w);
	/* The child takes the listener's channel, context and port space. */
	TRUE(p.server->channel == p.server_ch);
	TRUE(p.server->context == p.listen->context);
	IS(p.server->ps, RDMA_PS_TCP);
	traffic(p.client, p.server);
	disconnected(&p);
	destroyed(&p);
}

static void wildcard_listener(const struct where *w)
{
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct sockaddr_storage s;
	struct rdma_conn_param param = parameters(NULL, 0);
	p.listen = new_id(p.server_ch, RDMA_PS_TCP);
	OK(rdma_bind_addr(p.listen, wildcard(w->addr.sa.sa_family, 0, &s)));
	OK(rdma_listen(p.listen, 2));
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	queue_pair(p.client);
	OK(rdma_connect(p.client, &param));
	struct event e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	TRUE(e.listen_id == p.listen);
	p.server = e.id;
	TRUE(p.server->verbs != NULL);
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	EXPECT(p.client_ch, ESTABLISHED, 0);
	EXPECT(p.server_ch, ESTABLISHED, 0);
	traffic(p.client, p.server);
	disconnected(&p);
	destroyed(&p);
}

/* The IPv6 wildcard gets IPv4 requests too, unless AFONLY. */
static void wildcard6_hears_ipv4(const struct where *w)
{
	int one = 1;
	if (w->addr.sa.sa_family != AF_INET)
		return;
	for (int only = 0; only < 2; only++) {
		struct rdma_event_channel *server_ch = channel(), *client_ch = channel();
		struct sockaddr_storage s;
		struct rdma_conn_param param = parameters(NULL, 0);
		struct rdma_cm_id *listen = new_id(server_ch, RDMA_PS_TCP);
		if (only)
			OK(rdma_set_option(listen, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)));
		OK(rdma_bind_addr(listen, wildcard(AF_INET6, 0, &s)));
		OK(rdma_listen(listen, 2));
		struct rdma_cm_id *client = routed(client_ch, w, RDMA_PS_TCP, port_of(listen));
		queue_pair(client);
		OK(rdma_connect(client, &param));
		if (only) {
			/* The port is there, the address is not: no reason but the consumer's. */
			EXPECT(client_ch, REJECTED, 28);
		} else {
			struct event e = EXPECT(server_ch, CONNECT_REQUEST, 0);
			IS(rdma_get_peer_addr(e.id)->sa_family, AF_INET);
		}
	}
}

/* A listener on one address is not there for the others; the port being known, the reason is the consumer's. */
static void listener_on_one_address(const struct where *w)
{
	struct rdma_event_channel *server_ch = channel(), *client_ch = channel();
	struct rdma_conn_param param = parameters(NULL, 0);
	const struct where *at = interface_address(AF_INET), *other = interface_address(AF_INET6);
	(void)w;
	if (!at || !other)
		skip("no interface with an IPv4 and an IPv6 address");
	for (int i = 0; i < 2; i++) {
		const struct where *third = at;
		struct rdma_cm_id *listen = listener(server_ch, at, RDMA_PS_TCP, 1);
		struct rdma_cm_id *client = routed(client_ch, other, RDMA_PS_TCP, port_of(listen));
		queue_pair(client);
		OK(rdma_connect(client, &param));
		EXPECT(client_ch, REJECTED, 28);
		QUIET(server_ch);
		at = other;
		other = third;
	}
}

static void addresses_on_both_sides(const struct where *w)
{
	struct pair p = connected(w);
	IS(rdma_get_src_port(p.client), rdma_get_dst_port(p.server));
	IS(rdma_get_src_port(p.server), rdma_get_dst_port(p.client));
	IS(rdma_get_src_port(p.listen), rdma_get_dst_port(p.client));
	struct rdma_cm_id *ids[] = { p.client, p.server };
	for (int i = 0; i < 2; i++) {
		struct sockaddr *ends[] = { rdma_get_local_addr(ids[i]), rdma_get_peer_addr(ids[i]) };
		for (int j = 0; j < 2; j++) {
			IS(ends[j]->sa_family, w->addr.sa.sa_family);
			if (w->addr.sa.sa_family == AF_INET)
				IS(((struct sockaddr_in *)ends[j])->sin_addr.s_addr, w->addr.in.sin_addr.s_addr);
			else
				IS(memcmp(&((struct sockaddr_in6 *)ends[j])->sin6_addr, &w->addr.in6.sin6_addr, 16), 0);
		}
	}
	IS(p.server->port_num, 1);
	TRUE(p.server->verbs == p.client->verbs);
}

/* Every length that is allowed, both ways; the event's length is the message's room, zeros fill it. */
static void private_data(const struct where *w)
{
	static const int lengths[][2] = { { 0, 0 }, { 1, 1 }, { 17, 100 }, { REQUEST_DATA, REPLY_DATA } };
	for (int i = 0; i < 4; i++) {
		uint8_t data[256];
		struct event e;
		pattern(data, sizeof(data), i);
		struct pair p = requested(w, RDMA_PS_TCP, data, lengths[i][0], &e);
		PATTERN(&e, lengths[i][0], i, REQUEST_DATA);
		queue_pair(p.server);
		struct rdma_conn_param param = parameters(data, lengths[i][1]);
		OK(rdma_accept(p.server, &param));
		e = EXPECT(p.client_ch, ESTABLISHED, 0);
		PATTERN(&e, lengths[i][1], i, REPLY_DATA);
		e = EXPECT(p.server_ch, ESTABLISHED, 0);
		IS(e.len, 0);
		OK(rdma_disconnect(p.server));
		e = EXPECT(p.client_ch, DISCONNECTED, 0);
		IS(e.len, 0);
		destroyed(&p);
	}
}

/* One byte too much, and one more does no harm to what follows. */
static void private_data_too_long(const struct where *w)
{
	uint8_t data[256] = { 0 };
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	p.listen = listener(p.server_ch, w, RDMA_PS_TCP, 2);
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	queue_pair(p.client);
	struct rdma_conn_param param = parameters(data, REQUEST_DATA + 1);
	FAILS(rdma_connect(p.client, &param), EINVAL);
	param.private_data_len = 255;
	FAILS(rdma_connect(p.client, &param), EINVAL);
	param.private_data_len = REQUEST_DATA;
	OK(rdma_connect(p.client, &param));
	struct event e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	p.server = e.id;
	queue_pair(p.server);
	param.private_data_len = REPLY_DATA + 1;
	FAILS(rdma_accept(p.server, &param), EINVAL);
}

/* The number of requests that one side offers to start is the number that the other's event asks it to answer. */
static void parameters_cross(const struct where *w)
{
	struct event e;
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct rdma_conn_param param = { .responder_resources = 3, .initiator_depth = 2, .flow_control = 1, .retry_count = 5,
		.rnr_retry_count = 4 };
	p.listen = listener(p.server_ch, w, RDMA_PS_TCP, 2);
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	queue_pair(p.client);
	OK(rdma_connect(p.client, &param));
	e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	IS(e.conn.responder_resources, 2);
	IS(e.conn.initiator_depth, 3);
	IS(e.conn.flow_control, 1);
	IS(e.conn.retry_count, 5);
	IS(e.conn.rnr_retry_count, 4);
	IS(e.conn.srq, 0);
	IS(e.conn.qp_num, p.client->qp->qp_num);
	p.server = e.id;
	queue_pair(p.server);
	struct rdma_conn_param back = { .responder_resources = 2, .initiator_depth = 1, .flow_control = 1, .rnr_retry_count = 3 };
	OK(rdma_accept(p.server, &back));
	e = EXPECT(p.client_ch, ESTABLISHED, 0);
	IS(e.conn.responder_resources, 1);
	IS(e.conn.initiator_depth, 2);
	IS(e.conn.flow_control, 1);
	IS(e.conn.rnr_retry_count, 3);
	IS(e.conn.qp_num, p.server->qp->qp_num);
	EXPECT(p.server_ch, ESTABLISHED, 0);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	OK(ibv_query_qp(p.client->qp, &attr, IBV_QP_STATE | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_DEST_QPN |
		IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &init));
	IS(attr.qp_state, IBV_QPS_RTS);
	IS(attr.retry_cnt, 5);
	IS(attr.rnr_retry, 3);
	IS(attr.dest_qp_num, p.server->qp->qp_num);
	OK(ibv_query_qp(p.server->qp, &attr, IBV_QP_STATE | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_DEST_QPN, &init));
	IS(attr.qp_state, IBV_QPS_RTS);
	IS(attr.retry_cnt, 5);
	IS(attr.rnr_retry, 4);
	IS(attr.dest_qp_num, p.client->qp->qp_num);
}

/* RDMA_MAX_* stand for what the device can do; more than that is refused. */
static void depths(const struct where *w)
{
	struct event e;
	struct ibv_device_attr device;
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct rdma_conn_param param = parameters(NULL, 0);
	p.listen = listener(p.server_ch, w, RDMA_PS_TCP, 2);
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	queue_pair(p.client);
	OK(ibv_query_device(p.client->verbs, &device));
	if (device.max_qp_init_rd_atom < 254) {
		param.initiator_depth = device.max_qp_init_rd_atom + 1;
		FAILS(rdma_connect(p.client, &param), EINVAL);
		param.initiator_depth = 1;
	}
	if (device.max_qp_rd_atom < 254) {
		param.responder_resources = device.max_qp_rd_atom + 1;
		FAILS(rdma_connect(p.client, &param), EINVAL);
	}
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	param.responder_resources = RDMA_MAX_RESP_RES;
	OK(rdma_connect(p.client, &param));
	e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	IS(e.conn.responder_resources, (uint8_t)device.max_qp_init_rd_atom);
	IS(e.conn.initiator_depth, (uint8_t)device.max_qp_rd_atom);
}

/* Without parameters: the device's depths, and seven retries. */
static void connect_without_parameters(const struct where *w)
{
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	p.listen = listener(p.server_ch, w, RDMA_PS_TCP, 2);
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	FAILS(rdma_connect(p.client, NULL), EINVAL);
	queue_pair(p.client);
	OK(rdma_connect(p.client, NULL));
	struct event e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	IS(e.conn.retry_count, 7);
	IS(e.conn.rnr_retry_count, 7);
	p.server = e.id;
	queue_pair(p.server);
	OK(rdma_accept(p.server, NULL));
	EXPECT(p.client_ch, ESTABLISHED, 0);
	EXPECT(p.server_ch, ESTABLISHED, 0);
	traffic(p.client, p.server);
}

/* The server goes first; twice is once; the queue pairs are in error, posted requests are flushed. */
static void disconnect(const struct where *w)
{
	struct pair p = connected(w);
	static char buffer[64];
	struct ibv_mr *mr = rdma_reg_msgs(p.client, buffer, sizeof(buffer));
	OK(rdma_post_recv(p.client, (void *)5, buffer, sizeof(buffer), mr));
	OK(rdma_disconnect(p.server));
	EXPECT(p.client_ch, DISCONNECTED, 0);
	OK(rdma_disconnect(p.client));
	EXPECT(p.server_ch, DISCONNECTED, 0);
	struct ibv_wc wc;
	IS(rdma_get_recv_comp(p.client, &wc), 1);
	IS(wc.status, IBV_WC_WR_FLUSH_ERR);
	IS(wc.wr_id, 5);
	QUIET(p.client_ch);
	QUIET(p.server_ch);
}

static void timewait_exit(const struct where *w)
{
	struct pair p = connected(w);
	disconnected(&p);
	struct event e = EXPECT(p.client_ch, TIMEWAIT_EXIT, 0);
	TRUE(e.id == p.client);
	e = EXPECT(p.server_ch, TIMEWAIT_EXIT, 0);
	TRUE(e.id == p.server);
	destroyed(&p);
}

/* Destroying a connected id tells the peer. */
static void destroy_disconnects(const struct where *w)
{
	for (int side = 0; side < 2; side++) {
		struct pair p = connected(w);
		struct rdma_cm_id **gone = side ? &p.server : &p.client;
		rdma_destroy_qp(*gone);
		OK(rdma_destroy_id(*gone));
		*gone = NULL;
		EXPECT(side ? p.client_ch : p.server_ch, DISCONNECTED, 0);
		destroyed(&p);
	}
}

/* A queue pair that the program drives itself: CONNECT_RESPONSE, and then rdma_establish. */
static void establish_by_hand(const struct where *w)
{
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct rdma_conn_param param = parameters("hello", 5);
	p.listen = listener(p.server_ch, w, RDMA_PS_TCP, 2);
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	struct ibv_cq *cq = ibv_create_cq(p.client->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qps[2] = { ibv_create_qp(p.client->pd, &init), ibv_create_qp(p.client->pd, &init) };
	struct ibv_qp_attr attr;
	int mask;
	TRUE(qps[0] && qps[1]);
	param.qp_num = qps[0]->qp_num;
	param.srq = 1;
	OK(rdma_connect(p.client, &param));
	struct event e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	IS(e.conn.qp_num, qps[0]->qp_num);
	IS(e.conn.srq, 1);
	p.server = e.id;
	int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int rts_mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC;
	const struct { enum ibv_qp_state state; int mask; } steps[] = { { IBV_QPS_INIT, init_mask },
		{ IBV_QPS_RTR, rtr_mask }, { IBV_QPS_RTS, rts_mask } };
	for (int i = 0; i < 3; i++) {
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = steps[i].state;
		OK(rdma_init_qp_attr(p.server, &attr, &mask));
		IS(mask, steps[i].mask);
		IS(attr.qp_state, steps[i].state);
		if (i == 1)
			IS(attr.dest_qp_num, qps[0]->qp_num);
		IS(ibv_modify_qp(qps[1], &attr, mask), 0);
	}
	param.qp_num = qps[1]->qp_num;
	param.srq = 0;
	OK(rdma_accept(p.server, &param));
	e = EXPECT(p.client_ch, CONNECT_RESPONSE, 0);
	IS(e.conn.qp_num, qps[1]->qp_num);
	IS(e.len, REPLY_DATA);
	IS(memcmp(e.data, "hello", 6), 0);
}

/* Such a connection to its end. */
static void establish_and_talk(const struct where *w)
{
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct rdma_conn_param param = parameters("hello", 5);
	p.listen = listener(p.server_ch, w, RDMA_PS_TCP, 2);
	p.client = routed(p.client_ch, w, RDMA_PS_TCP, port_of(p.listen));
	struct ibv_cq *cq = ibv_create_cq(p.client->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(p.client->pd, &init);
	static const enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	struct ibv_qp_attr attr;
	int mask;
	param.qp_num = qp->qp_num;
	OK(rdma_connect(p.client, &param));
	struct event e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	p.server = e.id;
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	e = EXPECT(p.client_ch, CONNECT_RESPONSE, 0);
	IS(e.conn.qp_num, p.server->qp->qp_num);
	IS(memcmp(e.data, "hello", 5), 0);
	IS(e.len, REPLY_DATA);
	QUIET(p.server_ch);
	for (int i = 0; i < 3; i++) {
		memset(&attr, 0, sizeof(attr));
		attr.qp_state = states[i];
		OK(rdma_init_qp_attr(p.client, &attr, &mask));
		IS(ibv_modify_qp(qp, &attr, mask), 0);
	}
	OK(rdma_establish(p.client));
	EXPECT(p.server_ch, ESTABLISHED, 0);
	QUIET(p.client_ch);
	/* One message each way. */
	static char out[16] = "by hand", in[16];
	struct ibv_mr *in_mr = rdma_reg_msgs(p.server, in, sizeof(in));
	struct ibv_mr *out_mr = ibv_reg_mr(p.client->pd, out, sizeof(out), IBV_ACCESS_LOCAL_WRITE);
	OK(rdma_post_recv(p.server, NULL, in, sizeof(in), in_mr));
	struct ibv_sge sge = { (uintptr_t)out, sizeof(out), out_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	IS(ibv_post_send(qp, &wr, &bad), 0);
	struct ibv_wc wc;
	IS(rdma_get_recv_comp(p.server, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(strcmp(in, "by hand"), 0);
	/* Neither side has a queue pair of librdmacm's here: the client's is not touched by disconnect. */
	OK(rdma_disconnect(p.client));
	EXPECT(p.server_ch, DISCONNECTED, 0);
	OK(rdma_disconnect(p.server));
	EXPECT(p.client_ch, DISCONNECTED, 0);
}

static void init_qp_attr_states(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	OK(rdma_resolve_route(id, 2000));
	EXPECT(ch, ROUTE_RESOLVED, 0);
	OK(rdma_init_qp_attr(id, &attr, &mask));
	IS(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	IS(attr.port_num, 1);
	IS(attr.pkey_index, 0);
	/* The type of the id, and not of a queue pair, decides. */
	struct rdma_cm_id *ud = routed(ch, w, RDMA_PS_UDP, 7471);
	attr.qp_state = IBV_QPS_INIT;
	OK(rdma_init_qp_attr(ud, &attr, &mask));
	IS(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	IS(attr.qkey, RDMA_UDP_QKEY);
	/* Linux fails alike in the later states. */
	attr.qp_state = IBV_QPS_RTR;
	OK(rdma_init_qp_attr(ud, &attr, &mask));
	IS(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
}

static void notify(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_conn_param param = parameters(NULL, 0);
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	/* The client's ESTABLISHED answers, which is read only later: until then the first message may have come. */
	OK(rdma_notify(p.server, IBV_EVENT_COMM_EST));
	EXPECT(p.server_ch, ESTABLISHED, 0);
	EXPECT(p.client_ch, ESTABLISHED, 0);
	FAILS(rdma_notify(p.server, IBV_EVENT_COMM_EST), EISCONN);
	FAILS(rdma_notify(p.client, IBV_EVENT_COMM_EST), EISCONN);
	FAILS(rdma_notify(p.server, IBV_EVENT_QP_FATAL), EINVAL);
	QUIET(p.server_ch);
	traffic(p.client, p.server);
}

static void ece_errors(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	struct ibv_ece ece = { .vendor_id = 0x2c9, .options = 5 };
	FAILS(rdma_set_local_ece(NULL, &ece), EINVAL);
	FAILS(rdma_set_local_ece(id, NULL), EINVAL);
	FAILS(rdma_get_remote_ece(NULL, &ece), EINVAL);
	FAILS(rdma_get_remote_ece(id, NULL), EINVAL);
	OK(rdma_set_local_ece(id, &ece));
	ece.vendor_id = 0;
	FAILS(rdma_set_local_ece(id, &ece), EINVAL);
	ece.vendor_id = 1;
	ece.comp_mask = 1;
	FAILS(rdma_set_local_ece(id, &ece), EINVAL);
	OK(rdma_get_remote_ece(id, &ece));
	IS(ece.vendor_id, 0);
	IS(ece.options, 0);
	IS(ece.comp_mask, 0);
	queue_pair(id);
	ece.comp_mask = 0;
	ece.vendor_id = 1;
	FAILS(rdma_set_local_ece(id, &ece), EINVAL);
	FAILS(rdma_get_remote_ece(id, &ece), EINVAL);
}

/* The options of each side reach the other. */
static void ece_travels(const struct where *w)
{
	struct rdma_event_channel *server_ch = channel(), *client_ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_TCP, 2);
	struct rdma_cm_id *client = routed(client_ch, w, RDMA_PS_TCP, port_of(listen));
	struct ibv_ece ece = { .vendor_id = 0x2c9, .options = 0x1003 };
	struct rdma_conn_param param = parameters(NULL, 0);
	struct event e;
	param.qp_num = 77;
	OK(rdma_set_local_ece(client, &ece));
	OK(rdma_connect(client, &param));
	e = EXPECT(server_ch, CONNECT_REQUEST, 0);
	memset(&ece, 0, sizeof(ece));
	OK(rdma_get_remote_ece(e.id, &ece));
	IS(ece.vendor_id, 0x2c9);
	IS(ece.options, 0x1003);
	ece.options = 0x1001;
	OK(rdma_set_local_ece(e.id, &ece));
	param.qp_num = 78;
	OK(rdma_accept(e.id, &param));
	e = EXPECT(client_ch, CONNECT_RESPONSE, 0);
	memset(&ece, 0, sizeof(ece));
	OK(rdma_get_remote_ece(client, &ece));
	IS(ece.vendor_id, 0x2c9);
	IS(ece.options, 0x1001);
}

const struct test connect_tests[] = {
	{ "connect_and_disconnect", connect_and_disconnect, true, 0 },
	{ "wildcard_listener", wildcard_listener, true, 0 },
	{ "wildcard6_hears_ipv4", wildcard6_hears_ipv4, true, 0 },
	{ "listener_on_one_address", listener_on_one_address, false, 0 },
	{ "addresses_on_both_sides", addresses_on_both_sides, true, 0 },
	{ "private_data", private_data, true, 0 },
	{ "private_data_too_long", private_data_too_long, true, 0 },
	{ "parameters_cross", parameters_cross, true, 0 },
	{ "depths", depths, false, 0 },
	{ "connect_without_parameters", connect_without_parameters, true, 0 },
	{ "disconnect", disconnect, true, 0 },
	{ "timewait_exit", timewait_exit, true, 0 },
	{ "destroy_disconnects", destroy_disconnects, true, 0 },
	{ "establish_by_hand", establish_by_hand, true, 0 },
	{ "establish_and_talk", establish_and_talk, true, 0 },
	{ "init_qp_attr_states", init_qp_attr_states, true, 0 },
	{ "notify", notify, true, 0 },
	{ "ece_errors", ece_errors, false, 0 },
	{ "ece_travels", ece_travels, true, 0 },
	{ 0 },
};
