/*
 * Most of a page is histograms nobody asks for: a line is looked at beyond its name only if the
 * name is in the table `figures`.
 *
 * Source: Prometheus text exposition format 0.0.4; names by engine and version in the table.
 */
#include "proto/prom.h"

#include <stdlib.h>
#include <string.h>

#include "proto/utf8.h"

enum family { VLLM, SGLANG, N_FAMILIES };
enum meaning { RUNNING, WAITING, KV_USAGE, KV_USAGE_OLD, N_MEANINGS };

/* clang-format off */
/* SGLang's queues of disaggregation are not part of num_queue_reqs, so they add to what waits. */
static const struct figure {
	const char *name;
	enum family family;
	enum meaning meaning;
} figures[] = {
	{ "vllm:num_requests_running",                VLLM,   RUNNING },
	{ "vllm:num_requests_waiting",                VLLM,   WAITING },
	{ "vllm:kv_cache_usage_perc",                 VLLM,   KV_USAGE },	/* from 0.10 */
	{ "vllm:gpu_cache_usage_perc",                VLLM,   KV_USAGE_OLD },	/* to 0.11; both stand in 0.10 and 0.11 */
	{ "sglang:num_running_reqs",                  SGLANG, RUNNING },
	{ "sglang:num_queue_reqs",                    SGLANG, WAITING },
	{ "sglang:num_prefill_prealloc_queue_reqs",   SGLANG, WAITING },	/* 0.4.7 to 0.5.9 */
	{ "sglang:num_prefill_bootstrap_queue_reqs",  SGLANG, WAITING },	/* the former, from 0.5.12 */
	{ "sglang:num_prefill_infight_queue_reqs",    SGLANG, WAITING },	/* 0.4.7, its spelling */
	{ "sglang:num_prefill_inflight_queue_reqs",   SGLANG, WAITING },	/* from 0.5.2 */
	{ "sglang:num_decode_prealloc_queue_reqs",    SGLANG, WAITING },
	{ "sglang:num_decode_transfer_queue_reqs",    SGLANG, WAITING },
	{ "sglang:token_usage",                       SGLANG, KV_USAGE },
};
/* clang-format on */

#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))
#define MAX_DP 64      /* data-parallel ranks behind one address: a host has 8 or 16 GPUs */
#define MAX_RANK 65535 /* of the other kinds of rank: three of them share one word */
#define COUNT_MAX 1e15 /* what is larger is no count; sums of it stay exact */
#define MAX_VALUE_LEN 63

/* One figure of one data-parallel rank: the series of its lowest tensor-parallel rank. */
struct cell {
	uint64_t rank; /* tp, pp, moe_ep from high to low */
	double sum;
	uint64_t n; /* series; 0: none yet */
};

struct page {
	struct cell cells[N_FIGURES][MAX_DP];
};

struct labels {
	uint64_t dp, tp, pp, moe_ep;
	bool breakdown; /* one part of a figure whose total is a series of its own */
};

/* What is left of a line. */
struct line {
	const char *p, *end;
};

static void
skip_blanks(struct line *l)
{
	while (l->p < l->end && (*l->p == ' ' || *l->p == '\t' || *l->p == '\r'))
		l->p++;
}

static bool
take(struct line *l, char c)
{
	if (l->p == l->end || *l->p != c)
		return false;
	l->p++;
	return true;
}

static bool
in_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == ':';
}

/* A metric's or label's name; empty if there is none. */
static struct line
take_name(struct line *l)
{
	struct line name = {l->p, l->p};

	if (l->p < l->end && *l->p >= '0' && *l->p <= '9')
		return name;
	while (l->p < l->end && in_name(*l->p))
		l->p++;
	name.end = l->p;
	return name;
}

static bool
is(const struct line *l, const char *text)
{
	size_t n = strlen(text);

	return (size_t)(l->end - l->p) == n && memcmp(l->p, text, n) == 0;
}

/* A quoted label value, escapes left in. */
static bool
take_quoted(struct line *l, struct line *ret)
{
	if (!take(l, '"'))
		return false;
	ret->p = l->p;
	for (; l->p < l->end; l->p++) {
		if (*l->p == '"') {
			ret->end = l->p++;
			return true;
		}
		if (*l->p == '\\' && ++l->p == l->end)
			return false;
	}
	return false;
}

/* A rank; an empty label is the same as none, so it is 0. */
static bool
read_rank(const struct line *text, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;

	for (const char *p = text->p; p < text->end; p++) {
		if (*p < '0' || *p > '9')
			return false;
		n = n * 10 + (uint64_t)(*p - '0');
		if (n > max)
			return false;
	}
	*ret = n;
	return true;
}

static bool
read_label(const struct line *name, const struct line *value, struct labels *ret)
{
	if (is(name, "dp_rank"))
		return read_rank(value, MAX_DP - 1, &ret->dp);
	if (is(name, "tp_rank"))
		return read_rank(value, MAX_RANK, &ret->tp);
	if (is(name, "pp_rank"))
		return read_rank(value, MAX_RANK, &ret->pp);
	if (is(name, "moe_ep_rank"))
		return read_rank(value, MAX_RANK, &ret->moe_ep);
	if (is(name, "priority")) /* SGLang with priority scheduling: the total has an empty one */
		ret->breakdown = value->p != value->end;
	return true;
}

static bool
read_labels(struct line *l, struct labels *ret)
{
	if (!take(l, '{'))
		return true;
	for (;;) {
		struct line name, value;

		skip_blanks(l);
		if (take(l, '}'))
			return true;
		name = take_name(l);
		skip_blanks(l);
		if (name.p == name.end || !take(l, '='))
			return false;
		skip_blanks(l);
		if (!take_quoted(l, &value) || !read_label(&name, &value, ret))
			return false;
		skip_blanks(l);
		if (!take(l, ',') && (l->p == l->end || *l->p != '}'))
			return false;
	}
}

/* A number that ends at a blank or the line's end. */
static bool
read_number(struct line *l, double *ret)
{
	char buf[MAX_VALUE_LEN + 1], *end;
	size_t n = 0;

	skip_blanks(l);
	while (l->p < l->end && *l->p != ' ' && *l->p != '\t' && *l->p != '\r') {
		if (n == MAX_VALUE_LEN)
			return false;
		buf[n++] = *l->p++;
	}
	buf[n] = '\0';
	*ret = strtod(buf, &end);
	return n > 0 && end == buf + n;
}

/* The value, then nothing, or a timestamp, or OpenMetrics' exemplar. */
static bool
read_value(struct line *l, double *ret)
{
	double timestamp;

	if (!read_number(l, ret))
		return false;
	skip_blanks(l);
	if (l->p == l->end || *l->p == '#')
		return true;
	if (!read_number(l, &timestamp))
		return false;
	skip_blanks(l);
	return l->p == l->end || *l->p == '#';
}

static void
note(struct cell *cell, uint64_t rank, double value)
{
	if (cell->n > 0 && rank > cell->rank)
		return;
	if (cell->n == 0 || rank < cell->rank)
		*cell = (struct cell){.rank = rank};
	cell->sum += value;
	cell->n++;
}

/* False if the line is none we understand. */
static bool
read_line(struct page *page, struct line l)
{
	struct labels labels = {0};
	struct line name;
	size_t i;
	double v;

	skip_blanks(&l);
	if (l.p == l.end || *l.p == '#')
		return true;
	name = take_name(&l);
	if (name.p == name.end)
		return false;
	for (i = 0; i < N_FIGURES && !is(&name, figures[i].name);)
		i++;
	if (i == N_FIGURES)
		return true;
	skip_blanks(&l);
	if (!read_labels(&l, &labels) || !read_value(&l, &v))
		return false;
	if (!(v >= 0 && v <= COUNT_MAX) || labels.breakdown) /* NaN fails the comparison */
		return true;
	if (figures[i].meaning >= KV_USAGE && v > 1)
		v = 1;
	note(&page->cells[i][labels.dp], labels.tp << 32 | labels.pp << 16 | labels.moe_ep, v);
	return true;
}

static void
fold(const struct page *page, struct cell totals[N_FAMILIES][N_MEANINGS])
{
	for (size_t i = 0; i < N_FIGURES; i++) {
		struct cell *total = &totals[figures[i].family][figures[i].meaning];

		for (size_t dp = 0; dp < MAX_DP; dp++) {
			total->sum += page->cells[i][dp].sum;
			total->n += page->cells[i][dp].n;
		}
	}
}

static bool
take_load(const struct cell total[N_MEANINGS], struct prom_load *ret)
{
	const struct cell *usage = &total[total[KV_USAGE].n > 0 ? KV_USAGE : KV_USAGE_OLD];

	ret->running = total[RUNNING].sum;
	ret->has_running = total[RUNNING].n > 0;
	ret->waiting = total[WAITING].sum;
	ret->has_waiting = total[WAITING].n > 0;
	ret->kv_usage = usage->n > 0 ? usage->sum / (double)usage->n : 0;
	ret->has_kv_usage = usage->n > 0;
	return ret->has_running || ret->has_waiting || ret->has_kv_usage;
}

int
prom_read_load(const char *text, size_t len, struct prom_load *ret, uint64_t *ret_bad)
{
	struct cell totals[N_FAMILIES][N_MEANINGS] = {0};
	struct page page = {0};
	const char *end = text + len;
	uint64_t bad = 0;

	for (const char *p = text; p < end;) {
		const char *eol = memchr(p, '\n', (size_t)(end - p));

		if (eol == NULL)
			eol = end;
		if (!read_line(&page, (struct line){p, eol}))
			bad++;
		p = eol < end ? eol + 1 : end;
	}
	if (ret_bad != NULL)
		*ret_bad = bad;
	fold(&page, totals);
	*ret = (struct prom_load){0};
	if (take_load(totals[VLLM], ret))
		return 0;
	ret->sglang = take_load(totals[SGLANG], ret);
	return ret->sglang ? 0 : -1;
}

size_t
prom_label(char *buf, size_t size, const char *text, size_t len)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + len;
	size_t n = 0;

	if (size == 0)
		return 0;
	while (p < end) {
		size_t seq = utf8_seq(p, (size_t)(end - p)), nform = seq;
		char form[4];

		if (seq == 0 || *p == '\0') { /* a NUL ends the page for Prometheus' own lexer */
			form[0] = '?';
			nform = seq = 1;
		} else if (*p == '\\' || *p == '"' || *p == '\n') {
			form[0] = '\\';
			form[1] = *p == '\n' ? 'n' : (char)*p;
			nform = 2;
		} else {
			memcpy(form, p, seq);
		}
		if (nform > size - 1 - n)
			break;
		memcpy(buf + n, form, nform);
		n += nform;
		p += seq;
	}
	buf[n] = '\0';
	return n;
}
