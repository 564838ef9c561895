/*
 * Reservations and load (design.md, "Reservations and load"): one word per endpoint is the truth
 * for all workers, changed by CAS.  A private row per worker and a journal let the master give back
 * exactly what a killed worker held.  There are two such words: requests, which max_inflight
 * limits, and their estimated prompt tokens.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"

/* Worker `me` takes one slot of endpoint `ep`; false if that would exceed max_inflight (0 = no
 * limit).  Never blocks; exact across workers. */
bool load_reserve(struct seg *seg, uint32_t me, uint32_t ep, uint32_t max_inflight);
/* Gives one reservation back; the caller holds it. */
void load_release(struct seg *seg, uint32_t me, uint32_t ep);
/*
 * Adds a request's prompt tokens to the endpoint's outstanding tokens.  Returns how many were
 * added: all, or 0 if the word would overflow.  The caller gives them back by load_tokens_sub()
 * before load_release().
 */
uint32_t load_tokens_add(struct seg *seg, uint32_t me, uint32_t ep, uint32_t tokens);
void load_tokens_sub(struct seg *seg, uint32_t me, uint32_t ep, uint32_t tokens);
/* The request of one held reservation was sent (+1), or its leg ended (-1). */
void load_sent(struct seg *seg, uint32_t me, uint32_t ep, int delta);
/*
 * The engine of `ep` begins to hold KV for a request of worker `me` (+1), or a decode engine has
 * fetched the KV, or no request will fetch it (-1).  Call +1 before load_release() of the prefill
 * request: see load_kv_sum().
 */
void load_kv(struct seg *seg, uint32_t me, uint32_t ep, int delta);

/* Reservations of all workers at this endpoint. */
uint32_t load_count(const struct seg *seg, uint32_t ep);
/* Prompt tokens of the same. */
uint32_t load_tokens(const struct seg *seg, uint32_t ep);
/* Requests of other routers at this endpoint; 0 when the figure is older than max_age_ms. */
uint32_t load_foreign(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t max_age_ms);
/* count + foreign. */
uint64_t load_score(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t max_age_ms);

/* Master.  Sum of all workers' `sent` for this endpoint: to be taken at the scrape. */
uint32_t load_sent_sum(const struct seg *seg, uint32_t ep);
/*
 * KV that the engine holds for requests of all workers.  Of a draining endpoint read load_count()
 * first: each worker counts the KV before it gives the reservation back, so if the count was 0 and
 * this sum is 0, both stay 0.
 */
uint32_t load_kv_sum(const struct seg *seg, uint32_t ep);
void load_foreign_set(struct seg *seg, uint32_t ep, uint32_t foreign, uint64_t now_ms);
/* Master, after waitpid: repairs the open operation of the dead worker and gives back all it held.
 * Returns the number of reservations given back. */
uint32_t load_reap(struct seg *seg, uint32_t dead);

/*
 * Endpoint state and tag.  W: master.
 *
 * UP is written only when no reader holds a table with another address or other models of that endpoint:
 * take rcu_cookie() before the rcu_publish() of the row, and write UP when rcu_passed() says so.  A reader of
 * an older table would take UP for that table's row, and send the request to the old address.
 * After each change call queue_wake_after_change() for each pool: these stores have no barrier of their own.
 */
void ep_state_set(struct seg *seg, uint32_t ep, enum ep_state st);
/* DRAINING for good: a worker that has not reserved by now gives its reservation back
 * (worker/schedule/select.c), so the count that load_count() returns only falls from now on. */
void ep_state_drain(struct seg *seg, uint32_t ep);
/* UP, its weight ramping up from now_ms on (slow start); how long that takes stands in the table. */
void ep_state_recovered(struct seg *seg, uint32_t ep, uint64_t now_ms);
enum ep_state ep_state_get(const struct seg *seg, uint32_t ep);
/* Since when an endpoint that is UP ramps up, clock_ms; 0: it does not. */
uint64_t ep_ramp_from(const struct seg *seg, uint32_t ep);
const char *ep_state_name(enum ep_state st);
uint64_t ep_tag(const struct seg *seg, uint32_t ep);
/* Gives the slot its next life: state STARTING, tag + 1, foreign and scrape cleared.  Only when its
 * count is 0 and the grace period of the table that dropped it is over. */
void ep_slot_begin(struct seg *seg, uint32_t ep);
/* The master's scrape, for metrics and status; readable by all. */
struct ep_scrape {
	uint32_t running, waiting, kv_usage_ppm;
	bool absurd; /* running and waiting are not believed */
	bool has_tokens;
	/* the engine's own counters since its start, of all its clients: tokens of prompts, of answers */
	uint64_t prompt_tokens, generated_tokens;
	uint64_t at_ms; /* 0 = never */
};
void ep_scrape_set(struct seg *seg, uint32_t ep, const struct ep_scrape *s);
struct ep_scrape ep_scrape_get(const struct seg *seg, uint32_t ep);
