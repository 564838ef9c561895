/*
 * vLLM's NixlConnector: P's answer describes what it holds in kv_transfer_params, D is told just
 * that and fetches.
 */
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/shake.h"
#include "tests/engine/shake_remote.h"
#include "tests/engine/sim.h"

static void
read_params(struct gen *g)
{
	struct jv kv = g->handed[0];
	struct remote *r;
	int64_t port = 0;

	if (json_true(json_get(kv, "do_remote_decode")))
		g->mode = GEN_PREFILL;
	if (!json_true(json_get(kv, "do_remote_prefill")))
		return;
	g->mode = GEN_DECODE;
	r = remote_new(g);
	json_text_buf(json_get(kv, "remote_host"), &r->host);
	json_text_buf(json_get(kv, "remote_engine_id"), &r->engine);
	json_text_buf(json_get(kv, "remote_request_id"), &r->id);
	(void)json_int(json_get(kv, "remote_port"), &port);
	r->port = port > 0 && port < 65536 ? (int)port : 0;
	r->meta = kv_meta(kv);
}

static void
put_params(struct gen *g, struct shake_extra *x)
{
	struct remote *r = g->deal;

	if (r->hold == NULL)
		return;
	kv_params(g->sim->kv, r->hold, &x->kv);
	r->hold->meta = kv_meta((struct jv){x->kv.p, x->kv.len});
}

const struct shake shake_nixl = {
	.name = "nixl",
	.members = {"kv_transfer_params"},
	.leg_of_one = true,
	.read = read_params,
	.check = remote_check,
	.admitted = remote_fetch,
	.computed = remote_hold,
	.answer = put_params,
	.unused = remote_unused,
	.end = remote_end,
	.asked = remote_asked,
};
