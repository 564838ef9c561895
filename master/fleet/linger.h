/*
 * Engines that are no longer known, and serve until others of their role are up in their place.
 *
 * All engines of a role, or of one model of a pool, may be exchanged at once, by a DNS answer or by a
 * reload.  The new engines have yet to be probed: until each model of the former ones is served by another
 * engine (under `pairing: require` one of the same group), the former ones go on, if they still can, at
 * most 10 s.  They do not wait where all other engines of the role are up: nothing is to come then.
 *
 * Process: master.  Used by dns.c and former.c, which keep the engines among what they report as found.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "master/fleet/targets.h"
#include "shm/base/conf.h"

struct endpoint;
struct event;
struct fleet;

struct lingering {
	struct fleet *fleet;
	const char *pool; /* the owner's */
	enum role role;
	struct targets leaving; /* no longer known, sorted; none: the lingering is over */
	uint64_t since_ms;
	struct event *poll;
	void (*over)(void *arg); /* `leaving` is empty now; from an event of its own */
	void *arg;
};

void linger_init(struct lingering *l, struct fleet *f, const char *pool, enum role role,
	void (*over)(void *arg), void *arg);
void linger_fini(struct lingering *l);

/*
 * Takes `former`, engines that are up, in place of those that linger.  Empty afterwards if others are up in
 * their place already; over() is not called then.
 */
void linger_begin(struct lingering *l, struct targets *former);
/* The next endpoint of the pool and role that is up, from *at on; NULL: there is none. */
const struct endpoint *linger_next_up(const struct lingering *l, size_t *at);
