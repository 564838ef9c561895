/*
 * Errands: small requests to engines that no client waits for: telling SGLang's engines to forget a request of which the
 * other half has failed (protocols.md 5.2), for each would wait for the other; and naming to a decode engine what a prefill
 * engine still holds.
 *
 * Process: worker.
 * Ownership: the worker's; an errand ends by itself, in seconds, or when what it is about is over.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct leg;
struct pair;
struct endpoint;
struct worker;

/* POST /abort_request for the request that `of` carries, to its engine, and takes its connection over, to close
 * it when the engine has answered.  Best effort: nothing is sent while too many errands run, since closing the
 * connection, which comes next, tells most engines as much. */
void errand_abort(struct worker *w, struct leg *of);
#define ERRAND_ENGINES 3
/*
 * Names the pair's hand-over, which is used up, in `member` of a request for a model that nobody has: a decode engine that
 * refuses a request before its admission makes the prefill engine free the blocks it names, and fetches nothing (vllm PR
 * 41269).  Up to ERRAND_ENGINES engines are asked in turn until one does, and again every second as long as
 * the blocks may be held: kv_lease.
 */
void errand_refuse(
	const struct pair *pair, const char *member, struct endpoint *const *to, size_t n);
void errand_tick(struct worker *w, uint64_t now_ms);
/* Ends all. */
void errand_end_all(struct worker *w);
/* Frees those that ended: after the loop turn. */
void errand_reap(struct worker *w);
