/*
 * vLLM MooncakeConnector (protocols.md 8), both generations:
 *
 * - handoff: transfer_id (>= 0.17): both legs start at once, and the router's id names the
 * transfer.  The decode engine gets the prefill engine's bootstrap server and engine id; that
 * server reports the engine id.
 *
 * - handoff: kv_transfer_params (<= 0.15): as nixl; the engines match by request id.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/net/connpool.h"
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

#define BOOTSTRAP_PORT 8998     /* VLLM_MOONCAKE_BOOTSTRAP_PORT */
#define LEARNED_MAX (64u << 10) /* of an answer to /query: some 200 bytes a rank */
#define RANKS_MAX 1024          /* as dp_ranks */

static bool
old(const struct transfer *t)
{
	return t->of.facts->pool->shake.handoff == HANDOFF_KV_TRANSFER_PARAMS;
}

static uint16_t
bootstrap_port(const struct endpoint *p)
{
	return (uint16_t)(p->bootstrap_port != 0 ? p->bootstrap_port : BOOTSTRAP_PORT);
}

/* {"0":{"engine_id":"ab", ...}, ...}: the id of a rank, quotes and all. */
static bool
engine_id(const char *text, size_t n, uint32_t rank, struct splice_seg *ret)
{
	struct splice_seg one;
	char name[16];

	(void)snprintf(name, sizeof(name), "%u", rank);
	return splice_member_raw(text, n, name, &one) == 1 &&
	       splice_member_raw(one.p, one.n, "engine_id", ret) == 1 && ret->p[0] == '"';
}

static uint32_t
count_ranks(const char *text, size_t n)
{
	struct splice_seg id;
	uint32_t ranks = 0;

	while (ranks < RANKS_MAX && engine_id(text, n, ranks, &id))
		ranks++;
	return ranks;
}

/*
 * Stores the engine id for decode, of the rank that prefill is sent to, in the attempt: an
 * engine that fails is forgotten at once.  Returns false if the id must be looked up.
 */
static bool
take_engine(struct transfer *t)
{
	struct endpoint *p = t->engine[ROLE_PREFILL];
	int32_t *rank = &t->rank[ROLE_PREFILL];
	struct splice_seg id;

	if (p->learned == NULL || p->learned_disconnects != p->disconnects)
		return false;
	/* the engine would choose a rank without reporting it */
	if (*rank < 0 && p->learned_ranks > 1)
		*rank = (int32_t)(p->next_rank++ % p->learned_ranks);
	if (!engine_id(p->learned, strlen(p->learned), *rank < 0 ? 0 : (uint32_t)*rank, &id))
		return false;
	t->kv = transfer_text(t, "%.*s", (int)id.n, id.p);
	return true;
}

static void
forget(struct endpoint *p)
{
	free(p->learned);
	p->learned = NULL;
}

static enum req_end
begin(struct transfer *t)
{
	if (old(t))
		t->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	return END_OK;
}

static bool
lookup(struct transfer *t, struct lookup *l)
{
	if (old(t) || take_engine(t))
		return false;
	l->role = ROLE_PREFILL;
	l->path = "/query";
	l->port = bootstrap_port(t->engine[ROLE_PREFILL]);
	return true;
}

static enum handoff
looked_up(struct transfer *t)
{
	const struct engine_answer *a = &t->lookup_answer;
	struct endpoint *p = t->engine[ROLE_PREFILL];
	uint32_t ranks = a->len > LEARNED_MAX ? 0 : count_ranks(a->text, a->len);

	forget(p);
	if (ranks == 0)
		return HANDOFF_BAD;
	p->learned = mem_strndup(a->text, a->len);
	p->learned_ranks = ranks;
	p->learned_disconnects = p->disconnects;
	return take_engine(t) ? HANDOFF_OK : HANDOFF_BAD;
}

/* Forgets the engine ids: they change when an engine restarts. */
static void
failed(struct transfer *t, enum role role)
{
	(void)role; /* a decode engine fails if it was sent an engine id that is outdated */
	forget(t->engine[ROLE_PREFILL]);
}

static void
prefill_edit(struct transfer *t, struct splice_edit *e)
{
	edit_limit_prefill(t, e);
	edit_no_stops(e); /* the KV of what ends by a stop is not kept for decode */
	edit_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET,
		old(t) ? transfer_text(t, "{\"do_remote_decode\":true,\"do_remote_prefill\":false}")
		       : transfer_text(t,
				 "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
				 "\"transfer_id\":\"xfer-%s\"}",
				 t->id));
}

static void
decode_edit(struct transfer *t, struct splice_edit *e)
{
	const struct endpoint *p = t->engine[ROLE_PREFILL];
	const char *host = p->bootstrap_host;
	const bool bare_v6 = strchr(host, ':') != NULL && host[0] != '[';

	if (t->kv.n == 0)
		return; /* no KV parameters: the decode engine prefills for itself */
	if (old(t)) {
		edit_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET, t->kv);
		return;
	}
	edit_set_span(e, SK_KV_TRANSFER_PARAMS, SE_SET,
		transfer_text(t,
			"{\"do_remote_decode\":false,\"do_remote_prefill\":true,\"transfer_id\":\"xfer-%s\","
			"\"remote_bootstrap_addr\":\"http://%s%s%s:%u\",\"remote_engine_id\":%.*s}",
			t->id, bare_v6 ? "[" : "", host, bare_v6 ? "]" : "", bootstrap_port(p),
			(int)t->kv.n, t->kv.p));
}

/* Returns true if the text member of the answer is `value`, in quotes. */
static bool
says(const struct engine_answer *p, const char *name, const char *value)
{
	struct splice_seg v;

	return splice_member_raw(p->text, p->len, name, &v) == 1 && v.n == strlen(value) &&
	       memcmp(v.p, value, v.n) == 0;
}

static bool
ended_by_length(const struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;

	if (t->of.facts->route == ROUTE_MESSAGES)
		return says(p, "stop_reason", "\"max_tokens\"");
	if (t->of.facts->route == ROUTE_RESPONSES)
		return says(p, "status", "\"incomplete\"");
	return !answer_prefill_ended(p->text, p->len);
}

/*
 * The prefill engine keeps KV for decode only if its answer ended by length.  After any other
 * end, such as an engine's own abort, decode would wait for ever (protocols.md 8.2).
 */
static enum handoff
prefilled(struct transfer *t)
{
	if (old(t))
		return transfer_take_kv(t);
	t->starts[ROLE_DECODE] = STARTS_AFTER_PREFILL; /* should prefill be done again */
	if (transfer_take_answer(t) == HANDOFF_BAD)
		return HANDOFF_BAD;
	if (ended_by_length(t)) {
		if (t->kv.n == 0) /* prefill was done again: failover_prefill_again() */
			(void)take_engine(t);
		return HANDOFF_OK;
	}
	t->kv = (struct span){NULL, 0};
	return HANDOFF_RETRY;
}

const struct connector connector_mooncake = {
	.info = &connector_info[CONNECTOR_MOONCAKE],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.lookup = lookup,
	.looked_up = looked_up,
	.lookup_repeats = true,
	.lookup_end = END_NOT_LEARNED,
	.prefilled = prefilled,
	.failed = failed,
	.samples = connector_fanout,
	.prompts = connector_several_branches,
	.unfit = connector_prompt_logprobs,
};
