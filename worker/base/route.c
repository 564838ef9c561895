#include "worker/base/route.h"

#include <string.h>

/* Other paths do not exist: the paths that operate an engine (/abort_request, /sleep,
 * /server_info, /v1/load_lora_adapter, ...) are closed to clients. */
/* clang-format off */
static const struct {
	const char *path;
	enum route_by by;
	enum role alone; /* ROUTE_BY_ONE: the role under `single_engine_role: auto` */
} routes[ROUTE_N] = {
	[ROUTE_NONE] = { "other", ROUTE_BY_US, ROLE_N },
	[ROUTE_CHAT] = { "/v1/chat/completions", ROUTE_BY_TWO, ROLE_N },
	[ROUTE_COMPLETIONS] = { "/v1/completions", ROUTE_BY_TWO, ROLE_N },
	[ROUTE_GENERATE] = { "/generate", ROUTE_BY_TWO, ROLE_N },
	[ROUTE_EMBEDDINGS] = { "/v1/embeddings", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_EMBED] = { "/v2/embed", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_POOLING] = { "/pooling", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_CLASSIFY] = { "/classify", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_CLASSIFY_V1] = { "/v1/classify", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_SCORE] = { "/score", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_SCORE_V1] = { "/v1/score", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_RERANK] = { "/rerank", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_RERANK_V1] = { "/v1/rerank", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_RERANK_V2] = { "/v2/rerank", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_ENCODE] = { "/encode", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_TOKENIZE] = { "/tokenize", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_TOKENIZE_V1] = { "/v1/tokenize", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_DETOKENIZE] = { "/detokenize", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_DETOKENIZE_V1] = { "/v1/detokenize", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_RESPONSES] = { "/v1/responses", ROUTE_BY_ONE, ROLE_DECODE },
	[ROUTE_RESPONSE] = { "/v1/responses/{id}", ROUTE_BY_ONE, ROLE_DECODE },
	[ROUTE_RESPONSE_CANCEL] = { "/v1/responses/{id}/cancel", ROUTE_BY_ONE, ROLE_DECODE },
	[ROUTE_MESSAGES] = { "/v1/messages", ROUTE_BY_ONE, ROLE_DECODE },
	[ROUTE_GENERATE_IDS] = { "/inference/v1/generate", ROUTE_BY_ONE, ROLE_DECODE },
	[ROUTE_RENDER] = { "/v1/completions/render", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_RENDER_CHAT] = { "/v1/chat/completions/render", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_COUNT_TOKENS] = { "/v1/messages/count_tokens", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_TRANSCRIPTIONS] = { "/v1/audio/transcriptions", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_TRANSLATIONS] = { "/v1/audio/translations", ROUTE_BY_ONE, ROLE_PREFILL },
	[ROUTE_MODEL] = { "/v1/models/{id}", ROUTE_BY_US, ROLE_N },
	[ROUTE_MODELS] = { "/v1/models", ROUTE_BY_US, ROLE_N },
	[ROUTE_LIVE] = { "/live", ROUTE_BY_US, ROLE_N },
	[ROUTE_HEALTH] = { "/health", ROUTE_BY_US, ROLE_N },
	[ROUTE_READY] = { "/ready", ROUTE_BY_US, ROLE_N },
	[ROUTE_METRICS] = { "/metrics", ROUTE_BY_US, ROLE_N },
	[ROUTE_VERSION] = { "/version", ROUTE_BY_US, ROLE_N },
	[ROUTE_HOME] = { "/", ROUTE_BY_US, ROLE_N },
	[ROUTE_STATUS] = { "/status", ROUTE_BY_US, ROLE_N },
	[ROUTE_STATUS_STYLE] = { "/status/page.css", ROUTE_BY_US, ROLE_N },
	[ROUTE_STATUS_SCRIPT] = { "/status/page.js", ROUTE_BY_US, ROLE_N },
	[ROUTE_STATUS_RUNBOOK] = { "/status/runbook", ROUTE_BY_US, ROLE_N },
	[ROUTE_STATUS_EVENTS] = { "/status/events", ROUTE_BY_US, ROLE_N },
	[ROUTE_PREFLIGHT] = { "preflight", ROUTE_BY_US, ROLE_N }, /* no path: it has no slash */
};
/* clang-format on */

/* The variable part of a path in the table above. */
#define VARIABLE "{id}"

static bool
about_a_response(enum route r)
{
	return r == ROUTE_RESPONSE || r == ROUTE_RESPONSE_CANCEL;
}

enum route_body
route_body(enum route r)
{
	if (about_a_response(r))
		return ROUTE_BODY_NONE;
	return r == ROUTE_TRANSCRIPTIONS || r == ROUTE_TRANSLATIONS ? ROUTE_BODY_FORM
								    : ROUTE_BODY_JSON;
}

bool
route_spends(enum route r)
{
	static const bool free_of_charge[ROUTE_N] = {
		[ROUTE_TOKENIZE] = true,
		[ROUTE_TOKENIZE_V1] = true,
		[ROUTE_DETOKENIZE] = true,
		[ROUTE_DETOKENIZE_V1] = true,
		[ROUTE_RENDER] = true,
		[ROUTE_RENDER_CHAT] = true,
		[ROUTE_COUNT_TOKENS] = true,
	};

	return routes[r].by != ROUTE_BY_US && route_body(r) != ROUTE_BODY_NONE &&
	       !free_of_charge[r];
}

bool
route_is_anthropic(enum route r)
{
	return r == ROUTE_MESSAGES || r == ROUTE_COUNT_TOKENS;
}

bool
route_is_agent(enum route r)
{
	return r == ROUTE_RESPONSES || r == ROUTE_MESSAGES;
}

size_t
route_rest(enum route r)
{
	if (r == ROUTE_MODEL)
		return sizeof("/v1/models/") - 1;
	return about_a_response(r) ? sizeof("/v1/responses/") - 1 : 0;
}

const char *
route_after(enum route r)
{
	return routes[r].path + route_rest(r) + sizeof(VARIABLE) - 1;
}

/* A name may be of any bytes; an id has no slash. */
static bool
matches(struct span path, enum route r)
{
	const size_t rest = route_rest(r);
	size_t after;

	if (rest == 0)
		return span_eq(path, routes[r].path);
	after = strlen(route_after(r));
	if (path.n <= rest + after || memcmp(path.p, routes[r].path, rest) != 0 ||
		memcmp(path.p + path.n - after, route_after(r), after) != 0)
		return false;
	return r == ROUTE_MODEL || memchr(path.p + rest, '/', path.n - rest - after) == NULL;
}

enum route
route_find(struct span path)
{
	for (enum route r = ROUTE_NONE + 1; r < ROUTE_N; r++)
		if (matches(path, r))
			return r;
	return ROUTE_NONE;
}

const char *
route_path(enum route r)
{
	return routes[r].path;
}

enum route_by
route_by(enum route r)
{
	return routes[r].by;
}

enum role
route_single_role(enum route r, const struct conf_handshake *shake)
{
	/* the decode engine keeps the response that two engines have made */
	if (shake->disaggregate_agent_paths != 0 && (r == ROUTE_RESPONSES || about_a_response(r)))
		return ROLE_DECODE;
	if (shake->single_engine_role != SINGLE_ROLE_AUTO)
		return shake->single_engine_role == SINGLE_ROLE_DECODE ? ROLE_DECODE : ROLE_PREFILL;
	return routes[r].alone;
}

bool
route_forwards(enum route r)
{
	return routes[r].by != ROUTE_BY_US;
}

bool
route_needs_key(enum route r, enum door door)
{
	if (door == DOOR_OPERATORS)
		return r != ROUTE_LIVE && r != ROUTE_READY; /* supervisors ask these */
	return route_forwards(r) || r == ROUTE_MODELS || r == ROUTE_MODEL;
}

bool
route_is_status(enum route r)
{
	return r >= ROUTE_HOME && r <= ROUTE_STATUS_EVENTS;
}

/* A load balancer in front of the router asks as operators do. */
static bool
is_for_all(enum route r)
{
	return r == ROUTE_LIVE || r == ROUTE_HEALTH || r == ROUTE_READY || r == ROUTE_VERSION;
}

bool
route_open(enum route r, enum door door, const struct conf *conf)
{
	if (r == ROUTE_NONE)
		return false;
	if (route_is_status(r))
		return door == DOOR_OPERATORS;
	if (r == ROUTE_METRICS)
		return conf_has_metrics(conf, door);
	return door == DOOR_CLIENTS || is_for_all(r);
}

bool
route_method_ok(enum route r, enum http_method m, const char **ret_allow)
{
	*ret_allow = r == ROUTE_GENERATE   ? "POST, PUT"
		     : r == ROUTE_RESPONSE ? "GET"
		     : route_forwards(r)   ? "POST"
					   : "GET, HEAD";
	if (r == ROUTE_RESPONSE)
		return m == HTTP_M_GET;
	if (!route_forwards(r))
		return m == HTTP_M_GET || m == HTTP_M_HEAD;
	return m == HTTP_M_POST || (r == ROUTE_GENERATE && m == HTTP_M_PUT);
}

const char *
route_method(enum route r)
{
	return r == ROUTE_RESPONSE ? "GET" : "POST";
}
