/*
 * The bytes of the paths of agents, /v1/messages (Anthropic's API) and /v1/responses, as vLLM
 * writes them from 0.19 on: a prefill and a decode engine serve them with the KV parameters of a
 * chat.
 */
#include <string.h>

#include "tests/engine/conn.h"
#include "tests/engine/gen.h"
#include "tests/engine/json.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

bool
gen_is_agent(struct conn *c)
{
	const struct opts *o = &c->sim->o;
	const char *const *member = c->sim->shake->members;
	const struct jv doc = json_doc(c->body.p, c->body.len);

	if (o->engine != FLAVOUR_VLLM || o->vllm > VLLM_0_19 || json_kind(doc) != '{')
		return false; /* these ignore the KV parameters */
	for (int i = 0; i < SHAKE_MEMBERS && member[i] != NULL; i++)
		if (!json_null(json_get(doc, member[i])))
			return true;
	return false;
}

static void
put_usage(const struct gen *g, uint32_t out, struct buf *b)
{
	const uint64_t in = g->prompts[0].ntokens;

	buf_fmt(b, "\"usage\":{\"input_tokens\":%llu,\"output_tokens\":%u", (unsigned long long)in,
		out);
	if (g->api == API_RESPONSES)
		buf_fmt(b,
			",\"total_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu}",
			(unsigned long long)in + out,
			(unsigned long long)(g->mode == GEN_DECODE ? in : g->cached));
	BUF_LIT(b, "}");
}

static void
put_model(const struct gen *g, struct buf *b)
{
	BUF_LIT(b, "\"model\":");
	buf_add(b, g->model.p, g->model.len);
}

static const char *
stop_reason(const struct choice *ch)
{
	return ch->eos ? "end_turn" : "max_tokens";
}

/* A response's own id is the request's: `request_id` of its body. */
static void
put_id(const struct gen *g, struct buf *b)
{
	const struct jv doc = json_doc(g->c->body.p, g->c->body.len);
	const struct jv id = json_get(doc, "request_id");

	BUF_LIT(b, "\"id\":");
	if (g->api == API_RESPONSES && json_kind(id) == '"') {
		buf_add(b, id.p, id.len);
		return;
	}
	buf_str(b, g->api == API_RESPONSES ? "\"resp_" : "\"chatcmpl-");
	buf_json_in(b, g->rid.p, g->rid.len);
	BUF_LIT(b, "\"");
}

/* The object without its last brace.  `text`: JSON, without quotes. */
static void
put_message(const struct gen *g, const struct buf *text, struct buf *b)
{
	const struct choice *ch = &g->choices[0];

	BUF_LIT(b, "{");
	put_id(g, b);
	BUF_LIT(b, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
	if (text != NULL) {
		BUF_LIT(b, "{\"type\":\"text\",\"text\":\"");
		buf_add(b, text->p, text->len);
		BUF_LIT(b, "\"}");
	}
	BUF_LIT(b, "],");
	put_model(g, b);
	if (text != NULL)
		buf_fmt(b, ",\"stop_reason\":\"%s\"", stop_reason(ch));
	BUF_LIT(b, ",");
	put_usage(g, text != NULL ? ch->ntokens : 0, b);
}

static void
put_response(const struct gen *g, const struct buf *text, struct buf *b)
{
	const struct choice *ch = &g->choices[0];

	BUF_LIT(b, "{");
	put_id(g, b);
	buf_fmt(b, ",\"object\":\"response\",\"created_at\":%ld,\"status\":\"%s\",", g->created,
		text == NULL ? "in_progress"
		: ch->eos    ? "completed"
			     : "incomplete");
	put_model(g, b);
	BUF_LIT(b, ",\"output\":[");
	if (text != NULL) {
		BUF_LIT(b,
			"{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"");
		buf_add(b, text->p, text->len);
		BUF_LIT(b, "\"}]}");
	}
	BUF_LIT(b, "]");
	if (text == NULL)
		return;
	BUF_LIT(b, ",");
	put_usage(g, ch->ntokens, b);
}

static void
put_object(const struct gen *g, const struct buf *text, struct buf *b)
{
	if (g->api == API_MESSAGES)
		put_message(g, text, b);
	else
		put_response(g, text, b);
}

/* All that the answer says. */
static void
whole_text(const struct gen *g, struct buf *text)
{
	const struct choice *ch = &g->choices[0];
	uint64_t state = text_child(ch->prompt->seed, 0);

	for (uint32_t t = 0; t < ch->ntokens; t++) {
		const struct word *w = text_next(&state);

		buf_add(text, w->json, w->json_len);
	}
}

void
agent_answer(struct gen *g, struct buf *b, const struct buf *kv)
{
	struct buf text = {0};

	whole_text(g, &text);
	put_object(g, &text, b);
	if (kv->len > 0) {
		BUF_LIT(b, ",\"kv_transfer_params\":");
		buf_add(b, kv->p, kv->len);
	}
	BUF_LIT(b, "}");
	g->sim->counters[CTR_generation_tokens] += g->choices[0].ntokens;
	buf_free(&text);
}

static void
event(struct buf *b, const char *type)
{
	buf_fmt(b, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

void
agent_begin(struct gen *g, struct buf *b)
{
	if (g->api == API_MESSAGES) {
		event(b, "message_start");
		BUF_LIT(b, ",\"message\":");
		put_object(g, NULL, b);
		BUF_LIT(b, "}}\n\n");
		event(b, "content_block_start");
		BUF_LIT(b, ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
	} else {
		event(b, "response.created");
		BUF_LIT(b, ",\"response\":");
		put_object(g, NULL, b);
		BUF_LIT(b, "}");
	}
}

void
agent_delta(struct gen *g, struct buf *b)
{
	struct choice *ch = &g->choices[0];
	const struct word *w = ch->done < ch->ntokens ? text_next(&ch->state) : NULL;

	ch->done++;
	event(b, g->api == API_MESSAGES ? "content_block_delta" : "response.output_text.delta");
	buf_str(b, g->api == API_MESSAGES
			   ? ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\""
			   : ",\"delta\":\"");
	if (w != NULL) {
		buf_add(b, w->json, w->json_len);
		count(g->sim, CTR_generation_tokens);
	}
	buf_str(b, g->api == API_MESSAGES ? "\"}" : "\"");
}

void
agent_usage(struct gen *g, struct buf *b)
{
	const struct choice *ch = &g->choices[0];
	struct buf text = {0};

	if (g->api == API_MESSAGES) {
		event(b, "content_block_stop");
		BUF_LIT(b, ",\"index\":0}\n\n");
		event(b, "message_delta");
		buf_fmt(b, ",\"delta\":{\"stop_reason\":\"%s\",\"stop_sequence\":null},",
			stop_reason(ch));
		put_usage(g, ch->ntokens, b);
		return;
	}
	whole_text(g, &text);
	event(b, ch->eos ? "response.completed" : "response.incomplete");
	BUF_LIT(b, ",\"response\":");
	put_object(g, &text, b);
	BUF_LIT(b, "}");
	buf_free(&text);
}

void
agent_end(struct buf *b)
{
	event(b, "message_stop");
	BUF_LIT(b, "}\n\n");
}

void
agent_failure(const char *msg, struct buf *b)
{
	event(b, "error");
	BUF_LIT(b, ",\"error\":{\"type\":\"api_error\",\"message\":");
	buf_json(b, msg, strlen(msg));
	BUF_LIT(b, "}}\n\n");
}
