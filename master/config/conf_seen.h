/* Names that have been read, in a hash table: whether a name occurs twice, and where it occurred
 * first. */
#pragma once
#include <stddef.h>

struct conf_seen; /* NULL: empty */

/*
 * Adds a name with its owner, any number but 0.  Returns 0, or the owner that the name was added with before.
 * The text must stay until conf_seen_free().
 */
size_t conf_seen_add(struct conf_seen **seen, const char *name, size_t owner);
void conf_seen_free(struct conf_seen **seen);
