/*
 * vLLM's NixlConnector: P's answer describes what it holds in kv_transfer_params, D is told just
 * that and fetches.
 *
 * --transfer push (NixlPushConnector): D may be told only which request of which engine it is, and
 * may ask before P has finished or even begun: its question waits on P, as an open room, until
 * there is such a hold or D gives up (--fetch-timeout).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/shake.h"
#include "tests/engine/shake_remote.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"

struct waiting { /* a FETCH that came early */
	TAILQ_ENTRY(waiting) next;
	struct sim *sim;
	struct side_q *q;
	struct shake_words words; /* copies */
};

TAILQ_HEAD(waiting_head, waiting);

static bool
pushes(const struct sim *sim)
{
	return sim->o.transfer == TRANSFER_PUSH;
}

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
	if (g->sim->o.vllm == VLLM_0_11) /* both engines know the request by the client's id */
		buf_fmt(&r->id, g->chat ? "chatcmpl-%s" : "cmpl-%s-0", buf_cstr(&g->rid));
	else
		json_text_buf(json_get(kv, "remote_request_id"), &r->id);
	(void)json_int(json_get(kv, "remote_port"), &port);
	r->port = port > 0 && port < 65536 ? (int)port : 0;
	r->meta = kv_meta(kv, pushes(g->sim));
}

static void
put_params(struct gen *g, struct shake_extra *x)
{
	struct remote *r = g->deal;
	const char *host = g->sim->o.advertise;
	int port = g->sim->side_port;

	if (r->hold == NULL)
		return;
	r->hold->unreachable = fault_side(g->c, &host, &port);
	kv_params(g->sim->kv, r->hold, host, port, &x->kv);
	r->hold->meta = kv_meta((struct jv){x->kv.p, x->kv.len}, pushes(g->sim));
}

/* ---- questions that came early ---- */

static void
start(struct sim *sim)
{
	struct waiting_head *h = calloc(1, sizeof(*h));

	if (h == NULL)
		abort();
	TAILQ_INIT(h);
	sim->deals = h;
}

static void
end_waiting(struct waiting *w)
{
	unsigned i;

	TAILQ_REMOVE((struct waiting_head *)w->sim->deals, w, next);
	w->sim->open_rooms--;
	for (i = 0; i < w->words.n; i++)
		free(w->words.w[i]);
	free(w);
}

static void
on_gone(void *arg)
{
	end_waiting(arg);
}

static void
asked(struct sim *sim, struct side_q *q, const struct shake_words *words)
{
	struct waiting *w;
	unsigned i;

	if (!pushes(sim) || words->n != 5 || strcmp(words->w[0], "FETCH") != 0) {
		remote_asked(sim, q, words);
		return;
	}
	if (remote_fetched(sim, q, words))
		return;
	w = calloc(1, sizeof(*w));
	if (w == NULL)
		abort();
	w->sim = sim;
	w->q = q;
	w->words.n = words->n;
	for (i = 0; i < words->n; i++) {
		w->words.w[i] = strdup(words->w[i]);
		if (w->words.w[i] == NULL)
			abort();
	}
	TAILQ_INSERT_TAIL((struct waiting_head *)sim->deals, w, next);
	sim->open_rooms++;
	side_on_gone(q, on_gone, w);
}

/* P has told what it holds: the engines that wait for it may have it. */
static void
answered(struct gen *g, const char *json, size_t n)
{
	struct waiting *w, *next;

	(void)json;
	(void)n;
	for (w = TAILQ_FIRST((struct waiting_head *)g->sim->deals); w != NULL; w = next) {
		next = TAILQ_NEXT(w, next);
		if (remote_fetched(g->sim, w->q, &w->words))
			end_waiting(w);
	}
}

static void
stop(struct sim *sim)
{
	free(sim->deals);
}

const struct shake shake_nixl = {
	.name = "nixl",
	.members = {"kv_transfer_params"},
	.leg_of_one = true,
	.start = start,
	.stop = stop,
	.read = read_params,
	.check = remote_check,
	.admitted = remote_fetch,
	.computed = remote_hold,
	.answer = put_params,
	.answered = answered,
	.unused = remote_unused,
	.end = remote_end,
	.asked = asked,
};
