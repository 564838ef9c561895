#include "tests/fuzz/fleet.h"

#include <arpa/inet.h>
#include <openssl/sha.h>

#include "master/config/conf.h"
#include "master/fleet/endpoint.h"
#include "master/fleet/pool_id.h"
#include "master/fleet/version.h"
#include "shm/api_keys.h"
#include "shm/base/connector_info.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/load.h"
#include "tests/fuzz/check.h"

/* A connector, the keys of its map, what else its pool has, and what its engines have. */
static const struct kind {
	enum connector_kind connector;
	const char *map, *more, *engines[ROLE_N];
} kinds[FLEET_KINDS] = {
	{CONNECTOR_NIXL, "kv_lease: 6s", "", {"", ""}},
	{CONNECTOR_NIXL, "kv_lease: 6s, transfer_mode: push", "", {"", ""}},
	{CONNECTOR_ORCHESTRATED, "kv_lease: 6s", "", {"", ""}},
	{CONNECTOR_ORCHESTRATED, "handoff: disagg_prefill_resp", "", {"", ""}},
	{CONNECTOR_LMCACHE, "kv_ready_timeout: 2s", "",
		{"", ", receiver_init_port: [7300, 7301], receiver_alloc_port: [7400, 7401]"}},
	{CONNECTOR_LMCACHE, "ready_messages: 0, first_token: decode, tokenize: decode", "",
		{"", ", receiver_init_port: 7300, receiver_alloc_port: 7400"}},
	{CONNECTOR_SGLANG, "learn_timeout: 1s", "", {", dp_ranks: 2", ", dp_ranks: 2"}},
	{CONNECTOR_SGLANG, "bootstrap: stream, learn_timeout: 1s", "", {"", ""}},
	{CONNECTOR_SHARED_STORAGE, "cache_hit_threshold: ''", "", {"", ""}},
	{CONNECTOR_SHARED_STORAGE, "cache_hit_threshold: 0.8", "", {"", ""}},
	{CONNECTOR_P2P_NCCL, "", "", {", kv_addr: ':14578'", ", kv_addr: ':14579'"}},
	{CONNECTOR_MOONCAKE, "kv_lease: 6s", "", {"", ""}},
	{CONNECTOR_MOONCAKE, "handoff: kv_transfer_params, learn_timeout: 1s", "",
		{", dp_ranks: 2", ", dp_ranks: 2"}},
	{CONNECTOR_NIXL, "remote_host: prefill_host",
		", single_engine_role: decode, fallback: none", {"", ""}},
};

static const char limits[] =
	"timeouts: {connect: 1s, prefill: 5s, first_byte: 5s, stream_idle: 3s, whole_answer: 8s, "
	"down_grace: 2s}, eject_time: 2s, eject_max_time: 4s, queue_timeout: 4s";

const char *
fleet_kind(unsigned kind)
{
	return connector_name(kinds[kind].connector);
}

static bool
has_fanout(const struct kind *k)
{
	return k->connector == CONNECTOR_NIXL || k->connector == CONNECTOR_ORCHESTRATED ||
	       k->connector == CONNECTOR_MOONCAKE;
}

static void
put_engines(FILE *out, const char *role, unsigned from, unsigned options, const char *more)
{
	(void)fprintf(out, ", %s: [", role);
	for (unsigned i = from; i < from + 2; i++)
		(void)fprintf(out, "%s{url: 'http://127.0.0.1:%u', max_inflight: %u, group: %s%s}",
			i > from ? ", " : "", FLEET_PORT + i, options & OPTION_FULL ? 1u : 0u,
			i % 2 == 0 ? "a" : "b", more);
	(void)fprintf(out, "]");
}

static void
put_pool(FILE *out, const struct kind *k, unsigned options)
{
	const char *fanout = options & OPTION_FANOUT && has_fanout(k) ? "fanout: true" : "";

	(void)fprintf(out, "pools: [{name: p, models: [m, n], connector: %s, ",
		connector_name(k->connector));
	if (k->map[0] != '\0' || fanout[0] != '\0')
		(void)fprintf(out, "%s: {%s%s%s}, ", connector_name(k->connector), k->map,
			k->map[0] != '\0' && fanout[0] != '\0' ? ", " : "", fanout);
	(void)fprintf(out, "%s%s", limits, k->more);
	if (options & OPTION_RESCUE)
		(void)fprintf(out,
			", resume: true, allow_timeout_header: true, allow_priority: true%s",
			connector_info[k->connector].decode_alone ? ", allow_route_header: true"
								  : "");
	if (options & OPTION_FULL)
		(void)fputs(", queue_size: 2", out);
	if (options & OPTION_FANOUT)
		(void)fprintf(out, ", policy: prefix%s",
			connector_info[k->connector].decode_alone ? ", routing_threshold: auto"
								  : "");
	if (options & OPTION_NARROW && !(options & OPTION_RESCUE))
		(void)fputs(", retries: 0", out);
	put_engines(out, "prefill", 0, options, k->engines[ROLE_PREFILL]);
	put_engines(out, "decode", 2, options, k->engines[ROLE_DECODE]);
	(void)fputs("}]\n", out);
}

static struct conf *
make_conf(const struct kind *k, unsigned options)
{
	struct conf_error err;
	struct conf *c = NULL;
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);

	CHECK(out != NULL);
	(void)fputs(
		"listen: ['127.0.0.1:8000']\nworkers: 1\nupstream: {idle_timeout: 4s}\n"
		"shared_memory: {max_workers: 1, max_endpoints: 4, max_pools: 1, flags_per_worker: "
		"64, queue: 4, clients: 8, max_api_keys: 4}\n",
		out);
	if (options & OPTION_RESCUE)
		(void)fputs("cors: {origins: ['https://a.example'], credentials: true}\n"
			    "tracing: {sample: 1}\n",
			out);
	(void)fprintf(out,
		"client: {head_timeout: 2s, body_timeout: 3s, idle_timeout: 5s, write_timeout: 5s%s%s}\n",
		options & OPTION_PROXY ? ", proxy_networks: [127.0.0.0/8], proxy_protocol: true"
				       : "",
		options & OPTION_KEYS ? ", rate: 20/m, max_inflight: 2" : "");
	if (options & OPTION_NARROW)
		(void)fputs("limits: {max_body: 1KiB, max_head: 1KiB, max_answer: 1KiB}\n", out);
	put_pool(out, k, options);
	CHECK(fclose(out) == 0);
	if (conf_parse("fuzz.yaml", text, n, &c, &err) != 0) {
		(void)fprintf(stderr, "%s\n%s:%d: %s\n", text, err.key, err.line, err.what);
		abort();
	}
	free(text);
	return c;
}

static struct fleet *
make_fleet(unsigned kind, unsigned options)
{
	struct fleet *f = MEM_NEW(struct fleet);
	struct endpoint *all = mem_array(FLEET_ENGINES, sizeof(*all));
	const struct conf_pool *pool;
	struct conf *c = make_conf(&kinds[kind], options);

	f->conf = c;
	f->config_number = 1;
	f->order = mem_array(FLEET_ENGINES, sizeof(struct endpoint *));
	pool = &c->pools[0];
	CHECK(pool->nendpoints == FLEET_ENGINES);
	for (size_t i = 0; i < FLEET_ENGINES; i++) {
		struct engine *e = &all[i].engine;

		engine_init(e, NULL, pool, &pool->endpoints[i], i);
		e->pool = pool;
		e->conf = &pool->endpoints[i];
		e->slot = (uint32_t)i;
		e->addr = (struct ep_addr){.family = AF_INET, .port = e->at.port};
		CHECK(inet_pton(AF_INET, e->at.host, e->addr.ip) == 1);
		all[i].fleet = f;
		f->order[f->norder++] = &all[i];
	}
	return f;
}

struct fleet *
fleet_get(unsigned kind, unsigned options)
{
	static struct fleet *made[FLEET_KINDS][FLEET_OPTIONS];

	if (made[kind][options] == NULL)
		made[kind][options] = make_fleet(kind, options);
	return made[kind][options];
}

const struct conf *
fleet_conf(const struct fleet *f)
{
	return f->conf;
}

static void
publish_keys(struct rcu_writer *writer, const struct seg *seg)
{
	static char names[2][8] = {"fuzz", "other"}, none[] = "none", *models[] = {none};
	static const char *const texts[2] = {FLEET_KEY, "sk-other"};
	unsigned char sha256[SHA256_DIGEST_LENGTH];
	struct conf_api_key keys[2] = {
		{.name = names[0],
			.terms = {.rate = {100, 1}, .max_inflight = 4, .tokens_per_minute = 5000}},
		{.name = names[1], .models = models, .nmodels = 1},
	};
	const bool needed[DOOR_N] = {[DOOR_CLIENTS] = true};
	void *arena = rcu_keys_arena_get(writer);

	for (size_t i = 0; i < 2; i++) {
		(void)SHA256((const unsigned char *)texts[i], strlen(texts[i]), sha256);
		for (size_t k = 0; k < sizeof(sha256); k++)
			(void)snprintf(&keys[i].sha256[2 * k], 3, "%02x", sha256[k]);
	}
	CHECK(arena != NULL && api_keys_build(arena, seg->keys_arena_bytes, keys, 2, needed) == 0);
	rcu_publish_keys(writer, arena);
}

void
fleet_publish(struct fleet *f, struct seg *seg, struct rcu_writer *writer, uint64_t version)
{
	const struct version_stamp stamp = {.version = version, .created_s = 1};
	void *arena;

	(void)rcu_poll(writer);
	arena = rcu_arena_get(writer);
	if (arena == NULL)
		return;
	f->seg = seg;
	if (version == 1) {
		pool_ids_assign(f);
		for (uint32_t i = 0; i < FLEET_ENGINES; i++) {
			ep_slot_begin(seg, i);
			ep_state_set(seg, i, EP_UP);
		}
		if (f->conf->live.client_max_inflight > 0)
			publish_keys(writer, seg);
	}
	(void)version_build(f, &stamp, arena);
	rcu_publish(writer, arena);
}
