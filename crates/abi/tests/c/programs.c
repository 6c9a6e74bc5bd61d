// Programs of work requests that change themselves, in the manner of RedN (NSDI 2022): a condition, by a compare and swap
// that turns a NOP into a WRITE; and a bounded walk of a linked list, by a queue that runs in a circle. Nothing is posted
// after the beginning, and the entries change only by what the device itself executes. Then: a queue that enables itself for
// ever, beside an ordinary one.
#include "common.h"
#include "../../include/softrnic/dv.h"
#include <stddef.h>
#include <time.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define AT(member) offsetof(struct softrnic_dv_entry, member)
#define FOR_EVER (1ULL << 60)

enum { NODES = 40 };

struct node {
	uint32_t key;
	uint64_t next, value_at;
} __attribute__((packed));

static struct {
	struct node nodes[NODES];
	uint64_t values[NODES], result, scratch;
	uint8_t idle;
} memory;

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;

/* A circle, connected to an ordinary queue pair of this process, whose regions are the same. */
struct circle {
	struct ibv_cq *cq, *other_cq;
	struct ibv_qp *qp, *other;
	struct ibv_mr *entries;
	struct softrnic_dv_queue queue;
};

static struct circle make(uint32_t places, uint64_t patchable)
{
	struct circle c = { 0 };
	struct softrnic_dv_cq_attr counts = { .cqe = 2, .flags = SOFTRNIC_DV_CQ_CROSS_CHANNEL | SOFTRNIC_DV_CQ_IGNORE_OVERRUN };
	struct softrnic_dv_qp_attr attr = {
		.create_flags = SOFTRNIC_DV_QP_MANAGED_SEND | SOFTRNIC_DV_QP_CYCLIC_SEND, .patchable = { patchable, ~0ULL },
	};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = places, .max_recv_wr = 1, .max_send_sge = 3, .max_recv_sge = 1 },
	};

	c.cq = softrnic_dv_create_cq(ctx, &counts);
	MUST(c.cq != NULL);
	init.send_cq = init.recv_cq = c.cq;
	c.qp = softrnic_dv_create_qp(pd, &init, &attr);
	MUST(c.qp != NULL);
	c.other_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	c.other = to_init(make_rc(pd, c.other_cq, 4));
	to_init(c.qp);
	to_rts(c.qp, c.other->qp_num);
	to_rts(c.other, c.qp->qp_num);
	NUMBER(0, softrnic_dv_query_queue(c.qp, SOFTRNIC_DV_SEND, &c.queue));
	c.entries = softrnic_dv_reg_queue(c.qp, SOFTRNIC_DV_SEND, ALL);
	MUST(c.entries != NULL);

	struct ibv_hyperloop_wqe_buffer buffer = ibv_hyperloop_get_wqe_buffer(c.qp);

	CHECK(buffer.address == c.queue.addr && buffer.size == (size_t)c.queue.stride * c.queue.count);
	buffer = ibv_hyperloop_get_wqe_buffer(c.other);
	CHECK(buffer.address == NULL && buffer.size == 0);
	return c;
}

static void drop(struct circle *c)
{
	NUMBER(EBUSY, ibv_destroy_qp(c->qp));
	NUMBER(0, ibv_dereg_mr(c->entries));
	NUMBER(0, ibv_destroy_qp(c->qp));
	NUMBER(0, ibv_destroy_qp(c->other));
	NUMBER(0, ibv_destroy_cq(c->cq));
	NUMBER(0, ibv_destroy_cq(c->other_cq));
}

static uint64_t place(struct circle *c, uint64_t n, size_t offset)
{
	return (uintptr_t)c->queue.addr + n % c->queue.count * c->queue.stride + offset;
}

static void post(struct circle *c, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	NUMBER(0, ibv_post_send(c->qp, &wr, &bad));
}

static void wait_for(struct circle *c, uint64_t count, uint32_t step)
{
	struct softrnic_dv_task task = { .opcode = SOFTRNIC_DV_WAIT, .cq = c->cq, .count = count, .step = step,
					 .flags = SOFTRNIC_DV_TASK_ABSOLUTE };

	NUMBER(0, softrnic_dv_post_task(c->qp, &task));
}

static void nop(struct circle *c)
{
	NUMBER(0, softrnic_dv_post_task(c->qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_NOP }));
}

static uint64_t begun(struct circle *c)
{
	NUMBER(0, softrnic_dv_query_queue(c->qp, SOFTRNIC_DV_SEND, &c->queue));
	return c->queue.begun;
}

/* Lets the device go on until so many requests have begun, and a little longer. */
static void run_to(struct circle *c, uint64_t count)
{
	struct ibv_wc wc;
	time_t start = time(NULL);

	while (begun(c) < count && time(NULL) < start + 40)
		ibv_poll_cq(c->other_cq, 1, &wc);
	for (int i = 0; i < 1000; i++)
		ibv_poll_cq(c->other_cq, 1, &wc);
	CHECK(begun(c) == count);
}

/* The first word of an entry: operation, flags, number of scatter/gather entries, immediate value. */
static uint64_t first_word(uint8_t opcode, uint16_t sges, uint32_t imm)
{
	struct softrnic_dv_entry entry = { .opcode = opcode, .num_sge = sges, .imm = imm };
	uint64_t word;

	memcpy(&word, &entry, 8);
	return word;
}

/* If the word at `scratch` is equal to the operand, the WRITE is executed. */
static void condition(void)
{
	for (uint32_t equal = 0; equal < 2; equal++) {
		struct circle c = make(4, 0xff | 0xf0); /* operation and immediate value */
		struct ibv_sge old = { (uintptr_t)&memory.scratch, 8, mr->lkey };
		struct ibv_sge value = { (uintptr_t)&memory.values[3], 8, mr->lkey };
		volatile uint8_t *entry = (volatile uint8_t *)place(&c, 2, 0);

		memory.result = 0;
		memory.values[3] = 4711;
		post(&c, (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = &old, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
					       .wr.atomic = { .remote_addr = place(&c, 2, 0), .rkey = c.entries->rkey,
							      .compare_add = first_word(SOFTRNIC_DV_NOP, 1, 42),
							      .swap = first_word(IBV_WR_RDMA_WRITE, 1, 0) } });
		wait_for(&c, 1, 1);
		post(&c, (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = &value, .num_sge = 1,
					       .wr.rdma = { (uintptr_t)&memory.result, mr->rkey } });
		nop(&c);
		entry[0] = SOFTRNIC_DV_NOP;
		((volatile uint32_t *)entry)[1] = 41 + equal; /* the operand */
		NUMBER(0, softrnic_dv_enable(c.qp, SOFTRNIC_DV_SEND, 4, SOFTRNIC_DV_TASK_ABSOLUTE));
		run_to(&c, 4);
		CHECK(memory.result == (equal ? 4711 : 0));
		CHECK(memory.scratch == first_word(SOFTRNIC_DV_NOP, 1, 41 + equal));
		drop(&c);
	}
}

/* Walks the list from its first node, at most so many, to the value of a key. */
static uint64_t walk(uint32_t key, uint32_t most)
{
	uint64_t patchable = 0xff | 0xf0 | 0xffULL << AT(addr) | 0xffULL << AT(sge);
	struct circle c = make(8, patchable);
	struct ibv_sge old = { (uintptr_t)&memory.scratch, 8, mr->lkey }, value = { (uintptr_t)memory.values, 8, mr->lkey };
	/* The READ scatters the node into the entries: its key into the condition's operand, the next node into its own address. */
	struct ibv_sge node[3] = { { place(&c, 5, AT(imm)), 4, c.entries->lkey },
				   { place(&c, 1, AT(addr)), 8, c.entries->lkey },
				   { place(&c, 5, AT(sge)), 8, c.entries->lkey } };

	struct ibv_sge idle = { (uintptr_t)&memory.idle, 1, mr->lkey };

	memory.idle = SOFTRNIC_DV_NOP;
	memory.result = 0;
	wait_for(&c, 0, 2);
	post(&c, (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_READ, .sg_list = node, .num_sge = 3, .send_flags = IBV_SEND_SIGNALED,
				       .wr.rdma = { (uintptr_t)&memory.nodes[0], mr->rkey } });
	wait_for(&c, 1, 2);
	post(&c, (struct ibv_send_wr){ .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = &old, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
				       .wr.atomic = { .remote_addr = place(&c, 5, 0), .rkey = c.entries->rkey,
						      .compare_add = first_word(SOFTRNIC_DV_NOP, 1, key),
						      .swap = first_word(IBV_WR_RDMA_WRITE, 1, key) } });
	wait_for(&c, 2, 2);
	post(&c, (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = &value, .num_sge = 1,
				       .wr.rdma = { (uintptr_t)&memory.result, mr->rkey } });
	/* The condition is a NOP again in the next turn. */
	post(&c, (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .sg_list = &idle, .num_sge = 1,
				       .wr.rdma = { place(&c, 5, 0), c.entries->rkey } });
	nop(&c);
	*(volatile uint8_t *)place(&c, 5, 0) = SOFTRNIC_DV_NOP;
	NUMBER(0, softrnic_dv_enable(c.qp, SOFTRNIC_DV_SEND, 8 * most, SOFTRNIC_DV_TASK_ABSOLUTE));
	run_to(&c, 8 * most);
	CHECK(c.queue.posted == 8);
	drop(&c);
	return memory.result;
}

static void list(void)
{
	for (int i = 0; i < NODES; i++) {
		/* In an order that is not that of memory, and with its end on its last node. */
		int next = i == NODES - 1 ? i : (i + 1);

		memory.nodes[i * 7 % NODES] = (struct node){ 1000 + i, (uintptr_t)&memory.nodes[next * 7 % NODES],
							     (uintptr_t)&memory.values[i] };
		memory.values[i] = 500 + i;
	}
	CHECK(walk(1000, NODES) == 500);
	CHECK(walk(1017, NODES) == 517);
	CHECK(walk(1000 + NODES - 1, NODES) == 500 + NODES - 1);
	CHECK(walk(1020, 15) == 0); /* it lies behind the bound */
	CHECK(walk(77, NODES) == 0);
}

/* Two circles send to each other, each message upon the arrival of the other's. No program posts or polls meanwhile. */
static void ping_pong(void)
{
	enum { COUNT = 1000 };
	struct softrnic_dv_cq_attr counts = { .cqe = 1, .flags = SOFTRNIC_DV_CQ_CROSS_CHANNEL | SOFTRNIC_DV_CQ_IGNORE_OVERRUN };
	struct softrnic_dv_qp_attr attr = {
		.create_flags = SOFTRNIC_DV_QP_MANAGED_SEND | SOFTRNIC_DV_QP_CYCLIC_SEND | SOFTRNIC_DV_QP_MANAGED_RECV |
				SOFTRNIC_DV_QP_CYCLIC_RECV | SOFTRNIC_DV_QP_IGNORE_SQ_OVERFLOW | SOFTRNIC_DV_QP_IGNORE_RQ_OVERFLOW,
	};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 2, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_cq *arrivals[2], *sent = softrnic_dv_create_cq(ctx, &counts);
	struct circle c[2] = { 0 };
	uint64_t count = 0;
	time_t start = time(NULL);

	for (int i = 0; i < 2; i++) {
		arrivals[i] = softrnic_dv_create_cq(ctx, &counts);
		init.send_cq = sent;
		init.recv_cq = arrivals[i];
		c[i].qp = softrnic_dv_create_qp(pd, &init, &attr);
		MUST(c[i].qp != NULL && init.cap.max_send_wr == 2 && init.cap.max_inline_data == 0);
		c[i].cq = arrivals[i];
		to_init(c[i].qp);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = { (uintptr_t)&memory.values[i], 8, mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
		struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };

		to_rts(c[i].qp, c[1 - i].qp->qp_num);
		NUMBER(0, ibv_post_recv(c[i].qp, &recv, &bad));
		if (i == 0)
			post(&c[i], send); /* it begins */
		wait_for(&c[i], 1, 1);
		if (i == 1)
			post(&c[i], send);
		NUMBER(0, softrnic_dv_enable(c[i].qp, SOFTRNIC_DV_RECV, FOR_EVER, SOFTRNIC_DV_TASK_ABSOLUTE));
	}
	memory.values[0] = 1111;
	for (int i = 1; i >= 0; i--)
		NUMBER(0, softrnic_dv_enable(c[i].qp, SOFTRNIC_DV_SEND, 2 * COUNT, SOFTRNIC_DV_TASK_ABSOLUTE));
	while (count < COUNT && time(NULL) < start + 40)
		NUMBER(0, softrnic_dv_cq_count(arrivals[0], &count));
	CHECK(count == COUNT);
	NUMBER(0, softrnic_dv_cq_count(arrivals[1], &count));
	CHECK(count == COUNT);
	CHECK(memory.values[1] == 1111);
	for (int i = 0; i < 2; i++) {
		while (begun(&c[i]) < 2 * COUNT && time(NULL) < start + 40)
			;
		CHECK(c[i].queue.begun == 2 * COUNT && c[i].queue.posted == 2);
		NUMBER(0, ibv_destroy_qp(c[i].qp));
		NUMBER(0, ibv_destroy_cq(arrivals[i]));
	}
	NUMBER(0, ibv_destroy_cq(sent));
}

/* A queue that enables itself for ever does not keep an ordinary connection from its work, nor the process from its end. */
static void loop(void)
{
	struct circle c = make(4, 0);
	struct side side[2];

	nop(&c);
	nop(&c);
	nop(&c);
	nop(&c);
	NUMBER(0, softrnic_dv_enable(c.qp, SOFTRNIC_DV_SEND, FOR_EVER, SOFTRNIC_DV_TASK_ABSOLUTE));
	make_pair(pd, side, 8);
	for (int i = 0; i < 500; i++) {
		struct ibv_sge sge = { (uintptr_t)memory.values, 8, mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
		struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *none;

		NUMBER(0, ibv_post_recv(side[1].qp, &recv, &bad));
		NUMBER(0, ibv_post_send(side[0].qp, &send, &none));
		CHECK(next_wc(side[1].cq).status == IBV_WC_SUCCESS);
		CHECK(next_wc(side[0].cq).status == IBV_WC_SUCCESS);
	}
	CHECK(begun(&c) >= 64);
	drop_pair(side);
	drop(&c);
}

static void refused(void)
{
	struct softrnic_dv_qp_attr attr = { .create_flags = SOFTRNIC_DV_QP_CROSS_CHANNEL };
	struct softrnic_dv_cq_attr counts = { .cqe = 4, .flags = SOFTRNIC_DV_CQ_CROSS_CHANNEL };
	struct ibv_cq *cq = softrnic_dv_create_cq(ctx, &counts), *plain = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct softrnic_dv_queue queue;
	uint64_t count;

	NUMBER(0, softrnic_dv_cq_count(cq, &count));
	NUMBER(EINVAL, softrnic_dv_cq_count(plain, &count));
	NUMBER(EINVAL, softrnic_dv_cq_count(cq, NULL));
	NULLS(EINVAL, softrnic_dv_create_cq(ctx, NULL));
	counts.flags = 8;
	NULLS(EINVAL, softrnic_dv_create_cq(ctx, &counts));
	NULLS(EINVAL, softrnic_dv_create_qp(pd, &init, NULL));
	NULLS(EINVAL, softrnic_dv_create_qp(NULL, &init, &attr));
	attr.create_flags = SOFTRNIC_DV_QP_CYCLIC_SEND;
	NULLS(EINVAL, softrnic_dv_create_qp(pd, &init, &attr));
	attr.create_flags = SOFTRNIC_DV_QP_CROSS_CHANNEL;
	init.qp_type = IBV_QPT_UD;
	NULLS(EINVAL, softrnic_dv_create_qp(pd, &init, &attr));
	init.qp_type = IBV_QPT_RC;

	struct ibv_qp *qp = softrnic_dv_create_qp(pd, &init, &attr);

	MUST(qp != NULL);
	NUMBER(EINVAL, softrnic_dv_post_task(qp, NULL));
	NUMBER(EINVAL, softrnic_dv_post_task(NULL, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_NOP }));
	NUMBER(EINVAL, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = IBV_WR_SEND }));
	NUMBER(EINVAL, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_NOP })); /* RESET */
	to_init(qp);
	to_rts(qp, qp->qp_num);
	NUMBER(EINVAL, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_WAIT }));
	NUMBER(EINVAL, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_WAIT, .cq = plain, .count = 1 }));
	NUMBER(EINVAL, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_SEND_EN }));
	NUMBER(EINVAL, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_SEND_EN, .qp = qp }));
	NUMBER(EINVAL, softrnic_dv_enable(qp, SOFTRNIC_DV_RECV, 1, 0));
	NUMBER(EINVAL, softrnic_dv_enable(qp, 2, 1, 0));
	NULLS(EINVAL, softrnic_dv_reg_queue(qp, SOFTRNIC_DV_SEND, ALL));
	NULLS(EINVAL, softrnic_dv_reg_queue(qp, 7, ALL));
	NUMBER(EINVAL, softrnic_dv_query_queue(qp, 0, NULL));
	NUMBER(0, softrnic_dv_query_queue(qp, 0, &queue));
	CHECK(queue.addr == NULL && queue.count == 4);

	/* A completion queue that a WAIT waits for stays until the WAIT's queue pair goes. */
	counts.flags = SOFTRNIC_DV_CQ_CROSS_CHANNEL;

	struct ibv_cq *waited = softrnic_dv_create_cq(ctx, &counts);

	MUST(waited != NULL);
	NUMBER(0, softrnic_dv_post_task(qp, &(struct softrnic_dv_task){ .opcode = SOFTRNIC_DV_WAIT, .cq = waited, .count = 1 }));
	NUMBER(EBUSY, ibv_destroy_cq(waited));
	NUMBER(0, ibv_destroy_qp(qp));
	NUMBER(0, ibv_destroy_cq(waited));
	NUMBER(0, ibv_destroy_cq(cq));
	NUMBER(0, ibv_destroy_cq(plain));
}

int main(void)
{
	ctx = open_softrnic();
	pd = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, &memory, sizeof memory, ALL);
	MUST(mr != NULL);
	refused();
	condition();
	list();
	ping_pong();
	loop();
	NUMBER(0, ibv_dereg_mr(mr));
	NUMBER(0, ibv_dealloc_pd(pd));
	NUMBER(0, ibv_close_device(ctx));
	return verdict();
}
