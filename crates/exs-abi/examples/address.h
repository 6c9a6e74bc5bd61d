// The address of a program's arguments, for the examples.
#ifndef ADDRESS_H
#define ADDRESS_H

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Fill an address of IPv4 or IPv6 in; its length. The address of this host if there is no text.
static inline socklen_t address_of(const char *text, int port, struct sockaddr_storage *to)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	memset(to, 0, sizeof *to);
	if (inet_pton(AF_INET, text ? text : "127.0.0.1", &v4.sin_addr) == 1) {
		memcpy(to, &v4, sizeof v4);
		return sizeof v4;
	}
	if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
		memcpy(to, &v6, sizeof v6);
		return sizeof v6;
	}
	fprintf(stderr, "%s is no address\n", text);
	exit(2);
}

// The port, which is at the same place in both.
static inline int port_of(const struct sockaddr_storage *address)
{
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

#endif
