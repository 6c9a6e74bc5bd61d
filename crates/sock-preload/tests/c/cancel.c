// Threads that are cancelled in calls on connections: they end at once while they wait, and when a call begins that is a
// cancellation point; what they had is given back, and the connection goes on. Run with the library and without it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "line %d: %s (errno %d, in %s)\n", __LINE__, #what, errno, now); exit(1); } } while (0)

static const char *now = "main";
static int connection, fresh, full, listener, set, pipe_ends[2];
static struct sockaddr_in unanswered;
/* More than both directions take. */
static char big[64 << 20];

static void by_read(void) { char c; (void)!read(connection, &c, 1); }
static void by_read_fresh(void) { char c; (void)!read(fresh, &c, 1); }
static void by_recv(void) { char c; recv(connection, &c, 1, 0); }
static void by_waitall(void) { char c[9]; recv(connection, c, 9, MSG_WAITALL); }
static void by_poll(void) { struct pollfd p = { connection, POLLIN, 0 }; poll(&p, 1, -1); }
static void by_ppoll(void) { struct pollfd p = { connection, POLLIN, 0 }; ppoll(&p, 1, NULL, NULL); }
static void by_accept(void) { accept(listener, NULL, NULL); }
static void by_epoll(void) { struct epoll_event e; epoll_wait(set, &e, 1, -1); }
static void by_epoll_pwait(void) { struct epoll_event e; epoll_pwait(set, &e, 1, -1, NULL); }
static void by_splice(void) { splice(connection, NULL, pipe_ends[1], NULL, 10, 0); }
static void by_write(void) { (void)!write(full, big, sizeof big); }

static void by_select(void)
{
	fd_set in;

	FD_ZERO(&in);
	FD_SET(connection, &in);
	select(connection + 1, &in, NULL, NULL, NULL);
}

static void by_recvmsg(void)
{
	char c;
	struct iovec piece = { &c, 1 };
	struct mmsghdr one = { .msg_hdr = { .msg_iov = &piece, .msg_iovlen = 1 } };

	recvmsg(connection, &one.msg_hdr, 0);
}

static void by_recvmmsg(void)
{
	char c;
	struct iovec piece = { &c, 1 };
	struct mmsghdr one = { .msg_hdr = { .msg_iov = &piece, .msg_iovlen = 1 } };

	recvmmsg(connection, &one, 1, 0, NULL);
}

static void by_connect(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* The descriptor stays: it is closed by nobody. */
	connect(fd, (struct sockaddr *)&unanswered, sizeof unanswered);
}

static volatile pid_t thread;
static volatile int cleaned, pending_only, may_go;

static void clean(void *by) { cleaned = cleaned * 10 + (int)(long)by; }

static void *body(void *call)
{
	int before;

	pthread_cleanup_push(clean, (void *)2);
	pthread_cleanup_push(clean, (void *)1);
	if (pending_only)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	thread = (pid_t)syscall(SYS_gettid);
	while (pending_only && !may_go)
		;
	if (pending_only)
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
	((void (*)(void))call)();
	pthread_cleanup_pop(0);
	pthread_cleanup_pop(0);
	return NULL;
}

static void until_asleep(void)
{
	char path[64], text[512];

	for (;;) {
		pid_t id = thread;
		FILE *file;
		size_t got;
		char *state;

		if (id == 0)
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)id);
		file = fopen(path, "r");
		if (!file)
			return;
		got = fread(text, 1, sizeof text - 1, file);
		fclose(file);
		text[got] = 0;
		state = strrchr(text, ')');
		if (state && state[2] == 'S')
			return;
		usleep(200);
	}
}

static void cancelled_in(const char *name, void (*call)(void), int pending)
{
	pthread_t id;
	void *result;

	now = name;
	thread = 0;
	cleaned = 0;
	may_go = 0;
	pending_only = pending;
	CHECK(pthread_create(&id, NULL, body, (void *)call) == 0);
	if (pending) {
		CHECK(pthread_cancel(id) == 0);
		may_go = 1;
	} else {
		until_asleep();
		CHECK(pthread_cancel(id) == 0);
	}
	CHECK(pthread_join(id, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK(cleaned == 12);
}

static void echo(int fd)
{
	char buffer[4096];
	ssize_t got;

	while ((got = read(fd, buffer, sizeof buffer)) > 0)
		if (write(fd, buffer, (size_t)got) != got)
			break;
}

static void talk(int fd, int rounds)
{
	char text[100], back[100];

	for (int n = 0; n < rounds; n++) {
		memset(text, n + 1, sizeof text);
		CHECK(send(fd, text, sizeof text, 0) == sizeof text);
		CHECK(recv(fd, back, sizeof back, MSG_WAITALL) == sizeof back);
		CHECK(memcmp(text, back, sizeof text) == 0);
	}
}

static int listening(struct sockaddr_in *at, int backlog)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof *at;

	memset(at, 0, sizeof *at);
	at->sin_family = AF_INET;
	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)at, sizeof *at) == 0);
	CHECK(listen(fd, backlog) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)at, &len) == 0);
	return fd;
}

static int connected(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0);
	return fd;
}

/* Mappings of the library's memory. */
static int mappings(void)
{
	char line[512];
	int count = 0;
	FILE *file = fopen("/proc/self/maps", "r");

	CHECK(file);
	while (fgets(line, sizeof line, file))
		count += strstr(line, "/memfd:") != NULL;
	fclose(file);
	return count;
}

/* Whether bytes have gone by another way than TCP. */
static int has_moved(int fd, unsigned long total)
{
	struct { char bytes[216]; } info;
	socklen_t len = sizeof info;
	unsigned long sent;

	CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && len == sizeof info);
	memcpy(&sent, info.bytes + 200, sizeof sent);
	return sent < total;
}

int main(int count, char **arguments)
{
	struct sockaddr_in at, other;
	struct epoll_event event = { .events = EPOLLIN };
	int server = listening(&at, 10), moves = count > 1 && strcmp(arguments[1], "moves") == 0, before;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		/* One connection after the other; the one that is full is not read. */
		for (int n = 0; n < 3; n++) {
			int fd = accept(server, NULL, NULL);

			if (fork() == 0) {
				close(server);
				echo(fd);
				_exit(0);
			}
			close(fd);
		}
		while (wait(NULL) > 0)
			;
		_exit(0);
	}
	close(server);
	signal(SIGPIPE, SIG_IGN);
	fresh = connected(&at);
	full = connected(&at);
	talk(full, 50);
	CHECK(has_moved(full, 5000) == moves);
	before = mappings();
	connection = connected(&at);
	talk(connection, 50);
	CHECK(has_moved(connection, 5000) == moves);
	listener = listening(&other, 10);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(pipe(pipe_ends) == 0);
	struct { const char *name; void (*call)(void); } calls[] = {
		{ "read", by_read }, { "recv", by_recv }, { "waitall", by_waitall }, { "recvmsg", by_recvmsg },
		{ "recvmmsg", by_recvmmsg }, { "poll", by_poll }, { "ppoll", by_ppoll }, { "select", by_select },
		{ "splice", by_splice }, { "accept", by_accept }, { "fresh", by_read_fresh },
		{ "epoll_wait", by_epoll }, { "epoll_pwait", by_epoll_pwait },
	};
	for (int turn = 0; turn < 3; turn++) {
		for (size_t n = 0; n < sizeof calls / sizeof *calls; n++) {
			if (calls[n].call == by_epoll && turn == 0)
				CHECK(epoll_ctl(set, EPOLL_CTL_ADD, connection, &event) == 0);
			cancelled_in(calls[n].name, calls[n].call, 0);
			now = "talk";
			talk(connection, 2);
			cancelled_in(calls[n].name, calls[n].call, 1);
		}
	}
	/* What is there is not taken by a thread whose cancellation was pending. */
	CHECK(send(connection, "x", 1, 0) == 1);
	struct pollfd ready = { connection, POLLIN, 0 };
	CHECK(poll(&ready, 1, 40000) == 1);
	cancelled_in("pending", by_read, 1);
	char c = 0;
	CHECK(recv(connection, &c, 1, MSG_DONTWAIT) == 1 && c == 'x');
	/* A listener that answers no more than it has room for. */
	int none = listening(&unanswered, 0);
	for (int n = 0; n < 4; n++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

		connect(fd, (struct sockaddr *)&unanswered, sizeof unanswered);
	}
	cancelled_in("connect", by_connect, 0);
	close(none);
	/* The other end writes into a connection that this one does not read, and then reads no more. */
	cancelled_in("write", by_write, 0);
	now = "end";
	close(connection);
	CHECK(mappings() == before);
	close(full);
	close(fresh);
	CHECK(waitpid(child, NULL, 0) == child);
	return 0;
}
