#include "worker/attempt/suspects.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/schedule/outcome.h"

#define SUSPECTS_MAX 12              /* of one branch: each try adds at most one of each leg */
#define REFUSAL_KEPT_MAX (64u << 10) /* a longer refusal is not kept */

struct suspect {
	struct reservation engine; /* holds no slot; a reference and perhaps a half-open trial */
	enum leg_kind kind;
	enum suspected as;
	enum tally_cause cause;
	int status;    /* of the answer; 0: none */
	uint64_t mark; /* SUSPECT_REFUSED: outcome_refusal_mark() */
	uint64_t since_ms;
};

struct suspects {
	uint32_t n;
	struct suspect of[SUSPECTS_MAX];
	struct reply refusal; /* the first that was kept; status 0: none */
	char *kept;           /* its bytes */
};

static uint32_t
count(const struct branch *b, enum leg_kind kind, bool refused)
{
	const struct suspects *all = b->suspects;
	uint32_t n = 0;

	for (uint32_t i = 0; all != NULL && i < all->n; i++)
		n += all->of[i].kind == kind && (all->of[i].as == SUSPECT_REFUSED) == refused;
	return n;
}

bool
suspects_failed(const struct branch *b, enum leg_kind kind)
{
	return count(b, kind, false) > 0;
}

bool
suspects_refused(const struct branch *b, enum leg_kind kind)
{
	return count(b, kind, true) > 0;
}

/* --- becoming one -------------------------------------------------------------------------- */

static void
keep_refusal(struct suspects *all, const struct leg *leg)
{
	if (all->kept != NULL || leg->head_len + leg->answer_len > REFUSAL_KEPT_MAX)
		return;
	all->kept = mem_array(leg->head_len + leg->answer_len + 1, 1);
	if (leg->head_len > 0)
		memcpy(all->kept, leg->head, leg->head_len);
	if (leg->answer_len > 0)
		memcpy(all->kept + leg->head_len, leg->answer, leg->answer_len);
	all->refusal = (struct reply){.status = leg->status,
		.head = {all->kept, leg->head_len},
		.body = {all->kept + leg->head_len, leg->answer_len}};
}

bool
suspects_add(struct attempt *a, enum leg_kind kind, const struct exchange *x, enum suspected as)
{
	struct branch *b = a->branch;
	struct reservation *r = x->engine;

	if (b->suspects == NULL)
		b->suspects = MEM_NEW(struct suspects);
	if (b->suspects->n == SUSPECTS_MAX)
		return false;
	b->suspects->of[b->suspects->n++] = (struct suspect){.engine = {.ep = connpool_ref(r->ep),
								     .pool = r->pool,
								     .role = r->role,
								     .life = r->life,
								     .trial = r->trial},
		.kind = kind,
		.as = as,
		.cause = x->cause,
		.status = x->status,
		.mark = outcome_refusal_mark(a->w, r),
		.since_ms = clock_ms()};
	r->trial = 0;
	r->recorded = true;
	if (as == SUSPECT_REFUSED)
		keep_refusal(b->suspects, &a->leg[kind]);
	return true;
}

/* --- until it is known ---------------------------------------------------------------------- */

static struct exchange
of_suspect(const struct branch *b, struct suspect *s)
{
	return (struct exchange){.w = b->job->w,
		.facts = &b->job->facts,
		.engine = &s->engine,
		.status = s->status,
		.reached = true,
		.cause = s->cause};
}

/* Removes the suspect, for which an outcome has been recorded. */
static void
drop(struct branch *b, uint32_t i)
{
	struct suspects *all = b->suspects;

	reservation_drop(b->job->w, &all->of[i].engine);
	memmove(&all->of[i], &all->of[i + 1], (--all->n - i) * sizeof(all->of[0]));
}

/* The kept refusal is the client's no more once each engine that refused was contradicted. */
static void
drop_kept(struct suspects *all)
{
	for (uint32_t i = 0; i < all->n; i++)
		if (all->of[i].as == SUSPECT_REFUSED)
			return;
	free(all->kept);
	all->kept = NULL;
}

void
suspects_drop_last(struct branch *b)
{
	struct suspects *all = b->suspects;
	const struct exchange x = of_suspect(b, &all->of[all->n - 1]);

	outcome_refused(&x);
	drop(b, all->n - 1);
}

/* Returns true if an engine that accepts the request shows that the suspect is at fault.  Where the suspect had
 * accepted it too, and failed later, only the end of the answer shows that. */
static bool
is_contradicted(const struct suspect *s)
{
	return s->as == SUSPECT_REFUSED || (s->as == SUSPECT_FAILED && s->status / 100 != 2);
}

void
suspects_accepted(struct attempt *a, enum leg_kind kind)
{
	struct branch *b = a->branch;
	struct suspects *all = b->suspects;

	for (uint32_t i = all == NULL ? 0 : all->n; i-- > 0;) {
		const struct exchange x = of_suspect(b, &all->of[i]);

		if (all->of[i].kind != kind || !is_contradicted(&all->of[i]))
			continue;
		(all->of[i].as == SUSPECT_REFUSED ? outcome_contradicted : outcome_bad)(&x);
		drop(b, i);
	}
	if (all != NULL)
		drop_kept(all); /* a stream that was rescued may go on for hours */
}

const struct reply *
suspects_refusal(const struct branch *b)
{
	return b->suspects != NULL && b->suspects->kept != NULL ? &b->suspects->refusal : NULL;
}

/* --- the end -------------------------------------------------------------------------------- */

/* What became of the request. */
enum served {
	SERVED,
	SERVED_BY_NONE,
	UNDECIDED, /* the client has left, its time is over, or the router could not go on */
};

static enum served
served(enum req_end end)
{
	if (end == END_OK)
		return SERVED;
	if (end == END_CLIENT_GONE || end == END_CLIENT_STALLED || end == END_REQUEST_TIMEOUT ||
		end == END_OVERLOADED || end == END_SHUTDOWN)
		return UNDECIDED;
	return SERVED_BY_NONE;
}

static void
settle_refused(const struct branch *b, struct suspect *s, enum served how)
{
	const struct exchange x = of_suspect(b, s);

	if (how == SERVED)
		outcome_contradicted(&x);
	else if (count(b, s->kind, true) > 1)
		outcome_shared(&x, s->mark);
	else
		outcome_refused(&x);
}

static void
settle_failed(const struct branch *b, struct suspect *s, enum served how)
{
	const struct exchange x = of_suspect(b, s);
	const bool alike = how == SERVED_BY_NONE && count(b, s->kind, false) > 1;

	if (s->as == SUSPECT_FAILED && how == SERVED)
		outcome_bad(&x);
	else if (s->as == SUSPECT_FAILED)
		outcome_excused(&x);
	else if (alike)
		outcome_take_back(&x, s->since_ms);
	if (alike)
		outcome_failed_alike(&x);
}

static void
settle(struct branch *b, enum served how)
{
	struct suspects *all = b->suspects;

	if (all == NULL)
		return;
	for (uint32_t i = 0; i < all->n; i++)
		(all->of[i].as == SUSPECT_REFUSED ? settle_refused : settle_failed)(
			b, &all->of[i], how);
	while (all->n > 0)
		drop(b, all->n - 1);
	free(all->kept);
	free(all);
	b->suspects = NULL;
}

void
suspects_end(struct branch *b)
{
	settle(b, served(b->job->end));
}

void
suspects_forget(struct branch *b)
{
	settle(b, UNDECIDED);
}
