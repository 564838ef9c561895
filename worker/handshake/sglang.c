/*
 * SGLang's bootstrap room (protocols.md 5): both engines get the client's own body and three members that
 * say where they meet; both run at once, since the prefill engine's answer waits for the decode engine.  The
 * decode engine's answer is the client's; the prefill engine's 200 proves nothing.
 *
 * bootstrap: stream (5.5): the prefill engine chooses the room and says it in the first event of a stream.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/answer/sse.h"
#include "proto/json/json_small.h"
#include "proto/json/json_string.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

#define BATCH_MAX 4096 /* rooms of one request */

/* --- rooms */

/*
 * 63 bits: slot of the worker, a counter, and random bits, so that no two live requests of a
 * router share a room, and requests of two routers hardly ever do.  Congruent to the prefill
 * engine's rank where ranks are used, for each room of a batch too.  Never 0, which SGLang
 * reads as "not ready".
 */
#define ROOM_SLOT_SHIFT 56
#define ROOM_COUNT_SHIFT 32
#define ROOM_COUNT_MASK ((UINT64_C(1) << (ROOM_SLOT_SHIFT - ROOM_COUNT_SHIFT)) - 1)
#define ROOM_CHANCE_MASK ((UINT64_C(1) << 31) - 1) /* a batch and a rank stay below the count */

static uint64_t
new_room(struct transfer *t)
{
	struct worker *w = t->w;
	const uint32_t ranks = t->engine[ROLE_PREFILL]->dp_ranks;
	uint64_t room = (uint64_t)w->slot << ROOM_SLOT_SHIFT |
			(++w->next_room & ROOM_COUNT_MASK) << ROOM_COUNT_SHIFT |
			(rnd_u64() & ROOM_CHANCE_MASK);

	if (room == 0)
		room = 1024 * 1024; /* any rank's first above 0 */
	if (ranks > 0)
		room += ranks - room % ranks + (uint64_t)t->rank[ROLE_PREFILL];
	return room;
}

/* Of a batch: how far one's room is from the one before. */
static uint64_t
room_step(const struct transfer *t)
{
	const uint32_t ranks = t->engine[ROLE_PREFILL]->dp_ranks;

	return ranks > 0 ? ranks : 1;
}

/* How many prompts the body lists; 0: it is no list, and the members are no lists either. */
static size_t
prompts_of(const struct demand *d)
{
	const enum splice_key generate[] = {SK_TEXT, SK_INPUT_IDS};

	if (d->facts->route == ROUTE_COMPLETIONS)
		return connector_list_of_prompts(
			d->text->doc, splice_find(d->text->doc, SK_PROMPT));
	for (size_t i = 0; d->facts->route == ROUTE_GENERATE && i < 2; i++) {
		size_t n = connector_list_of_prompts(
			d->text->doc, splice_find(d->text->doc, generate[i]));

		if (n > 0)
			return n;
	}
	return 0;
}

/* The same of one attempt's body, which may be for one of them. */
static size_t
batch(const struct transfer *t)
{
	return t->prompt.n > 0 ? 0 : prompts_of(&t->of);
}

/* Ends a list and sets a member to it. */
static void
set_list(struct transfer *t, struct splice_edit *e, enum splice_key k, struct membuf *b)
{
	membuf_add(b, "]", 1);
	edit_set_span(e, k, SE_SET, transfer_text(t, "%.*s", (int)b->n, b->p));
	membuf_free(b);
}

/* Sets a member to a value, or to a list of it. */
static void
set_all(struct transfer *t, struct splice_edit *e, enum splice_key k, struct span v, size_t n)
{
	struct membuf b = {NULL, 0, 0};

	if (n == 0) {
		edit_set_span(e, k, SE_SET, v);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		membuf_add(&b, i == 0 ? "[" : ",", 1);
		membuf_add(&b, v.p, v.n);
	}
	set_list(t, e, k, &b);
}

/*
 * Sets a rid for each prompt of a batch.  An engine aborts all requests whose rid begins with
 * the rid of an abort, but only if it knows that rid (SGLang's
 * TokenizerManager.abort_request).  Therefore all rids of a batch begin with the first one.
 */
static void
set_rids(struct transfer *t, struct splice_edit *e, size_t n)
{
	struct membuf b = {NULL, 0, 0};
	char one[TRANSFER_ID_MAX + 32];

	membuf_add(&b, "[", 1);
	membuf_add(&b, t->id_json, strlen(t->id_json));
	for (size_t i = 1; i < n; i++)
		membuf_add(&b, one, (size_t)snprintf(one, sizeof(one), ",\"%s_%zu\"", t->id, i));
	set_list(t, e, SK_RID, &b);
}

static void
set_rooms(struct transfer *t, struct splice_edit *e, size_t n)
{
	struct membuf b = {NULL, 0, 0};
	char one[32];

	for (size_t i = 0; i < n; i++)
		membuf_add(&b, one,
			(size_t)snprintf(one, sizeof(one), "%s%" PRIu64, i == 0 ? "[" : ",",
				t->room + i * room_step(t)));
	set_list(t, e, SK_BOOTSTRAP_ROOM, &b);
}

/* --- bodies */

static bool
streams(const struct transfer *t)
{
	return t->of.facts->pool->shake.bootstrap == BOOTSTRAP_STREAM;
}

/* The table has it as a URL would: IPv6 in brackets. */
static struct span
quoted_host(struct transfer *t, const char *host)
{
	char q[600];

	if (json_quote(q, sizeof(q), host, strlen(host), 260) == -1)
		return (struct span){"\"\"", 2};
	return transfer_text(t, "%s", q);
}

static void
edit(struct transfer *t, struct splice_edit *e)
{
	const struct endpoint *p = t->engine[ROLE_PREFILL];
	const size_t n = batch(t);

	if (n == 0) {
		edit_set(e, SK_RID, SE_SET, t->id_json);
		edit_set_span(e, SK_BOOTSTRAP_ROOM, SE_SET, transfer_text(t, "%" PRIu64, t->room));
	} else {
		set_rids(t, e, n);
		set_rooms(t, e, n);
	}
	set_all(t, e, SK_BOOTSTRAP_HOST, quoted_host(t, p->bootstrap_host), n);
	set_all(t, e, SK_BOOTSTRAP_PORT,
		transfer_text(
			t, "%u", p->bootstrap_port != 0 ? p->bootstrap_port : p->learned_port),
		n);
}

static void
prefill_edit(struct transfer *t, struct splice_edit *e)
{
	if (!streams(t)) {
		edit(t, e);
		return;
	}
	edit_set(e, SK_RID, SE_SET, t->id_json);
	edit_set(e, SK_STREAM, SE_SET, "true");
}

static void
decode_edit(struct transfer *t, struct splice_edit *e)
{
	static const enum splice_key keys[] = {
		SK_BOOTSTRAP_HOST, SK_BOOTSTRAP_PORT, SK_BOOTSTRAP_ROOM};

	if (!streams(t)) {
		edit(t, e);
		if (t->rank[ROLE_PREFILL] >= 0)
			edit_set_span(e, SK_DISAGG_PREFILL_DP_RANK, SE_SET,
				transfer_text(t, "%d", t->rank[ROLE_PREFILL]));
		return;
	}
	edit_set(e, SK_RID, SE_SET, t->id_json);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		struct splice_seg v;

		if (splice_member_raw(t->kv.p, t->kv.n, splice_key_name(keys[i]), &v) == 1)
			edit_set_span(e, keys[i], SE_SET, (struct span){v.p, v.n});
	}
}

/* --- what must be known */

static enum req_end
begin(struct transfer *t)
{
	if (streams(t)) {
		t->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
		return END_OK;
	}
	t->room = new_room(t);
	return END_OK;
}

static bool
lookup(struct transfer *t, struct lookup *l)
{
	const struct endpoint *p = t->engine[ROLE_PREFILL];

	if (streams(t) || p->bootstrap_port != 0 || p->learned_port != 0)
		return false;
	l->role = ROLE_PREFILL;
	/* the older name after the newer one (5.4) */
	l->path = t->lookups++ % 2 == 0 ? "/server_info" : "/get_server_info";
	return true;
}

static enum handoff
looked_up(struct transfer *t)
{
	const struct engine_answer *a = &t->lookup_answer;
	uint64_t port = 0;

	if (!json_member_number(a->text, a->len, "disaggregation_bootstrap_port", 65535, &port) ||
		port == 0)
		return HANDOFF_BAD;
	t->engine[ROLE_PREFILL]->learned_port = (uint32_t)port;
	return HANDOFF_OK;
}

static void
failed(struct transfer *t, enum role role)
{
	if (role == ROLE_PREFILL)
		t->engine[ROLE_PREFILL]->learned_port = 0;
}

/* Bytes of the event that tells the room: they are searched again with each piece that comes. */
#define ROOM_EVENT_MAX (64u << 10)

/* bootstrap: stream: the first event tells the room. */
static enum handoff
take_params(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	const char *json = p->text;
	size_t n = sse_next(p->text, p->len < ROOM_EVENT_MAX ? p->len : ROOM_EVENT_MAX);
	struct splice_seg v;

	if (t->kv.n > 0)
		return HANDOFF_NONE; /* taken before */
	if (n < 6 || memcmp(json, "data:", 5) != 0 ||
		splice_member_raw(json + 5, n - 5, "disaggregated_params", &v) != 1 ||
		v.p[0] != '{')
		return HANDOFF_BAD;
	t->kv = transfer_text(t, "%.*s", (int)v.n, v.p); /* the answer grows and moves */
	return HANDOFF_OK;
}

static enum handoff
prefill_more(struct transfer *t)
{
	if (!streams(t) || t->kv.n > 0)
		return HANDOFF_NONE;
	return take_params(t);
}

static bool
is_word(const char *json, size_t n, const char *name, const char *word)
{
	struct splice_seg v;

	return splice_member_raw(json, n, name, &v) == 1 && v.n == strlen(word) &&
	       memcmp(v.p, word, v.n) == 0;
}

/* OpenAI's error, SGLang's flat one, or its way to end /generate and the choices of the others. */
static bool
object_failed(const char *json, size_t n)
{
	struct splice_seg v, inner;
	size_t at = 0;

	if (splice_member_raw(json, n, "error", &v) == 1)
		return v.p[0] != 'n';
	if (splice_member_raw(json, n, "meta_info", &v) == 1 && v.p[0] == '{')
		return splice_member_raw(v.p, v.n, "finish_reason", &inner) == 1 &&
		       inner.p[0] == '{' && is_word(inner.p, inner.n, "type", "\"abort\"");
	if (splice_member_raw(json, n, "choices", &v) == 1 && v.p[0] == '[')
		return splice_element(&v, &at, &inner) && inner.p[0] == '{' &&
		       is_word(inner.p, inner.n, "finish_reason", "\"abort\"");
	return is_word(json, n, "object", "\"error\"");
}

static bool
body_failed(const char *json, size_t n)
{
	const struct splice_seg list = {json, n};
	struct splice_seg one;
	size_t at = 0;

	if (n < 2 || json[0] != '[')
		return n >= 2 && object_failed(json, n);
	while (splice_element(&list, &at, &one))
		if (one.p[0] == '{' && object_failed(one.p, one.n))
			return true;
	return false;
}

static bool
holds(const struct engine_answer *a, const char *word)
{
	return memmem(a->text, a->len, word, strlen(word)) != NULL;
}

/*
 * Returns true for a failure under a 200, of a prefill engine that has declared a stream or
 * whose request was aborted: its decode engine would wait for minutes (pitfall 20).  Only
 * answers that hold one of the words are parsed.
 */
static bool
prefill_failed(const struct engine_answer *a)
{
	size_t n;

	if (!holds(a, "error") && !holds(a, "\"abort\""))
		return false;
	if (!a->sse)
		return body_failed(a->text, a->len);
	for (size_t at = 0; (n = sse_next(a->text + at, a->len - at)) > 0; at += n)
		if (n > 5 && memcmp(a->text + at, "data:", 5) == 0 &&
			object_failed(a->text + at + 5, n - 5))
			return true;
	return false;
}

static enum handoff
prefilled(struct transfer *t)
{
	if (prefill_failed(&t->prefill_answer)) {
		t->detail = "it answered 200, then said that it failed";
		return HANDOFF_BAD;
	}
	if (!streams(t) || t->kv.n > 0)
		return HANDOFF_OK;
	return take_params(t);
}

/* --- answers */

/* `n` of sampling parameters; 1 where there is none. */
static uint64_t
samples_of(const struct splice_seg *params)
{
	uint64_t n = 1;

	if (params->p[0] == '{')
		(void)json_member_number(params->p, params->n, "n", UINT64_MAX, &n);
	return n;
}

/* /generate has `n` in there, the same for all where they are a list; it answers with a list then. */
static uint64_t
generate_samples(const struct demand *d)
{
	const struct splice_member *m = splice_find(d->text->doc, SK_SAMPLING_PARAMS);
	struct splice_seg params, first;
	size_t at = 0;

	if (d->facts->route != ROUTE_GENERATE || m == NULL)
		return 1;
	params = (struct splice_seg){d->text->doc->text + m->val, m->end - m->val};
	if (m->type != ST_ARRAY)
		return samples_of(&params);
	return splice_element(&params, &at, &first) ? samples_of(&first) : 1;
}

static const char *
refuses(const struct demand *d)
{
	if (generate_samples(d) > 1)
		return "several samples of one prompt on /generate: ask for them on /v1/completions";
	if (prompts_of(d) > BATCH_MAX)
		return "more than 4096 prompts in one request";
	return NULL;
}

/* The log probabilities of the prompt are the prefill engine's to tell (5.2). */
static bool
rewrites(const struct demand *d, struct answer_how *how, char id[CONNECTOR_ANSWER_ID])
{
	const struct splice_member *m = splice_find(d->text->doc, SK_RETURN_LOGPROB);

	(void)id;
	how->cached_from_prefill =
		/* SGLang's decode engines count the tokens that they received as cached ones */
		false;
	return d->facts->route == ROUTE_GENERATE && m != NULL &&
	       (m->type == ST_TRUE || m->type == ST_ARRAY);
}

const struct connector connector_sglang = {
	.info = &connector_info[CONNECTOR_SGLANG],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.lookup = lookup,
	.looked_up = looked_up,
	.lookup_repeats = true,
	.lookup_end = END_NOT_LEARNED,
	.prefill_more = prefill_more,
	.prefilled = prefilled,
	.failed = failed,
	.samples = connector_several_branches,
	.prompts = connector_several_whole,
	.refuses = refuses,
	.rewrites = rewrites,
};
