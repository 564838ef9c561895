/*
 * disagg_prefill_resp: D is handed P's whole answer (AWS Neuron).  Every request to P is a leg.  P
 * names what it holds in system_fingerprint, "pdsim|host|port|engine id|request id", or
 * "pdsim|none"; D demands the answer unchanged.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/shake.h"
#include "tests/engine/shake_remote.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

/* False: P held nothing. */
static bool
read_fingerprint(struct remote *r, struct jv answer)
{
	struct buf fp = {0};
	char *rest, *word[5] = {NULL};
	bool held;
	int i;

	json_text_buf(json_get(answer, "system_fingerprint"), &fp);
	held = strcmp(buf_cstr(&fp), "pdsim|none") != 0;
	rest = fp.p;
	for (i = 0; i < 4; i++)
		word[i] = strsep(&rest, "|");
	word[4] = rest;
	if (word[4] != NULL) {
		buf_str(&r->host, word[1]);
		r->port = atoi(word[2]);
		buf_str(&r->engine, word[3]);
		buf_str(&r->id, word[4]);
	}
	r->meta = TEXT_FNV0;
	json_canon(answer, text_fnv_sink, &r->meta);
	buf_free(&fp);
	return held;
}

static void
read_answer(struct gen *g)
{
	if (g->sim->o.role == ROLE_PREFILL)
		g->mode = GEN_PREFILL;
	else if (json_kind(g->handed[0]) == '{')
		g->mode = read_fingerprint(remote_new(g), g->handed[0]) ? GEN_DECODE : GEN_PLAIN;
}

static bool
check_answer(struct gen *g)
{
	if (g->sim->o.role == ROLE_DECODE && g->handed[0].p == NULL)
		return gen_refuse(g, CTR_kv_refused, 500, "disagg_prefill_resp is missing");
	return remote_check(g);
}

static void
put_fingerprint(struct gen *g, struct shake_extra *x)
{
	const struct remote *r = g->deal;

	if (r->hold == NULL)
		buf_str(&x->fingerprint, "pdsim|none");
	else
		buf_fmt(&x->fingerprint, "pdsim|%s|%d|%s|%s", g->sim->o.advertise,
			g->sim->side_port, g->sim->engine_id, r->hold->id);
}

static void
note_answer(struct gen *g, const char *json, size_t n)
{
	const struct remote *r = g->deal;

	if (r->hold == NULL)
		return;
	r->hold->meta = TEXT_FNV0;
	json_canon(json_doc(json, n), text_fnv_sink, &r->hold->meta);
}

const struct shake shake_response = {
	.name = "disagg_prefill_resp",
	.members = {"disagg_prefill_resp"},
	.leg_of_one = true,
	.read = read_answer,
	.check = check_answer,
	.admitted = remote_fetch,
	.computed = remote_hold,
	.answer = put_fingerprint,
	.answered = note_answer,
	.unused = remote_unused,
	.end = remote_end,
	.asked = remote_asked,
};
