/*
 * Reading msgpack, as engines send it over ZMQ: without allocating, and a count above
 * the bytes that are left is refused before it is believed.
 *
 * Source: the msgpack specification.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum msgpack_kind {
	MSGPACK_NEVER,  /* 0xc1: no value begins so */
	MSGPACK_SCALAR, /* nil, a boolean, a number: `size` bytes follow */
	MSGPACK_BYTES,  /* str, bin: a length of `size` bytes, then so many */
	MSGPACK_EXT,    /* the same, and one byte of type between */
	MSGPACK_ARRAY,  /* a count of `size` bytes, then so many values */
	MSGPACK_MAP,    /* ... pairs */
};

struct msgpack { /* what is left of a message */
	const uint8_t *p, *end;
};

/* A value's head has been read, and its bytes too if it is no container. */
struct msgpack_value {
	enum msgpack_kind kind;
	uint8_t tag;
	const uint8_t *bytes; /* not of a container */
	uint64_t n;           /* bytes, values or pairs */
};

/* The next value.  What a container holds comes after it.  False: the message is cut short, or no msgpack. */
bool msgpack_next(struct msgpack *r, struct msgpack_value *ret);
/* Passes what a container holds, at any depth; of another value nothing. */
bool msgpack_skip(struct msgpack *r, const struct msgpack_value *container);
/* False: it is not an integer that fits; it is no number. */
bool msgpack_uint(const struct msgpack_value *v, uint64_t *ret);
bool msgpack_double(const struct msgpack_value *v, double *ret);
bool msgpack_nil(const struct msgpack_value *v);

/* A value whose bytes are in the message; anything but a string or binary has none. */
struct msgpack_text {
	const char *p; /* NULL: not a text */
	size_t n;
};

struct msgpack_text msgpack_text(const struct msgpack_value *v);
bool msgpack_is(const struct msgpack_text *v, const char *text);

/*
 * Walks one complete map of any size and order, calling fn for each pair whose key is a text; values
 * other than texts come as {NULL, 0}.  False if the message is not one complete map; fn may have been
 * called by then.
 */
typedef void msgpack_fn(
	const struct msgpack_text *key, const struct msgpack_text *value, void *arg);
bool msgpack_map(const void *msg, size_t len, msgpack_fn *fn, void *arg);
