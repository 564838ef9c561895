#include "worker/handshake/edit.h"

#include <string.h>

#include "proto/json/json_read.h"
#include "worker/base/response_id.h"
#include "worker/handshake/transfer.h"
#include "worker/net/connpool.h"

/*
 * Members that choose a peer or a request: an engine would connect to any host they name (protocols.md
 * 10.1, point 2), so they never pass from a client.
 */
static const enum splice_key stripped[] = {SK_KV_TRANSFER_PARAMS, SK_EC_TRANSFER_PARAMS,
	SK_DISAGG_PREFILL_RESP, SK_DISAGG_SPEC, SK_DISAGG_PARAMS, SK_BOOTSTRAP_HOST,
	SK_BOOTSTRAP_PORT, SK_BOOTSTRAP_ROOM, SK_ROUTED_DP_RANK, SK_DISAGG_PREFILL_DP_RANK,
	SK_DATA_PARALLEL_RANK};

bool
edit_hides(const struct splice *doc, enum splice_key outer, const char *const *names, size_t n)
{
	const struct splice_member *m = splice_find(doc, outer);
	struct splice_seg key;
	struct json_read r;

	if (m == NULL || m->type != ST_OBJECT)
		return false;
	json_read_init(&r, doc->text + m->val, m->end - m->val);
	(void)json_read_enter(&r, '{');
	while (json_read_member(&r, &key)) {
		if (memchr(key.p, '\\', key.n) != NULL)
			return true;
		for (size_t i = 0; i < n; i++)
			if (json_read_is(&key, names[i]))
				return true;
		(void)json_read_value(&r);
	}
	return false;
}

/*
 * vLLM puts the members of `vllm_xargs` where it looks for these parameters (to_sampling_params()
 * in its protocol.py files).  It allows texts and numbers alone there, and its scheduler dies of a
 * text.
 */
const char *
edit_refuses(const struct demand *d)
{
	static const char *const names[] = {"kv_transfer_params", "ec_transfer_params"};

	if (d->text->doc == NULL || !edit_hides(d->text->doc, SK_VLLM_XARGS, names, 2))
		return NULL;
	return "`vllm_xargs` with parameters of a transfer, or with an escaped name";
}

void
edit_nothing(struct transfer *t, struct splice_edit *e)
{
	(void)t;
	(void)e;
}

void
edit_set_span(struct splice_edit *e, enum splice_key k, enum splice_op op, struct span v)
{
	splice_edit(e, k, op, v.p, v.n);
}

void
edit_set(struct splice_edit *e, enum splice_key k, enum splice_op op, const char *value)
{
	edit_set_span(e, k, op, (struct span){value, value == NULL ? 0 : strlen(value)});
}

void
edit_limit_prefill(struct transfer *t, struct splice_edit *e)
{
	if (t->of.facts->route == ROUTE_RESPONSES) {
		edit_set(e, SK_MAX_OUTPUT_TOKENS, SE_SET, "1");
		edit_set(e, SK_STORE, SE_SET, "false"); /* engines never drop what they store */
	} else {
		edit_set(e, SK_MAX_TOKENS, SE_SET, "1");
	}
	/* wins over max_tokens where both are present */
	edit_set(e, SK_MAX_COMPLETION_TOKENS, SE_LOWER, "1");
	edit_set(e, SK_STREAM, SE_SET, "false");
	edit_set(e, SK_STREAM_OPTIONS, SE_CUT, NULL); /* refused with stream false */
	edit_set(e, SK_MIN_TOKENS, SE_CUT, NULL);     /* refused above max_tokens */
	edit_set(e, SK_N, SE_LOWER, "1");
	edit_set(e, SK_BEST_OF, SE_CUT, NULL); /* refused below n */
}

void
edit_no_stops(struct splice_edit *e)
{
	edit_set(e, SK_STOP, SE_CUT, NULL);
	edit_set(e, SK_STOP_SEQUENCES, SE_CUT, NULL);
	edit_set(e, SK_STOP_TOKEN_IDS, SE_CUT, NULL);
	edit_set(e, SK_IGNORE_EOS, SE_SET, "true");
}

void
edit_no_budget(struct transfer *t, struct splice_edit *e)
{
	const struct splice *doc = t->of.text->doc;
	const struct splice_member *m = splice_find(doc, SK_THINKING);
	struct splice_seg v;

	if (t->of.facts->route == ROUTE_MESSAGES && m != NULL && m->type == ST_OBJECT &&
		splice_member_raw(doc->text + m->val, m->end - m->val, "budget_tokens", &v) == 1)
		edit_set(e, SK_THINKING, SE_CUT, NULL);
}

void
edit_strip(struct transfer *t, struct splice_edit *e)
{
	e->given = 0;
	for (size_t i = 0; i < sizeof(stripped) / sizeof(stripped[0]); i++)
		edit_set(e, stripped[i], SE_CUT, NULL);
	edit_set(e, SK_REQUEST_ID, SE_LOWER, t->id_json);
	edit_set(e, SK_RID, SE_LOWER, t->id_json);
}

/* Of a request with several branches, this attempt's share. */
static void
take_share(struct transfer *t, struct splice_edit *e)
{
	if (t->prompt.n > 0)
		edit_set_span(e, SK_PROMPT, SE_SET, t->prompt);
	if (t->of.facts->parts > 1 && t->of.facts->samples > 1) {
		edit_set(e, SK_N, SE_LOWER, "1");
		edit_set(e, SK_BEST_OF, SE_CUT, NULL);
	}
	if (t->seeded)
		edit_set_span(e, SK_SEED, SE_LOWER, transfer_text(t, "%lld", (long long)t->seed));
}

/* The engine keeps the response under this id (response_id.h). */
static void
name_response(struct transfer *t, struct splice_edit *e)
{
	char id[RESPONSE_ID_LEN + 1];

	response_id_make(t->engine[ROLE_DECODE]->url, id);
	edit_set_span(e, SK_REQUEST_ID, SE_SET, transfer_text(t, "\"%s\"", id));
}

void
edit_leg(struct transfer *t, enum role role, struct splice_edit *e)
{
	edit_strip(t, e);
	take_share(t, e);
	if (t->stream_options.n > 0)
		edit_set_span(e, SK_STREAM_OPTIONS, SE_SET, t->stream_options);
	if (role == ROLE_DECODE && t->of.facts->route == ROUTE_RESPONSES)
		name_response(t, e);
	t->connector->edit[role](t, e);
	if (role == ROLE_DECODE && t->release_only) {
		/* one token, so that it fetches and thereby frees */
		edit_limit_prefill(t, e);
		edit_no_budget(t, e);
	}
}
