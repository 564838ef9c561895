#include "worker/request/health.h"

#include <event2/buffer.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "shm/base/clock.h"
#include "shm/core/seg.h"
#include "shm/eject.h"
#include "shm/load.h"
#include "worker/base/core.h"
#include "worker/request/models.h"
#include "worker/request/table_copy.h"

/* One pool of the page. */
struct shown {
	const struct seg *seg;
	const struct table_copy *t;
	const struct pool_copy *pool;
	const struct health_asked *asked;
	struct evbuffer *out;
};

/* The next endpoint of that role after `ep`, or the first one if `ep` is NULL; NULL: no more. */
static const struct endpoint_copy *
next_endpoint(const struct shown *s, enum role role, const struct endpoint_copy *ep)
{
	const uint32_t pool = (uint32_t)(s->pool - s->t->pools);

	ep = ep == NULL ? s->t->endpoints + s->pool->first : ep + 1;
	for (; ep < s->t->endpoints + s->pool->end; ep++)
		if (ep->pool == pool && ep->role == role)
			return ep;
	return NULL;
}

/* The endpoints of one role. */
struct role_count {
	uint32_t total, up, starting;
	uint64_t groups; /* a bit for each group with one that is up */
};

static struct role_count
count_role(const struct shown *s, enum role role)
{
	struct role_count n = {0};

	for (const struct endpoint_copy *ep = NULL; (ep = next_endpoint(s, role, ep)) != NULL;) {
		const enum ep_state state = ep_state_get(s->seg, ep->slot);

		n.total++;
		n.starting += state == EP_STARTING;
		if (state != EP_UP)
			continue;
		n.groups |= UINT64_C(1) << ep->group_number;
		n.up++;
	}
	return n;
}

/* Begins the object of an endpoint: its address, where that may be shown. */
static void
begin_endpoint(const struct shown *s, const struct endpoint_copy *ep, uint32_t before)
{
	(void)evbuffer_add_printf(s->out, "%s{", before > 0 ? "," : "");
	if (s->asked->no_addresses)
		return;
	(void)evbuffer_add_printf(s->out, "\"endpoint\":");
	page_add_quoted(s->out, s->t->text.p + ep->url);
	(void)evbuffer_add_printf(s->out, ",");
}

static void
add_not_up(const struct shown *s, enum role role)
{
	uint32_t n = 0;

	for (const struct endpoint_copy *ep = NULL; (ep = next_endpoint(s, role, ep)) != NULL;) {
		const enum ep_state state = ep_state_get(s->seg, ep->slot);

		if (state == EP_UP)
			continue;
		begin_endpoint(s, ep, n++);
		(void)evbuffer_add_printf(s->out, "\"state\":\"%s\"}", ep_state_name(state));
	}
}

static void
add_ejected(const struct shown *s, enum role role)
{
	uint32_t n = 0;

	for (const struct endpoint_copy *ep = NULL; (ep = next_endpoint(s, role, ep)) != NULL;) {
		uint64_t left_ms;

		if (eject_read(s->seg, ep->slot, clock_ms(), &left_ms) == EJECT_IN)
			continue;
		begin_endpoint(s, ep, n++);
		(void)evbuffer_add_printf(s->out, "\"left_ms\":%llu}", (unsigned long long)left_ms);
	}
}

/*
 * Whether a request would be served now.  *ret_reason: what else an operator must know; NULL:
 * nothing.
 *
 * Without a prefill engine decode engines serve alone where the pool's `fallback` allows that
 * (go_alone() of worker/schedule/plan.c).  While a prefill engine is STARTING, requests wait for
 * it, and so does a load balancer: a router that has just been started does not give decode engines
 * the prompts of the whole fleet.
 */
static bool
can_serve(const struct pool_copy *pool, const struct role_count of[ROLE_N], const char **ret_reason)
{
	const struct role_count *prefill = &of[ROLE_PREFILL], *decode = &of[ROLE_DECODE];

	*ret_reason = NULL;
	if (decode->up == 0)
		return false;
	if (prefill->up == 0) {
		if (pool->fallback != FALLBACK_DIRECT || prefill->starting > 0)
			return false;
		*ret_reason = "no prefill engine is up: decode engines serve alone (fallback)";
		return true;
	}
	if (pool->pairing != PAIRING_REQUIRE || (prefill->groups & decode->groups) != 0)
		return true;
	*ret_reason = "no group has both roles up";
	return false;
}

/* Returns whether the pool can serve. */
static bool
pool_health(const struct shown *s)
{
	struct role_count of[ROLE_N];
	const char *reason;
	bool ok;

	page_add_quoted(s->out, seg_pool_name(s->seg, s->pool->id));
	(void)evbuffer_add_printf(s->out, ":{");
	for (enum role r = 0; r < ROLE_N; r++) {
		of[r] = count_role(s, r);
		(void)evbuffer_add_printf(s->out, "\"%s\":{\"up\":%u,\"total\":%u,\"not_up\":[",
			role_name(r), of[r].up, of[r].total);
		add_not_up(s, r);
		(void)evbuffer_add_printf(s->out, "],\"ejected\":[");
		add_ejected(s, r);
		(void)evbuffer_add_printf(s->out, "]},");
	}
	ok = can_serve(s->pool, of, &reason);
	if (reason != NULL)
		(void)evbuffer_add_printf(s->out, "\"reason\":\"%s\",", reason);
	(void)evbuffer_add_printf(s->out, "\"can_serve\":%s}", ok ? "true" : "false");
	return ok;
}

int
health_page(struct worker *w, struct evbuffer *out, const struct health_asked *asked)
{
	struct evbuffer *pools = evbuffer_new();
	struct table_copy t;
	struct shown s = {.seg = w->seg, .t = &t, .asked = asked, .out = pools};
	uint32_t shown = 0, ok = 0;
	bool good;

	(void)table_copy_make(w->seg, w->slot, &t);
	for (s.pool = t.pools; s.pool < t.pools + t.npools; s.pool++) {
		if (asked->only != NULL &&
			strcmp(seg_pool_name(w->seg, s.pool->id), asked->only) != 0)
			continue;
		if (shown++ > 0)
			(void)evbuffer_add_printf(pools, ",");
		ok += pool_health(&s);
	}
	table_copy_free(&t);
	good = asked->all ? shown > 0 && ok == shown : ok > 0;
	(void)evbuffer_add_printf(
		out, "{\"status\":\"%s\",\"pools\":{", good ? "ok" : "unavailable");
	(void)evbuffer_add_buffer(out, pools);
	(void)evbuffer_add_printf(out, "}}");
	evbuffer_free(pools);
	if (asked->only != NULL && shown == 0)
		return 404;
	return good ? 200 : 503;
}
