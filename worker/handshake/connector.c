#include "worker/handshake/connector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "worker/net/connpool.h"
#include "worker/handshake/transfer.h"

#define ROW(id, word, ...) [CONNECTOR_##id] = &connector_##word,
static const struct connector *const connectors[CONNECTOR_N] = {CONNECTOR_LIST(ROW)};
#undef ROW

static const struct connector_info no_handshake = {.cleanup = CLEANUP_NONE};

/*
 * Members that choose a peer or a request: an engine would connect to any host they name (protocols.md
 * 10.1, point 2), so they never pass from a client.
 */
static const enum splice_key stripped[] = {SK_KV_TRANSFER_PARAMS, SK_DISAGG_PREFILL_RESP,
	SK_DISAGG_SPEC, SK_DISAGG_PARAMS, SK_BOOTSTRAP_HOST, SK_BOOTSTRAP_PORT, SK_BOOTSTRAP_ROOM,
	SK_ROUTED_DP_RANK, SK_DISAGG_PREFILL_DP_RANK, SK_DATA_PARALLEL_RANK};

void
connector_no_edit(struct transfer *t, struct splice_edit *e)
{
	(void)t;
	(void)e;
}

const struct connector connector_direct = {
	.info = &no_handshake,
	.engines = ENGINES_DECODE,
	.starts = {[ROLE_PREFILL] = STARTS_NEVER, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_DECODE] = connector_no_edit},
};

const struct connector connector_single = {
	.info = &no_handshake,
	.engines = ENGINES_SINGLE,
	.starts = {[ROLE_PREFILL] = STARTS_NEVER, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_DECODE] = connector_no_edit},
};

/* Elements of a JSON array that the scan has found well-formed. */
static size_t
array_length(const char *p, const char *end)
{
	size_t n = 0;
	int depth = 0;

	for (; p < end; p++) {
		if (*p == '"') {
			while (*++p != '"')
				p += *p == '\\';
			n += n == 0;
		} else if (*p == '[' || *p == '{') {
			n += n == 0 && depth == 1;
			depth++;
		} else if (*p == ']' || *p == '}') {
			depth--;
		} else if (*p == ',' && depth == 1) {
			n++;
		}
	}
	return n;
}

size_t
connector_list_of_prompts(const struct splice *doc, const struct splice_member *m)
{
	const char *p;

	if (m == NULL || m->type != ST_ARRAY)
		return 0;
	p = doc->text + m->val + 1;
	p += strspn(p, " \t\r\n");
	/* a list of numbers is one prompt */
	return *p == '"' || *p == '[' ? array_length(doc->text + m->val, doc->text + m->end) : 0;
}

size_t
connector_prompts(const struct demand *d)
{
	size_t n = 0;

	if (d->facts->route == ROUTE_COMPLETIONS) /* no other path reads it */
		n = connector_list_of_prompts(d->text->doc, splice_find(d->text->doc, SK_PROMPT));

	return n > 1 ? n : 1;
}

const struct connector *
connector_find(enum connector_kind kind)
{
	return connectors[kind];
}

const char *
connector_answer_id(const struct demand *d, char id[CONNECTOR_ANSWER_ID])
{
	(void)snprintf(id, CONNECTOR_ANSWER_ID, "\"%s-%s\"",
		d->facts->route == ROUTE_CHAT ? "chatcmpl" : "cmpl", d->facts->id);
	return id;
}

enum several
connector_several_whole(const struct req_pool *pool)
{
	(void)pool;
	return SEVERAL_WHOLE;
}

enum several
connector_several_branches(const struct req_pool *pool)
{
	(void)pool;
	return SEVERAL_BRANCHES;
}

enum several
connector_fanout(const struct req_pool *pool)
{
	return pool->shake.fanout != 0 ? SEVERAL_BRANCHES : SEVERAL_DIRECT;
}

void
connector_set_span(struct splice_edit *e, enum splice_key k, enum splice_op op, struct span v)
{
	e->on[k].op = op;
	e->on[k].value = v.p;
	e->on[k].len = v.n;
}

void
connector_set(struct splice_edit *e, enum splice_key k, enum splice_op op, const char *value)
{
	connector_set_span(e, k, op, (struct span){value, value == NULL ? 0 : strlen(value)});
}

void
connector_limit_prefill(struct transfer *t, struct splice_edit *e)
{
	(void)t;
	connector_set(e, SK_MAX_TOKENS, SE_SET, "1");
	/* wins over max_tokens where both are present */
	connector_set(e, SK_MAX_COMPLETION_TOKENS, SE_LOWER, "1");
	connector_set(e, SK_STREAM, SE_SET, "false");
	connector_set(e, SK_STREAM_OPTIONS, SE_CUT, NULL); /* refused with stream false */
	connector_set(e, SK_MIN_TOKENS, SE_CUT, NULL);     /* refused above max_tokens */
	connector_set(e, SK_N, SE_LOWER, "1");
	connector_set(e, SK_BEST_OF, SE_CUT, NULL); /* refused below n */
}

void
connector_no_stops(struct splice_edit *e)
{
	connector_set(e, SK_STOP, SE_CUT, NULL);
	connector_set(e, SK_STOP_TOKEN_IDS, SE_CUT, NULL);
	connector_set(e, SK_IGNORE_EOS, SE_SET, "true");
}

static bool
empty_object(struct span kv)
{
	size_t i = 1;

	while (i < kv.n && strchr(" \t\r\n", kv.p[i]) != NULL)
		i++;
	return i < kv.n && kv.p[i] == '}';
}

/*
 * Names the prefill engine by the host of its URL: needed where it does not know its own address, as
 * vLLM's side channel says "localhost" by default (protocols.md 2.2).
 */
static void
name_host(struct transfer *t)
{
	const char *host = t->engine[ROLE_PREFILL]->host;
	struct span kv = t->kv;
	struct splice_seg v;
	char quoted[280];
	int known = splice_member_raw(kv.p, kv.n, "remote_host", &v);

	if (known == -1 || json_quote(quoted, sizeof(quoted), host, strlen(host), 256) == -1)
		return; /* not an object: passed on as it is */
	if (known == 1)
		t->kv = transfer_text(t, "%.*s%s%.*s", (int)(v.p - kv.p), kv.p, quoted,
			(int)(kv.p + kv.n - (v.p + v.n)), v.p + v.n);
	else
		t->kv = transfer_text(t, "{\"remote_host\":%s%s%.*s", quoted,
			empty_object(kv) ? "" : ",", (int)kv.n - 1, kv.p + 1);
}

enum handoff
connector_take_answer(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	struct splice_seg v;

	return splice_member_raw(p->text, p->len, "choices", &v) == 1 ? HANDOFF_OK : HANDOFF_BAD;
}

enum handoff
connector_take_kv(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	struct splice_seg v;

	switch (splice_member_raw(p->text, p->len, "kv_transfer_params", &v)) {
	case 1:
		if (v.n == 4 && memcmp(v.p, "null", 4) == 0)
			return HANDOFF_NONE;
		t->kv = (struct span){v.p, v.n};
		if (t->of.facts->pool.shake.remote_host == REMOTE_HOST_PREFILL)
			name_host(t);
		return HANDOFF_OK;
	case 0:
		return HANDOFF_NONE;
	default:
		return HANDOFF_BAD;
	}
}

void
connector_strip(struct transfer *t, struct splice_edit *e)
{
	memset(e, 0, sizeof(*e));
	for (size_t i = 0; i < sizeof(stripped) / sizeof(stripped[0]); i++)
		connector_set(e, stripped[i], SE_CUT, NULL);
	connector_set(e, SK_REQUEST_ID, SE_LOWER, t->id_json);
	connector_set(e, SK_RID, SE_LOWER, t->id_json);
}

/* Of a request with several branches, this attempt's share. */
static void
take_share(struct transfer *t, struct splice_edit *e)
{
	if (t->prompt.n > 0)
		connector_set_span(e, SK_PROMPT, SE_SET, t->prompt);
	if (t->of.facts->parts > 1 && t->of.facts->samples > 1) {
		connector_set(e, SK_N, SE_LOWER, "1");
		connector_set(e, SK_BEST_OF, SE_CUT, NULL);
	}
	if (t->seeded)
		connector_set_span(
			e, SK_SEED, SE_LOWER, transfer_text(t, "%lld", (long long)t->seed));
}

void
connector_edit(struct transfer *t, enum role role, struct splice_edit *e)
{
	connector_strip(t, e);
	take_share(t, e);
	if (t->stream_options.n > 0)
		connector_set_span(e, SK_STREAM_OPTIONS, SE_SET, t->stream_options);
	t->connector->edit[role](t, e);
	if (role == ROLE_DECODE && t->release_only)
		/* one token, so that it fetches and thereby frees */
		connector_limit_prefill(t, e);
}
