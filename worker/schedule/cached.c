#include "worker/schedule/cached.h"

#include <stdlib.h>

#include "shm/base/connector_info.h"
#include "shm/base/mem.h"
#include "shm/siblings.h"
#include "shm/metrics.h"
#include "shm/prefix.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"
#include "worker/base/text.h"
#include "worker/handshake/connector.h"
#include "worker/net/connpool.h"
#include "worker/schedule/affinity.h"
#include "worker/schedule/reservation.h"
#include "worker/schedule/select.h"

struct cached {
	struct prefix_secret secret;
	struct prefix_key key;
	struct prefix_found *found;
	struct select_means (*means)[ROLE_N]; /* [pool id] */
};

struct cached *
cached_new(struct worker *w)
{
	const struct shm_header *hdr = w->seg->hdr;
	struct cached *c;

	if (hdr->prefix_buckets == 0)
		return NULL;
	c = MEM_NEW(struct cached);
	prefix_secret_make(&c->secret, hdr->prefix_seed);
	c->found = prefix_found_new(hdr->max_endpoints);
	c->means = mem_array(hdr->max_pools, sizeof(*c->means));
	return c;
}

void
cached_free(struct cached **pc)
{
	if (*pc != NULL) {
		free((*pc)->found);
		free((*pc)->means);
	}
	free(*pc);
	*pc = NULL;
}

/*
 * Whether the role's engine is chosen by what it has: not where there is but one.  Of two engines the decode engine
 * fetches KV: only some keep what they have fetched, and do not fetch it again.
 */
static bool
matters(const struct selection *s, const struct connector *c, enum role one)
{
	if (s->pool->policy[s->role] != POLICY_CACHE_AWARE || s->pool->n[s->role] < 2)
		return false;
	if (!connector_two_engines(c))
		return s->role == one;
	return s->role == ROLE_PREFILL || connector_info[s->pool->connector].decode_cached;
}

void
cached_look(struct worker *w, const struct demand *d, const struct connector *c, enum role one,
	struct selection s[ROLE_N])
{
	struct cached *cached = w->cached;
	uint32_t block = 0;
	bool any = false;

	for (enum role r = 0; r < ROLE_N && cached != NULL; r++)
		any |= matters(&s[r], c, one);
	if (!any || d->text == NULL || d->text->doc == NULL)
		return;
	if (d->text->doc->prompt_items > 0)
		block = prefix_block_of(w->seg, s[0].pool);
	if (!affinity_cut(&cached->secret, d->text, d->facts->route, d->facts->model, block,
		    &cached->key))
		return;
	prefix_look(w->seg, &cached->key, prefix_row_of(s[0].pool), s[0].tokens, cached->found);
	for (enum role r = 0; r < ROLE_N; r++)
		if (matters(&s[r], c, one)) {
			s[r].found = cached->found;
			s[r].computes = r == ROLE_PREFILL || !connector_two_engines(c);
			select_means_use(&cached->means[s[r].pool->id][r], &s[r]);
		}
}

/*
 * When the engine is chosen, and not when it has answered: the next prompt with the same beginning may come before the
 * answer.  It waits at that engine behind this one, and then finds the beginning there.
 */
void
cached_keep(struct worker *w, const struct selection *s, struct reservation *r)
{
	const struct prefix_guess *guess = &r->guess;
	struct prefix_taken taken;

	if (s->found == NULL || guess->prompt == 0 || r->kept)
		return;
	r->kept = true;
	taken = prefix_insert(
		w->seg, s->found->key, s->found->row, r->ep->slot, guess->prompt - guess->expected);
	sibling_note_put(
		w->seg, w->slot, s->found->key, r->ep->slot, guess->prompt - guess->expected);
	select_means_add(&w->cached->means[s->pool->id][s->role], s, r->tokens);
	metric_add(w->slab, M_PREFIX_USED, taken.empty);
	metric_add(w->slab, M_PREFIX_LOST, taken.fresh);
}
