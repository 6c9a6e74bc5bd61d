/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Managed queues of the device softrnic0: work queues whose entries lie in memory that peers may patch, that are
 * executed only when they have been enabled, and that wait for completion queues. Included by <softrnic/dv.h>.
 *
 * Counts. Every count has 64 bits and begins at 0: requests of a queue since the queue pair was reset, completions of a
 * completion queue since it was made. A WAIT or an ENABLE names an absolute count, in its entry always. A post may give
 * a relative one, which is made absolute at the post: it begins at the place that the last post for that completion
 * queue (or that queue) with SOFTRNIC_DV_TASK_LAST left behind. Several posts without it begin at one place; the one
 * with it moves the place on to the greatest of their counts.
 *
 * Functions that return an int return 0 or an errno; others NULL and errno.
 */
#ifndef SOFTRNICDV_QUEUES_H
#define SOFTRNICDV_QUEUES_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of `struct softrnic_dv_entry`. A peer that patches entries asks for it first. */
#define SOFTRNIC_DV_ENTRY_VERSION 1

/* Operations of an entry beside those of `enum ibv_wr_opcode`. */
enum softrnic_dv_opcode {
	SOFTRNIC_DV_NOP = 0x80,     /* does nothing, and completes */
	SOFTRNIC_DV_WAIT = 0x81,    /* holds back the entries behind it until a completion queue has a count */
	SOFTRNIC_DV_SEND_EN = 0x82, /* enables entries of a managed send queue */
	SOFTRNIC_DV_RECV_EN = 0x83, /* enables receives of a managed receive queue, but for its own queue pair */
	SOFTRNIC_DV_RECEIVE = 0x84, /* entries of managed receive queues: opcode, num_sge, wr_id, list */
};

/* The bit of an operation in `struct softrnic_dv_qp_attr.opcodes`. */
#define SOFTRNIC_DV_ALLOW(opcode) (1ULL << ((opcode) < 0x80 ? (opcode) : (opcode) - 0x80 + 48))

/* A scatter/gather entry of an entry. Numbers of an entry are in the byte order of the host. */
struct softrnic_dv_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

/*
 * An entry of a managed queue, version 1. A request takes `stride` bytes of the array, a multiple of 64: this, and
 * behind it the other scatter/gather entries. Request n is at (n % count) * stride.
 *
 * An entry is copied when it is executed, and not before. It is checked then against the queue's rules, and like any
 * request: keys, bounds, domain. A patch must be complete before the entry is enabled, or before the WAIT in front of it
 * is met. A message that arrives is in memory before its completion is counted. An entry that breaks a rule completes
 * with IBV_WC_LOC_QP_OP_ERR (a receive: IBV_WC_LOC_PROT_ERR), and its queue pair is in error.
 */
struct softrnic_dv_entry {
	uint8_t opcode;  /* enum ibv_wr_opcode, enum softrnic_dv_opcode */
	uint8_t flags;   /* enum ibv_send_flags; IBV_SEND_INLINE is refused */
	uint16_t num_sge;
	uint32_t imm;    /* immediate value, in network byte order */
	uint64_t wr_id;
	uint64_t addr;   /* remote address; WAIT and ENABLE: the count */
	uint32_t rkey;
	uint32_t step;   /* WAIT and ENABLE: added to the count when the entry has been executed */
	uint64_t operand; /* compare or add; WAIT: completion queue, ENABLE: queue pair (numbers of this process's device) */
	uint64_t swap;
	struct softrnic_dv_sge sge; /* the first one */
};

/* Flags of a new queue pair. The numbers are those of the cross-channel verbs of old. */
enum softrnic_dv_qp_flags {
	SOFTRNIC_DV_QP_CROSS_CHANNEL = 1 << 2, /* takes WAIT and ENABLE; implied by the others */
	SOFTRNIC_DV_QP_MANAGED_SEND = 1 << 3,  /* requests are executed when they are enabled */
	SOFTRNIC_DV_QP_MANAGED_RECV = 1 << 4,  /* receives are taken when they are enabled */
	SOFTRNIC_DV_QP_IGNORE_SQ_OVERFLOW = 1 << 6, /* a place is free when its request has completed, polled or not: */
	SOFTRNIC_DV_QP_IGNORE_RQ_OVERFLOW = 1 << 7, /* managed queues always do that; the flags are accepted */
	SOFTRNIC_DV_QP_CYCLIC_SEND = 1 << 16, /* with MANAGED_SEND: filled once, then it runs in a circle */
	SOFTRNIC_DV_QP_CYCLIC_RECV = 1 << 17, /* with MANAGED_RECV */
};

struct softrnic_dv_qp_attr {
	uint64_t comp_mask;    /* 0 */
	uint32_t create_flags; /* enum softrnic_dv_qp_flags */
	uint32_t reserved;     /* 0 */
	/* Operations (SOFTRNIC_DV_ALLOW) that a patched entry may have beside the one posted. NOP is always allowed. */
	uint64_t opcodes;
	/* Bytes that may be patched, one bit for each: of the first 64 of a request, of each further 64. */
	uint64_t patchable[2];
	/* The same of a managed receive queue. */
	uint64_t recv_patchable[2];
};

/*
 * As ibv_create_qp(3), for the service RC. `init->cap` gets the real sizes: the places of a managed queue are a power
 * of two, and a managed send queue takes no inline data.
 *
 * EINVAL: flags, sizes, another service, a shared receive queue with MANAGED_RECV; EOPNOTSUPP: another device; ENOMEM.
 */
__attribute__((weak)) struct ibv_qp *softrnic_dv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
							   const struct softrnic_dv_qp_attr *attr);

enum softrnic_dv_cq_flags {
	SOFTRNIC_DV_CQ_CROSS_CHANNEL = 1 << 0,  /* WAITs may wait for its count */
	SOFTRNIC_DV_CQ_IGNORE_OVERRUN = 1 << 1, /* a full queue drops its oldest completion, and counts on */
};

struct softrnic_dv_cq_attr {
	uint64_t comp_mask; /* 0 */
	uint32_t cqe;
	uint32_t flags;       /* enum softrnic_dv_cq_flags */
	uint64_t first_count; /* where its count begins */
	void *cq_context;
	struct ibv_comp_channel *channel; /* or NULL */
	uint32_t comp_vector;
	uint32_t reserved; /* 0 */
};

/* As ibv_create_cq(3). EINVAL: flags, sizes; EOPNOTSUPP: another device; ENOMEM. */
__attribute__((weak)) struct ibv_cq *softrnic_dv_create_cq(struct ibv_context *context,
							   const struct softrnic_dv_cq_attr *attr);

/* Completions that the queue ever had, lost ones, too. EINVAL: not made with CROSS_CHANNEL. */
__attribute__((weak)) int softrnic_dv_cq_count(struct ibv_cq *cq, uint64_t *count);

enum softrnic_dv_task_flags {
	SOFTRNIC_DV_TASK_ABSOLUTE = 1 << 0, /* the count is absolute */
	SOFTRNIC_DV_TASK_LAST = 1 << 1,     /* relative counts begin behind this one from now on */
};

struct softrnic_dv_task {
	uint64_t wr_id;
	uint32_t opcode;     /* enum softrnic_dv_opcode */
	uint32_t send_flags; /* IBV_SEND_SIGNALED, IBV_SEND_FENCE */
	uint32_t flags;      /* enum softrnic_dv_task_flags */
	uint32_t step;       /* cyclic queues: added to the count when the entry has been executed */
	uint64_t count;      /* ENABLE, relative: 0 is all that is posted */
	struct ibv_cq *cq;   /* WAIT */
	struct ibv_qp *qp;   /* ENABLE: the queue pair whose queue is enabled */
};

/*
 * Posts a NOP, WAIT or ENABLE to the send queue of `qp`. Other requests are posted by ibv_post_send(3). Its completion,
 * if asked for, has the opcode IBV_WC_DRIVER1.
 *
 * EINVAL: `qp` or `cq` was not made with CROSS_CHANNEL; the queue to be enabled is not managed, of another domain, or
 * has no entries that far (a full cyclic queue always has); `step` on a queue that is not cyclic. ENOMEM: the queue is
 * full.
 */
__attribute__((weak)) int softrnic_dv_post_task(struct ibv_qp *qp, const struct softrnic_dv_task *task);

enum softrnic_dv_queue_side { SOFTRNIC_DV_SEND = 0, SOFTRNIC_DV_RECV = 1 };

/* Enables entries, as an ENABLE does, by the program: `flags` and `count` as in a task. */
__attribute__((weak)) int softrnic_dv_enable(struct ibv_qp *qp, uint32_t side, uint64_t count, uint32_t flags);

struct softrnic_dv_queue {
	void *addr;      /* the array of entries; NULL: the queue has none */
	uint32_t stride; /* bytes from one request to the next */
	uint32_t count;  /* requests that it holds */
	uint64_t posted, enabled, begun; /* counts of requests; begun: executed, or being executed */
	uint32_t version; /* SOFTRNIC_DV_ENTRY_VERSION */
	uint32_t reserved;
};

__attribute__((weak)) int softrnic_dv_query_queue(struct ibv_qp *qp, uint32_t side, struct softrnic_dv_queue *queue);

/*
 * A region upon the whole array of a managed queue, with these rights (enum ibv_access_flags): the keys with which
 * receives of this process, and peers, patch entries. ibv_dereg_mr(3) ends it. Until then ibv_destroy_qp(3) of the
 * queue pair fails with EBUSY.
 */
__attribute__((weak)) struct ibv_mr *softrnic_dv_reg_queue(struct ibv_qp *qp, uint32_t side, int access);

/* The entries of a managed send queue; {NULL, 0} if the queue pair has none. */
struct ibv_hyperloop_wqe_buffer {
	void *address;
	size_t size;
};

__attribute__((weak)) struct ibv_hyperloop_wqe_buffer ibv_hyperloop_get_wqe_buffer(struct ibv_qp *qp);

#ifdef __cplusplus
}
#endif

#endif
