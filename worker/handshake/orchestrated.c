/*
 * production-stack's disaggregated_prefill_orchestrated (protocols.md 3), in both its forms:
 *   handoff: kv_transfer_params    the merged code: as nixl, remote_host naming the prefill URL's host
 *   handoff: disagg_prefill_resp   the first form (Neuron, AIBrix): decode is given the whole answer
 */
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

static bool
whole_answer(const struct req_pool *pool)
{
	return pool->shake.handoff == HANDOFF_DISAGG_PREFILL_RESP;
}

static void
prefill_edit(struct transfer *t, struct splice_edit *e)
{
	if (whole_answer(t->of.facts->pool))
		edit_limit_prefill(t, e);
	else
		connector_nixl.edit[ROLE_PREFILL](t, e);
}

static void
decode_edit(struct transfer *t, struct splice_edit *e)
{
	if (!whole_answer(t->of.facts->pool))
		connector_nixl.edit[ROLE_DECODE](t, e);
	else if (t->kv.n > 0) /* else the decode engine prefills for itself */
		edit_set_span(e, SK_DISAGG_PREFILL_RESP, SE_SET, t->kv);
}

static enum handoff
prefilled(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	struct splice_seg unused;

	if (!whole_answer(t->of.facts->pool))
		return transfer_take_kv(t);
	if (splice_member_raw(p->text, p->len, "", &unused) == -1)
		return HANDOFF_BAD; /* not one JSON object: it would break the body it is put into */
	t->kv = (struct span){p->text, p->len};
	return HANDOFF_OK;
}

static enum several
samples(const struct req_pool *pool)
{
	return whole_answer(pool) ? SEVERAL_WHOLE : connector_fanout(pool);
}

/* A decode engine that takes a whole answer computes no prompt (Neuron). */
static const char *
unfit(const struct demand *d)
{
	return whole_answer(d->facts->pool) ? NULL : connector_prompt_logprobs(d);
}

static const char *
refusal(const struct req_pool *pool)
{
	return splice_key_name(whole_answer(pool) ? SK_DISAGG_PREFILL_RESP : SK_KV_TRANSFER_PARAMS);
}

const struct connector connector_orchestrated = {
	.info = &connector_info[CONNECTOR_ORCHESTRATED],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.refusal = refusal,
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.prefilled = prefilled,
	.samples = samples,
	/* the answer to several prompts cannot serve as the KV parameters of one of them */
	.prompts = connector_several_branches,
	.unfit = unfit,
};
