/* Signals that come while a call waits for a connection: signal(7), "Interruption of system calls and library functions
 * by signal handlers". Each with the library in both programs, in one and in none. */
#include "pair.h"

static int connection, full, set, pipe_ends[2];
static char big[8 << 20];

static ssize_t by_read(void) { char c; return read(connection, &c, 1); }
static ssize_t by_recv(void) { char c; return recv(connection, &c, 1, 0); }
static ssize_t by_recvfrom(void) { char c; return recvfrom(connection, &c, 1, 0, NULL, NULL); }
static ssize_t by_waitall(void) { char c; return recv(connection, &c, 1, MSG_WAITALL); }

static ssize_t by_readv(void)
{
	char c;
	struct iovec piece = { &c, 1 };

	return readv(connection, &piece, 1);
}

static ssize_t by_recvmsg(void)
{
	char c;
	struct iovec piece = { &c, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	return recvmsg(connection, &message, 0);
}

static ssize_t by_recvmmsg(void)
{
	char c;
	struct iovec piece = { &c, 1 };
	struct mmsghdr one = { .msg_hdr = { .msg_iov = &piece, .msg_iovlen = 1 } };

	return recvmmsg(connection, &one, 1, 0, NULL);
}

static ssize_t by_splice(void)
{
	char c;
	ssize_t got = splice(connection, NULL, pipe_ends[1], NULL, 1, 0);

	if (got > 0)
		CHECK(read(pipe_ends[0], &c, 1) == 1);
	return got;
}

static ssize_t by_poll(void) { struct pollfd p = { connection, POLLIN, 0 }; return poll(&p, 1, -1); }
static ssize_t by_ppoll(void) { struct pollfd p = { connection, POLLIN, 0 }; return ppoll(&p, 1, NULL, NULL); }
static ssize_t by_epoll(void) { struct epoll_event e; return epoll_wait(set, &e, 1, -1); }
static ssize_t by_epoll_pwait(void) { struct epoll_event e; return epoll_pwait(set, &e, 1, -1, NULL); }

static ssize_t by_select(void)
{
	fd_set in;

	FD_ZERO(&in);
	FD_SET(connection, &in);
	return select(connection + 1, &in, NULL, NULL, NULL);
}

static ssize_t by_pselect(void)
{
	fd_set in;

	FD_ZERO(&in);
	FD_SET(connection, &in);
	return pselect(connection + 1, &in, NULL, NULL, NULL, NULL);
}

static ssize_t by_send(void) { return send(full, big, sizeof big, 0); }
static ssize_t by_write(void) { return write(full, big, sizeof big); }

static ssize_t by_sendmsg(void)
{
	struct iovec piece = { big, sizeof big };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	return sendmsg(full, &message, 0);
}

struct call { const char *name; ssize_t (*run)(void); int restarts; };

static const struct call calls[] = {
	{ "read", by_read, 1 }, { "readv", by_readv, 1 }, { "recv", by_recv, 1 }, { "recvfrom", by_recvfrom, 1 },
	{ "recvmsg", by_recvmsg, 1 }, { "recvmmsg", by_recvmmsg, 1 }, { "MSG_WAITALL", by_waitall, 1 },
	{ "splice", by_splice, 1 },
	/* Never, whatever the handler says. */
	{ "poll", by_poll, 0 }, { "ppoll", by_ppoll, 0 }, { "select", by_select, 0 }, { "pselect", by_pselect, 0 },
	{ "epoll_wait", by_epoll, 0 }, { "epoll_pwait", by_epoll_pwait, 0 },
};

static volatile int handled, done;
static pthread_t caller;
static pid_t caller_number;
static int sent_signal;

static void count_signal(int number) { (void)number; handled++; }

static void handle(int number, int flags)
{
	struct sigaction action = { .sa_handler = count_signal, .sa_flags = flags };

	CHECK(sigaction(number, &action, NULL) == 0);
}

/* Whether the calling thread sleeps: proc(5), the third word of stat. */
static int sleeps(void)
{
	char path[64], line[200], *state;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", caller_number);
	file = fopen(path, "re");
	CHECK(file && fgets(line, sizeof line, file));
	fclose(file);
	state = strrchr(line, ')');
	return state != NULL && state[2] == 'S';
}

/* Signals the thread in its call until it has returned. */
static void *interrupt(void *unused)
{
	(void)unused;
	while (!done) {
		pthread_kill(caller, sent_signal);
		usleep(2000);
	}
	return NULL;
}

static void signal_sleeper(void)
{
	for (int n = 0; n < 3; n++) {
		int before = handled;

		while (!sleeps())
			usleep(500);
		pthread_kill(caller, sent_signal);
		while (handled == before)
			usleep(500);
	}
}

/* Signals the thread three times while it sleeps, then sends what it waits for. */
static void *interrupt_and_send(void *unused)
{
	(void)unused;
	signal_sleeper();
	send_all(connection, "x", 1);
	return NULL;
}

static void interrupted(const struct call *call, int is_restarted)
{
	pthread_t other;
	ssize_t result;
	char byte;

	done = handled = 0;
	CHECK(pthread_create(&other, NULL, is_restarted ? interrupt_and_send : interrupt, NULL) == 0);
	result = call->run();
	if (is_restarted ? result != 1 : result != -1 || errno != EINTR) {
		fprintf(stderr, "%s: %zd, errno %d\n", call->name, result, errno);
		exit(1);
	}
	done = 1;
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(handled > 0);
	if (is_restarted && !call->restarts)
		take(connection, &byte, 1);
}

static void begin(const char *port)
{
	struct epoll_event event = { EPOLLIN, { 0 } };

	connection = dialled(port);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, connection, &event) == 0);
	CHECK(pipe(pipe_ends) == 0);
	caller = pthread_self();
	caller_number = syscall(SYS_gettid);
	sent_signal = SIGUSR1;
}

static void restarts(const char *port)
{
	begin(port);
	for (size_t n = 0; n < sizeof calls / sizeof *calls; n++) {
		handle(SIGUSR1, 0);
		interrupted(&calls[n], 0);
		handle(SIGUSR1, SA_RESTART);
		interrupted(&calls[n], calls[n].restarts);
	}
	/* A receive with a time is not restarted. */
	CHECK(setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 40, 0 }, sizeof(struct timeval)) == 0);
	for (int n = 0; n < 5; n++)
		interrupted(&calls[n], 0);
	CHECK(setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 0 }, sizeof(struct timeval)) == 0);
	talk(connection);
	end(connection);
}

/* A server that reads nothing of the first connection until the second one ends. */
static void deaf(const char *port)
{
	static char bytes[70000];
	int listener = listening(), fd = accept(listener, NULL, NULL), control;

	(void)port;
	for (int n = 0; n < 20; n++) {
		take(fd, bytes, 100);
		send_all(fd, bytes, 100);
	}
	control = accept(listener, NULL, NULL);
	CHECK(read(control, bytes, 1) == 0);
	while (read(fd, bytes, sizeof bytes) > 0)
		;
}

/* Signals the thread three times while it sleeps, then has the server make room. */
static void *interrupt_and_let(void *control)
{
	signal_sleeper();
	CHECK(close(*(int *)control) == 0);
	return NULL;
}

/* A send that has sent something returns how much (send(2)); else it is interrupted, or goes on until there is room. */
static void sends(const char *port)
{
	static const struct call senders[] = {
		{ "send", by_send, 1 }, { "write", by_write, 1 }, { "sendmsg", by_sendmsg, 1 },
	};
	pthread_t other;
	int control;

	begin(port);
	full = connection;
	control = dial(port);
	while (send(full, big, sizeof big, MSG_DONTWAIT) >= 0)
		;
	handle(SIGUSR1, 0);
	for (size_t n = 0; n < sizeof senders / sizeof *senders; n++) {
		ssize_t result;

		done = 0;
		CHECK(pthread_create(&other, NULL, interrupt, NULL) == 0);
		/* What is on its way by TCP may make some room. */
		while ((result = senders[n].run()) > 0)
			CHECK(result < (ssize_t)sizeof big);
		CHECK(result == -1 && errno == EINTR);
		done = 1;
		CHECK(pthread_join(other, NULL) == 0);
	}
	handle(SIGUSR1, SA_RESTART);
	handled = 0;
	CHECK(pthread_create(&other, NULL, interrupt_and_let, &control) == 0);
	CHECK(by_send() > 0);
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(shutdown(full, SHUT_WR) == 0);
}

static const struct role roles[] = {
	{ "echo", serve_echo }, { "restarts", restarts }, { "deaf", deaf }, { "sends", sends },
};

int main(int count, char **words)
{
	return play(count, words, roles, sizeof roles / sizeof *roles);
}
