/* Queue pairs and shared receive queues that the connection manager makes, and the helpers of rdma_verbs.h. */
#include "harness.h"

static struct ibv_qp_init_attr queue(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
}

static void create_qp(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	struct ibv_qp_init_attr attr = queue(IBV_QPT_RC);
	struct ibv_pd *pd = id->pd, *own = ibv_alloc_pd(id->verbs);
	OK(rdma_create_qp(id, NULL, &attr));
	TRUE(id->qp != NULL && id->pd == pd && id->qp->pd == pd);
	TRUE(attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
	TRUE(id->send_cq != id->recv_cq);
	IS(id->qp->state, IBV_QPS_INIT);
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	rdma_destroy_qp(id);
	TRUE(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
	/* With a protection domain and completion queues of the program's own. */
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	attr = queue(IBV_QPT_RC);
	attr.send_cq = attr.recv_cq = cq;
	OK(rdma_create_qp(id, own, &attr));
	TRUE(id->pd == own && id->qp->send_cq == cq && !id->send_cq && !id->recv_cq);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
	IS(ibv_destroy_cq(cq), 0);
	IS(ibv_dealloc_pd(own), 0);
}

/* Another context's protection domain does not serve. */
static void create_qp_refuses(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	struct ibv_qp_init_attr attr = queue(IBV_QPT_RC);
	struct ibv_context *other = ibv_open_device(id->verbs->device);
	struct ibv_pd *pd = ibv_alloc_pd(other);
	TRUE(other && pd);
	FAILS(rdma_create_qp(id, pd, &attr), EINVAL);
	TRUE(id->qp == NULL);
	attr.cap.max_send_wr = 0x7fffffff;
	attr.cap.max_recv_wr = 1;
	IS(rdma_create_qp(id, NULL, &attr), -1);
	TRUE(!id->qp && !id->send_cq && !id->recv_cq);
	attr = queue(IBV_QPT_RC);
	OK(rdma_create_qp(id, NULL, &attr));
}

static void create_qp_ex(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	struct ibv_qp_init_attr_ex attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	OK(rdma_create_qp_ex(id, &attr));
	TRUE(id->qp != NULL && attr.pd == id->pd);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
}

static void create_srq(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_create_srq(p.server, NULL, &attr));
	TRUE(p.server->srq != NULL);
	queue_pair(p.server);
	TRUE(p.server->qp->srq == p.server->srq);
	OK(rdma_accept(p.server, &param));
	/* The client's event says that its peer has one. */
	e = EXPECT(p.client_ch, ESTABLISHED, 0);
	IS(e.conn.srq, 1);
	EXPECT(p.server_ch, ESTABLISHED, 0);
	static uint8_t out[32], in[32];
	struct ibv_mr *in_mr = rdma_reg_msgs(p.server, in, sizeof(in)), *out_mr = rdma_reg_msgs(p.client, out, sizeof(out));
	pattern(out, sizeof(out), 5);
	/* rdma_post_recv takes the shared queue when there is one. */
	OK(rdma_post_recv(p.server, (void *)3, in, sizeof(in), in_mr));
	OK(rdma_post_send(p.client, NULL, out, sizeof(out), out_mr, 0));
	struct ibv_wc wc;
	IS(rdma_get_recv_comp(p.server, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.wr_id, 3);
	IS(memcmp(in, out, sizeof(in)), 0);
	rdma_destroy_qp(p.server);
	rdma_destroy_srq(p.server);
	TRUE(p.server->srq == NULL);
}

static void create_srq_ex(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	FAILS(rdma_create_srq_ex(id, &attr), EINVAL);
	attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	attr.srq_type = IBV_SRQT_BASIC;
	OK(rdma_create_srq_ex(id, &attr));
	TRUE(id->srq != NULL && attr.pd == id->pd);
	rdma_destroy_srq(id);
	/* XRC: the domain and the completion queue come of themselves. */
	memset(&attr, 0, sizeof(attr));
	attr.attr.max_wr = 8;
	attr.attr.max_sge = 1;
	attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	attr.srq_type = IBV_SRQT_XRC;
	errno = 0;
	if (rdma_create_srq_ex(id, &attr)) {
		TRUE(errno == EOPNOTSUPP || errno == ENOSYS);
		return;
	}
	TRUE(attr.xrcd != NULL && attr.cq != NULL);
	rdma_destroy_srq(id);
}

/* rdma_post_write, rdma_post_read, and their vectors. */
static void one_sided_helpers(const struct where *w)
{
	struct pair p = connected(w);
	static uint8_t local[64], remote[64];
	struct ibv_wc wc;
	struct ibv_mr *write_mr = rdma_reg_write(p.server, remote, sizeof(remote));
	struct ibv_mr *read_mr = rdma_reg_read(p.server, remote, sizeof(remote));
	struct ibv_mr *mr = rdma_reg_msgs(p.client, local, sizeof(local));
	TRUE(write_mr && read_mr && mr);
	pattern(local, sizeof(local), 2);
	OK(rdma_post_write(p.client, NULL, local, sizeof(local), mr, 0, (uintptr_t)remote, write_mr->rkey));
	IS(rdma_get_send_comp(p.client, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.opcode, IBV_WC_RDMA_WRITE);
	IS(memcmp(local, remote, sizeof(local)), 0);
	memset(local, 0, sizeof(local));
	OK(rdma_post_read(p.client, NULL, local, sizeof(local), mr, 0, (uintptr_t)remote, read_mr->rkey));
	IS(rdma_get_send_comp(p.client, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.opcode, IBV_WC_RDMA_READ);
	IS(memcmp(local, remote, sizeof(local)), 0);
	struct ibv_sge sge[2] = { { (uintptr_t)local, 10, mr->lkey }, { (uintptr_t)local + 20, 10, mr->lkey } };
	memset(remote, 0, sizeof(remote));
	OK(rdma_post_writev(p.client, NULL, sge, 2, 0, (uintptr_t)remote, write_mr->rkey));
	IS(rdma_get_send_comp(p.client, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(memcmp(remote, local, 10), 0);
	IS(memcmp(remote + 10, local + 20, 10), 0);
	OK(rdma_post_readv(p.client, NULL, sge, 2, 0, (uintptr_t)remote, read_mr->rkey));
	IS(rdma_get_send_comp(p.client, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	OK(rdma_post_recvv(p.server, NULL, &(struct ibv_sge){ (uintptr_t)remote, 64, write_mr->lkey }, 1));
	OK(rdma_post_sendv(p.client, NULL, sge, 2, 0));
	IS(rdma_get_recv_comp(p.server, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.byte_len, 20);
}

/* Made after the request and destroyed before the id, again and again. */
static void qp_again(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_conn_param param = parameters(NULL, 0);
	for (int i = 0; i < 5; i++) {
		queue_pair(p.server);
		rdma_destroy_qp(p.server);
	}
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	EXPECT(p.client_ch, ESTABLISHED, 0);
	EXPECT(p.server_ch, ESTABLISHED, 0);
	traffic(p.client, p.server);
	disconnected(&p);
	destroyed(&p);
}

const struct test queue_tests[] = {
	{ "create_qp", create_qp, true, 0 },
	{ "create_qp_refuses", create_qp_refuses, false, 0 },
	{ "create_qp_ex", create_qp_ex, false, 0 },
	{ "create_srq", create_srq, true, 0 },
	{ "create_srq_ex", create_srq_ex, false, 0 },
	{ "one_sided_helpers", one_sided_helpers, true, 0 },
	{ "qp_again", qp_again, true, 0 },
	{ 0 },
};
