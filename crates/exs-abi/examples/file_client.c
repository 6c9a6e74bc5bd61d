// A client of file_server.c: it writes what comes from the port of its argument to its standard output.
//
//   cc file_client.c -lexs && softrnic run -- ./a.out PORT [ADDRESS] >FILE
#include <sys/exs.h>
#include "address.h"

static void die(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	static char bytes[1 << 20];
	if (argc < 2) {
		fprintf(stderr, "usage: file_client PORT [ADDRESS]\n");
		return 2;
	}
	struct sockaddr_storage to;
	socklen_t room = address_of(argc > 2 ? argv[2] : NULL, atoi(argv[1]), &to);
	int fd = exs_socket(to.ss_family, SOCK_STREAM, 0);
	exs_mhandle_t memory = exs_mregister(bytes, sizeof bytes, 0);
	if (fd < 0 || memory == EXS_MHANDLE_INVALID)
		die("exs_socket, exs_mregister");
	if (exs_connect(fd, (struct sockaddr *)&to, room, 0, EXS_QHANDLE_INVALID, 0))
		die("exs_connect");
	ssize_t len;
	while ((len = exs_recv(fd, bytes, sizeof bytes, 0, EXS_QHANDLE_INVALID, 0, memory)) > 0)
		if (fwrite(bytes, 1, len, stdout) != (size_t)len)
			die("fwrite");
	if (len < 0)
		die("exs_recv");
	if (exs_close(fd, EXS_QHANDLE_INVALID, 0))
		die("exs_close");
	return 0;
}
