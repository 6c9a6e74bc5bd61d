// MSG_PEEK: what a receive would get is copied, and stays.
#include "common.h"

// More than half of a stream's ring, so that its end lies within the second block.
enum { BLOCK = 100000 };

static unsigned char out[BLOCK], in[BLOCK];

static void packets(int port)
{
	echo_packets(port);
}

static void stream(int port)
{
	echo_stream(port);
}

const struct part PARTS[] = {{"packets", packets}, {"stream", stream}, {NULL, NULL}};

static void until_readable(int fd)
{
	exs_pollfd_t entry = {.fd = fd, .events = POLLIN};
	exs_fdvec_t list = {.exs_fdv_fds = &entry, .exs_fdv_count = 1};
	EQUALS(exs_poll(&list, 0, NULL, SYNC), 1);
}

// Look until so many bytes are there.
static void look_for(int fd, size_t len, exs_mhandle_t of_in)
{
	for (;;) {
		until_readable(fd);
		ssize_t seen = exs_recv(fd, in, BLOCK, MSG_PEEK, SYNC, of_in);
		CHECK(seen > 0 && (size_t)seen <= len);
		if ((size_t)seen == len)
			return;
	}
}

static void of_stream(exs_qhandle_t queue, exs_mhandle_t of_in)
{
	int from = listener(SOCK_STREAM);
	struct peer *peer = start("stream", port_of(from));
	int fd = accepted(from);
	REFUSED(exs_recv(fd, in, 10, MSG_PEEK, SYNC, of_in), EAGAIN);
	REFUSED(exs_recv(fd, in, 10, MSG_PEEK, queue, 1, of_in), EAGAIN);
	REFUSED(exs_recv(fd, in, 10, MSG_PEEK | MSG_WAITALL, SYNC, of_in), EOPNOTSUPP);
	for (unsigned round = 0; round < 5; round++) {
		fill(out, BLOCK, round);
		EQUALS(exs_send(fd, out, BLOCK, 0, SYNC, LOOSE), BLOCK);
		look_for(fd, BLOCK, of_in);
		check_bytes(in, BLOCK, round);
		memset(in, 0, BLOCK);
		EQUALS(exs_recv(fd, in, 10, MSG_PEEK, queue, 2, LOOSE), 0);
		EQUALS(EVENT(queue, EXS_EVT_RECV, 2, 0).exs_evt_length, 10);
		check_bytes(in, 10, round);
		EQUALS(exs_recv(fd, in, 60, MSG_WAITALL, SYNC, of_in), 60);
		EQUALS(exs_recv(fd, in + 60, BLOCK - 60, MSG_PEEK, SYNC, of_in), BLOCK - 60);
		check_bytes(in, BLOCK, round);
		memset(in + 60, 0, BLOCK - 60);
		EQUALS(exs_recv(fd, in + 60, BLOCK - 60, MSG_WAITALL, SYNC, of_in), BLOCK - 60);
		check_bytes(in, BLOCK, round);
	}
	// What comes is that of the receive.
	EQUALS(exs_recv(fd, in, 10, 0, queue, 3, of_in), 0);
	REFUSED(exs_recv(fd, in, 10, MSG_PEEK, SYNC, of_in), EAGAIN);
	EQUALS(exs_send(fd, out, 10, 0, SYNC, LOOSE), 10);
	EVENT(queue, EXS_EVT_RECV, 3, 0);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	until_readable(fd);
	for (int i = 0; i < 2; i++) {
		EQUALS(exs_recv(fd, in, 10, MSG_PEEK, queue, 4, of_in), 0);
		exs_event_t event = EVENT(queue, EXS_EVT_RECV, 4, 0);
		EQUALS(event.exs_evt_length, 0);
		EQUALS(event.exs_evt_flags, EXS_EOF);
	}
	finish(peer);
	closed(fd);
	closed(from);
}

static void of_packets(exs_qhandle_t queue, exs_mhandle_t of_in)
{
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("packets", port_of(from));
	int fd = accepted(from);
	fill(out, 4096, 7);
	REFUSED(exs_recv(fd, in, 10, MSG_PEEK, SYNC, of_in), EAGAIN);
	EQUALS(exs_send(fd, out, 10, 0, SYNC, LOOSE), 10);
	until_readable(fd);
	memset(in, 0, 10);
	for (int i = 0; i < 2; i++) {
		EQUALS(exs_recv(fd, in, 4, MSG_PEEK, queue, 1, of_in), 0);
		exs_event_t event = EVENT(queue, EXS_EVT_RECV, 1, 0);
		EQUALS(event.exs_evt_length, 4);
		EQUALS(event.exs_evt_flags, MSG_TRUNC);
		check_bytes(in, 4, 7);
	}
	EQUALS(exs_recv(fd, in, 100, 0, SYNC, of_in), 10);
	check_bytes(in, 10, 7);
	// An advertised packet is still in its sender's memory.
	EQUALS(exs_send(fd, out, 4096, 0, SYNC, LOOSE), 4096);
	until_readable(fd);
	REFUSED(exs_recv(fd, in, 4096, MSG_PEEK, SYNC, of_in), EOPNOTSUPP);
	EQUALS(exs_recv(fd, in, 4096, 0, SYNC, of_in), 4096);
	check_bytes(in, 4096, 7);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	until_readable(fd);
	EQUALS(exs_recv(fd, in, 10, MSG_PEEK, SYNC, of_in), 0);
	finish(peer);
	closed(fd);
	closed(from);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(4);
	exs_mhandle_t of_in = exs_mregister(in, sizeof in, 0);
	CHECK(of_in != EXS_MHANDLE_INVALID);
	of_stream(queue, of_in);
	of_packets(queue, of_in);
	no_event(queue);
	EQUALS(exs_mderegister(of_in), 0);
	EQUALS(exs_qdelete(queue), 0);
}
