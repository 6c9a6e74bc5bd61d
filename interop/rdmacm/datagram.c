/* Datagrams: the service ID is resolved to a queue pair and its key, and messages go there. */
#include "harness.h"

enum { SIDR_REQUEST_DATA = 180, SIDR_REPLY_DATA = 136 };
/* IBTA's status of a SIDR_REP. */
enum { SIDR_UNSUPPORTED = 1, SIDR_REJECT = 2 };

/* The request is there, not answered; no queue pairs yet. */
static struct pair asked(const struct where *w, const void *data, int len, struct event *e)
{
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct rdma_conn_param param = parameters(data, len);
	p.listen = listener(p.server_ch, w, RDMA_PS_UDP, 4);
	p.client = routed(p.client_ch, w, RDMA_PS_UDP, port_of(p.listen));
	queue_pair(p.client);
	OK(rdma_connect(p.client, &param));
	*e = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	TRUE(e->listen_id == p.listen);
	p.server = e->id;
	IS(p.server->qp_type, IBV_QPT_UD);
	return p;
}

static void resolve_service(const struct where *w)
{
	static const int lengths[][2] = { { 0, 0 }, { 10, 20 }, { SIDR_REQUEST_DATA, SIDR_REPLY_DATA } };
	for (int i = 0; i < 3; i++) {
		uint8_t data[256];
		struct event e;
		pattern(data, sizeof(data), i);
		struct pair p = asked(w, data, lengths[i][0], &e);
		PATTERN(&e, lengths[i][0], i, SIDR_REQUEST_DATA);
		queue_pair(p.server);
		struct rdma_conn_param param = parameters(data, lengths[i][1]);
		param.qp_num = p.server->qp->qp_num;
		OK(rdma_accept(p.server, &param));
		e = EXPECT(p.client_ch, ESTABLISHED, 0);
		TRUE(e.id == p.client);
		IS(e.ud.qp_num, p.server->qp->qp_num);
		IS(e.ud.qkey, RDMA_UDP_QKEY);
		PATTERN(&e, lengths[i][1], i, SIDR_REPLY_DATA);
		IS(e.ud.ah_attr.is_global, 1);
		IS(e.ud.ah_attr.port_num, 1);
		QUIET(p.server_ch);
		destroyed(&p);
	}
}

static void datagrams_flow(const struct where *w)
{
	struct event e;
	struct pair p = asked(w, NULL, 0, &e);
	static uint8_t out[64], in[64 + sizeof(struct ibv_grh)];
	struct ibv_wc wc;
	queue_pair(p.server);
	struct rdma_conn_param param = parameters(NULL, 0);
	param.qp_num = p.server->qp->qp_num;
	struct ibv_mr *in_mr = rdma_reg_msgs(p.server, in, sizeof(in)), *out_mr = rdma_reg_msgs(p.client, out, sizeof(out));
	OK(rdma_post_recv(p.server, NULL, in, sizeof(in), in_mr));
	OK(rdma_accept(p.server, &param));
	e = EXPECT(p.client_ch, ESTABLISHED, 0);
	struct ibv_ah *ah = ibv_create_ah(p.client->pd, &e.ud.ah_attr);
	TRUE(ah != NULL);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	OK(ibv_query_qp(p.client->qp, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init));
	IS(attr.qp_state, IBV_QPS_RTS);
	IS(attr.qkey, RDMA_UDP_QKEY);
	pattern(out, sizeof(out), 9);
	OK(rdma_post_ud_send(p.client, NULL, out, sizeof(out), out_mr, IBV_SEND_SIGNALED, ah, e.ud.qp_num));
	IS(rdma_get_send_comp(p.client, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(rdma_get_recv_comp(p.server, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.byte_len, sizeof(in));
	IS(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
	IS(wc.src_qp, p.client->qp->qp_num);
	IS(memcmp(in + sizeof(struct ibv_grh), out, sizeof(out)), 0);
	/* And back, to the sender that the completion names. */
	struct ibv_ah *back = ibv_create_ah_from_wc(p.server->pd, &wc, (struct ibv_grh *)in, 1);
	TRUE(back != NULL);
	OK(rdma_post_recv(p.client, NULL, in, sizeof(in), rdma_reg_msgs(p.client, in, sizeof(in))));
	OK(rdma_post_ud_send(p.server, NULL, out, sizeof(out), rdma_reg_msgs(p.server, out, sizeof(out)), IBV_SEND_SIGNALED,
		back, wc.src_qp));
	IS(rdma_get_recv_comp(p.client, &wc), 1);
	IS(wc.src_qp, p.server->qp->qp_num);
}

static void data_too_long(const struct where *w)
{
	uint8_t data[256] = { 0 };
	struct rdma_event_channel *server_ch = channel(), *client_ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_UDP, 4);
	struct rdma_cm_id *client = routed(client_ch, w, RDMA_PS_UDP, port_of(listen));
	struct rdma_conn_param param = parameters(data, SIDR_REQUEST_DATA + 1);
	queue_pair(client);
	FAILS(rdma_connect(client, &param), EINVAL);
	param.private_data_len = SIDR_REQUEST_DATA;
	OK(rdma_connect(client, &param));
	struct event e = EXPECT(server_ch, CONNECT_REQUEST, 0);
	queue_pair(e.id);
	param.private_data_len = SIDR_REPLY_DATA + 1;
	FAILS(rdma_accept(e.id, &param), EINVAL);
}

static void rejected(const struct where *w)
{
	struct event e;
	struct pair p = asked(w, NULL, 0, &e);
	OK(rdma_reject(p.server, "not you", 7));
	e = EXPECT(p.client_ch, UNREACHABLE, SIDR_REJECT);
	TRUE(e.id == p.client);
	destroyed(&p);
}

static void no_service(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *listen = listener(ch, w, RDMA_PS_UDP, 2);
	uint16_t port = port_of(listen);
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_destroy_id(listen));
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_UDP, port);
	queue_pair(id);
	OK(rdma_connect(id, &param));
	EXPECT(ch, UNREACHABLE, SIDR_UNSUPPORTED);
}

/* Several clients, one listener, one id each. */
static void many_clients(const struct where *w)
{
	enum { MANY = 20 };
	struct rdma_event_channel *server_ch = channel(), *client_ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_UDP, MANY), *clients[MANY];
	uint32_t number[MANY];
	for (int i = 0; i < MANY; i++) {
		uint8_t tag = i;
		struct rdma_conn_param param = parameters(&tag, 1);
		clients[i] = routed(client_ch, w, RDMA_PS_UDP, port_of(listen));
		queue_pair(clients[i]);
		OK(rdma_connect(clients[i], &param));
		struct event e = EXPECT(server_ch, CONNECT_REQUEST, 0);
		IS(e.data[0], i);
		queue_pair(e.id);
		number[i] = param.qp_num = e.id->qp->qp_num;
		OK(rdma_accept(e.id, &param));
		e = EXPECT(client_ch, ESTABLISHED, 0);
		TRUE(e.id == clients[i]);
		IS(e.ud.qp_num, number[i]);
		IS(e.data[0], i);
	}
}

const struct test datagram_tests[] = {
	{ "ud_resolve_service", resolve_service, true, 0 },
	{ "ud_datagrams_flow", datagrams_flow, true, 0 },
	{ "ud_data_too_long", data_too_long, true, 0 },
	{ "ud_rejected", rejected, true, 0 },
	{ "ud_no_service", no_service, true, 0 },
	{ "ud_many_clients", many_clients, true, 0 },
	{ 0 },
};
