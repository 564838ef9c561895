#include "worker/request/local.h"

#include <event2/buffer.h>
#include <event2/event_struct.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "worker/base/core.h"
#include "worker/base/lines.h"
#include "worker/base/text.h"
#include "worker/request/client.h"
#include "worker/request/cors.h"
#include "worker/request/exposition_form.h"
#include "worker/request/health.h"
#include "worker/request/models.h"
#include "worker/request/relay.h"
#include "worker/request/req.h"
#include "worker/request/retry_after.h"
#include "worker/request/stats.h"
#include "worker/request/status_page.h"
#include "worker/request/status_stream.h"

typedef int local_fn(struct req *, struct evbuffer *); /* returns the status */
static local_fn live, health, ready, models, model, version;

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
	[ROUTE_VERSION] = { version, "application/json" },
};
/* clang-format on */

static void
answer(struct req *req, int status, const char *type, struct evbuffer *out)
{
	const size_t n = evbuffer_get_length(out);
	char head[64] = "";

	if (status == 503)
		retry_after_probes_line(req->w, head, sizeof(head));
	relay_reply(req, status, head, strlen(head), type,
		n == 0 ? "" : (char *)evbuffer_pullup(out, -1), n);
}

/* --- /metrics, in pieces ------------------------------------------------------------------------- */

struct local_page {
	struct req *req;
	void (*written)(struct req *req);
	struct event next;
	struct stats stats;
	struct evbuffer *piece;
	bool begun; /* fact: a piece has been sent */
};

/* One piece in a turn of the loop; an answer to HEAD ends with the first.  Returns true if the answer is complete. */
static bool
put_piece(struct local_page *page)
{
	const bool rest = stats_more(&page->stats, page->piece);
	const bool more = rest && !page->req->head_only;
	const struct page_kind kind = {exposition_type(page->req->form), ""};

	if (!rest && !page->begun) {
		answer(page->req, 200, kind.type, page->piece);
		return true;
	}
	relay_piece(page->req, &kind,
		(struct span){
			(char *)evbuffer_pullup(page->piece, -1), evbuffer_get_length(page->piece)},
		!more);
	(void)evbuffer_drain(page->piece, evbuffer_get_length(page->piece));
	page->begun = true;
	return !more;
}

/* A client that has not taken the last piece has no turn before local_drained(). */
static void
wait_for_turn(struct local_page *page)
{
	const struct timeval at_once = {0};

	if (!client_full(page->req->client))
		(void)event_add(&page->next, &at_once);
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct local_page *page = arg;

	(void)fd;
	(void)what;
	if (put_piece(page))
		page->written(page->req);
	else
		wait_for_turn(page);
}

static bool
begin_stats(struct req *req, void (*written)(struct req *req))
{
	struct local_page *page = MEM_NEW(struct local_page);

	page->req = req;
	page->written = written;
	page->piece = evbuffer_new();
	stats_begin(&page->stats, req->w, req->form);
	event_assign(&page->next, req->w->base, -1, 0, on_turn, page);
	req->page = page;
	if (put_piece(page))
		return true;
	wait_for_turn(page);
	return false;
}

void
local_drained(struct req *req)
{
	if (req->page != NULL) /* else it views the status */
		wait_for_turn(req->page);
}

void
local_end(struct req *req)
{
	struct local_page *page = req->page;

	status_stream_leave(req);
	req->page = NULL;
	if (page == NULL)
		return;
	(void)event_del(&page->next);
	stats_end(&page->stats);
	evbuffer_free(page->piece);
	free(page);
}

/* --- all other pages ----------------------------------------------------------------------------- */

static void
answer_preflight(struct req *req)
{
	char head[CORS_LINES_MAX];
	struct lines l = {head, sizeof(head), 0};

	cors_preflight_lines(&req->cors, &l);
	relay_reply(req, 204, head, l.n, NULL, "", 0);
}

bool
local_answer(struct req *req, void (*written)(struct req *req))
{
	const enum route route = req->job.facts.route;
	struct evbuffer *out;

	if (route == ROUTE_METRICS)
		return begin_stats(req, written);
	if (route == ROUTE_PREFLIGHT) {
		answer_preflight(req);
		return true;
	}
	if (route == ROUTE_STATUS_EVENTS)
		return status_stream_answer(req, written);
	if (route_is_status(route)) {
		status_page_answer(req);
		return true;
	}
	out = evbuffer_new();
	answer(req, locals[route].fn(req, out), locals[route].type, out);
	evbuffer_free(out);
	return true;
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

/* Operators have an address of their own, and this is another one. */
static bool
is_for_clients_only(const struct req *req)
{
	return req->w->conf->nadmin_listen > 0 && req->client->from.door == DOOR_CLIENTS;
}

static int
health(struct req *req, struct evbuffer *out)
{
	const char *name =
		req->job.text->query != NULL && strncmp(req->job.text->query, "pool=", 5) == 0
			? req->job.text->query + 5
			: NULL;

	return health_page(req->w, out,
		&(struct health_asked){.only = name,
			.all = name != NULL,
			.no_addresses = is_for_clients_only(req)});
}

static int
ready(struct req *req, struct evbuffer *out)
{
	return health_page(req->w, out,
		&(struct health_asked){.all = true, .no_addresses = is_for_clients_only(req)});
}

static int
model(struct req *req, struct evbuffer *out)
{
	return model_page(req, out, req->job.facts.model);
}

static int
models(struct req *req, struct evbuffer *out)
{
	models_page(req, out);
	return 200;
}
