/*
 * The state RELEASE: the client has gone after a prefill engine has, or may have, committed KV for it.  Only a decode
 * engine's fetch frees that (protocols.md 2.5), so one is told.
 */
#include "worker/exchange.h"
#include "worker/pool.h"
#include "worker/req.h"

/*
 * For a prefill engine that was hung up on to close in turn; and for a decode engine that generates an
 * answer in one piece for a client that has gone: by then it has admitted the request, and one that is
 * aborted after its admission tells the prefill engine (protocols.md 2.5).  A streamed one is let go at
 * its first byte instead.
 */
#define RELEASE_GRACE_MS 5000

/*
 * The client has gone.  A prefill engine that has not begun to answer is hung up on, which aborts it; once
 * it has answered, blocks are held there, and a decode engine must be told.  False: nothing is left to do for
 * this pair.
 */
static bool
release(struct req *req, struct pair *pair)
{
	struct leg *p = pair_prefill(pair), *d = pair_decode(pair);

	if (req->connector->leaves != LEAVES_KV || pair->decoded || d->first_told)
		return false; /* nothing is held, or it has been fetched: a byte of the answer is here */
	if (leg_active(p) ? !leg_sent(p) && !p->got_bytes : !pair->handed)
		return false;  /* nothing has been asked for, or nothing was handed over */
	pair->released = true; /* the form of whatever is sent from now on */
	if (leg_active(p) && pair->kv_ready) {
		exchange_fetch_unheard(pair);
		return true;
	}
	if (leg_active(p) && p->got_bytes)
		return true; /* read to its end */
	if (leg_active(p)) {
		leg_hang_up(p);
		leg_wait_at_most(p, RELEASE_GRACE_MS);
	}
	if (leg_active(d) && !leg_connecting(d) && !req->stream)
		leg_wait_at_most(d, RELEASE_GRACE_MS);
	return true;
}

static void
pair_over(struct pair *pair)
{
	for (enum leg_kind k = 0; k < LEG_PAIR_N; k++)
		leg_end(&pair->leg[k]);
	pair_disarm(pair);
	pair->decoded = true;
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
	for (uint32_t i = 0; i < req->npairs; i++)
		if (!release(req, &req->pairs[i]))
			pair_over(&req->pairs[i]);
	drop_if_over(req);
}

/*
 * A prefill engine answers after all: its own clock starts again.  A decode engine that answers the client's
 * own request has fetched the KV, so it can be let go.
 */
void
release_first(struct req *req, struct leg *leg)
{
	if (leg->kind == LEG_PREFILL) {
		leg_wait_anew(leg);
	} else if (!leg->releases) {
		pair_over(leg->pair);
		drop_if_over(req);
	}
}

void
release_answered(struct req *req, struct leg *leg)
{
	struct pair *pair = leg->pair;

	if (leg->kind == LEG_PREFILL && leg->status == 200 &&
		exchange_take_handover(req, leg) >= TAKEN_NOTHING && pair->handed) {
		exchange_go_on(req, pair);
		return;
	}
	pair_over(pair);
	drop_if_over(req);
}

void
release_failed(struct req *req, struct leg *leg)
{
	pair_over(leg->pair);
	drop_if_over(req);
}
