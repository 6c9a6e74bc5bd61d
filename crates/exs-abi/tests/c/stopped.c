// A peer whose process is stopped (SIGSTOP): every pending operation ends once, with ETIMEDOUT. Each time is set when
// the peer is stopped already, so that a slow machine changes nothing.
#include "common.h"

enum { TIME = 300, LARGE = 1 << 20, LAST = 100 };

static char bytes[LARGE];

// It takes what comes until the connection is gone. It is stopped while it waits for its second byte.
static void silent(int type, int port)
{
	char byte;
	int fd = connected(type, port);
	int got;
	while ((got = exs_recv(fd, &byte, 1, 0, SYNC, LOOSE)) == 1)
		;
	// One that has closed meanwhile has sent the end of its data.
	CHECK(got == 0 || errno == ECONNRESET);
	closed(fd);
}

static void packets(int port)
{
	silent(SOCK_SEQPACKET, port);
}

static void stream(int port)
{
	silent(SOCK_STREAM, port);
}

// It listens, says where, and accepts when it is asked to. A connection that has given up ends an accept; over TCP it
// may be accepted, and is reset.
static void listens(int port)
{
	char byte;
	int from = listener(SOCK_STREAM), own = port_of(from), fd = connected(SOCK_STREAM, port);
	EQUALS(exs_send(fd, &own, sizeof own, 0, SYNC, LOOSE), sizeof own);
	EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	int got;
	do {
		int next;
		while ((next = exs_accept(from, NULL, 0, SYNC)) < 0)
			CHECK(errno == ECONNREFUSED || errno == ECONNRESET);
		got = exs_recv(next, &byte, 1, MSG_WAITALL, SYNC, LOOSE);
		CHECK(got == 0 || (got < 0 && errno == ECONNRESET));
		closed(next);
	} while (got < 0);
	closed(from);
	closed(fd);
}

// It takes the packets that were sent before its peer closed.
static void keeps(int port)
{
	char packet[LAST] = "";
	int fd = connected(SOCK_SEQPACKET, port);
	EQUALS(exs_send(fd, packet, 1, 0, SYNC, LOOSE), 1);
	for (int i = 0; i < 4; i++)
		EQUALS(exs_recv(fd, packet, LAST, 0, SYNC, LOOSE), LAST);
	EQUALS(exs_recv(fd, packet, LAST, 0, SYNC, LOOSE), 0);
	closed(fd);
}

const struct part PARTS[] = {
    {"packets", packets}, {"stream", stream}, {"listens", listens}, {"keeps", keeps}, {NULL, NULL}};

static void stop(struct peer *peer)
{
	int status;
	EQUALS(kill(peer->process, SIGSTOP), 0);
	EQUALS(waitpid(peer->process, &status, WUNTRACED), peer->process);
	CHECK(WIFSTOPPED(status));
}

static void pending(exs_qhandle_t queue, int type)
{
	int from = listener(type);
	struct peer *peer = start(type == SOCK_STREAM ? "stream" : "packets", port_of(from));
	int fd = accepted(from);
	EQUALS(exs_fcntl(fd, EXS_F_GETTIMEOUT, 0), 60000);
	EQUALS(exs_send(fd, bytes, 1, 0, SYNC, LOOSE), 1);
	stop(peer);
	for (int i = 0; i < 3; i++) {
		// One that goes within the advertisement, and more than the ring takes.
		size_t len = type == SOCK_SEQPACKET && i == 0 ? 1 : LARGE;
		EQUALS(exs_send(fd, bytes, len, 0, queue, i, LOOSE), 0);
		EQUALS(exs_recv(fd, bytes, 10, i == 1 ? MSG_WAITALL : 0, queue, 10 + i, LOOSE), 0);
	}
	EQUALS(exs_fcntl(fd, EXS_F_SETTIMEOUT, TIME), 0);
	EQUALS(exs_fcntl(fd, EXS_F_GETTIMEOUT, 0), TIME);
	int sends = 0, receives = 0;
	for (int left = 6; left > 0; left--) {
		exs_event_t event = next_event(queue);
		// Small data have gone with the call.
		bool over = type == SOCK_SEQPACKET && event.exs_evt_type == EXS_EVT_SEND && sends == 0;
		EQUALS(event.exs_evt_errno, over ? 0 : ETIMEDOUT);
		EQUALS(event.exs_evt_ahandle, event.exs_evt_type == EXS_EVT_SEND ? sends++ : 10 + receives++);
	}
	CHECK(sends == 3 && receives == 3);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, LOOSE), ECONNRESET);
	REFUSED(exs_recv(fd, bytes, 1, 0, SYNC, LOOSE), ECONNRESET);
	// The peer goes on, and its connection is gone.
	EQUALS(kill(peer->process, SIGCONT), 0);
	finish(peer);
	closed(fd);
	closed(from);
	no_event(queue);
}

// A close waits for what was sent, and no longer than for the timeout.
static void closing(void)
{
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("packets", port_of(from));
	int fd = accepted(from);
	EQUALS(exs_send(fd, bytes, 1, 0, SYNC, LOOSE), 1);
	stop(peer);
	EQUALS(exs_fcntl(fd, EXS_F_SETTIMEOUT, TIME), 0);
	closed(fd);
	EQUALS(kill(peer->process, SIGCONT), 0);
	EQUALS(kill(peer->process, SIGKILL), 0);
	EQUALS(waitpid(peer->process, NULL, 0), peer->process);
	free(peer);
	closed(from);
}

// Over iWARP, where TCP has the bytes of a peer that is stopped, CLOSE comes when the peer has them.
static void last_packets(exs_qhandle_t queue)
{
	const char *device = getenv("SOFTRNIC_DEVICE");
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("keeps", port_of(from));
	int fd = accepted(from);
	// Before the peer's first message an accepting side sends nothing (RFC 5044, section 7.1.2).
	EQUALS(exs_recv(fd, bytes, 1, 0, SYNC, LOOSE), 1);
	stop(peer);
	for (int i = 0; i < 4; i++)
		EQUALS(exs_send(fd, bytes, LAST, 0, SYNC, LOOSE), LAST);
	EQUALS(exs_close(fd, queue, 1), 0);
	if (device && !strcmp(device, "iwarp")) {
		exs_event_t event;
		struct timeval time = {.tv_usec = TIME * 1000};
		EQUALS(exs_qdequeue(queue, &event, 1, &time), 0);
	}
	EQUALS(kill(peer->process, SIGCONT), 0);
	EVENT(queue, EXS_EVT_CLOSE, 1, 0);
	finish(peer);
	closed(from);
}

static void connecting(exs_qhandle_t queue)
{
	int from = listener(SOCK_STREAM), port;
	struct peer *peer = start("listens", port_of(from));
	int fd = accepted(from);
	EQUALS(exs_recv(fd, &port, sizeof port, MSG_WAITALL, SYNC, LOOSE), sizeof port);
	struct sockaddr_in address = at_port(port);
	stop(peer);
	int late = exs_socket(AF_INET, SOCK_STREAM, 0), later = exs_socket(AF_INET, SOCK_STREAM, 0);
	EQUALS(exs_fcntl(late, EXS_F_SETTIMEOUT, TIME), 0);
	EQUALS(exs_connect(late, (struct sockaddr *)&address, sizeof address, 0, queue, 1), 0);
	EVENT(queue, EXS_EVT_CONNECT, 1, ETIMEDOUT);
	// The time may be changed while the socket connects.
	EQUALS(exs_connect(later, (struct sockaddr *)&address, sizeof address, 0, queue, 2), 0);
	EQUALS(exs_fcntl(later, EXS_F_SETTIMEOUT, TIME), 0);
	EVENT(queue, EXS_EVT_CONNECT, 2, ETIMEDOUT);
	closed(late);
	closed(later);
	// When it goes on, it accepts others.
	EQUALS(kill(peer->process, SIGCONT), 0);
	EQUALS(exs_send(fd, bytes, 1, 0, SYNC, LOOSE), 1);
	int good = connected(SOCK_STREAM, port);
	EQUALS(exs_shutdown(good, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(good);
	closed(fd);
	closed(from);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(16);
	int fd = exs_socket(AF_INET, SOCK_STREAM, 0), from = listener(SOCK_STREAM);
	REFUSED(exs_fcntl(fd, EXS_F_SETTIMEOUT, -1), EINVAL);
	EQUALS(exs_fcntl(fd, EXS_F_SETTIMEOUT, 0), 0);
	EQUALS(exs_fcntl(fd, EXS_F_GETTIMEOUT, 0), 0);
	REFUSED(exs_fcntl(from, EXS_F_SETTIMEOUT, TIME), EISCONN);
	EQUALS(exs_fcntl(from, EXS_F_GETTIMEOUT, 0), 60000);
	closed(fd);
	closed(from);
	if (separate) {
		pending(queue, SOCK_SEQPACKET);
		pending(queue, SOCK_STREAM);
		closing();
		last_packets(queue);
		connecting(queue);
	}
	no_event(queue);
	EQUALS(exs_qdelete(queue), 0);
}
