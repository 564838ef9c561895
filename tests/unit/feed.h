/*
 * feed_splits(): a stream parser must not care how its input was cut into reads.
 *
 * The input is fed whole, byte by byte, and cut in two at every offset; after each way `check` runs
 * and demands the same result.  Every piece is its own allocation of exactly its size, so that
 * under ASan a parser that looks beyond its piece, or keeps a pointer into an earlier one, is
 * caught.
 */
#pragma once
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct feeder {
	void (*start)(void *ctx);                          /* a fresh parser, an empty result */
	void (*piece)(void *ctx, const char *p, size_t n); /* the next read */
	void (*check)(
		void *ctx, const char *how); /* asserts on the result; `how` says how it was cut */
};

static inline void
feed_piece(const struct feeder *f, void *ctx, const char *p, size_t n)
{
	char *copy = malloc(n > 0 ? n : 1);

	if (copy == NULL)
		abort();
	memcpy(copy, p, n);
	f->piece(ctx, copy, n);
	free(copy);
}

static inline void
feed_splits(const struct feeder *f, void *ctx, const char *in, size_t n)
{
	char how[32];

	f->start(ctx);
	feed_piece(f, ctx, in, n);
	f->check(ctx, "whole");

	f->start(ctx);
	for (size_t i = 0; i < n; i++)
		feed_piece(f, ctx, in + i, 1);
	f->check(ctx, "byte by byte");

	for (size_t cut = 1; cut < n; cut++) {
		f->start(ctx);
		feed_piece(f, ctx, in, cut);
		feed_piece(f, ctx, in + cut, n - cut);
		(void)snprintf(how, sizeof(how), "cut at %zu", cut);
		f->check(ctx, how);
	}
}
