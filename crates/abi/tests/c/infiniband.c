// The port as an InfiniBand port: found by its LID, with a GRH only where one is wanted.
#include "common.h"

#define QKEY 0x11

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_port_attr port;
static union ibv_gid gid;
static char data[4096];

static void facts(void)
{
	struct ibv_gid_entry entry;
	__be16 pkey = 0;

	NUMBER(0, ibv_query_port(ctx, 1, &port));
	CHECK(port.link_layer == IBV_LINK_LAYER_INFINIBAND && port.state == IBV_PORT_ACTIVE);
	CHECK(port.lid > 0 && port.lid < 0xc000 && port.lmc == 0 && port.sm_lid > 0 && port.sm_lid != port.lid);
	CHECK(!(port.flags & IBV_QPF_GRH_REQUIRED) && !(port.port_cap_flags & IBV_PORT_IP_BASED_GIDS));
	NUMBER(0, ibv_query_gid(ctx, 1, 0, &gid));
	CHECK(gid.raw[0] == 0xfe && gid.raw[1] == 0x80 && gid.global.interface_id == ibv_get_device_guid(ctx->device));
	NUMBER(0, ibv_query_gid_ex(ctx, 1, 0, &entry, 0));
	CHECK(entry.gid_type == IBV_GID_TYPE_IB && entry.ndev_ifindex == 0 && !memcmp(&entry.gid, &gid, sizeof gid));
	NUMBER(ENODATA, ibv_query_gid_ex(ctx, 1, 1, &entry, 0));
	NUMBER(0, ibv_query_pkey(ctx, 1, 0, &pkey));
	CHECK(pkey == 0xffff);
}

/* From INIT to RTS; gives what the change to RTR gives. */
static int connect_by(struct ibv_qp *qp, uint32_t peer, struct ibv_ah_attr path, int retries)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .ah_attr = path,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1,
	};
	int result = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 8; /* a millisecond */
	attr.retry_cnt = attr.rnr_retry = retries;
	attr.max_rd_atomic = 4;
	if (!result)
		NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	return result;
}

/* What becomes of a message on a connection by this path; 254 if the path is refused. */
static int connected(struct ibv_ah_attr there, struct ibv_ah_attr back)
{
	struct side side[2];
	struct ibv_mr *mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge out = { (uintptr_t)data, 8, mr->lkey }, in = { (uintptr_t)data + 64, 8, mr->lkey };
	struct ibv_send_wr send = {
		.opcode = IBV_WR_SEND, .sg_list = &out, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
	}, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &in, .num_sge = 1 }, *bad_recv;
	int result = 254;

	for (int i = 0; i < 2; i++) {
		side[i].cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
		side[i].qp = to_init(make_rc(pd, side[i].cq, 4));
	}
	if (!connect_by(side[0].qp, side[1].qp->qp_num, there, 1) && !connect_by(side[1].qp, side[0].qp->qp_num, back, 1)) {
		strcpy(data, "by LID");
		memset(data + 64, 0, 8);
		NUMBER(0, ibv_post_recv(side[1].qp, &recv, &bad_recv));
		NUMBER(0, ibv_post_send(side[0].qp, &send, &bad_send));
		result = next_wc(side[0].cq).status;
		if (result == IBV_WC_SUCCESS)
			CHECK(!strcmp(data + 64, "by LID"));
	}
	drop_pair(side);
	NUMBER(0, ibv_dereg_mr(mr));
	return result;
}

static void connections(void)
{
	struct ibv_ah_attr local = { .dlid = port.lid, .port_num = 1 }, wrong = local, global = local, stranger;

	global.is_global = 1;
	global.grh = (struct ibv_global_route){ .dgid = gid, .hop_limit = 1 };
	stranger = global;
	stranger.grh.dgid.raw[15] ^= 1;
	wrong.dlid = port.lid ^ 1;
	NUMBER(IBV_WC_SUCCESS, connected(local, local));
	NUMBER(IBV_WC_SUCCESS, connected(global, global));
	NUMBER(IBV_WC_SUCCESS, connected(local, global));
	/* A wrong LID leads nowhere, with the right GID as well; and so does a wrong GID. */
	NUMBER(IBV_WC_RETRY_EXC_ERR, connected(wrong, local));
	global.dlid = wrong.dlid;
	NUMBER(IBV_WC_RETRY_EXC_ERR, connected(global, local));
	NUMBER(IBV_WC_RETRY_EXC_ERR, connected(stranger, local));
	/* An index that the GID table does not have is an error only with a GRH. */
	local.grh.sgid_index = 255;
	NUMBER(IBV_WC_SUCCESS, connected(local, local));
	global.grh.sgid_index = 255;
	NUMBER(254, connected(global, local));
}

static struct ibv_qp *datagram_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 2, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	MUST(qp);
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

/* Sends a datagram of 4 bytes by an address vector; gives its receive completion, or one of status 255. The 40 bytes in
   front of the data lie at 1024 and hold 0x5a before. */
static struct ibv_wc datagram(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, struct ibv_ah_attr to, uint32_t qpn)
{
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	struct ibv_sge in[2] = { { (uintptr_t)data + 1024, 40, mr->lkey }, { (uintptr_t)data + 2048, 64, mr->lkey } };
	struct ibv_sge out = { (uintptr_t)data, 4, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = in, .num_sge = 2 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &out, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { ah, qpn, QKEY },
	}, *bad_send;
	struct ibv_wc found = { .status = 255 }, wc;

	MUST(ah != NULL);
	memset(data + 1024, 0x5a, 40);
	memcpy(data, "lid", 4);
	memset(data + 2048, 0, 64);
	NUMBER(0, ibv_post_recv(qp, &recv, &bad_recv));
	NUMBER(0, ibv_post_send(qp, &send, &bad_send));
	/* The datagram has come when its sender is told that it has gone: both are in this process. */
	do {
		wc = next_wc(cq);
		MUST(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == 1)
			found = wc;
	} while (wc.wr_id != 2);
	if (found.status == 255 && ibv_poll_cq(cq, 1, &wc) == 1)
		found = wc;
	if (found.status == IBV_WC_SUCCESS)
		CHECK(found.byte_len == 44 && !strcmp(data + 2048, "lid") && found.src_qp == qp->qp_num);
	NUMBER(0, ibv_destroy_ah(ah));
	return found;
}

static void datagrams(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *qp = datagram_qp(cq);
	struct ibv_mr *mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah_attr to = { .dlid = port.lid, .sl = 3, .port_num = 1 }, answer;
	struct ibv_grh *grh = (struct ibv_grh *)(data + 1024);
	union ibv_gid group = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [15] = 7 } };
	struct ibv_wc wc = datagram(qp, cq, mr, to, qp->qp_num);
	struct ibv_ah *back;

	/* Without a GRH: room for one, untouched. */
	CHECK(wc.status == IBV_WC_SUCCESS && !(wc.wc_flags & IBV_WC_GRH));
	CHECK(wc.slid == port.lid && wc.sl == 3 && wc.dlid_path_bits == 0 && data[1024] == 0x5a && data[1063] == 0x5a);
	NUMBER(0, ibv_init_ah_from_wc(ctx, 1, &wc, grh, &answer));
	CHECK(!answer.is_global && answer.dlid == port.lid && answer.sl == 3 && answer.port_num == 1);
	back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
	MUST(back != NULL);
	NUMBER(0, ibv_destroy_ah(back));

	/* With one. */
	to.is_global = 1;
	to.grh = (struct ibv_global_route){ .dgid = gid, .flow_label = 0x12345, .hop_limit = 9, .traffic_class = 0x42 };
	wc = datagram(qp, cq, mr, to, qp->qp_num);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_GRH && wc.slid == port.lid && wc.sl == 3);
	CHECK(be32toh(grh->version_tclass_flow) == (6u << 28 | 0x42 << 20 | 0x12345) && grh->next_hdr == 0x1b && grh->hop_limit == 9);
	CHECK(be16toh(grh->paylen) == 12 + 8 + 4 + 4); /* BTH, DETH, data, ICRC */
	CHECK(!memcmp(&grh->sgid, &gid, sizeof gid) && !memcmp(&grh->dgid, &gid, sizeof gid));
	NUMBER(0, ibv_init_ah_from_wc(ctx, 1, &wc, grh, &answer));
	CHECK(answer.is_global && answer.dlid == port.lid && !memcmp(&answer.grh.dgid, &gid, sizeof gid));
	CHECK(answer.grh.flow_label == 0x12345 && answer.grh.hop_limit == 9 && answer.grh.traffic_class == 0x42);

	/* To another LID. */
	to.dlid ^= 1;
	CHECK(datagram(qp, cq, mr, to, qp->qp_num).status == 255);

	/* To a group: its GID says which, its LID has to be one of a group. (A receive is left of the time before.) */
	NUMBER(0, ibv_attach_mcast(qp, &group, 0xc123));
	to.grh.dgid = group;
	CHECK(datagram(qp, cq, mr, to, 0xffffff).status == 255);
	to.dlid = 0xc123;
	wc = datagram(qp, cq, mr, to, 0xffffff);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_GRH && !memcmp(&grh->dgid, &group, sizeof group));
	NUMBER(0, ibv_detach_mcast(qp, &group, 0xc123));

	NUMBER(0, ibv_destroy_qp(qp));
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_dereg_mr(mr));
}

int main(void)
{
	MUST(setenv("SOFTRNIC_LINK_LAYER", "infiniband", 1) == 0);
	ctx = open_softrnic();
	pd = ibv_alloc_pd(ctx);
	MUST(pd != NULL);
	facts();
	connections();
	datagrams();
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
