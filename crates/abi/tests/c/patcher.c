// A hostile patcher: a client with the keys of a victim's entries writes any bytes into them while they are executed. The
// victim's other domain and other connection are unharmed, its program goes on, and it can take everything back.
#include "common.h"
#include "../../include/softrnic/dv.h"
#include <stddef.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

enum { PLACES = 8, ROUNDS = 40, PATCHES = 60, REGION = 16384, SGES = 3 };

static int rounds;

/* A positive number in the environment, or `usual`. */
static int asked(const char *name, int usual)
{
	const char *text = getenv(name);
	int number = text ? atoi(text) : 0;

	return number > 0 ? number : usual;
}

struct greeting {
	uint32_t entry, arrive, innocent; /* queue pairs: whose entries are patched, that gets messages, that nobody harms */
	uint32_t entries_key, receives_key, data_key;
	uint64_t entries, receives, data;
	uint32_t entries_len, receives_len;
};

static void say(int wire, const void *data, size_t len) { MUST(write(wire, data, len) == (ssize_t)len); }
static void hear(int wire, void *data, size_t len) { MUST(recv(wire, data, len, MSG_WAITALL) == (ssize_t)len); }

static struct ibv_qp *victim_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t flags)
{
	struct softrnic_dv_qp_attr attr = { .create_flags = flags, .opcodes = ~0ULL, .patchable = { ~0ULL, ~0ULL },
					    .recv_patchable = { ~0ULL, ~0ULL } };
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = PLACES, .max_recv_wr = PLACES, .max_send_sge = SGES, .max_recv_sge = SGES },
	};

	if (!(flags & SOFTRNIC_DV_QP_MANAGED_SEND))
		attr.opcodes = attr.patchable[0] = attr.patchable[1] = 0;
	if (!(flags & SOFTRNIC_DV_QP_MANAGED_RECV))
		attr.recv_patchable[0] = attr.recv_patchable[1] = 0;
	struct ibv_qp *qp = softrnic_dv_create_qp(pd, &init, &attr);

	MUST(qp != NULL);
	return to_init(qp);
}

static int victim(int wire)
{
	static uint8_t data[REGION], secret[REGION], before[REGION];
	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx), *other_pd = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = ibv_reg_mr(pd, data, REGION, ALL), *hidden = ibv_reg_mr(other_pd, secret, REGION, ALL);
	struct softrnic_dv_cq_attr counts = { .cqe = 4, .flags = SOFTRNIC_DV_CQ_CROSS_CHANNEL | SOFTRNIC_DV_CQ_IGNORE_OVERRUN };
	struct ibv_cq *cq = softrnic_dv_create_cq(ctx, &counts), *calm = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp *innocent = to_init(make_rc(other_pd, calm, 4));
	uint64_t executed = 0;

	for (int i = 0; i < REGION; i++)
		before[i] = secret[i] = (uint8_t)(i * 31);
	for (int round = 0; round < rounds; round++) {
		struct ibv_qp *entry = victim_qp(pd, cq, SOFTRNIC_DV_QP_MANAGED_SEND | SOFTRNIC_DV_QP_CYCLIC_SEND);
		struct ibv_qp *arrive = victim_qp(pd, cq, SOFTRNIC_DV_QP_MANAGED_RECV | SOFTRNIC_DV_QP_CYCLIC_RECV);
		struct ibv_mr *entries = softrnic_dv_reg_queue(entry, SOFTRNIC_DV_SEND, ALL);
		struct ibv_mr *receives = softrnic_dv_reg_queue(arrive, SOFTRNIC_DV_RECV, ALL);
		uint64_t count;

		MUST(entries != NULL && receives != NULL);
		NUMBER(0, softrnic_dv_cq_count(cq, &count));

		struct greeting us = {
			entry->qp_num, arrive->qp_num, innocent->qp_num, entries->rkey, receives->rkey, hidden->rkey,
			(uintptr_t)entries->addr, (uintptr_t)receives->addr, (uintptr_t)secret, entries->length, receives->length,
		}, they;

		say(wire, &us, sizeof us);
		hear(wire, &they, sizeof they);
		to_rts(entry, they.entry);
		to_rts(arrive, they.arrive);
		if (!round)
			to_rts(innocent, they.innocent);
		for (int i = 0; i < PLACES; i++) {
			struct ibv_sge sge = { (uintptr_t)data + 64 * i, 64, mr->lkey };
			struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
			struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;
			struct softrnic_dv_task task = { .opcode = SOFTRNIC_DV_WAIT, .cq = cq, .step = PLACES / 2, .count = count + i / 2 + 1,
							 .flags = SOFTRNIC_DV_TASK_ABSOLUTE };

			NUMBER(0, i % 2 ? ibv_post_send(entry, &wr, &bad) : softrnic_dv_post_task(entry, &task));
			NUMBER(0, ibv_post_recv(arrive, &recv, &bad_recv));
		}
		NUMBER(0, softrnic_dv_enable(arrive, SOFTRNIC_DV_RECV, 1ULL << 60, SOFTRNIC_DV_TASK_ABSOLUTE));
		NUMBER(0, softrnic_dv_enable(entry, SOFTRNIC_DV_SEND, 1ULL << 60, SOFTRNIC_DV_TASK_ABSOLUTE));
		say(wire, "r", 1);

		char word;

		hear(wire, &word, 1); /* meanwhile the program sleeps */
		struct softrnic_dv_queue queue;

		NUMBER(0, softrnic_dv_query_queue(entry, SOFTRNIC_DV_SEND, &queue));
		executed += queue.begun;
		NUMBER(EBUSY, ibv_destroy_qp(entry));
		NUMBER(EBUSY, ibv_destroy_qp(arrive));
		NUMBER(0, ibv_dereg_mr(entries));
		NUMBER(0, ibv_dereg_mr(receives));
		NUMBER(0, ibv_destroy_qp(entry));
		NUMBER(0, ibv_destroy_qp(arrive));
	}
	/* The client may read and write it over the innocent connection, and does not write. */
	CHECK(memcmp(secret, before, REGION) == 0);
	CHECK(executed >= 2 * (uint64_t)rounds);
	NUMBER(0, ibv_destroy_qp(innocent));
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_dereg_mr(hidden));
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_destroy_cq(calm));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_dealloc_pd(other_pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}

static struct ibv_wc patient_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc = { .status = 255 };
	time_t start = time(NULL);

	while (time(NULL) < start + 40)
		for (int i = 0; i < 10000; i++)
			if (ibv_poll_cq(cq, 1, &wc))
				return wc;
	wc.status = 255;
	return wc;
}

int main(void)
{
	static uint8_t memory[REGION];
	int pair[2], status;

	alarm(110);
	rounds = asked("SOFTRNIC_PATCHER_ROUNDS", ROUNDS);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0) {
		close(pair[0]);
		return victim(pair[1]);
	}
	close(pair[1]);

	int wire = pair[0];
	unsigned seed = asked("SOFTRNIC_PATCHER_SEED", 34);
	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, REGION, ALL);
	struct ibv_cq *cq = ibv_create_cq(ctx, 256, NULL, NULL, 0), *calm = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp *innocent = to_init(make_rc(pd, calm, 4));

	for (int round = 0; round < rounds; round++) {
		struct greeting they, us = { .innocent = innocent->qp_num };
		struct ibv_qp *entry = to_init(make_rc(pd, cq, 64)), *arrive = to_init(make_rc(pd, cq, 256));
		struct ibv_wc wc;
		char word;

		us.entry = entry->qp_num;
		us.arrive = arrive->qp_num;
		hear(wire, &they, sizeof they);
		say(wire, &us, sizeof us);
		to_rts(entry, they.entry);
		to_rts(arrive, they.arrive);
		if (!round)
			to_rts(innocent, they.innocent);
		hear(wire, &word, 1);
		for (int i = 0; i < 60; i++) {
			struct ibv_sge sge = { (uintptr_t)memory + 4096, 4096, mr->lkey };
			struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

			NUMBER(0, ibv_post_recv(entry, &recv, &bad));
		}
		/* As they were posted, the entries answer a message. */
		struct ibv_sge first = { (uintptr_t)memory, 8, mr->lkey };
		struct ibv_send_wr start = { .opcode = IBV_WR_SEND, .sg_list = &first, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *none;

		NUMBER(0, ibv_post_send(arrive, &start, &none));
		NUMBER(IBV_WC_SUCCESS, patient_wc(cq).status);
		NUMBER(IBV_WC_SUCCESS, patient_wc(cq).status);
		for (int i = 0; i < PATCHES; i++) {
			int recv = rand_r(&seed) % 2;
			uint32_t len = recv ? they.receives_len : they.entries_len, at = rand_r(&seed) % (len / 8) * 8;
			struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
			struct ibv_send_wr patch = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
						     .wr.rdma = { (recv ? they.receives : they.entries) + at,
								  recv ? they.receives_key : they.entries_key } };
			struct ibv_send_wr tell = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;

			for (int j = 0; j < 8; j++)
				memory[j] = (uint8_t)rand_r(&seed);
			if (at % 64 == 0 && !recv && rand_r(&seed) % 4) /* an operation that makes sense */
				memcpy(memory, (uint8_t[8]){ "\x00\x04\x05\x80\x81\x82\x83\x08"[rand_r(&seed) % 8], 2, 1 }, 8);
			if (at % 64 == 48 && rand_r(&seed) % 2) /* memory of the other domain */
				memcpy(memory, &they.data, 8);
			/* A post to a queue pair in error is flushed: that is no failure here. */
			ibv_post_send(arrive, &patch, &bad);
			if (rand_r(&seed) % 3 == 0)
				ibv_post_send(arrive, &tell, &bad);
			while (ibv_poll_cq(cq, 1, &wc))
				;
		}
		/* The other connection works as ever. */
		struct ibv_sge sge = { (uintptr_t)memory + 8192, 4096, mr->lkey };
		struct ibv_send_wr look = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					    .wr.rdma = { they.data + 4096, they.data_key } }, *bad;

		NUMBER(0, ibv_post_send(innocent, &look, &bad));
		NUMBER(IBV_WC_SUCCESS, patient_wc(calm).status);
		for (int i = 0; i < 4096; i++)
			MUST(memory[8192 + i] == (uint8_t)((4096 + i) * 31));
		say(wire, "d", 1);
		NUMBER(0, ibv_destroy_qp(entry));
		NUMBER(0, ibv_destroy_qp(arrive));
	}
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return verdict();
}
