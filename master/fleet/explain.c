#include "master/fleet/explain.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/facts.h"
#include "master/fleet/json_out.h"
#include "master/fleet/slots.h"
#include "proto/json/json_string.h"
#include "proto/json/prompt.h"
#include "shm/bar.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/prefix.h"
#include "worker/schedule/policy.h"

#define ALL_GROUPS UINT64_MAX

/* What is asked, and where the answer is found. */
struct query {
	struct fleet *fleet;
	const struct table *table;
	const struct table_pool *pool;
	uint32_t model;                  /* its number in the pool */
	const struct endpoint **engines; /* slots_map(): each engine is looked at once */
	const char *name;
	uint64_t tokens;                  /* of the prompt; 0: not known */
	const struct prefix_found *found; /* who has what of the prompt; NULL: it is not known */
	uint64_t groups;                  /* that may be chosen */
	uint64_t now_ms;
	bool json;
};

/* An engine of one role. */
struct answer {
	const struct table_pick *pick;
	const struct table_endpoint *te;
	const struct endpoint *ep; /* NULL: its slot is free again */
	struct ep_view view;
	enum bar bar;
	bool short_context; /* fact: the prompt is longer than its context */
	double weight;      /* as it is now: less while it is slow, or ramps up */
	uint64_t load;      /* that the policy compares, the request included */
	bool cached; /* the policy looks at caches, and `guess` says what is expected there */
	struct prefix_guess guess;
	double cost; /* that the policy compares, by weight; INFINITY: it cannot be chosen */
};

/* --- what is so --------------------------------------------------------------------------- */

static double
weight_now(const struct query *q, const struct answer *a)
{
	const uint64_t from = a->view.ramp_from_ms, whole = q->pool->slow_start_ms;
	double w = a->pick->weight * (double)share_part(a->view.share) / SHARE_WHOLE;

	if (from != 0 && q->now_ms < from + whole)
		w *= q->now_ms > from ? (double)(q->now_ms - from) / (double)whole : 0;
	return w;
}

static struct answer
answer_of(const struct query *q, enum role role, const struct table_pick *pick)
{
	const bool tokens = q->pool->load[role] == LOAD_TOKENS;
	struct answer a = {.pick = pick, .te = &q->table->endpoints[pick->endpoint]};

	a.ep = q->engines[pick->slot];
	a.view = ep_view(q->fleet->seg, pick->slot, q->now_ms, q->table->foreign_max_age_ms);
	a.bar = bar_of(pick, &a.view, q->model, q->groups);
	a.short_context = a.te->max_context != 0 && q->tokens > a.te->max_context;
	a.weight = weight_now(q, &a);
	a.view.foreign += a.view.siblings.requests;
	a.load = tokens ? (uint64_t)a.view.tokens + a.view.siblings.tokens + q->tokens
			: (uint64_t)a.view.count + a.view.foreign + 1;
	return a;
}

/* The share of the requests at the role's engines that are other routers', now; a worker has a mean of some time. */
static uint32_t
others(const struct query *q, enum role role)
{
	uint64_t own = 0, foreign = 0;

	for (uint32_t i = 0; i < q->pool->n[role]; i++) {
		const struct ep_view e = ep_view(q->fleet->seg, q->pool->picks[role][i].slot,
			q->now_ms, q->table->foreign_max_age_ms);

		own += e.count;
		foreign += e.foreign;
	}
	return policy_others((double)own, (double)foreign);
}

/* Requests whose length is not known, of other routers or where load counts requests, count as long as this one. */
static struct policy_view
view_of(const struct query *q, enum role role)
{
	const struct table_pool *tp = q->pool;
	const bool tokens = tp->load[role] == LOAD_TOKENS;

	return (struct policy_view){.seg = q->fleet->seg,
		.picks = tp->picks[role],
		.n = tp->n[role],
		.max_weight = tp->max_weight[role],
		.groups = q->groups,
		.model = q->model,
		.load = tp->load[role],
		.own = tokens ? q->tokens : 1,
		.foreign_unit = tokens ? q->tokens : 1,
		.tokens = (uint32_t)q->tokens,
		.unit_tokens = tokens ? 1 : (uint32_t)q->tokens,
		.found = q->found,
		.others = others(q, role),
		.now_ms = q->now_ms,
		.slow_start_ms = tp->slow_start_ms,
		.foreign_max_age_ms = q->table->foreign_max_age_ms};
}

/* What cache_aware makes of the caches. */
static void
look_at_caches(const struct query *q, enum role role, struct answer all[])
{
	const struct policy_view v = view_of(q, role);
	double *costs;

	if (q->found == NULL || q->pool->policy[role] != POLICY_CACHE_AWARE)
		return;
	costs = mem_array(v.n, sizeof(*costs));
	policy_cache_aware_costs(&v, costs);
	for (uint32_t i = 0; i < v.n; i++) {
		all[i].cached = true;
		all[i].guess = prefix_expect(v.seg, q->found, v.picks[i].slot);
		all[i].cost = costs[i];
	}
	free(costs);
}

/* A bit for each group that has an engine which could be chosen. */
static uint64_t
groups_of(const struct query *q, enum role role)
{
	uint64_t groups = 0;

	for (uint32_t i = 0; i < q->pool->n[role]; i++) {
		const struct table_pick *pick = &q->pool->picks[role][i];
		const struct ep_view e =
			ep_view(q->fleet->seg, pick->slot, q->now_ms, q->table->foreign_max_age_ms);

		if (bar_of(pick, &e, q->model, ALL_GROUPS) == BAR_NONE)
			groups |= UINT64_C(1) << pick->group;
	}
	return groups;
}

/* A word for people: the state where that says why. */
static const char *
why(const struct answer *a)
{
	if (a->bar == BAR_STATE)
		return a->ep != NULL && a->ep->drained ? "drained" : ep_state_name(a->view.state);
	return bar_word(a->bar);
}

/* What is known beyond that word; "": nothing. */
static const char *
detail(const struct query *q, const struct answer *a)
{
	struct facts x;

	if (a->short_context)
		return "the prompt is longer than its context";
	if (a->bar == BAR_NONE || a->ep == NULL)
		return "";
	x = facts_of(a->ep, q->now_ms);
	return facts_reason(&x);
}

static const char *
group_of(const struct query *q, const struct answer *a)
{
	return a->pick->group > 0 ? q->pool->groups[a->pick->group - 1] : "";
}

/* --- the answer --------------------------------------------------------------------------- */

static void
print_engine(const struct query *q, const struct answer *a, struct evbuffer *out)
{
	const char *more = detail(q, a), *group = group_of(q, a);
	char weighted[32] = "-";

	if (a->weight > 0)
		(void)snprintf(weighted, sizeof(weighted), "%.2f", (double)a->load / a->weight);
	(void)evbuffer_add_printf(
		out, "  %-12s  %s  in-flight %" PRIu32, why(a), a->te->url, a->view.count);
	if (a->pick->max_inflight != 0)
		(void)evbuffer_add_printf(out, "/%" PRIu32, a->pick->max_inflight);
	(void)evbuffer_add_printf(out,
		", foreign %" PRIu32 ", load %" PRIu64 ", weight %.2f, weighted load %s",
		a->view.foreign, a->load, a->weight, weighted);
	if (a->cached)
		(void)evbuffer_add_printf(out, ", hit %" PRIu32 ", cost ", a->guess.expected);
	if (a->cached && isfinite(a->cost))
		(void)evbuffer_add_printf(out, "%.0f", a->cost);
	else if (a->cached)
		(void)evbuffer_add_printf(out, "-");
	(void)evbuffer_add_printf(out, "%s%s%s%s\n", group[0] != '\0' ? ", group " : "", group,
		more[0] != '\0' ? ": " : "", more);
}

static void
add_engine(const struct query *q, const struct answer *a, struct json_object *list)
{
	const bool has_cost = a->cached && isfinite(a->cost);
	struct json_object *o = json_object_new_object();
	char weight[32], weighted[32];

	(void)snprintf(weight, sizeof(weight), "%.4f", a->weight);
	(void)snprintf(weighted, sizeof(weighted), "%.4f",
		a->weight > 0 ? (double)a->load / a->weight : 0);
	json_out_add(o, "url", a->te->url);
	(void)json_object_object_add(
		o, "can_be_chosen", json_object_new_boolean(a->bar == BAR_NONE));
	json_out_add(o, "why", a->bar != BAR_NONE ? why(a) : NULL);
	json_out_add(o, "detail", detail(q, a)[0] != '\0' ? detail(q, a) : NULL);
	json_out_number(o, "in_flight", true, a->view.count);
	json_out_number(o, "max_inflight", a->pick->max_inflight != 0, a->pick->max_inflight);
	json_out_number(o, "foreign", true, a->view.foreign);
	json_out_number(o, "prompt_tokens", true, a->view.tokens);
	json_out_number(o, "load", true, a->load);
	(void)json_object_object_add(o, "weight", json_object_new_double_s(a->weight, weight));
	(void)json_object_object_add(
		o, "weighted_load", a->weight > 0 ? json_object_new_double_s(0, weighted) : NULL);
	json_out_number(o, "expected_hit", a->cached, a->guess.expected);
	json_out_number(o, "cost", has_cost, has_cost ? (uint64_t)round(a->cost) : 0);
	json_out_add(o, "group", group_of(q, a));
	(void)json_object_array_add(list, o);
}

/* All engines of a role; the caller frees them. */
static struct answer *
answers_of(const struct query *q, enum role role, uint32_t *ret_free)
{
	struct answer *all = mem_array(q->pool->n[role], sizeof(*all));

	*ret_free = 0;
	for (uint32_t i = 0; i < q->pool->n[role]; i++) {
		all[i] = answer_of(q, role, &q->pool->picks[role][i]);
		*ret_free += all[i].bar == BAR_NONE;
	}
	look_at_caches(q, role, all);
	return all;
}

static void
print_role(const struct query *q, enum role role, struct evbuffer *out)
{
	uint32_t nfree;
	struct answer *all = answers_of(q, role, &nfree);

	(void)evbuffer_add_printf(out,
		"%s: policy %s, load %s; %" PRIu32 " of %" PRIu32 " can be chosen\n",
		role_name(role), policy_name(q->pool->policy[role]), load_name(q->pool->load[role]),
		nfree, q->pool->n[role]);
	for (uint32_t i = 0; i < q->pool->n[role]; i++)
		print_engine(q, &all[i], out);
	free(all);
}

static void
add_role(const struct query *q, enum role role, struct json_object *roles)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	uint32_t nfree;
	struct answer *all = answers_of(q, role, &nfree);

	json_out_add(o, "policy", policy_name(q->pool->policy[role]));
	json_out_add(o, "load", load_name(q->pool->load[role]));
	json_out_number(o, "can_be_chosen", true, nfree);
	for (uint32_t i = 0; i < q->pool->n[role]; i++)
		add_engine(q, &all[i], list);
	(void)json_object_object_add(o, "engines", list);
	(void)json_object_object_add(roles, role_name(role), o);
	free(all);
}

/* Requests that wait in the pool's queue. */
static uint32_t
waiting(const struct query *q)
{
	const struct conf_pool *conf = conf_pool_named(q->fleet->conf, q->pool->name);
	uint64_t ms;

	return conf != NULL ? facts_waiting(q->fleet, conf, &ms) : 0;
}

static void
print_all(const struct query *q, struct evbuffer *out)
{
	(void)evbuffer_add_printf(out,
		"model %s: pool %s, connector %s, pairing %s, %" PRIu32 " of %" PRIu32 " waiting\n",
		q->name, q->pool->name, connector_name(q->pool->connector),
		pairing_name(q->pool->pairing), waiting(q), q->pool->queue.size);
	for (enum role role = 0; role < ROLE_N; role++)
		print_role(q, role, out);
}

static void
write_all(const struct query *q, struct evbuffer *out)
{
	struct json_object *o = json_object_new_object(), *roles = json_object_new_object(),
			   *queue = json_object_new_object();
	size_t n = 0;

	json_out_add(o, "model", q->name);
	json_out_add(o, "pool", q->pool->name);
	json_out_add(o, "connector", connector_name(q->pool->connector));
	json_out_add(o, "pairing", pairing_name(q->pool->pairing));
	json_out_number(o, "tokens", q->tokens > 0, q->tokens);
	json_out_number(queue, "waiting", true, waiting(q));
	json_out_number(queue, "size", true, q->pool->queue.size);
	(void)json_object_object_add(o, "queue", queue);
	for (enum role role = 0; role < ROLE_N; role++)
		add_role(q, role, roles);
	(void)json_object_object_add(o, "roles", roles);
	json_out_write(out, &n, o);
	(void)evbuffer_add_printf(out, "\n");
}

/* --- the query ------------------------------------------------------------------------- */

static bool
take_word(const char **at, const char *word)
{
	const size_t n = strlen(word);

	if (strncmp(*at, word, n) != 0)
		return false;
	*at += n;
	return true;
}

/* The body of a request with that prompt.  The caller frees it. */
static char *
body_of(const char *prompt, size_t n, size_t *ret_n)
{
	const char head[] = "{\"prompt\":";
	const size_t size = sizeof(head) + 6 * n + 4; /* the longest escape has 6 bytes */
	char *body = mem_array(size, 1);
	long len;

	memcpy(body, head, sizeof(head));
	len = json_quote(body + sizeof(head) - 1, size - sizeof(head), prompt, n, n);
	*ret_n = sizeof(head) - 1 + (size_t)len;
	body[(*ret_n)++] = '}';
	return body;
}

/* Where the prompt is, a text or a body.  *ret_body: what the caller frees, or NULL. */
static enum splice_key
scan(const char *prompt, size_t n, struct splice *ret, char **ret_body)
{
	const char *why;
	size_t at;

	*ret_body = NULL;
	if (splice_scan(ret, prompt, n, &why, &at) == 0 && prompt_member(ret) != SK_N_KEYS)
		return prompt_member(ret);
	*ret_body = body_of(prompt, n, &n);
	return splice_scan(ret, *ret_body, n, &why, &at) == 0 ? SK_PROMPT : SK_N_KEYS;
}

/* What is known of a prompt.  The query points to it. */
struct known {
	char *body; /* where the prompt stands, if not as it came */
	struct prefix_key key;
	struct prefix_found *found;
};

/* As worker/schedule/cached.c looks a prompt up. */
static void
look_up(struct query *q, const char *prompt, size_t n, struct known *ret)
{
	const struct seg *seg = q->fleet->seg;
	struct prefix_secret secret;
	struct splice doc = {.text = NULL};
	const enum splice_key where = scan(prompt, n, &doc, &ret->body);
	const uint32_t block = doc.prompt_items > 0 ? prefix_block_of(seg, q->pool) : 0;

	prefix_secret_make(&secret, seg->hdr->prefix_seed);
	q->tokens = prompt_tokens(&doc);
	if (seg->hdr->prefix_buckets != 0 && where != SK_N_KEYS &&
		prompt_cut(&secret, &doc, where, q->name, block, &ret->key)) {
		ret->found = prefix_found_new(seg->hdr->max_endpoints);
		prefix_look(
			seg, &ret->key, prefix_row_of(q->pool), (uint32_t)q->tokens, ret->found);
	}
	q->found = ret->found;
}

static void
answer(const struct query *q, struct evbuffer *out)
{
	if (q->json)
		write_all(q, out);
	else
		print_all(q, out);
}

int
explain(struct fleet *f, const char *what, const char *prompt, size_t n, struct evbuffer *out)
{
	struct query q = {.fleet = f,
		.table = rcu_current(f->writer),
		.groups = ALL_GROUPS,
		.now_ms = clock_ms(),
		.json = take_word(&what, "json ")};
	struct known known = {.found = NULL};

	q.name = what;
	if (*what == '\0') {
		(void)evbuffer_add_printf(out, "a model is needed");
		return -1;
	}
	q.pool = q.table != NULL ? table_pool_by_model(q.table, what, &q.model) : NULL;
	if (q.pool == NULL) {
		(void)evbuffer_add_printf(out, "no pool serves the model %.200s", what);
		return -1;
	}
	if (q.pool->pairing == PAIRING_REQUIRE && q.pool->n[ROLE_PREFILL] > 0)
		q.groups = groups_of(&q, ROLE_PREFILL) & groups_of(&q, ROLE_DECODE);
	if (prompt != NULL)
		look_up(&q, prompt, n, &known);
	q.engines = slots_map(f);
	answer(&q, out);
	free(q.engines);
	free(known.found);
	free(known.body);
	return 0;
}
