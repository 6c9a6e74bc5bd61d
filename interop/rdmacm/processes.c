/* Two processes: the events of one when the other is killed. */
#include "harness.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { REASON_CONSUMER = 28 };

/* A client that connects, reports that, and waits to be killed. */
static void client(const struct where *w, uint16_t port, int told, bool established)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port);
	struct rdma_conn_param param = parameters("hello", 5);
	queue_pair(id);
	OK(rdma_connect(id, &param));
	if (established)
		EXPECT(ch, ESTABLISHED, 0);
	if (write(told, "x", 1) != 1)
		_exit(1);
	if (established) {
		EXPECT(ch, DISCONNECTED, 0);
		OK(rdma_disconnect(id));
	}
	pause();
}

struct peer {
	pid_t pid;
	int pipe;
};

static void wait_for(struct peer *peer)
{
	char c;
	if (read(peer->pipe, &c, 1) != 1)
		FAIL("the client has ended");
}

static void end(struct peer *peer)
{
	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
}

/* The port is known before the library is used: the client is forked from a process that has not. */
static uint16_t some_port(void)
{
	return 20000 + getpid() % 10000;
}

static struct rdma_cm_id *listen_at(struct rdma_event_channel *ch, const struct where *w, uint16_t port)
{
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	OK(rdma_bind_addr(id, with_port(w, port, &s)));
	OK(rdma_listen(id, 8));
	return id;
}

/* A process that holds the start until the server listens. */
static struct peer start_when(const struct where *w, uint16_t port, bool established, int *go)
{
	int pipes[2], gate[2];
	OK(pipe(pipes));
	OK(pipe(gate));
	struct peer peer = { .pipe = pipes[0] };
	peer.pid = fork();
	if (peer.pid == 0) {
		char c;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(gate[1]);
		if (read(gate[0], &c, 1) != 1)
			_exit(1);
		client(w, port, pipes[1], established);
	}
	close(pipes[1]);
	close(gate[0]);
	*go = gate[1];
	return peer;
}

static void killed_when_connected(const struct where *w)
{
	int go;
	uint16_t port = some_port();
	struct peer peer = start_when(w, port, true, &go);
	struct rdma_event_channel *ch = channel();
	struct rdma_conn_param param = parameters(NULL, 0);
	listen_at(ch, w, port);
	if (write(go, "x", 1) != 1)
		FAIL("write");
	struct event e = EXPECT(ch, CONNECT_REQUEST, 0);
	IS(memcmp(e.data, "hello", 5), 0);
	queue_pair(e.id);
	OK(rdma_accept(e.id, &param));
	EXPECT(ch, ESTABLISHED, 0);
	wait_for(&peer);
	end(&peer);
	struct rdma_cm_id *id = e.id;
	e = EXPECT(ch, DISCONNECTED, 0);
	TRUE(e.id == id);
	OK(rdma_disconnect(id));
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
}

/* The client dies with its request unanswered: there is no event (see client_gives_up), and accepting comes too late. */
static void killed_before_the_answer(const struct where *w)
{
	int go;
	uint16_t port = some_port();
	struct peer peer = start_when(w, port, false, &go);
	struct rdma_event_channel *ch = channel();
	struct rdma_conn_param param = parameters(NULL, 0);
	listen_at(ch, w, port);
	if (write(go, "x", 1) != 1)
		FAIL("write");
	struct event e = EXPECT(ch, CONNECT_REQUEST, 0);
	struct rdma_cm_id *id = e.id;
	queue_pair(id);
	wait_for(&peer);
	end(&peer);
	QUIET(ch);
	FAILS(rdma_accept(id, &param), EINVAL);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
}

/* The server dies with the request unread, or read and unanswered: the client is rejected. */
static void server_killed(const struct where *w, bool read_it)
{
	int pipes[2];
	uint16_t port = some_port();
	OK(pipe(pipes));
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		struct rdma_event_channel *ch = channel();
		listen_at(ch, w, port);
		if (write(pipes[1], "x", 1) != 1)
			_exit(1);
		if (read_it)
			EXPECT(ch, CONNECT_REQUEST, 0);
		else
			poll(&(struct pollfd){ .fd = ch->fd, .events = POLLIN }, 1, PATIENCE);
		if (write(pipes[1], "y", 1) != 1)
			_exit(1);
		pause();
	}
	struct peer peer = { .pid = child, .pipe = pipes[0] };
	close(pipes[1]);
	wait_for(&peer);
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port);
	struct rdma_conn_param param = parameters(NULL, 0);
	queue_pair(id);
	OK(rdma_connect(id, &param));
	wait_for(&peer);
	end(&peer);
	struct event e = EXPECT(ch, REJECTED, REASON_CONSUMER);
	TRUE(e.id == id);
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
}

static void server_killed_unread(const struct where *w)
{
	server_killed(w, false);
}

static void server_killed_unanswered(const struct where *w)
{
	server_killed(w, true);
}

/* Both in their own process, to the end. */
static void two_processes(const struct where *w)
{
	uint16_t port = some_port();
	int go;
	struct peer peer = start_when(w, port, true, &go);
	struct rdma_event_channel *ch = channel();
	struct rdma_conn_param param = parameters("reply", 5);
	listen_at(ch, w, port);
	if (write(go, "x", 1) != 1)
		FAIL("write");
	struct event e = EXPECT(ch, CONNECT_REQUEST, 0);
	queue_pair(e.id);
	OK(rdma_accept(e.id, &param));
	EXPECT(ch, ESTABLISHED, 0);
	wait_for(&peer);
	OK(rdma_disconnect(e.id));
	EXPECT(ch, DISCONNECTED, 0);
	end(&peer);
}

const struct test process_tests[] = {
	{ "killed_when_connected", killed_when_connected, true, 60 },
	{ "killed_before_the_answer", killed_before_the_answer, true, 60 },
	{ "server_killed_unread", server_killed_unread, true, 60 },
	{ "server_killed_unanswered", server_killed_unanswered, true, 60 },
	{ "two_processes", two_processes, true, 0 },
	{ 0 },
};
