// Registered memory of a file that another process truncates: the request ends in an error, and no process in a SIGBUS.
// Before that, the memory is as good as any other.
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };
static const enum ibv_wr_opcode operations[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD };
static const uint32_t sizes[] = { 8, 4096, 65536, SIZE };

static const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/* A file of 1 MiB in memory, and where it is mapped. */
static char *file(int *fd)
{
	char *memory;

	MUST((*fd = memfd_create("files", MFD_CLOEXEC)) >= 0 && !ftruncate(*fd, SIZE));
	MUST((memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0)) != MAP_FAILED);
	return memory;
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode operation, struct ibv_sge sge, uint64_t to, uint32_t rkey)
{
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = operation, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (operation == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = rkey;
	}
	MUST(!ibv_post_send(qp, &wr, &bad));
}

static void receive(struct ibv_qp *qp, struct ibv_sge sge)
{
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	MUST(!ibv_post_recv(qp, &wr, &bad));
}

/* Both sides in one process: each operation, once with the whole file, and once with the file of one side cut off. */
static void alone(struct ibv_pd *pd, enum ibv_wr_opcode operation, uint32_t size, int target)
{
	struct side side[2];
	int fd[2];
	char *memory[2] = { file(&fd[0]), file(&fd[1]) };
	struct ibv_mr *mr[2];
	struct ibv_sge sge[2];

	make_pair(pd, side, 4);
	for (int i = 0; i < 2; i++) {
		MUST(mr[i] = ibv_reg_mr(pd, memory[i], SIZE, rights));
		sge[i] = (struct ibv_sge){ (uintptr_t)memory[i], size, mr[i]->lkey };
	}
	for (int cut = 0; cut < 2; cut++) {
		if (cut)
			MUST(!ftruncate(fd[target], 0));
		else
			memset(memory[0], 'a', SIZE);
		if (operation == IBV_WR_SEND)
			receive(side[1].qp, sge[1]);
		post(side[0].qp, operation, sge[0], sge[1].addr, mr[1]->rkey);
		struct ibv_wc wc = next_wc(side[0].cq);

		if (cut ? wc.status == IBV_WC_SUCCESS || wc.status == 255 : wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "operation %d, %u bytes, %s cut off (%d): %d\n", operation, size, target ? "target" : "initiator",
				cut, wc.status);
			failures++;
		}
		if (!cut && (operation == IBV_WR_RDMA_WRITE || operation == IBV_WR_SEND))
			CHECK(!memcmp(memory[0], memory[1], size));
		if (!cut && operation == IBV_WR_ATOMIC_FETCH_AND_ADD)
			CHECK(*(uint64_t *)memory[1] == 1);
		if (operation == IBV_WR_SEND && !cut)
			next_wc(side[1].cq);
	}
	for (int i = 0; i < 2; i++) {
		NUMBER(0, ibv_dereg_mr(mr[i]));
		munmap(memory[i], SIZE);
		close(fd[i]);
	}
	drop_pair(side);
}

/* What the sides of two processes tell each other. */
struct place {
	uint64_t addr;
	uint32_t rkey, qpn;
};

/* One of two processes, which connect over a socket. Side 1 has a file, which side 0 cuts off; neither may die of that. */
static int one_of_two(int me, int sock, int fd, enum ibv_wr_opcode operation, uint32_t size)
{
	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | (me ? 0 : MAP_ANONYMOUS), me ? fd : -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, rights);
	struct ibv_qp *qp = to_init(make_rc(pd, cq, 4));
	struct place here = { (uintptr_t)memory, mr ? mr->rkey : 0, qp->qp_num }, there;
	struct ibv_sge sge = { here.addr, size, mr ? mr->lkey : 0 };
	struct ibv_wc wc;
	char go;

	MUST(mr && write(sock, &here, sizeof here) == sizeof here && read(sock, &there, sizeof there) == sizeof there);
	to_rts(qp, there.qpn);
	if (me) {
		receive(qp, sge);
		receive(qp, sge);
	}
	MUST(write(sock, "g", 1) == 1 && read(sock, &go, 1) == 1);
	if (!me) {
		post(qp, operation, sge, there.addr, there.rkey);
		NUMBER(IBV_WC_SUCCESS, next_wc(cq).status);
		MUST(!ftruncate(fd, 0));
		post(qp, operation, sge, there.addr, there.rkey);
		wc = next_wc(cq);
		CHECK(wc.status != IBV_WC_SUCCESS && wc.status != 255);
		MUST(write(sock, "e", 1) == 1);
	} else {
		while (recv(sock, &go, 1, MSG_DONTWAIT) != 1)
			ibv_poll_cq(cq, 1, &wc);
	}
	return verdict();
}

static void apart(enum ibv_wr_opcode operation, uint32_t size)
{
	int sock[2], fd, status;
	pid_t child[2];

	munmap(file(&fd), SIZE);
	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
	for (int me = 0; me < 2; me++) {
		MUST((child[me] = fork()) >= 0);
		if (!child[me]) {
			alarm(30);
			_exit(one_of_two(me, sock[me], fd, operation, size));
		}
	}
	for (int me = 0; me < 2; me++) {
		MUST(waitpid(child[me], &status, 0) == child[me]);
		if (status) {
			fprintf(stderr, "operation %d, %u bytes: process %d ends with %#x\n", operation, size, me, status);
			failures++;
		}
		close(sock[me]);
	}
	close(fd);
}

int main(void)
{
	struct ibv_context *ctx;
	struct ibv_pd *pd;

	for (int i = 0; i < 4; i++)
		for (int k = 0; k < (i == 3 ? 1 : 4); k += 3)
			apart(operations[i], sizes[k]);
	ctx = open_softrnic();
	MUST(pd = ibv_alloc_pd(ctx));
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < (i == 3 ? 1 : 4); k++)
			for (int target = 0; target < 2; target++)
				alone(pd, operations[i], sizes[k], target);
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
