/*
 * pdsim: one simulated LLM engine.  See README.md; `pdsim --help` lists the options.
 */
#include <errno.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/last.h"
#include "tests/engine/prefix.h"
#include "tests/engine/publish.h"
#include "tests/engine/responses.h"
#include "tests/engine/seen.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

/* ---- options: one row each ---- */

enum opt_type { O_STR, O_INT, O_I64, O_MS, O_FLAG, O_CHOICE, O_MODEL };

struct option_row {
	const char *name;
	enum opt_type type;
	size_t at;
	double min, max;
	const char *choices[4];
	const char *help;
};

#define AT(f) offsetof(struct opts, f)
#define BIG 1e12

/* clang-format off */
static const struct option_row rows[] = {
	{ "role", O_CHOICE, AT(role), 0, 0, { "both", "prefill", "decode" }, "which half of a handoff this engine does" },
	{ "port", O_INT, AT(port), 0, 65535, { 0 }, "HTTP port; 0 takes a free one" },
	{ "side-port", O_INT, AT(side_port), 0, 65535, { 0 }, "port of the side channel; 0 takes a free one" },
	{ "host", O_STR, AT(host), 0, 0, { 0 }, "address to listen on, IPv4 or IPv6" },
	{ "advertise-host", O_STR, AT(advertise), 0, 0, { 0 }, "what remote_host says; default is --host" },
	{ "model", O_MODEL, 0, 0, 0, { 0 }, "a model served; may be repeated" },
	{ "name", O_STR, AT(name), 0, 0, { 0 }, "shown by /version" },
	{ "api-key", O_STR, AT(api_key), 0, 0, { 0 }, "401 without it: under /v1, or with sglang everywhere but /health and /metrics" },
	{ "engine", O_CHOICE, AT(engine), 0, 0, { "vllm", "sglang" }, "whose metric names, and /version or /server_info" },
	{ "bootstrap-port", O_INT, AT(bootstrap_port), 0, 65535, { 0 }, "sglang, mooncake: P's bootstrap server, 0 takes a free port; else only what /server_info says" },
	{ "bootstrap-timeout", O_MS, AT(fetch_timeout_s), 0.001, BIG, { 0 }, "seconds P and D wait for each other; the same as --fetch-timeout" },
	{ "bootstrap-stream", O_FLAG, AT(bootstrap_stream), 0, 0, { 0 }, "sglang: P draws rooms itself and streams disaggregated_params first" },
	{ "dp-size", O_INT, AT(dp_size), 1, 1024, { 0 }, "data-parallel ranks" },
	{ "follow-bootstrap-room", O_FLAG, AT(follow_room), 0, 0, { 0 }, "sglang: a room's rank on P is room mod --dp-size" },
	{ "kv-port", O_INT, AT(side_port), 0, 65535, { 0 }, "the same as --side-port, where p2p_nccl's cache travels too" },
	{ "announce", O_STR, AT(announce), 0, 0, { 0 }, "p2p_nccl: host:port of the ROUTER this engine registers with" },
	{ "announce-interval", O_MS, AT(announce_ms), 1, BIG, { 0 }, "ms between two registrations" },
	{ "old-server-info", O_FLAG, AT(old_server_info), 0, 0, { 0 }, "only under /get_server_info, as before SGLang 0.5.9" },
	{ "handshake", O_STR, AT(handshake), 0, 0, { 0 }, "how KV is handed off" },
	{ "handoff", O_STR, AT(handshake), 0, 0, { 0 }, "the same" },
	{ "vllm", O_CHOICE, AT(vllm), 0, 0, { "0.33", "0.19", "0.13", "0.11" }, "nixl: whose kv_transfer_params; 0.11 goes by X-Request-Id" },
	{ "transfer", O_CHOICE, AT(transfer), 0, 0, { "pull", "push" }, "nixl: who moves the KV; with push D may come before P is done" },
	{ "no-id-suffix", O_FLAG, AT(no_id_suffix), 0, 0, { 0 }, "internal ids without 8 random digits (VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1)" },
	{ "tp", O_INT, AT(tp), 1, 64, { 0 }, "tensor-parallel ranks of this engine" },
	{ "receiver-ports", O_STR, AT(receiver_ports), 0, 0, { 0 }, "lmcache, D: its init ports, one a rank, as 7300,7301; 0 takes a free one" },
	{ "alloc-ports", O_STR, AT(alloc_ports), 0, 0, { 0 }, "lmcache, D: its alloc ports, as many; free ones when absent" },
	{ "skip-last", O_INT, AT(skip_last), 0, 1, { 0 }, "lmcache, D: ids at the end that its look-up leaves out (skip_last_n_tokens)" },
	{ "proxy", O_STR, AT(proxy), 0, 0, { 0 }, "lmcache, P: host:port that is told when KV has been written" },
	{ "notices", O_INT, AT(notices), -1, 64, { 0 }, "lmcache, P: how many for each request; -1: one a rank" },
	{ "notice-form", O_CHOICE, AT(notice_form), 0, 0, { "proxynotif", "nixlproxynotif", "dict" }, "lmcache, P: what a notice looks like" },
	{ "notice-late", O_FLAG, AT(notice_late), 0, 0, { 0 }, "lmcache, P: answers first, pushes and tells then (asynchronous, LMCache 0.4.7)" },
	{ "notice-delay", O_MS, AT(notice_delay_ms), 0, BIG, { 0 }, "lmcache, P: ms from written KV to its notice" },
	{ "notice-gap", O_MS, AT(notice_gap_ms), 0, BIG, { 0 }, "lmcache, P: ms from one rank's push to the next one's" },
	{ "kv-delay", O_MS, AT(kv_delay_ms), 0, BIG, { 0 }, "lmcache, shared_storage, P: ms until KV is written" },
	{ "storage", O_STR, AT(storage), 0, 0, { 0 }, "shared_storage: the folder that engines share" },
	{ "refuse-local", O_FLAG, AT(refuse_local), 0, 0, { 0 }, "a decode engine answers 500 where it would have to compute a prompt" },
	{ "prompt-tokens-details", O_FLAG, AT(usage_details), 0, 0, { 0 }, "usage tells cached_tokens" },
	{ "block-size", O_INT, AT(block_size), 1, 65536, { 0 }, "tokens a KV block" },
	{ "blocks", O_INT, AT(blocks), 1, 1e9, { 0 }, "KV blocks in all; requests wait when they do not fit" },
	{ "cache-blocks", O_INT, AT(cache_blocks), 0, 1e8, { 0 }, "blocks of --block-size tokens in the prefix cache; 0: there is none" },
	{ "kv-events", O_INT, AT(kv_events), 0, 65535, { 0 }, "port where KV events of the prefix cache are published; 0 takes a free one" },
	{ "kv-replay", O_INT, AT(kv_replay), 0, 65535, { 0 }, "port where they are sent again; 0 takes a free one" },
	{ "kv-buffer", O_INT, AT(kv_buffer), 1, 1e6, { 0 }, "batches of them that are kept for that" },
	{ "kv-form", O_CHOICE, AT(kv_form), 0, 0, { "bytes", "ints", "map" }, "KV events of vLLM from 0.11, of older ones and SGLang, or of the newest" },
	{ "block-ids", O_CHOICE, AT(ids), 0, 0, { "ints", "strings", "nested" }, "form of remote_block_ids" },
	{ "big-ids", O_FLAG, AT(big_ids), 0, 0, { 0 }, "block ids above 2^53 and a member above 2^64" },
	{ "kv-timeout", O_MS, AT(kv_timeout_s), 0, BIG, { 0 }, "seconds until unfetched KV is freed" },
	{ "kv-load-failure", O_CHOICE, AT(load_failure), 0, 0, { "fail", "recompute" }, "nixl, D: what becomes of a request whose KV cannot be fetched" },
	{ "fetch-timeout", O_MS, AT(fetch_timeout_s), 0.001, BIG, { 0 }, "seconds a decode engine waits for the side channel" },
	{ "fetch-delay", O_MS, AT(fetch_delay_ms), 0, BIG, { 0 }, "ms from a decode request to its fetch" },
	{ "token-delay", O_MS, AT(token_delay_ms), 0, BIG, { 0 }, "ms from token to token" },
	{ "prefill-delay", O_MS, AT(prefill_delay_ms), 0, BIG, { 0 }, "ms a prompt takes" },
	{ "prefill-us-per-token", O_MS, AT(prefill_us_per_token), 0, BIG, { 0 }, "us a prompt token takes that is not cached; prompts are then computed one at a time" },
	{ "max-running", O_INT, AT(max_running), 0, 1e9, { 0 }, "requests at once, the others wait; 0 is no limit" },
	{ "max-model-len", O_I64, AT(max_model_len), 1, BIG, { 0 }, "tokens of prompt and answer together" },
	{ "start-time", O_CHOICE, AT(start_time), 0, 0, { "auto", "yes", "no" }, "process_start_time_seconds in /metrics; auto: of vLLM, whose server is one process" },
	{ "load", O_INT, AT(load), 0, 1e9, { 0 }, "requests more than there are, in the metrics" },
	{ "flat-errors", O_FLAG, AT(flat_errors), 0, 0, { 0 }, "errors in the form before vLLM 0.11, as SGLang" },
	{ "late-errors", O_FLAG, AT(late_errors), 0, 0, { 0 }, "refuse KV of a stream by an event after 200, as vLLM does" },
	{ "echo-request-id", O_FLAG, AT(echo_request_id), 0, 0, { 0 }, "answer with X-Request-Id, as vLLM can" },
	{ "store", O_FLAG, AT(store), 0, 0, { 0 }, "keep responses, as VLLM_ENABLE_RESPONSES_API_STORE=1; SGLang always does" },
	{ "idle-timeout", O_MS, AT(idle_timeout_s), 0, BIG, { 0 }, "seconds a kept connection may idle; 0 is for ever" },
	{ "keep-body", O_I64, AT(keep_body), 0, 1e9, { 0 }, "bytes of each body kept for /sim/last" },
	{ "max-body", O_I64, AT(max_body), 0, 4e9, { 0 }, "bytes of a body accepted" },
	{ "sndbuf", O_INT, AT(sndbuf), 0, 1e9, { 0 }, "SO_SNDBUF of client sockets; 0 leaves it" },
};
/* clang-format on */

#define NROWS (sizeof(rows) / sizeof(rows[0]))

static void __attribute__((noreturn)) usage(FILE *f, int code)
{
	size_t i, k;

	(void)fprintf(f, "usage: pdsim [options]\n");
	for (i = 0; i < NROWS; i++) {
		(void)fprintf(f, "  --%-16s %s", rows[i].name, rows[i].help);
		for (k = 0; k < 4 && rows[i].choices[k]; k++)
			(void)fprintf(f, "%s%s", k ? "|" : ": ", rows[i].choices[k]);
		if (rows[i].at == AT(handshake))
			(void)fprintf(f, ": %s", shake_names());
		(void)fprintf(f, "\n");
	}
	exit(code);
}

void
sim_bad_option(const char *name, const char *val)
{
	(void)fprintf(stderr, "pdsim: --%s: wrong value `%s`\n", name, val);
	exit(2);
}

static void
set_choice(const struct option_row *row, const char *val, void *at)
{
	unsigned k = 0;

	while (k < 4 && row->choices[k] && strcmp(row->choices[k], val) != 0)
		k++;
	if (k == 4 || row->choices[k] == NULL)
		sim_bad_option(row->name, val);
	*(unsigned *)at = k;
}

static void
set_number(const struct option_row *row, const char *val, void *at)
{
	char *end;
	double d = strtod(val, &end);

	if (*val == '\0' || *end || !(d >= row->min && d <= row->max) ||
		(row->type != O_MS && d != (double)(int64_t)d))
		sim_bad_option(row->name, val);
	if (row->type == O_INT)
		*(int *)at = (int)d;
	else if (row->type == O_I64)
		*(int64_t *)at = (int64_t)d;
	else
		*(double *)at = d;
}

static void
set_option(struct opts *o, const struct option_row *row, const char *val)
{
	void *at = (char *)o + row->at;

	switch (row->type) {
	case O_STR:
		*(const char **)at = val;
		break;
	case O_FLAG:
		*(int *)at = 1;
		break;
	case O_CHOICE:
		set_choice(row, val, at);
		break;
	case O_MODEL:
		if (o->nmodels == MAX_MODELS)
			sim_bad_option(row->name, val);
		o->models[o->nmodels++] = val;
		break;
	case O_INT:
	case O_I64:
	case O_MS:
		set_number(row, val, at);
		break;
	}
}

static const struct option_row *
find_row(const char *name, size_t n)
{
	size_t i;

	for (i = 0; i < NROWS; i++)
		if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
			return &rows[i];
	return NULL;
}

static void
read_options(struct opts *o, int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++) {
		const char *name = argv[i] + 2, *eq;
		const struct option_row *row;

		if (strcmp(argv[i], "--help") == 0)
			usage(stdout, 0);
		if (strncmp(argv[i], "--", 2) != 0)
			usage(stderr, 2);
		eq = strchr(name, '=');
		row = find_row(name, eq ? (size_t)(eq - name) : strlen(name));
		if (row == NULL || (eq == NULL && row->type != O_FLAG && i + 1 == argc)) {
			(void)fprintf(stderr, "pdsim: unknown option or no value: %s\n", argv[i]);
			exit(2);
		}
		set_option(o, row, row->type == O_FLAG ? "" : eq ? eq + 1 : argv[++i]);
	}
	if (o->nmodels == 0)
		o->models[o->nmodels++] = "sim-model";
}

static const struct opts defaults = {
	.host = "127.0.0.1",
	.name = "pdsim",
	.handshake = "nixl",
	.block_size = 16,
	.tp = 1,
	.notices = -1,
	.bootstrap_port = -1,
	.kv_events = -1,
	.kv_replay = -1,
	.kv_buffer = 10000,
	.dp_size = 1,
	.announce_ms = 3000,
	.blocks = 1 << 23,
	.keep_body = 1 << 20,
	.max_body = 128 << 20,
	.max_model_len = 1 << 27,
	.kv_timeout_s = 30,
	.fetch_timeout_s = 10,
	.idle_timeout_s = 5,
};

/* ---- start ---- */

uint64_t
sim_now_us(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t
sim_random(struct sim *sim) /* splitmix64 */
{
	uint64_t x = sim->rng += 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static int
port_of(int fd)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char text[NI_MAXSERV];

	if (getsockname(fd, (struct sockaddr *)&ss, &len) == -1 ||
		getnameinfo(
			(struct sockaddr *)&ss, len, NULL, 0, text, sizeof(text), NI_NUMERICSERV))
		return 0;
	return atoi(text);
}

int
sim_listen(const char *host, int port, int *ret_port)
{
	struct addrinfo hint = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM}, *ai;
	char service[16], bare[NI_MAXHOST];
	int fd, one = 1, r;
	size_t n = strlen(host);

	(void)snprintf(service, sizeof(service), "%d", port);
	(void)snprintf(bare, sizeof(bare), "%s", host);
	if (n > 2 && n < sizeof(bare) && host[0] == '[' && host[n - 1] == ']') { /* [::1] */
		memmove(bare, host + 1, n - 2);
		bare[n - 2] = '\0';
	}
	r = getaddrinfo(bare, service, &hint, &ai);
	if (r != 0) {
		(void)fprintf(stderr, "pdsim: %s: %s\n", host, gai_strerror(r));
		exit(1);
	}
	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd != -1)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd == -1 || bind(fd, ai->ai_addr, ai->ai_addrlen) == -1 ||
		listen(fd, SOMAXCONN) == -1) {
		(void)fprintf(stderr, "pdsim: cannot listen on %s port %d: %s\n", host, port,
			strerror(errno));
		exit(1);
	}
	freeaddrinfo(ai);
	*ret_port = port_of(fd);
	return fd;
}

static void
on_listen(evutil_socket_t fd, short what, void *arg)
{
	int n, client;

	(void)what;
	for (n = 0; n < 64; n++) {
		client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (client == -1)
			return;
		conn_new(arg, client);
	}
}

void
sim_serve(struct sim *sim, int fd)
{
	unsigned i = sim->nlisteners++;

	if (i == MAX_LISTENERS)
		abort();
	sim->listeners[i] = event_new(sim->base, fd, EV_READ | EV_PERSIST, on_listen, sim);
	(void)event_add(sim->listeners[i], NULL);
}

static void
on_signal(evutil_socket_t sig, short what, void *arg)
{
	struct sim *sim = arg;

	(void)sig;
	(void)what;
	sim->quit = true;
}

static void
name_engine(struct sim *sim)
{
	unsigned char r[16];
	struct timespec now;

	if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
		abort();
	memcpy(&sim->rng, r, sizeof(sim->rng));
	memcpy(&sim->seed, r + 8, sizeof(sim->seed));
	(void)clock_gettime(CLOCK_REALTIME, &now);
	sim->born = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
	(void)snprintf(sim->engine_id, sizeof(sim->engine_id),
		"%02x%02x%02x%02x-%02x%02x-4%01x%02x-a%01x%02x-%02x%02x%02x%02x%02x%02x", r[0],
		r[1], r[2], r[3], r[4], r[5], r[6] & 15, r[7], r[8] & 15, r[9], r[10], r[11], r[12],
		r[13], r[14], r[15]);
}

static const char *
advertised(const char *host)
{
	static char bare[NI_MAXHOST];
	size_t n = strlen(host);

	if (strcmp(host, "0.0.0.0") == 0)
		return "127.0.0.1";
	if (strcmp(host, "::") == 0 || strcmp(host, "[::]") == 0)
		return "::1";
	if (host[0] != '[' || n < 2 || n >= sizeof(bare))
		return host;
	memcpy(bare, host + 1, n - 2);
	return bare;
}

static void
open_files(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == -1)
		return;
	r.rlim_cur = r.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &r);
}

static void
init(struct sim *sim)
{
	open_files();
	text_init();
	name_engine(sim);
	if (sim->o.advertise == NULL)
		sim->o.advertise = advertised(sim->o.host);
	sim->shake = shake_find(sim->o.handshake);
	if (sim->shake == NULL)
		sim_bad_option("handshake", sim->o.handshake);
	sim->bootstrap_port = sim->o.bootstrap_port < 0 ? 8998 : sim->o.bootstrap_port;
	sim->health = sim->ready = 200;
	TAILQ_INIT(&sim->conns);
	TAILQ_INIT(&sim->idle);
	TAILQ_INIT(&sim->dead);
	TAILQ_INIT(&sim->gens);
	TAILQ_INIT(&sim->queue);
	TAILQ_INIT(&sim->turns);
	TAILQ_INIT(&sim->faults);
	sim->base = event_base_new();
	if (sim->base == NULL)
		abort();
	sim->kv = kv_new(sim);
	sim->prefix = prefix_new(sim);
	sim->publish = publish_new(sim);
	sim->last[0] = last_new((size_t)sim->o.keep_body);
	sim->last[1] = last_new((size_t)sim->o.keep_body);
	sim->seen = seen_new();
	conn_idle_start(sim);
}

static void
fini(struct sim *sim)
{
	sim->pumping = true; /* nothing new starts while all ends */
	while (!TAILQ_EMPTY(&sim->conns))
		conn_kill(TAILQ_FIRST(&sim->conns), false);
	conn_reap(sim);
	while (sim->nlisteners > 0) {
		struct event *ev = sim->listeners[--sim->nlisteners];

		(void)close(event_get_fd(ev));
		event_free(ev);
	}
	fault_clear(sim);
	(void)event_del(&sim->idle_timer);
	side_free(&sim->side);
	if (sim->shake->stop != NULL)
		sim->shake->stop(sim);
	kv_free(&sim->kv);
	prefix_free(&sim->prefix);
	publish_free(&sim->publish);
	last_free(&sim->last[0]);
	last_free(&sim->last[1]);
	seen_free(&sim->seen);
	responses_clear();
	buf_free(&sim->scratch);
	buf_free(&sim->more_ports);
}

int
main(int argc, char **argv)
{
	struct sim *sim = calloc(1, sizeof(*sim));
	struct event *term, *intr;
	int fd, side;

	if (sim == NULL)
		abort();
	sim->o = defaults;
	read_options(&sim->o, argc, argv);
	(void)signal(SIGPIPE, SIG_IGN);
	init(sim);
	fd = sim_listen(sim->o.host, sim->o.port, &sim->port);
	side = sim_listen(sim->o.host, sim->o.side_port, &sim->side_port);
	sim->side = side_new(sim, side);
	sim_serve(sim, fd);
	if (sim->shake->start != NULL)
		sim->shake->start(sim);
	term = evsignal_new(sim->base, SIGTERM, on_signal, sim);
	intr = evsignal_new(sim->base, SIGINT, on_signal, sim);
	(void)event_add(term, NULL);
	(void)event_add(intr, NULL);
	(void)printf("pdsim listening http=%d side=%d bootstrap=%d%s\n", sim->port, sim->side_port,
		sim->nlisteners > 1 ? sim->bootstrap_port : 0, buf_cstr(&sim->more_ports));
	(void)fflush(stdout);
	while (!sim->quit) {
		(void)event_base_loop(sim->base, EVLOOP_ONCE);
		conn_reap(sim);
	}
	fini(sim);
	event_free(term);
	event_free(intr);
	event_base_free(sim->base);
	free(sim);
	return 0;
}
