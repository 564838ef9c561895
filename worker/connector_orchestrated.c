/*
 * production-stack's disaggregated_prefill_orchestrated (protocols.md 3), in both its forms:
 *   handoff: kv_transfer_params    the merged code: as nixl, remote_host naming the prefill URL's host
 *   handoff: disagg_prefill_resp   the first form (Neuron, AIBrix): decode is given the whole answer
 */
#include "worker/connector.h"

#include "worker/req.h"

static bool
whole_answer(const struct pair *pair)
{
	return pair->req->pool.handoff == HANDOFF_DISAGG_PREFILL_RESP;
}

static void
prefill_edit(const struct pair *pair, struct splice_edit *e)
{
	if (whole_answer(pair))
		connector_limit_prefill(pair, e);
	else
		connector_nixl.edit[ROLE_PREFILL](pair, e);
}

static void
decode_edit(const struct pair *pair, struct splice_edit *e)
{
	if (!whole_answer(pair)) {
		connector_nixl.edit[ROLE_DECODE](pair, e);
		return;
	}
	e->on[SK_DISAGG_PREFILL_RESP].op = SE_SET;
	e->on[SK_DISAGG_PREFILL_RESP].value = pair->kv.p;
	e->on[SK_DISAGG_PREFILL_RESP].len = pair->kv.n;
}

static int
prefilled(struct pair *pair)
{
	const struct leg *p = &pair->leg[ROLE_PREFILL];
	struct splice_seg unused;

	if (!whole_answer(pair))
		return connector_take_kv(pair);
	if (splice_member_raw(p->answer, p->answer_len, "", &unused) == -1)
		return -1; /* not one JSON object: it would break the body it is put into */
	pair->kv = (struct span){p->answer, p->answer_len};
	return 1;
}

static bool
serves_one(const struct pair *pair)
{
	return !whole_answer(pair);
}

const struct connector connector_orchestrated = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.prefilled = prefilled,
	.serves_one = serves_one,
};
