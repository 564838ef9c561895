#include "tests/engine/admin.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/json.h"
#include "tests/engine/kv.h"
#include "tests/engine/last.h"
#include "tests/engine/prompt.h"
#include "tests/engine/seen.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

static void
reply(struct conn *c, struct buf *b)
{
	conn_reply(c, 200, "application/json", NULL, b->p, b->len);
	buf_free(b);
}

/* The body as JSON; absent, and the request refused, when it is not.  An empty body is {}. */
static struct jv
body(struct conn *c)
{
	struct jv doc;

	if (c->body.len == 0)
		return (struct jv){"{}", 2};
	doc = json_doc(c->body.p, c->body.len);
	if (json_kind(doc) == '{')
		return doc;
	conn_error(c, 400, "BadRequestError", "the body is not a JSON object");
	return (struct jv){NULL, 0};
}

static void
ok(struct conn *c)
{
	struct buf b = {0};

	buf_fmt(&b, "{\"ok\":true,\"faults\":%u}", fault_armed(c->sim));
	reply(c, &b);
}

/* ---- engine ---- */

/* vLLM draws the id anew for each answer. */
static void
put_permission(struct sim *sim, long long now, struct buf *b)
{
	buf_fmt(b,
		",\"permission\":[{\"id\":\"modelperm-%016llx%016llx\",\"object\":\"model_permission\","
		"\"created\":%lld,\"allow_create_engine\":false,\"allow_sampling\":true,"
		"\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
		"\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,"
		"\"is_blocking\":false}]",
		(unsigned long long)sim_random(sim), (unsigned long long)sim_random(sim), now);
}

void
admin_put_model(const struct conn *c, const char *name, struct buf *b)
{
	const bool vllm = c->sim->o.engine == FLAVOUR_VLLM;
	const long long now = (long long)time(NULL);

	BUF_LIT(b, "{\"id\":");
	buf_json(b, name, strlen(name));
	buf_fmt(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"%s\",\"root\":", now,
		vllm ? "vllm" : "sglang");
	buf_json(b, name, strlen(name));
	buf_fmt(b, ",\"parent\":null,\"max_model_len\":%lld", (long long)c->sim->o.max_model_len);
	if (vllm)
		put_permission(c->sim, now, b);
	BUF_LIT(b, "}");
}

void
admin_models(struct conn *c)
{
	const struct opts *o = &c->sim->o;
	struct buf b = {0};
	unsigned i;

	BUF_LIT(&b, "{\"object\":\"list\",\"data\":[");
	for (i = 0; i < o->nmodels; i++) {
		if (i)
			BUF_LIT(&b, ",");
		admin_put_model(c, o->models[i], &b);
	}
	BUF_LIT(&b, "]}");
	reply(c, &b);
}

void
admin_health(struct conn *c)
{
	conn_reply(c, c->sim->health, NULL, NULL, "", 0);
}

void
admin_ready(struct conn *c)
{
	conn_reply(c, c->sim->ready, NULL, NULL, "", 0);
}

void
admin_absent(struct conn *c)
{
	static const char missing[] = "{\"detail\":\"Not Found\"}";

	conn_reply(c, 404, "application/json", NULL, missing, sizeof(missing) - 1);
}

/* vLLM's */
void
admin_version(struct conn *c)
{
	static const char *const versions[] = {[VLLM_0_33] = "0.33",
		[VLLM_0_19] = "0.19",
		[VLLM_0_13] = "0.13",
		[VLLM_0_11] = "0.11"};
	struct buf b = {0};

	if (c->sim->o.engine != FLAVOUR_VLLM) {
		admin_absent(c);
		return;
	}
	buf_fmt(&b, "{\"version\":\"%s.0+pdsim\",\"name\":", versions[c->sim->o.vllm]);
	buf_json(&b, c->sim->o.name, strlen(c->sim->o.name));
	buf_fmt(&b, ",\"engine_id\":\"%s\"}", c->sim->engine_id);
	reply(c, &b);
}

/* SGLang's: its server args, flat, of which these are a choice, then the state of each rank. */
void
admin_server_info(struct conn *c)
{
	static const char *const modes[] = {
		[ROLE_BOTH] = "null", [ROLE_PREFILL] = "prefill", [ROLE_DECODE] = "decode"};
	const struct opts *o = &c->sim->o;
	bool old_name = strncmp(buf_cstr(&c->url), "/get_", 5) == 0;
	struct buf b = {0};

	if (o->engine != FLAVOUR_SGLANG || (o->old_server_info && !old_name)) {
		admin_absent(c);
		return;
	}
	BUF_LIT(&b, "{\"model_path\":");
	buf_json(&b, o->models[0], strlen(o->models[0]));
	BUF_LIT(&b, ",\"served_model_name\":");
	buf_json(&b, o->models[0], strlen(o->models[0]));
	buf_fmt(&b,
		",\"context_length\":null,\"tp_size\":1,\"dp_size\":%d,\"disaggregation_mode\":\"%s\","
		"\"disaggregation_bootstrap_port\":%d,\"random_seed\":%u,\"internal_states\":[{\"last_gen_throughput\":0.0,"
		"\"disaggregation_mode\":\"%s\"}],\"version\":\"0.5.23+pdsim\"}",
		o->dp_size, modes[o->role], c->sim->bootstrap_port, c->sim->seed & 0x3fffffff,
		modes[o->role]);
	reply(c, &b);
}

void
admin_load(struct conn *c)
{
	struct buf b = {0};

	buf_fmt(&b, "{\"server_load\":%llu}",
		(unsigned long long)(c->sim->running + c->sim->queued + (uint64_t)c->sim->o.load));
	reply(c, &b);
}

/* SGLang's: no rid it knows is no error. */
void
admin_abort_request(struct conn *c)
{
	struct jv doc = body(c), rid = json_get(doc, "rid");
	struct buf text = {0};

	if (doc.p == NULL)
		return;
	if (c->sim->o.engine != FLAVOUR_SGLANG) {
		admin_absent(c);
		return;
	}
	json_text_buf(rid, &text);
	if (text.len || json_true(json_get(doc, "abort_all")))
		gen_abort(c->sim, text.p, text.len);
	buf_free(&text);
	conn_reply(c, 200, NULL, NULL, "", 0);
}

bool
admin_known_model(const struct conn *c, struct jv model)
{
	const struct opts *o = &c->sim->o;
	unsigned i;

	for (i = 0; i < o->nmodels && !json_null(model); i++)
		if (json_is(model, o->models[i]))
			return true;
	return json_null(model);
}

/* vLLM's check_model() (entrypoints/openai/models/serving.py); the older, flat errors had no `param`. */
void
admin_refuse_model(struct conn *c, struct jv model)
{
	struct buf name = {0}, text = {0}, b = {0};

	json_text_buf(model, &name);
	buf_fmt(&text, "The model `%s` does not exist.", buf_cstr(&name));
	if (c->sim->o.flat_errors || strncmp(buf_cstr(&c->url), "/v1/messages", 12) == 0) {
		conn_error_json(c, &b, 404, "NotFoundError", buf_cstr(&text));
	} else {
		BUF_LIT(&b, "{\"error\":{\"message\":");
		buf_json(&b, text.p, text.len);
		BUF_LIT(&b, ",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}");
	}
	conn_reply(c, 404, "application/json", NULL, b.p, b.len);
	buf_free(&name);
	buf_free(&text);
	buf_free(&b);
}

void
admin_tokenize(struct conn *c)
{
	struct jv doc = body(c), prompt = json_get(doc, "prompt"), parts[PROMPT_PARTS];
	const char *wrong = NULL;
	struct buf b = {0};
	struct toks t;

	if (doc.p == NULL)
		return;
	if (json_kind(prompt) != '"' && json_kind(json_get(doc, "messages")) != '[') {
		conn_error(
			c, 400, "BadRequestError", "prompt: must be a string, or messages a list");
		return;
	}
	if (!admin_known_model(c, json_get(doc, "model"))) {
		admin_refuse_model(c, json_get(doc, "model"));
		return;
	}
	BUF_LIT(&b, "{\"tokens\":[");
	toks_init(&t, &b);
	if (json_kind(prompt) == '"') {
		prompt_string(prompt, json_true(json_get(json_get(doc, "pdsim"), "words")), &t);
	} else {
		for (unsigned i = 0; i < PROMPT_PARTS; i++)
			parts[i] = json_get(doc, prompt_parts[i]);
		wrong = prompt_chat(parts, c->sim->o.engine == FLAVOUR_SGLANG, &t);
	}
	if (wrong != NULL) {
		buf_free(&b);
		conn_error(c, 400, "BadRequestError", "%s", wrong);
		return;
	}
	buf_fmt(&b, "],\"count\":%llu,\"max_model_len\":%lld,\"token_strs\":null}",
		(unsigned long long)t.n, (long long)c->sim->o.max_model_len);
	reply(c, &b);
}

void
admin_detokenize(struct conn *c)
{
	struct jv doc = body(c), ids = json_get(doc, "tokens"), key, val;
	struct buf b = {0}, text = {0};
	struct jiter it;

	if (doc.p == NULL)
		return;
	if (json_kind(ids) != '[') {
		conn_error(c, 400, "BadRequestError", "tokens: must be a list");
		return;
	}
	(void)json_iter(&it, ids);
	while (json_next(&it, &key, &val))
		text_detok(&text, (uint32_t)json_num(val, 0));
	BUF_LIT(&b, "{\"prompt\":");
	buf_json(&b, text.p, text.len);
	BUF_LIT(&b, "}");
	buf_free(&text);
	reply(c, &b);
}

/* ---- steering ---- */

void
admin_sim_fault(struct conn *c)
{
	struct jv doc = body(c);
	const char *wrong;

	if (doc.p == NULL)
		return;
	wrong = fault_add(c->sim, doc);
	if (wrong != NULL)
		conn_error(c, 400, "BadRequestError", "fault: %s", wrong);
	else
		ok(c);
}

static bool
status_of(struct jv v, int *ret)
{
	int64_t n;

	if (json_null(v))
		return false;
	if (json_int(v, &n) && n >= 200 && n < 600)
		*ret = (int)n;
	return true;
}

void
admin_sim_health(struct conn *c)
{
	struct sim *sim = c->sim;
	struct jv doc = body(c);

	if (doc.p == NULL)
		return;
	if (status_of(json_get(doc, "status"), &sim->health))
		sim->ready = sim->health;
	(void)status_of(json_get(doc, "ready"), &sim->ready);
	ok(c);
}

void
admin_sim_load(struct conn *c)
{
	struct jv doc = body(c);
	int64_t n;

	if (doc.p == NULL)
		return;
	if (json_int(json_get(doc, "running"), &n) && n >= 0 && n < INT32_MAX)
		c->sim->o.load = (int)n;
	if (json_int(json_get(doc, "waiting"), &n) && n >= 0 && n < INT32_MAX)
		c->sim->o.load_waiting = (int)n;
	c->sim->load_fixed = json_true(json_get(doc, "fixed"));
	ok(c);
}

void
admin_sim_pause(struct conn *c)
{
	struct sim *sim = c->sim;
	struct jv doc = body(c), step = json_get(doc, "step");
	int64_t n;

	if (doc.p == NULL)
		return;
	if (json_int(step, &n) && n >= 0) {
		sim->pause = true;
		gen_step(sim, n);
	} else if (json_kind(json_get(doc, "pause")) == 'f') {
		sim->pause = false;
		gen_step(sim, -1);
	} else {
		sim->pause = true;
	}
	ok(c);
}

/* The number behind `name=` in the query, or dflt */
static unsigned
query(struct conn *c, const char *name, unsigned dflt)
{
	const char *q = strchr(buf_cstr(&c->url), '?');
	size_t n = strlen(name);

	while (q != NULL) {
		if (strncmp(q + 1, name, n) == 0 && q[n + 1] == '=')
			return (unsigned)strtoul(q + n + 2, NULL, 10);
		q = strchr(q + 1, '&');
	}
	return dflt;
}

void
admin_sim_last(struct conn *c)
{
	struct buf b = {0};

	BUF_LIT(&b, "{\"requests\":");
	last_dump(c->sim->last[query(c, "other", 0) != 0], query(c, "n", LAST_N), &b);
	BUF_LIT(&b, "}");
	reply(c, &b);
}

/* What waits for somebody, here and on its way. */
void
admin_sim_held(struct conn *c)
{
	static const char *const states[] = {[GEN_NEW] = "new",
		[GEN_QUEUED] = "queued",
		[GEN_TRAVEL] = "travel",
		[GEN_REST] = "rest",
		[GEN_TURN] = "turn",
		[GEN_COMPUTE] = "compute",
		[GEN_STREAM] = "stream"};
	struct buf b = {0};
	struct gen *g;
	unsigned i;

	BUF_LIT(&b, "{\"held\":");
	kv_list(c->sim->kv, &b);
	BUF_LIT(&b, ",\"running\":[");
	TAILQ_FOREACH(g, &c->sim->gens, all)
	{
		buf_str(&b,
			g == TAILQ_FIRST(&c->sim->gens) ? "{\"request_id\":" : ",{\"request_id\":");
		buf_json(&b, g->rid.p, g->rid.len);
		buf_fmt(&b, ",\"state\":\"%s\",\"created\":%ld,\"stalled\":%s}", states[g->state],
			g->created, g->stalled ? "true" : "false");
	}
	BUF_LIT(&b, "],\"twice\":[");
	for (i = 0; i < c->sim->ntwice && i < TWICE_MAX; i++) {
		buf_str(&b, i > 0 ? "," : "");
		buf_json(&b, c->sim->twice[i], strlen(c->sim->twice[i]));
	}
	BUF_LIT(&b, "]}");
	reply(c, &b);
}

void
admin_sim_reset(struct conn *c)
{
	struct sim *sim = c->sim;

	memset(sim->counters, 0, sizeof(sim->counters));
	memset(sim->requests, 0, sizeof(sim->requests));
	fault_clear(sim);
	last_clear(sim->last[0]);
	last_clear(sim->last[1]);
	seen_clear(sim->seen);
	sim->health = sim->ready = 200;
	if (sim->pause) {
		sim->pause = false;
		gen_step(sim, -1);
	}
	ok(c);
}
