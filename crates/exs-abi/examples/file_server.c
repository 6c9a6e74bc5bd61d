// A file server: it sends the file of its first argument over each connection, which it then closes, as often as its
// second argument says (for ever without one). It prints the port at which it listens. Two more arguments are the
// address and the port.
//
//   cc file_server.c -lexs && softrnic run -- ./a.out FILE [TIMES [ADDRESS PORT]]
#include <fcntl.h>
#include <sys/exs.h>
#include "address.h"

static void die(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: file_server FILE [TIMES [ADDRESS PORT]]\n");
		return 2;
	}
	int file = open(argv[1], O_RDONLY | O_CLOEXEC);
	struct sockaddr_storage address;
	socklen_t len = address_of(argc > 4 ? argv[3] : NULL, argc > 4 ? atoi(argv[4]) : 0, &address);
	int listener = exs_socket(address.ss_family, SOCK_STREAM, 0);
	if (file < 0 || listener < 0)
		die("open, exs_socket");
	if (exs_bind(listener, (struct sockaddr *)&address, len) || exs_listen(listener, 16) ||
	    exs_getsockname(listener, (struct sockaddr *)&address, &len))
		die("exs_bind, exs_listen");
	printf("%d\n", port_of(&address));
	fflush(stdout);
	for (long left = argc > 2 ? atol(argv[2]) : -1; left != 0; left -= left > 0) {
		int fd = exs_accept(listener, NULL, 0, EXS_QHANDLE_INVALID, 0);
		// Length 0: up to the end of the file.
		exs_xferfile_t whole = {.exs_xf_fd = file};
		if (fd < 0)
			die("exs_accept");
		if (exs_sendfile(fd, &whole, 0, EXS_QHANDLE_INVALID, 0) < 0)
			perror("exs_sendfile");
		if (exs_close(fd, EXS_QHANDLE_INVALID, 0))
			die("exs_close");
	}
	return 0;
}
