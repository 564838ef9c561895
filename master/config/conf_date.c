#include "master/config/conf_date.h"

#include <ctype.h>
#include <stddef.h>
#include <time.h>

/* `form` has 0 for a digit, and other bytes as they are.  Returns the text behind it, or NULL. */
static const char *
match(const char *text, const char *form)
{
	for (; *form != '\0'; text++, form++)
		if (*form == '0' ? !isdigit((unsigned char)*text)
				 : toupper((unsigned char)*text) != *form)
			return NULL;
	return text;
}

static int
two(const char *p)
{
	return 10 * (p[0] - '0') + p[1] - '0';
}

/* "Z" or "+01:00" at the end of a time.  False: neither. */
static bool
read_zone(const char *p, int64_t *ret_s)
{
	const char sign = *p;

	*ret_s = 0;
	if (match(p, "Z") != NULL)
		return p[1] == '\0';
	if ((sign != '+' && sign != '-') || match(p + 1, "00:00") == NULL || p[6] != '\0' ||
		two(p + 1) > 23 || two(p + 4) > 59)
		return false;
	*ret_s = (two(p + 1) * 60 + two(p + 4)) * 60;
	if (sign == '-')
		*ret_s = -*ret_s;
	return true;
}

/* What follows the date: " 12:00:00.5Z", where a blank, T or t are the same. */
static bool
read_time(const char *p, struct tm *tm, int64_t *ret_zone_s)
{
	if ((*p != ' ' && toupper((unsigned char)*p) != 'T') || match(p + 1, "00:00:00") == NULL)
		return false;
	tm->tm_hour = two(p + 1);
	tm->tm_min = two(p + 4);
	tm->tm_sec = two(p + 7);
	p += sizeof("T00:00:00") - 1;
	if (*p == '.' && isdigit((unsigned char)p[1]))
		for (p++; isdigit((unsigned char)*p);)
			p++;
	return tm->tm_hour < 24 && tm->tm_min < 60 && tm->tm_sec < 60 && read_zone(p, ret_zone_s);
}

bool
conf_date_parse(const char *text, uint64_t *ret_s)
{
	const char *rest = match(text, "0000-00-00");
	struct tm tm = {.tm_isdst = 0};
	int64_t zone_s = 0, s;
	int day;

	if (rest == NULL || (*rest != '\0' && !read_time(rest, &tm, &zone_s)))
		return false;
	tm.tm_year = 100 * two(text) + two(text + 2) - 1900;
	tm.tm_mon = two(text + 5) - 1;
	tm.tm_mday = day = two(text + 8);
	if (tm.tm_mon < 0 || tm.tm_mon > 11)
		return false;
	s = timegm(&tm) - zone_s;
	if (tm.tm_mday != day || s < 0) /* 31 February became a day of March */
		return false;
	*ret_s = (uint64_t)s;
	return true;
}
