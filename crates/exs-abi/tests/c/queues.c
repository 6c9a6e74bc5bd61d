// Queues: thresholds, times, places, signals, the descriptor, the ways to wait, several threads.
#include "common.h"
#include <sched.h>
#include <sys/epoll.h>
#include <time.h>

static void flood(int port)
{
	int fd = connected(SOCK_SEQPACKET, port);
	char byte;
	// Each packet that comes says how many go back.
	for (unsigned char count; exs_recv(fd, &count, 1, 0, SYNC, LOOSE) == 1;)
		while (count--)
			EQUALS(exs_send(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	closed(fd);
}

const struct part PARTS[] = {{"flood", flood}, {NULL, NULL}};

static char bytes[64];
static int fd;

static void ask(unsigned char count)
{
	EQUALS(exs_send(fd, &count, 1, 0, SYNC, LOOSE), 1);
}

static void post(exs_qhandle_t queue, int count)
{
	for (int i = 0; i < count; i++)
		EQUALS(exs_recv(fd, bytes + i, 1, 0, queue, i, LOOSE), 0);
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void thresholds(exs_qhandle_t queue)
{
	exs_event_t events[16];
	struct timeval patience = {.tv_sec = PATIENCE}, little = {.tv_usec = 20000}, none = {0};
	struct timeval half = {.tv_usec = 500000};
	post(queue, 5);
	ask(3);
	// Not more than as many as it waits for.
	EQUALS(exs_qdequeue(queue, events, -2, &patience), 2);
	EQUALS(events[0].exs_evt_ahandle, 0);
	EQUALS(events[1].exs_evt_ahandle, 1);
	EQUALS(exs_qdequeue(queue, events, 16, &patience), 1);
	// At the end of the time there is what there is.
	ask(1);
	double before = now();
	// So long that the one comes on a busy machine, too.
	EQUALS(exs_qdequeue(queue, events, -2, &half), 1);
	CHECK(now() - before >= 0.5);
	before = now();
	EQUALS(exs_qdequeue(queue, events, 1, &little), 0);
	CHECK(now() - before >= 0.02);
	EQUALS(exs_qdequeue(queue, events, 1, &none), 0);
	ask(1);
	EQUALS(exs_qdequeue(queue, events, -1, NULL), 1);
	EQUALS(events[0].exs_evt_ahandle, 4);
}

static void places(void)
{
	exs_event_t event;
	struct timeval patience = {.tv_sec = PATIENCE};
	int depth = 3;
	exs_qhandle_t queue = queue_of(2);
	post(queue, 2);
	REFUSED(exs_recv(fd, bytes, 1, 0, queue, 9, LOOSE), EAGAIN);
	REFUSED(exs_qdelete(queue), EBUSY);
	EQUALS(exs_qmodify(queue, EXS_QATTR_DEPTH, &depth), 0);
	EQUALS(exs_recv(fd, bytes, 1, 0, queue, 2, LOOSE), 0);
	depth = 2;
	REFUSED(exs_qmodify(queue, EXS_QATTR_DEPTH, &depth), EBUSY);
	ask(3);
	// An event that waits has its place.
	for (int left = 3; left > 0; left--) {
		REFUSED(exs_qdelete(queue), EBUSY);
		EQUALS(exs_qdequeue(queue, &event, 1, &patience), 1);
		EQUALS(event.exs_evt_ahandle, 3 - left);
	}
	EQUALS(exs_qmodify(queue, EXS_QATTR_DEPTH, &depth), 0);
	EQUALS(exs_qdelete(queue), 0);
}

static void descriptor(exs_qhandle_t queue)
{
	int poller = epoll_create1(EPOLL_CLOEXEC), bell = exs_qfd(queue), two = 2, one = 1;
	struct epoll_event wanted = {.events = EPOLLIN}, found;
	exs_event_t events[8];
	struct timeval none = {0};
	CHECK(bell >= 0);
	EQUALS(exs_qfd(queue), bell);
	EQUALS(epoll_ctl(poller, EPOLL_CTL_ADD, bell, &wanted), 0);
	post(queue, 4);
	EQUALS(epoll_wait(poller, &found, 1, 0), 0);
	ask(1);
	EQUALS(epoll_wait(poller, &found, 1, PATIENCE * 1000), 1);
	EQUALS(epoll_wait(poller, &found, 1, 0), 1);
	EQUALS(exs_qdequeue(queue, events, 8, &none), 1);
	EQUALS(epoll_wait(poller, &found, 1, 0), 0);
	// With a threshold.
	EQUALS(exs_qmodify(queue, EXS_QATTR_EVENTS, &two), 0);
	ask(1);
	EQUALS(exs_qdequeue(queue, events, 0, &none), 0);
	EQUALS(epoll_wait(poller, &found, 1, 30), 0);
	ask(2);
	EQUALS(epoll_wait(poller, &found, 1, PATIENCE * 1000), 1);
	EQUALS(exs_qdequeue(queue, events, -2, NULL), 2);
	EQUALS(exs_qdequeue(queue, events, 8, NULL), 1);
	EQUALS(epoll_wait(poller, &found, 1, 0), 0);
	EQUALS(exs_qmodify(queue, EXS_QATTR_EVENTS, &one), 0);
	close(poller);
}

static sigset_t only_mine(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 3);
	return set;
}

static void signals(exs_qhandle_t queue)
{
	exs_signal_t wanted = {.exs_sig_signo = SIGRTMIN + 3, .exs_sig_value.sival_int = 77}, off = {0};
	struct timespec patience = {.tv_sec = PATIENCE}, none = {0};
	exs_event_t event;
	sigset_t set = only_mine();
	siginfo_t info;
	EQUALS(exs_qmodify(queue, EXS_QATTR_SIGNAL, &wanted), 0);
	post(queue, 3);
	ask(1);
	EQUALS(sigtimedwait(&set, &info, &patience), SIGRTMIN + 3);
	EQUALS(info.si_value.sival_int, 77);
	ask(1);
	// One signal while nothing is taken; another one for what is left when something is.
	for (struct timeval time = {.tv_sec = PATIENCE}; exs_qdequeue(queue, &event, 1, &time) != 1;)
		;
	EQUALS(sigtimedwait(&set, &info, &patience), SIGRTMIN + 3);
	EVENT(queue, EXS_EVT_RECV, 1, 0);
	while (sigtimedwait(&set, &info, &none) > 0)
		;
	EQUALS(exs_qmodify(queue, EXS_QATTR_SIGNAL, &off), 0);
	ask(1);
	EVENT(queue, EXS_EVT_RECV, 2, 0);
	EQUALS(sigtimedwait(&set, &info, &none), -1);
}

static volatile sig_atomic_t rang;

static void ring(int number)
{
	(void)number;
	rang++;
}

static pthread_t waiter;

static void *interrupt(void *argument)
{
	// Until the thread has seen it: one that comes before the thread sleeps does not wake it.
	while (!__atomic_load_n((bool *)argument, __ATOMIC_ACQUIRE)) {
		pthread_kill(waiter, SIGUSR1);
		usleep(2000);
	}
	return NULL;
}

// A signal ends a wait for which there are too few events, with SA_RESTART as well, and takes none.
static void interrupted(exs_qhandle_t queue)
{
	for (int restart = 0; restart < 2; restart++) {
		struct sigaction action = {.sa_handler = ring, .sa_flags = restart ? SA_RESTART : 0};
		struct timeval patience = {.tv_sec = PATIENCE};
		exs_event_t events[2];
		pthread_t thread;
		bool seen = false;
		EQUALS(sigaction(SIGUSR1, &action, NULL), 0);
		waiter = pthread_self();
		post(queue, 2);
		ask(1);
		EQUALS(pthread_create(&thread, NULL, interrupt, &seen), 0);
		REFUSED(exs_qdequeue(queue, events, -2, restart ? NULL : &patience), EINTR);
		__atomic_store_n(&seen, true, __ATOMIC_RELEASE);
		pthread_join(thread, NULL);
		CHECK(rang > 0);
		ask(1);
		EQUALS(exs_qdequeue(queue, events, -2, &patience), 2);
	}
}

static void ways(exs_qhandle_t queue)
{
	const int modes[] = {EXS_WAIT_NOTIFY, EXS_WAIT_BUSY_POLL, EXS_WAIT_ADAPTIVE};
	exs_event_t events[4];
	for (int i = 0; i < 3; i++) {
		struct timeval little = {.tv_usec = 20000}, none = {0};
		EQUALS(exs_qmodify(queue, EXS_QATTR_WAIT, modes + i), 0);
		post(queue, 2);
		ask(2);
		EQUALS(exs_qdequeue(queue, events, -2, NULL), 2);
		double before = now();
		EQUALS(exs_qdequeue(queue, events, 1, &little), 0);
		CHECK(now() - before >= 0.02);
		EQUALS(exs_qdequeue(queue, events, 1, &none), 0);
	}
}

enum { THREADS = 4, ROUNDS = 50, EACH = 8 };
static exs_qhandle_t shared;
static int taken;

static void *take(void *argument)
{
	(void)argument;
	while (__atomic_load_n(&taken, __ATOMIC_SEQ_CST) < ROUNDS * EACH) {
		exs_event_t events[3];
		struct timeval little = {.tv_usec = 10000};
		int count = exs_qdequeue(shared, events, 3, &little);
		CHECK(count >= 0 || errno == EINTR);
		for (int i = 0; i < count; i++)
			EQUALS(events[i].exs_evt_errno, 0);
		if (count > 0)
			__atomic_add_fetch(&taken, count, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

// Several threads take events of one queue: each event comes once.
static void threads(void)
{
	pthread_t threads[THREADS];
	shared = queue_of(ROUNDS * EACH);
	for (int i = 0; i < THREADS; i++)
		EQUALS(pthread_create(threads + i, NULL, take, NULL), 0);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < EACH; i++)
			// A send does not wait for the peer, so there may be as many receives as the connection takes.
			while (exs_recv(fd, bytes + i, 1, 0, shared, i, LOOSE)) {
				EQUALS(errno, EAGAIN);
				sched_yield();
			}
		ask(EACH);
	}
	for (int i = 0; i < THREADS; i++)
		EQUALS(pthread_join(threads[i], NULL), 0);
	EQUALS(taken, ROUNDS * EACH);
	no_event(shared);
	EQUALS(exs_qdelete(shared), 0);
}

// A thread that waits uses no processor.
static void idle(exs_qhandle_t queue)
{
	struct timeval time = {.tv_usec = 300000};
	struct timespec before, after;
	exs_event_t event;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
	EQUALS(exs_qdequeue(queue, &event, 1, &time), 0);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
	CHECK((after.tv_sec - before.tv_sec) * 1e9 + after.tv_nsec - before.tv_nsec < 100e6);
}

void test(void)
{
	// Blocked in every thread that the program starts; the library's threads take none.
	sigset_t set = only_mine();
	EQUALS(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("flood", port_of(from));
	exs_qhandle_t queue = queue_of(16);
	fd = accepted(from);
	thresholds(queue);
	places();
	descriptor(queue);
	signals(queue);
	interrupted(queue);
	ways(queue);
	threads();
	idle(queue);
	no_event(queue);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
	EQUALS(exs_qdelete(queue), 0);
}
