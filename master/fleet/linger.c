#include "master/fleet/linger.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "shm/base/clock.h"
#include "shm/load.h"

#define LINGER_MS 10000 /* the most that former engines serve for want of others */
#define POLL_MS 20

const struct endpoint *
linger_next_up(const struct lingering *l, size_t *at)
{
	const struct fleet *f = l->fleet;

	while (*at < f->norder) {
		const struct endpoint *ep = f->order[(*at)++];

		if (ep->engine.role == l->role && strcmp(ep->engine.pool_name, l->pool) == 0 &&
			ep->engine.slot != ENGINE_NO_SLOT &&
			ep_state_get(f->seg, ep->engine.slot) == EP_UP)
			return ep;
	}
	return NULL;
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

/* Whether one is up that is, or is not, one of those leaving. */
static bool
is_up(const struct lingering *l, bool leaving)
{
	const struct endpoint *ep;
	size_t at = 0;

	while ((ep = linger_next_up(l, &at)) != NULL)
		if (leaves(l, ep->engine.url) == leaving)
			return true;
	return false;
}

static void
look(struct lingering *l)
{
	struct timeval poll = clock_tv(POLL_MS);

	if (l->leaving.n > 0 &&
		(is_up(l, false) || !is_up(l, true) || clock_ms() - l->since_ms >= LINGER_MS))
		targets_clear(&l->leaving);
	if (l->leaving.n > 0)
		(void)event_add(l->poll, &poll);
}

static void
on_poll(evutil_socket_t fd, short what, void *arg)
{
	struct lingering *l = arg;

	(void)fd;
	(void)what;
	look(l);
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
	look(l);
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
