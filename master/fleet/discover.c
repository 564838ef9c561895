#include "master/fleet/discover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>

#include "proto/http/http.h"
#include "shm/base/mem.h"

/* The endpoints that one source has found for one pool. */
struct source {
	TAILQ_ENTRY(source) link;
	char *pool, *key, *shown;
	struct found *list;
	size_t n;
};
TAILQ_HEAD(source_list, source);

/* The old and the new set are sorted arrays of pointers to items, so a fold costs n log n: 1,000 endpoints
 * may be read 50 times a second. */
struct item {
	const struct conf_pool *pool;
	const struct conf_endpoint *endpoint;
	const char
		*url; /* of the key: the configured text, if a found URL differs only in spelling */
	const char *source, *kv_addr;
	size_t place; /* index in the order of the reports */
	void *object;
	bool twice; /* an earlier line has the same key */
	bool still; /* in the old set: the new set has the key too */
};

struct set {
	struct item *items; /* in the order of `place` */
	struct item **sorted;
	size_t n;
};

struct discover {
	struct set set;
	struct source_list sources;
	struct source_list former; /* replaced; the set may point to them until the next fold */
};

struct discover *
discover_new(void)
{
	struct discover *d = MEM_NEW(struct discover);

	TAILQ_INIT(&d->sources);
	TAILQ_INIT(&d->former);
	return d;
}

static void
set_clear(struct set *s)
{
	free(s->items);
	free(s->sorted);
	*s = (struct set){0};
}

/* --- sources ----------------------------------------------------------------------------- */

const char *
discover_dns_key(const struct conf_dns *d, char buf[DISCOVER_KEY])
{
	(void)snprintf(buf, DISCOVER_KEY, "dns %s:%u:%s:%s", d->name, d->port,
		role_name(d->as.role), scheme_name(d->scheme));
	return buf;
}

/* The texts of an endpoint that a source owns. */
static const size_t term_texts[] = {offsetof(struct conf_endpoint, group),
	offsetof(struct conf_endpoint, bootstrap_host),
	offsetof(struct conf_endpoint, receiver_host), offsetof(struct conf_endpoint, kv_addr),
	offsetof(struct conf_endpoint, kv_events),
	offsetof(struct conf_endpoint, kv_events_replay)};
#define TERM_TEXTS (sizeof(term_texts) / sizeof(term_texts[0]))

static const char *
term_text(const struct conf_endpoint *as, size_t k)
{
	return *(char *const *)(const void *)((const char *)as + term_texts[k]);
}

static char **
term_at(struct conf_endpoint *as, size_t k)
{
	return (char **)(void *)((char *)as + term_texts[k]);
}

static void
free_sources(struct source_list *list)
{
	struct source *s;

	while ((s = TAILQ_FIRST(list)) != NULL) {
		TAILQ_REMOVE(list, s, link);
		for (size_t i = 0; i < s->n; i++) {
			free(s->list[i].as.url);
			for (size_t k = 0; k < TERM_TEXTS; k++)
				free(*term_at(&s->list[i].as, k));
		}
		free(s->list);
		free(s->pool);
		free(s->key);
		free(s->shown);
		free(s);
	}
}

void
discover_free(struct discover **pd)
{
	struct discover *d = *pd;

	if (d == NULL)
		return;
	set_clear(&d->set);
	free_sources(&d->sources);
	free_sources(&d->former);
	free(d);
	*pd = NULL;
}

static struct source *
source_new(const char *pool, const char *key, const struct found *list, size_t n)
{
	struct source *s = MEM_NEW(struct source);
	struct http_url at;
	const char *why;

	s->pool = mem_strdup(pool);
	s->key = mem_strdup(key);
	s->shown = mem_strndup(key, strcspn(key, ":"));
	s->list = mem_array(n + 1, sizeof(*s->list));
	for (size_t i = 0; i < n; i++) {
		struct found *f = &s->list[s->n];

		if (http_url_parse(list[i].as.url, &at, &why) != 0)
			continue;
		*f = list[i];
		f->as.url = mem_strdup(f->as.url);
		for (size_t k = 0; k < TERM_TEXTS; k++)
			*term_at(&f->as, k) = mem_strdup(term_text(&f->as, k));
		f->as.label = NULL;
		s->n++;
	}
	return s;
}

static bool
ports_equal(const struct conf_ports *a, const struct conf_ports *b)
{
	return a->n == b->n && memcmp(a->port, b->port, a->n * sizeof(a->port[0])) == 0;
}

/* Compares everything but the key and the line: a reload may change the line. */
static bool
terms_equal(const struct conf_endpoint *a, const struct conf_endpoint *b)
{
	for (size_t k = 0; k < TERM_TEXTS; k++)
		if (!mem_text_equal(term_text(a, k), term_text(b, k)))
			return false;
	return a->max_inflight == b->max_inflight && a->weight == b->weight &&
	       a->bootstrap_port == b->bootstrap_port && a->dp_ranks == b->dp_ranks &&
	       ports_equal(&a->receiver_init_port, &b->receiver_init_port) &&
	       ports_equal(&a->receiver_alloc_port, &b->receiver_alloc_port);
}

static bool
source_equal(const struct source *a, const struct source *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		const struct found *x = &a->list[i], *y = &b->list[i];

		if (strcmp(x->as.url, y->as.url) != 0 || x->as.role != y->as.role ||
			!terms_equal(&x->as, &y->as) || strcmp(x->kv_addr, y->kv_addr) != 0)
			return false;
	}
	return true;
}

static void
forget(struct discover *d, struct source *s)
{
	TAILQ_REMOVE(&d->sources, s, link);
	TAILQ_INSERT_TAIL(&d->former, s, link);
}

bool
discover_found(struct discover *d, const char *pool, const char *source, const struct found *list,
	size_t n)
{
	struct source *s = source_new(pool, source, list, n), *was;
	struct source_list unused = TAILQ_HEAD_INITIALIZER(unused);

	TAILQ_FOREACH(was, &d->sources, link)
	if (strcmp(was->pool, pool) == 0 && strcmp(was->key, source) == 0)
		break;
	if (was != NULL ? source_equal(was, s) : s->n == 0) {
		TAILQ_INSERT_TAIL(&unused, s, link);
		free_sources(&unused);
		return false;
	}
	if (was != NULL) { /* at the same position: the first source of a key is reported */
		TAILQ_INSERT_BEFORE(was, s, link);
		forget(d, was);
	} else {
		TAILQ_INSERT_TAIL(&d->sources, s, link);
	}
	return true;
}

static bool
is_configured(const struct conf_pool *pool, const char *key)
{
	char buf[DISCOVER_KEY];

	if (strncmp(key, DISCOVER_FORMER ":", sizeof(DISCOVER_FORMER)) == 0)
		return true;
	if (strcmp(key, DISCOVER_ANNOUNCED) == 0)
		return pool->nannounce_networks > 0;
	for (size_t i = 0; i < pool->ndns; i++)
		if (strcmp(discover_dns_key(&pool->dns[i], buf), key) == 0)
			return true;
	return false;
}

static void
forget_unconfigured(struct discover *d, const struct conf *conf)
{
	for (struct source *s = TAILQ_FIRST(&d->sources), *next; s != NULL; s = next) {
		const struct conf_pool *pool = conf_pool_named(conf, s->pool);

		next = TAILQ_NEXT(s, link);
		if (pool == NULL || !is_configured(pool, s->key))
			forget(d, s);
	}
}

/* --- the set ----------------------------------------------------------------------------- */

static int
compare_key(const struct item *a, const struct item *b)
{
	int r = strcmp(a->url, b->url);

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

size_t
discover_most(const struct discover *d, const struct conf *conf)
{
	const struct source *s;
	size_t total = 0;

	for (size_t i = 0; i < conf->npools; i++)
		total += conf->pools[i].nendpoints;
	TAILQ_FOREACH(s, &d->sources, link) total += s->n;
	return total;
}

static struct item *
add(struct set *set, const struct conf_pool *pool, const struct conf_endpoint *endpoint)
{
	struct item *it = &set->items[set->n];

	*it = (struct item){.pool = pool,
		.endpoint = endpoint,
		.url = endpoint->url,
		.source = DISCOVER_CONFIG,
		.kv_addr = "",
		.place = set->n};
	set->sorted[set->n++] = it;
	return it;
}

/* A configured endpoint without a path prefix, searched by host and port. */
struct spot {
	char *authority;
	const struct item *item;
};

static int
compare_spot(const void *pa, const void *pb)
{
	const struct spot *a = pa, *b = pb;
	int r = strcasecmp(a->authority, b->authority);

	if (r == 0)
		r = strcmp(a->item->pool->name, b->item->pool->name);
	return r != 0 ? r : (int)a->item->endpoint->role - (int)b->item->endpoint->role;
}

/* "host:port" of a URL without a prefix, else NULL. */
static char *
authority_of(const char *url)
{
	struct http_url at;
	const char *why;

	if (http_url_parse(url, &at, &why) != 0 || at.prefix[0] != '\0')
		return NULL;
	return mem_printf("%s:%u", at.host, at.port);
}

/*
 * A configured http://10.0.0.1 and a found http://10.0.0.1:80 are one engine.  The found item gets the
 * configured text as its key.
 */
static void
spell_found(struct set *set, size_t nconfigured)
{
	struct spot *spots = mem_array(nconfigured + 1, sizeof(*spots));
	size_t n = 0;

	for (size_t i = 0; i < nconfigured; i++) {
		spots[n] = (struct spot){authority_of(set->items[i].url), &set->items[i]};
		n += spots[n].authority != NULL;
	}
	qsort(spots, n, sizeof(*spots), compare_spot);
	for (size_t i = nconfigured; i < set->n; i++) {
		struct spot key = {authority_of(set->items[i].url), &set->items[i]};
		const struct spot *at =
			key.authority == NULL
				? NULL
				: bsearch(&key, spots, n, sizeof(*spots), compare_spot);

		if (at != NULL)
			set->items[i].url = at->item->url;
		free(key.authority);
	}
	for (size_t i = 0; i < n; i++)
		free(spots[i].authority);
	free(spots);
}

static void
add_found(struct set *set, const struct conf *conf, const struct source *s)
{
	const struct conf_pool *pool = conf_pool_named(conf, s->pool);

	for (size_t i = 0; i < s->n; i++) {
		struct item *it = add(set, pool, &s->list[i].as);

		it->source = s->shown;
		it->kv_addr = s->list[i].kv_addr;
	}
}

/* The first item of a key is reported.  It takes a missing KV address from a later item. */
static void
mark_doubles(struct set *set)
{
	struct item *first = NULL;

	qsort(set->sorted, set->n, sizeof(struct item *), compare_place);
	for (size_t i = 0; i < set->n; i++) {
		struct item *it = set->sorted[i];

		it->twice = first != NULL && compare_key(first, it) == 0;
		if (!it->twice)
			first = it;
		else if (first->kv_addr[0] == '\0')
			first->kv_addr = it->kv_addr;
	}
}

static struct set
collect(const struct discover *d, const struct conf *conf)
{
	struct set set = {0};
	const struct source *s;
	size_t total = discover_most(d, conf), nconfigured;

	set.items = mem_array(total + 1, sizeof(*set.items));
	set.sorted = mem_array(total + 1, sizeof(struct item *));
	for (size_t i = 0; i < conf->npools; i++)
		for (size_t k = 0; k < conf->pools[i].nendpoints; k++)
			(void)add(&set, &conf->pools[i], &conf->pools[i].endpoints[k]);
	nconfigured = set.n;
	TAILQ_FOREACH(s, &d->sources, link) add_found(&set, conf, s);
	if (set.n > nconfigured)
		spell_found(&set, nconfigured);
	mark_doubles(&set);
	return set;
}

/* bsearch may find any item of a key, but only the first was reported. */
static struct item *
find_first(const struct set *set, struct item *key)
{
	struct item **at = set->n == 0 ? NULL
				       : bsearch(&key, set->sorted, set->n, sizeof(*set->sorted),
						 compare_only_key);

	while (at != NULL && (*at)->twice)
		at--;
	return at != NULL ? *at : NULL;
}

static void
report(const struct set *old, struct item *it, discover_fn *fn, void *arg)
{
	struct item *was = find_first(old, it);
	struct discover_event ev = {.what = DISCOVER_ADDED,
		.pool = it->pool,
		.endpoint = it->endpoint,
		.source = it->source,
		.found = strcmp(it->source, DISCOVER_CONFIG) != 0,
		.kv_addr = it->kv_addr};

	if (was != NULL) {
		was->still = true;
		ev.object = was->object;
		ev.what =
			terms_equal(was->endpoint, it->endpoint) ? DISCOVER_KEPT : DISCOVER_CHANGED;
	}
	it->object = fn(&ev, arg);
}

void
discover_leaving(
	struct discover *d, const struct conf *conf, void (*fn)(void *object, void *arg), void *arg)
{
	struct set next;

	forget_unconfigured(d, conf);
	next = collect(d, conf);
	for (size_t i = 0; i < d->set.n; i++)
		if (!d->set.items[i].twice && find_first(&next, &d->set.items[i]) == NULL)
			fn(d->set.items[i].object, arg);
	set_clear(&next);
}

void
discover_fold(struct discover *d, const struct conf *conf, discover_fn *fn, void *arg)
{
	struct set old = d->set;

	forget_unconfigured(d, conf);
	d->set = collect(d, conf);
	for (size_t i = 0; i < d->set.n; i++)
		if (!d->set.items[i].twice)
			report(&old, &d->set.items[i], fn, arg);
	for (size_t i = 0; i < old.n; i++) {
		struct discover_event ev = {
			.what = DISCOVER_REMOVED, .object = old.items[i].object};

		if (!old.items[i].twice && !old.items[i].still)
			(void)fn(&ev, arg);
	}
	set_clear(&old);
	free_sources(&d->former);
}
