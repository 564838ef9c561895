/*
 * Endpoints from DNS: each `dns` entry of a pool is a name that is looked up again and again, as its TTL
 * says, and whose addresses (A, AAAA) or services (SRV) are endpoints of that pool.
 *
 * Process: master.
 *
 * What a name server says is not believed at once where that would take engines away for no reason:
 * - no answer, SERVFAIL, a broken message: what was found before stays, asked again with back-off
 * - an answer without any usable record, NXDOMAIN included: what was found stays until that has been
 *   said `fall` times in a row
 * - an answer that exchanges all engines of a role: the former ones serve until a new one is up, at most
 *   10 s
 * A and AAAA are two questions; one of them failing does not touch the other's addresses.
 */
#pragma once
#include "master/fleet/discover.h"

struct dns;
struct fleet;

/* `found` is called from events of the loop. */
struct dns *dns_new(struct fleet *f, found_fn *found);
void dns_free(struct dns **);

/*
 * Within fleet_apply(), before the fold: entries of f->conf begin, change, or end.  What is known of
 * those that stay is handed to f->discover again with the entry's present weight, limit and group.
 */
void dns_apply(struct dns *d);
