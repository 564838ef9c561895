/*
 * msgpack is read by hand: one table says how much follows each tag.  Unknown values are skipped
 * without a stack: a container only adds its items to the number of values still to be passed.
 */
#include "proto/wire/msgpack.h"

#include <string.h>

enum kind {
	K_NEVER,  /* 0xc1: no value begins so */
	K_SCALAR, /* `size` bytes follow */
	K_BYTES,  /* str, bin: a length of `size` bytes, then so many */
	K_EXT,    /* the same, and one byte of type between */
	K_ARRAY,  /* a count of `size` bytes, then so many values */
	K_MAP,    /* ... pairs */
};

/* clang-format off */
static const struct {
	uint8_t kind, size;
} tags[32] = { /* 0xc0 to 0xdf */
	{ K_SCALAR, 0 }, { K_NEVER, 0 },  { K_SCALAR, 0 }, { K_SCALAR, 0 },  /* nil, -, false, true */
	{ K_BYTES, 1 },  { K_BYTES, 2 },  { K_BYTES, 4 },                    /* bin */
	{ K_EXT, 1 },    { K_EXT, 2 },    { K_EXT, 4 },                      /* ext */
	{ K_SCALAR, 4 }, { K_SCALAR, 8 },                                    /* float */
	{ K_SCALAR, 1 }, { K_SCALAR, 2 }, { K_SCALAR, 4 }, { K_SCALAR, 8 },  /* uint */
	{ K_SCALAR, 1 }, { K_SCALAR, 2 }, { K_SCALAR, 4 }, { K_SCALAR, 8 },  /* int */
	{ K_SCALAR, 2 }, { K_SCALAR, 3 }, { K_SCALAR, 5 }, { K_SCALAR, 9 },
	{ K_SCALAR, 17 },                                                    /* fixext, with its type byte */
	{ K_BYTES, 1 },  { K_BYTES, 2 },  { K_BYTES, 4 },                    /* str */
	{ K_ARRAY, 2 },  { K_ARRAY, 4 },
	{ K_MAP, 2 },    { K_MAP, 4 },
};
/* clang-format on */

struct reader {
	const uint8_t *p, *end;
};

/* A value's head has been read, and its bytes too if it is no container. */
struct value {
	enum kind kind;
	const uint8_t *bytes; /* K_BYTES */
	uint64_t n;           /* bytes, values or pairs */
};

static uint64_t
left(const struct reader *r)
{
	return (uint64_t)(r->end - r->p);
}

static bool
read_be(struct reader *r, unsigned size, uint64_t *ret)
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
read_head(struct reader *r, struct value *v)
{
	uint8_t tag;

	if (left(r) == 0)
		return false;
	tag = *r->p++;
	*v = (struct value){.kind = K_SCALAR};
	if (tag < 0x80 || tag >= 0xe0) { /* a small integer */
		return true;
	} else if (tag < 0x90) {
		v->kind = K_MAP;
		v->n = tag & 0x0f;
	} else if (tag < 0xa0) {
		v->kind = K_ARRAY;
		v->n = tag & 0x0f;
	} else if (tag < 0xc0) {
		v->kind = K_BYTES;
		v->n = tag & 0x1f;
	} else {
		v->kind = (enum kind)tags[tag - 0xc0].kind;
		v->n = tags[tag - 0xc0].size;
		if (v->kind > K_SCALAR)
			return read_be(r, (unsigned)v->n, &v->n);
	}
	return v->kind != K_NEVER;
}

/* A count is believed only if that many bytes are there: each value takes at least one. */
static bool
read_value(struct reader *r, struct value *v)
{
	if (!read_head(r, v))
		return false;
	if (v->kind == K_ARRAY)
		return v->n <= left(r);
	if (v->kind == K_MAP)
		return v->n <= left(r) / 2;
	if (v->kind == K_EXT)
		v->n++;
	if (v->n > left(r))
		return false;
	v->bytes = r->p;
	r->p += v->n;
	return true;
}

static uint64_t
items(const struct value *v)
{
	return v->kind == K_MAP ? 2 * v->n : v->kind == K_ARRAY ? v->n : 0;
}

/* Passes what a container holds, at any depth. */
static bool
skip_items(struct reader *r, const struct value *container)
{
	for (uint64_t todo = items(container); todo > 0; todo--) {
		struct value v;

		if (!read_value(r, &v))
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

static struct msgpack_text
text_of(const struct value *v)
{
	return v->kind == K_BYTES ? (struct msgpack_text){(const char *)v->bytes, (size_t)v->n}
				  : (struct msgpack_text){NULL, 0};
}

bool
msgpack_map(const void *msg, size_t len, msgpack_fn *fn, void *arg)
{
	struct reader r = {.p = msg, .end = (const uint8_t *)msg + len};
	struct value map, key, value;

	if (!read_value(&r, &map) || map.kind != K_MAP)
		return false;
	for (uint64_t i = 0; i < map.n; i++) {
		struct msgpack_text k, v;

		if (!read_value(&r, &key) || !skip_items(&r, &key) || !read_value(&r, &value) ||
			!skip_items(&r, &value))
			return false;
		k = text_of(&key);
		v = text_of(&value);
		if (k.p != NULL)
			fn(&k, &v, arg);
	}
	return r.p == r.end;
}
