#include "master/fleet/rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/pool_id.h"
#include "shm/base/connector_info.h"
#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/table.h"

#define HOST_TEXT 300 /* bytes of a URL's host, with brackets */

bool
rows_has(const struct endpoint *ep)
{
	return ep->engine.slot != ENGINE_NO_SLOT && !ep->no_room;
}

/* Of a pool without models of its own: what its endpoints serve, down ones too (a model whose
 * engines are all down is unavailable, not unknown). */
static void
fill_learned(struct table_builder *b, struct table_pool *tp, const struct fleet *f,
	const struct conf_pool *pool, size_t max_names)
{
	const struct model_set **sets = mem_array(f->norder + 1, sizeof(const struct model_set *));
	const char **names;
	size_t nsets = 0, n;

	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->engine.pool == pool && rows_has(f->order[i]))
			sets[nsets++] = &f->order[i]->engine.models;
	names = models_union(sets, nsets, max_names, &n);
	tp->nmodels = (uint32_t)n;
	tp->models = table_strv(b, names, n);
	free(names);
	free(sets);
}

static const char *
or_empty(const char *s)
{
	return s != NULL ? s : "";
}

/* --- what engines tell of models ---------------------------------------------------------- */

/* A model of the pool. */
struct card {
	const char *name;    /* the first member: compare_cards() */
	const char *members; /* of the first engine that tells some; NULL: none does */
	uint32_t row;        /* in the pool's list */
	/* The least that an engine tells, since a request must fit into both engines; 0: none does. */
	uint32_t max_model_len;
};

static int
compare_cards(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Both lists are sorted, and mostly equal: the model after the one before is tried first. */
static struct card *
card_of(struct card *cards, size_t n, size_t hint, const char *name)
{
	if (hint < n && strcmp(cards[hint].name, name) == 0)
		return &cards[hint];
	return bsearch(&name, cards, n, sizeof(*cards), compare_cards);
}

static void
take_cards(struct card *cards, size_t n, const struct model_set *told)
{
	size_t hint = 0;

	for (size_t i = 0; i < told->n; i++) {
		const struct model_card *c = &told->cards[i];
		struct card *card = card_of(cards, n, hint, told->names[i]);

		if (card == NULL)
			continue;
		hint = (size_t)(card - cards) + 1;
		if (c->members[0] == '\0')
			continue;
		if (card->members == NULL)
			card->members = c->members;
		if (c->max_model_len != 0 &&
			(card->max_model_len == 0 || c->max_model_len < card->max_model_len))
			card->max_model_len = c->max_model_len;
	}
}

static char *
card_text(const struct card *c)
{
	static_assert(3 * MODELS_VALUE_MAX + 100 < TABLE_CARD_MAX, "the members of a card fit");
	char text[TABLE_CARD_MAX] = "";

	if (c->members != NULL && c->max_model_len == 0)
		(void)snprintf(text, sizeof(text), "%s,\"max_model_len\":null", c->members);
	else if (c->members != NULL)
		(void)snprintf(text, sizeof(text), "%s,\"max_model_len\":%u", c->members,
			c->max_model_len);
	return mem_strdup(text);
}

/* One pass over the engines: there may be a thousand of them and as many models. */
void
rows_fill_cards(struct table_builder *b, struct table_pool *tp, const struct fleet *f,
	const struct conf_pool *pool)
{
	struct card *cards = mem_array(tp->nmodels + 1, sizeof(*cards));
	char **v = mem_array(tp->nmodels + 1, sizeof(*v));
	const uint32_t n = tp->models != NULL ? tp->nmodels : 0;

	for (uint32_t i = 0; i < n; i++)
		cards[i] = (struct card){.name = tp->models[i], .row = i};
	qsort(cards, n, sizeof(*cards), compare_cards);
	for (size_t i = 0; i < f->norder; i++)
		if (f->order[i]->engine.pool == pool)
			take_cards(cards, n, &f->order[i]->engine.models);
	for (uint32_t i = 0; i < n; i++)
		v[cards[i].row] = card_text(&cards[i]);
	if (tp->models != NULL)
		tp->cards = table_strv(b, (const char *const *)v, n);
	for (uint32_t i = 0; i < n; i++)
		free(v[i]);
	free(v);
	free(cards);
}

void
rows_fill_pool(struct table_builder *b, struct table_pool *tp, const struct fleet *f,
	const struct conf_pool *pool, size_t max_names)
{
	tp->name = table_str(b, pool->name);
	tp->id = pool_id_of(f, pool);
	tp->connector = pool->connector;
	tp->pairing = pool->pairing;
	tp->session_header = table_str(b, or_empty(pool->session_header));
	tp->session_member = table_str(b, or_empty(pool->session_member));
	tp->groups = table_strv(b, (const char *const *)pool->groups, pool->ngroups);
	tp->prefix_bytes = pool->prefix_bytes;
	tp->slow_start_ms = pool->slow_start_ms;
	for (enum role role = 0; role < ROLE_N; role++) {
		tp->policy[role] = pool->policies[role];
		tp->load[role] = pool->loads[role];
	}
	tp->shake = pool->shake;
	tp->timeouts = pool->timeouts;
	tp->rescue = pool->rescue;
	tp->ejection = pool->ejection;
	tp->queue = pool->queue;
	tp->tls_keys = pool->tls.id;
	tp->priority_header = table_str(b, or_empty(pool->priority_header));
	if (pool->nmodels == 0) {
		fill_learned(b, tp, f, pool, max_names);
		return;
	}
	tp->nmodels = (uint32_t)pool->nmodels;
	tp->models = table_strv(b, (const char *const *)pool->models, pool->nmodels);
}

/* The engines of a pool mostly serve the same names: one list is enough then. */
static void
fill_endpoint_models(struct table_builder *b, struct table_endpoint *te, const struct endpoint *ep,
	const struct table_pool *tp, bool share)
{
	struct model_set all = {.n = tp->nmodels};

	if (ep->engine.pool->nmodels > 0 || ep->engine.models.n == 0 || tp->models == NULL)
		return;
	te->nmodels = tp->nmodels;
	te->models = tp->models;
	if (share || all.n == ep->engine.models.n) /* the union has no name less than this one */
		return;
	te->nmodels = (uint32_t)ep->engine.models.n;
	te->models =
		table_strv(b, (const char *const *)ep->engine.models.names, ep->engine.models.n);
}

/* The endpoint's own host for an address that has only a port, in brackets if it is an IPv6 literal. */
static const char *
host_of(const struct endpoint *ep, char buf[static HOST_TEXT])
{
	(void)snprintf(buf, HOST_TEXT, ep->engine.at.ipv6 ? "[%s]" : "%s", ep->engine.at.host);
	return buf;
}

static void
fill_ports(char *at, size_t size, const char *key, const struct conf_ports *ports)
{
	size_t n = (size_t)snprintf(at, size, ",\"%s\":[", key);

	for (uint32_t i = 0; i < ports->n; i++)
		n += (size_t)snprintf(
			at + n, size - n, "%s%u", i > 0 ? "," : "", (unsigned)ports->port[i]);
	(void)snprintf(at + n, size - n, "]");
}

/* The address of a decode engine's LMCache for the prefill engine: ports always as lists
 * (protocols.md 4.1).  A configured host is valid: it holds nothing that JSON would escape. */
static const char *
disagg_spec(struct table_builder *b, const struct endpoint *ep)
{
	const struct conf_endpoint *conf = ep->engine.conf;
	char text[HOST_TEXT + 128 + 2 * CONF_PORTS_MAX * sizeof("65535,")], host[HOST_TEXT];

	if (conf->receiver_init_port.n == 0)
		return table_str(b, "");
	(void)snprintf(text, sizeof(text), "\"receiver_host\":\"%s\"",
		conf->receiver_host != NULL ? conf->receiver_host : host_of(ep, host));
	fill_ports(text + strlen(text), sizeof(text) - strlen(text), "receiver_init_port",
		&conf->receiver_init_port);
	fill_ports(text + strlen(text), sizeof(text) - strlen(text), "receiver_alloc_port",
		&conf->receiver_alloc_port);
	return table_str(b, text);
}

static const char *
kv_addr(struct table_builder *b, const struct endpoint *ep)
{
	const char *given = ep->engine.conf->kv_addr;
	char text[HOST_TEXT + 8], host[HOST_TEXT];

	if (given == NULL)
		return table_str(b, ep->kv_addr);
	if (given[0] != ':')
		return table_str(b, given);
	(void)snprintf(text, sizeof(text), "%s%.7s", host_of(ep, host), given);
	return table_str(b, text);
}

/* How many messages say that the KV of one transfer has arrived at this decode engine. */
static uint8_t
ready_messages(const struct endpoint *ep)
{
	const int32_t n = ep->engine.pool->shake.ready_messages;

	if (ep->engine.role != ROLE_DECODE)
		return 0;
	return (uint8_t)(n == READY_BY_PORTS ? ep->engine.conf->receiver_init_port.n : (uint32_t)n);
}

/* Configured values win over learned ones. */
static void
fill_runtime(struct table_builder *b, struct table_endpoint *te, const struct endpoint *ep)
{
	const struct conf_endpoint *conf = ep->engine.conf;
	char host[HOST_TEXT];

	te->bootstrap_host = te->host; /* no copy of it unless it needs brackets */
	if (conf->bootstrap_host != NULL || ep->engine.at.ipv6)
		te->bootstrap_host = table_str(
			b, conf->bootstrap_host != NULL ? conf->bootstrap_host : host_of(ep, host));
	te->bootstrap_port = conf->bootstrap_port != 0 ? conf->bootstrap_port
						       : ep->engine.runtime.bootstrap_port;
	if (te->bootstrap_port == 0 && ep->engine.role == ROLE_PREFILL)
		te->bootstrap_port = connector_info[ep->engine.pool->connector].bootstrap_port;
	te->max_context = ep->engine.runtime.max_context;
	te->version = table_str(b, ep->engine.runtime.version);
	te->kv_addr = kv_addr(b, ep);
	te->disagg_spec = disagg_spec(b, ep);
	te->notices = ready_messages(ep);
	te->dp_ranks = conf->dp_ranks;
}

/*
 * The number of a group's name within its pool: its place among the distinct ones, from 1 on.  The
 * configuration has at most TABLE_GROUPS - 1 (conf_pools.c).
 */
static uint32_t
group_number(const struct conf_pool *pool, const char *group)
{
	uint32_t n = 0;

	while (group != NULL && n < pool->ngroups)
		if (strcmp(pool->groups[n++], group) == 0)
			return n;
	return 0;
}

/* One copy for all engines of a pool: the first that is sent the key has it. */
static const char *
key_of(struct table_builder *b, struct table_pool *tp, const struct engine *e)
{
	if (e->pool->api_key == NULL)
		return NULL;
	if (engine_key(e) == NULL)
		return "";
	if (tp->key == NULL)
		tp->key = table_str(b, e->pool->api_key);
	return tp->key;
}

void
rows_fill_endpoint(struct table_builder *b, struct table_endpoint *te, const struct endpoint *ep,
	uint32_t pool_row, bool share_names)
{
	te->slot = ep->engine.slot;
	te->tag = (uint32_t)ep_tag(ep->fleet->seg, ep->engine.slot);
	te->pool = pool_row;
	te->role = ep->engine.role;
	te->max_inflight = ep->engine.conf->max_inflight;
	te->weight = endpoint_weight(ep);
	te->group = group_number(ep->engine.pool, ep->engine.conf->group);
	te->addr = ep->engine.addr;
	te->url = table_str(b, ep->engine.url);
	te->tls = ep->engine.at.tls;
	te->authority = table_str(b, ep->engine.authority);
	te->host = table_str(b, ep->engine.at.host);
	te->prefix = table_str(b, ep->engine.at.prefix);
	te->key = key_of(b, table_pool_at(b, pool_row), &ep->engine);
	fill_runtime(b, te, ep);
	fill_endpoint_models(b, te, ep, table_pool_at(b, pool_row), share_names);
}
