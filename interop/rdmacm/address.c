/* Addresses: those that resolve, those that are refused, the ids' addresses afterwards; rdma_getaddrinfo; devices. */
#include "harness.h"

#include <arpa/inet.h>
#include <netdb.h>

static void resolve_fills_the_id(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	TRUE(id->verbs == NULL);
	TRUE(id->channel == ch);
	TRUE(id->context == (void *)0x1234);
	IS(id->ps, RDMA_PS_TCP);
	IS(id->qp_type, IBV_QPT_RC);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	struct event e = EXPECT(ch, ADDR_RESOLVED, 0);
	TRUE(e.id == id);
	TRUE(e.listen_id == NULL);
	TRUE(id->verbs != NULL);
	IS(id->port_num, 1);
	IS(ntohs(rdma_get_dst_port(id)), 7471);
	TRUE(rdma_get_src_port(id) != 0);
	IS(rdma_get_local_addr(id)->sa_family, w->addr.sa.sa_family);
	IS(rdma_get_peer_addr(id)->sa_family, w->addr.sa.sa_family);
	/* The source is the address of this host that leads there: to itself, itself. */
	if (w->addr.sa.sa_family == AF_INET)
		IS(id->route.addr.src_sin.sin_addr.s_addr, w->addr.in.sin_addr.s_addr);
	else
		IS(memcmp(&id->route.addr.src_sin6.sin6_addr, &w->addr.in6.sin6_addr, 16), 0);
	IS(id->route.num_paths, 0);
	OK(rdma_resolve_route(id, 2000));
	EXPECT(ch, ROUTE_RESOLVED, 0);
	IS(id->route.num_paths, 1);
	TRUE(id->route.path_rec != NULL);
	IS(memcmp(&id->route.path_rec->sgid, &id->route.addr.addr.ibaddr.sgid, 16), 0);
	IS(memcmp(&id->route.path_rec->dgid, &id->route.addr.addr.ibaddr.dgid, 16), 0);
	IS(id->route.path_rec->pkey, 0xffff);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

/* The id's GID is one of the port's. */
static void resolve_gid_is_the_ports(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	struct ibv_port_attr port;
	OK(ibv_query_port(id->verbs, id->port_num, &port));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		union ibv_gid gid;
		if (!ibv_query_gid(id->verbs, id->port_num, i, &gid) && !memcmp(&gid, &id->route.addr.addr.ibaddr.sgid, 16))
			return;
	}
	FAIL("the id's GID: expected one of the port's, got none of them");
}

static void resolve_with_a_source(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage src, dst;
	OK(rdma_resolve_addr(id, with_port(w, 0, &src), with_port(w, 7471, &dst), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	TRUE(rdma_get_src_port(id) != 0);
	OK(rdma_destroy_id(id));
}

static void resolve_after_bind_keeps_the_port(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	uint16_t port = port_of(id);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	IS(port_of(id), port);
	OK(rdma_destroy_id(id));
}

static void resolve_refuses(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s, other;
	struct sockaddr none = { .sa_family = AF_UNIX };
	FAILS(rdma_resolve_addr(id, NULL, NULL, 2000), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, &none, 2000), EINVAL);
	FAILS(rdma_resolve_addr(id, &none, with_port(w, 7471, &s), 2000), EINVAL);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	FAILS(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000), EINVAL);
	OK(rdma_resolve_route(id, 2000));
	EXPECT(ch, ROUTE_RESOLVED, 0);
	FAILS(rdma_resolve_route(id, 2000), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000), EINVAL);
	FAILS(rdma_bind_addr(id, with_port(w, 0, &s)), EINVAL);
	OK(rdma_destroy_id(id));
	id = new_id(ch, RDMA_PS_TCP);
	/* Source and destination of different families. */
	FAILS(rdma_resolve_addr(id, wildcard(w->addr.sa.sa_family == AF_INET ? AF_INET6 : AF_INET, 0, &other),
		with_port(w, 7471, &s), 2000), EINVAL);
	OK(rdma_destroy_id(id));
}

/* The wildcard as a destination is this host. */
static void resolve_the_wildcard(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	(void)w;
	int families[] = { AF_INET, AF_INET6 };
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
		OK(rdma_resolve_addr(id, NULL, wildcard(families[i], 7471, &s), 2000));
		EXPECT(ch, ADDR_RESOLVED, 0);
		OK(rdma_destroy_id(id));
	}
}

/* Connecting before the route is known, and doing other things in a wrong state. */
static void wrong_states(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct rdma_conn_param param = parameters(NULL, 0);
	struct sockaddr_storage s;
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	OK(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000));
	EXPECT(ch, ADDR_RESOLVED, 0);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	OK(rdma_resolve_route(id, 2000));
	EXPECT(ch, ROUTE_RESOLVED, 0);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_listen(id, 1), EINVAL);
	QUIET(ch);
	OK(rdma_destroy_id(id));
	id = listener(ch, w, RDMA_PS_TCP, 1);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, with_port(w, 7471, &s), 2000), EINVAL);
	FAILS(rdma_listen(id, 1), EINVAL);
	OK(rdma_destroy_id(id));
}

static void create_id(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id;
	(void)w;
	static const struct {
		enum rdma_port_space ps;
		enum ibv_qp_type type;
	} spaces[] = { { RDMA_PS_TCP, IBV_QPT_RC }, { RDMA_PS_UDP, IBV_QPT_UD }, { RDMA_PS_IPOIB, IBV_QPT_UD },
		{ RDMA_PS_IB, IBV_QPT_RC } };
	for (int i = 0; i < 4; i++) {
		OK(rdma_create_id(ch, &id, ch, spaces[i].ps));
		IS(id->ps, spaces[i].ps);
		IS(id->qp_type, spaces[i].type);
		TRUE(id->context == ch && id->channel == ch && !id->verbs && !id->qp && !id->event);
		OK(rdma_destroy_id(id));
	}
	FAILS(rdma_create_id(ch, &id, NULL, 0), EINVAL);
	FAILS(rdma_create_id(ch, &id, NULL, 0x0112), EINVAL);
	/* Without a channel: the id has one of its own. */
	OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	TRUE(id->channel != NULL);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static void event_names(const struct where *w)
{
	(void)w;
	static const char *const names[] = { "ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR",
		"CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED",
		"DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT" };
	for (int i = 0; i < 16; i++) {
		char want[64];
		snprintf(want, sizeof(want), "RDMA_CM_EVENT_%s", names[i]);
		if (strcmp(rdma_event_str(i), want))
			FAIL("rdma_event_str(%d): expected %s, got %s", i, want, rdma_event_str(i));
	}
	IS(strcmp(rdma_event_str(1000), "UNKNOWN EVENT"), 0);
}

static void devices(const struct where *w)
{
	int n = -1;
	struct ibv_context **list = rdma_get_devices(&n);
	TRUE(list != NULL);
	TRUE(n >= 1);
	TRUE(list[n] == NULL);
	/* The contexts are those that ids get. */
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	bool found = false;
	for (int i = 0; i < n; i++)
		found |= list[i] == id->verbs;
	TRUE(found);
	OK(rdma_destroy_id(id));
	rdma_free_devices(list);
	list = rdma_get_devices(NULL);
	TRUE(list != NULL);
	rdma_free_devices(list);
}

/* Ids of one device share one protection domain until told otherwise. */
static void default_pd(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *a = routed(ch, w, RDMA_PS_TCP, 7471), *b = routed(ch, w, RDMA_PS_TCP, 7471);
	TRUE(a->verbs == b->verbs);
	TRUE(a->pd != NULL);
	TRUE(a->pd == b->pd);
}

static void getaddrinfo_errors(const struct where *w)
{
	struct rdma_addrinfo *res, hints = { .ai_flags = RAI_NUMERICHOST };
	(void)w;
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	/* getaddrinfo's own errors come through. */
	IS(rdma_getaddrinfo("no-number", "7471", &hints, &res), EAI_NONAME);
	hints.ai_port_space = RDMA_PS_TCP;
	IS(rdma_getaddrinfo("127.0.0.1", "no-such-service-here", &hints, &res), EAI_SERVICE);
	rdma_freeaddrinfo(NULL);
}

static void getaddrinfo_active(const struct where *w)
{
	struct rdma_addrinfo *res, hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP };
	OK(rdma_getaddrinfo(w->text, "7471", &hints, &res));
	IS(res->ai_family, w->addr.sa.sa_family);
	IS(res->ai_qp_type, IBV_QPT_RC);
	IS(res->ai_port_space, RDMA_PS_TCP);
	IS(res->ai_flags & RAI_PASSIVE, 0);
	IS(res->ai_dst_len, w->len);
	TRUE(res->ai_dst_addr != NULL);
	IS(ntohs(((struct sockaddr_in *)res->ai_dst_addr)->sin_port), 7471);
	IS(res->ai_connect_len, 0);
	IS(res->ai_route_len, 0);
	rdma_freeaddrinfo(res);
	hints.ai_port_space = RDMA_PS_UDP;
	OK(rdma_getaddrinfo(w->text, "7471", &hints, &res));
	IS(res->ai_qp_type, IBV_QPT_UD);
	IS(res->ai_port_space, RDMA_PS_UDP);
	rdma_freeaddrinfo(res);
	/* A given queue pair type stays. */
	hints.ai_port_space = RDMA_PS_TCP;
	hints.ai_qp_type = IBV_QPT_UC;
	OK(rdma_getaddrinfo(w->text, "7471", &hints, &res));
	IS(res->ai_qp_type, IBV_QPT_UC);
	rdma_freeaddrinfo(res);
	/* A source goes along. */
	hints.ai_qp_type = 0;
	hints.ai_src_addr = (struct sockaddr *)&w->addr.sa;
	hints.ai_src_len = w->len;
	OK(rdma_getaddrinfo(w->text, "7471", &hints, &res));
	IS(res->ai_src_len, w->len);
	IS(memcmp(res->ai_src_addr, &w->addr.sa, w->len), 0);
	TRUE(res->ai_src_addr != &w->addr.sa);
	rdma_freeaddrinfo(res);
}

static void getaddrinfo_passive(const struct where *w)
{
	struct rdma_addrinfo *res, hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	OK(rdma_getaddrinfo(w->text, "7471", &hints, &res));
	IS(res->ai_flags & RAI_PASSIVE, RAI_PASSIVE);
	IS(res->ai_src_len, w->len);
	TRUE(res->ai_src_addr != NULL);
	TRUE(res->ai_dst_addr == NULL);
	IS(ntohs(((struct sockaddr_in *)res->ai_src_addr)->sin_port), 7471);
	rdma_freeaddrinfo(res);
	/* No node: the wildcard. */
	hints.ai_family = w->addr.sa.sa_family;
	OK(rdma_getaddrinfo(NULL, "7471", &hints, &res));
	IS(res->ai_src_addr->sa_family, w->addr.sa.sa_family);
	if (w->addr.sa.sa_family == AF_INET)
		IS(((struct sockaddr_in *)res->ai_src_addr)->sin_addr.s_addr, 0);
	rdma_freeaddrinfo(res);
}

static void getaddrinfo_without_hints(const struct where *w)
{
	struct rdma_addrinfo *res;
	OK(rdma_getaddrinfo(w->text, "7471", NULL, &res));
	IS(res->ai_family, w->addr.sa.sa_family);
	IS(res->ai_qp_type, IBV_QPT_RC);
	IS(res->ai_port_space, RDMA_PS_TCP);
	rdma_freeaddrinfo(res);
	/* Only hints: they are copied. */
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_UDP, .ai_qp_type = IBV_QPT_UD,
		.ai_family = w->addr.sa.sa_family, .ai_dst_addr = (struct sockaddr *)&w->addr.sa, .ai_dst_len = w->len };
	OK(rdma_getaddrinfo(NULL, NULL, &hints, &res));
	IS(res->ai_port_space, RDMA_PS_UDP);
	IS(res->ai_dst_len, w->len);
	IS(memcmp(res->ai_dst_addr, &w->addr.sa, w->len), 0);
	rdma_freeaddrinfo(res);
}

/* Names of hosts and of services. */
static void getaddrinfo_names(const struct where *w)
{
	struct rdma_addrinfo *res, hints = { .ai_port_space = RDMA_PS_TCP };
	(void)w;
	OK(rdma_getaddrinfo("localhost", "7471", &hints, &res));
	TRUE(res->ai_dst_addr != NULL);
	rdma_freeaddrinfo(res);
	if (!getservbyname("http", "tcp"))
		return;
	OK(rdma_getaddrinfo("127.0.0.1", "http", &hints, &res));
	IS(ntohs(((struct sockaddr_in *)res->ai_dst_addr)->sin_port), 80);
	rdma_freeaddrinfo(res);
}

const struct test address_tests[] = {
	{ "create_id", create_id, false, 0 },
	{ "event_names", event_names, false, 0 },
	{ "devices", devices, true, 0 },
	{ "default_pd", default_pd, false, 0 },
	{ "resolve_fills_the_id", resolve_fills_the_id, true, 0 },
	{ "resolve_gid_is_the_ports", resolve_gid_is_the_ports, true, 0 },
	{ "resolve_with_a_source", resolve_with_a_source, true, 0 },
	{ "resolve_after_bind_keeps_the_port", resolve_after_bind_keeps_the_port, true, 0 },
	{ "resolve_refuses", resolve_refuses, true, 0 },
	{ "resolve_the_wildcard", resolve_the_wildcard, false, 0 },
	{ "wrong_states", wrong_states, true, 0 },
	{ "getaddrinfo_errors", getaddrinfo_errors, false, 0 },
	{ "getaddrinfo_active", getaddrinfo_active, true, 0 },
	{ "getaddrinfo_passive", getaddrinfo_passive, true, 0 },
	{ "getaddrinfo_without_hints", getaddrinfo_without_hints, true, 0 },
	{ "getaddrinfo_names", getaddrinfo_names, false, 0 },
	{ 0 },
};
