// Untagged messages: their order, their sizes, and buffers that are posted on several sockets.
#include "common.h"

#define LONG 3000000

static const size_t SIZES[] = {0, 1, 3, 1423, 1424, 1425, 100000, LONG};
#define COUNT (sizeof SIZES / sizeof *SIZES)

static void order_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	unsigned char *buffers[COUNT];
	for (size_t i = 0; i < COUNT; i++) {
		CHECK((buffers[i] = malloc(LONG)));
		CHECK(ddp_post_recv(s, buffers[i], LONG) == 0);
	}
	tell(w);
	for (size_t i = 0; i < COUNT; i++) {
		MESSAGE(s, buffers[i], SIZES[i]);
		CHECK(is_filled(buffers[i], SIZES[i], (unsigned)i));
		free(buffers[i]);
	}
	struct ddp_indication came;
	CHECK(ddp_recv(s, &came) == 0);
	CHECK(ddp_recv(s, &came) == 0);
	REFUSED(ddp_send(s, "x", 1), -1, EPIPE);
	CHECK(ddp_close(s) == 0);
}

static void order_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	unsigned char *bytes = malloc(LONG);
	CHECK(bytes && told(w));
	for (size_t i = 0; i < COUNT; i++) {
		fill(bytes, SIZES[i], (unsigned)i);
		CHECK(softrnic_rdma_send(s, bytes, SIZES[i]) == 0);
		// The message is sent from a copy, or TCP has it.
		memset(bytes, 0xff, SIZES[i]);
	}
	CHECK(ddp_close(s) == 0);
	free(bytes);
}

static void echo_accepts(struct world *w)
{
	struct ddp_options terms = {.flags = DDP_NO_CRC | DDP_MARKERS, .reads = 4, .segment = 9000, .timeout = 40000};
	struct ddp_socket *s = ddp_accept(w->listener, &terms);
	unsigned char *bytes = malloc(100000);
	CHECK(s && bytes && softrnic_rdma_post_recv(s, bytes, 100000) == 0);
	struct ddp_msizes sizes;
	CHECK(ddp_max_msizes(s, &sizes) == 0 && sizes.tagged == sizes.untagged + 4 && sizes.tagged > 8900);
	tell(w);
	MESSAGE(s, bytes, 77777);
	CHECK(ddp_send(s, bytes, 77777) == 0);
	struct ddp_indication came;
	CHECK(softrnic_rdma_recv(s, &came) == 0);
	CHECK(ddp_close(s) == 0);
	free(bytes);
}

static void echo_connects(struct world *w)
{
	struct ddp_options terms = {.flags = DDP_NO_CRC, .reads = 2};
	struct ddp_socket *s = ddp_connect(w->place, &terms);
	unsigned char *bytes = malloc(100000), *back = calloc(1, 100000);
	CHECK(s && bytes && back && ddp_post_recv(s, back, 100000) == 0 && told(w));
	fill(bytes, 77777, 5);
	CHECK(ddp_send(s, bytes, 77777) == 0);
	MESSAGE(s, back, 77777);
	CHECK(is_filled(back, 77777, 5));
	CHECK(ddp_close(s) == 0);
	free(bytes), free(back);
}

// One buffer on two sockets: a message on either takes it from both.
static void shared_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w), *t = accepted(w);
	char both[16], only[16];
	CHECK(ddp_post_recv(s, both, 16) == 0 && ddp_post_recv(t, both, 16) == 0 && ddp_post_recv(t, only, 16) == 0);
	// While it is posted, it has one length.
	REFUSED(ddp_post_recv(t, both, 8), -1, EBUSY);
	tell(w);
	MESSAGE(s, both, 5);
	CHECK(memcmp(both, "first", 5) == 0);
	tell(w);
	MESSAGE(t, only, 6);
	CHECK(memcmp(both, "first", 5) == 0 && memcmp(only, "second", 6) == 0);
	// Posted again, with another length, it takes a message again, on the other socket.
	CHECK(ddp_post_recv(t, both, 8) == 0);
	tell(w);
	MESSAGE(t, both, 5);
	CHECK(memcmp(both, "third", 5) == 0);
	CHECK(ddp_close(s) == 0 && ddp_close(t) == 0);
}

static void shared_connects(struct world *w)
{
	struct ddp_socket *s = connected(w), *t = connected(w);
	CHECK(told(w) && ddp_send(s, "first", 5) == 0);
	CHECK(told(w) && ddp_send(t, "second", 6) == 0);
	CHECK(told(w) && ddp_send(t, "third", 5) == 0);
	struct ddp_indication came;
	CHECK(ddp_recv(t, &came) == 0);
	CHECK(ddp_close(s) == 0 && ddp_close(t) == 0);
}

// A buffer that is posted twice on one socket takes one message: the next one finds none.
static void twice_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	char bytes[8];
	CHECK(ddp_post_recv(s, bytes, 8) == 0 && ddp_post_recv(s, bytes, 8) == 0);
	tell(w);
	MESSAGE(s, bytes, 3);
	ENDS(s, EPROTO, "no buffer");
	CHECK(ddp_close(s) == 0);
}

static void twice_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	CHECK(told(w) && ddp_send(s, "one", 3) == 0 && ddp_send(s, "two", 3) == 0);
	ENDS(s, EREMOTEIO, "no buffer");
	CHECK(ddp_close(s) == 0);
}

// A socket that is closed gives its buffers back.
static void closed_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w), *t = accepted(w);
	char bytes[8];
	CHECK(ddp_post_recv(s, bytes, 8) == 0);
	CHECK(ddp_close(s) == 0);
	CHECK(ddp_post_recv(t, bytes, 4) == 0);
	tell(w);
	MESSAGE(t, bytes, 4);
	CHECK(ddp_close(t) == 0);
}

static void closed_connects(struct world *w)
{
	struct ddp_socket *s = connected(w), *t = connected(w);
	CHECK(told(w) && ddp_send(t, "four", 4) == 0);
	struct ddp_indication came;
	CHECK(ddp_recv(t, &came) == 0 && ddp_close(s) == 0 && ddp_close(t) == 0);
}

static const struct test_case CASES[] = {
	{"messages in the order of their buffers", order_accepts, order_connects},
	{"terms of each side, and an echo", echo_accepts, echo_connects},
	{"a buffer on two sockets", shared_accepts, shared_connects},
	{"a buffer twice on one socket", twice_accepts, twice_connects},
	{"buffers of a closed socket", closed_accepts, closed_connects},
};

RUN(CASES, 0)
