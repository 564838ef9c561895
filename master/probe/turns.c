#include "master/probe/turns.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"

#define BUCKETS                                                                                    \
	256 /* an interval has about 20 turns; while a fleet starts there are some hundred */
/* Turns of one group in one turn of the loop.  A probe takes some 20 us, and the loop has more to do. */
#define AT_ONCE 64

LIST_HEAD(group_list, turn_group);
TAILQ_HEAD(turn_list, turn);

struct turns {
	struct event_base *base;
	struct turn_group *running; /* its turns are being called: it is not freed meanwhile */
	struct group_list buckets[BUCKETS];
};

/* All turns that are due in one millisecond. */
struct turn_group {
	struct turns *all;
	uint64_t due_ms;
	struct event *timer;
	struct turn_list turns;
	size_t n;
	LIST_ENTRY(turn_group) link;
};

struct turns *
turns_new(struct event_base *base)
{
	struct turns *all = MEM_NEW(struct turns);

	all->base = base;
	return all;
}

void
turns_free(struct turns **pall)
{
	for (size_t i = 0; i < BUCKETS; i++)
		assert(LIST_EMPTY(&(*pall)->buckets[i]));
	free(*pall);
	*pall = NULL;
}

static void
group_free(struct turn_group *g)
{
	LIST_REMOVE(g, link);
	event_free(g->timer);
	free(g);
}

static void
on_due(evutil_socket_t fd, short what, void *arg)
{
	struct turn_group *g = arg;
	struct timeval now = {0};

	(void)fd;
	(void)what;
	g->all->running = g;
	/* turns that fn adds to this group are last: with no turn cancelled they wait for the next turn of the loop */
	for (size_t left = g->n < AT_ONCE ? g->n : AT_ONCE; left > 0 && g->n > 0; left--) {
		struct turn *t = TAILQ_FIRST(&g->turns);

		turn_cancel(t);
		t->fn(t->arg);
	}
	g->all->running = NULL;
	if (g->n == 0)
		group_free(g);
	else
		(void)event_add(g->timer, &now);
}

static struct turn_group *
group_new(struct turns *all, struct group_list *bucket, uint64_t due_ms, uint64_t wait_ms)
{
	struct turn_group *g = MEM_NEW(struct turn_group);
	struct timeval tv = clock_tv(wait_ms);

	g->all = all;
	g->due_ms = due_ms;
	TAILQ_INIT(&g->turns);
	LIST_INSERT_HEAD(bucket, g, link);
	g->timer = event_new(all->base, -1, 0, on_due, g);
	assert(g->timer != NULL);
	(void)event_add(g->timer, &tv);
	return g;
}

static struct turn_group *
find_group(const struct group_list *bucket, uint64_t due_ms)
{
	struct turn_group *g;

	LIST_FOREACH(g, bucket, link)
	if (g->due_ms == due_ms)
		return g;
	return NULL;
}

void
turn_init(struct turn *t, struct turns *all, turn_fn *fn, void *arg)
{
	*t = (struct turn){.all = all, .fn = fn, .arg = arg};
}

void
turn_after(struct turn *t, uint64_t ms)
{
	const uint64_t due_ms = clock_ms() + ms;
	struct group_list *bucket = &t->all->buckets[due_ms % BUCKETS];
	struct turn_group *g;

	turn_cancel(t);
	g = find_group(bucket, due_ms);
	if (g == NULL)
		g = group_new(t->all, bucket, due_ms, ms);
	TAILQ_INSERT_TAIL(&g->turns, t, link);
	g->n++;
	t->group = g;
}

void
turn_cancel(struct turn *t)
{
	struct turn_group *g = t->group;

	if (g == NULL)
		return;
	TAILQ_REMOVE(&g->turns, t, link);
	t->group = NULL;
	if (--g->n == 0 && g->all->running != g)
		group_free(g);
}

bool
turn_is_set(const struct turn *t)
{
	return t->group != NULL;
}
