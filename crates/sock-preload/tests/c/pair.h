/* Two processes and a TCP connection between them: what the programs of this folder have in common. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { \
	fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); exit(1); } } while (0)
/* A call that fails with this error. */
#define FAILS(call, error) do { errno = 0; CHECK((call) == -1); CHECK(errno == (error)); } while (0)
/* Longer than anything takes. */
#define LONG 40000

struct role { const char *name; void (*play)(const char *port); };

/* Whether both processes have the library. */
static int moves;

static inline int dial(const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(fd >= 0);
	CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
	return fd;
}

/* Listens, and says where. A connection gets its SO_RCVLOWAT from the listening socket. */
static inline int listening_with(int least)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
	CHECK(listen(fd, 10) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
	printf("\nport %d\n", ntohs(at.sin_port));
	fflush(stdout);
	return fd;
}

static inline int listening(void)
{
	return listening_with(1);
}

static inline void send_all(int fd, const void *from, size_t len)
{
	const char *next = from;

	while (len > 0) {
		ssize_t some = send(fd, next, len, MSG_NOSIGNAL);

		CHECK(some > 0);
		next += some;
		len -= some;
	}
}

static inline void take(int fd, void *to, size_t len)
{
	CHECK(recv(fd, to, len, MSG_WAITALL) == (ssize_t)len);
}

/* Messages that come back. */
static inline void talk(int fd)
{
	for (int n = 0; n < 20; n++) {
		char out[100], back[100];

		memset(out, n, sizeof out);
		send_all(fd, out, sizeof out);
		take(fd, back, sizeof back);
		CHECK(memcmp(out, back, sizeof out) == 0);
	}
}

/* Answers until the end of the stream. */
static inline void answer(int fd)
{
	static char bytes[70000];

	for (;;) {
		ssize_t some = read(fd, bytes, sizeof bytes);

		CHECK(some >= 0);
		if (some == 0)
			return;
		send_all(fd, bytes, some);
	}
}

/* The bytes that the kernel has sent, or will: tcpi_bytes_sent, tcpi_bytes_retrans, tcpi_notsent_bytes. */
static inline uint64_t by_tcp(int fd)
{
	uint64_t words[27];
	uint32_t waiting;
	socklen_t len = sizeof words;

	CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, words, &len) == 0);
	memcpy(&waiting, (char *)words + 144, sizeof waiting);
	return words[25] - words[26] + waiting;
}

/* A connection that has moved, if it can. */
static inline int dialled(const char *port)
{
	int fd = dial(port);

	talk(fd);
	CHECK((by_tcp(fd) < 2000) == moves);
	return fd;
}

/* Whether bytes go by memory now. */
static inline int is_moved(int fd)
{
	uint64_t before = by_tcp(fd);

	talk(fd);
	return by_tcp(fd) < before + 2000;
}

static inline void end(int fd)
{
	char byte;

	CHECK(shutdown(fd, SHUT_WR) == 0);
	CHECK(read(fd, &byte, 1) == 0);
	CHECK(close(fd) == 0);
}

/* Waits until so many bytes are there to be read. */
static inline void wait_for(int fd, int bytes)
{
	for (int there = 0; there < bytes; usleep(500))
		CHECK(ioctl(fd, FIONREAD, &there) == 0);
}

static inline int readable(int fd, int millis)
{
	struct pollfd one = { fd, POLLIN, 0 };
	int n = poll(&one, 1, millis);

	CHECK(n >= 0);
	return n;
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Serves one connection. */
static inline void serve_echo(const char *port)
{
	(void)port;
	answer(accept(listening(), NULL, NULL));
}

/* Answers all connections until none is left. */
static inline void serve_many(const char *count)
{
	int listener = listening(), left = atoi(count);

	while (left > 0) {
		pid_t child;
		int alone[2], fd = accept(listener, NULL, NULL);
		char byte;

		CHECK(fd >= 0 && pipe(alone) == 0);
		left--;
		child = fork();
		if (child == 0) {
			/* A connection can move when one process has it alone: dialled() counts the messages until then. */
			close(alone[1]);
			CHECK(read(alone[0], &byte, 1) == 0);
			close(alone[0]);
			answer(fd);
			_exit(0);
		}
		close(fd);
		close(alone[0]);
		close(alone[1]);
	}
	while (wait(&left) > 0)
		CHECK(left == 0);
}

/* PROGRAM ROLE PORT moves|stays */
static inline int play(int count, char **words, const struct role *roles, size_t n)
{
	CHECK(count == 4);
	moves = strcmp(words[3], "moves") == 0;
	for (size_t at = 0; at < n; at++)
		if (strcmp(roles[at].name, words[1]) == 0) {
			roles[at].play(words[2]);
			return 0;
		}
	fprintf(stderr, "there is no %s\n", words[1]);
	return 2;
}
