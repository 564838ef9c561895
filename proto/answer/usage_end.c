#include "proto/answer/usage_end.h"

#include <string.h>

/* `rare` is the place of a letter that few other texts in an answer have: the search looks for that letter alone, which
 * costs a fifth of memmem(). */
struct member {
	const char *text;
	size_t len, rare;
};
static const struct member members[USAGE_NUMBERS] = {
	[USAGE_CACHED] = {"\"cached_tokens\":", 16, 4 /* h */},
	[USAGE_COMPLETION] = {"\"completion_tokens\":", 20, 14 /* k */},
};

/* Returns where the value of the last such member begins, or NULL. */
static const char *
find(const char *text, size_t n, const struct member *m)
{
	const char *p, *from = text + m->rare;
	size_t left = n >= m->len ? n - m->len + 1 : 0;

	for (; left > 0 && (p = memrchr(from, m->text[m->rare], left)) != NULL;
		left = (size_t)(p - from))
		if (memcmp(p - m->rare, m->text, m->len) == 0)
			return p - m->rare + m->len;
	return NULL;
}

uint64_t
usage_at_end(const char *text, size_t n, enum usage_number which)
{
	const size_t skipped = n > USAGE_END_BYTES ? n - USAGE_END_BYTES : 0;
	const char *p = find(text + skipped, n - skipped, &members[which]), *const end = text + n;
	uint64_t value = 0;

	if (p == NULL)
		return 0;
	for (; p < end && *p == ' '; p++)
		;
	for (; p < end && *p >= '0' && *p <= '9' && value <= UINT32_MAX; p++)
		value = value * 10 + (uint64_t)(*p - '0');
	return value;
}
