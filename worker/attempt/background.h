/*
 * Background requests: small requests to engines that no client waits for.  SGLang's engines are sent /abort_request for
 * an attempt whose other half has failed (protocols.md 5.2), since each would wait for the other; decode engines are
 * sent the name of KV that a prefill engine still holds.
 *
 * Process: worker.
 * Ownership: the worker's; a background request ends by itself, in seconds, or when what it is about is over.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct attempt;
struct endpoint;
struct worker;

#define BACKGROUND_ENGINES 3

/* POST /abort_request for the attempt, to each of its engines that has a request of it; takes the legs' connections
 * over, to close them when the engines have answered.  Best effort: nothing is sent while too many background requests
 * run, since closing the connection, which comes next, means as much to most engines. */
void background_abort(struct attempt *a);
/*
 * Names the attempt's KV parameters, which are spent, in `member` of a request for a model that nobody has: a decode
 * engine that refuses a request before its admission makes the prefill engine free the blocks it names, and fetches
 * nothing (vllm PR 41269).  Up to BACKGROUND_ENGINES engines are asked in turn until one does, and again every second
 * as long as the blocks may be held: kv_lease.
 */
void background_refuse(
	const struct attempt *a, const char *member, struct endpoint *const *to, size_t n);
void background_tick(struct worker *w, uint64_t now_ms);
/* Ends all. */
void background_end_all(struct worker *w);
/* Frees those that ended: after the loop turn. */
void background_reap(struct worker *w);
