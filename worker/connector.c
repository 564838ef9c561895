#include "worker/connector.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/pool.h"
#include "worker/req.h"

static const struct connector *const connectors[CONNECTOR_N] = {
	[CONNECTOR_NIXL] = &connector_nixl,
	[CONNECTOR_ORCHESTRATED] = &connector_orchestrated,
};

/*
 * Members that choose a peer or a request: an engine would connect to any host they name (protocols.md
 * 10.1, point 2), so they never pass from a client.
 */
static const enum splice_key stripped[] = {SK_KV_TRANSFER_PARAMS, SK_DISAGG_PREFILL_RESP,
	SK_DISAGG_SPEC, SK_BOOTSTRAP_HOST, SK_BOOTSTRAP_PORT, SK_BOOTSTRAP_ROOM, SK_ROUTED_DP_RANK,
	SK_DISAGG_PREFILL_DP_RANK, SK_DATA_PARALLEL_RANK};

static void
no_edit(const struct pair *pair, struct splice_edit *e)
{
	(void)pair;
	(void)e;
}

const struct connector connector_direct = {
	.starts = {[ROLE_PREFILL] = STARTS_NEVER, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_PREFILL] = no_edit, [ROLE_DECODE] = no_edit},
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

bool
connector_asks_several(const struct splice *doc)
{
	const struct splice_member *n = splice_find(doc, SK_N),
				   *prompt = splice_find(doc, SK_PROMPT);
	const char *p;

	if (n != NULL && n->type == ST_NUMBER && strtod(doc->text + n->val, NULL) > 1)
		return true;
	if (prompt == NULL || prompt->type != ST_ARRAY)
		return false;
	p = doc->text + prompt->val + 1;
	p += strspn(p, " \t\r\n");
	/* a list of numbers is one prompt */
	return (*p == '"' || *p == '[') &&
	       array_length(doc->text + prompt->val, doc->text + prompt->end) > 1;
}

const struct connector *
connector_find(enum connector_kind kind)
{
	return connectors[kind];
}

static void
set(struct splice_edit *e, enum splice_key k, enum splice_op op, const char *value)
{
	e->on[k].op = op;
	e->on[k].value = value;
	e->on[k].len = value == NULL ? 0 : strlen(value);
}

void
connector_limit_prefill(const struct pair *pair, struct splice_edit *e)
{
	(void)pair;
	set(e, SK_MAX_TOKENS, SE_SET, "1");
	/* wins over max_tokens where both are present */
	set(e, SK_MAX_COMPLETION_TOKENS, SE_LOWER, "1");
	set(e, SK_STREAM, SE_SET, "false");
	set(e, SK_STREAM_OPTIONS, SE_CUT, NULL); /* refused with stream false */
	set(e, SK_MIN_TOKENS, SE_CUT, NULL);     /* refused above max_tokens */
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
	const char *host = pair->leg[ROLE_PREFILL].up->host;
	struct span kv = pair->kv;
	struct splice_seg v;
	char quoted[280];
	int known = splice_member_raw(kv.p, kv.n, "remote_host", &v);

	if (known == -1 || json_quote(quoted, sizeof(quoted), host, strlen(host), 256) == -1)
		return; /* not an object: passed on as it is */
	if (known == 1)
		pair->own_kv = mem_printf("%.*s%s%.*s", (int)(v.p - kv.p), kv.p, quoted,
			(int)(kv.p + kv.n - (v.p + v.n)), v.p + v.n);
	else
		pair->own_kv = mem_printf("{\"remote_host\":%s%s%.*s", quoted,
			empty_object(kv) ? "" : ",", (int)kv.n - 1, kv.p + 1);
	pair->kv = (struct span){pair->own_kv, strlen(pair->own_kv)};
}

int
connector_take_kv(struct pair *pair)
{
	const struct leg *p = &pair->leg[ROLE_PREFILL];
	struct splice_seg v;

	switch (splice_member_raw(p->answer, p->answer_len, "kv_transfer_params", &v)) {
	case 1:
		if (v.n == 4 && memcmp(v.p, "null", 4) == 0)
			return 0;
		pair->kv = (struct span){v.p, v.n};
		if (pair->req->pool.remote_host == REMOTE_HOST_PREFILL)
			name_host(pair);
		return 1;
	case 0:
		return 0;
	default:
		return -1;
	}
}

void
connector_edit(const struct pair *pair, enum role role, struct splice_edit *e)
{
	const struct req *req = pair->req;

	memset(e, 0, sizeof(*e));
	for (size_t i = 0; i < sizeof(stripped) / sizeof(stripped[0]); i++)
		set(e, stripped[i], SE_CUT, NULL);
	set(e, SK_REQUEST_ID, SE_LOWER, req->attempt_json);
	set(e, SK_RID, SE_LOWER, req->attempt_json);
	req->connector->edit[role](pair, e);
	if (role == ROLE_DECODE && pair->release)
		/* one token, so that it fetches and thereby frees */
		connector_limit_prefill(pair, e);
}
