// Managed queues across processes: a client writes along a chain of replicas whose programs sleep. Each replica has posted
// its entries beforehand, in a circle; what the client sends is scattered into the entries of the next hop. No replica posts
// anything afterwards. The data are checked byte for byte, and so is what a hostile client gets out of patching.
#include "common.h"
#include "../../include/softrnic/dv.h"
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REGION = 64 << 10, ROUNDS = 4, MOST = 5, OPS = 200 };

/* What moves one hop: patched into the WRITE's entry. */
struct hop {
	uint64_t to, from;
	uint32_t len;
} __attribute__((packed));

/* What a replica, or the client as the last of the chain, tells. */
struct greeting {
	uint32_t prev, next; /* queue pairs towards the client's requests, and away from them */
	uint32_t rkey;
	uint64_t addr;
};

static void say(int wire, const void *data, size_t len) { MUST(write(wire, data, len) == (ssize_t)len); }
static void hear(int wire, void *data, size_t len) { MUST(recv(wire, data, len, MSG_WAITALL) == (ssize_t)len); }

static struct ibv_cq *counting(struct ibv_context *ctx, uint64_t first)
{
	struct softrnic_dv_cq_attr attr = {
		.cqe = 2, .flags = SOFTRNIC_DV_CQ_CROSS_CHANNEL | SOFTRNIC_DV_CQ_IGNORE_OVERRUN, .first_count = first
	};
	struct ibv_cq *cq = softrnic_dv_create_cq(ctx, &attr);

	MUST(cq != NULL);
	return cq;
}

static struct ibv_qp *managed(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv, uint32_t sends, uint32_t recvs,
			      const struct softrnic_dv_qp_attr *attr)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send, .recv_cq = recv, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = sends, .max_recv_wr = recvs, .max_send_sge = 2, .max_recv_sge = 6 },
	};
	struct ibv_qp *qp = softrnic_dv_create_qp(pd, &init, attr);

	MUST(qp != NULL);
	return to_init(qp);
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	NUMBER(0, ibv_post_send(qp, wr, &bad));
}

/* The bits of the bytes of a member. */
#define MASK(member) \
	(((1ULL << (sizeof(((struct softrnic_dv_entry *)0)->member) - 1) << 1) - 1) << offsetof(struct softrnic_dv_entry, member))
#define BYTES(count, at) (((1ULL << (count)) - 1) << (at))

/* Where a member of request n is. */
static uint64_t place(struct softrnic_dv_queue *queue, uint64_t n, size_t offset)
{
	return (uintptr_t)queue->addr + n % queue->count * queue->stride + offset;
}

static void replica(int wire, int after)
{
	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	uint8_t *memory = softrnic_dv_alloc(ctx, REGION), *expected = malloc(REGION);
	uint8_t notes[ROUNDS][256];
	struct ibv_mr *data = ibv_reg_mr(pd, memory, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *note = ibv_reg_mr(pd, notes, sizeof notes, IBV_ACCESS_LOCAL_WRITE);
	/* The counts begin near the end of 32 bits, beyond which many programs' counts wrap. */
	uint64_t first = 0xffffffffULL - 20;
	struct ibv_cq *arrivals = counting(ctx, first), *sent = counting(ctx, 0);
	uint64_t patchable = MASK(addr) | MASK(imm) | BYTES(12, offsetof(struct softrnic_dv_entry, sge));
	struct softrnic_dv_qp_attr with_recv = { .create_flags = SOFTRNIC_DV_QP_MANAGED_RECV | SOFTRNIC_DV_QP_CYCLIC_RECV };
	struct softrnic_dv_qp_attr with_send = {
		.create_flags = SOFTRNIC_DV_QP_MANAGED_SEND | SOFTRNIC_DV_QP_CYCLIC_SEND, .patchable = { patchable },
	};
	struct ibv_qp *prev = managed(pd, sent, arrivals, 1, ROUNDS, &with_recv);
	struct ibv_qp *next = managed(pd, sent, sent, 4 * ROUNDS, 1, &with_send);
	struct greeting us = { prev->qp_num, next->qp_num, data->rkey, (uintptr_t)memory }, to;
	struct softrnic_dv_queue queue;

	say(wire, &us, sizeof us);
	hear(wire, &us, sizeof us); /* whom they are connected to, and the next one's region */
	to = us;
	to_rts(prev, to.prev);
	to_rts(next, to.next);
	NUMBER(0, softrnic_dv_query_queue(next, SOFTRNIC_DV_SEND, &queue));
	CHECK(queue.count == 4 * ROUNDS && queue.stride % 64 == 0 && queue.version == SOFTRNIC_DV_ENTRY_VERSION);
	struct ibv_mr *entries = softrnic_dv_reg_queue(next, SOFTRNIC_DV_SEND, IBV_ACCESS_LOCAL_WRITE);

	MUST(entries != NULL);
	NUMBER(EBUSY, ibv_destroy_qp(next));
	for (int i = 0; i < ROUNDS; i++) {
		size_t rest = after ? (after - 1) * sizeof(struct hop) + 4 : 0;
		struct ibv_sge part = { (uintptr_t)memory, 0, data->lkey }, forward = { (uintptr_t)notes[i], rest, note->lkey };
		struct softrnic_dv_task wait = { .opcode = SOFTRNIC_DV_WAIT, .cq = arrivals, .count = first + i + 1, .step = ROUNDS,
						 .flags = SOFTRNIC_DV_TASK_ABSOLUTE };
		struct softrnic_dv_task nop = { .opcode = SOFTRNIC_DV_NOP };
		struct ibv_send_wr copy = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &part, .num_sge = 1,
					    .wr.rdma = { .rkey = to.rkey } };
		struct ibv_send_wr tell = { .opcode = IBV_WR_SEND, .sg_list = &forward, .num_sge = 1 };
		struct ibv_send_wr ack = { .opcode = IBV_WR_SEND_WITH_IMM };
		struct ibv_recv_wr recv = { 0 }, *bad;
		struct ibv_sge into[4];
		uint32_t key = entries->lkey;

		NUMBER(0, softrnic_dv_post_task(next, &wait));
		if (after) {
			post(next, &copy);
			post(next, &tell);
			into[0] = (struct ibv_sge){ place(&queue, 4 * i + 1, offsetof(struct softrnic_dv_entry, addr)), 8, key };
			into[1] = (struct ibv_sge){ place(&queue, 4 * i + 1, offsetof(struct softrnic_dv_entry, sge)), 12, key };
			into[2] = forward;
			recv.num_sge = 3;
		} else {
			post(next, &ack);
			NUMBER(0, softrnic_dv_post_task(next, &nop));
			into[0] = (struct ibv_sge){ place(&queue, 4 * i + 1, offsetof(struct softrnic_dv_entry, imm)), 4, key };
			recv.num_sge = 1;
		}
		NUMBER(0, softrnic_dv_post_task(next, &nop));
		recv.sg_list = into;
		NUMBER(0, ibv_post_recv(prev, &recv, &bad));
	}
	NUMBER(ENOMEM, softrnic_dv_post_task(next, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_NOP }));
	NUMBER(0, softrnic_dv_enable(prev, SOFTRNIC_DV_RECV, 1ULL << 60, SOFTRNIC_DV_TASK_ABSOLUTE));
	NUMBER(0, softrnic_dv_enable(next, SOFTRNIC_DV_SEND, 1ULL << 60, SOFTRNIC_DV_TASK_ABSOLUTE));
	say(wire, "r", 1);
	hear(wire, expected, REGION); /* meanwhile the program sleeps */
	CHECK(memcmp(memory, expected, REGION) == 0);
	NUMBER(0, softrnic_dv_query_queue(next, SOFTRNIC_DV_SEND, &queue));
	/* The WAIT of the next round has not begun. */
	CHECK(queue.begun == 4 * OPS && queue.posted == 4 * ROUNDS);
	uint64_t count;

	NUMBER(0, softrnic_dv_cq_count(arrivals, &count));
	CHECK(count == first + OPS);
	uint8_t good = verdict() == 0;

	say(wire, &good, 1);
	hear(wire, &good, 1);
	NUMBER(EBUSY, ibv_destroy_qp(next));
	NUMBER(0, ibv_dereg_mr(entries));
	NUMBER(0, ibv_destroy_qp(next));
	exit(verdict());
}

/* The next completion; the replicas may have little of a busy machine. */
static struct ibv_wc patient_wc(struct ibv_cq *cq)
{
	struct timespec now;
	struct ibv_wc wc = { .status = 255 };
	time_t start;

	clock_gettime(CLOCK_MONOTONIC, &now);
	for (start = now.tv_sec; now.tv_sec < start + 40; clock_gettime(CLOCK_MONOTONIC, &now))
		for (int i = 0; i < 10000; i++)
			if (ibv_poll_cq(cq, 1, &wc))
				return wc;
	wc.status = 255;
	return wc;
}

static void chain(int replicas, int window)
{
	int wire[MOST], pair[2];
	pid_t child[MOST];
	struct greeting they[MOST];
	static uint8_t region[REGION], source[REGION], notes[ROUNDS][256];

	memset(region, 0, sizeof region);
	for (int i = 0; i < replicas; i++) {
		MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		child[i] = fork();
		MUST(child[i] >= 0);
		if (child[i] == 0) {
			for (int j = 0; j < i; j++)
				close(wire[j]);
			close(pair[0]);
			replica(pair[1], replicas - 1 - i);
		}
		close(pair[1]);
		wire[i] = pair[0];
	}

	struct ibv_context *ctx = open_softrnic();
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0), *acks = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_qp *out = to_init(make_rc(pd, cq, 16)), *in = to_init(make_rc(pd, acks, 16));
	struct ibv_mr *data = ibv_reg_mr(pd, source, REGION, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *note = ibv_reg_mr(pd, notes, sizeof notes, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_recv_wr recv = { 0 }, *bad;

	for (int i = 0; i < replicas; i++)
		hear(wire[i], &they[i], sizeof they[i]);
	for (int i = 0; i < replicas; i++) {
		struct greeting to = {
			i ? they[i - 1].next : out->qp_num, i + 1 < replicas ? they[i + 1].prev : in->qp_num,
			i + 1 < replicas ? they[i + 1].rkey : 0, 0,
		};
		say(wire[i], &to, sizeof to);
	}
	to_rts(out, they[0].prev);
	to_rts(in, they[replicas - 1].next);
	for (int i = 0; i < 16; i++)
		NUMBER(0, ibv_post_recv(in, &recv, &bad));
	for (int i = 0; i < replicas; i++)
		hear(wire[i], notes[0], 1);

	for (uint32_t op = 0, acked = 0; acked < OPS; ) {
		if (op < OPS && op - acked < (uint32_t)window) {
			uint8_t *message = notes[op % ROUNDS];
			/* A place of its own for each of those under way. */
			uint32_t offset = op % ROUNDS * (REGION / ROUNDS) + rand() % 4096, len = 1 + rand() % 8192;
			struct ibv_sge sge = { (uintptr_t)source + offset, len, data->lkey };
			struct ibv_send_wr copy = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };

			for (uint32_t i = 0; i < len; i++)
				region[offset + i] = source[offset + i] = (uint8_t)rand();
			copy.wr.rdma.remote_addr = they[0].addr + offset;
			copy.wr.rdma.rkey = they[0].rkey;
			post(out, &copy);
			for (int i = 0; i + 1 < replicas; i++) {
				struct hop hop = { they[i + 1].addr + offset, they[i].addr + offset, len };

				memcpy(message + i * sizeof hop, &hop, sizeof hop);
			}
			memcpy(message + (replicas - 1) * sizeof(struct hop), &op, 4);
			struct ibv_sge told = { (uintptr_t)message, (replicas - 1) * sizeof(struct hop) + 4, note->lkey };
			struct ibv_send_wr tell = { .opcode = IBV_WR_SEND, .sg_list = &told, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };

			post(out, &tell);
			op++;
			continue;
		}
		struct ibv_wc wc = patient_wc(acks);

		MUST(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		CHECK(wc.imm_data == acked); /* as it was patched */
		acked++;
		NUMBER(0, ibv_post_recv(in, &recv, &bad));
		wc = patient_wc(cq);
		MUST(wc.status == IBV_WC_SUCCESS);
	}
	for (int i = 0; i < replicas; i++) {
		uint8_t good = 0;

		say(wire[i], region, REGION);
		hear(wire[i], &good, 1);
		CHECK(good);
	}
	for (int i = 0; i < replicas; i++) {
		int status;

		say(wire[i], "e", 1);
		MUST(waitpid(child[i], &status, 0) == child[i]);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		close(wire[i]);
	}
	NUMBER(0, ibv_destroy_qp(out));
	NUMBER(0, ibv_destroy_qp(in));
}

int main(void)
{
	static const int chains[][2] = { { 1, 1 }, { 2, 1 }, { 2, ROUNDS }, { 5, ROUNDS } };

	/* Each chain in a process of its own: a device does not survive fork(2). */
	for (size_t i = 0; i < sizeof chains / sizeof chains[0]; i++) {
		pid_t child = fork();
		int status;

		MUST(child >= 0);
		if (child == 0) {
			alarm(110);
			chain(chains[i][0], chains[i][1]);
			exit(verdict());
		}
		MUST(waitpid(child, &status, 0) == child);
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "a chain of %d with a window of %d failed: %x\n", chains[i][0], chains[i][1], status);
			return 1;
		}
	}
	return 0;
}
