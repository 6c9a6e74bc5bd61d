/*
 * Group operations from C: a client of a chain of replicas (HyperLoop). Link with -lhyperclient.
 *
 * docs/group.md of softrnic says what the operations do. Functions that return int return -1 for an error, others what
 * stands beside them; errno says which, and compat_hyperclient_error in words.
 */
#ifndef _LIBHYPERCLIENT_HYPERCLIENT_COMPAT_H
#define _LIBHYPERCLIENT_HYPERCLIENT_COMPAT_H 1

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Replicas of the longest chain, and operations under way at most. */
#define COMPAT_HYPERCLIENT_MAX_REPLICAS 64
#define COMPAT_HYPERCLIENT_MAX_WINDOW 2000

/* What compat_hyperclient_do_operations returns for an error. */
#define COMPAT_HYPERCLIENT_FAILED ((unsigned long)-1)

/* A client. Several may use a chain at once. */
struct compat_hyperclient;

enum compat_hyperloop_operation_type {
	OPERATION_TYPE_GWRITE = 0,
	OPERATION_TYPE_GMEMCPY = 1,
	OPERATION_TYPE_GFLUSH = 2,
	OPERATION_TYPE_GCAS = 3,
};

/* Bytes of the client's buffer go to the same offset of every replica's region. */
struct compat_hyperloop_gwrite {
	uint64_t offset;
	uint64_t size;
};

/* Bytes of each replica's region go to another place of the region. The two must not overlap. */
struct compat_hyperloop_gmemcpy {
	uint64_t src_offset;
	uint64_t dst_offset;
	uint64_t size;
};

/* Each replica that the map names compares 8 bytes, and replaces them if they are equal. */
struct compat_hyperloop_gcas {
	uint64_t offset; /* a multiple of 8 */
	uint64_t old_value;
	uint64_t new_value;
	bool execute_map[COMPAT_HYPERCLIENT_MAX_REPLICAS]; /* 0 is the replica that the client connects to */
};

/* What came before is in each replica's memory. */
struct compat_hyperloop_gflush {
	uint64_t offset;
	uint64_t size;
};

struct compat_hyperloop_operation {
	enum compat_hyperloop_operation_type type;
	union {
		struct compat_hyperloop_gwrite gWrite;
		struct compat_hyperloop_gmemcpy gMemcpy;
		struct compat_hyperloop_gcas gCas;
		struct compat_hyperloop_gflush gFlush;
	} op;
};

/*
 * Connect to the replica that was started last, by "HOST:PORT". device_name is null or empty for the first device;
 * device_port is 1. The buffer must stay mapped until the client is destroyed. NULL: an error.
 */
struct compat_hyperclient *compat_hyperclient_connect(const char *device_name, const int device_port,
						      const char *server_ip_port, const void *buffer_address,
						      const size_t buffer_size);

/* End a client. The two names are one function: HyperLoop's report has both. */
int compat_hyperclient_destory(struct compat_hyperclient *client);
int compat_hyperclient_destroy(struct compat_hyperclient *client);

/* Have all replicas print a part of their regions. */
int compat_hyperclient_send_print_buffer(struct compat_hyperclient *client, const uint64_t offset,
					 const size_t length);

/*
 * Do operations, at most op_window_size at a time, and return how many microseconds it took, or
 * COMPAT_HYPERCLIENT_FAILED. All operations are checked before the first one is sent. A window above 2000 is 2000.
 */
unsigned long compat_hyperclient_do_operations(struct compat_hyperclient *client,
					       const struct compat_hyperloop_operation ops[],
					       const unsigned int ops_num, const unsigned int op_window_size);

/*
 * What the replicas had before gCAS number `index` of the last compat_hyperclient_do_operations: values has room for
 * COMPAT_HYPERCLIENT_MAX_REPLICAS. A value is 0 where the gCAS was not executed. Returns the number of replicas.
 */
int compat_hyperclient_result(struct compat_hyperclient *client, const unsigned int index, uint64_t values[]);

/*
 * Make the gCAS that takes `op` back where it swapped, from the values of compat_hyperclient_result. Returns 0 if it
 * swapped nowhere, and 1 if there is something to undo.
 */
int compat_hyperclient_undo(struct compat_hyperclient *client, const struct compat_hyperloop_operation *op,
			    const uint64_t values[], struct compat_hyperloop_operation *undo);

/* Wait for completions by sleeping until an event (1), or by polling (0), as at the beginning. */
int compat_hyperclient_use_notify(struct compat_hyperclient *client, const int use);

/* The number of replicas. */
int compat_hyperclient_replicas(struct compat_hyperclient *client);

/* Bytes of each replica's region; -1: an error. */
int64_t compat_hyperclient_region_size(struct compat_hyperclient *client);

/* Why the last call of this thread that failed did; the text stays until another one fails. */
const char *compat_hyperclient_error(void);

#ifdef __cplusplus
}
#endif

#endif
