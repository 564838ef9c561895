/*
 * What a generation request asks for.  Refuses what vLLM refuses and a router can get wrong.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/admin.h"
#include "tests/engine/conn.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/prompt.h"
#include "tests/engine/shake.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

#define PROMPTS_MAX 4096
#define N_MAX 128

/* clang-format off */
enum member {
	M_MODEL, M_PROMPT, M_STREAM, M_STREAM_OPTIONS, M_MAX_TOKENS, M_MAX_COMPLETION_TOKENS,
	M_MIN_TOKENS, M_N, M_LOGPROBS, M_TOP_LOGPROBS, M_PROMPT_LOGPROBS, M_TOOL_CHOICE, M_RESPONSE_FORMAT, M_ECHO, M_IGNORE_EOS, M_REQUEST_ID, M_PDSIM,
	/* what chat text is made of, as in prompt_parts */
	M_MESSAGES, M_TOOLS, M_DOCUMENTS, M_CHAT_TEMPLATE, M_CHAT_TEMPLATE_KWARGS,
	M_ADD_GENERATION_PROMPT, M_CONTINUE_FINAL_MESSAGE, M_MM_PROCESSOR_KWARGS, M_REASONING_EFFORT,
	/* what else KV blocks depend on */
	M_ADD_SPECIAL_TOKENS, M_TRUNCATE_PROMPT_TOKENS, M_CACHE_SALT,
	M_COUNT
};
/* clang-format on */

static const char *const names[M_COUNT] = {"model", "prompt", "stream", "stream_options",
	"max_tokens", "max_completion_tokens", "min_tokens", "n", "logprobs", "top_logprobs",
	"prompt_logprobs", "tool_choice", "response_format", "echo", "ignore_eos", "request_id",
	"pdsim", "messages", "tools", "documents", "chat_template", "chat_template_kwargs",
	"add_generation_prompt", "continue_final_message", "mm_processor_kwargs",
	"reasoning_effort", "add_special_tokens", "truncate_prompt_tokens", "cache_salt"};

struct parse {
	struct gen *g;
	struct jv m[M_COUNT];
	const char *wrong; /* the first thing that is; NULL: nothing */
	bool malformed;    /* it is the body's form */
};

/* A value that the engine refuses, having looked at the model's name first. */
static void
bad_value(struct parse *p, const char *why)
{
	if (p->wrong == NULL)
		p->wrong = why;
}

/* A body that FastAPI refuses: vLLM's own code never sees it. */
static bool
bad(struct parse *p, const char *why)
{
	if (p->wrong == NULL || !p->malformed)
		p->wrong = why;
	p->malformed = true;
	return false;
}

static bool
split(struct parse *p, struct jv doc)
{
	const char *const *handed = p->g->sim->shake->members;
	struct jv key, val;
	struct jiter it;
	int i;

	if (!json_iter_check(&it, doc) || it.close != '}')
		return bad(p, "the body is not a JSON object");
	while (json_next(&it, &key, &val)) { /* the last of a name counts, as in Python */
		for (i = 0; i < M_COUNT; i++)
			if ((key.p[1] == names[i][0] || key.p[1] == '\\') && json_is(key, names[i]))
				p->m[i] = val;
		for (i = 0; i < SHAKE_MEMBERS && handed[i] != NULL; i++)
			if (json_is(key, handed[i]))
				p->g->handed[i] = val;
	}
	return json_iter_ended(&it) || bad(p, "the body is not valid JSON");
}

/* ---- prompts ---- */

static struct prompt *
add_prompt(struct gen *g)
{
	struct prompt *t = realloc(g->prompts, (g->nprompts + 1) * sizeof(*t));

	if (t == NULL)
		abort();
	g->prompts = t;
	t += g->nprompts++;
	memset(t, 0, sizeof(*t));
	return t;
}

static void
take(struct prompt *t, const struct toks *toks)
{
	t->seed = toks->hash;
	t->before = toks->before;
	t->last = toks->last;
	t->ntokens = toks->n;
}

/* Begins the ids of the prompt; the prefix cache needs each of them. */
static void
keep_ids(const struct gen *g, struct prompt *t, struct toks *toks)
{
	toks_init(toks, NULL);
	toks->raw = g->sim->prefix != NULL ? &t->ids : NULL;
}

static bool
has_marker(struct jv v)
{
	return v.p != NULL && memmem(v.p, v.len, "<<eos>>", 7) != NULL;
}

static void
prompt_text(struct gen *g, struct jv str, bool words)
{
	struct prompt *t = add_prompt(g);
	struct toks toks;

	keep_ids(g, t, &toks);
	prompt_string(str, words, &toks);
	take(t, &toks);
	t->span = str;
	t->eos = has_marker(str);
}

static bool
token_id(struct jv v, uint32_t *ret)
{
	uint64_t id = 0;
	size_t i;

	if (v.len > 10)
		return false;
	for (i = 0; i < v.len; i++) {
		if (v.p[i] < '0' || v.p[i] > '9')
			return false;
		id = id * 10 + (uint64_t)(v.p[i] - '0');
	}
	*ret = (uint32_t)id;
	return id <= UINT32_MAX;
}

/* The last bytes of a prompt of ids, to find <<eos>> there too, which may begin inside an id. */
#define MARKER 0x3c3c656f733e3eULL
#define MARKER_MASK 0xffffffffffffffULL

static bool
marker_end(uint64_t *seen, unsigned char c)
{
	*seen = *seen << 8 | c;
	return (*seen & MARKER_MASK) == MARKER;
}

static bool
marker_in(uint64_t *seen, uint32_t id)
{
	unsigned i, n = id < TOK_REST1 ? 3 : id < TOK_REST2 ? 1 : id < TOK_WORD ? 2 : 0;
	bool found = false;

	for (i = 0; i < n; i++)
		found = marker_end(seen, (unsigned char)(id >> 8 * i)) || found;
	return found;
}

static bool
prompt_ids(struct parse *p, struct jv ids)
{
	struct prompt *t = add_prompt(p->g);
	struct jv key, val;
	struct jiter it;
	struct toks toks;
	uint64_t seen = 0;
	uint32_t id;

	keep_ids(p->g, t, &toks);
	(void)json_iter(&it, ids);
	while (json_next(&it, &key, &val)) {
		if (!token_id(val, &id))
			return bad(p, "prompt: token ids must be non-negative integers");
		toks_id(&toks, id);
		t->eos = marker_in(&seen, id) || t->eos;
	}
	take(t, &toks);
	t->span = ids;
	return true;
}

static bool
says_words(const struct parse *p)
{
	return json_true(json_get(p->m[M_PDSIM], "words"));
}

static bool
prompt_list(struct parse *p, struct jv list)
{
	struct jv key, val;
	struct jiter it;
	char first = 0;

	(void)json_iter(&it, list);
	while (json_next(&it, &key, &val)) {
		if (first == 0)
			first = json_kind(val);
		if (first == '0')
			return prompt_ids(p, list);
		if (json_kind(val) != first || (first != '"' && first != '['))
			return bad(p,
				"prompt: a string, a list of strings, token ids or lists of them");
		if (p->g->nprompts == PROMPTS_MAX)
			return bad(p, "prompt: too many");
		if (first == '"')
			prompt_text(p->g, val, says_words(p));
		else if (!prompt_ids(p, val))
			return false;
	}
	return true;
}

static bool
read_prompt(struct parse *p)
{
	struct jv v = p->m[M_PROMPT];
	unsigned i;

	if (json_kind(v) == '"')
		prompt_text(p->g, v, says_words(p));
	else if (json_kind(v) == '[')
		(void)prompt_list(p, v);
	else
		return bad(p, "prompt: a string, a list of strings, token ids or lists of them");
	for (i = 0; p->wrong == NULL && i < p->g->nprompts; i++)
		if (p->g->prompts[i].ntokens == 0)
			bad_value(p, "prompt: must not be empty");
	if (p->g->nprompts == 0)
		bad_value(p, "prompt: must not be empty");
	return !p->malformed;
}

/* ---- messages ---- */

static bool
check_parts(struct parse *p, struct jv parts)
{
	struct jv key, part;
	struct jiter it;

	(void)json_iter(&it, parts);
	while (json_next(&it, &key, &part)) {
		struct jv type = json_get(part, "type");

		if (json_kind(part) == '"')
			continue;
		if (json_kind(part) != '{' || json_kind(type) != '"')
			return bad(p, "messages: a content part needs a type");
		if (json_is(type, "text") && json_kind(json_get(part, "text")) != '"')
			return bad(p, "messages: a text part needs its text");
		if (json_is(type, "image_url") && json_null(json_get(part, "image_url")))
			return bad(p, "messages: an image_url part needs its image_url");
	}
	return true;
}

static bool
read_messages(struct parse *p)
{
	struct gen *g = p->g;
	struct jv key, msg, content;
	struct prompt *t;
	struct jiter it;
	struct toks toks;
	const char *why;

	if (json_kind(p->m[M_MESSAGES]) != '[')
		return bad(p, "messages: must be a list");
	(void)json_iter(&it, p->m[M_MESSAGES]);
	while (json_next(&it, &key, &msg)) {
		if (json_kind(msg) != '{' || json_kind(json_get(msg, "role")) != '"')
			return bad(p, "messages: each must be an object with a role");
		content = json_get(msg, "content");
		if (json_kind(content) == '[') {
			if (!check_parts(p, content))
				return false;
		} else if (json_kind(content) != '"' && !json_null(content)) {
			return bad(p, "messages: content must be a string or a list of parts");
		}
	}
	t = add_prompt(g);
	keep_ids(g, t, &toks);
	why = prompt_chat(&p->m[M_MESSAGES], g->sim->o.engine == FLAVOUR_SGLANG, &toks);
	if (why != NULL)
		return bad(p, why);
	take(t, &toks);
	t->eos = has_marker(p->m[M_MESSAGES]);
	return true;
}

/* The paths of agents name some members otherwise, and have none of others. */
static void
read_agent(struct parse *p, struct jv doc)
{
	static const enum member none[] = {M_MAX_COMPLETION_TOKENS, M_MIN_TOKENS, M_N, M_LOGPROBS,
		M_TOP_LOGPROBS, M_PROMPT_LOGPROBS, M_TOOL_CHOICE, M_RESPONSE_FORMAT,
		M_STREAM_OPTIONS};
	const struct jv thinking = json_get(doc, "thinking");

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		p->m[none[i]] = (struct jv){NULL, 0};
	if (p->g->api == API_RESPONSES) {
		p->m[M_MESSAGES] = json_get(doc, "input");
		p->m[M_DOCUMENTS] = json_get(doc, "instructions");
		p->m[M_MAX_TOKENS] = json_get(doc, "max_output_tokens");
		return;
	}
	p->m[M_DOCUMENTS] = json_get(doc, "system");
	if (json_is(json_get(thinking, "type"), "disabled")) /* the template is told */
		p->m[M_REASONING_EFFORT] = thinking;
}

static bool
read_input(struct parse *p)
{
	struct prompt *t = add_prompt(p->g);
	struct toks toks;

	keep_ids(p->g, t, &toks);
	(void)prompt_chat(&p->m[M_MESSAGES], false, &toks);
	take(t, &toks);
	t->eos = has_marker(p->m[M_MESSAGES]);
	return true;
}

/* validate_thinking_budget() of vLLM 0.31's entrypoints/anthropic/protocol.py, a validator of the
 * form. */
static bool
check_agent(struct parse *p, struct jv doc)
{
	struct gen *g = p->g;
	int64_t budget = 0;

	if (g->api == API_MESSAGES && json_null(p->m[M_MAX_TOKENS]))
		return bad(p, "max_tokens: Field required");
	if (json_int(json_get(json_get(doc, "thinking"), "budget_tokens"), &budget) &&
		budget >= g->max_tokens && g->mode != GEN_PREFILL && g->sim->o.vllm == VLLM_0_33)
		return bad(p, "thinking.budget_tokens must be less than max_tokens");
	if (g->api == API_RESPONSES && g->mode == GEN_PREFILL &&
		json_kind(json_get(doc, "store")) != 'f')
		bad_value(p, "prefill leg: store must be false");
	return true;
}

/* ---- the rest ---- */

static bool
integer(struct parse *p, enum member m, int64_t min, int64_t *ret)
{
	static const char *const why[M_COUNT] = {
		[M_MAX_TOKENS] = "max_tokens: must be an integer >= 1",
		[M_MAX_COMPLETION_TOKENS] = "max_completion_tokens: must be an integer >= 1",
		[M_MIN_TOKENS] = "min_tokens: must be an integer >= 0",
		[M_N] = "n: must be an integer >= 1"};
	int64_t v;

	if (json_null(p->m[m]))
		return true;
	if (!json_int(p->m[m], &v))
		return bad(p, why[m]);
	if (v < min)
		bad_value(p, why[m]);
	*ret = v;
	return true;
}

static bool
read_numbers(struct parse *p)
{
	struct gen *g = p->g;
	int64_t cached = 0;

	g->max_tokens = 16;
	g->n = 1;
	g->override_tokens = -1;
	if (!integer(p, M_MAX_TOKENS, 1, &g->max_tokens) ||
		(g->chat && !integer(p, M_MAX_COMPLETION_TOKENS, 1, &g->max_tokens)) ||
		!integer(p, M_MIN_TOKENS, 0, &g->min_tokens) || !integer(p, M_N, 1, &g->n))
		return false;
	if (g->min_tokens > g->max_tokens)
		bad_value(p, "min_tokens must be less than or equal to max_tokens");
	if (g->max_tokens > INT32_MAX)
		bad_value(p, "max_tokens: more than this model's context");
	if (g->n > N_MAX)
		bad_value(p, "n: too large");
	(void)json_int(json_get(p->m[M_PDSIM], "tokens"), &g->override_tokens);
	(void)json_int(json_get(p->m[M_PDSIM], "event_bytes"), &g->event_bytes);
	(void)json_int(json_get(p->m[M_PDSIM], "cached_tokens"), &cached);
	g->cached = cached > 0 && cached < INT32_MAX ? (uint32_t)cached : 0;
	if (g->override_tokens > INT32_MAX || g->event_bytes > 1 << 24)
		return bad(p, "pdsim: out of range");
	return true;
}

#define TOP_LOGPROBS_MAX 20

static bool
read_logprobs(struct parse *p)
{
	struct gen *g = p->g;
	enum member many = g->chat ? M_TOP_LOGPROBS : M_LOGPROBS;
	int64_t n = 0;

	g->logprobs = g->chat ? json_true(p->m[M_LOGPROBS]) : json_kind(p->m[M_LOGPROBS]) == '0';
	if (json_kind(p->m[many]) == '0' &&
		(!json_int(p->m[many], &n) || n < 0 || n > TOP_LOGPROBS_MAX))
		return bad(p, "logprobs: must be an integer from 0 to 20");
	if (n > 0 && !g->logprobs)
		return bad(p, "when using `top_logprobs`, `logprobs` must be set to true.");
	g->top_logprobs = (uint32_t)n;
	return true;
}

/* Whether it is to be a tool call or a JSON document; see gen_content.c. */
static void
read_form(struct parse *p)
{
	struct jv choice = p->m[M_TOOL_CHOICE], tool = {NULL, 0}, key;
	struct jv type = json_get(p->m[M_RESPONSE_FORMAT], "type");
	struct jiter it;

	p->g->structured = json_is(type, "json_schema") || json_is(type, "json_object");
	if (!p->g->chat || !json_iter(&it, p->m[M_TOOLS]) || !json_next(&it, &key, &tool))
		return;
	if (json_kind(choice) == '{')
		tool = choice;
	else if (!json_is(choice, "required") && !json_true(json_get(p->m[M_PDSIM], "tool")))
		return;
	p->g->tool = json_get(json_get(tool, "function"), "name");
	if (json_kind(p->g->tool) != '"')
		p->g->tool = (struct jv){NULL, 0};
}

static bool
read_flags(struct parse *p)
{
	struct gen *g = p->g;
	struct jv opts = p->m[M_STREAM_OPTIONS];

	if (!json_null(p->m[M_STREAM]) && !strchr("tf", json_kind(p->m[M_STREAM])))
		return bad(p, "stream: must be a boolean");
	g->stream = json_true(p->m[M_STREAM]);
	if (!json_null(opts) && json_kind(opts) != '{')
		return bad(p, "stream_options: must be an object");
	if (!g->stream && json_kind(opts) == '{' && opts.len > 2)
		return bad(p, "Stream options can only be defined when `stream=True`.");
	g->include_usage = g->api != API_OPENAI || json_true(json_get(opts, "include_usage"));
	g->continuous_usage = g->api == API_OPENAI && g->include_usage &&
			      json_true(json_get(opts, "continuous_usage_stats"));
	read_form(p);
	g->echo = json_true(p->m[M_ECHO]);
	if (!g->native && !read_logprobs(p))
		return false;
	/* no room is left for its end where as many tokens must come as may */
	if (json_true(p->m[M_IGNORE_EOS]) || g->min_tokens == g->max_tokens) {
		unsigned i;

		for (i = 0; i < g->nprompts; i++)
			g->prompts[i].eos = false;
	}
	return true;
}

/* SGLang's own API says the same in other words. */
static void
read_native(struct parse *p, struct jv doc)
{
	struct gen *g = p->g;
	struct jv sp = json_get(doc, "sampling_params"), key;
	struct jiter it;

	if (json_kind(sp) == '[' && json_iter(&it, sp)) /* of a batch: one for all, the first */
		(void)json_next(&it, &key, &sp);
	p->m[M_MODEL] = (struct jv){NULL, 0};
	p->m[M_PROMPT] = json_get(doc, "text");
	if (json_null(p->m[M_PROMPT]))
		p->m[M_PROMPT] = json_get(doc, "input_ids");
	p->m[M_MAX_TOKENS] = json_get(sp, "max_new_tokens");
	if (json_null(p->m[M_MAX_TOKENS]))
		p->m[M_MAX_TOKENS] = (struct jv){"128", 3};
	p->m[M_MIN_TOKENS] = json_get(sp, "min_new_tokens");
	p->m[M_N] = json_get(sp, "n");
	p->m[M_IGNORE_EOS] = json_get(sp, "ignore_eos");
	p->m[M_LOGPROBS] = (struct jv){NULL, 0};
	g->logprobs = json_true(json_get(doc, "return_logprob"));
	g->logprob_start = -1;
	(void)json_int(json_get(doc, "logprob_start_len"), &g->logprob_start);
}

static void
read_rid(struct parse *p)
{
	struct gen *g = p->g;
	size_t n;
	const char *v = conn_header(g->c, "x-request-id", &n);

	if (v != NULL && n > 0)
		buf_add(&g->rid, v, n);
	else
		json_text_buf(p->m[M_REQUEST_ID], &g->rid);
	if (g->rid.len == 0)
		buf_fmt(&g->rid, "%016llx%016llx", (unsigned long long)sim_random(g->sim),
			(unsigned long long)sim_random(g->sim));
}

/* ---- the handoff ---- */

/* A prefill leg must compute one token and no more, in one piece. */
static const char *
leg_violation(struct parse *p)
{
	int64_t v = 0;

	if (!json_int(p->m[M_MAX_TOKENS], &v) || v != 1)
		return "prefill leg: max_tokens must be 1";
	if (p->m[M_MAX_COMPLETION_TOKENS].p &&
		(!json_int(p->m[M_MAX_COMPLETION_TOKENS], &v) || v != 1))
		return "prefill leg: max_completion_tokens must be 1 or absent";
	if (p->g->stream)
		return "prefill leg: must not be a stream";
	if (p->m[M_STREAM_OPTIONS].p)
		return "prefill leg: stream_options must be absent";
	if (p->m[M_MIN_TOKENS].p && p->g->min_tokens != 1)
		return "prefill leg: min_tokens must be 1 or absent";
	return NULL;
}

/* vLLM's to_sampling_params() (entrypoints/openai/completion/protocol.py): `echo` takes `logprobs` for the prompt too. */
static bool
wants_prompt_logprobs(const struct parse *p)
{
	return !json_null(p->m[M_PROMPT_LOGPROBS]) ||
	       (!p->g->chat && p->g->echo && !json_null(p->m[M_LOGPROBS]));
}

static bool
check_handoff(struct parse *p)
{
	struct gen *g = p->g;
	const struct shake *shake = g->sim->shake;
	enum role role = g->sim->o.role;
	const char *why;

	if ((g->mode == GEN_PREFILL && role == ROLE_DECODE) ||
		(g->mode == GEN_DECODE && role == ROLE_PREFILL))
		return gen_refuse(g, CTR_role_violations, 400, "this engine has the other role");
	if (g->mode == GEN_PREFILL) {
		why = shake->leg_of_one ? leg_violation(p) : NULL;
		g->override_tokens = -1;
		if (why != NULL)
			return gen_refuse(g, CTR_prefill_violations, 400, why);
	}
	/* vllm issue 50792: no forward pass of the prompt, so no logits, and the engine dies */
	if (g->mode == GEN_DECODE && g->sim->o.engine == FLAVOUR_VLLM && wants_prompt_logprobs(p))
		return gen_refuse(g, CTR_decode_violations, 500,
			"EngineCore encountered an issue: out of range integral type conversion");
	if (shake->check != NULL && !shake->check(g))
		return false;
	if (g->mode == GEN_PLAIN && role == ROLE_DECODE && g->cut == NULL) {
		count(g->sim, CTR_local_prefills);
		if (g->sim->o.refuse_local)
			return gen_refuse(g, CTR_kv_refused, 500, "no remote KV for this prompt");
	}
	if (g->mode == GEN_PLAIN && role == ROLE_PREFILL && g->cut == NULL)
		count(g->sim, CTR_plain_prefills);
	return true;
}

static void
read_cache_key(struct parse *p)
{
	const char *first = p->g->sim->o.models[0];
	int i;

	p->g->cache_key = TEXT_FNV0;
	if (json_null(p->m[M_MODEL]))
		p->g->cache_key = text_fnv(TEXT_FNV0, first, strlen(first));
	else
		json_text(p->m[M_MODEL], text_fnv_sink, &p->g->cache_key);
	p->g->model_key = p->g->cache_key;
	json_canon(p->m[M_CACHE_SALT], text_fnv_sink, &p->g->model_key);
	for (i = M_ADD_SPECIAL_TOKENS; i <= M_CACHE_SALT; i++)
		json_canon(p->m[i], text_fnv_sink, &p->g->cache_key);
}

static bool
fits(struct gen *g)
{
	uint64_t need = 0;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		uint64_t all = g->prompts[i].ntokens + (uint64_t)g->max_tokens;

		if (all > (uint64_t)g->sim->o.max_model_len)
			return false;
		if (g->mode == GEN_PREFILL)
			all = g->prompts[i].ntokens;
		need += (uint64_t)g->n * kv_blocks_for(g->sim, all);
	}
	g->reserved = need;
	return need <= (uint64_t)g->sim->o.blocks;
}

bool
gen_parse(struct gen *g)
{
	struct parse p = {.g = g};
	struct jv doc = {g->c->body.p, g->c->body.len};

	if (split(&p, doc)) {
		if (g->native)
			read_native(&p, doc);
		if (g->api != API_OPENAI)
			read_agent(&p, doc);
		read_rid(&p);
		if (g->sim->shake->read != NULL)
			g->sim->shake->read(g);
		(void)((g->api == API_RESPONSES ? read_input(&p)
			       : g->chat        ? read_messages(&p)
						: read_prompt(&p)) &&
			read_numbers(&p) && read_flags(&p));
		if (g->api != API_OPENAI)
			(void)check_agent(&p, doc);
	}
	g->unread = p.malformed;
	if (!p.malformed && !admin_known_model(g->c, p.m[M_MODEL])) {
		admin_refuse_model(g->c, p.m[M_MODEL]);
		return false;
	}
	if (p.wrong == NULL && g->mode != GEN_PREFILL && !fits(g))
		p.wrong = "prompt and max_tokens do not fit this model's context or cache";
	if (p.wrong != NULL && g->mode == GEN_PREFILL && g->sim->shake->leg_of_one &&
		leg_violation(&p) != NULL)
		count(g->sim, CTR_prefill_violations);
	if (p.wrong != NULL) {
		conn_error(g->c, 400, "BadRequestError", "%s", p.wrong);
		return false;
	}
	g->model = p.m[M_MODEL];
	g->salt = p.m[M_CACHE_SALT];
	read_cache_key(&p);
	if (!check_handoff(&p))
		return false;
	if (g->mode == GEN_PREFILL && !fits(g)) {
		conn_error(
			g->c, 400, "BadRequestError", "the prompt does not fit this model's cache");
		return false;
	}
	return true;
}
