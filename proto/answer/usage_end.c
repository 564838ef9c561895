#include "proto/answer/usage_end.h"

#include "proto/json/json_last.h"

static const struct json_name members[USAGE_NUMBERS] = {
	[USAGE_CACHED] = {"\"cached_tokens\":", 16, 4 /* h */},
	[USAGE_COMPLETION] = {"\"completion_tokens\":", 20, 14 /* k */},
};

uint64_t
usage_at_end(const char *text, size_t n, enum usage_number which)
{
	const size_t skipped = n > USAGE_END_BYTES ? n - USAGE_END_BYTES : 0;
	const char *p = json_last(text + skipped, n - skipped, &members[which]);
	const char *const end = text + n;
	uint64_t value = 0;

	if (p == NULL)
		return 0;
	for (; p < end && *p == ' '; p++)
		;
	for (; p < end && *p >= '0' && *p <= '9' && value <= UINT32_MAX; p++)
		value = value * 10 + (uint64_t)(*p - '0');
	return value;
}
