/*
 * One session, one engine, which then finds the session's KV cache in place: the endpoint that ranks
 * highest for the session's key.  If it is down or full the next in rank serves meanwhile.
 */
#include "worker/schedule/policy.h"

#include <float.h>

int
policy_session(struct policy_view *view)
{
	return view->keyed ? policy_highest(view, DBL_MAX) : policy_least_loaded(view);
}
