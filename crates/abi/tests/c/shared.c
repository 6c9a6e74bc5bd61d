// RDMA on memory that peers map: WRITE, READ and atomics by the initiator alone, while the target's process stands still.
// With device memory, with memory from softrnic_dv_alloc, and with ordinary memory that was moved (SOFTRNIC_MIGRATE=1): its content, what threads do with it
// meanwhile, deregistration, a forked child.
#include "common.h"
#include "../../include/softrnic/dv.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64 << 10, EDGE = 100 };

/* What either side tells the other. */
struct greeting {
	uint32_t qpn, rkey;
	uint64_t addr;
};

enum kind { MOVED, DEVICE, DIRECT };

static enum kind kind;
static int wire; /* to the other process */

static void say(const void *data, size_t len) { MUST(write(wire, data, len) == (ssize_t)len); }
static void hear(void *data, size_t len) { MUST(read(wire, data, len) == (ssize_t)len); }

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct side side;
	struct ibv_mr *mr;
	struct ibv_dm *dm;
	uint8_t *memory; /* whole pages; the region begins EDGE bytes behind the first and ends EDGE before the last */
	struct greeting peer;
	int target;
};

static struct ibv_mr *region(struct end *end)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	if (end->dm)
		return ibv_reg_dm_mr(end->pd, end->dm, 0, SIZE, access | IBV_ACCESS_ZERO_BASED);
	return ibv_reg_mr(end->pd, end->memory + EDGE, SIZE - 2 * EDGE, access);
}

static void open_end(struct end *end, int target)
{
	end->target = target;
	end->ctx = open_softrnic();
	end->pd = ibv_alloc_pd(end->ctx);
	MUST(end->pd != NULL);
	if (kind == DIRECT && target) {
		end->memory = softrnic_dv_alloc(end->ctx, SIZE);
		MUST(end->memory != NULL && (uintptr_t)end->memory % 4096 == 0);
		for (int i = 0; i < SIZE; i++)
			CHECK(end->memory[i] == 0);
	} else {
		end->memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(end->memory != MAP_FAILED);
	}
	for (int i = 0; i < SIZE; i++)
		end->memory[i] = (uint8_t)(i * 7 + target);
	if (kind == DEVICE && target) {
		struct ibv_alloc_dm_attr attr = { .length = SIZE };

		end->dm = ibv_alloc_dm(end->ctx, &attr);
		MUST(end->dm != NULL);
		NUMBER(0, ibv_memcpy_to_dm(end->dm, 0, end->memory, SIZE));
	}
	end->mr = region(end);
	MUST(end->mr != NULL);
	end->side.cq = ibv_create_cq(end->ctx, 64, NULL, NULL, 0);
	MUST(end->side.cq != NULL);
	end->side.qp = to_init(make_rc(end->pd, end->side.cq, 32));

	struct greeting us = { end->side.qp->qp_num, end->mr->rkey, end->dm ? EDGE : (uintptr_t)end->memory + EDGE };

	say(&us, sizeof us);
	hear(&end->peer, sizeof end->peer);
	to_rts(end->side.qp, end->peer.qpn);
}

static void close_end(struct end *end)
{
	int direct = kind == DIRECT && end->target;

	NUMBER(0, ibv_destroy_qp(end->side.qp));
	if (direct && end->mr)
		NUMBER(EBUSY, softrnic_dv_free(end->ctx, end->memory));
	if (end->mr)
		NUMBER(0, ibv_dereg_mr(end->mr));
	if (end->dm)
		NUMBER(0, ibv_free_dm(end->dm));
	if (direct) {
		NUMBER(EINVAL, softrnic_dv_free(end->ctx, end->memory + 4096));
		NUMBER(0, softrnic_dv_free(end->ctx, end->memory));
		NUMBER(EINVAL, softrnic_dv_free(end->ctx, end->memory));
		NUMBER(EINVAL, softrnic_dv_free(NULL, end->memory));
		CHECK(!softrnic_dv_alloc(end->ctx, 0) && errno == EINVAL);
		CHECK(!softrnic_dv_alloc(NULL, 1) && errno == EINVAL);
		CHECK(!softrnic_dv_alloc(end->ctx, SIZE_MAX) && errno == ENOMEM);
	}
	NUMBER(0, ibv_destroy_cq(end->side.cq));
	NUMBER(0, ibv_dealloc_pd(end->pd));
	NUMBER(0, ibv_close_device(end->ctx));
}

/* Everything that the target has, as it sees it itself. */
static void look(struct end *end, uint8_t *out)
{
	if (end->dm)
		NUMBER(0, ibv_memcpy_from_dm(out, end->dm, 0, SIZE));
	else
		memcpy(out, end->memory, SIZE);
}

static atomic_int stop;
static _Atomic uint64_t *counter;
static uint64_t counted;

/* A thread that never pauses: nothing that it writes may be lost when the memory moves. */
static void *count(void *unused)
{
	while (!stop) {
		uint64_t before = atomic_fetch_add(counter, 1);

		MUST(before == counted);
		counted++;
	}
	return unused;
}

static void in_fork(struct end *end)
{
	uint8_t mine = end->memory[8000], stands = 1;
	int status, pipes[2];

	MUST(pipe(pipes) == 0);
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0) {
		stands = end->memory[8000] == mine;
		end->memory[8000] = (uint8_t)(mine + 1); /* its own copy */
		stands = stands && write(pipes[1], &stands, 1) == 1 && end->memory[8000] == (uint8_t)(mine + 1);
		_exit(!stands);
	}
	MUST(read(pipes[0], &stands, 1) == 1);
	CHECK(end->memory[8000] == mine);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(pipes[0]);
	close(pipes[1]);
}

static int target(void)
{
	static uint8_t seen[SIZE], expected[SIZE];
	struct end end = { 0 };
	char word;

	open_end(&end, 1);
	hear(&word, 1); /* meanwhile the initiator stops us, and lets us go on */
	look(&end, seen);
	hear(expected, SIZE);
	/* Outside of the region everything is as it was; inside, as the initiator says. */
	CHECK(memcmp(seen, end.dm ? expected : seen, EDGE) == 0);
	CHECK(memcmp(seen + EDGE, expected + EDGE, SIZE - 2 * EDGE) == 0);
	CHECK(seen[0] == 1 && seen[SIZE - 1] == (uint8_t)((SIZE - 1) * 7 + 1));
	if (!end.dm) {
		pthread_t thread;

		if (kind == MOVED)
			in_fork(&end);
		counter = (_Atomic uint64_t *)(end.memory + 4096 + 512);
		counted = *counter;
		MUST(pthread_create(&thread, NULL, count, NULL) == 0);
		for (int i = 0; i < 30; i++) {
			NUMBER(0, ibv_dereg_mr(end.mr));
			end.mr = region(&end);
			MUST(end.mr != NULL);
		}
		NUMBER(0, ibv_dereg_mr(end.mr));
		end.mr = NULL;
		stop = 1;
		MUST(pthread_join(thread, NULL) == 0);
		CHECK(*counter == counted);
		if (kind == MOVED)
			in_fork(&end);
		*counter = *(uint64_t *)(expected + 4096 + 512);
		expected[8000] = end.memory[8000];
		CHECK(memcmp(end.memory + EDGE, expected + EDGE, SIZE - 2 * EDGE) == 0);
	}
	say("d", 1);
	hear(&word, 1);
	close_end(&end);
	return verdict();
}

static struct ibv_wc run(struct end *end, enum ibv_wr_opcode opcode, uint32_t offset, uint32_t at, uint32_t len, uint64_t a, uint64_t b)
{
	struct ibv_sge sge = { (uintptr_t)end->memory + EDGE + at, len, end->mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_READ) {
		wr.wr.rdma.remote_addr = end->peer.addr + offset;
		wr.wr.rdma.rkey = end->peer.rkey;
	} else {
		wr.wr.atomic.remote_addr = end->peer.addr + offset;
		wr.wr.atomic.rkey = end->peer.rkey;
		wr.wr.atomic.compare_add = a;
		wr.wr.atomic.swap = b;
	}
	NUMBER(0, ibv_post_send(end->side.qp, &wr, &bad));
	return next_wc(end->side.cq);
}

static uint64_t word_at(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, 8);
	return word;
}

static void put_word(uint8_t *at, uint64_t word) { memcpy(at, &word, 8); }

/* Stops the other process, at a time when we need it no more: we have had an answer, and know what it shows. */
static void stop_other(struct end *end, pid_t other)
{
	struct ibv_wc wc = { .status = 255 };
	int status;

	for (int i = 0; i < 100 && wc.status == 255; i++) {
		struct ibv_sge sge = { (uintptr_t)end->memory + EDGE, 8, end->mr->lkey };
		struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;

		MUST(kill(other, SIGSTOP) == 0);
		MUST(waitpid(other, &status, WUNTRACED) == other && WIFSTOPPED(status));
		wr.wr.atomic.remote_addr = (end->peer.addr + 6000) & ~7ull;
		wr.wr.atomic.rkey = end->peer.rkey;
		NUMBER(0, ibv_post_send(end->side.qp, &wr, &bad));
		if (ibv_poll_cq(end->side.cq, 1, &wc) == 1)
			break;
		MUST(kill(other, SIGCONT) == 0);
		CHECK(next_wc(end->side.cq).status == IBV_WC_SUCCESS);
		usleep(1000);
	}
	CHECK(wc.status == IBV_WC_SUCCESS);
}

static int initiator(pid_t other)
{
	static uint8_t theirs[SIZE]; /* what the target should have */
	struct end end = { 0 };
	uint8_t *mine;

	open_end(&end, 0);
	mine = end.memory + EDGE;
	for (int i = 0; i < SIZE; i++)
		theirs[i] = (uint8_t)(i * 7 + 1);
	CHECK(run(&end, IBV_WR_RDMA_READ, 0, 0, 8, 0, 0).status == IBV_WC_SUCCESS); /* it is there, and has answered */
	CHECK(memcmp(mine, theirs + EDGE, 8) == 0);
	stop_other(&end, other);

	/* From here on no process but this one can do it. Whole pages of the region are 4096 to SIZE - 4096. */
	static const uint32_t lengths[] = { 1, 7, 8, 9, 63, 64, 100, 1000, 4096, 20000 };

	for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		uint32_t at = 5000 + 13 * i, len = lengths[i];

		for (uint32_t k = 0; k < len; k++)
			mine[k] = (uint8_t)(k * 3 + i);
		CHECK(run(&end, IBV_WR_RDMA_WRITE, at, 0, len, 0, 0).status == IBV_WC_SUCCESS);
		memcpy(theirs + EDGE + at, mine, len);
		memset(mine, 0, len);
		CHECK(run(&end, IBV_WR_RDMA_READ, at, 0, len, 0, 0).status == IBV_WC_SUCCESS);
		CHECK(memcmp(mine, theirs + EDGE + at, len) == 0);
	}

	uint32_t at = 9004 - EDGE + (end.peer.addr == EDGE ? 4 : 0);

	at += (8 - (end.peer.addr + at) % 8) % 8;
	for (int i = 0; i < 20; i++) {
		uint64_t before = word_at(theirs + EDGE + at);

		CHECK(run(&end, IBV_WR_ATOMIC_FETCH_AND_ADD, at, 0, 8, 1000 + i, 0).status == IBV_WC_SUCCESS);
		CHECK(word_at(mine) == before);
		put_word(theirs + EDGE + at, before + 1000 + i);
		before = word_at(theirs + EDGE + at);
		CHECK(run(&end, IBV_WR_ATOMIC_CMP_AND_SWP, at, 0, 8, before + i % 2, i).status == IBV_WC_SUCCESS);
		CHECK(word_at(mine) == before);
		if (i % 2 == 0)
			put_word(theirs + EDGE + at, i);
	}
	/* Many at once, without a completion for each. */
	for (int i = 0; i < 31; i++) {
		struct ibv_sge sge = { (uintptr_t)mine, 8, end.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &sge, .num_sge = 1 }, *bad;

		wr.send_flags = i == 30 ? IBV_SEND_SIGNALED : 0;
		wr.wr.atomic.remote_addr = end.peer.addr + at;
		wr.wr.atomic.rkey = end.peer.rkey;
		wr.wr.atomic.compare_add = 1;
		NUMBER(0, ibv_post_send(end.side.qp, &wr, &bad));
	}
	struct ibv_wc wc = next_wc(end.side.cq);

	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 30 && wc.opcode == IBV_WC_FETCH_ADD);
	put_word(theirs + EDGE + at, word_at(theirs + EDGE + at) + 31);
	CHECK(word_at(mine) == word_at(theirs + EDGE + at) - 1);

	MUST(kill(other, SIGCONT) == 0);
	say("g", 1);
	say(theirs, SIZE);
	char word;
	hear(&word, 1);
	if (kind != DEVICE) {
		/* The region is gone, and with it the key. */
		CHECK(run(&end, IBV_WR_RDMA_WRITE, 5000, 0, 8, 0, 0).status == IBV_WC_REM_ACCESS_ERR);
	}
	say("e", 1);
	close_end(&end);
	return verdict();
}

static int both(void)
{
	int sockets[2], status;

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0) {
		wire = sockets[1];
		exit(target());
	}
	wire = sockets[0];
	int result = initiator(child);

	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return result | verdict();
}

/* In a process of its own: the settings are read once. */
static void apart(enum kind memory)
{
	static const char *const names[] = { "migrated memory", "device memory", "memory of softrnic_dv_alloc" };
	int status;
	pid_t child = fork();

	MUST(child >= 0);
	if (child == 0) {
		kind = memory;
		failures = 0; /* those of the kinds before are counted already */
		setenv("SOFTRNIC_MIGRATE", memory == MOVED ? "1" : "0", 1);
		exit(both());
	}
	MUST(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "%s: status %#x\n", names[memory], status);
		failures++;
	}
}

int main(void)
{
	const char *single_copy = getenv("SOFTRNIC_SINGLE_COPY");

	if (single_copy && !strcmp(single_copy, "0")) {
		fprintf(stderr, "SOFTRNIC_SINGLE_COPY is 0: a process that may not copy may not map\n");
		return 77;
	}
	alarm(100);
	apart(DEVICE);
	apart(DIRECT);
	apart(MOVED);
	return verdict();
}
