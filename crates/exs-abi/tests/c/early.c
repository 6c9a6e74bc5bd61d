// A first message that comes before rdma_connect has returned. Over iWARP the queue pair of the peer is in RTS as soon as
// the device has MPA's reply (RFC 5044, section 7.1), and the message of the accepting side may be right behind it. The
// peer looks for completions all the time, so it takes the message while its library is still in rdma_connect.
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <rdma/rdma_cma.h>

static int (*real_connect)(struct rdma_cm_id *, struct rdma_conn_param *);

// It returns late. That is long enough on most machines for the message; a slower one makes the case an ordinary one.
static int __attribute__((unused)) late_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	int done = real_connect(id, param);
	usleep(300 * 1000);
	return done;
}

// The library looks its functions up by this one. The sanitizers do, too, before they can run instrumented code.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
	void *(*real)(void *, const char *, const char *);
	*(void **)&real = dlsym(RTLD_NEXT, "dlvsym");
	void *found = real(handle, name, version);
	if (!found || strcmp(name, "rdma_connect"))
		return found;
	*(void **)&real_connect = found;
	return (void *)late_connect;
}
#define LATE true
#else
#define LATE false
#endif

static void hears(int type, int port)
{
	char word[8] = "";
	struct sockaddr_in address = at_port(port);
	exs_qhandle_t queue = queue_of(4);
	int wait = EXS_WAIT_BUSY_POLL, fd = exs_socket(AF_INET, type, 0);
	EQUALS(exs_qmodify(queue, EXS_QATTR_WAIT, &wait), 0);
	EQUALS(exs_connect(fd, (struct sockaddr *)&address, sizeof address, 0, queue, 1), 0);
	EVENT(queue, EXS_EVT_CONNECT, 1, 0);
	EQUALS(real_connect != NULL, LATE);
	EQUALS(exs_recv(fd, word, 5, 0, queue, 2, LOOSE), 0);
	exs_event_t event = EVENT(queue, EXS_EVT_RECV, 2, 0);
	CHECK(event.exs_evt_length == 5 && !strcmp(word, "early"));
	closed(fd);
	EQUALS(exs_qdelete(queue), 0);
}

static void packets(int port)
{
	hears(SOCK_SEQPACKET, port);
}

static void stream(int port)
{
	hears(SOCK_STREAM, port);
}

const struct part PARTS[] = {{"packets", packets}, {"stream", stream}, {NULL, NULL}};

void test(void)
{
	static const int types[] = {SOCK_SEQPACKET, SOCK_STREAM};
	for (int i = 0; i < 2; i++) {
		char byte;
		int from = listener(types[i]);
		struct peer *peer = start(PARTS[i].name, port_of(from));
		int fd = accepted(from);
		EQUALS(exs_send(fd, "early", 5, 0, SYNC, LOOSE), 5);
		// The end of the peer's data: it has received all.
		EQUALS(exs_recv(fd, &byte, 1, 0, SYNC, LOOSE), 0);
		finish(peer);
		closed(fd);
		closed(from);
	}
}
