#include "tests/engine/route.h"

#include <assert.h>
#include <string.h>

#include "tests/engine/admin.h"
#include "tests/engine/boot.h"
#include "tests/engine/conn.h"
#include "tests/engine/fault.h"
#include "tests/engine/gen.h"
#include "tests/engine/last.h"
#include "tests/engine/oneleg.h"
#include "tests/engine/publish.h"
#include "tests/engine/responses.h"
#include "tests/engine/sim.h"

#define GET (1u << HTTP_GET | 1u << HTTP_HEAD)
#define POST (1u << HTTP_POST)
#define ANY UINT64_MAX

static const struct route {
	const char *path; /* with a *: all that begin and end so */
	uint64_t methods;
	void (*handle)(struct conn *);
	bool is_gen, is_sim;
} routes[] = {
	[ROUTE_OTHER] = {"other", 0, NULL, false, false},
	{"/v1/chat/completions", POST, gen_chat, true, false},
	{"/v1/completions", POST, gen_completion, true, false},
	{"/generate", POST, gen_generate, true, false},
	{"/abort_request", POST, admin_abort_request, false, false},
	{"/route", GET, boot_route, false, false},
	{"/query", GET, boot_query, false, false},
	{"/v1/models", GET, admin_models, false, false},
	{"/v1/models/*", GET, oneleg_model, false, false},
	{"/v1/embeddings", POST, oneleg_answer, false, false},
	{"/v2/embed", POST, oneleg_answer, false, false},
	{"/pooling", POST, oneleg_answer, false, false},
	{"/classify", POST, oneleg_answer, false, false},
	{"/v1/classify", POST, oneleg_answer, false, false},
	{"/score", POST, oneleg_answer, false, false},
	{"/v1/score", POST, oneleg_answer, false, false},
	{"/rerank", POST, oneleg_answer, false, false},
	{"/v1/rerank", POST, oneleg_answer, false, false},
	{"/v2/rerank", POST, oneleg_answer, false, false},
	{"/v1/responses", POST, gen_agent, false, false},
	{"/v1/responses/*/cancel", POST, responses_cancel, false, false},
	{"/v1/responses/*", 1u << HTTP_GET, responses_get, false, false},
	{"/v1/messages", POST, gen_agent, false, false},
	{"/v1/messages/count_tokens", POST, oneleg_answer, false, false},
	{"/v1/audio/transcriptions", POST, oneleg_answer, false, false},
	{"/v1/audio/translations", POST, oneleg_answer, false, false},
	{"/inference/v1/generate", POST, oneleg_answer, false, false},
	{"/v1/completions/render", POST, oneleg_answer, false, false},
	{"/v1/chat/completions/render", POST, oneleg_answer, false, false},
	{"/invocations", POST, oneleg_answer, false, false},
	{"/encode", POST, oneleg_answer, false, false},
	{"/tokenizer_info", GET, oneleg_answer, false, false},
	{"/v1/load_lora_adapter", ANY, oneleg_control, false, false},
	{"/v1/unload_lora_adapter", ANY, oneleg_control, false, false},
	{"/reset_prefix_cache", ANY, oneleg_clear_cache, false, false},
	{"/flush_cache", ANY, oneleg_clear_cache, false, false},
	{"/sleep", ANY, oneleg_control, false, false},
	{"/wake_up", ANY, oneleg_control, false, false},
	{"/is_sleeping", ANY, oneleg_control, false, false},
	{"/collective_rpc", ANY, oneleg_control, false, false},
	{"/abort_requests", ANY, oneleg_control, false, false},
	{"/pause", ANY, oneleg_control, false, false},
	{"/resume", ANY, oneleg_control, false, false},
	{"/pd_role_switch", ANY, oneleg_control, false, false},
	{"/start_profile", ANY, oneleg_control, false, false},
	{"/stop_profile", ANY, oneleg_control, false, false},
	{"/update_weights*", ANY, oneleg_control, false, false},
	{"/health", GET, admin_health, false, false},
	{"/health_generate", GET, admin_health, false, false},
	{"/ping", GET | POST, admin_health, false, false},
	{"/health/ready", GET, admin_ready, false, false},
	{"/ready", GET, admin_ready, false, false},
	{"/metrics", GET, admin_metrics, false, false},
	{"/version", GET, admin_version, false, false},
	{"/server_info", GET, admin_server_info, false, false},
	{"/get_server_info", GET, admin_server_info, false, false},
	{"/load", GET, admin_load, false, false},
	{"/tokenize", POST, admin_tokenize, false, false},
	{"/detokenize", POST, admin_detokenize, false, false},
	{"/sim/fault", POST, admin_sim_fault, false, true},
	{"/sim/health", POST, admin_sim_health, false, true},
	{"/sim/load", POST, admin_sim_load, false, true},
	{"/sim/pause_stream", POST, admin_sim_pause, false, true},
	{"/sim/last", GET, admin_sim_last, false, true},
	{"/sim/held", GET, admin_sim_held, false, true},
	{"/sim/kv_events", POST, publish_sim, false, true},
	{"/sim/reset", POST, admin_sim_reset, false, true},
};

#define N (int)(sizeof(routes) / sizeof(routes[0]))

static_assert(sizeof(routes) / sizeof(routes[0]) <= NROUTES, "sim->requests is too small");

static const int statuses[NSTATUS] = {
	0, 200, 400, 401, 404, 405, 408, 413, 422, 429, 431, 500, 502, 503, 504, -1};

void
route_count(struct sim *sim, int route, int status)
{
	int i = 0;

	while (i < NSTATUS - 1 && statuses[i] != status)
		i++;
	sim->requests[route][i]++;
}

void
route_metrics(struct sim *sim, struct buf *b)
{
	int r, s;

	for (r = 0; r < N; r++) {
		for (s = 0; s < NSTATUS; s++) {
			if (sim->requests[r][s] == 0)
				continue;
			buf_fmt(b, "pdsim:requests_total{path=\"%s\",status=\"", routes[r].path);
			if (statuses[s] > 0)
				buf_u64(b, (uint64_t)statuses[s]);
			else
				buf_str(b, statuses[s] ? "other" : "none");
			buf_fmt(b, "\"} %llu\n", (unsigned long long)sim->requests[r][s]);
		}
	}
}

static int
find(struct buf *url)
{
	const char *q = memchr(url->p, '?', url->len);
	size_t n = q ? (size_t)(q - url->p) : url->len;
	int i;

	for (i = 1; i < N; i++) {
		const char *path = routes[i].path, *star = strchr(path, '*');
		const size_t begin = star == NULL ? strlen(path) : (size_t)(star - path);
		const size_t end = star == NULL ? 0 : strlen(star + 1);

		if ((star == NULL ? n == begin : n > begin + end) &&
			memcmp(path, url->p, begin) == 0 &&
			(end == 0 || memcmp(star + 1, url->p + n - end, end) == 0))
			return i;
	}
	return ROUTE_OTHER;
}

static bool
begins(const char *path, const char *with)
{
	return strncmp(path, with, strlen(with)) == 0;
}

/* vLLM's middleware asks under /v1 for the API key, SGLang's everywhere but for these. */
static bool
wants_key(const struct conn *c, const char *path)
{
	if (c->sim->o.engine == FLAVOUR_VLLM)
		return begins(path, "/v1/");
	return !begins(path, "/health") && !begins(path, "/metrics") && !begins(path, "/route") &&
	       !routes[c->route].is_sim;
}

static bool
authorized(struct conn *c)
{
	const char *key = c->sim->o.api_key, *v;
	size_t n;

	if (key == NULL || !wants_key(c, buf_cstr(&c->url)))
		return true;
	v = conn_header(c, "authorization", &n);
	return v != NULL && n == strlen(key) + 7 && strncasecmp(v, "bearer ", 7) == 0 &&
	       memcmp(v + 7, key, n - 7) == 0;
}

static void
dispatch(struct conn *c)
{
	const struct route *r = &routes[c->route];
	static const char missing[] = "{\"detail\":\"Not Found\"}",
			  method[] = "{\"detail\":\"Method Not Allowed\"}";

	if (r->handle == NULL)
		conn_reply(c, 404, "application/json", NULL, missing, sizeof(missing) - 1);
	else if (!(r->methods >> c->parser.method & 1))
		conn_reply(c, 405, "application/json", NULL, method, sizeof(method) - 1);
	else
		r->handle(c);
}

void
route_request(struct conn *c)
{
	static const char refused[] = "{\"error\":\"Unauthorized\"}";
	struct sim *sim = c->sim;
	const struct route *r;

	c->route = find(&c->url);
	r = &routes[c->route];
	c->is_gen = c->parser.method == HTTP_POST &&
		    (r->is_gen || (r->handle == gen_agent && gen_is_agent(c)));
	c->last_seq = 0;
	if (!r->is_sim)
		c->last_seq = last_add(sim->last[!c->is_gen], c);
	if (!authorized(c)) {
		count(sim, CTR_unauthorized);
		conn_reply(c, 401, "application/json", NULL, refused, sizeof(refused) - 1);
		return;
	}
	if (c->is_gen && !gen_fresh_id(c))
		return;
	if (!r->is_sim && fault_match(c, c->is_gen))
		fault_begin(c, dispatch);
	else
		dispatch(c);
}
