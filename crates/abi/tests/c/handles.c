// Objects whose handle was changed: a kernel finds none under it. So calls that would lead through the kernel fail (ENOENT), and
// the object stays as it was: with its handle put right it is used, and destroyed, as ever. And failing calls that return the
// errno set the variable, too. A handle counts among the objects of one open file, so an object whose context was
// changed for that of another open device is not found either.
#include "common.h"

#include <unistd.h>

/* A call that returns the errno, and sets it. */
#define BOTH(expected, call) FAILS(expected, expected, call)

static struct ibv_context *ctx, *other;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096];

/* Does something while a handle is another one. */
#define CHANGED(object, ...)                                                                  \
	do {                                                                                  \
		const uint32_t own_ = (object)->handle, others_[] = { own_ ^ 0x55555555, 0xdeadbeef, own_ + 1 }; \
		for (size_t i_ = 0; i_ < sizeof others_ / sizeof *others_; i_++) {            \
			(object)->handle = others_[i_];                                       \
			__VA_ARGS__;                                                          \
			(object)->handle = own_;                                              \
		}                                                                             \
	} while (0)

/* Does something while an object has the context of another open device. */
#define MOVED(object, ...)               \
	do {                             \
		(object)->context = other; \
		__VA_ARGS__;             \
		(object)->context = ctx; \
	} while (0)

/* The two. */
#define LOST(object, ...)                     \
	do {                                  \
		CHANGED(object, __VA_ARGS__); \
		MOVED(object, __VA_ARGS__);   \
	} while (0)

static struct ibv_qp *queue_pair(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 }
	};

	return ibv_create_qp(pd, &init);
}

static void domains(void)
{
	struct ibv_srq_init_attr init = { .attr = { 4, 1, 0 } };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);

	MUST(mr && !ibv_query_gid(ctx, 1, 0, &to.grh.dgid));
	LOST(pd, BOTH(ENOENT, ibv_dealloc_pd(pd)));
	LOST(pd, NULLS(ENOENT, ibv_reg_mr(pd, memory, sizeof memory, 0)));
	LOST(pd, NULLS(ENOENT, ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
	LOST(pd, NULLS(ENOENT, ibv_create_srq(pd, &init)));
	LOST(pd, NULLS(ENOENT, queue_pair(NULL)));
	LOST(pd, NULLS(ENOENT, ibv_create_ah(pd, &to)));
	CHANGED(pd, FAILS(ENOENT, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0)));
	BOTH(EBUSY, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_dereg_mr(mr));
}

/* Two contexts of one open device have their objects in common. */
static void imported(void)
{
	struct ibv_context *again = ibv_import_device(dup(ctx->cmd_fd));
	struct ibv_pd *domain = ibv_alloc_pd(ctx);

	MUST(again && domain);
	domain->context = again;
	NUMBER(0, ibv_dealloc_pd(domain));
	NUMBER(0, ibv_close_device(again));
}

static void regions(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah;

	MUST(mr && mw && !ibv_query_gid(ctx, 1, 0, &to.grh.dgid));
	MUST(ah = ibv_create_ah(pd, &to));
	LOST(mr, BOTH(ENOENT, ibv_dereg_mr(mr)));
	LOST(mr, FAILS(ENOENT, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0)));
	LOST(mw, BOTH(ENOENT, ibv_dealloc_mw(mw)));
	LOST(ah, BOTH(ENOENT, ibv_destroy_ah(ah)));
	NUMBER(0, ibv_destroy_ah(ah));
	NUMBER(0, ibv_dealloc_mw(mw));
	NUMBER(0, ibv_dereg_mr(mr));
}

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 4 };
	struct ibv_cq_ex *extended = ibv_create_cq_ex(ctx, &init);
	struct ibv_wc wc;

	MUST(extended);
	LOST(extended, BOTH(ENOENT, ibv_destroy_cq(ibv_cq_ex_to_cq(extended))));
	NUMBER(0, ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
	LOST(cq, BOTH(ENOENT, ibv_destroy_cq(cq)));
	LOST(cq, BOTH(ENOENT, ibv_resize_cq(cq, 8)));
	LOST(cq, BOTH(ENOENT, ibv_req_notify_cq(cq, 0)));
	CHANGED(cq, NULLS(ENOENT, queue_pair(NULL)));
	MOVED(cq, NUMBER(0, ibv_destroy_qp(queue_pair(NULL)))); // the domain says where
	CHANGED(cq, NUMBER(0, ibv_poll_cq(cq, 1, &wc))); // not through the kernel
	BOTH(EINVAL, ibv_resize_cq(cq, 1 << 30));
}

static void queue_pairs(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_init_attr init;
	struct ibv_qp *qp = queue_pair(NULL);
	union ibv_gid group = { .raw = { 0xff, 0x0e } };

	MUST(qp);
	LOST(qp, BOTH(ENOENT, ibv_modify_qp(qp, &attr, mask)));
	LOST(qp, BOTH(ENOENT, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)));
	LOST(qp, BOTH(ENOENT, ibv_attach_mcast(qp, &group, 0)));
	LOST(qp, BOTH(ENOENT, ibv_detach_mcast(qp, &group, 0)));
	LOST(qp, BOTH(ENOENT, ibv_destroy_qp(qp)));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	BOTH(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	BOTH(EBUSY, ibv_destroy_cq(cq));
	NUMBER(0, ibv_destroy_qp(qp));
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { 4, 1, 0 } };
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	MUST(srq);
	CHANGED(srq, NULLS(ENOENT, queue_pair(srq)));
	LOST(srq, BOTH(ENOENT, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT)));
	LOST(srq, BOTH(ENOENT, ibv_query_srq(srq, &attr)));
	LOST(srq, BOTH(ENOENT, ibv_destroy_srq(srq)));
	attr.srq_limit = 100000;
	BOTH(EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	NUMBER(0, ibv_destroy_srq(srq));
}

int main(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;

	ctx = open_softrnic();
	other = open_softrnic();
	MUST(pd = ibv_alloc_pd(ctx));
	MUST(cq = ibv_create_cq(ctx, 4, NULL, NULL, 0));
	domains();
	imported();
	regions();
	completion_queues();
	queue_pairs();
	shared_queues();
	BOTH(EINVAL, ibv_query_port(ctx, 9, &port));
	FAILS(EINVAL, -EINVAL, ibv_query_gid_table(ctx, &entry, 0, 0));
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(other));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
