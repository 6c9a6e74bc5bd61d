// The ibv_wr_* interface: all or nothing, errors remembered, data copied when the setter says so.
#include "common.h"

static struct ibv_pd *pd;
static struct side side[2];
static struct ibv_mr *mr;
static char data[4096];
static struct ibv_qp_ex *qpx;

static void post_recvs(int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_sge sge = { (uintptr_t)data + 2048 + 64 * i, 64, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = 100 + i, .sg_list = &sge, .num_sge = 1 }, *bad;

		NUMBER(0, ibv_post_recv(side[1].qp, &wr, &bad));
	}
}

static void nothing_sent(void)
{
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++)
		NUMBER(0, ibv_poll_cq(side[i].cq, 1, &wc));
}

/* A message as it was received. */
static void expect(int place, const char *text, unsigned long long wr_id)
{
	struct ibv_wc sent = next_wc(side[0].cq), got = next_wc(side[1].cq);

	CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == wr_id);
	CHECK(got.status == IBV_WC_SUCCESS && got.byte_len == strlen(text) && !got.wc_flags);
	CHECK(!memcmp(data + 2048 + 64 * place, text, strlen(text)));
}

/* Inline data of 8 bytes have a way of their own: alone, among others, and where the last setter is another. */
static void words(void)
{
	char word[8];

	memcpy(data, "listed", 6);
	post_recvs(6);
	for (int i = 0; i < 2; i++) {
		memcpy(word, i ? "eight by" : "8 bytes!", 8);
		ibv_wr_start(qpx);
		qpx->wr_flags = IBV_SEND_SIGNALED;
		qpx->wr_id = 10 + i;
		ibv_wr_send(qpx);
		ibv_wr_set_inline_data(qpx, word, 8);
		memset(word, 'x', 8); /* copied already */
		NUMBER(0, ibv_wr_complete(qpx));
		expect(i, i ? "eight by" : "8 bytes!", 10 + i);
	}
	ibv_wr_start(qpx);
	qpx->wr_id = 12;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, "12345678", 8);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 6);
	NUMBER(0, ibv_wr_complete(qpx));
	expect(2, "listed", 12);
	ibv_wr_start(qpx);
	qpx->wr_id = 13;
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 6);
	ibv_wr_set_inline_data(qpx, "seven..", 7);
	ibv_wr_set_inline_data(qpx, "12345678", 8);
	NUMBER(0, ibv_wr_complete(qpx));
	expect(3, "12345678", 13);
	ibv_wr_start(qpx);
	qpx->wr_id = 14;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, "abcdefgh", 8);
	qpx->wr_id = 15;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, "ijklmnop", 8);
	nothing_sent();
	NUMBER(0, ibv_wr_complete(qpx));
	expect(4, "abcdefgh", 14);
	expect(5, "ijklmnop", 15);
	/* Not every operation with 8 bytes is a SEND. */
	ibv_wr_start(qpx);
	qpx->wr_id = 16;
	ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)data + 1024);
	ibv_wr_set_inline_data(qpx, "written!", 8);
	NUMBER(0, ibv_wr_complete(qpx));
	CHECK(next_wc(side[0].cq).wr_id == 16 && !memcmp(data + 1024, "written!", 8));
	/* None before there is a request. */
	ibv_wr_start(qpx);
	ibv_wr_set_inline_data(qpx, "12345678", 8);
	NUMBER(EINVAL, ibv_wr_complete(qpx));
	nothing_sent();
}

static void sends(void)
{
	struct ibv_sge list[2] = { { (uintptr_t)data, 3, mr->lkey }, { (uintptr_t)data + 3, 2, mr->lkey } };
	char word[8] = "inline";
	struct ibv_data_buf bufs[2] = { { word, 4 }, { word + 4, 3 } };

	memcpy(data, "hello", 6);
	post_recvs(4);
	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	qpx->wr_id = 1;
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 6);
	qpx->wr_id = 2;
	ibv_wr_send_imm(qpx, 0x01020304);
	ibv_wr_set_sge_list(qpx, 2, list);
	qpx->wr_id = 3;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, word, 7);
	qpx->wr_id = 4;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data_list(qpx, 2, bufs);
	memset(word, 'x', sizeof word); /* copied already */
	nothing_sent();
	NUMBER(0, ibv_wr_complete(qpx));
	for (int i = 1; i <= 4; i++) {
		struct ibv_wc sent = next_wc(side[0].cq), got = next_wc(side[1].cq);

		CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == (unsigned)i);
		CHECK(got.status == IBV_WC_SUCCESS && got.wr_id == 99u + i);
		CHECK(got.byte_len == (i == 1 ? 6 : i == 2 ? 5 : 7));
		CHECK((got.wc_flags & IBV_WC_WITH_IMM) == (i == 2 ? IBV_WC_WITH_IMM : 0));
	}
	CHECK(!strcmp(data + 2048, "hello") && !memcmp(data + 2112, "hello", 5));
	CHECK(!strcmp(data + 2176, "inline") && !strcmp(data + 2240, "inline"));
}

static void one_sided(void)
{
	uint64_t *remote = (uint64_t *)(data + 1024), *local = (uint64_t *)(data + 512);

	*remote = 40;
	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	qpx->wr_id = 1;
	ibv_wr_atomic_fetch_add(qpx, mr->rkey, (uintptr_t)remote, 2);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)local, 8);
	qpx->wr_id = 2;
	ibv_wr_atomic_cmp_swp(qpx, mr->rkey, (uintptr_t)remote, 42, 7);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(local + 1), 8);
	qpx->wr_id = 3;
	ibv_wr_rdma_read(qpx, mr->rkey, (uintptr_t)remote);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)(local + 2), 8);
	qpx->wr_id = 4;
	ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)(remote + 1));
	ibv_wr_set_inline_data(qpx, "written", 8);
	NUMBER(0, ibv_wr_complete(qpx));
	static const enum ibv_wc_opcode opcodes[] = { IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE };

	for (int i = 0; i < 4; i++) {
		struct ibv_wc wc = next_wc(side[0].cq);

		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1u + i && wc.opcode == opcodes[i]);
	}
	CHECK(local[0] == 40 && local[1] == 42 && local[2] == 7 && *remote == 7 && !strcmp((char *)(remote + 1), "written"));
}

static void errors(void)
{
	char big[4096] = { 0 };

	qpx->wr_flags = IBV_SEND_SIGNALED;

	/* Aborted: as if nothing had been. */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 1);
	ibv_wr_abort(qpx);

	/* The second cannot be posted, so the first is not either. */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 1);
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, big, sizeof big);
	NUMBER(EINVAL, ibv_wr_complete(qpx));

	/* A setter without a builder. */
	ibv_wr_start(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 1);
	NUMBER(EINVAL, ibv_wr_complete(qpx));

	/* An operation that was not asked for at creation. */
	ibv_wr_start(qpx);
	ibv_wr_send_tso(qpx, big, 1, 1);
	NUMBER(EOPNOTSUPP, ibv_wr_complete(qpx));

	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_ud_addr(qpx, NULL, 1, 1);
	NUMBER(EINVAL, ibv_wr_complete(qpx));

	/* More than the queue holds: none. */
	ibv_wr_start(qpx);
	for (int i = 0; i < 9; i++) {
		ibv_wr_send(qpx);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, 1);
	}
	NUMBER(ENOMEM, ibv_wr_complete(qpx));

	/* Nothing at all is fine. */
	ibv_wr_start(qpx);
	NUMBER(0, ibv_wr_complete(qpx));
	nothing_sent();

	/* And the list form stops at the first bad request. */
	struct ibv_sge sge = { (uintptr_t)data, 1, mr->lkey };
	struct ibv_send_wr third = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr second = { .next = &third, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1000 };
	struct ibv_send_wr first = { .next = &second, .wr_id = 9, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1,
				     .send_flags = IBV_SEND_SIGNALED }, *bad = NULL;

	post_recvs(1);
	NUMBER(EINVAL, ibv_post_send(side[0].qp, &first, &bad));
	CHECK(bad == &second);
	CHECK(next_wc(side[0].cq).wr_id == 9);
	CHECK(next_wc(side[1].cq).status == IBV_WC_SUCCESS);
	nothing_sent();
}

int main(void)
{
	struct ibv_context *ctx = open_softrnic();

	pd = ibv_alloc_pd(ctx);
	MUST(pd != NULL);
	make_pair(pd, side, 8);
	mr = ibv_reg_mr(pd, data, sizeof data,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	MUST(mr != NULL);
	qpx = ibv_qp_to_qp_ex(side[0].qp);
	MUST(qpx != NULL);
	for (int i = 0; i < 3; i++) { /* the lists are used again */
		sends();
		words();
		one_sided();
		errors();
	}
	drop_pair(side);
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
