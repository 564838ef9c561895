#include "shm/bar.h"

enum bar
bar_of(const struct table_pick *p, const struct ep_view *e, uint32_t model, uint64_t groups)
{
	if (e->state != EP_UP)
		return BAR_STATE;
	if (e->tag != p->tag)
		return BAR_STALE;
	if (!p->resolved)
		return BAR_UNRESOLVED;
	if (!table_serves(p, model))
		return BAR_MODEL;
	if (e->away == EP_AWAY_EJECTED)
		return BAR_EJECTED;
	if (e->away == EP_AWAY_BUSY)
		return BAR_BUSY;
	if (p->max_inflight != 0 && e->count >= p->max_inflight)
		return BAR_FULL;
	return (groups >> p->group & 1) != 0 ? BAR_NONE : BAR_GROUP;
}

const char *
bar_word(enum bar bar)
{
#define BAR_WORD(id, word) [BAR_##id] = (word),
	static const char *const words[BAR_N] = {BARS(BAR_WORD)};
#undef BAR_WORD

	return words[bar];
}
