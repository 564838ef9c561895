/*
 * The state RELEASE: a prefill engine has, or may have, committed KV for an attempt that nobody waits for any more: the
 * client has gone, or other engines do it.  Only a decode engine's fetch frees that (protocols.md 2.5), so one is told.
 */
#include "worker/attempt/release.h"

#include <stdlib.h>

#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/attempt/errand.h"
#include "worker/attempt/exchange.h"
#include "worker/schedule/plan.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"

/*
 * For a prefill engine that was hung up on to close in turn; and for a decode engine that generates an
 * answer in one piece for a client that has gone: by then it has admitted the request, and one that is
 * aborted after its admission tells the prefill engine (protocols.md 2.5).  A streamed one is let go at
 * its first byte instead.
 */
#define RELEASE_GRACE_MS 5000

#define APART_MAX 256           /* requests of our own at once, of one worker */
#define APART_BYTES (64u << 20) /* of their bodies together */

/* Its notices have come: the KV lies at the decode engine, whatever becomes of the prefill engine. */
static bool
arrived(const struct pair *pair)
{
	return pair->kv_ready || (pair->armed && flag_is_ready(pair->req->w->flags, &pair->flag));
}

/* Whether KV is held, or may be, that only a decode engine's fetch frees. */
static bool
holds(const struct pair *pair)
{
	const struct leg *p = &pair->leg[LEG_PREFILL], *d = &pair->leg[LEG_DECODE];

	if (pair->req->connector->leaves != LEAVES_KV || pair->decoded ||
		(d->first_told && !pair->used_up))
		return false; /* nothing is held, or it has been fetched: a byte of the answer is here */
	return leg_active(p) ? leg_sent(p) : pair->handed || arrived(pair);
}

/* Its decode engine could not be told at all. */
static bool
unheard(const struct pair *pair)
{
	const struct leg *d = &pair->leg[LEG_DECODE];

	return pair->handed && d->state == LEG_DONE && !d->reached;
}

/* Its decode engine was told, and has failed or is about to: nothing goes on here. */
static bool
failed_there(const struct pair *pair)
{
	const struct leg *d = &pair->leg[LEG_DECODE];

	return pair->handed && !leg_active(&pair->leg[LEG_PREFILL]) &&
	       (pair->used_up || (d->state == LEG_DONE && d->reached));
}

/* A decode engine that was sent the client's own request. */
static void
decode_in_time(struct pair *pair)
{
	struct leg *d = pair_decode(pair);

	if (leg_active(d) && !leg_connecting(d) && !d->releases && !pair->req->facts.stream)
		leg_wait_at_most(d, RELEASE_GRACE_MS);
}

/*
 * What is sent from now on only frees the KV.  A prefill engine that has not begun to answer is hung up on, which
 * aborts it; once it has answered, blocks are held there, and a decode engine must be told.
 */
static void
release(struct pair *pair)
{
	struct leg *p = pair_prefill(pair);

	pair->released = true;
	if (leg_active(p) && pair->kv_ready) {
		exchange_fetch_unheard(pair);
		return;
	}
	if (leg_active(p) && p->got_bytes) {
		leg_wait_anew(p); /* read to its end */
		return;
	}
	if (leg_active(p)) {
		leg_hang_up(p);
		leg_wait_at_most(p, RELEASE_GRACE_MS);
	}
	decode_in_time(pair);
}

static void
pair_over(struct pair *pair)
{
	for (enum leg_kind k = 0; k < LEG_PAIR_N; k++)
		leg_end(&pair->leg[k]);
	pair_ask_over(pair);
	pair_disarm(pair);
	pair->decoded = pair->asked = pair->begun = true;
}

/* Once: a leg that cannot even be started is over before the others have been looked at. */
static void
drop_if_over(struct req *req)
{
	if (req->state == REQ_DONE)
		return;
	for (uint32_t i = 0; i < req->npairs; i++)
		if (!req->pairs[i].decoded)
			return;
	req_drop(req);
}

void
client_left(struct req *req, struct leg *none)
{
	bool any = false;

	(void)none;
	for (uint32_t i = 0; i < req->npairs; i++)
		any = any || (!req->pairs[i].decoded && !pair_decode(&req->pairs[i])->first_told);
	if (!any || req->connector->leaves != LEAVES_KV) {
		req_drop(req);
		return;
	}
	req_enter(req, REQ_RELEASE);
	req->released_as = M_KV_RELEASED_CLIENT_GONE;
	for (uint32_t i = 0; i < req->npairs; i++) {
		if (holds(&req->pairs[i]))
			release(&req->pairs[i]);
		else
			pair_over(&req->pairs[i]);
	}
	drop_if_over(req);
}

static void
over(struct pair *pair)
{
	struct req *req = pair->req;

	pair_over(pair);
	drop_if_over(req);
}

/* What lies at a decode engine that was not told is fetched there.  False: nothing does. */
static bool
fetch_arrived(struct pair *pair)
{
	if (!arrived(pair) || pair_decode(pair)->state != LEG_IDLE)
		return false;
	pair_start(pair, STARTS_AFTER_KV);
	return true;
}

/* Another decode engine for a hand-over that none has been told of; false: there is none. */
static bool
tell_another(struct pair *pair)
{
	struct pair *next;
	bool found;

	if (pair->req->connector->bound)
		return false;
	next = pair_scratch(pair->req);
	found = plan_again(next, FOR_DECODE, pair, EP_AWAY_BUSY, NULL);
	if (found) {
		pair_adopt(pair, ROLE_DECODE, next);
		pair_next_rank(pair, ROLE_DECODE);
	}
	pair_scratch_free(&next);
	return found;
}

/* A hand-over that is used up: told to decode engines in a way that they refuse, so that nothing is fetched. */
static void
refuse_it(struct pair *pair)
{
	struct req *req = pair->req;
	struct endpoint *to[ERRAND_ENGINES], *failed = pair_decode(pair)->ep;
	const uint32_t tried = req->ntried;
	size_t n = 0;

	if (req->connector->refusal == NULL || pair->kv.n == 0 || req->text == NULL)
		return;
	while (n < ERRAND_ENGINES - 1) {
		struct pair *next = pair_scratch(req);
		const bool found = plan_again(next, FOR_DECODE, pair, EP_AWAY_BUSY, NULL);

		if (found) {
			to[n++] = connpool_ref(pair_decode(next)->ep);
			(void)req_tried(pair_decode(next)); /* for this loop alone */
		}
		pair_scratch_free(&next);
		if (!found)
			break;
	}
	req->ntried = tried;
	to[n++] = connpool_ref(failed); /* it may live */
	errand_refuse(pair, req->connector->refusal(&req->facts.pool), to, n);
	while (n > 0)
		connpool_unref(req->w->connpool, &to[--n]);
	pair->handed = false;
}

/* The pair goes on in a request of its own. */
static void
set_apart(struct pair *from)
{
	const struct req *of = from->req;
	struct leg *d = pair_decode(from);
	struct worker *w = of->w;
	struct pair *pair;
	struct req *req;

	if (w->napart >= APART_MAX || of->text->body_len > APART_BYTES - w->apart_bytes)
		return; /* the engine's own time limit will free it */
	if (from->used_up)
		leg_end(d); /* it has failed, though perhaps not to its last byte */
	/* not told yet; and what waits for its socket are the bytes of `of` */
	if (leg_active(d) && !leg_connecting(d) && !leg_sent(d))
		leg_rewind(d);
	req = req_apart(of);
	req->pairs = mem_array(1, sizeof(*req->pairs));
	req->npairs = 1;
	pair = &req->pairs[0];
	pair->req = req;
	pair_move(pair, from);
	pair_keep_places(pair);
	req->released_as = of->end == END_SHUTDOWN          ? M_KV_RELEASED_SHUTDOWN
			   : leg_active(pair_prefill(pair)) ? M_KV_RELEASED_PREFILL_LATE
							    : M_KV_RELEASED_GIVEN_UP;
	release(pair);
	if (req->state != REQ_RELEASE || leg_active(pair_decode(pair)))
		return;
	if (pair_decode(pair)->state == LEG_DONE) {
		if (!leg_active(pair_prefill(pair)))
			over(pair); /* nothing more will come */
	} else if (leg_active(pair_prefill(pair)) || !fetch_arrived(pair)) {
		if (!pair->handed)
			return;
		if (pair->starts[ROLE_DECODE] == STARTS_AFTER_KV)
			exchange_go_on(req, pair);
		else
			leg_start(pair_decode(pair));
	}
}

void
release_used_up(struct pair *pair)
{
	pair->used_up = true;
	if (pair->handed && !leg_active(pair_prefill(pair)))
		refuse_it(pair);
}

void
release_attempt(struct pair *pair)
{
	const struct req *req = pair->req;

	if (req->connector->leaves == LEAVES_ROOM)
		pair_abort(pair);
	else if (req->state == REQ_RELEASE || req->text == NULL)
		return;
	else if (!holds(pair))
		return;
	else if (!failed_there(pair) && (!unheard(pair) || tell_another(pair)))
		set_apart(pair);
	else
		refuse_it(pair);
}

/* Whether it has fetched nobody knows: what its prefill engine has said, or will say soon, is refused. */
static void
decode_failed(struct pair *pair)
{
	leg_end(pair_decode(pair));
	release_used_up(pair);
	if (!leg_active(pair_prefill(pair)))
		over(pair);
}

/*
 * A prefill engine answers after all: its own clock starts again.  A decode engine that answers the client's
 * own request has fetched the KV, so it can be let go.
 */
void
release_first(struct req *req, struct leg *leg)
{
	(void)req;
	if (leg->kind == LEG_PREFILL) {
		leg_wait_anew(leg);
	} else if (leg->status >= 400) {
		decode_failed(leg->pair);
	} else if (!leg->releases) {
		over(leg->pair);
	}
}

void
release_answered(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (leg->kind == LEG_PREFILL && leg->status == 200 &&
		exchange_take_handover(req, leg) >= TAKEN_NOTHING && pair->handed) {
		if (unheard(pair) && tell_another(pair)) { /* its decode engine refused before */
			leg_start(pair_decode(pair));
			return;
		}
		if (!pair->used_up && !unheard(pair)) {
			exchange_go_on(req, pair);
			decode_in_time(pair);
			return;
		}
		refuse_it(pair);
	}
	if (leg->kind != LEG_PREFILL || !fetch_arrived(pair))
		over(pair);
}

void
release_failed(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	(void)req;
	leg_end(leg);
	if (leg->kind == LEG_DECODE && unheard(pair) && req_tried(leg) && tell_another(pair)) {
		leg_start(pair_decode(pair));
		return;
	}
	if (leg->kind == LEG_DECODE && !leg->first_told)
		decode_failed(pair);
	else if (leg->kind != LEG_PREFILL || !fetch_arrived(pair))
		over(pair);
}
