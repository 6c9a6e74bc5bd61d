/*
 * A table of cases for librdmacm. Each case runs in a process of its own, with a limit on its time, and prints
 *
 *     ok NAME
 *     not ok NAME: FILE:LINE: WHAT: expected X, got Y
 *
 * It uses only functions that librdmacm-dev and libibverbs-dev declare, so it judges any implementation. Where the
 * manual pages leave something open, Linux's rdma_cm decides (6.1, on rxe).
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* An address of this host that the cases use. */
struct where {
	const char *text;
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_storage storage;
	} addr;
	socklen_t len;
};

struct test {
	const char *name;
	void (*run)(const struct where *w);
	/* Run for every address, or once (with the first). */
	bool each;
	/* Seconds; 0 stands for 30. */
	int limit;
};

/* One array per file, ended by an entry without a name. */
extern const struct test address_tests[], bind_tests[], connect_tests[], reject_tests[], datagram_tests[], endpoint_tests[],
	channel_tests[], hard_tests[], queue_tests[], multicast_tests[], process_tests[];

/* Ends the case. */
void fail_at(const char *file, int line, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));
void skip(const char *why) __attribute__((noreturn));
void check_number(const char *file, int line, const char *what, long long got, long long want);
void check_errno(const char *file, int line, const char *what, int ret, int err, int want);

#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define TRUE(what) \
	do { \
		if (!(what)) \
			FAIL("%s: expected true", #what); \
	} while (0)
#define IS(got, want) check_number(__FILE__, __LINE__, #got, (long long)(got), (long long)(want))
/* 0, or the errno of a call that gives -1. */
#define OK(call) \
	do { \
		errno = 0; \
		int ret_ = (call); \
		check_errno(__FILE__, __LINE__, #call, ret_, errno, 0); \
	} while (0)
#define FAILS(call, want) \
	do { \
		errno = 0; \
		int ret_ = (call); \
		check_errno(__FILE__, __LINE__, #call, ret_, errno, want); \
	} while (0)

/* An event, copied and acknowledged. */
struct event {
	enum rdma_cm_event_type type;
	int status;
	struct rdma_cm_id *id, *listen_id;
	struct rdma_conn_param conn;
	struct rdma_ud_param ud;
	uint8_t data[256];
	int len;
};

/* Waits this long for what must come, in milliseconds. */
enum { PATIENCE = 10000 };

bool next_event(struct rdma_event_channel *ch, int ms, struct event *e);
struct event expect_at(const char *file, int line, struct rdma_event_channel *ch, enum rdma_cm_event_type type, int status);
#define EXPECT(ch, type, status) expect_at(__FILE__, __LINE__, ch, RDMA_CM_EVENT_##type, status)
/* Nothing comes for a moment. */
void quiet_at(const char *file, int line, struct rdma_event_channel *ch);
#define QUIET(ch) quiet_at(__FILE__, __LINE__, ch)

struct rdma_event_channel *channel(void);
struct rdma_cm_id *new_id(struct rdma_event_channel *ch, enum rdma_port_space ps);
/* The address with this port (in host order). */
struct sockaddr *with_port(const struct where *w, uint16_t port, struct sockaddr_storage *s);
struct sockaddr *wildcard(int family, uint16_t port, struct sockaddr_storage *s);
uint16_t port_of(struct rdma_cm_id *id);

/* Listens on an ephemeral port of the address. */
struct rdma_cm_id *listener(struct rdma_event_channel *ch, const struct where *w, enum rdma_port_space ps, int backlog);
/* An id whose address and route are resolved. */
struct rdma_cm_id *routed(struct rdma_event_channel *ch, const struct where *w, enum rdma_port_space ps, uint16_t port);
void resolve(struct rdma_cm_id *id, const struct where *w, uint16_t port);
/* A queue pair with CQs of its own. */
void queue_pair(struct rdma_cm_id *id);
struct rdma_conn_param parameters(const void *data, int len);

/* Both sides of one connection, each with its channel. */
struct pair {
	struct rdma_event_channel *server_ch, *client_ch;
	struct rdma_cm_id *listen, *server, *client;
};

/* Up to the request, which the server has and has not answered. */
struct pair requested(const struct where *w, enum rdma_port_space ps, const void *data, int len, struct event *request);
struct pair connected(const struct where *w);
void disconnected(struct pair *p);
void destroyed(struct pair *p);

/* Bytes that differ from zeros and by their place. */
void pattern(uint8_t *to, int len, int seed);
void check_pattern_at(const char *file, int line, const struct event *e, int len, int seed, int want_len);
/* The first `len` bytes are the pattern, zeros follow up to `want_len`, which is the event's length. */
#define PATTERN(e, len, seed, want_len) check_pattern_at(__FILE__, __LINE__, e, len, seed, want_len)

/* Send from one id to the other and back, and compare the data. */
void traffic(struct rdma_cm_id *a, struct rdma_cm_id *b);

/* Loopback addresses count as wildcards where ports are claimed (cma_any_addr). */
bool is_loopback(const struct where *w);
/* The error of a second claim of the same address and port. */
int in_use(const struct where *w);
/* An address that is not a loopback one, if there is one of this family. */
const struct where *interface_address(int family);

long long now_ms(void);
int open_descriptors(void);

#endif
