/*
 * vLLM P2pNcclConnector (protocols.md 7): the request id of both legs carries both engines' KV addresses,
 * which the engines find in it by patterns; the bodies say nothing.
 */
#include <stdio.h>

#include "shm/base/rnd.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"

static enum req_end
begin(struct pair *pair)
{
	char id[PAIR_ID_MAX + 1];
	const char *p = pair->leg[LEG_PREFILL].ep->kv_addr, *d = pair->leg[LEG_DECODE].ep->kv_addr;
	int n;

	if (p[0] == '\0' || d[0] == '\0') {
		pair->req->detail = "its kv_addr is not known";
		return END_NOT_LEARNED;
	}
	n = snprintf(id, sizeof(id), "___prefill_addr_%s___decode_addr_%s_", p, d);
	if (n < 0 || (size_t)n + 33 > sizeof(id)) {
		pair->req->detail = "its kv_addr is too long";
		return END_NOT_LEARNED;
	}
	rnd_hex16(id + n, rnd_u64());
	rnd_hex16(id + n + 16, rnd_u64());
	id[n + 32] = '\0';
	pair_set_id(pair, id, (size_t)n + 32);
	return END_OK;
}

/* The engine calls its answer by that id: addresses are none of a client's business. */
static bool
rewrites(struct req *req, struct answer_how *how)
{
	how->id = connector_answer_id(req);
	return true;
}

const struct connector connector_p2p_nccl = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.leaves = LEAVES_KV,
	.bound = true,
	.edit = {[ROLE_PREFILL] = connector_limit_prefill, [ROLE_DECODE] = connector_no_edit},
	.begin = begin,
	.prefilled = connector_take_answer,
	/*
	 * Samples of one request have ids of their own on each side.  The decode engine cannot do them
	 * alone: it never computes a prompt but waits for its cache (p2p_nccl_connector.py,
	 * get_num_new_matched_tokens()).
	 */
	.samples = connector_several_pairs,
	.prompts = connector_several_whole,
	.rewrites = rewrites,
};
