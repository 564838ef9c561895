#include "worker/attempt/leg_span.h"

#include <stdio.h>
#include <stdlib.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "shm/spans.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"

static const enum span_name names[LEG_N] = {
	[LEG_PREFILL] = SPAN_PREFILL, [LEG_DECODE] = SPAN_DECODE, [LEG_LOOKUP] = SPAN_LOOKUP};

struct leg_span {
	uint64_t id; /* 0: no span is open */
	enum span_name name;
	uint64_t from_us, first_us;
	uint64_t until_us; /* 0: the leg is not over */
	int status;
	uint32_t tries;
	char url[SPAN_TEXT_MAX], request_id[REQ_ID_MAX + 1];
};

struct leg_spans {
	struct worker *w;
	struct trace trace;
	struct trace_state *state; /* NULL: none */
	const char *pool;
	uint64_t resume_us; /* since when the stream rests; 0: it does not */
	struct leg_span of[LEG_N];
};

struct leg_spans *
leg_spans_new(struct worker *w, const struct facts *facts)
{
	struct leg_spans *s;

	if (facts->trace->span == 0)
		return NULL;
	s = MEM_NEW(struct leg_spans);
	s->w = w;
	s->trace = *facts->trace;
	if (facts->trace_state != NULL)
		s->state = mem_dup(facts->trace_state, sizeof(*s->state));
	s->pool = facts->pool->name;
	return s;
}

void
leg_spans_free(struct leg_spans **s)
{
	if (*s != NULL)
		free((*s)->state);
	free(*s);
	*s = NULL;
}

void
leg_span_child(const struct trace *trace, const struct trace_state *state, enum span_name name,
	struct span_record *ret)
{
	span_init(ret, name, trace->id);
	ret->head.flags = trace->flags;
	ret->head.parent = trace->span;
	ret->head.id = rnd_u64() | 1; /* not 0 */
	span_text(ret, SA_STATE, state != NULL ? state->text : NULL);
}

/* `why`: NULL if the leg has not failed. */
static void
put_span(struct leg_spans *s, enum leg_kind kind, const struct leg_failure *why)
{
	struct leg_span *leg = &s->of[kind];
	struct span_record r;

	leg_span_child(&s->trace, s->state, leg->name, &r);
	r.head.id = leg->id; /* that the engine was sent */
	r.head.from_us = leg->from_us;
	r.head.until_us = leg->until_us;
	r.head.event_us = leg->name == SPAN_DECODE ? leg->first_us : SPAN_NO_EVENT;
	span_text(&r, SA_URL, leg->url);
	span_text(&r, SA_REQUEST_ID, leg->request_id);
	span_text(&r, SA_POOL, s->pool);
	if (leg->status != 0)
		span_number(&r, SA_STATUS, (uint64_t)leg->status);
	if (leg->tries != 0)
		span_number(&r, SA_RESENDS, leg->tries);
	if (why != NULL) {
		r.head.outcome = SPAN_FAILED;
		span_text(&r, SA_ERROR, why->type);
		span_text(&r, SA_DETAIL, why->detail);
	}
	span_put(s->w->seg, s->w->slot, &r);
	leg->id = 0;
}

/* The stream goes on, or does not: `why` is NULL if it does. */
static void
resumed(struct leg_spans *s, const char *why)
{
	struct span_record r;

	leg_span_child(&s->trace, s->state, SPAN_RESUME, &r);
	r.head.from_us = s->resume_us;
	r.head.until_us = clock_us();
	if (why != NULL) {
		r.head.outcome = SPAN_FAILED;
		span_text(&r, SA_ERROR, why);
	}
	span_put(s->w->seg, s->w->slot, &r);
	s->resume_us = 0;
}

uint64_t
leg_span_begin(struct leg_spans *s, enum leg_kind kind, const struct leg_sent *sent)
{
	struct leg_span *leg;

	if (s == NULL)
		return 0;
	leg = &s->of[kind];
	if (leg->id != 0) { /* decode is sent its request again */
		leg_span_over(s, kind, leg->status);
		put_span(s, kind, NULL);
	}
	*leg = (struct leg_span){.id = rnd_u64() | 1 /* not 0 */,
		.name = sent->releases ? SPAN_RELEASE : names[kind],
		.from_us = clock_us(),
		.tries = sent->tries};
	(void)snprintf(leg->url, sizeof(leg->url), "%s", sent->url);
	(void)snprintf(leg->request_id, sizeof(leg->request_id), "%s", sent->request_id);
	return leg->id;
}

void
leg_span_first(struct leg_spans *s, enum leg_kind kind)
{
	if (s == NULL || s->of[kind].id == 0)
		return;
	s->of[kind].first_us = clock_us();
	if (kind == LEG_DECODE && s->resume_us != 0)
		resumed(s, NULL);
}

void
leg_span_over(struct leg_spans *s, enum leg_kind kind, int status)
{
	if (s == NULL || s->of[kind].id == 0)
		return;
	if (s->of[kind].until_us == 0)
		s->of[kind].until_us = clock_us();
	s->of[kind].status = status;
}

void
leg_span_failed(struct leg_spans *s, enum leg_kind kind, const struct leg_failure *why)
{
	if (s == NULL || s->of[kind].id == 0)
		return;
	leg_span_over(s, kind, why->status);
	put_span(s, kind, why);
}

void
leg_spans_resume(struct leg_spans *s)
{
	if (s != NULL)
		s->resume_us = clock_us();
}

void
leg_spans_end(struct leg_spans *s)
{
	static const struct leg_failure cut = {"cancelled", "the router ended the leg", 0};

	if (s == NULL)
		return;
	for (enum leg_kind k = 0; k < LEG_N; k++) {
		if (s->of[k].id == 0)
			continue;
		if (s->of[k].until_us == 0)
			leg_span_failed(s, k, &cut);
		else
			put_span(s, k, NULL);
	}
	if (s->resume_us != 0)
		resumed(s, "not_resumed");
}
