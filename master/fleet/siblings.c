#include "master/fleet/siblings.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <stdlib.h>

#include "master/fleet/endpoint.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/siblings.h"
#include "shm/prefix.h"
#include "shm/table.h"

void
siblings_publish(const struct fleet *f)
{
	const struct table *t = rcu_current(f->writer);
	const uint32_t n = f->seg->hdr->max_endpoints;
	bool *has;

	if (f->seg->hdr->sibling_bytes == 0)
		return;
	has = mem_array(n, sizeof(*has));
	for (uint32_t i = 0; i < t->nendpoints; i++) {
		const struct table_endpoint *e = &t->endpoints[i];
		const struct table_pool *p = &t->pools[e->pool];

		sibling_engine_put(
			f->seg, e->slot, sibling_id(e->url, e->role, p->name), prefix_row_of(p));
		has[e->slot] = true;
	}
	for (uint32_t i = 0; i < n; i++)
		if (!has[i])
			sibling_engine_put(f->seg, i, 0, 0);
	free(has);
}

static bool
read_other(const struct fleet *f, size_t i, struct sibling *ret)
{
	if (f->conf == NULL || f->seg->hdr->sibling_bytes == 0 || i >= f->conf->nsiblings_routers)
		return false;
	sibling_get(f->seg, (uint32_t)i, ret);
	if (ret->address !=
		sibling_hash(f->conf->siblings_routers[i])) /* its notifier begins yet */
		*ret = (struct sibling){.silent = 1};
	return true;
}

static const char *
state_of(const struct sibling *o)
{
	if (o->own != 0)
		return "own";
	return o->silent == 0 ? "connected" : "silent";
}

void
siblings_print(const struct fleet *f, struct evbuffer *out)
{
	struct sibling o;

	for (size_t i = 0; read_other(f, i, &o); i++) {
		(void)evbuffer_add_printf(
			out, "router %s: %s", f->conf->siblings_routers[i], state_of(&o));
		if (o.own == 0 && o.at_ms != 0)
			(void)evbuffer_add_printf(out,
				" %" PRIu64 "ms ago, lag %.1fms, prompts %" PRIu64
				", loads %" PRIu64 ", of unknown engines %" PRIu64
				", missed messages %" PRIu64,
				clock_ms() - o.at_ms, (double)o.lag_us / 1000, o.notes, o.loads,
				o.unknown, o.missed);
		if (o.refused != 0)
			(void)evbuffer_add_printf(out, ", refused messages %" PRIu64, o.refused);
		(void)evbuffer_add_printf(out, "\n");
	}
}

/* An address is an IP literal with a port, which needs no escape. */
void
siblings_json(const struct fleet *f, struct evbuffer *out)
{
	struct sibling o;

	(void)evbuffer_add_printf(out, "[");
	for (size_t i = 0; read_other(f, i, &o); i++)
		(void)evbuffer_add_printf(out,
			"%s{\"address\":\"%s\",\"state\":\"%s\",\"ms_ago\":%lld,\"lag_us\":%" PRIu64
			",\"messages\":%" PRIu64 ",\"prompts\":%" PRIu64 ",\"loads\":%" PRIu64
			",\"unknown\":%" PRIu64 ",\"missed\":%" PRIu64 ",\"refused\":%" PRIu64 "}",
			i > 0 ? "," : "", f->conf->siblings_routers[i], state_of(&o),
			o.at_ms != 0 ? (long long)(clock_ms() - o.at_ms) : -1, o.lag_us, o.messages,
			o.notes, o.loads, o.unknown, o.missed, o.refused);
	(void)evbuffer_add_printf(out, "]");
}
