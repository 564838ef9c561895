/*
 * LMCache with NIXL: P (sender) is told by disagg_spec where D (receiver) listens, writes the KV
 * into D under the hash of the token ids, and tells the router so (notice.h).  Nothing in D's
 * request says where its KV is: it looks the ids up, all of them or all but the last one
 * (--skip-last), and has to compute what it does not find.
 *
 * P's rank r asks the listener on receiver_alloc_port[r] for room, then writes to
 * receiver_init_port[r]; the side channel's lines go to these ports:
 *
 *	ALLOC <rank> <key> <tokens>                          ->  OK <ticket> | DIFFER <what>
 *	WRITE <ticket> <rank> <key> <tokens> <X-Request-Id>  ->  OK | FULL | DIFFER <what>
 *
 * What D got is held until a request takes it, or for --kv-timeout.
 */
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/notice.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

#define RANKS_MAX 64
#define EOS_ID 2 /* what first_tok says when the text has ended */

enum notice_fault { FAULT_NO, FAULT_NONE, FAULT_TWICE, FAULT_UNKNOWN, FAULT_GARBAGE };

struct parcel { /* the KV of one prompt on its way; g->deal of P, which it may outlive */
	TAILQ_ENTRY(parcel) next;
	struct lmcache *l;
	struct gen *gen; /* NULL: its request has been answered */
	struct side_op *op;
	struct event timer;
	struct buf req_id, host, rid;
	int init[RANKS_MAX], alloc[RANKS_MAX];
	unsigned nports, rank;
	uint64_t key;
	uint32_t ntokens;
	enum notice_fault fault;
	bool computed, written, lost, first_token;
	char hold[40]; /* name of what P holds until it is written; "": nothing */
};

TAILQ_HEAD(parcel_head, parcel);

struct lmcache { /* sim->deals */
	struct sim *sim;
	struct notice *notice;
	struct parcel_head parcels;
	int init[RANKS_MAX], alloc[RANKS_MAX];
	unsigned nranks; /* D's */
	uint64_t next_hold;
};

/* ---- D: what it has been given ---- */

static uint64_t
ticket(const struct sim *sim, const char *rank, const char *key)
{
	uint64_t h = text_fnv(TEXT_FNV0, sim->engine_id, strlen(sim->engine_id));

	h = text_fnv(h, rank, strlen(rank) + 1);
	return text_fnv(h, key, strlen(key));
}

static void
hold_name(char *name, size_t room, const char *key, unsigned rank)
{
	(void)snprintf(name, room, "%s/%u", key, rank);
}

static const char *
take_room(struct sim *sim, const struct shake_words *w, unsigned rank)
{
	uint32_t ntokens = rank == 0 ? (uint32_t)strtoul(w->w[4], NULL, 10) : 0;
	char name[40];

	/* one rank's name stands for the blocks of all of them */
	if (!kv_reserve(sim->kv, kv_blocks_for(sim, ntokens)))
		return "FULL";
	hold_name(name, sizeof(name), w->w[3], rank);
	(void)kv_hold(sim->kv, name, w->w[5], ntokens);
	return "OK";
}

static void
asked(struct sim *sim, struct side_q *q, const struct shake_words *w)
{
	const struct lmcache *l = sim->deals;
	bool alloc = w->n == 4 && strcmp(w->w[0], "ALLOC") == 0;
	bool write = w->n == 6 && strcmp(w->w[0], "WRITE") == 0;
	unsigned rank = alloc ? (unsigned)atoi(w->w[1]) : write ? (unsigned)atoi(w->w[2]) : 0;
	char line[40];

	if (!alloc && !write)
		side_answer(q, "DIFFER request");
	else if (rank >= l->nranks)
		side_answer(q, "DIFFER rank");
	else if (side_port(q) != (alloc ? l->alloc : l->init)[rank])
		side_answer(q, "DIFFER port");
	else if (alloc) {
		(void)snprintf(line, sizeof(line), "OK %016llx",
			(unsigned long long)ticket(sim, w->w[1], w->w[2]));
		side_answer(q, line);
	} else if (strtoull(w->w[1], NULL, 16) != ticket(sim, w->w[2], w->w[3]))
		side_answer(q, "DIFFER ticket");
	else
		side_answer(q, take_room(sim, w, rank));
}

/* Whether all ranks have it; then it is taken. */
static bool
take(struct gen *g)
{
	const struct lmcache *l = g->sim->deals;
	const struct prompt *p = &g->prompts[0];
	uint64_t ids = g->sim->o.skip_last ? p->before : p->seed;
	char key[20], name[40];
	unsigned r;

	(void)snprintf(key, sizeof(key), "%016llx",
		(unsigned long long)text_fnv(ids, (const char *)&g->model_key, 8));
	for (r = 0; r < l->nranks; r++) {
		hold_name(name, sizeof(name), key, r);
		if (!kv_has(g->sim->kv, name))
			return false;
	}
	for (r = 0; r < l->nranks; r++) {
		hold_name(name, sizeof(name), key, r);
		(void)kv_take(g->sim->kv, name);
	}
	return l->nranks > 0;
}

/* ---- P: the request ---- */

static void
parcel_end(struct parcel *p)
{
	if (p->gen != NULL)
		p->gen->deal = NULL;
	if (p->op != NULL)
		side_forget(p->op);
	if (p->hold[0])
		(void)kv_release(p->l->sim->kv, p->l->sim->engine_id, p->hold);
	(void)event_del(&p->timer);
	TAILQ_REMOVE(&p->l->parcels, p, next);
	buf_free(&p->req_id);
	buf_free(&p->host);
	buf_free(&p->rid);
	free(p);
}

static void
read_request(struct gen *g)
{
	if (g->sim->o.role == ROLE_PREFILL || !json_null(json_get(g->handed[0], "disagg_spec")))
		g->mode = GEN_PREFILL;
}

/* The worker indexes it with its rank: a bare integer is an error there. */
static const char *
read_ports(struct jv list, const struct sim *sim, int *ports, unsigned *ret_n)
{
	struct jv key, val;
	struct jiter it;
	unsigned n = 0;
	int64_t v;

	if (json_null(list))
		return "disagg_spec: KeyError: a port list is missing";
	if (json_kind(list) != '[')
		return "disagg_spec: TypeError: 'int' object is not subscriptable";
	(void)json_iter(&it, list);
	while (n < RANKS_MAX && json_next(&it, &key, &val)) {
		if (!json_int(val, &v) || v < 1 || v > 65535)
			return "disagg_spec: a port must be an integer";
		ports[n++] = (int)v;
	}
	*ret_n = n;
	return n < (unsigned)sim->o.tp ? "disagg_spec: IndexError: list index out of range" : NULL;
}

static const char *
read_spec(struct gen *g, struct parcel *p)
{
	struct jv spec = json_get(g->handed[0], "disagg_spec");
	const char *wrong;

	if (json_kind(spec) != '{')
		return "disagg_spec is missing";
	json_text_buf(json_get(spec, "req_id"), &p->req_id);
	json_text_buf(json_get(spec, "receiver_host"), &p->host);
	if (p->req_id.len == 0)
		return "disagg_spec: KeyError: req_id";
	if (p->host.len == 0)
		return "disagg_spec: KeyError: receiver_host";
	if (g->nprompts > 1 || g->n > 1)
		return "disagg_spec: one request id for several prompts or answers";
	wrong = read_ports(json_get(spec, "receiver_init_port"), g->sim, p->init, &p->nports);
	if (wrong != NULL)
		return wrong;
	return read_ports(json_get(spec, "receiver_alloc_port"), g->sim, p->alloc, &p->nports);
}

static void on_time(evutil_socket_t fd, short what, void *arg);

static bool
check_sender(struct gen *g)
{
	struct lmcache *l = g->sim->deals;
	struct parcel *p = calloc(1, sizeof(*p));
	const char *wrong;

	if (p == NULL)
		abort();
	p->l = l;
	p->gen = g;
	g->deal = p;
	(void)evtimer_assign(&p->timer, l->sim->base, on_time, p);
	TAILQ_INSERT_TAIL(&l->parcels, p, next);
	wrong = read_spec(g, p);
	if (wrong != NULL)
		return gen_refuse(g, CTR_spec_violations, 500, wrong);
	p->first_token = json_get(g->handed[0], "ret_first_tok").p != NULL;
	p->key = text_fnv(g->prompts[0].seed, (const char *)&g->model_key, 8);
	p->ntokens = (uint32_t)g->prompts[0].ntokens;
	buf_add(&p->rid, g->rid.p, g->rid.len);
	return true;
}

static bool
check(struct gen *g)
{
	if (g->mode == GEN_PREFILL)
		return check_sender(g);
	if (g->sim->o.role == ROLE_DECODE && g->nprompts == 1 && take(g)) {
		g->mode = GEN_DECODE;
		count(g->sim, CTR_kv_loaded);
	}
	return true;
}

static void
put_first_token(struct gen *g, struct shake_extra *x)
{
	const struct parcel *p = g->deal;
	uint64_t state = text_child(g->prompts[0].seed, 0);
	uint32_t id = g->prompts[0].eos ? EOS_ID : text_next(&state)->id;

	if (!p->first_token || fault_null_kv(g->c)) {
		count(g->sim, CTR_kv_null);
		return;
	}
	buf_fmt(&x->kv, "{\"first_tok\":%u}", id);
}

/* Its answer is out, or its client has left.  What is late goes on without it. */
static void
end(struct gen *g)
{
	struct parcel *p = g->deal;

	if (p == NULL)
		return;
	g->deal = NULL;
	p->gen = NULL;
	if (!g->sim->o.notice_late || !p->computed)
		parcel_end(p);
}

/* ---- P: writing and telling ---- */

static void
after(struct parcel *p, double ms)
{
	struct timeval tv = {(time_t)(ms / 1000), (suseconds_t)((long long)(ms * 1000) % 1000000)};

	(void)evtimer_add(&p->timer, &tv);
}

static void
tell(struct parcel *p, unsigned rank)
{
	struct notice *n = p->l->notice;
	struct buf other = {0};

	if (n == NULL || p->fault == FAULT_NONE)
		return;
	if (p->fault == FAULT_GARBAGE)
		notice_garbage(n, rank);
	if (p->fault == FAULT_UNKNOWN) {
		buf_fmt(&other, "unknown-%s", buf_cstr(&p->req_id));
		notice_send(n, rank, buf_cstr(&other));
		buf_free(&other);
		return;
	}
	notice_send(n, rank, buf_cstr(&p->req_id));
	if (p->fault == FAULT_TWICE)
		notice_send(n, rank, buf_cstr(&p->req_id));
}

static void
finish(struct parcel *p)
{
	if (p->gen != NULL && !p->l->sim->o.notice_late)
		gen_reply(p->gen); /* which is its end */
	else
		parcel_end(p);
}

/* All ranks have written.  As many notices as ranks have gone out one by one. */
static void
written(struct parcel *p)
{
	const struct opts *o = &p->l->sim->o;
	unsigned i, n = o->notices < 0 || o->notices == o->tp ? 0 : (unsigned)o->notices;

	for (i = 0; i < n; i++)
		tell(p, i);
	finish(p);
}

static void
lost(struct parcel *p)
{
	count(p->l->sim, CTR_kv_push_failed);
	finish(p);
}

static void
rank_done(struct parcel *p)
{
	const struct opts *o = &p->l->sim->o;

	if (o->notices < 0 || o->notices == o->tp)
		tell(p, p->rank);
	p->written = false;
	if (++p->rank < (unsigned)o->tp) {
		after(p, o->notice_gap_ms);
		return;
	}
	if (p->hold[0])
		(void)kv_take(p->l->sim->kv, p->hold);
	p->hold[0] = '\0';
	written(p);
}

static void
on_written(void *arg, const char *answer)
{
	struct parcel *p = arg;

	p->op = NULL;
	if (strcmp(answer, "OK") != 0) {
		lost(p);
		return;
	}
	p->written = true;
	after(p, p->l->sim->o.notice_delay_ms);
}

static void
on_ticket(void *arg, const char *answer)
{
	struct parcel *p = arg;
	struct buf line = {0};

	p->op = NULL;
	if (strncmp(answer, "OK ", 3) != 0) {
		lost(p);
		return;
	}
	buf_fmt(&line, "WRITE %s %u %016llx %u ", answer + 3, p->rank, (unsigned long long)p->key,
		p->ntokens);
	side_word(&line, buf_cstr(&p->rid));
	p->op = side_ask(
		p->l->sim->side, buf_cstr(&p->host), p->init[p->rank], &line, on_written, p);
	buf_free(&line);
	if (p->op == NULL)
		lost(p);
}

static void
on_time(evutil_socket_t fd, short what, void *arg)
{
	struct parcel *p = arg;
	struct buf line = {0};

	(void)fd;
	(void)what;
	if (p->lost) {
		lost(p);
		return;
	}
	if (p->written) {
		rank_done(p);
		return;
	}
	buf_fmt(&line, "ALLOC %u %016llx %u", p->rank, (unsigned long long)p->key, p->ntokens);
	p->op = side_ask(
		p->l->sim->side, buf_cstr(&p->host), p->alloc[p->rank], &line, on_ticket, p);
	buf_free(&line);
	if (p->op == NULL)
		lost(p);
}

static enum notice_fault
fault_of(struct conn *c)
{
	static const char *const kinds[] = {[FAULT_NONE] = "notice_none",
		[FAULT_TWICE] = "notice_twice",
		[FAULT_UNKNOWN] = "notice_unknown",
		[FAULT_GARBAGE] = "notice_garbage"};
	int i;

	for (i = FAULT_NONE; i <= FAULT_GARBAGE; i++)
		if (fault_is(c, kinds[i]))
			return (enum notice_fault)i;
	return FAULT_NO;
}

static void
computed(struct gen *g)
{
	struct parcel *p = g->deal;
	struct lmcache *l = p->l;
	struct hold *h;

	p->computed = true;
	p->fault = fault_of(g->c);
	(void)snprintf(
		p->hold, sizeof(p->hold), "lmcache-%llu", (unsigned long long)l->next_hold++);
	h = kv_hold(l->sim->kv, p->hold, buf_cstr(&g->rid), p->ntokens);
	g->reserved -= h->nblocks;
	p->lost = fault_is(g->c, "no_push");
	after(p, l->sim->o.kv_delay_ms);
	if (l->sim->o.notice_late)
		gen_reply(g);
	else
		gen_travel(g);
}

/* ---- start ---- */

static unsigned
listen_all(struct sim *sim, const char *name, const char *list, int *ports)
{
	unsigned n = 0;
	char *end = NULL;
	int fd;

	buf_fmt(&sim->more_ports, " %s=", name);
	do {
		long port = strtol(list, &end, 10);

		if (end == list || port < 0 || port > 65535 || n == RANKS_MAX)
			sim_bad_option("receiver-ports or --alloc-ports", list);
		fd = sim_listen(sim->o.host, (int)port, &ports[n]);
		side_listen(sim->side, fd, ports[n]);
		buf_fmt(&sim->more_ports, n ? ",%d" : "%d", ports[n]);
		n++;
		list = end + 1;
	} while (*end == ',');
	return n;
}

static void
start(struct sim *sim)
{
	struct lmcache *l = calloc(1, sizeof(*l));
	struct buf zeros = {0};
	unsigned i;

	if (l == NULL)
		abort();
	l->sim = sim;
	TAILQ_INIT(&l->parcels);
	sim->deals = l;
	l->notice = notice_new(sim);
	if (sim->o.receiver_ports == NULL)
		return;
	l->nranks = listen_all(sim, "init", sim->o.receiver_ports, l->init);
	for (i = 0; i < l->nranks; i++)
		buf_str(&zeros, i ? ",0" : "0");
	if (listen_all(sim, "alloc",
		    sim->o.alloc_ports != NULL ? sim->o.alloc_ports : buf_cstr(&zeros),
		    l->alloc) != l->nranks)
		sim_bad_option("alloc-ports", sim->o.alloc_ports);
	buf_free(&zeros);
}

static void
stop(struct sim *sim)
{
	struct lmcache *l = sim->deals;

	while (!TAILQ_EMPTY(&l->parcels))
		parcel_end(TAILQ_FIRST(&l->parcels));
	notice_free(&l->notice);
	free(l);
}

const struct shake shake_lmcache = {
	.name = "lmcache",
	.members = {"kv_transfer_params"},
	.leg_of_one = true,
	.start = start,
	.stop = stop,
	.read = read_request,
	.check = check,
	.computed = computed,
	.answer = put_first_token,
	.end = end,
	.asked = asked,
};
