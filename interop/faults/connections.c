/* The events of rdma_cm: for a connection to another process, and two listeners, one at an address and one at all. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#include "meet.h"

/* An address of an interface; loopback if there is none. */
static struct sockaddr_in address(void)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct ifaddrs *list;

	if (getifaddrs(&list))
		return found;
	for (struct ifaddrs *at = list; at; at = at->ifa_next)
		if (at->ifa_addr && at->ifa_addr->sa_family == AF_INET && !(at->ifa_flags & IFF_LOOPBACK) &&
		    at->ifa_flags & IFF_UP)
			found.sin_addr = ((struct sockaddr_in *)at->ifa_addr)->sin_addr;
	freeifaddrs(list);
	return found;
}

/* The next event's type, or -1; it is acknowledged, and `id` is the event's id. */
static int next(struct rdma_event_channel *channel, int ms, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	int type;

	if (!readable(channel->fd, ms))
		return -1;
	if (rdma_get_cm_event(channel, &event))
		die("rdma_get_cm_event");
	type = event->event;
	*id = event->id;
	rdma_ack_cm_event(event);
	return type;
}

static void want(struct rdma_event_channel *channel, int type, struct rdma_cm_id **id)
{
	int got = next(channel, 5000, id);

	if (got != type) {
		printf("%s instead of %s\n", got < 0 ? "nothing" : rdma_event_str(got), rdma_event_str(type));
		exit(1);
	}
}

static void other_process(int fd, struct sockaddr_in at)
{
	struct rdma_event_channel *channel = NEED(rdma_create_event_channel());
	struct rdma_conn_param param = { .qp_num = 1 };
	struct rdma_cm_id *listener, *id;

	ZERO(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	ZERO(rdma_bind_addr(listener, (struct sockaddr *)&at));
	ZERO(rdma_listen(listener, 1));
	at.sin_port = rdma_get_src_port(listener);
	if (write(fd, &at, sizeof(at)) != sizeof(at))
		die("the other process");
	want(channel, RDMA_CM_EVENT_CONNECT_REQUEST, &id);
	ZERO(rdma_accept(id, &param));
	want(channel, RDMA_CM_EVENT_ESTABLISHED, &id);
	int type = next(channel, 30000, &id);

	if (write(fd, &type, sizeof(type)) != sizeof(type))
		die("the other process");
}

void connections(void)
{
	struct sockaddr_in at = address(), far, any = { .sin_family = AF_INET };
	struct rdma_cm_id *id, *bound, *wild, *whose;
	struct rdma_conn_param param = { .qp_num = 1 };
	int fds[2], type;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		die("socketpair");
	pid_t other = fork();

	if (!other) {
		unsetenv("SOFTRNIC_FAULT");
		other_process(fds[0], at);
		exit(0);
	}
	if (read(fds[1], &far, sizeof(far)) != sizeof(far))
		die("the other process");
	struct rdma_event_channel *channel = NEED(rdma_create_event_channel());

	ZERO(rdma_create_id(channel, &bound, NULL, RDMA_PS_TCP));
	ZERO(rdma_bind_addr(bound, (struct sockaddr *)&at));
	ZERO(rdma_listen(bound, 1));
	ZERO(rdma_create_id(channel, &wild, NULL, RDMA_PS_TCP));
	ZERO(rdma_bind_addr(wild, (struct sockaddr *)&any));
	ZERO(rdma_listen(wild, 1));
	ZERO(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	ZERO(rdma_resolve_addr(id, NULL, (struct sockaddr *)&far, 2000));
	want(channel, RDMA_CM_EVENT_ADDR_RESOLVED, &whose);
	ZERO(rdma_resolve_route(id, 2000));
	want(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, &whose);
	ZERO(rdma_connect(id, &param));
	want(channel, RDMA_CM_EVENT_CONNECT_RESPONSE, &whose);
	ZERO(rdma_establish(id));
	for (int ms = 15000; (type = next(channel, ms, &whose)) >= 0; ms = 3000)
		printf("%s: %s\n", whose == id ? "connection" : whose == bound ? "listener at an address" : "listener at all",
		       rdma_event_str(type));
	printf("rdma_disconnect: %s\n", rdma_disconnect(id) ? strerrorname_np(errno) : "done");
	ZERO(rdma_destroy_id(id));
	ZERO(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	printf("rdma_bind_addr: %s\n", rdma_bind_addr(id, (struct sockaddr *)&at) ? strerrorname_np(errno) : "done");
	ZERO(rdma_destroy_id(id));
	ZERO(rdma_destroy_id(bound));
	ZERO(rdma_destroy_id(wild));
	rdma_destroy_event_channel(channel);
	if (read(fds[1], &type, sizeof(type)) != sizeof(type))
		die("the other process");
	printf("the peer: %s\n", type < 0 ? "nothing" : rdma_event_str(type));
	waitpid(other, NULL, 0);
}
