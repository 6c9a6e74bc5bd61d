/*
 * Connections that come and go.
 *
 *     cycles connect COUNT SEED   connect, send a message, disconnect, destroy; COUNT times in two processes
 *     cycles kill COUNT SEED      one side is killed at a random moment of all this; the other goes on
 *
 * All of it happens at 127.0.0.1, or at the ADDRESS behind the SEED.
 *
 * The test passes if nothing hangs; every side that lives sees an event that the manual page names for it; afterwards the
 * survivor, server or client, has as many descriptors and mappings as before, its memory does not grow, and its port is
 * free. Exit status 0 if so.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* A limit that only a hang reaches, also on a machine that is busy. */
enum { PATIENCE = 30000 };

static const char *who = "";

/* The address of all. */
static struct in_addr host;

/* Resources that are kept are there after so many connections; after twice as many it shows what has been lost. */
static uint32_t warm = 100;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s, line %d: %s: %s\n", who, __LINE__, #what, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

/* The memory that both processes share. */
static struct shared {
	volatile uint32_t port;
	volatile uint32_t established, disconnected, rejected, other;
	/* Cycles that the client has ended, with any outcome; that it is to end; that it makes no more; and that the servers
	 * have ended, too. */
	volatile uint32_t cycles, enough, left, alone;
} *shared;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 3;
}

/* Resident memory, in KiB, without shared memory. */
static long memory(void)
{
	long size, resident, common;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld %ld", &size, &resident, &common) == 3);
	fclose(f);
	return (resident - common) * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Windows to peers are shared memory, which does not count as this process's. */
static int mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	int c, n = 0;
	CHECK(f);
	while ((c = getc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

static void queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
}

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Wait for an event; the type is -1 if none comes. */
static int next(struct rdma_event_channel *ch, int ms, struct rdma_cm_id **id)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct rdma_cm_event *e;
	int n = poll(&p, 1, ms), type;
	CHECK(n >= 0 || errno == EINTR);
	if (n <= 0)
		return -1;
	CHECK(rdma_get_cm_event(ch, &e) == 0);
	type = e->event;
	*id = e->id;
	CHECK(rdma_ack_cm_event(e) == 0);
	return type;
}

static struct rdma_cm_id *listening(struct rdma_event_channel *ch, uint16_t port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = host };
	CHECK(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&at) == 0);
	CHECK(rdma_listen(id, 64) == 0);
	shared->port = ntohs(rdma_get_src_port(id));
	return id;
}

static char in[64], out[64] = "a message";

/* The server: it accepts every client, for ever or until it is told to end. */
static void serve(const volatile sig_atomic_t *end)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	who = "server";
	CHECK(ch);
	struct rdma_cm_id *listen = listening(ch, 0), *id;
	uint16_t port = shared->port;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	int live = 0, fds = 0;
	long kib = 0;
	uint32_t taken = 0;
	while (!*end || live) {
		bool last = *end;
		int type = next(ch, last ? PATIENCE : 20, &id);
		if (type < 0) {
			CHECK(!last);
			continue;
		}
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			live++;
			queue_pair(id);
			struct ibv_mr *mr = rdma_reg_msgs(id, in, sizeof(in));
			CHECK(mr);
			CHECK(rdma_post_recv(id, NULL, in, sizeof(in), mr) == 0);
			id->context = mr;
			if (rdma_accept(id, &param) == 0)
				break;
			/* Its client is gone already; no further event comes for it. */
			CHECK(errno == EINVAL || errno == ECONNRESET || errno == ENOTCONN);
			shared->rejected++;
			goto gone;
		case RDMA_CM_EVENT_ESTABLISHED:
			shared->established++;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(id);
			shared->disconnected++;
			goto gone;
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_CONNECT_ERROR:
		case RDMA_CM_EVENT_UNREACHABLE:
			shared->rejected++;
			goto gone;
		default:
			fprintf(stderr, "server: unexpected %s\n", rdma_event_str(type));
			exit(1);
		gone:
			rdma_destroy_qp(id);
			rdma_dereg_mr(id->context);
			CHECK(rdma_destroy_id(id) == 0);
			live--;
			if (++taken == warm) {
				fds = descriptors();
				kib = memory();
			}
			break;
		}
	}
	if (taken > 2 * warm) {
		for (int i = 0; i < 500 && descriptors() > fds; i++)
			usleep(10000);
		/* Links to processes that were killed a moment ago may still be there. */
		if (descriptors() > fds + 8) {
			fprintf(stderr, "server: %d descriptors, %d after %u connections\n", descriptors(), fds, warm);
			exit(1);
		}
		if (memory() > kib + 4096 + taken / 8) {
			fprintf(stderr, "server: %ld KiB, %ld after %u connections, of %u\n", memory(), kib, warm, taken);
			exit(1);
		}
	}
	destroy(listen);
	/* The port is free. */
	destroy(listening(ch, port));
	rdma_destroy_event_channel(ch);
}

/* One connection from `own`, unless that is NULL; true if it was made. If the server is killed meanwhile, it ends with an
 * event that says so. */
static bool cycle(struct rdma_event_channel *ch, bool doomed, struct sockaddr_in *own)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(shared->port),
		.sin_addr = host };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
		.rnr_retry_count = 7 };
	struct rdma_cm_id *id, *of;
	struct ibv_wc wc;
	bool made = false;
	/* 4.096 us * 2^14, and seven retries: half a second until a request to the dead has failed, not nine. */
	uint8_t soon = 14;
	CHECK(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) == 0);
	if (doomed)
		CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &soon, sizeof(soon)) == 0);
	CHECK(rdma_resolve_addr(id, (struct sockaddr *)own, (struct sockaddr *)&to, 2000) == 0);
	CHECK(next(ch, PATIENCE, &of) == RDMA_CM_EVENT_ADDR_RESOLVED && of == id);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(next(ch, PATIENCE, &of) == RDMA_CM_EVENT_ROUTE_RESOLVED && of == id);
	queue_pair(id);
	struct ibv_mr *mr = rdma_reg_msgs(id, out, sizeof(out));
	CHECK(mr);
	CHECK(rdma_connect(id, &param) == 0);
	int type = next(ch, PATIENCE, &of);
	CHECK(type >= 0 && of == id);
	if (type == RDMA_CM_EVENT_ESTABLISHED) {
		made = true;
		CHECK(rdma_post_send(id, NULL, out, sizeof(out), mr, 0) == 0);
		CHECK(rdma_get_send_comp(id, &wc) == 1);
		CHECK(doomed || wc.status == IBV_WC_SUCCESS);
		/* Fails only if the server was faster. */
		rdma_disconnect(id);
		type = next(ch, PATIENCE, &of);
		CHECK(type == RDMA_CM_EVENT_DISCONNECTED && of == id);
	} else {
		CHECK(doomed);
		CHECK(type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_UNREACHABLE || type == RDMA_CM_EVENT_CONNECT_ERROR ||
			type == RDMA_CM_EVENT_DISCONNECTED);
		shared->rejected++;
	}
	rdma_destroy_qp(id);
	CHECK(rdma_dereg_mr(mr) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	return made;
}

/* So many connections, `width` of them under way at any time. */
static void pipeline(int count, int width)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(shared->port),
		.sin_addr = host };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
		.rnr_retry_count = 7 };
	int started = 0, ended = 0;
	who = "client";
	CHECK(ch);
	while (ended < count) {
		struct rdma_cm_id *id;
		while (started < count && started - ended < width) {
			CHECK(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) == 0);
			CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
			started++;
		}
		switch (next(ch, PATIENCE, &id)) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			CHECK(rdma_resolve_route(id, 2000) == 0);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			queue_pair(id);
			CHECK(rdma_connect(id, &param) == 0);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			CHECK(rdma_disconnect(id) == 0);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			destroy(id);
			ended++;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			CHECK(!"another event");
		}
	}
	rdma_destroy_event_channel(ch);
}

static volatile sig_atomic_t end;

static void on_end(int signal)
{
	(void)signal;
	end = 1;
}

static pid_t start_server(void)
{
	shared->port = 0;
	fflush(stdout);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGTERM, on_end);
		serve(&end);
		exit(0);
	}
	double until = now() + PATIENCE / 1000;
	while (!shared->port && now() < until)
		usleep(200);
	CHECK(shared->port);
	return pid;
}

static void stop_server(pid_t pid)
{
	int status;
	kill(pid, SIGTERM);
	CHECK(waitpid(pid, &status, 0) == pid);
	if (status) {
		fprintf(stderr, "the server ended with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
		exit(1);
	}
}

/* So many cycles in a process of its own, which forks before it uses the library. */
static int client(int count, bool doomed)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	int fds = 0, made = 0;
	long kib = 0;
	who = "client";
	CHECK(ch);
	for (int i = 0; i < count; i++) {
		made += cycle(ch, doomed, NULL);
		if (i == 100) {
			fds = descriptors();
			kib = memory();
		}
	}
	if (count > 200 && !doomed) {
		for (int i = 0; i < 500 && descriptors() > fds; i++)
			usleep(10000);
		if (descriptors() > fds + 2 || memory() > kib + 4096 + count / 8) {
			fprintf(stderr, "client: %d descriptors and %ld KiB, %d and %ld after 100 connections\n", descriptors(), memory(),
				fds, kib);
			exit(1);
		}
	}
	rdma_destroy_event_channel(ch);
	return made;
}

/* Outlives one server after the other. Half of its connections are from one port, which must be free again each time. */
static void outlive(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr = host };
	struct rdma_cm_id *id;
	int fds = 0, maps = 0;
	long kib = 0;
	who = "client";
	CHECK(ch);
	CHECK(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&own) == 0);
	own.sin_port = rdma_get_src_port(id);
	CHECK(rdma_destroy_id(id) == 0);
	while (!shared->enough) {
		if (!shared->port) {
			usleep(100);
			continue;
		}
		cycle(ch, true, shared->cycles % 2 ? &own : NULL);
		if (++shared->cycles == warm) {
			fds = descriptors();
			maps = mappings();
			kib = memory();
		}
	}
	shared->left = 1;
	/* There are one or two links to a server that lives: two, if both processes began one at the same time. */
	double until = now() + 2 * PATIENCE / 1000;
	while (!shared->alone && now() < until)
		usleep(200);
	/* Links to servers that ended a moment ago may still be there. */
	for (int i = 0; i < 500 && (descriptors() > fds || mappings() > maps); i++)
		usleep(10000);
	/* A link has four descriptors. */
	if (shared->cycles > 2 * warm &&
	    (descriptors() > fds + 3 || mappings() > maps + 16 || memory() > kib + 2048 + shared->cycles / 8)) {
		fprintf(stderr, "client: %d descriptors, %d mappings and %ld KiB; %d, %d and %ld after %u of %u connections\n",
			descriptors(), mappings(), memory(), fds, maps, kib, warm, shared->cycles);
		exit(1);
	}
	rdma_destroy_event_channel(ch);
}

static pid_t start_survivor(void)
{
	fflush(stdout);
	shared->cycles = shared->enough = shared->left = shared->alone = 0;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		outlive();
		exit(0);
	}
	return pid;
}

static pid_t start_client(int count, bool doomed, int width)
{
	fflush(stdout);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (width > 1)
			pipeline(count, width);
		else
			client(count, doomed);
		exit(0);
	}
	return pid;
}

static void expect_success(pid_t pid)
{
	int status;
	double until = now() + 600;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now() > until) {
			fprintf(stderr, "the client hangs\n");
			exit(1);
		}
		usleep(500);
	}
	CHECK(status == 0);
}

static void connects(int count)
{
	static const int widths[] = { 1, 32 };
	for (int i = 0; i < 2; i++) {
		shared->established = shared->disconnected = 0;
		pid_t server = start_server();
		double begun = now();
		expect_success(start_client(count, false, widths[i]));
		double took = now() - begun;
		stop_server(server);
		CHECK(shared->established == (uint32_t)count);
		CHECK(shared->disconnected == (uint32_t)count);
		printf("%s%d connections, %d at a time: %.0f per second", i ? "; " : "", count, widths[i], count / took);
	}
	putchar('\n');
}

/* The client has ended its present cycle. */
static void await_cycle(pid_t client, uint32_t after)
{
	double until = now() + 2 * PATIENCE / 1000;
	while (shared->cycles <= after) {
		CHECK(waitpid(client, NULL, WNOHANG) == 0);
		if (now() > until) {
			fprintf(stderr, "the client hangs\n");
			exit(1);
		}
		usleep(200);
	}
}

/* First clients are killed, and one server outlives them all; then servers, and one client outlives those. */
static void kills(int count, unsigned seed)
{
	pid_t server = start_server();
	srandom(seed);
	for (int i = 0; i < count / 2; i++) {
		/* The handshake takes less than a millisecond; the start of a process a few. */
		useconds_t moment = random() % 12000;
		pid_t pid = start_client(1000000, false, 1);
		usleep(moment);
		kill(pid, SIGKILL);
		CHECK(waitpid(pid, NULL, 0) == pid);
	}
	/* It has lost no resources by all the dead. */
	stop_server(server);
	server = start_server();
	pid_t survivor = start_survivor();
	await_cycle(survivor, 0);
	for (int i = count / 2; i < count; i++) {
		usleep(random() % 6000);
		uint32_t cycle = shared->cycles;
		kill(server, SIGKILL);
		CHECK(waitpid(server, NULL, 0) == server);
		/* The client gets the end of its connection, and makes another one. */
		server = start_server();
		await_cycle(survivor, cycle);
	}
	uint32_t cycles = shared->cycles;
	shared->enough = 1;
	double until = now() + 2 * PATIENCE / 1000;
	while (!shared->left && now() < until) {
		CHECK(waitpid(survivor, NULL, WNOHANG) == 0);
		usleep(200);
	}
	/* The last server serves still. */
	expect_success(start_client(50, false, 1));
	stop_server(server);
	shared->alone = 1;
	expect_success(survivor);
	printf("%d kills; a client outlived half of them with %u connections; in all %u made, %u ended, %u not made\n", count,
		cycles, shared->established, shared->disconnected, shared->rejected);
}

int main(int argc, char **argv)
{
	host.s_addr = htonl(INADDR_LOOPBACK);
	if (argc < 4 || argc > 5 || (argc == 5 && inet_pton(AF_INET, argv[4], &host) != 1)) {
		fprintf(stderr, "usage: cycles connect|kill COUNT SEED [ADDRESS]\n");
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	int count = atoi(argv[2]);
	if (count < 40)
		warm = 5;
	if (!strcmp(argv[1], "connect"))
		connects(count);
	else
		kills(count, strtoul(argv[3], NULL, 0));
	return 0;
}
