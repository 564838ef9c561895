#include "worker/schedule/fallback.h"

#include "shm/base/clock.h"
#include "shm/fallback.h"
#include "shm/table.h"
#include "worker/base/core.h"

uint64_t
fallback_wait_ms(const struct worker *w, const struct table_pool *tp)
{
	return tp->rescue.fallback_budget == 0
		       ? 0
		       : (fallback_wait_us(w->seg, tp->id, clock_us()) + 999) / 1000;
}

void
fallback_goes(const struct worker *w, const struct selection *decode)
{
	const struct table_pool *tp = decode->pool;
	const uint64_t each_s = (uint64_t)tp->rescue.fallback_budget * select_engines(decode);

	if (each_s != 0)
		fallback_take(w->seg, tp->id, decode->tokens, each_s, clock_us());
}
