/*
 * What the status shows of an endpoint and of a pool's queue, before it is written as text or JSON.
 *
 * Process: master.  Only status.c, status_json.c and drain.c include this.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/eject.h"
#include "shm/load.h"
#include "shm/tally.h"

struct conf_pool;
struct endpoint;
struct fleet;

/* One endpoint. */
struct facts {
	const struct endpoint *ep;
	const char *state;
	bool has_slot, scraped;
	int ramp; /* percent of its slow start; -1: it is at full weight */
	enum eject_state eject;
	uint64_t eject_left_ms; /* until it is due, or the most its trial still has */
	bool busy;
	uint64_t busy_left_ms; /* the same of a busy endpoint */
	enum tally_cause last; /* of its last failure; TALLY_GOOD: none has failed */
	uint64_t last_age_ms;
	bool slow;
	double slow_times; /* of its peers' time */
	double share;      /* part of its weight that it has */
	double token_us;   /* time per token; 0: not known */
	uint32_t in_flight, tokens;
	uint32_t kv_outstanding; /* load_kv_sum() */
	uint64_t score, tag, age_ms;
	struct ep_scrape scrape;
	const char *const *models;
	size_t nmodels;
};

struct facts facts_of(const struct endpoint *ep, uint64_t now_ms);
/* One word: its state; of an endpoint that is up also `ejected`, `busy` or `slow`. */
const char *facts_state(const struct facts *x);
/* Why the endpoint is not up; else what its engine refuses: our key, or what others accept; else "". */
const char *facts_reason(const struct facts *x);

/* Calls fn for each endpoint: those of the configuration in its order, found ones, draining ones. */
void facts_each(struct fleet *f, void (*fn)(const struct facts *, void *), void *arg);

/* Requests of all workers that wait for a slot of the pool, and the longest wait of these. */
uint32_t facts_waiting(const struct fleet *f, const struct conf_pool *pool, uint64_t *ret_ms);
