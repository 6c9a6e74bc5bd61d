// A client of echo_server.c: it sends its second argument to the port of its first one, and prints what comes back. It
// uses no queue: each call waits. The third argument is the address of another host.
//
//   cc echo_client.c -lexs && softrnic run -- ./a.out PORT TEXT [ADDRESS]
#include <sys/exs.h>
#include "address.h"

static void die(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: echo_client PORT TEXT [ADDRESS]\n");
		return 2;
	}
	size_t len = strlen(argv[2]);
	char *answer = calloc(len + 1, 1);
	struct sockaddr_storage to;
	socklen_t room = address_of(argc > 3 ? argv[3] : NULL, atoi(argv[1]), &to);
	int fd = exs_socket(to.ss_family, SOCK_STREAM, 0);
	if (fd < 0)
		die("exs_socket");
	if (exs_connect(fd, (struct sockaddr *)&to, room, 0, EXS_QHANDLE_INVALID, 0))
		die("exs_connect");
	if (exs_send(fd, argv[2], len, 0, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED) != (ssize_t)len)
		die("exs_send");
	ssize_t came = exs_recv(fd, answer, len, MSG_WAITALL, EXS_QHANDLE_INVALID, 0, EXS_MHANDLE_UNREGISTERED);
	if (came != (ssize_t)len)
		die("exs_recv");
	puts(answer);
	if (exs_close(fd, EXS_QHANDLE_INVALID, 0))
		die("exs_close");
	return 0;
}
