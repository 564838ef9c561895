#include "master/probe/belief.h"

#include <stddef.h>

#define NONE UINT32_MAX
#define ENOUGH_OTHERS                                                                              \
	5 /* exact scrapes with another number of our requests, and the same figures */
#define MOST_HALVINGS 31

static void
begin_anew(struct belief *b, const struct ep_scrape *figures)
{
	*b = (struct belief){.running = figures->running,
		.waiting = figures->waiting,
		.since_ms = figures->at_ms,
		.ours = NONE};
}

static void
note_ours(struct belief *b, const struct belief_scrape *scrape)
{
	if (!scrape->exact)
		return;
	if (b->ours == NONE)
		b->ours = scrape->ours;
	b->others += b->ours != scrape->ours;
}

const char *
belief_in(struct belief *b, const struct belief_scrape *scrape, uint32_t *ret_foreign)
{
	const struct ep_scrape *figures = scrape->figures;

	if (b->since_ms == 0 || b->running != figures->running || b->waiting != figures->waiting)
		begin_anew(b, figures);
	b->scrapes++;
	note_ours(b, scrape);
	*ret_foreign = 0;
	if ((uint64_t)figures->running + figures->waiting > BELIEF_MOST)
		return "more than 100000 requests";
	if (figures->running + figures->waiting > 0 && b->scrapes > BELIEF_FEWEST &&
		figures->at_ms - b->since_ms >= BELIEF_MS) {
		if (b->others >= ENOUGH_OTHERS)
			return "the same figures while requests come and go";
		b->halvings += b->halvings < MOST_HALVINGS;
	}
	*ret_foreign = scrape->foreign >> b->halvings;
	return NULL;
}
