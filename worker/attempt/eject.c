#include "worker/attempt/eject.h"

#include "worker/attempt/pair.h"
#include "worker/net/leg.h"
#include "worker/request/request.h"
#include "worker/schedule/outcome.h"

/* A lookup is made on behalf of a leg, whose engine is meant.  False: there is none, or its outcome is recorded. */
static bool
facts_of(struct leg *answered, struct outcome_of *ret)
{
	const struct req *req;
	struct leg *leg;

	if (answered->pair == NULL)
		return false;
	leg = pair_asked_for(answered);
	if (leg->ep == NULL || leg->recorded)
		return false;
	req = leg->pair->req;
	*ret = (struct outcome_of){.leg = leg,
		.answered = answered,
		.role = pair_role(leg),
		.pool = req->facts.pool.id,
		.ejection = &req->facts.pool.ejection,
		.pool_name = req->facts.pool.name,
		.request = req->facts.id};
	return true;
}

void
eject_good(struct leg *leg)
{
	struct outcome_of of;

	if (leg->kind != LEG_ASK && facts_of(leg, &of))
		outcome_good(&of);
}

void
eject_begun(struct leg *leg)
{
	struct outcome_of of;

	if (leg->kind != LEG_ASK && facts_of(leg, &of))
		outcome_begun(&of);
}

void
eject_bad(struct leg *leg)
{
	struct outcome_of of;

	if (facts_of(leg, &of))
		outcome_bad(&of);
}

void
eject_busy(struct leg *leg)
{
	struct outcome_of of;

	if (facts_of(leg, &of))
		outcome_busy(&of);
}
