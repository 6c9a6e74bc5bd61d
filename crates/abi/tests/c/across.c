// flags: -lrdmacm
// Both devices in one process (SOFTRNIC_DEVICE=all): what belongs to one device is refused by the other, and an id of
// rdma_cm that goes from one device to the other, or cannot go, keeps no part of what it had.
#include "common.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in address(const char *ip)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };

	MUST(inet_pton(AF_INET, ip, &addr.sin_addr) == 1);
	return addr;
}

/* Await an event; gives its status. */
static int await(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	int status;

	MUST(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind)
		fprintf(stderr, "%s, status %d, not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(kind));
	MUST(event->event == kind);
	status = event->status;
	rdma_ack_cm_event(event);
	return status;
}

/* A client that has softiw0 only, and whose request is refused. */
static int refused(int port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct sockaddr_in addr = address("127.0.0.1");
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id;

	addr.sin_port = htons(port);
	MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 1000) == 0);
	NUMBER(0, await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	MUST(rdma_resolve_route(id, 1000) == 0);
	NUMBER(0, await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	MUST(rdma_create_qp(id, NULL, &init) == 0);
	MUST(rdma_connect(id, &param) == 0);
	await(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	return verdict();
}

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int n = 0;

	MUST(folder != NULL);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

/* XRC is softrnic0's: its domain and its queues do not go with softiw0. */
static void xrc(struct ibv_context *ctx[2], struct ibv_pd *pd[2], struct ibv_cq *cq[2])
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_srq_init_attr_ex init = {
		.attr = { 4, 1, 0 }, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_context *again = ibv_open_device(ctx[0]->device);
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx[0], &attr);
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *qp;
	struct ibv_srq *srq;

	MUST(xrcd && again);
	NULLS(EOPNOTSUPP, ibv_open_xrcd(ctx[1], &attr));
	init.xrcd = xrcd;
	init.pd = pd[1];
	for (int i = 0; i < 2; i++) {
		init.cq = cq[i];
		NULLS(EOPNOTSUPP, ibv_create_srq_ex(ctx[1], &init));
		NULLS(EINVAL, ibv_create_srq_ex(ctx[0], &init));
	}
	init.pd = pd[0];
	NULLS(EINVAL, ibv_create_srq_ex(ctx[0], &init));
	init.cq = cq[0];
	NULLS(EINVAL, ibv_create_srq_ex(ctx[1], &init));
	NULLS(EINVAL, ibv_create_srq_ex(again, &init));
	srq = ibv_create_srq_ex(ctx[0], &init);
	MUST(srq != NULL);
	NUMBER(0, ibv_destroy_srq(srq));
	/* Nor do they with another context of softrnic0. */
	init.pd = ibv_alloc_pd(again);
	init.cq = ibv_create_cq(again, 4, NULL, NULL, 0);
	MUST(init.pd && init.cq);
	NULLS(EINVAL, ibv_create_srq_ex(again, &init));
	NUMBER(0, ibv_destroy_cq(init.cq));
	NUMBER(0, ibv_dealloc_pd(init.pd));
	target.xrcd = xrcd;
	NULLS(EOPNOTSUPP, ibv_create_qp_ex(ctx[1], &target));
	NULLS(EINVAL, ibv_create_qp_ex(again, &target));
	qp = ibv_create_qp_ex(ctx[0], &target);
	MUST(qp != NULL);
	open.xrcd = xrcd;
	open.qp_num = qp->qp_num;
	NULLS(EINVAL, ibv_open_qp(ctx[1], &open));
	NULLS(EINVAL, ibv_open_qp(again, &open));
	NUMBER(0, ibv_destroy_qp(qp));
	NUMBER(0, ibv_close_xrcd(xrcd));
	NUMBER(0, ibv_close_device(again));
}

static void parents(struct ibv_context *ctx[2], struct ibv_pd *pd[2])
{
	struct ibv_td_init_attr none = { 0 };
	struct ibv_td *td[2];

	for (int i = 0; i < 2; i++) {
		td[i] = ibv_alloc_td(ctx[i], &none);
		MUST(td[i] != NULL);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_parent_domain_init_attr attr = { .pd = pd[!i] };
		struct ibv_pd *parent;

		NULLS(EINVAL, ibv_alloc_parent_domain(ctx[i], &attr));
		attr.pd = pd[i];
		attr.td = td[!i];
		NULLS(EINVAL, ibv_alloc_parent_domain(ctx[i], &attr));
		attr.td = td[i];
		parent = ibv_alloc_parent_domain(ctx[i], &attr);
		MUST(parent != NULL);
		NUMBER(0, ibv_dealloc_pd(parent));
	}
	for (int i = 0; i < 2; i++)
		NUMBER(0, ibv_dealloc_td(td[i]));
}

static void device_memory(struct ibv_context *ctx[2], struct ibv_pd *pd[2])
{
	const unsigned int access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx[0], &attr);
	struct ibv_mr *mr;

	MUST(dm != NULL);
	NULLS(EOPNOTSUPP, ibv_alloc_dm(ctx[1], &attr));
	NULLS(EINVAL, ibv_reg_dm_mr(pd[1], dm, 0, 64, access));
	mr = ibv_reg_dm_mr(pd[0], dm, 0, 64, access);
	MUST(mr != NULL);
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_free_dm(dm));
}

/* Each device has a GUID, the same wherever it is asked for. */
static void guids(struct ibv_context *ctx[2])
{
	__be64 guid[2];

	for (int i = 0; i < 2; i++) {
		struct ibv_device_attr attr;
		unsigned char bytes[8];
		char path[300], in_file[32], expected[32];
		FILE *file;

		guid[i] = ibv_get_device_guid(ctx[i]->device);
		NUMBER(0, ibv_query_device(ctx[i], &attr));
		CHECK(attr.node_guid == guid[i] && attr.sys_image_guid == guid[i]);
		memcpy(bytes, &guid[i], sizeof bytes);
		snprintf(expected, sizeof expected, "%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", bytes[0], bytes[1], bytes[2],
			bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]);
		snprintf(path, sizeof path, "%s/node_guid", ctx[i]->device->ibdev_path);
		file = fopen(path, "r");
		/* Without the view there is no such file. */
		if (file) {
			CHECK(fgets(in_file, sizeof in_file, file) && !strcmp(in_file, expected));
			fclose(file);
		}
	}
	CHECK(guid[0] && guid[1] && guid[0] != guid[1]);
}

/* A listener whose queue pairs are to have queues of softrnic0: a request of softiw0 is refused, and leaves nothing. */
static void request_of_the_other(const char *self, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .send_cq = cq, .recv_cq = cq };
	struct rdma_cm_id *listener, *got = NULL;
	int before = 0;

	MUST(rdma_getaddrinfo("127.0.0.1", "0", &hints, &info) == 0);
	MUST(rdma_create_ep(&listener, info, pd, &init) == 0);
	MUST(rdma_listen(listener, 4) == 0);
	/* The first one opens what the process keeps. */
	for (int i = 0; i < 3; i++) {
		int status = -1;
		char port[8];
		pid_t pid;

		snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
		pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			setenv("SOFTRNIC_DEVICE", "iwarp", 1);
			execl(self, self, port, (char *)NULL);
			_exit(99);
		}
		FAILS(EINVAL, -1, rdma_get_request(listener, &got));
		CHECK(got == NULL);
		MUST(waitpid(pid, &status, 0) == pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		if (i == 0)
			before = descriptors();
	}
	NUMBER(before, descriptors());
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(info);
}

/* Ids that are bound to an address of softrnic0's, and then go to another host. */
static void goes_out(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	const struct ibv_qp_init_attr plain = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp_init_attr init = plain;
	struct sockaddr_in outer = address("192.0.2.77"), own;
	struct ibv_pd *mine, *stray;
	struct rdma_cm_id *id, *out;

	outer.sin_port = htons(9);
	MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&outer, 1000) != 0) {
		fprintf(stderr, "no way to other hosts: not looked at\n");
		MUST(rdma_destroy_id(id) == 0);
		rdma_destroy_event_channel(channel);
		return;
	}
	NUMBER(0, await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	own = *(struct sockaddr_in *)rdma_get_local_addr(id);
	own.sin_port = 0;
	out = id;

	/* With a queue pair of softrnic0 the id stays where it is, and can go to this host. */
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&own) == 0);
	CHECK(!strcmp(ibv_get_device_name(id->verbs->device), "softrnic0"));
	MUST(rdma_create_qp(id, NULL, &init) == 0);
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&outer, 1000) == 0);
	NUMBER(-EINVAL, await(channel, RDMA_CM_EVENT_ADDR_ERROR));
	FAILS(EINVAL, -1, rdma_resolve_route(id, 1000));
	own.sin_port = htons(9);
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 1000) == 0);
	NUMBER(0, await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!strcmp(ibv_get_device_name(id->verbs->device), "softrnic0"));
	CHECK(id->qp && id->qp->context == id->verbs && id->pd->context == id->verbs);
	MUST(rdma_resolve_route(id, 1000) == 0);
	NUMBER(0, await(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	rdma_destroy_qp(id);
	MUST(rdma_destroy_id(id) == 0);

	/*
	 * The program's domain, which the queue pair has left behind, is gone when the id changes its device. One of
	 * softiw0 that the program makes then has the same place, as a rule, and is not the id's.
	 */
	own.sin_port = 0;
	MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	MUST(rdma_bind_addr(id, (struct sockaddr *)&own) == 0);
	mine = ibv_alloc_pd(id->verbs);
	init = plain;
	MUST(mine && rdma_create_qp(id, mine, &init) == 0);
	CHECK(id->pd == mine);
	rdma_destroy_qp(id);
	NUMBER(0, ibv_dealloc_pd(mine));
	stray = ibv_alloc_pd(out->verbs);
	MUST(stray != NULL);
	MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&outer, 1000) == 0);
	NUMBER(0, await(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(id->pd == out->pd && id->pd != stray && id->pd->context == id->verbs);
	CHECK(!strcmp(ibv_get_device_name(id->verbs->device), "softiw0"));
	init = plain;
	MUST(rdma_create_qp(id, NULL, &init) == 0);
	rdma_destroy_qp(id);
	NUMBER(0, ibv_dealloc_pd(stray));
	MUST(rdma_destroy_id(id) == 0);
	MUST(rdma_destroy_id(out) == 0);
	rdma_destroy_event_channel(channel);
}

/* A chosen port of IPv6 stays kept from TCP programs when the id gives up IPv4, or takes it. */
static void keeps_the_port(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	int tcp = socket(AF_INET6, SOCK_STREAM, 0), one = 1;
	struct rdma_cm_id *id;

	MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	if (tcp < 0 || bind(tcp, (struct sockaddr *)&any, sizeof any) != 0) {
		fprintf(stderr, "no IPv6: not looked at\n");
	} else {
		close(tcp);
		MUST(rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
		any.sin6_port = rdma_get_src_port(id);
		tcp = socket(AF_INET6, SOCK_STREAM, 0);
		MUST(tcp >= 0 && setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
		for (int only = 1; only >= 0; only--) {
			NUMBER(0, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only));
			FAILS(EADDRINUSE, -1, bind(tcp, (struct sockaddr *)&any, sizeof any));
		}
		NUMBER(0, rdma_listen(id, 1));
	}
	if (tcp >= 0)
		close(tcp);
	MUST(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_context *ctx[2];
	struct ibv_pd *pd[2];
	struct ibv_cq *cq[2];
	int n = -1;

	if (argc == 2)
		return refused(atoi(argv[1]));
	if (!getenv("SOFTRNIC_DEVICE")) {
		setenv("SOFTRNIC_DEVICE", "all", 1);
		execv(argv[0], argv);
		return 99;
	}
	list = ibv_get_device_list(&n);
	MUST(list && n == 2);
	for (int i = 0; i < 2; i++) {
		ctx[i] = ibv_open_device(list[i]);
		MUST(ctx[i] != NULL);
		pd[i] = ibv_alloc_pd(ctx[i]);
		cq[i] = ibv_create_cq(ctx[i], 4, NULL, NULL, 0);
		MUST(pd[i] && cq[i]);
	}
	ibv_free_device_list(list);
	xrc(ctx, pd, cq);
	parents(ctx, pd);
	device_memory(ctx, pd);
	guids(ctx);
	request_of_the_other(argv[0], pd[0], cq[0]);
	request_of_the_other(argv[0], NULL, cq[0]);
	goes_out();
	keeps_the_port();
	for (int i = 0; i < 2; i++) {
		NUMBER(0, ibv_destroy_cq(cq[i]));
		NUMBER(0, ibv_dealloc_pd(pd[i]));
		NUMBER(0, ibv_close_device(ctx[i]));
	}
	return verdict();
}
