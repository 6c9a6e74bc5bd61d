// Ends that are not wanted: a peer that dies, memory that vanishes, memory in use, the child of a fork.
#include "common.h"

// It receives one packet, and then stays until it is killed.
static void mortal(int port)
{
	int fd = connected(SOCK_SEQPACKET, port);
	char byte;
	EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	for (;;)
		pause();
}

static void echoes(int port)
{
	echo_packets(port);
}

enum { PAGE = 4096, LEN = 5 * PAGE };

// It sends a large packet when it is asked to, and the receiver has no memory for it.
static void giver(int port)
{
	int fd = connected(SOCK_SEQPACKET, port);
	char byte, *large = calloc(1, LEN);
	CHECK(large);
	EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	REFUSED(exs_send(fd, large, LEN, 0, SYNC, LOOSE), ECONNRESET);
	closed(fd);
	free(large);
}

// It takes a large packet after its own was taken, and the sender has no memory with it.
static void taker(int port)
{
	int fd = connected(SOCK_SEQPACKET, port);
	char *large = calloc(1, LEN);
	CHECK(large);
	EQUALS(exs_send(fd, large, LEN, 0, SYNC, LOOSE), LEN);
	REFUSED(exs_recv(fd, large, LEN, 0, SYNC, LOOSE), ECONNRESET);
	closed(fd);
	free(large);
}

const struct part PARTS[] = {
    {"mortal", mortal}, {"echo", echoes}, {"giver", giver}, {"taker", taker}, {NULL, NULL}};

static char bytes[4096];

static void killed(exs_qhandle_t queue)
{
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("mortal", port_of(from));
	int fd = accepted(from);
	exs_pollfd_t entry = {.fd = fd, .events = POLLIN};
	exs_fdvec_t list = {.exs_fdv_fds = &entry, .exs_fdv_count = 1};
	EQUALS(exs_send(fd, bytes, 1, 0, SYNC, LOOSE), 1);
	EQUALS(exs_poll(&list, 0, NULL, queue, 50), 0);
	for (int i = 0; i < 3; i++) {
		EQUALS(exs_send(fd, bytes, i == 1 ? 4096 : 1, 0, queue, i, LOOSE), 0);
		EQUALS(exs_recv(fd, bytes, 1, 0, queue, 10 + i, LOOSE), 0);
	}
	EQUALS(kill(peer->process, SIGKILL), 0);
	int sends = 0, receives = 0, polls = 0;
	for (int left = 7; left > 0; left--) {
		exs_event_t event = next_event(queue);
		if (event.exs_evt_type == EXS_EVT_POLL) {
			EQUALS(event.exs_evt_length, 1);
			CHECK(entry.revents & (POLLIN | POLLHUP));
			polls++;
			continue;
		}
		// Small data have gone with the call, unless a send in front of them is pending.
		bool over = event.exs_evt_type == EXS_EVT_SEND && sends == 0;
		EQUALS(event.exs_evt_errno, over ? 0 : ECONNRESET);
		EQUALS(event.exs_evt_ahandle, event.exs_evt_type == EXS_EVT_SEND ? sends++ : 10 + receives++);
	}
	CHECK(sends == 3 && receives == 3 && polls == 1);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, LOOSE), ECONNRESET);
	REFUSED(exs_recv(fd, bytes, 1, 0, SYNC, LOOSE), ECONNRESET);
	EQUALS(waitpid(peer->process, NULL, 0), peer->process);
	free(peer);
	closed(fd);
	closed(from);
	no_event(queue);
}

// Registered memory that is unmapped is found out at the call, if the transfer is large.
static void vanished(exs_qhandle_t queue)
{
	enum { ROOM = 64 * PAGE };
	// A small hole in a mapping: nothing else comes to lie there.
	char *around = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *gone = around + 8 * PAGE;
	CHECK(around != MAP_FAILED);
	exs_mhandle_t handle = exs_mregister(gone, LEN, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	EQUALS(munmap(gone + LEN - PAGE, PAGE), 0);
	REFUSED(exs_recv(fd, gone, LEN, 0, queue, 1, handle), EFAULT);
	REFUSED(exs_send(fd, gone, LEN, 0, SYNC, handle), EFAULT);
	no_event(queue);
	EQUALS(exs_mderegister(handle), 0);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
	EQUALS(munmap(around, ROOM), 0);
}

// The last page of a buffer goes. A mapping without rights takes its place, so no other mapping comes to lie there.
static void lose(char *buffer)
{
	void *last = buffer + LEN - PAGE;
	CHECK(mmap(last, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == last);
}

// Registered memory that goes after the call: an event, and no connection any more.
static void vanished_later(exs_qhandle_t queue)
{
	for (int receives = 0; receives < 2; receives++) {
		char *gone = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		char *large = calloc(1, LEN);
		CHECK(gone != MAP_FAILED && large);
		exs_mhandle_t handle = exs_mregister(gone, LEN, 0);
		CHECK(handle != EXS_MHANDLE_INVALID);
		int from = listener(SOCK_SEQPACKET);
		struct peer *peer = start(receives ? "giver" : "taker", port_of(from));
		int fd = accepted(from);
		if (receives) {
			EQUALS(exs_recv(fd, gone, LEN, 0, queue, 1, handle), 0);
			lose(gone);
			EQUALS(exs_send(fd, bytes, 1, 0, SYNC, LOOSE), 1);
			EVENT(queue, EXS_EVT_RECV, 1, EFAULT);
		} else {
			EQUALS(exs_send(fd, gone, LEN, 0, queue, 1, handle), 0);
			lose(gone);
			EQUALS(exs_recv(fd, large, LEN, 0, SYNC, LOOSE), LEN);
			EVENT(queue, EXS_EVT_SEND, 1, ECONNRESET);
		}
		REFUSED(exs_send(fd, bytes, 1, 0, queue, 2, LOOSE), ECONNRESET);
		finish(peer);
		no_event(queue);
		EQUALS(exs_mderegister(handle), 0);
		closed(fd);
		closed(from);
		EQUALS(munmap(gone, LEN), 0);
		free(large);
	}
}

static void in_use(exs_qhandle_t queue)
{
	exs_mhandle_t handle = exs_mregister(bytes, sizeof bytes, 0);
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	EQUALS(exs_recv(fd, bytes, 10, 0, queue, 1, handle), 0);
	REFUSED(exs_mderegister(handle), EBUSY);
	EQUALS(exs_send(fd, "0123456789", 10, 0, SYNC, LOOSE), 10);
	EVENT(queue, EXS_EVT_RECV, 1, 0);
	CHECK(!memcmp(bytes, "0123456789", 10));
	EQUALS(exs_mderegister(handle), 0);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
}

// The child of a fork has none of it, and its parent goes on.
static void forked(exs_qhandle_t queue)
{
	exs_mhandle_t handle = exs_mregister(bytes, sizeof bytes, 0);
	int from = listener(SOCK_SEQPACKET), status;
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	pid_t child = fork();
	if (child == 0) {
		exs_event_t event;
		struct timeval none = {0};
		REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, handle), EBADF);
		REFUSED(exs_recv(fd, bytes, 1, 0, SYNC, handle), EBADF);
		REFUSED(exs_accept(from, NULL, 0, SYNC), EBADF);
		REFUSED(exs_close(fd, SYNC), EBADF);
		REFUSED(exs_qdequeue(queue, &event, 1, &none), EBADF);
		REFUSED(exs_mderegister(handle), EBADF);
		REFUSED(exs_socket(AF_INET, SOCK_STREAM, 0), EBADF);
		_exit(0);
	}
	CHECK(child > 0);
	EQUALS(waitpid(child, &status, 0), child);
	EQUALS(status, 0);
	EQUALS(exs_send(fd, bytes, 10, 0, SYNC, handle), 10);
	EQUALS(exs_recv(fd, bytes, 10, 0, SYNC, handle), 10);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
	EQUALS(exs_mderegister(handle), 0);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(16);
	if (separate)
		killed(queue);
	vanished(queue);
	vanished_later(queue);
	in_use(queue);
	forked(queue);
	no_event(queue);
	EQUALS(exs_qdelete(queue), 0);
}
