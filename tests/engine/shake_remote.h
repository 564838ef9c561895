/*
 * What the hand-shakes have in common in which P holds KV and D fetches it by a name it was told:
 * the holds of a prefill leg, and the fetch over the side channel.
 *
 *	FETCH <engine id> <request id> <prompt hash> <parameter hash>
 *	RELEASE <engine id> <request id>
 *	-> OK <blocks> <X-Request-Id> | MISSING | DIFFER <what>
 *
 * g->deal is a struct remote, made by remote_new() and freed by remote_end().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tests/engine/buf.h"

struct gen;
struct hold;
struct shake_words;
struct side_op;
struct side_q;
struct sim;

struct remote {
	/* D: where it was told that its KV is */
	struct buf host, engine, id;
	int port;
	uint64_t meta; /* hash of what it was told */
	struct side_op *op;
	bool fetched;
	/* P: what it holds, of the first prompt; NULL: nothing */
	struct hold *hold;
};

struct remote *remote_new(struct gen *g);
bool remote_check(struct gen *g);  /* check: D knows where to fetch from */
void remote_fetch(struct gen *g);  /* admitted, on D; on P it computes at once */
void remote_hold(struct gen *g);   /* computed, on P */
void remote_unused(struct gen *g); /* unused */
void remote_end(struct gen *g);    /* end */
void remote_asked(struct sim *sim, struct side_q *q, const struct shake_words *words);
/* FETCH alone; false: not answered, since nothing of that id is held. */
bool remote_fetched(struct sim *sim, struct side_q *q, const struct shake_words *words);
