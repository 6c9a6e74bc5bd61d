// Windows, waiting by events, clients in several threads, and a gCAS that is taken back.
#include <pthread.h>

#include "common.h"

#define CLIENTS 4
#define PART (REGION / CLIENTS)

static const char *where;

static void windows(struct compat_hyperclient *client, char *buffer, uint64_t base)
{
	enum { COUNT = 600 };
	static const unsigned sizes[] = {1, 7, 2000};
	struct compat_hyperloop_operation *ops = malloc(COUNT * sizeof *ops);
	CHECK(ops);
	for (unsigned round = 0; round < 6; round++) {
		CHECK(compat_hyperclient_use_notify(client, round / 3) == 0);
		memset(buffer + base, (int)(1 + round), PART / 2);
		for (uint64_t i = 0; i < COUNT; i++)
			ops[i] = gwrite(base + i * 8, 8);
		CHECK(compat_hyperclient_do_operations(client, ops, COUNT, sizes[round % 3]) !=
		      COMPAT_HYPERCLIENT_FAILED);
		uint64_t values[64];
		for (uint64_t i = 0; i < COUNT; i += COUNT - 1) {
			words(client, base + i * 8, values);
			for (int k = 0; k < REPLICAS; k++)
				CHECK(values[k] == 0x0101010101010101ULL * (1 + round));
		}
	}
	free(ops);
}

static void taken_back(struct compat_hyperclient *client, uint64_t place)
{
	uint64_t values[64];
	struct compat_hyperloop_operation undo, other = gcas(place, 0, 9, 2), lock = gcas(place, 0, 5, 7);
	run(client, other);
	run(client, lock);
	CHECK(compat_hyperclient_result(client, 0, values) == REPLICAS);
	CHECK(values[0] == 0 && values[1] == 9 && values[2] == 0);
	CHECK(compat_hyperclient_undo(client, &lock, values, &undo) == 1);
	CHECK(undo.op.gCas.execute_map[0] && !undo.op.gCas.execute_map[1] && undo.op.gCas.execute_map[2]);
	run(client, undo);
	words(client, place, values);
	CHECK(values[0] == 0 && values[1] == 9 && values[2] == 0);
	values[0] = values[2] = 1;
	CHECK(compat_hyperclient_undo(client, &lock, values, &undo) == 0);
}

static void *one(void *argument)
{
	uint64_t number = (uintptr_t)argument;
	char *buffer = calloc(REGION, 1);
	CHECK(buffer);
	struct compat_hyperclient *client = join(where, buffer, REGION);
	windows(client, buffer, number * PART);
	taken_back(client, number * PART + PART - 8);
	CHECK(compat_hyperclient_destroy(client) == 0);
	free(buffer);
	return NULL;
}

int main(int argc, char **argv)
{
	(void)argc;
	where = argv[1];
	pthread_t threads[CLIENTS];
	for (uintptr_t i = 0; i < CLIENTS; i++)
		CHECK(pthread_create(&threads[i], NULL, one, (void *)i) == 0);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	// A buffer that can only be read.
	static const char constant[4096] = "constant";
	struct compat_hyperclient *client = join(argv[1], constant, sizeof constant);
	run(client, gwrite(0, 16));
	uint64_t values[64];
	words(client, 0, values);
	CHECK(memcmp(values, "constant", 8) == 0 && values[2] == values[0]);
	CHECK(compat_hyperclient_destroy(client) == 0);
	return 0;
}
