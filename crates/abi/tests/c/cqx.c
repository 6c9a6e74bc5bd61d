// Extended completion queues: iteration, members, clocks; and events of channels.
#include "common.h"
#include <fcntl.h>
#include <poll.h>
#include <time.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void send(struct ibv_qp *qp, uint64_t wr_id, int flags)
{
	struct ibv_send_wr wr = { .wr_id = wr_id, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = flags, .imm_data = 5 }, *bad;

	NUMBER(0, ibv_post_send(qp, &wr, &bad));
}

static void recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;

	NUMBER(0, ibv_post_recv(qp, &wr, &bad));
}

static int start(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int ret = ENOENT;

	for (long i = 0; i < 50000000 && ret == ENOENT; i++)
		ret = ibv_start_poll(cq, &attr);
	return ret;
}

static void iterate(unsigned flags)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 16,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = flags,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &init);

	MUST(cq != NULL);

	struct ibv_qp *a = to_init(make_rc(pd, ibv_cq_ex_to_cq(cq), 8)), *b = to_init(make_rc(pd, ibv_cq_ex_to_cq(cq), 8));
	struct ibv_poll_cq_attr bad = { .comp_mask = 1 }, attr = { 0 };

	to_rts(a, b->qp_num);
	to_rts(b, a->qp_num);
	NUMBER(EINVAL, ibv_start_poll(cq, &bad));
	NUMBER(ENOENT, ibv_start_poll(cq, &attr)); /* and no end_poll */
	NUMBER(ENOENT, ibv_start_poll(cq, &attr));

	uint64_t before = now(CLOCK_MONOTONIC), wall = now(CLOCK_REALTIME), last = 0;
	int sends = 0, recvs = 0;

	for (int i = 0; i < 3; i++) {
		recv(b, 20 + i);
		send(a, 10 + i, IBV_SEND_SIGNALED);
	}
	while (sends + recvs < 6) {
		MUST(start(cq) == 0);
		do {
			uint64_t ts = ibv_wc_read_completion_ts(cq), ns = ibv_wc_read_completion_wallclock_ns(cq);

			CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_vendor_err(cq) == 0);
			CHECK(ts >= before && ts <= now(CLOCK_MONOTONIC));
			CHECK(ns >= last);
			last = ns;
			CHECK(ns + 1000000000 >= wall && ns <= now(CLOCK_REALTIME) + 1000000000);
			if (ibv_wc_read_opcode(cq) == IBV_WC_SEND) {
				CHECK(cq->wr_id == 10u + sends++ && ibv_wc_read_qp_num(cq) == a->qp_num);
			} else {
				CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && cq->wr_id == 20u + recvs++);
				CHECK(ibv_wc_read_qp_num(cq) == b->qp_num && ibv_wc_read_byte_len(cq) == 0);
				CHECK(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM && ibv_wc_read_imm_data(cq) == 5);
				CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0 && ibv_wc_read_dlid_path_bits(cq) == 0);
			}
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	NUMBER(0, ibv_destroy_qp(a));
	NUMBER(0, ibv_destroy_qp(b));
	NUMBER(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

static int readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 5000) == 1;
}

static void channel(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct side side[2];
	struct ibv_cq *cq, *got = NULL;
	void *context = NULL;
	struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 1, 0 } };

	MUST(channel != NULL);
	make_pair(pd, side, 8);
	cq = ibv_create_cq(ctx, 8, &channel, channel, 1);
	MUST(cq != NULL);
	NUMBER(0, ibv_modify_cq(cq, &moderate));

	struct ibv_qp *a = to_init(make_rc(pd, cq, 8)), *b = to_init(make_rc(pd, side[1].cq, 8));

	to_rts(a, b->qp_num);
	to_rts(b, a->qp_num);
	for (int round = 0; round < 3; round++) {
		NUMBER(0, ibv_req_notify_cq(cq, 0));
		recv(b, 1);
		send(a, 2, IBV_SEND_SIGNALED);
		CHECK(readable(channel->fd));
		NUMBER(0, ibv_get_cq_event(channel, &got, &context));
		CHECK(got == cq && context == &channel);
		CHECK(next_wc(cq).wr_id == 2);
		CHECK(next_wc(side[1].cq).wr_id == 1);
	}
	/* Once armed, once told; and solicited only means just that. */
	MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(EAGAIN, -1, ibv_get_cq_event(channel, &got, &context));
	NUMBER(0, ibv_req_notify_cq(cq, 1));
	recv(a, 3);
	recv(a, 4);
	send(b, 5, 0);
	CHECK(next_wc(cq).wr_id == 3);
	FAILS(EAGAIN, -1, ibv_get_cq_event(channel, &got, &context));
	send(b, 6, IBV_SEND_SOLICITED);
	CHECK(readable(channel->fd));
	NUMBER(0, ibv_get_cq_event(channel, &got, &context));
	CHECK(next_wc(cq).wr_id == 4);
	ibv_ack_cq_events(cq, 4);
	NUMBER(0, ibv_destroy_qp(a));
	NUMBER(0, ibv_destroy_qp(b));
	NUMBER(0, ibv_destroy_cq(cq));
	drop_pair(side);
	NUMBER(0, ibv_destroy_comp_channel(channel));
}

/* The completion queue's error, told on the context. */
static void async(void)
{
	struct side side[2];
	struct ibv_async_event event;

	make_pair(pd, side, 8);
	struct ibv_cq *tiny = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	struct ibv_qp *a = to_init(make_rc(pd, tiny, 8)), *b = to_init(make_rc(pd, side[1].cq, 8));

	to_rts(a, b->qp_num);
	to_rts(b, a->qp_num);
	for (int i = 0; i < 3; i++)
		recv(b, i);
	/* In one list: one by one the first two might complete, and break the queue, before the third is posted. */
	struct ibv_send_wr wr[3], *bad;

	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr){
			.wr_id = i, .next = i < 2 ? &wr[i + 1] : NULL, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		};
	NUMBER(0, ibv_post_send(a, wr, &bad));
	for (int i = 0; i < 3; i++)
		CHECK(next_wc(side[1].cq).status == IBV_WC_SUCCESS);
	CHECK(readable(ctx->async_fd));
	MUST(ibv_get_async_event(ctx, &event) == 0);
	while (event.event_type != IBV_EVENT_CQ_ERR) {
		ibv_ack_async_event(&event);
		MUST(readable(ctx->async_fd));
		MUST(ibv_get_async_event(ctx, &event) == 0);
	}
	CHECK(event.element.cq == tiny);
	ibv_ack_async_event(&event);
	NUMBER(0, ibv_destroy_qp(a));
	NUMBER(0, ibv_destroy_qp(b));
	NUMBER(0, ibv_destroy_cq(tiny));
	drop_pair(side);
}

int main(void)
{
	ctx = open_softrnic();
	pd = ibv_alloc_pd(ctx);
	MUST(pd != NULL);
	iterate(0);
	iterate(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	channel();
	async();
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
