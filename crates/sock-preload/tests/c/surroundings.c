/* Processes that may not do what shared memory needs: connections stay with TCP, nothing hangs, and no call fails.
 * SOFTRNIC_TEST_LIMIT says what a process may not do from the moment on when it has its connection. */
#include "pair.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IS(value, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, no)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void filter(struct sock_filter *steps, size_t n)
{
	struct sock_fprog program = { n, steps };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void refuse(int call)
{
	struct sock_filter steps[] = { LOAD(nr), IS(call, 1), REFUSE(EPERM), ALLOW };

	filter(steps, 4);
}

static void refuse_shared_memory(void)
{
	struct sock_filter steps[] = {
		LOAD(nr), IS(SYS_mmap, 3), LOAD(args[3]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 0, 1),
		REFUSE(EPERM), ALLOW,
	};

	filter(steps, 6);
}

static void refuse_unix(void)
{
	struct sock_filter steps[] = {
		LOAD(nr), IS(SYS_socket, 3), LOAD(args[0]), IS(AF_UNIX, 1), REFUSE(EAFNOSUPPORT), ALLOW,
	};

	filter(steps, 6);
}

static void limit(int resource, rlim_t most)
{
	CHECK(setrlimit(resource, &(struct rlimit){ most, most }) == 0);
}

/* As many bytes as the process has, and some for the C library. */
static void limit_memory(void)
{
	long pages;
	FILE *file = fopen("/proc/self/statm", "re");

	CHECK(file && fscanf(file, "%ld", &pages) == 1);
	fclose(file);
	limit(RLIMIT_AS, pages * 4096 + 100000);
}

static const struct { const char *name; int call; } calls[] = {
	{ "memfd_create", SYS_memfd_create }, { "eventfd2", SYS_eventfd2 }, { "madvise", SYS_madvise },
	{ "sendmsg", SYS_sendmsg }, { "recvmsg", SYS_recvmsg }, { "ftruncate", SYS_ftruncate },
	{ "getsockopt", SYS_getsockopt }, { "ioctl", SYS_ioctl }, { "readlink", SYS_readlinkat },
	{ "bind", SYS_bind }, { "listen", SYS_listen }, { "accept4", SYS_accept4 },
};

static const char *what;
static int is(const char *name) { return strcmp(what, name) == 0; }

/* Before there is a connection. */
static void restrict_early(void)
{
	what = getenv("SOFTRNIC_TEST_LIMIT");
	CHECK(what != NULL);
	if (is("file size"))
		limit(RLIMIT_FSIZE, 0);
	if (is("memory-early"))
		limit_memory();
}

static void restrict_late(int fd)
{
	for (size_t n = 0; n < sizeof calls / sizeof *calls; n++)
		if (is(calls[n].name))
			return refuse(calls[n].call);
	if (is("shared memory"))
		return refuse_shared_memory();
	if (is("unix sockets"))
		return refuse_unix();
	if (is("memory"))
		return limit_memory();
	if (is("descriptors"))
		return limit(RLIMIT_NOFILE, fd + 1);
	if (is("user"))
		CHECK(setresuid(65534, 65534, 65534) == 0);
	else if (is("user namespace"))
		CHECK(unshare(CLONE_NEWUSER) == 0);
	else if (is("network namespace"))
		CHECK(unshare(CLONE_NEWNET) == 0);
	else if (is("mount namespace"))
		CHECK(unshare(CLONE_NEWNS) == 0);
	else
		CHECK(is("nothing") || is("file size") || is("memory-early"));
}

static void serve(const char *port)
{
	int listener, fd;

	(void)port;
	restrict_early();
	listener = listening();
	fd = accept(listener, NULL, NULL);
	CHECK(fd >= 0);
	restrict_late(fd);
	answer(fd);
}

static int is_any;

static void talks(const char *port)
{
	int fd;

	restrict_early();
	fd = dial(port);
	restrict_late(fd);
	for (int n = 0; n < 5; n++)
		talk(fd);
	/* A process that may not ask says nothing of where its bytes go. */
	if (!is_any)
		CHECK(is_moved(fd) == moves);
	end(fd);
}

static const struct role roles[] = { { "serve", serve }, { "talks", talks } };

int main(int count, char **words)
{
	is_any = count == 4 && strcmp(words[3], "any") == 0;
	return play(count, words, roles, sizeof roles / sizeof *roles);
}
