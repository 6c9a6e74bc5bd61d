// A server of extended sockets: it sends back what each connection sends, from one thread, until it has served as many
// connections as its argument says (for ever without one). It prints the port at which it listens. Two more arguments
// are the address and the port.
//
//   cc echo_server.c -lexs && softrnic run -- ./a.out [TIMES [ADDRESS PORT]]
#include <errno.h>
#include <sys/exs.h>
#include "address.h"

#define CONNECTIONS 16
#define BYTES 65536

// The handle of an operation is the place of its connection.
static char memory[CONNECTIONS][BYTES];
static int descriptors[CONNECTIONS];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	long left = argc > 1 ? atol(argv[1]) : -1;
	if (exs_init(EXS_VERSION) != EXS_VERSION)
		die("exs_init");
	exs_qhandle_t queue = exs_qcreate(4 * CONNECTIONS);
	exs_mhandle_t handle = exs_mregister(memory, sizeof memory, 0);
	struct sockaddr_storage address;
	socklen_t len = address_of(argc > 3 ? argv[2] : NULL, argc > 3 ? atoi(argv[3]) : 0, &address);
	int listener = exs_socket(address.ss_family, SOCK_STREAM, 0);
	if (queue == EXS_QHANDLE_INVALID || handle == EXS_MHANDLE_INVALID || listener < 0)
		die("exs_qcreate, exs_mregister, exs_socket");
	if (exs_bind(listener, (struct sockaddr *)&address, len) || exs_listen(listener, CONNECTIONS) ||
	    exs_getsockname(listener, (struct sockaddr *)&address, &len))
		die("exs_bind, exs_listen");
	printf("%d\n", port_of(&address));
	fflush(stdout);
	for (int place = 0; place < CONNECTIONS; place++)
		if (exs_accept(listener, NULL, 0, queue, place))
			die("exs_accept");

	while (left != 0) {
		exs_event_t event;
		if (exs_qdequeue(queue, &event, 1, NULL) != 1) {
			if (errno == EINTR)
				continue;
			die("exs_qdequeue");
		}
		long place = event.exs_evt_ahandle;
		char *bytes = memory[place];
		int fd = descriptors[place];
		int failed = event.exs_evt_errno != 0, again = 0;
		switch (event.exs_evt_type) {
		case EXS_EVT_ACCEPT:
			if (failed) {
				again = exs_accept(listener, NULL, 0, queue, place);
				break;
			}
			fd = descriptors[place] = event.exs_evt_newfd;
			again = exs_recv(fd, bytes, BYTES, 0, queue, place, handle);
			break;
		case EXS_EVT_RECV:
			if (failed || event.exs_evt_length == 0)
				again = exs_close(fd, queue, place);
			else
				again = exs_send(fd, bytes, event.exs_evt_length, 0, queue, place, handle);
			break;
		case EXS_EVT_SEND:
			if (failed)
				again = exs_close(fd, queue, place);
			else
				again = exs_recv(fd, bytes, BYTES, 0, queue, place, handle);
			break;
		case EXS_EVT_CLOSE:
			left -= left > 0;
			again = exs_accept(listener, NULL, 0, queue, place);
			break;
		}
		// The connection is gone, and its descriptor is still there.
		if (again && exs_close(fd, queue, place))
			die("exs_close");
	}
	return 0;
}
