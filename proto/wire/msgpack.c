/*
 * msgpack is read by hand: one table says how much follows each tag.  Unknown values are skipped
 * without a stack: a container only adds its items to the number of values still to be passed.
 */
#include "proto/wire/msgpack.h"

#include <string.h>

/* clang-format off */
static const struct {
	uint8_t kind, size;
} tags[32] = { /* 0xc0 to 0xdf */
	{ MSGPACK_SCALAR, 0 }, { MSGPACK_NEVER, 0 },  { MSGPACK_SCALAR, 0 }, { MSGPACK_SCALAR, 0 }, /* nil, -, false, true */
	{ MSGPACK_BYTES, 1 },  { MSGPACK_BYTES, 2 },  { MSGPACK_BYTES, 4 }, /* bin */
	{ MSGPACK_EXT, 1 },    { MSGPACK_EXT, 2 },    { MSGPACK_EXT, 4 }, /* ext */
	{ MSGPACK_SCALAR, 4 }, { MSGPACK_SCALAR, 8 }, /* float */
	{ MSGPACK_SCALAR, 1 }, { MSGPACK_SCALAR, 2 }, { MSGPACK_SCALAR, 4 }, { MSGPACK_SCALAR, 8 }, /* uint */
	{ MSGPACK_SCALAR, 1 }, { MSGPACK_SCALAR, 2 }, { MSGPACK_SCALAR, 4 }, { MSGPACK_SCALAR, 8 }, /* int */
	{ MSGPACK_SCALAR, 2 }, { MSGPACK_SCALAR, 3 }, { MSGPACK_SCALAR, 5 }, { MSGPACK_SCALAR, 9 },
	{ MSGPACK_SCALAR, 17 }, /* fixext, with its type byte */
	{ MSGPACK_BYTES, 1 },  { MSGPACK_BYTES, 2 },  { MSGPACK_BYTES, 4 }, /* str */
	{ MSGPACK_ARRAY, 2 },  { MSGPACK_ARRAY, 4 },
	{ MSGPACK_MAP, 2 },    { MSGPACK_MAP, 4 },
};
/* clang-format on */

static uint64_t
left(const struct msgpack *r)
{
	return (uint64_t)(r->end - r->p);
}

static bool
read_be(struct msgpack *r, unsigned size, uint64_t *ret)
{
	if (left(r) < size)
		return false;
	*ret = 0;
	while (size-- > 0)
		*ret = *ret << 8 | *r->p++;
	return true;
}

/* Kind and count of the value that begins with `tag`. */
static bool
read_head(struct msgpack *r, struct msgpack_value *v)
{
	uint8_t tag;

	if (left(r) == 0)
		return false;
	tag = *r->p++;
	*v = (struct msgpack_value){.kind = MSGPACK_SCALAR, .tag = tag};
	if (tag < 0x80 || tag >= 0xe0) { /* a small integer */
		return true;
	} else if (tag < 0x90) {
		v->kind = MSGPACK_MAP;
		v->n = tag & 0x0f;
	} else if (tag < 0xa0) {
		v->kind = MSGPACK_ARRAY;
		v->n = tag & 0x0f;
	} else if (tag < 0xc0) {
		v->kind = MSGPACK_BYTES;
		v->n = tag & 0x1f;
	} else {
		v->kind = (enum msgpack_kind)tags[tag - 0xc0].kind;
		v->n = tags[tag - 0xc0].size;
		if (v->kind > MSGPACK_SCALAR)
			return read_be(r, (unsigned)v->n, &v->n);
	}
	return v->kind != MSGPACK_NEVER;
}

/* A count is believed only if that many bytes are there: each value takes at least one. */
bool
msgpack_next(struct msgpack *r, struct msgpack_value *v)
{
	if (!read_head(r, v))
		return false;
	if (v->kind == MSGPACK_ARRAY)
		return v->n <= left(r);
	if (v->kind == MSGPACK_MAP)
		return v->n <= left(r) / 2;
	if (v->kind == MSGPACK_EXT)
		v->n++;
	if (v->n > left(r))
		return false;
	v->bytes = r->p;
	r->p += v->n;
	return true;
}

static uint64_t
items(const struct msgpack_value *v)
{
	return v->kind == MSGPACK_MAP ? 2 * v->n : v->kind == MSGPACK_ARRAY ? v->n : 0;
}

/* Passes unsigned integers, which long lists are made of: at most `most` of them.  Returns how many. */
static uint64_t
skip_uints(struct msgpack *r, uint64_t most)
{
	const uint8_t *p = r->p;
	uint64_t n = 0;

	for (; n < most && r->end - p >= 5; n++) /* the longest has 5 bytes */
		if (*p < 0x80)
			p++;
		else if (*p == 0xce)
			p += 5;
		else if (*p == 0xcd)
			p += 3;
		else
			break;
	r->p = p;
	return n;
}

/* Passes what a container holds, at any depth. */
bool
msgpack_skip(struct msgpack *r, const struct msgpack_value *container)
{
	uint64_t todo = items(container);

	for (todo -= skip_uints(r, todo); todo > 0; todo--) {
		struct msgpack_value v;

		if (!msgpack_next(r, &v))
			return false;
		todo += items(&v);
		if (todo - 1 > left(r))
			return false;
	}
	return true;
}

bool
msgpack_is(const struct msgpack_text *v, const char *text)
{
	size_t n = strlen(text);

	return v->p != NULL && v->n == n && memcmp(v->p, text, n) == 0;
}

bool
msgpack_uint(const struct msgpack_value *v, uint64_t *ret)
{
	struct msgpack r;

	if (v->kind != MSGPACK_SCALAR)
		return false;
	*ret = v->tag;
	if (v->tag < 0x80)
		return true;
	r = (struct msgpack){v->bytes, v->bytes + v->n};
	if (v->tag >= 0xd0 && v->tag <= 0xd3) /* signed */
		return read_be(&r, (unsigned)v->n, ret) && (v->bytes[0] & 0x80) == 0;
	return v->tag >= 0xcc && v->tag <= 0xcf && read_be(&r, (unsigned)v->n, ret);
}

bool
msgpack_double(const struct msgpack_value *v, double *ret)
{
	struct msgpack r;
	uint64_t bits;
	uint32_t half;
	float f;

	if (v->kind != MSGPACK_SCALAR || (v->tag != 0xca && v->tag != 0xcb)) {
		if (!msgpack_uint(v, &bits))
			return false;
		*ret = (double)bits;
		return true;
	}
	r = (struct msgpack){v->bytes, v->bytes + v->n};
	if (!read_be(&r, (unsigned)v->n, &bits))
		return false;
	memcpy(ret, &bits, sizeof(bits));
	if (v->tag == 0xca) {
		half = (uint32_t)bits;
		memcpy(&f, &half, sizeof(half));
		*ret = (double)f;
	}
	return true;
}

bool
msgpack_nil(const struct msgpack_value *v)
{
	return v->kind == MSGPACK_SCALAR && v->tag == 0xc0;
}

struct msgpack_text
msgpack_text(const struct msgpack_value *v)
{
	return v->kind == MSGPACK_BYTES
		       ? (struct msgpack_text){(const char *)v->bytes, (size_t)v->n}
		       : (struct msgpack_text){NULL, 0};
}

bool
msgpack_map(const void *msg, size_t len, msgpack_fn *fn, void *arg)
{
	struct msgpack r = {.p = msg, .end = (const uint8_t *)msg + len};
	struct msgpack_value map, key, value;

	if (!msgpack_next(&r, &map) || map.kind != MSGPACK_MAP)
		return false;
	for (uint64_t i = 0; i < map.n; i++) {
		struct msgpack_text k, v;

		if (!msgpack_next(&r, &key) || !msgpack_skip(&r, &key) ||
			!msgpack_next(&r, &value) || !msgpack_skip(&r, &value))
			return false;
		k = msgpack_text(&key);
		v = msgpack_text(&value);
		if (k.p != NULL)
			fn(&k, &v, arg);
	}
	return r.p == r.end;
}
