// exs_poll: sockets of the library and descriptors of the kernel, in one list.
#include "common.h"

static void slow(int port)
{
	int fd = connected(SOCK_STREAM, port);
	char byte;
	// One byte back for each that comes.
	while (exs_recv(fd, &byte, 1, 0, SYNC, LOOSE) == 1)
		EQUALS(exs_send(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	closed(fd);
}

const struct part PARTS[] = {{"slow", slow}, {NULL, NULL}};

void test(void)
{
	exs_qhandle_t queue = queue_of(8);
	int from = listener(SOCK_STREAM), pipes[2];
	struct timeval none = {0}, little = {.tv_usec = 20000};
	exs_pollfd_t entries[4];
	exs_fdvec_t list = {.exs_fdv_fds = entries, .exs_fdv_count = 1};
	char byte;
	EQUALS(pipe(pipes), 0);

	// A listener is readable when a connection waits.
	entries[0] = (exs_pollfd_t){.fd = from, .events = POLLIN};
	EQUALS(exs_poll(&list, 0, &none, SYNC), 0);
	EQUALS(exs_poll(&list, 0, NULL, queue, 1), 0);
	struct peer *peer = start("slow", port_of(from));
	exs_event_t event = EVENT(queue, EXS_EVT_POLL, 1, 0);
	CHECK(event.exs_evt_data == &list);
	EQUALS(event.exs_evt_fd, -1);
	EQUALS(event.exs_evt_length, 1);
	EQUALS(entries[0].revents, POLLIN);
	int fd = accepted(from);

	// A connection is writable, and readable when something comes; a time that is over ends it.
	entries[0] = (exs_pollfd_t){.fd = fd, .events = POLLIN | POLLOUT};
	EQUALS(exs_poll(&list, 0, NULL, SYNC), 1);
	EQUALS(entries[0].revents, POLLOUT);
	entries[0].events = POLLIN;
	entries[1] = (exs_pollfd_t){.fd = pipes[0], .events = POLLIN, .revents = 99};
	entries[2] = (exs_pollfd_t){.fd = -1, .events = POLLIN, .revents = 99};
	entries[3] = (exs_pollfd_t){.fd = 12345, .events = POLLIN};
	list.exs_fdv_count = 3;
	EQUALS(exs_poll(&list, 0, &little, queue, 2), 0);
	EQUALS(EVENT(queue, EXS_EVT_POLL, 2, 0).exs_evt_length, 0);
	EQUALS(entries[0].revents | entries[1].revents | entries[2].revents, 0);
	EQUALS(exs_poll(&list, 0, NULL, queue, 3), 0);
	no_event(queue);
	EQUALS(exs_send(fd, "a", 1, 0, SYNC, LOOSE), 1);
	EQUALS(EVENT(queue, EXS_EVT_POLL, 3, 0).exs_evt_length, 1);
	EQUALS(entries[0].revents, POLLIN);
	EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 1);
	EQUALS(exs_poll(&list, 0, &none, SYNC), 0);

	// A descriptor of the kernel, and one that is none.
	EQUALS(exs_poll(&list, 0, NULL, queue, 4), 0);
	EQUALS(write(pipes[1], "b", 1), 1);
	EQUALS(EVENT(queue, EXS_EVT_POLL, 4, 0).exs_evt_length, 1);
	EQUALS(entries[1].revents, POLLIN);
	EQUALS(read(pipes[0], &byte, 1), 1);
	list.exs_fdv_count = 4;
	EQUALS(exs_poll(&list, 0, NULL, SYNC), 1);
	EQUALS(entries[3].revents, POLLNVAL);
	list.exs_fdv_count = 3;

	// Cancelled; several at once.
	EQUALS(exs_poll(&list, 0, NULL, queue, 5), 0);
	EQUALS(exs_poll(&list, 0, NULL, queue, 6), 0);
	EQUALS(exs_cancel(-1, queue, 5), 1);
	EVENT(queue, EXS_EVT_POLL, 5, ECANCELED);
	EQUALS(exs_cancel(-1, queue, 5), 0);
	// A poll that is just being looked at is found, too.
	for (int turn = 0; turn < 2000; turn++) {
		EQUALS(exs_poll(&list, 0, NULL, queue, 7), 0);
		EQUALS(exs_cancel(-1, queue, 7), 1);
		EVENT(queue, EXS_EVT_POLL, 7, ECANCELED);
	}

	// The end of the peer's data is readable.
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	EQUALS(EVENT(queue, EXS_EVT_POLL, 6, 0).exs_evt_length, 1);
	CHECK(entries[0].revents & POLLIN);
	EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 0);
	finish(peer);
	closed(fd);
	entries[0].fd = from;
	EQUALS(exs_poll(&list, 0, &none, SYNC), 0);
	closed(from);
	// It is not there any more.
	EQUALS(exs_poll(&list, 0, NULL, SYNC), 1);
	EQUALS(entries[0].revents, POLLNVAL);
	EQUALS(exs_qdelete(queue), 0);
}
