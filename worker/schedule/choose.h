/*
 * Choosing engines: the selections of a request, and the reservation of one engine, of both, or of another decode
 * engine.  Nothing is left reserved by a choice that fails.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/schedule/reservation.h"
#include "worker/schedule/select.h"

struct demand;
struct endpoint;
struct table;
struct table_pool;
struct worker;

/* Returns true if this worker has no keys of tls for the pool, whose engines speak TLS, some or all: those will not do. */
bool choose_plain_only(const struct worker *w, const struct table_pool *tp);
/* Makes the selections of a request, one per role; the policies' keys are hashed once. */
void choose_prepare(struct selection s[ROLE_N], struct worker *w, const struct demand *d,
	const struct table *t, const struct table_pool *tp, uint32_t model);
/*
 * Chooses and reserves one endpoint.  Where no slot is free, the slot of `old` will do (NULL: there is none), the
 * reservation of an attempt that is replaced: it moves as it is, so that no other request can take it in between.
 * A free slot goes first: whether the engine of `old` works is not known.
 */
bool choose_one(
	struct worker *w, struct selection *s, struct reservation *to, struct reservation *old);
/*
 * Chooses and reserves both endpoints, of one group if there are groups.  `old` (or NULL): as in choose_one().  The
 * selections' groups are all groups again unless it returns CHOSEN_BOTH.
 */
enum chosen { CHOSEN_BOTH, CHOSEN_NO_DECODE /* the prefill engine alone */, CHOSEN_NONE };
enum chosen choose_both(
	struct worker *w, struct selection s[ROLE_N], struct reserved *to, struct reserved *old);
/* Chooses and reserves a decode endpoint beside a prefill endpoint that is in use. */
bool choose_decode(struct worker *w, struct selection *d, struct reservation *to,
	const struct endpoint *prefill);
