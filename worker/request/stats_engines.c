#include "worker/request/stats_engines.h"

#include <event2/buffer.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/wire/prom.h"
#include "shm/base/clock.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/kv_events.h"
#include "shm/latency.h"
#include "shm/load.h"
#include "shm/pace.h"
#include "shm/prefix.h"
#include "shm/tally.h"
#include "worker/request/exposition.h"
#include "worker/request/table_copy.h"

/* Computes one figure of one endpoint.  Returns false if it is not known now. */
typedef bool figure_fn(const struct about *a, double *ret);

static bool
f_up(const struct about *a, double *ret)
{
	*ret = ep_state_get(a->seg, a->ep->slot) == EP_UP;
	return true;
}

static bool
f_ejected(const struct about *a, double *ret)
{
	uint64_t left_ms;

	*ret = eject_read(a->seg, a->ep->slot, clock_ms(), &left_ms) != EJECT_IN;
	return true;
}

static bool
f_ejections(const struct about *a, double *ret)
{
	*ret = (double)eject_count(a->seg, a->ep->slot);
	return true;
}

static bool
f_requests(const struct about *a, double *ret)
{
	*ret = (double)tally_requests(a->seg, a->ep->slot);
	return true;
}

static bool
f_busy(const struct about *a, double *ret)
{
	*ret = busy_is(a->seg, a->ep->slot);
	return true;
}

static bool
f_busy_answers(const struct about *a, double *ret)
{
	*ret = (double)busy_count(a->seg, a->ep->slot);
	return true;
}

static bool
f_slow(const struct about *a, double *ret)
{
	*ret = share_slow(share_word(a->seg, a->ep->slot));
	return true;
}

static bool
f_token_seconds(const struct about *a, double *ret)
{
	const struct pace p = pace_unpack(pace_word(a->seg, a->ep->slot));

	*ret = exp2((double)p.token / PACE_DOUBLE - PACE_TOKEN_SHIFT) / 1e6;
	return p.samples > 0;
}

static bool
f_in_flight(const struct about *a, double *ret)
{
	*ret = load_count(a->seg, a->ep->slot);
	return true;
}

static bool
f_kv_outstanding(const struct about *a, double *ret)
{
	*ret = load_kv_sum(a->seg, a->ep->slot);
	return a->ep->role == ROLE_PREFILL;
}

static bool
f_tokens(const struct about *a, double *ret)
{
	*ret = load_tokens(a->seg, a->ep->slot);
	return true;
}

static bool
f_weight(const struct about *a, double *ret)
{
	*ret = a->ep->weight;
	return a->ep->weight != 1;
}

static bool
f_score(const struct about *a, double *ret)
{
	*ret = (double)load_score(a->seg, a->ep->slot, clock_ms(), a->t->foreign_max_age_ms);
	return true;
}

/* A member of its sums.  Of endpoints that policy cache_aware does not choose there are no figures. */
#define PREFIX_FIGURE(member)                                                                      \
	static bool f_prefix_##member(const struct about *a, double *ret)                          \
	{                                                                                          \
		const struct prefix_sums sums = prefix_sums(a->seg, a->ep->slot);                  \
                                                                                                   \
		*ret = (double)sums.member;                                                        \
		return sums.answers > 0;                                                           \
	}
PREFIX_FIGURE(answers)
PREFIX_FIGURE(prompt)
PREFIX_FIGURE(expected)
PREFIX_FIGURE(cached)
PREFIX_FIGURE(kept)
#undef PREFIX_FIGURE

static bool
f_capacity(const struct about *a, double *ret)
{
	*ret = (double)prefix_capacity(a->seg, a->ep->slot);
	return *ret > 0;
}

static bool
f_running(const struct about *a, double *ret)
{
	struct ep_scrape s = ep_scrape_get(a->seg, a->ep->slot);

	*ret = s.running;
	return s.at_ms != 0;
}

static bool
f_waiting(const struct about *a, double *ret)
{
	struct ep_scrape s = ep_scrape_get(a->seg, a->ep->slot);

	*ret = s.waiting;
	return s.at_ms != 0;
}

static bool
f_kv(const struct about *a, double *ret)
{
	struct ep_scrape s = ep_scrape_get(a->seg, a->ep->slot);

	*ret = s.kv_usage_ppm / 1e6;
	return s.at_ms != 0;
}

static bool
f_engine_prompt(const struct about *a, double *ret)
{
	struct ep_scrape s = ep_scrape_get(a->seg, a->ep->slot);

	*ret = (double)s.prompt_tokens;
	return s.has_tokens;
}

static bool
f_engine_generated(const struct about *a, double *ret)
{
	struct ep_scrape s = ep_scrape_get(a->seg, a->ep->slot);

	*ret = (double)s.generated_tokens;
	return s.has_tokens;
}

static bool
f_load_absurd(const struct about *a, double *ret)
{
	struct ep_scrape s = ep_scrape_get(a->seg, a->ep->slot);

	*ret = s.absurd;
	return s.at_ms != 0;
}

static bool
f_max_context(const struct about *a, double *ret)
{
	*ret = a->ep->max_context;
	return a->ep->max_context != 0;
}

static bool
f_kv_stored(const struct about *a, double *ret)
{
	struct kv_counts c;
	const bool known = kv_counts_get(a->seg, a->ep->slot, &c);

	*ret = (double)c.stored;
	return known;
}

static bool
f_kv_removed(const struct about *a, double *ret)
{
	struct kv_counts c;
	const bool known = kv_counts_get(a->seg, a->ep->slot, &c);

	*ret = (double)c.removed;
	return known;
}

static bool
f_kv_cleared(const struct about *a, double *ret)
{
	struct kv_counts c;
	const bool known = kv_counts_get(a->seg, a->ep->slot, &c);

	*ret = (double)c.cleared;
	return known;
}

static bool
f_kv_held(const struct about *a, double *ret)
{
	uint64_t held;
	const bool known = prefix_held(a->seg, a->ep->slot, &held);

	*ret = (double)held;
	return known;
}

static bool
f_kv_events_lag(const struct about *a, double *ret)
{
	struct kv_counts c;
	const bool known = kv_counts_get(a->seg, a->ep->slot, &c);

	*ret = (double)c.lag_us / 1e6;
	return known;
}

static bool
f_kv_events_age(const struct about *a, double *ret)
{
	const uint64_t now_ms = clock_ms();
	struct kv_counts c;
	const bool known = kv_counts_get(a->seg, a->ep->slot, &c);

	*ret = c.at_ms < now_ms ? (double)(now_ms - c.at_ms) / 1e3 : 0;
	return known;
}

#define LABELS_BYTES 900 /* URL, pool, the role and the labels' names */

/* As in a series, with no brace. */
static const char *
labels_of(const struct about *a, char labels[LABELS_BYTES])
{
	char url[600], pool[160];
	const struct endpoint_copy *ep = a->ep;
	const char *name = seg_pool_name(a->seg, a->t->pools[ep->pool].id);
	const char *text = a->t->text.p + ep->url;

	(void)prom_label(url, sizeof(url), text, strlen(text));
	(void)prom_label(pool, sizeof(pool), name, strlen(name));
	(void)snprintf(labels, LABELS_BYTES, "engine=\"%s\",role=\"%s\",pool=\"%s\"", url,
		role_name(ep->role), pool);
	return labels;
}

static void
failures(const struct exposition *x, const struct about *a)
{
	char labels[LABELS_BYTES];

	(void)labels_of(a, labels);
	for (enum tally_cause cause = TALLY_GOOD + 1; cause < TALLY_N; cause++)
		(void)evbuffer_add_printf(x->out,
			"pdrouter_endpoint_failures_total{%s,cause=\"%s\"} %llu\n", labels,
			tally_cause_name(cause),
			(unsigned long long)tally_count(a->seg, a->ep->slot, cause));
}

static void
latency(const struct exposition *x, const struct about *a, const char *name, enum latency_kind kind)
{
	uint64_t counts[LATENCY_BUCKETS + 1];
	char labels[LABELS_BYTES];
	struct exposition_histogram h = {
		.name = name, .labels = labels_of(a, labels), .counts = counts};

	h.bounds = latency_bounds(kind, &h.n);
	h.sum = latency_read(a->seg, a->ep->slot, kind, counts);
	exposition_histogram(x, &h);
}

static void
connects(const struct exposition *x, const struct about *a)
{
	latency(x, a, "pdrouter_endpoint_connect_seconds", LATENCY_CONNECT);
}

static void
first_bytes(const struct exposition *x, const struct about *a)
{
	latency(x, a, "pdrouter_endpoint_time_to_first_byte_seconds", LATENCY_FIRST);
}

/* Writes a series whose value is 1: the last label has the information. */
static void
put_word(const struct exposition *x, const char *name, const struct about *a, const char *label,
	const char *word)
{
	char labels[LABELS_BYTES], text[200];

	(void)prom_label(text, sizeof(text), word, strlen(word));
	(void)evbuffer_add_printf(
		x->out, "%s{%s,%s=\"%s\"} 1\n", name, labels_of(a, labels), label, text);
}

static void
group(const struct exposition *x, const struct about *a)
{
	if (a->t->text.p[a->ep->group] != '\0')
		put_word(x, "pdrouter_endpoint_group", a, "group", a->t->text.p + a->ep->group);
}

static void
state(const struct exposition *x, const struct about *a)
{
	put_word(x, "pdrouter_endpoint_state", a, "state",
		ep_state_name(ep_state_get(a->seg, a->ep->slot)));
}

static void
info(const struct exposition *x, const struct about *a)
{
	put_word(x, "pdrouter_endpoint_info", a, "version", a->t->text.p + a->ep->version);
}

/* clang-format off */
static const struct {
	const char *name, *type, *help;
	figure_fn *fn; /* NULL: `put` writes the series */
	void (*put)(const struct exposition *x, const struct about *a);
} metrics[] = {
	{ "pdrouter_endpoint_up", "gauge", "1 while the endpoint may be chosen.", f_up, NULL },
	{ "pdrouter_endpoint_ejected", "gauge", "1 while the endpoint is left alone because its requests failed.", f_ejected, NULL },
	{ "pdrouter_ejections_total", "counter", "How often the endpoint was ejected because its requests failed.", f_ejections, NULL },
	{ "pdrouter_endpoint_requests_total", "counter", "Requests of all workers to the endpoint that had an outcome.", f_requests, NULL },
	{ "pdrouter_endpoint_busy", "gauge", "1 while the endpoint is passed by because its engine answered that it has no room.", f_busy, NULL },
	{ "pdrouter_endpoint_busy_answers_total", "counter", "Answers of the endpoint that said so: 429, or 503 with Retry-After.", f_busy_answers, NULL },
	{ "pdrouter_endpoint_slow", "gauge", "1 while the endpoint gets fewer requests because its engine is slower than its peers.", f_slow, NULL },
	{ "pdrouter_endpoint_token_seconds", "gauge", "Time of the engine per uncached prompt token (prefill; 256 are added to each prompt), per event or token of an answer (decode): the geometric mean of the last samples.", f_token_seconds, NULL },
	{ "pdrouter_endpoint_in_flight", "gauge", "Reservations of all workers at the endpoint.", f_in_flight, NULL },
	{ "pdrouter_endpoint_kv_outstanding", "gauge", "KV that the prefill engine holds for this router's requests and no decode engine has fetched.", f_kv_outstanding, NULL },
	{ "pdrouter_endpoint_prompt_tokens", "gauge", "Estimated prompt tokens of the requests in flight at the endpoint.", f_tokens, NULL },
	{ "pdrouter_endpoint_score", "gauge", "In flight, plus the requests that others than this router have there.", f_score, NULL },
	{ "pdrouter_endpoint_weight", "gauge", "Its share beside the others, where it is not 1.", f_weight, NULL },
	{ "pdrouter_endpoint_prefix_answers_total", "counter", "Answers to prompts of policy cache_aware that said how much of the prompt was in the engine's cache.", f_prefix_answers, NULL },
	{ "pdrouter_endpoint_prefix_prompt_tokens_total", "counter", "Estimated tokens of these prompts.", f_prefix_prompt, NULL },
	{ "pdrouter_endpoint_prefix_expected_tokens_total", "counter", "Of these, tokens that the router expected in the engine's cache.", f_prefix_expected, NULL },
	{ "pdrouter_endpoint_prefix_cached_tokens_total", "counter", "Of these, tokens that the engine had in its cache, as it said.", f_prefix_cached, NULL },
	{ "pdrouter_endpoint_prefix_kept_ratio", "gauge", "What the engine had lately of what the prefix index says: 1 if the index is right.", f_prefix_kept, NULL },
	{ "pdrouter_endpoint_cache_capacity_tokens", "gauge", "What the engine's cache holds, as its /metrics said.", f_capacity, NULL },
	{ "pdrouter_endpoint_running", "gauge", "Requests running, as the engine said at the last scrape.", f_running, NULL },
	{ "pdrouter_endpoint_waiting", "gauge", "Requests waiting, as the engine said at the last scrape.", f_waiting, NULL },
	{ "pdrouter_endpoint_load_absurd", "gauge", "1 while what the engine says of its load is not believed.", f_load_absurd, NULL },
	{ "pdrouter_endpoint_kv_usage_ratio", "gauge", "KV cache in use, as the engine said at the last scrape.", f_kv, NULL },
	{ "pdrouter_endpoint_engine_prompt_tokens_total", "counter", "Tokens of prompts, as the engine counts them for all its clients since its start.", f_engine_prompt, NULL },
	{ "pdrouter_endpoint_engine_generated_tokens_total", "counter", "Tokens that the engine has generated, as it counts them for all its clients since its start.", f_engine_generated, NULL },
	{ "pdrouter_endpoint_kv_stored_tokens_total", "counter", "Tokens that the engine has put into its prefix cache, as its KV events say.", f_kv_stored, NULL },
	{ "pdrouter_endpoint_kv_removed_tokens_total", "counter", "Tokens that the engine has evicted from it, as its KV events say.", f_kv_removed, NULL },
	{ "pdrouter_endpoint_kv_cleared_total", "counter", "How often the prefix cache of the engine was emptied, its restarts included, as its KV events say.", f_kv_cleared, NULL },
	{ "pdrouter_endpoint_kv_held_tokens", "gauge", "Tokens in the prefix cache of the engine, where all KV events have come since it was empty.", f_kv_held, NULL },
	{ "pdrouter_endpoint_kv_events_lag_seconds", "gauge", "Age of the last KV events when they were read, by the clocks of both hosts.", f_kv_events_lag, NULL },
	{ "pdrouter_endpoint_kv_events_age_seconds", "gauge", "Time since the last KV events came.", f_kv_events_age, NULL },
	{ "pdrouter_endpoint_max_context_tokens", "gauge", "The longest context of a request, as the engine said.", f_max_context, NULL },
	{ "pdrouter_endpoint_connect_seconds", "histogram", "Time of making a connection to the engine.", NULL, connects },
	{ "pdrouter_endpoint_time_to_first_byte_seconds", "histogram", "From the start of a leg, its connection included, to the first body byte of the engine's good answer.", NULL, first_bytes },
	{ "pdrouter_endpoint_failures_total", "counter", "Requests to the endpoint that failed because of it, were refused by it, or lacked KV parameters, by cause.", NULL, failures },
	{ "pdrouter_endpoint_group", "gauge", "1 for the group the endpoint is in.", NULL, group },
	{ "pdrouter_endpoint_state", "gauge", "1 for the state the endpoint is in.", NULL, state },
	{ "pdrouter_endpoint_info", "gauge", "The version the engine says it is of, empty until then; always 1.", NULL, info },
};
/* clang-format on */

uint32_t
stats_engine_metrics(void)
{
	return sizeof(metrics) / sizeof(metrics[0]);
}

void
stats_engine_heading(const struct exposition *x, uint32_t metric)
{
	exposition_heading(x, metrics[metric].name, metrics[metric].type, metrics[metric].help);
}

void
stats_engine(const struct exposition *x, const struct about *a, uint32_t metric)
{
	char labels[LABELS_BYTES];
	double v;

	if (metrics[metric].fn == NULL)
		metrics[metric].put(x, a);
	else if (metrics[metric].fn(a, &v))
		(void)evbuffer_add_printf(
			x->out, "%s{%s} %.15g\n", metrics[metric].name, labels_of(a, labels), v);
}
