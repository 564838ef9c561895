#include "shm/base/decimal.h"

/* Not strtoull(), which would take signs and spaces, and a number that does not fit as the largest one. */
bool
decimal_read(const char **at, const char *end, uint64_t max, uint64_t *ret)
{
	const char *from = *at;

	*ret = 0;
	for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
		const uint64_t digit = (uint64_t)(**at - '0');

		if (digit > max || *ret > (max - digit) / 10)
			return false;
		*ret = *ret * 10 + digit;
	}
	return *at > from;
}
