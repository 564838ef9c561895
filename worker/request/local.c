#include "worker/request/local.h"

#include <event2/buffer.h>
#include <string.h>

#include "shm/core/heritage.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/request/health.h"
#include "worker/request/models.h"
#include "worker/request/relay.h"
#include "worker/request/req.h"
#include "worker/request/retry_after.h"
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
	int status = locals[req->job.facts.route].fn(req, out);
	size_t n = evbuffer_get_length(out);
	char head[64] = "";

	if (status == 503)
		retry_after_probes_line(req->w, head, sizeof(head));
	relay_reply(req, status, head, strlen(head), locals[req->job.facts.route].type,
		n == 0 ? "" : (char *)evbuffer_pullup(out, -1), n);
	evbuffer_free(out);
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

static int
health(struct req *req, struct evbuffer *out)
{
	const char *name =
		req->job.text->query != NULL && strncmp(req->job.text->query, "pool=", 5) == 0
			? req->job.text->query + 5
			: NULL;

	return health_page(req->w, out, name, name != NULL);
}

static int
ready(struct req *req, struct evbuffer *out)
{
	return health_page(req->w, out, NULL, true);
}

static int
model(struct req *req, struct evbuffer *out)
{
	return model_page(req->w, out, req->job.facts.model);
}

static int
models(struct req *req, struct evbuffer *out)
{
	models_page(req->w, out);
	return 200;
}
