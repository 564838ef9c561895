#include "worker/attempt/resume.h"

#include <stdlib.h>
#include <string.h>

#include "proto/answer/follow.h"
#include "proto/json/json_small.h"
#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/base/core.h"
#include "worker/request/limit.h"
#include "worker/request/relay.h"
#include "worker/request/request.h"

struct resume {
	struct follow *follow;
	struct membuf options; /* stream_options */
	struct membuf made;    /* of a batch of events */
	struct membuf last;    /* the event that ended a leg */

	/* the client's, while the request has none (resume_keep()) or that for the rest */
	char *body, *fwd;
	size_t body_len, body_cap, fwd_len;
	size_t text; /* bytes of it that are counted (limit_buffer()), as body_cap is */

	char *next; /* the body that asks for the rest */
	size_t next_len;
	struct splice *next_doc;
};

static bool
scan(struct splice **ret, const char *text, size_t n)
{
	const char *why;
	size_t at;

	*ret = mem_resize(NULL, 1, sizeof(**ret));
	if (splice_scan(*ret, text, n, &why, &at) == 0)
		return true;
	free(*ret);
	*ret = NULL;
	return false;
}

void
resume_plan(struct req *req)
{
	const bool chat = req->route == ROUTE_CHAT;
	struct resume *r;

	if (req->resume != NULL || req->pool.rescue.resume == 0 || !req->stream ||
		req->doc == NULL || (!chat && req->route != ROUTE_COMPLETIONS))
		return;
	req->not_resumed = req->npairs > 1 ? "several_choices" : follow_refuses(req->doc, chat);
	if (req->not_resumed != NULL)
		return;
	req->resume = r = MEM_NEW(struct resume);
	r->follow = follow_new(req->doc, chat, req->w->conf->max_answer);
	follow_options(req->doc, &r->options);
}

static void
drop_kept(struct req *req)
{
	struct resume *r = req->resume;

	limit_buffer(req->w, -(int64_t)r->body_cap);
	free(r->body);
	free(r->fwd);
	r->body = r->fwd = NULL;
	r->body_cap = 0;
}

static void
count_text(struct req *req, size_t now)
{
	struct resume *r = req->resume;

	limit_buffer(req->w, (int64_t)now - (int64_t)r->text);
	r->text = now;
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
	drop_kept(req);
	free(r->next);
	free(r->next_doc);
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
		if (got != FOLLOW_OK)
			membuf_add(&r->last, out->p + at, n);
		at += n;
	}
	out->n = 0;
	membuf_add(out, r->made.p, r->made.n);
	if (r->made.cap > MADE_KEPT)
		membuf_free(&r->made);
	give_way(req);
	count_text(req, follow_kept(r->follow));
	if (follow_why_not(r->follow) != NULL)
		drop_kept(req); /* for good */
	return got == FOLLOW_OK;
}

bool
resume_last_words(const struct req *req, char *buf, size_t size)
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
		return;
	if (r->body == NULL) { /* else the request's is that for the rest */
		r->body = req->body;
		r->body_len = req->body_len;
		r->body_cap = req->body_cap;
		req->body = NULL;
		req->body_cap = 0;
	}
	r->fwd = req->fwd;
	r->fwd_len = req->fwd_len;
	req->fwd = NULL;
}

/* --- an engine has died -------------------------------------------------------------------------- */

bool
resume_may(struct req *req)
{
	if (req->pool.rescue.resume == 0)
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
	req->resumed = true;
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

/* The request is as it was before its bytes were dropped. */
static void
bring_back(struct req *req)
{
	struct resume *r = req->resume;

	if (req->fwd != NULL)
		return; /* they have not been: the leg had not been heard */
	req->fwd = r->fwd;
	req->fwd_len = r->fwd_len;
	req->body = r->body;
	req->body_len = r->body_len;
	req->body_cap = r->body_cap;
	r->fwd = r->body = NULL;
	r->body_cap = 0;
	free(req->key);
	req->key = NULL;
	(void)scan(&req->doc, req->body, req->body_len); /* it was good before */
}

bool
resume_prepare(struct req *req)
{
	struct resume *r = req->resume;
	struct membuf text = {NULL, 0, 0};
	struct splice *doc;

	bring_back(req);
	doc = req->doc;
	if (r->body != NULL) /* the request's is one for the rest itself */
		(void)scan(&doc, r->body, r->body_len);
	follow_next(r->follow, doc, &text);
	if (doc != req->doc)
		free(doc);
	free(r->next);
	free(r->next_doc);
	r->next = text.p;
	r->next_len = text.n;
	return scan(&r->next_doc, r->next, r->next_len); /* members may be too many by now */
}

void
resume_go(struct req *req)
{
	struct resume *r = req->resume;

	if (r->body == NULL) {
		r->body = req->body;
		r->body_len = req->body_len;
		r->body_cap = req->body_cap;
	} else {
		limit_buffer(req->w, -(int64_t)req->body_cap);
		free(req->body);
	}
	free(req->doc);
	req->body = r->next;
	req->body_len = req->body_cap = r->next_len;
	limit_buffer(req->w, (int64_t)req->body_cap);
	req->doc = r->next_doc;
	r->next = NULL;
	r->next_doc = NULL;
	r->last.n = 0;
	req->resumed = true;
}
