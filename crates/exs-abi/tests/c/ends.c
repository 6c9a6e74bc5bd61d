// Ends that are not wanted: a peer that dies, memory that vanishes, memory in use, the child of a fork.
#define _GNU_SOURCE
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

// It sends packets of the length that it is asked for, until the connection is gone.
static void small_giver(int port)
{
	int fd = connected(SOCK_SEQPACKET, port);
	static char small[PAGE];
	short len;
	while (exs_recv(fd, &len, sizeof len, 0, SYNC, LOOSE) == sizeof len)
		CHECK(exs_send(fd, small, len, 0, SYNC, LOOSE) == len || errno == ECONNRESET);
	closed(fd);
}

enum { STEP = 2000, STEPS = 100 };

// It receives nothing until it is told to, over a second connection, that the sender's memory is gone.
static void late_taker(int port)
{
	int fd = connected(SOCK_STREAM, port), told = connected(SOCK_STREAM, port);
	char byte, *all = calloc(STEPS, STEP);
	CHECK(all);
	EQUALS(exs_recv(told, &byte, 1, 0, SYNC, LOOSE), 1);
	while (exs_recv(fd, all, STEP, MSG_WAITALL, SYNC, LOOSE) == STEP)
		;
	EQUALS(errno, ECONNRESET);
	closed(fd);
	closed(told);
	free(all);
}

// Once it is told a length over a second connection, it takes a packet of which the sender has lost the memory.
static void told_taker(int port)
{
	int fd = connected(SOCK_SEQPACKET, port), tell = connected(SOCK_SEQPACKET, port), len;
	static char large[LEN];
	EQUALS(exs_recv(tell, &len, sizeof len, 0, SYNC, LOOSE), sizeof len);
	REFUSED(exs_recv(fd, large, len, 0, SYNC, LOOSE), ECONNRESET);
	closed(fd);
	closed(tell);
}

// So it sends bytes for which the receiver has no memory any more. They may go through the ring.
static void told_giver(int port)
{
	int fd = connected(SOCK_STREAM, port), tell = connected(SOCK_STREAM, port), len;
	static char large[LEN];
	EQUALS(exs_recv(tell, &len, sizeof len, MSG_WAITALL, SYNC, LOOSE), sizeof len);
	CHECK(exs_send(fd, large, len, 0, SYNC, LOOSE) == len || errno == ECONNRESET);
	closed(fd);
	closed(tell);
}

const struct part PARTS[] = {{"mortal", mortal}, {"echo", echoes},   {"giver", giver},
			     {"taker", taker},   {"small giver", small_giver}, {"late taker", late_taker},
			     {"told taker", told_taker}, {"told giver", told_giver}, {NULL, NULL}};

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

// A page beyond the end of a file is no memory either (mmap(2): SIGBUS).
static void lose_page(char *page)
{
	int file = memfd_create("empty", MFD_CLOEXEC);
	CHECK(file >= 0);
	CHECK(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == page);
	EQUALS(close(file), 0);
}

static int faults;

static void count_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	// The instruction is executed again, and finds the page.
	faults += mprotect((void *)((uintptr_t)info->si_addr & -(uintptr_t)PAGE), PAGE, PROT_READ) == 0;
}

// That of a small transfer is found out at the call, too, and the program's own handler sees its own faults only.
static void vanished_small(exs_qhandle_t queue)
{
	static const size_t LENGTHS[] = {1, 2, 200, 1000, PAGE};
	char *gone = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	exs_mhandle_t handle = exs_mregister(gone, 2 * PAGE, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	lose_page(gone + PAGE);
	for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
		size_t len = LENGTHS[i];
		// The whole of it, and its end.
		char *places[] = {gone + 2 * PAGE - len, gone + PAGE - len / 2};
		for (int place = 0; place < 2; place++) {
			REFUSED(exs_send(fd, places[place], len, 0, SYNC, handle), EFAULT);
			REFUSED(exs_recv(fd, places[place], len, 0, queue, 1, handle), EFAULT);
		}
	}
	no_event(queue);
	EQUALS(exs_send(fd, gone, PAGE, 0, SYNC, handle), PAGE);
	EQUALS(exs_recv(fd, gone, PAGE, 0, SYNC, handle), PAGE);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
	CHECK(mmap(gone + PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == gone + PAGE);
	EQUALS(*(volatile char *)(gone + PAGE), 0);
	EQUALS(faults, 1);
	EQUALS(exs_mderegister(handle), 0);
	EQUALS(munmap(gone, 2 * PAGE), 0);
}

// That of a small receive goes after the call: an event, and no connection any more. The packet comes in the
// advertisement, or is READ.
static void vanished_small_later(exs_qhandle_t queue)
{
	static const short LENGTHS[] = {10, 1000};
	for (int i = 0; i < 2; i++) {
		short len = LENGTHS[i];
		char *gone = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(gone != MAP_FAILED);
		exs_mhandle_t handle = exs_mregister(gone, PAGE, 0);
		CHECK(handle != EXS_MHANDLE_INVALID);
		int from = listener(SOCK_SEQPACKET);
		struct peer *peer = start("small giver", port_of(from));
		int fd = accepted(from);
		EQUALS(exs_recv(fd, gone, PAGE, 0, queue, 1, handle), 0);
		lose_page(gone);
		EQUALS(exs_send(fd, &len, sizeof len, 0, SYNC, LOOSE), sizeof len);
		EVENT(queue, EXS_EVT_RECV, 1, EFAULT);
		REFUSED(exs_send(fd, bytes, 1, 0, queue, 2, LOOSE), ECONNRESET);
		finish(peer);
		no_event(queue);
		EQUALS(exs_mderegister(handle), 0);
		closed(fd);
		closed(from);
		EQUALS(munmap(gone, PAGE), 0);
	}
}

// That of small sends of a stream goes while they wait for room in the peer's ring.
static void vanished_sends(void)
{
	exs_qhandle_t queue = queue_of(STEPS);
	char *gone = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	exs_mhandle_t handle = exs_mregister(gone, PAGE, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	int from = listener(SOCK_STREAM);
	struct peer *peer = start("late taker", port_of(from));
	int fd = accepted(from), tell = accepted(from);
	for (int i = 0; i < STEPS; i++)
		EQUALS(exs_send(fd, gone, STEP, 0, queue, i, handle), 0);
	// The last one that the ring has room for.
	for (int i = 0; i < 128 * 1024 / STEP; i++)
		EVENT(queue, EXS_EVT_SEND, i, 0);
	lose_page(gone);
	EQUALS(exs_send(tell, bytes, 1, 0, SYNC, LOOSE), 1);
	bool lost = false;
	for (int i = 128 * 1024 / STEP; i < STEPS; i++) {
		exs_event_t event = next_event(queue);
		EQUALS(event.exs_evt_ahandle, i);
		EQUALS(event.exs_evt_errno, lost || event.exs_evt_errno ? EFAULT : 0);
		lost = event.exs_evt_errno != 0;
	}
	CHECK(lost);
	finish(peer);
	no_event(queue);
	EQUALS(exs_mderegister(handle), 0);
	closed(fd);
	closed(tell);
	closed(from);
	EQUALS(exs_qdelete(queue), 0);
	EQUALS(munmap(gone, PAGE), 0);
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
			EVENT(queue, EXS_EVT_SEND, 1, EFAULT);
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

// So where the peer goes there: it READs a send, and WRITEs into a receive of a stream.
static void vanished_for_peers(exs_qhandle_t queue)
{
	static const int LENGTHS[] = {10, 300, 1000, PAGE, PAGE + 1, 4 * PAGE, LEN};
	static const size_t COUNT = sizeof LENGTHS / sizeof *LENGTHS;
	for (size_t i = 0; i < 2 * COUNT + 2; i++) {
		// The last two times the memory is registered for the transfer only.
		bool receives = i % 2, loose = i / 2 == COUNT;
		int len = loose ? LEN : LENGTHS[i / 2];
		if (!receives && len < 300)
			continue; // it goes with the call
		char *gone = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(gone != MAP_FAILED);
		exs_mhandle_t handle = loose ? LOOSE : exs_mregister(gone, LEN, 0);
		CHECK(handle != EXS_MHANDLE_INVALID);
		int from = listener(receives ? SOCK_STREAM : SOCK_SEQPACKET);
		struct peer *peer = start(receives ? "told giver" : "told taker", port_of(from));
		int fd = accepted(from), tell = accepted(from);
		if (receives)
			EQUALS(exs_recv(fd, gone, len, MSG_WAITALL, queue, 1, handle), 0);
		else
			EQUALS(exs_send(fd, gone, len, 0, queue, 1, handle), 0);
		lose_page(gone + (len - 1) / PAGE * PAGE);
		EQUALS(exs_send(tell, &len, sizeof len, 0, SYNC, LOOSE), sizeof len);
		EVENT(queue, receives ? EXS_EVT_RECV : EXS_EVT_SEND, 1, EFAULT);
		REFUSED(exs_send(fd, bytes, 1, 0, queue, 2, LOOSE), ECONNRESET);
		finish(peer);
		no_event(queue);
		if (!loose)
			EQUALS(exs_mderegister(handle), 0);
		closed(fd);
		closed(tell);
		closed(from);
		EQUALS(munmap(gone, LEN), 0);
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
	// Before the library has its own.
	struct sigaction action = {.sa_sigaction = count_fault, .sa_flags = SA_SIGINFO};
	EQUALS(sigaction(SIGSEGV, &action, NULL), 0);
	exs_qhandle_t queue = queue_of(16);
	if (separate)
		killed(queue);
	vanished(queue);
	vanished_small(queue);
	vanished_small_later(queue);
	vanished_sends();
	vanished_later(queue);
	vanished_for_peers(queue);
	in_use(queue);
	forked(queue);
	no_event(queue);
	EQUALS(exs_qdelete(queue), 0);
}
