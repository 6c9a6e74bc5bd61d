// Attributes that the man pages say are ignored, and members of what a kind of queue pair does not have: any value will do.
#include "common.h"
#include <fcntl.h>

int main(void)
{
	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1, .srq_limit = UINT32_MAX } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &domain);
	void *nothing = (void *)16;
	const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct ibv_srq_attr limit;
	struct ibv_qp *qp;

	MUST(pd && cq && srq && xrcd);
	NUMBER(0, ibv_query_srq(srq, &limit));
	NUMBER(0, limit.srq_limit);
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.srq = srq,
			.qp_type = types[i],
			.cap = { .max_send_wr = 1, .max_recv_wr = UINT32_MAX, .max_send_sge = 1, .max_recv_sge = UINT32_MAX },
		};

		MUST(qp = ibv_create_qp(pd, &init));
		CHECK(init.cap.max_recv_wr == 0 && init.cap.max_recv_sge == 0);
		NUMBER(0, ibv_destroy_qp(qp));
		init.srq = NULL; // now they count
		init.cap.max_recv_wr = UINT32_MAX;
		NULLS(EINVAL, ibv_create_qp(pd, &init));
	}

	struct ibv_qp_init_attr_ex initiator = {
		.send_cq = cq,
		.recv_cq = nothing,
		.srq = nothing,
		.qp_type = IBV_QPT_XRC_SEND,
		.cap = { .max_send_wr = 1, .max_recv_wr = UINT32_MAX, .max_send_sge = 1, .max_recv_sge = UINT32_MAX },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};

	MUST(qp = ibv_create_qp_ex(ctx, &initiator));
	NUMBER(0, ibv_destroy_qp(qp));

	struct ibv_qp_init_attr_ex target = {
		.send_cq = nothing,
		.recv_cq = nothing,
		.srq = nothing,
		.qp_type = IBV_QPT_XRC_RECV,
		.cap = { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX },
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd,
	};

	MUST(qp = ibv_create_qp_ex(ctx, &target));
	NUMBER(0, ibv_destroy_qp(qp));
	NUMBER(0, ibv_close_xrcd(xrcd));
	NUMBER(0, ibv_destroy_srq(srq));
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
