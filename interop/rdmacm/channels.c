/* Event channels: polling, not blocking, moving ids from one to another, and the calls that wait for acknowledgements. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

static void channel_descriptor(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_event *event;
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	TRUE(ch->fd >= 0);
	IS(poll(&p, 1, 0), 0);
	OK(fcntl(ch->fd, F_SETFL, fcntl(ch->fd, F_GETFL) | O_NONBLOCK));
	FAILS(rdma_get_cm_event(ch, &event), EAGAIN);
	FAILS(rdma_get_cm_event(ch, NULL), EINVAL);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	IS(poll(&p, 1, PATIENCE), 1);
	IS(p.revents, POLLIN);
	OK(rdma_get_cm_event(ch, &event));
	IS(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	/* Taken, not only acknowledged: the descriptor is quiet again. */
	IS(poll(&p, 1, 0), 0);
	FAILS(rdma_get_cm_event(ch, &event), EAGAIN);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
}

/* Handed out and back a thousand times: nothing stays. */
static void channels_come_and_go(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	(void)w;
	rdma_destroy_event_channel(ch);
	int before = open_descriptors();
	for (int i = 0; i < 1000; i++) {
		ch = channel();
		struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
		OK(rdma_destroy_id(id));
		rdma_destroy_event_channel(ch);
	}
	IS(open_descriptors(), before);
}

static void *get_one(void *arg)
{
	struct rdma_cm_event *event;
	OK(rdma_get_cm_event(arg, &event));
	IS(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	OK(rdma_ack_cm_event(event));
	return NULL;
}

/* A thread that waits is woken, however many wait. */
static void threads_wait(const struct where *w)
{
	enum { MANY = 8 };
	struct rdma_event_channel *ch = channel();
	pthread_t threads[MANY];
	struct sockaddr_storage s;
	for (int i = 0; i < MANY; i++)
		IS(pthread_create(&threads[i], NULL, get_one, ch), 0);
	for (int i = 0; i < MANY; i++)
		OK(rdma_resolve_addr(new_id(ch, RDMA_PS_TCP), NULL, with_port(w, 7471, &s), 2000));
	for (int i = 0; i < MANY; i++)
		IS(pthread_join(threads[i], NULL), 0);
	QUIET(ch);
}

struct waiter {
	struct rdma_cm_id *id;
	struct rdma_event_channel *to;
	atomic_int done;
};

static void *destroy_it(void *arg)
{
	struct waiter *waiter = arg;
	OK(rdma_destroy_id(waiter->id));
	waiter->done = 1;
	return NULL;
}

static void *migrate_it(void *arg)
{
	struct waiter *waiter = arg;
	OK(rdma_migrate_id(waiter->id, waiter->to));
	waiter->done = 1;
	return NULL;
}

/* Both calls wait until every event of the id is acknowledged. */
static void waits_for_acknowledgement(const struct where *w, void *(*call)(void *))
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	struct rdma_cm_event *event;
	struct waiter waiter = { .id = new_id(ch, RDMA_PS_TCP), .to = channel() };
	pthread_t thread;
	OK(rdma_resolve_addr(waiter.id, NULL, with_port(w, 7471, &s), 2000));
	OK(rdma_get_cm_event(ch, &event));
	IS(pthread_create(&thread, NULL, call, &waiter), 0);
	usleep(200000);
	IS(waiter.done, 0);
	OK(rdma_ack_cm_event(event));
	IS(pthread_join(thread, NULL), 0);
	IS(waiter.done, 1);
}

static void destroy_waits(const struct where *w)
{
	waits_for_acknowledgement(w, destroy_it);
}

static void migrate_waits(const struct where *w)
{
	waits_for_acknowledgement(w, migrate_it);
}

/* An event that was not read goes with its id. */
static void destroy_with_unread_events(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	IS(poll(&p, 1, PATIENCE), 1);
	OK(rdma_destroy_id(id));
	IS(poll(&p, 1, 0), 0);
	QUIET(ch);
}

/* An event that was not read moves with its id. */
static void migrate_moves_events(const struct where *w)
{
	struct rdma_event_channel *from = channel(), *to = channel();
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(from, RDMA_PS_TCP);
	struct pollfd p = { .fd = from->fd, .events = POLLIN };
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	IS(poll(&p, 1, PATIENCE), 1);
	OK(rdma_migrate_id(id, to));
	TRUE(id->channel == to);
	IS(poll(&p, 1, 0), 0);
	EXPECT(to, ADDR_RESOLVED, 0);
	rdma_destroy_event_channel(from);
	OK(rdma_resolve_route(id, 2000));
	EXPECT(to, ROUTE_RESOLVED, 0);
	OK(rdma_destroy_id(id));
}

/* Each id of a connection moves at every step. */
static void migrate_while_connecting(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_event_channel *client_ch = channel(), *server_ch = channel();
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_migrate_id(p.client, client_ch));
	OK(rdma_migrate_id(p.server, server_ch));
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	struct rdma_event_channel *client_2 = channel(), *server_2 = channel();
	OK(rdma_migrate_id(p.client, client_2));
	OK(rdma_migrate_id(p.server, server_2));
	e = EXPECT(client_2, ESTABLISHED, 0);
	TRUE(e.id == p.client);
	e = EXPECT(server_2, ESTABLISHED, 0);
	TRUE(e.id == p.server);
	traffic(p.client, p.server);
	OK(rdma_disconnect(p.client));
	OK(rdma_migrate_id(p.server, p.server_ch));
	OK(rdma_migrate_id(p.client, p.client_ch));
	EXPECT(p.server_ch, DISCONNECTED, 0);
	OK(rdma_disconnect(p.server));
	EXPECT(p.client_ch, DISCONNECTED, 0);
	QUIET(client_ch);
	QUIET(client_2);
	QUIET(server_ch);
	QUIET(server_2);
	destroyed(&p);
}

static void migrate_a_listener(const struct where *w)
{
	struct rdma_event_channel *from = channel(), *to = channel(), *ch = channel();
	struct rdma_cm_id *listen = listener(from, w, RDMA_PS_TCP, 2);
	struct rdma_conn_param param = parameters(NULL, 0);
	OK(rdma_migrate_id(listen, to));
	rdma_destroy_event_channel(from);
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, port_of(listen));
	queue_pair(id);
	OK(rdma_connect(id, &param));
	struct event e = EXPECT(to, CONNECT_REQUEST, 0);
	TRUE(e.id->channel == to);
	TRUE(e.listen_id == listen);
}

/* To no channel: the calls wait from then on. */
static void migrate_to_synchronous(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	OK(rdma_migrate_id(id, NULL));
	TRUE(id->channel != ch);
	FAILS(rdma_migrate_id(id, NULL), EINVAL);
	OK(rdma_resolve_route(id, 2000));
	TRUE(id->event != NULL);
	IS(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	/* And back. */
	OK(rdma_migrate_id(id, ch));
	TRUE(id->event == NULL);
	OK(rdma_destroy_id(id));
}

/* Events of one id come in their order; those of several, each in its own. */
static void order_of_events(const struct where *w)
{
	enum { MANY = 50 };
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *ids[MANY];
	struct sockaddr_storage s;
	int at[MANY] = { 0 };
	for (int i = 0; i < MANY; i++) {
		ids[i] = new_id(ch, RDMA_PS_TCP);
		OK(rdma_resolve_addr(ids[i], NULL, with_port(w, 7471, &s), 2000));
	}
	for (int n = 0; n < 2 * MANY; n++) {
		struct event e;
		int i = 0;
		TRUE(next_event(ch, PATIENCE, &e));
		while (i < MANY && ids[i] != e.id)
			i++;
		TRUE(i < MANY);
		IS(e.type, at[i] ? RDMA_CM_EVENT_ROUTE_RESOLVED : RDMA_CM_EVENT_ADDR_RESOLVED);
		if (!at[i]++)
			OK(rdma_resolve_route(ids[i], 2000));
	}
	QUIET(ch);
}

const struct test channel_tests[] = {
	{ "channel_descriptor", channel_descriptor, true, 0 },
	{ "channels_come_and_go", channels_come_and_go, false, 0 },
	{ "threads_wait", threads_wait, true, 0 },
	{ "destroy_waits", destroy_waits, true, 0 },
	{ "migrate_waits", migrate_waits, true, 0 },
	{ "destroy_with_unread_events", destroy_with_unread_events, true, 0 },
	{ "migrate_moves_events", migrate_moves_events, true, 0 },
	{ "migrate_while_connecting", migrate_while_connecting, true, 0 },
	{ "migrate_a_listener", migrate_a_listener, true, 0 },
	{ "migrate_to_synchronous", migrate_to_synchronous, true, 0 },
	{ "order_of_events", order_of_events, true, 0 },
	{ 0 },
};
