/*
 * Background requests: small requests to engines that no client waits for.  SGLang's engines
 * are sent /abort_request for an attempt whose other leg has failed (protocols.md 5.2), since
 * each engine would wait for the other.  Decode engines are sent the name of KV that a
 * prefill engine still holds.
 *
 * Process: worker.
 * Ownership: the worker owns its background requests.  A background request ends by itself,
 * within seconds or when `kv_lease` is over.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct attempt;
struct endpoint;
struct worker;

#define BACKGROUND_ENGINES 3

/* Sends POST /abort_request to each engine that has a request of the attempt.  Takes the legs'
 * connections over, and closes them when the engines have answered.  Sends nothing while too
 * many background requests run: the close of the connection, which follows, is an abort to most
 * engines. */
void background_abort(struct attempt *a);
/*
 * Names the attempt's KV parameters, which are spent, in `member` of a request for a model
 * that does not exist.  A decode engine that refuses a request before its admission makes the
 * prefill engine free the named blocks, and fetches nothing (vllm PR 41269).  Up to
 * BACKGROUND_ENGINES engines are asked in turn until one refuses it, with pauses of random length
 * between them (0.1 to 5 s), none that is not up or has reported that it has no room.  After three
 * other answers, or when kv_lease is over, the engine's own lease frees the blocks.
 */
void background_refuse(
	const struct attempt *a, const char *member, struct endpoint *const *to, size_t n);
void background_tick(struct worker *w, uint64_t now_ms);
/* Gives each of them a last try: the worker has nothing else to do and wants to exit. */
void background_hurry(struct worker *w, uint64_t now_ms);
/* Ends all background requests. */
void background_end_all(struct worker *w);
/* Frees the background requests that ended: after the loop turn. */
void background_reap(struct worker *w);
