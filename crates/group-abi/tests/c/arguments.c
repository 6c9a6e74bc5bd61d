// Layouts of the structures, and every argument that is refused.
#include "common.h"

_Static_assert(sizeof(struct compat_hyperloop_operation) == 96, "operation");
_Static_assert(offsetof(struct compat_hyperloop_operation, op) == 8, "operation");
_Static_assert(offsetof(struct compat_hyperloop_gcas, execute_map) == 24, "gCAS");
_Static_assert(sizeof(struct compat_hyperloop_gmemcpy) == 24, "gMEMCPY");

static struct compat_hyperloop_operation gmemcpy(uint64_t from, uint64_t to, uint64_t size)
{
	struct compat_hyperloop_operation op = {.type = OPERATION_TYPE_GMEMCPY, .op = {.gMemcpy = {from, to, size}}};
	return op;
}

static struct compat_hyperloop_operation gflush(uint64_t offset, uint64_t size)
{
	struct compat_hyperloop_operation op = {.type = OPERATION_TYPE_GFLUSH, .op = {.gFlush = {offset, size}}};
	return op;
}

int main(int argc, char **argv)
{
	(void)argc;
	const char *to = argv[1];
	static char buffer[4096];
	REFUSED(compat_hyperclient_connect(NULL, 1, NULL, buffer, 64), NULL, EFAULT);
	REFUSED(compat_hyperclient_connect(NULL, 1, to, NULL, 64), NULL, EFAULT);
	REFUSED(compat_hyperclient_connect(NULL, 1, to, buffer, 0), NULL, EINVAL);
	REFUSED(compat_hyperclient_connect(NULL, 2, to, buffer, 64), NULL, EINVAL);
	REFUSED(compat_hyperclient_connect("mlx5_77", 1, to, buffer, 64), NULL, ENODEV);
	REFUSED(compat_hyperclient_connect(NULL, 1, "nonsense", buffer, 64), NULL, EINVAL);
	// Port 1 is reserved for a service that no host has.
	REFUSED(compat_hyperclient_connect(NULL, 1, "127.0.0.1:1", buffer, 64), NULL, ECONNREFUSED);

	memset(buffer, 0x5a, sizeof buffer);
	struct compat_hyperclient *client = join(to, buffer, sizeof buffer);
	struct compat_hyperloop_operation odd = gwrite(0, 8);
	odd.type = 9;
	const struct compat_hyperloop_operation bad[] = {
		odd,
		gwrite(0, 0),
		gwrite(sizeof buffer - 7, 8),
		gwrite(UINT64_MAX, 2),
		gwrite(0, UINT64_MAX),
		gmemcpy(0, 8, 0),
		gmemcpy(REGION - 7, 0, 8),
		gmemcpy(0, REGION - 7, 8),
		gmemcpy(0, 4, 8),
		gcas(4, 0, 1, 1),
		gcas(REGION, 0, 1, 1),
		gcas(0, 0, 1, 8),
		gflush(REGION - 7, 8),
		gflush(0, 0),
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		// The first one is valid, and is not sent either.
		const struct compat_hyperloop_operation ops[2] = {gwrite(1024, 64), bad[i]};
		REFUSED(compat_hyperclient_do_operations(client, ops, 2, 1), COMPAT_HYPERCLIENT_FAILED, EINVAL);
	}
	uint64_t values[64];
	words(client, 1024, values);
	CHECK(values[0] == 0 && values[1] == 0 && values[2] == 0);

	const struct compat_hyperloop_operation good = gwrite(0, 8);
	REFUSED(compat_hyperclient_do_operations(client, &good, 1, 0), COMPAT_HYPERCLIENT_FAILED, EINVAL);
	REFUSED(compat_hyperclient_do_operations(client, NULL, 1, 1), COMPAT_HYPERCLIENT_FAILED, EFAULT);
	CHECK(compat_hyperclient_do_operations(client, NULL, 0, 1) != COMPAT_HYPERCLIENT_FAILED);
	errno = ENOTTY;
	CHECK(compat_hyperclient_do_operations(client, &good, 1, 5000) != COMPAT_HYPERCLIENT_FAILED && errno == ENOTTY);
	REFUSED(compat_hyperclient_result(client, 0, values), -1, EINVAL);
	REFUSED(compat_hyperclient_result(client, 0, NULL), -1, EFAULT);
	REFUSED(compat_hyperclient_send_print_buffer(client, REGION, 1), -1, EINVAL);
	REFUSED(compat_hyperclient_send_print_buffer(client, 0, 0), -1, EINVAL);
	struct compat_hyperloop_operation undo;
	REFUSED(compat_hyperclient_undo(client, &good, values, &undo), -1, EINVAL);
	REFUSED(compat_hyperclient_undo(client, NULL, values, &undo), -1, EFAULT);

	pid_t child = fork();
	if (child == 0)
		_exit(compat_hyperclient_replicas(client) == -1 && errno == EBADF ? 0 : 1);
	int status = 1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);

	CHECK(compat_hyperclient_destory(client) == 0);
	REFUSED(compat_hyperclient_destroy(client), -1, EINVAL);
	REFUSED(compat_hyperclient_do_operations(client, &good, 1, 1), COMPAT_HYPERCLIENT_FAILED, EINVAL);
	REFUSED(compat_hyperclient_use_notify(client, 1), -1, EINVAL);
	REFUSED(compat_hyperclient_replicas(NULL), -1, EINVAL);
	REFUSED(compat_hyperclient_region_size(NULL), -1, EINVAL);
	return 0;
}
