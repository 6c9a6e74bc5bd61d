// The four operations in C, as listing 3.24 of HyperLoop's report has them. There, the buffer is shorter than what the
// C++ twin of the program sends, and the array has another type than its elements; here, both are right.
#include "common.h"

int main(int argc, char **argv)
{
	(void)argc;
	const size_t buffer_size = 0x30;
	char *buffer = calloc(buffer_size, 1);
	CHECK(buffer);
	strcpy(buffer, "Hello World, hello replicas");

	struct compat_hyperloop_operation op_gwrite = {
		.type = OPERATION_TYPE_GWRITE,
		.op = {.gWrite = {0x0, buffer_size}},
	};
	struct compat_hyperloop_operation op_gmemcpy = {
		.type = OPERATION_TYPE_GMEMCPY,
		.op = {.gMemcpy = {0x0, 0x50, 0x30}},
	};
	// "Hello Wo" becomes "hihi" on the replicas 0 and 2.
	struct compat_hyperloop_operation op_gcas = {
		.type = OPERATION_TYPE_GCAS,
		.op = {.gCas = {0x0, 0x6f57206f6c6c6548ULL, 0x69686968, {1, 0, 1, 0}}},
	};
	struct compat_hyperloop_operation op_gflush = {
		.type = OPERATION_TYPE_GFLUSH,
		.op = {.gFlush = {0x0, 0x80}},
	};

	struct compat_hyperloop_operation ops[4] = {op_gwrite, op_gmemcpy, op_gcas, op_gflush};
	struct compat_hyperclient *client = compat_hyperclient_connect("", 1, argv[1], buffer, buffer_size);
	CHECK(client);
	CHECK(compat_hyperclient_do_operations(client, ops, 4, 1) != COMPAT_HYPERCLIENT_FAILED);

	uint64_t values[64];
	CHECK(compat_hyperclient_result(client, 2, values) == REPLICAS);
	CHECK(values[0] == 0x6f57206f6c6c6548ULL && values[1] == 0 && values[2] == 0x6f57206f6c6c6548ULL);
	words(client, 0x0, values);
	CHECK(values[0] == 0x69686968 && values[1] == 0x6f57206f6c6c6548ULL && values[2] == 0x69686968);
	words(client, 0x50, values);
	CHECK(values[0] == values[1] && values[1] == values[2] && values[2] == 0x6f57206f6c6c6548ULL);
	// The suite looks for these lines in what the replicas print.
	CHECK(compat_hyperclient_send_print_buffer(client, 0x50, 0x10) == 0);
	CHECK(compat_hyperclient_destroy(client) == 0);
	free(buffer);
	return 0;
}
