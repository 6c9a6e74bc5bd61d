// The calls of netperf's EXS test (send_exs_tcp_stream of src/nettest_bsd.c), in its order: a TCP socket of socket(2)
// whose sends go by exs_send, up to 16 at a time from a ring of registered buffers, with half of them as the threshold
// of exs_qdequeue; the receiver uses recv(2). A signal ends it, as netperf's alarm does.
//
// With EXS_THROUGHPUT set it also compares with send(2) out of the same memory: figures, which are not checked.
#include "common.h"
#include <time.h>

enum { PENDING = 16, QUEUE = 128, SIZE = 65536, WIDTH = 4 };

static void receiver(int port)
{
	static char bytes[1 << 20];
	struct sockaddr_in to = at_port(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint64_t len = 0;
	ssize_t part;
	EQUALS(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	while ((part = recv(fd, bytes, sizeof bytes, 0)) > 0)
		len += part;
	// What has come, back to the sender.
	EQUALS(send(fd, &len, sizeof len, MSG_NOSIGNAL), sizeof len);
	close(fd);
}

const struct part PARTS[] = {{"receiver", receiver}, {NULL, NULL}};

static volatile sig_atomic_t times_up;

static void over(int number)
{
	(void)number;
	times_up = 1;
}

static void begin(struct sigaction *action, double seconds)
{
	struct itimerval timer = {.it_value = {.tv_sec = seconds, .tv_usec = (seconds - (long)seconds) * 1e6}};
	action->sa_handler = over;
	action->sa_flags = 0;
	times_up = 0;
	EQUALS(sigaction(SIGALRM, action, NULL), 0);
	EQUALS(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static int sender(struct peer **peer)
{
	struct sockaddr_in at = at_port(0);
	int from = socket(AF_INET, SOCK_STREAM, 0);
	EQUALS(bind(from, (struct sockaddr *)&at, sizeof at), 0);
	EQUALS(listen(from, 1), 0);
	*peer = start("receiver", port_of(from));
	int fd = accept(from, NULL, NULL);
	CHECK(fd >= 0);
	close(from);
	return fd;
}

static uint64_t check_end(int fd, struct peer *peer, uint64_t sent)
{
	uint64_t came = 0;
	shutdown(fd, SHUT_WR);
	EQUALS(recv(fd, &came, sizeof came, MSG_WAITALL), sizeof came);
	EQUALS(came, sent);
	finish(peer);
	close(fd);
	return came;
}

// The ring of buffers. Each page is written to: memory that never was is one page of the kernel, in the nearest cache.
static char *buffers(void)
{
	char *ring = mmap(NULL, SIZE * WIDTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(ring != MAP_FAILED);
	memset(ring, 'n', SIZE * WIDTH);
	return ring;
}

static uint64_t by_exs(double seconds)
{
	struct sigaction action = {0};
	exs_event_t events[QUEUE];
	int pending = 0, next = 0;
	uint64_t sent = 0;
	EQUALS(exs_init(EXS_VERSION), EXS_VERSION);
	exs_qhandle_t queue = exs_qcreate(QUEUE);
	CHECK(queue != EXS_QHANDLE_INVALID);
	char *ring = buffers();
	exs_mhandle_t handle = exs_mregister(ring, (size_t)SIZE * WIDTH, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	struct peer *peer;
	int fd = sender(&peer);
	begin(&action, seconds);
	while (!times_up) {
		while (pending < PENDING &&
		       exs_send(fd, ring + next * SIZE, SIZE, 0, queue, (exs_ahandle_t)-1, handle) == 0) {
			pending++;
			sent += SIZE;
			next = (next + 1) % WIDTH;
		}
		if (pending < PENDING)
			CHECK(errno == EAGAIN || errno == EINTR);
		int count = exs_qdequeue(queue, events, -(pending >> 1), NULL);
		if (count < 0)
			EQUALS(errno, EINTR);
		else
			pending -= count;
	}
	while (pending > 0) {
		int count = exs_qdequeue(queue, events, -pending, NULL);
		CHECK(count >= 0 || errno == EINTR);
		for (int i = 0; i < count; i++)
			EQUALS(events[i].exs_evt_errno, 0);
		pending -= count > 0 ? count : 0;
	}
	check_end(fd, peer, sent);
	EQUALS(exs_mderegister(handle), 0);
	EQUALS(exs_qdelete(queue), 0);
	munmap(ring, SIZE * WIDTH);
	return sent;
}

static uint64_t by_send(double seconds)
{
	char *ring = buffers();
	struct sigaction action = {0};
	uint64_t sent = 0;
	struct peer *peer;
	int fd = sender(&peer), next = 0;
	begin(&action, seconds);
	while (!times_up) {
		ssize_t part = send(fd, ring + next * SIZE, SIZE, 0);
		CHECK(part > 0 || errno == EINTR);
		sent += part > 0 ? part : 0;
		next = (next + 1) % WIDTH;
	}
	check_end(fd, peer, sent);
	munmap(ring, SIZE * WIDTH);
	return sent;
}

void test(void)
{
	alarm(0);
	CHECK(by_exs(0.3) > 0);
	if (getenv("EXS_THROUGHPUT"))
		for (int i = 0; i < 5; i++) {
			double exs = by_exs(1), plain = by_send(1);
			printf("exs_send %.2f GB/s, send %.2f GB/s: %.3f\n", exs / 1e9, plain / 1e9, exs / plain);
		}
}
