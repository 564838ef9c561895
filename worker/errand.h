/*
 * Errands: small requests to engines that no client waits for.  Today one: telling SGLang's engines to forget
 * a request of which the other half has failed (protocols.md 5.2), for each would wait for the other.
 *
 * Process: worker.
 * Ownership: the worker's; an errand ends by itself, within ERRAND_MS.
 */
#pragma once
#include <stdint.h>

struct leg;
struct worker;

/* POST /abort_request for the request that `of` carries, to its engine, and takes its connection over, to close
 * it when the engine has answered.  Best effort: nothing is sent while too many errands run, since closing the
 * connection, which comes next, tells most engines as much. */
void errand_abort(struct worker *w, struct leg *of);
void errand_tick(struct worker *w, uint64_t now_ms);
/* Ends all. */
void errand_end_all(struct worker *w);
/* Frees those that ended: after the loop turn. */
void errand_reap(struct worker *w);
