// Threads that are cancelled: while they wait for an event they end at once, as in read(2); any other call comes back first,
// and leaves nothing locked behind.
// flags: -lrdmacm
#define _GNU_SOURCE
#include "common.h"
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <time.h>
#include <unistd.h>

/* AddressSanitizer leaves the guards of a frame on the stack when a cancellation unwinds it, and takes what uses the stack
 * next for a wrong access. */
#define UNWOUND __attribute__((no_sanitize_address))

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *cm_channel;
static struct rdma_cm_id *listener;
static char memory[65536];

UNWOUND static void wait_async(void)
{
	struct ibv_async_event event;

	ibv_get_async_event(ctx, &event);
}

UNWOUND static void wait_completion(void)
{
	struct ibv_cq *from;
	void *user;

	ibv_get_cq_event(channel, &from, &user);
}

UNWOUND static void wait_cm(void)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(cm_channel, &event);
}

UNWOUND static void wait_request(void)
{
	struct rdma_cm_id *request;

	rdma_get_request(listener, &request);
}

static void open_device(void)
{
	ibv_close_device(open_softrnic());
}

static void register_memory(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);

	MUST(mr);
	NUMBER(0, ibv_dereg_mr(mr));
}

static void make_queue_pair(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	MUST(qp);
	NUMBER(0, ibv_destroy_qp(qp));
}

static void poll_often(void)
{
	struct ibv_wc wc;

	for (int i = 0; i < 1000; i++)
		ibv_poll_cq(cq, 1, &wc);
}

static void send_and_poll(void)
{
	struct side side[2];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr ? mr->lkey : 0 };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	MUST(mr);
	make_pair(pd, side, 4);
	MUST(!ibv_post_recv(side[1].qp, &receive, &bad_receive));
	MUST(!ibv_post_send(side[0].qp, &send, &bad));
	NUMBER(IBV_WC_SUCCESS, next_wc(side[1].cq).status);
	drop_pair(side);
	NUMBER(0, ibv_dereg_mr(mr));
}

static void resolve(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(cm_channel, &id, NULL, RDMA_PS_TCP));
	rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 100);
	rdma_destroy_id(id);
}

static void look_up(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *found;

	if (!rdma_getaddrinfo("127.0.0.1", "99", &hints, &found))
		rdma_freeaddrinfo(found);
}

static void make_channel(void)
{
	struct ibv_comp_channel *made = ibv_create_comp_channel(ctx);

	MUST(made);
	NUMBER(0, ibv_destroy_comp_channel(made));
}

static void ask(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	NUMBER(0, ibv_query_port(ctx, 1, &port));
	NUMBER(0, ibv_query_gid(ctx, 1, 0, &gid));
}

struct call {
	const char *name;
	void (*make)(void);
};

#define CALL(function) { #function, function }

static struct call waits[] = { CALL(wait_async), CALL(wait_completion), CALL(wait_cm), CALL(wait_request) };
static struct call others[] = { CALL(open_device), CALL(register_memory), CALL(make_queue_pair), CALL(poll_often),
				CALL(send_and_poll), CALL(resolve), CALL(look_up), CALL(make_channel), CALL(ask) };
#define COUNT(list) (sizeof(list) / sizeof *(list))

static pthread_barrier_t ready;
static volatile int came_back;

UNWOUND static void *waiter(void *call)
{
	pthread_barrier_wait(&ready);
	((struct call *)call)->make();
	came_back = 1;
	return NULL;
}

/* Makes a call with a cancellation pending. */
UNWOUND static void *condemned(void *call)
{
	int state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_barrier_wait(&ready); // it can be cancelled now
	pthread_barrier_wait(&ready); // it was
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
	((struct call *)call)->make();
	came_back = 1;
	pthread_testcancel();
	return NULL;
}

static void *ended(pthread_t thread, const char *what)
{
	struct timespec until;
	void *result;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	if (pthread_timedjoin_np(thread, &result, &until)) {
		fprintf(stderr, "%s: its thread does not end\n", what);
		_exit(1);
	}
	return result;
}

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	pthread_t thread;

	alarm(100);
	ctx = open_softrnic();
	MUST(pd = ibv_alloc_pd(ctx));
	MUST(channel = ibv_create_comp_channel(ctx));
	MUST(cq = ibv_create_cq(ctx, 16, NULL, channel, 0));
	MUST(cm_channel = rdma_create_event_channel());
	MUST(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&any));
	MUST(!rdma_listen(listener, 1));
	pthread_barrier_init(&ready, NULL, 2);

	for (size_t i = 0; i < COUNT(waits); i++) {
		came_back = 0;
		MUST(!pthread_create(&thread, NULL, waiter, &waits[i]));
		pthread_barrier_wait(&ready);
		usleep(50000); // it waits by now; if not, it meets the cancellation on its way there
		pthread_cancel(thread);
		CHECK(ended(thread, waits[i].name) == PTHREAD_CANCELED);
		CHECK(!came_back);
	}
	for (size_t i = 0; i < COUNT(others); i++) {
		came_back = 0;
		MUST(!pthread_create(&thread, NULL, condemned, &others[i]));
		pthread_barrier_wait(&ready);
		pthread_cancel(thread);
		pthread_barrier_wait(&ready);
		if (ended(thread, others[i].name) != PTHREAD_CANCELED || !came_back) {
			fprintf(stderr, "%s: cancelled inside\n", others[i].name);
			failures++;
		}
	}
	/* Nothing is locked: all of that can be done again. */
	for (size_t i = 0; i < COUNT(others); i++)
		others[i].make();
	NUMBER(0, rdma_destroy_id(listener));
	rdma_destroy_event_channel(cm_channel);
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_destroy_comp_channel(channel));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
