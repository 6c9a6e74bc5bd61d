/* What programs do with the descriptors of connections, and with processes that have them: each with the library in
 * both programs, in one and in none, so that all of it is what plain TCP does. */
#include "pair.h"
#include <linux/close_range.h>
#include <sys/pidfd.h>

static const char *self;
/* The same program without the C library's shared object, so that nothing can be preloaded. */
#define STATIC "SOFTRNIC_TEST_STATIC"

static char *plain[] = { "PATH=/usr/bin:/bin", NULL };

static void reap(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* What a program with the connection as its descriptors 0 and 1 does. */
#define SHELL "printf hello; head -c 5 >&9"

static void heard(int from)
{
	char said[6] = "";
	FILE *file = fdopen(from, "r");

	CHECK(fread(said, 1, 5, file) == 5);
	CHECK(strcmp(said, "hello") == 0);
	CHECK(fgetc(file) == EOF);
	fclose(file);
}

static void vfork_exec(const char *port)
{
	int fd = dialled(port), ends[2];
	char *words[] = { "sh", "-c", SHELL, NULL };
	pid_t child;

	/* A child that starts nothing leaves the connection as it is. */
	child = vfork();
	if (child == 0) {
		close(fd);
		_exit(0);
	}
	reap(child);
	CHECK(is_moved(fd) == moves);
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	child = vfork();
	if (child == 0) {
		if (dup2(fd, 0) != 0 || dup2(fd, 1) != 1 || dup2(ends[1], 9) != 9 || close(fd) != 0)
			_exit(1);
		execve("/bin/sh", words, plain);
		_exit(2);
	}
	close(ends[1]);
	heard(ends[0]);
	reap(child);
	talk(fd);
	/* What cannot be started takes the connection to TCP at most. */
	child = vfork();
	if (child == 0) {
		execve("/nowhere/at all", words, plain);
		_exit(0);
	}
	reap(child);
	end(fd);
}

static void vfork_closed(const char *port)
{
	int fd = dialled(port), other;
	char *words[] = { "true", NULL };
	pid_t child;

	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
	other = dup(fd);
	CHECK(other > 2 && fcntl(other, F_SETFD, FD_CLOEXEC) == 0);
	child = vfork();
	if (child == 0) {
		execve("/bin/true", words, plain);
		_exit(2);
	}
	reap(child);
	/* The program has never had it. */
	CHECK(is_moved(fd) == moves);
	CHECK(close(fd) == 0);
	end(other);
}

/* A program in this one's place, with or without the variable, and one that nothing can be preloaded into. */
static void exec_with(const char *port, const char *program, char **environment)
{
	int fd = dialled(port);
	char number[12];
	char *words[] = { "stranger", "stranger", number, "stays", NULL };

	snprintf(number, sizeof number, "%d", fd);
	/* The other end may send before the program is there. */
	send_all(fd, "early", 5);
	execve(program, words, environment);
	CHECK(!"exec");
}

static void stranger(const char *number)
{
	int fd = atoi(number);
	char early[5];

	CHECK(getenv("LD_PRELOAD") == NULL || getenv(STATIC) != NULL);
	take(fd, early, 5);
	CHECK(memcmp(early, "early", 5) == 0);
	talk(fd);
	end(fd);
}

static void exec_unset(const char *port) { exec_with(port, self, plain); }

static void exec_static(const char *port)
{
	CHECK(getenv(STATIC) != NULL);
	exec_with(port, getenv(STATIC), environ);
}

/* A program in this one's place that has the library: from then on it is TCP, which is known to nobody. */
static void exec_self(const char *port)
{
	int fd = dialled(port);
	char number[12];
	char *words[] = { "goes-on", "goes-on", number, "stays", NULL };

	snprintf(number, sizeof number, "%d", fd);
	execv(self, words);
	CHECK(!"exec");
}

static void goes_on(const char *number)
{
	talk(atoi(number));
	end(atoi(number));
}

static void spawn_actions(const char *port)
{
	int fd = dialled(port), other = dialled(port), same = dialled(port), ends[2];
	char number[60], *words[] = { "sh", "-c", number, NULL };
	posix_spawn_file_actions_t actions;
	pid_t child;

	for (int n = 0; n < 3; n++)
		CHECK(fcntl((int[]){ fd, other, same }[n], F_SETFD, FD_CLOEXEC) == 0);
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, ends[1], 9) == 0);
	CHECK(posix_spawn_file_actions_addclose(&actions, other) == 0);
	/* A descriptor onto itself: the child keeps it (posix_spawn(3)). */
	CHECK(posix_spawn_file_actions_adddup2(&actions, same, same) == 0);
	snprintf(number, sizeof number, SHELL "; printf again >&%d", same);
	CHECK(posix_spawn(&child, "/bin/sh", &actions, NULL, words, plain) == 0);
	CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
	close(ends[1]);
	heard(ends[0]);
	reap(child);
	take(same, number, 5);
	CHECK(memcmp(number, "again", 5) == 0);
	talk(fd);
	talk(same);
	CHECK(is_moved(other) == moves);
	/* One that is not closed at exec goes along by its number. */
	CHECK(fcntl(other, F_SETFD, 0) == 0);
	snprintf(number, sizeof number, "printf number >&%d", other);
	CHECK(posix_spawnp(&child, "sh", NULL, NULL, words, plain) == 0);
	reap(child);
	take(other, number, 6);
	CHECK(memcmp(number, "number", 6) == 0);
	talk(other);
	end(fd);
	end(other);
	end(same);
}

static void ranges(const char *port)
{
	int low = dialled(port), high = dialled(port), kept = dialled(port);

	CHECK(low < high && high < kept);
	/* What the library has opened for itself lies in the range, too, and the connection outside goes on. */
	CHECK(close_range(high, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
	CHECK(fcntl(kept, F_GETFD) == FD_CLOEXEC && fcntl(low, F_GETFD) == 0);
	CHECK(is_moved(kept) == moves);
	CHECK(close_range(kept, ~0u, 0) == 0);
	FAILS(fcntl(kept, F_GETFD), EBADF);
	FAILS(write(kept, "x", 1), EBADF);
	CHECK(is_moved(high) == moves);
	FAILS(close_range(high, low, 0), EINVAL);
	CHECK(is_moved(high) == moves);
	closefrom(high);
	FAILS(fcntl(high, F_GETFD), EBADF);
	CHECK(is_moved(low) == moves);
	CHECK(close_range(low, low, CLOSE_RANGE_UNSHARE) == 0);
	FAILS(fcntl(low, F_GETFD), EBADF);
	/* The same numbers again. */
	CHECK(dialled(port) == low);
	end(low);
}

/* What the library has opened for itself is no descriptor of the program: it can be in no set. */
static void strange_numbers(const char *port)
{
	int fd = dialled(port), set = epoll_create1(0), limit = sysconf(_SC_OPEN_MAX), n;
	struct epoll_event event = {.events = EPOLLIN};

	CHECK(set >= 0 && set < 1000 && is_moved(fd) == moves);
	for (n = 1000; n < limit && n < 1 << 20; n++)
		FAILS(epoll_ctl(set, EPOLL_CTL_ADD, n, &event), EBADF);
	CHECK(close(set) == 0);
	end(fd);
}

static void dup3_over(const char *port)
{
	int one = dialled(port), two = dialled(port), copy;

	FAILS(dup3(one, one, 0), EINVAL);
	FAILS(dup3(-1, one, 0), EBADF);
	FAILS(dup3(two, one, O_APPEND), EINVAL);
	/* What has failed has closed nothing. */
	CHECK(is_moved(one) == moves);
	copy = dup(one);
	CHECK(dup3(two, one, O_CLOEXEC) == one);
	CHECK(fcntl(one, F_GETFD) == FD_CLOEXEC);
	CHECK(is_moved(one) == moves);
	CHECK(is_moved(copy) == moves);
	/* The last descriptor of the first connection: the server sees its end, and answers no more. */
	CHECK(dup3(two, copy, 0) == copy);
	CHECK(is_moved(copy) == moves);
	CHECK(close(one) == 0 && close(two) == 0);
	end(copy);
}

/* An own descriptor by its process: a copy as by dup(2). */
static void by_pidfd(const char *port)
{
	int fd = dialled(port), process = syscall(SYS_pidfd_open, getpid(), 0), copy;

	CHECK(process >= 0);
	copy = pidfd_getfd(process, fd, 0);
	CHECK(copy >= 0 && fcntl(copy, F_GETFD) == FD_CLOEXEC);
	talk(copy);
	talk(fd);
	CHECK(close(fd) == 0);
	talk(copy);
	FAILS(pidfd_getfd(process, fd, 0), EBADF);
	FAILS(pidfd_getfd(process, copy, 1), EINVAL);
	close(process);
	end(copy);
}

/* More than any buffer takes. */
#define MUCH 300000

static void stdio(const char *port)
{
	static char big[1 << 20], out[MUCH], back[MUCH];
	char line[100], early[3];
	int fd = dialled(port), n, number;
	FILE *both;

	for (n = 0; n < MUCH; n++)
		out[n] = n * 31 >> 3;
	/* What has come before the stream is there is read by it. */
	send_all(fd, "now\n", 4);
	wait_for(fd, 4);
	both = fdopen(fd, "r+");
	CHECK(both != NULL && fileno(both) == fd);
	CHECK(setvbuf(both, big, _IOFBF, sizeof big) == 0);
	CHECK(fgets(line, sizeof line, both) && strcmp(line, "now\n") == 0);
	for (int round = 0; round < 5; round++) {
		CHECK(fprintf(both, "line %d\n", round) == 7);
		CHECK(fflush(both) == 0);
		CHECK(fgetc(both) == 'l');
		CHECK(ungetc('L', both) == 'L');
		CHECK(fscanf(both, "Line %d", &number) == 1 && number == round);
		CHECK(fgetc(both) == '\n');
	}
	CHECK(fwrite(out, 1, MUCH, both) == MUCH && fflush(both) == 0);
	CHECK(fread(back, 1, MUCH, both) == MUCH && memcmp(out, back, MUCH) == 0);
	/* Calls of both kinds on one descriptor, with nothing left in the buffers. */
	talk(fd);
	CHECK(dprintf(fd, "%s", "abc") == 3);
	take(fd, early, 3);
	CHECK(memcmp(early, "abc", 3) == 0);
	CHECK(fputs("last", both) >= 0);
	/* fclose(3) sends what is left, then the end. */
	CHECK(fclose(both) == 0);
	FAILS(fcntl(fd, F_GETFD), EBADF);
}

/* A stream for each direction from the first byte on, as Python makes them. */
static void stdio_pair(const char *port)
{
	char line[100];
	int fd = dial(port);
	FILE *in = fdopen(dup(fd), "r"), *put = fdopen(fd, "w");

	CHECK(in && put && setvbuf(in, NULL, _IONBF, 0) == 0 && setvbuf(put, NULL, _IOLBF, 0) == 0);
	for (int n = 0; n < 20; n++) {
		CHECK(fprintf(put, "%d\n", n) > 0);
		CHECK(fgets(line, sizeof line, in) && atoi(line) == n);
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	CHECK(fgetc(in) == EOF && feof(in));
	CHECK(fclose(put) == 0 && fclose(in) == 0);
}

/* Answers until the word that is the last. */
static void hears(const char *port)
{
	static char bytes[MUCH];
	int fd = accept(listening(), NULL, NULL);
	ssize_t some;

	(void)port;
	while ((some = read(fd, bytes, sizeof bytes)) > 0 && (some < 4 || memcmp(bytes + some - 4, "last", 4) != 0))
		send_all(fd, bytes, some);
	CHECK(some >= 4);
	CHECK(read(fd, bytes, 1) == 0);
}

static const struct role roles[] = {
	{ "echo", serve_echo }, { "many", serve_many }, { "vfork-exec", vfork_exec }, { "vfork-closed", vfork_closed },
	{ "exec-unset", exec_unset }, { "exec-static", exec_static }, { "exec-self", exec_self },
	{ "stranger", stranger }, { "goes-on", goes_on }, { "spawn-actions", spawn_actions }, { "ranges", ranges },
	{ "strange-numbers", strange_numbers },
	{ "dup3-over", dup3_over }, { "by-pidfd", by_pidfd }, { "stdio", stdio }, { "stdio-pair", stdio_pair },
	{ "hears", hears },
};

int main(int count, char **words)
{
	self = getenv("SOFTRNIC_TEST_SELF");
	return play(count, words, roles, sizeof roles / sizeof *roles);
}
