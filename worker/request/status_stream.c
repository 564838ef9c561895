#include "worker/request/status_stream.h"

#include <event2/event_struct.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/request/client.h"
#include "worker/request/key.h"
#include "worker/request/relay.h"
#include "worker/request/req.h"
#include "worker/request/status_sample.h"

#define BEHIND_MOST                                                                                \
	5 /* samples that a viewer may miss in a row, because it has not read the last one */

struct status_viewer {
	struct req *req;
	void (*over)(struct req *req);
	uint64_t number; /* of the names that it has: status_sample_number() */
	uint32_t behind;
	TAILQ_ENTRY(status_viewer) link;
};

TAILQ_HEAD(viewer_list, status_viewer);

struct status_stream {
	struct worker *w;
	struct viewer_list viewers;
	struct status_sample *sample; /* while there are viewers */
	struct event tick, step;
	bool sampling; /* a sample is being made */
};

/* --- what viewers get --------------------------------------------------------------------------- */

static void
put_out(struct req *req, struct span text, bool last)
{
	static const char head[] = "Cache-Control: no-store\r\n"
				   "Cross-Origin-Resource-Policy: same-origin\r\n"
				   "X-Content-Type-Options: nosniff\r\n"
				   "X-Accel-Buffering: no\r\n";

	relay_piece(req, &(struct page_kind){"text/event-stream", head}, text, last);
}

/* At most one sample is queued for a viewer. */
static void
show(struct status_viewer *v, const struct status_sample *s)
{
	if (client_full(v->req->client)) {
		v->behind++;
		return;
	}
	v->behind = 0;
	if (v->number != status_sample_number(s)) {
		v->number = status_sample_number(s);
		put_out(v->req, status_sample_fleet(s), false);
	}
	put_out(v->req, status_sample_now(s), false);
}

/* A viewer that does not read is closed. */
static void
drop_if_slow(struct status_viewer *v)
{
	if (v->behind < BEHIND_MOST)
		return;
	client_end(v->req->client);
}

/* --- once a second ------------------------------------------------------------------------------ */

static void
take_step_soon(struct status_stream *st)
{
	static const struct timeval at_once = {0};

	st->sampling = true;
	(void)event_add(&st->step, &at_once);
}

static void
on_step(evutil_socket_t fd, short what, void *arg)
{
	struct status_stream *st = arg;
	struct status_viewer *v, *next;

	(void)fd;
	(void)what;
	if (status_sample_step(st->sample)) {
		take_step_soon(st);
		return;
	}
	st->sampling = false;
	for (v = TAILQ_FIRST(&st->viewers); v != NULL; v = next) {
		next = TAILQ_NEXT(v, link);
		show(v, st->sample);
		drop_if_slow(v);
	}
}

/* The stream has its proper end: the page asks again, and another worker answers. */
static void
end_if_over(struct status_viewer *v)
{
	if (v->req->w->phase != WORKER_DRAINS && key_is_good(v->req))
		return;
	put_out(v->req, (struct span){"", 0}, true);
	v->over(v->req);
}

void
status_stream_tick(struct status_stream *st)
{
	struct status_viewer *v, *next;

	for (v = TAILQ_FIRST(&st->viewers); v != NULL; v = next) {
		next = TAILQ_NEXT(v, link);
		end_if_over(v);
	}
	if (TAILQ_EMPTY(&st->viewers) || st->sampling)
		return;
	status_sample_begin(st->sample);
	take_step_soon(st);
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	status_stream_tick(arg);
}

/* --- viewers come and go ------------------------------------------------------------------------ */

static struct status_stream *
stream_of(struct worker *w)
{
	struct status_stream *st = w->status;

	if (st != NULL)
		return st;
	w->status = st = MEM_NEW(struct status_stream);
	st->w = w;
	TAILQ_INIT(&st->viewers);
	event_assign(&st->tick, w->base, -1, EV_PERSIST, on_tick, st);
	event_assign(&st->step, w->base, -1, 0, on_step, st);
	return st;
}

static void
begin(struct status_stream *st)
{
	static const struct timeval second = {.tv_sec = 1};

	st->sample = status_sample_new(st->w);
	(void)event_add(&st->tick, &second);
	take_step_soon(st);
}

static void
finish(struct status_stream *st)
{
	(void)event_del(&st->tick);
	(void)event_del(&st->step);
	status_sample_free(&st->sample);
	st->sampling = false;
}

static bool
join(struct status_stream *st, struct req *req, void (*over)(struct req *req))
{
	struct status_viewer *v;

	worker_gauge(req->w, G_STATUS_VIEWERS, 1);
	if (metric_gauge_settled(req->w->seg, G_STATUS_VIEWERS) > STATUS_VIEWERS) {
		worker_gauge(req->w, G_STATUS_VIEWERS, -1);
		return false;
	}
	v = MEM_NEW(struct status_viewer);
	v->req = req;
	v->over = over;
	req->viewer = v;
	if (TAILQ_EMPTY(&st->viewers))
		begin(st);
	TAILQ_INSERT_TAIL(&st->viewers, v, link);
	put_out(req, (struct span){": viewing\n\n", 11}, false); /* the head goes out now */
	if (status_sample_number(st->sample) != 0)
		show(v, st->sample);
	return true;
}

bool
status_stream_answer(struct req *req, void (*over)(struct req *req))
{
	static const char head[] = "Retry-After: 10\r\n";
	static const char full[] =
		"{\"error\":{\"message\":\"as many view the status as may\",\"type\":"
		"\"service_unavailable\",\"param\":null,\"code\":\"too_many_viewers\"}}";

	if (req->head_only)
		put_out(req, (struct span){"", 0}, true);
	else if (join(stream_of(req->w), req, over))
		return false;
	else
		relay_reply(req, 503, head, sizeof(head) - 1, "application/json", full,
			sizeof(full) - 1);
	return true;
}

void
status_stream_leave(struct req *req)
{
	struct status_viewer *v = req->viewer;
	struct status_stream *st = req->w->status;

	req->viewer = NULL;
	if (v == NULL)
		return;
	TAILQ_REMOVE(&st->viewers, v, link);
	free(v);
	worker_gauge(req->w, G_STATUS_VIEWERS, -1);
	if (TAILQ_EMPTY(&st->viewers))
		finish(st);
}

void
status_stream_free(struct status_stream **pst)
{
	free(*pst);
	*pst = NULL;
}
