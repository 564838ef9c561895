#include "worker/attempt/background.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/budget.h"
#include "shm/busy.h"
#include "shm/load.h"
#include "shm/tally.h"
#include "shm/view.h"
#include "worker/base/core.h"
#include "worker/net/leg.h"
#include "worker/net/connpool.h"
#include "worker/attempt/attempt.h"

#define BACKGROUND_MAX 256 /* of one worker at once */
#define BACKGROUND_MS 2000 /* time limit of each engine */

/* A request that names KV, until an engine refuses it.  An overload must not be multiplied. */
#define NAME_PERCENT 100 /* such requests of the router, of the client's requests (shm/budget.h) */
#define NAME_ANSWERS 3   /* that are no refusal; then the engine's own lease frees the blocks */
#define PAUSE_FIRST_MS 200 /* the longest pause before the second try; half of it is the shortest */
#define PAUSE_LATER_MS 5000 /* the same before later tries: what broke the first two may be over */
#define SHED_MS                                                                                    \
	1000 /* no engine is asked for that long after its 429 or 503; a pause while there is none */
#define LAST_MS 500 /* no pause that is longer when the worker wants to exit */

enum task {
	TASK_ABORT,   /* the engine ends a request; one try */
	TASK_NAME_KV, /* an engine refuses a request that names KV, and frees the blocks by that */
};

struct background {
	struct leg leg;
	enum task task;
	struct upconn *held;                     /* the attempt's own connection: closed last */
	struct endpoint *to[BACKGROUND_ENGINES]; /* asked in turn, until one has refused properly */
	size_t nto, at;                          /* `at`: who is next */
	uint64_t again_ms;                       /* when the next engine is asked; 0: a leg runs */
	const char *path;
	char *body, *key;

	/* of TASK_NAME_KV alone */
	struct endpoint *holder; /* the prefill engine, whose KV is counted until the end */
	char *attempt;           /* the id of the attempt whose KV is named */
	uint32_t answers;        /* that it may have yet without being understood */
	uint64_t pause_ms;       /* the longest pause before the next try */
	uint64_t until_ms;       /* no try after that */
	uint32_t pool;           /* whose budget it is of */
	TAILQ_ENTRY(background) link;
};

static bool
compose_background(struct leg *leg, struct leg_message *m)
{
	const struct background *e = (const struct background *)leg; /* its first member */
	const struct endpoint *ep = leg->ep;
	const char *key = ep->key_line != NULL ? ep->key_line : e->key;

	m->body_len = strlen(e->body);
	m->segs[0] = (struct splice_seg){e->body, m->body_len};
	m->nsegs = 1;
	m->headers = (struct span){key, strlen(key)}; /* a client's may be longer than m->lines */
	m->nlines = (size_t)snprintf(m->lines, sizeof(m->lines),
		"POST %s%s HTTP/1.1\r\nHost: %s\r\n"
		"Content-Type: application/json\r\nContent-Length: %zu\r\n",
		ep->prefix, e->path, ep->authority, m->body_len);
	return true;
}

static void
end(struct background *e)
{
	struct worker *w = e->leg.w;

	leg_end(&e->leg);
	connpool_drop(w->connpool, &e->held);
	if (e->task == TASK_NAME_KV)
		load_kv(w->seg, w->slot, e->holder->slot, -1);
	TAILQ_REMOVE(&w->background, e, link);
	TAILQ_INSERT_TAIL(&w->ended_background, e, link);
	w->nbackground--;
}

/* No engine has refused: the blocks stay until the engine's own lease is over. */
static void
give_up(struct background *e)
{
	if (e->task == TASK_NAME_KV)
		log_info("KV not released: the engine frees it when its lease ends",
			LOG_S("attempt", e->attempt), LOG_S("url", e->holder->url));
	end(e);
}

static void
ask(struct background *e, struct endpoint *ep)
{
	struct leg *leg = &e->leg;

	e->again_ms = 0;
	leg_rewind(leg);
	leg->ep = ep;
	leg_start(leg);
}

/* Returns true if the engine is up, and has room for all that is known. */
static bool
has_room(const struct seg *seg, const struct endpoint *ep, uint64_t now_ms)
{
	const struct ep_view v = ep_view(seg, ep->slot, now_ms, 0);

	return v.tag == ep->tag && v.state == EP_UP && busy_left(seg, ep->slot, now_ms) == 0 &&
	       now_ms >= tally_shed_ms(seg, ep->slot) + SHED_MS;
}

/* Returns the next engine that may be asked; NULL: none at present. */
static struct endpoint *
next_engine(struct background *e, uint64_t now_ms)
{
	for (size_t i = 0; i < e->nto; i++) {
		struct endpoint *ep = e->to[e->at++ % e->nto];

		if (has_room(e->leg.w->seg, ep, now_ms))
			return ep;
	}
	return NULL;
}

/* A pause of random length, since the requests of an overload fail together. */
static void
pause_for(struct background *e, uint64_t now_ms, uint64_t least_ms)
{
	const uint64_t half = e->pause_ms / 2;

	if (least_ms < half)
		least_ms = half;
	e->again_ms = now_ms + least_ms + arc4random_uniform((uint32_t)half + 1);
	e->pause_ms = PAUSE_LATER_MS;
	if (e->again_ms >= e->until_ms)
		give_up(e);
}

/* Asks an engine, or pauses while none may be asked, or while all workers together have asked as often as they may. */
static void
ask_next(struct background *e)
{
	const uint64_t now_ms = clock_ms();
	struct worker *w = e->leg.w;
	const bool may = budget_left(w->seg, e->pool, BUDGET_RELEASE, NAME_PERCENT, now_ms);
	struct endpoint *ep = may ? next_engine(e, now_ms) : NULL;

	if (ep == NULL) {
		pause_for(e, now_ms, may ? SHED_MS : 0);
		return;
	}
	budget_take(w->seg, w->slot, e->pool, BUDGET_RELEASE, now_ms);
	ask(e, ep);
}

/* The engine has not understood, or has not answered. */
static void
go_on(struct background *e)
{
	const struct endpoint *ep = e->leg.ep;
	struct seg *seg = e->leg.w->seg;

	if ((e->leg.status == 429 || e->leg.status == 503) && ep_tag(seg, ep->slot) == ep->tag)
		tally_shed(seg, ep->slot, clock_ms()); /* all others stay away, too */
	if (e->task == TASK_ABORT || e->leg.w->quit_ms != 0 ||
		(e->leg.status != 0 && --e->answers == 0)) {
		give_up(e);
		return;
	}
	leg_end(&e->leg);
	leg_forget_answer(&e->leg); /* not kept for seconds: the answer has been read */
	pause_for(e, clock_ms(), 0);
}

/* Returns true if the engine itself has refused: not a proxy before it, nor an engine that
 * accepts every model name. */
static bool
understood(const struct background *e)
{
	const int status = e->leg.status;

	if (e->task == TASK_ABORT)
		return status < 500;
	return status >= 400 && status < 500 && status != 401 && status != 403 && status != 429;
}

static void
on_event(struct leg *leg, enum leg_event ev)
{
	struct background *e = (struct background *)leg;

	if (ev == LEG_EV_ANSWER && understood(e))
		end(e);
	else if (ev == LEG_EV_ANSWER || ev == LEG_EV_FAIL)
		go_on(e);
}

/*
 * SGLang up to 0.5.19 treats the close of a stream as the end of its rid without aborting the
 * running request, and drops an abort of an unknown rid.  Therefore the close comes after the
 * abort.
 */
static void
take_conn(struct background *e, struct leg *of)
{
	/* else the engine will never have the whole request: the close is enough */
	if (leg_sent(of))
		e->held = leg_take_conn(of);
}

/* Takes `key` over.  Returns NULL if too many background requests run. */
static struct background *new (
	struct worker *w, enum task task, struct endpoint *const *to, size_t n, char *key)
{
	static const struct leg_ops ops = {.compose = compose_background, .event = on_event};
	struct background *e;

	if (w->nbackground == BACKGROUND_MAX || w->quit_ms != 0) {
		free(key);
		return NULL;
	}
	e = MEM_NEW(struct background);
	e->task = task;
	e->path = task == TASK_ABORT ? "/abort_request" : route_path(ROUTE_COMPLETIONS);
	e->key = key;
	e->leg = (struct leg){.ops = &ops,
		.w = w,
		.keep = true,
		.body_alone = true,
		.connect_ms = BACKGROUND_MS / 2,
		.wait_ms = BACKGROUND_MS / 2};
	for (e->nto = 0; e->nto < n && e->nto < BACKGROUND_ENGINES; e->nto++)
		e->to[e->nto] = connpool_ref(to[e->nto]);
	TAILQ_INSERT_TAIL(&w->background, e, link);
	w->nbackground++;
	return e;
}

static void
abort_one(struct attempt *a, enum role r)
{
	struct leg *of = &a->leg[r];
	struct background *e = new (a->w, TASK_ABORT, &of->ep, 1, job_copy_key(a->branch->job));

	if (e == NULL)
		return;
	/* the engine aborts all ids that begin with this rid: the ids of a batch have a number
	 * at the end */
	e->body = mem_printf("{\"rid\":%s}", a->t.id_json);
	take_conn(e, of);
	metric_add(a->w->slab, M_ABORTS, 1);
	ask(e, e->to[0]);
}

void
background_abort(struct attempt *a)
{
	for (enum role r = 0; r < ROLE_N; r++)
		if (leg_active(&a->leg[r]) && !leg_connecting(&a->leg[r]))
			abort_one(a, r);
}

void
background_refuse(const struct attempt *a, const char *member, struct endpoint *const *to, size_t n)
{
	struct worker *w = a->w;
	struct background *e = new (w, TASK_NAME_KV, to, n, text_copy_key(a->t.of.text));

	if (e == NULL)
		return;
	/* before the attempt ends, so that the KV stays counted */
	e->holder = connpool_ref(a->reserved.of[ROLE_PREFILL].ep);
	load_kv(w->seg, w->slot, e->holder->slot, 1);
	e->attempt = mem_strdup(a->t.id);
	e->pool = a->t.of.facts->pool->id;
	e->answers = NAME_ANSWERS;
	e->pause_ms = PAUSE_FIRST_MS;
	e->until_ms = clock_ms() +
		      /* the engine's own lease frees the blocks then */
		      a->t.of.facts->pool->shake.kv_lease_ms;
	e->body = mem_printf(
		"{\"model\":\"pdrouter-release\",\"prompt\":\"-\",\"max_tokens\":1,\"%s\":%.*s}",
		member, (int)a->t.kv.n, a->t.kv.p);
	metric_add(w->slab, M_KV_RELEASED_DECODE_FAILED, 1);
	ask_next(e);
}

void
background_tick(struct worker *w, uint64_t now_ms)
{
	struct background *e, *next;

	for (e = TAILQ_FIRST(&w->background); e != NULL; e = next) {
		next = TAILQ_NEXT(e, link);
		if (e->again_ms == 0 && e->leg.deadline_ms != 0 && now_ms >= e->leg.deadline_ms)
			go_on(e);
		else if (e->again_ms != 0 && now_ms >= e->again_ms)
			ask_next(e);
	}
}

void
background_hurry(struct worker *w, uint64_t now_ms)
{
	struct background *e;

	TAILQ_FOREACH(e, &w->background, link)
	{
		if (e->until_ms <= now_ms + LAST_MS)
			continue; /* a request to abort as well: it has one try */
		e->until_ms = now_ms + LAST_MS;
		if (e->again_ms != 0)
			e->again_ms = now_ms;
	}
}

void
background_end_all(struct worker *w)
{
	while (!TAILQ_EMPTY(&w->background))
		end(TAILQ_FIRST(&w->background));
}

void
background_reap(struct worker *w)
{
	struct background *e;

	while ((e = TAILQ_FIRST(&w->ended_background)) != NULL) {
		TAILQ_REMOVE(&w->ended_background, e, link);
		leg_fini(&e->leg);
		while (e->nto > 0)
			connpool_unref(w->connpool, &e->to[--e->nto]);
		connpool_unref(w->connpool, &e->holder);
		free(e->body);
		free(e->key);
		free(e->attempt);
		free(e);
	}
}
