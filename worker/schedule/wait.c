#include "worker/schedule/wait.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/core/heritage.h"
#include "shm/queue.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/schedule/plan.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"
#include "worker/schedule/select.h"

/* --- who it is ----------------------------------------------------------------------------------- */

static const char bad_priority[] = "the priority header is no integer of 32 bits";

/* Digits with or without a sign, and nothing else; false: it is no integer of 32 bits. */
static bool
read_priority(const char *p, size_t n, int32_t *ret)
{
	char text[16], *end;
	long v;

	if (n == 0 || n >= sizeof(text) || strspn(p, "+-0123456789") < n)
		return false;
	memcpy(text, p, n);
	text[n] = '\0';
	v = strtol(text, &end, 10);
	if (end == text || *end != '\0' || v < INT32_MIN || v > INT32_MAX)
		return false;
	*ret = (int32_t)v;
	return true;
}

/* The header goes before the body's member; what is wrong in the member is for the engine to refuse. */
static enum req_end
take_priority(struct req *req, const struct table_pool *tp)
{
	const struct splice_member *m =
		req->job.text->doc != NULL ? splice_find(req->job.text->doc, SK_PRIORITY) : NULL;
	struct span line = {NULL, 0};

	req->priority = 0;
	if (tp->queue.allow_priority == 0)
		return END_OK;
	if (tp->priority_header[0] != '\0')
		line = text_header(req->job.text, tp->priority_header);
	if (line.p != NULL) {
		if (read_priority(line.p, line.n, &req->priority))
			return END_OK;
		req->job.detail = bad_priority;
		return END_UNSUPPORTED;
	}
	if (m != NULL && m->type == ST_NUMBER)
		(void)read_priority(
			req->job.text->doc->text + m->val, m->end - m->val, &req->priority);
	return END_OK;
}

/* Two requests with the same one can be served by the same endpoints: FNV-1a of model and way. */
static uint64_t
queue_key_of(const struct req *req)
{
	uint64_t h = 14695981039346656037ull;
	const bool one = req->job.connector->engines == ENGINES_SINGLE;
	const enum role role = route_single_role(
		req->job.facts.route, req->job.facts.pool.shake.single_engine_role);
	const uint8_t way = one ? (role == ROLE_PREFILL ? 1 : 4) : req->job.direct != NULL ? 2 : 3;

	for (const char *p = req->job.facts.model; *p != '\0'; p++)
		h = (h ^ (uint8_t)*p) * 1099511628211ull;
	h = (h ^ way) * 1099511628211ull;
	return h != 0 ? h : 1;
}

static struct queue_request
ask_of(const struct req *req)
{
	return (struct queue_request){
		.key = req->queue_key, .priority = req->priority, .now_ms = clock_ms()};
}

enum req_end
wait_before(struct req *req, const struct table_pool *tp)
{
	struct queue_request ask;
	enum req_end why;

	if (req->waits) /* unless a reload has moved its model */
		return req->place.pool == tp->id ? END_OK : END_NO_CAPACITY;
	why = take_priority(req, tp);
	if (why != END_OK || tp->queue.size == 0)
		return why;
	req->queue_key = queue_key_of(req);
	ask = ask_of(req);
	if (!queue_ahead(req->w->seg, tp->id, &ask))
		return END_OK;
	req->lacks = 0; /* nobody has looked */
	return END_NO_CAPACITY;
}

/* --- calling ------------------------------------------------------------------------------------- */

/* The eventfd even where it is our own: who is called tries from the loop, not from within others' work. */
static void
call(struct worker *w, uint32_t pool, const struct queue_target *whom)
{
	static const uint64_t one = 1;
	const uint32_t worker = queue_wake(w->seg, pool, whom);

	/* EAGAIN: it is at its maximum, and read soon */
	if (worker != QUEUE_NOBODY)
		(void)!write(w->h->wake_fds[worker], &one, sizeof(one));
}

/* What a release costs while nobody waits: a look at the marks. */
static void
call_any(struct worker *w, uint32_t pool, uint32_t roles, uint64_t key)
{
	if (roles != 0 && queue_any(w->seg, pool))
		call(w, pool, &(struct queue_target){.roles = roles, .key = key});
}

void
wait_released(struct worker *w, uint32_t pool, enum role role)
{
	if (w->planning)
		w->owes |= 1u << role; /* no system call inside a read section: wait_settle() */
	else
		call_any(w, pool, 1u << role, 0);
}

/* --- standing there ------------------------------------------------------------------------------ */

static void
enter(struct req *req, const struct queue_ref *place)
{
	struct worker *w = req->w;
	const uint64_t most_ms = req->job.facts.pool.queue.timeout_ms;
	const uint64_t had_ms =
		req->queued_us / 1000; /* elsewhere: for a pair, before it went alone */

	req->place = *place;
	req->waits = true;
	req->called = 0;
	req->t_queued_us = clock_us();
	req->job.end = END_QUEUE_TIMEOUT;
	req->deadline_ms = clock_ms() + (had_ms < most_ms ? most_ms - had_ms : 0);
	TAILQ_INSERT_TAIL(&w->waiters, req, wait_link);
	metric_add(w->slab, M_QUEUED, 1);
	worker_need_tick(w);
}

/* Seconds after which it is worth to ask again: as long as the one at the head has waited by now. */
static uint32_t
retry_after(const struct req *req)
{
	uint64_t since_ms, ms;

	if (queue_waiting(req->w->seg, req->job.facts.pool.id, &since_ms) == 0)
		return 1;
	ms = clock_ms() - since_ms;
	if (ms > req->job.facts.pool.queue.timeout_ms)
		ms = req->job.facts.pool.queue.timeout_ms;
	return ms <= 1000 ? 1 : (uint32_t)((ms + 999) / 1000);
}

bool
wait_again(struct req *req, enum req_end *why)
{
	struct worker *w = req->w;
	const struct queue_request ask = ask_of(req);
	struct queue_ref place;

	if (req->waits && req->place.pool != req->job.facts.pool.id) {
		wait_leave(req);
		return true;
	}
	if (req->waits && req->hopeless) {
		wait_leave(req);
		return false;
	}
	if (req->waits) { /* it stood there before it tried */
		queue_tried(w->seg, &req->place, req->lacks);
		return false;
	}
	if (req->hopeless || req->job.facts.pool.queue.size == 0)
		return false;
	switch (queue_enqueue(w->seg, w->slot, req->job.facts.pool.id,
		req->job.facts.pool.queue.size, &ask, &place)) {
	case QUEUE_FULL:
		req->retry_after_s = retry_after(req);
		*why = END_QUEUE_FULL;
		return false;
	case QUEUE_FIRST:
		enter(req, &place);
		return true;
	case QUEUE_BEHIND:
		enter(req, &place);
	}
	return false;
}

/* Out of the queue.  The roles it was called for meanwhile. */
static uint32_t
leave(struct req *req)
{
	struct worker *w = req->w;
	const uint64_t us = clock_us() - req->t_queued_us;

	req->waits = false;
	req->queued_us += us;
	TAILQ_REMOVE(&w->waiters, req, wait_link);
	metric_observe(w->slab, req->place.pool, H_QUEUE, us);
	return queue_leave(w->seg, &req->place);
}

void
wait_served(struct req *req, const struct selection *s, uint32_t roles)
{
	struct worker *w = req->w;
	uint32_t called;

	if (!req->waits)
		return;
	req->deadline_ms = 0;
	called = req->called | leave(req);
	w->served = true;
	w->owes |= QUEUE_UNTRIED;
	/*
	 * After it has left: who relied on it either finds it gone, or is found by the call.  Of several places
	 * it was called for one may be of an engine that serves other models.
	 */
	for (enum role role = 0; role < ROLE_N; role++) {
		struct selection any = s[role];

		any.model = TABLE_ANY_MODEL;
		if ((called >> role & 1) != 0 &&
			((roles >> role & 1) == 0 || select_room(&any).free > 0))
			w->owes |= 1u << role;
	}
}

static void
settle(struct worker *w, uint32_t pool, uint64_t key)
{
	const uint32_t owed = w->owes;
	const bool served = w->served;

	w->owes = 0;
	w->served = false;
	call_any(w, pool, owed, served ? key : 0);
}

void
wait_settle(struct worker *w, uint32_t pool)
{
	settle(w, pool, 0);
}

void
wait_settle_for(struct req *req)
{
	settle(req->w, req->job.facts.pool.id, req->queue_key);
}

void
wait_leave(struct req *req)
{
	if (req->waits)
		call_any(req->w, req->place.pool, req->called | leave(req) | QUEUE_UNTRIED,
			req->queue_key);
}

/* --- being called -------------------------------------------------------------------------------- */

/* It was called: it tries, and if it finds nothing the call goes on to others than those like it. */
static void
try(struct req *req)
{
	struct worker *w = req->w;

	req->called = queue_rearm(w->seg, &req->place);
	plan_request(req);
	if (!req->waits)
		return;
	metric_add(w->slab, M_QUEUE_SPURIOUS, 1);
	if (req->called == 0)
		return; /* it has left, passed the call on, and stands there anew */
	call(w, req->place.pool,
		&(struct queue_target){.roles = req->called, .behind = &req->place});
	req->called = 0;
}

bool
wait_late(struct req *req)
{
	if (!req->waits || queue_woken(req->w->seg, &req->place) == 0)
		return false;
	try(req);
	return !req->waits;
}

void
wait_collect(struct worker *w)
{
	struct req *req, *next;

	/* What one does may end it, but no other one: the next stays valid. */
	for (req = TAILQ_FIRST(&w->waiters); req != NULL; req = next) {
		next = TAILQ_NEXT(req, wait_link);
		if (queue_woken(w->seg, &req->place) != 0)
			try(req);
	}
}
