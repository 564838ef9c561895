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

/* How many are up; a bit for each group with one of them in *ret_groups. */
static uint32_t
count_up(const struct shown *s, enum role role, uint32_t *ret_total, uint64_t *ret_groups)
{
	uint32_t up = 0;

	*ret_groups = 0;
	*ret_total = 0;
	for (const struct endpoint_copy *ep = NULL; (ep = next_endpoint(s, role, ep)) != NULL;) {
		++*ret_total;
		if (ep_state_get(s->seg, ep->slot) != EP_UP)
			continue;
		*ret_groups |= UINT64_C(1) << ep->group_number;
		up++;
	}
	return up;
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

/* Returns whether the pool can serve. */
static bool
pool_health(const struct shown *s)
{
	uint64_t groups[ROLE_N];
	bool ok = true, paired;

	page_add_quoted(s->out, seg_pool_name(s->seg, s->pool->id));
	(void)evbuffer_add_printf(s->out, ":{");
	for (enum role r = 0; r < ROLE_N; r++) {
		uint32_t total;
		const uint32_t up = count_up(s, r, &total, &groups[r]);

		ok = ok && up > 0;
		(void)evbuffer_add_printf(s->out, "\"%s\":{\"up\":%u,\"total\":%u,\"not_up\":[",
			role_name(r), up, total);
		add_not_up(s, r);
		(void)evbuffer_add_printf(s->out, "],\"ejected\":[");
		add_ejected(s, r);
		(void)evbuffer_add_printf(s->out, "]},");
	}
	paired = s->pool->pairing != PAIRING_REQUIRE ||
		 (groups[ROLE_PREFILL] & groups[ROLE_DECODE]) != 0;
	if (ok && !paired)
		(void)evbuffer_add_printf(s->out, "\"reason\":\"no group has both roles up\",");
	ok = ok && paired;
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
