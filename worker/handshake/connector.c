#include "worker/handshake/connector.h"

#include <stdlib.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"
#include "worker/attempt/resume.h"

static const struct connector *const connectors[CONNECTOR_N] = {
	[CONNECTOR_NIXL] = &connector_nixl,
	[CONNECTOR_ORCHESTRATED] = &connector_orchestrated,
	[CONNECTOR_LMCACHE] = &connector_lmcache,
	[CONNECTOR_SGLANG] = &connector_sglang,
	[CONNECTOR_SHARED_STORAGE] = &connector_shared_storage,
	[CONNECTOR_P2P_NCCL] = &connector_p2p_nccl,
	[CONNECTOR_MOONCAKE] = &connector_mooncake,
};

/*
 * Members that choose a peer or a request: an engine would connect to any host they name (protocols.md
 * 10.1, point 2), so they never pass from a client.
 */
static const enum splice_key stripped[] = {SK_KV_TRANSFER_PARAMS, SK_DISAGG_PREFILL_RESP,
	SK_DISAGG_SPEC, SK_DISAGG_PARAMS, SK_BOOTSTRAP_HOST, SK_BOOTSTRAP_PORT, SK_BOOTSTRAP_ROOM,
	SK_ROUTED_DP_RANK, SK_DISAGG_PREFILL_DP_RANK, SK_DATA_PARALLEL_RANK};

void
connector_no_edit(struct pair *pair, struct splice_edit *e)
{
	(void)pair;
	(void)e;
}

const struct connector connector_direct = {
	.starts = {[ROLE_PREFILL] = STARTS_NEVER, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_DECODE] = connector_no_edit},
};

const struct connector connector_one_leg = {
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
connector_prompts(const struct req *req)
{
	size_t n = 0;

	if (req->facts.route == ROUTE_COMPLETIONS) /* no other path reads it */
		n = connector_list_of_prompts(
			req->text->doc, splice_find(req->text->doc, SK_PROMPT));

	return n > 1 ? n : 1;
}

const struct connector *
connector_find(enum connector_kind kind)
{
	return connectors[kind];
}

const char *
connector_answer_id(struct req *req)
{
	return pair_text(&req->pairs[0], "\"%s-%s\"",
		req->facts.route == ROUTE_CHAT ? "chatcmpl" : "cmpl", req->facts.id)
		.p;
}

enum several
connector_several_whole(const struct req_pool *pool)
{
	(void)pool;
	return SEVERAL_WHOLE;
}

enum several
connector_several_pairs(const struct req_pool *pool)
{
	(void)pool;
	return SEVERAL_PAIRS;
}

enum several
connector_fanout(const struct req_pool *pool)
{
	return pool->shake.fanout != 0 ? SEVERAL_PAIRS : SEVERAL_DIRECT;
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
connector_limit_prefill(struct pair *pair, struct splice_edit *e)
{
	(void)pair;
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
name_host(struct pair *pair)
{
	const char *host = pair->leg[LEG_PREFILL].ep->host;
	struct span kv = pair->kv;
	struct splice_seg v;
	char quoted[280];
	int known = splice_member_raw(kv.p, kv.n, "remote_host", &v);

	if (known == -1 || json_quote(quoted, sizeof(quoted), host, strlen(host), 256) == -1)
		return; /* not an object: passed on as it is */
	if (known == 1)
		pair->kv = pair_text(pair, "%.*s%s%.*s", (int)(v.p - kv.p), kv.p, quoted,
			(int)(kv.p + kv.n - (v.p + v.n)), v.p + v.n);
	else
		pair->kv = pair_text(pair, "{\"remote_host\":%s%s%.*s", quoted,
			empty_object(kv) ? "" : ",", (int)kv.n - 1, kv.p + 1);
}

enum taken
connector_take_answer(struct pair *pair)
{
	const struct leg *p = &pair->leg[LEG_PREFILL];
	struct splice_seg v;

	return splice_member_raw(p->answer, p->answer_len, "choices", &v) == 1 ? TAKEN : TAKEN_BAD;
}

enum taken
connector_take_kv(struct pair *pair)
{
	const struct leg *p = &pair->leg[LEG_PREFILL];
	struct splice_seg v;

	switch (splice_member_raw(p->answer, p->answer_len, "kv_transfer_params", &v)) {
	case 1:
		if (v.n == 4 && memcmp(v.p, "null", 4) == 0)
			return TAKEN_NOTHING;
		pair->kv = (struct span){v.p, v.n};
		if (pair->req->facts.pool.shake.remote_host == REMOTE_HOST_PREFILL)
			name_host(pair);
		return TAKEN;
	case 0:
		return TAKEN_NOTHING;
	default:
		return TAKEN_BAD;
	}
}

void
connector_strip(struct pair *pair, struct splice_edit *e)
{
	memset(e, 0, sizeof(*e));
	for (size_t i = 0; i < sizeof(stripped) / sizeof(stripped[0]); i++)
		connector_set(e, stripped[i], SE_CUT, NULL);
	connector_set(e, SK_REQUEST_ID, SE_LOWER, pair->id_json);
	connector_set(e, SK_RID, SE_LOWER, pair->id_json);
}

/* Of a request that was split, this pair's share. */
static void
take_share(struct pair *pair, struct splice_edit *e)
{
	if (pair->prompt.n > 0)
		connector_set_span(e, SK_PROMPT, SE_SET, pair->prompt);
	if (pair->req->npairs > 1 && pair->req->facts.samples > 1) {
		connector_set(e, SK_N, SE_LOWER, "1");
		connector_set(e, SK_BEST_OF, SE_CUT, NULL);
	}
	if (pair->seeded)
		connector_set_span(
			e, SK_SEED, SE_LOWER, pair_text(pair, "%lld", (long long)pair->seed));
}

void
connector_edit(struct pair *pair, enum role role, struct splice_edit *e)
{
	connector_strip(pair, e);
	take_share(pair, e);
	if (pair->req->resume != NULL)
		connector_set_span(e, SK_STREAM_OPTIONS, SE_SET, resume_options(pair->req));
	pair->req->connector->edit[role](pair, e);
	if (role == ROLE_DECODE && pair->released)
		/* one token, so that it fetches and thereby frees */
		connector_limit_prefill(pair, e);
}
