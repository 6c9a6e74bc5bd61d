// softiw0 has no extended sockets: the call says so, and no later one.
#include "common.h"

const struct part PARTS[] = {{NULL, NULL}};

void test(void)
{
	// Before the library looks for a device.
	EQUALS(setenv("SOFTRNIC_DEVICE", "iwarp", 1), 0);
	REFUSED(exs_socket(AF_INET, SOCK_STREAM, 0), ENODEV);
	REFUSED(exs_socket(AF_INET, SOCK_SEQPACKET, 0), ENODEV);
}
