/* The router's own pages: what they show of the endpoint table, and that no read section allocates. */
#include "worker/request/stats.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "shm/core/heritage.h"
#include "shm/core/rcu.h"
#include "shm/latency.h"
#include "shm/load.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/request/client.h"
#include "worker/request/health.h"
#include "worker/request/models.h"
#include "worker/request/req.h"
#include "worker/request/request.h"

#include "tests/unit/shm/fixture.h" /* last: its `seg` is a parameter's name above */

#define SLOT 1
#define ENDPOINTS 100 /* more than one step */
#define MODELS 70     /* more than two steps */

static struct rcu_writer *writer;
static unsigned inside; /* allocations inside a read section */

/* The sanitizers' own allocator cannot be replaced. */
#ifndef __SANITIZE_ADDRESS__
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static void
note(void)
{
	inside += seg != NULL && seg->readers[SLOT].ctr != 0;
}

void *
malloc(size_t n)
{
	note();
	return __libc_malloc(n);
}

void *
calloc(size_t n, size_t size)
{
	note();
	return __libc_calloc(n, size);
}

void *
realloc(void *p, size_t n)
{
	note();
	return __libc_realloc(p, n);
}
#endif

static void
set_up(void)
{
	static const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = ENDPOINTS,
		.max_pools = 2,
		.flags_per_worker = 64,
		.queue_slots = 100};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	writer = rcu_writer_new(seg);
}

static void
tear_down(void)
{
	rcu_writer_free(&writer);
	seg_free(&seg);
}

TestSuite(stats, .init = set_up, .fini = tear_down);

/* Every third endpoint is a decode engine if `decode`; else all are prefill engines. */
struct published {
	bool decode;
	enum fallback_kind fallback;
};

static void
publish_as(uint64_t version, const struct published *as)
{
	static const char *const groups[] = {"rack"};
	static char names[MODELS][16];
	const char *models[MODELS];
	struct table_builder b;
	void *arena = rcu_arena_get(writer);
	struct table *t = table_begin(&b, arena, seg->arena_bytes, 1, ENDPOINTS);
	struct table_pool *tp = table_pool_at(&b, 0);

	t->version = version;
	(void)strcpy(seg_pool_name(seg, 0), "chat");
	tp->name = table_str(&b, "chat");
	tp->groups = table_strv(&b, groups, 1);
	for (uint32_t i = 0; i < MODELS; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "model-%u", i);
		models[i] = names[i];
	}
	tp->models = table_strv(&b, models, MODELS);
	tp->nmodels = MODELS;
	tp->rescue.fallback = as->fallback;
	for (uint32_t i = 0; i < ENDPOINTS; i++) {
		struct table_endpoint *te = table_endpoint_at(&b, i);
		char url[64];

		(void)snprintf(url, sizeof(url), "http://engine-%u:8000", i);
		te->slot = i;
		te->weight = 1 + i % 2;
		te->group = i % 2;
		te->role = as->decode && i % 3 == 0 ? ROLE_DECODE : ROLE_PREFILL;
		te->url = table_str(&b, url);
		te->version = table_str(&b, "0.11");
		if (version == 1)
			ep_slot_begin(seg, i);
		te->tag = (uint32_t)ep_tag(seg, i);
	}
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
}

static void
publish(uint64_t version)
{
	publish_as(version, &(struct published){.decode = false, .fallback = FALLBACK_DIRECT});
}

static void
health(struct worker *w, struct evbuffer *out)
{
	(void)health_page(w, out, &(struct health_asked){.only = NULL});
}

static void
one_model(struct worker *w, struct evbuffer *out)
{
	(void)model_page(&(struct req){.w = w}, out, "model-69");
}

static void
all_models(struct worker *w, struct evbuffer *out)
{
	models_page(&(struct req){.w = w}, out);
}

/* The caller frees the text. */
static char *
page(void (*render)(struct worker *w, struct evbuffer *out))
{
	const struct heritage h = {.version = "1"};
	static const struct conf conf;
	struct worker w = {.h = &h, .seg = seg, .slot = SLOT, .conf = &conf};
	struct evbuffer *out = evbuffer_new();
	const size_t n = (render(&w, out), evbuffer_get_length(out));
	char *text = calloc(1, n + 1);

	(void)evbuffer_remove(out, text, n);
	evbuffer_free(out);
	return text;
}

static unsigned
count(const char *text, const char *what)
{
	unsigned n = 0;

	for (; (text = strstr(text, what)) != NULL; text++)
		n++;
	return n;
}

static void
stats_page(struct worker *w, struct evbuffer *out)
{
	struct evbuffer *piece = evbuffer_new();
	struct stats s;
	bool more;

	stats_begin(&s, w, EXPOSITION_PROMETHEUS);
	do {
		more = stats_more(&s, piece);
		cr_assert_leq(evbuffer_get_length(piece), 100u << 10);
		(void)evbuffer_add_buffer(out, piece);
	} while (more);
	stats_end(&s);
	evbuffer_free(piece);
}

Test(stats, each_endpoint_is_shown_once)
{
	char *text;

	publish(1);
	latency_add(seg, 7, LATENCY_FIRST, 2040000);
	text = page(stats_page);
	cr_assert_eq(count(text, "\npdrouter_endpoint_up{"), ENDPOINTS);
	cr_assert_eq(count(text, "\npdrouter_endpoint_group{"), ENDPOINTS / 2);
	cr_assert_eq(count(text, "\npdrouter_endpoint_info{engine=\"http://engine-99:8000\",role=\""
				 "prefill\",pool=\"chat\",version=\"0.11\"} 1\n"),
		1);
	cr_assert_eq(
		count(text, "\npdrouter_endpoint_time_to_first_byte_seconds_bucket{engine=\"http://"
			    "engine-7:8000\",role=\"prefill\",pool=\"chat\",le=\"2.5\"} 1\n"),
		1);
	cr_assert_eq(
		count(text, "\npdrouter_endpoint_time_to_first_byte_seconds_sum{engine=\"http://"
			    "engine-7:8000\",role=\"prefill\",pool=\"chat\"} 2.040000\n"),
		1);
	cr_assert_eq(count(text, "\npdrouter_queue_waiting{pool=\"chat\"} 0\n"), 1);
	free(text);
}

Test(stats, health_counts_each_endpoint_once)
{
	char *text;

	publish(1);
	ep_state_set(seg, 7, EP_UP);
	text = page(health);
	cr_assert_eq(count(text, "\"up\":1,\"total\":100,"), 1);
	cr_assert_eq(count(text, "\"state\":"), ENDPOINTS - 1);
	cr_assert_eq(count(text, "engine-7:"), 0);
	free(text);
}

static void
set_states(enum ep_state prefill, enum ep_state decode)
{
	for (uint32_t i = 0; i < ENDPOINTS; i++)
		ep_state_set(seg, i, i % 3 == 0 ? decode : prefill);
}

/* The rule of etc/docs/high_availability.md, "The check of the load balancer". */
Test(stats, a_pool_without_a_prefill_engine_is_ready_by_its_fallback)
{
	static const struct {
		enum ep_state prefill, decode;
		enum fallback_kind fallback;
		bool ready, says_so;
	} cases[] = {
		{EP_UP, EP_UP, FALLBACK_NONE, true, false},
		{EP_UP, EP_UP, FALLBACK_DIRECT, true, false},
		{EP_DOWN, EP_UP, FALLBACK_NONE, false, false},
		{EP_DOWN, EP_UP, FALLBACK_DIRECT, true, true},
		{EP_DRAINING, EP_UP, FALLBACK_DIRECT, true, true},
		{EP_MISCONFIGURED, EP_UP, FALLBACK_DIRECT, true, true},
		{EP_STARTING, EP_UP, FALLBACK_DIRECT, false, false}, /* requests wait for it */
		{EP_UP, EP_DOWN, FALLBACK_DIRECT, false, false},
		{EP_DOWN, EP_DOWN, FALLBACK_DIRECT, false, false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *text;

		publish_as(
			i + 1, &(struct published){.decode = true, .fallback = cases[i].fallback});
		set_states(cases[i].prefill, cases[i].decode);
		text = page(health);
		cr_expect_eq(count(text, "\"can_serve\":true"), cases[i].ready, "case %zu", i);
		cr_expect_eq(count(text, "{\"status\":\"ok\""), cases[i].ready, "case %zu", i);
		cr_expect_eq(
			count(text, "decode engines serve alone"), cases[i].says_so, "case %zu", i);
		free(text);
		rcu_poll(writer);
	}
}

Test(stats, a_pool_with_one_prefill_engine_that_starts_is_not_ready_by_its_fallback)
{
	char *text;

	publish_as(1, &(struct published){.decode = true, .fallback = FALLBACK_DIRECT});
	set_states(EP_DOWN, EP_UP);
	ep_state_set(seg, 1, EP_STARTING);
	text = page(health);
	cr_expect_eq(count(text, "\"can_serve\":false"), 1);
	free(text);
}

Test(stats, each_model_is_listed_once)
{
	char *text;

	publish(1);
	text = page(all_models);
	cr_assert_eq(count(text, "{\"id\":"), MODELS);
	for (uint32_t i = 0; i < MODELS; i++) {
		char id[32];

		(void)snprintf(id, sizeof(id), "{\"id\":\"model-%u\",", i);
		cr_assert_eq(count(text, id), 1);
	}
	free(text);
	text = page(one_model);
	cr_assert_eq(count(text, "{\"id\":\"model-69\","), 1);
	free(text);
}

Test(stats, nothing_is_allocated_inside_a_read_section)
{
	publish(1);
	inside = 0;
	free(page(stats_page));
	free(page(health));
	free(page(all_models));
	free(page(one_model));
	cr_assert_eq(inside, 0);
}

Test(stats, before_the_first_table_there_are_no_endpoints)
{
	char *text = page(stats_page);

	cr_assert_eq(count(text, "pdrouter_endpoint_up"), 0);
	cr_assert_eq(count(text, "\npdrouter_generation "), 1);
	free(text);
}

/* A worker with one client, whose socket holds a small part of the page. */
static void
one_client(struct worker *w, struct conf *conf, int fds[2])
{
	const int small = 4096;

	w->conf = w->followed = conf;
	w->followed_seq = settings_seq(seg);
	w->slab = seg_slab(seg, SLOT);
	w->base = event_base_new();
	w->buf = malloc(WORKER_BUF);
	w->ticking = true; /* no clock helps */
	rounds_init(&w->client_rounds, 0);
	rounds_init(&w->req_rounds, 0);
	TAILQ_INIT(&w->clients);
	TAILQ_INIT(&w->reqs);
	TAILQ_INIT(&w->ended_reqs);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	cr_assert_eq(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	client_new(w, fds[0], &(struct client_origin){.door = DOOR_CLIENTS}, &request_client_ops);
}

Test(stats, a_page_goes_on_at_once_when_its_client_has_read)
{
	static const char get[] = "GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n";
	static const struct heritage h = {.version = "1"};
	static struct worker w = {.h = &h, .slot = SLOT}; /* nothing of it is freed */
	static struct conf conf = {.live = {.client_head_ms = 1000, .max_head = 1000}};
	char buf[4096];
	size_t got = 0;
	int fds[2];

	publish(1);
	w.seg = seg;
	one_client(&w, &conf, fds);
	cr_assert_eq(write(fds[1], get, strlen(get)), strlen(get));
	for (int turn = 0; turn < 1000 && (turn == 0 || w.nreqs > 0); turn++) {
		(void)event_base_loop(w.base, EVLOOP_NONBLOCK);
		for (ssize_t n; (n = read(fds[1], buf, sizeof(buf))) > 0;)
			got += (size_t)n;
	}
	cr_assert_eq(w.nreqs, 0);
	cr_assert_gt(got, 100u << 10);
}
