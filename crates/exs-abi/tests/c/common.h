// What the tests of extended sockets share. A test is a program with one argument: "one", its peers are threads of this
// process, or "two", they are processes. A peer connects to the port at which the test listens.
#ifndef COMMON_H
#define COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/exs.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYNC EXS_QHANDLE_INVALID, 0
#define LOOSE EXS_MHANDLE_UNREGISTERED
// Longer than any test waits for what comes.
#define PATIENCE 40

extern char **environ;

#define FAIL(...)                                                        \
	do {                                                             \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
		fprintf(stderr, __VA_ARGS__);                            \
		fprintf(stderr, "\n");                                   \
		_exit(1);                                                \
	} while (0)

#define CHECK(condition)                                                 \
	do {                                                             \
		if (!(condition))                                        \
			FAIL("%s (errno %d, %s)", #condition, errno, strerror(errno)); \
	} while (0)

#define EQUALS(call, expected)                                           \
	do {                                                             \
		long long got_ = (call), wanted_ = (expected);           \
		if (got_ != wanted_)                                     \
			FAIL("%s is %lld, not %lld (errno %d, %s)", #call, got_, wanted_, errno, strerror(errno)); \
	} while (0)

// The call returns -1 with this errno.
#define REFUSED(call, expected)                                          \
	do {                                                             \
		errno = 0;                                               \
		long long got_ = (call);                                 \
		if (got_ != -1 || errno != (expected))                   \
			FAIL("%s is %lld with errno %d (%s), not %s", #call, got_, errno, strerror(errno), #expected); \
	} while (0)

// A part that a peer plays.
struct part {
	const char *name;
	void (*play)(int port);
};

// Every test has these; a part without a name ends the list.
extern const struct part PARTS[];
void test(void);

#ifdef __SANITIZE_THREAD__
// The library's own locks are no calls that the sanitizer sees: what it allocates and frees is not looked at.
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "called_from_lib:libexs.so\n";
}
#endif

static bool separate;
static const char *program;

struct peer {
	const struct part *part;
	int port;
	pid_t process;
	pthread_t thread;
};

static inline const struct part *find_part(const char *name)
{
	for (const struct part *part = PARTS; part->name; part++)
		if (!strcmp(part->name, name))
			return part;
	FAIL("no part %s", name);
}

static void *peer_thread(void *argument)
{
	struct peer *peer = argument;
	peer->part->play(peer->port);
	return NULL;
}

static inline struct peer *start(const char *name, int port)
{
	struct peer *peer = calloc(1, sizeof *peer);
	peer->part = find_part(name);
	peer->port = port;
	if (separate) {
		char number[16];
		snprintf(number, sizeof number, "%d", port);
		char *arguments[] = {(char *)program, "peer", (char *)name, number, NULL};
		EQUALS(posix_spawn(&peer->process, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
	} else {
		EQUALS(pthread_create(&peer->thread, NULL, peer_thread, peer), 0);
	}
	return peer;
}

// Wait for a peer, which has to end well.
static inline void finish(struct peer *peer)
{
	int status = 0;
	if (separate)
		EQUALS(waitpid(peer->process, &status, 0), peer->process);
	else
		EQUALS(pthread_join(peer->thread, NULL), 0);
	EQUALS(status, 0);
	free(peer);
}

int main(int count, char **arguments)
{
	program = arguments[0];
	if (count == 4 && !strcmp(arguments[1], "peer")) {
		find_part(arguments[2])->play(atoi(arguments[3]));
		return 0;
	}
	CHECK(count == 2);
	separate = !strcmp(arguments[1], "two");
	alarm(3 * PATIENCE);
	test();
	return 0;
}

// The address in front of one, which the compiler does not see through.
static inline void *before(void *at)
{
	return (void *)((uintptr_t)at - 1);
}

static inline struct sockaddr_in at_port(int port)
{
	return (struct sockaddr_in){
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline int port_of(int fd)
{
	struct sockaddr_storage address;
	socklen_t len = sizeof address;
	EQUALS(exs_getsockname(fd, (struct sockaddr *)&address, &len), 0);
	return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static inline int listener(int type)
{
	struct sockaddr_in address = at_port(0);
	int fd = exs_socket(AF_INET, type, 0);
	CHECK(fd >= 0);
	EQUALS(exs_bind(fd, (struct sockaddr *)&address, sizeof address), 0);
	EQUALS(exs_listen(fd, 64), 0);
	return fd;
}

static inline int connected(int type, int port)
{
	struct sockaddr_in address = at_port(port);
	int fd = exs_socket(AF_INET, type, 0);
	CHECK(fd >= 0);
	EQUALS(exs_connect(fd, (struct sockaddr *)&address, sizeof address, 0, SYNC), 0);
	return fd;
}

static inline int accepted(int from)
{
	int fd = exs_accept(from, NULL, 0, SYNC);
	CHECK(fd >= 0);
	return fd;
}

static inline void closed(int fd)
{
	EQUALS(exs_close(fd, SYNC), 0);
}

static inline exs_qhandle_t queue_of(int depth)
{
	exs_qhandle_t queue = exs_qcreate(depth);
	CHECK(queue != EXS_QHANDLE_INVALID);
	return queue;
}

// The next event, whatever it is.
static inline exs_event_t next_event(exs_qhandle_t queue)
{
	exs_event_t event;
	struct timeval patience = {.tv_sec = PATIENCE};
	EQUALS(exs_qdequeue(queue, &event, 1, &patience), 1);
	return event;
}

#define EVENT(queue, type, ahandle, error)                               \
	({                                                               \
		exs_event_t event_ = next_event(queue);                  \
		EQUALS(event_.exs_evt_type, type);                       \
		EQUALS(event_.exs_evt_ahandle, ahandle);                 \
		EQUALS(event_.exs_evt_errno, error);                     \
		event_;                                                  \
	})

static inline void no_event(exs_qhandle_t queue)
{
	exs_event_t event;
	struct timeval none = {0};
	EQUALS(exs_qdequeue(queue, &event, 1, &none), 0);
}

// Bytes that say where they are.
static inline void fill(unsigned char *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (unsigned char)((i * 131 + (i >> 8) * 7 + seed) ^ (i >> 16));
}

static inline void check_bytes(const unsigned char *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++) {
		unsigned char wanted = (unsigned char)((i * 131 + (i >> 8) * 7 + seed) ^ (i >> 16));
		if (bytes[i] != wanted)
			FAIL("byte %zu of %zu is %u, not %u", i, len, bytes[i], wanted);
	}
}

// A part: send back what comes until its end, then close.
static inline void echo(int type, int port)
{
	enum { ROOM = 3 << 20 };
	int fd = connected(type, port);
	char *bytes = malloc(ROOM);
	exs_mhandle_t handle = exs_mregister(bytes, ROOM, 0);
	exs_qhandle_t queue = queue_of(4);
	CHECK(handle != EXS_MHANDLE_INVALID);
	for (;;) {
		EQUALS(exs_recv(fd, bytes, ROOM, 0, queue, 1, handle), 0);
		exs_event_t event = next_event(queue);
		EQUALS(event.exs_evt_errno, 0);
		if (event.exs_evt_flags & EXS_EOF)
			break;
		EQUALS(exs_send(fd, bytes, event.exs_evt_length, 0, queue, 2, handle), 0);
		EVENT(queue, EXS_EVT_SEND, 2, 0);
	}
	closed(fd);
	EQUALS(exs_qdelete(queue), 0);
	EQUALS(exs_mderegister(handle), 0);
	free(bytes);
}

static inline void echo_packets(int port)
{
	echo(SOCK_SEQPACKET, port);
}

static inline void echo_stream(int port)
{
	echo(SOCK_STREAM, port);
}

// A part: connect, and wait until the test closes.
static inline void wait_for_end(int type, int port)
{
	char byte;
	int fd = connected(type, port);
	exs_recv(fd, &byte, 1, 0, SYNC, LOOSE);
	closed(fd);
}

#endif
