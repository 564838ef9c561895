/*
 * Whether the load figures of an engine are believed.  An engine may report nonsense for ever, and a reported load
 * turns traffic away from it.
 *
 *	the figures...                              the load of others that counts
 *	change                                      what the figures say
 *	are the same for BELIEF_MS                  half of it, then a quarter, ... until they change
 *	are the same, but our number is another     none: the figures contain our requests, so they must change
 *	are above BELIEF_MOST                       none
 *
 * Fading is a test that a true figure passes: the engine gets a few requests, and its figures show them.  Then all
 * of its load counts again.
 *
 * Process: master.
 * Ownership: the caller's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/load.h"

#define BELIEF_MOST 100000 /* requests at one engine */
#define BELIEF_MS 10000
#define BELIEF_FEWEST 10 /* scrapes that BELIEF_MS must contain */

struct belief {
	uint32_t running, waiting; /* the last figures */
	uint64_t since_ms;         /* these figures were first seen; 0: never */
	uint32_t scrapes;          /* that have seen them since */
	uint32_t ours;             /* at the first exact scrape since; UINT32_MAX: none was exact */
	uint32_t others;           /* exact scrapes since with another number of our requests */
	uint32_t halvings;
};

/* What one scrape has found. */
struct belief_scrape {
	const struct ep_scrape *figures; /* at_ms: now */
	uint32_t foreign;                /* what they say of others */
	uint32_t ours;                   /* our requests at the engine */
	bool exact;                      /* `ours` did not change during the scrape */
};

/* Sets *ret_foreign to the load of others that counts.  Returns NULL, or why the figures are not believed. */
const char *belief_in(struct belief *b, const struct belief_scrape *scrape, uint32_t *ret_foreign);
