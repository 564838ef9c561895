/*
 * Reading msgpack maps of strings, as engines send them over ZMQ: without allocating, and a count above
 * the bytes that are left is refused before it is believed.
 *
 * Source: the msgpack specification.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value whose bytes are in the message; anything but a string or binary has none. */
struct msgpack_text {
	const char *p; /* NULL: not a text */
	size_t n;
};

bool msgpack_is(const struct msgpack_text *v, const char *text);

/*
 * Walks one complete map of any size and order, calling fn for each pair whose key is a text; values
 * other than texts come as {NULL, 0}.  False if the message is not one complete map; fn may have been
 * called by then.
 */
typedef void msgpack_fn(
	const struct msgpack_text *key, const struct msgpack_text *value, void *arg);
bool msgpack_map(const void *msg, size_t len, msgpack_fn *fn, void *arg);
