#include "master/pdtop/screen.h"

#include <inttypes.h>
#include <ncurses.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define HEAD_ROWS 3 /* totals, times, titles */
#define BAR 5       /* columns of a full bar */
#define WAIT_TENTHS 10
/* Of 80 columns 17 are for the URL, without its scheme; a wider screen has more, and the pool. */
#define NARROW 80
#define URL_LEAST 17
#define URL_MOST 40
#define POOL 12

void
screen_begin(void)
{
	(void)initscr();
	(void)halfdelay(WAIT_TENTHS);
	(void)noecho();
	(void)keypad(stdscr, TRUE);
	(void)set_escdelay(25);
	(void)curs_set(0);
	(void)start_color();
	(void)use_default_colors();
	(void)init_pair(1, COLOR_RED, -1);
	(void)init_pair(2, COLOR_YELLOW, -1);
}

void
screen_end(void)
{
	(void)endwin();
}

/* One line, cut at the edge of the screen. */
static __attribute__((format(printf, 3, 4))) void
put(int row, attr_t attr, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	if (row < 0 || row >= LINES)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	(void)attron(attr);
	(void)mvaddnstr(row, 0, text, COLS);
	(void)attroff(attr);
}

static void
bar_text(const struct engine_row *r, uint64_t most, char ret[static BAR + 1])
{
	const uint64_t full = r->max_inflight != 0 ? r->max_inflight : most;
	uint64_t n = full > 0 ? (r->in_flight * BAR + full - 1) / full : 0;

	n = n < BAR ? n : BAR;
	memset(ret, '#', n);
	memset(ret + n, '.', BAR - n);
	ret[BAR] = '\0';
}

static attr_t
colour_of(const char *state)
{
	if (strcmp(state, "up") == 0)
		return A_NORMAL;
	return strcmp(state, "down") == 0 || strcmp(state, "misconfigured") == 0 ||
			       strcmp(state, "ejected") == 0
		       ? (attr_t)COLOR_PAIR(1)
		       : (attr_t)COLOR_PAIR(2);
}

/* With the blank behind it; 0: there is no room. */
static int
pool_columns(void)
{
	return COLS >= NARROW + POOL + 1 ? POOL + 1 : 0;
}

static int
url_columns(void)
{
	const int n = URL_LEAST + (COLS > NARROW ? COLS - NARROW - pool_columns() : 0);

	return n < URL_MOST ? n : URL_MOST;
}

static const char *
without_scheme(const char *url)
{
	const char *at = strstr(url, "://");

	return at != NULL ? at + 3 : url;
}

/* "-": there is none. */
static void
times_text(const struct times *t, char p50[static 16], char p99[static 16])
{
	(void)snprintf(p50, 16, "-");
	(void)snprintf(p99, 16, "-");
	if (t->n == 0)
		return;
	(void)snprintf(p50, 16, "%" PRIu32, t->p50);
	(void)snprintf(p99, 16, "%" PRIu32, t->p99);
}

static void
draw_engine(int row, const struct engine_row *r, uint64_t most)
{
	char bar[BAR + 1], count[32], tokens[16] = "-", p50[16], p99[16], gap50[16], gap99[16];
	const int columns = url_columns(), pool = pool_columns();

	bar_text(r, most, bar);
	(void)snprintf(count, sizeof(count),
		r->max_inflight != 0 ? "%" PRIu64 "/%" PRIu64 : "%" PRIu64, r->in_flight,
		r->max_inflight);
	if (r->counts_tokens || strcmp(r->role, "decode") == 0)
		(void)snprintf(tokens, sizeof(tokens), "%.0f", r->tokens_s);
	times_text(&r->firsts, p50, p99);
	times_text(&r->gaps, gap50, gap99);
	put(row, colour_of(r->state),
		"%-*.*s%-3.3s %-8.8s %-*.*s %s %5.5s %5.5s %5.5s %5.5s %4.4s %5.5s %3" PRIu64
		" %4" PRIu64,
		pool, pool > 0 ? POOL : 0, r->pool, r->role, r->state, columns, columns,
		without_scheme(r->url), bar, count, tokens, p50, p99, gap50, gap99, r->ejections,
		r->failures);
}

/* Rows between the head and the last line. */
static size_t
room(void)
{
	return LINES > HEAD_ROWS + 1 ? (size_t)(LINES - HEAD_ROWS - 1) : 0;
}

static size_t
draw_engines(const struct sample *s, const struct choice *c)
{
	uint64_t most = 1;
	size_t n = 0;

	for (size_t i = 0; i < s->nengines; i++)
		most = s->engines[i].in_flight > most ? s->engines[i].in_flight : most;
	put(2, A_REVERSE, "%-*.*s%-3.3s %-8s %-*s %-11s %5s %5s %5s %4s %5s %3s %4s%*s",
		pool_columns(), pool_columns(), "pool", "role", "state", url_columns(), "engine",
		"  in flight", "tok/s", "p50ms", "p99ms", "gap", "gap99", "eje", "fail", COLS, "");
	for (size_t i = 0; i < s->nengines; i++) {
		if (!sample_matches(&s->engines[i], c->filter))
			continue;
		if (n >= c->top && n < c->top + room())
			draw_engine(HEAD_ROWS + (int)(n - c->top), &s->engines[i], most);
		n++;
	}
	return n;
}

static size_t
draw_requests(const struct sample *s, const struct choice *c)
{
	size_t n = 0;

	put(2, A_REVERSE, "%9s %-8s %-20s %-12s %-80s", "total", "state", "request", "model",
		"prefill, decode");
	for (size_t i = 0; i < s->nrequests; i++) {
		const struct request_row *r = &s->requests[i];

		if (strstr(r->id, c->filter) == NULL && strstr(r->model, c->filter) == NULL &&
			strstr(r->state, c->filter) == NULL &&
			strstr(r->prefill, c->filter) == NULL &&
			strstr(r->decode, c->filter) == NULL)
			continue;
		if (n >= c->top && n < c->top + room())
			put(HEAD_ROWS + (int)(n - c->top), A_NORMAL,
				"%8.1fs %-8.8s %-20.20s %-12.12s %s %s", (double)r->total_ms / 1e3,
				r->state, r->id, r->model, without_scheme(r->prefill),
				without_scheme(r->decode));
		n++;
	}
	return n;
}

static void
draw_head(const struct sample *s, const char *error)
{
	char p50[16], p99[16], gap50[16], gap99[16];

	if (error != NULL) {
		put(0, A_BOLD | (attr_t)COLOR_PAIR(1), "%s", error);
	} else {
		put(0, A_BOLD,
			"pdrouter %s %s  up %" PRIu64 "s  in flight %" PRIu64 "  queue %" PRIu64
			"/%" PRIu64,
			s->version, s->state, s->uptime_s, s->in_flight, s->waiting, s->queue_size);
	}
	times_text(&s->firsts, p50, p99);
	times_text(&s->gaps, gap50, gap99);
	put(1, A_NORMAL,
		"%d s: %.1f req/s  %" PRIu64
		" failed  %.0f tok/s  ms: first %s, p99 %s  gap %s, p99 %s",
		SAMPLE_MS / 1000, s->requests_s, s->failed, s->tokens_s, p50, p99, gap50, gap99);
}

void
screen_draw(const struct sample *s, struct choice *c, const char *error)
{
	size_t n;

	(void)erase();
	draw_head(s, error);
	n = c->requests ? draw_requests(s, c) : draw_engines(s, c);
	if (c->top > 0 && c->top >= n) { /* rows have gone */
		c->top = n > 0 ? n - 1 : 0;
		screen_draw(s, c, error);
		return;
	}
	if (c->types || c->filter[0] != '\0')
		put(LINES - 1, A_REVERSE, "filter: %s%s  (Esc: none)  %zu shown", c->filter,
			c->types ? "_" : "", n);
	else
		put(LINES - 1, A_REVERSE, "q quit  s sort: %s  / filter  r %s  up, down  %zu shown",
			sample_sort_word(c->sort), c->requests ? "engines" : "requests", n);
	(void)refresh();
}

static void
type(struct choice *c, int key)
{
	const size_t n = strlen(c->filter);

	if (key == '\n' || key == KEY_ENTER) {
		c->types = false;
	} else if (key == KEY_BACKSPACE || key == 127 || key == '\b') {
		if (n > 0)
			c->filter[n - 1] = '\0';
	} else if (key >= ' ' && key < 127 && n + 1 < sizeof(c->filter)) {
		c->filter[n] = (char)key;
		c->filter[n + 1] = '\0';
	}
	c->top = 0;
}

bool
screen_key(struct choice *c)
{
	const int key = getch();

	if (key == ERR)
		return false;
	if (key == 27) { /* Esc */
		c->types = false;
		c->filter[0] = '\0';
	} else if (c->types) {
		type(c, key);
	} else if (key == 'q') {
		c->quit = true;
	} else if (key == 's') {
		c->sort = (c->sort + 1) % SORT_N;
	} else if (key == '/') {
		c->types = true;
	} else if (key == 'r') {
		c->requests = !c->requests;
		c->top = 0;
	} else if (key == KEY_DOWN || key == 'j') {
		c->top++;
	} else if ((key == KEY_UP || key == 'k') && c->top > 0) {
		c->top--;
	}
	return true;
}
