#include "master/exporter/exporter.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include "master/exporter/batch.h"
#include "master/exporter/collector.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"
#include "shm/metrics.h"
#include "shm/settings.h"
#include "shm/spans.h"
#include "shm/usage.h"

#define TICK_MS 200
#define BATCH_MAX 512
#define TRIES 5 /* of one batch */
#define BACKOFF_MIN_MS 500
#define BACKOFF_MAX_MS 30000 /* Retry-After may ask for twice that */
#define WARN_MS 60000
#define LAST_MS 3000 /* from the master's word to the end, for what is left */

enum state {
	IDLE,    /* no batch, or it is being filled */
	SENDING, /* the collector has the batch */
	RESTING, /* until rest_ms; then the batch is sent again */
};

struct exporter {
	const struct heritage *h;
	struct metrics_slab *slab;
	struct event_base *base;
	struct event *ev_tick, *ev_channel;
	struct usage usage;
	struct collector *collector;
	struct batch_source source;
	struct utsname host;
	char *instance;
	struct conf_live live; /* in force; of these the log's level and format count */
	uint64_t live_seq;

	enum state state;
	struct batch *batch; /* NULL: none */
	uint64_t *at;        /* [worker slots]: the end of what the batch has of each ring */
	uint32_t first;      /* the ring that a batch begins with */
	unsigned tries;      /* of the batch */
	uint64_t backoff_ms; /* 0: the last batch was taken */
	uint64_t rest_ms;
	uint64_t next_warn_ms;
	bool warned; /* fact: the log says last that the collector does not take spans */
	uint64_t
		end_ms; /* the master has said so: what is left may take until then; 0: it has not */
};

/* --- one batch ----------------------------------------------------------------------------------- */

/* Takes from one ring what fits into the batch. */
static void
fill_from(struct exporter *e, uint32_t worker, uint64_t offset_ns)
{
	struct span_record s;

	while (batch_count(e->batch) < BATCH_MAX &&
		spans_next(e->h->seg, worker, &e->at[worker], &s))
		batch_add(e->batch, &s, offset_ns);
}

/* Each batch begins with another ring: a busy worker does not keep others out. */
static void
fill(struct exporter *e)
{
	const uint32_t n = SLOT_WORKERS(e->h->seg);
	const uint64_t offset_ns = (clock_wall_us() - clock_us()) * 1000;

	for (uint32_t i = 0; i < n; i++)
		spans_mend(e->h->seg, i, e->at[i]);
	e->batch = batch_new(&e->source);
	e->first = e->first + 1 < n ? e->first + 1 : 0;
	for (uint32_t i = 0; i < n; i++)
		fill_from(e, (e->first + i) % n, offset_ns);
}

static void
post(struct exporter *e)
{
	size_t n;
	const char *text = batch_text(e->batch, &n);

	e->state = SENDING;
	e->tries++;
	collector_post(e->collector, text, n);
}

/* The batch is answered for: the workers get the room. */
static void
drop_batch(struct exporter *e)
{
	for (uint32_t i = 0; i < SLOT_WORKERS(e->h->seg); i++)
		spans_done(e->h->seg, i, e->at[i]);
	batch_free(&e->batch);
	e->state = IDLE;
	e->tries = 0;
}

static void
next_batch(struct exporter *e)
{
	fill(e);
	if (batch_count(e->batch) > 0) {
		post(e);
		return;
	}
	batch_free(&e->batch);
	if (e->end_ms != 0)
		(void)event_base_loopbreak(e->base);
}

/* --- answers ------------------------------------------------------------------------------------- */

static void
warn(struct exporter *e, const struct collector_answer *a, uint32_t lost)
{
	const uint64_t now = clock_ms();

	if (now < e->next_warn_ms)
		return;
	e->next_warn_ms = now + WARN_MS;
	e->warned = true;
	log_warn("the collector does not take spans, further ones are only counted for a minute",
		LOG_S("url", e->h->conf->trace_otlp), LOG_S("error", a->error),
		a->status != 0 ? LOG_I("status", a->status) : LOG_NONE, LOG_U("lost", lost));
}

static void
taken(struct exporter *e, const struct collector_answer *a)
{
	const uint32_t n = batch_count(e->batch), bad = batch_rejected(a->body.p, a->body.n, n);

	metric_add(e->slab, M_SPANS_EXPORTED, n - bad);
	metric_add(e->slab, M_SPANS_FAILED, bad);
	if (bad > 0)
		warn(e, a, bad);
	else if (e->warned)
		log_info("the collector takes spans again", LOG_S("url", e->h->conf->trace_otlp));
	e->warned = e->warned && bad > 0;
	e->backoff_ms = 0;
	drop_batch(e);
	next_batch(e);
}

static void
lose(struct exporter *e, const struct collector_answer *a)
{
	const uint32_t n = batch_count(e->batch);

	metric_add(e->slab, M_SPANS_FAILED, n);
	warn(e, a, n);
	drop_batch(e);
}

/* How long the collector is left alone: as it says, or twice as long as before. */
static uint64_t
rest(struct exporter *e, uint64_t retry_after_s)
{
	uint64_t ms = retry_after_s * 1000;

	e->backoff_ms = e->backoff_ms == 0 ? BACKOFF_MIN_MS : 2 * e->backoff_ms;
	if (e->backoff_ms > BACKOFF_MAX_MS)
		e->backoff_ms = BACKOFF_MAX_MS;
	if (ms > 2 * BACKOFF_MAX_MS)
		ms = 2 * BACKOFF_MAX_MS;
	return ms > e->backoff_ms ? ms : e->backoff_ms;
}

/* As the specification of OTLP/HTTP says; 0: there was no answer. */
static bool
is_worth_another(int status)
{
	return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

static void
on_answer(void *arg, const struct collector_answer *a)
{
	struct exporter *e = arg;

	if (a->status >= 200 && a->status < 300) {
		taken(e, a);
		return;
	}
	metric_add(e->slab, M_COLLECTOR_FAILED, 1);
	e->rest_ms = clock_ms() + rest(e, a->retry_after_s);
	e->state = RESTING;
	if (!is_worth_another(a->status) || e->tries == TRIES)
		lose(e, a);
	else
		warn(e, a, 0);
	if (e->end_ms !=
		0) /* what is not sent now is not sent: a successor would find it in the rings */
		(void)event_base_loopbreak(e->base);
}

/* --- the loop ------------------------------------------------------------------------------------ */

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct exporter *e = arg;
	const uint64_t now = clock_ms();

	(void)fd;
	(void)what;
	proc_heartbeat(e->h->seg, e->h->slot, now);
	usage_report(&e->usage, e->h->seg, e->h->slot, now, 0);
	if (settings_get(e->h->seg, &e->live, &e->live_seq))
		log_setup(e->live.log_level, e->live.log_format);
	if (e->end_ms != 0 && now >= e->end_ms) {
		(void)event_base_loopbreak(e->base);
		return;
	}
	if (e->state == SENDING || now < e->rest_ms)
		return;
	if (e->batch != NULL)
		post(e);
	else
		next_batch(e);
}

/* The master's word, or its end. */
static void
on_channel(evutil_socket_t fd, short what, void *arg)
{
	struct exporter *e = arg;
	char c = 0;
	const ssize_t r = recv(fd, &c, 1, MSG_DONTWAIT);

	(void)what;
	if (r == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (r != 1 || c != CH_DRAIN) {
		(void)event_base_loopbreak(e->base);
		return;
	}
	e->end_ms = clock_ms() + LAST_MS;
	e->rest_ms = 0;
	on_tick(-1, 0, e);
}

static void
init(struct exporter *e)
{
	const struct timeval tick = clock_tv(TICK_MS);
	const uint32_t n = SLOT_WORKERS(e->h->seg);

	(void)uname(&e->host);
	e->instance = mem_printf("%s:%ld", e->host.nodename, (long)e->h->master_pid);
	e->source = (struct batch_source){e->h->version, e->host.nodename, e->instance};
	e->at = mem_array(n, sizeof(*e->at));
	for (uint32_t i = 0; i < n; i++)
		e->at[i] = spans_begin(e->h->seg, i);
	e->base = event_base_new();
	assert(e->base != NULL);
	e->collector = collector_new(e->base, e->h->conf->trace_otlp, on_answer, e);
	e->ev_tick = event_new(e->base, -1, EV_PERSIST, on_tick, e);
	e->ev_channel = event_new(e->base, e->h->channel, EV_READ | EV_PERSIST, on_channel, e);
	assert(e->ev_tick != NULL && e->ev_channel != NULL);
	(void)event_add(e->ev_tick, &tick);
	(void)event_add(e->ev_channel, NULL);
}

static void
fini(struct exporter *e)
{
	collector_free(&e->collector);
	batch_free(&e->batch);
	event_free(e->ev_tick);
	event_free(e->ev_channel);
	event_base_free(e->base);
	free(e->at);
	free(e->instance);
}

int
exporter_main(const struct heritage *h)
{
	struct exporter e = {.h = h, .slab = seg_slab(h->seg, h->slot)};
	char ready = CH_READY;

	init(&e);
	usage_begin(&e.usage);
	h->enter_sandbox(h);
	log_info("spans are exported", LOG_S("url", h->conf->trace_otlp));
	proc_heartbeat(h->seg, h->slot, clock_ms());
	(void)send(h->channel, &ready, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)event_base_dispatch(e.base);
	usage_end(&e.usage);
	fini(&e);
	return CHILD_EXIT_OK;
}
