/*
 * The release rule: once a prefill engine has committed KV for an attempt, a decode engine is sent a request for it,
 * whoever has gone away in between, since only a decode engine's fetch frees those blocks (protocols.md 2.5).
 *
 * Process: worker.
 */
#pragma once

struct attempt;

/* The request has ended, or goes on with another attempt: what this one's engines hold is released, by the attempt
 * itself once it is detached, or by background requests.  The attempt is not its branch's any more. */
void release_attempt(struct attempt *a);
/* The decode engine has failed or refused what it was sent: if the prefill engine has nothing more to say, the KV
 * parameters are named to decode engines in a way that they refuse.  The attempt stays as it is. */
void release_spent(struct attempt *a);
/* The prefill answer was all of the client's answer, but its KV has been pushed to a decode engine.  Returns the attempt
 * that stands for the branch from now on, with nothing left to do. */
struct attempt *release_pushed(struct attempt *a);
/* The prefill engine has gone unheard, but what it has brought is at the decode engine: it is fetched there. */
void release_fetch_unheard(struct attempt *a);

/* After the prefill answer: decode is sent its request, or the notices are waited for. */
void release_go_on(struct attempt *a);

/* Handlers of a detached attempt's legs. */
void release_prefill_first(struct attempt *a);
void release_prefill_answered(struct attempt *a);
void release_prefill_failed(struct attempt *a);
void release_decode_first(struct attempt *a);
void release_decode_failed(struct attempt *a);
