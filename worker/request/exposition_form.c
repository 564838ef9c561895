#include "worker/request/exposition_form.h"

#include <stdbool.h>
#include <string.h>

#include "proto/http/http.h"

#define Q_ONE 1000u /* q-values have at most three digits behind the point */

/* What Accept says of the two formats.  A range with an asterisk speaks of text/plain alone: OpenMetrics must be named. */
enum range { RANGE_NONE, RANGE_ALL, RANGE_TEXT, RANGE_EXACT };
struct accepted {
	unsigned openmetrics, plain;
	enum range plain_by; /* the narrowest range decides */
};

/* Cuts off *rest what is before the first `sep`. */
static struct span
cut(struct span *rest, char sep)
{
	const char *at = rest->n > 0 ? memchr(rest->p, sep, rest->n) : NULL;
	const size_t n = at != NULL ? (size_t)(at - rest->p) : rest->n;
	const struct span first = {rest->p, n};

	rest->p += n + (at != NULL);
	rest->n -= n + (at != NULL);
	return span_trim(first);
}

/* "0.5": in thousandths.  What is no q-value counts as 1. */
static unsigned
q_of(struct span s)
{
	unsigned q = 0, unit = Q_ONE / 10;

	if (s.n == 0 || s.n > 5 || (s.p[0] != '0' && s.p[0] != '1') || (s.n > 1 && s.p[1] != '.'))
		return Q_ONE;
	q = s.p[0] == '1' ? Q_ONE : 0;
	for (size_t i = 2; i < s.n; i++, unit /= 10) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return Q_ONE;
		q += (unsigned)(s.p[i] - '0') * unit;
	}
	return q < Q_ONE ? q : Q_ONE;
}

static bool
version_known(struct span v)
{
	return span_is(v, "1.0.0") || span_is(v, "0.0.1");
}

static void
take_plain(struct accepted *w, enum range range, unsigned q)
{
	if (range < w->plain_by || (range == w->plain_by && q < w->plain))
		return;
	w->plain = q;
	w->plain_by = range;
}

/* One member of the list: a type, then parameters. */
static void
take(struct accepted *w, struct span member)
{
	const struct span type = cut(&member, ';');
	unsigned q = Q_ONE;
	bool known = true;

	while (member.n > 0) {
		struct span value = cut(&member, ';');
		const struct span name = cut(&value, '=');

		if (span_is(name, "q"))
			q = q_of(span_trim(value));
		else if (span_is(name, "version"))
			known = version_known(span_trim(value));
	}
	if (span_is(type, "application/openmetrics-text") && known && q > w->openmetrics)
		w->openmetrics = q;
	else if (span_is(type, "text/plain"))
		take_plain(w, RANGE_EXACT, q);
	else if (span_is(type, "text/*"))
		take_plain(w, RANGE_TEXT, q);
	else if (span_is(type, "*/*"))
		take_plain(w, RANGE_ALL, q);
}

enum exposition_form
exposition_form(const struct http_head *h)
{
	struct accepted w = {0, 0, RANGE_NONE};

	for (size_t i = 0; i < h->nheaders; i++) {
		struct span list = h->headers[i].value, member;

		if (!span_is(h->headers[i].name, "accept"))
			continue;
		while (http_list_next(&list, &member))
			take(&w, member);
	}
	return w.openmetrics > 0 && w.openmetrics >= w.plain ? EXPOSITION_OPENMETRICS
							     : EXPOSITION_PROMETHEUS;
}

const char *
exposition_type(enum exposition_form form)
{
	return form == EXPOSITION_OPENMETRICS
		       ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
		       : "text/plain; version=0.0.4; charset=utf-8";
}
