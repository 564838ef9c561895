/*
 * The only writer of the shared endpoint table: decides when a new version is published, and when
 * workers may see an endpoint UP.
 *
 * Process: master.
 */
#pragma once
#include <stdint.h>

struct endpoint;
struct fleet;
struct publish;

struct publish *publish_new(struct fleet *f);
void publish_free(struct publish **);

/*
 * The endpoint is up.  Workers see UP as soon as the current table has its row as it is now, and no
 * worker reads a former table.  An endpoint that was down has a slow start if its pool has one.
 */
void publish_up(struct publish *p, struct endpoint *ep);
void publish_down(struct publish *p, struct endpoint *ep);
/* Its engine is learned anew: no request goes there before publish_up(). */
void publish_unlearned(struct publish *p, struct endpoint *ep);
/* Its engine is not what the configuration says: the same. */
void publish_misconfigured(struct publish *p, struct endpoint *ep);

/* What the table is made of has changed: one publication at the end of this loop turn. */
void publish_soon(struct publish *p);
/*
 * As publish_soon(), but 100 ms later if nothing else is published before: a fleet that starts
 * does not get one publication for each of its engines.
 */
void publish_later(struct publish *p);
/* Publishes now if an arena is free, else as soon as one is. */
void publish_now(struct publish *p);
/* The number of the configuration that the current table has; 0: none is published. */
uint64_t publish_config(const struct publish *p);
/* Readers or reservations may have gone: frees arenas and slots, publishes what waited. */
void publish_poll(struct publish *p);
