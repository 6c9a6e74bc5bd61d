#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

/* The pipe to which a case's process writes the reason of a failure. */
static int verdict = 2;

enum { FAILED = 1, SKIPPED = 77 };

void fail_at(const char *file, int line, const char *format, ...)
{
	char text[1024];
	const char *base = strrchr(file, '/');
	int n = snprintf(text, sizeof(text), "%s:%d: ", base ? base + 1 : file, line);
	va_list args;
	va_start(args, format);
	vsnprintf(text + n, sizeof(text) - n, format, args);
	va_end(args);
	ssize_t ignored = write(verdict, text, strlen(text));
	(void)ignored;
	_exit(FAILED);
}

void skip(const char *why)
{
	ssize_t ignored = write(verdict, why, strlen(why));
	(void)ignored;
	_exit(SKIPPED);
}

void check_number(const char *file, int line, const char *what, long long got, long long want)
{
	if (got != want)
		fail_at(file, line, "%s: expected %lld (%#llx), got %lld (%#llx)", what, want, want, got, got);
}

static const char *error_name(int err)
{
	const char *name = err ? strerrorname_np(err) : "success";
	return name ? name : "?";
}

void check_errno(const char *file, int line, const char *what, int ret, int err, int want)
{
	if (want ? ret == -1 && err == want : ret == 0)
		return;
	if (ret == -1)
		fail_at(file, line, "%s: expected %s, got %s", what, error_name(want), error_name(err));
	fail_at(file, line, "%s: expected %s, got a return value of %d", what, error_name(want), ret);
}

long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	if (!dir)
		return -1;
	while (readdir(dir))
		n++;
	closedir(dir);
	/* ".", ".." and the folder itself. */
	return n - 3;
}

static void copy_data(struct event *e, const void *data, int len)
{
	e->len = len;
	if (data && len)
		memcpy(e->data, data, len);
}

bool next_event(struct rdma_event_channel *ch, int ms, struct event *e)
{
	struct pollfd p = { .fd = ch->fd, .events = POLLIN };
	struct rdma_cm_event *got;
	int n = poll(&p, 1, ms);
	if (n < 0)
		FAIL("poll: %s", strerror(errno));
	if (n == 0)
		return false;
	OK(rdma_get_cm_event(ch, &got));
	memset(e, 0, sizeof(*e));
	e->type = got->event;
	e->status = got->status;
	e->id = got->id;
	e->listen_id = got->listen_id;
	e->conn = got->param.conn;
	e->ud = got->param.ud;
	if (got->event == RDMA_CM_EVENT_MULTICAST_JOIN || got->event == RDMA_CM_EVENT_MULTICAST_ERROR)
		; /* The context stands in the place of the data. */
	else if (got->id->qp_type == IBV_QPT_UD)
		copy_data(e, got->param.ud.private_data, got->param.ud.private_data_len);
	else
		copy_data(e, got->param.conn.private_data, got->param.conn.private_data_len);
	OK(rdma_ack_cm_event(got));
	return true;
}

struct event expect_at(const char *file, int line, struct rdma_event_channel *ch, enum rdma_cm_event_type type, int status)
{
	struct event e;
	if (!next_event(ch, PATIENCE, &e))
		fail_at(file, line, "expected %s, got no event", rdma_event_str(type));
	if (e.type != type || e.status != status)
		fail_at(file, line, "expected %s status %d, got %s status %d", rdma_event_str(type), status,
			rdma_event_str(e.type), e.status);
	return e;
}

void quiet_at(const char *file, int line, struct rdma_event_channel *ch)
{
	struct event e;
	if (next_event(ch, 100, &e))
		fail_at(file, line, "expected no event, got %s status %d", rdma_event_str(e.type), e.status);
}

struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	if (!ch)
		FAIL("rdma_create_event_channel: %s", strerror(errno));
	return ch;
}

struct rdma_cm_id *new_id(struct rdma_event_channel *ch, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	OK(rdma_create_id(ch, &id, (void *)0x1234, ps));
	return id;
}

struct sockaddr *with_port(const struct where *w, uint16_t port, struct sockaddr_storage *s)
{
	*s = w->addr.storage;
	/* The port lies at the same place in both. */
	((struct sockaddr_in *)s)->sin_port = htons(port);
	return (struct sockaddr *)s;
}

struct sockaddr *wildcard(int family, uint16_t port, struct sockaddr_storage *s)
{
	memset(s, 0, sizeof(*s));
	s->ss_family = family;
	((struct sockaddr_in *)s)->sin_port = htons(port);
	return (struct sockaddr *)s;
}

uint16_t port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

struct rdma_cm_id *listener(struct rdma_event_channel *ch, const struct where *w, enum rdma_port_space ps, int backlog)
{
	struct sockaddr_storage s;
	struct rdma_cm_id *id = new_id(ch, ps);
	OK(rdma_bind_addr(id, with_port(w, 0, &s)));
	OK(rdma_listen(id, backlog));
	TRUE(port_of(id) != 0);
	return id;
}

void resolve(struct rdma_cm_id *id, const struct where *w, uint16_t port)
{
	struct sockaddr_storage s;
	OK(rdma_resolve_addr(id, NULL, with_port(w, port, &s), 2000));
	struct event e = EXPECT(id->channel, ADDR_RESOLVED, 0);
	TRUE(e.id == id);
	OK(rdma_resolve_route(id, 2000));
	e = EXPECT(id->channel, ROUTE_RESOLVED, 0);
	TRUE(e.id == id);
}

struct rdma_cm_id *routed(struct rdma_event_channel *ch, const struct where *w, enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = new_id(ch, ps);
	resolve(id, w, port);
	return id;
}

void queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};
	OK(rdma_create_qp(id, NULL, &attr));
}

struct rdma_conn_param parameters(const void *data, int len)
{
	return (struct rdma_conn_param){
		.private_data = data,
		.private_data_len = len,
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

struct pair requested(const struct where *w, enum rdma_port_space ps, const void *data, int len, struct event *request)
{
	struct pair p = { .server_ch = channel(), .client_ch = channel() };
	struct rdma_conn_param param = parameters(data, len);
	p.listen = listener(p.server_ch, w, ps, 8);
	p.client = routed(p.client_ch, w, ps, port_of(p.listen));
	queue_pair(p.client);
	OK(rdma_connect(p.client, &param));
	*request = EXPECT(p.server_ch, CONNECT_REQUEST, 0);
	TRUE(request->listen_id == p.listen);
	TRUE(request->id != p.listen);
	p.server = request->id;
	return p;
}

struct pair connected(const struct where *w)
{
	struct event e;
	struct pair p = requested(w, RDMA_PS_TCP, NULL, 0, &e);
	struct rdma_conn_param param = parameters(NULL, 0);
	queue_pair(p.server);
	OK(rdma_accept(p.server, &param));
	e = EXPECT(p.client_ch, ESTABLISHED, 0);
	TRUE(e.id == p.client);
	e = EXPECT(p.server_ch, ESTABLISHED, 0);
	TRUE(e.id == p.server);
	return p;
}

void disconnected(struct pair *p)
{
	OK(rdma_disconnect(p->client));
	struct event e = EXPECT(p->server_ch, DISCONNECTED, 0);
	TRUE(e.id == p->server);
	OK(rdma_disconnect(p->server));
	e = EXPECT(p->client_ch, DISCONNECTED, 0);
	TRUE(e.id == p->client);
}

void destroyed(struct pair *p)
{
	struct rdma_cm_id *ids[] = { p->client, p->server, p->listen };
	for (int i = 0; i < 3; i++) {
		if (!ids[i])
			continue;
		if (ids[i]->qp)
			rdma_destroy_qp(ids[i]);
		OK(rdma_destroy_id(ids[i]));
	}
	rdma_destroy_event_channel(p->client_ch);
	rdma_destroy_event_channel(p->server_ch);
}

void pattern(uint8_t *to, int len, int seed)
{
	for (int i = 0; i < len; i++)
		to[i] = 1 + (i * 7 + seed) % 255;
}

void check_pattern_at(const char *file, int line, const struct event *e, int len, int seed, int want_len)
{
	uint8_t want[256] = { 0 };
	pattern(want, len, seed);
	if (e->len != want_len)
		fail_at(file, line, "private data of %s: expected a length of %d, got %d", rdma_event_str(e->type), want_len,
			e->len);
	for (int i = 0; i < e->len; i++)
		if (e->data[i] != want[i])
			fail_at(file, line, "private data of %s, byte %d: expected %#x, got %#x", rdma_event_str(e->type), i,
				want[i], e->data[i]);
}

static void one_way(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static uint8_t out[256], in[256];
	struct ibv_wc wc;
	struct ibv_mr *out_mr = rdma_reg_msgs(from, out, sizeof(out)), *in_mr = rdma_reg_msgs(to, in, sizeof(in));
	TRUE(out_mr && in_mr);
	pattern(out, sizeof(out), 3);
	memset(in, 0, sizeof(in));
	OK(rdma_post_recv(to, (void *)7, in, sizeof(in), in_mr));
	OK(rdma_post_send(from, (void *)8, out, sizeof(out), out_mr, 0));
	IS(rdma_get_send_comp(from, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.wr_id, 8);
	IS(rdma_get_recv_comp(to, &wc), 1);
	IS(wc.status, IBV_WC_SUCCESS);
	IS(wc.wr_id, 7);
	IS(wc.byte_len, sizeof(in));
	IS(memcmp(in, out, sizeof(in)), 0);
	OK(rdma_dereg_mr(out_mr));
	OK(rdma_dereg_mr(in_mr));
}

void traffic(struct rdma_cm_id *a, struct rdma_cm_id *b)
{
	one_way(a, b);
	one_way(b, a);
}

/* Run the case and print its outcome; true unless it failed. */
static bool run(const struct test *t, const struct where *w)
{
	char name[160], text[1100] = "";
	int pipes[2], status = 0;
	snprintf(name, sizeof(name), t->each ? "%s@%s" : "%s", t->name, w->text);
	if (pipe(pipes))
		exit(2);
	fflush(stdout);
	long long begun = now_ms();
	pid_t child = fork();
	if (child == 0) {
		close(pipes[0]);
		verdict = pipes[1];
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		t->run(w);
		_exit(0);
	}
	close(pipes[1]);
	struct pollfd p = { .fd = pipes[0], .events = POLLIN };
	/* A verdict, or the end of every process that could give one. */
	bool ended = poll(&p, 1, 1000 * (t->limit ? t->limit : 30)) == 1;
	if (ended) {
		ssize_t n = read(pipes[0], text, sizeof(text) - 1);
		text[n > 0 ? n : 0] = 0;
	} else {
		if (getenv("CMTEST_STACKS")) {
			char command[160];
			snprintf(command, sizeof(command), "gdb -batch -nx -p %d -ex 'thread apply all bt 20' 2>/dev/null >&2", child);
			if (system(command)) {
			}
		}
		kill(-child, SIGKILL);
	}
	close(pipes[0]);
	waitpid(child, &status, 0);
	kill(-child, SIGKILL);
	if (!ended)
		printf("not ok %s: hung and was killed\n", name);
	else if (WIFSIGNALED(status))
		printf("not ok %s: killed by signal %d %s\n", name, WTERMSIG(status), text);
	else if (WEXITSTATUS(status) == SKIPPED)
		printf("skip %s: %s\n", name, text);
	else if (WEXITSTATUS(status))
		printf("not ok %s: %s\n", name, text);
	else
		printf("ok %s\n", name);
	if (getenv("CMTEST_TIMES"))
		printf("# %lld ms\n", now_ms() - begun);
	return ended && !WIFSIGNALED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == SKIPPED);
}

static bool address(const char *text, struct where *w)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
	if (getaddrinfo(text, NULL, &hints, &found))
		return false;
	memset(w, 0, sizeof(*w));
	w->text = strdup(text);
	memcpy(&w->addr, found->ai_addr, found->ai_addrlen);
	w->len = found->ai_addrlen;
	freeaddrinfo(found);
	return true;
}

enum { MAX_WHERE = 8 };

/* Both loopback addresses, and the first of each kind that an interface has. */
static int defaults(struct where *all)
{
	struct ifaddrs *list, *i;
	bool have[3] = { false };
	int n = address("127.0.0.1", &all[0]) + address("::1", &all[1]);
	if (getifaddrs(&list))
		return n;
	for (i = list; i; i = i->ifa_next) {
		char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
		if (!i->ifa_addr || (i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP))
			continue;
		int family = i->ifa_addr->sa_family;
		if (family != AF_INET && family != AF_INET6)
			continue;
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)i->ifa_addr;
		int kind = family == AF_INET ? 0 : IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ? 2 : 1;
		if (have[kind] || n == MAX_WHERE)
			continue;
		socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
		if (getnameinfo(i->ifa_addr, len, text, sizeof(text), NULL, 0, NI_NUMERICHOST))
			continue;
		have[kind] = address(text, &all[n]);
		n += have[kind];
	}
	freeifaddrs(list);
	return n;
}

static struct where all[MAX_WHERE];
static int places;

bool is_loopback(const struct where *w)
{
	return w->addr.sa.sa_family == AF_INET ? ntohl(w->addr.in.sin_addr.s_addr) >> 24 == 127 :
						 IN6_IS_ADDR_LOOPBACK(&w->addr.in6.sin6_addr);
}

int in_use(const struct where *w)
{
	return is_loopback(w) ? EADDRNOTAVAIL : EADDRINUSE;
}

const struct where *interface_address(int family)
{
	for (int i = 0; i < places; i++)
		if (all[i].addr.sa.sa_family == family && !is_loopback(&all[i]))
			return &all[i];
	return NULL;
}

static const struct test *const tables[] = { address_tests, bind_tests, connect_tests, reject_tests, datagram_tests,
	endpoint_tests, channel_tests, hard_tests, queue_tests, multicast_tests, process_tests };

int main(int argc, char **argv)
{
	int opt, failed = 0;
	bool list = false;
	while ((opt = getopt(argc, argv, "a:l")) != -1) {
		if (opt == 'l') {
			list = true;
		} else if (opt == 'a' && places < MAX_WHERE && address(optarg, &all[places])) {
			places++;
		} else {
			fprintf(stderr, "usage: cmtest [-l] [-a ADDRESS]... [PART-OF-A-NAME]...\n");
			return 2;
		}
	}
	if (!places)
		places = defaults(all);
	for (size_t k = 0; k < sizeof(tables) / sizeof(tables[0]); k++) {
		for (const struct test *t = tables[k]; t->name; t++) {
			for (int i = 0; i < (t->each ? places : 1); i++) {
				char name[160];
				bool wanted = optind == argc;
				snprintf(name, sizeof(name), t->each ? "%s@%s" : "%s", t->name, all[i].text);
				for (int a = optind; a < argc; a++)
					wanted |= strstr(name, argv[a]) != NULL;
				if (!wanted)
					continue;
				if (list)
					puts(name);
				else
					failed += !run(t, &all[i]);
			}
		}
	}
	return failed ? 1 : 0;
}
