#include "worker/request/req_note.h"

#include <assert.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/metrics.h"
#include "shm/notes.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/tokens.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/request/req.h"

static enum note_state
state_of(const struct req *req)
{
	const struct attempt *a = req->job.nbranches > 0 ? req->job.branches[0].attempt : NULL;

	if (req->state == REQ_BODY)
		return NOTE_BODY;
	if (req->state == REQ_PLAN)
		return req->plan->waiter.t_queued_us != 0 ? NOTE_QUEUE : NOTE_PLAN;
	if (job_started(&req->job))
		return NOTE_ANSWER;
	if (a == NULL || (a->lookup != LOOKUP_NOT_NEEDED && a->lookup != LOOKUP_KNOWN))
		return NOTE_LOOKUP;
	return a->prefill == PREFILL_IDLE || a->prefill == PREFILL_SENT ? NOTE_PREFILL
									: NOTE_DECODE;
}

/* Of the first branch.  A path that one engine serves may have an engine of either role. */
static struct note_engines
engines_of(const struct req *req)
{
	const struct attempt *a = req->job.nbranches > 0 ? req->job.branches[0].attempt : NULL;
	struct note_engines e = {{NOTE_NONE, NOTE_NONE}, {0, 0}};

	for (enum role r = 0; a != NULL && r < ROLE_N; r++) {
		const struct reservation *at = &a->reserved.of[r];

		if (at->ep == NULL)
			continue;
		e.slot[at->role] = at->ep->slot;
		e.tag[at->role] = at->ep->tag;
	}
	return e;
}

static bool
equal(const struct note_now *a, const struct note_now *b)
{
	return a->state == b->state && a->tries == b->tries && a->pool == b->pool &&
	       memcmp(&a->engines, &b->engines, sizeof(a->engines)) == 0;
}

static struct note_now
now_of(const struct req *req)
{
	return (struct note_now){.state = state_of(req),
		.at_us = req->noted.at_us,
		.engines = engines_of(req),
		.tries = req->job.tries,
		.pool = req->job.facts.pool->id};
}

static void
begin(struct req *req, struct note_now *now)
{
	now->at_us = req->state == REQ_BODY ? req->t_start_us : req->t_body_us;
	req->note = note_begin(
		req->w->notes, req->job.facts.id, req->job.facts.model, now, req->t_start_us);
	if (req->note == 0 && req->w->seg->hdr->running_requests > 0)
		metric_add(req->w->slab, M_NOTES_MISSED, 1);
}

static void
move(const struct req *req, struct note_now *now)
{
	if (now->state != req->noted.state)
		now->at_us = clock_us();
	if (req->noted.state == NOTE_BODY)
		note_model(req->w->notes, req->note, req->job.facts.model);
	note_move(req->w->notes, req->note, now);
}

void
req_note_moved(struct req *req)
{
	const bool first = req->noted.state == NOTE_FREE;
	struct note_now now;

	if (req->state == REQ_DONE || (req->note == 0 && !first))
		return;
	now = now_of(req);
	if (first)
		begin(req, &now);
	else if (!equal(&now, &req->noted))
		move(req, &now);
	else
		return;
	req->noted = now;
}

static uint32_t
ms(uint64_t us)
{
	return us / 1000 < UINT32_MAX ? (uint32_t)(us / 1000) : UINT32_MAX;
}

static uint32_t
count(uint64_t tokens)
{
	return tokens < NOTE_NONE ? (uint32_t)tokens : NOTE_NONE;
}

void
req_note_end(struct req *req, const struct tokens *tokens, uint64_t now_us)
{
	const struct facts *facts = &req->job.facts;
	/* what the router answers by itself is not kept */
	const bool kept = req->job.end != END_LOCAL && facts->id[0] != '\0';
	struct note_now now = now_of(req);
	struct note_end end = {.status = (uint32_t)req->status,
		.reason = end_word(req->job.end),
		.queued_ms = ms(req->queued.us),
		.first_ms = req->t_first_us != 0 ? ms(req->t_first_us - req->t_body_us) : 0,
		.prompt = count(tokens->prompt),
		.completion = count(tokens->completion)};

	static_assert(sizeof(req->trace) <= sizeof(end.states), "all letters have room");
	memcpy(end.states, req->trace, sizeof(req->trace));
	now.state = NOTE_ENDED;
	now.at_us = now_us;
	if (kept || req->note != 0)
		note_end(req->w->notes, req->note, facts->id, facts->model, req->t_start_us, &now,
			kept ? &end : NULL);
	req->note = 0;
}
