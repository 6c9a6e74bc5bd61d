// STREAM: bytes in order, MSG_WAITALL, the end of the data, files, both directions at once.
#include "common.h"

const struct part PARTS[] = {{"echo", echo_stream}, {NULL, NULL}};

enum { ROOM = 2 << 20 };
static unsigned char out[ROOM], in[ROOM];

static void whole(int fd, size_t len, unsigned seed)
{
	EQUALS(exs_recv(fd, in, len, MSG_WAITALL, SYNC, LOOSE), len);
	check_bytes(in, len, seed);
}

static void waits_for_all(int fd, exs_qhandle_t queue, exs_mhandle_t of_out, exs_mhandle_t of_in)
{
	fill(out, 300000, 1);
	EQUALS(exs_recv(fd, in, 300000, MSG_WAITALL, queue, 1, of_in), 0);
	size_t sizes[] = {1, 99999, 100, 199900};
	size_t at = 0;
	for (int i = 0; i < 4; i++) {
		EQUALS(exs_send(fd, out + at, sizes[i], 0, SYNC, of_out), sizes[i]);
		at += sizes[i];
	}
	EQUALS(EVENT(queue, EXS_EVT_RECV, 1, 0).exs_evt_length, 300000);
	check_bytes(in, 300000, 1);
	REFUSED(exs_send(fd, out, 1, EXS_PERSISTENT, queue, 0, of_out), EOPNOTSUPP);
	REFUSED(exs_send(fd, out, 0, 0, queue, 0, of_out), EINVAL);
	REFUSED(exs_recv(fd, in, 0, 0, queue, 0, of_in), EINVAL);
}

// Random sizes with many operations outstanding: the events of a direction come in its order.
static void many(int fd, exs_qhandle_t queue, exs_mhandle_t of_out, exs_mhandle_t of_in)
{
	unsigned random = 12345;
	size_t sent = 0, came = 0, posted = 0;
	long next_send = 0, next_receive = 0, sends = 0, receives = 0;
	fill(out, ROOM, 4);
	memset(in, 0, ROOM);
	while (came < ROOM) {
		while (sent < ROOM && sends - next_send < 6) {
			random = random * 1103515245 + 12345;
			size_t len = 1 + (random >> 8) % (random & 64 ? 200 : 100000);
			len = len < ROOM - sent ? len : ROOM - sent;
			EQUALS(exs_send(fd, out + sent, len, 0, queue, sends++, of_out), 0);
			sent += len;
		}
		while (posted < ROOM && receives - next_receive < 3) {
			random = random * 1103515245 + 12345;
			// With MSG_WAITALL the place of the next receive is known.
			size_t len = 1 + (random >> 8) % 150000;
			len = len < ROOM - posted ? len : ROOM - posted;
			EQUALS(exs_recv(fd, in + posted, len, MSG_WAITALL, queue, receives++, of_in), 0);
			posted += len;
		}
		exs_event_t event = next_event(queue);
		EQUALS(event.exs_evt_errno, 0);
		if (event.exs_evt_type == EXS_EVT_SEND) {
			EQUALS(event.exs_evt_ahandle, next_send++);
		} else {
			EQUALS(event.exs_evt_type, EXS_EVT_RECV);
			EQUALS(event.exs_evt_ahandle, next_receive++);
			came += event.exs_evt_length;
		}
	}
	while (next_send < sends)
		EVENT(queue, EXS_EVT_SEND, next_send++, 0);
	EQUALS(came, ROOM);
	check_bytes(in, ROOM, 4);
}

static void files(int fd, exs_qhandle_t queue)
{
	char name[] = "/tmp/exs-XXXXXX";
	int file = mkstemp(name);
	CHECK(file >= 0);
	unlink(name);
	fill(out, ROOM, 7);
	EQUALS(write(file, out, ROOM), ROOM);
	// Much of it is mapped, little is read, as is what has a header or a trailer.
	exs_xferfile_t what = {.exs_xf_fd = file, .exs_xf_offset = 5, .exs_xf_length = ROOM - 9};
	EQUALS(exs_sendfile(fd, &what, 0, queue, 1), 0);
	EQUALS(exs_recv(fd, in + 5, ROOM - 9, MSG_WAITALL, SYNC, LOOSE), ROOM - 9);
	EQUALS(EVENT(queue, EXS_EVT_SENDFILE, 1, 0).exs_evt_length, ROOM - 9);
	memcpy(in, out, 5);
	check_bytes(in, ROOM - 4, 7);
	exs_iovec_t around[2] = {{"head", 4, LOOSE, 0}, {"tail", 4, LOOSE, 0}};
	exs_xferfile_t little = {around, around + 1, 1, 1, file, 0, ROOM - 10, 0};
	EQUALS(exs_sendfile(fd, &little, 0, SYNC), 18);
	EQUALS(exs_recv(fd, in, 18, MSG_WAITALL, SYNC, LOOSE), 18);
	CHECK(!memcmp(in, "head", 4) && !memcmp(in + 4, out + ROOM - 10, 10) && !memcmp(in + 14, "tail", 4));
	what.exs_xf_offset = ROOM + 1;
	REFUSED(exs_sendfile(fd, &what, 0, queue, 1), EINVAL);
	what.exs_xf_offset = -1;
	REFUSED(exs_sendfile(fd, &what, 0, queue, 1), EINVAL);
	what = (exs_xferfile_t){.exs_xf_fd = file, .exs_xf_offset = ROOM};
	REFUSED(exs_sendfile(fd, &what, 0, queue, 1), EINVAL);
	int pipes[2];
	EQUALS(pipe(pipes), 0);
	what.exs_xf_fd = pipes[0];
	REFUSED(exs_sendfile(fd, &what, 0, queue, 1), EINVAL);
	close(pipes[0]);
	close(pipes[1]);
	close(file);
}

static void bytes_of_pieces(int fd)
{
	exs_iovec_t from[3] = {{out, 10, LOOSE, 0}, {out + 10, 70000, LOOSE, 0}, {out + 70010, 1, LOOSE, 0}};
	exs_msghdr_t message = {.msg_iov = from, .msg_iovlen = 3};
	fill(out, 70011, 8);
	EQUALS(exs_sendmsg(fd, &message, 0, SYNC), 70011);
	whole(fd, 70011, 8);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(16);
	exs_mhandle_t of_out = exs_mregister(out, ROOM, 0), of_in = exs_mregister(in, ROOM, 0);
	int from = listener(SOCK_STREAM);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	waits_for_all(fd, queue, of_out, of_in);
	many(fd, queue, of_out, of_in);
	bytes_of_pieces(fd);
	files(fd, queue);
	no_event(queue);
	// A receive that waits for all ends short at the end of the data; the next one finds the end.
	fill(out, 100, 6);
	EQUALS(exs_send(fd, out, 100, 0, SYNC, of_out), 100);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	EQUALS(exs_recv(fd, in, 1000, MSG_WAITALL, queue, 1, of_in), 0);
	exs_event_t event = EVENT(queue, EXS_EVT_RECV, 1, 0);
	EQUALS(event.exs_evt_length, 100);
	check_bytes(in, 100, 6);
	EQUALS(exs_recv(fd, in, 1000, 0, queue, 2, of_in), 0);
	event = EVENT(queue, EXS_EVT_RECV, 2, 0);
	EQUALS(event.exs_evt_length, 0);
	EQUALS(event.exs_evt_flags, EXS_EOF);
	finish(peer);
	// After SHUT_RD a receive finds the end by itself.
	EQUALS(exs_shutdown(fd, SHUT_RD, SYNC), 0);
	EQUALS(exs_recv(fd, in, 1000, 0, SYNC, of_in), 0);
	closed(fd);
	closed(from);
	EQUALS(exs_mderegister(of_out), 0);
	EQUALS(exs_mderegister(of_in), 0);
	EQUALS(exs_qdelete(queue), 0);
}
