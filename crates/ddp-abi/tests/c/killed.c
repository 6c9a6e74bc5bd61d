// Peers that are killed, silent, or do not speak the protocol.
#include "common.h"

static void killed_accepts(struct world *w)
{
	struct ddp_socket *s = accepted(w);
	static char bytes[100];
	CHECK(ddp_post_recv(s, bytes, sizeof bytes) == 0);
	tell(w);
	MESSAGE(s, bytes, 4);
	CHECK(kill(w->connector, SIGKILL) == 0);
	// Its kernel closes the connection: in order, or by a reset if bytes of this side were not read.
	struct ddp_indication came;
	int end = ddp_recv(s, &came);
	CHECK(end == 0 || (end == -1 && errno == ECONNRESET));
	static char much[1 << 20];
	int result = 0;
	while (result == 0)
		result = ddp_send(s, much, sizeof much);
	CHECK(errno == EPIPE || errno == ECONNRESET);
	CHECK(ddp_close(s) == 0);
}

static void killed_connects(struct world *w)
{
	struct ddp_socket *s = connected(w);
	CHECK(told(w) && ddp_send(s, "gone", 4) == 0);
	// The kill is all that ends this.
	told(w);
	for (;;)
		pause();
}

// A peer that stops reading: the call ends after its time.
static void deaf_accepts(struct world *w)
{
	struct ddp_options terms = {.timeout = 300};
	struct ddp_socket *s;
	// The time is that of the start, too, which may be over on a machine that has much to do.
	while (!(s = ddp_accept(w->listener, &terms)))
		CHECK(errno == ETIMEDOUT || errno == EPIPE || errno == ECONNRESET);
	struct ddp_indication came;
	REFUSED(ddp_recv(s, &came), -1, ETIMEDOUT);
	static char much[1 << 20];
	int result = 0;
	while (result == 0)
		result = ddp_send(s, much, sizeof much);
	CHECK(errno == ETIMEDOUT);
	tell(w);
	CHECK(ddp_close(s) == 0);
}

static void deaf_connects(struct world *w)
{
	struct ddp_socket *s;
	while (!(s = ddp_connect(w->place, NULL)))
		CHECK(errno == EPROTO || errno == ECONNRESET || errno == EPIPE);
	CHECK(told(w) && ddp_close(s) == 0);
}

// A peer that speaks another protocol, one that says nothing, and one that closes at once.
static void stranger_accepts(struct world *w)
{
	struct ddp_options brief = {.timeout = 300};
	REFUSED(ddp_accept(w->listener, NULL), NULL, EPROTO);
	REFUSED(ddp_accept(w->listener, &brief), NULL, ETIMEDOUT);
	REFUSED(ddp_accept(w->listener, NULL), NULL, EPROTO);
	tell(w);
}

static int plain(struct world *w)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	to.sin_port = htons((uint16_t)atoi(strchr(w->place, ':') + 1));
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
	return fd;
}

static void stranger_connects(struct world *w)
{
	const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
	int web = plain(w), silent, hasty;
	CHECK(write(web, request, sizeof request - 1) == sizeof request - 1);
	silent = plain(w);
	hasty = plain(w);
	close(hasty);
	told(w);
	close(web), close(silent);
}

static const struct test_case CASES[] = {
	{"a killed peer", killed_accepts, killed_connects},
	{"a peer that does not read", deaf_accepts, deaf_connects},
	{"peers of other protocols", stranger_accepts, stranger_connects},
};

RUN(CASES, SIGKILL)
