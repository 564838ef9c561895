#include "worker/attempt/pair.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "shm/base/clock.h"
#include "shm/base/rnd.h"
#include "shm/load.h"
#include "worker/base/core.h"
#include "worker/attempt/errand.h"
#include "worker/attempt/exchange.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"

/* A text made for a body, in the pair's list. */
struct made {
	struct made *next;
	char text[];
};

static bool compose(struct leg *leg, struct leg_message *m);
static void on_event(struct leg *leg, enum leg_event ev);
static void on_payload(struct leg *leg, const struct span *pieces, size_t n, bool done);

static const struct leg_ops ops = {.compose = compose, .event = on_event, .payload = on_payload};

/* --- life ---------------------------------------------------------------------------------------- */

static void
leg_ready(struct leg *leg, struct pair *pair, enum leg_kind kind)
{
	const struct req *req = pair->req;
	const struct conf_timeouts *t = &req->facts.pool.timeouts;

	leg->ops = &ops;
	leg->w = req->w;
	leg->pair = pair;
	leg->kind = kind;
	leg->keep = kind != LEG_DECODE;
	leg->connect_ms = t->connect_ms;
	leg->wait_ms = kind == LEG_DECODE ? t->decode_ms
		       : kind == LEG_ASK && req->connector->asks_again
			       ? req->facts.pool.shake.learn_ms
			       : t->prefill_ms;
	/* an answer that is not streamed comes in one piece: its silence is the engine's work */
	leg->first_ms = kind == LEG_DECODE && req->facts.stream ? t->first_byte_ms : 0;
	leg->wait_each = kind == LEG_DECODE;
}

static void
pair_ready(struct pair *pair)
{
	pair->first_token = -1;
	for (enum role r = 0; r < ROLE_N; r++) {
		pair->starts[r] = pair->req->connector->starts[r];
		pair->rank[r] = -1;
	}
	for (enum leg_kind k = 0; k < LEG_PAIR_N; k++)
		leg_ready(&pair->leg[k], pair, k);
	sse_init(&pair->sse);
}

enum role
pair_role(const struct leg *leg)
{
	const struct req *req = leg->pair->req;

	if (req->connector == &connector_one_leg)
		return route_single_role(
			req->facts.route, req->facts.pool.shake.single_engine_role);
	return (enum role)leg->kind;
}

void
pair_make(struct req *req, uint32_t n)
{
	pair_free(req);
	req->pairs = mem_array(n, sizeof(*req->pairs));
	req->npairs = n;
	for (uint32_t i = 0; i < n; i++) {
		req->pairs[i].req = req;
		req->pairs[i].index = i;
		pair_ready(&req->pairs[i]);
	}
}

void
pair_drop_texts(struct pair *pair)
{
	struct made *m;

	while ((m = pair->made) != NULL) {
		pair->made = m->next;
		free(m);
	}
	pair->tokens = pair->prompt = pair->kv = (struct span){NULL, 0};
	leg_forget_answer(&pair->leg[LEG_ASK]);
	leg_forget_answer(&pair->leg[LEG_PREFILL]);
}

void
pair_fini(struct pair *pair)
{
	pair_ask_over(pair);
	pair_disarm(pair);
	for (enum leg_kind k = 0; k < LEG_PAIR_N; k++)
		leg_fini(&pair->leg[k]);
	pair_drop_texts(pair);
	membuf_free(&pair->event);
}

void
pair_free(struct req *req)
{
	for (uint32_t i = 0; i < req->npairs; i++)
		pair_fini(&req->pairs[i]);
	free(req->pairs);
	req->pairs = NULL;
	req->npairs = 0;
}

void
pair_renew(struct pair *pair)
{
	struct pair next = {.req = pair->req,
		.index = pair->index,
		.attempt = pair->attempt + 1,
		.prompt = pair->prompt,
		.seed = pair->seed,
		.seeded = pair->seeded};

	pair_fini(pair);
	*pair = next;
	pair_ready(pair);
}

struct pair *
pair_scratch(struct req *req)
{
	struct pair *pair = MEM_NEW(struct pair);

	pair->req = req;
	pair_ready(pair);
	return pair;
}

void
pair_scratch_free(struct pair **pair)
{
	pair_fini(*pair);
	free(*pair);
	*pair = NULL;
}

enum req_end
pair_begin(struct pair *pair)
{
	const struct connector *c = pair->req->connector;

	pair_new_id(pair);
	pair_next_ranks(pair);
	if (c->ask != NULL && c->asks_again)
		pair->ask_deadline_ms = clock_ms() + pair->req->facts.pool.shake.learn_ms;
	return c->begin != NULL ? c->begin(pair) : END_OK;
}

void
pair_adopt(struct pair *pair, enum role role, struct pair *from)
{
	struct leg *leg = &pair->leg[role];

	leg_fini(leg);
	*leg = from->leg[role];
	leg->pair = pair;
	leg->lender = NULL;
	leg->borrowed = false;
	leg->fresh = pair->attempt > 0; /* kept ones may be as dead as the first attempt's */
	from->leg[role] = (struct leg){.w = leg->w, .state = LEG_DONE};
}

void
pair_move(struct pair *to, struct pair *from)
{
	struct req *req = to->req;

	*to = *from;
	to->req = req;
	to->index = 0;
	for (enum leg_kind k = 0; k < LEG_PAIR_N; k++)
		leg_moved(&to->leg[k], to);
	if (to->armed)
		req->w->waiting[to->flag.slot] = to;
	*from = (struct pair){.req = from->req,
		.index = from->index,
		.attempt = from->attempt + 1,
		.prompt = from->prompt,
		.seed = from->seed,
		.seeded = from->seeded};
	pair_ready(from);
	memcpy(from->id, to->id, sizeof(from->id)); /* for the log, as is: */
	for (enum role r = 0; r < ROLE_N; r++) {
		from->leg[r].state = LEG_DONE;
		from->leg[r].ep = to->leg[r].ep == NULL ? NULL : connpool_ref(to->leg[r].ep);
	}
}

bool
pair_waits_for_prefill(const struct pair *pair)
{
	return pair->req->needs_prefill && !pair->prefilled;
}

/* --- texts and ids ------------------------------------------------------------------------------- */

struct span
pair_text(struct pair *pair, const char *fmt, ...)
{
	va_list ap;
	struct made *m;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	m = mem_resize(NULL, 1, sizeof(*m) + (size_t)n + 1);
	va_start(ap, fmt);
	(void)vsnprintf(m->text, (size_t)n + 1, fmt, ap);
	va_end(ap);
	m->next = pair->made;
	pair->made = m;
	return (struct span){m->text, (size_t)n};
}

/* By hand, as twice per request: printf would be a hundredth of its cost. */
void
pair_set_id(struct pair *pair, const char *id, size_t n)
{
	assert(n <= PAIR_ID_MAX);
	/* clients' ids come without quotes and backslashes, everything else is ours */
	memcpy(pair->id, id, n);
	pair->id[n] = '\0';
	pair->id_json[0] = '"';
	memcpy(pair->id_json + 1, id, n);
	memcpy(pair->id_json + 1 + n, "\"", 2);
}

void
pair_new_id(struct pair *pair)
{
	char id[REQ_ID_MAX + 17];
	size_t n = strlen(pair->req->facts.id);

	memcpy(id, pair->req->facts.id, n);
	id[n] = '-';
	rnd_hex16(id + n + 1, rnd_u64());
	pair_set_id(pair, id, n + 17);
}

void
pair_next_rank(struct pair *pair, enum role role)
{
	struct endpoint *ep = pair->leg[role].ep;

	pair->rank[role] = -1;
	if (ep != NULL && ep->dp_ranks > 0)
		pair->rank[role] = (int32_t)(ep->next_rank++ % ep->dp_ranks);
}

void
pair_next_ranks(struct pair *pair)
{
	for (enum role r = 0; r < ROLE_N; r++)
		pair_next_rank(pair, r);
}

/* --- notices ------------------------------------------------------------------------------------- */

bool
pair_arm(struct pair *pair, uint8_t notices, char ret_id[FLAG_ID_LEN])
{
	struct worker *w = pair->req->w;

	if (!flag_arm(w->flags, notices, &pair->flag))
		return false;
	pair->armed = true;
	w->waiting[pair->flag.slot] = pair;
	metric_gauge_add(w->slab, G_FLAGS_ARMED, 1);
	flag_id_format(&pair->flag, ret_id);
	return true;
}

void
pair_disarm(struct pair *pair)
{
	struct worker *w = pair->req->w;

	if (!pair->armed)
		return;
	pair->armed = false;
	pair->kv_deadline_ms = 0;
	w->waiting[pair->flag.slot] = NULL;
	metric_gauge_add(w->slab, G_FLAGS_ARMED, -1);
	flag_free(w->flags, &pair->flag);
}

/* --- what is sent -------------------------------------------------------------------------------- */

static void
lines(struct leg *leg, struct leg_message *m, const char *method, const char *path,
	const char *query)
{
	const struct pair *pair = leg->pair;
	const struct endpoint *ep = leg->ep;
	char rank[64] = "";
	int n;

	if (leg->kind != LEG_ASK && pair->rank[leg->kind] >= 0)
		(void)snprintf(
			rank, sizeof(rank), "X-data-parallel-rank: %d\r\n", pair->rank[leg->kind]);
	n = snprintf(m->lines, sizeof(m->lines),
		"%s %s%s%s%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %zu\r\nX-Request-Id: %s\r\n%s",
		method, ep->prefix, path, query != NULL ? "?" : "", query != NULL ? query : "",
		ep->authority, m->body_len, pair->id, rank);
	assert(n > 0 && (size_t)n < sizeof(m->lines)); /* ROUTE_QUERY_MAX bounds the query */
	m->nlines = (size_t)n;
	m->headers = (struct span){pair->req->text->headers, pair->req->text->headers_len};
}

static void
body(struct req *req, const struct splice_edit *e, struct leg_message *m)
{
	if (req->text->doc != NULL) {
		m->nsegs = splice_layout(req->text->doc, e, m->segs, &m->body_len);
		return;
	}
	m->segs[0] = (struct splice_seg){req->text->body, req->text->body_len};
	m->nsegs = req->text->body_len > 0;
	m->body_len = req->text->body_len;
}

static bool
compose_question(struct leg *leg, struct leg_message *m)
{
	struct pair *pair = leg->pair;
	const struct question *q = &pair->question;
	struct splice_edit e;

	if (q->edit != NULL) {
		connector_strip(pair, &e);
		q->edit(pair, &e);
		body(pair->req, &e, m);
	}
	lines(leg, m, q->edit != NULL ? "POST" : "GET", q->path, NULL);
	return true;
}

/* The lease of its blocks would be over, or nearly: they may belong to another prompt when they are read. */
static bool
stale(const struct pair *pair)
{
	return pair->req->connector->leased && pair->handed && !pair->redone &&
	       clock_ms() - pair->prefilled_ms > pair->req->facts.pool.shake.kv_lease_ms;
}

static void
give_up(struct leg *leg)
{
	leg_end(leg);
	on_event(leg, LEG_EV_FAIL);
}

static bool
compose(struct leg *leg, struct leg_message *m)
{
	struct pair *pair = leg->pair;
	struct req *req = pair->req;
	enum role role = (enum role)leg->kind;
	const char *path = NULL;
	struct splice_edit e;

	if (leg->kind == LEG_ASK)
		return compose_question(leg, m);
	if (role == ROLE_DECODE && stale(pair)) {
		if (pair->released)
			give_up(leg); /* those blocks are free by now */
		else
			pair_prefill_again(pair);
		return false;
	}
	connector_edit(pair, role, &e);
	body(req, &e, m);
	if (req->connector->path != NULL)
		path = req->connector->path(pair, role);
	lines(leg, m, "POST", path != NULL ? path : route_path(req->facts.route), req->query);
	leg->tells_kv = role == ROLE_DECODE && req->connector->leaves == LEAVES_KV &&
			(pair->handed || pair->kv.n > 0);
	leg->releases = role == ROLE_DECODE && pair->released;
	if (leg->releases)
		metric_add(req->w->slab, req->released_as, 1);
	if (role == ROLE_PREFILL && req->t_prefill_us == 0)
		req->t_prefill_us = clock_us();
	return true;
}

void
pair_reserve_again(struct pair *pair, struct leg *leg)
{
	struct worker *w = pair->req->w;

	if (leg->reserved)
		return;
	leg->reserved = load_reserve(w->seg, w->slot, leg->ep->slot, 0);
	leg->tokens = load_tokens_add(w->seg, w->slot, leg->ep->slot, pair->req->facts.tokens);
}

void
pair_keep_places(struct pair *pair)
{
	for (enum role r = 0; r < ROLE_N; r++)
		if (pair->leg[r].ep != NULL && pair->leg[r].state != LEG_DONE)
			pair_reserve_again(pair, &pair->leg[r]);
}

void
pair_prefill_again(struct pair *pair)
{
	struct leg *p = &pair->leg[LEG_PREFILL];

	metric_add(pair->req->w->slab, M_PREFILL_AGAIN, 1);
	leg_rewind(&pair->leg[LEG_DECODE]);
	leg_rewind(p);
	pair->redone = true;
	pair->prefilled = pair->handed = false;
	pair->kv = (struct span){NULL, 0};
	pair_reserve_again(pair, p);
	pair_new_id(pair);
	leg_start(p);
}

/* --- starting ------------------------------------------------------------------------------------ */

void
pair_start(struct pair *pair, enum leg_starts when)
{
	const uint32_t attempt =
		pair->attempt; /* one that fails at once may be followed by another */
	struct req *req = pair->req;

	for (enum role r = 0; r < ROLE_N; r++)
		if (req->state != REQ_DONE && pair->attempt == attempt && pair->starts[r] == when &&
			pair->leg[r].state == LEG_IDLE)
			leg_start(&pair->leg[r]);
}

void
pair_ask_over(struct pair *pair)
{
	struct worker *w = pair->req->w;

	if (pair->asking == NULL)
		return;
	pair->asking->asked_by_us = false;
	connpool_unref(w->connpool, &pair->asking);
}

void
pair_ask(struct pair *pair)
{
	const struct connector *c = pair->req->connector;
	struct leg *ask = &pair->leg[LEG_ASK];
	struct endpoint *ep;

	memset(&pair->question, 0, sizeof(pair->question));
	if (c->ask == NULL || !c->ask(pair, &pair->question)) {
		pair->asked = true;
		return;
	}
	ep = pair->leg[pair->question.role].ep;
	if (c->asks_again) { /* once for all who wait for it; they look again each tick */
		if (ep->asked_by_us)
			return;
		ep->asked_by_us = true;
		pair->asking = connpool_ref(ep);
	}
	if (ask->ep == NULL)
		ask->ep = pair->question.port == 0 ? connpool_ref(ep)
						   : connpool_aside(ep, pair->question.port);
	leg_start(ask);
}

void
pair_abort(struct pair *pair)
{
	for (enum role r = 0; r < ROLE_N; r++)
		if (leg_active(&pair->leg[r]) && !leg_connecting(&pair->leg[r]))
			errand_abort(pair->req->w, &pair->leg[r]);
}

/* --- what comes ---------------------------------------------------------------------------------- */

static void
on_event(struct leg *leg, enum leg_event ev)
{
	static const enum req_event as[LEG_EV_N] = {[LEG_EV_FIRST] = RQ_FIRST,
		[LEG_EV_KEPT] = RQ_MORE,
		[LEG_EV_ANSWER] = RQ_ANSWER,
		[LEG_EV_FAIL] = RQ_LEG_FAIL};

	req_event(leg->pair->req, as[ev], leg);
}

static void
on_payload(struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	exchange_payload(leg, pieces, n, done);
}
