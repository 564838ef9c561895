#include "worker/request/exposition.h"

#include <event2/buffer.h>
#include <stdbool.h>
#include <string.h>

#include "shm/exemplar.h"
#include "worker/base/lines.h"

#define SECOND_US 1000000u

static bool
ends_with(const char *text, size_t n, const char *end)
{
	const size_t len = strlen(end);

	return n > len && memcmp(text + n - len, end, len) == 0;
}

static void
unit(const struct exposition *x, const char *name, size_t n)
{
	static const char *const units[] = {"seconds", "bytes", "ratio"};

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (ends_with(name, n, units[i]))
			(void)evbuffer_add_printf(
				x->out, "# UNIT %.*s %s\n", (int)n, name, units[i]);
}

void
exposition_heading(const struct exposition *x, const char *name, const char *type, const char *help)
{
	size_t n = strcspn(name, "{");

	if (x->form == EXPOSITION_OPENMETRICS && strcmp(type, "counter") == 0 &&
		ends_with(name, n, "_total"))
		n -= strlen("_total");
	(void)evbuffer_add_printf(
		x->out, "# HELP %.*s %s\n# TYPE %.*s %s\n", (int)n, name, help, (int)n, name, type);
	if (x->form == EXPOSITION_OPENMETRICS)
		unit(x, name, n);
}

void
exposition_end(const struct exposition *x)
{
	if (x->form == EXPOSITION_OPENMETRICS)
		(void)evbuffer_add(x->out, "# EOF\n", 6);
}

/* --- histograms, written without printf: an engine has two of them -------------------------------- */

#define LINES_BYTES 4096
#define NUMBER_BYTES 192 /* of a line that is neither name nor labels */

/* Lines of one histogram that go to the page together. */
struct sheaf {
	const struct exposition *x;
	const struct exposition_histogram *h;
	struct lines l;
	char text[LINES_BYTES];
};

static void
flush(struct sheaf *s)
{
	(void)evbuffer_add(s->x->out, s->text, s->l.n);
	s->l.n = 0;
}

/* With `digits` behind the point, or as few as it needs: OpenMetrics wants one in a bound. */
static void
put_seconds(struct lines *l, uint64_t us, unsigned fewest)
{
	char digits[6];
	uint64_t rest = us % SECOND_US;
	unsigned n = sizeof(digits);

	for (unsigned i = n; i-- > 0; rest /= 10)
		digits[i] = (char)('0' + rest % 10);
	while (n > fewest && digits[n - 1] == '0')
		n--;
	lines_number(l, us / SECOND_US);
	if (n > 0) {
		lines_put(l, ".");
		lines_add(l, digits, n);
	}
}

/* The name of a series and the labels that all have. */
static void
put_name(struct sheaf *s, const char *suffix, const char *end)
{
	const size_t bytes = strlen(s->h->name) + strlen(s->h->labels) + NUMBER_BYTES;

	if (s->l.size - s->l.n < bytes)
		flush(s);
	lines_put(&s->l, s->h->name);
	lines_put(&s->l, suffix);
	lines_put(&s->l, s->h->labels);
	lines_put(&s->l, end);
}

static void
put_exemplar(struct lines *l, const struct exemplar *x)
{
	lines_put(l, " # {trace_id=\"");
	lines_put(l, x->trace);
	lines_put(l, "\"} ");
	put_seconds(l, x->us, 6);
	lines_put(l, " ");
	put_seconds(l, x->at_ms * 1000, 3);
}

static void
put_bucket(struct sheaf *s, unsigned i, uint64_t count)
{
	put_name(s, "_bucket{", ",le=\"");
	if (i == s->h->n)
		lines_put(&s->l, "+Inf");
	else
		put_seconds(&s->l, s->h->bounds[i], s->x->form == EXPOSITION_OPENMETRICS ? 1 : 0);
	lines_put(&s->l, "\"} ");
	lines_number(&s->l, count);
	if (s->h->exemplars != NULL && s->h->exemplars[i].trace[0] != '\0')
		put_exemplar(&s->l, &s->h->exemplars[i]);
	lines_put(&s->l, "\n");
}

void
exposition_histogram(const struct exposition *x, const struct exposition_histogram *h)
{
	struct sheaf s = {.x = x, .h = h};
	uint64_t total = 0;

	s.l = (struct lines){s.text, sizeof(s.text), 0};
	for (unsigned i = 0; i <= h->n; i++) {
		total += h->counts[i];
		put_bucket(&s, i, total);
	}
	put_name(&s, "_sum{", "} ");
	put_seconds(&s.l, h->sum, 6);
	lines_put(&s.l, "\n");
	put_name(&s, "_count{", "} ");
	lines_number(&s.l, total);
	lines_put(&s.l, "\n");
	flush(&s);
}
