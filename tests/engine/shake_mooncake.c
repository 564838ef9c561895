/*
 * vLLM's MooncakeConnector, both generations.
 *
 * From 0.17: the router names a transfer; P holds its KV under that name and answers null; D is
 * told the name, P's bootstrap server and which engine (data-parallel rank) to look for there.
 *
 *	D --- GET /query ---> bootstrap server: where is the engine of this id?
 *	D --- XFER <engine id> <transfer id> <prompt hash> ---> P: OK, as soon as it is done
 *
 * To 0.15: P's answer says where it listens, and both engines go by X-Request-Id.
 *
 * A D that asks too early waits (--fetch-timeout), and so does one whose P has ended its text with
 * the first token, or failed: P holds nothing and nobody tells D.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/boot.h"
#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/seen.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

struct moon_leg { /* g->deal */
	struct buf id;
	unsigned rank; /* P: which of its engines this is */
	/* D: whom to ask */
	struct buf host, engine;
	int port;
	struct boot *boot;
	struct side_op *op;
};

struct waiter { /* a D that asked before P was done */
	TAILQ_ENTRY(waiter) next;
	struct moon *moon;
	struct side_q *q;
	char *engine, *id;
	uint64_t prompt;
};

TAILQ_HEAD(waiter_head, waiter);

struct moon { /* sim->deals */
	struct waiter_head waiters;
	unsigned next_rank;
};

/* ---- the engine ---- */

static void
start_old(struct sim *sim)
{
	struct moon *m = calloc(1, sizeof(*m));

	if (m == NULL)
		abort();
	TAILQ_INIT(&m->waiters);
	sim->deals = m;
}

static void
start_new(struct sim *sim)
{
	start_old(sim);
	boot_listen(sim);
}

static void
waiter_end(struct waiter *w)
{
	TAILQ_REMOVE(&w->moon->waiters, w, next);
	free(w->engine);
	free(w->id);
	free(w);
}

static void
stop(struct sim *sim)
{
	struct moon *m = sim->deals;

	while (!TAILQ_EMPTY(&m->waiters))
		waiter_end(TAILQ_FIRST(&m->waiters));
	free(m);
	sim->deals = NULL;
}

/* ---- what the request says ---- */

static struct moon_leg *
leg_new(struct gen *g, enum gen_mode mode)
{
	struct moon_leg *t = calloc(1, sizeof(*t));

	if (t == NULL)
		abort();
	g->deal = t;
	g->mode = mode;
	return t;
}

static void
read_rank(struct gen *g, struct moon_leg *t)
{
	struct moon *m = g->sim->deals;
	unsigned ranks = (unsigned)g->sim->o.dp_size;
	int64_t rank = conn_header_int(g->c, "x-data-parallel-rank");

	t->rank = rank >= 0 ? (unsigned)rank : m->next_rank++ % ranks; /* or as it likes */
	if (t->rank >= ranks)
		count(g->sim, CTR_rank_mismatch);
}

static void
read_new(struct gen *g)
{
	struct jv kv = g->handed[0];
	struct buf url = {0};
	struct moon_leg *t;

	if (json_true(json_get(kv, "do_remote_decode"))) {
		t = leg_new(g, GEN_PREFILL);
		read_rank(g, t);
	} else if (json_true(json_get(kv, "do_remote_prefill"))) {
		t = leg_new(g, GEN_DECODE);
		json_text_buf(json_get(kv, "remote_bootstrap_addr"), &url);
		(void)boot_address(buf_cstr(&url), &t->host, &t->port);
		json_text_buf(json_get(kv, "remote_engine_id"), &t->engine);
		buf_free(&url);
	} else {
		return;
	}
	json_text_buf(json_get(kv, "transfer_id"), &t->id);
}

static void
read_old(struct gen *g)
{
	struct jv kv = g->handed[0];
	struct moon_leg *t;
	int64_t port = 0;

	if (json_true(json_get(kv, "do_remote_decode"))) {
		t = leg_new(g, GEN_PREFILL);
	} else if (json_true(json_get(kv, "do_remote_prefill"))) {
		t = leg_new(g, GEN_DECODE);
		json_text_buf(json_get(kv, "remote_host"), &t->host);
		(void)json_int(json_get(kv, "remote_port"), &port);
		t->port = port > 0 && port < 65536 ? (int)port : 0;
		BUF_LIT(&t->engine, "-");
	} else {
		return;
	}
	buf_add(&t->id, g->rid.p, g->rid.len);
}

static bool
again(struct gen *g, const struct moon_leg *t)
{
	struct buf name = {0};
	bool seen;

	BUF_LIT(&name, "transfer ");
	buf_add(&name, t->id.p, t->id.len);
	seen = seen_before(g->sim->seen, name.p, name.len);
	buf_free(&name);
	return seen;
}

static bool
check(struct gen *g)
{
	struct moon_leg *t = g->deal;

	if (t == NULL)
		return true;
	if (t->id.len == 0)
		return gen_refuse(g, CTR_kv_refused, 500, "remote KV: transfer_id is missing");
	if (g->mode == GEN_DECODE && (t->port == 0 || t->engine.len == 0))
		return gen_refuse(g, CTR_kv_refused, 500,
			"remote KV: the prefill engine's address or id is missing");
	if (g->nprompts > 1 || (g->mode == GEN_DECODE && g->n > 1))
		return gen_refuse(g, CTR_kv_refused, 500,
			"remote KV: one transfer is of one prompt and one sample");
	if (g->mode == GEN_PREFILL && g->sim->shake == &shake_mooncake && again(g, t))
		return gen_refuse(g, CTR_duplicate_request_ids, 400, "transfer_id was used before");
	if (t->rank >= (unsigned)g->sim->o.dp_size)
		return gen_refuse(g, CTR_kv_refused, 400, "data-parallel rank out of range");
	return true;
}

/* ---- D ---- */

static void
on_loaded(void *arg, const char *answer)
{
	struct gen *g = arg;
	struct moon_leg *t = g->deal;

	t->boot = NULL;
	t->op = NULL;
	if (strcmp(answer, "OK") != 0) {
		gen_fail(g, CTR_kv_refused, answer);
		return;
	}
	count(g->sim, CTR_kv_loaded);
	gen_compute(g);
}

static bool
find_engine(void *arg, struct jv answer, struct buf *host, int *ret_port)
{
	const struct gen *g = arg;
	struct moon_leg *t = g->deal;
	struct buf url = {0};
	struct jv key, rank;
	struct jiter it;
	bool found = false;

	if (json_kind(answer) != '{' || !json_iter(&it, answer))
		return false;
	while (!found && json_next(&it, &key, &rank)) {
		if (!json_is(json_get(rank, "engine_id"), buf_cstr(&t->engine)))
			continue;
		json_text_buf(json_get(json_get(json_get(rank, "worker_addr"), "0"), "0"), &url);
		found = boot_address(buf_cstr(&url), host, ret_port);
	}
	buf_free(&url);
	return found;
}

static void
do_pull(struct conn *c)
{
	struct gen *g = c->gen;
	struct moon_leg *t = g->deal;
	struct sim *sim = g->sim;
	struct buf line = {0};

	BUF_LIT(&line, "XFER ");
	side_word(&line, buf_cstr(&t->engine));
	side_word(&line, buf_cstr(&t->id));
	buf_fmt(&line, "%016llx", (unsigned long long)gen_prompt_key(g));
	if (sim->shake == &shake_mooncake)
		t->boot = boot_ask(sim, buf_cstr(&t->host), t->port, "/query", &line, find_engine,
			on_loaded, g);
	else
		t->op = side_ask(sim->side, buf_cstr(&t->host), t->port, &line, on_loaded, g);
	buf_free(&line);
	if (t->boot == NULL && t->op == NULL)
		gen_fail(g, CTR_kv_refused, "its host cannot be resolved");
}

static void
admitted(struct gen *g)
{
	if (g->mode != GEN_DECODE) {
		gen_compute(g);
		return;
	}
	gen_travel(g);
	if (g->sim->o.fetch_delay_ms > 0)
		conn_after(g->c, g->sim->o.fetch_delay_ms, do_pull);
	else
		do_pull(g->c);
}

/* ---- P ---- */

/* kv_fetch() knows one engine id; ours is of a rank, so it is compared as what D must be told. */
static uint64_t
meta_of(const char *engine)
{
	return text_fnv(TEXT_FNV0, engine, strlen(engine));
}

/* False: P is not done with it. */
static bool
serve(struct sim *sim, struct side_q *q, const char *engine, const char *id, uint64_t prompt)
{
	struct buf xrid = {0};
	enum kv_outcome v;
	uint32_t n;

	v = kv_fetch(sim->kv, sim->engine_id, id, prompt, meta_of(engine), &n, &xrid);
	buf_free(&xrid);
	if (v == KV_MISSING)
		return false;
	if (v == KV_DIFFER_META)
		count(sim, CTR_rank_mismatch);
	side_answer(q, v == KV_OK              ? "OK"
		       : v == KV_DIFFER_PROMPT ? "DIFFER prompt"
					       : "DIFFER engine_id");
	return true;
}

static void
waiter_gone(void *arg)
{
	waiter_end(arg);
}

static void
asked(struct sim *sim, struct side_q *q, const struct shake_words *w)
{
	struct moon *m = sim->deals;
	struct waiter *wait;
	uint64_t prompt;

	if (w->n != 4 || strcmp(w->w[0], "XFER") != 0) {
		side_answer(q, "DIFFER request");
		return;
	}
	if (strncmp(w->w[1], sim->engine_id, strlen(sim->engine_id)) != 0 && *w->w[1] != '-') {
		side_answer(q, "DIFFER engine_id");
		return;
	}
	prompt = strtoull(w->w[3], NULL, 16);
	if (serve(sim, q, w->w[1], w->w[2], prompt))
		return;
	wait = calloc(1, sizeof(*wait));
	if (wait == NULL)
		abort();
	wait->moon = m;
	wait->q = q;
	wait->engine = strdup(w->w[1]);
	wait->id = strdup(w->w[2]);
	wait->prompt = prompt;
	if (wait->engine == NULL || wait->id == NULL)
		abort();
	TAILQ_INSERT_TAIL(&m->waiters, wait, next);
	side_on_gone(q, waiter_gone, wait);
}

static void
computed(struct gen *g)
{
	struct sim *sim = g->sim;
	struct moon *m = sim->deals;
	struct moon_leg *t = g->deal;
	struct buf engine = {0};
	struct waiter *w;
	struct hold *h;

	if (g->prompts[0].eos || fault_null_kv(g->c)) {
		count(sim, CTR_kv_null);
		buf_free(&t->id);
		gen_reply(g);
		return;
	}
	h = kv_hold(sim->kv, buf_cstr(&t->id), buf_cstr(&g->rid), (uint32_t)g->prompts[0].ntokens);
	h->prompt = gen_prompt_key(g);
	g->reserved -= h->nblocks;
	if (sim->shake == &shake_mooncake)
		boot_engine_id(sim, t->rank, &engine);
	else
		BUF_LIT(&engine, "-");
	h->meta = meta_of(buf_cstr(&engine));
	buf_free(&engine);
	TAILQ_FOREACH(w, &m->waiters, next)
	if (strcmp(w->id, buf_cstr(&t->id)) == 0)
		break;
	if (w != NULL && serve(sim, w->q, w->engine, w->id, w->prompt))
		waiter_end(w);
	gen_reply(g);
}

static void
put_address(struct gen *g, struct shake_extra *x)
{
	const struct moon_leg *t = g->deal;
	const char *host = g->sim->o.advertise;

	if (t->id.len == 0)
		return;
	BUF_LIT(&x->kv, "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_host\":");
	buf_json(&x->kv, host, strlen(host));
	buf_fmt(&x->kv, ",\"remote_port\":%d}", g->sim->side_port);
}

static void
end(struct gen *g)
{
	struct moon_leg *t = g->deal;

	g->deal = NULL;
	if (t == NULL)
		return;
	boot_forget(&t->boot);
	if (t->op != NULL)
		side_forget(t->op);
	buf_free(&t->id);
	buf_free(&t->host);
	buf_free(&t->engine);
	free(t);
}

const struct shake shake_mooncake = {
	.name = "mooncake",
	.members = {"kv_transfer_params"},
	.leg_of_one = true,
	.start = start_new,
	.stop = stop,
	.read = read_new,
	.check = check,
	.admitted = admitted,
	.computed = computed,
	.end = end,
	.asked = asked,
};

const struct shake shake_mooncake_old = {
	.name = "mooncake_old",
	.members = {"kv_transfer_params"},
	.leg_of_one = true,
	.start = start_old,
	.stop = stop,
	.read = read_old,
	.check = check,
	.admitted = admitted,
	.computed = computed,
	.answer = put_address,
	.end = end,
	.asked = asked,
};
