#include "worker/request/local.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "proto/json/splice.h"
#include "shm/base/clock.h"
#include "shm/eject.h"
#include "shm/core/heritage.h"
#include "shm/load.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/request/relay.h"
#include "worker/request/request.h"
#include "worker/request/stats.h"

typedef int local_fn(struct req *, struct evbuffer *); /* returns the status */
static local_fn live, health, ready, models, model, version, metrics;

/* clang-format off */
static const struct {
	local_fn *fn;
	const char *type;
} locals[ROUTE_N] = {
	[ROUTE_MODELS] = { models, "application/json" },
	[ROUTE_MODEL] = { model, "application/json" },
	[ROUTE_LIVE] = { live, "application/json" },
	[ROUTE_HEALTH] = { health, "application/json" },
	[ROUTE_READY] = { ready, "application/json" },
	[ROUTE_METRICS] = { metrics, "text/plain; version=0.0.4; charset=utf-8" },
	[ROUTE_VERSION] = { version, "application/json" },
};
/* clang-format on */

void
local_answer(struct req *req)
{
	struct evbuffer *out = evbuffer_new();
	int status = locals[req->facts.route].fn(req, out);
	size_t n = evbuffer_get_length(out);

	relay_reply(req, status, NULL, 0, locals[req->facts.route].type,
		n == 0 ? "" : (char *)evbuffer_pullup(out, -1), n);
	evbuffer_free(out);
}

static void
add_quoted(struct evbuffer *out, const char *s)
{
	char buf[1600]; /* 256 bytes, every one escaped as \u00xx */

	if (json_quote(buf, sizeof(buf), s, strlen(s), 256) != -1)
		(void)evbuffer_add_printf(out, "%s", buf);
}

static int
live(struct req *req, struct evbuffer *out)
{
	(void)req;
	(void)evbuffer_add_printf(out, "{\"status\":\"ok\"}");
	return 200;
}

static int
version(struct req *req, struct evbuffer *out)
{
	(void)evbuffer_add_printf(out, "{\"version\":\"%s\"}", req->w->h->version);
	return 200;
}

static int
metrics(struct req *req, struct evbuffer *out)
{
	stats_page(req->w, out);
	return 200;
}

/* How many are up, and in *groups their groups. */
static uint32_t
count_up(const struct seg *seg, const struct table_pool *p, enum role role, uint64_t *groups)
{
	uint32_t up = 0;

	*groups = 0;
	for (uint32_t i = 0; i < p->n[role]; i++) {
		if (ep_state_get(seg, p->picks[role][i].slot) != EP_UP)
			continue;
		*groups |= UINT64_C(1) << p->picks[role][i].group;
		up++;
	}
	return up;
}

/* Up, but left alone by requests for a while. */
static void
add_ejected(struct evbuffer *out, const struct seg *seg, const struct table *t,
	const struct table_pool *p, enum role role)
{
	(void)evbuffer_add_printf(out, "],\"ejected\":[");
	for (uint32_t i = 0, k = 0; i < p->n[role]; i++) {
		const struct table_endpoint *ep = &t->endpoints[p->picks[role][i].endpoint];
		uint64_t left_ms;

		if (eject_look(seg, ep->slot, clock_ms(), &left_ms) == EJECT_IN)
			continue;
		(void)evbuffer_add_printf(out, "%s{\"endpoint\":", k++ > 0 ? "," : "");
		add_quoted(out, ep->url);
		(void)evbuffer_add_printf(out, ",\"left_ms\":%llu}", (unsigned long long)left_ms);
	}
}

/* One pool: what is up and what is missing.  Returns whether it can serve. */
static bool
pool_health(const struct seg *seg, const struct table *t, const struct table_pool *p,
	struct evbuffer *out)
{
	uint64_t groups[ROLE_N];
	bool ok = true, paired;

	add_quoted(out, p->name);
	(void)evbuffer_add_printf(out, ":{");
	for (enum role r = 0; r < ROLE_N; r++) {
		uint32_t up = count_up(seg, p, r, &groups[r]);

		ok = ok && up > 0;
		(void)evbuffer_add_printf(out, "\"%s\":{\"up\":%u,\"total\":%u,\"not_up\":[",
			role_name(r), up, p->n[r]);
		for (uint32_t i = 0, k = 0; i < p->n[r]; i++) {
			const struct table_endpoint *ep = &t->endpoints[p->picks[r][i].endpoint];
			enum ep_state st = ep_state_get(seg, ep->slot);

			if (st == EP_UP)
				continue;
			(void)evbuffer_add_printf(out, "%s{\"endpoint\":", k++ > 0 ? "," : "");
			add_quoted(out, ep->url);
			(void)evbuffer_add_printf(out, ",\"state\":\"%s\"}", ep_state_name(st));
		}
		add_ejected(out, seg, t, p, r);
		(void)evbuffer_add_printf(out, "]},");
	}
	paired = p->pairing != PAIRING_REQUIRE || (groups[ROLE_PREFILL] & groups[ROLE_DECODE]) != 0;
	if (ok && !paired)
		(void)evbuffer_add_printf(out, "\"reason\":\"no group has both roles up\",");
	ok = ok && paired;
	(void)evbuffer_add_printf(out, "\"can_serve\":%s}", ok ? "true" : "false");
	return ok;
}

/* All pools, or the one named; `all`: every one of them must be able to serve. */
static int
health_body(struct req *req, struct evbuffer *out, const char *only, bool all)
{
	struct worker *w = req->w;
	struct evbuffer *pools = evbuffer_new();
	const struct table *t = rcu_enter(w->seg, w->slot);
	uint32_t shown = 0, ok = 0;
	bool good;

	for (uint32_t i = 0; t != NULL && i < t->npools; i++) {
		if (only != NULL && strcmp(t->pools[i].name, only) != 0)
			continue;
		if (shown++ > 0)
			(void)evbuffer_add_printf(pools, ",");
		ok += pool_health(w->seg, t, &t->pools[i], pools);
	}
	rcu_leave(w->seg, w->slot);
	good = all ? shown > 0 && ok == shown : ok > 0;
	(void)evbuffer_add_printf(
		out, "{\"status\":\"%s\",\"pools\":{", good ? "ok" : "unavailable");
	(void)evbuffer_add_buffer(out, pools);
	(void)evbuffer_add_printf(out, "}}");
	evbuffer_free(pools);
	if (only != NULL && shown == 0)
		return 404;
	return good ? 200 : 503;
}

static int
health(struct req *req, struct evbuffer *out)
{
	const char *name = req->text->query != NULL && strncmp(req->text->query, "pool=", 5) == 0
				   ? req->text->query + 5
				   : NULL;

	return health_body(req, out, name, name != NULL);
}

static int
ready(struct req *req, struct evbuffer *out)
{
	return health_body(req, out, NULL, true);
}

static void
add_model(struct evbuffer *out, const struct table *t, const char *name)
{
	(void)evbuffer_add_printf(out, "{\"id\":");
	add_quoted(out, name);
	(void)evbuffer_add_printf(out,
		",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"pdrouter\",\"root\":",
		(unsigned long long)t->created_s);
	add_quoted(out, name);
	(void)evbuffer_add_printf(out, ",\"parent\":null}");
}

static int
model(struct req *req, struct evbuffer *out)
{
	struct worker *w = req->w;
	const struct table *t = rcu_enter(w->seg, w->slot);
	uint32_t number;
	bool known = t != NULL && table_pool_by_model(t, req->facts.model, &number) != NULL;

	if (known)
		add_model(out, t, req->facts.model);
	rcu_leave(w->seg, w->slot);
	if (known)
		return 200;
	(void)evbuffer_add_printf(out,
		"{\"error\":{\"message\":\"The model does not exist.\","
		"\"type\":\"not_found_error\",\"param\":null,\"code\":\"model_not_found\"}}");
	return 404;
}

static int
models(struct req *req, struct evbuffer *out)
{
	struct worker *w = req->w;
	const struct table *t = rcu_enter(w->seg, w->slot);
	uint32_t n = 0;

	(void)evbuffer_add_printf(out, "{\"object\":\"list\",\"data\":[");
	for (uint32_t i = 0; t != NULL && i < t->npools; i++)
		for (uint32_t k = 0; k < t->pools[i].nmodels; k++) {
			uint32_t number;

			if (table_pool_by_model(t, t->pools[i].models[k], &number) != &t->pools[i])
				continue; /* learned by two pools: the first serves it */
			if (n++ > 0)
				(void)evbuffer_add_printf(out, ",");
			add_model(out, t, t->pools[i].models[k]);
		}
	rcu_leave(w->seg, w->slot);
	(void)evbuffer_add_printf(out, "]}");
	return 200;
}
