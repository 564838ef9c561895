#include "proto/answer/usage_end.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json/json_last.h"
#include "shm/base/mem.h"

static const struct json_name members[USAGE_NUMBERS] = {
	[USAGE_CACHED] = {"\"cached_tokens\":", 16, 4 /* h */},
	[USAGE_COMPLETION] = {"\"completion_tokens\":", 20, 14 /* k */},
	[USAGE_PROMPT] = {"\"prompt_tokens\":", 16, 1 /* p */},
	[USAGE_INPUT] = {"\"input_tokens\":", 15, 3 /* p */},
	[USAGE_OUTPUT] = {"\"output_tokens\":", 16, 4 /* p */},
};

uint64_t
usage_at_end(const char *text, size_t n, enum usage_number which)
{
	const size_t skipped = n > USAGE_END_BYTES ? n - USAGE_END_BYTES : 0;
	const char *p, *end;
	uint64_t value = 0;

	if (n == 0) /* text may be NULL */
		return USAGE_NONE;
	p = json_last(text + skipped, n - skipped, &members[which]);
	if (p == NULL)
		return USAGE_NONE;
	end = text + n;
	for (; p < end && *p == ' '; p++)
		;
	if (p == end || *p < '0' || *p > '9')
		return USAGE_NONE;
	for (; p < end && *p >= '0' && *p <= '9' && value <= UINT32_MAX; p++)
		value = value * 10 + (uint64_t)(*p - '0');
	return value;
}

void
usage_tail_add(struct usage_tail *t, const char *p, size_t n)
{
	size_t kept;

	if (n == 0)
		return;
	if (t->text == NULL)
		t->text = mem_zero(USAGE_END_BYTES);
	if (n >= USAGE_END_BYTES) {
		memcpy(t->text, p + n - USAGE_END_BYTES, USAGE_END_BYTES);
		t->n = USAGE_END_BYTES;
		return;
	}
	kept = t->n + n <= USAGE_END_BYTES ? t->n : USAGE_END_BYTES - n;
	memmove(t->text, t->text + t->n - kept, kept);
	memcpy(t->text + kept, p, n);
	t->n = (uint32_t)(kept + n);
}

void
usage_tail_free(struct usage_tail *t)
{
	free(t->text);
	*t = (struct usage_tail){0};
}
