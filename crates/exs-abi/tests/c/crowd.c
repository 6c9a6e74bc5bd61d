// Many connections and threads: each thread has its own queue and connections, and every operation has one event.
#include "common.h"

enum { THREADS = 4, EACH = 4, ROUNDS = 60, ROOM = 20000 };

// All peers of the test in one: a thread for each connection.
static void *echo_thread(void *argument)
{
	echo(SOCK_SEQPACKET, (int)(intptr_t)argument);
	return NULL;
}

static void crowd(int port)
{
	pthread_t threads[THREADS * EACH];
	for (int i = 0; i < THREADS * EACH; i++)
		EQUALS(pthread_create(threads + i, NULL, echo_thread, (void *)(intptr_t)port), 0);
	for (int i = 0; i < THREADS * EACH; i++)
		EQUALS(pthread_join(threads[i], NULL), 0);
}

const struct part PARTS[] = {{"crowd", crowd}, {NULL, NULL}};

struct talk {
	int fds[EACH];
	unsigned seed;
};

static size_t length(unsigned round)
{
	return round % 3 ? 1 + round * 37 % 250 : 300 + round * 311 % (ROOM - 300);
}

// On each connection one packet is under way, and one receive waits for it.
static void *talk(void *argument)
{
	struct talk *talk = argument;
	exs_qhandle_t queue = queue_of(2 * EACH);
	unsigned char *bytes = malloc(2 * EACH * ROOM);
	exs_mhandle_t handle = exs_mregister(bytes, 2 * EACH * ROOM, 0);
	int rounds[EACH] = {0}, halves[EACH] = {0}, left = EACH;
	CHECK(handle != EXS_MHANDLE_INVALID);
	for (int i = 0; i < EACH; i++)
		halves[i] = 2;
	for (int first = 1; left > 0; first = 0) {
		int which = -1;
		if (!first) {
			exs_event_t event = next_event(queue);
			which = event.exs_evt_ahandle;
			EQUALS(event.exs_evt_errno, 0);
			EQUALS(event.exs_evt_fd, talk->fds[which]);
			EQUALS(event.exs_evt_length, length(rounds[which]));
			if (--halves[which] > 0)
				continue;
			check_bytes(bytes + (2 * which + 1) * ROOM, length(rounds[which]), talk->seed + rounds[which]);
			halves[which] = 2;
			if (++rounds[which] == ROUNDS) {
				left--;
				continue;
			}
		}
		for (int i = 0; i < EACH; i++) {
			if (!first && i != which)
				continue;
			unsigned char *out = bytes + 2 * i * ROOM;
			fill(out, length(rounds[i]), talk->seed + rounds[i]);
			EQUALS(exs_recv(talk->fds[i], out + ROOM, ROOM, 0, queue, i, handle), 0);
			EQUALS(exs_send(talk->fds[i], out, length(rounds[i]), 0, queue, i, handle), 0);
		}
	}
	for (int i = 0; i < EACH; i++) {
		EQUALS(exs_shutdown(talk->fds[i], SHUT_WR, SYNC), 0);
		EQUALS(exs_recv(talk->fds[i], bytes, 1, 0, SYNC, handle), 0);
		closed(talk->fds[i]);
	}
	no_event(queue);
	EQUALS(exs_mderegister(handle), 0);
	EQUALS(exs_qdelete(queue), 0);
	free(bytes);
	return NULL;
}

void test(void)
{
	struct talk talks[THREADS] = {0};
	pthread_t threads[THREADS];
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("crowd", port_of(from));
	for (int i = 0; i < THREADS * EACH; i++)
		talks[i / EACH].fds[i % EACH] = accepted(from);
	for (int i = 0; i < THREADS; i++) {
		talks[i].seed = 100 * i;
		EQUALS(pthread_create(threads + i, NULL, talk, talks + i), 0);
	}
	for (int i = 0; i < THREADS; i++)
		EQUALS(pthread_join(threads[i], NULL), 0);
	finish(peer);
	closed(from);
}
