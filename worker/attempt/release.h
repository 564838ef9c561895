/*
 * The release rule: once a prefill engine has committed KV for an attempt, a decode engine is
 * sent a request for that KV, even if the client has left, because only a decode engine's
 * fetch frees those blocks (protocols.md 2.5).
 *
 * Process: worker.
 */
#pragma once

struct attempt;

/* The request has ended, or continues with another attempt.  Releases what this attempt's
 * engines hold: a detached attempt or background requests do that.  The attempt does not belong
 * to its branch afterwards. */
void release_attempt(struct attempt *a);
/* The decode engine has failed or refused the request.  If the prefill answer is complete, the
 * KV parameters are named to decode engines in requests that they refuse.  The attempt's life
 * stays as it is. */
void release_spent(struct attempt *a);
/* The same for a 4xx. The server of a decode engine refuses what its engine never sees: a wrong key, a body
 * that FastAPI does not accept. Then no prefill engine hears of the refusal, and before vLLM 0.21 it never
 * is. The client gets the refusal. */
void release_refused(struct attempt *a);
/* The prefill answer was the whole answer for the client, but its KV has been pushed to a
 * decode engine.  Returns the attempt that represents the branch from now on and has nothing
 * left to do. */
struct attempt *release_pushed(struct attempt *a);
/* The prefill answer is missing, but the KV has arrived at the decode engine: decode is sent the request that frees it. */
void release_fetch_unheard(struct attempt *a);

/* Handlers of a detached attempt's legs. */
void release_prefill_first(struct attempt *a);
void release_prefill_answered(struct attempt *a);
void release_prefill_failed(struct attempt *a);
void release_decode_first(struct attempt *a);
void release_decode_failed(struct attempt *a);
