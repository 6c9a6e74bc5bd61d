// Layouts of the structures, and every argument that is refused.
#include "common.h"

_Static_assert(sizeof(struct ddp_options) == 16, "options");
_Static_assert(sizeof(struct ddp_msizes) == 16, "sizes");
_Static_assert(sizeof(struct ddp_address) == 16 && offsetof(struct ddp_address, offset) == 8, "address");
_Static_assert(sizeof(struct ddp_indication) == 40, "indication");
_Static_assert(offsetof(struct ddp_indication, buffer) == 8, "indication");
_Static_assert(offsetof(struct ddp_indication, length) == 16, "indication");
_Static_assert(offsetof(struct ddp_indication, id) == 24, "indication");
_Static_assert(offsetof(struct ddp_indication, tag) == 32, "indication");

static void starts(struct world *w)
{
	REFUSED(ddp_connect(NULL, NULL), NULL, EFAULT);
	REFUSED(ddp_connect("nonsense", NULL), NULL, EINVAL);
	REFUSED(ddp_connect("127.0.0.1:99999", NULL), NULL, EINVAL);
	REFUSED(ddp_connect("\xff\xfe:1", NULL), NULL, EINVAL);
	// Port 1 is reserved for a service that no host has.
	REFUSED(ddp_connect("127.0.0.1:1", NULL), NULL, ECONNREFUSED);
	const struct ddp_options bad[] = {
		{.flags = 4}, {.flags = UINT32_MAX}, {.reads = 256}, {.segment = 511}, {.segment = 65536},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		REFUSED(ddp_connect(w->place, &bad[i]), NULL, EINVAL);
		REFUSED(ddp_accept(w->listener, &bad[i]), NULL, EINVAL);
	}
	REFUSED(ddp_accept(-1, NULL), NULL, EBADF);
	REFUSED(ddp_accept(1000, NULL), NULL, EBADF);
	REFUSED(ddp_accept(w->to_other, NULL), NULL, ENOTSOCK);
	REFUSED(ddp_listen(NULL), -1, EFAULT);
	REFUSED(ddp_listen("nonsense"), -1, EINVAL);
	REFUSED(ddp_listen(w->place), -1, EADDRINUSE);
	int any = ddp_listen("[::]:0");
	if (any < 0)
		any = ddp_listen("127.0.0.1:0");
	CHECK(any >= 0 && close(any) == 0);
}

// All calls with a number that is no socket.
static void no_socket(struct ddp_socket *s)
{
	char bytes[8] = "";
	uint32_t tag;
	const struct ddp_address at = {0};
	struct ddp_indication came;
	struct ddp_msizes sizes;
	REFUSED(ddp_send(s, bytes, 8), -1, EINVAL);
	REFUSED(softrnic_rdma_send(s, bytes, 8), -1, EINVAL);
	REFUSED(ddp_send_ddp(s, bytes, 8, &at, NULL), -1, EINVAL);
	REFUSED(softrnic_rdma_write(s, bytes, 8, &at, NULL), -1, EINVAL);
	REFUSED(softrnic_rdma_read(s, &at, 8, &at), -1, EINVAL);
	REFUSED(ddp_post_recv(s, bytes, 8), -1, EINVAL);
	REFUSED(softrnic_rdma_post_recv(s, bytes, 8), -1, EINVAL);
	REFUSED(ddp_recv(s, &came), -1, EINVAL);
	REFUSED(softrnic_rdma_recv(s, &came), -1, EINVAL);
	REFUSED(ddp_register(s, bytes, 8, &tag), -1, EINVAL);
	REFUSED(softrnic_rdma_register(s, bytes, 8, DDP_READ, &tag), -1, EINVAL);
	REFUSED(ddp_deregister(s, 2), -1, EINVAL);
	REFUSED(softrnic_rdma_deregister(s, 2), -1, EINVAL);
	REFUSED(ddp_max_msizes(s, &sizes), -1, EINVAL);
	REFUSED(softrnic_rdma_max_msizes(s, &sizes), -1, EINVAL);
	REFUSED(ddp_close(s), -1, EINVAL);
}

static void arguments_accepts(struct world *w)
{
	starts(w);
	no_socket(NULL);
	struct ddp_socket *s = accepted(w);
	char bytes[8] = "";
	uint32_t tag;
	const struct ddp_address at = {0};
	const size_t huge = (size_t)1 << 32;
	REFUSED(ddp_send(s, NULL, 1), -1, EFAULT);
	REFUSED(ddp_send(s, bytes, huge), -1, EMSGSIZE);
	REFUSED(ddp_send(s, bytes, SIZE_MAX), -1, EMSGSIZE);
	REFUSED(ddp_send_ddp(s, bytes, 8, NULL, NULL), -1, EFAULT);
	REFUSED(ddp_send_ddp(s, NULL, 8, &at, NULL), -1, EFAULT);
	REFUSED(ddp_send_ddp(s, bytes, huge, &at, NULL), -1, EMSGSIZE);
	REFUSED(softrnic_rdma_read(s, NULL, 8, &at), -1, EFAULT);
	REFUSED(softrnic_rdma_read(s, &at, 8, NULL), -1, EFAULT);
	REFUSED(softrnic_rdma_read(s, &at, 8, &at), -1, EINVAL);
	REFUSED(ddp_post_recv(s, NULL, 8), -1, EFAULT);
	REFUSED(ddp_post_recv(s, bytes, SIZE_MAX), -1, EINVAL);
	REFUSED(ddp_recv(s, NULL), -1, EFAULT);
	REFUSED(ddp_register(s, NULL, 8, &tag), -1, EFAULT);
	REFUSED(ddp_register(s, bytes, 8, NULL), -1, EFAULT);
	REFUSED(ddp_register(s, bytes, SIZE_MAX, &tag), -1, EINVAL);
	REFUSED(softrnic_rdma_register(s, bytes, 8, 0, &tag), -1, EINVAL);
	REFUSED(softrnic_rdma_register(s, bytes, 8, 4, &tag), -1, EINVAL);
	REFUSED(ddp_deregister(s, 0), -1, EINVAL);
	REFUSED(ddp_max_msizes(s, NULL), -1, EFAULT);

	// A call that succeeds leaves errno as it was; both names of a call are one.
	errno = ENOTTY;
	struct ddp_msizes sizes, same;
	CHECK(ddp_max_msizes(s, &sizes) == 0 && softrnic_rdma_max_msizes(s, &same) == 0 && errno == ENOTTY);
	CHECK(sizes.untagged == 1424 && sizes.tagged == 1428 && same.tagged == 1428);
	CHECK(ddp_register(s, NULL, 0, &tag) == 0 && ddp_deregister(s, tag) == 0);

	pid_t child = fork();
	if (child == 0)
		_exit(ddp_max_msizes(s, &sizes) == -1 && errno == EBADF ? 0 : 1);
	int status = 1;
	CHECK(waitpid(child, &status, 0) == child && status == 0);

	CHECK(ddp_close(s) == 0);
	no_socket(s);
}

static void arguments_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	struct ddp_indication came;
	CHECK(ddp_recv(s, &came) == 0 && ddp_close(s) == 0);
}

static const struct test_case CASES[] = {
	{"arguments", arguments_accepts, arguments_connects},
};

RUN(CASES, 0)
