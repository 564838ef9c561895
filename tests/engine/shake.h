/*
 * Hand-shakes: how a prefill engine (P) and a decode engine (D) agree on whose KV is whose.  One
 * file and one struct of functions for each; gen.c and gen_parse.c name none of them.
 *
 *	          read, check            admitted            computed       answer, answered
 *	 request ------------> QUEUED ------------> COMPUTE ----------> reply ------------> done
 *	                          |  D: may wait for KV      P: holds KV, may wait for D
 *	                          +--> unused (the client left, or it was refused), at last end
 *
 * A function may be NULL: nothing to do then.  What a hand-shake knows of a request hangs from
 * g->deal and is freed by `end`; what it knows of the whole engine hangs from sim->deals.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/engine/buf.h"
#include "tests/engine/json.h"

struct gen;
struct side_q;
struct sim;

#define SHAKE_MEMBERS 6

struct shake_words { /* of a question on the side channel, percent-decoded */
	char *w[8];
	unsigned n;
};

struct shake_extra {            /* what P's answer carries; empty: none */
	struct buf kv;          /* kv_transfer_params, as JSON */
	struct buf fingerprint; /* system_fingerprint, as text */
};

struct shake {
	const char *name;
	const char
		*members[SHAKE_MEMBERS]; /* of the body: gen_parse.c puts them into g->handed[] */
	bool leg_of_one; /* P's leg must ask for one token, in one piece (400 otherwise) */

	void (*start)(struct sim *sim); /* ports of its own; options that do not fit: exit(2) */
	void (*stop)(struct sim *sim);
	/* Sets g->mode from g->handed[], headers (g->rid is set) and the engine's role.  Nothing else
	 * of the request has been looked at. */
	void (*read)(struct gen *g);
	/* The prompt is known.  May change g->mode; false: refused by gen_refuse(). */
	bool (*check)(struct gen *g);
	/* It has its blocks.  Ends in gen_compute() or gen_fail(), now or later. */
	void (*admitted)(struct gen *g);
	/* P has computed the prompt.  Ends in gen_reply() or gen_fail(), now or later. */
	void (*computed)(struct gen *g);
	void (*answer)(struct gen *g, struct shake_extra *x); /* P's answer is being written */
	void (*answered)(struct gen *g, const char *json, size_t n); /* ... and has these bytes */
	void (*unused)(struct gen *g); /* its KV will not be used here: as vLLM, tell P */
	void (*end)(struct gen *g);
	/* The error text of a request that gen_fail() ends; NULL: vLLM's, which tells nothing. */
	void (*failure)(struct gen *g, const char *what, struct buf *text);
	/* A question on the side channel: ends in side_answer(), now or later. */
	void (*asked)(struct sim *sim, struct side_q *q, const struct shake_words *words);
};

extern const struct shake shake_nixl, shake_response, shake_lmcache, shake_storage;
extern const struct shake shake_sglang, shake_mooncake, shake_mooncake_old, shake_p2p_nccl;

const struct shake *shake_find(const char *name); /* NULL: there is none of that name */
const char *shake_names(void);                    /* for --help */
