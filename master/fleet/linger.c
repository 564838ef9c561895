#include "master/fleet/linger.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/load.h"

#define LINGER_MS 10000 /* the most that former engines serve for want of others */
#define POLL_MS 20

/* The next endpoint of the pool and role, from *at on; NULL: there is none. */
static const struct endpoint *
next(const struct lingering *l, size_t *at)
{
	const struct fleet *f = l->fleet;

	while (*at < f->norder) {
		const struct endpoint *ep = f->order[(*at)++];

		if (ep->engine.role == l->role && strcmp(ep->engine.pool_name, l->pool) == 0)
			return ep;
	}
	return NULL;
}

static bool
is_up(const struct endpoint *ep)
{
	return ep->engine.slot != ENGINE_NO_SLOT &&
	       ep_state_get(ep->fleet->seg, ep->engine.slot) == EP_UP;
}

const struct endpoint *
linger_next_up(const struct lingering *l, size_t *at)
{
	const struct endpoint *ep;

	while ((ep = next(l, at)) != NULL && !is_up(ep))
		;
	return ep;
}

static int
compare(const void *a, const void *b)
{
	return strcmp(((const struct target *)a)->url, ((const struct target *)b)->url);
}

static bool
leaves(const struct lingering *l, char *url)
{
	const struct target key = {.url = url};

	return l->leaving.n > 0 &&
	       bsearch(&key, l->leaving.v, l->leaving.n, sizeof(key), compare) != NULL;
}

/* --- who is in their place ---------------------------------------------------------------- */

/* Under `pairing: require` the engines of the other role have no partner outside their group. */
static bool
same_partners(const struct engine *a, const struct engine *b)
{
	return a->pool->pairing != PAIRING_REQUIRE ||
	       mem_text_equal(a->conf->group, b->conf->group);
}

/* Whether another engine that is up serves the former one's model; NULL: any model. */
static bool
is_served(const struct lingering *l, const struct engine *former, const char *model)
{
	const struct endpoint *ep;
	size_t at = 0;

	while ((ep = linger_next_up(l, &at)) != NULL)
		if (!leaves(l, ep->engine.url) && same_partners(former, &ep->engine) &&
			(model == NULL || models_has(&ep->engine.models, model)))
			return true;
	return false;
}

/* An engine of a pool with configured models gets the requests of all of these. */
static bool
is_replaced(const struct lingering *l, const struct engine *former)
{
	if (former->pool->nmodels > 0 || former->models.n == 0)
		return is_served(l, former, NULL);
	for (size_t i = 0; i < former->models.n; i++)
		if (!is_served(l, former, former->models.names[i]))
			return false;
	return true;
}

/* Engines that leave mostly serve the same models: those are looked for once. */
static bool
are_replaced(const struct lingering *l)
{
	const struct engine *last = NULL;
	const struct endpoint *ep;
	size_t at = 0;

	while ((ep = linger_next_up(l, &at)) != NULL) {
		const struct engine *e = &ep->engine;

		if (!leaves(l, e->url) || (last != NULL && same_partners(last, e) &&
						  models_equal(&last->models, &e->models)))
			continue;
		if (!is_replaced(l, e))
			return false;
		last = e;
	}
	return true;
}

/* No engine is to come up that could be in their place. */
static bool
others_are_up(const struct lingering *l)
{
	const struct endpoint *ep;
	size_t at = 0, n = 0;

	while ((ep = next(l, &at)) != NULL) {
		if (leaves(l, ep->engine.url))
			continue;
		if (!is_up(ep))
			return false;
		n++;
	}
	return n > 0;
}

/* --- time --------------------------------------------------------------------------------- */

static void
look_within(struct lingering *l, uint64_t ms)
{
	const struct timeval tv = clock_tv(ms);

	if (l->leaving.n > 0)
		(void)event_add(l->poll, &tv);
}

static void
on_poll(evutil_socket_t fd, short what, void *arg)
{
	struct lingering *l = arg;

	(void)fd;
	(void)what;
	if (are_replaced(l) || others_are_up(l) || clock_ms() - l->since_ms >= LINGER_MS)
		targets_clear(&l->leaving);
	look_within(l, POLL_MS);
	if (l->leaving.n == 0)
		l->over(l->arg);
}

void
linger_begin(struct lingering *l, struct targets *former)
{
	if (l->leaving.n == 0)
		l->since_ms = clock_ms();
	targets_clear(&l->leaving);
	(void)event_del(l->poll);
	l->leaving = *former;
	*former = (struct targets){0};
	if (l->leaving.n > 0)
		qsort(l->leaving.v, l->leaving.n, sizeof(*l->leaving.v), compare);
	if (are_replaced(l))
		targets_clear(&l->leaving);
	look_within(l, 0); /* when the new engines are known */
}

void
linger_init(struct lingering *l, struct fleet *f, const char *pool, enum role role,
	void (*over)(void *arg), void *arg)
{
	*l = (struct lingering){.fleet = f, .pool = pool, .role = role, .over = over, .arg = arg};
	l->poll = event_new(f->base, -1, 0, on_poll, l);
	assert(l->poll != NULL);
}

void
linger_fini(struct lingering *l)
{
	event_free(l->poll);
	targets_clear(&l->leaving);
}
