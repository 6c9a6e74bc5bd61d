// Messages that break a rule: both sides get to know which, and no byte is placed.
#include "common.h"

static unsigned char memory[4096];

// The side that has the memory: it ends by an error of this text. The registration is of bytes 1000 to 1999.
static void victim(struct world *w, int mode, int ends_first, const char *text)
{
	struct ddp_socket *s = accepted(w);
	uint32_t tag;
	CHECK(softrnic_rdma_register(s, memory + 1000, 1000, mode, &tag) == 0);
	if (ends_first)
		CHECK(ddp_deregister(s, tag) == 0);
	give(w, tag);
	ENDS(s, EPROTO, text);
	for (size_t i = 0; i < sizeof memory; i++)
		CHECK(memory[i] == 0);
	// The error stays.
	ENDS(s, EPROTO, text);
	REFUSED(ddp_send(s, "x", 1), -1, EPROTO);
	CHECK(ddp_close(s) == 0);
}

static void invalid_accepts(struct world *w) { victim(w, DDP_WRITE, 0, "tagged: invalid"); }
static void stale_accepts(struct world *w) { victim(w, DDP_WRITE, 1, "tagged: invalid"); }
static void bounds_accepts(struct world *w) { victim(w, DDP_WRITE, 0, "tagged: out of bounds"); }
static void right_accepts(struct world *w) { victim(w, DDP_READ, 0, "tagged: invalid"); }
static void read_right_accepts(struct world *w) { victim(w, DDP_WRITE, 0, "READ: no right"); }
static void read_bounds_accepts(struct world *w) { victim(w, DDP_READ, 0, "READ: out of bounds"); }
static void read_stale_accepts(struct world *w) { victim(w, DDP_READ, 1, "invalidation: invalid"); }

static void writes(struct world *w, uint32_t other, uint64_t offset, size_t length, const char *text)
{
	struct ddp_socket *s = connected(w);
	struct ddp_address to = {.tag = (uint32_t)take(w) ^ other, .offset = offset};
	static const unsigned char ones[4096] = {1, 1, 1};
	// The message is sent, and the peer finds the error later.
	CHECK(ddp_send_ddp(s, ones, length, &to, NULL) == 0);
	ENDS(s, EREMOTEIO, text);
	CHECK(ddp_close(s) == 0);
}

static void invalid_connects(struct world *w) { writes(w, 0x5a5a, 0, 8, "tagged: invalid"); }
static void stale_connects(struct world *w) { writes(w, 0, 0, 8, "tagged: invalid"); }
static void bounds_connects(struct world *w) { writes(w, 0, 993, 8, "tagged: out of bounds"); }
static void far_connects(struct world *w) { writes(w, 0, UINT64_MAX / 2, 8, "tagged: out of bounds"); }
static void right_connects(struct world *w) { writes(w, 0, 0, 8, "tagged: invalid"); }

static void reads(struct world *w, uint64_t offset, size_t length, const char *text)
{
	struct ddp_socket *s = connected(w);
	static unsigned char sink[4096];
	struct ddp_address from = {.tag = (uint32_t)take(w), .offset = offset}, to = {0};
	CHECK(ddp_register(s, sink, sizeof sink, &to.tag) == 0);
	REFUSED(softrnic_rdma_read(s, &from, length, &to), -1, EREMOTEIO);
	CHECK(strstr(ddp_error(), text) && sink[0] == 0);
	CHECK(ddp_close(s) == 0);
}

static void read_right_connects(struct world *w) { reads(w, 0, 8, "READ: no right"); }
static void read_bounds_connects(struct world *w) { reads(w, 0, 1001, "READ: out of bounds"); }
static void read_stale_connects(struct world *w) { reads(w, 0, 8, "invalidation: invalid"); }

// A tag of one connection is none on another, even to the same peer.
static void other_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w), *t = accepted(w);
	uint32_t tag;
	CHECK(ddp_register(s, memory, 100, &tag) == 0);
	give(w, tag);
	ENDS(t, EPROTO, "tagged: invalid");
	CHECK(memory[0] == 0);
	// The other connection is unharmed.
	tell(w);
	NOTICE(s, tag, 1);
	CHECK(memory[0] == 'x');
	CHECK(ddp_close(s) == 0 && ddp_close(t) == 0);
}

static void other_connects(struct world *w)
{
	struct ddp_socket *s = connected(w), *t = connected(w);
	struct ddp_address to = {.tag = (uint32_t)take(w)};
	const uint64_t id = 1;
	CHECK(ddp_send_ddp(t, "y", 1, &to, NULL) == 0);
	ENDS(t, EREMOTEIO, "tagged: invalid");
	CHECK(told(w) && ddp_send_ddp(s, "x", 1, &to, &id) == 0);
	struct ddp_indication came;
	CHECK(ddp_recv(s, &came) == 0);
	CHECK(ddp_close(s) == 0 && ddp_close(t) == 0);
}

// A message that is longer than the posted buffer by one.
static void longer_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	CHECK(ddp_post_recv(s, memory, 2000) == 0);
	tell(w);
	ENDS(s, EPROTO, "too long");
	CHECK(memory[2000] == 0 && ddp_close(s) == 0);
	// The buffer is the program's again.
	struct ddp_socket *t = accepted(w);
	CHECK(ddp_post_recv(t, memory, 2000) == 0);
	tell(w);
	MESSAGE(t, memory, 2000);
	CHECK(ddp_close(t) == 0);
}

static void longer_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	static const unsigned char bytes[2001] = {1};
	CHECK(told(w) && ddp_send(s, bytes, 2001) == 0);
	ENDS(s, EREMOTEIO, "too long");
	CHECK(ddp_close(s) == 0);
	s = connected(w);
	CHECK(told(w) && ddp_send(s, bytes, 2000) == 0 && ddp_close(s) == 0);
}

// No posted buffer.
static void none_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	ENDS(s, EPROTO, "no buffer");
	CHECK(ddp_close(s) == 0);
}

static void none_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	CHECK(ddp_send(s, "x", 1) == 0);
	ENDS(s, EREMOTEIO, "no buffer");
	CHECK(ddp_close(s) == 0);
}

static const struct test_case CASES[] = {
	{"a tag that is none", invalid_accepts, invalid_connects},
	{"a stale tag", stale_accepts, stale_connects},
	{"one byte beyond a registration", bounds_accepts, bounds_connects},
	{"an offset far away", bounds_accepts, far_connects},
	{"a write without the right", right_accepts, right_connects},
	{"a READ without the right", read_right_accepts, read_right_connects},
	{"a READ of one byte too many", read_bounds_accepts, read_bounds_connects},
	{"a READ of a stale tag", read_stale_accepts, read_stale_connects},
	{"a tag of another connection", other_accepts, other_connects},
	{"a message longer than its buffer", longer_accepts, longer_connects},
	{"a message without a buffer", none_accepts, none_connects},
};

RUN(CASES, 0)
