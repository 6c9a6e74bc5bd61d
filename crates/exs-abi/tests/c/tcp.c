// Descriptors of socket(2): the same calls over TCP, asynchronous by the same queues.
#include "common.h"

// The parts use the kernel's calls.
static int dial(int port)
{
	struct sockaddr_in to = at_port(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	EQUALS(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	return fd;
}

// It waits for a byte, then reads all, and sends it back behind the end.
static void late(int port)
{
	enum { ROOM = 8 << 20 };
	int fd = dial(port);
	char *bytes = malloc(ROOM);
	ssize_t len = 0, part;
	usleep(50000);
	while ((part = recv(fd, bytes + len, ROOM - len, 0)) > 0)
		len += part;
	EQUALS(part, 0);
	for (ssize_t at = 0; at < len; at += part)
		CHECK((part = send(fd, bytes + at, len - at, MSG_NOSIGNAL)) > 0);
	free(bytes);
	close(fd);
}

static void silent(int port)
{
	char byte;
	int fd = dial(port);
	EQUALS(recv(fd, &byte, 1, 0), 0);
	close(fd);
}

const struct part PARTS[] = {{"late", late}, {"silent", silent}, {NULL, NULL}};

enum { EACH = 100000, COUNT = 60, ALL = EACH * COUNT };
static unsigned char out[ALL], in[ALL];

static int plain_listener(void)
{
	struct sockaddr_in at = at_port(0);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	EQUALS(exs_bind(fd, (struct sockaddr *)&at, sizeof at), 0);
	EQUALS(exs_listen(fd, 8), 0);
	return fd;
}

static void streams(exs_qhandle_t queue, exs_mhandle_t of_out, exs_mhandle_t of_in)
{
	struct sockaddr_in peer_address;
	exs_acceptaddr_t addresses = {.exs_aa_peer = (struct sockaddr *)&peer_address,
				      .exs_aa_peerlen = sizeof peer_address};
	int from = plain_listener();
	EQUALS(exs_accept(from, &addresses, 0, queue, 1), 0);
	no_event(queue);
	struct peer *peer = start("late", port_of(from));
	int fd = EVENT(queue, EXS_EVT_ACCEPT, 1, 0).exs_evt_newfd;
	EQUALS(peer_address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));

	// More than the kernel takes: none waits, and all come in order.
	fill(out, ALL, 5);
	for (int i = 0; i < COUNT; i++)
		EQUALS(exs_send(fd, out + i * EACH, EACH, 0, queue, i, of_out), 0);
	REFUSED(exs_mderegister(of_out), EBUSY);
	for (int i = 0; i < COUNT; i++)
		EQUALS(EVENT(queue, EXS_EVT_SEND, i, 0).exs_evt_length, EACH);
	EQUALS(exs_shutdown(fd, SHUT_WR, queue, 7), 0);
	EVENT(queue, EXS_EVT_SHUTDOWN, 7, 0);
	// Received in pieces, with MSG_WAITALL.
	exs_iovec_t pieces[3] = {{in, 10, of_in, 0}, {in + 10, 1000000, LOOSE, 0}, {in + 1000010, ALL - 1000010, of_in, 0}};
	exs_msghdr_t message = {.msg_iov = pieces, .msg_iovlen = 3};
	EQUALS(exs_recvmsg(fd, &message, MSG_WAITALL, queue, 8), 0);
	exs_event_t event = EVENT(queue, EXS_EVT_RECVMSG, 8, 0);
	EQUALS(event.exs_evt_length, ALL);
	CHECK(event.exs_evt_data == &message);
	check_bytes(in, ALL, 5);
	EQUALS(exs_recv(fd, in, 1, 0, queue, 9, of_in), 0);
	event = EVENT(queue, EXS_EVT_RECV, 9, 0);
	EQUALS(event.exs_evt_length, 0);
	EQUALS(event.exs_evt_flags, EXS_EOF);
	finish(peer);
	EQUALS(exs_close(fd, queue, 10), 0);
	EVENT(queue, EXS_EVT_CLOSE, 10, 0);
	closed(from);
}

static void ends(exs_qhandle_t queue, exs_mhandle_t of_in)
{
	int from = plain_listener();
	struct sockaddr_in to = at_port(port_of(from));
	struct peer *peer = start("silent", port_of(from));
	int fd = exs_accept(from, NULL, 0, SYNC);
	CHECK(fd >= 0);
	REFUSED(exs_send(fd, in, 0, 0, queue, 1, of_in), EINVAL);
	REFUSED(exs_send(fd, before(in), 1, 0, queue, 1, of_in), EINVAL);
	REFUSED(exs_send(fd, in, 1, MSG_OOB, queue, 1, of_in), EOPNOTSUPP);
	REFUSED(exs_fcntl(fd, EXS_F_GETSMALL), EOPNOTSUPP);
	for (int i = 0; i < 4; i++)
		EQUALS(exs_recv(fd, in, 10, 0, queue, i, of_in), 0);
	EQUALS(exs_cancel(fd, queue, 1), 1);
	EVENT(queue, EXS_EVT_RECV, 1, ECANCELED);
	EQUALS(exs_close(fd, queue, 5), 0);
	EVENT(queue, EXS_EVT_RECV, 0, ECANCELED);
	EVENT(queue, EXS_EVT_RECV, 2, ECANCELED);
	EVENT(queue, EXS_EVT_RECV, 3, ECANCELED);
	EVENT(queue, EXS_EVT_CLOSE, 5, 0);
	finish(peer);
	// Connected by an event; refused at the call or in the event, not in both.
	fd = socket(AF_INET, SOCK_STREAM, 0);
	EQUALS(exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, queue, 6), 0);
	EVENT(queue, EXS_EVT_CONNECT, 6, 0);
	int end = exs_accept(from, NULL, 0, SYNC);
	EQUALS(exs_fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	// Pending receives end in order with what comes; close(2) does not end them.
	EQUALS(exs_recv(fd, in, 3, MSG_WAITALL, queue, 7, of_in), 0);
	EQUALS(exs_recv(fd, in + 3, 3, 0, queue, 8, of_in), 0);
	close(fd);
	EQUALS(exs_send(end, "abcde", 5, 0, SYNC, LOOSE), 5);
	EQUALS(EVENT(queue, EXS_EVT_RECV, 7, 0).exs_evt_length, 3);
	EQUALS(EVENT(queue, EXS_EVT_RECV, 8, 0).exs_evt_length, 2);
	CHECK(!memcmp(in, "abcde", 5));
	// The other end is gone now.
	EQUALS(recv(end, in, 1, 0), 0);
	close(end);
	closed(from);
	// Nothing listens there, and nothing else can take the port.
	int bound = socket(AF_INET, SOCK_STREAM, 0);
	to = at_port(0);
	EQUALS(bind(bound, (struct sockaddr *)&to, sizeof to), 0);
	to = at_port(port_of(bound));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, queue, 9))
		EQUALS(errno, ECONNREFUSED);
	else
		EVENT(queue, EXS_EVT_CONNECT, 9, ECONNREFUSED);
	close(fd);
	close(bound);
	no_event(queue);
}

static void files(exs_qhandle_t queue)
{
	char name[] = "/tmp/exs-XXXXXX";
	int file = mkstemp(name), pair[2];
	unlink(name);
	EQUALS(write(file, out, 100000), 100000);
	EQUALS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	exs_iovec_t around[2] = {{"head", 4, LOOSE, 0}, {"tail", 4, LOOSE, 0}};
	exs_xferfile_t what = {around, around + 1, 1, 1, file, 0, 10, 0};
	EQUALS(exs_sendfile(pair[0], &what, 0, queue, 1), 0);
	EQUALS(exs_recv(pair[1], in, 100000 - 2, MSG_WAITALL, SYNC, LOOSE), 100000 - 2);
	EQUALS(EVENT(queue, EXS_EVT_SENDFILE, 1, 0).exs_evt_length, 100000 - 2);
	CHECK(!memcmp(in, "head", 4) && !memcmp(in + 4, out + 10, 100000 - 10) && !memcmp(in + 100000 - 6, "tail", 4));
	close(pair[0]);
	close(pair[1]);
	close(file);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(128);
	exs_mhandle_t of_out = exs_mregister(out, ALL, 0), of_in = exs_mregister(in, ALL, 0);
	CHECK(of_out != EXS_MHANDLE_INVALID && of_in != EXS_MHANDLE_INVALID);
	streams(queue, of_out, of_in);
	ends(queue, of_in);
	files(queue);
	EQUALS(exs_mderegister(of_out), 0);
	EQUALS(exs_mderegister(of_in), 0);
	EQUALS(exs_qdelete(queue), 0);
}
