#include "master/config/conf_number.h"

#include <inttypes.h>
#include <stdio.h>

#include "master/config/conf_keys.h"

const struct conf_unit conf_durations[CONF_NUNITS] = {
	{"ms", 1}, {"s", CONF_SEC}, {"m", 60 * CONF_SEC}, {"h", CONF_HOUR}};
const struct conf_unit conf_sizes[CONF_NUNITS] = {
	{"B", 1}, {"KiB", CONF_KIB}, {"MiB", CONF_MIB}, {"GiB", CONF_GIB}};

size_t
conf_digits(const char *text, uint64_t *ret)
{
	uint64_t v = 0;
	size_t n = 0;

	for (; text[n] >= '0' && text[n] <= '9'; n++)
		v = v > UINT64_MAX / 100 ? UINT64_MAX : v * 10 + (uint64_t)(text[n] - '0');
	*ret = v;
	return n > 1 && text[0] == '0' ? 0 : n;
}

const struct conf_period conf_periods[CONF_NPERIODS] = {
	{"", 1}, {"/m", 60}, {"/h", 3600}, {"/s", 1}}; /* of equals the first is written */

const char *
conf_units_show(uint64_t v, const struct conf_unit u[CONF_NUNITS], char buf[32])
{
	size_t i = CONF_NUNITS - 1;

	while (i > 0 && (v == 0 || v % u[i].scale != 0))
		i--;
	(void)snprintf(buf, 32, "%" PRIu64 "%s", v / u[i].scale, v == 0 ? "" : u[i].name);
	return buf;
}
