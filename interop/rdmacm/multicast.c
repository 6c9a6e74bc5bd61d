/* Multicast groups: joining, messages, leaving. */
#include "harness.h"

#include <arpa/inet.h>

static struct sockaddr *group(const struct where *w, int number, struct sockaddr_storage *s)
{
	struct sockaddr_in *in = (struct sockaddr_in *)s;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)s;
	memset(s, 0, sizeof(*s));
	s->ss_family = w->addr.sa.sa_family;
	if (s->ss_family == AF_INET) {
		in->sin_addr.s_addr = htonl(0xefc30100 + number); /* 239.195.1.x */
	} else {
		char text[32];
		snprintf(text, sizeof(text), "ff0e::%x", 0x100 + number);
		inet_pton(AF_INET6, text, &in6->sin6_addr);
	}
	return (struct sockaddr *)s;
}

static struct rdma_cm_id *bound(struct rdma_event_channel *ch, const struct where *w)
{
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_UDP);
	struct sockaddr_storage s;
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	queue_pair(id);
	return id;
}

static struct event join(struct rdma_cm_id *id, const struct where *w, int number, void *context)
{
	struct sockaddr_storage s;
	errno = 0;
	int ret = rdma_join_multicast(id, group(w, number, &s), context);
	/* Linux has no IPv6 groups on RoCE; its ENOTSUPP is not in errno.h. */
	if (ret && errno == 524 && w->addr.sa.sa_family == AF_INET6)
		skip("no IPv6 groups");
	OK(ret);
	struct event e = EXPECT(id->channel, MULTICAST_JOIN, 0);
	TRUE(e.id == id);
	return e;
}

static void join_and_leave(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = bound(ch, w);
	struct sockaddr_storage s;
	struct event e = join(id, w, 1, &s);
	TRUE(e.ud.private_data == &s);
	IS(e.ud.qp_num, 0xffffff);
	IS(e.ud.qkey, RDMA_UDP_QKEY);
	IS(e.ud.ah_attr.is_global, 1);
	IS(e.ud.ah_attr.port_num, 1);
	if (w->addr.sa.sa_family == AF_INET6)
		IS(memcmp(&e.ud.ah_attr.grh.dgid, &((struct sockaddr_in6 *)group(w, 1, &s))->sin6_addr, 16), 0);
	OK(rdma_leave_multicast(id, group(w, 1, &s)));
	FAILS(rdma_leave_multicast(id, group(w, 1, &s)), EADDRNOTAVAIL);
	join(id, w, 1, NULL);
	OK(rdma_leave_multicast(id, group(w, 1, &s)));
	rdma_destroy_qp(id);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static void multicast_refuses(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_UDP);
	struct sockaddr_storage s;
	struct sockaddr none = { .sa_family = AF_UNIX };
	FAILS(rdma_join_multicast(id, NULL, NULL), EINVAL);
	FAILS(rdma_join_multicast(id, &none, NULL), EINVAL);
	FAILS(rdma_leave_multicast(id, NULL), EINVAL);
	FAILS(rdma_leave_multicast(id, group(w, 1, &s)), EADDRNOTAVAIL);
	/* Bound to nothing; and connections have no groups. */
	FAILS(rdma_join_multicast(id, group(w, 1, &s), NULL), EINVAL);
	struct rdma_cm_id *tcp = new_id(ch, RDMA_PS_TCP);
	OK(rdma_bind_addr(tcp, with_port(w, 0, &s)));
	FAILS(rdma_join_multicast(tcp, group(w, 1, &s), NULL), EINVAL);
	/* The extended call checks its mask. */
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_RESERVED };
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), ENOTSUP);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	attr.addr = group(w, 1, &s);
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	QUIET(ch);
}

/* Send to the group; true if the receiver gets it. */
static bool heard(struct rdma_cm_id *from, struct rdma_cm_id *to, struct event *e, int patience)
{
	static uint8_t out[32], in[32 + sizeof(struct ibv_grh)];
	struct ibv_mr *in_mr = rdma_reg_msgs(to, in, sizeof(in)), *out_mr = rdma_reg_msgs(from, out, sizeof(out));
	struct ibv_ah *ah = ibv_create_ah(from->pd, &e->ud.ah_attr);
	struct ibv_wc wc;
	TRUE(ah && in_mr && out_mr);
	pattern(out, sizeof(out), 4);
	memset(in, 0, sizeof(in));
	OK(rdma_post_recv(to, NULL, in, sizeof(in), in_mr));
	OK(rdma_post_ud_send(from, NULL, out, sizeof(out), out_mr, IBV_SEND_SIGNALED, ah, e->ud.qp_num));
	IS(rdma_get_send_comp(from, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	for (long long end = now_ms() + patience; now_ms() < end; usleep(1000)) {
		int n = ibv_poll_cq(to->recv_cq, 1, &wc);
		TRUE(n >= 0);
		if (n == 0)
			continue;
		IS(wc.status, IBV_WC_SUCCESS);
		IS(memcmp(in + sizeof(struct ibv_grh), out, sizeof(out)), 0);
		return true;
	}
	return false;
}

static void group_hears(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *a = bound(ch, w), *b = bound(ch, w);
	struct sockaddr_storage s;
	struct event e = join(a, w, 2, NULL);
	join(b, w, 2, NULL);
	TRUE(heard(a, b, &e, PATIENCE));
	OK(rdma_leave_multicast(b, group(w, 2, &s)));
	TRUE(!heard(a, b, &e, 200));
}

/* A member that only sends gets no message. */
static void send_only(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *a = bound(ch, w), *b = bound(ch, w);
	struct sockaddr_storage s;
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = group(w, 3, &s),
	};
	errno = 0;
	if (rdma_join_multicast_ex(a, &attr, NULL)) {
		TRUE(errno == EOPNOTSUPP || errno == EINVAL || errno == 524);
		skip("no send-only members");
	}
	struct event e;
	TRUE(next_event(ch, PATIENCE, &e));
	if (e.type == RDMA_CM_EVENT_MULTICAST_ERROR)
		return;
	IS(e.type, RDMA_CM_EVENT_MULTICAST_JOIN);
	struct event full = join(b, w, 3, NULL);
	TRUE(heard(a, b, &e, PATIENCE));
	TRUE(!heard(b, a, &full, 200));
	OK(rdma_leave_multicast(a, group(w, 3, &s)));
}

const struct test multicast_tests[] = {
	{ "multicast_join_and_leave", join_and_leave, true, 0 },
	{ "multicast_refuses", multicast_refuses, true, 0 },
	{ "multicast_group_hears", group_hears, true, 0 },
	{ "multicast_send_only", send_only, true, 0 },
	{ 0 },
};
