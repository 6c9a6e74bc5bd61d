// A program linked against libibverbs as usual gets this library's functions, and libc's path functions lead to the
// device's files.
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_ours(void *function)
{
	Dl_info info;

	return dladdr(function, &info) && strstr(info.dli_fname, "softrnic") != NULL;
}

static void files(void)
{
	struct stat st;
	char text[64] = "";
	int fd = open("/sys/class/infiniband/softrnic0/node_type", O_RDONLY);

	CHECK(fd >= 0);
	CHECK(read(fd, text, sizeof text - 1) > 0);
	CHECK(text[0] == '1');
	close(fd);
	NUMBER(0, stat("/dev/infiniband/uverbs0", &st));
	CHECK(S_ISCHR(st.st_mode));
	NUMBER(0, access("/dev/infiniband/uverbs0", R_OK | W_OK));
	CHECK(stat("/dev/infiniband/none", &st) != 0);
	NUMBER(0, stat("/etc/passwd", &st));
}

static void one_message(struct ibv_context *ctx)
{
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct side side[2];
	char data[2][64] = { "over a loopback", "" };

	MUST(pd != NULL);
	make_pair(pd, side, 8);

	struct ibv_mr *mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);

	MUST(mr != NULL);
	CHECK(mr->addr == data && mr->length == sizeof data && mr->pd == pd && mr->context == ctx);

	struct ibv_sge to = { (uintptr_t)data[1], 64, mr->lkey }, from = { (uintptr_t)data[0], 64, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .imm_data = 77
	}, *bad_send;

	NUMBER(0, ibv_post_recv(side[1].qp, &recv, &bad_recv));
	NUMBER(0, ibv_post_send(side[0].qp, &send, &bad_send));

	struct ibv_wc sent = next_wc(side[0].cq), got = next_wc(side[1].cq);

	CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == 2 && sent.opcode == IBV_WC_SEND);
	CHECK(got.status == IBV_WC_SUCCESS && got.wr_id == 1 && got.opcode == IBV_WC_RECV && got.byte_len == 64);
	CHECK(got.wc_flags == IBV_WC_WITH_IMM && got.imm_data == 77 && got.qp_num == side[1].qp->qp_num);
	CHECK(!strcmp(data[1], data[0]));
	drop_pair(side);
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_dealloc_pd(pd));
}

int main(void)
{
	CHECK(is_ours((void *)ibv_get_device_list));
	CHECK(is_ours((void *)ibv_rate_to_mult));
	CHECK(is_ours((void *)(ibv_reg_mr_iova2)));
	files();

	struct ibv_context *ctx = open_softrnic();

	one_message(ctx);
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
