#include "proto/answer/event.h"

#include <string.h>

#include "proto/json/splice.h"
#include "proto/answer/sse.h"
#include "shm/base/mem.h"

/* Whether the line is a data line; *ret is then its value. */
static bool
is_data(const char *line, size_t n, struct splice_seg *ret)
{
	if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':'))
		return false;
	*ret = (struct splice_seg){line + n, 0};
	if (n > 4)
		*ret = (struct splice_seg){line + 5, n - 5};
	if (ret->n > 0 && ret->p[0] == ' ')
		*ret = (struct splice_seg){ret->p + 1, ret->n - 1};
	return true;
}

size_t
event_data(
	const char *event, size_t n, struct membuf *joined, struct splice_seg *ret, bool *ret_other)
{
	struct splice_seg value;
	size_t ndata = 0;

	*ret_other = false;
	joined->n = 0;
	for (size_t at = 0, end, len; at < n; at += len + end) {
		len = sse_line(event + at, n - at, &end);
		if (!is_data(event + at, len, &value)) {
			*ret_other |= len > 0;
			continue;
		}
		if (ndata++ == 0) {
			*ret = value;
			continue;
		}
		if (ndata == 2)
			membuf_add(joined, ret->p, ret->n);
		/* a line's end in an event; in JSON as blank, but of one line */
		membuf_add(joined, "\t", 1);
		membuf_add(joined, value.p, value.n);
		*ret = (struct splice_seg){joined->p, joined->n};
	}
	return ndata;
}

void
event_put(const char *event, size_t n, const struct membuf *data, struct membuf *out)
{
	struct splice_seg value;
	bool done = false;

	for (size_t at = 0, end, len; at < n; at += len + end) {
		len = sse_line(event + at, n - at, &end);
		if (!is_data(event + at, len, &value)) {
			/* a line between this LF and a CR was dropped: they are two ends */
			if (len == 0 && event[at] == '\n' && out->p[out->n - 1] == '\r')
				membuf_add(out, "\n", 1);
			membuf_add(out, event + at, len + end);
			continue;
		}
		if (done)
			continue;
		membuf_add(out, "data: ", 6);
		membuf_add(out, data->p, data->n);
		membuf_add(out, event + at + len, end);
		done = true;
	}
}
