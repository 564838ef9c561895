#include "worker/request/stats.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/wire/prom.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/exemplar.h"
#include "shm/metrics.h"
#include "shm/queue.h"
#include "worker/base/core.h"
#include "worker/base/end_list.h"
#include "worker/base/route.h"
#include "worker/request/stats_engines.h"
#include "worker/request/stats_names.h"
#include "worker/request/stats_processes.h"

#define PIECE_BYTES (64u << 10) /* a piece is not made longer; some 0.4 ms */
#define PIECE_ENDPOINTS 16      /* endpoints between two looks at the length */

/* combinations of pool, path, status and reason shown; METRIC_CELLS a process */
#define STATS_CELLS 2048

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
requests(struct worker *w, const struct exposition *x)
{
	struct metric_cell cells[STATS_CELLS];
	uint64_t other;
	size_t n = metric_cells_sum(w->seg, cells, STATS_CELLS, &other);
	char pool[160];

	exposition_heading(x, "pdrouter_requests_total", "counter",
		"Requests ended, by pool, path, status sent and end reason.");
	for (size_t i = 0; i < n; i++) {
		struct metric_request r = metric_unkey(cells[i].key);
		const char *name;

		if (!is_possible(w, &r)) /* the master repairs it */
			continue;
		name = pool_name(w, r.pool);
		(void)prom_label(pool, sizeof(pool), name, strlen(name));
		(void)evbuffer_add_printf(x->out,
			"pdrouter_requests_total{pool=\"%s\",path=\"%s\",status=\"%u\",reason=\"%s\"} %llu\n",
			pool, route_path(r.path), r.status, end_word(r.reason),
			(unsigned long long)cells[i].count);
	}
	if (other > 0)
		(void)evbuffer_add_printf(x->out,
			"pdrouter_requests_total{pool=\"\",path=\"other\",status=\"0\",reason=\"uncounted\"} %llu\n",
			(unsigned long long)other);
}

static void
counters(struct worker *w, const struct exposition *x)
{
	for (enum metric_counter m = 0; m < M_N; m++) {
		if (metric_counter_help[m][0] != '\0')
			exposition_heading(
				x, metric_counter_name[m], "counter", metric_counter_help[m]);
		(void)evbuffer_add_printf(x->out, "%s %llu\n", metric_counter_name[m],
			(unsigned long long)metric_sum(w->seg, m));
	}
	for (enum metric_gauge g = 0; g < G_N; g++) {
		exposition_heading(x, metric_gauge_name[g], "gauge", metric_gauge_help[g]);
		(void)evbuffer_add_printf(x->out, "%s %lld\n", metric_gauge_name[g],
			(long long)metric_gauge_sum(w->seg, g));
	}
}

/* A file's certificate; `until` 0: it has none. */
struct expiry {
	const char *file;
	int64_t until;
};

/* Each file once, however many pools have it. */
static size_t
note_expiry(struct expiry *v, size_t n, const char *file, int64_t until)
{
	if (file == NULL || until == 0)
		return n;
	for (size_t i = 0; i < n; i++)
		if (strcmp(v[i].file, file) == 0)
			return n;
	v[n] = (struct expiry){file, until};
	return n + 1;
}

static void
certificates(struct worker *w, const struct exposition *x)
{
	static const char name[] = "pdrouter_tls_certificate_expiry_seconds";
	const struct conf *conf = w->conf;
	struct expiry *v =
		mem_array(conf->tls.ncertificates + 2 * conf->npools + 1, sizeof(struct expiry));
	const int64_t now = (int64_t)time(NULL);
	char label[600];
	size_t n = 0;

	for (size_t i = 0; i < conf->tls.ncertificates; i++)
		n = note_expiry(
			v, n, conf->tls.certificates[i].cert, conf->tls.certificates[i].until);
	for (size_t i = 0; i < conf->npools; i++) {
		n = note_expiry(v, n, conf->pools[i].tls.ca, conf->pools[i].tls.ca_until);
		n = note_expiry(v, n, conf->pools[i].tls.cert, conf->pools[i].tls.cert_until);
	}
	if (n > 0)
		exposition_heading(x, name, "gauge",
			"Seconds until a certificate of tls.certificates, or of the tls of a pool, expires.");
	for (size_t i = 0; i < n; i++) {
		(void)prom_label(label, sizeof(label), v[i].file, strlen(v[i].file));
		(void)evbuffer_add_printf(x->out, "%s{certificate=\"%s\"} %lld\n", name, label,
			(long long)(v[i].until - now));
	}
	free(v);
}

static void
histogram(struct worker *w, const struct exposition *x, enum metric_histogram h, uint32_t id)
{
	struct metric_hist sum;
	struct exemplar exemplars[METRIC_BUCKETS + 1];
	char pool[160], labels[180];
	const char *name = pool_name(w, id);

	metric_hist_sum(w->seg, id, h, &sum);
	for (unsigned i = 0; i <= METRIC_BUCKETS && x->form == EXPOSITION_OPENMETRICS; i++)
		(void)exemplar_get(w->seg, id, h, i, &exemplars[i]);
	(void)prom_label(pool, sizeof(pool), name, strlen(name));
	(void)snprintf(labels, sizeof(labels), "pool=\"%s\"", pool);
	exposition_histogram(
		x, &(struct exposition_histogram){.name = metric_hist_name[h],
			   .labels = labels,
			   .bounds = metric_bucket_us,
			   .n = METRIC_BUCKETS,
			   .counts = sum.bucket,
			   .sum = sum.sum_us,
			   .exemplars = x->form == EXPOSITION_OPENMETRICS ? exemplars : NULL});
}

static void
histogram_of_all(struct worker *w, const struct exposition *x, const struct table_copy *t,
	enum metric_histogram h)
{
	exposition_heading(x, metric_hist_name[h], "histogram", metric_hist_help[h]);
	for (uint32_t i = 0; i < t->npools; i++)
		histogram(w, x, h, t->pools[i].id);
}

static void
queues(struct worker *w, const struct exposition *x, const struct table_copy *t)
{
	char pool[160];
	uint64_t since_ms;

	exposition_heading(x, "pdrouter_queue_waiting", "gauge",
		"Requests that wait for a place at an endpoint.");
	for (uint32_t i = 0; i < t->npools; i++) {
		const char *name = pool_name(w, t->pools[i].id);

		(void)prom_label(pool, sizeof(pool), name, strlen(name));
		(void)evbuffer_add_printf(x->out, "pdrouter_queue_waiting{pool=\"%s\"} %u\n", pool,
			queue_waiting(w->seg, t->pools[i].id, &since_ms));
	}
}

static void
tokens(struct worker *w, const struct exposition *x, const struct table_copy *t)
{
	char pool[160];

	for (enum metric_tokens k = 0; k < T_N; k++) {
		exposition_heading(x, metric_tokens_name[k], "counter", metric_tokens_help[k]);
		for (uint32_t i = 0; i < t->npools; i++) {
			const char *name = pool_name(w, t->pools[i].id);

			(void)prom_label(pool, sizeof(pool), name, strlen(name));
			(void)evbuffer_add_printf(x->out, "%s{pool=\"%s\"} %llu\n",
				metric_tokens_name[k], pool,
				(unsigned long long)metric_tokens_sum(w->seg, t->pools[i].id, k));
		}
	}
}

static void
policies(struct worker *w, const struct exposition *x, const struct table_copy *t)
{
	char pool[160];

	exposition_heading(x, "pdrouter_pool_policy_info", "gauge",
		"How a pool chooses among the endpoints of a role, and what load is there; always 1.");
	for (uint32_t i = 0; i < t->npools; i++)
		for (enum role role = 0; role < ROLE_N; role++) {
			const struct pool_copy *tp = &t->pools[i];
			const char *name = pool_name(w, tp->id);

			(void)prom_label(pool, sizeof(pool), name, strlen(name));
			(void)evbuffer_add_printf(x->out,
				"pdrouter_pool_policy_info{pool=\"%s\",role=\"%s\",policy=\"%s\",load=\"%s\"} 1\n",
				pool, role_name(role), policy_name(tp->policy[role]),
				load_name(tp->load[role]));
		}
}

/* --- the page, piece by piece -------------------------------------------------------------------- */

/* Writes a step of a section.  Returns true if that was its last one. */
typedef bool section_fn(struct stats *s, const struct exposition *x);

static bool
of_router(struct stats *s, const struct exposition *x)
{
	stats_processes(s->w, x);
	stats_usage(s->w, x);
	requests(s->w, x);
	counters(s->w, x);
	certificates(s->w, x);
	return true;
}

static bool
of_times(struct stats *s, const struct exposition *x)
{
	histogram_of_all(s->w, x, &s->t, (enum metric_histogram)s->row);
	return ++s->row == H_N;
}

/* The next endpoints of a metric. */
static bool
of_engines(struct stats *s, const struct exposition *x)
{
	if (s->at == 0)
		stats_engine_heading(x, s->row);
	for (uint32_t n = 0; n < PIECE_ENDPOINTS && s->at < s->t.nendpoints; n++) {
		const struct about a = {s->w->seg, &s->t, &s->t.endpoints[s->at++]};

		stats_engine(x, &a, s->row);
	}
	if (s->at < s->t.nendpoints)
		return false;
	s->at = 0;
	return ++s->row == stats_engine_metrics();
}

static bool
of_pools(struct stats *s, const struct exposition *x)
{
	policies(s->w, x, &s->t);
	queues(s->w, x, &s->t);
	tokens(s->w, x, &s->t);
	return true;
}

static bool
of_names(struct stats *s, const struct exposition *x)
{
	return stats_names(s->w, x, s->row, &s->at) && ++s->row == stats_names_metrics();
}

static section_fn *const sections[] = {of_router, of_times, of_engines, of_pools, of_names};

void
stats_begin(struct stats *s, struct worker *w, enum exposition_form form)
{
	*s = (struct stats){.w = w, .form = form};
	s->nsections = table_copy_make(w->seg, w->slot, &s->t)
			       ? sizeof(sections) / sizeof(sections[0])
			       : 1; /* there is no table yet */
}

bool
stats_more(struct stats *s, struct evbuffer *out)
{
	const struct exposition x = {out, s->form};

	while (s->section < s->nsections && evbuffer_get_length(out) < PIECE_BYTES)
		if (sections[s->section](s, &x)) {
			s->section++;
			s->row = 0;
		}
	if (s->section < s->nsections)
		return true;
	exposition_end(&x);
	return false;
}

void
stats_end(struct stats *s)
{
	table_copy_free(&s->t);
}
