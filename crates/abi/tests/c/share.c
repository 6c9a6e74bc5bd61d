// Objects with several names: imports, parent domains, XRC queue pairs opened again, windows that change keys.
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char data[4096];

static void imports(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr);
	char text[8] = "";

	MUST(mr && dm);

	struct ibv_context *other = ibv_import_device(dup(ctx->cmd_fd));

	MUST(other != NULL && other != ctx);
	CHECK(other->cmd_fd != ctx->cmd_fd && other->device == ctx->device && other->async_fd >= 0);

	struct ibv_pd *same = ibv_import_pd(other, pd->handle);
	MUST(same != NULL);
	struct ibv_mr *again = ibv_import_mr(same, mr->handle);
	struct ibv_dm *memory = ibv_import_dm(other, dm->handle);

	MUST(again && memory);
	CHECK(same->context == other && same->handle == pd->handle);
	CHECK(again->lkey == mr->lkey && again->rkey == mr->rkey && again->addr == NULL && again->pd == same);
	NUMBER(0, ibv_memcpy_to_dm(dm, 8, "shared!", 8));
	NUMBER(0, ibv_memcpy_from_dm(text, memory, 8, 8));
	CHECK(!strcmp(text, "shared!"));
	NUMBER(EBUSY, ibv_dealloc_pd(same)); /* the region belongs to it under either name */
	ibv_unimport_dm(memory);
	ibv_unimport_mr(again);
	ibv_unimport_pd(same);
	NUMBER(0, ibv_close_device(other));
	CHECK(fcntl(ctx->cmd_fd, F_GETFD) >= 0);
	NUMBER(0, ibv_free_dm(dm));
	NUMBER(0, ibv_dereg_mr(mr));
}

static void *default_alloc(struct ibv_pd *p, void *context, size_t size, size_t alignment, uint64_t type)
{
	(void)p, (void)context, (void)size, (void)alignment, (void)type;
	return IBV_ALLOCATOR_USE_DEFAULT;
}

static void default_free(struct ibv_pd *p, void *context, void *ptr, uint64_t type)
{
	(void)p, (void)context, (void)ptr, (void)type;
}

static void parents(void)
{
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(ctx, &td_attr);
	struct ibv_pd *base = ibv_alloc_pd(ctx);
	struct ibv_parent_domain_init_attr attr = {
		.pd = base, .td = td,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = default_alloc, .free = default_free, .pd_context = &attr,
	};

	MUST(td && base);

	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);

	MUST(parent && parent != base);
	NUMBER(EBUSY, ibv_dealloc_td(td));
	NUMBER(EBUSY, ibv_dealloc_pd(base));

	/* A region of the base serves a queue pair of the parent: they are one domain. */
	struct side side[2];
	struct ibv_mr *mr = ibv_reg_mr(base, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge = { (uintptr_t)data, 1, 0 };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;

	MUST(mr != NULL);
	sge.lkey = mr->lkey;
	make_pair(parent, side, 4);
	NUMBER(EBUSY, ibv_dealloc_pd(parent));
	NUMBER(0, ibv_post_recv(side[1].qp, &recv, &bad_recv));
	NUMBER(0, ibv_post_send(side[0].qp, &send, &bad_send));
	CHECK(next_wc(side[0].cq).status == IBV_WC_SUCCESS);
	CHECK(next_wc(side[1].cq).status == IBV_WC_SUCCESS);
	drop_pair(side);
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_dealloc_pd(parent));
	NUMBER(0, ibv_dealloc_pd(base));
	NUMBER(0, ibv_dealloc_td(td));
}

static void xrc(void)
{
	int fd = open("/tmp", O_RDONLY);
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &attr), *twice;

	MUST(xrcd != NULL);
	attr.oflags = O_CREAT | O_EXCL;
	NULLS(EINVAL, ibv_open_xrcd(ctx, &attr));
	attr.oflags = 0;
	twice = ibv_open_xrcd(ctx, &attr);
	MUST(twice != NULL);

	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);

	MUST(qp != NULL);

	struct ibv_qp_open_attr open_attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = qp->qp_num, .xrcd = twice, .qp_context = &open_attr, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *again = ibv_open_qp(ctx, &open_attr);

	MUST(again != NULL);
	CHECK(again != qp && again->qp_num == qp->qp_num && again->qp_context == &open_attr);
	open_attr.qp_num ^= 1;
	NULLS(EINVAL, ibv_open_qp(ctx, &open_attr));

	/* It lives as long as one of its handles does. */
	uint32_t number = qp->qp_num;

	NUMBER(0, ibv_destroy_qp(qp));
	to_init(again);
	NUMBER(0, ibv_close_xrcd(twice));
	NUMBER(EBUSY, ibv_close_xrcd(xrcd));
	NUMBER(0, ibv_destroy_qp(again));
	open_attr.qp_num = number;
	open_attr.xrcd = xrcd;
	NULLS(EINVAL, ibv_open_qp(ctx, &open_attr));
	NUMBER(0, ibv_close_xrcd(xrcd));
	close(fd);
}

static void windows(void)
{
	struct side side[2];
	struct ibv_mr *mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);

	MUST(mr && one && two);
	make_pair(pd, side, 8);

	uint32_t first = one->rkey;
	struct ibv_mw_bind bind = {
		.wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)data, 64, IBV_ACCESS_REMOTE_WRITE },
	};

	NUMBER(EINVAL, ibv_bind_mw(side[1].qp, two, &bind));
	NUMBER(0, ibv_bind_mw(side[1].qp, one, &bind));
	CHECK(one->rkey != first && one->rkey >> 8 == first >> 8 && (one->rkey & 0xff) == ((first + 1) & 0xff));
	CHECK(next_wc(side[1].cq).status == IBV_WC_SUCCESS);
	NUMBER(EBUSY, ibv_dereg_mr(mr));

	/* The peer writes through the window, and not beyond it. */
	struct ibv_sge sge = { (uintptr_t)"through", 8, 0 };
	struct ibv_send_wr write = {
		.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.wr.rdma = { (uintptr_t)data, one->rkey },
	}, *bad;

	NUMBER(0, ibv_post_send(side[0].qp, &write, &bad));
	CHECK(next_wc(side[0].cq).status == IBV_WC_SUCCESS);
	CHECK(!strcmp(data, "through"));

	/* Type 2: bound by a request, with a key of the program's making. */
	struct ibv_send_wr request = { .wr_id = 2, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };

	request.bind_mw.mw = one;
	request.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	request.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)data + 128, 64, IBV_ACCESS_REMOTE_WRITE };
	NUMBER(EINVAL, ibv_post_send(side[1].qp, &request, &bad)); /* type 1 */
	request.bind_mw.mw = two;
	NUMBER(0, ibv_post_send(side[1].qp, &request, &bad));
	CHECK(next_wc(side[1].cq).status == IBV_WC_SUCCESS);
	write.wr.rdma.remote_addr = (uintptr_t)data + 128;
	write.wr.rdma.rkey = request.bind_mw.rkey;
	NUMBER(0, ibv_post_send(side[0].qp, &write, &bad));
	CHECK(next_wc(side[0].cq).status == IBV_WC_SUCCESS);
	CHECK(!strcmp(data + 128, "through"));
	write.wr.rdma.remote_addr += 60;
	NUMBER(0, ibv_post_send(side[0].qp, &write, &bad));
	CHECK(next_wc(side[0].cq).status == IBV_WC_REM_ACCESS_ERR);

	drop_pair(side);
	NUMBER(0, ibv_dealloc_mw(one));
	NUMBER(0, ibv_dealloc_mw(two));
	NUMBER(0, ibv_dereg_mr(mr));
}

static void datagrams(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11 };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } };
	struct ibv_mr *mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);

	MUST(cq && qp && mr);
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	NUMBER(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	MUST(ibv_query_gid(ctx, 1, 0, &to.grh.dgid) == 0);

	struct ibv_ah *ah = ibv_create_ah(pd, &to), *back;

	MUST(ah != NULL);

	struct ibv_sge in = { (uintptr_t)data + 1024, 1024, mr->lkey }, out = { (uintptr_t)data, 4, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &out, .num_sge = 1, .wr.ud = { ah, qp->qp_num, 0x11 },
	}, *bad_send;

	NUMBER(0, ibv_post_recv(qp, &recv, &bad_recv));
	NUMBER(0, ibv_post_send(qp, &send, &bad_send));

	struct ibv_wc wc = next_wc(cq);
	struct ibv_ah_attr answer;

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.byte_len == 44 && wc.src_qp == qp->qp_num);
	CHECK(wc.wc_flags & IBV_WC_GRH);
	NUMBER(0, ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)(data + 1024), &answer));
	CHECK(answer.is_global == 1 && answer.port_num == 1 && !memcmp(&answer.grh.dgid, &to.grh.dgid, 16));
	back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(data + 1024), 1);
	MUST(back != NULL);
	NUMBER(0, ibv_destroy_ah(back));
	NUMBER(0, ibv_destroy_ah(ah));
	NUMBER(0, ibv_destroy_qp(qp));
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_dereg_mr(mr));
}

int main(void)
{
	ctx = open_softrnic();
	pd = ibv_alloc_pd(ctx);
	MUST(pd != NULL);
	imports();
	parents();
	xrc();
	windows();
	datagrams();
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
