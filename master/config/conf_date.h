/* Dates of RFC 3339, such as 2027-01-31 and 2027-01-31T12:00:00+01:00. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Unix time, of a date its first second in UTC.  False: the text is no such date, or one before 1970. */
bool conf_date_parse(const char *text, uint64_t *ret_s);
