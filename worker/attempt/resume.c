#include "worker/attempt/resume.h"

#include <stdlib.h>
#include <string.h>

#include "proto/answer/follow.h"
#include "proto/json/json_small.h"
#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/attempt/job.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/net/leg.h"

struct resume {
	struct follow *follow;
	struct membuf options; /* stream_options */
	struct membuf made;    /* of a batch of events */
	struct membuf last;    /* the event that ended a leg */

	struct text *text; /* the client's own; NULL: not needed any more */
	struct text *next; /* its body is the request for the rest */
	size_t counted;    /* bytes of the answer so far, by buffered_add() */
};

void
resume_plan(struct job *job)
{
	const bool chat = job->facts.route == ROUTE_CHAT;
	struct resume *r;

	if (job->resume != NULL || job->facts.pool->rescue.resume == 0 || !job->facts.stream ||
		job->text->doc == NULL || (!chat && job->facts.route != ROUTE_COMPLETIONS))
		return;
	job->not_resumed =
		job->nbranches > 1 ? "several_choices" : follow_refuses(job->text->doc, chat);
	if (job->not_resumed != NULL)
		return;
	job->resume = r = MEM_NEW(struct resume);
	r->text = text_ref(job->text);
	r->follow = follow_new(job->text->doc, chat, job->w->conf->live.max_answer);
	follow_options(job->text->doc, &r->options);
	job->stream_options = (struct span){r->options.p, r->options.n};
}

static void
count_text(struct job *job, size_t now)
{
	struct resume *r = job->resume;

	buffered_add(job->w, (int64_t)now - (int64_t)r->counted);
	r->counted = now;
}

/* Drops the kept text of the stream if the workers store too much: new requests have
 * precedence. */
static void
give_way(struct job *job)
{
	if (buffered_by_all(job->w) > job->w->conf->live.max_buffered / 2)
		follow_give_up(job->resume->follow, "no_room");
}

void
resume_free(struct job *job)
{
	struct resume *r = job->resume;

	if (r == NULL)
		return;
	count_text(job, 0);
	follow_free(&r->follow);
	membuf_free(&r->options);
	membuf_free(&r->made);
	membuf_free(&r->last);
	text_unref(&r->text);
	text_unref(&r->next);
	free(r);
	job->resume = NULL;
}

bool
resume_follows(const struct job *job, const struct leg *leg)
{
	return job->resume != NULL && leg->sse && leg->status == 200;
}

#define MADE_KEPT (64u << 10) /* bytes of its buffer that a stream keeps for its next events */

void
resume_take_buffer(struct job *job, struct membuf *ret)
{
	*ret = job->resume->made;
	ret->n = 0;
	job->resume->made = (struct membuf){NULL, 0, 0};
}

void
resume_keep_buffer(struct job *job, struct membuf *buf)
{
	if (job->resume == NULL || buf->cap > MADE_KEPT)
		return;
	job->resume->made = *buf;
	*buf = (struct membuf){NULL, 0, 0};
}

bool
resume_event(struct job *job, const char *event, size_t n, struct membuf *out)
{
	struct resume *r = job->resume;

	if (follow_event(r->follow, event, n, out) == FOLLOW_OK)
		return true;
	r->last.n = 0;
	membuf_add(&r->last, event, n);
	return false;
}

void
resume_followed(struct job *job)
{
	struct resume *r = job->resume;

	give_way(job);
	count_text(job, follow_kept(r->follow));
	if (follow_why_not(r->follow) != NULL)
		text_unref(&r->text); /* the stream cannot be resumed any more */
}

bool
resume_events(struct job *job, struct membuf *out)
{
	struct resume *r = job->resume;
	size_t at = 0, n;
	bool on = true;

	r->made.n = 0;
	while (on && (n = sse_next(out->p + at, out->n - at)) > 0) {
		on = resume_event(job, out->p + at, n, &r->made);
		at += n;
	}
	out->n = 0;
	membuf_add(out, r->made.p, r->made.n);
	if (r->made.cap > MADE_KEPT)
		membuf_free(&r->made);
	resume_followed(job);
	return on;
}

bool
resume_engine_message(const struct job *job, char *buf, size_t size)
{
	const struct membuf *last = &job->resume->last;

	buf[0] = '\0';
	return last->n > 5 && memcmp(last->p, "data:", 5) == 0 &&
	       json_error_message(last->p + 5, last->n - 5, buf, size);
}

void
resume_keep(struct job *job)
{
	struct resume *r = job->resume;

	give_way(job);
	if (follow_why_not(r->follow) != NULL)
		text_unref(&r->text);
	else if (r->text->refs == 1) /* else a detached attempt makes a request of the members */
		text_drop_doc(r->text);
}

/* --- an engine has died -------------------------------------------------------------------------- */

bool
resume_may(struct job *job)
{
	if (job->facts.pool->rescue.resume == 0)
		return false;
	if (job->resume != NULL)
		job->not_resumed = follow_why_not(job->resume->follow);
	if (job->resume != NULL && job->not_resumed == NULL)
		return true;
	if (!job->resume_refused && job->not_resumed != NULL)
		metric_add(job->w->slab, M_RESUME_REFUSED, 1);
	job->resume_refused = job->not_resumed != NULL;
	return false;
}

bool
resume_finish(struct job *job)
{
	struct follow *f = job->resume->follow;
	struct membuf out = {NULL, 0, 0};

	if (!follow_complete(f))
		return false;
	job->rescue = RESCUE_RESUME;
	follow_finish(f, &out);
	if (out.n > 0)
		job->ops->events(job, out.p, out.n);
	membuf_free(&out);
	job->ops->end_events(job);
	job->ops->end(job, END_OK);
	return true;
}

bool
resume_prepare(struct job *job)
{
	struct resume *r = job->resume;
	struct membuf body = {NULL, 0, 0};

	if (r->text->doc == NULL)
		(void)text_scan(r->text); /* the body was parsed before without an error */
	follow_next(r->follow, r->text->doc, &body);
	text_unref(&r->next);
	r->next = text_with_body(r->text, body.p, body.n);
	return text_scan(r->next) == NULL; /* members may be too many by now */
}

void
resume_go(struct job *job)
{
	struct resume *r = job->resume;

	free(job->key);
	job->key = NULL;
	text_unref(&job->text);
	job->text = r->next;
	r->next = NULL;
	job->rescue = RESCUE_RESUME;
}
