// Threads that wait for an event while another thread destroys what they wait at. A kernel keeps the file for a thread that
// reads it: it stays there, without an error, and reads nothing of another file that gets the number of the descriptor.
// flags: -lrdmacm
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* AddressSanitizer leaves the guards of a frame on the stack when a cancellation unwinds it, and takes what uses the stack
 * next for a wrong access. */
#define UNWOUND __attribute__((no_sanitize_address))

static struct ibv_context *ctx, *left;
static struct ibv_pd *pd, *left_pd;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *cm_channel;
static struct rdma_cm_id *id, *caller;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct side side[2];

/* The library's only wait is its read of a descriptor, which comes here. The first one of `gate` stops before the system
 * call or behind it. */
static enum place { BEFORE, BEHIND } place;
static volatile int gate = -1, reads;
static sem_t stopped, go;

static void stop(void)
{
	MUST(!sem_post(&stopped));
	while (sem_wait(&go))
		;
}

UNWOUND ssize_t read(int fd, void *buf, size_t len)
{
	int first = fd == gate && !reads++;
	ssize_t got;

	if (first && place == BEFORE)
		stop();
	got = ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(fd, buf, len);
	if (first && place == BEHIND)
		stop();
	return got;
}

static int open_async(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };

	left = open_softrnic();
	MUST(left_pd = ibv_alloc_pd(left));
	MUST(srq = ibv_create_srq(left_pd, &init));
	return left->async_fd;
}

UNWOUND static void wait_async(void)
{
	struct ibv_async_event event;

	ibv_get_async_event(left, &event);
}

/* A queue pair in error will take nothing from its shared receive queue any more. */
static void make_async(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .srq = srq, .cap = { 1, 0, 1, 0, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	MUST(cq = ibv_create_cq(left, 4, NULL, NULL, 0));
	init.send_cq = init.recv_cq = cq;
	MUST(side[0].qp = ibv_create_qp(left_pd, &init));
	to_init(side[0].qp);
	NUMBER(0, ibv_modify_qp(side[0].qp, &attr, IBV_QP_STATE));
}

static void destroy_async(void)
{
	if (side[0].qp) {
		NUMBER(0, ibv_destroy_qp(side[0].qp));
		NUMBER(0, ibv_destroy_cq(cq));
	}
	NUMBER(0, ibv_destroy_srq(srq));
	NUMBER(0, ibv_dealloc_pd(left_pd));
	NUMBER(0, ibv_close_device(left));
}

static int open_completion(void)
{
	MUST(channel = ibv_create_comp_channel(ctx));
	return channel->fd;
}

UNWOUND static void wait_completion(void)
{
	struct ibv_cq *from;
	void *user;

	ibv_get_cq_event(channel, &from, &user);
}

static void make_completion(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive = { 0 }, *bad;

	MUST(cq = ibv_create_cq(ctx, 4, NULL, channel, 0));
	NUMBER(0, ibv_req_notify_cq(cq, 0));
	init.send_cq = init.recv_cq = cq;
	MUST(side[0].qp = ibv_create_qp(pd, &init));
	to_init(side[0].qp);
	NUMBER(0, ibv_post_recv(side[0].qp, &receive, &bad));
	NUMBER(0, ibv_modify_qp(side[0].qp, &attr, IBV_QP_STATE));
}

static void destroy_completion(void)
{
	if (side[0].qp) {
		NUMBER(0, ibv_destroy_qp(side[0].qp));
		NUMBER(0, ibv_destroy_cq(cq));
	}
	NUMBER(0, ibv_destroy_comp_channel(channel));
}

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int open_cm(void)
{
	MUST(cm_channel = rdma_create_event_channel());
	MUST(!rdma_create_id(cm_channel, &id, NULL, RDMA_PS_TCP));
	return cm_channel->fd;
}

UNWOUND static void wait_cm(void)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(cm_channel, &event);
}

static void make_cm(void)
{
	struct sockaddr_in to = loopback(htons(9));

	MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
}

static void destroy_cm(void)
{
	NUMBER(0, rdma_destroy_id(id));
	rdma_destroy_event_channel(cm_channel);
}

static int open_request(void)
{
	struct sockaddr_in any = loopback(0);

	MUST(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(id, (struct sockaddr *)&any));
	MUST(!rdma_listen(id, 1));
	return id->channel->fd;
}

UNWOUND static void wait_request(void)
{
	struct rdma_cm_id *request;

	rdma_get_request(id, &request);
}

static void make_request(void)
{
	struct sockaddr_in to = loopback(rdma_get_src_port(id));
	struct rdma_conn_param param = { 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_event *event;

	MUST(cm_channel = rdma_create_event_channel());
	MUST(!rdma_create_id(cm_channel, &caller, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(caller, NULL, (struct sockaddr *)&to, 1000));
	MUST(!rdma_get_cm_event(cm_channel, &event) && !rdma_ack_cm_event(event));
	MUST(!rdma_resolve_route(caller, 1000));
	MUST(!rdma_get_cm_event(cm_channel, &event) && !rdma_ack_cm_event(event));
	MUST(!rdma_create_qp(caller, NULL, &init));
	MUST(!rdma_connect(caller, &param));
}

static void destroy_request(void)
{
	NUMBER(0, rdma_destroy_id(id));
	if (caller) {
		rdma_destroy_qp(caller);
		NUMBER(0, rdma_destroy_id(caller));
		rdma_destroy_event_channel(cm_channel);
	}
}

/* What to wait at, how to wait, an event that its object's end takes away again, and the end of all of that. */
static const struct call {
	const char *name;
	int (*open)(void);
	void (*wait)(void), (*make)(void), (*destroy)(void);
} calls[] = {
	{ "ibv_get_async_event", open_async, wait_async, make_async, destroy_async },
	{ "ibv_get_cq_event", open_completion, wait_completion, make_completion, destroy_completion },
	{ "rdma_get_cm_event", open_cm, wait_cm, make_cm, destroy_cm },
	{ "rdma_get_request", open_request, wait_request, make_request, destroy_request },
};
enum { CALLS = sizeof calls / sizeof *calls, FILES = 32 };

static volatile int came_back;

UNWOUND static void *waiter(void *call)
{
	((const struct call *)call)->wait();
	came_back = 1;
	return NULL;
}

static void *block[256];
enum { BLOCKS = sizeof block / sizeof *block };

/* Uses memory that was freed for something else. */
static void take_memory(void)
{
	for (int i = 0; i < BLOCKS; i++)
		memset(block[i] = malloc(16 * (i / 2 + 1)), 0xff, 16 * (i / 2 + 1));
}

static void free_memory(void)
{
	for (int i = 0; i < BLOCKS; i++)
		free(block[i]);
}

static void stays(const struct call *call, enum place at)
{
	static const char data[16] = "of other files";
	struct timespec until;
	pthread_t thread;
	void *result;
	int pipes[FILES][2], there, wanted = at == BEFORE ? 1 : 2;

	memset(side, 0, sizeof side);
	caller = NULL;
	place = at;
	came_back = reads = 0;
	gate = call->open();
	MUST(!pthread_create(&thread, NULL, waiter, (void *)call));
	if (at == BEHIND)
		call->make();
	while (sem_wait(&stopped))
		;
	call->destroy();
	take_memory();
	for (int i = 0; i < FILES; i++)
		MUST(!pipe(pipes[i]) && write(pipes[i][1], data, sizeof data) == sizeof data);
	MUST(!sem_post(&go));
	for (int i = 0; i < 2000 && !came_back && reads < wanted; i++)
		usleep(10000);
	usleep(100000); // it sleeps
	if (came_back) {
		fprintf(stderr, "%s, stopped %s its read: it came back\n", call->name, at == BEFORE ? "before" : "behind");
		failures++;
	}
	NUMBER(wanted, reads);
	for (int i = 0; i < FILES; i++) {
		NUMBER(0, ioctl(pipes[i][0], FIONREAD, &there));
		NUMBER(sizeof data, there);
	}

	/* It can still be cancelled there. The descriptor is closed when such an object is destroyed the next time, and the
	 * thread is none of the process any more, as it is soon. */
	pthread_cancel(thread);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	MUST(!pthread_timedjoin_np(thread, &result, &until));
	CHECK(result == PTHREAD_CANCELED);
	memset(side, 0, sizeof side);
	caller = NULL;
	for (int i = 0; i < 2000 && fcntl(gate, F_GETFD) != -1; i++) {
		usleep(10000);
		call->open();
		call->destroy();
	}
	CHECK(fcntl(gate, F_GETFD) == -1);
	free_memory();
	for (int i = 0; i < 2 * FILES; i++)
		close(pipes[i / 2][i % 2]);
}

static volatile int got, why;

/* Gets one event, and comes back for the next. */
UNWOUND static void *returner(void *unused)
{
	struct rdma_cm_event *event;

	MUST(!rdma_get_cm_event(cm_channel, &event) && !rdma_ack_cm_event(event));
	stop();
	got = rdma_get_cm_event(cm_channel, &event);
	why = errno;
	came_back = 1;
	return unused;
}

static void *stranger(void *unused)
{
	struct rdma_cm_event *event;

	FAILS(EBADF, -1, rdma_get_cm_event(cm_channel, &event));
	return unused;
}

/* rping's thread (rdma-core 44) comes back to the channel behind the last event, while the main thread destroys it. */
static void comes_back(int flags)
{
	struct rdma_cm_event *event;
	pthread_t thread, other;

	came_back = 0;
	gate = -1;
	open_cm();
	MUST(!fcntl(cm_channel->fd, F_SETFL, flags));
	make_cm();
	if (flags & O_NONBLOCK)
		usleep(100000);
	MUST(!pthread_create(&thread, NULL, returner, NULL));
	while (sem_wait(&stopped))
		;
	destroy_cm();
	FAILS(EBADF, -1, rdma_get_cm_event(cm_channel, &event)); // the thread that has destroyed it knows
	MUST(!pthread_create(&other, NULL, stranger, NULL) && !pthread_join(other, NULL));
	MUST(!sem_post(&go));
	if (flags & O_NONBLOCK) {
		MUST(!pthread_join(thread, NULL));
		CHECK(got == -1 && why == EBADF);
	} else {
		for (int i = 0; i < 20 && !came_back; i++)
			usleep(10000);
		CHECK(!came_back);
		pthread_cancel(thread);
		MUST(!pthread_join(thread, NULL));
	}
}

int main(void)
{
	alarm(100);
	MUST(!sem_init(&stopped, 0, 0) && !sem_init(&go, 0, 0));
	ctx = open_softrnic();
	MUST(pd = ibv_alloc_pd(ctx));
	for (size_t i = 0; i < CALLS; i++) {
		stays(&calls[i], BEHIND);
		stays(&calls[i], BEFORE);
	}
	comes_back(0);
	comes_back(O_NONBLOCK);
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
