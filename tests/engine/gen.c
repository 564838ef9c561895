#include "tests/engine/gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/engine/admin.h"
#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/kv.h"
#include "tests/engine/last.h"
#include "tests/engine/oneleg.h"
#include "tests/engine/prefix.h"
#include "tests/engine/seen.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

#define EVENTS_A_TURN 32 /* then the other connections have their turn */

static void admit(struct gen *g);
static void next_turn(struct sim *sim);
static void on_computed(struct conn *c);
static void stream_run(struct gen *g);

/* ---- begin and end ---- */

bool
gen_fresh_id(struct conn *c)
{
	size_t n;
	const char *v = conn_header(c, "x-request-id", &n);

	if (v == NULL || n == 0 || !seen_before(c->sim->seen, v, n))
		return true;
	count_twice(c->sim, CTR_duplicate_request_ids, v, n);
	conn_error(c, 400, "BadRequestError", "request id %.*s was used before", (int)n, v);
	return false;
}

static void
leave_state(struct gen *g)
{
	struct sim *sim = g->sim;

	if (g->state == GEN_QUEUED) {
		TAILQ_REMOVE(&sim->queue, g, queued);
		sim->queued--;
	}
	if (g->state == GEN_TRAVEL)
		sim->travelling--;
	if (g->state == GEN_REST)
		sim->resting--;
	if (g->state == GEN_STREAM)
		sim->streams--;
	if (g->state == GEN_TURN) {
		TAILQ_REMOVE(&sim->turns, g, queued);
		sim->waiting_turns--;
	}
	if (sim->computing == g) {
		sim->computing = NULL;
		if (sim->computed_us > sim_now_us())
			sim->computed_us = sim_now_us(); /* it left before it was done */
		next_turn(sim);
	}
}

static void
enter(struct gen *g, enum gen_state state)
{
	leave_state(g);
	g->state = state;
	if (state == GEN_QUEUED) {
		TAILQ_INSERT_TAIL(&g->sim->queue, g, queued);
		g->sim->queued++;
	}
	if (state == GEN_TRAVEL)
		g->sim->travelling++;
	if (state == GEN_STREAM)
		g->sim->streams++;
	if (state == GEN_TURN) {
		TAILQ_INSERT_TAIL(&g->sim->turns, g, queued);
		g->sim->waiting_turns++;
	}
}

/* Its connection's request has been answered, or is gone. */
static void
end(struct gen *g)
{
	struct sim *sim = g->sim;

	leave_state(g);
	if (g->running) {
		sim->running -= !g->resting;
		kv_unreserve(sim->kv, g->reserved);
	}
	if (sim->shake->end != NULL)
		sim->shake->end(g);
	TAILQ_REMOVE(&sim->gens, g, all);
	buf_free(&g->rid);
	buf_free(&g->pre);
	for (unsigned i = 0; i < g->nprompts; i++)
		buf_free(&g->prompts[i].ids);
	free(g->prompts);
	free(g->choices);
	free(g);
	gen_pump(sim);
}

static void
unused(struct gen *g)
{
	if (g->sim->shake->unused != NULL)
		g->sim->shake->unused(g);
}

/* vLLM from 0.21: a request that it refuses before its engine has it tells P that nobody comes (its
 * PR 41269); an older one leaves P to its timeout, and so does whatever FastAPI refuses. */
static void
refused(struct gen *g)
{
	if (g->sim->o.vllm == VLLM_0_33 && !g->unread)
		unused(g);
}

void
gen_gone(struct gen *g)
{
	count(g->sim, CTR_aborted);
	last_aborted(g->sim->last[0], g->c->last_seq);
	unused(g);
	end(g);
}

/* Its engine is broken, and its HTTP server says so. */
static bool
fails_early(struct gen *g)
{
	int status = fault_refusal(g->c);

	if (status != 0)
		conn_error(g->c, status, "InternalServerError", "simulated refusal");
	return status != 0;
}

static void
start(struct conn *c, enum gen_api api, bool chat, bool native)
{
	struct gen *g = calloc(1, sizeof(*g));

	if (g == NULL)
		abort();
	g->c = c;
	g->sim = c->sim;
	g->api = api;
	g->chat = chat;
	g->native = native;
	g->created = (long)time(NULL);
	TAILQ_INSERT_TAIL(&g->sim->gens, g, all);
	if (!gen_parse(g) || fails_early(g)) {
		refused(g);
		end(g);
		return;
	}
	c->gen = g;
	enter(g, GEN_QUEUED);
	gen_pump(g->sim);
}

void
gen_chat(struct conn *c)
{
	start(c, API_OPENAI, true, false);
}

void
gen_completion(struct conn *c)
{
	start(c, API_OPENAI, false, false);
}

void
gen_generate(struct conn *c)
{
	if (c->sim->o.engine == FLAVOUR_SGLANG)
		start(c, API_OPENAI, false, true);
	else
		admin_absent(c);
}

void
gen_agent(struct conn *c)
{
	static const char messages[] = "/v1/messages";

	if (!c->is_gen)
		oneleg_answer(c);
	else if (strncmp(buf_cstr(&c->url), messages, sizeof(messages) - 1) == 0)
		start(c, API_MESSAGES, true, false);
	else
		start(c, API_RESPONSES, true, false);
}

void
gen_pump(struct sim *sim)
{
	struct gen *g;

	if (sim->pumping)
		return;
	sim->pumping = true;
	while ((g = TAILQ_FIRST(&sim->queue)) != NULL) {
		if (sim->o.max_running && sim->running >= (uint64_t)sim->o.max_running)
			break;
		if (!kv_reserve(sim->kv, g->reserved))
			break;
		g->running = true;
		sim->running++;
		if (sim->running > sim->running_max)
			sim->running_max = sim->running;
		admit(g);
	}
	sim->pumping = false;
}

/* ---- what the hand-shake says ---- */

static void
admit(struct gen *g)
{
	if (g->aborted)
		gen_reply(g);
	else if (g->mode != GEN_PLAIN && g->sim->shake->admitted != NULL)
		g->sim->shake->admitted(g);
	else
		gen_compute(g);
}

void
gen_travel(struct gen *g)
{
	enter(g, GEN_TRAVEL);
}

void
gen_rest(struct gen *g)
{
	enter(g, GEN_REST);
	g->resting = true;
	g->sim->resting++;
	g->sim->running--;
	gen_pump(g->sim);
}

static struct prefix_prompt
prefix_of(const struct gen *g, unsigned i)
{
	const struct buf *ids = &g->prompts[i].ids;
	const bool base = json_kind(g->model) != '"' || json_is(g->model, g->sim->o.models[0]);
	const struct jv none = {NULL, 0};

	return (struct prefix_prompt){.root = g->model_key,
		.ids = (const uint32_t *)(const void *)ids->p,
		.nids = ids->len / sizeof(uint32_t),
		.adapter = base ? none : g->model,
		.salt = json_kind(g->salt) == '"' ? g->salt : none};
}

/* How many tokens of its prompts have to be computed. */
static uint64_t
look_up(struct gen *g)
{
	struct sim *sim = g->sim;
	uint64_t all = 0, cached = 0;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		const struct prefix_prompt p = prefix_of(g, i);

		if (sim->prefix != NULL)
			g->prompts[i].cached = prefix_find(sim->prefix, &p);
		all += g->prompts[i].ntokens;
		cached += g->prompts[i].cached;
	}
	if (sim->prefix != NULL) {
		sim->counters[CTR_prefix_queries] += all;
		sim->counters[CTR_prefix_hits] += cached;
	}
	return all - cached;
}

static double
compute_ms(struct gen *g)
{
	const struct opts *o = &g->sim->o;
	double us = o->prefill_us_per_token * (double)look_up(g);

	return fault_prefill_ms(g->c, o->prefill_delay_ms + us / 1000);
}

/* The next prompt begins when the one before it is done, however late the timer was. */
static void
next_turn(struct sim *sim)
{
	struct gen *g = TAILQ_FIRST(&sim->turns);
	uint64_t now = sim_now_us();

	if (sim->computing != NULL || g == NULL)
		return;
	enter(g, GEN_COMPUTE);
	sim->computing = g;
	if (sim->computed_us < g->arrived_us)
		sim->computed_us = g->arrived_us;
	sim->computed_us += (uint64_t)(compute_ms(g) * 1000);
	conn_after(g->c, sim->computed_us > now ? (double)(sim->computed_us - now) / 1000 : 0,
		on_computed);
}

void
gen_compute(struct gen *g)
{
	double ms = 0;

	if (g->aborted) {
		enter(g, GEN_COMPUTE);
		gen_reply(g);
	} else if (g->mode != GEN_DECODE && g->sim->o.prefill_us_per_token > 0) {
		g->arrived_us = sim_now_us();
		enter(g, GEN_TURN);
		next_turn(g->sim);
	} else {
		enter(g, GEN_COMPUTE);
		if (g->mode != GEN_DECODE)
			ms = compute_ms(g);
		if (ms > 0)
			conn_after(g->c, ms, on_computed);
		else
			on_computed(g->c);
	}
}

bool
gen_refuse(struct gen *g, enum counter which, int status, const char *msg)
{
	count(g->sim, which);
	conn_error(
		g->c, status, status < 500 ? "BadRequestError" : "InternalServerError", "%s", msg);
	return false;
}

/* A failure after 200, to its [DONE].  Where an error is flat by itself, an event still wraps it. */
static void
put_failure(struct gen *g, const char *msg, struct buf *b)
{
	bool flat = g->sim->o.flat_errors && !g->native;

	buf_fill(b, 0, CHUNK_ROOM);
	if (g->api != API_OPENAI) {
		agent_failure(msg, b);
		buf_reserve(b, 2);
		return;
	}
	buf_str(b, flat ? "data: {\"error\":" : "data: ");
	if (g->native)
		native_failure(g, msg, b);
	else
		conn_error_json(g->c, b, 500, "InternalServerError", msg);
	buf_str(b, flat ? "}\n\ndata: [DONE]\n\n" : "\n\ndata: [DONE]\n\n");
	buf_reserve(b, 2);
}

void
gen_fail(struct gen *g, enum counter why, const char *what)
{
	struct conn *c = g->c;
	bool late = g->stream && (g->headed || g->sim->o.late_errors), headed = g->headed;
	struct buf b = {0}, text = {0};
	const char *msg;

	count(g->sim, why);
	last_failed(g->sim->last[0], c->last_seq, what);
	if (g->sim->shake->failure != NULL)
		g->sim->shake->failure(g, what, &text);
	else
		BUF_LIT(&text, "Internal server error");
	msg = buf_cstr(&text);
	if (late)
		put_failure(g, msg, &b);
	c->gen = NULL;
	end(g);
	if (!late) {
		conn_error(c, 500, "InternalServerError", "%s", msg);
		buf_free(&text);
		return;
	}
	if (!headed)
		conn_stream_head(c);
	(void)conn_chunk(c, b.p + CHUNK_ROOM, b.len - CHUNK_ROOM);
	if (c->chunked)
		conn_write(c, "0\r\n\r\n", 5);
	conn_finish(c);
	buf_free(&text);
	buf_free(&b);
}

/* ---- answering ---- */

static void
answer_whole(struct conn *c)
{
	struct gen *g = c->gen;
	struct sim *sim = g->sim;
	struct buf *b = &sim->scratch;
	struct shake_extra x = {0};
	bool leg = g->mode == GEN_PREFILL && !g->aborted;

	if (leg && sim->shake->answer != NULL)
		sim->shake->answer(g, &x);
	b->len = 0;
	gen_answer(g, b, &x);
	if (leg && sim->shake->answered != NULL)
		sim->shake->answered(g, b->p, b->len);
	c->gen = NULL;
	conn_reply(c, 200, "application/json", NULL, b->p, b->len);
	buf_free(&x.kv);
	buf_free(&x.fingerprint);
	end(g); /* last: it may let a queued request use the scratch buffer */
}

void
gen_reply(struct gen *g)
{
	double gap = fault_gap_ms(g->c, g->sim->o.token_delay_ms);

	enter(g, GEN_COMPUTE);
	gen_begin_text(g);
	if (g->stream) {
		enter(g, GEN_STREAM);
		g->due_us = sim_now_us();
		if (!g->headed)
			conn_stream_head(g->c);
		stream_run(g);
	} else if (gap > 0 && g->mode != GEN_PREFILL && g->choices[0].ntokens > 1) {
		conn_after(g->c, gap * (g->choices[0].ntokens - 1), answer_whole);
	} else {
		answer_whole(g->c);
	}
}

/* The prompt's KV is here, computed or fetched. */
static void
on_computed(struct conn *c)
{
	struct gen *g = c->gen;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		const struct prefix_prompt p = prefix_of(g, i);

		g->sim->counters[CTR_prompt_tokens] += g->prompts[i].ntokens;
		if (g->sim->prefix != NULL)
			prefix_store(g->sim->prefix, &p);
	}
	enter(g, GEN_COMPUTE); /* another prompt has its turn */
	if (g->mode == GEN_PREFILL && g->sim->shake->computed != NULL)
		g->sim->shake->computed(g);
	else
		gen_reply(g);
}

/* ---- streaming ---- */

static void
on_stream_timer(struct conn *c)
{
	if (c->gen != NULL)
		stream_run(c->gen);
}

static void
stream_fault(struct gen *g)
{
	struct conn *c = g->c;

	if (fault_is_stall(c)) {
		g->stalled = true; /* it stays a running request until the client leaves */
		return;
	}
	c->gen = NULL;
	fault_cut(c);
	end(g);
}

static void
stream_end(struct gen *g)
{
	struct conn *c = g->c;

	c->gen = NULL;
	if (c->chunked)
		conn_write(c, "0\r\n\r\n", 5);
	conn_finish(c);
	end(g);
}

/* Whether the next event has to wait; if for a time, the timer is set. */
static bool
must_wait(struct gen *g, unsigned *turns)
{
	double gap = fault_gap_ms(g->c, g->sim->o.token_delay_ms);
	uint64_t now;

	if (!conn_can_write(g->c))
		return true;
	if (g->sim->pause && g->credit == 0 && !g->aborted)
		return true;
	if (--*turns == 0) {
		conn_after(g->c, 0, on_stream_timer);
		return true;
	}
	if (gap > 0 && g->phase == PHASE_TOKENS && g->at == 0) {
		now = sim_now_us();
		if (now < g->due_us) {
			conn_after(g->c, (double)(g->due_us - now) / 1000, on_stream_timer);
			return true;
		}
		g->due_us += (uint64_t)(gap * 1000);
	}
	return false;
}

static void
stream_run(struct gen *g)
{
	struct conn *c = g->c;
	struct buf *b = &g->sim->scratch;
	unsigned turns = EVENTS_A_TURN;
	size_t n;

	while (!g->stalled) {
		if (fault_due(c, g->events)) {
			stream_fault(g);
			return;
		}
		if (g->phase == PHASE_END) {
			if (conn_can_write(c))
				stream_end(g);
			return;
		}
		if (must_wait(g, &turns))
			return;
		(void)gen_event(g, b, &n);
		g->events++;
		if (g->credit)
			g->credit--;
		count(g->sim, CTR_events);
		(void)conn_chunk(c, b->p + CHUNK_ROOM, n);
	}
}

void
gen_go_on(struct gen *g)
{
	if (g->state == GEN_STREAM)
		stream_run(g);
}

void
gen_step(struct sim *sim, int64_t n)
{
	struct gen *g;

	TAILQ_FOREACH(g, &sim->gens, all)
	{
		g->credit = n < 0 ? 0 : g->credit + (uint64_t)n;
		if (g->state == GEN_STREAM)
			conn_after(g->c, 0, on_stream_timer);
	}
}

/* ---- /abort_request ---- */

static void
on_aborted(struct conn *c)
{
	struct gen *g = c->gen;

	if (g == NULL)
		return;
	if (g->choices == NULL)
		gen_reply(g);
	else if (g->stream)
		stream_run(g);
	else
		answer_whole(c);
}

/* A stream says one token more, with which it ends; what has said nothing yet ends without any. */
static void
abort_one(struct gen *g)
{
	unsigned i;

	count(g->sim, CTR_aborted_by_rid);
	g->aborted = true;
	for (i = 0; g->choices != NULL && i < g->nchoices; i++) {
		struct choice *ch = &g->choices[i];

		if (ch->done + g->stream < ch->ntokens)
			ch->ntokens = ch->done + g->stream;
	}
	conn_after(g->c, 0, on_aborted);
}

/* One of a batch ends all of it. */
static bool
has_rid(const struct gen *g, const char *rid, size_t n)
{
	struct jv key, val;
	struct jiter it;
	struct buf b = {0};
	bool found = g->rid.len >= n && memcmp(g->rid.p, rid, n) == 0;

	if (found || !json_iter(&it, g->rids))
		return found;
	while (!found && json_next(&it, &key, &val)) {
		b.len = 0;
		json_text_buf(val, &b);
		found = b.len >= n && memcmp(b.p, rid, n) == 0;
	}
	buf_free(&b);
	return found;
}

void
gen_abort(struct sim *sim, const char *rid, size_t n)
{
	struct gen *g;

	TAILQ_FOREACH(g, &sim->gens, all)
	if (!g->aborted && !g->stalled && has_rid(g, rid, n))
		abort_one(g);
}
