#include "worker/schedule/priority.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/http.h"
#include "proto/json/splice.h"
#include "shm/table.h"
#include "worker/base/text.h"

static const char not_an_integer[] = "the priority header is no integer of 32 bits";

/* Reads digits with or without a sign, and nothing else.  False: the text is no integer of 32 bits. */
static bool
read_int32(const char *p, size_t n, int32_t *ret)
{
	char text[16], *end;
	long v;

	if (n == 0 || n >= sizeof(text) || strspn(p, "+-0123456789") < n)
		return false;
	memcpy(text, p, n);
	text[n] = '\0';
	v = strtol(text, &end, 10);
	if (end == text || *end != '\0' || v < INT32_MIN || v > INT32_MAX)
		return false;
	*ret = (int32_t)v;
	return true;
}

/* The header overrules the body's member.  A wrong member is for the engine to refuse. */
enum req_end
priority_read(
	const struct text *text, const struct table_pool *tp, int32_t *ret, const char **ret_detail)
{
	const struct splice_member *m =
		text->doc != NULL ? splice_find(text->doc, SK_PRIORITY) : NULL;
	struct span line = {NULL, 0};

	*ret = 0;
	if (tp->queue.allow_priority == 0)
		return END_OK;
	if (tp->priority_header[0] != '\0')
		line = text_header(text, tp->priority_header);
	if (line.p != NULL) {
		if (read_int32(line.p, line.n, ret))
			return END_OK;
		*ret_detail = not_an_integer;
		return END_UNSUPPORTED;
	}
	if (m != NULL && m->type == ST_NUMBER)
		(void)read_int32(text->doc->text + m->val, m->end - m->val, ret);
	return END_OK;
}
