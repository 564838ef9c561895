#include "master/discover.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"

/* Old and new set are sorted arrays of pointers to items: a fold costs n log n, and 1,000 endpoints
 * re-read 50 times a second stay cheap. */
struct item {
	const struct conf_pool *pool;
	const struct conf_endpoint *endpoint;
	size_t place; /* in the configuration's order */
	void *object;
	bool twice; /* an earlier line has the same key */
	bool still; /* of the old set: the new one has it too */
};

struct discover {
	struct item *items; /* in configuration order */
	struct item **sorted;
	size_t n;
};

struct discover *
discover_new(void)
{
	return MEM_NEW(struct discover);
}

static void
clear(struct discover *d)
{
	free(d->items);
	free(d->sorted);
	*d = (struct discover){0};
}

void
discover_free(struct discover **d)
{
	if (*d == NULL)
		return;
	clear(*d);
	free(*d);
	*d = NULL;
}

static int
compare_key(const struct item *a, const struct item *b)
{
	int r = strcmp(a->endpoint->url, b->endpoint->url);

	if (r == 0)
		r = strcmp(a->pool->name, b->pool->name);
	if (r == 0)
		r = (a->endpoint->role > b->endpoint->role) -
		    (a->endpoint->role < b->endpoint->role);
	return r;
}

static int
compare_place(const void *pa, const void *pb)
{
	const struct item *a = *(struct item *const *)pa, *b = *(struct item *const *)pb;
	int r = compare_key(a, b);

	return r != 0 ? r : (a->place > b->place) - (a->place < b->place);
}

static int
compare_only_key(const void *pa, const void *pb)
{
	return compare_key(*(struct item *const *)pa, *(struct item *const *)pb);
}

static struct discover
collect(const struct conf *conf)
{
	struct discover d = {0};
	size_t total = 0;

	for (size_t i = 0; i < conf->npools; i++)
		total += conf->pools[i].nendpoints;
	d.items = mem_array(total + 1, sizeof(*d.items));
	d.sorted = mem_array(total + 1, sizeof(*d.sorted));
	for (size_t i = 0; i < conf->npools; i++) {
		const struct conf_pool *pool = &conf->pools[i];

		for (size_t k = 0; k < pool->nendpoints; k++) {
			struct item *it = &d.items[d.n];

			*it = (struct item){
				.pool = pool, .endpoint = &pool->endpoints[k], .place = d.n};
			d.sorted[d.n++] = it;
		}
	}
	qsort(d.sorted, d.n, sizeof(*d.sorted), compare_place);
	for (size_t i = 1; i < d.n; i++)
		d.sorted[i]->twice = compare_key(d.sorted[i - 1], d.sorted[i]) == 0;
	return d;
}

/* Of items with one key only the first was ever reported, and bsearch may find any of them. */
static struct item *
find_first(const struct discover *d, struct item *key)
{
	struct item **at =
		d->n == 0 ? NULL
			  : bsearch(&key, d->sorted, d->n, sizeof(*d->sorted), compare_only_key);

	while (at != NULL && (*at)->twice)
		at--;
	return at != NULL ? *at : NULL;
}

static void
report(struct discover *old, struct item *it, discover_fn *fn, void *arg)
{
	struct item *was = find_first(old, it);
	struct discover_event ev = {
		.what = DISCOVER_ADDED, .pool = it->pool, .endpoint = it->endpoint};

	if (was != NULL) {
		was->still = true;
		ev.object = was->object;
		ev.what = was->endpoint->max_inflight == it->endpoint->max_inflight
				  ? DISCOVER_KEPT
				  : DISCOVER_CHANGED;
	}
	it->object = fn(&ev, arg);
}

void
discover_fold(struct discover *d, const struct conf *conf, discover_fn *fn, void *arg)
{
	struct discover old = *d;

	*d = collect(conf);
	for (size_t i = 0; i < d->n; i++)
		if (!d->items[i].twice)
			report(&old, &d->items[i], fn, arg);
	for (size_t i = 0; i < old.n; i++) {
		struct discover_event ev = {
			.what = DISCOVER_REMOVED, .object = old.items[i].object};

		if (!old.items[i].twice && !old.items[i].still)
			(void)fn(&ev, arg);
	}
	clear(&old);
}
