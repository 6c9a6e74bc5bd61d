/* What hardly any program meets: SO_PEEK_OFF, O_ASYNC, bytes behind urgent ones, and no memory for malloc(3). */
#include "pair.h"

static void option(int fd, int name, int value)
{
	CHECK(setsockopt(fd, SOL_SOCKET, name, &value, sizeof value) == 0);
}

/* socket(7), SO_PEEK_OFF: a look begins where the last one ended, and what is taken counts back. */
static void peek_off(const char *port)
{
	int fd = dialled(port), offset = 0;
	char bytes[10];

	if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0) {
		/* Linux before 6.9. */
		CHECK(errno == EOPNOTSUPP);
		end(fd);
		return;
	}
	for (int n = 0; n < 3; n++) {
		send_all(fd, "abcdef", 6);
		wait_for(fd, 6);
		CHECK(recv(fd, bytes, 2, MSG_PEEK) == 2 && memcmp(bytes, "ab", 2) == 0);
		CHECK(recv(fd, bytes, 2, MSG_PEEK) == 2 && memcmp(bytes, "cd", 2) == 0);
		CHECK(recv(fd, bytes, 3, 0) == 3 && memcmp(bytes, "abc", 3) == 0);
		CHECK(recv(fd, bytes, 2, MSG_PEEK) == 2 && memcmp(bytes, "ef", 2) == 0);
		option(fd, SO_PEEK_OFF, 0);
		take(fd, bytes, 3);
		CHECK(memcmp(bytes, "def", 3) == 0);
	}
	option(fd, SO_PEEK_OFF, -1);
	talk(fd);
	end(fd);
}

static volatile sig_atomic_t came, came_for;

static void count(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	came_for = info->si_fd;
	came++;
}

static void until_it_comes(int fd)
{
	char byte;

	came = 0;
	send_all(fd, "x", 1);
	for (int n = 0; came == 0 && n < LONG; n++)
		usleep(1000);
	CHECK(came > 0);
	take(fd, &byte, 1);
}

/* open(2), O_ASYNC; fcntl(2), F_SETSIG; ioctl(2), FIOASYNC: a signal for what can be read. */
static void async(const char *port)
{
	struct sigaction action = { .sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART };
	int fd = dialled(port), off = 0, on = 1;

	CHECK(sigaction(SIGIO, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) == 0);
	until_it_comes(fd);
	CHECK(fcntl(fd, F_SETSIG, SIGUSR1) == 0);
	until_it_comes(fd);
	CHECK(came_for == fd);
	CHECK(ioctl(fd, FIOASYNC, &off) == 0);
	talk(fd);
	end(fd);
	fd = dialled(port);
	CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
	CHECK(ioctl(fd, FIOASYNC, &on) == 0);
	until_it_comes(fd);
	CHECK(ioctl(fd, FIOASYNC, &off) == 0);
	talk(fd);
	end(fd);
}

static void sends_urgent(const char *port)
{
	int fd = dialled(port);
	char byte;

	for (int n = 0; n < 4; n++) {
		send_all(fd, "before", 6);
		CHECK(send(fd, "!", 1, MSG_OOB) == 1);
		send_all(fd, "behind", 6);
		take(fd, &byte, 1);
	}
	end(fd);
}

/* A read stops at the mark, and the next one goes on behind it, with the urgent byte in its place or without. */
static void reads_past(const char *port)
{
	int fd = accept(listening(), NULL, NULL);
	char bytes[100];

	(void)port;
	for (int n = 0; n < 20; n++) {
		take(fd, bytes, sizeof bytes);
		send_all(fd, bytes, sizeof bytes);
	}
	for (int n = 0; n < 4; n++) {
		struct pollfd one = { fd, POLLPRI, 0 };

		if (n == 2)
			option(fd, SO_OOBINLINE, 1);
		CHECK(poll(&one, 1, LONG) == 1 && one.revents == POLLPRI);
		CHECK(recv(fd, bytes, sizeof bytes, 0) == 6 && memcmp(bytes, "before", 6) == 0);
		CHECK(sockatmark(fd) == 1);
		if (n < 2) {
			take(fd, bytes, 6);
			CHECK(memcmp(bytes, "behind", 6) == 0);
		} else {
			take(fd, bytes, 7);
			CHECK(memcmp(bytes, "!behind", 7) == 0);
		}
		CHECK(sockatmark(fd) == 0);
		FAILS(recv(fd, bytes, 1, MSG_OOB), EINVAL);
		send_all(fd, "x", 1);
	}
	CHECK(read(fd, bytes, 1) == 0);
}

/* All that malloc(3) can give is taken, and no call needs more. */
static void no_heap(const char *port)
{
	int fd = dialled(port);
	void **all = NULL, **block;
	long pages;
	char byte;
	fd_set in;
	FILE *file = fopen("/proc/self/statm", "re");

	CHECK(file && fscanf(file, "%ld", &pages) == 1);
	fclose(file);
	CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){ pages * 4096, RLIM_INFINITY }) == 0);
	for (size_t size = 1 << 20; size >= 16; size /= 2)
		while ((block = malloc(size)) != NULL) {
			*block = all;
			all = block;
		}
	for (int n = 0; n < 50; n++) {
		struct pollfd many[100];

		for (int at = 0; at < 100; at++)
			many[at] = (struct pollfd){ at == 50 ? fd : -1, POLLIN, 0 };
		CHECK(poll(many, 100, 0) == 0);
		send_all(fd, "x", 1);
		CHECK(poll(many, 100, LONG) == 1 && many[50].revents == POLLIN);
		FD_ZERO(&in);
		FD_SET(fd, &in);
		CHECK(select(fd + 1, &in, NULL, NULL, NULL) == 1);
		take(fd, &byte, 1);
	}
	talk(fd);
	while (all != NULL) {
		block = *all;
		free(all);
		all = block;
	}
	end(fd);
}

static const struct role roles[] = {
	{ "echo", serve_echo }, { "many", serve_many }, { "peek-off", peek_off }, { "async", async },
	{ "no-heap", no_heap }, { "sends-urgent", sends_urgent }, { "reads-past", reads_past },
};

int main(int count, char **words)
{
	return play(count, words, roles, sizeof roles / sizeof *roles);
}
