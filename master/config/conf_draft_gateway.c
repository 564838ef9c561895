#include "master/config/conf_draft_gateway.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

#define GATEWAY_PORT "30000" /* of sglang-router */

/* --- sglang-router ---------------------------------------------------------------------------- */

static int
put_policy(struct conf_draft *d, enum conf_flag f, const char *key)
{
	static const struct flag_word policies[] = {{"cache_aware", "cache_aware", NULL},
		{"prefix_hash", "prefix", NULL}, {"random", "random", NULL},
		{"round_robin", "round_robin", NULL}, {"power_of_two", "power_of_two", NULL},
		{"manual", NULL, "policy: session and a session_header in a configuration file"},
		{"bucket", NULL, "power_of_two, which compares the length of prompts"}};
	const struct flag_word *w;

	if (FIND(d, f, policies, &w) != 0)
		return -1;
	draft_put(d, (int)f, "  %s: %s", key, w->ours);
	return 0;
}

static int
put_policies(struct conf_draft *d)
{
	if (draft_value(d, FLAG_POLICY) == NULL)
		draft_put(d, FLAG_POLICY, "  policy: cache_aware");
	else if (put_policy(d, FLAG_POLICY, "policy") != 0)
		return -1;
	if (draft_value(d, FLAG_PREFILL_POLICY) != NULL &&
		put_policy(d, FLAG_PREFILL_POLICY, "prefill_policy") != 0)
		return -1;
	return draft_value(d, FLAG_DECODE_POLICY) != NULL
		       ? put_policy(d, FLAG_DECODE_POLICY, "decode_policy")
		       : 0;
}

/* Requests that each of the decode engines may have of all there may be; 0: there is no limit. */
static int
share_of_all(struct conf_draft *d, enum conf_flag f, unsigned long *ret)
{
	const char *all = draft_value(d, FLAG_MAX_CONCURRENT_REQUESTS);
	unsigned long n = 0;

	*ret = 0;
	if (all == NULL || strcmp(all, "-1") == 0)
		return 0;
	if (!draft_is_number(all))
		return draft_fail(
			d, FLAG_MAX_CONCURRENT_REQUESTS, "%.60s is not a number, nor -1", all);
	for (size_t i = 0; i < d->args->nurls; i++)
		n += d->args->urls[i].flag == (int)f;
	*ret = n > 0 ? strtoul(all, NULL, 10) / n + (strtoul(all, NULL, 10) % n != 0) : 0;
	return 0;
}

static int
put_urls(struct conf_draft *d, enum conf_flag f, enum role role)
{
	unsigned long most = 0;
	bool any = false;

	if (role == ROLE_DECODE && share_of_all(d, f, &most) != 0)
		return -1;

	for (size_t i = 0; i < d->args->nurls; i++) {
		const struct conf_args_url *u = &d->args->urls[i];

		if (u->flag != (int)f)
			continue;
		if (!any)
			draft_put(d, (int)f, "  %s:", role_name(role));
		any = true;
		draft_put_text(d, (int)f, "    - url: ", u->url, "");
		if (most > 0)
			draft_put(d, FLAG_MAX_CONCURRENT_REQUESTS, "      max_inflight: %lu", most);
		if (u->port == NULL || strcasecmp(u->port, "none") == 0)
			continue;
		if (!draft_is_number(u->port))
			return draft_fail(d, f, "%.60s is not a port or none", u->port);
		draft_put(d, (int)f, "      bootstrap_port: %s", u->port);
	}
	return 0;
}

int
conf_draft_gateway(struct conf_draft *d)
{
	const bool pd = draft_value(d, FLAG_PD_DISAGGREGATION) != NULL;
	const enum conf_flag from = pd ? FLAG_PD_DISAGGREGATION : FLAG_WORKER_URLS;

	if (draft_value(d, FLAG_ROUTING_LOGIC) != NULL ||
		draft_value(d, FLAG_STATIC_BACKENDS) != NULL)
		return draft_fail(d,
			draft_value(d, FLAG_ROUTING_LOGIC) != NULL ? FLAG_ROUTING_LOGIC
								   : FLAG_STATIC_BACKENDS,
			"belongs to another router than the other flags");
	if (draft_value(d, FLAG_SERVICE_DISCOVERY) != NULL)
		return draft_fail(d, FLAG_SERVICE_DISCOVERY,
			"is not possible here: use dns in a configuration file, with the name of a headless service");
	if (!pd && draft_value(d, FLAG_WORKER_URLS) == NULL)
		return draft_fail(
			d, FLAG_PD_DISAGGREGATION, "is missing: --prefill and --decode need it");
	if (pd)
		draft_note_if_given(d, FLAG_WORKER_URLS,
			"with --pd-disaggregation --prefill and --decode name the engines");
	if (draft_put_root(d, (int)from, GATEWAY_PORT, 1, 2 * d->args->nurls) != 0)
		return -1;
	draft_put(d, (int)from, "pools:");
	draft_put(d, (int)from, "- connector: %s",
		connector_name(pd ? CONNECTOR_SGLANG : CONNECTOR_SHARED_STORAGE));
	draft_put(d, (int)from, "  engine: sglang");
	if (put_policies(d) != 0)
		return -1;
	if (draft_put_routes(d, from, !pd) != 0)
		return -1;
	if (put_urls(d, pd ? FLAG_PREFILL : FLAG_WORKER_URLS, ROLE_PREFILL) != 0)
		return -1;
	return put_urls(d, pd ? FLAG_DECODE : FLAG_WORKER_URLS, ROLE_DECODE);
}
