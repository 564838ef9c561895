/*
 * The side channel between engines: one line each way over TCP, answers in the order of questions.
 *
 *	FETCH <engine id> <request id> <prompt hash> <parameter hash>
 *	RELEASE <engine id> <request id>
 *	-> OK <blocks> <X-Request-Id> | MISSING | DIFFER <what>
 *
 * Ids are percent-encoded, hashes are 16 hex digits.  A prefill engine listens; a decode engine
 * keeps one connection to each prefill engine it has fetched from.
 */
#pragma once
#include <stdint.h>

struct gen;
struct side;
struct side_op;
struct sim;

struct side_ref { /* where KV is held, as a decode engine was told; NUL-terminated, not owned */
	const char *host, *engine, *id;
	int port;
};

struct side *side_new(struct sim *sim, int listen_fd); /* takes the socket */
void side_free(struct side **s);
/* gen_fetched() follows, never from inside; until then side_forget() makes the answer go nowhere.
 */
struct side_op *side_fetch(
	struct side *s, const struct side_ref *ref, uint64_t prompt, uint64_t meta, struct gen *g);
void side_forget(struct side_op *op);
void side_release(struct side *s, const struct side_ref *ref);
