/*
 * vLLM MooncakeConnector (protocols.md 8), both generations:
 *   handoff: transfer_id          >= 0.17: both legs at once, an id of ours names the transfer; the decode engine is
 *                                 told the prefill engine's bootstrap server and engine id, which that server tells
 *   handoff: kv_transfer_params   <= 0.15: as nixl; the engines match by request id
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/pool.h"
#include "worker/req.h"

#define BOOTSTRAP_PORT 8998     /* VLLM_MOONCAKE_BOOTSTRAP_PORT */
#define LEARNED_MAX (64u << 10) /* of an answer to /query: some 200 bytes a rank */

static bool
old(const struct pair *pair)
{
	return pair->req->pool.shake.handoff == HANDOFF_KV_TRANSFER_PARAMS;
}

static uint16_t
bootstrap_port(const struct upstream *p)
{
	return (uint16_t)(p->bootstrap_port != 0 ? p->bootstrap_port : BOOTSTRAP_PORT);
}

/* {"0":{"engine_id":"ab", ...}, ...}: the id of a rank, quotes and all. */
static bool
engine_id(const char *text, size_t n, int rank, struct splice_seg *ret)
{
	struct splice_seg one;
	char name[16];

	(void)snprintf(name, sizeof(name), "%d", rank < 0 ? 0 : rank);
	return splice_member_raw(text, n, name, &one) == 1 &&
	       splice_member_raw(one.p, one.n, "engine_id", ret) == 1 && ret->p[0] == '"';
}

static enum req_end
begin(struct pair *pair)
{
	if (old(pair))
		pair->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	return END_OK;
}

static bool
ask(struct pair *pair, struct question *q)
{
	const struct upstream *p = pair->leg[LEG_PREFILL].up;
	struct splice_seg id;

	if (old(pair) || (p->learned != NULL && engine_id(p->learned, strlen(p->learned),
							pair->rank[ROLE_PREFILL], &id)))
		return false;
	q->role = ROLE_PREFILL;
	q->path = "/query";
	q->port = bootstrap_port(p);
	return true;
}

static enum taken
asked(struct pair *pair)
{
	const struct leg *a = &pair->leg[LEG_ASK];
	struct upstream *p = pair->leg[LEG_PREFILL].up;
	struct splice_seg id;

	if (a->answer_len > LEARNED_MAX ||
		!engine_id(a->answer, a->answer_len, pair->rank[ROLE_PREFILL], &id))
		return TAKEN_BAD;
	free(p->learned);
	p->learned = mem_strndup(a->answer, a->answer_len);
	return TAKEN;
}

/* Engine ids change when an engine starts again. */
static void
failed(struct pair *pair, enum role role)
{
	struct upstream *p = pair->leg[LEG_PREFILL].up;

	(void)role; /* a decode engine fails where it was told an id that is no more */
	free(p->learned);
	p->learned = NULL;
}

static void
prefill_edit(struct pair *pair, struct splice_edit *e)
{
	connector_limit_prefill(pair, e);
	connector_no_stops(e); /* what ends by a stop is not handed over */
	connector_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET,
		old(pair)
			? pair_text(pair, "{\"do_remote_decode\":true,\"do_remote_prefill\":false}")
			: pair_text(pair,
				  "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
				  "\"transfer_id\":\"xfer-%s\"}",
				  pair->id));
}

static void
decode_edit(struct pair *pair, struct splice_edit *e)
{
	const struct upstream *p = pair->leg[LEG_PREFILL].up;
	const bool v6 = strchr(p->host, ':') != NULL;
	struct splice_seg id;

	if (old(pair)) {
		if (pair->kv.n > 0)
			connector_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET, pair->kv);
		return;
	}
	if (p->learned == NULL ||
		!engine_id(p->learned, strlen(p->learned), pair->rank[ROLE_PREFILL], &id))
		return; /* it has failed in between, and so will this request */
	connector_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET,
		pair_text(pair,
			"{\"do_remote_decode\":false,\"do_remote_prefill\":true,\"transfer_id\":\"xfer-%s\","
			"\"remote_bootstrap_addr\":\"http://%s%s%s:%u\",\"remote_engine_id\":%.*s}",
			pair->id, v6 ? "[" : "", p->host, v6 ? "]" : "", bootstrap_port(p),
			(int)id.n, id.p));
}

static enum taken
prefilled(struct pair *pair)
{
	return old(pair) ? connector_take_kv(pair) : TAKEN;
}

const struct connector connector_mooncake = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AT_ONCE},
	.leaves = LEAVES_KV,
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.ask = ask,
	.asked = asked,
	.asks_again = true,
	.ask_fail = END_NOT_LEARNED,
	.prefilled = prefilled,
	.failed = failed,
	.samples = connector_fanout,
	.prompts = connector_several_pairs,
};
