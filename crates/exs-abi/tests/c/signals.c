// Faults: what the library makes an answer of, and what the program's own action gets as it would without the library.
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { PAGE = 4096 };

// Sanitizers have handlers and functions of their own.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define PLAIN 0
#else
#define PLAIN 1
#endif

// No mapping comes to lie here unless it is asked for, so that a page stays away.
#define ALONE ((char *)0x40000000)

static void echoes(int port)
{
	echo_packets(port);
}

const struct part PARTS[] = {{"echo", echoes}, {NULL, NULL}};

static char *page_at(void *place, int rights)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED_NOREPLACE : 0);
	char *page = mmap(place, PAGE, rights, flags, -1, 0);
	CHECK(page != MAP_FAILED && (!place || page == place));
	return page;
}

static void cut_off(char *page)
{
	int file = memfd_create("empty", MFD_CLOEXEC);
	CHECK(file >= 0);
	CHECK(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == page);
	EQUALS(close(file), 0);
}

static exs_mhandle_t registered(char *page)
{
	exs_mhandle_t handle = exs_mregister(page, PAGE, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	return handle;
}

static void act(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
	EQUALS(sigaction(signal, &action, NULL), 0);
}

// Run a test in a process of its own, which has not used the library: its status.
static int in_child(void (*body)(void))
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = {0};
		setrlimit(RLIMIT_CORE, &none);
		alarm(3 * PATIENCE);
		body();
		_exit(0);
	}
	CHECK(child > 0);
	EQUALS(waitpid(child, &status, 0), child);
	return status;
}

// Calls of a handler, also those in a child.
static volatile int *calls;

static void once(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	// The second call is one too many.
	if (++*calls > 1)
		_exit(3);
}

static void fault_in(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	if (++*calls > 1)
		_exit(3);
	*(volatile char *)((uintptr_t)info->si_addr);
}

static void fault(void)
{
	registered(page_at(NULL, PROT_READ | PROT_WRITE));
	*(volatile char *)page_at(NULL, PROT_NONE);
}

// SA_RESETHAND: the handler is called once, then the fault ends the process.
static void one_shot(void)
{
	act(SIGSEGV, once, SA_RESETHAND);
	fault();
}

// With SA_NODEFER, a fault in the handler does.
static void one_shot_nested(void)
{
	act(SIGSEGV, fault_in, SA_RESETHAND | SA_NODEFER);
	fault();
}

static void one_shot_sent(void)
{
	act(SIGSEGV, once, SA_RESETHAND);
	registered(page_at(NULL, PROT_READ | PROT_WRITE));
	raise(SIGSEGV);
	EQUALS(*calls, 1);
	raise(SIGSEGV);
}

static void no_handler(void)
{
	fault();
}

static void ends_by_signal(void (*body)(void), int expected)
{
	*calls = 0;
	int status = in_child(body);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	EQUALS(*calls, expected);
}

static void ignored(void)
{
	signal(SIGSEGV, SIG_IGN);
	signal(SIGBUS, SIG_IGN);
	registered(page_at(NULL, PROT_READ | PROT_WRITE));
	EQUALS(raise(SIGSEGV), 0);
	EQUALS(raise(SIGBUS), 0);
}

static void refused(int fd, exs_qhandle_t queue, char *at, exs_mhandle_t handle)
{
	REFUSED(exs_send(fd, at, 8, 0, SYNC, handle), EFAULT);
	REFUSED(exs_recv(fd, at, PAGE, 0, queue, 1, handle), EFAULT);
	no_event(queue);
	EQUALS(exs_mderegister(handle), 0);
}

// What is not there is EFAULT, without a call of the program's handlers.
static void not_there(bool handler)
{
	if (handler) {
		act(SIGSEGV, once, 0);
		act(SIGBUS, once, 0);
	}
	*calls = 0;
	char *page = page_at(ALONE, PROT_READ | PROT_WRITE), *cut = page_at(NULL, PROT_READ | PROT_WRITE);
	char *shut = page_at(NULL, PROT_READ | PROT_WRITE);
	exs_mhandle_t handle = registered(page), cut_handle = registered(cut), shut_handle = registered(shut);
	exs_qhandle_t queue = queue_of(1);
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	EQUALS(munmap(page, PAGE), 0);
	refused(fd, queue, page, handle);
	cut_off(cut);
	refused(fd, queue, cut, cut_handle);
	// Without a handler nobody could make it accessible.
	if (!handler) {
		EQUALS(mprotect(shut, PAGE, PROT_NONE), 0);
		refused(fd, queue, shut, shut_handle);
	}
	EQUALS(*calls, 0);
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
}

static void not_there_default(void)
{
	not_there(false);
}

static void not_there_handled(void)
{
	not_there(true);
}

static volatile int opened, sent, forged;

// The handler of a program that gives pages rights when they are wanted. Signals that are sent meanwhile come at the
// instruction that is tried again, before it is.
static void opens(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	if (info->si_code == SI_TKILL) {
		sent++;
		siginfo_t other = {.si_signo = SIGSEGV, .si_code = SEGV_MAPERR};
		other.si_addr = (void *)&forged;
		if (syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGSEGV, &other))
			_exit(4);
	} else if (info->si_addr == &forged) {
		forged++;
	} else {
		opened++;
		void *page = (void *)((uintptr_t)info->si_addr & -(uintptr_t)PAGE);
		if (info->si_code != SEGV_ACCERR || mprotect(page, PAGE, PROT_READ | PROT_WRITE))
			_exit(5);
		raise(SIGSEGV);
	}
}

// A page without rights is the program's: its handler runs first, and the transfer goes on.
static void guarded(void)
{
	act(SIGSEGV, opens, 0);
	char *page = page_at(NULL, PROT_READ | PROT_WRITE);
	exs_mhandle_t handle = registered(page);
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	strcpy(page, "guarded");
	EQUALS(mprotect(page, PAGE, PROT_NONE), 0);
	EQUALS(exs_send(fd, page, 8, 0, SYNC, handle), 8);
	CHECK(opened == 1 && sent == 1 && forged == 1);
	EQUALS(mprotect(page, PAGE, PROT_NONE), 0);
	EQUALS(exs_recv(fd, page, PAGE, 0, SYNC, handle), 8);
	CHECK(opened == 2 && sent == 2 && forged == 2);
	CHECK(!strcmp(page, "guarded"));
	EQUALS(exs_shutdown(fd, SHUT_WR, SYNC), 0);
	finish(peer);
	closed(fd);
	closed(from);
	EQUALS(exs_mderegister(handle), 0);
}

// The thread of /proc/self/task/NUMBER: its name and the signals that it blocks.
static void look_at(const char *number, char name[32], unsigned long *blocked)
{
	char path[320], line[256];
	snprintf(path, sizeof path, "/proc/self/task/%s/status", number);
	FILE *status = fopen(path, "r");
	// A thread that has ended lets nothing in.
	*blocked = status ? 0 : ~0UL;
	if (!status)
		return;
	while (fgets(line, sizeof line, status)) {
		sscanf(line, "Name: %31s", name);
		sscanf(line, "SigBlk: %lx", blocked);
	}
	EQUALS(fclose(status), 0);
}

// How many threads let faults in. All of them are the library's that look at memory, and let nothing else in.
static int letting(void)
{
	enum { FAULTS = 1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1), OTHERS = 1 << (SIGTERM - 1) | 1 << (SIGUSR1 - 1) };
	int found = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *task; (task = readdir(tasks));) {
		char name[32] = "";
		unsigned long blocked = 0;
		if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
			continue;
		look_at(task->d_name, name, &blocked);
		if ((blocked & (FAULTS | OTHERS)) == (FAULTS | OTHERS))
			continue;
		if (strncmp(name, "exs", 3) || (blocked & (FAULTS | OTHERS)) != OTHERS)
			FAIL("the thread %s blocks %lx", name, blocked);
		found++;
	}
	EQUALS(closedir(tasks), 0);
	return found;
}

static void masks(void)
{
	exs_qhandle_t queue = queue_of(1);
	int from = listener(SOCK_SEQPACKET);
	exs_pollfd_t entry = {.fd = from, .events = POLLIN};
	exs_fdvec_t list = {.exs_fdv_fds = &entry, .exs_fdv_count = 1};
	// The first one is of the connections, and the second one of polls.
	registered(page_at(NULL, PROT_READ | PROT_WRITE));
	struct timeval soon = {.tv_usec = 1000};
	EQUALS(exs_poll(&list, 0, &soon, queue, 1), 0);
	next_event(queue);
	// A thread that has not run yet blocks all.
	for (int tries = 0; tries < PATIENCE * 100 && letting() < 2; tries++)
		usleep(10000);
	EQUALS(letting(), 2);
	closed(from);
}

static bool racing;

#if PLAIN
static void late(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	_exit(*calls == 0 ? 7 : 8);
}

// The library calls this one. Another thread's call comes between its look at the action and its own.
int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	int (*real)(int, const struct sigaction *, struct sigaction *);
	*(void **)&real = dlsym(RTLD_NEXT, "sigaction");
	if (racing && action && signal == SIGSEGV) {
		struct sigaction other = {.sa_sigaction = late, .sa_flags = SA_SIGINFO};
		racing = false;
		CHECK(real(signal, &other, NULL) == 0);
	}
	return real(signal, action, old);
}
#endif

static void raced(void)
{
	act(SIGSEGV, once, 0);
	racing = true;
	registered(page_at(NULL, PROT_READ | PROT_WRITE));
	CHECK(!racing);
	*(volatile char *)page_at(NULL, PROT_NONE);
}

void test(void)
{
	calls = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(calls != MAP_FAILED);
	if (PLAIN) {
		ends_by_signal(no_handler, 0);
		ends_by_signal(one_shot, 1);
		ends_by_signal(one_shot_nested, 1);
		ends_by_signal(one_shot_sent, 1);
		*calls = 0;
		EQUALS(WEXITSTATUS(in_child(raced)), 7);
		EQUALS(in_child(ignored), 0);
		EQUALS(in_child(not_there_default), 0);
		EQUALS(in_child(masks), 0);
	}
	EQUALS(in_child(not_there_handled), 0);
	guarded();
}
