/*
 * vLLM NixlConnector (protocols.md 2): the prefill answer carries kv_transfer_params, an object that
 * the decode leg is given as it came.  Its numbers and nesting depend on the engine's version (block ids
 * are ints, strings or nested lists), so no more than remote_engine_id is read.
 *
 * transfer_mode: push (NixlPushConnector, 2.7): the prefill engine writes, so both legs may run at once where
 * its identity is known from an earlier answer.  Which request is meant both sides can only know beforehand
 * when the engine adds nothing to the ids it is given (VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1): what
 * an answer calls itself tells whether that is so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/net/connpool.h"
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

/* Only do_remote_decode is read; the nulls are what every published proxy sends (2.1). */
static const char ask[] =
	"{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
	"\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";

/* What names the prefill engine to the decode engine in push mode. */
static const char *const identity[] = {
	"remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size", "dcp_size"};
#define IDENTITY_N (sizeof(identity) / sizeof(identity[0]))

static void
prefill_edit(struct transfer *t, struct splice_edit *e)
{
	edit_limit_prefill(t, e);
	edit_no_stops(e);
	edit_set(e, SK_KV_TRANSFER_PARAMS, SE_SET, ask);
}

static void
decode_edit(struct transfer *t, struct splice_edit *e)
{
	if (t->kv.n >
		0) /* else there are no KV parameters: the decode engine prefills for itself */
		edit_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET, t->kv);
}

/* Of /v1/responses the internal id is not known beforehand: decode follows prefill in both modes. */
static bool
pushes(const struct transfer *t)
{
	return t->of.facts->pool->shake.transfer_mode == TRANSFER_PUSH &&
	       t->of.facts->route != ROUTE_RESPONSES;
}

/* Writes the internal id that vLLM gives a request of the router, with nothing random added
 * (protocols.md 1.3). */
static void
internal_id(const struct transfer *t, char *buf, size_t size)
{
	if (t->of.facts->route != ROUTE_COMPLETIONS) /* /v1/messages are a chat to vLLM */
		(void)snprintf(buf, size, "chatcmpl-%s", t->id);
	else
		(void)snprintf(buf, size, "cmpl-%s-0", t->id);
}

/* The identity members of an object, "name":value,... as they stand.  NULL: it names no engine. */
static char *
pick_identity(struct span kv)
{
	struct membuf b = {NULL, 0, 0};
	struct splice_seg v;

	if (splice_member_raw(kv.p, kv.n, "remote_engine_id", &v) != 1 || v.p[0] != '"')
		return NULL;
	for (size_t i = 0; i < IDENTITY_N; i++) {
		if (splice_member_raw(kv.p, kv.n, identity[i], &v) != 1)
			continue;
		membuf_add(&b, ",\"", 2);
		membuf_add(&b, identity[i], strlen(identity[i]));
		membuf_add(&b, "\":", 2);
		membuf_add(&b, v.p, v.n);
	}
	membuf_add(&b, "", 1);
	return b.p;
}

static enum req_end
begin(struct transfer *t)
{
	const struct endpoint *p = t->engine[ROLE_PREFILL];
	char id[TRANSFER_ID_MAX + 16];

	if (!pushes(t) || p->learned == NULL || t->rank[ROLE_PREFILL] >= 0)
		return END_OK;
	if (p->learned_disconnects != p->disconnects)
		/* all connections to the engine were gone: another engine may run there */
		return END_OK;
	internal_id(t, id, sizeof(id));
	t->kv = transfer_text(t,
		"{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_request_id\":\"%s\"%s}",
		id, p->learned);
	t->starts[ROLE_DECODE] = STARTS_AT_ONCE;
	return END_OK;
}

/* Returns true if the parameters that decode was sent beforehand end with that identity:
 * begin(). */
static bool
names(struct span told, const char *who)
{
	const size_t n = who == NULL ? told.n : strlen(who);

	return n < told.n && memcmp(told.p + told.n - 1 - n, who, n) == 0;
}

/* Learns the prefill engine's identity; the parameters that decode was sent beforehand must
 * have been right. */
static enum handoff
learn(struct transfer *t, struct span told)
{
	struct endpoint *p = t->engine[ROLE_PREFILL];
	char id[TRANSFER_ID_MAX + 16], want[TRANSFER_ID_MAX + 20], *who = pick_identity(t->kv);
	struct splice_seg rid;
	bool same = names(told, who), ours;

	internal_id(t, id, sizeof(id));
	(void)snprintf(want, sizeof(want), "\"%s\"", id);
	ours = splice_member_raw(t->kv.p, t->kv.n, "remote_request_id", &rid) == 1 &&
	       rid.n == strlen(want) && memcmp(rid.p, want, rid.n) == 0;
	free(p->learned);
	p->learned = ours ? who : NULL;
	p->learned_disconnects = p->disconnects;
	if (!ours)
		free(who);
	return told.n == 0 || (same && ours) ? HANDOFF_OK : HANDOFF_RETRY;
}

static enum handoff
prefilled(struct transfer *t)
{
	const struct span told = t->kv;
	enum handoff r = transfer_take_kv(t);

	if (!pushes(t) || (r != HANDOFF_OK && r != HANDOFF_NONE))
		return r;
	t->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL; /* should prefill be done again */
	if (r == HANDOFF_OK)
		return learn(t, told);
	t->kv = (struct span){NULL, 0};
	/* decode waits for KV that will not come */
	return told.n == 0 ? HANDOFF_NONE : HANDOFF_RETRY;
}

static void
failed(struct transfer *t, enum role role)
{
	struct endpoint *p = t->engine[ROLE_PREFILL];

	(void)role; /* a decode engine may fail because of the parameters that it was sent */
	free(p->learned);
	p->learned = NULL;
}

static const char *
refusal(const struct req_pool *pool)
{
	(void)pool;
	return splice_key_name(SK_KV_TRANSFER_PARAMS);
}

const struct connector connector_nixl = {
	.info = &connector_info[CONNECTOR_NIXL],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.refusal = refusal,
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.prefilled = prefilled,
	.failed = failed,
	.samples = connector_fanout,
	.prompts = connector_several_branches,
	.unfit = connector_prompt_logprobs,
};
