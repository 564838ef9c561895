/*
 * The answers are shaped as vLLM's, so that a client's library can read them, but what they say is
 * only which engine was asked what: the path and a hash of the request's body (FNV-1a, 64 bits, in
 * hex), which any change of a byte on the way would change.
 */
#include "tests/engine/oneleg.h"

#include <stdio.h>
#include <string.h>

#include "tests/engine/admin.h"
#include "tests/engine/conn.h"
#include "tests/engine/json.h"
#include "tests/engine/prefix.h"
#include "tests/engine/responses.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

struct ask {
	struct conn *c;
	struct jv doc; /* absent: the body is not JSON */
	char path[64]; /* without the query */
	char hash[17];
	char text[96];        /* path and hash */
	char id[RESPONSE_ID]; /* of a response */
	uint64_t ntokens;     /* one for three bytes of body */
};

typedef void put(struct ask *a, struct buf *b);

static void
put_model(const struct ask *a, struct buf *b)
{
	struct jv model = json_get(a->doc, "model");

	BUF_LIT(b, "\"model\":");
	if (json_kind(model) == '"')
		buf_add(b, model.p, model.len);
	else
		buf_json(b, a->c->sim->o.models[0], strlen(a->c->sim->o.models[0]));
}

static void
put_tail(const struct ask *a, struct buf *b)
{
	buf_fmt(b, ",\"pdsim\":{\"path\":\"%s\",\"hash\":\"%s\",\"name\":", a->path, a->hash);
	buf_json(b, a->c->sim->o.name, strlen(a->c->sim->o.name));
	BUF_LIT(b, "}");
}

static void
put_usage(const struct ask *a, struct buf *b)
{
	buf_fmt(b, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}",
		(unsigned long long)a->ntokens, (unsigned long long)a->ntokens);
}

/* How many things it is asked about: the members of a list, or one. */
static unsigned
items(const struct ask *a, const char *name)
{
	struct jv v = json_get(a->doc, name), key, val;
	struct jiter it;
	unsigned n = 0;

	if (json_kind(v) != '[' || !json_iter(&it, v))
		return 1;
	while (json_next(&it, &key, &val))
		n++;
	return n;
}

/* A number from 0 to 1 that hangs on the request and on i. */
static void
put_score(const struct ask *a, unsigned i, struct buf *b)
{
	uint64_t h = text_fnv(TEXT_FNV0, a->hash, 16) ^ i * 0x9e3779b97f4a7c15ULL;

	buf_fmt(b, "0.%03u", (unsigned)(h >> 40) % 1000);
}

static void
put_list(struct ask *a, struct buf *b, unsigned n, const char *before, const char *after)
{
	unsigned i;

	BUF_LIT(b, "{\"object\":\"list\",\"id\":\"sim-");
	buf_fmt(b, "%s\",\"created\":1700000000,", a->hash);
	put_model(a, b);
	BUF_LIT(b, ",\"data\":[");
	for (i = 0; i < n; i++) {
		buf_fmt(b, "%s{\"index\":%u,%s", i ? "," : "", i, before);
		put_score(a, i, b);
		buf_str(b, after);
	}
	BUF_LIT(b, "]");
	put_usage(a, b);
}

static void
put_embeddings(struct ask *a, struct buf *b)
{
	put_list(a, b, items(a, "input"), "\"object\":\"embedding\",\"embedding\":[1.0,", "]}");
}

static void
put_pooling(struct ask *a, struct buf *b)
{
	put_list(a, b, items(a, "input"), "\"object\":\"pooling\",\"data\":[[1.0,", "]]}");
}

static void
put_classes(struct ask *a, struct buf *b)
{
	put_list(a, b, items(a, "input"), "\"label\":\"LABEL_0\",\"num_classes\":1,\"probs\":[",
		"]}");
}

static void
put_scores(struct ask *a, struct buf *b)
{
	put_list(a, b, items(a, "text_2"), "\"object\":\"score\",\"score\":", "}");
}

static void
put_ranks(struct ask *a, struct buf *b)
{
	struct jv docs = json_get(a->doc, "documents"), key, doc;
	struct jiter it;
	unsigned i = 0;

	buf_fmt(b, "{\"id\":\"sim-%s\",", a->hash);
	put_model(a, b);
	put_usage(a, b);
	BUF_LIT(b, ",\"results\":[");
	if (json_kind(docs) == '[' && json_iter(&it, docs)) {
		while (json_next(&it, &key, &doc)) {
			buf_fmt(b, "%s{\"index\":%u,\"document\":{\"text\":", i ? "," : "", i);
			buf_add(b, doc.p, doc.len);
			BUF_LIT(b, "},\"relevance_score\":");
			put_score(a, i++, b);
			BUF_LIT(b, "}");
		}
	}
	BUF_LIT(b, "]");
}

static void
put_text(struct ask *a, struct buf *b)
{
	buf_fmt(b, "{\"text\":\"%s\"", a->text);
}

static void
put_count(struct ask *a, struct buf *b)
{
	buf_fmt(b, "{\"input_tokens\":%llu", (unsigned long long)a->ntokens);
}

static void
put_generic(struct ask *a, struct buf *b)
{
	BUF_LIT(b, "{");
	put_model(a, b);
}

/* ---- the two that generate ---- */

static void
put_response_of(struct ask *a, const char *status, struct buf *b)
{
	const struct jv previous = json_get(a->doc, "previous_response_id");
	const bool whole = strcmp(status, "completed") == 0;

	buf_fmt(b,
		"{\"id\":\"%s\",\"object\":\"response\",\"created_at\":1700000000,\"status\":\"%s\",",
		a->id, status);
	put_model(a, b);
	BUF_LIT(b, ",\"previous_response_id\":");
	buf_add(b, previous.p == NULL ? "null" : previous.p, previous.p == NULL ? 4 : previous.len);
	buf_fmt(b, ",\"background\":%s", responses_in_background(a->doc) ? "true" : "false");
	BUF_LIT(b,
		",\"parallel_tool_calls\":true,\"tool_choice\":\"auto\",\"tools\":[],\"output\":[");
	if (whole)
		buf_fmt(b,
			"{\"type\":\"message\",\"id\":\"msg_%s\",\"role\":\"assistant\",\"status\":\"completed\","
			"\"content\":[{\"type\":\"output_text\",\"text\":\"%s\",\"annotations\":[]}]}",
			a->hash, a->text);
	BUF_LIT(b, "]");
	if (whole)
		buf_fmt(b,
			",\"usage\":{\"input_tokens\":%llu,\"output_tokens\":3,\"total_tokens\":%llu,"
			"\"input_tokens_details\":{\"cached_tokens\":0},"
			"\"output_tokens_details\":{\"reasoning_tokens\":0}}",
			(unsigned long long)a->ntokens, (unsigned long long)a->ntokens + 3);
}

static void
keep_response(struct ask *a)
{
	static const char *const statuses[] = {"queued", "cancelled", "completed"};
	struct response_texts t = {0};
	struct buf *const texts[] = {&t.waits, &t.cancelled, &t.whole};

	for (int i = 0; i < 3; i++) {
		put_response_of(a, statuses[i], texts[i]);
		put_tail(a, texts[i]);
		BUF_LIT(texts[i], "}");
	}
	responses_keep(a->c, a->doc, a->id, &t);
}

static void
put_response(struct ask *a, struct buf *b)
{
	put_response_of(a, responses_in_background(a->doc) ? "queued" : "completed", b);
	keep_response(a);
}

static void
put_message_of(struct ask *a, bool whole, struct buf *b)
{
	buf_fmt(b, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",", a->hash);
	put_model(a, b);
	BUF_LIT(b, ",\"content\":[");
	if (whole)
		buf_fmt(b, "{\"type\":\"text\",\"text\":\"%s\"}", a->text);
	buf_fmt(b,
		"],\"stop_reason\":%s,\"stop_sequence\":null,\"usage\":{\"input_tokens\":%llu,\"output_tokens\":%d}",
		whole ? "\"end_turn\"" : "null", (unsigned long long)a->ntokens, whole ? 3 : 0);
}

static void
put_message(struct ask *a, struct buf *b)
{
	put_message_of(a, true, b);
}

/* One event: `b` holds CHUNK_ROOM bytes and its data, whose last brace is still missing. */
static void
event_begin(struct buf *b, const char *type)
{
	b->len = 0;
	buf_fill(b, 0, CHUNK_ROOM);
	buf_fmt(b, "event: %s\ndata: ", type);
}

static void
event_end(struct ask *a, struct buf *b)
{
	BUF_LIT(b, "}\n\n");
	buf_reserve(b, 2);
	(void)conn_chunk(a->c, b->p + CHUNK_ROOM, b->len - CHUNK_ROOM);
}

static void
event(struct ask *a, struct buf *b, const char *type, const char *members)
{
	event_begin(b, type);
	buf_fmt(b, "{\"type\":\"%s\"%s", type, members);
	event_end(a, b);
}

static void
stream_response(struct ask *a, struct buf *b)
{
	char members[256];

	event_begin(b, "response.created");
	BUF_LIT(b, "{\"type\":\"response.created\",\"sequence_number\":0,\"response\":");
	put_response_of(a, "in_progress", b);
	put_tail(a, b);
	BUF_LIT(b, "}");
	event_end(a, b);
	(void)snprintf(members, sizeof(members),
		",\"sequence_number\":1,\"item_id\":\"msg_%s\",\"output_index\":0,\"content_index\":0,"
		"\"logprobs\":[],\"delta\":\"%s\"",
		a->hash, a->text);
	event(a, b, "response.output_text.delta", members);
	event_begin(b, "response.completed");
	BUF_LIT(b, "{\"type\":\"response.completed\",\"sequence_number\":2,\"response\":");
	put_response_of(a, "completed", b);
	put_tail(a, b);
	BUF_LIT(b, "}");
	keep_response(a);
	event_end(a, b);
}

static void
stream_message(struct ask *a, struct buf *b)
{
	char members[256];

	event_begin(b, "message_start");
	BUF_LIT(b, "{\"type\":\"message_start\",\"message\":");
	put_message_of(a, false, b);
	put_tail(a, b);
	BUF_LIT(b, "}");
	event_end(a, b);
	event(a, b, "content_block_start",
		",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
	(void)snprintf(members, sizeof(members),
		",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"%s\"}", a->text);
	event(a, b, "content_block_delta", members);
	event(a, b, "content_block_stop", ",\"index\":0");
	event(a, b, "message_delta",
		",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":3}");
	event(a, b, "message_stop", "");
}

/* ---- which is which ---- */

static const struct {
	const char *path; /* or what it begins with: the longer ones first */
	put *put, *stream;
	bool any_body; /* a form, not JSON */
} rows[] = {
	{"/v1/embeddings", put_embeddings, NULL, false},
	{"/pooling", put_pooling, NULL, false},
	{"/classify", put_classes, NULL, false},
	{"/v1/classify", put_classes, NULL, false},
	{"/score", put_scores, NULL, false},
	{"/v1/score", put_scores, NULL, false},
	{"/rerank", put_ranks, NULL, false},
	{"/v1/rerank", put_ranks, NULL, false},
	{"/v2/rerank", put_ranks, NULL, false},
	{"/v1/responses", put_response, stream_response, false},
	{"/v1/messages/count_tokens", put_count, NULL, false},
	{"/v1/messages", put_message, stream_message, false},
	{"/v1/audio/", put_text, NULL, true},
	{"/", put_generic, NULL, false},
};

static void
stream(struct ask *a, put *all)
{
	struct buf b = {0};

	conn_stream_head(a->c);
	all(a, &b);
	if (a->c->chunked)
		conn_write(a->c, "0\r\n\r\n", 5);
	conn_finish(a->c);
	buf_free(&b);
}

static void
answer(struct ask *a, put *all)
{
	struct buf b = {0};

	all(a, &b);
	put_tail(a, &b);
	BUF_LIT(&b, "}");
	conn_reply(a->c, 200, "application/json", NULL, b.p, b.len);
	buf_free(&b);
}

/* The member of a response's id: its text follows from the rest of the body.  Empty: there is none. */
static struct jv
id_member(const struct ask *a)
{
	struct jv key, val, m = {a->c->body.p, 0};
	const char *from, *to;
	struct jiter it;

	if (strcmp(a->path, "/v1/responses") != 0 || !json_iter(&it, a->doc))
		return m;
	while (json_next(&it, &key, &val)) {
		if (!json_is(key, "request_id"))
			continue;
		to = val.p + val.len;
		for (from = key.p; strchr(" \t\r\n", from[-1]) != NULL;)
			from--;
		if (from[-1] == ',')
			from--;
		else
			to += strspn(to, " \t\r\n,");
		m = (struct jv){from, (size_t)(to - from)};
	}
	return m;
}

/* FNV-1a of the body. */
static void
set_text(struct ask *a)
{
	const struct buf *body = &a->c->body;
	const struct jv id = id_member(a);
	const size_t before = id.len > 0 ? (size_t)(id.p - body->p) : body->len;
	uint64_t h = text_fnv(TEXT_FNV0, body->p, before);

	if (id.len > 0)
		h = text_fnv(h, id.p + id.len, body->len - before - id.len);
	(void)snprintf(a->hash, sizeof(a->hash), "%016llx", (unsigned long long)h);
	(void)snprintf(a->text, sizeof(a->text), "%s %s", a->path, a->hash);
	a->ntokens = (body->len - id.len + 2) / 3;
}

void
oneleg_answer(struct conn *c)
{
	const char *url = buf_cstr(&c->url);
	struct ask a = {.c = c};
	size_t i = 0;

	(void)snprintf(a.path, sizeof(a.path), "%.*s", (int)strcspn(url, "?\"\\"), url);
	while (strncmp(a.path, rows[i].path, strlen(rows[i].path)) != 0)
		i++;
	if (c->parser.method == HTTP_POST && !rows[i].any_body) {
		a.doc = json_doc(c->body.p, c->body.len);
		if (json_kind(a.doc) != '{') {
			conn_error(c, 400, "BadRequestError", "the body is not a JSON object");
			return;
		}
	}
	set_text(&a);
	/* vLLM: these KV parameters name the host that it connects to */
	if (json_get(json_get(json_get(a.doc, "sampling_params"), "extra_args"),
		    "kv_transfer_params")
			.p != NULL)
		count(c->sim, CTR_kv_foreign);
	if (!admin_known_model(c, json_get(a.doc, "model")))
		admin_refuse_model(c, json_get(a.doc, "model"));
	else if (rows[i].put == put_response && !responses_begin(c, a.doc, a.id))
		return;
	else if (rows[i].stream != NULL && json_true(json_get(a.doc, "stream")))
		stream(&a, rows[i].stream);
	else
		answer(&a, rows[i].put);
}

void
oneleg_model(struct conn *c)
{
	const char *id = buf_cstr(&c->url) + strlen("/v1/models/");
	size_t n = strcspn(id, "?");
	const struct opts *o = &c->sim->o;
	struct buf b = {0};
	unsigned i;

	for (i = 0; i < o->nmodels; i++)
		if (strlen(o->models[i]) == n && memcmp(o->models[i], id, n) == 0)
			break;
	if (i == o->nmodels) {
		buf_json(&b, id, n);
		admin_refuse_model(c, (struct jv){b.p, b.len});
		buf_free(&b);
		return;
	}
	admin_put_model(c, o->models[i], &b);
	conn_reply(c, 200, "application/json", NULL, b.p, b.len);
	buf_free(&b);
}

void
oneleg_control(struct conn *c)
{
	count(c->sim, CTR_controlled);
	conn_reply(c, 200, "application/json", NULL, "{}", 2);
}

void
oneleg_clear_cache(struct conn *c)
{
	if (c->sim->prefix != NULL)
		prefix_clear(c->sim->prefix);
	oneleg_control(c);
}
