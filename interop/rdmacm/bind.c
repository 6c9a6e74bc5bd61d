/* Ports: the claims that ids may have, on which address, beside which other claims. */
#include "harness.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/wait.h>

static void bind_refuses(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	struct sockaddr none = { .sa_family = AF_UNIX };
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, &none), EINVAL);
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	FAILS(rdma_bind_addr(id, with_port(w, 0, &s)), EINVAL);
	OK(rdma_destroy_id(id));
}

/* TEST-NET-3 and the documentation prefix are no host's. */
static void bind_a_foreign_address(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	(void)w;
	inet_pton(AF_INET, "203.0.113.7", &in.sin_addr);
	inet_pton(AF_INET6, "2001:db8::7", &in6.sin6_addr);
	FAILS(rdma_bind_addr(new_id(ch, RDMA_PS_TCP), (struct sockaddr *)&in), EADDRNOTAVAIL);
	FAILS(rdma_bind_addr(new_id(ch, RDMA_PS_TCP), (struct sockaddr *)&in6), EADDRNOTAVAIL);
}

/* A link-local address is invalid without its link. */
static void bind_link_local_without_scope(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	(void)w;
	inet_pton(AF_INET6, "fe80::1", &in6.sin6_addr);
	FAILS(rdma_bind_addr(new_id(ch, RDMA_PS_TCP), (struct sockaddr *)&in6), EINVAL);
}

static void bind_an_address_gives_the_device(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	TRUE(id->verbs != NULL);
	IS(id->port_num, 1);
	TRUE(port_of(id) != 0);
	IS(rdma_get_local_addr(id)->sa_family, w->addr.sa.sa_family);
	OK(rdma_destroy_id(id));
}

static void bind_the_wildcard_gives_no_device(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	OK(rdma_bind_addr(id, wildcard(w->addr.sa.sa_family, 0, &s)));
	TRUE(id->verbs == NULL);
	TRUE(port_of(id) != 0);
	OK(rdma_listen(id, 1));
	OK(rdma_destroy_id(id));
}

static void ephemeral_ports(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
	int low = 32768, high = 60999;
	if (f && fscanf(f, "%d %d", &low, &high) != 2)
		low = 1, high = 65535;
	enum { MANY = 200 };
	static uint16_t ports[MANY];
	for (int i = 0; i < MANY; i++) {
		struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
		OK(rdma_bind_addr(id, with_port(w, 0, &s)));
		ports[i] = port_of(id);
		TRUE(ports[i] >= low && ports[i] <= high);
		for (int j = 0; j < i; j++)
			TRUE(ports[j] != ports[i]);
	}
}

/* A port that is free on every address and in every port space. */
static uint16_t free_port(struct rdma_event_channel *ch)
{
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	OK(rdma_bind_addr(id, wildcard(AF_INET, 0, &s)));
	uint16_t port = port_of(id);
	OK(rdma_destroy_id(id));
	return port;
}

static void privileged_port(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r");
	int start = 1024;
	if (f && fscanf(f, "%d", &start) != 1)
		start = 1024;
	if (geteuid() == 0 || start <= 602)
		OK(rdma_bind_addr(id, with_port(w, 602, &s)));
	else
		FAILS(rdma_bind_addr(id, with_port(w, 602, &s)), EACCES);
	OK(rdma_destroy_id(id));
}

/* The address that an id is bound to: the wildcard of a family, the loopback address, or an interface's. */
enum { ANY4 = 1, ANY6, LO4, LO6, IF4, IF6 };
enum { REUSE = 1, AFONLY = 2, LISTENS = 4 };

static struct sockaddr *place(int what, uint16_t port, struct sockaddr_storage *s)
{
	if (what == IF4 || what == IF6)
		return with_port(interface_address(what == IF4 ? AF_INET : AF_INET6), port, s);
	wildcard(what == ANY6 || what == LO6 ? AF_INET6 : AF_INET, port, s);
	if (what == LO4)
		((struct sockaddr_in *)s)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (what == LO6)
		((struct sockaddr_in6 *)s)->sin6_addr = in6addr_loopback;
	return (struct sockaddr *)s;
}

static struct rdma_cm_id *with_options(struct rdma_event_channel *ch, int options)
{
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	int one = 1;
	if (options & REUSE)
		OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
	if (options & AFONLY)
		OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)));
	return id;
}

/*
 * The first is bound (and listens, if so marked), then the second. As Linux has it (cma_check_port), the wildcard beside
 * anything is EADDRNOTAVAIL, and loopback addresses count as wildcards; an address beside itself is EADDRINUSE; REUSEADDR
 * counts if both have it, and not for listening.
 */
static const struct in_use {
	int first, first_options, second, second_options;
	int bind_error, listen_error;
} in_use_table[] = {
	{ IF4, 0, IF4, 0, EADDRINUSE, 0 },
	{ IF4, LISTENS, IF4, 0, EADDRINUSE, 0 },
	{ IF6, 0, IF6, 0, EADDRINUSE, 0 },
	{ IF4, 0, IF6, 0, 0, 0 },
	{ IF4, LISTENS, IF6, 0, 0, 0 },
	{ IF4, 0, LO4, 0, EADDRNOTAVAIL, 0 },
	{ LO4, 0, IF4, 0, EADDRNOTAVAIL, 0 },
	{ LO4, 0, LO4, 0, EADDRNOTAVAIL, 0 },
	{ LO4, 0, LO6, 0, EADDRNOTAVAIL, 0 },
	{ LO4, AFONLY, LO6, AFONLY, 0, 0 },
	{ ANY4, 0, ANY4, 0, EADDRNOTAVAIL, 0 },
	{ ANY4, LISTENS, ANY4, 0, EADDRNOTAVAIL, 0 },
	{ ANY4, 0, IF4, 0, EADDRNOTAVAIL, 0 },
	{ IF4, 0, ANY4, 0, EADDRNOTAVAIL, 0 },
	{ IF4, LISTENS, ANY4, 0, EADDRNOTAVAIL, 0 },
	{ ANY4, 0, LO4, 0, EADDRNOTAVAIL, 0 },
	{ LO4, LISTENS, ANY4, 0, EADDRNOTAVAIL, 0 },
	{ ANY4, 0, ANY6, 0, EADDRNOTAVAIL, 0 },
	{ ANY6, 0, ANY4, 0, EADDRNOTAVAIL, 0 },
	{ ANY6, 0, IF4, 0, EADDRNOTAVAIL, 0 },
	{ ANY4, 0, IF6, 0, EADDRNOTAVAIL, 0 },
	/* An id that is bound to IPv4 is AFONLY of itself (rdma_bind_addr), so the IPv6 side decides. */
	{ ANY6, AFONLY, ANY4, 0, 0, 0 },
	{ ANY6, 0, ANY4, AFONLY, EADDRNOTAVAIL, 0 },
	{ ANY4, 0, ANY6, AFONLY, 0, 0 },
	{ ANY6, AFONLY, LO4, 0, 0, 0 },
	{ ANY6, AFONLY | LISTENS, ANY4, 0, 0, 0 },
	{ ANY6, AFONLY, ANY4, AFONLY, 0, 0 },
	{ ANY6, AFONLY | LISTENS, ANY4, AFONLY, 0, 0 },
	{ ANY6, AFONLY, IF4, AFONLY, 0, 0 },
	{ ANY6, AFONLY, IF6, AFONLY, EADDRNOTAVAIL, 0 },
	{ ANY6, AFONLY, ANY6, AFONLY, EADDRNOTAVAIL, 0 },
	{ IF4, REUSE, IF4, 0, EADDRINUSE, 0 },
	{ IF4, 0, IF4, REUSE, EADDRINUSE, 0 },
	{ IF4, REUSE, IF4, REUSE, 0, EADDRINUSE },
	{ IF4, REUSE | LISTENS, IF4, REUSE, EADDRINUSE, 0 },
	{ ANY4, REUSE, IF4, REUSE, 0, EADDRNOTAVAIL },
	{ ANY4, REUSE, ANY4, REUSE, 0, EADDRNOTAVAIL },
	{ ANY4, REUSE | LISTENS, IF4, REUSE, EADDRNOTAVAIL, 0 },
	{ IF4, REUSE, IF6, REUSE, 0, 0 },
	{ 0 },
};

/* The machine has the addresses that the row is about. */
static bool possible(const struct in_use *row)
{
	for (int what = IF4; what <= IF6; what++)
		if ((row->first == what || row->second == what) && !interface_address(what == IF4 ? AF_INET : AF_INET6))
			return false;
	return true;
}

static const char *said(const struct in_use *row)
{
	static const char *const names[] = { "", "0.0.0.0", "[::]", "127.0.0.1", "[::1]", "IPv4", "IPv6" };
	static char text[128];
	int f = row->first_options, s = row->second_options;
	snprintf(text, sizeof(text), "%s%s%s%s, then %s%s%s", names[row->first], f & REUSE ? " reuse" : "",
		f & AFONLY ? " afonly" : "", f & LISTENS ? " listening" : "", names[row->second], s & REUSE ? " reuse" : "",
		s & AFONLY ? " afonly" : "");
	return text;
}

static void check_row(const struct in_use *row, const char *what, int ret, int want)
{
	int err = ret ? errno : 0;
	if (err != want)
		FAIL("%s: %s: expected %s, got %s", said(row), what, want ? strerrorname_np(want) : "success",
			err ? strerrorname_np(err) : "success");
}

/* The second binds and listens. */
static void second(const struct in_use *row, uint16_t port)
{
	struct sockaddr_storage s;
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = with_options(ch, row->second_options);
	check_row(row, "bind", rdma_bind_addr(id, place(row->second, port, &s)), row->bind_error);
	if (!row->bind_error)
		check_row(row, "listen", rdma_listen(id, 1), row->listen_error);
	OK(rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static void first(const struct in_use *row, struct rdma_event_channel *ch, uint16_t port)
{
	struct sockaddr_storage s;
	struct rdma_cm_id *id = with_options(ch, row->first_options);
	check_row(row, "the first's bind", rdma_bind_addr(id, place(row->first, port, &s)), 0);
	if (row->first_options & LISTENS)
		check_row(row, "the first's listen", rdma_listen(id, 1), 0);
}

static void in_use_in_a_process(const struct where *w)
{
	(void)w;
	for (const struct in_use *row = in_use_table; row->first; row++) {
		if (!possible(row))
			continue;
		struct rdma_event_channel *ch = channel();
		uint16_t port = free_port(ch);
		first(row, ch, port);
		second(row, port);
	}
}

/* Both cases with the first in another process; when that is killed, the second may. */
static void in_use_between_processes(const struct where *w)
{
	(void)w;
	for (const struct in_use *row = in_use_table; row->first; row++) {
		if (!possible(row))
			continue;
		int pipes[2];
		uint16_t port;
		OK(pipe(pipes));
		pid_t child = fork();
		if (child == 0) {
			struct rdma_event_channel *ch = channel();
			port = free_port(ch);
			first(row, ch, port);
			if (write(pipes[1], &port, sizeof(port)) < 0)
				_exit(1);
			pause();
		}
		close(pipes[1]);
		if (read(pipes[0], &port, sizeof(port)) != sizeof(port))
			FAIL("%s: the first has ended", said(row));
		/* In a child of its own as well: a process that forks must not have used the library before. */
		pid_t other = fork();
		if (other == 0) {
			second(row, port);
			_exit(0);
		}
		int status;
		waitpid(other, &status, 0);
		if (status)
			_exit(1);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		close(pipes[0]);
		other = fork();
		if (other == 0) {
			/* No other process is there any more. */
			struct in_use alone = *row;
			alone.bind_error = alone.listen_error = 0;
			for (int i = 0;; i++) {
				struct sockaddr_storage s;
				struct rdma_event_channel *ch = channel();
				struct rdma_cm_id *id = with_options(ch, row->second_options);
				/* The kernel frees the resources of a process when it reaps it, which may be a moment later. */
				if (rdma_bind_addr(id, place(row->second, port, &s)) && i < 50) {
					usleep(20000);
					continue;
				}
				rdma_destroy_id(id);
				second(&alone, port);
				_exit(0);
			}
		}
		waitpid(other, &status, 0);
		if (status)
			_exit(1);
	}
}

/* Claims in another port space do not count. */
static void port_spaces_are_apart(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	uint16_t port = free_port(ch);
	OK(rdma_bind_addr(new_id(ch, RDMA_PS_TCP), with_port(w, port, &s)));
	OK(rdma_bind_addr(new_id(ch, RDMA_PS_UDP), with_port(w, port, &s)));
	FAILS(rdma_bind_addr(new_id(ch, RDMA_PS_UDP), with_port(w, port, &s)), in_use(w));
}

static void port_is_free_again(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	uint16_t port = free_port(ch);
	for (int i = 0; i < 20; i++) {
		struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
		OK(rdma_bind_addr(id, with_port(w, port, &s)));
		OK(rdma_listen(id, 1));
		OK(rdma_destroy_id(id));
	}
}

/* Listening without an address: an ephemeral port on the IPv4 wildcard. */
static void listen_unbound(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	(void)w;
	OK(rdma_listen(id, 0));
	TRUE(port_of(id) != 0);
	IS(rdma_get_local_addr(id)->sa_family, AF_INET);
	OK(rdma_destroy_id(id));
}

/* The client's ports are ports like others. */
static void resolved_ports_are_taken(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct sockaddr_storage s;
	struct rdma_cm_id *id = routed(ch, w, RDMA_PS_TCP, 7471);
	FAILS(rdma_bind_addr(new_id(ch, RDMA_PS_TCP), with_port(w, port_of(id), &s)), in_use(w));
}

static void set_option(const struct where *w)
{
	struct rdma_event_channel *ch = channel();
	struct rdma_cm_id *id = new_id(ch, RDMA_PS_TCP);
	struct sockaddr_storage s;
	uint8_t byte = 16;
	int one = 1;
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, sizeof(byte)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, sizeof(byte)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)));
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof(one)), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &one, sizeof(one)), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, sizeof(byte)), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &byte, sizeof(byte)), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &one, sizeof(one)), ENOSYS);
	FAILS(rdma_set_option(id, 99, 0, &one, sizeof(one)), ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, 99, &one, sizeof(one)), ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one, sizeof(one)), EINVAL);
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)));
	OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)));
	OK(rdma_listen(id, 1));
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)), EINVAL);
	OK(rdma_destroy_id(id));
	/* Only connections have acknowledgements. */
	id = new_id(ch, RDMA_PS_UDP);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, sizeof(byte)), EINVAL);
	OK(rdma_destroy_id(id));
}

const struct test bind_tests[] = {
	{ "bind_refuses", bind_refuses, true, 0 },
	{ "bind_a_foreign_address", bind_a_foreign_address, false, 0 },
	{ "bind_link_local_without_scope", bind_link_local_without_scope, false, 0 },
	{ "bind_an_address_gives_the_device", bind_an_address_gives_the_device, true, 0 },
	{ "bind_the_wildcard_gives_no_device", bind_the_wildcard_gives_no_device, true, 0 },
	{ "ephemeral_ports", ephemeral_ports, true, 0 },
	{ "privileged_port", privileged_port, true, 0 },
	{ "in_use_in_a_process", in_use_in_a_process, false, 0 },
	{ "in_use_between_processes", in_use_between_processes, false, 60 },
	{ "port_spaces_are_apart", port_spaces_are_apart, true, 0 },
	{ "port_is_free_again", port_is_free_again, true, 0 },
	{ "listen_unbound", listen_unbound, false, 0 },
	{ "resolved_ports_are_taken", resolved_ports_are_taken, true, 0 },
	{ "set_option", set_option, true, 0 },
	{ 0 },
};
