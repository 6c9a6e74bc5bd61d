// After fork: no object of the parent is usable in the child, whose calls return ENODEV. The child can have a device of
// its own, and the parent's goes on.
#include "common.h"
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct side side[2];
static char data[128];
static struct ibv_mr *mr;

static void message(struct side *pair, struct ibv_mr *region)
{
	struct ibv_sge sge = { (uintptr_t)data, 16, region->lkey };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;

	NUMBER(0, ibv_post_recv(pair[1].qp, &recv, &bad_recv));
	NUMBER(0, ibv_post_send(pair[0].qp, &send, &bad_send));
	CHECK(next_wc(pair[0].cq).status == IBV_WC_SUCCESS);
	CHECK(next_wc(pair[1].cq).status == IBV_WC_SUCCESS);
}

static int in_child(void)
{
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;
	struct ibv_port_attr port;

	failures = 0;
	NULLS(ENODEV, ibv_alloc_pd(ctx));
	NULLS(ENODEV, ibv_reg_mr(pd, data, sizeof data, 0));
	NULLS(ENODEV, ibv_create_cq(ctx, 1, NULL, NULL, 0));
	NUMBER(ENODEV, ibv_post_send(side[0].qp, &send, &bad));
	NUMBER(-ENODEV, ibv_poll_cq(side[0].cq, 1, &wc));
	NUMBER(ENODEV, ibv_req_notify_cq(side[0].cq, 0));
	NUMBER(ENODEV, ibv_destroy_qp(side[0].qp));
	NUMBER(ENODEV, ibv_dereg_mr(mr));
	FAILS(ENODEV, -1, ibv_close_device(ctx));
	NUMBER(0, ibv_query_port(ctx, 1, &port)); /* what never changes may be asked */

	struct ibv_context *own = open_softrnic();
	struct ibv_pd *own_pd = ibv_alloc_pd(own);
	struct ibv_mr *own_mr = ibv_reg_mr(own_pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct side pair[2];

	MUST(own_pd && own_mr);
	make_pair(own_pd, pair, 4);
	CHECK(pair[0].qp->qp_num != side[0].qp->qp_num && pair[0].qp->qp_num != side[1].qp->qp_num);
	message(pair, own_mr);
	drop_pair(pair);
	NUMBER(0, ibv_dereg_mr(own_mr));
	NUMBER(0, ibv_dealloc_pd(own_pd));
	NUMBER(0, ibv_close_device(own));
	return verdict();
}

int main(void)
{
	int status = -1;

	ctx = open_softrnic();
	pd = ibv_alloc_pd(ctx);
	MUST(pd != NULL);
	mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	MUST(mr != NULL);
	make_pair(pd, side, 4);
	message(side, mr);

	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0)
		_exit(in_child());
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	message(side, mr);
	drop_pair(side);
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
