// Connections: several accepts, addresses, IPv6, refusals, closing at any time.
#include "common.h"

static void waits_packet(int port)
{
	wait_for_end(SOCK_SEQPACKET, port);
}

static void waits_stream(int port)
{
	wait_for_end(SOCK_STREAM, port);
}

// Two connections at once, by events.
static void twice(int port)
{
	struct sockaddr_in to = at_port(port);
	exs_qhandle_t queue = queue_of(4);
	int fds[2];
	char byte;
	for (int i = 0; i < 2; i++) {
		fds[i] = exs_socket(AF_INET, SOCK_SEQPACKET, 0);
		EQUALS(exs_connect(fds[i], (struct sockaddr *)&to, sizeof to, 0, queue, i), 0);
		// Nothing can be sent before the event is taken.
		REFUSED(exs_send(fds[i], &byte, 1, 0, queue, 0, LOOSE), ENOTCONN);
		REFUSED(exs_connect(fds[i], (struct sockaddr *)&to, sizeof to, 0, queue, i), EALREADY);
	}
	for (int left = 2; left > 0; left--) {
		exs_event_t event = next_event(queue);
		EQUALS(event.exs_evt_type, EXS_EVT_CONNECT);
		EQUALS(event.exs_evt_errno, 0);
		EQUALS(event.exs_evt_fd, fds[event.exs_evt_ahandle]);
	}
	for (int i = 0; i < 2; i++) {
		struct sockaddr_in peer = {0};
		socklen_t len = sizeof peer;
		EQUALS(exs_getpeername(fds[i], (struct sockaddr *)&peer, &len), 0);
		EQUALS(ntohs(peer.sin_port), port);
		EQUALS(exs_recv(fds[i], &byte, 1, 0, SYNC, LOOSE), 0);
		EQUALS(exs_close(fds[i], queue, 5 + i), 0);
		EVENT(queue, EXS_EVT_CLOSE, 5 + i, 0);
	}
	EQUALS(exs_qdelete(queue), 0);
}

static void six(int port)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = exs_socket(AF_INET6, SOCK_STREAM, 0);
	char byte;
	EQUALS(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, SYNC), 0);
	EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	closed(fd);
}

const struct part PARTS[] = {
    {"packet", waits_packet}, {"stream", waits_stream}, {"twice", twice}, {"six", six}, {NULL, NULL}};

static void several(exs_qhandle_t queue)
{
	struct sockaddr_in local[2], remote[2];
	exs_acceptaddr_t addresses[2];
	int from = listener(SOCK_SEQPACKET), fds[2];
	for (int i = 0; i < 2; i++) {
		addresses[i] = (exs_acceptaddr_t){(struct sockaddr *)(local + i), sizeof *local, sizeof *remote,
						  (struct sockaddr *)(remote + i)};
		EQUALS(exs_accept(from, addresses + i, 0, queue, i), 0);
	}
	struct peer *peer = start("twice", port_of(from));
	for (int i = 0; i < 2; i++) {
		// In the order in which they were posted.
		exs_event_t event = EVENT(queue, EXS_EVT_ACCEPT, i, 0);
		EQUALS(event.exs_evt_fd, from);
		fds[i] = event.exs_evt_newfd;
		CHECK(fds[i] >= 0);
		EQUALS(addresses[i].exs_aa_peerlen, sizeof *remote);
		EQUALS(local[i].sin_port, htons(port_of(from)));
		EQUALS(remote[i].sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	}
	CHECK(remote[0].sin_port != remote[1].sin_port);
	for (int i = 0; i < 2; i++)
		closed(fds[i]);
	finish(peer);
	closed(from);
}

static void version_six(exs_qhandle_t queue)
{
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT}, peer;
	int from = exs_socket(AF_INET6, SOCK_STREAM, 0);
	if (exs_bind(from, (struct sockaddr *)&at, sizeof at) && errno == EADDRNOTAVAIL) {
		// A host without IPv6.
		closed(from);
		return;
	}
	exs_acceptaddr_t addresses = {.exs_aa_peer = (struct sockaddr *)&peer, .exs_aa_peerlen = sizeof peer};
	socklen_t len = sizeof at;
	EQUALS(exs_listen(from, 1), 0);
	EQUALS(exs_getsockname(from, (struct sockaddr *)&at, &len), 0);
	EQUALS(len, sizeof at);
	EQUALS(exs_accept(from, &addresses, 0, queue, 1), 0);
	struct peer *other = start("six", ntohs(at.sin6_port));
	int fd = EVENT(queue, EXS_EVT_ACCEPT, 1, 0).exs_evt_newfd;
	EQUALS(peer.sin6_family, AF_INET6);
	CHECK(!memcmp(&peer.sin6_addr, &in6addr_loopback, sizeof in6addr_loopback));
	EQUALS(exs_send(fd, "x", 1, 0, SYNC, LOOSE), 1);
	finish(other);
	closed(fd);
	closed(from);
}

static void refused(exs_qhandle_t queue)
{
	// Nothing listens there, and nothing else can take the port.
	int from, bound = exs_socket(AF_INET, SOCK_STREAM, 0), value;
	struct sockaddr_in to = at_port(0);
	socklen_t len = sizeof value;
	EQUALS(exs_bind(bound, (struct sockaddr *)&to, sizeof to), 0);
	to = at_port(port_of(bound));
	int fd = exs_socket(AF_INET, SOCK_STREAM, 0);
	EQUALS(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, queue, 3), 0);
	EVENT(queue, EXS_EVT_CONNECT, 3, ECONNREFUSED);
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len), 0);
	EQUALS(value, ECONNREFUSED);
	REFUSED(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, SYNC), ECONNREFUSED);
	closed(bound);
	// The other kind of socket does.
	int other = listener(SOCK_SEQPACKET);
	to = at_port(port_of(other));
	EQUALS(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, queue, 4), 0);
	EVENT(queue, EXS_EVT_CONNECT, 4, ECONNREFUSED);
	closed(other);
	// It can be used again.
	from = listener(SOCK_STREAM);
	to = at_port(port_of(from));
	EQUALS(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, queue, 5), 0);
	int end = accepted(from);
	EVENT(queue, EXS_EVT_CONNECT, 5, 0);
	closed(fd);
	closed(end);
	closed(from);
}

static void closing(exs_qhandle_t queue)
{
	char bytes[10];
	// A listener: its accepts are cancelled, one by one or with it.
	int from = listener(SOCK_SEQPACKET);
	EQUALS(exs_accept(from, NULL, 0, queue, 1), 0);
	EQUALS(exs_accept(from, NULL, 0, queue, 2), 0);
	EQUALS(exs_cancel(from, queue, 1), 1);
	EVENT(queue, EXS_EVT_ACCEPT, 1, ECANCELED);
	EQUALS(exs_cancel(from, queue, 1), 0);
	EQUALS(exs_close(from, queue, 3), 0);
	REFUSED(exs_close(from, queue, 3), EBADF);
	REFUSED(exs_accept(from, NULL, 0, queue, 4), EBADF);
	EVENT(queue, EXS_EVT_ACCEPT, 2, ECANCELED);
	EVENT(queue, EXS_EVT_CLOSE, 3, 0);
	// The number is no socket's any more.
	EQUALS(exs_accept(from, NULL, 0, queue, 4), -1);

	// While it is connecting, before it is accepted.
	from = listener(SOCK_SEQPACKET);
	struct sockaddr_in to = at_port(port_of(from));
	int fd = exs_socket(AF_INET, SOCK_SEQPACKET, 0);
	EQUALS(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, queue, 5), 0);
	EQUALS(exs_close(fd, queue, 6), 0);
	EVENT(queue, EXS_EVT_CONNECT, 5, ECANCELED);
	EVENT(queue, EXS_EVT_CLOSE, 6, 0);
	closed(from);

	// With operations pending: each ends with ECANCELED, then comes CLOSE.
	from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("packet", port_of(from));
	fd = accepted(from);
	for (int i = 0; i < 5; i++)
		EQUALS(exs_recv(fd, bytes, 10, 0, queue, i, LOOSE), 0);
	EQUALS(exs_close(fd, queue, 9), 0);
	for (int i = 0; i < 5; i++)
		EVENT(queue, EXS_EVT_RECV, i, ECANCELED);
	EVENT(queue, EXS_EVT_CLOSE, 9, 0);
	finish(peer);
	closed(from);
}

static void cancelled(exs_qhandle_t queue)
{
	char bytes[1000];
	int from = listener(SOCK_STREAM);
	struct peer *peer = start("stream", port_of(from));
	int fd = accepted(from);
	// The peer takes one byte: of the sends behind it none is taken.
	EQUALS(exs_recv(fd, bytes, 10, 0, queue, 1, LOOSE), 0);
	EQUALS(exs_recv(fd, bytes, 10, 0, queue, 2, LOOSE), 0);
	EQUALS(exs_cancel(fd, queue, 3), 0);
	EQUALS(exs_cancel(fd, queue, 2), 1);
	EVENT(queue, EXS_EVT_RECV, 2, ECANCELED);
	EQUALS(exs_cancel(fd, queue, 1), 1);
	EVENT(queue, EXS_EVT_RECV, 1, ECANCELED);
	// A time that is over: an event of its own.
	struct timeval little = {.tv_usec = 20000};
	EQUALS(exs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little), 0);
	EQUALS(exs_recv(fd, bytes, 10, 0, queue, 4, LOOSE), 0);
	EVENT(queue, EXS_EVT_RECVTIMEOUT, 4, ETIMEDOUT);
	REFUSED(exs_recv(fd, bytes, 10, 0, SYNC, LOOSE), EAGAIN);
	no_event(queue);
	EQUALS(exs_send(fd, bytes, 1, 0, SYNC, LOOSE), 1);
	finish(peer);
	closed(fd);
	closed(from);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(16);
	several(queue);
	version_six(queue);
	refused(queue);
	closing(queue);
	cancelled(queue);
	no_event(queue);
	EQUALS(exs_qdelete(queue), 0);
}
