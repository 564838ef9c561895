#include "master/fleet/kv_sources.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/rows.h"
#include "shm/base/mem.h"
#include "shm/kv_events.h"
#include "shm/load.h"
#include "shm/prefix.h"

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
	return s;
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
}
