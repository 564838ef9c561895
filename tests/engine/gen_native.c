/*
 * The bytes of SGLang's /generate: every event holds the text so far, and meta_info says the rest.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/gen.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

static void
put_pair(uint32_t id, bool known, struct buf *b)
{
	BUF_LIT(b, "[");
	if (known)
		gen_logprob(id, b);
	else
		BUF_LIT(b, "null");
	buf_fmt(b, ",%u,null]", id);
}

static void
prompt_ids(const struct prompt *p, struct buf *ids)
{
	struct jv key, val;
	struct jiter it;
	struct toks toks;

	if (json_kind(p->span) == '"') {
		toks_init(&toks, ids);
		json_text(p->span, toks_bytes, &toks);
		toks_end(&toks);
		return;
	}
	(void)json_iter(&it, p->span);
	while (json_next(&it, &key, &val)) {
		if (ids->len)
			BUF_LIT(ids, ",");
		buf_add(ids, val.p, val.len);
	}
}

/* Those of the prompt from logprob_start_len on, -1 being its last token; a decode engine, which
 * did not compute the prompt, has none. */
static void
put_input_logprobs(const struct gen *g, const struct prompt *p, struct buf *b)
{
	struct buf ids = {0};
	char *rest, *word;
	int64_t i, from = g->logprob_start;

	BUF_LIT(b, ",\"input_token_logprobs\":[");
	if (from < 0)
		from = (int64_t)p->ntokens - 1;
	prompt_ids(p, &ids);
	(void)buf_cstr(&ids);
	rest = g->mode == GEN_DECODE ? NULL : ids.p;
	for (i = 0; (word = strsep(&rest, ",")) != NULL; i++) {
		if (i > from)
			BUF_LIT(b, ",");
		if (i >= from)
			put_pair((uint32_t)strtoul(word, NULL, 10), i > from, b);
	}
	BUF_LIT(b, "]");
	buf_free(&ids);
}

static void
put_finish(const struct gen *g, const struct choice *ch, struct buf *b)
{
	const char *reason = gen_finish_reason(g, ch);

	buf_fmt(b, "{\"type\":%s", reason);
	if (strcmp(reason, "\"length\"") == 0)
		buf_fmt(b, ",\"length\":%u", ch->ntokens);
	else if (strcmp(reason, "\"stop\"") == 0)
		BUF_LIT(b, ",\"matched\":2");
	else
		BUF_LIT(b, ",\"message\":\"Aborted\"");
	BUF_LIT(b, "}");
}

static void
put_rid(const struct gen *g, unsigned i, struct buf *b)
{
	struct jv key, rid;
	struct jiter it;
	unsigned k = 0;

	if (json_iter(&it, g->rids)) {
		while (json_next(&it, &key, &rid))
			if (k++ == i && json_kind(rid) == '"') {
				buf_add(b, rid.p, rid.len);
				return;
			}
	}
	BUF_LIT(b, "\"");
	buf_json_in(b, g->rid.p, g->rid.len);
	if (g->nchoices > 1)
		buf_fmt(b, "_%u", i);
	BUF_LIT(b, "\"");
}

/* Choice i with its first n tokens, without the last brace */
static void
put_upto(struct gen *g, unsigned i, uint32_t n, struct buf *b)
{
	struct choice *ch = &g->choices[i];
	uint64_t state = text_child(ch->prompt->seed, i % (unsigned)g->n);
	struct buf ids = {0}, lps = {0};
	uint32_t t;

	BUF_LIT(b, "{\"text\":\"");
	for (t = 0; t < n; t++) {
		const struct word *w = text_next(&state);

		buf_add(b, w->json, w->json_len);
		buf_fmt(&ids, "%s%u", t ? "," : "", w->id);
		buf_str(&lps, t ? "," : "");
		put_pair(w->id, true, &lps);
	}
	BUF_LIT(b, "\",\"output_ids\":[");
	buf_add(b, ids.p, ids.len);
	BUF_LIT(b, "],\"meta_info\":{\"id\":");
	put_rid(g, i, b);
	BUF_LIT(b, ",\"finish_reason\":");
	if (n >= ch->ntokens)
		put_finish(g, ch, b);
	else
		BUF_LIT(b, "null");
	buf_fmt(b, ",\"prompt_tokens\":%llu,\"weight_version\":\"default\"",
		(unsigned long long)ch->prompt->ntokens);
	if (g->logprobs) {
		put_input_logprobs(g, ch->prompt, b);
		BUF_LIT(b, ",\"output_token_logprobs\":[");
		buf_add(b, lps.p, lps.len);
		BUF_LIT(b, "]");
	}
	buf_fmt(b, ",\"completion_tokens\":%u,\"cached_tokens\":%llu}", n,
		(unsigned long long)ch->prompt->cached);
	buf_free(&ids);
	buf_free(&lps);
}

void
native_answer(struct gen *g, struct buf *b)
{
	unsigned i;

	if (g->nchoices > 1)
		BUF_LIT(b, "[");
	for (i = 0; i < g->nchoices; i++) {
		if (i)
			BUF_LIT(b, ",");
		put_upto(g, i, g->choices[i].ntokens, b);
		BUF_LIT(b, "}");
		g->sim->counters[CTR_generation_tokens] += g->choices[i].ntokens;
	}
	if (g->nchoices > 1)
		BUF_LIT(b, "]");
}

void
native_delta(struct gen *g, unsigned i, struct buf *b)
{
	struct choice *ch = &g->choices[i];

	if (ch->done < ch->ntokens)
		count(g->sim, CTR_generation_tokens);
	ch->done++;
	BUF_LIT(b, "data: ");
	put_upto(g, i, ch->done < ch->ntokens ? ch->done : ch->ntokens, b);
	if (g->nchoices > 1)
		buf_fmt(b, ",\"index\":%u", i);
}

/* An error after 200 is an event like the others, but for its finish_reason. */
void
native_failure(struct gen *g, const char *msg, struct buf *b)
{
	BUF_LIT(b, "{\"text\":\"\",\"output_ids\":[],\"meta_info\":{\"id\":\"");
	buf_json_in(b, g->rid.p, g->rid.len);
	BUF_LIT(b, "\",\"finish_reason\":{\"type\":\"abort\",\"message\":");
	buf_json(b, msg, strlen(msg));
	BUF_LIT(b, ",\"status_code\":500,\"err_type\":\"InternalServerError\"}}}");
}
