#include "worker/attempt/compose.h"

#include "shm/base/clock.h"
#include "shm/base/rnd.h"
#include "shm/restart.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/failover.h"
#include "worker/attempt/leg_span.h"
#include "worker/base/core.h"
#include "worker/base/lines.h"
#include "worker/handshake/edit.h"
#include "worker/net/connpool.h"

static void
put_path(struct lines *l, const struct facts *f)
{
	const char *path = route_path(f->route);
	const size_t rest = route_rest(f->route);

	if (rest == 0) {
		lines_put(l, path);
		return;
	}
	lines_add(l, path, rest);
	lines_put(l, f->response);
	lines_put(l, route_after(f->route));
}

/* Each request to an engine is a span of its own. */
static void
put_trace(struct lines *l, struct attempt *a, enum leg_kind kind)
{
	const struct trace *t = a->t.of.facts->trace;
	const struct leg_sent leg = {.url = a->leg[kind].ep->url,
		.request_id = a->t.id,
		.tries = a->branch == NULL ? 0 : a->branch->job->tries,
		.releases = a->life == ATTEMPT_DETACHED};
	char parent[TRACE_PARENT];

	trace_write(t, a->spans != NULL ? leg_span_begin(a->spans, kind, &leg) : rnd_u64(), parent);
	lines_put(l, "\r\ntraceparent: ");
	lines_add(l, parent, sizeof(parent));
}

/* `path`: NULL for the client's own. */
static void
lines(struct leg *leg, struct leg_message *m, const char *method, const char *path,
	const char *query)
{
	struct attempt *a = leg->owner;
	const enum leg_kind kind = attempt_leg_kind(a, leg);
	struct lines l = {m->lines, sizeof(m->lines), 0};

	lines_put(&l, method);
	lines_put(&l, " ");
	lines_put(&l, leg->ep->prefix);
	if (path != NULL)
		lines_put(&l, path);
	else
		put_path(&l, a->t.of.facts);
	if (query != NULL) {
		lines_put(&l, "?");
		lines_put(&l, query);
	}
	lines_put(&l, " HTTP/1.1\r\nHost: ");
	lines_put(&l, leg->ep->authority);
	lines_put(&l, "\r\nContent-Length: ");
	lines_number(&l, m->body_len);
	lines_put(&l, "\r\nX-Request-Id: ");
	lines_put(&l, a->t.id);
	if (kind != LEG_LOOKUP && a->t.rank[kind] >= 0) {
		lines_put(&l, "\r\nX-data-parallel-rank: ");
		lines_number(&l, (uint64_t)a->t.rank[kind]);
	}
	if (a->t.of.facts->trace->id[0] != '\0')
		put_trace(&l, a, kind);
	lines_put(&l, "\r\n");
	if (leg->ep->key_line != NULL)
		lines_put(&l, leg->ep->key_line);
	m->nlines = l.n;
	m->headers = text_lines(a->t.of.text, leg->ep->key_line == NULL);
}

static void
body(const struct text *text, const struct splice_edit *e, struct leg_message *m)
{
	if (text->doc != NULL) {
		m->nsegs = splice_layout(text->doc, e, m->segs, &m->body_len);
		return;
	}
	m->segs[0] = (struct splice_seg){text->body, text->body_len};
	m->nsegs = text->body_len > 0;
	m->body_len = text->body_len;
}

static bool
compose_lookup(struct leg *leg, struct leg_message *m)
{
	struct attempt *a = leg->owner;
	const struct lookup *l = &a->what;
	struct splice_edit e;

	if (l->edit != NULL) {
		edit_strip(&a->t, &e);
		l->edit(&a->t, &e);
		body(a->t.of.text, &e, m);
	}
	lines(leg, m, l->edit != NULL ? "POST" : "GET", l->path, NULL);
	return true;
}

/* Returns true if the engine that holds the blocks has begun another life since. */
static bool
kv_died(const struct attempt *a)
{
	const struct endpoint *p = a->reserved.of[ROLE_PREFILL].ep;

	return p != NULL && a->kv_life != restart_life(a->w->seg, p->slot);
}

/* Returns true if the blocks are gone, or if their lease would be over or nearly over: they may
 * belong to another prompt when decode reads them. */
static bool
kv_too_old(const struct attempt *a)
{
	return a->t.connector->info->kv_leased && attempt_kv_handed(a) &&
	       (kv_died(a) || attempt_kv_lease_over(a));
}

/*
 * The KV parameters are too old.  Returns true if decode is sent its request without them, and prefills by itself: a
 * decode engine of a connector with leases can (decode_alone).
 */
static bool
goes_without_kv(struct attempt *a)
{
	if (a->branch == NULL) { /* detached */
		attempt_end(a);  /* the blocks are free by now */
		return false;
	}
	if (a->kind == ATTEMPT_PREFILL_AGAIN)
		a->branch->job->detail =
			"the KV parameters became too old twice: the decode engine prefills";
	else if (failover_prefill_again(a))
		return false;
	a->t.kv = (struct span){NULL, 0};
	attempt_set_kv(a, KV_NONE); /* the blocks are free by now */
	return true;
}

bool
compose_leg(struct leg *leg, struct leg_message *m)
{
	struct attempt *a = leg->owner;
	const enum leg_kind kind = attempt_leg_kind(a, leg);
	const struct connector *c = a->t.connector;
	const enum role role = (enum role)kind;
	const char *path = NULL;
	struct splice_edit e;

	if (a->branch != NULL) /* the limit of the answer begins */
		a->branch->job->ops->look(a->branch->job);
	if (kind == LEG_LOOKUP)
		return compose_lookup(leg, m);
	if (a->life == ATTEMPT_SERVING && connpool_is_down(a->w->connpool, leg->ep)) {
		leg_fail(leg, LEG_FAIL_DOWN); /* it went down while prefill or a lookup worked */
		return false;
	}
	if (role == ROLE_DECODE && kv_too_old(a) && !goes_without_kv(a))
		return false;
	m->once = true; /* the engine would see its id, and its room, twice */
	edit_leg(&a->t, role, &e);
	body(a->t.of.text, &e, m);
	if (c->path != NULL)
		path = c->path(&a->t, role);
	lines(leg, m, route_method(a->t.of.facts->route), path, a->t.of.text->query);
	reservation_sent(a->w, &a->reserved.of[role]);
	if (role == ROLE_PREFILL) {
		a->timing.prefill_us = clock_us();
		if (a->branch != NULL && a->branch->job->t_prefill_us == 0)
			a->branch->job->t_prefill_us = a->timing.prefill_us;
		return true;
	}
	a->decode_sends++;
	attempt_begin_limit(a);
	if (c->info->cleanup == CLEANUP_KV && (attempt_kv_handed(a) || a->t.kv.n > 0)) {
		if (a->kv == KV_HELD)
			attempt_set_kv(a, KV_DELIVERED);
		else if (a->kv == KV_NONE)
			attempt_set_kv(a, KV_PREDICTED);
	}
	if (a->life == ATTEMPT_DETACHED) {
		a->release_sent = true;
		metric_add(a->w->slab, a->released_as, 1);
	}
	return true;
}
