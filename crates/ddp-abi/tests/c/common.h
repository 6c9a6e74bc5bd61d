// What the tests of libsoftrnic-ddp share. A test is a list of cases. Each case has two sides, each a process of its
// own: one accepts, the other connects. Two pipes let a side wait for the other one.
#ifndef COMMON_H
#define COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "softrnic/ddp.h"

#define CHECK(condition)                                                                                  \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: %s: %s; errno %d: %s\n", __FILE__, __LINE__, case_name,   \
				#condition, errno, ddp_error());                                          \
			_exit(1);                                                                         \
		}                                                                                         \
	} while (0)

// A call fails with this errno, and says why.
#define REFUSED(call, failed, number)                           \
	do {                                                    \
		errno = 0;                                      \
		CHECK((call) == (failed) && errno == (number)); \
		CHECK(strlen(ddp_error()) > 0);                 \
	} while (0)

struct world {
	int listener;
	char place[32];
	int to_other, from_other; // pipes between the sides
	pid_t connector;	  // known to the side that accepts
};

struct test_case {
	const char *name;
	void (*accepts)(struct world *);
	void (*connects)(struct world *);
};

static const char *case_name = "";

static inline void tell(struct world *w)
{
	CHECK(write(w->to_other, "x", 1) == 1);
}

// Wait until the other side has told; false: it has ended.
static inline int told(struct world *w)
{
	char byte;
	return read(w->from_other, &byte, 1) == 1;
}

// A value for the other side, beside the connection.
static inline void give(struct world *w, uint64_t value)
{
	CHECK(write(w->to_other, &value, sizeof value) == sizeof value);
}

static inline uint64_t take(struct world *w)
{
	uint64_t value;
	CHECK(read(w->from_other, &value, sizeof value) == sizeof value);
	return value;
}

static inline struct ddp_socket *accepted(struct world *w)
{
	struct ddp_socket *s = ddp_accept(w->listener, NULL);
	CHECK(s);
	return s;
}

static inline struct ddp_socket *connected(struct world *w)
{
	struct ddp_socket *s = ddp_connect(w->place, NULL);
	CHECK(s);
	return s;
}

static inline unsigned char pattern(size_t at, unsigned seed)
{
	return (unsigned char)(at * 7 + (at >> 8) + seed);
}

static inline void fill(unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = pattern(i, seed);
}

static inline int is_filled(const unsigned char *bytes, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != pattern(i, seed))
			return 0;
	return 1;
}

// The next indication is a message of so many bytes in this buffer.
#define MESSAGE(socket, at, size)                                                                       \
	do {                                                                                            \
		struct ddp_indication came;                                                             \
		CHECK(ddp_recv(socket, &came) == 1);                                                    \
		CHECK(came.type == DDP_MESSAGE && came.buffer == (void *)(at) && came.length == (size)); \
	} while (0)

// The next indication is a notice.
#define NOTICE(socket, of, number)                                                       \
	do {                                                                             \
		struct ddp_indication came;                                              \
		CHECK(ddp_recv(socket, &came) == 1);                                     \
		CHECK(came.type == DDP_TAGGED && came.tag == (of) && came.id == (number)); \
	} while (0)

// The connection ends by an error with this errno, and a text that begins so.
#define ENDS(socket, number, text)                                                   \
	do {                                                                         \
		struct ddp_indication came;                                          \
		REFUSED(ddp_recv(socket, &came), -1, number);                        \
		CHECK(strstr(ddp_error(), text));                                    \
	} while (0)

static inline int failed(pid_t pid, int killed)
{
	int status = 0;
	if (waitpid(pid, &status, 0) != pid)
		return 1;
	if (WIFSIGNALED(status) && WTERMSIG(status) == killed)
		return 0;
	return status != 0;
}

// Run a case: `killed` is the signal that the connecting side may end by.
static inline int run_case(const struct test_case *which, int killed)
{
	struct world w = {0};
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int a[2], b[2];
	case_name = which->name;
	CHECK(pipe(a) == 0 && pipe(b) == 0);
	CHECK((w.listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(bind(w.listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(w.listener, 8) == 0);
	CHECK(getsockname(w.listener, (struct sockaddr *)&address, &length) == 0);
	snprintf(w.place, sizeof w.place, "127.0.0.1:%d", ntohs(address.sin_port));
	// The library is used by the two children only: a child of a process that has used it may not use it.
	pid_t connector = fork();
	if (connector == 0) {
		w.to_other = a[1], w.from_other = b[0];
		close(a[0]), close(b[1]), close(w.listener);
		which->connects(&w);
		exit(0);
	}
	pid_t acceptor = fork();
	if (acceptor == 0) {
		w.to_other = b[1], w.from_other = a[0], w.connector = connector;
		close(b[0]), close(a[1]);
		which->accepts(&w);
		exit(0);
	}
	close(a[0]), close(a[1]), close(b[0]), close(b[1]), close(w.listener);
	int bad = failed(connector, killed) | failed(acceptor, 0);
	printf("%s: %s\n", which->name, bad ? "failed" : "passed");
	fflush(stdout);
	return bad;
}

#define RUN(cases, killed)                                                    \
	int main(void)                                                        \
	{                                                                     \
		int bad = 0;                                                  \
		for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++)  \
			bad |= run_case(&(cases)[i], killed);                 \
		return bad;                                                   \
	}

#endif
