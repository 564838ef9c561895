#include "tests/engine/shake_remote.h"

#include <stdlib.h>
#include <string.h>

#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"

struct remote *
remote_new(struct gen *g)
{
	struct remote *r = calloc(1, sizeof(*r));

	if (r == NULL)
		abort();
	g->deal = r;
	return r;
}

bool
remote_check(struct gen *g)
{
	struct remote *r = g->deal;

	if (g->mode != GEN_DECODE)
		return true;
	if (r->host.len == 0 || r->port == 0 || r->id.len == 0)
		return gen_refuse(
			g, CTR_kv_refused, 500, "remote KV: host, port or request id is missing");
	if (g->nprompts > 1)
		return gen_refuse(g, CTR_kv_refused, 500,
			"remote KV: of one prompt only, but there are more");
	return true;
}

/* ---- D ---- */

/* kv_load_failure_policy of vLLM: `fail` ends the request, `recompute` does the prefill here. */
static void
not_fetched(struct gen *g, const char *why)
{
	if (g->sim->o.load_failure == LOAD_FAILURE_FAIL) {
		gen_fail(g, CTR_kv_refused, why);
		return;
	}
	count(g->sim, CTR_kv_recomputed);
	g->mode = GEN_PLAIN;
	gen_compute(g);
}

static void
on_fetched(void *arg, const char *line)
{
	struct gen *g = arg;
	struct remote *r = g->deal;
	const char *xrid;

	r->op = NULL;
	if (strncmp(line, "OK ", 3) != 0) {
		not_fetched(g, line);
		return;
	}
	r->fetched = true;
	xrid = strchr(line + 3, ' ');
	if (xrid == NULL || strcmp(xrid + 1, buf_cstr(&g->rid)) != 0)
		count(g->sim, CTR_request_id_mismatch);
	count(g->sim, CTR_kv_loaded);
	gen_compute(g);
}

static void
do_fetch(struct conn *c)
{
	struct gen *g = c->gen;
	struct remote *r = g->deal;
	struct buf line = {0};

	if (conn_left(c)) { /* vLLM cancels such a request before its engine has it */
		conn_kill(c, false);
		return;
	}
	BUF_LIT(&line, "FETCH ");
	side_word(&line, buf_cstr(&r->engine));
	side_word(&line, buf_cstr(&r->id));
	buf_fmt(&line, "%016llx %016llx", (unsigned long long)gen_prompt_key(g),
		(unsigned long long)r->meta);
	r->op = side_ask(g->sim->side, buf_cstr(&r->host), r->port, &line, on_fetched, g);
	buf_free(&line);
	if (r->op == NULL)
		not_fetched(g, "its host cannot be resolved");
}

void
remote_fetch(struct gen *g)
{
	if (g->mode != GEN_DECODE) {
		gen_compute(g);
		return;
	}
	gen_travel(g);
	if (g->sim->o.fetch_delay_ms > 0)
		conn_after(g->c, g->sim->o.fetch_delay_ms, do_fetch);
	else
		do_fetch(g->c);
}

void
remote_unused(struct gen *g)
{
	struct remote *r = g->deal;
	struct buf line = {0};

	if (r == NULL || g->mode != GEN_DECODE || r->fetched || r->op != NULL || r->port == 0 ||
		r->id.len == 0)
		return;
	BUF_LIT(&line, "RELEASE ");
	side_word(&line, buf_cstr(&r->engine));
	side_word(&line, buf_cstr(&r->id));
	(void)side_ask(g->sim->side, buf_cstr(&r->host), r->port, &line, NULL, NULL);
	buf_free(&line);
}

void
remote_end(struct gen *g)
{
	struct remote *r = g->deal;

	g->deal = NULL;
	if (r == NULL)
		return;
	if (r->op != NULL)
		side_forget(r->op);
	buf_free(&r->host);
	buf_free(&r->engine);
	buf_free(&r->id);
	free(r);
}

/* ---- P ---- */

/* The KV of prompt `i`, child `k`: taken over from what the request had reserved. */
static struct hold *
hold_one(struct gen *g, unsigned i, unsigned k)
{
	const struct prompt *p = &g->prompts[i];
	struct buf id = {0};
	struct hold *h;

	if (k)
		buf_fmt(&id, "%u_", k);
	buf_str(&id, g->chat ? "chatcmpl-" : "cmpl-");
	buf_add(&id, g->rid.p, g->rid.len);
	if (!g->chat)
		buf_fmt(&id, "-%u", i);
	if (!g->sim->o.no_id_suffix && g->sim->o.vllm <= VLLM_0_19) /* since 0.14 */
		buf_fmt(&id, "-%08x", (unsigned)(sim_random(g->sim) >> 32));
	h = kv_hold(g->sim->kv, buf_cstr(&id), buf_cstr(&g->rid), (uint32_t)p->ntokens);
	h->prompt = gen_prompt_key(g);
	g->reserved -= h->nblocks;
	buf_free(&id);
	return h;
}

/* Every prompt and child holds blocks, but only the first one's parameters are answered, as vLLM
 * does: the others wait for their timeout.  NULL when the first has nothing to hand off. */
void
remote_hold(struct gen *g)
{
	struct remote *r = g->deal != NULL ? g->deal : remote_new(g);
	struct hold *h;
	unsigned i, k;

	for (i = 0; i < g->nprompts && !fault_null_kv(g->c); i++) {
		for (k = 0; !g->prompts[i].eos && k < (unsigned)g->n; k++) {
			h = hold_one(g, i, k);
			if (i == 0 && k == 0)
				r->hold = h;
		}
	}
	if (r->hold == NULL)
		count(g->sim, CTR_kv_null);
	gen_reply(g);
}

bool
remote_fetched(struct sim *sim, struct side_q *q, const struct shake_words *w)
{
	static const char *const what[] = {[KV_DIFFER_ENGINE] = "engine_id",
		[KV_DIFFER_META] = "kv_transfer_params",
		[KV_DIFFER_PROMPT] = "prompt"};
	struct buf xrid = {0}, line = {0};
	enum kv_outcome v;
	uint32_t n = 0;

	v = kv_fetch(sim->kv, w->w[1], w->w[2], strtoull(w->w[3], NULL, 16),
		strtoull(w->w[4], NULL, 16), &n, &xrid);
	if (v == KV_OK) {
		buf_fmt(&line, "OK %u ", n);
		side_word(&line, buf_cstr(&xrid));
	} else if (v != KV_MISSING) {
		buf_fmt(&line, "DIFFER %s", what[v]);
	}
	if (v != KV_MISSING)
		side_answer(q, buf_cstr(&line));
	buf_free(&line);
	buf_free(&xrid);
	return v != KV_MISSING;
}

void
remote_asked(struct sim *sim, struct side_q *q, const struct shake_words *w)
{
	if (w->n == 5 && strcmp(w->w[0], "FETCH") == 0) {
		if (!remote_fetched(sim, q, w))
			side_answer(q, "MISSING");
	} else if (w->n == 3 && strcmp(w->w[0], "RELEASE") == 0) {
		side_answer(q, kv_release(sim->kv, w->w[1], w->w[2]) ? "OK 0 %" : "MISSING");
	} else {
		side_answer(q, "DIFFER request");
	}
}
