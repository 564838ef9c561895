/*
 * Most of a page is histograms that are not needed: a line is parsed beyond its name only if the
 * name is in the table `figures`.
 *
 * Source: Prometheus text exposition format 0.0.4; names by engine and version in the table.
 */
#include "proto/wire/prom.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/utf8.h"

enum family { VLLM, SGLANG, PROCESS, NAMED, N_FAMILIES };
enum meaning {
	RUNNING,
	WAITING,
	KV_USAGE,
	CAPACITY,
	START,
	PROMPT_TOKENS,
	GENERATED_TOKENS,
	N_MEANINGS
};

/* clang-format off */
#define FIGURE(name, ...) { name, sizeof(name) - 1, __VA_ARGS__ }
#define OLD true /* not used if the next row's name is on the page, too */
/* SGLang's queues of disaggregation are not part of num_queue_reqs, so they add to what waits. */
static const struct figure {
	const char *name;
	size_t len;
	enum family family;
	enum meaning meaning;
	bool old;
} figures[] = {
	FIGURE("vllm:num_requests_running",               VLLM,   RUNNING, false),
	FIGURE("vllm:num_requests_waiting",               VLLM,   WAITING, false),
	FIGURE("vllm:gpu_cache_usage_perc",               VLLM,   KV_USAGE, OLD),	/* to 0.11 */
	FIGURE("vllm:kv_cache_usage_perc",                VLLM,   KV_USAGE, false),	/* from 0.10 */
	FIGURE("sglang:num_running_reqs",                 SGLANG, RUNNING, false),
	FIGURE("sglang:num_queue_reqs",                   SGLANG, WAITING, false),
	FIGURE("sglang:num_prefill_prealloc_queue_reqs",  SGLANG, WAITING, OLD),	/* 0.4.7 to 0.5.9 */
	FIGURE("sglang:num_prefill_bootstrap_queue_reqs", SGLANG, WAITING, false),	/* from 0.5.12 */
	FIGURE("sglang:num_prefill_infight_queue_reqs",   SGLANG, WAITING, OLD),	/* 0.4.7, its spelling */
	FIGURE("sglang:num_prefill_inflight_queue_reqs",  SGLANG, WAITING, false),	/* from 0.5.2 */
	FIGURE("sglang:num_decode_prealloc_queue_reqs",   SGLANG, WAITING, false),
	FIGURE("sglang:num_decode_transfer_queue_reqs",   SGLANG, WAITING, false),
	FIGURE("sglang:token_usage",                      SGLANG, KV_USAGE, false),
	FIGURE("vllm:cache_config_info",                  VLLM,   CAPACITY, false),	/* in its labels */
	FIGURE("sglang:max_total_num_tokens",             SGLANG, CAPACITY, false),
	FIGURE("process_start_time_seconds",              PROCESS, START, false),
	FIGURE("vllm:prompt_tokens_total",                VLLM,   PROMPT_TOKENS, false),
	FIGURE("vllm:generation_tokens_total",            VLLM,   GENERATED_TOKENS, false),
	FIGURE("sglang:prompt_tokens_total",              SGLANG, PROMPT_TOKENS, false),
	FIGURE("sglang:generation_tokens_total",          SGLANG, GENERATED_TOKENS, false),
};
/* clang-format on */

#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))
static_assert(N_FIGURES == PROM_FIGURES, "struct prom_page has a cell of each");
enum { NAMED_RUNNING = N_FIGURES, NAMED_WAITING, NO_FIGURE };

#define BEGIN 8 /* bytes by which a word: most lines differ in it from all figures */
#define MAX_BLOCKS UINT32_MAX
#define MAX_RANK 65535 /* of the other kinds of rank: three of them share one word */
#define COUNT_MAX 1e15 /* a larger value is no count; sums of counts stay exact */
#define MAX_VALUE_LEN 63

struct labels {
	uint64_t dp, tp, pp, moe_ep;
	uint64_t blocks, block_size; /* of vllm:cache_config_info */
	bool keeps_none;             /* it says enable_prefix_caching="False" */
	bool breakdown;              /* one part of a figure whose total is a series of its own */
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

/* A number of at most `max`; an empty label is the same as none, so it is 0. */
static bool
read_number_label(const struct line *text, uint64_t max, uint64_t *ret)
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
		return read_number_label(value, PROM_RANKS - 1, &ret->dp);
	if (is(name, "tp_rank"))
		return read_number_label(value, MAX_RANK, &ret->tp);
	if (is(name, "pp_rank"))
		return read_number_label(value, MAX_RANK, &ret->pp);
	if (is(name, "moe_ep_rank"))
		return read_number_label(value, MAX_RANK, &ret->moe_ep);
	/* a cache of another kind may say "None": its capacity is not known */
	if (is(name, "num_gpu_blocks"))
		return read_number_label(value, MAX_BLOCKS, &ret->blocks) || true;
	if (is(name, "block_size"))
		return read_number_label(value, MAX_RANK, &ret->block_size) || true;
	if (is(name,
		    "enable_prefix_caching")) /* from 0.4.1; Python's spelling of a bool, None of pooling models */
		ret->keeps_none = is(value, "False");
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
note(struct prom_cell *cell, uint64_t rank, double value)
{
	if (cell->n > 0 && rank > cell->rank)
		return;
	if (cell->n == 0 || rank < cell->rank)
		*cell = (struct prom_cell){.rank = rank};
	cell->sum += value;
	cell->n++;
}

/* Whether this is the line's whole name. */
static bool
begins_with(const struct line *l, const char *name, size_t len)
{
	struct line rest = *l;

	return len > 0 && (size_t)(l->end - l->p) >= len && memcmp(l->p, name, len) == 0 &&
	       take_name(&rest).end == l->p + len;
}

static bool
is_named(const struct line *l, const char *name)
{
	return name != NULL && begins_with(l, name, strlen(name));
}

/* Of the line's name.  A configured name may be one of the known ones: then the configured meaning applies. */
static size_t
find_figure(const struct prom_page *page, const struct line *l)
{
	if (is_named(l, page->names.running))
		return NAMED_RUNNING;
	if (is_named(l, page->names.waiting))
		return NAMED_WAITING;
	if (l->end - l->p < BEGIN)
		return NO_FIGURE;
	for (size_t i = 0; i < N_FIGURES; i++)
		if (memcmp(l->p, figures[i].name, BEGIN) == 0 &&
			begins_with(l, figures[i].name, figures[i].len))
			return i;
	return NO_FIGURE;
}

/* The cells of a rank; most engines have one. */
static struct prom_cell *
cells_of(struct prom_page *page, size_t dp)
{
	for (; page->nranks <= dp; page->nranks++)
		memset(page->cells[page->nranks], 0, sizeof(page->cells[0]));
	return page->cells[dp];
}

static enum family
family_of(size_t i)
{
	return i < N_FIGURES ? figures[i].family : NAMED;
}

static enum meaning
meaning_of(size_t i)
{
	return i < N_FIGURES ? figures[i].meaning : i == NAMED_RUNNING ? RUNNING : WAITING;
}

/* False if the line is none we understand. */
static bool
read_line(struct prom_page *page, struct line l)
{
	struct labels labels = {0};
	size_t i;
	double v;

	skip_blanks(&l);
	if (l.p == l.end || *l.p == '#')
		return true;
	if (!in_name(*l.p) || (*l.p >= '0' && *l.p <= '9'))
		return false;
	i = find_figure(page, &l);
	if (i == NO_FIGURE)
		return true;
	(void)take_name(&l);
	skip_blanks(&l);
	if (!read_labels(&l, &labels) || !read_value(&l, &v))
		return false;
	if (!(v >= 0 && v <= COUNT_MAX) || labels.breakdown) /* NaN fails the comparison */
		return true;
	if (meaning_of(i) == KV_USAGE && v > 1)
		v = 1;
	if (meaning_of(i) == CAPACITY && family_of(i) == VLLM)
		v = labels.keeps_none ? PROM_KEEPS_NONE
				      : (double)(labels.blocks * labels.block_size);
	note(&cells_of(page, labels.dp)[i], labels.tp << 32 | labels.pp << 16 | labels.moe_ep, v);
	return true;
}

/* --- pieces of a page -------------------------------------------------------------------- */

void
prom_begin(struct prom_page *page, const struct prom_names *names)
{
	memset(page, 0, offsetof(struct prom_page, cells));
	page->names = *names;
}

static void
take_line(struct prom_page *page, const char *p, size_t n)
{
	if (n > PROM_LINE_MAX || !read_line(page, (struct line){p, p + n}))
		page->bad++;
}

/* Part of a line whose other parts are in other pieces. */
static void
carry(struct prom_page *page, const char *p, size_t n)
{
	if (n > PROM_LINE_MAX - page->nline) {
		page->too_long = true;
		return;
	}
	memcpy(page->line + page->nline, p, n);
	page->nline += n;
}

static void
end_carried(struct prom_page *page)
{
	take_line(page, page->line, page->too_long ? PROM_LINE_MAX + 1 : page->nline);
	page->nline = 0;
	page->too_long = false;
}

void
prom_feed(struct prom_page *page, const char *text, size_t len)
{
	const char *end = text + len;

	for (const char *p = text; p < end;) {
		const char *eol = memchr(p, '\n', (size_t)(end - p));
		size_t n = (size_t)((eol != NULL ? eol : end) - p);

		if (eol != NULL && page->nline == 0 && !page->too_long) {
			take_line(page, p, n);
		} else {
			carry(page, p, n);
			if (eol != NULL)
				end_carried(page);
		}
		p += n + (eol != NULL);
	}
}

/* --- results ------------------------------------------------------------------------------ */

static bool
on_page(const struct prom_page *page, size_t i)
{
	for (size_t dp = 0; dp < page->nranks; dp++)
		if (page->cells[dp][i].n > 0)
			return true;
	return false;
}

static void
fold(const struct prom_page *page, struct prom_cell totals[N_FAMILIES][N_MEANINGS])
{
	for (size_t i = 0; i < NO_FIGURE; i++) {
		struct prom_cell *total = &totals[family_of(i)][meaning_of(i)];

		if (i < N_FIGURES && figures[i].old && on_page(page, i + 1))
			continue;
		for (size_t dp = 0; dp < page->nranks; dp++) {
			total->sum += page->cells[dp][i].sum;
			total->n += page->cells[dp][i].n;
		}
	}
}

static bool
take_load(const struct prom_cell total[N_MEANINGS], struct prom_load *ret)
{
	const struct prom_cell *usage = &total[KV_USAGE];

	ret->running = total[RUNNING].sum;
	ret->has_running = total[RUNNING].n > 0;
	ret->waiting = total[WAITING].sum;
	ret->has_waiting = total[WAITING].n > 0;
	ret->kv_usage = usage->n > 0 ? usage->sum / (double)usage->n : 0;
	ret->has_kv_usage = usage->n > 0;
	ret->capacity = total[CAPACITY].sum;
	ret->prompt_tokens = total[PROMPT_TOKENS].sum;
	ret->generated_tokens = total[GENERATED_TOKENS].sum;
	ret->has_tokens = total[PROMPT_TOKENS].n > 0 && total[GENERATED_TOKENS].n > 0;
	return ret->has_running || ret->has_waiting || ret->has_kv_usage;
}

/* The result of a configured name, or its absence, overrides the known names. */
static void
take_named(const struct prom_page *page, const struct prom_cell named[N_MEANINGS],
	struct prom_load *ret)
{
	if (page->names.running != NULL) {
		ret->running = named[RUNNING].sum;
		ret->has_running = named[RUNNING].n > 0;
	}
	if (page->names.waiting != NULL) {
		ret->waiting = named[WAITING].sum;
		ret->has_waiting = named[WAITING].n > 0;
	}
}

int
prom_end(struct prom_page *page, struct prom_load *ret, uint64_t *ret_bad)
{
	struct prom_cell totals[N_FAMILIES][N_MEANINGS] = {0};

	if (page->nline > 0 || page->too_long)
		end_carried(page);
	if (ret_bad != NULL)
		*ret_bad = page->bad;
	fold(page, totals);
	*ret = (struct prom_load){0};
	if (!take_load(totals[VLLM], ret))
		ret->sglang = take_load(totals[SGLANG], ret);
	ret->start_s = totals[PROCESS][START].sum;
	take_named(page, totals[NAMED], ret);
	return ret->has_running || ret->has_waiting || ret->has_kv_usage ? 0 : -1;
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
