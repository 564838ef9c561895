/*
 * What a choice says, token by token: text, a JSON document (response_format and the like), or the
 * call of a tool; and the log probabilities of its tokens.
 *
 * A document is {"words":"..."} around the text, a call has such a document as its arguments.  Its
 * first token brings the beginning, its last one the end.  A prompt whose last id is a generated
 * word's goes on inside the document; a prefill engine does not come to its end.
 */
#include <string.h>

#include "tests/engine/gen.h"
#include "tests/engine/text.h"

static void
put_document(const struct gen *g, const struct choice *ch, const struct word *w, struct buf *b)
{
	if (ch->done == 0 && ch->prompt->last < TOK_WORD)
		BUF_LIT(b, "{\\\"words\\\":\\\"");
	buf_json_in(b, w->json, w->json_len); /* escaped for the document, and for the answer */
	if (ch->done + 1 >= ch->ntokens && g->mode != GEN_PREFILL)
		BUF_LIT(b, "\\\"}");
}

void
content_put(const struct gen *g, const struct choice *ch, const struct word *w, struct buf *b)
{
	if (g->structured || g->tool.p != NULL)
		put_document(g, ch, w, b);
	else
		buf_add(b, w->json, w->json_len);
}

/* The head of a call, up to its arguments. */
void
content_call(const struct gen *g, const struct choice *ch, struct buf *b)
{
	uint64_t id = ch->prompt->seed + (uint64_t)(ch - g->choices);

	buf_fmt(b, "\"id\":\"chatcmpl-tool-%016llx\",\"type\":\"function\",\"function\":{\"name\":",
		(unsigned long long)id);
	buf_add(b, g->tool.p, g->tool.len);
	BUF_LIT(b, ",\"arguments\":\"");
}

/* ---- log probabilities: any number will do, as long as it can be foretold ---- */

void
gen_logprob(uint32_t id, struct buf *b)
{
	buf_fmt(b, "-0.%02u", (unsigned)(id & 63) + 10);
}

/* The k-th best token in w's place; the 0-th is w. */
static const struct word *
other(const struct word *w, uint32_t k)
{
	return text_word(w->id + k);
}

static void
put_other_logprob(const struct word *w, uint32_t k, struct buf *b)
{
	buf_fmt(b, "-%u.%02u", k, (unsigned)(w->id & 63) + 10);
}

static void
put_chat_token(const struct word *w, uint32_t k, struct buf *b)
{
	size_t i;

	BUF_LIT(b, "{\"token\":\"");
	buf_add(b, w->json, w->json_len);
	BUF_LIT(b, "\",\"logprob\":");
	put_other_logprob(w, k, b);
	BUF_LIT(b, ",\"bytes\":[");
	for (i = 0; i < w->text_len; i++)
		buf_fmt(b, i ? ",%u" : "%u", (unsigned char)w->text[i]);
	BUF_LIT(b, "]");
}

static void
put_chat(const struct gen *g, const struct word *const *w, uint32_t n, struct buf *b)
{
	uint32_t i, k;

	BUF_LIT(b, "{\"content\":[");
	for (i = 0; i < n; i++) {
		if (i)
			BUF_LIT(b, ",");
		put_chat_token(w[i], 0, b);
		BUF_LIT(b, ",\"top_logprobs\":[");
		for (k = 0; k < g->top_logprobs; k++) {
			if (k)
				BUF_LIT(b, ",");
			put_chat_token(other(w[i], k), k, b);
			BUF_LIT(b, "}");
		}
		BUF_LIT(b, "]}");
	}
	BUF_LIT(b, "]}");
}

static uint64_t
characters(const struct word *w)
{
	uint64_t n = 0;
	size_t i;

	for (i = 0; i < w->text_len; i++)
		n += ((unsigned char)w->text[i] & 0xc0) != 0x80;
	return n;
}

static void
put_token(const struct word *w, struct buf *b)
{
	BUF_LIT(b, "\"");
	buf_add(b, w->json, w->json_len);
	BUF_LIT(b, "\"");
}

/* vLLM's completions: the chosen token is always among the best ones, also of 0 that are asked for. */
static void
put_best(const struct gen *g, const struct word *w, struct buf *b)
{
	uint32_t k;

	BUF_LIT(b, "{");
	for (k = 0; k == 0 || k < g->top_logprobs; k++) {
		if (k)
			BUF_LIT(b, ",");
		put_token(other(w, k), b);
		BUF_LIT(b, ":");
		put_other_logprob(other(w, k), k, b);
	}
	BUF_LIT(b, "}");
}

void
content_logprobs(const struct gen *g, struct choice *ch, const struct word *const *w, uint32_t n,
	struct buf *b)
{
	uint32_t i;

	if (!g->logprobs) {
		BUF_LIT(b, "null");
		return;
	}
	if (g->chat) {
		put_chat(g, w, n, b);
		return;
	}
	BUF_LIT(b, "{\"text_offset\":[");
	for (i = 0; i < n; i++) {
		buf_fmt(b, i ? ",%llu" : "%llu", (unsigned long long)ch->offset);
		ch->offset += characters(w[i]);
	}
	BUF_LIT(b, "],\"token_logprobs\":[");
	for (i = 0; i < n; i++) {
		buf_str(b, i ? "," : "");
		gen_logprob(w[i]->id, b);
	}
	BUF_LIT(b, "],\"tokens\":[");
	for (i = 0; i < n; i++) {
		buf_str(b, i ? "," : "");
		put_token(w[i], b);
	}
	BUF_LIT(b, "],\"top_logprobs\":[");
	for (i = 0; i < n; i++) {
		buf_str(b, i ? "," : "");
		put_best(g, w[i], b);
	}
	BUF_LIT(b, "]}");
}
