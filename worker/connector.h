/*
 * How the KV cache moves between the engines of a pair: one struct of functions per hand-shake, one
 * file each.  The request's state machine knows none of them by name.
 *
 * Process: worker.  Pure functions of the pair: no I/O here.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/splice.h"
#include "shm/base/conf.h"

struct pair;

/* The event that starts a leg. */
enum leg_starts { STARTS_AT_ONCE, STARTS_AFTER_PREFILL, STARTS_NEVER };

struct connector {
	enum leg_starts starts[ROLE_N];
	/* Edits to the client's body for each leg; `e` comes with the peer-choosing members already cut. */
	void (*edit[ROLE_N])(const struct pair *pair, struct splice_edit *e);
	/*
	 * The prefill engine has answered 200 with leg[P].answer: remember what decode is given.
	 * 1: taken; 0: there is nothing to hand over (decode goes without, counted); -1: the answer is not
	 * usable (the leg has failed).
	 */
	int (*prefilled)(struct pair *pair);
	/* The hand-over describes one sample of one prompt: for more, see connector_direct. */
	bool (*serves_one)(const struct pair *pair);
};

extern const struct connector connector_nixl, connector_orchestrated;

const struct connector *connector_find(enum connector_kind kind);

/*
 * For what a hand-over cannot serve: several samples or several prompts in one request, of which a
 * prefill answer describes only the first (protocols.md 1.2, 2.6).  The decode engine alone does it all.
 */
extern const struct connector connector_direct;
bool connector_asks_several(const struct splice *doc);

/* Shared by connectors (connector.c). */

/* Limits of a prefill leg: one token, not streamed (protocols.md 1.6). */
void connector_limit_prefill(const struct pair *pair, struct splice_edit *e);
/* Takes kv_transfer_params out of the prefill answer, as raw JSON.  Returns as `prefilled`. */
int connector_take_kv(struct pair *pair);
/* The whole leg's body: strips, replaces ids, applies the connector's edit, or the release's. */
void connector_edit(const struct pair *pair, enum role role, struct splice_edit *e);
