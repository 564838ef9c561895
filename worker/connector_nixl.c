/*
 * vLLM NixlConnector (protocols.md 2): the prefill answer carries kv_transfer_params, an object that
 * the decode leg is given as it came.  Its numbers and nesting depend on the engine's version (block ids
 * are ints, strings or nested lists), so it is never looked into.
 */
#include "worker/connector.h"
#include "worker/req.h"

/* Only do_remote_decode is read; the nulls are what every published proxy sends (2.1). */
static const char ask[] =
	"{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
	"\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";

static void
prefill_edit(const struct pair *pair, struct splice_edit *e)
{
	connector_limit_prefill(pair, e);
	e->on[SK_KV_TRANSFER_PARAMS].op = SE_SET;
	e->on[SK_KV_TRANSFER_PARAMS].value = ask;
	e->on[SK_KV_TRANSFER_PARAMS].len = sizeof(ask) - 1;
}

static void
decode_edit(const struct pair *pair, struct splice_edit *e)
{
	if (pair->kv.n == 0)
		return; /* nothing to hand over: the decode engine prefills for itself */
	e->on[SK_KV_TRANSFER_PARAMS].op = SE_SET;
	e->on[SK_KV_TRANSFER_PARAMS].value = pair->kv.p;
	e->on[SK_KV_TRANSFER_PARAMS].len = pair->kv.n;
}

static bool
serves_one(const struct pair *pair)
{
	(void)pair;
	return true;
}

const struct connector connector_nixl = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.edit = {[ROLE_PREFILL] = prefill_edit, [ROLE_DECODE] = decode_edit},
	.prefilled = connector_take_kv,
	.serves_one = serves_one,
};
