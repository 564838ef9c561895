/*
 * A name that is looked for from the end of a text, without reading the JSON before it.
 */
#pragma once
#include <stddef.h>

/* `rare` is the place of a letter that few other texts around the name have: the search looks for that letter
 * alone, which costs a fifth of memmem(). */
struct json_name {
	const char *text;
	size_t len, rare;
};

/* Returns what follows the last such name, or NULL. */
const char *json_last(const char *text, size_t n, const struct json_name *name);
