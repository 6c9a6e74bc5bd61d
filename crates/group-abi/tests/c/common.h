// What the tests of libhyperclient share. A test is a program with one argument: where the first of three replicas
// listens. The region of each has 64 KiB, and nothing else writes there. SERVER is the pid of their process.
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libhyperclient/hyperclient_compat.h"

#define REGION 65536
#define REPLICAS 3

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: %s; errno %d: %s\n", __FILE__, __LINE__, #condition, errno, \
				compat_hyperclient_error());                                    \
			_exit(1);                                                               \
		}                                                                               \
	} while (0)

// A call fails with this errno, and says why.
#define REFUSED(call, failed, number)                                \
	do {                                                         \
		errno = 0;                                           \
		CHECK((call) == (failed) && errno == (number));      \
		CHECK(strlen(compat_hyperclient_error()) > 0);       \
	} while (0)

static inline struct compat_hyperclient *join(const char *to, const void *buffer, size_t size)
{
	struct compat_hyperclient *client = compat_hyperclient_connect(NULL, 1, to, buffer, size);
	CHECK(client);
	CHECK(compat_hyperclient_replicas(client) == REPLICAS);
	CHECK(compat_hyperclient_region_size(client) == REGION);
	return client;
}

static inline struct compat_hyperloop_operation gwrite(uint64_t offset, uint64_t size)
{
	struct compat_hyperloop_operation op = {.type = OPERATION_TYPE_GWRITE, .op = {.gWrite = {offset, size}}};
	return op;
}

static inline struct compat_hyperloop_operation gcas(uint64_t offset, uint64_t old, uint64_t new, unsigned map)
{
	struct compat_hyperloop_operation op = {.type = OPERATION_TYPE_GCAS, .op = {.gCas = {offset, old, new, {0}}}};
	for (int i = 0; i < 32; i++)
		op.op.gCas.execute_map[i] = map >> i & 1;
	return op;
}

static inline void run(struct compat_hyperclient *client, struct compat_hyperloop_operation op)
{
	CHECK(compat_hyperclient_do_operations(client, &op, 1, 1) != COMPAT_HYPERCLIENT_FAILED);
}

// The word of each replica, by a gCAS that changes nothing.
static inline void words(struct compat_hyperclient *client, uint64_t offset, uint64_t values[64])
{
	run(client, gcas(offset, 0, 0, 7));
	CHECK(compat_hyperclient_result(client, 0, values) == REPLICAS);
}

#endif
