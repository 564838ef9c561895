#include "worker/schedule/way.h"

#include "proto/json/json_read.h"
#include "proto/json/prompt.h"
#include "proto/json/splice.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/handshake/connector.h"
#include "worker/handshake/edit.h"
#include "worker/schedule/affinity.h"
#include "worker/schedule/select.h"
#include "worker/schedule/threshold.h"

bool
way_holds(const struct facts *facts, const struct table_pool *tp)
{
	const enum role role = route_single_role(facts->route, &tp->shake);

	for (uint32_t i = 0; i < tp->n[role]; i++)
		if (tp->picks[role][i].hash == facts->holder)
			return true;
	return false;
}

static const struct table_pool *
pool_of_holder(const struct facts *facts, const struct table *t)
{
	for (uint32_t i = 0; i < t->npools; i++)
		if (way_holds(facts, &t->pools[i]))
			return &t->pools[i];
	return NULL;
}

const struct table_pool *
way_pool(const struct facts *facts, const struct table *t, uint32_t *ret_model)
{
	*ret_model = TABLE_ANY_MODEL;
	if (route_body(facts->route) == ROUTE_BODY_NONE) /* it names a response, and no model */
		return pool_of_holder(facts, t);
	if (facts->model[0] == '\0') /* engines allow that */
		return t->npools == 1 ? &t->pools[0] : NULL;
	return table_pool_by_model(t, facts->model, ret_model);
}

/* A request of another router is counted with the mean: its prompt is not known. */
void
way_estimate(struct worker *w, const struct demand *d)
{
	struct facts *facts = d->facts;
	uint32_t *mean = &w->mean_tokens[facts->pool->id];

	if (facts->tokens != 0) /* planned before: it has waited */
		return;
	if (d->text->doc == NULL) { /* no prompt */
		facts->tokens = 1;
		return;
	}
	facts->tokens = prompt_tokens(d->text->doc);
	facts->estimate = affinity_estimate(d->text->doc, facts->route);
	*mean = select_mean(*mean, facts->tokens);
}

/* --- direct -------------------------------------------------------------------------------------- */

static const char short_prompt[] = "threshold";

bool
way_is_short(const struct way *way)
{
	return way->direct == short_prompt;
}

static bool
below_threshold(struct worker *w, const struct facts *facts)
{
	struct threshold *learned = &w->thresholds[facts->pool->id];

	if (facts->pool->shake.routing_threshold != THRESHOLD_AUTO)
		return facts->estimate < facts->pool->shake.routing_threshold;
	if (facts->stream && route_by(facts->route) == ROUTE_BY_TWO)
		return threshold_direct(learned, facts->estimate, &w->rnd);
	/* its first token is not seen, so a trial of the other way would teach nothing (learn_threshold()) */
	return facts->estimate < threshold_now(learned);
}

static enum several
samples_of(const struct connector *c, const struct facts *facts)
{
	if (facts->samples <= 1 || c->samples == NULL)
		return SEVERAL_WHOLE;
	return c->samples(facts->pool);
}

static enum several
prompts_of(const struct connector *c, const struct facts *facts)
{
	return c->prompts == NULL ? SEVERAL_WHOLE : c->prompts(facts->pool);
}

/* Returns why the decode engine serves the request alone, or NULL. */
static const char *
why_direct(const struct way *way, struct worker *w, const struct demand *d)
{
	const struct facts *facts = d->facts;
	const struct connector *c = way->connector;
	const bool may_override = facts->pool->shake.allow_route_header != 0;
	const char *why;

	if (way->alone)
		return "no_prefill";
	if (may_override && way->override == OVERRIDE_DIRECT)
		return "client";
	if (samples_of(c, facts) == SEVERAL_DIRECT)
		return "samples";
	why = c->unfit != NULL ? c->unfit(d) : NULL;
	if (why != NULL)
		return why;
	if (c->info->decode_alone && connector_too_long(d))
		return "limit"; /* no prefill for what the decode engine refuses */
	if (may_override && way->override == OVERRIDE_DISAGGREGATED)
		return NULL;
	return below_threshold(w, facts) ? short_prompt : NULL;
}

/* --- choosing ------------------------------------------------------------------------------------ */

/* Returns the number of branches: one for each sample or prompt that the connector wants to be served alone. */
static size_t
count_branches(const struct connector *c, const struct demand *d)
{
	const bool split = samples_of(c, d->facts) == SEVERAL_BRANCHES;
	const size_t prompts = connector_prompts(d);
	size_t n = 1;

	/* an answer lists the samples of a prompt side by side: where these are split, so are the prompts */
	if (prompts > 1 && (split || prompts_of(c, d->facts) == SEVERAL_BRANCHES))
		n = prompts;
	return split ? n * d->facts->samples : n;
}

/* Returns END_OK, or why the connector cannot serve such a request. */
static enum req_end
check(const struct way *way, const struct demand *d, const char **ret_detail)
{
	const struct connector *c = way->connector;

	if (d->facts->route == ROUTE_GENERATE && !c->info->generate_path)
		return END_NOT_FOUND;
	*ret_detail = c->refuses != NULL ? c->refuses(d) : NULL;
	if (*ret_detail != NULL)
		return END_UNSUPPORTED;
	if (d->facts->pool->shake.allow_route_header != 0 && way->override == OVERRIDE_UNKNOWN) {
		*ret_detail = "X-PD-Route is neither direct nor disaggregated";
		return END_UNSUPPORTED;
	}
	return END_OK;
}

/* Returns true if the client runs every tool that the request lists. */
static bool
client_runs_tools(const struct splice *doc)
{
	const struct splice_member *m = splice_find(doc, SK_TOOLS);
	struct splice_seg list, tool, type;
	size_t at = 0;

	if (m == NULL || m->type == ST_NULL)
		return true;
	list = (struct splice_seg){doc->text + m->val, m->end - m->val};
	while (m->type == ST_ARRAY && splice_element(&list, &at, &tool))
		if (splice_member_raw(tool.p, tool.n, "type", &type) != 1 ||
			!(json_read_is(&type, "\"function\"") || json_read_is(&type, "\"custom\"")))
			return false;
	return m->type == ST_ARRAY;
}

/*
 * Returns true if two engines can serve a request of /v1/responses: all of its prompt is in its
 * body, and its answer is generated at once.  An engine that runs a tool itself generates again
 * after it, with KV parameters that are spent (_generate_with_builtin_tools() in vLLM's
 * entrypoints/openai/responses/serving.py).
 */
static bool
stands_alone(const struct splice *doc)
{
	const struct splice_member *previous = splice_find(doc, SK_PREVIOUS_RESPONSE_ID);
	const struct splice_member *background = splice_find(doc, SK_BACKGROUND);

	return (previous == NULL || previous->type == ST_NULL) &&
	       /* engines take 1 and "true" for true */
	       (background == NULL || background->type == ST_NULL ||
		       background->type == ST_FALSE) &&
	       client_runs_tools(doc);
}

/* Returns true if one engine serves the request, and its path decides which. */
static bool
is_single(const struct demand *d)
{
	const enum route route = d->facts->route;

	if (route_by(route) != ROUTE_BY_ONE)
		return false;
	return !route_is_agent(route) || d->facts->pool->shake.disaggregate_agent_paths == 0 ||
	       (route == ROUTE_RESPONSES && !stands_alone(d->text->doc));
}

enum req_end
way_choose(struct way *way, struct worker *w, const struct demand *d, bool waits,
	const char **ret_detail)
{
	const char *const was_direct = way->direct;
	enum req_end why;
	size_t n;

	way->nbranches = 1;
	way->direct = NULL;
	way->connector = connector_find(d->facts->pool->connector);
	*ret_detail = edit_refuses(d);
	if (*ret_detail != NULL)
		return END_UNSUPPORTED;
	if (is_single(d)) {
		way->connector = &connector_single;
		*ret_detail = way->connector->refuses(d);
		return *ret_detail != NULL ? END_UNSUPPORTED : END_OK;
	}
	why = check(way, d, ret_detail);
	if (why != END_OK)
		return why;
	way->direct = waits ? was_direct : why_direct(way, w, d);
	if (way->direct != NULL) {
		way->connector = &connector_direct;
		return END_OK;
	}
	n = count_branches(way->connector, d);
	if (n <= w->conf->live.max_fanout) {
		way->nbranches = (uint32_t)n;
		return END_OK;
	}
	if (!way->connector->info->decode_alone)
		return END_TOO_MANY_BRANCHES;
	way->direct = "max_fanout";
	way->connector = &connector_direct;
	return END_OK;
}

/* model:29 | engine:31 | WAY_PLAIN_ONLY | kind:3, the model by FNV-1a. */
uint64_t
way_queue_key(const struct way *way, const struct facts *facts)
{
	uint64_t h = 14695981039346656037ull;
	const bool one = way->connector->engines == ENGINES_SINGLE;
	const enum role role = route_single_role(facts->route, &facts->pool->shake);
	const uint8_t kind = one                   ? (role == ROLE_PREFILL ? 1 : 4)
			     : way->alone          ? 5 /* within the budget of fallbacks */
			     : way->direct != NULL ? 2
						   : 3;

	for (const char *p = facts->model; *p != '\0'; p++)
		h = (h ^ (uint8_t)*p) * 1099511628211ull;
	return h << QUEUE_WAY_BITS | (facts->holder >> 33) << (QUEUE_KIND_BITS + 1) | kind;
}

enum role
way_role_alone(const struct connector *c, const struct facts *facts)
{
	return c->engines == ENGINES_SINGLE ? route_single_role(facts->route, &facts->pool->shake)
					    : ROLE_DECODE;
}
