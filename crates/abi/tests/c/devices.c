// flags: -lrdmacm
// Both devices in one process (SOFTRNIC_DEVICE=all): each object is of one device, and librdmacm takes the device by the
// peer. With the argument "listen" or "connect" the program is one side of connections between hosts.
#include "common.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8

static const char asked[] = "which device?", answer[] = "that one.";

/* One connection, and its messages. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char out[32], in[32];
};

static const char *device(struct rdma_cm_id *id)
{
	return id->verbs ? ibv_get_device_name(id->verbs->device) : "none";
}

static struct sockaddr_in address(const char *ip, int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };

	MUST(inet_pton(AF_INET, ip, &addr.sin_addr) == 1);
	return addr;
}

static struct rdma_cm_event *await(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	MUST(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind)
		fprintf(stderr, "%s, status %d, not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(kind));
	MUST(event->event == kind);
	return event;
}

static void equip(struct end *end)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };

	MUST(rdma_create_qp(end->id, NULL, &init) == 0);
	CHECK(end->id->pd->context == end->id->verbs);
	end->mr = rdma_reg_msgs(end->id, end->out, sizeof end->out + sizeof end->in);
	MUST(end->mr != NULL);
	MUST(rdma_post_recv(end->id, NULL, end->in, sizeof end->in, end->mr) == 0);
}

static void hear(struct end *end, const char *text)
{
	struct ibv_wc wc;

	MUST(rdma_get_recv_comp(end->id, &wc) == 1);
	NUMBER(IBV_WC_SUCCESS, wc.status);
	CHECK(!strcmp(end->in, text));
}

static void say(struct end *end, const char *text)
{
	struct ibv_wc wc;

	strcpy(end->out, text);
	MUST(rdma_post_send(end->id, NULL, end->out, sizeof end->out, end->mr, 0) == 0);
	MUST(rdma_get_send_comp(end->id, &wc) == 1);
	NUMBER(IBV_WC_SUCCESS, wc.status);
}

static void part(struct end *end)
{
	rdma_dereg_mr(end->mr);
	rdma_destroy_qp(end->id);
	MUST(rdma_destroy_id(end->id) == 0);
	free(end);
}

static struct end *resolved(struct rdma_event_channel *channel, struct sockaddr_in *addr)
{
	struct end *end = calloc(1, sizeof *end);

	MUST(end && rdma_create_id(channel, &end->id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_resolve_addr(end->id, NULL, (struct sockaddr *)addr, 1000) == 0);
	rdma_ack_cm_event(await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	return end;
}

/* Connect, ask, and hear the answer. */
static int client(const char *ip, int port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in addr = address(ip, port);
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct end *end;

	MUST(channel != NULL);
	end = resolved(channel, &addr);
	MUST(rdma_resolve_route(end->id, 1000) == 0);
	rdma_ack_cm_event(await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	equip(end);
	MUST(rdma_connect(end->id, &param) == 0);
	rdma_ack_cm_event(await(channel, RDMA_CM_EVENT_ESTABLISHED));
	printf("connected on %s\n", device(end->id));
	say(end, asked);
	hear(end, answer);
	MUST(rdma_disconnect(end->id) == 0);
	rdma_ack_cm_event(await(channel, RDMA_CM_EVENT_DISCONNECTED));
	part(end);
	rdma_destroy_event_channel(channel);
	return verdict();
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, const char *ip, int port)
{
	struct sockaddr_in addr = address(ip, port);
	struct rdma_cm_id *id;

	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0);
	MUST(rdma_listen(id, MOST) == 0);
	return id;
}

/* Take so many connections, all before the first is served. Gives the number of those on softiw0. */
static int serve(struct rdma_cm_id *listener, int count)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct end *ends[MOST];
	int iwarp = 0;

	for (int i = 0; i < count; i++) {
		struct rdma_cm_event *event = await(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };

		ends[i] = calloc(1, sizeof *ends[i]);
		MUST(ends[i] && event->listen_id == listener);
		ends[i]->id = event->id;
		rdma_ack_cm_event(event);
		printf("request on %s\n", device(ends[i]->id));
		iwarp += !strcmp(device(ends[i]->id), "softiw0");
		/* The listener's domain is softrnic0's, if the listener has an address. */
		if (listener->pd && listener->verbs != ends[i]->id->verbs)
			FAILS(EINVAL, -1, rdma_create_qp(ends[i]->id, listener->pd, &init));
		equip(ends[i]);
	}
	for (int i = 0; i < count; i++) {
		MUST(rdma_accept(ends[i]->id, &param) == 0);
		rdma_ack_cm_event(await(listener->channel, RDMA_CM_EVENT_ESTABLISHED));
	}
	for (int i = 0; i < count; i++) {
		hear(ends[i], asked);
		say(ends[i], answer);
	}
	for (int left = count; left > 0;) {
		struct rdma_cm_event *event;

		MUST(rdma_get_cm_event(listener->channel, &event) == 0);
		left -= event->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
	}
	for (int i = 0; i < count; i++) {
		rdma_disconnect(ends[i]->id);
		part(ends[i]);
	}
	return iwarp;
}

static int server(const char *ip, int port, int count)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	MUST(channel && count <= MOST);
	id = listener(channel, ip, port);
	printf("listening on %s\n", device(id));
	serve(id, count);
	MUST(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	return verdict();
}

/* A client with these devices. */
static pid_t spawn(const char *self, const char *devices, int port)
{
	char number[8];
	pid_t pid;

	snprintf(number, sizeof number, "%d", port);
	pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		setenv("SOFTRNIC_DEVICE", devices, 1);
		execl(self, self, "connect", "127.0.0.1", number, (char *)NULL);
		_exit(99);
	}
	return pid;
}

static void joins(pid_t pid)
{
	int status = -1;

	MUST(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void lists(struct ibv_context *ctx[2])
{
	static const char *const names[] = { "softrnic0", "softiw0" };
	struct ibv_context **opened;
	struct ibv_device **list;
	int n = -1;

	list = ibv_get_device_list(&n);
	MUST(list != NULL);
	MUST(n == 2 && !list[2]);
	for (int i = 0; i < n; i++) {
		CHECK(!strcmp(ibv_get_device_name(list[i]), names[i]));
		NUMBER(i, ibv_get_device_index(list[i]));
		ctx[i] = ibv_open_device(list[i]);
		MUST(ctx[i] != NULL);
		CHECK(ctx[i]->device == list[i]);
	}
	CHECK(strcmp(list[0]->dev_name, list[1]->dev_name));
	NUMBER(IBV_NODE_CA, list[0]->node_type);
	NUMBER(IBV_TRANSPORT_IB, list[0]->transport_type);
	NUMBER(IBV_NODE_RNIC, list[1]->node_type);
	NUMBER(IBV_TRANSPORT_IWARP, list[1]->transport_type);
	ibv_free_device_list(list);
	opened = rdma_get_devices(&n);
	MUST(opened && n == 2 && !opened[2]);
	for (int i = 0; i < n; i++)
		CHECK(opened[i]->device == ctx[i]->device);
	rdma_free_devices(opened);
}

/* Each device has its own limits, ports and queue pairs. */
static void differ(struct ibv_context *ctx[2])
{
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
		struct ibv_qp_attr attr;
		struct ibv_device_attr dev;
		struct ibv_port_attr port;
		struct ibv_ah_attr path = { .port_num = 1, .is_global = 1 };
		struct ibv_ah *ah;
		struct ibv_pd *pd = ibv_alloc_pd(ctx[i]);
		struct ibv_qp *qp;

		init.send_cq = init.recv_cq = ibv_create_cq(ctx[i], 4, NULL, NULL, 0);
		MUST(pd && init.send_cq);
		NUMBER(0, ibv_query_device(ctx[i], &dev));
		NUMBER(i ? IBV_ATOMIC_NONE : IBV_ATOMIC_HCA, dev.atomic_cap);
		NUMBER(0, ibv_query_port(ctx[i], 1, &port));
		CHECK(i ? port.gid_tbl_len == 1 : port.gid_tbl_len > 1);
		NUMBER(0, ibv_query_gid(ctx[i], 1, 0, &path.grh.dgid));
		qp = ibv_create_qp(pd, &init);
		MUST(qp != NULL);
		NUMBER(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
		NUMBER(i ? IBV_QPS_INIT : IBV_QPS_RESET, attr.qp_state);
		NUMBER(0, ibv_destroy_qp(qp));
		init.qp_type = IBV_QPT_UD;
		errno = 0;
		qp = ibv_create_qp(pd, &init);
		CHECK(i ? !qp && errno == EOPNOTSUPP : qp != NULL);
		if (qp)
			NUMBER(0, ibv_destroy_qp(qp));
		errno = 0;
		ah = ibv_create_ah(pd, &path);
		CHECK(i ? !ah && errno == EOPNOTSUPP : ah != NULL);
		if (ah)
			NUMBER(0, ibv_destroy_ah(ah));
		NUMBER(0, ibv_destroy_cq(init.send_cq));
		NUMBER(0, ibv_dealloc_pd(pd));
	}
}

/* Objects of one device do not go with those of the other. */
static void mixed(struct ibv_context *ctx[2])
{
	struct ibv_srq_init_attr srq_init = { .attr = { 4, 1, 0 } };
	struct ibv_comp_channel *channel[2];
	static char memory[64];
	struct ibv_srq *srq[2];
	struct ibv_pd *pd[2];
	struct ibv_cq *cq[2];
	struct ibv_mr *mr;

	for (int i = 0; i < 2; i++) {
		pd[i] = ibv_alloc_pd(ctx[i]);
		channel[i] = ibv_create_comp_channel(ctx[i]);
		MUST(pd[i] && channel[i]);
		cq[i] = ibv_create_cq(ctx[i], 4, NULL, NULL, 0);
		srq[i] = ibv_create_srq(pd[i], &srq_init);
		MUST(cq[i] && srq[i]);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };

		init.send_cq = init.recv_cq = cq[!i];
		NULLS(EINVAL, ibv_create_qp(pd[i], &init));
		init.recv_cq = cq[i];
		NULLS(EINVAL, ibv_create_qp(pd[i], &init));
		init.send_cq = cq[i];
		init.srq = srq[!i];
		NULLS(EINVAL, ibv_create_qp(pd[i], &init));
		NULLS(EBADF, ibv_create_cq(ctx[i], 4, NULL, channel[!i], 0));
		mr = ibv_reg_mr(pd[i], memory, sizeof memory, 0);
		MUST(mr != NULL);
		CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd[!i], NULL, 0, 0) != 0);
		NUMBER(0, ibv_dereg_mr(mr));
	}
	for (int i = 0; i < 2; i++) {
		NUMBER(0, ibv_destroy_srq(srq[i]));
		NUMBER(0, ibv_destroy_cq(cq[i]));
		NUMBER(0, ibv_destroy_comp_channel(channel[i]));
		NUMBER(0, ibv_dealloc_pd(pd[i]));
	}
}

/* The device is chosen by the peer's address. */
static void resolves(struct rdma_event_channel *channel)
{
	struct sockaddr_in inner = address("127.0.0.1", 9), outer = address("192.0.2.77", 9), any = address("0.0.0.0", 0);
	struct end *end = resolved(channel, &inner);
	struct rdma_cm_id *id;
	struct ibv_pd *pd;

	CHECK(!strcmp(device(end->id), "softrnic0"));
	CHECK(end->id->pd->context == end->id->verbs);
	MUST(rdma_destroy_id(end->id) == 0);
	free(end);
	/* Bound to an address an id is softrnic0's, until its peer is known. */
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&outer, 1000) != 0) {
		fprintf(stderr, "no way to other hosts: not looked at\n");
		MUST(rdma_destroy_id(id) == 0);
		return;
	}
	rdma_ack_cm_event(await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!strcmp(device(id), "softiw0"));
	CHECK(id->pd->context == id->verbs);
	any.sin_addr = ((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr;
	MUST(rdma_destroy_id(id) == 0);

	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
	CHECK(!strcmp(device(id), "softrnic0"));
	pd = id->pd;
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&outer, 1000) == 0);
	rdma_ack_cm_event(await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!strcmp(device(id), "softiw0"));
	CHECK(id->pd != pd && id->pd->context == id->verbs);
	MUST(rdma_destroy_id(id) == 0);
}

/* A TCP program has the port: a listener would not get softiw0's requests. */
static void port_is_taken(struct rdma_event_channel *channel)
{
	struct sockaddr_in addr;
	socklen_t len = sizeof addr;
	struct rdma_cm_id *id, *datagrams, *ids[4];
	int tcp, port, near[32], bound = 0, one = 1;

	/* The number may be one that another process has in a port space of rdma_cm: then it is not this test's. */
	for (int tries = 0; !bound; tries++) {
		MUST(tries < 100);
		addr = address("127.0.0.1", 0);
		tcp = socket(AF_INET, SOCK_STREAM, 0);
		MUST(tcp >= 0 && bind(tcp, (struct sockaddr *)&addr, sizeof addr) == 0 && listen(tcp, 1) == 0);
		MUST(getsockname(tcp, (struct sockaddr *)&addr, &len) == 0);
		MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
		MUST(rdma_create_id(channel, &datagrams, NULL, RDMA_PS_UDP) == 0);
		bound = rdma_bind_addr(id, (struct sockaddr *)&addr) == 0 &&
			rdma_bind_addr(datagrams, (struct sockaddr *)&addr) == 0;
		if (bound) {
			FAILS(EADDRINUSE, -1, rdma_listen(id, 1));
			/* Datagrams are softrnic0's alone. */
			CHECK(!strcmp(device(datagrams), "softrnic0"));
			NUMBER(0, rdma_listen(datagrams, 1));
		}
		MUST(rdma_destroy_id(id) == 0);
		MUST(rdma_destroy_id(datagrams) == 0);
		close(tcp);
	}
	/* A port that the library chose is kept from other programs until the id listens at it. */
	addr.sin_port = 0;
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&addr) == 0);
	addr.sin_port = rdma_get_src_port(id);
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	MUST(tcp >= 0);
	FAILS(EADDRINUSE, -1, bind(tcp, (struct sockaddr *)&addr, sizeof addr));
	/* Those that would share it are kept off, too, and an option without effect on the address changes nothing. */
	NUMBER(0, setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
	FAILS(EADDRINUSE, -1, bind(tcp, (struct sockaddr *)&addr, sizeof addr));
	for (int only = 0; only < 2; only++) {
		NUMBER(0, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only));
		FAILS(EADDRINUSE, -1, bind(tcp, (struct sockaddr *)&addr, sizeof addr));
	}
	NUMBER(0, rdma_listen(id, 1));
	FAILS(EADDRINUSE, -1, bind(tcp, (struct sockaddr *)&addr, sizeof addr));
	close(tcp);
	/* It is none that TCP has given to another program: here all those next to the last one. */
	port = ntohs(addr.sin_port) & ~31;
	for (int i = 0; i < 32; i++) {
		addr.sin_port = htons(port + i);
		near[i] = socket(AF_INET, SOCK_STREAM, 0);
		MUST(near[i] >= 0);
		if (bind(near[i], (struct sockaddr *)&addr, sizeof addr) == 0)
			MUST(listen(near[i], 1) == 0);
	}
	for (int i = 0; i < 4; i++) {
		addr.sin_port = 0;
		MUST(rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP) == 0);
		MUST(rdma_bind_addr(ids[i], (struct sockaddr *)&addr) == 0);
		NUMBER(0, rdma_listen(ids[i], 1));
	}
	for (int i = 0; i < 4; i++)
		MUST(rdma_destroy_id(ids[i]) == 0);
	for (int i = 0; i < 32; i++)
		close(near[i]);
	MUST(rdma_destroy_id(id) == 0);
}

/* An endpoint whose queue pairs are made for it: each in the domain of its own device. */
static void endpoint(const char *self, const char *devices, const char *expected)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };
	struct end *end = calloc(1, sizeof *end);
	struct rdma_cm_id *listener;
	pid_t pid;

	MUST(end && rdma_getaddrinfo("127.0.0.1", "0", &hints, &info) == 0);
	MUST(rdma_create_ep(&listener, info, NULL, &init) == 0);
	CHECK(!strcmp(device(listener), "softrnic0"));
	MUST(rdma_listen(listener, 1) == 0);
	pid = spawn(self, devices, ntohs(rdma_get_src_port(listener)));
	MUST(rdma_get_request(listener, &end->id) == 0);
	CHECK(!strcmp(device(end->id), expected));
	CHECK(end->id->qp && end->id->qp->context == end->id->verbs && end->id->pd->context == end->id->verbs);
	end->mr = rdma_reg_msgs(end->id, end->out, sizeof end->out + sizeof end->in);
	MUST(end->mr && rdma_post_recv(end->id, NULL, end->in, sizeof end->in, end->mr) == 0);
	MUST(rdma_accept(end->id, NULL) == 0);
	hear(end, asked);
	say(end, answer);
	rdma_disconnect(end->id);
	joins(pid);
	rdma_dereg_mr(end->mr);
	rdma_destroy_ep(end->id);
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(info);
	free(end);
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel;
	struct ibv_context *ctx[2];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 5 && !strcmp(argv[1], "listen"))
		return server(argv[2], atoi(argv[3]), atoi(argv[4]));
	if (argc == 4 && !strcmp(argv[1], "connect"))
		return client(argv[2], atoi(argv[3]));
	if (!getenv("SOFTRNIC_DEVICE")) {
		setenv("SOFTRNIC_DEVICE", "all", 1);
		execv(argv[0], argv);
		return 99;
	}
	lists(ctx);
	differ(ctx);
	mixed(ctx);
	channel = rdma_create_event_channel();
	MUST(channel != NULL);
	resolves(channel);
	port_is_taken(channel);
	/* One listener, and two clients at the same time: one that has softrnic0, and one that has softiw0 only. */
	for (int wildcard = 0; wildcard < 2; wildcard++) {
		struct rdma_cm_id *id = listener(channel, wildcard ? "0.0.0.0" : "127.0.0.1", 0);
		int port = ntohs(rdma_get_src_port(id));
		pid_t host = spawn(argv[0], "all", port), tcp = spawn(argv[0], "iwarp", port);

		CHECK(!strcmp(device(id), wildcard ? "none" : "softrnic0"));
		NUMBER(1, serve(id, 2));
		joins(host);
		joins(tcp);
		MUST(rdma_destroy_id(id) == 0);
	}
	endpoint(argv[0], "all", "softrnic0");
	endpoint(argv[0], "iwarp", "softiw0");
	rdma_destroy_event_channel(channel);
	for (int i = 0; i < 2; i++)
		NUMBER(0, ibv_close_device(ctx[i]));
	return verdict();
}
