#include "proto/json/json_last.h"

#include <string.h>

const char *
json_last(const char *text, size_t n, const struct json_name *name)
{
	const char *p, *from;
	size_t left;

	if (n < name->len)
		return NULL;
	from = text + name->rare;
	for (left = n - name->len + 1; (p = memrchr(from, name->text[name->rare], left)) != NULL;
		left = (size_t)(p - from))
		if (memcmp(p - name->rare, name->text, name->len) == 0)
			return p - name->rare + name->len;
	return NULL;
}
