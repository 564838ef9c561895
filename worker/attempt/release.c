#include "worker/attempt/release.h"

#include <string.h>

#include "shm/base/log.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/background.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/schedule/plan.h"

/*
 * Time for a prefill engine to close after the router closed its side; and for a decode
 * engine that generates an answer in one piece for a client that has left.  By then the
 * decode engine has admitted the request, and an engine that is aborted after admission
 * informs the prefill engine (protocols.md 2.5).  A streamed answer is ended at its first
 * byte instead.
 */
#define RELEASE_GRACE_MS 5000

#define DETACHED_MAX 256           /* of one worker at once */
#define DETACHED_BYTES (64u << 20) /* of their bodies together */

/* Returns true if KV has arrived at the decode engine.  No engine has KV of a request that no prefill engine was sent:
 * a notice before that is false. */
static bool
kv_arrived(const struct attempt *a)
{
	return a->prefill != PREFILL_IDLE && transfer_kv_arrived(&a->t);
}

/* Returns true if an engine holds or may hold KV that only a decode engine's fetch frees. */
static bool
holds_kv(const struct attempt *a)
{
	const struct leg *p = &a->leg[LEG_PREFILL], *d = &a->leg[LEG_DECODE];

	if (a->t.connector->info->cleanup != CLEANUP_KV || a->decode == DECODE_ENDED ||
		(d->progress == LEG_BEGUN && a->kv != KV_SPENT))
		/* nothing is held, or the KV was fetched: a byte of the answer is here */
		return false;
	return leg_active(p) ? leg_sent(p) : attempt_kv_handed(a) || kv_arrived(a);
}

/* Returns true if the decode engine could not be reached at all. */
static bool
undelivered(const struct attempt *a)
{
	const struct leg *d = &a->leg[LEG_DECODE];

	return attempt_kv_handed(a) && d->state == LEG_DONE && d->progress == LEG_UNREACHED;
}

/* Returns true if the decode engine had the parameters and has failed or is about to fail:
 * nothing continues there. */
static bool
failed_there(const struct attempt *a)
{
	const struct leg *d = &a->leg[LEG_DECODE];

	return attempt_kv_handed(a) && !leg_active(&a->leg[LEG_PREFILL]) &&
	       (a->kv == KV_SPENT || (d->state == LEG_DONE && d->progress >= LEG_REACHED));
}

/* Sets the time limit of a decode engine that was sent the client's own request without
 * streaming. */
static void
decode_in_time(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);

	if (leg_active(d) && !leg_connecting(d) && !a->release_sent && !a->t.of.facts->stream)
		leg_wait_at_most(d, RELEASE_GRACE_MS);
}

/* Sends decode the request that only frees KV, if the attempt has or gets a slot at an endpoint
 * that is up.  Returns false if the attempt is over. */
static bool
send_decode(struct attempt *a)
{
	if (!reservation_again(a->w, &a->reserved.of[ROLE_DECODE], a->t.of.facts->tokens)) {
		attempt_end(a); /* the engine's own time limit will free it */
		return false;
	}
	attempt_decode_again(a);
	attempt_send_decode(a);
	return true;
}

void
release_fetch_unheard(struct attempt *a)
{
	leg_end(attempt_prefill_leg(a));
	reservation_release(a->w, &a->reserved.of[ROLE_PREFILL]);
	if (a->decode == DECODE_IDLE)
		(void)send_decode(a);
}

/* Fetches the KV that has arrived at a decode engine without a request.  Returns false if no KV
 * has arrived. */
static bool
fetch_arrived(struct attempt *a)
{
	if (!kv_arrived(a) || a->decode != DECODE_IDLE)
		return false;
	(void)send_decode(a);
	return true;
}

/*
 * Closes the sending side to a prefill engine that has not begun to answer, so that it
 * aborts.  Once the engine has begun, it holds blocks, and a decode engine must be sent a
 * request.
 */
static void
release_prefill(struct attempt *a)
{
	struct leg *p = attempt_prefill_leg(a);

	if (!leg_active(p))
		return;
	if (a->t.notices == NOTICES_READY) {
		release_fetch_unheard(a);
	} else if (p->progress >= LEG_ANSWERING) {
		leg_wait_anew(p); /* the answer is read to its end */
		return;
	} else {
		leg_hang_up(p);
		leg_wait_at_most(p, RELEASE_GRACE_MS);
	}
}

static bool
reserve_another(struct attempt *a, struct reserved *ret)
{
	const struct plan_other other = {.w = a->w,
		.of = a->t.of,
		.connector = a->t.connector,
		.what = FOR_DECODE,
		.failed = &a->reserved,
		.most = EP_AWAY_BUSY};

	return plan_again(&other, ret, NULL);
}

/* Reserves another decode engine for KV parameters that no engine has had.  Returns false if
 * there is none. */
static bool
another_decode(struct attempt *a)
{
	struct reserved chosen;

	if (a->t.connector->info->kv_bound || !reserve_another(a, &chosen))
		return false;
	attempt_decode_again(a);
	attempt_take_decode(a, &chosen.of[ROLE_DECODE]);
	transfer_next_rank(&a->t, ROLE_DECODE);
	return true;
}

/* Names spent KV parameters to decode engines in a request that they refuse, so that nothing is
 * fetched. */
static void
refuse_spent(struct attempt *a)
{
	struct facts *facts = a->t.of.facts;
	struct endpoint *to[BACKGROUND_ENGINES];
	const struct tried tried = tried_of(facts);
	struct reserved chosen;
	size_t n = 0;

	if (a->t.connector->refusal == NULL || a->t.kv.n == 0 || a->t.of.text == NULL)
		return;
	while (n < BACKGROUND_ENGINES - 1 && reserve_another(a, &chosen)) {
		to[n++] = connpool_ref(chosen.of[ROLE_DECODE].ep);
		(void)tried_add(facts, to[n - 1]->slot); /* for this loop alone */
		reservation_drop(a->w, &chosen.of[ROLE_DECODE]);
	}
	tried_set(facts, &tried);
	/* the engine failed, but may be running */
	to[n++] = connpool_ref(a->reserved.of[ROLE_DECODE].ep);
	background_refuse(a, a->t.connector->refusal(facts->pool), to, n);
	while (n > 0)
		connpool_unref(a->w->connpool, &to[--n]);
	attempt_set_kv(a, KV_NONE);
}

void
release_spent(struct attempt *a)
{
	attempt_spend_kv(a);
	if (attempt_kv_handed(a) && !leg_active(attempt_prefill_leg(a)))
		refuse_spent(a);
}

void
release_refused(struct attempt *a)
{
	if (a->t.connector->info->cleanup == CLEANUP_KV)
		release_spent(a);
}

/* The prefill answer is here: sends decode its request, or waits for the notices. */
static void
go_on(struct attempt *a)
{
	if (a->decode == DECODE_IDLE &&
		!reservation_again(a->w, &a->reserved.of[ROLE_DECODE], a->t.of.facts->tokens)) {
		attempt_end(a);
		return;
	}
	attempt_go_on(a);
	if (a->life != ATTEMPT_OVER)
		decode_in_time(a);
}

/* After the attempt was detached: the state of each side decides what is sent. */
static void
begin(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);

	release_prefill(a);
	if (a->life == ATTEMPT_OVER)
		return;
	decode_in_time(a);
	if (leg_active(d))
		return;
	if (d->state == LEG_DONE) {
		if (!leg_active(attempt_prefill_leg(a)))
			attempt_end(a); /* no further event will come */
	} else if (leg_active(attempt_prefill_leg(a)) || !fetch_arrived(a)) {
		if (!attempt_kv_handed(a))
			return;
		if (a->t.starts[ROLE_DECODE] == STARTS_AFTER_KV)
			go_on(a);
		else
			(void)send_decode(a);
	}
}

static enum metric_counter
why_released(const struct attempt *a)
{
	const struct job *job = a->branch->job;

	if (job->end == END_SHUTDOWN)
		return M_KV_RELEASED_SHUTDOWN;
	if (job->end == END_CLIENT_GONE || job->end == END_CLIENT_STALLED)
		return M_KV_RELEASED_CLIENT_GONE;
	return leg_active(&a->leg[LEG_PREFILL]) ? M_KV_RELEASED_PREFILL_LATE
						: M_KV_RELEASED_GIVEN_UP;
}

static void
detach(struct attempt *a)
{
	struct worker *w = a->w;
	struct leg *d = attempt_decode_leg(a);

	if (w->ndetached >= DETACHED_MAX ||
		a->t.of.text->body_len > DETACHED_BYTES - w->detached_bytes) {
		attempt_end(a); /* the engine's own time limit will free it */
		return;
	}
	if (a->kv == KV_SPENT)
		leg_end(d); /* the leg has failed, though its answer may not be complete */
	a->released_as = why_released(a);
	/* The request was not sent completely: decode is sent the request that only frees KV.
	 * But if the client has left after the prefill answer, the request continues unchanged:
	 * decode_in_time(). */
	if (leg_active(d) && !leg_connecting(d) && !leg_sent(d) &&
		(leg_active(attempt_prefill_leg(a)) ||
			a->released_as != M_KV_RELEASED_CLIENT_GONE)) {
		attempt_decode_again(a);
		a->decode_sends = 0; /* under the same id: the prefill engine knows the KV by it */
	}
	attempt_detach(a);
	begin(a);
}

void
release_attempt(struct attempt *a)
{
	if (a->life != ATTEMPT_SERVING)
		return;
	if (a->t.connector->info->cleanup == CLEANUP_ABORT) {
		background_abort(a);
		attempt_end(a);
	} else if (a->t.of.text == NULL || !holds_kv(a)) {
		attempt_end(a);
	} else if (failed_there(a) || (undelivered(a) && !another_decode(a))) {
		refuse_spent(a);
		attempt_end(a);
	} else {
		detach(a);
	}
}

struct attempt *
release_pushed(struct attempt *a)
{
	struct branch *b = a->branch;
	struct attempt *next;

	if (!holds_kv(a)) {
		leg_end(attempt_decode_leg(a));
		transfer_drop_flag(&a->t, false);
		return a;
	}
	next = attempt_new(b, a->t.connector, ATTEMPT_OTHER);
	if (next->lookup == LOOKUP_DUE) /* the legs of `a` have begun */
		attempt_set_lookup(next, LOOKUP_KNOWN);
	transfer_set_id(&next->t, a->t.id, strlen(a->t.id)); /* the log names its engines */
	for (enum role r = 0; r < ROLE_N; r++)
		next->reserved.of[r] =
			(struct reservation){.ep = connpool_ref(a->reserved.of[r].ep),
				.pool = a->reserved.of[r].pool,
				.role = a->reserved.of[r].role};
	b->attempt = next;
	release_attempt(a);
	return next;
}

/* It is unknown whether decode has fetched: the KV parameters of the prefill answer, present or
 * to come, are named to engines that refuse them. */
static void
fetch_failed(struct attempt *a)
{
	leg_end(attempt_decode_leg(a));
	release_spent(a);
	if (!leg_active(attempt_prefill_leg(a)))
		attempt_end(a);
}

/* A prefill engine answers after all: its time limit begins again. */
void
release_prefill_first(struct attempt *a)
{
	leg_wait_anew(attempt_prefill_leg(a));
}

/* A decode engine that answers the client's own request has fetched the KV, so the request can
 * be ended. */
void
release_decode_first(struct attempt *a)
{
	if (attempt_decode_leg(a)->status >= 400)
		fetch_failed(a);
	else if (!a->release_sent)
		attempt_end(a);
}

void
release_prefill_answered(struct attempt *a)
{
	const struct leg *p = attempt_prefill_leg(a);

	if (p->status == 200 && attempt_take_handoff(a) >= HANDOFF_NONE && attempt_kv_handed(a)) {
		if (undelivered(a) && another_decode(a)) { /* the decode engine refused before */
			(void)send_decode(a);
			return;
		}
		if (a->kv != KV_SPENT && !undelivered(a)) {
			go_on(a);
			return;
		}
		refuse_spent(a);
	}
	if (!fetch_arrived(a))
		attempt_end(a);
}

void
release_prefill_failed(struct attempt *a)
{
	leg_end(attempt_prefill_leg(a));
	if (!fetch_arrived(a))
		attempt_end(a);
}

void
release_decode_failed(struct attempt *a)
{
	struct leg *d = attempt_decode_leg(a);

	leg_end(d);
	if (undelivered(a) && tried_add(a->t.of.facts, d->ep->slot) && another_decode(a))
		(void)send_decode(a);
	else if (d->progress != LEG_BEGUN)
		fetch_failed(a);
	else
		attempt_end(a);
}
