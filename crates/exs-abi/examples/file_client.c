// A client of file_server.c: it writes what comes from the port of its argument to its standard output.
//
//   cc file_client.c -lexs && softrnic run -- ./a.out PORT >FILE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/exs.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	static char bytes[1 << 20];
	if (argc != 2) {
		fprintf(stderr, "usage: file_client PORT\n");
		return 2;
	}
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(atoi(argv[1])),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = exs_socket(AF_INET, SOCK_STREAM, 0);
	exs_mhandle_t memory = exs_mregister(bytes, sizeof bytes, 0);
	if (fd < 0 || memory == EXS_MHANDLE_INVALID)
		die("exs_socket, exs_mregister");
	if (exs_connect(fd, (struct sockaddr *)&to, sizeof to, 0, EXS_QHANDLE_INVALID, 0))
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
