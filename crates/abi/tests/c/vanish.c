// Registered memory that is unmapped, in a program whose handler of SIGSEGV and SIGBUS calls softrnic_dv_fault(): the request ends in
// an error, and the process goes on. Before that, the memory is as good as any other.
#define _GNU_SOURCE
#include "common.h"
#include "../../include/softrnic/dv.h"
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, SIZE = 16 * PAGE };
static const enum ibv_wr_opcode operations[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD };
static const uint32_t sizes[] = { 8, 100, PAGE, 4 * PAGE, SIZE };
static const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static volatile sig_atomic_t own, answered;
static char *volatile opened;

/* A fault that is not the device's is the program's own: it gives itself the page. */
static void handle(int number, siginfo_t *info, void *context)
{
	(void)number;
	if (info->si_code > 0 && softrnic_dv_fault(context)) {
		answered++;
		return;
	}
	own++;
	if (!opened || mprotect(opened, PAGE, PROT_READ | PROT_WRITE))
		_exit(99);
}

/* The pages from the one with this address on go. A mapping beyond the end of a file takes their place, or one without rights. */
static void lose(char *memory, int rightless)
{
	int fd = memfd_create("gone", MFD_CLOEXEC);

	MUST(fd >= 0);
	int flags = MAP_FIXED | (rightless ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
	MUST(mmap(memory, SIZE, rightless ? PROT_NONE : PROT_READ | PROT_WRITE, flags, rightless ? -1 : fd, 0) == memory);
	close(fd);
}

static void request(struct side side[2], enum ibv_wr_opcode operation, struct ibv_sge sge[2], uint32_t rkey)
{
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = operation, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { .sg_list = sge + 1, .num_sge = 1 }, *bad_recv;

	if (operation == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = sge[1].addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = sge[1].addr;
		wr.wr.rdma.rkey = rkey;
	}
	if (operation == IBV_WR_SEND)
		MUST(!ibv_post_recv(side[1].qp, &recv, &bad_recv));
	MUST(!ibv_post_send(side[0].qp, &wr, &bad));
}

/* Each operation, once with all of the memory, and once when that of one side has gone. */
static void vanishes(struct ibv_pd *pd, enum ibv_wr_opcode operation, uint32_t size, int target, int rightless)
{
	struct side side[2];
	char *memory[2];
	struct ibv_mr *mr[2];
	struct ibv_sge sge[2];

	make_pair(pd, side, 4);
	for (int i = 0; i < 2; i++) {
		memory[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(memory[i] != MAP_FAILED);
		MUST(mr[i] = ibv_reg_mr(pd, memory[i], SIZE, rights));
		NUMBER(0, softrnic_dv_catch_faults(mr[i]));
		sge[i] = (struct ibv_sge){ (uintptr_t)memory[i], size, mr[i]->lkey };
	}
	memset(memory[0], 'a', SIZE);
	request(side, operation, sge, mr[1]->rkey);
	NUMBER(IBV_WC_SUCCESS, next_wc(side[0].cq).status);
	if (operation == IBV_WR_SEND)
		NUMBER(IBV_WC_SUCCESS, next_wc(side[1].cq).status);
	if (operation == IBV_WR_RDMA_WRITE || operation == IBV_WR_SEND)
		CHECK(!memcmp(memory[0], memory[1], size));
	lose(memory[target], rightless);
	request(side, operation, sge, mr[1]->rkey);
	/* The key and its bounds are right, so the target's error is no one of access (IBTA vol. 1, 11.6.2). */
	enum ibv_wc_status expected = target ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_PROT_ERR;
	struct ibv_wc wc = next_wc(side[0].cq);

	if (wc.status != expected) {
		fprintf(stderr, "operation %d, %u bytes, memory of the %s: %s\n", operation, size, target ? "target" : "initiator",
			ibv_wc_status_str(wc.status));
		failures++;
	}
	if (operation == IBV_WR_SEND && target)
		NUMBER(IBV_WC_LOC_PROT_ERR, next_wc(side[1].cq).status);
	for (int i = 0; i < 2; i++) {
		NUMBER(0, ibv_dereg_mr(mr[i]));
		munmap(memory[i], SIZE);
	}
	drop_pair(side);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };
	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_mr *null = ibv_alloc_null_mr(pd);

	MUST(null && !sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGBUS, &action, NULL));
	NUMBER(EINVAL, softrnic_dv_catch_faults(NULL));
	NUMBER(EINVAL, softrnic_dv_catch_faults(null));
	NUMBER(0, softrnic_dv_fault(NULL));
	NUMBER(0, ibv_dereg_mr(null));
	for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
		for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++)
			for (int how = 0; how < 4; how++)
				if (operations[i] != IBV_WR_ATOMIC_FETCH_AND_ADD || sizes[j] == 8)
					vanishes(pd, operations[i], sizes[j], how % 2, how / 2);
	CHECK(own == 0);
	/* No system call has found them out, up to 16 KiB. */
	CHECK(answered >= 3 * 4 * 4);
	opened = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(opened != MAP_FAILED);
	*(volatile char *)opened = 1;
	CHECK(own == 1);
	ibv_dealloc_pd(pd);
	ibv_close_device(ctx);
	return verdict();
}
