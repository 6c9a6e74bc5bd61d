// Every function once with arguments that make no sense: the documented error, and never a crash.
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void devices(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	__be16 pkey;
	char text[8];

	CHECK(ibv_get_device_name(NULL) == NULL);
	CHECK(ibv_get_device_guid(NULL) == 0);
	NUMBER(-1, ibv_get_device_index(NULL));
	NULLS(EINVAL, ibv_open_device(NULL));
	FAILS(EINVAL, -1, ibv_close_device(NULL));
	ibv_free_device_list(NULL);
	NULLS(EBADF, ibv_import_device(-1));
	int fd = open("/dev/null", O_RDONLY);

	NULLS(EINVAL, ibv_import_device(fd));
	close(fd);
	NUMBER(EINVAL, ibv_query_device(NULL, NULL));
	NUMBER(EINVAL, ibv_query_device(ctx, NULL));
	NUMBER(EINVAL, ibv_query_port(ctx, 0, &port));
	NUMBER(EINVAL, ibv_query_port(ctx, 2, &port));
	NUMBER(EINVAL, (ibv_query_port)(NULL, 1, NULL));
	FAILS(EINVAL, -1, ibv_query_gid(ctx, 2, 0, &gid));
	FAILS(EINVAL, -1, ibv_query_gid(ctx, 1, -1, &gid));
	FAILS(EINVAL, -1, ibv_query_gid(ctx, 1, 100000, &gid));
	FAILS(EINVAL, -1, ibv_query_gid(ctx, 1, 0, NULL));
	NUMBER(EINVAL, ibv_query_gid_ex(ctx, 1, 100000, &entry, 0));
	NUMBER(EOPNOTSUPP, ibv_query_gid_ex(ctx, 1, 0, &entry, 1));
	NUMBER(-EINVAL, ibv_query_gid_table(ctx, &entry, 0, 0));
	NUMBER(-EOPNOTSUPP, ibv_query_gid_table(ctx, &entry, 1, 1));
	FAILS(EINVAL, -1, ibv_query_pkey(ctx, 1, 1, &pkey));
	FAILS(EINVAL, -1, ibv_query_pkey(ctx, 0, 0, &pkey));
	FAILS(ENOENT, -1, ibv_get_pkey_index(ctx, 1, 0x1234));
	NUMBER(EINVAL, ibv_query_rt_values_ex(ctx, NULL));
	FAILS(EINVAL, -1, ibv_get_async_event(NULL, NULL));
	FAILS(EINVAL, -1, ibv_get_async_event(ctx, NULL));
	ibv_ack_async_event(NULL);

	extern int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
	FAILS(EINVAL, -1, ibv_read_sysfs_file(NULL, NULL, NULL, 0));
	FAILS(ENOENT, -1, ibv_read_sysfs_file("/nowhere", "nothing", text, sizeof text));
	NUMBER(1, ibv_read_sysfs_file("/sys/class/infiniband/softrnic0", "node_type", text, 1) == 1);
}

static void strings_and_rates(void)
{
	CHECK(!strcmp(ibv_wc_status_str(999), "unknown"));
	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded"));
	CHECK(!strcmp(ibv_node_type_str(999), "unknown"));
	CHECK(!strcmp(ibv_port_state_str(999), "unknown"));
	CHECK(!strcmp(ibv_event_type_str(999), "unknown"));
	NUMBER(-1, ibv_rate_to_mult(999));
	NUMBER(-1, ibv_rate_to_mbps(999));
	NUMBER(IBV_RATE_MAX, mult_to_ibv_rate(-1));
	NUMBER(IBV_RATE_MAX, mbps_to_ibv_rate(-1));
	NUMBER(4, ibv_rate_to_mult(IBV_RATE_10_GBPS));
	NUMBER(IBV_RATE_100_GBPS, mbps_to_ibv_rate(103125));
	NUMBER(0, ibv_fork_init());
	NUMBER(IBV_FORK_UNNEEDED, ibv_is_fork_initialized());
}

static void domains(void)
{
	struct ibv_td_init_attr td = { .comp_mask = 1 };
	struct ibv_parent_domain_init_attr parent = { .pd = NULL };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };

	NULLS(EINVAL, ibv_alloc_pd(NULL));
	NUMBER(EINVAL, ibv_dealloc_pd(NULL));
	NULLS(EINVAL, ibv_import_pd(NULL, 0));
	NULLS(ENOENT, ibv_import_pd(ctx, 0xffffff));
	ibv_unimport_pd(NULL);
	NULLS(EINVAL, ibv_alloc_td(ctx, &td));
	NULLS(EINVAL, ibv_alloc_td(ctx, NULL));
	NULLS(EINVAL, ibv_alloc_parent_domain(ctx, &parent));
	NULLS(EINVAL, ibv_alloc_parent_domain(ctx, NULL));
	parent = (struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = 1 << 30 };
	NULLS(EOPNOTSUPP, ibv_alloc_parent_domain(ctx, &parent));
	parent.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	NULLS(EINVAL, ibv_alloc_parent_domain(ctx, &parent));
	NULLS(EINVAL, ibv_open_xrcd(ctx, &xrcd));
	xrcd.oflags = O_CREAT;
	xrcd.fd = 1 << 20;
	NULLS(EBADF, ibv_open_xrcd(ctx, &xrcd));
	xrcd.comp_mask = 0;
	NULLS(EINVAL, ibv_open_xrcd(ctx, &xrcd));
	NULLS(EINVAL, ibv_open_xrcd(ctx, NULL));
}

static void regions(void)
{
	static char data[8192] __attribute__((aligned(65536)));
	struct ibv_alloc_dm_attr dm_attr = { .length = 0 };
	struct ibv_sge sge = { .lkey = 0x12345678, .length = 1 };

	NULLS(EINVAL, ibv_reg_mr(NULL, data, 1, 0));
	NULLS(EINVAL, ibv_reg_mr(pd, data, 0, 0)); /* no page would be pinned */
	NULLS(EFAULT, ibv_reg_mr(pd, (void *)4097, 0, 0));
	NULLS(EINVAL, ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_REMOTE_WRITE));
	NULLS(EINVAL, ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_REMOTE_ATOMIC));
	NULLS(EINVAL, ibv_reg_mr(pd, data, sizeof data, 1 << 15));
	NULLS(EINVAL, ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE));
	NULLS(EINVAL, ibv_reg_mr(pd, data, SIZE_MAX, IBV_ACCESS_ON_DEMAND));
	NULLS(EINVAL, ibv_reg_mr(pd, data, 1, IBV_ACCESS_HUGETLB));
	NULLS(EFAULT, ibv_reg_mr(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE));
	NULLS(EFAULT, ibv_reg_mr(pd, (void *)"constant", 4, IBV_ACCESS_LOCAL_WRITE));
	NULLS(EINVAL, ibv_reg_mr_iova(NULL, data, 1, 0, 0));
	NULLS(EINVAL, ibv_reg_mr_iova2(NULL, data, 1, 0, 0));
	NULLS(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0));
	NUMBER(EINVAL, ibv_dereg_mr(NULL));
	NULLS(EINVAL, ibv_import_mr(NULL, 0));
	NULLS(ENOENT, ibv_import_mr(pd, 0xffffff));
	ibv_unimport_mr(NULL);

	struct ibv_mr *mr = ibv_reg_mr(pd, data + 1, 0, IBV_ACCESS_LOCAL_WRITE); /* one would */

	MUST(mr != NULL && mr->length == 0);
	NUMBER(0, ibv_dereg_mr(mr));
	mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	MUST(mr != NULL);
	FAILS(EINVAL, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0));
	FAILS(EINVAL, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0));
	FAILS(EINVAL, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0));
	FAILS(EINVAL, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0));
	FAILS(EINVAL, IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0));
	/* Flags that do not go together are seen by the adapter, not by the library. */
	FAILS(EINVAL, IBV_REREG_MR_ERR_CMD, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE));
	NUMBER(EFAULT, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	NUMBER(EINVAL, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0));
	NUMBER(EINVAL, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 99, &sge, 1));
	NUMBER(ENOTSUP, ibv_advise_mr(pd, 99, 0, &sge, 1));
	sge = (struct ibv_sge){ (uintptr_t)data, 1, mr->lkey };
	NUMBER(EINVAL, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1)); /* not on demand */
	NUMBER(0, ibv_dereg_mr(mr));

	NULLS(EINVAL, ibv_alloc_dm(ctx, &dm_attr));
	dm_attr.length = (size_t)1 << 40;
	NULLS(ENOMEM, ibv_alloc_dm(ctx, &dm_attr));
	dm_attr = (struct ibv_alloc_dm_attr){ .length = 64, .comp_mask = 1 };
	NULLS(EINVAL, ibv_alloc_dm(ctx, &dm_attr));
	NULLS(EINVAL, ibv_alloc_dm(ctx, NULL));
	dm_attr = (struct ibv_alloc_dm_attr){ .length = 100 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &dm_attr);

	MUST(dm != NULL);
	NUMBER(EINVAL, ibv_memcpy_to_dm(dm, 100, data, 4));
	NUMBER(EINVAL, ibv_memcpy_to_dm(dm, UINT64_MAX - 3, data, 4));
	NUMBER(EINVAL, ibv_memcpy_from_dm(data, dm, 2, 4));
	NULLS(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 104, IBV_ACCESS_ZERO_BASED));
	NULLS(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE));
	NULLS(EINVAL, ibv_reg_dm_mr(pd, NULL, 0, 100, IBV_ACCESS_ZERO_BASED));
	NULLS(ENOENT, ibv_import_dm(ctx, 0xffffff));
	ibv_unimport_dm(NULL);
	struct ibv_mr *dm_mr = ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);

	MUST(dm_mr != NULL);
	NUMBER(EBUSY, ibv_free_dm(dm));
	NUMBER(0, ibv_dereg_mr(dm_mr));
	NUMBER(0, ibv_free_dm(dm));
	NULLS(EINVAL, ibv_alloc_mw(pd, 3));
	NULLS(EINVAL, ibv_alloc_mw(pd, 0));
}

static void queues(void)
{
	struct ibv_cq_init_attr_ex cqx = { .cqe = 0 };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 0 } };
	struct ibv_srq_init_attr_ex srqx = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_TM, .pd = pd };
	struct ibv_srq_attr attr = { .max_wr = 0 };
	struct ibv_modify_cq_attr moderate = { .attr_mask = 0 };
	struct ibv_wc wc;
	struct ibv_cq *got;
	void *got_context;

	NULLS(EINVAL, ibv_create_cq(NULL, 1, NULL, NULL, 0));
	NULLS(EINVAL, ibv_create_cq(ctx, 0, NULL, NULL, 0));
	NULLS(EINVAL, ibv_create_cq(ctx, -1, NULL, NULL, 0));
	NULLS(EINVAL, ibv_create_cq(ctx, INT32_MAX, NULL, NULL, 0));
	NULLS(EINVAL, ibv_create_cq(ctx, 1, NULL, NULL, -1));
	NULLS(EINVAL, ibv_create_cq(ctx, 1, NULL, NULL, ctx->num_comp_vectors));
	NULLS(EINVAL, ibv_create_cq_ex(ctx, &cqx));
	NULLS(EINVAL, ibv_create_cq_ex(ctx, NULL));
	cqx = (struct ibv_cq_init_attr_ex){ .cqe = 1, .wc_flags = IBV_WC_EX_WITH_TM_INFO };
	NULLS(EOPNOTSUPP, ibv_create_cq_ex(ctx, &cqx));
	cqx = (struct ibv_cq_init_attr_ex){ .cqe = 1, .comp_mask = 1 << 30 };
	NULLS(EOPNOTSUPP, ibv_create_cq_ex(ctx, &cqx));
	cqx = (struct ibv_cq_init_attr_ex){ .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1 << 30 };
	NULLS(EOPNOTSUPP, ibv_create_cq_ex(ctx, &cqx));
	cqx = (struct ibv_cq_init_attr_ex){ .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	NULLS(EINVAL, ibv_create_cq_ex(ctx, &cqx));
	NUMBER(EINVAL, ibv_resize_cq(NULL, 1));
	NUMBER(EINVAL, ibv_resize_cq(cq, 0));
	NUMBER(EINVAL, ibv_resize_cq(cq, -1));
	NUMBER(EINVAL, ibv_destroy_cq(NULL));
	NUMBER(EINVAL, ibv_modify_cq(cq, &moderate));
	moderate.attr_mask = 1 << 20;
	NUMBER(EOPNOTSUPP, ibv_modify_cq(cq, &moderate));
	NUMBER(-EINVAL, ibv_poll_cq(cq, -1, &wc));
	NUMBER(0, ibv_poll_cq(cq, 0, NULL));
	NULLS(EINVAL, ibv_create_comp_channel(NULL));
	NUMBER(EINVAL, ibv_destroy_comp_channel(NULL));
	FAILS(EINVAL, -1, ibv_get_cq_event(NULL, &got, &got_context));
	ibv_ack_cq_events(NULL, 1);

	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);

	MUST(channel != NULL);
	MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(EAGAIN, -1, ibv_get_cq_event(channel, &got, &got_context));
	FAILS(EINVAL, -1, ibv_get_cq_event(channel, NULL, NULL));
	NUMBER(0, ibv_destroy_comp_channel(channel));

	NULLS(EINVAL, ibv_create_srq(NULL, &srq));
	NULLS(EINVAL, ibv_create_srq(pd, NULL));
	NULLS(EINVAL, ibv_create_srq(pd, &srq));
	srq.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = 100000 };
	NULLS(EINVAL, ibv_create_srq(pd, &srq));
	NULLS(EOPNOTSUPP, ibv_create_srq_ex(ctx, &srqx));
	srqx.srq_type = IBV_SRQT_XRC;
	NULLS(EINVAL, ibv_create_srq_ex(ctx, &srqx));
	srqx.comp_mask |= 1 << 30;
	NULLS(EOPNOTSUPP, ibv_create_srq_ex(ctx, &srqx));
	NUMBER(EINVAL, ibv_modify_srq(NULL, &attr, IBV_SRQ_LIMIT));
	NUMBER(EINVAL, ibv_query_srq(NULL, &attr));
	NUMBER(EINVAL, ibv_destroy_srq(NULL));
	srq.attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1 };
	struct ibv_srq *s = ibv_create_srq(pd, &srq);

	MUST(s != NULL);
	attr.max_wr = 0;
	NUMBER(EINVAL, ibv_modify_srq(s, &attr, IBV_SRQ_MAX_WR));
	attr.srq_limit = 1000;
	NUMBER(EINVAL, ibv_modify_srq(s, &attr, IBV_SRQ_LIMIT));
	NUMBER(EINVAL, ibv_modify_srq(s, &attr, 1 << 10));
	NUMBER(EINVAL, ibv_query_srq(s, NULL));
	NUMBER(EINVAL, ibv_get_srq_num(s, NULL));

	struct ibv_sge list[64] = { { 0 } };
	struct ibv_recv_wr wr = { .sg_list = list, .num_sge = 2 }, *bad = NULL;

	NUMBER(EINVAL, ibv_post_srq_recv(s, &wr, &bad));
	CHECK(bad == &wr);
	wr.num_sge = -1;
	NUMBER(EINVAL, ibv_post_srq_recv(s, &wr, &bad));
	struct ibv_ops_wr op = { .wr_id = 1 }, *bad_op = NULL;

	NUMBER(EOPNOTSUPP, ibv_post_srq_ops(s, &op, &bad_op));
	CHECK(bad_op == &op);
	NUMBER(0, ibv_destroy_srq(s));
}

static void pairs(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_init_attr_ex initx = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_open_attr open_attr = { .comp_mask = 0 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_ece ece = { 0 };

	NULLS(EINVAL, ibv_create_qp(NULL, &init));
	NULLS(EINVAL, ibv_create_qp(pd, NULL));
	NULLS(EOPNOTSUPP, ibv_create_qp(pd, &init));
	init.qp_type = 77;
	NULLS(EINVAL, ibv_create_qp(pd, &init));
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = 1 << 30;
	NULLS(EINVAL, ibv_create_qp(pd, &init));
	init.cap.max_send_wr = 1;
	init.send_cq = NULL;
	NULLS(EINVAL, ibv_create_qp(pd, &init));
	NULLS(EINVAL, ibv_create_qp_ex(ctx, &initx)); /* no protection domain */
	initx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	initx.pd = pd;
	initx.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	NULLS(EOPNOTSUPP, ibv_create_qp_ex(ctx, &initx));
	initx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
	NULLS(EOPNOTSUPP, ibv_create_qp_ex(ctx, &initx));
	initx.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	initx.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NULLS(EOPNOTSUPP, ibv_create_qp_ex(ctx, &initx));
	initx.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	initx.qp_type = IBV_QPT_UD;
	NULLS(EOPNOTSUPP, ibv_create_qp_ex(ctx, &initx));
	NULLS(EINVAL, ibv_open_qp(ctx, &open_attr));
	NULLS(EINVAL, ibv_open_qp(ctx, NULL));
	NULLS(0, ibv_qp_to_qp_ex(NULL));
	NUMBER(EINVAL, ibv_modify_qp(NULL, &attr, IBV_QP_STATE));
	NUMBER(EINVAL, ibv_query_qp(NULL, &attr, 0, &init));
	NUMBER(EINVAL, ibv_destroy_qp(NULL));

	struct ibv_qp *qp = make_rc(pd, cq, 4);

	NUMBER(EINVAL, ibv_modify_qp(qp, NULL, IBV_QP_STATE));
	NUMBER(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	NUMBER(EINVAL, ibv_modify_qp(qp, &attr, 1 << 30));
	attr.qp_state = 99;
	NUMBER(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	CHECK(qp->state == IBV_QPS_RESET);
	NUMBER(EINVAL, ibv_query_qp(qp, NULL, 0, NULL));
	NUMBER(0, ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0));
	NUMBER(EOPNOTSUPP, ibv_set_ece(qp, &ece));
	NUMBER(EOPNOTSUPP, ibv_query_ece(qp, &ece));
	NUMBER(EINVAL, ibv_attach_mcast(qp, NULL, 0));
	union ibv_gid group = { .raw = { 0xff, 0x0e } };

	NUMBER(EINVAL, ibv_attach_mcast(qp, &group, 0)); /* not UD */
	NUMBER(EINVAL, ibv_detach_mcast(qp, &group, 0));
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1 };

	NUMBER(EOPNOTSUPP, ibv_modify_qp_rate_limit(qp, &rate));
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_NORMAL };

	NULLS(EOPNOTSUPP, ibv_create_flow(qp, &flow));

	/* Posting in RESET, and with what cannot be posted. */
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, second = send, *bad_send = NULL;
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;

	send.next = &second;
	NUMBER(EINVAL, ibv_post_send(qp, &send, &bad_send));
	CHECK(bad_send == &send);
	NUMBER(EINVAL, ibv_post_recv(qp, &recv, &bad_recv));
	CHECK(bad_recv == &recv);
	/* What is refused is not read. */
	struct ibv_sge nowhere = { .addr = 16, .length = 8 };
	struct ibv_send_wr inl = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE, .sg_list = &nowhere, .num_sge = 1 };

	NUMBER(EINVAL, ibv_post_send(qp, &inl, &bad_send));
	CHECK(bad_send == &inl);
	NUMBER(0, ibv_destroy_qp(qp));
}

static void handles(void)
{
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 0 };
	struct ibv_wc wc = { .wc_flags = 0 };
	struct ibv_grh grh = { 0 };
	uint8_t mac[6];
	uint16_t vid;

	NULLS(EINVAL, ibv_create_ah(NULL, &attr));
	NULLS(EINVAL, ibv_create_ah(pd, NULL));
	NULLS(EINVAL, ibv_create_ah(pd, &attr)); /* RoCE: a GRH always */
	attr.is_global = 1;
	attr.port_num = 2;
	NULLS(EINVAL, ibv_create_ah(pd, &attr));
	attr.port_num = 1;
	NULLS(EINVAL, ibv_create_ah(pd, &attr)); /* a destination of zeros */
	attr.grh.dgid.raw[15] = 1;
	attr.grh.sgid_index = 255;
	NULLS(EINVAL, ibv_create_ah(pd, &attr));
	NUMBER(EINVAL, ibv_destroy_ah(NULL));
	FAILS(EINVAL, -1, ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &attr));
	wc.wc_flags = IBV_WC_GRH;
	FAILS(EINVAL, -1, ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &attr));
	FAILS(EINVAL, -1, ibv_init_ah_from_wc(ctx, 7, &wc, &grh, &attr));
	NULLS(EINVAL, ibv_create_ah_from_wc(pd, &wc, NULL, 1));
	attr.port_num = 9;
	FAILS(EINVAL, -1, ibv_resolve_eth_l2_from_gid(ctx, &attr, mac, &vid));
	FAILS(EINVAL, -1, ibv_resolve_eth_l2_from_gid(ctx, NULL, mac, &vid));
}

static void never(void)
{
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_wq_init_attr wq = { 0 };
	struct ibv_rwq_ind_table_init_attr table = { 0 };
	struct ibv_flow_action_esp_attr esp = { 0 };

	NULLS(EOPNOTSUPP, ibv_create_counters(ctx, &counters));
	NULLS(EOPNOTSUPP, ibv_create_wq(ctx, &wq));
	NULLS(EOPNOTSUPP, ibv_create_rwq_ind_table(ctx, &table));
	NULLS(EOPNOTSUPP, ibv_create_flow_action_esp(ctx, &esp));
}

int main(void)
{
	ctx = open_softrnic();
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	MUST(pd && cq);
	devices();
	strings_and_rates();
	domains();
	regions();
	queues();
	pairs();
	handles();
	never();
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
