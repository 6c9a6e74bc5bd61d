// The end of the servers: EIO, and a text that names the hop.
#include "common.h"

int main(int argc, char **argv)
{
	(void)argc;
	static char buffer[64];
	struct compat_hyperclient *client = join(argv[1], buffer, sizeof buffer);
	const struct compat_hyperloop_operation op = gwrite(0, 8);
	run(client, op);
	CHECK(kill(atoi(getenv("SERVER")), SIGKILL) == 0);
	unsigned long took;
	do
		took = compat_hyperclient_do_operations(client, &op, 1, 1);
	while (took != COMPAT_HYPERCLIENT_FAILED);
	CHECK(errno == EIO && strstr(compat_hyperclient_error(), "hop 0"));
	REFUSED(compat_hyperclient_do_operations(client, &op, 1, 1), COMPAT_HYPERCLIENT_FAILED, EIO);
	REFUSED(compat_hyperclient_send_print_buffer(client, 0, 8), -1, EIO);
	CHECK(compat_hyperclient_destroy(client) == 0);
	return 0;
}
