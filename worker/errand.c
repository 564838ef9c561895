#include "worker/errand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/core.h"
#include "worker/leg.h"
#include "worker/pool.h"
#include "worker/req.h"

#define ERRANDS_MAX 256 /* of one worker at once */
#define ERRAND_MS 2000  /* for each engine that is asked */
#define ERRAND_MORE (ERRAND_ENGINES - 1)

struct errand {
	struct leg leg;
	struct upconn *held;                  /* the request's own connection: closed last */
	struct upstream *others[ERRAND_MORE]; /* asked where the first one fails */
	const char *path;
	char *body, *key;
	TAILQ_ENTRY(errand) link;
};

static bool
compose(struct leg *leg, struct leg_message *m)
{
	const struct errand *e = (const struct errand *)leg; /* its first member */
	const struct upstream *up = leg->up;

	m->body_len = strlen(e->body);
	m->segs[0] = (struct splice_seg){e->body, m->body_len};
	m->nsegs = 1;
	m->headers = (struct span){e->key, strlen(e->key)};
	m->nlines = (size_t)snprintf(m->lines, sizeof(m->lines),
		"POST %s%s HTTP/1.1\r\nHost: %s\r\n"
		"Content-Type: application/json\r\nContent-Length: %zu\r\n",
		up->prefix, e->path, up->authority, m->body_len);
	return true;
}

static void
end(struct errand *e)
{
	struct worker *w = e->leg.w;

	leg_end(&e->leg);
	pool_drop(w->pool, &e->held);
	TAILQ_REMOVE(&w->errands, e, link);
	TAILQ_INSERT_TAIL(&w->ended_errands, e, link);
	w->nerrands--;
}

/* Another engine is asked the same; false: there is none. */
static bool
ask_other(struct errand *e)
{
	struct leg *leg = &e->leg;

	for (size_t i = 0; i < ERRAND_MORE; i++) {
		if (e->others[i] == NULL)
			continue;
		leg_rewind(leg);
		pool_unref(leg->w->pool, &leg->up);
		leg->up = e->others[i];
		e->others[i] = NULL;
		leg_start(leg);
		return true;
	}
	return false;
}

static void
on_event(struct leg *leg, enum leg_event ev)
{
	struct errand *e = (struct errand *)leg;

	if (ev != LEG_EV_ANSWER && ev != LEG_EV_FAIL)
		return;
	if (ev == LEG_EV_ANSWER && leg->status < 500)
		end(e);
	else if (!ask_other(e))
		end(e);
}

/*
 * SGLang up to 0.5.19 takes the close of a stream for the end of its rid, without aborting what runs, and
 * drops an abort of a rid it does not know: so the close comes after the word.
 */
static void
hold(struct errand *e, struct leg *of)
{
	if (!leg_sent(of))
		return; /* it will never be read whole: closing says it all */
	e->held = of->uc;
	of->uc = NULL;
	e->held->leg = NULL;
	sock_read_stop(&e->held->sock);
}

/* NULL: too many are under way. */
static struct errand *new (const struct req *req, struct upstream *to, const char *path)
{
	static const struct leg_ops ops = {.compose = compose, .event = on_event};
	struct worker *w = req->w;
	struct errand *e;

	if (w->nerrands == ERRANDS_MAX || w->quit_ms != 0)
		return NULL;
	e = MEM_NEW(struct errand);
	e->path = path;
	e->key = req_copy_key(req);
	e->leg = (struct leg){.ops = &ops,
		.w = w,
		.kind = LEG_ERRAND,
		.keep = true,
		.up = pool_ref(to),
		.connect_ms = ERRAND_MS / 2,
		.wait_ms = ERRAND_MS / 2};
	TAILQ_INSERT_TAIL(&w->errands, e, link);
	w->nerrands++;
	return e;
}

void
errand_abort(struct worker *w, struct leg *of)
{
	struct errand *e = new (of->pair->req, of->up, "/abort_request");

	if (e == NULL)
		return;
	/* the engine takes it for all ids that begin so: those of a batch have a number behind */
	e->body = mem_printf("{\"rid\":%s}", of->pair->id_json);
	hold(e, of);
	metric_add(w->slab, M_ABORTS, 1);
	leg_start(&e->leg);
}

void
errand_refuse(const struct pair *pair, const char *member, struct upstream *const *to, size_t n)
{
	struct worker *w = pair->req->w;
	struct errand *e = n == 0 ? NULL : new (pair->req, to[0], route_path(ROUTE_COMPLETIONS));

	if (e == NULL)
		return;
	for (size_t i = 1; i < n && i <= ERRAND_MORE; i++)
		e->others[i - 1] = pool_ref(to[i]);
	e->body = mem_printf(
		"{\"model\":\"pdrouter-release\",\"prompt\":\"-\",\"max_tokens\":1,\"%s\":%.*s}",
		member, (int)pair->kv.n, pair->kv.p);
	metric_add(w->slab, M_KV_RELEASED_DECODE_FAILED, 1);
	leg_start(&e->leg);
}

void
errand_tick(struct worker *w, uint64_t now_ms)
{
	struct errand *e, *next;

	for (e = TAILQ_FIRST(&w->errands); e != NULL; e = next) {
		next = TAILQ_NEXT(e, link);
		if (e->leg.deadline_ms != 0 && now_ms >= e->leg.deadline_ms && !ask_other(e))
			end(e);
	}
}

void
errand_end_all(struct worker *w)
{
	while (!TAILQ_EMPTY(&w->errands))
		end(TAILQ_FIRST(&w->errands));
}

void
errand_reap(struct worker *w)
{
	struct errand *e;

	while ((e = TAILQ_FIRST(&w->ended_errands)) != NULL) {
		TAILQ_REMOVE(&w->ended_errands, e, link);
		leg_fini(&e->leg);
		for (size_t i = 0; i < ERRAND_MORE; i++)
			if (e->others[i] != NULL)
				pool_unref(w->pool, &e->others[i]);
		free(e->body);
		free(e->key);
		free(e);
	}
}
