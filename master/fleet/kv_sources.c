#include "master/fleet/kv_sources.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/rows.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/kv_events.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "shm/table.h"

/* `given` is as configured; NULL: none.  False: the engine's own address is not known yet. */
static bool
put_address(char to[KV_SOURCE_ADDRESS], const char *given, const struct ep_addr *own)
{
	static const char any[] = "tcp://*";
	char ip[INET6_ADDRSTRLEN];

	if (given == NULL)
		return true;
	if (strncmp(given, any, strlen(any)) != 0) {
		(void)snprintf(to, KV_SOURCE_ADDRESS, "%s", given);
		return true;
	}
	if (own->family == 0 || inet_ntop(own->family, own->ip, ip, sizeof(ip)) == NULL)
		return false;
	(void)snprintf(to, KV_SOURCE_ADDRESS,
		own->family == AF_INET6 ? "tcp://[%s]%.6s" : "tcp://%s%.6s", ip,
		given + strlen(any));
	return true;
}

/* The model whose blocks an engine names without an adapter: the first that it does not say to be one. */
static const char *
base_model(const struct endpoint *ep)
{
	const struct conf_pool *p = ep->engine.pool;
	const struct model_set *told = &ep->engine.models;
	char *const *names = p->nmodels > 0 ? p->models : told->names;
	const size_t n = p->nmodels > 0 ? p->nmodels : told->n;

	for (size_t i = 0; i < n; i++) {
		const struct model_card *card = models_card(told, names[i]);

		if (card == NULL || card->members == NULL ||
			strstr(card->members, "\"parent\":\"") == NULL)
			return names[i];
	}
	return "";
}

/* What the digests of the engine's blocks depend on. */
static void
set_blocks(struct kv_source *s, const struct endpoint *ep, const struct table *t)
{
	const char *model = base_model(ep);
	struct prefix_secret secret;
	uint32_t number;
	const struct table_pool *tp = table_pool_by_model(t, model, &number);

	if (tp == NULL)
		return;
	prefix_secret_make(&secret, ep->fleet->seg->hdr->prefix_seed);
	s->root = prefix_ids_model(&secret, model, strlen(model));
	s->row = prefix_row_of(tp);
}

static struct kv_source
source_of(const struct endpoint *ep)
{
	const struct conf_endpoint *e = ep->engine.conf;
	const struct conf_pool *p = ep->engine.pool;
	struct kv_source s = {.tag = (uint32_t)ep_tag(ep->fleet->seg, ep->engine.slot),
		.ranks = e->dp_ranks > 1 ? e->dp_ranks : 1};
	const char *events = e->kv_events != NULL ? e->kv_events : p->kv_events;
	const char *replay =
		e->kv_events_replay != NULL ? e->kv_events_replay : p->kv_events_replay;

	if (events == NULL || !put_address(s.events, events, &ep->engine.addr) ||
		!put_address(s.replay, replay, &ep->engine.addr))
		return (struct kv_source){.ranks = 0};
	set_blocks(&s, ep, rcu_current(ep->fleet->writer));
	return s;
}

/* Where an engine of LMCache listens is where its notices come from, mostly. */
static struct kv_sender
sender_of(const struct endpoint *ep)
{
	const struct ep_addr *at = &ep->engine.addr;
	struct kv_sender s = {.family = at->family};

	if (ep->engine.pool->connector != CONNECTOR_LMCACHE || at->family == 0)
		return (struct kv_sender){.family = 0};
	memcpy(s.ip, at->ip, at->family == AF_INET ? 4 : sizeof(s.ip));
	return s;
}

/* One that is being removed is of no pool any more.  It still sends what requests wait for, so its row stays. */
static void
publish_senders(const struct fleet *f)
{
	const uint32_t n = f->seg->hdr->max_endpoints;
	bool *stays = mem_array(n, sizeof(*stays));
	const struct endpoint *ep;

	TAILQ_FOREACH(ep, &f->draining, link)
	if (rows_has(ep))
		stays[ep->engine.slot] = true;
	for (size_t i = 0; i < f->norder; i++)
		if (rows_has(f->order[i])) {
			const struct kv_sender s = sender_of(f->order[i]);

			kv_sender_put(f->seg, f->order[i]->engine.slot, &s);
			stays[f->order[i]->engine.slot] = true;
		}
	for (uint32_t i = 0; i < n; i++)
		if (!stays[i])
			kv_sender_put(f->seg, i, &(struct kv_sender){.family = 0});
	free(stays);
}

void
kv_sources_publish(const struct fleet *f)
{
	const uint32_t n = f->seg->hdr->max_endpoints;
	bool *has = mem_array(n, sizeof(*has));

	for (size_t i = 0; i < f->norder; i++) {
		const struct endpoint *ep = f->order[i];
		const struct kv_source s =
			rows_has(ep) ? source_of(ep) : (struct kv_source){.ranks = 0};

		if (s.ranks == 0)
			continue;
		has[ep->engine.slot] = true;
		kv_source_put(f->seg, ep->engine.slot, &s);
	}
	for (uint32_t i = 0; i < n; i++)
		if (!has[i]) {
			kv_source_put(f->seg, i, &(struct kv_source){.ranks = 0});
			prefix_unfollow(f->seg, i); /* a notifier that was killed could not */
		}
	free(has);
	publish_senders(f);
}
