/*
 * Endpoints from DNS: each `dns` entry of a pool is a name that is looked up again when its TTL is over.
 * The addresses (A, AAAA) or services (SRV) of that name are endpoints of the pool.
 *
 * Process: master.
 *
 * A mistake in DNS must not take engines away at once:
 * - no answer, SERVFAIL, a broken message: the endpoints stay, the next lookup follows with back-off
 * - an answer without any usable record, NXDOMAIN included: the endpoints stay until `fall` such answers
 *   have come in a row
 * - an answer that exchanges all engines of a role: the former ones serve until a new one is up, at most
 *   10 s
 * A and AAAA are two lookups; a failure of one does not touch the other's addresses.
 */
#pragma once
#include <stdbool.h>

#include "master/fleet/discover.h"

struct dns;
struct fleet;

/* `found` is called from events of the loop. */
struct dns *dns_new(struct fleet *f, found_fn *found);
void dns_free(struct dns **);

/*
 * Called by fleet_apply() before the fold: entries of f->conf begin, change, or end.  The endpoints of an
 * entry that stays are handed to f->discover again with the entry's present weight, limit and group.
 */
void dns_apply(struct dns *d);

/* Each name has been looked up once. */
bool dns_is_settled(const struct dns *d);
