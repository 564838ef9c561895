/* Numbers with units in a configuration: durations, sizes and rates. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define CONF_NUNITS 4
#define CONF_NPERIODS 4

struct conf_unit {
	const char *name;
	uint64_t scale;
};
struct conf_period {
	const char *name;
	uint32_t seconds;
};

extern const struct conf_unit conf_durations[CONF_NUNITS]; /* in milliseconds, ascending */
extern const struct conf_unit conf_sizes[CONF_NUNITS];     /* in bytes, ascending */
extern const struct conf_period conf_periods[CONF_NPERIODS];

/*
 * Reads the digits at the start of text; a number too large for any bound becomes UINT64_MAX.  Returns the
 * number of digits; 0 also for a leading zero, which YAML 1.1 would read as octal.
 */
size_t conf_digits(const char *text, uint64_t *ret);
/* Writes "250ms", with the largest unit that divides the value, into buf and returns buf. */
const char *conf_units_show(uint64_t v, const struct conf_unit u[CONF_NUNITS], char buf[32]);
