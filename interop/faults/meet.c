/*
 * A program that meets faults, and prints one line for each observation.
 *
 *     meet near|far rc|uc|ud COUNT [RNR_RETRY]	sends COUNT messages of 64 bytes to a process of its own, one after the other
 *     meet near events COUNT			waits for COUNT asynchronous events of the device
 *     meet near calls				makes one object of each kind, and says which call failed
 *     meet near cm				connects, listens, and says which rdma_cm events came
 *
 * near: the faults of SOFTRNIC_FAULT are met by this process, far: by the other one. It knows nothing else of this library:
 * it uses only functions that libibverbs-dev and librdmacm-dev declare.
 */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

static long long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

void die(const char *what)
{
	printf("%s: %s\n", what, strerrorname_np(errno));
	fflush(stdout);
	_exit(1);
}

struct ibv_context *open_device(void)
{
	struct ibv_device **list = NEED(ibv_get_device_list(NULL));
	struct ibv_context *ctx = NEED(ibv_open_device(list[0]));

	ibv_free_device_list(list);
	return ctx;
}

bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

/* ---- messages ---- */

enum { SIZE = 64, GRH = 40, QKEY = 0x1234 };

/* The receiver ends as soon as it has all. */
static bool leaves;

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	enum ibv_qp_type type;
	uint8_t *buf;
	uint32_t far;
};

struct name {
	uint32_t qpn;
	union ibv_gid gid;
};

static uint8_t byte_of(int message, int at)
{
	return message * 31 + at * 7 + 1;
}

static void make(struct end *e, enum ibv_qp_type type, int count)
{
	e->type = type;
	e->ctx = open_device();
	e->pd = NEED(ibv_alloc_pd(e->ctx));
	/* Room for messages that come twice. */
	count *= 2;
	e->cq = NEED(ibv_create_cq(e->ctx, 2 * count, NULL, NULL, 0));
	e->buf = NEED(calloc(count, GRH + SIZE));
	e->mr = NEED(ibv_reg_mr(e->pd, e->buf, count * (GRH + SIZE), IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp_init_attr init = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { .max_send_wr = count, .max_recv_wr = count, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	e->qp = NEED(ibv_create_qp(e->pd, &init));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	ZERO(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					 (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

static void join(struct end *e, int fd, int rnr_retry)
{
	struct name ours = { .qpn = e->qp->qp_num }, theirs;
	int mask = IBV_QP_STATE;

	ZERO(ibv_query_gid(e->ctx, 1, 0, &ours.gid));
	if (write(fd, &ours, sizeof(ours)) != sizeof(ours) || read(fd, &theirs, sizeof(theirs)) != sizeof(theirs))
		die("the other process");
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh = { .dgid = theirs.gid, .hop_limit = 1 } };
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn, .ah_attr = ah,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 10, .timeout = 12, .retry_cnt = 3, .rnr_retry = rnr_retry,
		.max_rd_atomic = 1,
	};
	if (e->type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (e->type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	ZERO(ibv_modify_qp(e->qp, &attr, mask));
	attr.qp_state = IBV_QPS_RTS;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (e->type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	ZERO(ibv_modify_qp(e->qp, &attr, mask));
	if (e->type == IBV_QPT_UD)
		e->ah = NEED(ibv_create_ah(e->pd, &ah));
	e->far = theirs.qpn;
}

static const char *status_name(int status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return "IBV_WC_SUCCESS";
	case IBV_WC_WR_FLUSH_ERR:
		return "IBV_WC_WR_FLUSH_ERR";
	case IBV_WC_RETRY_EXC_ERR:
		return "IBV_WC_RETRY_EXC_ERR";
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return "IBV_WC_RNR_RETRY_EXC_ERR";
	}
	return ibv_wc_status_str(status);
}

static bool complete(struct end *e, int ms, struct ibv_wc *wc)
{
	for (long long until = now_ms() + ms; now_ms() < until;) {
		int n = ibv_poll_cq(e->cq, 1, wc);

		if (n < 0) {
			errno = -n;
			die("ibv_poll_cq");
		}
		if (n)
			return true;
	}
	return false;
}

static void receive_all(struct end *e, int fd, int count, int rnr_retry)
{
	int room = GRH + SIZE, came = 0, wrong = 0, numbers[2];
	struct ibv_wc wc;

	for (int i = 0; i < 2 * count; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)e->buf + i * room, .length = room, .lkey = e->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		ZERO(ibv_post_recv(e->qp, &wr, &bad));
	}
	join(e, fd, rnr_retry);
	if (write(fd, "r", 1) != 1)
		die("the other process");
	bool sending = true;
	while (came < count) {
		if (complete(e, sending ? 20 : 500, &wc)) {
			if (wc.status != IBV_WC_SUCCESS)
				continue;
			uint8_t *data = e->buf + wc.wr_id * room + (e->type == IBV_QPT_UD ? GRH : 0);

			came++;
			for (int i = 1; i < SIZE; i++)
				if (data[i] != byte_of(data[0], i)) {
					wrong++;
					break;
				}
		} else if (!sending) {
			break;
		} else if (readable(fd, 0)) {
			sending = false;
		}
	}
	if (leaves)
		exit(0); /* with all open, and its last acknowledgement perhaps on the way */
	/* A message that comes twice would come now. */
	while (complete(e, 100, &wc))
		came += wc.status == IBV_WC_SUCCESS;
	numbers[0] = came;
	numbers[1] = wrong;
	if (write(fd, numbers, sizeof(numbers)) != sizeof(numbers))
		die("the other process");
}

static void send_all(struct end *e, int fd, int count, int rnr_retry)
{
	int done[64] = { 0 }, numbers[2];
	struct ibv_async_event event;
	struct ibv_wc wc;
	char ready;

	join(e, fd, rnr_retry);
	if (read(fd, &ready, 1) != 1)
		die("the other process");
	for (int i = 0; i < count; i++) {
		e->buf[0] = i;
		for (int at = 1; at < SIZE; at++)
			e->buf[at] = byte_of(i, at);
		struct ibv_sge sge = { .addr = (uintptr_t)e->buf, .length = SIZE, .lkey = e->mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

		if (e->type == IBV_QPT_UD) {
			wr.wr.ud.ah = e->ah;
			wr.wr.ud.remote_qpn = e->far;
			wr.wr.ud.remote_qkey = QKEY;
		}
		int ret = ibv_post_send(e->qp, &wr, &bad);

		if (ret) {
			printf("ibv_post_send: %s%s\n", strerrorname_np(ret), bad == &wr ? "" : ", bad_wr not set");
			continue;
		}
		if (!complete(e, 20000, &wc)) {
			printf("no completion\n");
			break;
		}
		done[wc.status]++;
	}
	for (int status = 0; status < 64; status++)
		if (done[status])
			printf("%d x %s\n", done[status], status_name(status));
	if (leaves)
		return;
	if (write(fd, "d", 1) != 1 || read(fd, numbers, sizeof(numbers)) != sizeof(numbers))
		die("the other process");
	printf("%d of %d received", numbers[0], count);
	if (numbers[1])
		printf(", %d with wrong data", numbers[1]);
	printf("\n");
	/* An event of the device may still be on its way where the machine is busy. */
	const char *fault = getenv("SOFTRNIC_FAULT");
	int patience = fault && (strstr(fault, "port-") || strstr(fault, "-error") || strstr(fault, "fatal")) ? 2000 : 100;

	while (readable(e->ctx->async_fd, patience) && ibv_get_async_event(e->ctx, &event) == 0) {
		if (event.event_type != IBV_EVENT_COMM_EST)
			printf("%s\n", event_name(event.event_type));
		ibv_ack_async_event(&event);
	}
}

static void messages(bool near, enum ibv_qp_type type, int count, int rnr_retry)
{
	struct end e = { 0 };
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		die("socketpair");
	pid_t other = fork();
	bool sends = other != 0;

	/* No code has used the device yet. */
	if (sends != near)
		unsetenv("SOFTRNIC_FAULT");
	make(&e, type, count);
	(sends ? send_all : receive_all)(&e, fds[sends], count, rnr_retry);
	fflush(stdout);
	if (!sends)
		_exit(0);
	waitpid(other, NULL, 0);
}

/* ---- asynchronous events ---- */

const char *event_name(enum ibv_event_type type)
{
	static const char *const names[] = {
		[IBV_EVENT_CQ_ERR] = "IBV_EVENT_CQ_ERR", [IBV_EVENT_QP_FATAL] = "IBV_EVENT_QP_FATAL",
		[IBV_EVENT_QP_REQ_ERR] = "IBV_EVENT_QP_REQ_ERR", [IBV_EVENT_QP_ACCESS_ERR] = "IBV_EVENT_QP_ACCESS_ERR",
		[IBV_EVENT_COMM_EST] = "IBV_EVENT_COMM_EST", [IBV_EVENT_DEVICE_FATAL] = "IBV_EVENT_DEVICE_FATAL",
		[IBV_EVENT_PORT_ACTIVE] = "IBV_EVENT_PORT_ACTIVE", [IBV_EVENT_PORT_ERR] = "IBV_EVENT_PORT_ERR",
		[IBV_EVENT_GID_CHANGE] = "IBV_EVENT_GID_CHANGE",
	};

	return type < sizeof(names) / sizeof(*names) && names[type] ? names[type] : "another event";
}

static void events(int count)
{
	struct ibv_context *ctx = open_device();
	struct ibv_pd *pd = NEED(ibv_alloc_pd(ctx));
	static char buf[64];

	for (int i = 0; i < count; i++) {
		struct ibv_async_event event;
		struct ibv_port_attr port;

		if (!readable(ctx->async_fd, 5000)) {
			printf("no event\n");
			break;
		}
		if (ibv_get_async_event(ctx, &event))
			die("ibv_get_async_event");
		ibv_ack_async_event(&event);
		int ret = ibv_query_port(ctx, 1, &port);

		printf("%s, ibv_query_port: %s\n", event_name(event.event_type),
		       ret ? strerrorname_np(ret) : ibv_port_state_str(port.state));
	}
	printf("ibv_reg_mr: %s\n", ibv_reg_mr(pd, buf, sizeof(buf), 0) ? "done" : strerrorname_np(errno));
}

/* ---- calls ---- */

static void said(const char *call, int error)
{
	if (error)
		printf("%s: %s\n", call, strerrorname_np(error));
}

static void calls(void)
{
	struct ibv_context *ctx = open_device();
	static char buf[64];

	for (int i = 0; i < 3; i++) {
		struct ibv_pd *pd = ibv_alloc_pd(ctx);

		said("ibv_alloc_pd", pd ? 0 : errno);
		if (!pd)
			continue;
		int rights = i ? IBV_ACCESS_LOCAL_WRITE : 0;
		struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof(buf), rights);

		said("ibv_reg_mr", mr ? 0 : errno);
		struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);

		said("ibv_create_comp_channel", channel ? 0 : errno);
		struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, channel, 0);

		said("ibv_create_cq", cq ? 0 : errno);
		if (!cq)
			continue;
		struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
		struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);

		said("ibv_create_srq", srq ? 0 : errno);
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		said("ibv_create_qp", qp ? 0 : errno);
		if (!qp)
			continue;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		struct ibv_recv_wr wr = { 0 }, *bad;
		struct ibv_wc wc;
		int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

		said("ibv_modify_qp", ibv_modify_qp(qp, &attr, mask));
		said("ibv_post_recv", ibv_post_recv(qp, &wr, &bad));
		said("ibv_req_notify_cq", ibv_req_notify_cq(cq, 0));
		int n = ibv_poll_cq(cq, 1, &wc);

		said("ibv_poll_cq", n < 0 ? -n : 0);
		said("ibv_destroy_qp", ibv_destroy_qp(qp));
	}
	printf("the rest succeeded\n");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	const char *what = argc > 2 ? argv[2] : "";
	bool near = argc > 2 && !strcmp(argv[1], "near");
	int count = argc > 3 ? atoi(argv[3]) : 20;
	int rnr_retry = argc > 4 ? atoi(argv[4]) : 7;

	leaves = argc > 5 && !strcmp(argv[5], "leave");

	if (!strcmp(what, "rc"))
		messages(near, IBV_QPT_RC, count, rnr_retry);
	else if (!strcmp(what, "uc"))
		messages(near, IBV_QPT_UC, count, rnr_retry);
	else if (!strcmp(what, "ud"))
		messages(near, IBV_QPT_UD, count, rnr_retry);
	else if (!strcmp(what, "events"))
		events(count);
	else if (!strcmp(what, "calls"))
		calls();
	else if (!strcmp(what, "cm"))
		connections();
	else
		return 2;
	return 0;
}
