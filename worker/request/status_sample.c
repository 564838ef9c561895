#include "worker/request/status_sample.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/notes.h"
#include "shm/queue.h"
#include "shm/tally.h"
#include "shm/view.h"
#include "worker/base/core.h"
#include "worker/base/end_list.h"
#include "worker/request/table_copy.h"

#define STEP_ROWS 64   /* engines in a step */
#define STEP_NOTES 128 /* requests that a step looks at */
#define FLOWS 1024     /* pairs of engines that are shown; others are counted together */
#define FLOW_TRIES 16
#define FAILURES 20 /* of the last requests that failed */
#define LATER_US                                                                                   \
	1000000 /* a request may have ended since the step has read the clock; more cannot be */
#define NO_ROW UINT32_MAX
#define NO_VERSION UINT64_MAX

/* Requests in flight that have the same engines. */
struct flow {
	uint32_t prefill, decode, n; /* rows; n 0: a free cell */
};

struct status_sample {
	struct worker *w;
	/* the table that `rows` and both events are of */
	struct table_copy t;
	uint64_t number;
	uint32_t *rows; /* [max_endpoints]: of the engine in each slot, or NO_ROW */
	struct membuf fleet, now;

	/* what is being made */
	struct membuf next_fleet, next;
	uint32_t section, at, worker;
	bool renewed; /* `next_fleet` is complete, and in place of `fleet` with the sample */
	uint64_t next_number;

	struct flow flows[FLOWS];
	uint32_t others; /* requests whose engines have no cell there */

	struct note failures[FAILURES]; /* the last first */
	uint32_t nfailures;
	uint64_t *
		seen; /* [worker slots]: number of the last request that was looked at (notes_ended()) */
	uint64_t last; /* of `worker`, when its turn began */
};

/* --- text --------------------------------------------------------------------------------------- */

static void
put(struct membuf *out, const char *text)
{
	membuf_add(out, text, strlen(text));
}

/* Numbers and words of the router: they fit. */
static void __attribute__((format(printf, 2, 3)))
put_form(struct membuf *out, const char *form, ...)
{
	char text[256];
	va_list args;

	va_start(args, form);
	(void)vsnprintf(text, sizeof(text), form, args);
	va_end(args);
	put(out, text);
}

/* Text of others: of at most 256 bytes, and a line feed in it is escaped, so the event goes on. */
static void
put_quoted(struct membuf *out, const char *text)
{
	char quoted[1600]; /* every byte escaped as \u00xx */

	put(out, json_quote(quoted, sizeof(quoted), text, strlen(text), 256) != -1 ? quoted
										   : "\"\"");
}

static const char *
comma(uint32_t i)
{
	return i > 0 ? "," : "";
}

/* --- the table: `fleet` ------------------------------------------------------------------------- */

static void
find_rows(struct status_sample *s)
{
	const uint32_t n = s->w->seg->hdr->max_endpoints;

	for (uint32_t i = 0; i < n; i++)
		s->rows[i] = NO_ROW;
	for (uint32_t i = 0; i < s->t.nendpoints; i++)
		if (s->t.endpoints[i].slot < n)
			s->rows[s->t.endpoints[i].slot] = i;
}

static void
begin_fleet(struct status_sample *s)
{
	struct membuf *out = &s->next_fleet;

	table_copy_free(&s->t);
	(void)table_copy_make(s->w->seg, s->w->slot, &s->t);
	find_rows(s);
	s->next_number = s->number + 1;
	out->n = 0;
	put_form(out, "event: fleet\ndata: {\"number\":%" PRIu64 ",\"version\":", s->next_number);
	put_quoted(out, s->w->h->version);
	put(out, ",\"bounds_us\":[");
	for (uint32_t i = 0; i < METRIC_BUCKETS; i++)
		put_form(out, "%s%" PRIu64, comma(i), metric_bucket_us[i]);
	put(out, "],\"pools\":[");
	for (uint32_t i = 0; i < s->t.npools; i++) {
		put(out, comma(i));
		put_quoted(out, seg_pool_name(s->w->seg, s->t.pools[i].id));
	}
	put(out, "],\"engines\":[");
}

/* A table that is current is not copied again. */
static bool
of_table(struct status_sample *s)
{
	if (s->number != 0 && s->at == 0 && !s->renewed &&
		s->t.version == table_copy_version(s->w->seg, s->w->slot))
		return true;
	if (s->at == 0 && !s->renewed) {
		begin_fleet(s);
		s->renewed = true;
	}
	for (uint32_t n = 0; n < STEP_ROWS && s->at < s->t.nendpoints; n++, s->at++) {
		const struct endpoint_copy *ep = &s->t.endpoints[s->at];

		put_form(&s->next_fleet, "%s[%u,\"%s\",", comma(s->at), ep->pool,
			role_name(ep->role));
		put_quoted(&s->next_fleet, s->t.text.p + ep->url);
		put(&s->next_fleet, ",");
		put_quoted(&s->next_fleet, s->t.text.p + ep->group);
		put(&s->next_fleet, "]");
	}
	if (s->at < s->t.nendpoints)
		return false;
	put(&s->next_fleet, "]}\n\n");
	return true;
}

/* --- figures: `now` ----------------------------------------------------------------------------- */

static bool
of_router(struct status_sample *s)
{
	const struct seg *seg = s->w->seg;

	/* a viewer's stream is a request of its own */
	put_form(&s->next,
		"event: now\ndata: {\"fleet\":%" PRIu64 ",\"at_ms\":%" PRIu64
		",\"in_flight\":%" PRId64 ",\"connections\":%" PRId64 ",\"events\":%" PRIu64
		",\"viewers\":%" PRId64 ",\"pools\":[",
		s->renewed ? s->next_number : s->number, clock_ms(),
		metric_gauge_sum(seg, G_REQUESTS) - metric_gauge_sum(seg, G_STATUS_VIEWERS),
		metric_gauge_sum(seg, G_OPEN_CONNS), metric_sum(seg, M_EVENTS),
		metric_gauge_sum(seg, G_STATUS_VIEWERS));
	return true;
}

static void
put_counts(struct status_sample *s, const char *name, uint32_t pool, enum metric_histogram h)
{
	struct metric_hist sum;

	metric_hist_sum(s->w->seg, pool, h, &sum);
	put_form(&s->next, ",\"%s\":[", name);
	for (uint32_t i = 0; i <= METRIC_BUCKETS; i++)
		put_form(&s->next, "%s%" PRIu64, comma(i), sum.bucket[i]);
	put(&s->next, "]");
}

static bool
of_pools(struct status_sample *s)
{
	uint32_t pool;
	uint64_t since_ms;

	if (s->at == s->t.npools) {
		put(&s->next, "],\"engines\":[");
		return true;
	}
	pool = s->t.pools[s->at].id;
	put_form(&s->next, "%s{\"waiting\":%u,\"tokens\":%" PRIu64, comma(s->at),
		queue_waiting(s->w->seg, pool, &since_ms),
		metric_tokens_sum(s->w->seg, pool, T_COMPLETION));
	put_counts(s, "ttft", pool, H_TTFT);
	put_counts(s, "gap", pool, H_GAP);
	put(&s->next, "}");
	s->at++;
	return false;
}

/* One word, as `pdctl top` shows it. */
static const char *
state_of(const struct status_sample *s, uint32_t slot, uint64_t now_ms)
{
	const struct ep_view e = ep_view(s->w->seg, slot, now_ms, s->t.foreign_max_age_ms);
	uint64_t left_ms;

	if (e.state != EP_UP)
		return ep_state_name(e.state);
	if (eject_read(s->w->seg, slot, now_ms, &left_ms) != EJECT_IN)
		return "ejected";
	if (e.away == EP_AWAY_BUSY)
		return "busy";
	return share_slow(e.share) ? "slow" : "up";
}

/* [state, in flight, running, waiting, KV in use (1/1000), requests, failures]; -1: not known. */
static void
put_engine(struct status_sample *s, uint32_t slot, uint64_t now_ms)
{
	const struct seg *seg = s->w->seg;
	const struct ep_scrape scrape = ep_scrape_get(seg, slot);
	const bool known = scrape.at_ms != 0;
	const uint64_t requests = tally_requests(seg, slot),
		       good = tally_count(seg, slot, TALLY_GOOD);

	put_form(&s->next, "%s[\"%s\",%u,%" PRId64 ",%" PRId64 ",%d,%" PRIu64 ",%" PRIu64 "]",
		comma(s->at), state_of(s, slot, now_ms), load_count(seg, slot),
		known ? (int64_t)scrape.running : -1, known ? (int64_t)scrape.waiting : -1,
		known ? (int)(scrape.kv_usage_ppm / 1000) : -1, requests,
		requests > good ? requests - good : 0);
}

static bool
of_engines(struct status_sample *s)
{
	const uint64_t now_ms = clock_ms();

	for (uint32_t n = 0; n < STEP_ROWS && s->at < s->t.nendpoints; n++, s->at++)
		put_engine(s, s->t.endpoints[s->at].slot, now_ms);
	if (s->at < s->t.nendpoints)
		return false;
	put(&s->next, "],\"flows\":[");
	memset(s->flows, 0, sizeof(s->flows));
	s->others = 0;
	return true;
}

/* --- flows: the engines of requests in flight --------------------------------------------------- */

/* NO_ROW: there is none, or the engine of that life of the slot is not in the table. */
static uint32_t
row_of(const struct status_sample *s, const struct note *n, enum role role)
{
	const struct seg *seg = s->w->seg;
	const uint32_t slot = n->now.engines.slot[role];

	if (slot >= seg->hdr->max_endpoints ||
		(uint32_t)ep_tag(seg, slot) != n->now.engines.tag[role])
		return NO_ROW;
	return s->rows[slot];
}

static void
count_flow(struct status_sample *s, uint32_t prefill, uint32_t decode)
{
	uint32_t cell = prefill * 2654435761u ^ decode * 2246822519u;

	for (int i = 0; i < FLOW_TRIES; i++, cell++) {
		struct flow *f = &s->flows[(cell >> 7 ^ cell) % FLOWS];

		if (f->n == 0)
			*f = (struct flow){prefill, decode, 0};
		if (f->prefill == prefill && f->decode == decode) {
			f->n++;
			return;
		}
	}
	s->others++;
}

static void
put_flows(struct status_sample *s)
{
	uint32_t shown = 0;

	for (uint32_t i = 0; i < FLOWS; i++)
		if (s->flows[i].n > 0)
			put_form(&s->next, "%s[%d,%d,%u]", comma(shown++), (int)s->flows[i].prefill,
				(int)s->flows[i].decode, s->flows[i].n);
	put_form(&s->next, "],\"other_flows\":%u,\"failures\":[", s->others);
}

static bool
of_flows(struct status_sample *s)
{
	const struct seg *seg = s->w->seg;
	struct note note;

	for (uint32_t n = 0; n < STEP_NOTES && s->worker < SLOT_WORKERS(seg); n++) {
		if (s->at >= notes_in_flight(seg, s->worker)) {
			s->worker++;
			s->at = 0;
		} else if (note_running(seg, s->worker, s->at++, &note)) {
			const uint32_t p = row_of(s, &note, ROLE_PREFILL),
				       d = row_of(s, &note, ROLE_DECODE);

			if (p != NO_ROW || d != NO_ROW)
				count_flow(s, p, d);
		}
	}
	if (s->worker < SLOT_WORKERS(seg))
		return false;
	put_flows(s);
	return true;
}

/* --- the last requests that failed -------------------------------------------------------------- */

/* Not a client that has left, nor its own mistakes. */
static bool
is_failure(const struct note *n)
{
	if (strcmp(n->reason, end_word(END_OK)) == 0 ||
		strcmp(n->reason, end_word(END_LOCAL)) == 0 ||
		strcmp(n->reason, end_word(END_CLIENT_GONE)) == 0)
		return false;
	return n->status < 400 || n->status == 429 || n->status >= 500;
}

static void
keep_failure(struct status_sample *s, const struct note *n)
{
	uint32_t at = 0;

	while (at < s->nfailures && s->failures[at].now.at_us > n->now.at_us)
		at++;
	if (at == FAILURES)
		return;
	if (s->nfailures < FAILURES)
		s->nfailures++;
	memmove(&s->failures[at + 1], &s->failures[at],
		(s->nfailures - at - 1) * sizeof(s->failures[0]));
	s->failures[at] = *n;
}

/* The turn of a worker: what its ring no longer has is passed by. */
static void
begin_ring(struct status_sample *s)
{
	uint64_t *seen = &s->seen[s->worker], kept;

	s->last = notes_ended(s->w->seg, s->worker);
	kept = notes_kept(s->w->seg, s->last);
	if (*seen > s->last || s->last - *seen > kept)
		*seen = s->last - kept;
	s->at = 1;
}

static void
look_at_next(struct status_sample *s, uint64_t now_us)
{
	struct note note;

	if (note_ended(s->w->seg, s->worker, ++s->seen[s->worker], &note) &&
		note.now.at_us <= now_us + LATER_US && is_failure(&note))
		keep_failure(s, &note);
}

static void
put_failure(struct status_sample *s, uint32_t i, uint64_t now_us)
{
	const struct note *n = &s->failures[i];
	struct membuf *out = &s->next;

	put_form(out,
		"%s{\"age_ms\":%" PRIu64 ",\"status\":%u,\"prefill\":%d,\"decode\":%d,\"pool\":",
		comma(i), now_us > n->now.at_us ? (now_us - n->now.at_us) / 1000 : 0, n->status,
		(int)row_of(s, n, ROLE_PREFILL), (int)row_of(s, n, ROLE_DECODE));
	put_quoted(out, n->now.pool < s->w->seg->hdr->max_pools
				? seg_pool_name(s->w->seg, n->now.pool)
				: "");
	put(out, ",\"id\":");
	put_quoted(out, n->id);
	put(out, ",\"model\":");
	put_quoted(out, n->model);
	put(out, ",\"reason\":");
	put_quoted(out, n->reason);
	put(out, "}");
}

static bool
of_failures(struct status_sample *s)
{
	const uint64_t now_us = clock_us();

	for (uint32_t n = 0; n < STEP_NOTES && s->worker < SLOT_WORKERS(s->w->seg); n++) {
		if (s->at == 0)
			begin_ring(s);
		if (s->seen[s->worker] < s->last) {
			look_at_next(s, now_us);
		} else {
			s->worker++;
			s->at = 0;
		}
	}
	if (s->worker < SLOT_WORKERS(s->w->seg))
		return false;
	for (uint32_t i = 0; i < s->nfailures; i++)
		put_failure(s, i, now_us);
	put(&s->next, "]}\n\n");
	return true;
}

/* --- the whole ---------------------------------------------------------------------------------- */

/* Makes a step of a section.  Returns true if that was its last one. */
typedef bool section_fn(struct status_sample *s);
static section_fn *const sections[] = {
	of_table, of_router, of_pools, of_engines, of_flows, of_failures};
#define NSECTIONS (sizeof(sections) / sizeof(sections[0]))

struct status_sample *
status_sample_new(struct worker *w)
{
	struct status_sample *s = MEM_NEW(struct status_sample);

	s->w = w;
	s->rows = mem_array(w->seg->hdr->max_endpoints, sizeof(*s->rows));
	s->seen = mem_array(SLOT_WORKERS(w->seg), sizeof(*s->seen));
	status_sample_begin(s);
	return s;
}

void
status_sample_free(struct status_sample **ps)
{
	struct status_sample *s = *ps;

	if (s == NULL)
		return;
	table_copy_free(&s->t);
	free(s->rows);
	free(s->seen);
	membuf_free(&s->fleet);
	membuf_free(&s->now);
	membuf_free(&s->next_fleet);
	membuf_free(&s->next);
	free(s);
	*ps = NULL;
}

void
status_sample_begin(struct status_sample *s)
{
	if (s->renewed && s->section < NSECTIONS)
		s->t.version = NO_VERSION; /* its names were not shown */
	s->section = s->at = s->worker = 0;
	s->renewed = false;
	s->next.n = 0;
}

static void
swap(struct membuf *a, struct membuf *b)
{
	const struct membuf was = *a;

	*a = *b;
	*b = was;
}

static void
complete(struct status_sample *s)
{
	swap(&s->now, &s->next);
	if (!s->renewed)
		return;
	swap(&s->fleet, &s->next_fleet);
	s->number = s->next_number;
}

bool
status_sample_step(struct status_sample *s)
{
	if (s->section < NSECTIONS && sections[s->section](s)) {
		s->section++;
		s->at = s->worker = 0;
		if (s->section == NSECTIONS)
			complete(s);
	}
	return s->section < NSECTIONS;
}

struct span
status_sample_fleet(const struct status_sample *s)
{
	return (struct span){s->fleet.p, s->fleet.n};
}

struct span
status_sample_now(const struct status_sample *s)
{
	return (struct span){s->now.p, s->now.n};
}

uint64_t
status_sample_number(const struct status_sample *s)
{
	return s->number;
}
