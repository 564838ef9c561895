/*
 * pdload: the load of the benchmarks.  Keeps N connections busy with one request body, checks that
 * each answer is a complete 200, counts what came and what CPU a set of processes took meanwhile,
 * and prints one line of JSON.  One thread; its own CPU is in no figure.
 *
 * It is no general HTTP client: it reads what pdsim and the proxies beside us write.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/load_tls.h"

#define HEAD_MAX 4096 /* of an answer */
#define TAIL 16       /* last bytes of an answer's body, to see how it ended */
#define PIDS_MAX 64
#define SILENCE_MS 20000      /* nothing at all for that long: something hangs */
#define FREEZE_MS 40          /* for an engine to write some thousand events */
#define BETWEEN_BURSTS_MS 250 /* for the proxy to see the connections of one burst close */
#define SETTLE_NS 300000000   /* from the last stream's first event to the window of a paced run */

enum body_part {
	B_HEAD,
	B_LENGTH,
	B_SIZE,
	B_SIZE_LF,
	B_DATA,
	B_DATA_CR,
	B_DATA_LF,
	B_TRAILER,
	B_END
};

struct conn {
	int fd;
	struct ssl_st *tls; /* NULL: plain */
	bool busy;
	bool wants_out;
	size_t sent; /* of the request */
	uint64_t t_start_ns;
	enum body_part part;
	uint64_t left; /* of the body or chunk */
	char head[HEAD_MAX];
	size_t head_len;
	bool line_empty; /* of the trailer */
	bool sse;
	char tail[TAIL];
	size_t tail_len;
	uint64_t events;
	char prev; /* the payload's last byte: an event ends with an empty line */
};

static struct options {
	uint16_t port, step_port;
	const char *path, *body_file;
	const char *key; /* sent as a bearer token; NULL: none */
	unsigned conns, rate, step_size;
	uint64_t requests, warm, steps, events, bursts, shakes;
	double window;
	bool hold, freeze, tls, resume;
	pid_t pids[PIDS_MAX];
	size_t npids;
} opt = {.path = "/v1/chat/completions", .conns = 1, .requests = 1, .step_size = 1};

static struct run {
	int ep;
	struct conn *conns;
	char *request;
	size_t request_len;
	uint64_t started, done, events, bytes;
	unsigned with_event; /* streams of which an event has come */
	uint64_t next_start_ns;
	bool counting, counted;
	uint64_t window_from_ns; /* 0: not known yet */
	struct count {
		uint64_t ns, cpu_ns, requests, events, bytes;
	} from, to;
	uint32_t *first_us, *whole_us, *step_us; /* of requests that ended in the window */
	uint64_t nfirst, nsteps;
	uint64_t step_at_ns;
	unsigned step_waits;
} run;

static void start(struct conn *c, uint64_t at_ns);

static _Noreturn void __attribute__((format(printf, 1, 2))) die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("pdload: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

static void *
get_mem(size_t n, size_t size)
{
	void *p = calloc(n + 1, size);

	if (p == NULL)
		die("out of memory");
	return p;
}

static uint64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- CPU of the proxy ---------------------------------------------------------------------------
 */

/* Nanoseconds on a CPU of all threads of a process; /proc/PID/stat only has hundredths of a second.
 */
static uint64_t
process_cpu_ns(pid_t pid)
{
	char dir[64], file[400];
	unsigned long long ns;
	uint64_t total = 0;
	struct dirent *e;
	FILE *f;
	DIR *d;

	snprintf(dir, sizeof(dir), "/proc/%d/task", (int)pid);
	d = opendir(dir);
	if (d == NULL)
		die("process %d has gone", (int)pid);
	while ((e = readdir(d)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s/schedstat", dir, e->d_name);
		f = fopen(file, "re");
		if (f == NULL || fscanf(f, "%llu", &ns) != 1)
			die("%s: no figure (CONFIG_SCHEDSTATS?)", file);
		fclose(f);
		total += ns;
	}
	closedir(d);
	return total;
}

static struct count
count_now(void)
{
	struct count n = {now_ns(), 0, run.done, run.events, run.bytes};

	for (size_t i = 0; i < opt.npids; i++)
		n.cpu_ns += process_cpu_ns(opt.pids[i]);
	return n;
}

static void
window_open(void)
{
	run.counting = true;
	run.from = count_now();
}

static void
window_close(void)
{
	run.counting = false;
	run.counted = true;
	run.to = count_now();
}

/* --- an answer ----------------------------------------------------------------------------------
 */

static void
event_came(struct conn *c)
{
	uint64_t now;

	run.events++;
	if (c->events++ == 0)
		run.with_event++;
	if (run.step_at_ns != 0) {
		if (run.step_waits == 0) /* beside other work: one of an earlier step comes late */
			return;
		now = now_ns();
		run.step_us[run.nsteps++] = (uint32_t)((now - run.step_at_ns) / 1000);
		run.step_waits--;
		return;
	}
	if (c->events == 1 && run.counting) {
		now = now_ns();
		run.first_us[run.nfirst++] = (uint32_t)((now - c->t_start_ns) / 1000);
	}
}

static void
payload(struct conn *c, const char *p, size_t n)
{
	size_t keep = n < TAIL ? n : TAIL,
	       old = c->tail_len < TAIL - keep ? c->tail_len : TAIL - keep;

	run.bytes += n;
	if (c->sse)
		for (size_t i = 0; i < n; i++) {
			if (p[i] == '\n' && c->prev == '\n') {
				event_came(c);
				c->prev = '\0';
			} else {
				c->prev = p[i];
			}
		}
	memmove(c->tail, c->tail + c->tail_len - old, old);
	memcpy(c->tail + old, p + n - keep, keep);
	c->tail_len = old + keep;
}

static bool
ends_with(const struct conn *c, const char *what)
{
	size_t n = strlen(what);

	return c->tail_len >= n && memcmp(c->tail + c->tail_len - n, what, n) == 0;
}

static void
answered(struct conn *c)
{
	uint64_t now = now_ns();

	if (c->sse ? !ends_with(c, "data: [DONE]\n\n") : !ends_with(c, "}"))
		die("an answer ended early: '%.*s'", (int)c->tail_len, c->tail);
	if (opt.events != 0 && c->events != opt.events)
		die("%llu events where %llu were due", (unsigned long long)c->events,
			(unsigned long long)opt.events);
	c->busy = false;
	if (run.counting && opt.window == 0)
		run.whole_us[run.done - run.from.requests] =
			(uint32_t)((now - c->t_start_ns) / 1000);
	run.done++;
	if (opt.window == 0 && run.done == opt.warm)
		window_open();
	if (opt.window == 0 && run.done == opt.warm + opt.requests)
		window_close();
	if (opt.rate == 0 && opt.bursts == 0)
		start(c, now);
}

static void
read_head(struct conn *c)
{
	const char *length;

	c->head[c->head_len] = '\0';
	if (strncmp(c->head, "HTTP/1.1 200 ", 13) != 0)
		die("answer: %.300s", c->head);
	c->sse = strcasestr(c->head, "\r\ncontent-type: text/event-stream") != NULL;
	length = strcasestr(c->head, "\r\ncontent-length:");
	if (length != NULL) {
		c->left = strtoull(length + 17, NULL, 10);
		c->part = c->left == 0 ? B_END : B_LENGTH;
	} else if (strcasestr(c->head, "\r\ntransfer-encoding: chunked") != NULL) {
		c->left = 0;
		c->part = B_SIZE;
	} else {
		die("an answer without framing: %.300s", c->head);
	}
}

static unsigned
hex(char ch)
{
	if (ch >= '0' && ch <= '9')
		return (unsigned)(ch - '0');
	ch |= 0x20;
	if (ch < 'a' || ch > 'f')
		die("chunk size: character %d", ch);
	return (unsigned)(ch - 'a') + 10;
}

static void
framing_byte(struct conn *c, char ch)
{
	switch (c->part) {
	case B_HEAD:
		if (c->head_len == HEAD_MAX - 1)
			die("an answer's head is too long");
		c->head[c->head_len++] = ch;
		if (ch == '\n' && c->head_len >= 4 &&
			memcmp(c->head + c->head_len - 4, "\r\n\r\n", 4) == 0)
			read_head(c);
		break;
	case B_SIZE:
		if (ch == '\r')
			c->part = B_SIZE_LF;
		else
			c->left = c->left * 16 + hex(ch);
		break;
	case B_SIZE_LF:
		c->part = c->left > 0 ? B_DATA : B_TRAILER;
		c->line_empty = true;
		break;
	case B_DATA_CR:
		if (ch != '\r')
			die("no CR after a chunk");
		c->part = B_DATA_LF;
		break;
	case B_DATA_LF:
		c->part = B_SIZE;
		break;
	case B_TRAILER:
		if (ch == '\n' && c->line_empty)
			c->part = B_END;
		else if (ch == '\n')
			c->line_empty = true;
		else if (ch != '\r')
			c->line_empty = false;
		break;
	case B_LENGTH:
	case B_DATA:
	case B_END:
		abort();
	}
}

static void
feed(struct conn *c, const char *p, size_t n)
{
	size_t at = 0, k;

	while (at < n) {
		if (!c->busy)
			die("bytes that nobody asked for: '%.*s'", (int)(n - at < 80 ? n - at : 80),
				p + at);
		if (c->part == B_LENGTH || c->part == B_DATA) {
			k = n - at < c->left ? n - at : (size_t)c->left;
			payload(c, p + at, k);
			at += k;
			c->left -= k;
			if (c->left == 0)
				c->part = c->part == B_DATA ? B_DATA_CR : B_END;
		} else {
			framing_byte(c, p[at++]);
		}
		if (c->part == B_END)
			answered(c);
	}
}

/* --- connections --------------------------------------------------------------------------------
 */

static int
dial(uint16_t port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd == -1 || connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == -1)
		die("port %u: %s", port, strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void
watch(struct conn *c, bool out)
{
	struct epoll_event ev = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};

	if (epoll_ctl(run.ep, EPOLL_CTL_MOD, c->fd, &ev) == -1)
		die("epoll_ctl: %s", strerror(errno));
	c->wants_out = out;
}

static struct ssl_st *
begin_tls(int fd)
{
	struct ssl_st *tls = load_tls_connect(fd);

	if (tls == NULL)
		die("port %u: no handshake", opt.port);
	return tls;
}

static void
conn_open(struct conn *c)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};

	c->fd = dial(opt.port);
	load_tls_free(c->tls);
	c->tls = opt.tls ? begin_tls(c->fd) : NULL;
	if (fcntl(c->fd, F_SETFL, O_NONBLOCK) == -1 ||
		epoll_ctl(run.ep, EPOLL_CTL_ADD, c->fd, &ev) == -1)
		die("a connection: %s", strerror(errno));
}

static void
send_some(struct conn *c)
{
	ssize_t n;

	while (c->sent < run.request_len) {
		const char *p = run.request + c->sent;
		const size_t left = run.request_len - c->sent;

		n = c->tls != NULL ? load_tls_send(c->tls, p, left)
				   : send(c->fd, p, left, MSG_NOSIGNAL);
		if (n == -1 && errno == EAGAIN)
			break;
		if (n == -1)
			die("send: %s", strerror(errno));
		c->sent += (size_t)n;
	}
	if (c->wants_out != (c->sent < run.request_len))
		watch(c, !c->wants_out);
}

/* Sends a request, if one is left to send. */
static void
start(struct conn *c, uint64_t at_ns)
{
	if (run.started == opt.warm + opt.requests)
		return;
	run.started++;
	c->busy = true;
	c->sent = c->head_len = c->tail_len = 0;
	c->part = B_HEAD;
	c->events = 0;
	c->prev = '\0';
	c->sse = false;
	c->t_start_ns = at_ns;
	send_some(c);
}

/* With a rate: requests start on time on whatever connection is free; one that must wait for it
 * counts from when it was due. */
static void
start_due(uint64_t now)
{
	unsigned i = 0;

	while (run.next_start_ns <= now) {
		while (i < opt.conns && run.conns[i].busy)
			i++;
		if (i == opt.conns)
			return;
		start(&run.conns[i], run.next_start_ns);
		run.next_start_ns += 1000000000u / opt.rate;
	}
}

/* Rounded down: within the last millisecond the load does not sleep, so that it starts a request when it is due. */
static int
ms_until_due(uint64_t now)
{
	return run.next_start_ns <= now ? 1 : (int)((run.next_start_ns - now) / 1000000);
}

static void
on_ready(const struct epoll_event *ev)
{
	static char buf[256 << 10];
	struct conn *c = ev->data.ptr;
	ssize_t n;

	if (ev->events & EPOLLOUT)
		send_some(c);
	if (!(ev->events & ~(uint32_t)EPOLLOUT))
		return;
	/* a record at a time, and none is read ahead: the socket stays readable for the others */
	n = c->tls != NULL ? load_tls_recv(c->tls, buf, sizeof(buf))
			   : recv(c->fd, buf, sizeof(buf), 0);
	if (n > 0) {
		feed(c, buf, (size_t)n);
		return;
	}
	if (n == -1 && errno == EAGAIN)
		return;
	if (c->busy)
		die("a connection broke in the middle of an answer: %s",
			n == 0 ? "closed" : strerror(errno));
	close(c->fd); /* kept open long enough by the proxy's own rules */
	conn_open(c);
}

/* --- the window of a paced run ------------------------------------------------------------------
 */

/* Opens it when all streams run, closes it after its time.  Returns ms to wait at most. */
static int
window_turn(uint64_t now)
{
	uint64_t end;

	if (run.with_event < opt.conns || run.counted)
		return 1000;
	if (run.window_from_ns == 0)
		run.window_from_ns = now + SETTLE_NS;
	if (now < run.window_from_ns)
		return 1 + (int)((run.window_from_ns - now) / 1000000);
	if (!run.counting)
		window_open();
	end = run.from.ns + (uint64_t)(opt.window * 1e9);
	if (now < end)
		return 1 + (int)((end - now) / 1000000);
	window_close();
	return 0;
}

/* Waits for what is ready, at most `ms`, and handles it; counts the silence.  Returns how many were. */
static int
turn(int ms)
{
	static uint64_t last_byte_ns;
	struct epoll_event ev[256];
	uint64_t now;
	int n = epoll_wait(run.ep, ev, 256, ms);

	if (n == -1 && errno != EINTR)
		die("epoll_wait: %s", strerror(errno));
	now = now_ns();
	if (n > 0 || last_byte_ns == 0)
		last_byte_ns = now;
	if (now - last_byte_ns > SILENCE_MS * 1000000ull)
		die("nothing came for %d s; %llu of %llu answers", SILENCE_MS / 1000,
			(unsigned long long)run.done,
			(unsigned long long)(opt.warm + opt.requests));
	for (int i = 0; i < n; i++)
		on_ready(&ev[i]);
	return n;
}

static void
run_requests(void)
{
	uint64_t now = now_ns();

	run.next_start_ns = now;
	for (unsigned i = 0; i < opt.conns && opt.rate == 0; i++)
		start(&run.conns[i], now);
	if (opt.window == 0 && opt.warm == 0)
		window_open();
	while (run.done < opt.warm + opt.requests) {
		int ms = 1000;

		now = now_ns();
		if (opt.rate != 0) {
			start_due(now);
			ms = ms_until_due(now);
		}
		if (opt.window != 0)
			ms = window_turn(now);
		(void)turn(ms);
	}
}

/* --- streams that stand still -------------------------------------------------------------------
 */

static void
wait_for_streams(void)
{
	uint64_t now = now_ns();

	for (unsigned i = 0; i < opt.conns; i++) {
		start(&run.conns[i], now);
		(void)turn(0);
	}
	while (run.with_event < opt.conns)
		(void)turn(1000);
}

/* Open streams until our standard input ends; whoever started us measures meanwhile. */
static void
hold(void)
{
	char c;

	wait_for_streams();
	printf("{\"held\":%u}\n", opt.conns);
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
}

/*
 * Lets paused streams (pdsim's /sim/pause_stream) emit a few events at a time, all at once.  `step_us` is
 * the time from our asking the engine to an event's arrival here.  With --freeze the proxy stands still
 * until the engine has written them all, so that each read finds all of its stream's events: what a
 * burst costs then hangs on the proxy alone and not on who got the CPU first.
 */
static void
step_ask(int fd)
{
	char ask[128], doc[32], buf[4096];
	int n;

	while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0) /* answers to earlier ones */
		;
	n = snprintf(doc, sizeof(doc), "{\"step\":%llu}", (unsigned long long)opt.step_size);
	n = snprintf(ask, sizeof(ask),
		"POST /sim/pause_stream HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n\r\n%s", n,
		doc);
	if (send(fd, ask, (size_t)n, MSG_NOSIGNAL) != n)
		die("the engine does not step");
}

static void
signal_proxy(int sig)
{
	for (size_t i = 0; i < opt.npids; i++)
		if (kill(opt.pids[i], sig) == -1)
			die("process %d: %s", (int)opt.pids[i], strerror(errno));
}

static void
step_once(int fd)
{
	struct count from, to;

	run.step_waits = opt.conns * opt.step_size;
	if (opt.freeze)
		signal_proxy(SIGSTOP);
	run.step_at_ns = now_ns();
	step_ask(fd);
	if (opt.freeze)
		(void)poll(NULL, 0, FREEZE_MS);
	from = count_now();
	if (opt.freeze)
		signal_proxy(SIGCONT);
	while (run.step_waits > 0)
		(void)turn(1000);
	run.step_at_ns = 0;
	to = count_now();
	run.to.ns += to.ns - from.ns;
	run.to.cpu_ns += to.cpu_ns - from.cpu_ns;
	run.to.events += to.events - from.events;
	run.to.bytes += to.bytes - from.bytes;
}

static void
step(void)
{
	int fd = dial(opt.step_port);

	for (unsigned i = 0; i < opt.conns; i++)
		start(&run.conns[i], now_ns());
	/* streams that are not there yet when a step is asked for miss it: until all have begun */
	while (run.with_event < opt.conns) {
		step_ask(fd);
		for (uint64_t until = now_ns() + 20000000; now_ns() < until;)
			(void)turn(5);
	}
	while (turn(50) > 0)
		;
	for (uint64_t i = 0; i < opt.steps; i++) {
		(void)turn(2);
		step_once(fd);
	}
	close(fd);
}

/* --- bursts of connections ----------------------------------------------------------------------
 */

/* A connection that is opened and carries one request; counts from connect(2) on. */
static void
burst_open(struct conn *c)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons(opt.port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
	const uint64_t at_ns = now_ns();

	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->fd == -1 ||
		(connect(c->fd, (struct sockaddr *)&sa, sizeof(sa)) == -1 &&
			errno != EINPROGRESS) ||
		epoll_ctl(run.ep, EPOLL_CTL_ADD, c->fd, &ev) == -1)
		die("port %u: %s", opt.port, strerror(errno));
	c->wants_out = false;
	start(c, at_ns);
}

static void
burst(void)
{
	for (uint64_t i = 0; i < opt.bursts; i++) {
		const uint64_t all = run.done + opt.conns;

		for (unsigned k = 0; k < opt.conns; k++)
			burst_open(&run.conns[k]);
		while (run.done < all)
			(void)turn(1000);
		for (unsigned k = 0; k < opt.conns; k++)
			close(run.conns[k].fd);
		(void)poll(NULL, 0, BETWEEN_BURSTS_MS);
	}
}

/* --- handshakes --------------------------------------------------------------------------------
 */

/* One after the other, each on a connection of its own that carries no request.  With --resume each resumes the
 * session of the one before; the first one is before the window. */
static void
shake(void)
{
	for (uint64_t i = 0; i <= opt.shakes; i++) {
		const int fd = dial(opt.port);

		if (i == 1)
			window_open();
		if (load_tls_end(begin_tls(fd), opt.resume) != (opt.resume && i > 0))
			die("handshake %llu: %s", (unsigned long long)i,
				opt.resume ? "not resumed" : "resumed");
		close(fd);
		run.done++;
	}
	window_close();
}

/* --- options, report ----------------------------------------------------------------------------
 */

static void
read_request(void)
{
	FILE *f = opt.body_file == NULL ? NULL : fopen(opt.body_file, "re");
	size_t n, cap = 64u << 20;
	char *body = get_mem(cap, 1);

	if (f == NULL)
		die("--body: %s", strerror(errno));
	n = fread(body, 1, cap, f);
	fclose(f);
	run.request = get_mem(n + 512, 1);
	run.request_len = (size_t)snprintf(run.request, 512,
		"POST %.200s HTTP/1.1\r\nHost: bench\r\nContent-Type: "
		"application/json\r\nContent-Length: %zu\r\n%s%s%s\r\n",
		opt.path, n, opt.key != NULL ? "Authorization: Bearer " : "",
		opt.key != NULL ? opt.key : "", opt.key != NULL ? "\r\n" : "");
	memcpy(run.request + run.request_len, body, n);
	run.request_len += n;
	free(body);
}

static void
raise_fd_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == -1)
		return;
	r.rlim_cur = r.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &r);
}

static int
by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void
print_times(const char *name, uint32_t *us, uint64_t n)
{
	if (n == 0)
		return;
	qsort(us, n, sizeof(*us), by_size);
	printf(",\"%s_us\":{\"p50\":%u,\"p90\":%u,\"p99\":%u,\"max\":%u}", name, us[n / 2],
		us[n * 9 / 10], us[n * 99 / 100], us[n - 1]);
}

static void
report(void)
{
	const struct count *a = &run.from, *b = &run.to;
	uint64_t requests = b->requests - a->requests;

	printf("{\"requests\":%llu,\"events\":%llu,\"bytes\":%llu,\"seconds\":%.6f,\"cpu_us\":%.1f",
		(unsigned long long)requests, (unsigned long long)(b->events - a->events),
		(unsigned long long)(b->bytes - a->bytes), (double)(b->ns - a->ns) / 1e9,
		(double)(b->cpu_ns - a->cpu_ns) / 1e3);
	print_times("first", run.first_us, run.nfirst);
	print_times("whole", run.whole_us, opt.window == 0 && opt.shakes == 0 ? requests : 0);
	print_times("step", run.step_us, run.nsteps);
	printf("}\n");
}

static void
take_pids(char *list)
{
	for (char *p = strtok(list, ","); p != NULL; p = strtok(NULL, ",")) {
		if (opt.npids == PIDS_MAX)
			die("--pids: at most %d", PIDS_MAX);
		opt.pids[opt.npids++] = (pid_t)atoi(p);
	}
}

static void
read_options(int argc, char **argv)
{
	/* clang-format off */
	static const struct option known[] = { { "port", 1, NULL, 'p' }, { "path", 1, NULL, 'u' },
		{ "body", 1, NULL, 'b' }, { "conns", 1, NULL, 'c' }, { "requests", 1, NULL, 'n' },
		{ "warm", 1, NULL, 'w' }, { "rate", 1, NULL, 'r' }, { "window", 1, NULL, 't' },
		{ "events", 1, NULL, 'e' }, { "pids", 1, NULL, 'P' }, { "hold", 0, NULL, 'H' },
		{ "step-port", 1, NULL, 's' }, { "steps", 1, NULL, 'S' },
		{ "step-size", 1, NULL, 'k' }, { "freeze", 0, NULL, 'f' }, { "bursts", 1, NULL, 'B' },
		{ "key", 1, NULL, 'K' }, { "tls", 0, NULL, 'T' }, { "shakes", 1, NULL, 'h' },
		{ "resume", 0, NULL, 'R' }, { NULL, 0, NULL, 0 } };
	int o;

	while ((o = getopt_long(argc, argv, "", known, NULL)) != -1)
		switch (o) {
		case 'p': opt.port = (uint16_t)atoi(optarg); break;
		case 'u': opt.path = optarg; break;
		case 'K': opt.key = optarg; break;
		case 'b': opt.body_file = optarg; break;
		case 'c': opt.conns = (unsigned)atoi(optarg); break;
		case 'n': opt.requests = strtoull(optarg, NULL, 10); break;
		case 'w': opt.warm = strtoull(optarg, NULL, 10); break;
		case 'r': opt.rate = (unsigned)atoi(optarg); break;
		case 't': opt.window = atof(optarg); break;
		case 'e': opt.events = strtoull(optarg, NULL, 10); break;
		case 'P': take_pids(optarg); break;
		case 'H': opt.hold = true; break;
		case 's': opt.step_port = (uint16_t)atoi(optarg); break;
		case 'S': opt.steps = strtoull(optarg, NULL, 10); break;
		case 'k': opt.step_size = (unsigned)atoi(optarg); break;
		case 'f': opt.freeze = true; break;
		case 'T': opt.tls = true; break;
		case 'h': opt.shakes = strtoull(optarg, NULL, 10); break;
		case 'R': opt.resume = true; break;
		case 'B': opt.bursts = strtoull(optarg, NULL, 10); break;
		default: exit(2);
		}
	/* clang-format on */
	if (opt.port == 0 || opt.conns == 0 || opt.requests == 0 || optind < argc)
		die("--port, --body, and --conns or --requests above 0 are needed; see "
		    "tests/bench/README.md");
	if (opt.hold || opt.step_port != 0 || opt.window != 0) { /* one stream a connection */
		opt.requests = opt.conns;
		opt.warm = 0;
	}
	if (opt.bursts != 0) {
		opt.requests = opt.conns * opt.bursts;
		opt.warm = 0;
	}
}

int
main(int argc, char **argv)
{
	uint64_t all;

	read_options(argc, argv);
	raise_fd_limit();
	signal(SIGPIPE, SIG_IGN);
	if (opt.shakes != 0) {
		shake();
		report();
		return 0;
	}
	read_request();
	all = opt.warm + opt.requests;
	run.first_us = get_mem(all, sizeof(*run.first_us));
	run.whole_us = get_mem(all, sizeof(*run.whole_us));
	run.step_us = get_mem(opt.steps * opt.conns * opt.step_size, sizeof(*run.step_us));
	run.conns = get_mem(opt.conns, sizeof(*run.conns));
	run.ep = epoll_create1(EPOLL_CLOEXEC);
	for (unsigned i = 0; i < opt.conns && opt.bursts == 0; i++)
		conn_open(&run.conns[i]);
	if (opt.hold) {
		hold();
		return 0;
	}
	if (opt.bursts != 0) {
		window_open();
		burst();
	} else if (opt.step_port != 0) {
		step();
	} else {
		run_requests();
	}
	report();
	return 0;
}
