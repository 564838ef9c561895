#include "proto/http/trace.h"

#include <string.h>

#define AT_ID 3
#define AT_SPAN (AT_ID + TRACE_ID + 1)
#define AT_FLAGS (AT_SPAN + 17)

/* Returns the value of a lower-case hex digit, or -1. */
static int
digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns true for n hex digits that are not all zero. */
static bool
is_id(const char *p, size_t n)
{
	int any = 0;

	for (size_t i = 0; i < n; i++) {
		if (digit(p[i]) < 0)
			return false;
		any |= digit(p[i]);
	}
	return any != 0;
}

/* Returns the number of 16 hex digits. */
static uint64_t
number(const char *p)
{
	uint64_t n = 0;

	for (size_t i = 0; i < 16; i++)
		n = n << 4 | (uint64_t)digit(p[i]);
	return n;
}

static bool
is_version(const char *p, size_t n)
{
	const bool zero = p[0] == '0' && p[1] == '0', invalid = p[0] == 'f' && p[1] == 'f';

	if (digit(p[0]) < 0 || digit(p[1]) < 0 || invalid)
		return false;
	return n == TRACE_PARENT || (!zero && p[TRACE_PARENT] == '-');
}

bool
trace_read(const char *p, size_t n, struct trace *ret)
{
	*ret = (struct trace){.flags = 0};
	if (n < TRACE_PARENT || !is_version(p, n) || p[2] != '-' || p[AT_SPAN - 1] != '-' ||
		p[AT_FLAGS - 1] != '-' || !is_id(p + AT_ID, TRACE_ID) || !is_id(p + AT_SPAN, 16) ||
		digit(p[AT_FLAGS]) < 0 || digit(p[AT_FLAGS + 1]) < 0)
		return false;
	memcpy(ret->id, p + AT_ID, TRACE_ID);
	ret->parent = number(p + AT_SPAN);
	ret->flags = (uint8_t)(digit(p[AT_FLAGS]) * 16 + digit(p[AT_FLAGS + 1]));
	return true;
}

/* --- tracestate --------------------------------------------------------------------------------- */

#define PART_MAX 256 /* bytes of a key, or of a value */
#define MEMBERS_MAX 32

static bool
is_key(struct span s)
{
	for (size_t i = 0; i < s.n; i++) {
		const char c = s.p[i];
		const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');

		if (!plain && (i == 0 || c == '\0' || strchr("_-*/@", c) == NULL))
			return false;
	}
	return s.n > 0 && s.n <= PART_MAX;
}

static bool
is_value(struct span s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] < ' ' || s.p[i] > '~' || s.p[i] == '=')
			return false;
	return s.n > 0 && s.n <= PART_MAX;
}

static bool
is_member(struct span s)
{
	const char *equals = memchr(s.p, '=', s.n);
	const size_t n = equals != NULL ? (size_t)(equals - s.p) : 0;

	return equals != NULL && is_key((struct span){s.p, n}) &&
	       is_value((struct span){equals + 1, s.n - n - 1});
}

/* Returns true if one more member of n bytes, with its comma, can be kept. */
static bool
has_room(const char *state, size_t n)
{
	unsigned members = 1;

	if (state[0] == '\0')
		return n <= TRACE_STATE;
	for (const char *p = state; *p != '\0'; p++)
		members += *p == ',';
	return strlen(state) + 1 + n <= TRACE_STATE && members < MEMBERS_MAX;
}

bool
trace_add_state(struct trace_state *t, struct span line)
{
	struct span member;

	while (http_list_next(&line, &member)) {
		size_t at = strlen(t->text);

		if (member.n == 0)
			continue;
		if (!is_member(member)) {
			t->text[0] = '\0';
			return false;
		}
		if (!has_room(t->text, member.n))
			continue;
		if (at > 0)
			t->text[at++] = ',';
		memcpy(t->text + at, member.p, member.n);
		t->text[at + member.n] = '\0';
	}
	return true;
}

/* --- writing ------------------------------------------------------------------------------------ */

static void
put_hex(char *to, uint64_t v, int digits)
{
	for (int i = digits - 1; i >= 0; i--, v >>= 4)
		to[i] = "0123456789abcdef"[v & 0xf];
}

void
trace_make(struct trace *ret, uint64_t high, uint64_t low)
{
	*ret = (struct trace){.flags = TRACE_SAMPLED};
	put_hex(ret->id, high, 16);
	put_hex(ret->id + 16, high == 0 && low == 0 ? 1 : low, 16);
}

void
trace_write(const struct trace *t, uint64_t span, char ret[TRACE_PARENT])
{
	memcpy(ret, "00-", AT_ID);
	memcpy(ret + AT_ID, t->id, TRACE_ID);
	ret[AT_SPAN - 1] = ret[AT_FLAGS - 1] = '-';
	put_hex(ret + AT_SPAN, span == 0 ? 1 : span, 16);
	put_hex(ret + AT_FLAGS, t->flags, 2);
}
