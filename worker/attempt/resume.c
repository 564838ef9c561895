#include "worker/attempt/resume.h"

#include <stdlib.h>
#include <string.h>

#include "proto/answer/follow.h"
#include "proto/json/json_small.h"
#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/request/limit.h"
#include "worker/request/relay.h"
#include "worker/request/request.h"

struct resume {
	struct follow *follow;
	struct membuf options; /* stream_options */
	struct membuf made;    /* of a batch of events */
	struct membuf last;    /* the event that ended a leg */

	struct text *text; /* the client's own; NULL: it will not be needed */
	struct text *next; /* whose body asks for the rest */
	size_t counted;    /* bytes of the answer so far, by buffered_add() */
};

void
resume_plan(struct req *req)
{
	const bool chat = req->facts.route == ROUTE_CHAT;
	struct resume *r;

	if (req->resume != NULL || req->facts.pool.rescue.resume == 0 || !req->facts.stream ||
		req->text->doc == NULL || (!chat && req->facts.route != ROUTE_COMPLETIONS))
		return;
	req->not_resumed =
		req->nbranches > 1 ? "several_choices" : follow_refuses(req->text->doc, chat);
	if (req->not_resumed != NULL)
		return;
	req->resume = r = MEM_NEW(struct resume);
	r->text = text_ref(req->text);
	r->follow = follow_new(req->text->doc, chat, req->w->conf->max_answer);
	follow_options(req->text->doc, &r->options);
}

static void
count_text(struct req *req, size_t now)
{
	struct resume *r = req->resume;

	buffered_add(req->w, (int64_t)now - (int64_t)r->counted);
	r->counted = now;
}

/* What is kept of streams is not to keep new requests out. */
static void
give_way(struct req *req)
{
	if (req->w->buffered > req->w->conf->max_buffered / 2)
		follow_give_up(req->resume->follow, "no_room");
}

void
resume_free(struct req *req)
{
	struct resume *r = req->resume;

	if (r == NULL)
		return;
	count_text(req, 0);
	follow_free(&r->follow);
	membuf_free(&r->options);
	membuf_free(&r->made);
	membuf_free(&r->last);
	text_unref(&r->text);
	text_unref(&r->next);
	free(r);
	req->resume = NULL;
}

bool
resume_follows(const struct req *req, const struct leg *leg)
{
	return req->resume != NULL && leg->sse && leg->status == 200;
}

struct span
resume_options(const struct req *req)
{
	return (struct span){req->resume->options.p, req->resume->options.n};
}

#define MADE_KEPT (64u << 10) /* bytes of its buffer that a stream keeps for its next events */

bool
resume_events(struct req *req, struct membuf *out)
{
	struct resume *r = req->resume;
	size_t at = 0, n;
	int got = FOLLOW_OK;

	r->made.n = 0;
	while (got == FOLLOW_OK && (n = sse_next(out->p + at, out->n - at)) > 0) {
		got = follow_event(r->follow, out->p + at, n, &r->made);
		if (got != FOLLOW_OK) {
			r->last.n = 0;
			membuf_add(&r->last, out->p + at, n);
		}
		at += n;
	}
	out->n = 0;
	membuf_add(out, r->made.p, r->made.n);
	if (r->made.cap > MADE_KEPT)
		membuf_free(&r->made);
	give_way(req);
	count_text(req, follow_kept(r->follow));
	if (follow_why_not(r->follow) != NULL)
		text_unref(&r->text); /* for good */
	return got == FOLLOW_OK;
}

bool
resume_engine_message(const struct req *req, char *buf, size_t size)
{
	const struct membuf *last = &req->resume->last;

	buf[0] = '\0';
	return last->n > 5 && memcmp(last->p, "data:", 5) == 0 &&
	       json_error_message(last->p + 5, last->n - 5, buf, size);
}

void
resume_keep(struct req *req)
{
	struct resume *r = req->resume;

	give_way(req);
	if (follow_why_not(r->follow) != NULL)
		text_unref(&r->text);
	else
		text_drop_doc(r->text);
}

/* --- an engine has died -------------------------------------------------------------------------- */

bool
resume_may(struct req *req)
{
	if (req->facts.pool.rescue.resume == 0)
		return false;
	if (req->resume != NULL)
		req->not_resumed = follow_why_not(req->resume->follow);
	if (req->resume != NULL && req->not_resumed == NULL)
		return true;
	if (!req->resume_refused && req->not_resumed != NULL)
		metric_add(req->w->slab, M_RESUME_REFUSED, 1);
	req->resume_refused = req->not_resumed != NULL;
	return false;
}

bool
resume_finish(struct req *req)
{
	struct follow *f = req->resume->follow;
	struct membuf out = {NULL, 0, 0};

	if (!follow_complete(f))
		return false;
	req->rescue = RESCUE_RESUME;
	follow_finish(f, &out);
	if (out.n > 0)
		relay_events(req, out.p, out.n);
	membuf_free(&out);
	if (req->state != REQ_DONE) {
		relay_end_events(req);
		req_end(req, END_OK);
	}
	return true;
}

bool
resume_prepare(struct req *req)
{
	struct resume *r = req->resume;
	struct membuf body = {NULL, 0, 0};

	if (r->text->doc == NULL)
		(void)text_scan(r->text); /* it was good before */
	follow_next(r->follow, r->text->doc, &body);
	text_unref(&r->next);
	r->next = text_with_body(r->text, body.p, body.n);
	return text_scan(r->next) == NULL; /* members may be too many by now */
}

void
resume_go(struct req *req)
{
	struct resume *r = req->resume;

	free(req->key);
	req->key = NULL;
	text_unref(&req->text);
	req->text = r->next;
	r->next = NULL;
	req->rescue = RESCUE_RESUME;
}
