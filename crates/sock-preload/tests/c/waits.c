/* What waits on connections, and the options that say how: each with the library in both programs, in one and in none,
 * so that all of it is what plain TCP does. */
#include "pair.h"

static void option(int fd, int name, int value)
{
	CHECK(setsockopt(fd, SOL_SOCKET, name, &value, sizeof value) == 0);
}

static void time_limit(int fd, int name, int millis)
{
	struct timeval limit = { millis / 1000, millis % 1000 * 1000 };

	CHECK(setsockopt(fd, SOL_SOCKET, name, &limit, sizeof limit) == 0);
}

/* SO_RCVLOWAT: socket(7), and tcp_poll() of Linux. */
static void *send_hundred(void *fd)
{
	char bytes[100] = { 0 };

	usleep(20000);
	send_all(*(int *)fd, bytes, sizeof bytes);
	return NULL;
}

/* What poll(2) says past the library. */
static int by_kernel(int fd)
{
	struct pollfd one = { fd, POLLIN, 0 };

	return syscall(SYS_poll, &one, 1, 0);
}

static void low_water(int fd)
{
	char bytes[100] = { 0 };
	struct epoll_event event = { EPOLLIN, { 0 } };
	int set = epoll_create1(EPOLL_CLOEXEC), flags = fcntl(fd, F_GETFL);
	pthread_t thread;
	fd_set in;

	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	for (int round = 0; round < 3; round++) {
		send_all(fd, bytes, 49);
		wait_for(fd, 49);
		/* Not yet, as the kernel itself says: while memory is short, any byte can be read (tcp_rmem_pressure). */
		for (int n = 0; readable(fd, 0) != by_kernel(fd) || epoll_wait(set, &event, 1, 0) > by_kernel(fd); n++) {
			CHECK(n < 100);
			usleep(1000);
		}
		send_all(fd, bytes, 1);
		CHECK(readable(fd, LONG) == 1);
		CHECK(epoll_wait(set, &event, 1, LONG) == 1);
		FD_ZERO(&in);
		FD_SET(fd, &in);
		CHECK(select(fd + 1, &in, NULL, NULL, NULL) == 1);
		take(fd, bytes, 50);
		CHECK(pthread_create(&thread, NULL, send_hundred, &fd) == 0);
		CHECK(recv(fd, bytes, sizeof bytes, 0) == 100);
		CHECK(pthread_join(thread, NULL) == 0);
		/* One that does not wait takes what is there. */
		send_all(fd, bytes, 3);
		wait_for(fd, 3);
		CHECK(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == 3);
		CHECK(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
		FAILS(recv(fd, bytes, sizeof bytes, 0), EAGAIN);
		CHECK(fcntl(fd, F_SETFL, flags) == 0);
	}
	close(set);
	option(fd, SO_RCVLOWAT, 1);
	send_all(fd, bytes, 1);
	CHECK(readable(fd, LONG) == 1);
	take(fd, bytes, 1);
	talk(fd);
}

static void low_water_set(const char *port)
{
	int fd = dialled(port);

	option(fd, SO_RCVLOWAT, 50);
	low_water(fd);
	end(fd);
}

static void low_water_first(const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), value;
	socklen_t len = sizeof value;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	option(fd, SO_RCVLOWAT, 50);
	CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
	talk(fd);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &len) == 0 && value == 50);
	low_water(fd);
	end(fd);
}

/* A socket that accept(2) returns has what the listening one has. */
static void low_water_server(const char *port)
{
	int fd = accept(listening_with(50), NULL, NULL);

	(void)port;
	talk(fd);
	low_water(fd);
	end(fd);
}

static void answers(const char *port)
{
	int fd = dial(port);

	answer(fd);
}

/* SO_LINGER with no time: a reset at the other end, behind what has arrived. */
static void linger_none(const char *port)
{
	int fd = dialled(port);

	send_all(fd, "rest", 4);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)) == 0);
	CHECK(close(fd) == 0);
}

static void sees_reset(const char *port)
{
	int fd = accept(listening(), NULL, NULL);
	struct pollfd one = { fd, POLLIN | POLLRDHUP, 0 };
	char bytes[100];

	(void)port;
	for (int n = 0; n < 20; n++) {
		take(fd, bytes, sizeof bytes);
		send_all(fd, bytes, sizeof bytes);
	}
	/* One after the other, as the kernel comes to them. */
	for (int n = 0; one.revents != (POLLIN | POLLRDHUP | POLLHUP | POLLERR); n++) {
		CHECK(n < LONG && poll(&one, 1, LONG) == 1);
		usleep(1000);
	}
	CHECK(recv(fd, bytes, sizeof bytes, 0) == 4 && memcmp(bytes, "rest", 4) == 0);
	FAILS(recv(fd, bytes, sizeof bytes, 0), ECONNRESET);
	CHECK(recv(fd, bytes, sizeof bytes, 0) == 0);
	FAILS(send(fd, bytes, 1, MSG_NOSIGNAL), EPIPE);
	CHECK(close(fd) == 0);
}

/* With a time: close(2) sends all, and returns when it has arrived. */
static void linger_long(const char *port)
{
	static char bytes[200000];
	int fd = dialled(port);

	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 40 }, sizeof(struct linger)) == 0);
	send_all(fd, bytes, sizeof bytes);
	CHECK(close(fd) == 0);
}

static void counts(const char *port)
{
	int fd = accept(listening(), NULL, NULL);
	size_t got = 0;
	ssize_t some;
	static char bytes[70000];

	(void)port;
	for (int n = 0; n < 20; n++) {
		take(fd, bytes, 100);
		send_all(fd, bytes, 100);
	}
	while ((some = read(fd, bytes, sizeof bytes)) > 0)
		got += some;
	CHECK(some == 0 && got == 200000);
}

/* A server that reads nothing more until it is told by a second connection. */
static void deaf(const char *port)
{
	int listener = listening(), fd = accept(listener, NULL, NULL), control;
	static char bytes[70000];

	(void)port;
	for (int n = 0; n < 20; n++) {
		take(fd, bytes, 100);
		send_all(fd, bytes, 100);
	}
	control = accept(listener, NULL, NULL);
	CHECK(read(control, bytes, 1) == 1);
	while (read(fd, bytes, sizeof bytes) > 0)
		;
	CHECK(close(control) == 0);
}

static char big[1 << 20];

/* Until there is no room. */
static void fill(int fd)
{
	while (send(fd, big, sizeof big, MSG_DONTWAIT) >= 0)
		;
	CHECK(errno == EAGAIN);
	/* What is on its way by TCP may make room once more. */
	while (poll(&(struct pollfd){ fd, POLLOUT, 0 }, 1, 300) == 1)
		while (send(fd, big, sizeof big, MSG_DONTWAIT) >= 0)
			;
}

static void time_limits(const char *port)
{
	int fd = dialled(port), control = dial(port);
	char bytes[100];
	struct iovec piece = { bytes, sizeof bytes };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	double began;

	time_limit(fd, SO_RCVTIMEO, 30);
	for (int call = 0; call < 6; call++) {
		began = seconds();
		switch (call) {
		case 0: FAILS(read(fd, bytes, 1), EAGAIN); break;
		case 1: FAILS(recv(fd, bytes, 1, 0), EAGAIN); break;
		case 2: FAILS(recv(fd, bytes, 10, MSG_WAITALL), EAGAIN); break;
		case 3: FAILS(recvmsg(fd, &message, 0), EAGAIN); break;
		case 4: FAILS(readv(fd, &piece, 1), EAGAIN); break;
		case 5: FAILS(recv(fd, bytes, 1, MSG_PEEK), EAGAIN); break;
		}
		CHECK(seconds() - began >= 0.025);
	}
	/* poll(2) knows nothing of it. */
	CHECK(readable(fd, 0) == 0);
	time_limit(fd, SO_SNDTIMEO, 30);
	fill(fd);
	/* A call that finds some room returns what it has sent. */
	do
		began = seconds();
	while (send(fd, big, sizeof big, 0) > 0);
	CHECK(errno == EAGAIN && seconds() - began >= 0.025);
	do
		began = seconds();
	while (write(fd, big, sizeof big) > 0);
	CHECK(errno == EAGAIN && seconds() - began >= 0.025);
	/* None again: the call waits until there is room. */
	time_limit(fd, SO_SNDTIMEO, 0);
	send_all(control, "x", 1);
	CHECK(send(fd, big, sizeof big, 0) == sizeof big);
	end(fd);
	CHECK(read(control, bytes, 1) == 0);
}

static void waits_all(const char *port)
{
	int fd = dialled(port);
	char bytes[100];

	/* What has come before the time was over is returned. */
	time_limit(fd, SO_RCVTIMEO, 30);
	send_all(fd, "abc", 3);
	CHECK(recv(fd, bytes, 10, MSG_WAITALL) == 3);
	end(fd);
}

/* Masks of ppoll(2), pselect(2), epoll_pwait(2): a signal that is pending ends a wait without anything to report. */
static volatile int handled;
static void count_signal(int number) { (void)number; handled++; }

static void handle(int number, int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };

	CHECK(sigaction(number, &action, NULL) == 0);
}

static int by_ppoll(int fd, int set, const sigset_t *mask, int millis)
{
	struct pollfd one = { fd, POLLIN, 0 };
	struct timespec time = { millis / 1000, 0 };

	(void)set;
	return ppoll(&one, 1, &time, mask);
}

static int by_pselect(int fd, int set, const sigset_t *mask, int millis)
{
	struct timespec time = { millis / 1000, 0 };
	fd_set in;

	(void)set;
	FD_ZERO(&in);
	FD_SET(fd, &in);
	return pselect(fd + 1, &in, NULL, NULL, &time, mask);
}

static int by_epoll(int fd, int set, const sigset_t *mask, int millis)
{
	struct epoll_event event;

	(void)fd;
	return epoll_pwait(set, &event, 1, millis, mask);
}

static int by_epoll2(int fd, int set, const sigset_t *mask, int millis)
{
	struct epoll_event event;
	struct timespec time = { millis / 1000, 0 };

	(void)fd;
	return epoll_pwait2(set, &event, 1, &time, mask);
}

static int (*const masked[])(int, int, const sigset_t *, int) = { by_ppoll, by_pselect, by_epoll, by_epoll2 };

static void masks(const char *port)
{
	int fd = dialled(port), set = epoll_create1(0);
	struct epoll_event event = { EPOLLIN, { 0 } };
	sigset_t blocked, none, now;

	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	handle(SIGUSR1, SA_RESTART);
	CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
	for (size_t n = 0; n < sizeof masked / sizeof *masked; n++) {
		char byte;

		handled = 0;
		raise(SIGUSR1);
		CHECK(handled == 0);
		FAILS(masked[n](fd, set, &none, LONG), EINTR);
		CHECK(handled == 1);
		/* The mask is as it was. */
		CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0 && sigismember(&now, SIGUSR1));
		raise(SIGUSR1);
		CHECK(masked[n](fd, set, &blocked, 0) == 0 && handled == 1);
		/* Where there is something to report, it is, and the signal waits. */
		send_all(fd, "x", 1);
		wait_for(fd, 1);
		CHECK(masked[n](fd, set, &none, LONG) == 1);
		CHECK(masked[n](fd, set, NULL, LONG) == 1);
		take(fd, &byte, 1);
		handled = 0;
		FAILS(masked[n](fd, set, &none, LONG), EINTR);
		CHECK(handled == 1);
	}
	talk(fd);
	close(set);
	end(fd);
}

/* EPOLLEXCLUSIVE, and sets in sets. */
static int event_of(int set, int millis)
{
	struct epoll_event event = { 0 };
	int n = epoll_wait(set, &event, 1, millis);

	CHECK(n == 0 || n == 1);
	return n == 0 ? 0 : (int)event.events;
}

static void put_in(int set, int fd, uint32_t events)
{
	struct epoll_event event = { events, { .fd = fd } };

	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void exclusive(const char *port)
{
	int fresh = dial(port), fd = dialled(port), sets[2];
	struct epoll_event event = { EPOLLIN | EPOLLEXCLUSIVE, { 0 } };
	char byte;

	for (int n = 0; n < 2; n++) {
		sets[n] = epoll_create1(0);
		put_in(sets[n], fd, EPOLLIN | EPOLLEXCLUSIVE);
		put_in(sets[n], fresh, EPOLLIN | EPOLLEXCLUSIVE);
		/* epoll_ctl(2): not with EPOLL_CTL_MOD. */
		FAILS(epoll_ctl(sets[n], EPOLL_CTL_MOD, fd, &event), EINVAL);
		event.events = EPOLLIN;
		FAILS(epoll_ctl(sets[n], EPOLL_CTL_MOD, fd, &event), EINVAL);
		event.events = EPOLLIN | EPOLLEXCLUSIVE;
	}
	talk(fd);
	for (int n = 0; n < 2; n++) {
		int one = n == 0 ? fd : fresh;

		CHECK(event_of(sets[0], 0) == 0 && event_of(sets[1], 0) == 0);
		send_all(one, "x", 1);
		wait_for(one, 1);
		/* Nobody sleeps: both tell of it. */
		CHECK(event_of(sets[0], LONG) == EPOLLIN && event_of(sets[1], LONG) == EPOLLIN);
		take(one, &byte, 1);
		talk(one);
	}
	end(fd);
	end(fresh);
}

static void nested(const char *port)
{
	int fresh = dial(port), fd = dialled(port), inner = epoll_create1(0), middle = epoll_create1(0);
	int outer = epoll_create1(0);
	char byte;
	fd_set in;

	put_in(inner, fd, EPOLLIN);
	put_in(inner, fresh, EPOLLIN | EPOLLET);
	CHECK(event_of(inner, 0) == 0);
	put_in(middle, inner, EPOLLIN);
	put_in(outer, middle, EPOLLIN | EPOLLET);
	for (int n = 0; n < 6; n++) {
		int one = n % 2 ? fresh : fd;

		CHECK(readable(inner, 0) == 0 && event_of(outer, 0) == 0);
		send_all(one, "x", 1);
		CHECK(event_of(outer, LONG) == EPOLLIN);
		CHECK(event_of(middle, LONG) == EPOLLIN);
		CHECK(readable(inner, LONG) == 1);
		FD_ZERO(&in);
		FD_SET(inner, &in);
		CHECK(select(inner + 1, &in, NULL, NULL, NULL) == 1);
		CHECK(event_of(inner, LONG) == EPOLLIN);
		take(one, &byte, 1);
		event_of(outer, 0);
		event_of(inner, 0);
	}
	talk(fd);
	end(fd);
	talk(fresh);
	end(fresh);
}

/* A set that is polled before it has anything in it, and one that is only polled. */
static void polled(const char *port)
{
	int fd = dialled(port), set = epoll_create1(0);
	char byte;

	CHECK(readable(set, 0) == 0);
	put_in(set, fd, EPOLLIN);
	for (int n = 0; n < 3; n++) {
		send_all(fd, "x", 1);
		CHECK(readable(set, LONG) == 1);
		CHECK(event_of(set, LONG) == EPOLLIN);
		take(fd, &byte, 1);
		CHECK(event_of(set, 0) == 0 && readable(set, 0) == 0);
	}
	talk(fd);
	end(fd);
}

/* Urgent data: tcp(7), as the end that gets it sees it. */
static void urgent(const char *port)
{
	int fd = dialled(port);
	char byte;

	for (int n = 0; n < 3; n++) {
		send_all(fd, "before", 6);
		CHECK(send(fd, "!", 1, MSG_OOB) == 1);
		take(fd, &byte, 1);
		send_all(fd, "behind", 6);
		take(fd, &byte, 1);
	}
	end(fd);
}

static void hears_urgent(const char *port)
{
	int fd = accept(listening(), NULL, NULL), mark;
	char bytes[100];

	(void)port;
	for (int n = 0; n < 20; n++) {
		take(fd, bytes, sizeof bytes);
		send_all(fd, bytes, sizeof bytes);
	}
	for (int n = 0; n < 3; n++) {
		struct pollfd one = { fd, POLLPRI, 0 };
		fd_set except;

		CHECK(poll(&one, 1, LONG) == 1 && one.revents == POLLPRI);
		FD_ZERO(&except);
		FD_SET(fd, &except);
		CHECK(select(fd + 1, NULL, NULL, &except, NULL) == 1);
		CHECK(recv(fd, bytes, 1, MSG_OOB | MSG_PEEK) == 1 && bytes[0] == '!');
		CHECK(recv(fd, bytes, 1, MSG_OOB) == 1 && bytes[0] == '!');
		CHECK(sockatmark(fd) == 0);
		/* A read stops at the mark. */
		CHECK(recv(fd, bytes, sizeof bytes, 0) == 6 && memcmp(bytes, "before", 6) == 0);
		CHECK(ioctl(fd, SIOCATMARK, &mark) == 0 && mark == 1);
		send_all(fd, "x", 1);
		take(fd, bytes, 6);
		CHECK(memcmp(bytes, "behind", 6) == 0);
		FAILS(recv(fd, bytes, 1, MSG_OOB), EINVAL);
		send_all(fd, "x", 1);
	}
	CHECK(read(fd, bytes, 1) == 0);
}

/* Pointers to nothing: EFAULT, and what is there stays. */
static void nowhere(const char *port)
{
	int fd = dialled(port);
	char bytes[10];
	void *volatile null = NULL;
	volatile int none = -1;

	FAILS(send(fd, null, 10, MSG_NOSIGNAL), EFAULT);
	FAILS(write(fd, null, 10), EFAULT);
	send_all(fd, "abc", 3);
	wait_for(fd, 3);
	FAILS(recv(fd, null, 10, 0), EFAULT);
	FAILS(read(fd, null, 10), EFAULT);
	FAILS(recv(fd, null, 10, MSG_PEEK | MSG_DONTWAIT), EFAULT);
	FAILS(readv(fd, null, 1), EFAULT);
	FAILS(writev(fd, null, 1), EFAULT);
	FAILS(recvmsg(fd, null, 0), EFAULT);
	FAILS(sendmsg(fd, null, 0), EFAULT);
	FAILS(writev(fd, null, none), EINVAL);
	CHECK(read(fd, null, 0) == 0 && write(fd, null, 0) == 0);
	take(fd, bytes, 3);
	CHECK(memcmp(bytes, "abc", 3) == 0);
	talk(fd);
	end(fd);
}

/* The descriptors of this process. */
static int descriptors(void)
{
	int n = 0;

	for (int fd = 0; fd < 40000; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* An end that waits for the other one without success waits no more, and gives back what it has for that. */
static void gives_up(const char *port)
{
	int fd = dialled(port), before = descriptors();

	for (int n = 0; n < 20; n++)
		talk(fd);
	/* Fewer than the 4,096 calls after which all do, but a while. */
	usleep(250000);
	for (int n = 0; n < 10; n++)
		talk(fd);
	CHECK(is_moved(fd) == moves);
	if (getenv("LD_PRELOAD") != NULL && !moves)
		CHECK(descriptors() == before - 1);
	end(fd);
}

static const struct role roles[] = {
	{ "echo", serve_echo }, { "low-water", low_water_set }, { "low-water-first", low_water_first },
	{ "low-water-server", low_water_server }, { "answers", answers }, { "linger-none", linger_none },
	{ "sees-reset", sees_reset }, { "linger-long", linger_long }, { "counts", counts }, { "deaf", deaf },
	{ "time-limits", time_limits }, { "waits-all", waits_all }, { "masks", masks }, { "polled", polled },
	{ "urgent", urgent }, { "hears-urgent", hears_urgent }, { "exclusive", exclusive }, { "nested", nested },
	{ "nowhere", nowhere }, { "gives-up", gives_up }, { "many", serve_many },
};

int main(int count, char **words)
{
	return play(count, words, roles, sizeof roles / sizeof *roles);
}
