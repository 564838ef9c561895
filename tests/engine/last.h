/*
 * The last requests, byte for byte, for GET /sim/last.
 * Ownership: last_new()/last_free(); a ring of LAST_N, bodies capped at `keep_body` bytes each.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct buf;
struct conn;
struct last;

#define LAST_N 64

struct last *last_new(size_t keep_body);
uint64_t last_add(struct last *l, struct conn *c); /* its number, never 0 */
void last_status(struct last *l, uint64_t seq, int status);
void last_aborted(struct last *l, uint64_t seq);
void last_failed(struct last *l, uint64_t seq, const char *why);   /* what its client is not told */
void last_dump(const struct last *l, unsigned n, struct buf *out); /* a JSON array, oldest first */
void last_clear(struct last *l);
void last_free(struct last **l);
