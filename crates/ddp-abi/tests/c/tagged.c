// Tagged messages, their notices, and READs.
#include "common.h"

#define SIZE 200000

static void write_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	unsigned char *bytes = calloc(1, SIZE);
	uint32_t tag;
	CHECK(bytes && ddp_register(s, bytes, SIZE, &tag) == 0 && tag > 1);
	give(w, tag);
	NOTICE(s, tag, UINT64_MAX);
	CHECK(is_filled(bytes + 1000, 150000, 1) && bytes[999] == 0 && bytes[151000] == 0);
	NOTICE(s, tag, 3);
	CHECK(is_filled(bytes + SIZE - 10, 10, 2));
	CHECK(ddp_deregister(s, tag) == 0);
	REFUSED(ddp_deregister(s, tag), -1, EINVAL);
	CHECK(ddp_close(s) == 0);
	free(bytes);
}

static void write_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	unsigned char *bytes = malloc(SIZE);
	struct ddp_address to = {.tag = (uint32_t)take(w), .offset = 1000};
	const uint64_t last = UINT64_MAX, three = 3;
	CHECK(bytes);
	fill(bytes, 150000, 1);
	CHECK(ddp_send_ddp(s, bytes, 150000, &to, &last) == 0);
	fill(bytes, 10, 2);
	to.offset = SIZE - 10;
	CHECK(softrnic_rdma_write(s, bytes, 10, &to, NULL) == 0);
	// No bytes and no notice is nothing. The place of a message of no bytes is not looked at.
	to.offset = SIZE + 10;
	CHECK(ddp_send_ddp(s, NULL, 0, &to, NULL) == 0 && ddp_send_ddp(s, NULL, 0, &to, &three) == 0);
	struct ddp_indication came;
	CHECK(ddp_recv(s, &came) == 0 && ddp_close(s) == 0);
	free(bytes);
}

// A READ, while the peer's program only waits for messages.
static void read_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	unsigned char *bytes = malloc(SIZE);
	uint32_t tag;
	CHECK(bytes);
	fill(bytes, SIZE, 3);
	CHECK(softrnic_rdma_register(s, bytes, SIZE, DDP_READ, &tag) == 0);
	give(w, tag);
	struct ddp_indication came;
	CHECK(ddp_recv(s, &came) == 0 && ddp_close(s) == 0);
	free(bytes);
}

static void read_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	unsigned char *bytes = calloc(1, SIZE), *expected = malloc(SIZE);
	uint32_t tag;
	CHECK(bytes && expected && softrnic_rdma_register(s, bytes, SIZE, DDP_WRITE, &tag) == 0);
	struct ddp_address from = {.tag = (uint32_t)take(w), .offset = 100}, to = {.tag = tag, .offset = 50};
	CHECK(softrnic_rdma_read(s, &from, SIZE - 100, &to) == 0);
	fill(expected, SIZE, 3);
	CHECK(memcmp(bytes + 50, expected + 100, SIZE - 100) == 0 && bytes[49] == 0 && bytes[SIZE - 50] == 0);
	CHECK(softrnic_rdma_read(s, &from, 0, &to) == 0);
	// Places of this side are looked at before anything is sent.
	REFUSED(softrnic_rdma_read(s, &from, SIZE - 49, &to), -1, EINVAL);
	to.tag ^= 1;
	REFUSED(softrnic_rdma_read(s, &from, 1, &to), -1, EINVAL);
	CHECK(softrnic_rdma_deregister(s, tag) == 0);
	to.tag = tag;
	REFUSED(softrnic_rdma_read(s, &from, 1, &to), -1, EINVAL);
	CHECK(ddp_close(s) == 0);
	free(bytes), free(expected);
}

// The READ of the interface's first description: the sink registers, and the source writes.
static void source_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	struct ddp_address to;
	CHECK(ddp_post_recv(s, &to, sizeof to) == 0);
	tell(w);
	MESSAGE(s, &to, sizeof to);
	const uint64_t id = 9;
	CHECK(softrnic_rdma_write(s, "the source", 10, &to, &id) == 0);
	struct ddp_indication came;
	CHECK(ddp_recv(s, &came) == 0 && ddp_close(s) == 0);
}

static void source_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	char sink[16] = "";
	struct ddp_address at = {0};
	CHECK(ddp_register(s, sink, sizeof sink, &at.tag) == 0 && told(w));
	at.offset = 2;
	CHECK(ddp_send(s, &at, sizeof at) == 0);
	NOTICE(s, at.tag, 9);
	CHECK(memcmp(sink, "\0\0the source", 12) == 0);
	CHECK(ddp_close(s) == 0);
}

// One buffer, registered on two sockets, with overlapping parts.
static void parts_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w), *t = accepted(w);
	char bytes[10] = "..........";
	uint32_t one, two;
	CHECK(ddp_register(s, bytes, 6, &one) == 0 && ddp_register(t, bytes + 4, 6, &two) == 0);
	give(w, one), give(w, two);
	NOTICE(s, one, 1);
	tell(w);
	NOTICE(t, two, 2);
	CHECK(memcmp(bytes, "aaaabbbbbb", 10) == 0);
	CHECK(ddp_close(s) == 0 && ddp_close(t) == 0);
}

static void parts_connects(struct world *w)
{
	struct ddp_socket *s = connected(w), *t = connected(w);
	struct ddp_address one = {.tag = (uint32_t)take(w)}, two = {.tag = (uint32_t)take(w)};
	const uint64_t first = 1, second = 2;
	CHECK(ddp_send_ddp(s, "aaaaaa", 6, &one, &first) == 0 && told(w));
	CHECK(ddp_send_ddp(t, "bbbbbb", 6, &two, &second) == 0);
	struct ddp_indication came;
	CHECK(ddp_recv(t, &came) == 0 && ddp_close(s) == 0 && ddp_close(t) == 0);
}

static const struct test_case CASES[] = {
	{"tagged messages and their notices", write_accepts, write_connects},
	{"READ", read_accepts, read_connects},
	{"a READ that the source writes", source_accepts, source_connects},
	{"parts of one buffer on two sockets", parts_accepts, parts_connects},
};

RUN(CASES, 0)
