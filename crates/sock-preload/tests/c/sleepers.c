/* Threads that sleep in an epoll set before it has a connection. */
#include "pair.h"

static int set;

struct sleeper { pthread_t thread; volatile pid_t id; volatile int is_told; struct epoll_event event; };

static void *sleeps(void *at)
{
	struct sleeper *it = at;

	it->id = syscall(SYS_gettid);
	CHECK(epoll_wait(set, &it->event, 1, LONG) == 1);
	it->is_told = 1;
	return NULL;
}

/* Starts a thread, and waits until it sleeps in epoll_wait(2) or epoll_pwait(2). */
static void start(struct sleeper *it)
{
	it->id = it->is_told = 0;
	CHECK(pthread_create(&it->thread, NULL, sleeps, it) == 0);
	for (int call = -1; call != SYS_epoll_wait && call != SYS_epoll_pwait; usleep(500)) {
		char path[64];
		FILE *file;

		if (it->id == 0)
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%d/syscall", it->id);
		file = fopen(path, "re");
		CHECK(file != NULL);
		if (fscanf(file, "%d", &call) != 1)
			call = -1;
		fclose(file);
	}
}

static void change(int operation, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	CHECK(epoll_ctl(set, operation, fd, &event) == 0);
}

static void told(struct sleeper *it, uint32_t events, uint64_t data)
{
	CHECK(pthread_join(it->thread, NULL) == 0);
	/* Both directions may have ended by then (EPOLLHUP). */
	it->event.events &= ~EPOLLHUP;
	if (it->event.events != events || it->event.data.u64 != data) {
		fprintf(stderr, "%x of %lx\n", it->event.events, it->event.data.u64);
		exit(1);
	}
}

/* The connection has its memory before it comes into the set. */
static void moved_before(const char *port)
{
	struct sleeper it;
	int fd = dialled(port);
	char byte;

	set = epoll_create1(0);
	start(&it);
	change(EPOLL_CTL_ADD, fd, EPOLLIN, 11);
	send_all(fd, "x", 1);
	told(&it, EPOLLIN, 11);
	take(fd, &byte, 1);
	end(fd);
}

/* It gets its memory in the set, whose thread sleeps on, for it is asked of the end only. */
static void moved_inside(const char *port)
{
	struct sleeper it;
	int fd = dial(port);

	set = epoll_create1(0);
	start(&it);
	change(EPOLL_CTL_ADD, fd, EPOLLRDHUP, 12);
	talk(fd);
	CHECK(is_moved(fd) == moves);
	CHECK(shutdown(fd, SHUT_WR) == 0);
	told(&it, EPOLLRDHUP, 12);
	close(fd);
}

/* Several threads sleep when the first connection comes, and one of them when the second one does. */
static void several(const char *port)
{
	struct sleeper all[2];
	int one = dialled(port), other = dialled(port), first;
	char byte;

	for (int n = 0; n < 20; n++) {
		set = epoll_create1(0);
		start(&all[0]);
		start(&all[1]);
		change(EPOLL_CTL_ADD, one, EPOLLIN | EPOLLONESHOT, 13);
		send_all(one, "x", 1);
		for (first = 2; first == 2; usleep(500))
			first = all[0].is_told ? 0 : all[1].is_told ? 1 : 2;
		told(&all[first], EPOLLIN, 13);
		take(one, &byte, 1);
		change(EPOLL_CTL_ADD, other, EPOLLIN | EPOLLONESHOT, 14);
		send_all(other, "x", 1);
		told(&all[1 - first], EPOLLIN, 14);
		take(other, &byte, 1);
		close(set);
	}
	end(one);
	end(other);
}

/* An edge comes while the set looks at the connection for another reason, which is that its entry was changed. */
static void edges(const char *port)
{
	int fd = dialled(port);
	char byte;

	set = epoll_create1(0);
	change(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 15);
	for (int n = 0; n < 10000; n++) {
		struct epoll_event event;

		send_all(fd, "x", 1);
		for (volatile int spin = n % 400; spin > 0; spin--)
			;
		change(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 15);
		CHECK(epoll_wait(set, &event, 1, LONG) == 1);
		take(fd, &byte, 1);
	}
	end(fd);
}

static const struct role roles[] = {
	{ "echo", serve_echo }, { "many", serve_many }, { "moved-before", moved_before },
	{ "moved-inside", moved_inside }, { "several", several },
	{ "edges", edges },
};

int main(int count, char **words)
{
	return play(count, words, roles, sizeof roles / sizeof *roles);
}
