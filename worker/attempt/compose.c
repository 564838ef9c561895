#include "worker/attempt/compose.h"

#include <assert.h>
#include <string.h>

#include "shm/base/clock.h"
#include "shm/restart.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/failover.h"
#include "worker/base/core.h"
#include "worker/handshake/edit.h"
#include "worker/net/connpool.h"

/* Without printf, which would cost 4,000 instructions; this code runs twice per request.
 * ROUTE_QUERY_MAX and the limits of configured texts bound the length. */
static void
put(struct leg_message *m, const char *text)
{
	const size_t n = strlen(text);

	assert(m->nlines + n <= sizeof(m->lines));
	memcpy(m->lines + m->nlines, text, n);
	m->nlines += n;
}

static void
put_path(struct leg_message *m, const struct facts *f)
{
	const char *path = route_path(f->route);
	const size_t rest = route_rest(f->route);

	if (rest == 0) {
		put(m, path);
		return;
	}
	memcpy(m->lines + m->nlines, path, rest);
	m->nlines += rest;
	put(m, f->response);
	put(m, route_after(f->route));
}

static void
put_number(struct leg_message *m, size_t number)
{
	char text[24], *p = text + sizeof(text) - 1;

	*p = '\0';
	do
		*--p = (char)('0' + number % 10);
	while ((number /= 10) != 0);
	put(m, p);
}

/* `path`: NULL for the client's own. */
static void
lines(struct leg *leg, struct leg_message *m, const char *method, const char *path,
	const char *query)
{
	const struct attempt *a = leg->owner;
	const enum leg_kind kind = attempt_leg_kind(a, leg);

	m->nlines = 0;
	put(m, method);
	put(m, " ");
	put(m, leg->ep->prefix);
	if (path != NULL)
		put(m, path);
	else
		put_path(m, a->t.of.facts);
	if (query != NULL) {
		put(m, "?");
		put(m, query);
	}
	put(m, " HTTP/1.1\r\nHost: ");
	put(m, leg->ep->authority);
	put(m, "\r\nContent-Length: ");
	put_number(m, m->body_len);
	put(m, "\r\nX-Request-Id: ");
	put(m, a->t.id);
	if (kind != LEG_LOOKUP && a->t.rank[kind] >= 0) {
		put(m, "\r\nX-data-parallel-rank: ");
		put_number(m, (size_t)a->t.rank[kind]);
	}
	put(m, "\r\n");
	m->headers = (struct span){a->t.of.text->headers, a->t.of.text->headers_len};
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
	if (a->life == ATTEMPT_DETACHED) {
		attempt_end(a); /* the blocks are free by now */
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
