/*
 * vLLM P2pNcclConnector (protocols.md 7): the request id of both legs carries both engines'
 * KV addresses, which the engines find by patterns.  The bodies have no such member.
 */
#include <stdio.h>

#include "shm/base/rnd.h"
#include "worker/net/connpool.h"
#include "worker/handshake/edit.h"
#include "worker/handshake/transfer.h"

static enum req_end
begin(struct transfer *t)
{
	char id[TRANSFER_ID_MAX + 1];
	const char *p = t->engine[ROLE_PREFILL]->kv_addr, *d = t->engine[ROLE_DECODE]->kv_addr;
	int n;

	if (p[0] == '\0' || d[0] == '\0') {
		t->detail = "its kv_addr is not known";
		return END_NOT_LEARNED;
	}
	n = snprintf(id, sizeof(id), "___prefill_addr_%s___decode_addr_%s_", p, d);
	if (n < 0 || (size_t)n + 33 > sizeof(id)) {
		t->detail = "its kv_addr is too long";
		return END_NOT_LEARNED;
	}
	rnd_hex16(id + n, rnd_u64());
	rnd_hex16(id + n + 16, rnd_u64());
	id[n + 32] = '\0';
	transfer_set_id(t, id, (size_t)n + 32);
	return END_OK;
}

/* The engine's answer carries that id, and clients must not see the addresses. */
static bool
rewrites(const struct demand *d, struct answer_how *how, char id[CONNECTOR_ANSWER_ID])
{
	how->id = connector_answer_id(d, id);
	return true;
}

const struct connector connector_p2p_nccl = {
	.info = &connector_info[CONNECTOR_P2P_NCCL],
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.edit = {[ROLE_PREFILL] = edit_limit_prefill, [ROLE_DECODE] = edit_nothing},
	.begin = begin,
	.prefilled = transfer_take_answer,
	/*
	 * Samples of one request have ids of their own on each side.  The decode engine cannot do them
	 * alone: it never computes a prompt but waits for its cache (p2p_nccl_connector.py,
	 * get_num_new_matched_tokens()).
	 */
	.samples = connector_several_branches,
	.prompts = connector_several_whole,
	.rewrites = rewrites,
};
