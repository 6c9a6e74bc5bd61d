// flags: -lrdmacm
// What a peer had sent before it disconnected comes before the disconnection, to programs that poll both in turn
// without waiting: also when both come between their poll of the completions and that of the events.
#include "common.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static char data[256];

struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
};

static void nonblocking(struct rdma_event_channel *channel, int on)
{
	int flags = fcntl(channel->fd, F_GETFL);

	MUST(fcntl(channel->fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

static struct rdma_cm_event *await(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	nonblocking(channel, 0);
	MUST(rdma_get_cm_event(channel, &event) == 0);
	MUST(event->event == kind);
	return event;
}

static void equip(struct end *end)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };

	MUST(rdma_create_qp(end->id, NULL, &init) == 0);
	end->mr = rdma_reg_msgs(end->id, data, sizeof data);
	MUST(end->mr != NULL);
}

/* A connection from end 0 to end 1, whose events go to a channel each. */
static void join(struct end end[2], struct rdma_event_channel *channel[2])
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;

	MUST(rdma_create_id(channel[1], &listener, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(listener, (struct sockaddr *)&addr) == 0);
	MUST(rdma_listen(listener, 1) == 0);
	addr.sin_port = rdma_get_src_port(listener);
	MUST(rdma_create_id(channel[0], &end[0].id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_resolve_addr(end[0].id, NULL, (struct sockaddr *)&addr, 1000) == 0);
	rdma_ack_cm_event(await(channel[0], RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(rdma_resolve_route(end[0].id, 1000) == 0);
	rdma_ack_cm_event(await(channel[0], RDMA_CM_EVENT_ROUTE_RESOLVED));
	equip(&end[0]);
	MUST(rdma_connect(end[0].id, &param) == 0);
	event = await(channel[1], RDMA_CM_EVENT_CONNECT_REQUEST);
	end[1].id = event->id;
	rdma_ack_cm_event(event);
	equip(&end[1]);
	MUST(rdma_post_recv(end[1].id, NULL, data + 128, 8, end[1].mr) == 0);
	MUST(rdma_accept(end[1].id, &param) == 0);
	rdma_ack_cm_event(await(channel[0], RDMA_CM_EVENT_ESTABLISHED));
	rdma_ack_cm_event(await(channel[1], RDMA_CM_EVENT_ESTABLISHED));
	rdma_destroy_id(listener);
}

static void part(struct end end[2])
{
	for (int i = 0; i < 2; i++) {
		rdma_dereg_mr(end[i].mr);
		rdma_destroy_qp(end[i].id);
		MUST(rdma_destroy_id(end[i].id) == 0);
	}
}

/* End 0 sends its last words and goes; when this returns, end 1 is about to hear of that. */
static void last_words(struct end end[2], struct rdma_event_channel *channel)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(end[1].id->recv_cq, 1, &wc) == 0);
	strcpy(data, "bye");
	memset(data + 128, 0, 8);
	MUST(rdma_post_send(end[0].id, NULL, data, 4, end[0].mr, 0) == 0);
	CHECK(next_wc(end[0].id->send_cq).status == IBV_WC_SUCCESS);
	MUST(rdma_disconnect(end[0].id) == 0);
	MUST(poll(&readable, 1, 10000) == 1);
}

int main(void)
{
	struct rdma_event_channel *channel[2] = { rdma_create_event_channel(), rdma_create_event_channel() };
	struct rdma_cm_event *event;
	struct end end[2];
	struct ibv_wc wc;

	MUST(channel[0] && channel[1]);

	/* Completions, events, in turn: the message is first. */
	join(end, channel);
	nonblocking(channel[1], 1);
	last_words(end, channel[1]);
	FAILS(EAGAIN, -1, rdma_get_cm_event(channel[1], &event));
	CHECK(ibv_poll_cq(end[1].id->recv_cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(data + 128, "bye"));
	rdma_ack_cm_event(await(channel[1], RDMA_CM_EVENT_DISCONNECTED));
	rdma_disconnect(end[1].id);
	part(end);

	/* A program that does not poll gets the event all the same, the second time. */
	join(end, channel);
	nonblocking(channel[1], 1);
	last_words(end, channel[1]);
	FAILS(EAGAIN, -1, rdma_get_cm_event(channel[1], &event));
	NUMBER(0, rdma_get_cm_event(channel[1], &event));
	CHECK(event->event == RDMA_CM_EVENT_DISCONNECTED);
	rdma_ack_cm_event(event);
	part(end);

	/* A program that waits for events gets it at once; then the message is among the completions already. */
	join(end, channel);
	last_words(end, channel[1]);
	rdma_ack_cm_event(await(channel[1], RDMA_CM_EVENT_DISCONNECTED));
	CHECK(ibv_poll_cq(end[1].id->recv_cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);

	part(end);

	/* What was sent is received, also when the receiver disconnects before it looks. */
	join(end, channel);
	strcpy(data, "bye");
	memset(data + 128, 0, 8);
	MUST(rdma_post_send(end[0].id, NULL, data, 4, end[0].mr, 0) == 0);
	MUST(rdma_disconnect(end[1].id) == 0);
	CHECK(ibv_poll_cq(end[1].id->recv_cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(data + 128, "bye"));
	part(end);
	for (int i = 0; i < 2; i++)
		rdma_destroy_event_channel(channel[i]);
	return verdict();
}
