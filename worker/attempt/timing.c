#include "worker/attempt/timing.h"

#include "shm/base/clock.h"
#include "shm/latency.h"
#include "shm/load.h"
#include "shm/pace.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/tokens.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

#define STRETCH_US 1000000u
#define STALL_US 5000000u /* a stretch without an event counts as this, again and again */
#define FEW_EVENTS 4      /* the end of a shorter stretch says little */
#define FEW_TOKENS 16     /* a shorter whole answer says more of what is before its tokens */

/* The number of an attempt's branches is its job's: others' events are counted together. */
static bool
counts(const struct attempt *a)
{
	return a->life == ATTEMPT_SERVING && a->branch->job->nbranches == 1;
}

static void
record(struct attempt *a, enum role role, uint64_t us, uint64_t tokens)
{
	const struct reservation *r = &a->reserved.of[role];

	if (r->ep != NULL && r->role == role && reservation_of_this_life(a->w, r))
		pace_record(a->w->seg, r->ep->slot, us, tokens);
}

/* A lookup says nothing of an engine's work. */
void
timing_first_byte(const struct attempt *a, const struct leg *leg)
{
	const uint64_t begun_us = leg->uc->sent_us - leg->connect_us;
	const struct endpoint *ep = leg->ep;

	if (leg->status < 300 && a->life == ATTEMPT_SERVING &&
		attempt_leg_kind(a, leg) != LEG_LOOKUP && ep_tag(a->w->seg, ep->slot) == ep->tag)
		latency_add(a->w->seg, ep->slot, LATENCY_FIRST, clock_us() - begun_us);
}

/* Of policy cache_aware less is reserved than the prompt has. */
static uint64_t
prompt_tokens(const struct reservation *r)
{
	return r->guess.prompt != 0 ? r->guess.prompt : r->tokens;
}

void
timing_prefilled(struct attempt *a, uint64_t now_us)
{
	const uint64_t us = now_us - a->timing.prefill_us,
		       all = prompt_tokens(&a->reserved.of[ROLE_PREFILL]);
	uint64_t cached;

	a->timing.decode_us = now_us;
	tokens_prefilled(a);
	if (a->timing.prefill_us == 0 || all == 0 || !counts(a))
		return;
	cached = a->cached_tokens == USAGE_NONE ? 0 : a->cached_tokens;
	record(a, ROLE_PREFILL, us > PACE_PREFILL_LEAST ? us : PACE_PREFILL_LEAST,
		PACE_PROMPT_TOKENS + (all > cached ? all - cached : 0));
}

static void
begin_stretch(struct attempt *a, uint64_t now_us)
{
	a->timing.stretch_us = now_us;
	a->timing.stretch_events = a->sse.events;
}

void
timing_begun(struct attempt *a)
{
	const struct leg *d = attempt_decode_leg(a);

	if (d->sse && d->status == 200 && counts(a))
		begin_stretch(a, clock_us());
}

/* The time of one event, where n have come in `us`. */
static void
record_events(struct attempt *a, uint64_t us, uint64_t n)
{
	const uint64_t each = us / n;

	record(a, ROLE_DECODE, each > PACE_EVENT_LEAST ? each : PACE_EVENT_LEAST, 1);
}

void
timing_read_on(struct attempt *a)
{
	if (a->timing.stretch_us != 0 && attempt_decode_leg(a)->reading == LEG_READ_HELD)
		begin_stretch(a, clock_us());
}

uint64_t
timing_next_ms(const struct attempt *a)
{
	const struct timing *t = &a->timing;
	const bool events = a->sse.events > t->stretch_events;

	return t->stretch_us == 0 ? 0
				  : (t->stretch_us + (events ? STRETCH_US : STALL_US)) / 1000 + 1;
}

void
timing_tick(struct attempt *a, uint64_t now_ms)
{
	const struct timing *t = &a->timing;
	const uint64_t now_us = now_ms * 1000, us = now_us - t->stretch_us;
	const uint64_t n = a->sse.events - t->stretch_events;

	if (t->stretch_us == 0 || now_us < t->stretch_us || a->life != ATTEMPT_SERVING ||
		attempt_decode_leg(a)->reading != LEG_READING) /* the client is slow */
		return;
	if (us < (n > 0 ? STRETCH_US : STALL_US))
		return;
	record_events(a, us, n > 0 ? n : 1);
	begin_stretch(a, now_us);
}

void
timing_stream_ended(struct attempt *a)
{
	const struct timing *t = &a->timing;
	const uint64_t n = a->sse.events - t->stretch_events;

	tokens_answered(a);
	if (t->stretch_us != 0 && n >= FEW_EVENTS)
		record_events(a, clock_us() - t->stretch_us, n);
	a->timing.stretch_us = 0;
}

void
timing_answered(struct attempt *a)
{
	uint64_t tokens;

	tokens_answered(a);
	/* Decode alone has computed the prompt in that time, too. */
	if (a->timing.decode_us == 0 || a->prefill == PREFILL_NOT_NEEDED || !counts(a))
		return;
	tokens = tokens_generated(a);
	if (tokens >= FEW_TOKENS && tokens != USAGE_NONE)
		record(a, ROLE_DECODE, clock_us() - a->timing.decode_us, tokens);
}
