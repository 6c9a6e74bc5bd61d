/* What the C tests share: checks that say where they failed, and a pair of connected queue pairs in one process. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                                      \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
			failures++;                                                           \
		}                                                                             \
	} while (0)

/* For what the rest of the test stands on. */
#define MUST(condition)                                                                       \
	do {                                                                                  \
		if (!(condition)) {                                                           \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

/* A call that gives an errno. */
#define NUMBER(expected, call)                                                                \
	do {                                                                                  \
		long got_ = (long)(call);                                                     \
		if (got_ != (expected)) {                                                     \
			fprintf(stderr, "%s:%d: %s: %ld, not %ld\n", __FILE__, __LINE__, #call, got_, (long)(expected)); \
			failures++;                                                           \
		}                                                                             \
	} while (0)

/* A call that gives NULL or -1, and sets errno. */
#define FAILS(expected, value, call)                                                          \
	do {                                                                                  \
		errno = 0;                                                                    \
		long got_ = (long)(call);                                                     \
		if (got_ != (long)(value) || errno != (expected)) {                           \
			fprintf(stderr, "%s:%d: %s: %ld errno %d, not %ld errno %d\n", __FILE__, __LINE__, #call, got_, errno, \
				(long)(value), (int)(expected));                              \
			failures++;                                                           \
		}                                                                             \
	} while (0)

#define NULLS(expected, call) FAILS(expected, 0, call)

static inline int verdict(void)
{
	if (failures)
		fprintf(stderr, "%d checks failed\n", failures);
	return failures != 0;
}

static inline struct ibv_context *open_softrnic(void)
{
	int n = -1;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	MUST(list != NULL);
	for (int i = 0; i < n; i++)
		if (!strncmp(ibv_get_device_name(list[i]), "softrnic", 8))
			ctx = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	MUST(ctx != NULL);
	return ctx;
}

/* One side of a connection. */
struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static inline struct ibv_qp *to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static inline void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 4 } },
	};

	MUST(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* A queue pair with the ibv_wr_* interface for everything that RC can do with version 44's header. */
static inline struct ibv_qp *make_rc(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t depth)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
				  IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
				  IBV_QP_EX_WITH_SEND_WITH_INV,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &init);

	MUST(qp != NULL);
	return qp;
}

static inline void make_pair(struct ibv_pd *pd, struct side side[2], uint32_t depth)
{
	for (int i = 0; i < 2; i++) {
		side[i].cq = ibv_create_cq(pd->context, 64, &side[i], NULL, 0);
		MUST(side[i].cq != NULL);
		side[i].qp = to_init(make_rc(pd, side[i].cq, depth));
	}
	to_rts(side[0].qp, side[1].qp->qp_num);
	to_rts(side[1].qp, side[0].qp->qp_num);
}

static inline void drop_pair(struct side side[2])
{
	for (int i = 0; i < 2; i++) {
		NUMBER(0, ibv_destroy_qp(side[i].qp));
		NUMBER(0, ibv_destroy_cq(side[i].cq));
	}
}

/* The next completion, whatever it says; its status is 255 when none comes. */
static inline struct ibv_wc next_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc = { .status = 255 };

	for (long i = 0; i < 50000000; i++) {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n)
			return wc;
	}
	wc.status = 255;
	return wc;
}

#endif
