/* GET /metrics: the engine's own names as a router scrapes them, then the simulator's. */
#include <string.h>

#include "tests/engine/admin.h"
#include "tests/engine/conn.h"
#include "tests/engine/kv.h"
#include "tests/engine/prefix.h"
#include "tests/engine/route.h"
#include "tests/engine/sim.h"

static void
help(struct buf *b, const char *name, const char *type, const char *text)
{
	buf_fmt(b, "# HELP %s %s\n# TYPE %s %s\n", name, text, name, type);
}

static void
put_label(struct buf *b, const char *s)
{
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			buf_fmt(b, "\\%c", *s);
		else if (*s == '\n')
			BUF_LIT(b, "\\n");
		else
			buf_add(b, s, 1);
	}
}

static void
engine_value(struct sim *sim, struct buf *b, const char *name, const char *type, const char *text,
	double v)
{
	static const char *const roles[] = {
		[ROLE_BOTH] = "unified", [ROLE_PREFILL] = "prefill", [ROLE_DECODE] = "decode"};

	help(b, name, type, text);
	buf_fmt(b, "%s{", name);
	if (sim->o.engine == FLAVOUR_VLLM)
		BUF_LIT(b, "engine=\"0\"");
	else
		buf_fmt(b, "engine_type=\"%s\",tp_rank=\"0\",pp_rank=\"0\"", roles[sim->o.role]);
	BUF_LIT(b, ",model_name=\"");
	put_label(b, sim->o.models[0]);
	buf_fmt(b, "\"} %.17g\n", v);
}

struct engine_names {
	const char *running, *waiting, *usage, *prompt_tokens, *generation_tokens;
};

static const struct engine_names names[] = {
	[FLAVOUR_VLLM] = {"vllm:num_requests_running", "vllm:num_requests_waiting",
		"vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
		"vllm:generation_tokens_total"},
	[FLAVOUR_SGLANG] = {"sglang:num_running_reqs", "sglang:num_queue_reqs",
		"sglang:token_usage", "sglang:prompt_tokens_total",
		"sglang:generation_tokens_total"},
};

/*
 * vLLM's labels are the fields of its CacheConfig and the engine's index, without the model
 * (CacheConfig.metrics_info(), v1/metrics/loggers.py); these are some of them.  Its counters of the
 * prefix cache count tokens.  SGLang has one figure of tokens.
 */
static void
put_cache(struct sim *sim, struct buf *b)
{
	const struct opts *o = &sim->o;
	int blocks = o->cache_blocks > 0 ? o->cache_blocks : o->blocks;

	if (o->engine == FLAVOUR_SGLANG) {
		engine_value(sim, b, "sglang:max_total_num_tokens", "gauge",
			"Maximum total number of tokens in the KV cache pool.",
			(double)blocks * o->block_size);
		return;
	}
	help(b, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
	buf_fmt(b,
		"vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\","
		"enable_prefix_caching=\"%s\",engine=\"0\",gpu_memory_utilization=\"0.9\","
		"num_cpu_blocks=\"None\",num_gpu_blocks=\"%d\",num_gpu_blocks_override=\"None\","
		"sliding_window=\"None\"} 1.0\n",
		o->block_size, o->cache_blocks > 0 ? "True" : "False", blocks);
	engine_value(sim, b, "vllm:prefix_cache_queries_total", "counter",
		"Prompt tokens looked up in the prefix cache.",
		(double)sim->counters[CTR_prefix_queries]);
	engine_value(sim, b, "vllm:prefix_cache_hits_total", "counter",
		"Prompt tokens found in the prefix cache.", (double)sim->counters[CTR_prefix_hits]);
}

static void
put_engine(struct sim *sim, struct buf *b)
{
	const struct engine_names *n = &names[sim->o.engine];
	bool vllm = sim->o.engine == FLAVOUR_VLLM;
	/* a request whose KV is still travelling counts as waiting (vLLM) */
	uint64_t running = sim->running - sim->travelling - sim->waiting_turns;
	uint64_t waiting = sim->queued + sim->waiting_turns + (vllm ? sim->travelling : 0);

	running = (sim->load_fixed ? 0 : running) + (uint64_t)sim->o.load;
	waiting = (sim->load_fixed ? 0 : waiting) + (uint64_t)sim->o.load_waiting;
	engine_value(sim, b, n->running, "gauge", "Requests being executed.", (double)running);
	engine_value(sim, b, n->waiting, "gauge", "Requests waiting.", (double)waiting);
	if (!vllm && sim->o.role == ROLE_PREFILL)
		engine_value(sim, b, "sglang:num_prefill_inflight_queue_reqs", "gauge",
			"Computed, and waiting for a decode engine.", (double)sim->resting);
	if (!vllm && sim->o.role == ROLE_DECODE)
		engine_value(sim, b, "sglang:num_decode_transfer_queue_reqs", "gauge",
			"Waiting for KV.", (double)sim->travelling);
	engine_value(sim, b, n->usage, "gauge", "KV cache in use, 1 is all of it.",
		(double)kv_used(sim->kv) / sim->o.blocks);
	engine_value(sim, b, n->prompt_tokens, "counter", "Prompt tokens.",
		(double)sim->counters[CTR_prompt_tokens]);
	engine_value(sim, b, n->generation_tokens, "counter", "Tokens generated.",
		(double)sim->counters[CTR_generation_tokens]);
	put_cache(sim, b);
}

/* vLLM's page is of the one process that serves HTTP.  SGLang's is put together from the files of several processes, which have
 * no such figure (prometheus_client's multiprocess mode). */
static void
put_process(struct sim *sim, struct buf *b)
{
	static const char name[] = "process_start_time_seconds";
	bool shown = sim->o.start_time == START_TIME_YES ||
		     (sim->o.start_time == START_TIME_AUTO && sim->o.engine == FLAVOUR_VLLM);

	if (!shown)
		return;
	help(b, name, "gauge", "Start time of the process since unix epoch in seconds.");
	buf_fmt(b, "%s %.17g\n", name, sim->born);
}

static void
gauge(struct buf *b, const char *name, const char *text, uint64_t v)
{
	help(b, name, "gauge", text);
	buf_fmt(b, "%s %llu\n", name, (unsigned long long)v);
}

static void
put_counters(struct sim *sim, struct buf *b)
{
	static const struct {
		const char *name, *help;
	} rows[CTR_N] = {
#define X(n, h) {"pdsim:" #n "_total", h},
		COUNTERS(X)
#undef X
	};
	int i;

	for (i = 0; i < CTR_N; i++) {
		help(b, rows[i].name, "counter", rows[i].help);
		buf_fmt(b, "%s %llu\n", rows[i].name, (unsigned long long)sim->counters[i]);
	}
	help(b, "pdsim:requests_total", "counter", "Requests by path and status.");
	route_metrics(sim, b);
}

void
admin_metrics(struct conn *c)
{
	struct sim *sim = c->sim;
	struct buf b = {0};

	put_process(sim, &b);
	put_engine(sim, &b);
	gauge(&b, "pdsim:held_blocks", "KV blocks held for a fetch.", kv_held_blocks(sim->kv));
	gauge(&b, "pdsim:held_requests", "KV holds waiting for a fetch.",
		kv_held_requests(sim->kv));
	gauge(&b, "pdsim:open_rooms", "Meetings of a prefill and a decode engine, unfinished.",
		sim->open_rooms);
	gauge(&b, "pdsim:open_connections", "Client connections open.", sim->nconns);
	gauge(&b, "pdsim:running_requests", "Generation requests admitted and unfinished.",
		sim->running);
	gauge(&b, "pdsim:running_requests_max", "The most of them at once since the start.",
		sim->running_max);
	gauge(&b, "pdsim:streams_running", "Streams begun and unfinished.", sim->streams);
	gauge(&b, "pdsim:paused_streams", "Streams whose client does not read fast enough.",
		sim->paused);
	if (sim->prefix != NULL)
		gauge(&b, "pdsim:cached_blocks", "Blocks in the prefix cache.",
			prefix_blocks(sim->prefix));
	put_counters(sim, &b);
	conn_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, b.p, b.len);
	buf_free(&b);
}
