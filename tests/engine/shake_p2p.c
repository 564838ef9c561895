/*
 * vLLM's P2pNcclConnector: the X-Request-Id of both legs holds the addresses of both engines,
 *
 *	___prefill_addr_<host:port>___decode_addr_<host:port>_<32 hex digits>
 *
 * P pushes to the second after it has computed; D takes what came for its request from the first.
 * The side channel's port is the one such an address means here:
 *
 *	PUT <tensor id> <prompt hash> <tokens> <P's address>  ->  OK | FOREIGN | FULL
 *
 * A tensor id is the engine's own id of a prompt, cmpl-<X-Request-Id>-<prompt>, so it also differs
 * where the legs were sent to different APIs.  Nothing tells D that nothing will come.
 */
#include <event2/event.h>
#include <event2/event_struct.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "tests/engine/boot.h"
#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

struct push { /* of one prompt, outlives P's request */
	TAILQ_ENTRY(push) next;
	struct p2p *p2p;
	struct side_op *op;
	struct event timer;
	struct buf host, line;
	int port;
	char *hold; /* name of what P holds until it is pushed */
};

struct taker { /* g->deal, on D */
	TAILQ_ENTRY(taker) next;
	struct gen *g;
};

TAILQ_HEAD(push_head, push);
TAILQ_HEAD(taker_head, taker);

struct p2p { /* sim->deals */
	struct sim *sim;
	struct push_head pushes;
	struct taker_head takers;
	regex_t to, from;
	char http[300], address[280]; /* as host:port */
	void *zmq, *dealer;
	struct event announce;
};

/* ---- registration ---- */

static void
put_str(struct buf *b, const char *s)
{
	size_t n = strlen(s);

	if (n < 32)
		buf_fill(b, (char)(0xa0 | n), 1);
	else
		buf_fmt(b, "\xd9%c", (int)n);
	buf_str(b, s);
}

static void
on_announce(evutil_socket_t fd, short what, void *arg)
{
	struct p2p *p = arg;
	struct buf b = {0};

	(void)fd;
	(void)what;
	buf_fill(&b, (char)0x83, 1);
	put_str(&b, "type");
	put_str(&b, p->sim->o.role == ROLE_PREFILL ? "P" : "D");
	put_str(&b, "http_address");
	put_str(&b, p->http);
	put_str(&b, "zmq_address");
	put_str(&b, p->address);
	(void)zmq_send(p->dealer, b.p, b.len, ZMQ_DONTWAIT);
	buf_free(&b);
}

static void
announce(struct p2p *p)
{
	const struct opts *o = &p->sim->o;
	struct timeval tv = {(time_t)(o->announce_ms / 1000),
		(suseconds_t)((int64_t)(o->announce_ms * 1000) % 1000000)};
	char url[300];
	int zero = 0;

	(void)snprintf(url, sizeof(url), "tcp://%s", o->announce);
	p->zmq = zmq_ctx_new();
	p->dealer = p->zmq == NULL ? NULL : zmq_socket(p->zmq, ZMQ_DEALER);
	if (p->dealer == NULL)
		abort();
	(void)zmq_setsockopt(p->dealer, ZMQ_LINGER, &zero, sizeof(zero));
	(void)zmq_setsockopt(p->dealer, ZMQ_ROUTING_ID, p->address, strlen(p->address));
	if (zmq_connect(p->dealer, url) == -1)
		sim_bad_option("announce", o->announce);
	(void)event_assign(&p->announce, p->sim->base, -1, EV_PERSIST, on_announce, p);
	(void)event_add(&p->announce, &tv);
	on_announce(-1, 0, p);
}

static void
start(struct sim *sim)
{
	struct p2p *p = calloc(1, sizeof(*p));
	const char *host = sim->o.advertise;
	bool v6 = strchr(host, ':') != NULL;

	if (p == NULL)
		abort();
	p->sim = sim;
	sim->deals = p;
	TAILQ_INIT(&p->pushes);
	TAILQ_INIT(&p->takers);
	if (regcomp(&p->to, "___decode_addr_(.*):([0-9]+)", REG_EXTENDED) ||
		regcomp(&p->from, "___prefill_addr_(.*):([0-9]+)___", REG_EXTENDED))
		abort();
	(void)snprintf(
		p->address, sizeof(p->address), "%s%.256s%s", v6 ? "[" : "", host, v6 ? "]" : "");
	(void)snprintf(p->http, sizeof(p->http), "%s:%d", p->address, sim->port);
	(void)snprintf(p->address + strlen(p->address), 8, ":%d", sim->side_port);
	if (sim->o.announce != NULL)
		announce(p);
}

static void
push_end(struct push *u)
{
	struct kv *kv = u->p2p->sim->kv;

	TAILQ_REMOVE(&u->p2p->pushes, u, next);
	(void)event_del(&u->timer);
	if (u->hold != NULL)
		(void)kv_release(kv, u->p2p->sim->engine_id, u->hold);
	free(u->hold);
	buf_free(&u->host);
	buf_free(&u->line);
	free(u);
}

static void
stop(struct sim *sim)
{
	struct p2p *p = sim->deals;

	while (!TAILQ_EMPTY(&p->pushes))
		push_end(TAILQ_FIRST(&p->pushes));
	if (p->dealer != NULL) {
		(void)event_del(&p->announce);
		(void)zmq_close(p->dealer);
		(void)zmq_ctx_term(p->zmq);
	}
	regfree(&p->to);
	regfree(&p->from);
	free(p);
	sim->deals = NULL;
}

/* ---- the id ---- */

/* The engines' own search for an address in the id; false: there is none. */
static bool
address_in(const regex_t *re, const char *id, struct buf *ret)
{
	regmatch_t m[3];

	if (regexec(re, id, 3, m, 0) != 0)
		return false;
	buf_add(ret, id + m[1].rm_so, (size_t)(m[2].rm_eo - m[1].rm_so));
	return true;
}

/* Both engines look for the other's address only; that each is also itself meant shows here. */
static bool
check_id(struct gen *g)
{
	struct p2p *p = g->sim->deals;
	bool pre = g->mode == GEN_PREFILL;
	struct buf mine = {0}, other = {0};
	const char *id = buf_cstr(&g->rid), *wrong = NULL;

	if (!address_in(pre ? &p->to : &p->from, id, &other))
		wrong = "the request id does not contain hostname and port";
	else if (!address_in(pre ? &p->from : &p->to, id, &mine) ||
		 strcmp(buf_cstr(&mine), p->address) != 0)
		wrong = "the request id names another engine in this one's place";
	buf_free(&mine);
	buf_free(&other);
	return wrong == NULL || gen_refuse(g, CTR_kv_foreign, 500, wrong);
}

static void
read_role(struct gen *g)
{
	enum role role = g->sim->o.role;

	if (role != ROLE_BOTH)
		g->mode = role == ROLE_PREFILL ? GEN_PREFILL : GEN_DECODE;
}

static bool
check(struct gen *g)
{
	if (g->mode == GEN_PLAIN)
		return true;
	if (g->mode == GEN_DECODE && g->n > 1)
		return gen_refuse(g, CTR_kv_refused, 500,
			"remote KV: of one sample only, but there are more");
	return check_id(g);
}

static void
tensor_id(const struct gen *g, unsigned i, struct buf *b)
{
	buf_str(b, g->chat ? "chatcmpl-" : "cmpl-");
	buf_add(b, g->rid.p, g->rid.len);
	if (!g->chat)
		buf_fmt(b, "-%u", i);
}

/* ---- P ---- */

static void
on_pushed(void *arg, const char *answer)
{
	struct push *u = arg;
	struct sim *sim = u->p2p->sim;
	struct buf xrid = {0};
	uint32_t n;

	u->op = NULL;
	if (strcmp(answer, "OK") == 0)
		(void)kv_fetch(sim->kv, sim->engine_id, u->hold, 0, 0, &n, &xrid);
	else
		count(sim, CTR_kv_push_failed);
	buf_free(&xrid);
	push_end(u);
}

static void
on_push(evutil_socket_t fd, short what, void *arg)
{
	struct push *u = arg;

	(void)fd;
	(void)what;
	u->op = side_ask(u->p2p->sim->side, buf_cstr(&u->host), u->port, &u->line, on_pushed, u);
	if (u->op == NULL)
		on_pushed(u, "UNREACHABLE");
}

static void
push(struct gen *g, unsigned i)
{
	struct sim *sim = g->sim;
	struct p2p *p = sim->deals;
	struct push *u = calloc(1, sizeof(*u));
	double ms = sim->o.fetch_delay_ms;
	struct timeval tv = {(time_t)(ms / 1000), (suseconds_t)((int64_t)(ms * 1000) % 1000000)};
	struct buf id = {0}, to = {0};
	struct hold *h;

	if (u == NULL)
		abort();
	u->p2p = p;
	tensor_id(g, i, &id);
	(void)address_in(&p->to, buf_cstr(&g->rid), &to);
	(void)boot_address(buf_cstr(&to), &u->host, &u->port);
	BUF_LIT(&u->line, "PUT ");
	side_word(&u->line, buf_cstr(&id));
	buf_fmt(&u->line, "%016llx %llu ", (unsigned long long)gen_key_of(g, i),
		(unsigned long long)g->prompts[i].ntokens);
	side_word(&u->line, p->address);
	h = kv_hold(sim->kv, buf_cstr(&id), buf_cstr(&g->rid), (uint32_t)g->prompts[i].ntokens);
	g->reserved -= h->nblocks;
	u->hold = strdup(h->id);
	TAILQ_INSERT_TAIL(&p->pushes, u, next);
	(void)evtimer_assign(&u->timer, sim->base, on_push, u);
	(void)evtimer_add(&u->timer, &tv);
	buf_free(&id);
	buf_free(&to);
}

/* vLLM's default, PUT_ASYNC: the answer does not wait. */
static void
computed(struct gen *g)
{
	unsigned i;

	if (fault_null_kv(g->c))
		count(g->sim, CTR_kv_null);
	for (i = 0; i < g->nprompts && !fault_null_kv(g->c); i++)
		push(g, i);
	gen_reply(g);
}

/* ---- D ---- */

/* Takes what came for all of its prompts, if all of it has.  False: it waits on, or it is no more. */
static bool
take(struct gen *g)
{
	struct kv *kv = g->sim->kv;
	struct buf id = {0}, xrid = {0};
	enum kv_outcome v = KV_OK;
	uint32_t n;
	unsigned i;

	for (i = 0; v == KV_OK && i < g->nprompts; i++) {
		id.len = 0;
		tensor_id(g, i, &id);
		v = kv_has(kv, buf_cstr(&id)) ? KV_OK : KV_MISSING;
	}
	for (i = 0; v == KV_OK && i < g->nprompts; i++) {
		id.len = 0;
		tensor_id(g, i, &id);
		v = kv_fetch(kv, g->sim->engine_id, buf_cstr(&id), gen_key_of(g, i), 0, &n, &xrid);
	}
	buf_free(&id);
	buf_free(&xrid);
	if (v == KV_MISSING)
		return false;
	(void)event_del(&g->c->tmr);
	if (v == KV_OK) {
		count(g->sim, CTR_kv_loaded);
		gen_compute(g);
	} else {
		gen_fail(g, CTR_kv_refused, "DIFFER prompt");
	}
	return true;
}

static void
on_late(struct conn *c)
{
	gen_fail(c->gen, CTR_kv_refused, "TIMEOUT");
}

static void
admitted(struct gen *g)
{
	struct p2p *p = g->sim->deals;
	struct taker *t;

	if (g->mode != GEN_DECODE) {
		gen_compute(g);
		return;
	}
	gen_travel(g);
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		abort();
	t->g = g;
	g->deal = t;
	TAILQ_INSERT_TAIL(&p->takers, t, next);
	if (!take(g))
		conn_after(g->c, g->sim->o.fetch_timeout_s * 1000, on_late);
}

static void
end(struct gen *g)
{
	struct p2p *p = g->sim->deals;
	struct taker *t = g->deal;

	g->deal = NULL;
	if (t == NULL)
		return;
	TAILQ_REMOVE(&p->takers, t, next);
	free(t);
}

static const char *
store(struct p2p *p, const struct shake_words *w)
{
	struct sim *sim = p->sim;
	struct buf addr = {0};
	bool to_me = address_in(&p->to, w->w[1], &addr) && strcmp(buf_cstr(&addr), p->address) == 0;
	bool from_him;
	uint32_t tokens = (uint32_t)strtoul(w->w[3], NULL, 10);
	struct hold *h;

	addr.len = 0;
	from_him = address_in(&p->from, w->w[1], &addr) && strcmp(buf_cstr(&addr), w->w[4]) == 0;
	buf_free(&addr);
	if (!to_me || !from_him) {
		count(sim, CTR_kv_foreign);
		return "FOREIGN";
	}
	if (!kv_reserve(sim->kv, kv_blocks_for(sim, tokens)))
		return "FULL";
	h = kv_hold(sim->kv, w->w[1], "", tokens);
	h->prompt = strtoull(w->w[2], NULL, 16);
	return "OK";
}

static void
asked(struct sim *sim, struct side_q *q, const struct shake_words *w)
{
	struct p2p *p = sim->deals;
	const char *answer = "DIFFER request";
	struct taker *t;

	if (w->n == 5 && strcmp(w->w[0], "PUT") == 0)
		answer = store(p, w);
	side_answer(q, answer);
	if (strcmp(answer, "OK") != 0)
		return;
	TAILQ_FOREACH(t, &p->takers, next)
	if (t->g->state == GEN_TRAVEL && take(t->g))
		break; /* one tensor is of one request, and the list has changed */
}

const struct shake shake_p2p_nccl = {
	.name = "p2p_nccl",
	.leg_of_one = true,
	.start = start,
	.stop = stop,
	.read = read_role,
	.check = check,
	.admitted = admitted,
	.computed = computed,
	.end = end,
	.asked = asked,
};
