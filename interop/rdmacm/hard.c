/* Mistakes of real programs, and rare cases: both at once, far too many, descriptors that stay. */
#include "harness.h"

#include <pthread.h>

static void *disconnect_it(void *id)
{
	OK(rdma_disconnect(id));
	return NULL;
}

/* Both sides at once: each sees exactly one DISCONNECTED. */
static void disconnect_at_once(const struct where *w)
{
	for (int i = 0; i < 20; i++) {
		struct pair p = connected(w);
		pthread_t threads[2];
		IS(pthread_create(&threads[0], NULL, disconnect_it, p.client), 0);
		IS(pthread_create(&threads[1], NULL, disconnect_it, p.server), 0);
		pthread_join(threads[0], NULL);
		pthread_join(threads[1], NULL);
		EXPECT(p.client_ch, DISCONNECTED, 0);
		EXPECT(p.server_ch, DISCONNECTED, 0);
		destroyed(&p);
	}
}

/* A second disconnect is no error, and no second event. */
static void disconnect_twice(const struct where *w)
{
	struct pair p = connected(w);
	OK(rdma_disconnect(p.client));
	EXPECT(p.server_ch, DISCONNECTED, 0);
	OK(rdma_disconnect(p.server));
	EXPECT(p.client_ch, DISCONNECTED, 0);
	errno = 0;
	int ret = rdma_disconnect(p.client);
	TRUE(ret == 0 || (ret == -1 && errno == EINVAL));
	QUIET(p.client_ch);
	QUIET(p.server_ch);
	destroyed(&p);
}

/* Disconnecting before the peer has answered takes the request back. */
static void disconnect_while_connecting(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	errno = 0;
	int ret = rdma_disconnect(p.client);
	TRUE(ret == 0 || (ret == -1 && errno == EINVAL));
	destroyed(&p);
}

enum { MANY = 1000 };

/* Queue pairs that exist in no other connection: a connection manager may take a second use for a stale connection. */
enum { CLIENT_QP = 0x10000, SERVER_QP = 0x20000 };

static void *accept_all(void *arg)
{
	struct rdma_event_channel *ch = arg;
	struct rdma_conn_param param = parameters(NULL, 0);
	for (int left = MANY; left;) {
		struct event e;
		if (!next_event(ch, 60000, &e))
			FAIL("with %d to come: expected a request, got no event", left);
		if (e.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			left--;
			param.qp_num = SERVER_QP + left;
			OK(rdma_accept(e.id, &param));
		}
	}
	return NULL;
}

/*
 * A thousand clients at once, ten places, and a server that does not look at its channel: no client is rejected. One that
 * found no place asks again (Linux drops the request so that it may come again, cm_destroy_id), so when the server looks,
 * all are accepted.
 */
static void thousand_against_ten(const struct where *w)
{
	static struct rdma_cm_id *ids[MANY];
	struct rdma_event_channel *server_ch = channel(), *ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_TCP, 10);
	struct rdma_conn_param param = parameters("many", 4);
	pthread_t thread;
	for (int i = 0; i < MANY; i++)
		ids[i] = routed(ch, w, RDMA_PS_TCP, port_of(listen));
	for (int i = 0; i < MANY; i++) {
		param.qp_num = CLIENT_QP + i;
		OK(rdma_connect(ids[i], &param));
	}
	QUIET(ch);
	IS(pthread_create(&thread, NULL, accept_all, server_ch), 0);
	for (int i = 0; i < MANY; i++) {
		struct event e;
		if (!next_event(ch, 60000, &e))
			FAIL("after %d responses: expected an event, got none", i);
		IS(e.type, RDMA_CM_EVENT_CONNECT_RESPONSE);
		OK(rdma_establish(e.id));
	}
	IS(pthread_join(thread, NULL), 0);
}

/* A server that reads while a thousand come. */
static void thousand_with_room(const struct where *w)
{
	struct rdma_event_channel *server_ch = channel(), *ch = channel();
	struct rdma_cm_id *listen = listener(server_ch, w, RDMA_PS_TCP, 1024);
	struct rdma_conn_param param = parameters(NULL, 0);
	struct sockaddr_storage s;
	pthread_t thread;
	int next = CLIENT_QP;
	IS(pthread_create(&thread, NULL, accept_all, server_ch), 0);
	for (int i = 0; i < MANY; i++)
		OK(rdma_resolve_addr(new_id(ch, RDMA_PS_TCP), NULL, with_port(w, port_of(listen), &s), 2000));
	for (int done = 0; done < MANY;) {
		struct event e;
		TRUE(next_event(ch, 60000, &e));
		switch (e.type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			OK(rdma_resolve_route(e.id, 2000));
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			param.qp_num = next++;
			OK(rdma_connect(e.id, &param));
			break;
		case RDMA_CM_EVENT_CONNECT_RESPONSE:
			TRUE(e.conn.qp_num >= SERVER_QP && e.conn.qp_num < SERVER_QP + MANY);
			OK(rdma_establish(e.id));
			done++;
			break;
		default:
			FAIL("unexpected %s status %d", rdma_event_str(e.type), e.status);
		}
	}
	IS(pthread_join(thread, NULL), 0);
}

/* Connections come and go: as many descriptors afterwards as before. */
static void descriptors_stay(const struct where *w)
{
	int before = 0;
	for (int i = 0; i < 200; i++) {
		struct pair p = connected(w);
		traffic(p.client, p.server);
		disconnected(&p);
		destroyed(&p);
		/* The first ones open the device and the other objects that are kept. */
		if (i == 100)
			before = open_descriptors();
	}
	/* The last message to the peer may take a moment. */
	for (int i = 0; i < 500 && open_descriptors() > before; i++)
		usleep(10000);
	IS(open_descriptors(), before);
}

/* Resolving is under way when the id goes. */
static void destroy_while_resolving(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	for (int i = 0; i < 100; i++) {
		struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
		OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
		OK(rdma_destroy_id(id));
	}
	QUIET(ch);
	rdma_destroy_event_channel(ch);
}

/* Two ids connect to each other's listener at the same time. */
static void crossing_connects(const struct where *w)
{
	struct rdma_event_channel *chs[2] = { channel(), channel() };
	struct rdma_cm_id *listens[2], *ids[2];
	struct rdma_conn_param param = parameters(NULL, 0);
	for (int i = 0; i < 2; i++)
		listens[i] = listener(chs[i], w, RDMA_PS_TCP, 2);
	for (int i = 0; i < 2; i++) {
		struct rdma_event_channel *own = channel();
		ids[i] = routed(own, w, RDMA_PS_TCP, port_of(listens[!i]));
		queue_pair(ids[i]);
	}
	for (int i = 0; i < 2; i++)
		OK(rdma_connect(ids[i], &param));
	for (int i = 0; i < 2; i++) {
		struct event e = EXPECT(chs[i], CONNECT_REQUEST, 0);
		queue_pair(e.id);
		OK(rdma_accept(e.id, &param));
		EXPECT(ids[!i]->channel, ESTABLISHED, 0);
		EXPECT(chs[i], ESTABLISHED, 0);
		traffic(e.id, ids[!i]);
	}
}

/* A channel is used that was destroyed. */
static void destroyed_channel(const struct where *w)
{
	struct rdma_event_channel *last[10];
	struct rdma_cm_event *event;
	int before = 0;
	(void)w;
	for (int i = 0; i < 1000; i++) {
		struct rdma_event_channel *ch = last[i % 10] = channel();
		rdma_destroy_event_channel(ch);
		if (i == 0)
			before = open_descriptors(); /* the first one opens the device */
	}
	IS(open_descriptors(), before);
	for (int i = 0; i < 10; i++) {
		FAILS(rdma_get_cm_event(last[i], &event), EBADF);
		rdma_destroy_event_channel(last[i]);
		FAILS(rdma_get_cm_event(last[i], &event), EBADF);
	}
}

const struct test hard_tests[] = {
	{ "disconnect_at_once", disconnect_at_once, true, 60 },
	{ "disconnect_twice", disconnect_twice, true, 0 },
	{ "disconnect_while_connecting", disconnect_while_connecting, true, 0 },
	{ "thousand_against_ten", thousand_against_ten, false, 120 },
	{ "thousand_with_room", thousand_with_room, false, 120 },
	{ "descriptors_stay", descriptors_stay, false, 60 },
	{ "destroy_while_resolving", destroy_while_resolving, true, 0 },
	{ "crossing_connects", crossing_connects, true, 0 },
	{ "destroyed_channel", destroyed_channel, false, 0 },
	{ 0 },
};
