// SEQPACKET: boundaries, sizes, cut packets, pieces, memory without a handle.
#include "common.h"

// Each packet that comes is read twice: of a persistent send, with what is there at the time.
static void samples(int port)
{
	int fd = connected(SOCK_SEQPACKET, port);
	char first[5] = "", second[5] = "";
	EQUALS(exs_recv(fd, first, 5, 0, SYNC, LOOSE), 5);
	EQUALS(exs_recv(fd, second, 5, 0, SYNC, LOOSE), 5);
	CHECK(!memcmp(first, "hello", 5) && !memcmp(second, "hello", 5));
	EQUALS(exs_send(fd, "x", 1, 0, SYNC, LOOSE), 1);
	// It is there until it is cancelled.
	while (exs_recv(fd, first, 5, 0, SYNC, LOOSE) == 5)
		CHECK(!memcmp(first, "hello", 5));
	closed(fd);
}

const struct part PARTS[] = {{"echo", echo_packets}, {"samples", samples}, {NULL, NULL}};

enum { ROOM = 2 << 20, PIECE = 1000 };
static unsigned char out[ROOM], in[ROOM];

static void sizes(int fd, exs_qhandle_t queue, exs_mhandle_t of_out, exs_mhandle_t of_in)
{
	const size_t sizes[] = {0, 1, 8, 255, 256, 257, 4096, 16384, 16385, 65536, 1 << 20, ROOM};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t len = sizes[i];
		fill(out, len, i);
		memset(in, 0, len);
		EQUALS(exs_recv(fd, in, ROOM, 0, queue, 10 + i, of_in), 0);
		EQUALS(exs_send(fd, out, len, 0, queue, 100 + i, of_out), 0);
		for (int left = 2; left > 0; left--) {
			exs_event_t event = next_event(queue);
			EQUALS(event.exs_evt_fd, fd);
			EQUALS(event.exs_evt_errno, 0);
			EQUALS(event.exs_evt_length, len);
			EQUALS(event.exs_evt_flags, 0);
			EQUALS(event.exs_evt_newfd, -1);
			if (event.exs_evt_type == EXS_EVT_RECV) {
				EQUALS(event.exs_evt_ahandle, 10 + i);
			} else {
				EQUALS(event.exs_evt_type, EXS_EVT_SEND);
				EQUALS(event.exs_evt_ahandle, 100 + i);
			}
		}
		check_bytes(in, len, i);
	}
}

// A receive that is too short cuts the packet, and the next one begins with the next packet.
static void cut(int fd, exs_qhandle_t queue, exs_mhandle_t of_out, exs_mhandle_t of_in)
{
	const size_t sizes[] = {200, 100000};
	for (int i = 0; i < 2; i++) {
		fill(out, sizes[i], 3);
		EQUALS(exs_send(fd, out, sizes[i], 0, queue, 1, of_out), 0);
		EVENT(queue, EXS_EVT_SEND, 1, 0);
		EQUALS(exs_send(fd, out, 7, 0, queue, 2, of_out), 0);
		EQUALS(exs_recv(fd, in, 50, 0, queue, 3, of_in), 0);
		// Its send ends when the peer has taken it, which sends the first one back before.
		exs_event_t first = next_event(queue), second = next_event(queue);
		exs_event_t event = first.exs_evt_type == EXS_EVT_RECV ? first : second;
		EQUALS(event.exs_evt_type, EXS_EVT_RECV);
		EQUALS(event.exs_evt_length, 50);
		EQUALS(event.exs_evt_flags, MSG_TRUNC);
		check_bytes(in, 50, 3);
		EQUALS(exs_recv(fd, in, 50, 0, SYNC, of_in), 7);
		no_event(queue);
	}
}

static void pieces(int fd, exs_qhandle_t queue, exs_mhandle_t of_out, exs_mhandle_t of_in)
{
	exs_iovec_t from[4] = {{out, PIECE, of_out, 0}, {NULL, 0, LOOSE, 0}, {out + PIECE, 1, LOOSE, 0},
			       {out + PIECE + 1, 100000, of_out, 0}};
	exs_iovec_t to[3] = {{in + 5, 1, LOOSE, 0}, {in + 6, 99, of_in, 0}, {in + 105, ROOM - 105, LOOSE, 0}};
	exs_msghdr_t sent = {.msg_iov = from, .msg_iovlen = 4}, came = {.msg_iov = to, .msg_iovlen = 3, .msg_flags = 99};
	size_t len = PIECE + 1 + 100000;
	fill(out, len, 9);
	memset(in, 0, len + 5);
	EQUALS(exs_sendmsg(fd, &sent, 0, queue, 20), 0);
	exs_event_t event = EVENT(queue, EXS_EVT_SENDMSG, 20, 0);
	EQUALS(event.exs_evt_length, len);
	CHECK(event.exs_evt_data == &sent);
	EQUALS(exs_recvmsg(fd, &came, 0, queue, 21), 0);
	event = EVENT(queue, EXS_EVT_RECVMSG, 21, 0);
	EQUALS(event.exs_evt_length, len);
	CHECK(event.exs_evt_data == &came);
	EQUALS(came.msg_flags, 0);
	check_bytes(in + 5, len, 9);

	// No piece at all is a packet of no byte.
	sent.msg_iovlen = 0;
	EQUALS(exs_sendmsg(fd, &sent, 0, SYNC), 0);
	came.msg_iovlen = 2;
	EQUALS(exs_recvmsg(fd, &came, 0, queue, 22), 0);
	event = EVENT(queue, EXS_EVT_RECVMSG, 22, 0);
	EQUALS(event.exs_evt_length, 0);
	EQUALS(event.exs_evt_flags, 0);
	// Cut, over two pieces.
	sent.msg_iovlen = 4;
	EQUALS(exs_sendmsg(fd, &sent, 0, SYNC), len);
	EQUALS(exs_recvmsg(fd, &came, 0, SYNC), 100);
	EQUALS(came.msg_flags, MSG_TRUNC);
	check_bytes(in + 5, 100, 9);
}

// Memory without a handle: copied if it is little, registered for the transfer if it is much; constants as well.
static void loose(int fd, exs_qhandle_t queue)
{
	const size_t sizes[] = {1, 300, 16384, 16385, 1 << 20};
	for (int i = 0; i < 5; i++) {
		fill(out, sizes[i], 30 + i);
		memset(in, 0, sizes[i]);
		EQUALS(exs_recv(fd, in, sizes[i], 0, queue, 2, LOOSE), 0);
		EQUALS(exs_send(fd, out, sizes[i], 0, queue, 1, LOOSE), 0);
		exs_event_t first = next_event(queue), second = next_event(queue);
		EQUALS(first.exs_evt_errno + second.exs_evt_errno, 0);
		EQUALS(first.exs_evt_length, sizes[i]);
		EQUALS(second.exs_evt_length, sizes[i]);
		check_bytes(in, sizes[i], 30 + i);
	}
	static const unsigned char constant[100000] = {1, 2, 3};
	EQUALS(exs_send(fd, constant, sizeof constant, 0, SYNC, LOOSE), sizeof constant);
	EQUALS(exs_recv(fd, in, ROOM, 0, SYNC, LOOSE), sizeof constant);
	CHECK(!memcmp(in, constant, sizeof constant));
	// Registered, it can be sent from, and not be received into.
	exs_mhandle_t handle = exs_mregister((void *)constant, sizeof constant, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	EQUALS(exs_send(fd, constant, sizeof constant, 0, SYNC, handle), sizeof constant);
	REFUSED(exs_recv(fd, (void *)constant, 10, 0, SYNC, handle), EINVAL);
	EQUALS(exs_recv(fd, in, ROOM, 0, SYNC, LOOSE), sizeof constant);
	EQUALS(exs_mderegister(handle), 0);
}

// A persistent send ends when it is cancelled, and not with a receive.
static void persistent(exs_qhandle_t queue)
{
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("samples", port_of(from));
	int fd = accepted(from);
	memcpy(out, "hello", 5);
	exs_mhandle_t handle = exs_mregister(out, 5, 0);
	EQUALS(exs_send(fd, out, 5, EXS_PERSISTENT, queue, 1, handle), 0);
	REFUSED(exs_mderegister(handle), EBUSY);
	// The peer says that it has read.
	EQUALS(exs_recv(fd, in, 1, 0, SYNC, LOOSE), 1);
	no_event(queue);
	EQUALS(exs_cancel(fd, queue, 1), 1);
	EVENT(queue, EXS_EVT_SEND, 1, ECANCELED);
	EQUALS(exs_mderegister(handle), 0);
	closed(fd);
	finish(peer);
	closed(from);
}

void test(void)
{
	exs_qhandle_t first = queue_of(4);
	persistent(first);
	EQUALS(exs_qdelete(first), 0);
	for (int small = 0; small < 3; small++) {
		exs_qhandle_t queue = queue_of(8);
		exs_mhandle_t of_out = exs_mregister(out, ROOM, 0), of_in = exs_mregister(in, ROOM, 0);
		struct sockaddr_in address = at_port(0);
		int from = exs_socket(AF_INET, SOCK_SEQPACKET, 0);
		// With small data, with as many as there can be, and without.
		EQUALS(exs_fcntl(from, EXS_F_SETSMALL, small == 0 ? 0 : small == 1 ? 256 : 65536), 0);
		EQUALS(exs_fcntl(from, EXS_F_SETCREDITS, small + 1), 0);
		EQUALS(exs_bind(from, (struct sockaddr *)&address, sizeof address), 0);
		EQUALS(exs_listen(from, 1), 0);
		struct peer *peer = start("echo", port_of(from));
		int fd = accepted(from);
		sizes(fd, queue, of_out, of_in);
		cut(fd, queue, of_out, of_in);
		pieces(fd, queue, of_out, of_in);
		loose(fd, queue);
		no_event(queue);
		EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
		EQUALS(exs_recv(fd, in, 1, 0, queue, 77, of_in), 0);
		exs_event_t event = EVENT(queue, EXS_EVT_RECV, 77, 0);
		EQUALS(event.exs_evt_flags, EXS_EOF);
		EQUALS(event.exs_evt_length, 0);
		finish(peer);
		closed(fd);
		closed(from);
		EQUALS(exs_mderegister(of_out), 0);
		EQUALS(exs_mderegister(of_in), 0);
		EQUALS(exs_qdelete(queue), 0);
	}
}
