/*
 * Errands: small requests to engines that no client waits for: telling SGLang's engines to forget a request of which the
 * other half has failed (protocols.md 5.2), for each would wait for the other; and naming to a decode engine what a prefill
 * engine still holds.
 *
 * Process: worker.
 * Ownership: the worker's; an errand ends by itself, within ERRAND_MS.
 */
#pragma once
#include <stdint.h>

struct leg;
struct pair;
struct upstream;
struct worker;

/* POST /abort_request for the request that `of` carries, to its engine, and takes its connection over, to close
 * it when the engine has answered.  Best effort: nothing is sent while too many errands run, since closing the
 * connection, which comes next, tells most engines as much. */
void errand_abort(struct worker *w, struct leg *of);
/* Tells an engine of a hand-over that is used up, as of a model that nobody has: a decode engine that refuses a request
 * before its admission makes the prefill engine free the blocks it names, and fetches nothing (vllm PR 41269). */
void errand_refuse(struct worker *w, const struct pair *pair, struct upstream *to);
void errand_tick(struct worker *w, uint64_t now_ms);
/* Ends all. */
void errand_end_all(struct worker *w);
/* Frees those that ended: after the loop turn. */
void errand_reap(struct worker *w);
