// Shared by the programs here: a library opened by one of several names, its functions by name and version, and a
// message between two queue pairs. Nothing is linked to libibverbs or librdmacm.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(condition) ((condition) ? (void)0 : die(__FILE__, __LINE__, #condition))

// No device, as opposed to a broken one.
enum { NO_DEVICE = 3 };

static inline void die(const char *file, int line, const char *what)
{
	const char *why = dlerror();

	fprintf(stderr, "%s:%d: not so: %s (%s)\n", file, line, what, why ? why : "");
	exit(1);
}

// The first of the names that can be opened, as NCCL tries them.
static inline void *open_one_of(char **names, int flags)
{
	for (; *names; names++) {
		void *handle = dlopen(*names, flags);

		if (handle)
			return handle;
	}
	MUST(!"one of the names can be opened");
	return NULL;
}

static inline void *find(void *handle, const char *name, const char *version)
{
	void *found = dlvsym(handle, name, version);

	if (!found)
		fprintf(stderr, "there is no %s@%s\n", name, version);
	MUST(found != NULL);
	return found;
}

// Every function that this header and NCCL need of libibverbs.
#define VERBS(X) \
	X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) X(ibv_close_device) \
	X(ibv_get_async_event) X(ibv_ack_async_event) X(ibv_query_device) X(ibv_query_gid) X(ibv_query_qp) \
	X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_dereg_mr) X(ibv_create_cq) X(ibv_destroy_cq) \
	X(ibv_create_qp) X(ibv_modify_qp) X(ibv_destroy_qp) X(ibv_fork_init) X(ibv_event_type_str)

// ibv_reg_mr is a macro, too.
#undef ibv_reg_mr
#undef ibv_query_port

static struct {
#define X(name) typeof(name) *name;
	VERBS(X)
#undef X
	int (*ibv_query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
} verbs;

static inline void find_verbs(void *handle)
{
#define X(name) verbs.name = (typeof(verbs.name))find(handle, #name, "IBVERBS_1.1");
	VERBS(X)
	X(ibv_query_port)
#undef X
	find(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	find(handle, "ibv_query_ece", "IBVERBS_1.10");
	find(handle, "ibv_set_ece", "IBVERBS_1.10");
	find(handle, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	MUST(dlsym(handle, "ibv_open_device") == (void *)verbs.ibv_open_device);
	MUST(dlvsym(handle, "ibv_open_device", "IBVERBS_1.99") == NULL);
}

static inline struct ibv_context *open_device(void)
{
	int n = 0;
	struct ibv_device **list = verbs.ibv_get_device_list(&n);
	struct ibv_context *context = NULL;

	for (int i = 0; i < n; i++) {
		if (!strcmp(verbs.ibv_get_device_name(list[i]), "softrnic0"))
			context = verbs.ibv_open_device(list[i]);
	}
	if (list)
		verbs.ibv_free_device_list(list);
	if (!context) {
		fprintf(stderr, "there is no softrnic0 among %d devices\n", n);
		exit(NO_DEVICE);
	}
	return context;
}

static inline void to_rts(struct ibv_qp *qp, uint32_t to, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	MUST(!verbs.ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = to, .min_rnr_timer = 1, .max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 64 } },
	};
	MUST(!verbs.ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	MUST(!verbs.ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						     IBV_QP_MAX_QP_RD_ATOMIC));
}

// The completions of both queue pairs of one completion queue at the end of `n` requests.
static inline void expect_completions(struct ibv_cq *cq, int n)
{
	for (struct ibv_wc wc; n > 0;) {
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			MUST(wc.status == IBV_WC_SUCCESS);
			n--;
		}
	}
}

// Send from the first half of the region to its second half, from one queue pair to the other.
static inline void send_and_compare(struct ibv_qp *qp[2], struct ibv_cq *cq, unsigned char (*data)[65536], uint32_t size,
				    uint32_t lkey)
{
	for (uint32_t i = 0; i < size; i++)
		data[0][i] = (unsigned char)(i * 7 + i / 256);
	memset(data[1], 0, size);

	struct ibv_sge from = { (uintptr_t)data[0], size, lkey }, to = { (uintptr_t)data[1], size, lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;

	MUST(!ibv_post_recv(qp[1], &recv, &bad_recv));
	MUST(!ibv_post_send(qp[0], &send, &bad_send));
	expect_completions(cq, 2);
	MUST(!memcmp(data[0], data[1], size));
}

// Connect two queue pairs without the connection manager, and move 64 KiB.
static inline void move_data(struct ibv_context *context)
{
	enum { SIZE = 65536 };
	static unsigned char data[2][SIZE];
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_pd *pd = verbs.ibv_alloc_pd(context);
	struct ibv_cq *cq = verbs.ibv_create_cq(context, 8, NULL, NULL, 0);

	MUST(pd && cq);
	MUST(!verbs.ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	MUST(!verbs.ibv_query_gid(context, 1, 0, &gid));

	struct ibv_mr *mr = verbs.ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp[2] = { verbs.ibv_create_qp(pd, &init), verbs.ibv_create_qp(pd, &init) };

	MUST(mr && qp[0] && qp[1]);
	to_rts(qp[0], qp[1]->qp_num, &gid);
	to_rts(qp[1], qp[0]->qp_num, &gid);
	send_and_compare(qp, cq, data, SIZE, mr->lkey);
	for (int i = 0; i < 2; i++)
		MUST(!verbs.ibv_destroy_qp(qp[i]));
	MUST(!verbs.ibv_dereg_mr(mr) && !verbs.ibv_destroy_cq(cq) && !verbs.ibv_dealloc_pd(pd));
}

// The words of a flags argument: now, lazy, global, deepbind.
static inline int flags_of(const char *text)
{
	int flags = strstr(text, "lazy") ? RTLD_LAZY : RTLD_NOW;

	flags |= strstr(text, "global") ? RTLD_GLOBAL : RTLD_LOCAL;
	return flags | (strstr(text, "deepbind") ? RTLD_DEEPBIND : 0);
}
