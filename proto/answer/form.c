#include "proto/answer/form.h"

#include <string.h>

#include "proto/json/json_read.h"

void
form_learn(struct form *f, const char *event, size_t n, const struct splice_seg *text,
	const struct splice_seg *usage)
{
	const char *behind = text->p + text->n, *end = event + n;

	f->event.n = 0;
	if (n > FORM_MAX)
		return;
	f->head = (size_t)(text->p - event);
	f->middle = (size_t)((usage->n > 0 ? usage->p : end) - behind);
	f->tail = usage->n > 0 ? (size_t)(end - usage->p) - usage->n : 0;
	membuf_add(&f->event, event, f->head);
	membuf_add(&f->event, behind, f->middle);
	membuf_add(&f->event, end - f->tail, f->tail);
}

bool
form_match(const struct form *f, const char *event, size_t n, struct splice_seg *ret_text,
	struct splice_seg *ret_usage)
{
	const char *same = f->event.p, *behind;
	struct json_read r;
	size_t rest;

	if (f->event.n == 0 || n <= f->event.n || memcmp(event, same, f->head) != 0 ||
		event[f->head] != '"')
		return false;
	json_read_init(&r, event + f->head, n - f->head);
	*ret_text = json_read_value(&r);
	behind = r.p;
	rest = (size_t)(event + n - behind);
	if (r.bad || rest < f->middle + f->tail || (f->tail > 0) != (rest > f->middle + f->tail) ||
		memcmp(behind, same + f->head, f->middle) != 0 ||
		memcmp(event + n - f->tail, same + f->head + f->middle, f->tail) != 0)
		return false;
	*ret_usage = (struct splice_seg){behind + f->middle, rest - f->middle - f->tail};
	return true;
}

void
form_free(struct form *f)
{
	membuf_free(&f->event);
}
