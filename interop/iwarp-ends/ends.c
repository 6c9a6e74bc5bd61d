/*
 * One side of a connection, and how it ends.
 *
 *     ends listen|connect ADDRESS PORT idle|busy|read
 *     ends mute|reach ADDRESS PORT
 *
 * Both sides have four receives posted and say `established`. The connecting side then posts nothing (`idle`), WRITEs
 * without end (`busy`, and says so when some are done), or an RDMA READ of the peer's memory (`read`) when SIGUSR2
 * comes, and says `posted`. SIGUSR2 makes a busy side stop, and end the connection itself. Each side waits for
 * DISCONNECTED, then for what is posted to complete, and says which event and which statuses it got. `mute` is a TCP
 * server that takes connections and says nothing; `reach` waits until the host refuses or takes a TCP connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum { RECEIVES = 4, DEPTH = 4, SIZE = 4096, SOME = 20, PATIENCE = 90000, FLUSH = 40000 };

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

/* Where the peer's memory is. Programs of one build exchange it. */
struct place {
	uint64_t addr;
	uint32_t rkey;
};

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static char memory[2 * SIZE];
static struct place theirs;
static int posted_receives, posted_sends;
/* By status, of receives and of other requests. */
static unsigned received[32], done[32];

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void say(const char *text)
{
	printf("%s\n", text);
	fflush(stdout);
}

static int next(int ms, struct rdma_cm_event *copy)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int n = poll(&p, 1, ms);
	CHECK(n >= 0 || errno == EINTR);
	if (n <= 0)
		return -1;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	*copy = *event;
	if (event->param.conn.private_data_len >= sizeof(theirs))
		memcpy(&theirs, event->param.conn.private_data, sizeof(theirs));
	CHECK(rdma_ack_cm_event(event) == 0);
	return copy->event;
}

static void want(enum rdma_cm_event_type type, struct rdma_cm_event *event)
{
	long begun = now();
	int got = next(PATIENCE, event);
	if (got == (int)type)
		return;
	printf("%s, status %d, after %ld ms\n", got < 0 ? "no event" : rdma_event_str(got), got < 0 ? 0 : event->status,
		now() - begun);
	exit(got < 0);
}

static void receive(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
	posted_receives++;
}

static void post(enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + SIZE, .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = theirs.addr, .rkey = theirs.rkey } }, *bad;
	CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
	posted_sends++;
}

static void prepare(struct rdma_conn_param *param, struct place *ours)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = DEPTH, .max_recv_wr = RECEIVES,
		.max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	CHECK(pd);
	cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0);
	CHECK(cq);
	attr.send_cq = attr.recv_cq = cq;
	CHECK(rdma_create_qp(id, pd, &attr) == 0);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	for (int i = 0; i < RECEIVES; i++)
		receive();
	*ours = (struct place){ .addr = (uintptr_t)memory, .rkey = mr->rkey };
	*param = (struct rdma_conn_param){ .private_data = ours, .private_data_len = sizeof(*ours), .responder_resources = 1,
		.initiator_depth = 1 };
}

static void poll_all(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(cq, 16, wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		unsigned status = wc[i].status % 32;
		if (wc[i].wr_id == 1) {
			posted_receives--;
			received[status]++;
			if (status == IBV_WC_SUCCESS)
				receive();
		} else {
			posted_sends--;
			done[status]++;
		}
	}
}

static void tell(const char *what, const unsigned *counts)
{
	for (unsigned i = 0; i < 32; i++)
		if (counts[i])
			printf("%s: %u x %s\n", what, counts[i], ibv_wc_status_str(i));
}

static volatile sig_atomic_t is_signalled;

static void on_signal(int number)
{
	(void)number;
	is_signalled = 1;
}

static void run(bool active, const char *mode)
{
	struct rdma_cm_event event;
	bool busy = active && !strcmp(mode, "busy"), reads = active && !strcmp(mode, "read"), is_told = false, leaves = false;
	say("established");
	for (;;) {
		int type = next(0, &event);
		if (type >= 0) {
			printf("%s, status %d\n", rdma_event_str(type), event.status);
			CHECK(type == RDMA_CM_EVENT_DISCONNECTED);
			break;
		}
		while (busy && posted_sends < DEPTH)
			post(IBV_WR_RDMA_WRITE);
		poll_all();
		if (busy && !is_told && done[IBV_WC_SUCCESS] >= SOME) {
			is_told = true;
			say("busy");
		}
		if ((busy || reads) && is_signalled) {
			if (reads) {
				post(IBV_WR_RDMA_READ);
				say("posted");
			}
			leaves = busy;
			busy = reads = false;
		}
		if (leaves && posted_sends == 0) {
			leaves = false;
			printf("sent %u\n", done[IBV_WC_SUCCESS]);
			CHECK(rdma_disconnect(id) == 0);
		}
		if (!busy)
			usleep(500);
	}
	long until = now() + FLUSH;
	while (posted_receives + posted_sends > 0 && now() < until)
		poll_all();
	tell("receives", received);
	tell("requests", done);
	printf("%d left\n", posted_receives + posted_sends);
}

static void leave(void)
{
	struct ibv_pd *pd = id->qp->pd;
	rdma_destroy_qp(id);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	say("end");
}

static void mute(const struct addrinfo *to)
{
	int socket_ = socket(to->ai_family, SOCK_STREAM, 0), one = 1;
	CHECK(socket_ >= 0 && setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(socket_, to->ai_addr, to->ai_addrlen) == 0 && listen(socket_, 16) == 0);
	for (;;)
		CHECK(accept(socket_, NULL, NULL) >= 0);
}

static void reach(const struct addrinfo *to)
{
	for (long until = now() + PATIENCE; now() < until; usleep(20000)) {
		int socket_ = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
		socklen_t len = sizeof(error);
		struct pollfd p = { .fd = socket_, .events = POLLOUT };
		CHECK(socket_ >= 0);
		error = connect(socket_, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
		if (error == EINPROGRESS && poll(&p, 1, 500) == 1)
			CHECK(getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &len) == 0);
		close(socket_);
		if (error == 0 || error == ECONNREFUSED)
			exit(0);
	}
	fprintf(stderr, "no answer\n");
	exit(1);
}

int main(int argc, char **argv)
{
	struct rdma_conn_param param;
	struct rdma_cm_event event;
	struct addrinfo *to;
	struct place ours;
	if (argc < 4 || getaddrinfo(argv[2], argv[3], NULL, &to) != 0) {
		fprintf(stderr, "usage: ends listen|connect ADDRESS PORT idle|busy|read; ends mute|reach ADDRESS PORT\n");
		return 2;
	}
	if (!strcmp(argv[1], "mute"))
		mute(to);
	if (!strcmp(argv[1], "reach"))
		reach(to);
	const char *mode = argc > 4 ? argv[4] : "idle";
	bool active = !strcmp(argv[1], "connect");
	signal(SIGUSR2, on_signal);
	channel = rdma_create_event_channel();
	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	if (active) {
		if (rdma_resolve_addr(id, NULL, to->ai_addr, 2000) != 0) {
			printf("rdma_resolve_addr: %s\n", strerror(errno));
			return 0;
		}
		want(RDMA_CM_EVENT_ADDR_RESOLVED, &event);
		CHECK(rdma_resolve_route(id, 2000) == 0);
		want(RDMA_CM_EVENT_ROUTE_RESOLVED, &event);
		prepare(&param, &ours);
		CHECK(rdma_connect(id, &param) == 0);
	} else {
		struct rdma_cm_id *listener = id;
		CHECK(rdma_bind_addr(id, to->ai_addr) == 0 && rdma_listen(id, 4) == 0);
		want(RDMA_CM_EVENT_CONNECT_REQUEST, &event);
		id = event.id;
		prepare(&param, &ours);
		CHECK(rdma_accept(id, &param) == 0);
		CHECK(rdma_destroy_id(listener) == 0);
	}
	want(RDMA_CM_EVENT_ESTABLISHED, &event);
	run(active, mode);
	leave();
	return 0;
}
