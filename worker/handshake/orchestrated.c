/*
 * production-stack's disaggregated_prefill_orchestrated (protocols.md 3), in both its forms:
 *   handoff: kv_transfer_params    the merged code: as nixl, remote_host naming the prefill URL's host
 *   handoff: disagg_prefill_resp   the first form (Neuron, AIBrix): decode is given the whole answer
 */
#include "worker/request/request.h"

static bool
whole_answer(const struct req_pool *pool)
{
	return pool->shake.handoff == HANDOFF_DISAGG_PREFILL_RESP;
}

static void
prefill_edit(struct pair *pair, struct splice_edit *e)
{
	if (whole_answer(&pair->req->facts.pool))
		connector_limit_prefill(pair, e);
	else
		connector_nixl.edit[ROLE_PREFILL](pair, e);
}

static void
decode_edit(struct pair *pair, struct splice_edit *e)
{
	if (!whole_answer(&pair->req->facts.pool))
		connector_nixl.edit[ROLE_DECODE](pair, e);
	else
		connector_set_span(e, SK_DISAGG_PREFILL_RESP, SE_SET, pair->kv);
}

static enum taken
prefilled(struct pair *pair)
{
	const struct leg *p = &pair->leg[LEG_PREFILL];
	struct splice_seg unused;

	if (!whole_answer(&pair->req->facts.pool))
		return connector_take_kv(pair);
	if (splice_member_raw(p->answer, p->answer_len, "", &unused) == -1)
		return TAKEN_BAD; /* not one JSON object: it would break the body it is put into */
	pair->kv = (struct span){p->answer, p->answer_len};
	return TAKEN;
}

static enum several
samples(const struct req_pool *pool)
{
	return whole_answer(pool) ? SEVERAL_WHOLE : connector_fanout(pool);
}

static const char *
refusal(const struct req_pool *pool)
{
	return splice_key_name(whole_answer(pool) ? SK_DISAGG_PREFILL_RESP : SK_KV_TRANSFER_PARAMS);
}

const struct connector connector_orchestrated = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.leaves = LEAVES_KV,
	.leased = true,
	.refusal = refusal,
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.prefilled = prefilled,
	.samples = samples,
	/* an answer to several prompts is no hand-over for any of them */
	.prompts = connector_several_pairs,
};
