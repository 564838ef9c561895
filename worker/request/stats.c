#include "worker/request/stats.h"

#include <event2/buffer.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "proto/wire/prom.h"
#include "shm/base/clock.h"
#include "shm/busy.h"
#include "shm/eject.h"
#include "shm/core/heritage.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/pace.h"
#include "shm/queue.h"
#include "shm/tally.h"
#include "worker/base/core.h"
#include "worker/base/end_list.h"
#include "worker/base/route.h"
#include "worker/request/table_copy.h"

#define PIECE_BYTES (64u << 10) /* a piece is not made longer; some 0.4 ms */
#define PIECE_ENDPOINTS 16      /* endpoints between two looks at the length */

/* combinations of pool, path, status and reason shown; METRIC_CELLS a process */
#define STATS_CELLS 2048

static void
heading(struct evbuffer *out, const char *name, const char *type, const char *help)
{
	const int n = (int)strcspn(name, "{"); /* without a label */

	(void)evbuffer_add_printf(
		out, "# HELP %.*s %s\n# TYPE %.*s %s\n", n, name, help, n, name, type);
}

static const char *
pool_name(const struct worker *w, uint32_t id)
{
	return id == METRIC_NO_POOL ? "" : seg_pool_name(w->seg, id);
}

static bool
is_possible(const struct worker *w, const struct metric_request *r)
{
	return (r->pool == METRIC_NO_POOL || r->pool < w->seg->hdr->max_pools) &&
	       r->path < ROUTE_N && r->reason < END_N;
}

static void
requests(struct worker *w, struct evbuffer *out)
{
	struct metric_cell cells[STATS_CELLS];
	uint64_t other;
	size_t n = metric_cells_sum(w->seg, cells, STATS_CELLS, &other);
	char pool[160];

	heading(out, "pdrouter_requests_total", "counter",
		"Requests ended, by pool, path, status sent and end reason.");
	for (size_t i = 0; i < n; i++) {
		struct metric_request r = metric_unkey(cells[i].key);
		const char *name;

		if (!is_possible(w, &r)) /* the master repairs it */
			continue;
		name = pool_name(w, r.pool);
		(void)prom_label(pool, sizeof(pool), name, strlen(name));
		(void)evbuffer_add_printf(out,
			"pdrouter_requests_total{pool=\"%s\",path=\"%s\",status=\"%u\",reason=\"%s\"} %llu\n",
			pool, route_path(r.path), r.status, end_word(r.reason),
			(unsigned long long)cells[i].count);
	}
	if (other > 0)
		(void)evbuffer_add_printf(out,
			"pdrouter_requests_total{pool=\"\",path=\"other\",status=\"0\",reason=\"uncounted\"} %llu\n",
			(unsigned long long)other);
}

static void
counters(struct worker *w, struct evbuffer *out)
{
	for (enum metric_counter m = 0; m < M_N; m++) {
		if (metric_counter_help[m][0] != '\0')
			heading(out, metric_counter_name[m], "counter", metric_counter_help[m]);
		(void)evbuffer_add_printf(out, "%s %llu\n", metric_counter_name[m],
			(unsigned long long)metric_sum(w->seg, m));
	}
	for (enum metric_gauge g = 0; g < G_N; g++) {
		heading(out, metric_gauge_name[g], "gauge", metric_gauge_help[g]);
		(void)evbuffer_add_printf(out, "%s %lld\n", metric_gauge_name[g],
			(long long)metric_gauge_sum(w->seg, g));
	}
}

static void
certificates(struct worker *w, struct evbuffer *out)
{
	static const char name[] = "pdrouter_tls_certificate_expiry_seconds";
	const struct conf_tls *tls = &w->conf->tls;
	const int64_t now = (int64_t)time(NULL);
	char label[600];

	if (tls->ncertificates > 0)
		heading(out, name, "gauge",
			"Seconds until a certificate of tls.certificates expires.");
	for (size_t i = 0; i < tls->ncertificates; i++) {
		const struct conf_certificate *c = &tls->certificates[i];

		(void)prom_label(label, sizeof(label), c->cert, strlen(c->cert));
		(void)evbuffer_add_printf(out, "%s{certificate=\"%s\"} %lld\n", name, label,
			(long long)(c->until - now));
	}
}

static void
histogram(struct worker *w, struct evbuffer *out, enum metric_histogram h, uint32_t id)
{
	struct metric_hist sum;
	uint64_t total = 0;
	char pool[160];
	const char *name = pool_name(w, id);

	metric_hist_sum(w->seg, id, h, &sum);
	(void)prom_label(pool, sizeof(pool), name, strlen(name));
	for (int b = 0; b < METRIC_BUCKETS; b++) {
		total += sum.bucket[b];
		(void)evbuffer_add_printf(out, "%s_bucket{pool=\"%s\",le=\"%g\"} %llu\n",
			metric_hist_name[h], pool, (double)metric_bucket_us[b] / 1e6,
			(unsigned long long)total);
	}
	total += sum.bucket[METRIC_BUCKETS];
	(void)evbuffer_add_printf(out, "%s_bucket{pool=\"%s\",le=\"+Inf\"} %llu\n",
		metric_hist_name[h], pool, (unsigned long long)total);
	(void)evbuffer_add_printf(out, "%s_sum{pool=\"%s\"} %.6f\n%s_count{pool=\"%s\"} %llu\n",
		metric_hist_name[h], pool, (double)sum.sum_us / 1e6, metric_hist_name[h], pool,
		(unsigned long long)total);
}

static void
histogram_of_all(
	struct worker *w, struct evbuffer *out, const struct table_copy *t, enum metric_histogram h)
{
	heading(out, metric_hist_name[h], "histogram", metric_hist_help[h]);
	for (uint32_t i = 0; i < t->npools; i++)
		histogram(w, out, h, t->pools[i].id);
}

/* The subject of a figure. */
struct about {
	const struct seg *seg;
	const struct table_copy *t;
	const struct endpoint_copy *ep;
};

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

/* clang-format off */
static const struct {
	const char *name, *type, *help;
	figure_fn *fn;
} figures[] = {
	{ "pdrouter_endpoint_up", "gauge", "1 while the endpoint may be chosen.", f_up },
	{ "pdrouter_endpoint_ejected", "gauge", "1 while the endpoint is left alone because its requests failed.", f_ejected },
	{ "pdrouter_ejections_total", "counter", "How often the endpoint was ejected because its requests failed.", f_ejections },
	{ "pdrouter_endpoint_requests_total", "counter", "Requests of all workers to the endpoint that had an outcome.", f_requests },
	{ "pdrouter_endpoint_busy", "gauge", "1 while the endpoint is passed by because its engine answered that it has no room.", f_busy },
	{ "pdrouter_endpoint_busy_answers_total", "counter", "Answers of the endpoint that said so: 429, or 503 with Retry-After.", f_busy_answers },
	{ "pdrouter_endpoint_slow", "gauge", "1 while the endpoint gets fewer requests because its engine is slower than its peers.", f_slow },
	{ "pdrouter_endpoint_token_seconds", "gauge", "Time of the engine per uncached prompt token (prefill; 256 are added to each prompt), per event or token of an answer (decode): the geometric mean of the last samples.", f_token_seconds },
	{ "pdrouter_endpoint_in_flight", "gauge", "Reservations of all workers at the endpoint.", f_in_flight },
	{ "pdrouter_endpoint_kv_outstanding", "gauge", "KV that the prefill engine holds for this router's requests and no decode engine has fetched.", f_kv_outstanding },
	{ "pdrouter_endpoint_prompt_tokens", "gauge", "Estimated prompt tokens of the requests in flight at the endpoint.", f_tokens },
	{ "pdrouter_endpoint_score", "gauge", "In flight, plus the requests that others than this router have there.", f_score },
	{ "pdrouter_endpoint_weight", "gauge", "Its share beside the others, where it is not 1.", f_weight },
	{ "pdrouter_endpoint_running", "gauge", "Requests running, as the engine said at the last scrape.", f_running },
	{ "pdrouter_endpoint_waiting", "gauge", "Requests waiting, as the engine said at the last scrape.", f_waiting },
	{ "pdrouter_endpoint_load_absurd", "gauge", "1 while what the engine says of its load is not believed.", f_load_absurd },
	{ "pdrouter_endpoint_kv_usage_ratio", "gauge", "KV cache in use, as the engine said at the last scrape.", f_kv },
	{ "pdrouter_endpoint_max_context_tokens", "gauge", "The longest context of a request, as the engine said.", f_max_context },
};
/* clang-format on */

static void
endpoint_labels(struct evbuffer *out, const struct about *a)
{
	char url[600], pool[160];
	const struct endpoint_copy *ep = a->ep;
	const char *name = seg_pool_name(a->seg, a->t->pools[ep->pool].id);
	const char *text = a->t->text.p + ep->url;

	(void)prom_label(url, sizeof(url), text, strlen(text));
	(void)prom_label(pool, sizeof(pool), name, strlen(name));
	(void)evbuffer_add_printf(
		out, "{engine=\"%s\",role=\"%s\",pool=\"%s\"", url, role_name(ep->role), pool);
}

static void
figure(struct evbuffer *out, const struct about *a, uint32_t row)
{
	double v;

	if (!figures[row].fn(a, &v))
		return;
	(void)evbuffer_add_printf(out, "%s", figures[row].name);
	endpoint_labels(out, a);
	(void)evbuffer_add_printf(out, "} %.15g\n", v);
}

static void
failures(struct evbuffer *out, const struct about *a)
{
	for (enum tally_cause cause = TALLY_GOOD + 1; cause < TALLY_N; cause++) {
		(void)evbuffer_add_printf(out, "pdrouter_endpoint_failures_total");
		endpoint_labels(out, a);
		(void)evbuffer_add_printf(out, ",cause=\"%s\"} %llu\n", tally_cause_name(cause),
			(unsigned long long)tally_count(a->seg, a->ep->slot, cause));
	}
}

/* Writes a series whose value is 1: the last label has the information. */
static void
put_word(struct evbuffer *out, const char *name, const struct about *a, const char *label,
	const char *word)
{
	char text[200];

	(void)prom_label(text, sizeof(text), word, strlen(word));
	(void)evbuffer_add_printf(out, "%s", name);
	endpoint_labels(out, a);
	(void)evbuffer_add_printf(out, ",%s=\"%s\"} 1\n", label, text);
}

static void
group(struct evbuffer *out, const struct about *a)
{
	if (a->t->text.p[a->ep->group] != '\0')
		put_word(out, "pdrouter_endpoint_group", a, "group", a->t->text.p + a->ep->group);
}

static void
state(struct evbuffer *out, const struct about *a)
{
	put_word(out, "pdrouter_endpoint_state", a, "state",
		ep_state_name(ep_state_get(a->seg, a->ep->slot)));
}

static void
info(struct evbuffer *out, const struct about *a)
{
	put_word(out, "pdrouter_endpoint_info", a, "version", a->t->text.p + a->ep->version);
}

static void
queues(struct worker *w, struct evbuffer *out, const struct table_copy *t)
{
	char pool[160];
	uint64_t since_ms;

	heading(out, "pdrouter_queue_waiting", "gauge",
		"Requests that wait for a place at an endpoint.");
	for (uint32_t i = 0; i < t->npools; i++) {
		const char *name = pool_name(w, t->pools[i].id);

		(void)prom_label(pool, sizeof(pool), name, strlen(name));
		(void)evbuffer_add_printf(out, "pdrouter_queue_waiting{pool=\"%s\"} %u\n", pool,
			queue_waiting(w->seg, t->pools[i].id, &since_ms));
	}
}

static void
tokens(struct worker *w, struct evbuffer *out, const struct table_copy *t)
{
	char pool[160];

	for (enum metric_tokens k = 0; k < T_N; k++) {
		heading(out, metric_tokens_name[k], "counter", metric_tokens_help[k]);
		for (uint32_t i = 0; i < t->npools; i++) {
			const char *name = pool_name(w, t->pools[i].id);

			(void)prom_label(pool, sizeof(pool), name, strlen(name));
			(void)evbuffer_add_printf(out, "%s{pool=\"%s\"} %llu\n",
				metric_tokens_name[k], pool,
				(unsigned long long)metric_tokens_sum(w->seg, t->pools[i].id, k));
		}
	}
}

static void
policies(struct worker *w, struct evbuffer *out, const struct table_copy *t)
{
	char pool[160];

	heading(out, "pdrouter_pool_policy_info", "gauge",
		"How a pool chooses among the endpoints of a role, and what load is there; always 1.");
	for (uint32_t i = 0; i < t->npools; i++)
		for (enum role role = 0; role < ROLE_N; role++) {
			const struct pool_copy *tp = &t->pools[i];
			const char *name = pool_name(w, tp->id);

			(void)prom_label(pool, sizeof(pool), name, strlen(name));
			(void)evbuffer_add_printf(out,
				"pdrouter_pool_policy_info{pool=\"%s\",role=\"%s\",policy=\"%s\",load=\"%s\"} 1\n",
				pool, role_name(role), policy_name(tp->policy[role]),
				load_name(tp->load[role]));
		}
}

/* One of the kind without a filter makes it 0. */
static void
sandbox(const struct worker *w, struct evbuffer *out)
{
	bool workers = true;
	const uint32_t notifier = SLOT_NOTIFIER(w->seg);

	for (uint32_t i = 0; i < SLOT_WORKERS(w->seg); i++)
		if (proc_slot_state(w->seg, i) >= PROC_READY)
			workers = workers && proc_is_sandboxed(w->seg, i);
	heading(out, "pdrouter_sandbox", "gauge",
		"1 where the system calls of all these processes are filtered.");
	(void)evbuffer_add_printf(out, "pdrouter_sandbox{process=\"worker\"} %d\n", workers);
	if (proc_slot_state(w->seg, notifier) >= PROC_READY)
		(void)evbuffer_add_printf(out, "pdrouter_sandbox{process=\"notifier\"} %d\n",
			proc_is_sandboxed(w->seg, notifier));
}

static void
processes(struct worker *w, struct evbuffer *out)
{
	uint32_t serving = 0, draining = 0;

	for (uint32_t i = 0; i < SLOT_WORKERS(w->seg); i++) {
		serving += proc_slot_state(w->seg, i) == PROC_READY;
		draining += proc_slot_state(w->seg, i) == PROC_DRAINING;
	}
	heading(out, "pdrouter_workers", "gauge", "Workers that serve.");
	(void)evbuffer_add_printf(out, "pdrouter_workers %u\n", serving);
	heading(out, "pdrouter_workers_draining", "gauge",
		"Workers of former generations that finish their requests.");
	(void)evbuffer_add_printf(out, "pdrouter_workers_draining %u\n", draining);
	sandbox(w, out);
	heading(out, "pdrouter_build_info", "gauge", "Version of the running program; always 1.");
	(void)evbuffer_add_printf(out, "pdrouter_build_info{version=\"%s\"} 1\n", w->h->version);
	heading(out, "pdrouter_generation", "gauge",
		"Generation of the worker that answered this page.");
	(void)evbuffer_add_printf(out, "pdrouter_generation %u\n", w->h->generation);
}

/* --- the page, piece by piece -------------------------------------------------------------------- */

/* clang-format off */
static const struct {
	const char *name, *type, *help;
	void (*put)(struct evbuffer *out, const struct about *a);
} words[] = {
	{ "pdrouter_endpoint_failures_total", "counter", "Of those: requests that failed because of the endpoint, were refused by it, or lacked KV parameters, by cause.", failures },
	{ "pdrouter_endpoint_group", "gauge", "1 for the group the endpoint is in.", group },
	{ "pdrouter_endpoint_state", "gauge", "1 for the state the endpoint is in.", state },
	{ "pdrouter_endpoint_info", "gauge", "The version the engine says it is of, empty until then; always 1.", info },
};
/* clang-format on */

#define NFIGURES (sizeof(figures) / sizeof(figures[0]))
#define NWORDS (sizeof(words) / sizeof(words[0]))

/* Writes a step of a section.  Returns true if that was its last one. */
typedef bool section_fn(struct stats *s, struct evbuffer *out);

static bool
of_router(struct stats *s, struct evbuffer *out)
{
	processes(s->w, out);
	requests(s->w, out);
	counters(s->w, out);
	certificates(s->w, out);
	return true;
}

static bool
of_times(struct stats *s, struct evbuffer *out)
{
	histogram_of_all(s->w, out, &s->t, (enum metric_histogram)s->row);
	return ++s->row == H_N;
}

/* The next endpoints of a row.  Returns true if these were the last ones of the row. */
static bool
of_endpoints(struct stats *s, struct evbuffer *out,
	void (*put)(struct evbuffer *out, const struct about *a, uint32_t row))
{
	for (uint32_t n = 0; n < PIECE_ENDPOINTS && s->at < s->t.nendpoints; n++) {
		const struct about a = {s->w->seg, &s->t, &s->t.endpoints[s->at++]};

		put(out, &a, s->row);
	}
	if (s->at < s->t.nendpoints)
		return false;
	s->at = 0;
	s->row++;
	return true;
}

static bool
of_figures(struct stats *s, struct evbuffer *out)
{
	if (s->at == 0)
		heading(out, figures[s->row].name, figures[s->row].type, figures[s->row].help);
	return of_endpoints(s, out, figure) && s->row == NFIGURES;
}

static void
word(struct evbuffer *out, const struct about *a, uint32_t row)
{
	words[row].put(out, a);
}

static bool
of_words(struct stats *s, struct evbuffer *out)
{
	if (s->at == 0)
		heading(out, words[s->row].name, words[s->row].type, words[s->row].help);
	return of_endpoints(s, out, word) && s->row == NWORDS;
}

static bool
of_pools(struct stats *s, struct evbuffer *out)
{
	policies(s->w, out, &s->t);
	queues(s->w, out, &s->t);
	tokens(s->w, out, &s->t);
	return true;
}

static section_fn *const sections[] = {of_router, of_times, of_figures, of_words, of_pools};

void
stats_begin(struct stats *s, struct worker *w)
{
	*s = (struct stats){.w = w};
	s->nsections = table_copy_make(w->seg, w->slot, &s->t)
			       ? sizeof(sections) / sizeof(sections[0])
			       : 1; /* there is no table yet */
}

bool
stats_more(struct stats *s, struct evbuffer *out)
{
	while (s->section < s->nsections && evbuffer_get_length(out) < PIECE_BYTES)
		if (sections[s->section](s, out)) {
			s->section++;
			s->row = 0;
		}
	return s->section < s->nsections;
}

void
stats_end(struct stats *s)
{
	table_copy_free(&s->t);
}
