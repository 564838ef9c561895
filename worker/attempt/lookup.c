#include "worker/attempt/lookup.h"

#include <string.h>

#include "worker/attempt/attempt.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

/* Sends the next lookup, if anything is left to look up. */
static void
start(struct attempt *a)
{
	const struct connector *c = a->t.connector;
	struct endpoint *ep;

	memset(&a->what, 0, sizeof(a->what));
	if (!c->lookup(&a->t, &a->what)) {
		attempt_set_lookup(a, LOOKUP_KNOWN);
		return;
	}
	ep = a->t.engine[a->what.role];
	if (c->lookup_repeats) { /* one lookup for all attempts that need the answer */
		if (ep->lookup_runs) {
			attempt_set_lookup(a, LOOKUP_SHARED);
			return;
		}
		ep->lookup_runs = true;
		a->lookup_lock = connpool_ref(ep);
	}
	if (a->lookup_ep == NULL)
		a->lookup_ep =
			a->what.port == 0 ? connpool_ref(ep) : connpool_aside(ep, a->what.port);
	a->leg[LEG_LOOKUP].ep = a->lookup_ep;
	attempt_set_lookup(a, LOOKUP_SENT);
	leg_start(&a->leg[LEG_LOOKUP]);
}

static bool
is_known(const struct attempt *a)
{
	return a->lookup == LOOKUP_KNOWN || a->lookup == LOOKUP_NOT_NEEDED;
}

static bool
legs_rest(const struct attempt *a)
{
	return (a->prefill == PREFILL_IDLE || a->prefill == PREFILL_NOT_NEEDED) &&
	       a->decode == DECODE_IDLE && a->decode_sends == 0;
}

/* Returns true if the attempt may begin.  The first attempts of all branches begin together,
 * because a lookup that fails may end the request. */
static bool
may_begin_legs(const struct job *job)
{
	for (uint32_t i = 0; i < job->nbranches; i++) {
		const struct attempt *a = job->branches[i].attempt;

		if (a->kind == ATTEMPT_FIRST && !is_known(a))
			return false;
	}
	return true;
}

void
lookup_go_on(struct job *job)
{
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++)
		if (job->branches[i].attempt->lookup == LOOKUP_DUE)
			start(job->branches[i].attempt);
	if (job_over(job) || !may_begin_legs(job))
		return;
	for (uint32_t i = 0; i < job->nbranches && !job_over(job); i++) {
		struct attempt *a = job->branches[i].attempt;

		if (is_known(a) && legs_rest(a)) {
			job->ops->step(job, 'x');
			attempt_begin_legs(a);
		}
	}
}

static void
try_again(struct attempt *a)
{
	attempt_set_lookup(a, LOOKUP_DUE);
	lookup_go_on(a->branch->job);
}

/* A step of one attempt may end any other attempt, so the loop takes the head of the list each
 * time.  An attempt that has to wait again is at the list's end by then. */
void
lookup_wake(struct worker *w)
{
	struct attempt *a;
	size_t n = 0;

	TAILQ_FOREACH(a, &w->lookups, link)
	n++;
	for (; n > 0 && (a = TAILQ_FIRST(&w->lookups)) != NULL; n--)
		try_again(a);
}
