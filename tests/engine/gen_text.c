/* The bytes of a generation: one answer, or one event after the other. */
#include <string.h>
#include <stdlib.h>

#include "tests/engine/conn.h"
#include "tests/engine/gen.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

uint64_t
gen_prompt_key(const struct gen *g)
{
	return gen_key_of(g, 0);
}

uint64_t
gen_key_of(const struct gen *g, unsigned i)
{
	return text_fnv(g->prompts[i].seed, (const char *)&g->cache_key, sizeof(g->cache_key));
}

static uint32_t
wanted(const struct gen *g, const struct prompt *p)
{
	if (g->aborted || g->cut != NULL)
		return 0;
	if (p->eos)
		return (uint32_t)g->min_tokens;
	return (uint32_t)(g->override_tokens >= 0 ? g->override_tokens : g->max_tokens);
}

static void
put_model(const struct gen *g, struct buf *b)
{
	const char *name = g->sim->o.models[0];

	if (json_kind(g->model) == '"')
		buf_add(b, g->model.p, g->model.len);
	else
		buf_json(b, name, strlen(name));
}

static void
put_id(const struct gen *g, struct buf *b)
{
	BUF_LIT(b, "{\"id\":\"");
	if (!g->bare_id)
		buf_str(b, g->chat ? "chatcmpl-" : "cmpl-");
	buf_json_in(b, g->rid.p, g->rid.len);
	BUF_LIT(b, "\",\"object\":");
}

void
gen_begin_text(struct gen *g)
{
	unsigned i;

	g->nchoices = g->nprompts * (unsigned)g->n;
	g->choices = calloc(g->nchoices, sizeof(*g->choices));
	if (g->choices == NULL)
		abort();
	for (i = 0; i < g->nchoices; i++) {
		const struct prompt *p = &g->prompts[i / (unsigned)g->n];

		g->choices[i] = (struct choice){.state = text_child(p->seed, i % (unsigned)g->n),
			.prompt = p,
			.ntokens = wanted(g, p),
			.eos = p->eos};
	}
	g->phase = g->chat ? PHASE_ROLE : PHASE_TOKENS;
	if (!g->stream)
		return;
	BUF_LIT(&g->pre, "data: ");
	put_id(g, &g->pre);
	buf_str(&g->pre, g->chat ? "\"chat.completion.chunk\"" : "\"text_completion\"");
	buf_fmt(&g->pre, ",\"created\":%ld,\"model\":", g->created);
	put_model(g, &g->pre);
	g->pre_base = (unsigned)g->pre.len;
	BUF_LIT(&g->pre, ",\"choices\":[{\"index\":");
}

/* ---- shared pieces ---- */

/* With 0 there is no member but in a whole answer, as vLLM does. */
static void
put_usage_of(const struct gen *g, uint64_t in, uint64_t cached, uint64_t out, struct buf *b)
{
	if (g->cached > 0)
		cached = g->cached < in ? g->cached : in;
	if (g->mode == GEN_DECODE)
		cached = in;
	buf_fmt(b,
		"\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"completion_tokens\":%"
		"llu",
		(unsigned long long)in, (unsigned long long)(in + out), (unsigned long long)out);
	if (g->sim->o.usage_details && cached > 0)
		buf_fmt(b, ",\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
			(unsigned long long)cached);
	else if (g->sim->o.usage_details && !g->stream)
		BUF_LIT(b, ",\"prompt_tokens_details\":null");
	BUF_LIT(b, "}");
}

static void
put_usage(const struct gen *g, struct buf *b)
{
	uint64_t in = 0, cached = 0, out = 0;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		in += g->prompts[i].ntokens;
		cached += g->prompts[i].cached;
	}
	for (i = 0; i < g->nchoices; i++)
		out += g->choices[i].ntokens;
	put_usage_of(g, in, cached, out, b);
}

/* continuous_usage_stats: of one choice so far. */
static void
put_usage_so_far(const struct gen *g, const struct choice *ch, struct buf *b)
{
	if (!g->continuous_usage)
		return;
	BUF_LIT(b, ",");
	put_usage_of(g, ch->prompt->ntokens, ch->prompt->cached,
		ch->done < ch->ntokens ? ch->done : ch->ntokens, b);
}

const char *
gen_finish_reason(const struct gen *g, const struct choice *ch)
{
	if (g->aborted && g->mode != GEN_PREFILL) /* a prefill engine says length even so */
		return "\"abort\"";
	if (g->cut != NULL)
		return g->cut;
	if (g->mode != GEN_PREFILL && g->tool.p != NULL)
		return "\"tool_calls\"";
	if (g->mode != GEN_PREFILL && g->structured)
		return "\"stop\"";
	return ch->eos ? "\"stop\"" : "\"length\"";
}

static void
put_echo(const struct gen *g, const struct prompt *p, struct buf *b)
{
	struct buf text = {0};
	struct jv key, val;
	struct jiter it;

	if (!g->echo || g->chat)
		return;
	if (json_kind(p->span) == '"') {
		buf_add(b, p->span.p + 1, p->span.len - 2); /* escaped as the client did */
		return;
	}
	(void)json_iter(&it, p->span);
	while (json_next(&it, &key, &val))
		text_detok(&text, (uint32_t)json_num(val, 0));
	buf_json_in(b, text.p, text.len);
	buf_free(&text);
}

/* ---- one answer ---- */

/* The member of a choice that holds what it says, up to that and from there on. */
static void
put_opening(const struct gen *g, const struct choice *ch, struct buf *b)
{
	if (!g->chat) {
		BUF_LIT(b, "\"text\":\"");
	} else if (g->tool.p == NULL) {
		BUF_LIT(b, "\"message\":{\"role\":\"assistant\",\"content\":\"");
	} else {
		BUF_LIT(b, "\"message\":{\"role\":\"assistant\",\"content\":null,\"refusal\":null,"
			   "\"tool_calls\":[{");
		content_call(g, ch, b);
	}
}

static void
put_closing(const struct gen *g, struct buf *b)
{
	if (!g->chat)
		BUF_LIT(b, "\"");
	else if (g->tool.p == NULL)
		BUF_LIT(b, "\",\"refusal\":null,\"tool_calls\":[]}");
	else
		BUF_LIT(b, "\"}}]}");
}

static void
put_choice(struct gen *g, unsigned i, struct buf *b)
{
	struct choice *ch = &g->choices[i];
	const struct word **w = calloc(ch->ntokens ? ch->ntokens : 1, sizeof(*w));
	uint32_t t;

	if (w == NULL)
		abort();
	buf_fmt(b, "%s{\"index\":%u,", i ? "," : "", i);
	put_opening(g, ch, b);
	put_echo(g, ch->prompt, b);
	for (t = 0; t < ch->ntokens; t++) {
		w[t] = text_next(&ch->state);
		content_put(g, ch, w[t], b);
		ch->done++;
	}
	put_closing(g, b);
	BUF_LIT(b, ",\"logprobs\":");
	content_logprobs(g, ch, w, ch->ntokens, b);
	buf_fmt(b, ",\"finish_reason\":%s,\"stop_reason\":null}", gen_finish_reason(g, ch));
	g->sim->counters[CTR_generation_tokens] += ch->ntokens;
	free(w);
}

void
gen_answer(struct gen *g, struct buf *b, struct shake_extra *x)
{
	unsigned i;

	if (g->native) {
		native_answer(g, b);
		return;
	}
	if (g->api != API_OPENAI) {
		agent_answer(g, b, &x->kv);
		return;
	}
	put_id(g, b);
	buf_fmt(b, "%s,\"created\":%ld,\"model\":",
		g->chat ? "\"chat.completion\"" : "\"text_completion\"", g->created);
	put_model(g, b);
	BUF_LIT(b, ",\"choices\":[");
	for (i = 0; i < g->nchoices; i++)
		put_choice(g, i, b);
	BUF_LIT(b, "],");
	put_usage(g, b);
	if (x->fingerprint.len) {
		BUF_LIT(b, ",\"system_fingerprint\":");
		buf_json(b, x->fingerprint.p, x->fingerprint.len);
	}
	if (x->kv.len) {
		BUF_LIT(b, ",\"kv_transfer_params\":");
		buf_add(b, x->kv.p, x->kv.len);
	} else if (g->sim->o.engine == FLAVOUR_VLLM) {
		BUF_LIT(b, ",\"kv_transfer_params\":null");
	}
	BUF_LIT(b, "}");
}

/* ---- one event ---- */

static void
put_delta_opening(const struct gen *g, const struct choice *ch, struct buf *b)
{
	if (!g->chat) {
		BUF_LIT(b, ",\"text\":\"");
	} else if (g->tool.p == NULL) {
		BUF_LIT(b, ",\"delta\":{\"content\":\"");
	} else if (ch->done == 0) {
		BUF_LIT(b, ",\"delta\":{\"tool_calls\":[{\"index\":0,");
		content_call(g, ch, b);
	} else {
		BUF_LIT(b,
			",\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"");
	}
}

static void
put_delta(struct gen *g, unsigned i, struct buf *b)
{
	struct choice *ch = &g->choices[i];
	const struct word *w = ch->done < ch->ntokens ? text_next(&ch->state) : NULL;
	bool last;

	buf_add(b, g->pre.p, g->pre.len);
	buf_u64(b, i);
	put_delta_opening(g, ch, b);
	if (ch->done == 0)
		put_echo(g, ch->prompt, b);
	if (w != NULL)
		content_put(g, ch, w, b);
	buf_str(b, !g->chat ? "\"" : g->tool.p == NULL ? "\"}" : "\"}}]}");
	BUF_LIT(b, ",\"logprobs\":");
	content_logprobs(g, ch, &w, w != NULL, b);
	ch->done++;
	last = ch->done >= ch->ntokens;
	BUF_LIT(b, ",\"finish_reason\":");
	buf_str(b, last ? gen_finish_reason(g, ch) : "null");
	buf_str(b, last ? ",\"stop_reason\":null}]" : "}]");
	put_usage_so_far(g, ch, b);
	if (w != NULL)
		count(g->sim, CTR_generation_tokens);
}

static void
put_role(struct gen *g, unsigned i, struct buf *b)
{
	buf_add(b, g->pre.p, g->pre.len);
	buf_u64(b, i);
	BUF_LIT(b, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
		   "\"finish_reason\":null}]");
	put_usage_so_far(g, &g->choices[i], b);
}

static void
end_event(const struct gen *g, struct buf *b)
{
	static const char pad[] = ",\"pdsim_pad\":\"";
	size_t n = b->len - CHUNK_ROOM + sizeof(pad) - 1 + 4, want = (size_t)g->event_bytes;

	if (want > n) {
		BUF_LIT(b, pad);
		buf_fill(b, 'x', want - n);
		BUF_LIT(b, "\"");
	}
	BUF_LIT(b, "}\n\n");
}

static bool
next_tokens(struct gen *g, struct buf *b)
{
	/* choices end at different steps when a prompt ends its text early */
	while (g->at < g->nchoices && g->step > 0 && g->step >= g->choices[g->at].ntokens)
		g->at++;
	if (g->at == g->nchoices)
		return false;
	if (g->api != API_OPENAI)
		agent_delta(g, b);
	else
		(g->native ? native_delta : put_delta)(g, g->at, b);
	g->at++;
	return true;
}

static bool
any_left(const struct gen *g)
{
	unsigned i;

	for (i = 0; i < g->nchoices; i++)
		if (g->step < g->choices[i].ntokens)
			return true;
	return false;
}

/* Moves to the next choice, step or phase; the whole order of a stream is here. */
static bool
produce(struct gen *g, struct buf *b)
{
	switch (g->phase) {
	case PHASE_ROLE:
		if (g->api != API_OPENAI)
			agent_begin(g, b);
		else
			put_role(g, g->at, b);
		g->at++;
		if (g->at == g->nchoices) {
			g->at = 0;
			g->phase = PHASE_TOKENS;
		}
		break;
	case PHASE_TOKENS:
		if (!next_tokens(g, b))
			return false;
		break;
	case PHASE_USAGE:
		if (g->api != API_OPENAI) {
			agent_usage(g, b);
		} else {
			buf_add(b, g->pre.p, g->pre_base);
			BUF_LIT(b, ",\"choices\":[],");
			put_usage(g, b);
		}
		/* response.completed or .incomplete is the last event of its stream */
		g->phase = g->api == API_RESPONSES ? PHASE_END : PHASE_DONE;
		break;
	case PHASE_DONE:
	case PHASE_END:
		return false;
	}
	end_event(g, b);
	return true;
}

static void
advance(struct gen *g)
{
	if (g->phase != PHASE_TOKENS || g->at < g->nchoices)
		return;
	g->at = 0;
	g->step++;
	if (!any_left(g))
		g->phase = g->include_usage ? PHASE_USAGE : PHASE_DONE;
}

bool
gen_event(struct gen *g, struct buf *b, size_t *ret_len)
{
	b->len = 0;
	buf_reserve(b, 2048);
	b->len = CHUNK_ROOM;
	while (g->phase == PHASE_TOKENS && !produce(g, b))
		advance(g);
	if (b->len == CHUNK_ROOM && g->phase < PHASE_DONE)
		(void)produce(g, b);
	if (b->len == CHUNK_ROOM) {
		if (g->phase == PHASE_END)
			return false;
		if (g->api != API_OPENAI)
			agent_end(b);
		else
			BUF_LIT(b, "data: [DONE]\n\n");
		g->phase = PHASE_END;
	}
	advance(g);
	*ret_len = b->len - CHUNK_ROOM;
	buf_reserve(b, 2);
	return true;
}
