#include "master/fleet/status_json.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/facts.h"
#include "master/fleet/json_out.h"
#include "master/fleet/keep.h"
#include "master/probe/learn.h"
#include "master/probe/scrape.h"
#include "shm/eject.h"
#include "shm/base/clock.h"

static void
add_load(struct json_object *o, const struct facts *x)
{
	char kv[16], tokens[32];
	double tokens_s = 0;
	const bool known = scrape_tokens_s(&x->ep->engine, &tokens_s);

	json_out_number(o, "slot", x->has_slot, x->ep->engine.slot);
	json_out_number(o, "tag", x->has_slot, x->tag);
	json_out_number(o, "in_flight", true, x->in_flight);
	json_out_number(o, "kv_outstanding", true, x->kv_outstanding);
	json_out_number(o, "prompt_tokens", true, x->tokens);
	json_out_number(o, "score", x->has_slot, x->score);
	json_out_number(o, "running", x->scraped, x->scrape.running);
	json_out_number(o, "waiting", x->scraped, x->scrape.waiting);
	(void)snprintf(kv, sizeof(kv), "%.6f", (double)x->scrape.kv_usage_ppm / 1e6);
	(void)json_object_object_add(
		o, "kv_usage", x->scraped ? json_object_new_double_s(0, kv) : NULL);
	(void)snprintf(tokens, sizeof(tokens), "%.1f", tokens_s);
	(void)json_object_object_add(
		o, "tokens_s", known ? json_object_new_double_s(tokens_s, tokens) : NULL);
	json_out_number(o, "scrape_age_ms", x->scraped, x->age_ms);
	json_out_add(o, "load_unknown", scrape_unknown(&x->ep->engine));
}

/* What is in force, configured or learned, as rows.c puts it in the table. */
static void
add_runtime(struct json_object *o, const struct endpoint *ep)
{
	const struct conf_endpoint *conf = ep->engine.conf;
	const struct runtime *rt = &ep->engine.runtime;
	char said[256];

	json_out_add(o, "version", rt->version);
	json_out_add(o, "mode", rt->mode);
	json_out_number(o, "bootstrap_port", true,
		conf != NULL && conf->bootstrap_port != 0 ? conf->bootstrap_port
							  : rt->bootstrap_port);
	json_out_number(o, "max_context", true, rt->max_context);
	json_out_add(o, "contradiction", learn_contradiction(&ep->engine, said, sizeof(said)));
}

static void
add_state(struct json_object *o, const struct facts *x)
{
	json_out_add(o, "state", x->state);
	(void)json_object_object_add(o, "drained", json_object_new_boolean(x->ep->drained));
	if (x->ep->drained)
		json_out_add(o, "else", ep_state_name(x->ep->state));
}

static void
add_tally(struct json_object *o, const struct facts *x)
{
	const struct seg *seg = x->ep->fleet->seg;
	const uint32_t slot = x->ep->engine.slot;
	struct json_object *failures = json_object_new_object();

	for (enum tally_cause cause = TALLY_GOOD + 1; x->has_slot && cause < TALLY_N; cause++)
		if (tally_count(seg, slot, cause) > 0)
			json_out_number(failures, tally_cause_name(cause), true,
				tally_count(seg, slot, cause));
	json_out_number(o, "requests", true, x->has_slot ? tally_requests(seg, slot) : 0);
	(void)json_object_object_add(o, "failures", failures);
	json_out_add(o, "last_failure", x->last != TALLY_GOOD ? tally_cause_name(x->last) : NULL);
	json_out_number(o, "last_failure_age_ms", x->last != TALLY_GOOD, x->last_age_ms);
}

static void
add_ejection(struct json_object *o, const struct facts *x)
{
	if (x->ramp >= 0)
		json_out_number(o, "slow_start_percent", true, (uint64_t)x->ramp);
	json_out_add(o, "ejected", eject_state_name(x->eject));
	json_out_number(o, "ejected_left_ms", true, x->eject_left_ms);
	json_out_number(o, "ejections", true,
		x->has_slot ? eject_count(x->ep->fleet->seg, x->ep->engine.slot) : 0);
	(void)json_object_object_add(o, "busy", json_object_new_boolean(x->busy));
	json_out_number(o, "busy_left_ms", true, x->busy_left_ms);
}

/* Times as texts: json-c would print all digits of a double. */
static void
add_pace(struct json_object *o, const struct facts *x)
{
	char text[32];

	(void)json_object_object_add(o, "slow", json_object_new_boolean(x->slow));
	(void)snprintf(text, sizeof(text), "%.2f", x->slow_times);
	(void)json_object_object_add(
		o, "slow_times", x->slow ? json_object_new_double_s(x->slow_times, text) : NULL);
	(void)snprintf(text, sizeof(text), "%.3f", x->share);
	(void)json_object_object_add(o, "share", json_object_new_double_s(x->share, text));
	(void)snprintf(text, sizeof(text), "%.3f", x->token_us / 1e3);
	(void)json_object_object_add(o, "token_ms",
		x->token_us > 0 ? json_object_new_double_s(x->token_us, text) : NULL);
}

struct json_out {
	struct evbuffer *out;
	size_t n;
};

static void
put_endpoint(const struct facts *x, void *arg)
{
	struct json_out *j = arg;
	const struct engine *e = &x->ep->engine;
	struct json_object *o = json_object_new_object(), *models = json_object_new_array();
	char addr[EP_ADDR_TEXT];

	json_out_add(o, "pool", e->pool_name);
	json_out_add(o, "role", role_name(e->role));
	json_out_add(o, "url", e->url);
	json_out_add(o, "source", x->ep->source);
	add_state(o, x);
	json_out_add(o, "addr", ep_addr_text(&e->addr, addr));
	if (e->conf != NULL) {
		json_out_add(o, "group", e->conf->group != NULL ? e->conf->group : "");
		json_out_number(o, "weight", true, endpoint_weight(x->ep));
		json_out_number(o, "configured_weight", true, e->conf->weight);
		json_out_number(o, "max_inflight", true, e->conf->max_inflight);
	}
	add_load(o, x);
	add_ejection(o, x);
	add_tally(o, x);
	add_pace(o, x);
	add_runtime(o, x->ep);
	json_out_add(o, "reason", facts_reason(x));
	for (size_t i = 0; i < x->nmodels; i++)
		(void)json_object_array_add(models, json_out_text(x->models[i]));
	(void)json_object_object_add(o, "models", models);
	json_out_write(j->out, &j->n, o);
}

static void
put_pool(struct json_out *j, const struct fleet *f, const struct conf_pool *pool)
{
	struct json_object *o = json_object_new_object(), *queue = json_object_new_object();
	uint64_t ms;
	const uint32_t n = facts_waiting(f, pool, &ms);

	json_out_add(o, "name", pool->name);
	json_out_add(o, "connector", connector_name(pool->connector));
	json_out_add(o, "pairing", pairing_name(pool->pairing));
	for (enum role role = 0; role < ROLE_N; role++) {
		struct json_object *choice = json_object_new_object();

		json_out_add(choice, "policy", policy_name(pool->policies[role]));
		json_out_add(choice, "load", load_name(pool->loads[role]));
		(void)json_object_object_add(o, role_name(role), choice);
	}
	json_out_number(queue, "waiting", true, n);
	json_out_number(queue, "size", true, pool->queue.size);
	json_out_number(queue, "oldest_ms", true, ms);
	(void)json_object_object_add(o, "queue", queue);
	json_out_write(j->out, &j->n, o);
}

static void
put_away(struct json_out *j, const struct away *a, uint64_t now)
{
	struct json_object *o = json_object_new_object();

	json_out_add(o, "pool", a->key.pool);
	json_out_add(o, "role", role_name(a->key.role));
	json_out_add(o, "url", a->key.url);
	if (a->key.weight > 0)
		json_out_number(o, "weight", true, a->key.weight);
	json_out_number(o, "forgotten_in_ms", true, keep_left_ms(a, now));
	json_out_write(j->out, &j->n, o);
}

static void
put_all_away(const struct fleet *f, struct evbuffer *out, bool weights)
{
	struct json_out away = {.out = out};
	const uint64_t now = clock_ms();

	for (const struct away *a = keep_first(f->keep); a != NULL; a = TAILQ_NEXT(a, link))
		if ((a->key.weight > 0) == weights)
			put_away(&away, a, now);
}

/* Drains and weights of endpoints that are not there now, and the file that keeps both. */
static void
put_keep(const struct fleet *f, struct evbuffer *out)
{
	struct json_object *file = json_object_new_object();
	const char *error = keep_error(f->keep);
	size_t n = 0;

	(void)evbuffer_add_printf(out, "],\n\"drained_away\":[");
	put_all_away(f, out, false);
	(void)evbuffer_add_printf(out, "],\n\"weights_away\":[");
	put_all_away(f, out, true);
	(void)evbuffer_add_printf(out, "],\n\"state_file\":");
	json_out_add(file, "path", keep_path(f->keep));
	json_out_add(file, "error", error != NULL && error[0] != '\0' ? error : NULL);
	json_out_write(out, &n, file);
}

void
status_json(struct fleet *f, struct evbuffer *out)
{
	struct json_out pools = {.out = out}, endpoints = {.out = out};

	(void)evbuffer_add_printf(out, "{\"config\":%" PRIu64 ",\"pools\":[", f->config_number);
	for (size_t i = 0; f->conf != NULL && i < f->conf->npools; i++)
		put_pool(&pools, f, &f->conf->pools[i]);
	(void)evbuffer_add_printf(out, "],\n\"endpoints\":[");
	if (f->conf != NULL)
		facts_each(f, put_endpoint, &endpoints);
	put_keep(f, out);
	(void)evbuffer_add_printf(out, "}\n");
}
