/*
 * Building a table, and looking things up in it.
 */
#include "shm/table.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#define XXH_INLINE_ALL /* no library to load, and the hash is inlined */
#include <xxhash.h>

/*
 * Text of an endpoint or pool: URL, authority, host, prefix, version, ports and the names of its
 * models.  An arena is sized by the average; one endpoint may use more.  A model's name is rarely
 * above 64 bytes.
 */
#define ENDPOINT_TEXT 1088
#define POOL_TEXT 2048
/* of the index of models: 256 names, each with two entries */
#define POOL_INDEX (256 * 2 * sizeof(struct table_model))

size_t
table_arena_bytes(uint32_t max_pools, uint32_t max_endpoints)
{
	/* each endpoint is also in its pool's picks, and each list may be padded */
	const size_t pool =
		sizeof(struct table_pool) + ROLE_N * ARENA_ALIGN + POOL_TEXT + POOL_INDEX;
	const size_t endpoint =
		sizeof(struct table_endpoint) + sizeof(struct table_pick) + ENDPOINT_TEXT;

	return arena_round_up(sizeof(struct table) + max_pools * pool + max_endpoints * endpoint);
}

/* The table under construction, to be written; NULL if not even that fitted. */
static struct table *
built(struct table_builder *b)
{
	return b->arena.used < sizeof(struct table) ? NULL : (struct table *)(void *)b->arena.base;
}

struct table *
table_begin(struct table_builder *b, void *arena, size_t size, uint32_t npools, uint32_t nendpoints)
{
	struct table *t;

	arena_begin(&b->arena, arena, size);
	t = arena_take(&b->arena, sizeof(*t));
	if (t == NULL)
		return NULL;
	t->pools = arena_take(&b->arena, npools * sizeof(struct table_pool));
	t->endpoints = arena_take(&b->arena, nendpoints * sizeof(struct table_endpoint));
	if (b->arena.full)
		return NULL;
	t->npools = npools;
	t->nendpoints = nendpoints;
	return t;
}

/* The arena's bytes behind a const pointer into it: only the builder may write them. */
static void *
writable(const struct table_builder *b, const void *p)
{
	return b->arena.base + ((const unsigned char *)p - b->arena.base);
}

struct table_pool *
table_pool_at(struct table_builder *b, uint32_t i)
{
	const struct table *t = built(b);

	if (t == NULL || i >= t->npools)
		return NULL;
	return writable(b, &t->pools[i]);
}

struct table_endpoint *
table_endpoint_at(struct table_builder *b, uint32_t i)
{
	const struct table *t = built(b);

	if (t == NULL || i >= t->nendpoints)
		return NULL;
	return writable(b, &t->endpoints[i]);
}

const char *
table_str(struct table_builder *b, const char *s)
{
	return arena_str(&b->arena, s);
}

const char *const *
table_strv(struct table_builder *b, const char *const *v, size_t n)
{
	return arena_strv(&b->arena, v, n);
}

/*
 * The numbers of the endpoint's models among the pool's, as bits; NULL if it serves all.  Both
 * lists are mostly sorted: each search begins where the last one ended.
 */
static const uint64_t *
model_bits(struct table_builder *b, const struct table_endpoint *te, const struct table_pool *p)
{
	uint64_t *bits;
	uint32_t at = 0;

	if (te->nmodels == 0 || te->models == p->models)
		return NULL;
	bits = arena_take(&b->arena, (p->nmodels + 63) / 64 * sizeof(*bits));
	for (uint32_t i = 0; bits != NULL && i < te->nmodels; i++)
		for (uint32_t k = 0; k < p->nmodels; k++, at++) {
			if (at >= p->nmodels)
				at = 0;
			if (strcmp(p->models[at], te->models[i]) != 0)
				continue;
			bits[at / 64] |= UINT64_C(1) << at % 64;
			break;
		}
	return bits;
}

uint64_t
table_url_hash(const char *url)
{
	return XXH3_64bits(url, strlen(url));
}

static void
fill_pick(struct table_builder *b, struct table_pick *pick, const struct table *t, uint32_t i)
{
	const struct table_endpoint *te = &t->endpoints[i];

	*pick = (struct table_pick){
		.endpoint = i,
		.slot = te->slot,
		.tag = te->tag,
		.max_inflight = te->max_inflight,
		.hash = te->url == NULL ? 0 : table_url_hash(te->url),
		.weight = (uint8_t)(te->weight == 0 ? 1 : te->weight),
		.group = (uint8_t)te->group,
		.resolved = te->addr.family != 0,
		.tls = te->tls,
		.models = model_bits(b, te, &t->pools[te->pool]),
	};
}

/* The largest context of the pool's decode engines; 0 if one is not known. */
static uint32_t
max_context(const struct table *t, uint32_t pool)
{
	uint32_t max = 0;

	for (uint32_t i = 0; i < t->nendpoints; i++) {
		const struct table_endpoint *te = &t->endpoints[i];

		if (te->pool != pool || te->role != ROLE_DECODE)
			continue;
		if (te->max_context == 0)
			return 0;
		if (te->max_context > max)
			max = te->max_context;
	}
	return max;
}

/* The pool's endpoints of one role, in the table's order. */
static void
list_picks(struct table_builder *b, const struct table *t, uint32_t pool, enum role role)
{
	struct table_pool *p = table_pool_at(b, pool);
	struct table_pick *picks;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->nendpoints; i++)
		n += t->endpoints[i].pool == pool && t->endpoints[i].role == role;
	picks = arena_take(&b->arena, n * sizeof(*picks));
	if (picks == NULL)
		return;
	p->n[role] = n;
	p->picks[role] = picks;
	for (uint32_t i = 0; i < t->nendpoints; i++) {
		if (t->endpoints[i].pool != pool || t->endpoints[i].role != role)
			continue;
		fill_pick(b, picks, t, i);
		if (picks->weight > p->max_weight[role])
			p->max_weight[role] = picks->weight;
		p->turns[role][picks->group] += picks->weight;
		p->tls = p->tls || picks->tls;
		picks++;
	}
}

/* --- the index of models ---------------------------------------------------------------------- */

/*
 * The hash has no secret seed.  Names come from the configuration and from engines, which the
 * router trusts with its clients' prompts; a client chooses only the name that is looked up.  Names
 * that all collide would only bring back the linear search over the names.
 */
static uint64_t
model_home(const struct table *t, const char *name)
{
	return XXH3_64bits(name, strlen(name)) & (t->nby_model - 1);
}

/* The entry of that name, or the free one where it belongs.  At least half of the entries are free. */
static const struct table_model *
model_entry(const struct table *t, const char *name)
{
	for (uint64_t at = model_home(t, name);; at = (at + 1) & (t->nby_model - 1)) {
		const struct table_model *m = &t->by_model[at];

		if (m->pool == 0 || strcmp(t->pools[m->pool - 1].models[m->number], name) == 0)
			return m;
	}
}

/* If two pools have a name, it belongs to the first. */
static void
index_models(struct table_builder *b, struct table *t)
{
	uint64_t names = 0, entries = 1;

	for (uint32_t i = 0; i < t->npools; i++)
		names += t->pools[i].nmodels;
	while (entries < 2 * names)
		entries *= 2;
	t->by_model = arena_take(&b->arena, entries * sizeof(*t->by_model));
	if (t->by_model == NULL)
		return;
	t->nby_model = entries;
	for (uint32_t i = 0; i < t->npools; i++)
		for (uint32_t k = 0; k < t->pools[i].nmodels; k++) {
			struct table_model *m = writable(b, model_entry(t, t->pools[i].models[k]));

			if (m->pool == 0)
				*m = (struct table_model){.pool = i + 1, .number = k};
		}
}

int
table_end(struct table_builder *b)
{
	struct table *t = built(b);

	if (b->arena.full || t == NULL)
		return -ENOSPC;
	for (uint32_t i = 0; i < t->npools; i++) {
		for (enum role role = 0; role < ROLE_N; role++)
			list_picks(b, t, i, role);
		table_pool_at(b, i)->max_context = max_context(t, i);
	}
	index_models(b, t);
	if (b->arena.full)
		return -ENOSPC;
	t->used = b->arena.used;
	t->checksum = table_checksum(t);
	return 0;
}

uint64_t
table_checksum(const struct table *t)
{
	static_assert(
		offsetof(struct table, checksum) % ARENA_ALIGN == 0, "one whole word is left out");

	return arena_checksum(t, t->used, offsetof(struct table, checksum));
}

bool
table_intact(const struct table *t, size_t arena_bytes)
{
	return arena_intact(t, t->used, sizeof(*t), arena_bytes, offsetof(struct table, checksum));
}

const struct table_pool *
table_pool_by_model(const struct table *t, const char *model, uint32_t *ret_number)
{
	const struct table_model *m = model_entry(t, model);

	if (m->pool == 0)
		return NULL;
	*ret_number = m->number;
	return &t->pools[m->pool - 1];
}

const struct table_pool *
table_pool_by_name(const struct table *t, const char *name)
{
	for (uint32_t i = 0; i < t->npools; i++)
		if (strcmp(t->pools[i].name, name) == 0)
			return &t->pools[i];
	return NULL;
}

socklen_t
ep_addr_sockaddr(const struct ep_addr *a, struct sockaddr_storage *ret)
{
	struct sockaddr_in *in = (struct sockaddr_in *)ret;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;

	memset(ret, 0, sizeof(*ret));
	switch (a->family) {
	case AF_INET:
		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->ip, sizeof(in->sin_addr));
		return sizeof(*in);
	case AF_INET6:
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(a->port);
		in6->sin6_scope_id = a->scope;
		memcpy(&in6->sin6_addr, a->ip, sizeof(in6->sin6_addr));
		return sizeof(*in6);
	default:
		return 0;
	}
}

bool
ep_addr_equal(const struct ep_addr *a, const struct ep_addr *b)
{
	return a->family == b->family && a->port == b->port && a->scope == b->scope &&
	       memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

const char *
ep_addr_text(const struct ep_addr *a, char buf[EP_ADDR_TEXT])
{
	char ip[INET6_ADDRSTRLEN];

	if (a->family == 0 || inet_ntop(a->family, a->ip, ip, sizeof(ip)) == NULL)
		(void)snprintf(buf, EP_ADDR_TEXT, "-");
	else
		(void)snprintf(buf, EP_ADDR_TEXT, a->family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip,
			(unsigned)a->port);
	return buf;
}
