// The structures that the library hands out, looked at with the eyes of the installed header: true sizes, no empty
// members, all public fields filled.
#include "common.h"

/* Every word of a structure of function pointers. */
static void no_null(const char *name, const void *start, size_t bytes)
{
	const uintptr_t *word = start;

	for (size_t i = 0; i < bytes / sizeof *word; i++)
		if (!word[i]) {
			fprintf(stderr, "%s: member at byte %zu is NULL\n", name, i * sizeof *word);
			failures++;
		}
}

static void context(struct ibv_context *ctx)
{
	struct verbs_context *v = verbs_get_ctx(ctx);

	MUST(v != NULL);
	CHECK(v->sz >= sizeof *v);
	/* `_ABI_placeholder3` is a number, just before `sz`. */
	no_null("verbs_context", v, offsetof(struct verbs_context, _ABI_placeholder3));
	no_null("ibv_context_ops", &ctx->ops, sizeof ctx->ops);
	CHECK(ctx->device != NULL && ctx->cmd_fd >= 0 && ctx->async_fd >= 0 && ctx->num_comp_vectors > 0);
	CHECK(!strcmp(ctx->device->name, "softrnic0") && !strcmp(ctx->device->dev_name, "uverbs0"));
	CHECK(!strcmp(ctx->device->dev_path, "/sys/class/infiniband_verbs/uverbs0"));
	CHECK(!strcmp(ctx->device->ibdev_path, "/sys/class/infiniband/softrnic0"));
	CHECK(ctx->device->node_type == IBV_NODE_CA && ctx->device->transport_type == IBV_TRANSPORT_IB);
}

static void queries(struct ibv_context *ctx)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex ex;
	struct ibv_port_attr port;
	struct { struct ibv_port_attr attr; char guard[16]; } padded;
	union ibv_gid gid;
	struct ibv_gid_entry entry, table[256];
	ssize_t count;
	__be16 pkey = 0;
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	NUMBER(0, ibv_query_device(ctx, &attr));
	NUMBER(0, ibv_query_device_ex(ctx, NULL, &ex));
	/* Up to the last member; padding follows it. */
	CHECK(!memcmp(&attr, &ex.orig_attr, offsetof(struct ibv_device_attr, phys_port_cnt) + 1));
	CHECK(attr.node_guid == ibv_get_device_guid(ctx->device) && attr.node_guid != 0);
	CHECK(attr.phys_port_cnt == 1 && ex.phys_port_cnt_ex == 1 && attr.max_qp > 0);
	CHECK(ex.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(ex.completion_timestamp_mask == UINT64_MAX && ex.hca_core_clock == 1000000);
	NUMBER(0, ibv_query_port(ctx, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.active_mtu == IBV_MTU_4096);
	/* The exported function, for programs that knew a shorter structure: nothing behind it is touched. */
	memset(&padded, 0x5a, sizeof padded);
	NUMBER(0, (ibv_query_port)(ctx, 1, (struct _compat_ibv_port_attr *)&padded.attr));
	CHECK(padded.attr.state == IBV_PORT_ACTIVE && padded.attr.port_cap_flags2 == 0x5a5a && padded.guard[0] == 0x5a);
	/* A caller whose structure is longer than the library's gets zeros behind it. */
	memset(&padded, 0x5a, sizeof padded);
	NUMBER(0, verbs_get_ctx(ctx)->query_port(ctx, 1, &padded.attr, sizeof padded));
	CHECK(padded.guard[15] == 0 && padded.guard[8] == 0);

	NUMBER(0, ibv_query_gid(ctx, 1, 0, &gid));
	NUMBER(0, ibv_query_gid_ex(ctx, 1, 0, &entry, 0));
	CHECK(!memcmp(&gid, &entry.gid, sizeof gid) && entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.port_num == 1);
	/* The table lists what is there; the rest of the port's table is empty: ENODATA, and the zero GID without error. */
	count = ibv_query_gid_table(ctx, table, 256, 0);
	CHECK(count > 0 && count < port.gid_tbl_len);
	CHECK(!memcmp(&table[0].gid, &gid, sizeof gid));
	NUMBER(ENODATA, ibv_query_gid_ex(ctx, 1, port.gid_tbl_len - 1, &entry, 0));
	NUMBER(0, ibv_query_gid(ctx, 1, port.gid_tbl_len - 1, &gid));
	CHECK(gid.global.subnet_prefix == 0 && gid.global.interface_id == 0);
	NUMBER(EINVAL, ibv_query_gid_ex(ctx, 1, port.gid_tbl_len, &entry, 0));
	NUMBER(0, ibv_query_pkey(ctx, 1, 0, &pkey));
	CHECK(pkey == 0xffff);
	NUMBER(0, ibv_get_pkey_index(ctx, 1, pkey));
	NUMBER(0, ibv_query_rt_values_ex(ctx, &values));
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec + values.raw_clock.tv_nsec > 0);
}

static void objects(struct ibv_context *ctx)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 10, .cq_context = &cq_init, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &cq_init);
	struct ibv_srq_init_attr srq_init = { .srq_context = &srq_init, .attr = { .max_wr = 5, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	MUST(pd && channel && cq && srq);
	CHECK(pd->context == ctx && channel->context == ctx && channel->fd >= 0 && channel->refcnt == 1);
	CHECK(cq->context == ctx && cq->channel == channel && cq->cq_context == &cq_init && cq->cqe >= 10);
	no_null("ibv_cq_ex", &cq->start_poll, sizeof *cq - offsetof(struct ibv_cq_ex, start_poll));
	CHECK(srq->context == ctx && srq->srq_context == &srq_init && srq->pd == pd && srq_init.attr.max_wr >= 5);

	struct ibv_qp *qp = make_rc(pd, ibv_cq_ex_to_cq(cq), 3);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);

	MUST(qpx != NULL);
	CHECK((void *)qpx == (void *)qp);
	no_null("ibv_qp_ex", &qpx->wr_atomic_cmp_swp, sizeof *qpx - offsetof(struct ibv_qp_ex, wr_atomic_cmp_swp));
	CHECK(qp->context == ctx && qp->pd == pd && qp->send_cq == ibv_cq_ex_to_cq(cq) && qp->qp_type == IBV_QPT_RC);
	CHECK(qp->state == IBV_QPS_RESET && qp->qp_num > 1 && qp->qp_num < 1 << 24);
	to_init(qp);
	CHECK(qp->state == IBV_QPS_INIT);
	NUMBER(0, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_INIT && attr.cap.max_send_wr >= 3 && attr.cap.max_send_sge >= 4 && init.qp_type == IBV_QPT_RC);
	CHECK(init.send_cq == qp->send_cq && init.cap.max_inline_data >= 64);
	NUMBER(EBUSY, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	NUMBER(EBUSY, ibv_destroy_comp_channel(channel));
	NUMBER(EBUSY, ibv_dealloc_pd(pd));

	/* Made without SEND_OPS_FLAGS: no such interface. */
	init = (struct ibv_qp_init_attr){ .send_cq = qp->send_cq, .recv_cq = qp->recv_cq, .srq = srq, .qp_type = IBV_QPT_RC,
					  .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	struct ibv_qp *plain = ibv_create_qp(pd, &init);

	MUST(plain != NULL);
	NULLS(0, ibv_qp_to_qp_ex(plain));
	NUMBER(EBUSY, ibv_destroy_srq(srq));
	NUMBER(0, ibv_resize_cq(qp->send_cq, 100));
	CHECK(cq->cqe >= 100);
	NUMBER(0, ibv_destroy_qp(plain));
	NUMBER(0, ibv_destroy_qp(qp));
	NUMBER(0, ibv_destroy_srq(srq));
	NUMBER(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(channel->refcnt == 0);
	NUMBER(0, ibv_destroy_comp_channel(channel));
	NUMBER(0, ibv_dealloc_pd(pd));
}

int main(void)
{
	struct ibv_context *ctx = open_softrnic();

	context(ctx);
	queries(ctx);
	objects(ctx);
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
