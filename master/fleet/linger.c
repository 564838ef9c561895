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
static const char *
group_of(const struct engine *e)
{
	return e->pool->pairing == PAIRING_REQUIRE && e->conf->group != NULL ? e->conf->group : "";
}

static int
by_group(const void *a, const void *b)
{
	return strcmp(group_of(*(const struct engine *const *)a),
		group_of(*(const struct engine *const *)b));
}

/* Engines that are up, those of a group side by side. */
struct up {
	const struct engine **v;
	size_t n;
};

static struct up
list_up(const struct lingering *l, bool leaving)
{
	struct up up = {.v = mem_array(l->fleet->norder + 1, sizeof(*up.v))};
	const struct endpoint *ep;
	size_t at = 0;

	while ((ep = linger_next_up(l, &at)) != NULL)
		if (leaves(l, ep->engine.url) == leaving)
			up.v[up.n++] = &ep->engine;
	qsort(up.v, up.n, sizeof(*up.v), by_group);
	return up;
}

/* The part of the list that is of this group. */
static struct up
of_group(const struct up *up, const char *group)
{
	struct up part = {.v = up->v};

	while (part.v < up->v + up->n && strcmp(group_of(*part.v), group) < 0)
		part.v++;
	while (part.v + part.n < up->v + up->n && strcmp(group_of(part.v[part.n]), group) == 0)
		part.n++;
	return part;
}

/* The models of these engines, sorted; most engines serve the same ones as the engine before. */
static const char **
models_of(const struct up *up, size_t *ret_n)
{
	const struct model_set **sets = mem_array(up->n + 1, sizeof(*sets));
	const char **names;
	size_t n = 0;

	for (size_t i = 0; i < up->n; i++)
		if (n == 0 || !models_equal(sets[n - 1], &up->v[i]->models))
			sets[n++] = &up->v[i]->models;
	names = models_union(sets, n, SIZE_MAX, ret_n);
	free(sets);
	return names;
}

static int
by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each model is among the names.  Engines of a pool with configured models serve all of these. */
static bool
is_served(const struct engine *former, const char *const *names, size_t n)
{
	for (size_t i = 0; former->pool->nmodels == 0 && i < former->models.n; i++)
		if (bsearch(&former->models.names[i], names, n, sizeof(*names), by_text) == NULL)
			return false;
	return true;
}

/* Whether others of their group serve all that these former engines serve. */
static bool
group_is_replaced(const struct up *former, const struct up *others)
{
	bool yes = others->n > 0;
	const char **names;
	size_t n;

	names = models_of(others, &n);
	for (size_t i = 0; yes && i < former->n; i++)
		yes = is_served(former->v[i], names, n);
	free(names);
	return yes;
}

static bool
are_replaced(const struct lingering *l)
{
	const struct up former = list_up(l, true), others = list_up(l, false);
	bool yes = true;

	for (size_t i = 0; yes && i < former.n;) {
		const char *group = group_of(former.v[i]);
		const struct up leaving = of_group(&former, group),
				staying = of_group(&others, group);

		yes = group_is_replaced(&leaving, &staying);
		i += leaving.n;
	}
	free(former.v);
	free(others.v);
	return yes;
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
	const uint64_t from_ms = clock_ms();

	(void)fd;
	(void)what;
	if (are_replaced(l) || others_are_up(l) || clock_ms() - l->since_ms >= LINGER_MS)
		targets_clear(&l->leaving);
	/* hundreds of engines with many models each: not more than a tenth of the time */
	look_within(l, POLL_MS + 10 * (clock_ms() - from_ms));
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
