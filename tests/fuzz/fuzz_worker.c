/*
 * A whole worker, from worker_main() on: the input is a script of what its clients and engines do.
 *
 * Byte 0 chooses the connector, byte 1 is a set of options (fleet.h, and those below).  Each step begins with byte
 * 0xff and a letter (the table `steps`); what follows, up to the next step, is its text.  A step is taken when
 * nothing is left to do for the worker.  The clock moves by steps alone.
 *
 * Held against it: what engines are sent is HTTP, and so is what clients are sent.  When the script is over and the
 * engines have gone, or are silent, each request ends within its time limits without its client's help.  Then nothing is
 * reserved, buffered, armed or queued, and the checker of the segment finds nothing.  A worker that drains then
 * ends, leaves nothing for the master to release, and has freed its memory.
 */
#include <errno.h>
#include <http_parser.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/check.h"
#include "shm/core/heritage.h"
#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/flags.h"
#include "shm/half_open.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/queue.h"
#include "shm/settings.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/fake_os.h"
#include "tests/fuzz/fleet.h"
#include "worker/worker.h"

#define BUILD 1
#define ME 0 /* the worker's slot */
#define STEP 0xff
#define CLIENTS 3
#define CONNS 64
#define OTHER_PORT FLEET_ENGINES /* what else listens where engines run: bootstrap servers */
#define LEAVE 64                 /* options: at the end clients close, */
#define SILENT 128               /* engines keep their connections, and say nothing */
#define IDLE_MS 300000           /* all limits are far shorter */
#define END_MS 60000

/* A connection of the worker to an engine. */
struct conn {
	int fd, engine;
	http_parser parser;
	unsigned asked, answered;
	uint64_t read;
	bool deaf; /* closes at the next request, or end, without reading it: a reset */
};

enum mode { ACCEPTS, REFUSES, FAILS, HANGS, MODES };
enum phase { SCRIPT, FINISH, DRAIN };

static struct {
	const uint8_t *at, *end;
	enum phase phase;
	unsigned options;
	uint64_t since_ms; /* of this phase */
	struct seg *seg;
	struct rcu_writer *writer;
	struct fleet *fleet;
	const char *kind;
	uint64_t version;
	bool no_heads;
	struct {
		int fd; /* -1: none */
		http_parser parser;
		bool stalled, opaque;
	} clients[CLIENTS];
	struct conn conns[CONNS];
	size_t nconns;
	struct conn *last; /* that the step before wrote to */
	enum mode modes[FLEET_ENGINES + 1];
} run;

static int listener, channel[2], watched, wake_fds[8];
static struct sockaddr_un door;
static socklen_t door_len;

/* --- what the worker writes -------------------------------------------------------------------- */

static int
on_asked(http_parser *p)
{
	struct conn *c = p->data;

	c->asked++;
	return 0;
}

static const http_parser_settings of_engines = {.on_message_complete = on_asked}, of_clients;

static void
show_and_abort(const char *who, const http_parser *p, const char *text, size_t n)
{
	(void)fprintf(stderr, "%s was sent what is no HTTP, %s:\n", who,
		http_errno_description(HTTP_PARSER_ERRNO(p)));
	(void)fwrite(text, 1, n, stderr);
	abort();
}

static void
conn_close(struct conn *c)
{
	struct conn *end = &run.conns[run.nconns];

	(void)close(c->fd);
	run.last = NULL;
	memmove(c, c + 1, (size_t)((char *)end - (char *)(c + 1)));
	run.nconns--;
	for (; c < end - 1; c++)
		c->parser.data = c;
}

static struct conn *
conn_of(int fd)
{
	for (size_t i = 0; i < run.nconns; i++)
		if (run.conns[i].fd == fd)
			return &run.conns[i];
	return NULL;
}

static void
read_conn(struct conn *c, char *buf, size_t size)
{
	ssize_t n;

	if (c->deaf) {
		conn_close(c);
		return;
	}
	n = read(c->fd, buf, size);
	if (n <= 0) {
		if (n == 0 || errno != EAGAIN)
			conn_close(c);
		return;
	}
	c->read += (uint64_t)n;
	if (http_parser_execute(&c->parser, &of_engines, buf, (size_t)n) != (size_t)n)
		show_and_abort("an engine", &c->parser, buf, (size_t)n);
}

static void
client_close(unsigned i)
{
	if (run.clients[i].fd != -1)
		(void)close(run.clients[i].fd);
	run.clients[i].fd = -1;
}

static void
read_client(unsigned i, char *buf, size_t size)
{
	const ssize_t n = read(run.clients[i].fd, buf, size);
	http_parser *p = &run.clients[i].parser;

	if (n <= 0) {
		if (n == 0 || errno != EAGAIN)
			client_close(i);
		return;
	}
	if (run.clients[i].opaque)
		return;
	if (http_parser_execute(p, &of_clients, buf, (size_t)n) == (size_t)n && !p->upgrade)
		return;
	if (!p->upgrade)
		show_and_abort("a client", p, buf, (size_t)n);
	run.clients[i].opaque = true;
}

/* Returns false if the worker has written nothing. */
static bool
read_all(void)
{
	static char buf[65536];
	struct epoll_event events[16];
	const int n = epoll_wait(watched, events, 16, 0);

	for (int i = 0; i < n; i++) {
		const int fd = events[i].data.fd;
		struct conn *c = conn_of(fd);

		if (c != NULL)
			read_conn(c, buf, sizeof(buf));
		for (unsigned k = 0; k < CLIENTS; k++)
			if (run.clients[k].fd == fd)
				read_client(k, buf, sizeof(buf));
	}
	return n > 0;
}

static void
watch(int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};

	if (epoll_ctl(watched, EPOLL_CTL_MOD, fd, &ev) == -1)
		CHECK(epoll_ctl(watched, EPOLL_CTL_ADD, fd, &ev) == 0);
}

/* --- the worker's side of the kernel ----------------------------------------------------------- */

static int
connects(uint16_t port, int fd)
{
	const unsigned engine = port >= FLEET_PORT && port < FLEET_PORT + FLEET_ENGINES
					? port - FLEET_PORT
					: OTHER_PORT;
	static const int errors[MODES] = {
		[REFUSES] = ECONNREFUSED, [FAILS] = EINPROGRESS, [HANGS] = EALREADY};
	struct conn *c = &run.conns[run.nconns];

	if (errors[run.modes[engine]] != EALREADY && run.nconns == CONNS)
		return ECONNREFUSED;
	if (run.modes[engine] != ACCEPTS && run.modes[engine] != HANGS)
		return errors[run.modes[engine]];
	if (run.nconns == CONNS)
		return ECONNREFUSED;
	memset(c, 0, sizeof(*c));
	c->fd = fd;
	c->engine = (int)engine;
	http_parser_init(&c->parser, HTTP_REQUEST);
	c->parser.data = c;
	run.nconns++;
	c->deaf = run.modes[engine] == HANGS;
	watch(fd, c->deaf ? 0 : EPOLLIN);
	return errors[run.modes[engine]];
}

static uint64_t
acknowledged(int fd)
{
	const struct conn *c = conn_of(fd);

	return c == NULL ? 0 : c->read;
}

/* --- steps ------------------------------------------------------------------------------------- */

static void
put(int fd, const uint8_t *text, size_t n)
{
	(void)send(fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool
client_says(unsigned i, const uint8_t *text, size_t n)
{
	int fd = run.clients[i].fd;

	if (fd == -1) {
		fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(fd >= 0);
		if (connect(fd, (struct sockaddr *)&door, door_len) == -1) {
			(void)close(fd); /* the backlog of a worker that accepts no more */
			return false;
		}
		run.clients[i].fd = fd;
		run.clients[i].stalled = false;
		run.clients[i].opaque = run.no_heads;
		http_parser_init(&run.clients[i].parser, HTTP_RESPONSE);
		watch(fd, EPOLLIN);
	}
	put(fd, text, n);
	return false;
}

static bool
client_0(const uint8_t *text, size_t n)
{
	return client_says(0, text, n);
}
static bool
client_1(const uint8_t *text, size_t n)
{
	return client_says(1, text, n);
}
static bool
client_2(const uint8_t *text, size_t n)
{
	return client_says(2, text, n);
}

static unsigned
digit(const uint8_t *text, size_t n, size_t i, unsigned below)
{
	return i < n ? text[i] % 16 % below : 0;
}

static bool
client_leaves(const uint8_t *text, size_t n)
{
	client_close(digit(text, n, 0, CLIENTS));
	return false;
}

static bool
client_half_closes(const uint8_t *text, size_t n)
{
	const int fd = run.clients[digit(text, n, 0, CLIENTS)].fd;

	if (fd != -1)
		(void)shutdown(fd, SHUT_WR);
	return false;
}

static bool
client_stalls(const uint8_t *text, size_t n)
{
	const unsigned i = digit(text, n, 0, CLIENTS);

	if (run.clients[i].fd == -1)
		return false;
	run.clients[i].stalled = !run.clients[i].stalled;
	watch(run.clients[i].fd, run.clients[i].stalled ? 0 : EPOLLIN);
	return false;
}

/* Of engines `from` to `to`: the first that waits for an answer, else the last. */
static bool
engine_answers(int from, int to, const uint8_t *text, size_t n)
{
	struct conn *found = NULL;

	for (size_t i = 0; i < run.nconns; i++) {
		struct conn *c = &run.conns[i];

		if (c->engine < from || c->engine > to)
			continue;
		found = c;
		if (c->answered < c->asked)
			break;
	}
	if (found == NULL)
		return false;
	found->answered += found->answered < found->asked;
	put(found->fd, text, n);
	run.last = found;
	return false;
}

static bool
prefill(const uint8_t *text, size_t n)
{
	return engine_answers(0, 1, text, n);
}
static bool
decode(const uint8_t *text, size_t n)
{
	return engine_answers(2, 3, text, n);
}
static bool
other(const uint8_t *text, size_t n)
{
	return engine_answers(OTHER_PORT, OTHER_PORT, text, n);
}

static bool
more(const uint8_t *text, size_t n)
{
	if (run.last != NULL)
		put(run.last->fd, text, n);
	return false;
}

static bool
engine_closes(const uint8_t *text, size_t n)
{
	(void)text;
	(void)n;
	if (run.last != NULL)
		conn_close(run.last);
	return false;
}

static bool
engine_half_closes(const uint8_t *text, size_t n)
{
	(void)text;
	(void)n;
	if (run.last != NULL)
		(void)shutdown(run.last->fd, SHUT_WR);
	return false;
}

static bool
engine_resets(const uint8_t *text, size_t n)
{
	(void)text;
	(void)n;
	if (run.last != NULL)
		run.last->deaf = true;
	return false;
}

static bool
set_mode(const uint8_t *text, size_t n)
{
	run.modes[digit(text, n, 0, FLEET_ENGINES + 1)] = digit(text, n, 1, MODES);
	return false;
}

static void
wake(uint32_t worker)
{
	const uint64_t one = 1;

	if (worker == ME)
		CHECK(write(wake_fds[ME], &one, sizeof(one)) == sizeof(one));
}

static bool
set_state(const uint8_t *text, size_t n)
{
	static const enum ep_state states[] = {EP_UP, EP_DOWN, EP_STARTING, EP_MISCONFIGURED};

	ep_state_set(run.seg, digit(text, n, 0, FLEET_ENGINES), states[digit(text, n, 1, 4)]);
	wake(queue_wake_after_change(run.seg, 0));
	return false;
}

static bool
publish(const uint8_t *text, size_t n)
{
	(void)text;
	(void)n;
	fleet_publish(run.fleet, run.seg, run.writer, ++run.version);
	settings_put(run.seg, &fleet_conf(run.fleet)->live);
	wake(queue_wake_after_change(run.seg, 0));
	return false;
}

/* One notice for each transfer that waits. */
static bool
notices(const uint8_t *text, size_t n)
{
	bool used;

	(void)text;
	(void)n;
	for (uint32_t i = 0; i < run.seg->hdr->flags_per_worker; i++) {
		const struct flag_slot *f = seg_flag(run.seg, ME, i);
		const struct flag_ref ref = {ME, i, f->word >> 16, f->nonce};

		if (flag_sound(run.seg, ME, i, &used) && used &&
			flag_notify(run.seg, &ref) == FLAG_READY_NOW)
			wake(ME);
	}
	return false;
}

static bool
time_passes(const uint8_t *text, size_t n)
{
	static const uint64_t ms[] = {1, 10, 100, 500, 1000, 2500, 6000, 20000};

	fake_os_advance(ms[digit(text, n, 0, 8)]);
	return true;
}

static bool
drain(const uint8_t *text, size_t n)
{
	(void)text;
	(void)n;
	put(channel[0], (const uint8_t[]){CH_DRAIN}, 1);
	return false;
}

static bool
quit(const uint8_t *text, size_t n)
{
	(void)text;
	(void)n;
	put(channel[0], (const uint8_t[]){CH_QUIT}, 1);
	return false;
}

/* Returns true if the clock has moved. */
typedef bool step_fn(const uint8_t *text, size_t n);
static step_fn *const steps[128] = {
	['0'] = client_0, /* a client's bytes; it connects first where it must */
	['1'] = client_1,
	['2'] = client_2,
	['c'] = client_leaves, /* the digit is its number, as below */
	['h'] = client_half_closes,
	['s'] = client_stalls, /* reads no more; again: reads on */
	['p'] = prefill,       /* the answer of a prefill engine, */
	['d'] = decode,        /* of a decode engine, */
	['o'] = other,         /* of what else is asked */
	['+'] = more,          /* from the engine that wrote last */
	['x'] = engine_closes,
	['y'] = engine_half_closes,
	['z'] = engine_resets, /* at the next request */
	['m'] = set_mode,      /* digits: engine, enum mode */
	['e'] = set_state,     /* digits: engine; up, down, starting, misconfigured */
	['r'] = publish,
	['n'] = notices,
	['t'] = time_passes, /* digit: how much */
	['D'] = drain,
	['Q'] = quit,
};

/* Returns true if the clock has moved. */
static bool
next_step(void)
{
	const uint8_t *text = run.at + 2, *next;
	step_fn *step;

	if (run.end - run.at < 2) {
		run.at = run.end;
		return false;
	}
	next = memchr(text, STEP, (size_t)(run.end - text));
	if (next == NULL)
		next = run.end;
	step = steps[run.at[1] % 128];
	run.at = next;
	return step != NULL && step(text, (size_t)(next - text));
}

/* --- the end ----------------------------------------------------------------------------------- */

static void
report(const char *line, void *arg)
{
	(void)arg;
	(void)fprintf(stderr, "%s\n", line);
}

static void
finish(void)
{
	for (unsigned i = 0; i < CLIENTS; i++) {
		if (run.options & LEAVE)
			client_close(i);
		else if (run.clients[i].fd != -1)
			watch(run.clients[i].fd, EPOLLIN);
	}
	while (!(run.options & SILENT) && run.nconns > 0)
		conn_close(&run.conns[0]);
	for (unsigned i = 0; i <= FLEET_ENGINES; i++)
		run.modes[i] = run.options & SILENT ? ACCEPTS : REFUSES;
	run.phase = FINISH;
	run.since_ms = fake_os_ms();
}

/* The gauges that say that a worker has something to do; G_N: none does. */
static enum metric_gauge
busy_gauge(void)
{
	static const enum metric_gauge gauges[] = {
		G_REQUESTS, G_OPEN_CONNS, G_UP_OPEN, G_FLAGS_ARMED, G_BUFFERED, G_SEND_QUEUE};

	for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
		if (seg_slab(run.seg, ME)->gauges[gauges[i]] != 0)
			return gauges[i];
	return G_N;
}

static bool
is_idle(void)
{
	uint64_t since_ms;

	for (uint32_t i = 0; i < FLEET_ENGINES; i++)
		if (load_count(run.seg, i) + load_tokens(run.seg, i) + load_kv_sum(run.seg, i) +
				load_sent_sum(run.seg, i) >
			0)
			return false;
	return busy_gauge() == G_N && queue_waiting(run.seg, 0, &since_ms) == 0;
}

static void
say_busy(void)
{
	const enum metric_gauge g = busy_gauge();

	(void)fprintf(stderr, "%s: the worker is not idle after %d s\n", run.kind, IDLE_MS / 1000);
	if (g != G_N)
		(void)fprintf(stderr, "%s is %lld\n", metric_gauge_name[g],
			(long long)seg_slab(run.seg, ME)->gauges[g]);
	for (uint32_t i = 0; i < FLEET_ENGINES; i++)
		(void)fprintf(stderr, "engine %u: %u requests, %u tokens, %u KV, %u sent\n", i,
			load_count(run.seg, i), load_tokens(run.seg, i), load_kv_sum(run.seg, i),
			load_sent_sum(run.seg, i));
	abort();
}

static bool
sleeps(uint64_t timeout_ms)
{
	const uint64_t since = fake_os_ms() - run.since_ms;

	if (read_all())
		return false;
	if (run.phase == SCRIPT && run.at < run.end)
		return next_step();
	if (run.phase == SCRIPT) {
		finish();
		return false;
	}
	if (run.phase == FINISH && is_idle()) {
		(void)rcu_poll(run.writer);
		CHECK(check_segment(run.seg, BUILD, run.writer, report, NULL) == 0);
		run.phase = DRAIN;
		run.since_ms = fake_os_ms();
		return drain(NULL, 0);
	}
	if (run.phase == FINISH && since > IDLE_MS)
		say_busy();
	CHECK(run.phase == FINISH || since < END_MS);
	fake_os_advance(timeout_ms > 0 ? timeout_ms : 1);
	return true;
}

/* --- a run ------------------------------------------------------------------------------------- */

static void
stay(const struct heritage *h)
{
	(void)h;
}

static const struct fake_os kernel = {sleeps, connects, acknowledged};

static void
start_once(void)
{
	if (door_len != 0)
		return;
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	door.sun_family = AF_UNIX;
	CHECK(bind(listener, (struct sockaddr *)&door, sizeof(door.sun_family)) == 0);
	door_len = sizeof(door);
	CHECK(getsockname(listener, (struct sockaddr *)&door, &door_len) == 0);
	CHECK(listen(listener, CLIENTS) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, channel) == 0);
	watched = epoll_create1(0);
	for (size_t i = 0; i < sizeof(wake_fds) / sizeof(wake_fds[0]); i++)
		wake_fds[i] = eventfd(0, EFD_NONBLOCK);
}

static void
begin(const uint8_t *data, size_t size)
{
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = FLEET_ENGINES,
		.max_pools = 1,
		.flags_per_worker = 64,
		.max_quotas = 8,
		.queue_slots = 4,
		.max_api_keys = 4,
		.instance = 1};

	memset(&run, 0, sizeof(run));
	run.at = data + 2;
	run.end = data + size;
	run.options = data[1];
	run.version = 1;
	run.no_heads = memmem(data, size, "HEAD", 4) != NULL; /* their answers have no body */
	for (unsigned i = 0; i < CLIENTS; i++)
		run.clients[i].fd = -1;
	run.kind = fleet_kind(data[0] % 16 % FLEET_KINDS);
	run.fleet = fleet_get(data[0] % 16 % FLEET_KINDS, data[1] % FLEET_OPTIONS);
	CHECK(seg_new(&sizes, BUILD, &run.seg) == 0);
	run.writer = rcu_writer_new(run.seg);
	settings_put(run.seg, &fleet_conf(run.fleet)->live);
	fleet_publish(run.fleet, run.seg, run.writer, 1);
	proc_slot_set(run.seg, ME, (uint64_t)getpid(), PROC_READY, 1);
	put(channel[0], (const uint8_t[]){CH_SERVE}, 1);
}

/* What the master does with a worker that has ended: nothing is left. */
static void
reap(void)
{
	rcu_reap(run.seg, ME);
	CHECK(load_reap(run.seg, ME) == 0);
	CHECK(flag_reap(run.seg, ME) == 0);
	CHECK(half_open_reap(run.seg, ME) == 0);
	CHECK(queue_reap(run.seg, ME) == 0);
	metric_reap(run.seg, ME);
	proc_slot_set(run.seg, ME, 0, PROC_EMPTY, 0);
	(void)rcu_poll(run.writer);
	CHECK(check_segment(run.seg, BUILD, run.writer, report, NULL) == 0);
}

static void
end(void)
{
	char rest[16];
	int fd;

	for (unsigned i = 0; i < CLIENTS; i++)
		client_close(i);
	while (run.nconns > 0)
		conn_close(&run.conns[0]);
	while ((fd = accept(listener, NULL, NULL)) != -1)
		(void)close(fd);
	while (read(channel[0], rest, sizeof(rest)) > 0 ||
		read(channel[1], rest, sizeof(rest)) > 0 ||
		read(wake_fds[ME], rest, sizeof(rest)) > 0)
		;
	rcu_writer_free(&run.writer);
	seg_free(&run.seg);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct door_fd door_fd = {0, DOOR_CLIENTS, TRANSPORT_TCP};
	struct heritage h = {.generation = 1,
		.slot = ME,
		.listen = &door_fd,
		.nlisten = 1,
		.wake_fds = wake_fds,
		.version = "fuzz",
		.enter_sandbox = stay};

	if (size < 2)
		return 0;
	start_once();
	begin(data, size);
	door_fd.fd = dup(listener); /* which the worker closes when it drains */
	h.conf = fleet_conf(run.fleet);
	h.seg = run.seg;
	h.channel = channel[1];
	fake_os_begin(&kernel);
	CHECK(worker_main(&h) == CHILD_EXIT_OK);
	reap();
	fake_os_end();
	end();
	return 0;
}
