#include "shm/base/hex.h"

#include <string.h>

/* Not strtoull(), which would take signs, spaces and 0x. */
bool
hex_read(const char *text, size_t digits, uint64_t *ret)
{
	static const char hex[] = "0123456789abcdef";

	*ret = 0;
	for (size_t i = 0; i < digits; i++) {
		const char *digit = memchr(hex, text[i], sizeof(hex) - 1);

		if (digit == NULL)
			return false;
		*ret = *ret << 4 | (uint64_t)(digit - hex);
	}
	return true;
}
