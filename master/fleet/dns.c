#include "master/fleet/dns.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "master/fleet/discover.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/linger.h"
#include "master/fleet/targets.h"
#include "master/probe/resolve.h"
#include "proto/wire/dns_reply.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/load.h"

#define LEAST_MS 1000    /* between two lookups, even if the TTL is 0 */
#define MOST_MS 300000   /* even if it is a day: engines come and go faster */
#define NEGATIVE_MS 5000 /* no record, and no authority record with a TTL */
#define BACK_OFF_MS 2000 /* after an error; doubled by each further one */
#define BACK_OFF_MOST_MS 30000

/*
 * One type of records of one name:
 *
 *   lookup --records-----> their targets, until the TTL is over --> lookup
 *     |----no record-------> the same as before, until the negative TTL is over; `fall` times: none
 *     '----error-----------> the same as before, next lookup after a back-off
 */
struct lookup_type {
	struct entry *entry;
	enum dns_type type;
	struct query *query;
	struct event *turn;
	struct targets known;
	struct lingering linger; /* those that are no longer known, while no other engine is up */
	uint32_t empty, errors;  /* answers of that kind in a row */
};

struct entry {
	TAILQ_ENTRY(entry) link;
	struct dns *dns;
	char *pool, key[DISCOVER_KEY]; /* its source's name */
	const struct conf_dns *conf;   /* of f->conf; NULL only within dns_apply() */
	struct lookup_type types[2];
	size_t ntypes;
};

struct dns {
	struct fleet *fleet;
	found_fn *found;
	TAILQ_HEAD(entries, entry) entries;
};

static const char *
type_name(enum dns_type type)
{
	return type == DNS_A ? "A" : type == DNS_AAAA ? "AAAA" : "SRV";
}

/* --- a name's records --------------------------------------------------------------------- */

static size_t
count(const struct entry *e)
{
	size_t n = 0;

	for (size_t i = 0; i < e->ntypes; i++)
		n += e->types[i].known.n + e->types[i].linger.leaving.n;
	return n;
}

static size_t
put_found(const struct entry *e, const struct targets *s, struct found *list)
{
	for (size_t i = 0; i < s->n; i++) {
		list[i].as = e->conf->as;
		list[i].as.url = s->v[i].url;
		if (s->v[i].weight != 0)
			list[i].as.weight = s->v[i].weight;
	}
	return s->n;
}

/* As discover_found() takes them; the texts are the entry's. */
static struct found *
list_found(const struct entry *e, size_t *ret_n)
{
	struct found *list = mem_array(count(e) + 1, sizeof(*list));
	size_t n = 0;

	for (size_t i = 0; i < e->ntypes; i++) {
		n += put_found(e, &e->types[i].known, list + n);
		n += put_found(e, &e->types[i].linger.leaving, list + n);
	}
	*ret_n = n;
	return list;
}

static void
report_found(struct entry *e)
{
	size_t n;
	struct found *list = list_found(e, &n);

	e->dns->found(e->dns->fleet, e->pool, e->key, list, n);
	free(list);
}

static void
on_over(void *arg)
{
	report_found(((struct lookup_type *)arg)->entry);
}

/* Of what was known or leaving those that are up and not in `now`: never more than endpoints. */
static struct targets
former_of(const struct lookup_type *t, const struct targets *now)
{
	const struct targets *leaving = &t->linger.leaving;
	struct targets former = {.v = mem_array(t->known.n + leaving->n + 1, sizeof(*former.v))};
	const struct endpoint *ep;
	size_t at = 0;

	while (former.n < t->known.n + leaving->n && (ep = linger_next_up(&t->linger, &at)) != NULL)
		if (!targets_have(now, ep->engine.url) &&
			(targets_have(&t->known, ep->engine.url) ||
				targets_have(leaving, ep->engine.url)))
			former.v[former.n++] = (struct target){
				mem_strdup(ep->engine.url), ep->engine.conf->weight};
	return former;
}

/* Takes `now`. */
static void
learn(struct lookup_type *t, struct targets *now)
{
	struct targets former;

	if (now->left_out > 0 && t->known.left_out == 0)
		log_warn("more addresses of a name than are used, the last ones are left out",
			LOG_S("name", t->entry->conf->name), LOG_S("type", type_name(t->type)),
			LOG_U("used", now->n), LOG_U("left_out", now->left_out));
	if (targets_equal(now, &t->known)) {
		t->known.left_out = now->left_out;
		targets_clear(now);
		return;
	}
	former = former_of(t, now);
	targets_clear(&t->known);
	t->known = *now;
	if (now->n == 0)
		targets_clear(&former);
	linger_begin(&t->linger, &former);
	report_found(t->entry);
}

/* --- lookups ---------------------------------------------------------------- */

static void
look_up_after(struct lookup_type *t, uint64_t ms)
{
	struct timeval tv;

	ms = ms < LEAST_MS ? LEAST_MS : ms > MOST_MS ? MOST_MS : ms;
	tv = clock_tv(ms);
	(void)event_add(t->turn, &tv);
}

static void
failed(struct lookup_type *t, const char *why)
{
	uint64_t wait = BACK_OFF_MOST_MS;

	if (t->errors++ == 0)
		log_warn("a name could not be looked up, its endpoints stay as they are",
			LOG_S("name", t->entry->conf->name), LOG_S("type", type_name(t->type)),
			LOG_S("pool", t->entry->pool), LOG_S("reason", why),
			LOG_U("endpoints", t->known.n));
	if (t->errors < 5)
		wait = (uint64_t)BACK_OFF_MS << (t->errors - 1);
	look_up_after(t, wait < BACK_OFF_MOST_MS ? wait : BACK_OFF_MOST_MS);
}

static void
empty(struct lookup_type *t, const struct dns_reply *reply)
{
	uint32_t fall = t->entry->dns->fleet->conf->fall;
	const char *why = reply->rcode == DNS_NXDOMAIN ? "no such name" : "no usable record";
	struct targets none = {0};

	t->empty++;
	if (t->known.n > 0 && t->empty >= fall) {
		log_warn("a name has no addresses any more, its endpoints are removed",
			LOG_S("name", t->entry->conf->name), LOG_S("type", type_name(t->type)),
			LOG_S("pool", t->entry->pool), LOG_S("reason", why),
			LOG_U("answers", t->empty), LOG_U("endpoints", t->known.n));
		learn(t, &none);
	} else if (t->known.n > 0 && t->empty == 1) {
		log_warn("a name has no addresses now, its endpoints stay until the answer repeats",
			LOG_S("name", t->entry->conf->name), LOG_S("type", type_name(t->type)),
			LOG_S("pool", t->entry->pool), LOG_S("reason", why), LOG_U("times", fall),
			LOG_U("endpoints", t->known.n));
	} else if (t->empty == fall && t == t->entry->types && count(t->entry) == 0) {
		log_warn("a name has no addresses, it gives no endpoints",
			LOG_S("name", t->entry->conf->name), LOG_S("pool", t->entry->pool),
			LOG_S("role", role_name(t->entry->conf->as.role)), LOG_S("reason", why),
			LOG_U("answers", t->empty));
	} else if (t->empty == 1 && count(t->entry) == 0) { /* AAAA beside A is empty mostly */
		log_info("a name has no addresses yet", LOG_S("name", t->entry->conf->name),
			LOG_S("type", type_name(t->type)), LOG_S("pool", t->entry->pool),
			LOG_S("reason", why));
	}
	look_up_after(
		t, reply->has_negative_ttl ? reply->negative_ttl * UINT64_C(1000) : NEGATIVE_MS);
}

static void
answered(struct lookup_type *t, const struct dns_reply *reply, const struct dns_record *records)
{
	struct targets now = targets_read(records, reply->n, t->type, t->entry->conf);

	if (t->errors > 0)
		log_info("a name can be looked up again", LOG_S("name", t->entry->conf->name),
			LOG_S("type", type_name(t->type)), LOG_S("pool", t->entry->pool),
			LOG_U("endpoints", now.n));
	t->errors = 0;
	if (now.n == 0) {
		targets_clear(&now);
		empty(t, reply);
		return;
	}
	t->empty = 0;
	look_up_after(t, reply->ttl * UINT64_C(1000));
	learn(t, &now);
}

static void
on_answer(const uint8_t *msg, size_t n, const char *error, void *arg)
{
	struct lookup_type *t = arg;
	size_t most = DNS_RECORDS_MOST(n);
	struct dns_record *records;
	struct dns_reply reply;

	if (msg == NULL) {
		failed(t, error);
		return;
	}
	records = mem_array(most, sizeof(*records));
	if (dns_reply_read(msg, n, t->type, records, most, &reply) != 0)
		failed(t, "a broken answer");
	else if (reply.truncated)
		failed(t, "a truncated answer");
	else
		answered(t, &reply, records);
	free(records);
}

static void
look_up(struct lookup_type *t)
{
	resolve_query_cancel(&t->query);
	resolve_query(t->entry->dns->fleet->prober.resolver, t->entry->conf->name, (int)t->type,
		on_answer, t, &t->query);
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	look_up(arg);
}

/* --- entries ------------------------------------------------------------------------------ */

static void
add_type(struct entry *e, enum dns_type type)
{
	struct lookup_type *t = &e->types[e->ntypes++];
	struct timeval now = {0};

	t->entry = e;
	t->type = type;
	t->turn = event_new(e->dns->fleet->base, -1, 0, on_turn, t);
	assert(t->turn != NULL);
	linger_init(&t->linger, e->dns->fleet, e->pool, e->conf->as.role, on_over, t);
	(void)event_add(t->turn, &now); /* when the new configuration is in force */
}

static void
entry_new(struct dns *d, const char *pool, const struct conf_dns *conf)
{
	struct entry *e = MEM_NEW(struct entry);

	e->dns = d;
	e->pool = mem_strdup(pool);
	e->conf = conf;
	(void)discover_dns_key(conf, e->key);
	if (conf->port == 0) {
		add_type(e, DNS_SRV);
	} else {
		add_type(e, DNS_A);
		add_type(e, DNS_AAAA);
	}
	TAILQ_INSERT_TAIL(&d->entries, e, link);
}

static void
entry_free(struct entry *e)
{
	for (size_t i = 0; i < e->ntypes; i++) {
		resolve_query_cancel(&e->types[i].query);
		event_free(e->types[i].turn);
		linger_fini(&e->types[i].linger);
		targets_clear(&e->types[i].known);
	}
	TAILQ_REMOVE(&e->dns->entries, e, link);
	free(e->pool);
	free(e);
}

static struct entry *
find(struct dns *d, const char *pool, const char *key)
{
	struct entry *e;

	TAILQ_FOREACH(e, &d->entries, link)
	if (strcmp(e->pool, pool) == 0 && strcmp(e->key, key) == 0)
		return e;
	return NULL;
}

static void
keep_or_begin(struct dns *d, const char *pool, const struct conf_dns *conf)
{
	char key[DISCOVER_KEY];
	struct entry *e = find(d, pool, discover_dns_key(conf, key));
	struct found *list;
	size_t n;

	if (e == NULL) {
		entry_new(d, pool, conf);
	} else if (e->conf == NULL) { /* otherwise the record is listed twice */
		e->conf = conf;
		list = list_found(e, &n);
		if (n > 0)
			(void)discover_found(d->fleet->discover, pool, key, list, n);
		free(list);
	}
}

/* Other name servers may have other answers. */
static void
look_up_all(struct dns *d)
{
	struct timeval now = {0};
	struct entry *e;

	TAILQ_FOREACH(e, &d->entries, link)
	for (size_t i = 0; i < e->ntypes; i++)
		(void)event_add(e->types[i].turn, &now);
}

void
dns_apply(struct dns *d)
{
	const struct conf *conf = d->fleet->conf;
	struct entry *e, *next;

	if (resolver_servers(d->fleet->prober.resolver, conf->dns_servers, conf->ndns_servers))
		look_up_all(d);
	TAILQ_FOREACH(e, &d->entries, link) e->conf = NULL;
	for (size_t i = 0; i < conf->npools; i++)
		for (size_t k = 0; k < conf->pools[i].ndns; k++)
			keep_or_begin(d, conf->pools[i].name, &conf->pools[i].dns[k]);
	for (e = TAILQ_FIRST(&d->entries); e != NULL; e = next) {
		next = TAILQ_NEXT(e, link);
		if (e->conf == NULL)
			entry_free(e); /* the fold drops its endpoints */
	}
}

struct dns *
dns_new(struct fleet *f, found_fn *found)
{
	struct dns *d = MEM_NEW(struct dns);

	d->fleet = f;
	d->found = found;
	TAILQ_INIT(&d->entries);
	return d;
}

void
dns_free(struct dns **pd)
{
	struct dns *d = *pd;

	if (d == NULL)
		return;
	while (!TAILQ_EMPTY(&d->entries))
		entry_free(TAILQ_FIRST(&d->entries));
	free(d);
	*pd = NULL;
}

bool
dns_is_settled(const struct dns *d)
{
	const struct entry *e;

	TAILQ_FOREACH(e, &d->entries, link)
	for (size_t i = 0; i < e->ntypes; i++)
		if (e->types[i].known.n + e->types[i].empty + e->types[i].errors == 0)
			return false;
	return true;
}
