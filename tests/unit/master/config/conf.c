/* The configuration: what is accepted, what each wrong file is told, what a reload sees. */
#include "master/config/conf.h"

#include <criterion/criterion.h>
#include <glob.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/config/conf_keys.h"
#include "master/config/conf_read.h"
#include "shm/base/mem.h"

#define NELEMS(v) (sizeof(v) / sizeof((v)[0]))
/* one line each: cases count lines */
#define EPS "prefill: [{url: \"http://p\"}], decode: [{url: \"http://d\"}]"
#define POOL "{connector: nixl, " EPS "}"
#define POOLS "pools: [" POOL "]\n"
#define OF(connector, key)                                                                         \
	"pools:\n - connector: " connector "\n   " key                                             \
	"\n   prefill: [{url: http://p}]\n   decode: [{url: http://d}]\n"
#define PAIR(connector, p, d)                                                                      \
	"pools:\n - connector: " connector "\n   prefill: [{url: \"http://p\", " p                 \
	"}]\n   decode: "                                                                          \
	"[{url: \"http://d\", " d "}]\n"
#define PORTS "receiver_init_port: 7300, receiver_alloc_port: 7400"
#define P8 "1, 2, 3, 4, 5, 6, 7, 8, "
#define LONG64 "x123456789012345678901234567890123456789012345678901234567890123"
#define LONG128 LONG64 LONG64

static struct conf *
parse(const char *text)
{
	struct conf_error err;
	struct conf *c = NULL;
	char buf[800];

	cr_assert_eq(conf_parse("dir/t.yaml", text, strlen(text), &c, &err), 0, "%s\n%s",
		conf_error_text(&err, buf, sizeof(buf)), text);
	return c;
}

/* A folder of its own for each test that needs files; removed at its end. */
static char dir[] = "/tmp/pdrouter_conf_XXXXXX";

static void
folder(void)
{
	cr_assert_not_null(mkdtemp(dir));
	cr_assert_eq(chdir(dir), 0);
}

static void
no_folder(void)
{
	const char *const names[] = {
		"eps.yaml", "fleet.yaml", "main.yaml", "fifo", "big", "key", "secret"};

	for (size_t i = 0; i < NELEMS(names); i++)
		(void)unlink(names[i]);
	cr_expect_eq(rmdir(dir), 0);
}

static void
write_file(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");

	cr_assert_not_null(f);
	cr_assert_geq(fputs(text, f), 0);
	cr_assert_eq(fclose(f), 0);
}

Test(conf, minimal_file_and_every_default)
{
	struct conf *c = parse(POOLS);
	const struct conf_pool *p = &c->pools[0];

	cr_expect_str_eq(c->path, "dir/t.yaml");
	cr_expect_eq(c->nlisten, 1);
	cr_expect_str_eq(c->listen[0].text, "0.0.0.0:8000");
	cr_expect_str_eq(c->listen[0].host, "0.0.0.0");
	cr_expect_eq(c->listen[0].port, 8000);
	cr_expect(c->workers_auto);
	cr_expect(c->workers >= 1 && c->workers <= 8);
	cr_expect_eq(c->max_workers, 16);
	cr_expect_eq(c->max_endpoints, 1024);
	cr_expect_eq(c->max_pools, 16);
	cr_expect_eq(c->flags_per_worker, 4096);
	cr_expect_eq(c->live.max_body, 64u << 20);
	cr_expect_eq(c->live.max_head, 32u << 10);
	cr_expect_eq(c->live.max_connections, 65536);
	cr_expect_eq(c->live.max_answer, 16u << 20);
	cr_expect_eq(c->live.client_head_ms, 10000);
	cr_expect_eq(c->live.client_body_ms, 30000);
	cr_expect_eq(c->live.client_idle_ms, 75000);
	cr_expect_eq(c->live.client_write_ms, 300000);
	cr_expect_eq(c->live.upstream_idle_ms, 4000);
	cr_expect_eq(c->live.upstream_max_idle, 64);
	cr_expect_eq(c->stats_interval_ms, 1000);
	cr_expect_eq(c->health_interval_ms, 2000);
	cr_expect_eq(c->health_timeout_ms, 5000);
	cr_expect_eq(c->rise, 2);
	cr_expect_eq(c->fall, 3);
	cr_expect_eq(c->drain_ms, 120000);
	cr_expect_eq(c->reload_drain_ms, 0);
	cr_expect_eq(c->upgrade_drain_ms, 0);
	cr_expect_eq(c->upgrade_trial_ms, 10000);
	cr_expect_eq(c->watchdog_ms, 10000);
	cr_expect_eq(c->live.log_level, LOG_L_INFO);
	cr_expect_eq(c->live.log_format, LOG_F_LOGFMT);
	cr_expect_str_eq(c->control_socket, "/run/pdrouter/control.sock");
	cr_expect_null(c->state_file);
	cr_expect_null(c->lmcache_listen);
	cr_assert_eq(c->npools, 1);
	cr_expect_str_eq(p->name, "pool1");
	cr_expect_eq(p->nmodels, 0);
	cr_expect_eq(p->connector, CONNECTOR_NIXL);
	cr_expect_eq(p->policy, POLICY_LEAST_LOADED);
	cr_expect_eq(p->policies[ROLE_PREFILL], POLICY_CACHE_AWARE);
	cr_expect_eq(p->policies[ROLE_DECODE], POLICY_LEAST_LOADED);
	cr_expect_eq(p->loads[ROLE_PREFILL], LOAD_TOKENS);
	cr_expect_eq(p->loads[ROLE_DECODE], LOAD_REQUESTS);
	cr_expect_eq(p->pairing, PAIRING_PREFER);
	cr_expect_str_eq(p->session_header, "X-Session-Id");
	cr_expect_null(p->session_member);
	cr_expect_eq(p->prefix_bytes, 1024);
	cr_expect_eq(p->slow_start_ms, 0);
	cr_expect_eq(p->ngroups, 0);
	cr_expect_eq(p->endpoints[0].weight, 1);
	cr_expect_null(p->endpoints[0].group);
	cr_expect_eq(p->engine, ENGINE_VLLM);
	cr_expect_eq(p->shake.remote_host, REMOTE_HOST_KEEP);
	cr_expect_eq(p->timeouts.connect_ms, 2000);
	cr_expect_eq(p->timeouts.prefill_ms, 300000);
	cr_expect_eq(p->timeouts.whole_answer_ms, 600000);
	cr_expect_str_eq(p->health_path, "/health");
	cr_expect_null(p->endpoints_file);
	cr_assert_eq(p->nendpoints, 2);
	cr_expect_str_eq(p->endpoints[0].url, "http://p");
	cr_expect_eq(p->endpoints[0].role, ROLE_PREFILL);
	cr_expect_eq(p->endpoints[1].role, ROLE_DECODE);
	cr_expect_eq(p->endpoints[1].max_inflight, 0);
	cr_expect_eq(p->endpoints[1].line, 1);
	conf_free(&c);
	cr_expect_null(c);
	conf_free(&c);
}

/* systemd names the directories of StateDirectory=. */
Test(conf, the_state_file_of_a_unit)
{
	static const struct {
		const char *directory, *text, *path;
	} rows[] = {
		{"/var/lib/pdrouter", POOLS, "/var/lib/pdrouter/state.json"},
		{"/var/lib/a:/var/lib/b", POOLS, "/var/lib/a/state.json"},
		{"", POOLS, NULL},
		{"/var/lib/pdrouter", POOLS "state_file: \"\"\n", NULL},
		{"/var/lib/pdrouter", POOLS "state_file: /x\n", "/x"},
	};

	for (size_t i = 0; i < NELEMS(rows); i++) {
		struct conf *c;

		cr_assert_eq(setenv("STATE_DIRECTORY", rows[i].directory, 1), 0);
		c = parse(rows[i].text);
		cr_expect(mem_text_equal(c->state_file, rows[i].path), "%zu: %s", i, c->state_file);
		conf_free(&c);
	}
}

/* With a path from the file, from systemd, or none, a reload keeps the path of the start. */
Test(conf, the_state_file_of_a_unit_and_a_reload)
{
	static const struct {
		const char *old, *next, *kept;
		int classes;
	} rows[] = {
		{POOLS, POOLS, "/var/lib/pdrouter/state.json", 0},
		{POOLS "state_file: /x\n", POOLS, "/x", CONF_RESTART},
		{POOLS "state_file: \"\"\n", POOLS, NULL, CONF_RESTART},
		{POOLS, POOLS "state_file: /x\n", "/var/lib/pdrouter/state.json", CONF_RESTART},
	};

	cr_assert_eq(setenv("STATE_DIRECTORY", "/var/lib/pdrouter", 1), 0);
	for (size_t i = 0; i < NELEMS(rows); i++) {
		struct conf *old = parse(rows[i].old), *next = parse(rows[i].next);
		struct conf_error err;

		cr_expect_eq(conf_diff(old, next, NULL, NULL, &err), rows[i].classes, "%zu", i);
		cr_expect(mem_text_equal(next->state_file, rows[i].kept), "%zu: %s", i,
			next->state_file);
		conf_free(&old);
		conf_free(&next);
	}
}

Test(conf, every_key)
{
	struct conf *c = parse(
		"listen: [\":80\", '[::1]:81', 'gpu-1.lan:82', '[fe80::1%lo]:83', '[0:0::2]:84']\n"
		"admin: {listen: [\"127.0.0.1:85\"]}\nworkers: 3\n"
		"limits: {max_body: 1GiB, max_head: 16KiB, max_connections: 7, max_answer: 2048B}\n"
		"shared_memory: {max_workers: 4, max_endpoints: 8, max_pools: 2, flags_per_worker: "
		"128}\n"
		"client: {head_timeout: 1s, body_timeout: 2s, idle_timeout: 3m, write_timeout: "
		"4h}\n"
		"upstream: {idle_timeout: \"250ms\", max_idle: 0}\n"
		"stats_interval: 300ms\nhealth_interval: 1m\nhealth_timeout: 6s\nrise: 1\nfall: 9\n"
		"drain_timeout: 0\nreload_drain_timeout: 9m\nupgrade_drain_timeout: 8m\nupgrade_trial: 2s\nworker_watchdog: 0s\nlog_level: debug\nlog_format: json\n"
		"control_socket: \"\"\nlmcache: {listen: \"tcp://*:7500\"}\n"
		"pools:\n"
		"  - models: [\"405\", org/m]\n"
		"    name: a.b:c/d_e-1\n"
		"    connector: orchestrated\n    policy: round_robin\n    engine: sglang\n"
		"    orchestrated: {handoff: disagg_prefill_resp}\n"
		"    timeouts: {connect: 1s, prefill: 2s, whole_answer: 3s}\n"
		"    prefill:\n      - {url: \"http://[2001:db8::1]:81/x\", max_inflight: 12}\n"
		"    decode: [{url: http://d:82}]\n"
		"  - {models: [m2], connector: nixl, nixl: {remote_host: prefill_host}, health_path: "
		"/h?x=1, " EPS "}\n");
	const struct conf_pool *p = &c->pools[0];

	cr_assert_eq(c->nlisten, 5);
	cr_expect_str_eq(c->listen[0].host, "");
	cr_expect_str_eq(c->listen[1].host, "::1");
	cr_expect_eq(c->listen[1].port, 81);
	cr_expect_str_eq(c->listen[2].host, "gpu-1.lan");
	cr_expect_str_eq(c->listen[3].host, "fe80::1%lo");
	cr_expect_str_eq(c->listen[4].host, "::2");
	cr_expect_str_eq(c->listen[4].text, "[0:0::2]:84");
	cr_assert_eq(c->nadmin_listen, 1);
	cr_expect_eq(c->admin_listen[0].port, 85);
	cr_expect_eq(c->workers, 3);
	cr_expect_not(c->workers_auto);
	cr_expect_eq(c->live.max_body, 1u << 30);
	cr_expect_eq(c->live.max_answer, 2048);
	cr_expect_eq(c->flags_per_worker, 128);
	cr_expect_eq(c->live.client_idle_ms, 180000);
	cr_expect_eq(c->live.client_write_ms, 4u * 3600000);
	cr_expect_eq(c->live.upstream_idle_ms, 250);
	cr_expect_eq(c->live.upstream_max_idle, 0);
	cr_expect_eq(c->drain_ms, 0);
	cr_expect_eq(c->reload_drain_ms, 540000);
	cr_expect_eq(c->upgrade_drain_ms, 480000);
	cr_expect_eq(c->upgrade_trial_ms, 2000);
	cr_expect_eq(c->watchdog_ms, 0);
	cr_expect_eq(c->live.log_level, LOG_L_DEBUG);
	cr_expect_eq(c->live.log_format, LOG_F_JSON);
	cr_expect_null(c->control_socket);
	cr_expect_str_eq(c->lmcache_listen, "tcp://*:7500");
	cr_assert_eq(c->npools, 2);
	cr_expect_str_eq(p->name, "a.b:c/d_e-1");
	cr_expect_str_eq(p->models[0], "405");
	cr_expect_str_eq(p->models[1], "org/m");
	cr_expect_eq(p->policy, POLICY_ROUND_ROBIN);
	cr_expect_eq(p->engine, ENGINE_SGLANG);
	cr_expect_eq(p->shake.handoff, HANDOFF_DISAGG_PREFILL_RESP);
	cr_expect_eq(p->shake.remote_host, REMOTE_HOST_PREFILL, "the default of orchestrated");
	cr_expect_str_eq(p->health_path, "/ready");
	cr_expect_eq(p->endpoints[0].max_inflight, 12);
	cr_expect_eq(p->line, 23);
	cr_expect_eq(p->endpoints[0].line, 31);
	cr_expect_str_eq(c->pools[1].name, "m2");
	cr_expect_eq(
		c->pools[1].shake.remote_host, REMOTE_HOST_PREFILL, "given on the pool's own line");
	cr_expect_str_eq(c->pools[1].health_path, "/h?x=1");
	conf_free(&c);
}

Test(conf, remote_host_given_for_orchestrated_is_kept)
{
	struct conf *c = parse(
		"pools: [{connector: orchestrated, orchestrated: {remote_host: keep}, " EPS "}]\n");

	cr_expect_eq(c->pools[0].shake.remote_host, REMOTE_HOST_KEEP);
	conf_free(&c);
}

/* clang-format off */
static const struct bad {
	const char *text;
	int line;
	const char *key, *word; /* word: part of the message */
} bads[] = {
	/* not a file of keys */
	{ "", 0, "", "empty" },
	{ "# nothing\n", 0, "", "empty" },
	{ "just text\n", 1, "", "a mapping of keys" },
	{ "- a\n- b\n", 1, "", "is a list" },
	{ "a: [b\nc: d\n", 2, "", "not YAML" },
	{ "rise: 2\n\tfall: 3\n", 2, "", "not YAML" },
	{ "listen: \"x\n", 2, "", "not YAML" },
	{ POOLS "rise: \xff\n", 2, "", "UTF-8" },
	{ POOLS "# caf\xe9\n", 2, "", "UTF-8" },
	{ "\xff\xfe" "a", 1, "", "UTF-8" },
	{ POOLS "\nlog_level: \x01\n", 3, "", "control byte 0x01" },
	{ POOLS "rise: \x7f\n", 2, "", "control byte 0x7f" },
	{ POOLS "rise: \xc2\x85\xef\xbf\xbf\n", 2, "", "not YAML" },
	{ POOLS "---\nrise: 2\n", 2, "", "second document" },
	{ POOLS "...\nrise: 2\n", 3, "", "" },
	{ "rise: &a 2\nfall: *a\n" POOLS, 1, "", "anchor &a" },
	{ "client: &c {head_timeout: 1s}\n" POOLS, 1, "", "anchor" },
	{ "pools: &p []\n", 1, "", "anchor" },
	{ "fall: *a\n" POOLS, 1, "", "alias *a" },
	{ POOLS "client:\n  <<: *c\n", 3, "", "alias" },
	{ POOLS "<<: {rise: 2}\n", 2, "<<", "unknown key" },
	{ POOLS "rise: !!int 2\n", 2, "", "tag" },
	{ "pools: !mine [" POOL "]\n", 1, "", "tag" },
	{ "a: [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]\n", 1, "", "16 deep" },
	{ "? [a, b]\n: c\n", 1, "", "a key must be a word" },
	{ POOLS "\"rise\\0x\": 2\n", 2, "", "NUL" },
	{ POOLS "log_level: \"info\\0\"\n", 2, "log_level", "control byte 0x00" },
	{ POOLS "control_socket: \"/a\\nb\"\n", 2, "control_socket", "control byte 0x0a" },
	/* keys */
	{ POOLS "\nworker: 3\n", 3, "worker", "did you mean workers?" },
	{ POOLS "max_body: 1MiB\n", 2, "max_body", "limits.max_body" },
	{ POOLS "worker_watchdg: 1m\n", 2, "worker_watchdg", "did you mean worker_watchdog?" },
	{ POOLS "client: {write_timout: 1m}\n", 2, "client.write_timout", "did you mean client.write_timeout?" },
	{ POOLS "drain_timout: 1m\n", 2, "drain_timout", "did you mean drain_timeout?" },
	{ POOLS "head_timout: 1m\n", 2, "head_timout", "did you mean client.head_timeout?" },
	{ POOLS "cliens: {head_timeout: 1m}\n", 2, "cliens", "did you mean client?" },
	{ POOLS "policy: random\n", 2, "policy", "unknown key here: it belongs to a pool" },
	{ "pools: [{connector: nixl, weight: 2, " EPS "}]\n", 1, "pools[0].weight", "belongs to an entry of prefill or decode" },
	{ "pools: [{connector: nixl, rise: 2, " EPS "}]\n", 1, "pools[0].rise", "belongs to the top level" },
	{ "pools: [{connector: nixl, api_key: x, " EPS "}]\n", 1, "pools[0].api_key", "did you mean engine_api_key_file?" },
	{ "pools: [{connector: nixl, timeout: 2s, " EPS "}]\n", 1, "pools[0].timeout", "did you mean timeouts?" },
	{ OF("nixl", "outlier_factor: 3"), 3, "pools[0].outlier_factor", "did you mean outlier.factor?" },
	{ POOLS "limits_max_body: 1MiB\n", 2, "limits_max_body", "did you mean limits.max_body?" },
	{ POOLS "frobnicate: 3\n", 2, "frobnicate", "unknown key" },
	/* what others call it */
	{ OF("nixl", "max_retries: 3"), 3, "pools[0].max_retries", "did you mean retries of a pool?" },
	{ POOLS "circuit_breaker: {failures: 5}\n", 2, "circuit_breaker", "did you mean eject_failures of a pool?" },
	{ POOLS "outlier_factor: 3\n", 2, "outlier_factor", "did you mean outlier: {factor: ...} of a pool?" },
	{ OF("nixl", "outlier_detection: true"), 3, "pools[0].outlier_detection", "did you mean eject_failures of a pool?" },
	{ OF("nixl", "max_ejection_percent: 5"), 3, "pools[0].max_ejection_percent", "max_ejected" },
	{ POOLS "queue_depth: 5\n", 2, "queue_depth", "queue_size or queue_timeout of a pool?" },
	{ POOLS "max_concurrent_requests: 5\n", 2, "max_concurrent_requests", "max_inflight of an engine?" },
	{ POOLS "rate_limit: 5\n", 2, "rate_limit", "did you mean client.rate?" },
	{ OF("nixl", "request_timeout: 5s"), 3, "pools[0].request_timeout", "did you mean timeouts: {request: ...} of a pool?" },
	{ OF("nixl", "timeouts: {decode: 5s}"), 3, "pools[0].timeouts.decode", "it has become first_byte, stream_idle and whole_answer" },
	{ POOLS "limits: {max_memory: 1GiB}\n", 2, "limits.max_memory", "did you mean limits.max_buffered?" },
	{ POOLS "retries: 3\n", 2, "retries", "belongs to a pool" },
	{ POOLS "limits:\n  max_bdy: 1MiB\n", 3, "limits.max_bdy", "limits.max_body" },
	{ POOLS "limits.max_body: 1MiB\n", 2, "limits.max_body", "unknown key" },
	{ POOLS "rise: 2\nfall: 2\nrise: 3\n", 4, "rise", "twice, first in line 2" },
	{ POOLS "client: {head_timeout: 1s, head_timeout: 2s}\n", 2, "client.head_timeout", "twice" },
	{ POOLS "client: {head_timeout: 1s}\nclient: {body_timeout: 1s}\n", 3, "client", "twice" },
	{ POOLS POOLS, 2, "pools", "twice" },
	{ "pools:\n  - " POOL "\n  - {connector: nixl, polcy: x}\n", 3, "pools[1].polcy", "did you mean policy?" },
	{ "pools: [{connector: nixl, prefill: [{ur: x}]}]\n", 1, "pools[0].prefill[0].ur", "did you mean url?" },
	/* kinds */
	{ POOLS "limits: 5\n", 2, "limits", "a mapping of keys" },
	{ POOLS "limits:\n", 2, "limits", "no value" },
	{ POOLS "rise: [2]\n", 2, "rise", "is a list" },
	{ POOLS "rise: {a: 2}\n", 2, "rise", "is a mapping" },
	{ POOLS "rise:\n", 2, "rise", "no value" },
	{ POOLS "rise: ~\n", 2, "rise", "no value" },
	{ POOLS "control_socket: null\n", 2, "control_socket", "no value" },
	{ POOLS "control_socket: yes\n", 2, "control_socket", "quote it" },
	{ POOLS "control_socket: 1.5\n", 2, "control_socket", "number" },
	{ "pools: [{models: [405], connector: nixl, " EPS "}]\n", 1, "pools[0].models[0]", "quote it" },
	{ "listen: x:1\n" POOLS, 1, "listen", "a list of addresses" },
	{ "listen: []\n" POOLS, 1, "listen", "at least 1" },
	{ "listen: [[a]]\n" POOLS, 1, "listen[0]", "is a list" },
	{ "listen:\n" POOLS, 1, "listen", "no value" },
	{ "pools: []\n", 1, "pools", "at least 1" },
	{ "pools: {a: b}\n", 1, "pools", "a list of pools" },
	{ "pools: [x]\n", 1, "pools[0]", "a mapping of keys" },
	{ "rise: 3\n", 1, "pools", "missing" },
	/* numbers */
	{ POOLS "rise: \"2\"\n", 2, "rise", "quotes" },
	{ POOLS "rise: two\n", 2, "rise", "two is not a whole number" },
	{ POOLS "rise: 0\n", 2, "rise", "1 to 1000" },
	{ POOLS "rise: -1\n", 2, "rise", "not a whole number" },
	{ POOLS "rise: 1.5\n", 2, "rise", "1.5 is not a whole number" },
	{ OF("nixl", "outlier: {factor: 2.5}"), 3, "pools[0].outlier.factor", "2.5 is not a whole number" },
	{ POOLS "workers: 1.5\n", 2, "workers", "1.5 is not `auto` or a whole number" },
	{ POOLS "rise: 010\n", 2, "rise", "not a whole number" },
	{ POOLS "rise: 0x10\n", 2, "rise", "not a whole number" },
	{ POOLS "rise: 99999999999999999999999999\n", 2, "rise", "out of bounds" },
	{ POOLS "workers: 65\n", 2, "workers", "1 to 64" },
	{ POOLS "workers: many\n", 2, "workers", "`auto`" },
	{ POOLS "workers: 17\n", 2, "shared_memory.max_workers", "17 workers are more than 16: write 17 or more" },
	{ "workers: 5\nshared_memory:\n  max_workers: 4\n" POOLS, 3, "shared_memory.max_workers", "5 workers" },
	{ POOLS "shared_memory: {flags_per_worker: 100}\n", 2, "shared_memory.flags_per_worker", "multiple of 64" },
	{ POOLS "worker_watchdog: 1ms\n", 2, "worker_watchdog", "0, or 2s to 1h" },
	{ POOLS "worker_watchdog: 1999ms\n", 2, "worker_watchdog", "0, or 2s to 1h" },
	{ POOLS "worker_watchdog: 2h\n", 2, "worker_watchdog", "0, or 2s to 1h" },
	{ POOLS "limits: {max_connections: 0}\n", 2, "limits.max_connections", "out of bounds" },
	/* units */
	{ POOLS "drain_timeout: 5\n", 2, "drain_timeout", "5 has no unit: write 5ms, 5s, 5m or 5h" },
	{ POOLS "limits: {max_body: 64}\n", 2, "limits.max_body", "64B, 64KiB, 64MiB or 64GiB" },
	{ POOLS "limits: {max_body: 64MB}\n", 2, "limits.max_body", "KiB" },
	{ POOLS "limits: {max_body: 1.5GiB}\n", 2, "limits.max_body", "whole number" },
	{ POOLS "limits: {max_body: 10B}\n", 2, "limits.max_body", "1KiB to 2GiB" },
	{ POOLS "limits: {max_body: 99999999999999GiB}\n", 2, "limits.max_body", "1KiB to 2GiB" },
	{ POOLS "limits: {max_body: 18446744073709551615GiB}\n", 2, "limits.max_body", "out of bounds" },
	{ POOLS "drain_timeout: 2 s\n", 2, "drain_timeout", "not a duration" },
	{ POOLS "drain_timeout: 2S\n", 2, "drain_timeout", "not a duration" },
	{ POOLS "drain_timeout: -2s\n", 2, "drain_timeout", "not a duration" },
	{ POOLS "drain_timeout: s\n", 2, "drain_timeout", "not a duration" },
	{ POOLS "drain_timeout: 25h\n", 2, "drain_timeout", "0 to 24h" },
	{ POOLS "client: {head_timeout: 0}\n", 2, "client.head_timeout", "1ms to 1h" },
	/* words and texts */
	{ POOLS "log_level: trace\n", 2, "log_level", "error, warn, info, debug" },
	{ POOLS "log_format: xml\n", 2, "log_format", "logfmt, json, off" },
	{ POOLS "log_to: syslog\n", 2, "log_to", "stderr, journald" },
	{ POOLS "log_sample: 1.1\n", 2, "log_sample", "a part from 0 to 1" },
	{ POOLS "log_sample: .5\n", 2, "log_sample", "a part from 0 to 1" },
	{ POOLS "log_sample: 0.1234567\n", 2, "log_sample", "a part from 0 to 1" },
	{ POOLS "tracing: {sample: -1}\n", 2, "tracing.sample", "a part from 0 to 1" },
	{ POOLS "tracing: {otlp: \"https://10.0.0.1:4318\"}\n", 2, "tracing.otlp", "https is not spoken" },
	{ POOLS "tracing: {otlp: \"http://collector:4318\"}\n", 2, "tracing.otlp", "not a host name" },
	{ POOLS "tracing: {otlp: \"10.0.0.1:4318\"}\n", 2, "tracing.otlp", "does not start with http://" },
	{ POOLS "tracing: {ring: 1KiB}\n", 2, "tracing.ring", "16" },
	{ "pools: [{connector: pigeon, " EPS "}]\n", 1, "pools[0].connector", "nixl, orchestrated" },
	{ "pools:\n  -\n    connector: nixl\n    policy: fastest\n", 4, "pools[0].policy", "round_robin, least_loaded" },
	{ "pools: [{connector: nixl, engine: trt, " EPS "}]\n", 1, "pools[0].engine", "vllm, sglang" },
	{ "pools: [{connector: nixl, nixl: {remote_host: x}, " EPS "}]\n", 1, "pools[0].nixl.remote_host", "keep, prefill_host" },
	{ "pools: [{connector: orchestrated, orchestrated: {handoff: x}, " EPS "}]\n", 1, "pools[0].orchestrated.handoff", "disagg_prefill_resp" },
	{ "pools:\n- connector: nixl\n  nixl: {handoff: kv_transfer_params}\n  " "prefill: []\n", 3, "pools[0].nixl.handoff", "nixl" },
	{ POOLS "lmcache: {listen: \"7500\"}\n", 2, "lmcache.listen", "tcp://" },
	{ POOLS "lmcache: {listen: \"tcp://*\"}\n", 2, "lmcache.listen", "tcp://" },
	{ POOLS "lmcache: {listen: \"tcp://:7500\"}\n", 2, "lmcache.listen", "tcp://" },
	{ POOLS "lmcache: {listen: \"ipc://\"}\n", 2, "lmcache.listen", "ipc://" },
	{ POOLS "siblings: {routers: [\"tcp://10.0.0.2:9310\"]}\n", 2, "siblings.listen", "is needed" },
	{ POOLS "siblings: {listen: \"tcp://*:9310\"}\n", 2, "siblings.secret_file", "is needed" },
	{ POOLS "siblings: {routers: [\"tcp://router:9310\"]}\n", 2, "siblings.routers[0]", "tcp://10.0.0.2:9310" },
	{ POOLS "siblings: {routers: [\"tcp://*:9310\"]}\n", 2, "siblings.routers[0]", "tcp://10.0.0.2:9310" },
	{ POOLS "siblings: {routers: [\"10.0.0.2:9310\"]}\n", 2, "siblings.routers[0]", "tcp://10.0.0.2:9310" },
	{ POOLS "siblings: {listen: \"tcp://*:9310\", secret_file: /there/is/none}\n", 2, "siblings.secret_file", "No such file" },
	{ "pools: [{connector: nixl, health_path: health, " EPS "}]\n", 1, "pools[0].health_path", "start with /" },
	{ "pools: [{connector: nixl, health_path: \"/a b\", " EPS "}]\n", 1, "pools[0].health_path", "blank" },
	{ "pools: [{connector: nixl, name: \"a b\", " EPS "}]\n", 1, "pools[0].name", "letters" },
	{ "pools: [{connector: nixl, name: \"\", " EPS "}]\n", 1, "pools[0].name", "is empty" },
	{ "pools: [{connector: nixl, models: [\"a b\"], " EPS "}]\n", 1, "pools[0].name", "give the pool a name" },
	/* choice */
	{ "pools: [{connector: nixl, policy: sticky, " EPS "}]\n", 1, "pools[0].policy", "least_loaded, power_of_two, random, session, prefix, cache_aware" },
	{ "pools: [{connector: nixl, prefill_policy: sticky, " EPS "}]\n", 1, "pools[0].prefill_policy", "least_loaded, power_of_two, random, session, prefix, cache_aware" },
	{ "pools: [{connector: nixl, decode_policy: sticky, " EPS "}]\n", 1, "pools[0].decode_policy", "least_loaded, power_of_two, random, session, prefix, cache_aware" },
	{ "pools: [{connector: nixl, policy: \"\", " EPS "}]\n", 1, "pools[0].policy", "is not a policy" },
	{ "pools: [{connector: nixl, policy: [session], " EPS "}]\n", 1, "pools[0].policy", "is a list" },
	{ "pools: [{connector: nixl, prefill_load: queue, " EPS "}]\n", 1, "pools[0].prefill_load", "requests, tokens" },
	{ "pools: [{connector: nixl, decode_load: 1, " EPS "}]\n", 1, "pools[0].decode_load", "not a measure of load: requests, tokens" },
	{ "pools: [{connector: nixl, pairing: never, " EPS "}]\n", 1, "pools[0].pairing", "prefer, require" },
	{ "pools: [{connector: nixl, pairing: true, " EPS "}]\n", 1, "pools[0].pairing", "not a pairing" },
	{ "pools: [{connector: nixl, session_header: \"X Session\", " EPS "}]\n", 1, "pools[0].session_header", "no blanks" },
	{ "pools: [{connector: nixl, session_header: \"X-Session:\", " EPS "}]\n", 1, "pools[0].session_header", "no colon" },
	{ "pools: [{connector: nixl, session_header: X-Request-ID, " EPS "}]\n", 1, "pools[0].session_header", "the router does not pass" },
	{ "pools: [{connector: nixl, session_header: Keep-Alive, " EPS "}]\n", 1, "pools[0].session_header", "the router does not pass" },
	{ "pools: [{connector: nixl, session_header: [a], " EPS "}]\n", 1, "pools[0].session_header", "is a list" },
	{ "pools: [{connector: nixl, session_header: " LONG128 ", " EPS "}]\n", 1, "pools[0].session_header", "at most 127" },
	{ "pools: [{connector: nixl, session_member: " LONG128 ", " EPS "}]\n", 1, "pools[0].session_member", "at most 127" },
	{ "pools: [{connector: nixl, prefix_bytes: 1000, " EPS "}]\n", 1, "pools[0].prefix_bytes", "has no unit" },
	{ "pools: [{connector: nixl, prefix_bytes: 15B, " EPS "}]\n", 1, "pools[0].prefix_bytes", "16B to 64KiB" },
	{ "pools: [{connector: nixl, prefix_bytes: 65KiB, " EPS "}]\n", 1, "pools[0].prefix_bytes", "16B to 64KiB" },
	{ "pools: [{connector: nixl, slow_start: 30, " EPS "}]\n", 1, "pools[0].slow_start", "30 has no unit" },
	{ "pools: [{connector: nixl, slow_start: 2h, " EPS "}]\n", 1, "pools[0].slow_start", "0 to 1h" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", weight: 0}]}]\n", 1, "pools[0].prefill[0].weight", "1 to 100" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", weight: 101}]}]\n", 1, "pools[0].prefill[0].weight", "1 to 100" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", weight: 0.5}]}]\n", 1, "pools[0].prefill[0].weight", "not a whole number" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", weight: heavy}]}]\n", 1, "pools[0].prefill[0].weight", "not a whole number" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", group: \"rack 1\"}]}]\n", 1, "pools[0].prefill[0].group", "letters, digits" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", group: " LONG64 "}]}]\n", 1, "pools[0].prefill[0].group", "1 to 63" },
	{ "pools:\n- connector: nixl\n  decode_policy: session\n  session_header: \"\"\n  " "prefill: [{url: http://p}]\n"
	  "  decode: [{url: http://d}]\n", 4, "pools[0].session_header", "needs a session_header or a session_member" },
	{ "pools:\n- connector: nixl\n  pairing: require\n  prefill: [{url: http://p, group: a}, {url: http://q}]\n"
	  "  decode: [{url: http://d, group: b}]\n", 3, "pools[0].pairing", "no group of pool pool1 has both" },
	/* addresses */
	{ "listen: [\"8000\"]\n" POOLS, 1, "listen[0]", "no port" },
	{ "listen:\n  - a:1\n  - \"a:0\"\n" POOLS, 3, "listen[1]", "1 to 65535" },
	{ "listen: [\"a:65536\"]\n" POOLS, 1, "listen[0]", "1 to 65535" },
	{ "listen: [\"a:\"]\n" POOLS, 1, "listen[0]", "1 to 65535" },
	{ "listen: [\"::1:80\"]\n" POOLS, 1, "listen[0]", "brackets" },
	{ "listen: [\"[::1]\"]\n" POOLS, 1, "listen[0]", "no port" },
	{ "listen: [\"[::g]:80\"]\n" POOLS, 1, "listen[0]", "IPv6" },
	{ "listen: [\"[::1%]:80\"]\n" POOLS, 1, "listen[0]", "zone" },
	{ "listen: [\"[::1]x:80\"]\n" POOLS, 1, "listen[0]", "[IPv6]:port" },
	{ "listen: [\"*:80\"]\n" POOLS, 1, "listen[0]", ":8000" },
	{ "listen: [\"10.0.0.256:80\"]\n" POOLS, 1, "listen[0]", "IPv4" },
	{ "listen: [\"http://a:80\"]\n" POOLS, 1, "listen[0]", "" },
	{ "listen: [\"a:80\", \"A:80\"]\n" POOLS, 1, "listen[1]", "twice" },
	{ "listen: [\"[::1]:80\", \"[0:0::1]:80\"]\n" POOLS, 1, "listen[1]", "twice" },
	{ "pools: [{connector: nixl, prefill: [{url: \"ftp://p\"}]}]\n", 1, "pools[0].prefill[0].url", "https://" },
	{ "pools: [{connector: nixl, prefill: [{url: \"p:80\"}]}]\n", 1, "pools[0].prefill[0].url", "http://" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p:99999\"}]}]\n", 1, "pools[0].prefill[0].url", "port" },
	/* pools and endpoints */
	{ "pools:\n  - {" EPS "}\n", 2, "pools[0].connector", "missing" },
	{ "pools:\n  - connector: nixl\n    prefill: [{url: \"http://p\"}]\n", 2, "pools[0].decode", "no decode endpoint" },
	{ "pools:\n  - connector: nixl\n    decode: [{url: \"http://d\"}]\n    prefill: []\n", 4, "pools[0].prefill",
		"no prefill endpoint" },
	{ "pools: [{connector: nixl, prefill: [http://p]}]\n", 1, "pools[0].prefill[0]", "a mapping of keys" },
	{ "pools: [{connector: nixl, prefill: {url: x}}]\n", 1, "pools[0].prefill", "a list of endpoints" },
	{ "pools: [{connector: nixl, prefill: [{max_inflight: 2}]}]\n", 1, "pools[0].prefill[0].url", "missing" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", max_inflight: -1}]}]\n", 1,
		"pools[0].prefill[0].max_inflight", "number" },
	{ "pools: [{connector: nixl, prefill: [{url: \"http://p\", role: prefill}]}]\n", 1,
		"pools[0].prefill[0].role", "unknown" },
	{ "pools:\n - connector: nixl\n   prefill:\n    - url: http://p\n    - url: http://q\n    - url: http://P:80/\n"
	  "   decode: [{url: http://p}]\n", 6, "pools[0].prefill", "twice, first in line 4" },
	{ "pools:\n - " POOL "\n - {name: pool1, connector: nixl, " EPS "}\n", 3, "pools[1].name", "in line 2" },
	{ "pools:\n - {name: pool2, connector: nixl, " EPS "}\n - " POOL "\n", 3, "pools[1].name", "already" },
	{ "pools:\n - {models: [a, b], connector: nixl, " EPS "}\n - name: x\n   models: [c, b]\n   connector: nixl\n   "
	  "prefill: [{url: http://p}]\n   decode: [{url: http://d}]\n", 4, "pools[1].models", "already a model of pool a" },
	{ "pools: [{models: [a, a], connector: nixl, " EPS "}]\n", 1, "pools[0].models[1]", "twice" },
	{ "pools: [{models: [\"\"], connector: nixl, " EPS "}]\n", 1, "pools[0].models[0]", "1 to 255" },
	{ "shared_memory: {max_pools: 1}\npools:\n - " POOL "\n - {name: x, connector: nixl, " EPS "}\n", 1,
		"shared_memory.max_pools", "2 pools are more than 1" },
	{ "pools:\n - {connector: nixl, prefill: [{url: http://a}, {url: http://b}], decode: [{url: http://c}]}\n"
	  "shared_memory:\n  max_endpoints: 2\n", 4, "shared_memory.max_endpoints", "3 endpoints" },
	{ "pools: [{connector: nixl, prefill_labels: [a], " EPS "}]\n", 1, "pools[0].prefill_labels", "endpoints_file" },
	{ "pools: [{connector: nixl, prefill_labels: [a], decode_labels: [b, a], " EPS "}]\n", 1,
		"pools[0].decode_labels", "also one of prefill_labels" },
	{ "pools: [{connector: nixl, endpoints_file: x.yaml, " EPS "}]\n", 1, "pools[0].endpoints_file", "replaces prefill and decode" },
	{ "pools:\n - connector: nixl\n   endpoints_file: none.yaml\n", 3, "pools[0].endpoints_file",
		"dir/none.yaml cannot be opened: No such file" },
	{ POOLS "dns_servers: [\"10.0.0.2\", ns.example.net]\n", 2, "dns_servers[1]", "such as 10.0.0.2" },
	{ POOLS "dns_servers: [\"fd00::2\"]\n", 2, "dns_servers[0]", "[fd00::2]:5353" },
	{ POOLS "dns_servers: [\"10.0.0.2:0\"]\n", 2, "dns_servers[0]", "such as" },
	{ POOLS "dns_servers: [\"\"]\n", 2, "dns_servers[0]", "such as" },
	{ "pools:\n - connector: nixl\n   decode: [{url: http://c}]\n   dns: [{name: 10.0.0.1, role: prefill}]\n", 4,
		"pools[0].dns[0].name", "is an address" },
	{ "pools:\n - connector: nixl\n   decode: [{url: http://c}]\n   dns: [{name: _http._tcp.p.test, port: 80, role: prefill}]\n", 4,
		"pools[0].dns[0]", "leave out port" },
	{ "announce: {listen: \"tcp://*:1\"}\npools:\n - connector: nixl\n   announce_networks: [10.0.0.0/8]\n   dns: [{name: p.test, scheme: https, role: prefill},\n"
	  "         {name: d.test, role: decode}]\n", 5, "pools[0].dns[0]", "speak plain HTTP" },
	{ "pools:\n - connector: nixl\n   decode: [{url: http://c}]\n   dns: [{name: p.test, scheme: ftp, role: prefill}]\n", 4,
		"pools[0].dns[0].scheme", "not a scheme: http, https" },
	{ "pools:\n - connector: nixl\n   decode: [{url: http://c}]\n   dns: [{name: p.test}]\n", 4, "pools[0].dns[0].role",
		"is missing" },
	{ "pools:\n - connector: nixl\n   decode: [{url: http://c}]\n   dns: [{name: p.test, role: decode}]\n", 2,
		"pools[0].prefill", "has no prefill" },
	{ "pools:\n - connector: nixl\n   decode: [{url: http://c}]\n   dns:\n   - {name: p.test, port: 1, role: prefill}\n"
	  "   - {name: p.test, port: 1, role: decode}\n   - {name: P.test, port: 1, role: prefill}\n", 7, "pools[0].dns[2]",
		"twice, first in line 5" },
	{ "pools: [{connector: nixl, watch: true, " EPS "}]\n", 1, "pools[0].watch", "no endpoints_file" },
	{ "pools: [{connector: nixl, fleet_file: x.yaml, " EPS "}]\n", 1, "pools[0].fleet_file", "replaces prefill and decode" },
	{ "pools: [{connector: nixl, fleet_file: x.yaml, endpoints_file: y.yaml}]\n", 1, "pools[0].fleet_file", "replaces endpoints_file" },
	{ "pools:\n - connector: nixl\n   fleet_file: x.yaml\n", 3, "pools[0].fleet_file", "reads no fleet files" },
	/* what a connector asks for, and what it does not */
	{ POOLS "limits: {max_fanout: 0}\n", 2, "limits.max_fanout", "1 to 128" },
	{ POOLS "limits: {max_fanout: 129}\n", 2, "limits.max_fanout", "1 to 128" },
	{ OF("nixl", "nixl: {transfer_mode: sideways}"), 3, "pools[0].nixl.transfer_mode", "pull, push" },
	{ OF("orchestrated", "orchestrated: {transfer_mode: push}"), 3, "pools[0].orchestrated.transfer_mode", "by the connector orchestrated: it belongs to nixl" },
	{ OF("nixl", "nixl: {kv_lease: 0}"), 3, "pools[0].nixl.kv_lease", "1ms to 1h" },
	{ OF("sglang", "sglang: {kv_lease: 25s}"), 3, "pools[0].sglang.kv_lease", "sglang: it belongs to nixl, orchestrated and mooncake" },
	{ OF("nixl", "nixl: {fanout: 2}"), 3, "pools[0].nixl.fanout", "false, true" },
	{ OF("shared_storage", "shared_storage: {fanout: true}"), 3, "pools[0].shared_storage.fanout", "nixl, orchestrated and mooncake" },
	{ OF("p2p_nccl", "p2p_nccl: {fanout: true}"), 3, "pools[0].p2p_nccl.fanout", "nixl, orchestrated and mooncake" },
	{ OF("nixl", "nixl: {first_token: prefill}"), 3, "pools[0].nixl.first_token", "nixl: it belongs to lmcache" },
	{ OF("lmcache", "lmcache: {first_token: both}"), 3, "pools[0].lmcache.first_token", "prefill, decode" },
	{ OF("lmcache", "lmcache: {first_token: prefiller}"), 3, "pools[0].lmcache.first_token", "prefill, decode" },
	{ OF("nixl", "nixl: {tokenize: decode}"), 3, "pools[0].nixl.tokenize", "lmcache" },
	{ OF("lmcache", "lmcache: {tokenize: decoder}"), 3, "pools[0].lmcache.tokenize", "not a role: prefill, decode" },
	{ OF("nixl", "nixl: {kv_ready_timeout: 1s}"), 3, "pools[0].nixl.kv_ready_timeout", "it belongs to lmcache" },
	{ OF("lmcache", "lmcache: {kv_ready_timeout: 0}"), 3, "pools[0].lmcache.kv_ready_timeout", "1ms to 1h" },
	{ OF("nixl", "nixl: {bootstrap: learned}"), 3, "pools[0].nixl.bootstrap", "it belongs to sglang" },
	{ OF("sglang", "sglang: {bootstrap: guessed}"), 3, "pools[0].sglang.bootstrap", "learned, stream" },
	{ OF("nixl", "nixl: {learn_timeout: 1s}"), 3, "pools[0].nixl.learn_timeout", "it belongs to sglang and mooncake" },
	{ OF("sglang", "sglang: {learn_timeout: 2}"), 3, "pools[0].sglang.learn_timeout", "has no unit" },
	{ OF("nixl", "nixl: {cache_hit_threshold: 0.8}"), 3, "pools[0].nixl.cache_hit_threshold", "it belongs to shared_storage" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 0}"), 3, "pools[0].shared_storage.cache_hit_threshold", "above 0, at most 1" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 0.00}"), 3, "pools[0].shared_storage.cache_hit_threshold", "above 0" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 1.01}"), 3, "pools[0].shared_storage.cache_hit_threshold", "at most 1" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: .5}"), 3, "pools[0].shared_storage.cache_hit_threshold", "such as 0.8" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 5e-1}"), 3, "pools[0].shared_storage.cache_hit_threshold", "such as 0.8" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 1.}"), 3, "pools[0].shared_storage.cache_hit_threshold", "such as 0.8" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 10}"), 3, "pools[0].shared_storage.cache_hit_threshold", "such as 0.8" },
	{ OF("shared_storage", "shared_storage: {cache_hit_threshold: 0.1234567890123456789012}"), 3, "pools[0].shared_storage.cache_hit_threshold", "longer than 23" },
	{ OF("nixl", "routing_threshold: -1"), 3, "pools[0].routing_threshold", "not `auto` or a whole number" },
	{ OF("nixl", "routing_threshold: 4294967295"), 3, "pools[0].routing_threshold", "out of bounds" },
	{ OF("sglang", "routing_threshold: 0"), 3, "pools[0].routing_threshold", "sglang" },
	{ OF("p2p_nccl", "routing_threshold: auto"), 3, "pools[0].routing_threshold", "p2p_nccl" },
	{ OF("p2p_nccl", "allow_route_header: true"), 3, "pools[0].allow_route_header", "p2p_nccl" },
	{ OF("sglang", "allow_route_header: true"), 3, "pools[0].allow_route_header", "sglang" },
	{ OF("nixl", "single_engine_role: both"), 3, "pools[0].single_engine_role", "prefill, decode, auto" },
	{ OF("sglang", "disaggregate_agent_paths: true"), 3, "pools[0].disaggregate_agent_paths", "connector sglang: two engines" },
	{ OF("orchestrated", "orchestrated: {handoff: disagg_prefill_resp}\n   disaggregate_agent_paths: true"), 4, "pools[0].disaggregate_agent_paths", "orchestrated and this handoff" },
	{ OF("nixl", "cached_tokens_from: true"), 3, "pools[0].cached_tokens_from", "prefill, decode" },
	{ OF("nixl", "nixl: {handoff: transfer_id}"), 3, "pools[0].nixl.handoff", "orchestrated and mooncake" },
	{ OF("orchestrated", "orchestrated: {handoff: transfer_id}"), 3, "pools[0].orchestrated.handoff", "transfer_id belongs to the connector mooncake, not to orchestrated" },
	{ OF("mooncake", "mooncake: {handoff: disagg_prefill_resp}"), 3, "pools[0].mooncake.handoff", "belongs to the connector orchestrated, not to mooncake" },
	{ OF("sglang", "sglang: {remote_host: keep}"), 3, "pools[0].sglang.remote_host", "it belongs to nixl" },
	{ OF("sglang", "engine: vllm"), 3, "pools[0].engine", "needs engines of SGLang" },
	/* what it asks of engines */
	{ OF("lmcache", "lmcache: {tokenize: prefill}"), 5, "pools[0].decode[0].receiver_init_port", "needs the ports" },
	{ PAIR("lmcache", "", "receiver_init_port: 7300"), 4, "pools[0].decode[0].receiver_alloc_port", "needs the ports" },
	{ PAIR("lmcache", "", "receiver_init_port: [1, 2], receiver_alloc_port: 3"), 4, "pools[0].decode[0].receiver_alloc_port",
		"1 ports, but receiver_init_port has 2" },
	{ PAIR("lmcache", "receiver_init_port: 7300", PORTS), 3, "pools[0].prefill[0].receiver_init_port", "belongs to decode" },
	{ PAIR("lmcache", "receiver_host: h", PORTS), 3, "pools[0].prefill[0].receiver_host", "belongs to decode" },
	{ PAIR("nixl", "", PORTS), 4, "pools[0].decode[0].receiver_init_port", "nixl: it belongs to lmcache" },
	{ PAIR("nixl", "", "receiver_alloc_port: 1"), 4, "pools[0].decode[0].receiver_alloc_port", "it belongs to lmcache" },
	{ PAIR("nixl", "", "receiver_host: h"), 4, "pools[0].decode[0].receiver_host", "it belongs to lmcache" },
	{ OF("nixl", "nixl: {ready_messages: 0}"), 3, "pools[0].nixl.ready_messages", "it belongs to lmcache" },
	/* a map of another connector than the pool's, and a key outside of its map */
	{ OF("nixl", "lmcache: {ready_messages: 0}"), 3, "pools[0].lmcache.ready_messages",
		"a key of the connector lmcache, but the connector of this pool is nixl" },
	{ OF("nixl", "mooncake: {kv_lease: 1s}"), 3, "pools[0].mooncake.kv_lease", "connector of this pool is nixl" },
	{ OF("nixl", "nixl: {kv_lease: 1s}\n   p2p_nccl: {}"), 4, "pools[0].p2p_nccl", "connector of this pool is nixl" },
	{ OF("nixl", "kv_lease: 1s"), 3, "pools[0].kv_lease", "the map of a connector" },
	{ OF("nixl", "nixl: {kv_lase: 1s}"), 3, "pools[0].nixl.kv_lase", "did you mean kv_lease?" },
	{ OF("nixl", "nixl: {kv_lease: 1s, kv_lease: 2s}"), 3, "pools[0].nixl.kv_lease", "given twice" },
	{ OF("nixl", "nixl: [kv_lease]"), 3, "pools[0].nixl", "a mapping of keys" },
	{ OF("p2p_nccl", "p2p_nccl: {fanout: true}"), 3, "pools[0].p2p_nccl.fanout", "it belongs to nixl" },
	{ PAIR("lmcache", "", "receiver_init_port: [7300, 7300]"), 4, "pools[0].decode[0].receiver_init_port[1]", "7300 is in the list twice" },
	{ "admin: {listen: [\"0.0.0.0:8000\"]}\n" POOLS, 1, "listen", "0.0.0.0:8000 is there twice" },
	{ "client: {proxy_protocol: true}\n" POOLS, 1, "client.proxy_protocol", "no effect without client.proxy_networks" },
	{ "cors: {origins: [\"*\"], credentials: true}\n" POOLS, 1, "cors.credentials", "needs origins by name" },
	{ "cors: {origins: [\"https://a/\"]}\n" POOLS, 1, "cors.origins[0]", "https://a/ is not an origin" },
	{ "cors: {origins: [\"https://A.test\"]}\n" POOLS, 1, "cors.origins[0]", "lower case" },
	{ "cors: {origins: [\"https://a:443\"]}\n" POOLS, 1, "cors.origins[0]", "own port" },
	{ "cors: {origins: [\"https://a:b\"]}\n" POOLS, 1, "cors.origins[0]", "the port is not a number" },
	{ "cors: {origins: [\"https://\"]}\n" POOLS, 1, "cors.origins[0]", "no host" },
	{ "cors: {origins: [\"https://[::1\"]}\n" POOLS, 1, "cors.origins[0]", "write [IPv6]" },
	{ "cors: {origins: [\"a.test\"]}\n" POOLS, 1, "cors.origins[0]", "a.test is not an origin" },
	{ "cors: {headers: [\"X A\"]}\n" POOLS, 1, "cors.headers[0]", "X A is not the name of a header" },
	{ "control_socket_mode: 0680\n" POOLS, 1, "control_socket_mode", "0680 is not a mode in octal" },
	{ "control_socket_mode: 1666\n" POOLS, 1, "control_socket_mode", "1666 is not a mode in octal" },
	{ "listen: [\"a:1\"]\nadmin: {listen: [\"A:1\"]}\n" POOLS, 2, "admin.listen[0]", "A:1 is there twice" },
	{ "admin: {listen: [\"unix:/a\", \"unix:/A\", \"unix:/a\"]}\n" POOLS, 1, "admin.listen[2]", "unix:/a is there twice" },
	{ "admin: {listen: [\"unix:a\"]}\n" POOLS, 1, "admin.listen[0]", "begins with a slash" },
	{ "admin: {listen: [\"unix:/" LONG128 "\"]}\n" POOLS, 1, "admin.listen[0]", "107 bytes at most" },
	{ "listen: [\"unix:/a\"]\n" POOLS, 1, "listen[0]", "a unix socket is for admin.listen alone" },
	{ "admin: {listen: [\"unix:/a\"]}\ncontrol_socket: /a\n" POOLS, 1, "admin.listen", "has the path of the control_socket" },
	{ PAIR("lmcache", "", "receiver_init_port: 0"), 4, "pools[0].decode[0].receiver_init_port", "1 to 65535" },
	{ PAIR("lmcache", "", "receiver_init_port: [65536]"), 4, "pools[0].decode[0].receiver_init_port[0]", "1 to 65535" },
	{ PAIR("lmcache", "", "receiver_init_port: '7300'"), 4, "pools[0].decode[0].receiver_init_port", "because of its quotes" },
	{ PAIR("lmcache", "", "receiver_init_port: {a: 1}"), 4, "pools[0].decode[0].receiver_init_port", "is a mapping" },
	{ PAIR("lmcache", "", "receiver_init_port: [" P8 P8 P8 P8 P8 P8 P8 P8 "9]"), 4, "pools[0].decode[0].receiver_init_port",
		"65 entries, at most 64" },
	{ PAIR("lmcache", "", "receiver_host: 'h:7300'"), 4, "pools[0].decode[0].receiver_host", "not an IPv6 address" },
	{ PAIR("lmcache", "", "receiver_host: 'a\"b'"), 4, "pools[0].decode[0].receiver_host", "not a host name" },
	{ OF("lmcache", "lmcache: {ready_messages: 256}"), 3, "pools[0].lmcache.ready_messages", "0 to 255" },
	{ OF("lmcache", "lmcache: {ready_messages: -1}"), 3, "pools[0].lmcache.ready_messages", "`auto` or a whole number" },
	{ PAIR("lmcache", "", PORTS) "lmcache: {listen: \"\"}\n", 5, "lmcache.listen", "none can arrive" },
	{ PAIR("lmcache", "", PORTS) "   dns: [{name: d.test, port: 1, role: decode}]\n", 5, "pools[0].dns[0].receiver_init_port",
		"needs the ports" },
	{ "lmcache: {listen: \"\"}\n" PAIR("lmcache", "", PORTS) "   dns: [{name: d.test, port: 1, role: decode, " PORTS "}]\n",
		1, "lmcache.listen", "none can arrive" },
	{ "announce: {listen: tcp://*:1}\n" PAIR("lmcache", "", PORTS) "   announce_networks: [10.0.0.0/8]\n", 6,
		"pools[0].announce_networks", "do not contain the ports of LMCache" },
	{ PAIR("p2p_nccl", "", "kv_addr: ':22001'"), 3, "pools[0].prefill[0].kv_addr", "needs the address" },
	{ PAIR("p2p_nccl", "kv_addr: ':21001'", ""), 4, "pools[0].decode[0].kv_addr", "needs the address" },
	{ PAIR("p2p_nccl", "kv_addr: '21001'", ""), 3, "pools[0].prefill[0].kv_addr", "no port" },
	{ PAIR("p2p_nccl", "kv_addr: ':0'", ""), 3, "pools[0].prefill[0].kv_addr", "1 to 65535" },
	{ PAIR("nixl", "kv_addr: ':1'", ""), 3, "pools[0].prefill[0].kv_addr", "it belongs to p2p_nccl" },
	{ PAIR("p2p_nccl", "kv_addr: ':1'", "kv_addr: ':2'") "   dns: [{name: d.test, port: 1, role: decode, kv_addr: 'h:3'}]\n", 5,
		"pools[0].dns[0].kv_addr", "the port alone" },
	{ PAIR("nixl", "bootstrap_host: 'a b'", ""), 3, "pools[0].prefill[0].bootstrap_host", "not a host name" },
	{ PAIR("nixl", "kv_events: 'tcp://e:5557'", ""), 3, "pools[0].prefill[0].kv_events", "is not an address" },
	{ PAIR("nixl", "kv_events: '*:5557'", ""), 3, "pools[0].prefill[0].kv_events", "is not an address" },
	{ PAIR("nixl", "", "kv_events: 'tcp://*:0'"), 4, "pools[0].decode[0].kv_events", "is not an address" },
	{ PAIR("nixl", "", "") "   kv_events_replay: 'tcp://fd00::1:5'\n", 5, "pools[0].kv_events_replay", "is not an address" },
	{ PAIR("nixl", "dp_ranks: 1025", ""), 3, "pools[0].prefill[0].dp_ranks", "0 to 1024" },
};
/* clang-format on */

Test(conf, wrong_files_say_where_and_what)
{
	struct conf *const untouched = (struct conf *)(void *)&dir, *c = untouched;

	cr_assert_geq(NELEMS(bads), 60);
	for (size_t i = 0; i < NELEMS(bads); i++) {
		const struct bad *b = &bads[i];
		struct conf_error err = {.line = -1};

		cr_expect_eq(conf_parse("dir/t.yaml", b->text, strlen(b->text), &c, &err), -1, "%s",
			b->text);
		cr_expect_eq(c, untouched);
		cr_expect_str_eq(err.file, "dir/t.yaml");
		cr_expect(err.line == b->line && strcmp(err.key, b->key) == 0 &&
				  strstr(err.what, b->word) != NULL,
			"%s-> line %d key %s: %s (expected %d, %s: ..%s..)", b->text, err.line,
			err.key, err.what, b->line, b->key, b->word);
		c = untouched;
	}
}

static struct conf_pool *
only_pool(struct conf *c)
{
	cr_assert_eq(c->npools, 1);
	return &c->pools[0];
}

Test(conf, defaults_of_every_connector)
{
	static const struct {
		const char *text;
		enum connector_kind connector;
		enum handoff_kind handoff;
		enum remote_host_kind remote_host;
		enum engine_kind engine;
		const char *health_path;
	} t[] = {
		{PAIR("nixl", "", ""), CONNECTOR_NIXL, HANDOFF_KV_TRANSFER_PARAMS, REMOTE_HOST_KEEP,
			ENGINE_VLLM, "/health"},
		{PAIR("orchestrated", "", ""), CONNECTOR_ORCHESTRATED, HANDOFF_KV_TRANSFER_PARAMS,
			REMOTE_HOST_PREFILL, ENGINE_VLLM, "/health"},
		{PAIR("lmcache", "", PORTS), CONNECTOR_LMCACHE, HANDOFF_KV_TRANSFER_PARAMS,
			REMOTE_HOST_KEEP, ENGINE_VLLM, "/health"},
		{PAIR("sglang", "", ""), CONNECTOR_SGLANG, HANDOFF_KV_TRANSFER_PARAMS,
			REMOTE_HOST_KEEP, ENGINE_SGLANG, "/ready"},
		{PAIR("shared_storage", "", ""), CONNECTOR_SHARED_STORAGE,
			HANDOFF_KV_TRANSFER_PARAMS, REMOTE_HOST_KEEP, ENGINE_VLLM, "/health"},
		{PAIR("p2p_nccl", "kv_addr: ':1'", "kv_addr: 'h:2'"), CONNECTOR_P2P_NCCL,
			HANDOFF_KV_TRANSFER_PARAMS, REMOTE_HOST_KEEP, ENGINE_VLLM, "/health"},
		{PAIR("mooncake", "", ""), CONNECTOR_MOONCAKE, HANDOFF_TRANSFER_ID,
			REMOTE_HOST_KEEP, ENGINE_VLLM, "/health"},
	};

	cr_assert_eq(NELEMS(t), CONNECTOR_N);
	for (size_t i = 0; i < NELEMS(t); i++) {
		struct conf *c = parse(t[i].text);
		const struct conf_pool *p = only_pool(c);
		const struct conf_handshake *s = &p->shake;

		cr_expect_eq(p->connector, t[i].connector);
		cr_expect_eq(s->handoff, t[i].handoff);
		cr_expect_eq(s->remote_host, t[i].remote_host);
		cr_expect_eq(p->engine, t[i].engine);
		cr_expect_str_eq(p->health_path, t[i].health_path);
		cr_expect_eq(s->transfer_mode, TRANSFER_PULL);
		cr_expect_eq(s->bootstrap, BOOTSTRAP_LEARNED);
		cr_expect_eq(s->first_token, ROLE_PREFILL);
		cr_expect_eq(s->tokenize, ROLE_PREFILL);
		cr_expect_eq(s->single_engine_role, SINGLE_ROLE_AUTO);
		cr_expect(s->cached_tokens_from == ROLE_DECODE && !s->fanout &&
			  !s->allow_route_header && !s->disaggregate_agent_paths);
		cr_expect_eq(s->routing_threshold, 0);
		cr_expect_eq(s->kv_lease_ms, 25000);
		cr_expect_eq(s->learn_ms, 2000);
		cr_expect_str_empty(s->cache_hit_threshold);
		cr_expect_eq(p->timeouts.kv_ready_ms, 10000);
		cr_expect_eq(c->live.max_fanout, 8);
		cr_expect_eq(s->ready_messages, READY_BY_PORTS);
		cr_expect_eq(p->endpoints[0].receiver_init_port.n, 0);
		cr_expect_eq(p->endpoints[0].dp_ranks, 0);
		conf_free(&c);
	}
}

Test(conf, every_key_of_a_hand_shake)
{
	struct conf *c = parse(
		"limits: {max_fanout: 128}\nlmcache: {listen: tcp://127.0.0.1:7501}\npools:\n"
		"- {name: a, connector: nixl, nixl: {transfer_mode: push, kv_lease: 7s, fanout: true}, cached_tokens_from: prefill,\n"
		"   routing_threshold: 4096, allow_route_header: true, single_engine_role: decode, disaggregate_agent_paths: true,\n"
		"   prefill: [{url: http://p, dp_ranks: 1024}], decode: [{url: http://d}]}\n"
		"- {name: b, connector: lmcache, routing_threshold: auto,\n"
		"   lmcache: {first_token: decoder, tokenize: decode, kv_ready_timeout: 3s, ready_messages: 255}, prefill: [{url: http://p}],\n"
		"   decode: [{url: http://d, receiver_host: \"fd00::1\", receiver_init_port: [7300, 7301],\n"
		"             receiver_alloc_port: [7400, 7401]},\n"
		"            {url: http://e, " PORTS ", receiver_host: \"[fd00::2]\"},\n"
		"            {url: http://f, " PORTS ", receiver_host: dec-0.svc}]}\n"
		"- {name: c, connector: sglang, sglang: {bootstrap: stream, learn_timeout: 250ms},\n"
		"   prefill: [{url: http://p, bootstrap_host: \"::1\", bootstrap_port: 8998}], decode: [{url: http://d}]}\n"
		"- {name: d, connector: shared_storage, shared_storage: {cache_hit_threshold: 0.80}, " EPS
		"}\n"
		"- {name: e, connector: p2p_nccl, prefill: [{url: http://p, kv_addr: \"10.0.0.1:21001\"}],\n"
		"   decode: [{url: http://d, kv_addr: \"[::1]:2\"}]}\n"
		"- {name: f, connector: mooncake, mooncake: {handoff: kv_transfer_params, learn_timeout: 1s}, " EPS
		"}\n"
		"- {name: g, connector: shared_storage, shared_storage: {cache_hit_threshold: \"1.0\"}, " EPS
		"}\n");
	const struct conf_pool *p = c->pools;

	cr_expect_eq(c->live.max_fanout, 128);
	cr_expect_str_eq(c->lmcache_listen, "tcp://127.0.0.1:7501", "as configured");
	cr_expect_eq(p[0].shake.transfer_mode, TRANSFER_PUSH);
	cr_expect_eq(p[0].shake.kv_lease_ms, 7000);
	cr_expect(p[0].shake.fanout && p[0].shake.cached_tokens_from == ROLE_PREFILL &&
		  p[0].shake.allow_route_header && p[0].shake.disaggregate_agent_paths);
	cr_expect_eq(p[0].shake.routing_threshold, 4096);
	cr_expect_eq(p[0].shake.single_engine_role, SINGLE_ROLE_DECODE);
	cr_expect_eq(p[0].endpoints[0].dp_ranks, 1024);
	cr_expect_eq(p[1].shake.first_token, ROLE_DECODE);
	cr_expect_eq(p[1].shake.tokenize, ROLE_DECODE);
	cr_expect_eq(p[1].shake.routing_threshold, THRESHOLD_AUTO);
	cr_expect_eq(p[1].timeouts.kv_ready_ms, 3000);
	cr_expect_str_eq(
		p[1].endpoints[1].receiver_host, "[fd00::1]", "as it stands before a port");
	cr_expect_eq(p[1].endpoints[1].receiver_init_port.n, 2);
	cr_expect_eq(p[1].endpoints[1].receiver_init_port.port[1], 7301);
	cr_expect_eq(p[1].endpoints[1].receiver_alloc_port.port[0], 7400);
	cr_expect_eq(p[1].shake.ready_messages, 255);
	cr_expect_str_eq(p[1].endpoints[2].receiver_host, "[fd00::2]");
	cr_expect_eq(p[1].endpoints[2].receiver_init_port.n, 1);
	cr_expect_eq(p[1].endpoints[2].receiver_init_port.port[0], 7300);
	cr_expect_str_eq(p[1].endpoints[3].receiver_host, "dec-0.svc");
	cr_expect_eq(p[2].shake.bootstrap, BOOTSTRAP_STREAM);
	cr_expect_eq(p[2].shake.learn_ms, 250);
	cr_expect_str_eq(p[2].endpoints[0].bootstrap_host, "[::1]");
	cr_expect_eq(p[2].endpoints[0].bootstrap_port, 8998);
	cr_expect_str_eq(p[3].shake.cache_hit_threshold, "0.80", "as it was written");
	cr_expect_str_eq(p[4].endpoints[0].kv_addr, "10.0.0.1:21001");
	cr_expect_str_eq(p[4].endpoints[1].kv_addr, "[::1]:2");
	cr_expect_eq(p[5].shake.handoff, HANDOFF_KV_TRANSFER_PARAMS);
	cr_expect_eq(p[5].shake.learn_ms, 1000);
	cr_expect_str_eq(p[6].shake.cache_hit_threshold, "1.0");
	conf_free(&c);
}

Test(conf, a_pool_that_waits_for_ready_messages_has_a_listener)
{
	static const struct {
		const char *text, *listen;
	} t[] = {
		{PAIR("lmcache", "", PORTS), "tcp://*:7500"},
		{PAIR("lmcache", "", PORTS) "   lmcache: {ready_messages: 0}\n", NULL},
		{PAIR("lmcache", "", PORTS) "   lmcache: {ready_messages: 1}\n", "tcp://*:7500"},
		{PAIR("nixl", "", ""), NULL},
		{PAIR("lmcache", "", PORTS) "lmcache: {listen: ipc:///x}\n", "ipc:///x"},
		{PAIR("lmcache", "", PORTS) "   lmcache: {ready_messages: 0}\n"
					    "lmcache: {listen: \"\"}\n",
			NULL},
	};

	for (size_t i = 0; i < NELEMS(t); i++) {
		struct conf *c = parse(t[i].text);

		cr_expect(mem_text_equal(c->lmcache_listen, t[i].listen), "%zu: %s", i,
			c->lmcache_listen);
		cr_expect_eq(c->notifier_key != NULL, t[i].listen != NULL, "%zu", i);
		conf_free(&c);
	}
}

/* The notifier needs descriptors for each rank that publishes: more ranks, another notifier. */
Test(conf, ranks_that_publish_kv_events_are_counted)
{
	static const struct {
		const char *more;
		uint32_t ranks;
	} t[] = {
		{"", 0},
		{"   kv_events: tcp://*:5557\n", 1},
		{"   kv_events: tcp://*:5557\n   dns: [{role: decode, name: a.b, port: 1, dp_ranks: 8}]\n",
			8},
		{"   dns: [{role: decode, name: a.b, port: 1, dp_ranks: 8}]\n", 0},
		{"   dns: [{role: decode, name: a.b, port: 1, dp_ranks: 4, kv_events: tcp://*:1}]\n",
			4},
	};

	for (size_t i = 0; i < NELEMS(t); i++) {
		char text[1024];
		struct conf *c;

		(void)snprintf(text, sizeof(text), "%s%s", PAIR("nixl", "", ""), t[i].more);
		c = parse(text);
		cr_expect_eq(c->kv_event_ranks, t[i].ranks, "%zu: %u", i, c->kv_event_ranks);
		cr_expect_eq(c->notifier_key != NULL, t[i].ranks > 0, "%zu", i);
		conf_free(&c);
	}
}

/* An announced engine says its address itself. */
Test(conf, p2p_nccl_engines_that_announce_themselves)
{
	struct conf *c = parse("announce: {listen: tcp://*:30001}\n" PAIR(
		"p2p_nccl", "", "kv_addr: 'h:1'") "   announce_networks: [10.0.0.0/8]\n");

	cr_expect_null(only_pool(c)->endpoints[0].kv_addr);
	cr_expect_str_eq(only_pool(c)->endpoints[1].kv_addr, "h:1");
	conf_free(&c);
	c = parse(
		PAIR("p2p_nccl", "kv_addr: ':1'", "kv_addr: ':2'") "   dns: [{name: d.test, port: "
								   "1, role: decode, kv_addr: "
								   "':3'}]\n");
	cr_expect_str_eq(only_pool(c)->dns[0].as.kv_addr, ":3");
	conf_free(&c);
}

Test(conf, policies_by_role)
{
	struct conf *c = parse(
		"pools:\n- connector: nixl\n  policy: prefix\n  decode_policy: power_of_two\n"
		"  prefill_load: requests\n  decode_load: tokens\n  pairing: require\n"
		"  session_header: \"\"\n  session_member: user\n  prefix_bytes: 64KiB\n"
		"  slow_start: 1m\n"
		"  prefill: [{url: http://a, group: r1}, {url: http://b, weight: 100, group: r2}]\n"
		"  decode: [{url: http://c, group: r2}]\n");
	const struct conf_pool *p = &c->pools[0];

	cr_expect_eq(p->policies[ROLE_PREFILL], POLICY_PREFIX, "the default is `policy`");
	cr_expect_eq(p->policies[ROLE_DECODE], POLICY_POWER_OF_TWO);
	cr_expect_eq(p->loads[ROLE_PREFILL], LOAD_REQUESTS);
	cr_expect_eq(p->loads[ROLE_DECODE], LOAD_TOKENS);
	cr_expect_eq(p->pairing, PAIRING_REQUIRE);
	cr_expect_null(p->session_header);
	cr_expect_str_eq(p->session_member, "user");
	cr_expect_eq(p->prefix_bytes, 65536);
	cr_expect_eq(p->slow_start_ms, 60000);
	cr_assert_eq(p->ngroups, 2);
	cr_expect_str_eq(p->groups[0], "r1");
	cr_expect_str_eq(p->groups[1], "r2");
	cr_expect_eq(p->endpoints[1].weight, 100);
	conf_free(&c);
}

Test(conf, more_groups_than_a_word_has_bits)
{
	for (int n = CONF_GROUPS_MAX; n <= CONF_GROUPS_MAX + 1; n++) {
		char text[8192] =
			"pools:\n- connector: nixl\n  decode: [{url: http://d}]\n  prefill:\n";
		struct conf_error err;
		struct conf *c = NULL;

		for (int i = 0; i < n; i++)
			(void)snprintf(text + strlen(text), sizeof(text) - strlen(text),
				"  - {url: \"http://p%d\", group: g%d}\n", i, i);
		cr_assert_eq(conf_parse("t", text, strlen(text), &c, &err),
			n > CONF_GROUPS_MAX ? -1 : 0);
		if (c == NULL) {
			cr_expect_eq(err.line, 4 + n, "%d", err.line);
			cr_expect_not_null(strstr(err.what, "more than 63 groups"));
		}
		conf_free(&c);
	}
}

Test(conf, error_text)
{
	struct conf_error e = {"f.yaml", 3, "rise", "is wrong"};
	char buf[64];

	cr_expect_str_eq(conf_error_text(&e, buf, sizeof(buf)), "f.yaml:3: rise: is wrong");
	e.line = 0;
	cr_expect_str_eq(conf_error_text(&e, buf, sizeof(buf)), "f.yaml: rise: is wrong");
	e.key[0] = '\0';
	cr_expect_str_eq(conf_error_text(&e, buf, sizeof(buf)), "f.yaml: is wrong");
	e.file[0] = '\0';
	cr_expect_str_eq(conf_error_text(&e, buf, sizeof(buf)), "is wrong");
	cr_expect_str_eq(conf_error_text(&e, buf, 4), "is ");
}

/* Text from a file never reaches a terminal as a command. */
Test(conf, error_holds_no_control_bytes)
{
	static const char text[] = POOLS "\"\\e[31m\": 1\n";
	struct conf_error err;
	struct conf *c;

	cr_assert_eq(conf_parse("t", text, strlen(text), &c, &err), -1);
	cr_expect_str_eq(err.key, "?[31m");
}

/* Adding n times the same piece between a head and a tail. */
static int
parse_repeated(
	const char *head, const char *piece, size_t n, const char *tail, struct conf_error *err)
{
	size_t h = strlen(head), k = strlen(piece), t = strlen(tail);
	char *text = mem_array(h + n * k + t, 1);
	struct conf *c = NULL;
	int rc;

	memcpy(text, head, h);
	for (size_t i = 0; i < n; i++)
		memcpy(text + h + i * k, piece, k);
	memcpy(text + h + n * k, tail, t);
	rc = conf_parse("t", text, h + n * k + t, &c, err);
	conf_free(&c);
	free(text);
	return rc;
}

Test(conf, hostile_files_end_soon, .timeout = 60)
{
	struct conf_error err;
	char nul[] = POOLS "rise: 2\n#\0\n";

	cr_expect_eq(parse_repeated("a: ", "[", 1000000, "", &err), -1);
	cr_expect_not_null(strstr(err.what, "16 deep"));
	cr_expect_eq(parse_repeated("", "- ", 1000000, "", &err), -1);
	cr_expect_not_null(strstr(err.what, "16 deep"));
	cr_expect_eq(parse_repeated("", "? ", 1000000, "", &err), -1);
	cr_expect_eq(parse_repeated("a: [", "&a x,", 1000000, "]", &err), -1);
	cr_expect_not_null(strstr(err.what, "anchor"));
	cr_expect_eq(parse_repeated("pools: [", "1,", 3000000, "]", &err), -1);
	cr_expect_not_null(strstr(err.what, "values"));
	cr_expect_eq(parse_repeated("a: \"", "x", 8000000, "\"\n", &err), -1);
	cr_expect_str_eq(err.what, "unknown key");
	cr_expect_eq(parse_repeated("\"", "x", 8000000, "\": 1\n", &err), -1);
	cr_expect_eq(parse_repeated(POOLS, "#\n", 4500000, "", &err), -1);
	cr_expect_not_null(strstr(err.what, "8 MiB"));
	cr_expect_eq(parse_repeated(POOLS "\n", "#\n", 4000000, "rise: x\n", &err), -1);
	cr_expect_eq(err.line, 4000003);
	cr_expect_eq(parse_repeated("listen: [", "\"a:1\",", 17, "]\n", &err), -1);
	cr_expect_not_null(strstr(err.what, "17 entries, at most 16"));
	cr_expect_eq(conf_parse("t", nul, sizeof(nul) - 1, &(struct conf *){NULL}, &err), -1);
	cr_expect_not_null(strstr(err.what, "0x00"));
	cr_expect_eq(err.line, 3);
}

TestSuite(conf_file, .init = folder, .fini = no_folder);

Test(conf_file, read_from_disk)
{
	struct conf_error err;
	struct conf *c = NULL;

	write_file("main.yaml",
		"\xef\xbb\xbf" POOLS); /* a byte order mark, as Windows editors leave it */
	cr_assert_eq(conf_load("main.yaml", &c, &err), 0);
	conf_free(&c);
	cr_expect_eq(conf_load("none", &c, &err), -1);
	cr_expect_str_eq(err.file, "none");
	cr_expect_eq(err.line, 0);
	cr_expect_not_null(strstr(err.what, "No such file"));
	cr_expect_eq(conf_load(".", &c, &err), -1);
	cr_expect_not_null(strstr(err.what, "not a regular file"));
	cr_assert_eq(mkfifo("fifo", 0600), 0);
	cr_expect_eq(conf_load("fifo", &c, &err), -1, "and not hang");
	cr_expect_not_null(strstr(err.what, "not a regular file"));
	write_file("big", "");
	cr_assert_eq(truncate("big", 10 << 20), 0);
	cr_expect_eq(conf_load("big", &c, &err), -1);
	cr_expect_not_null(strstr(err.what, "8 MiB"));
}

#define FILE_POOL                                                                                  \
	"pools:\n - name: x\n   connector: nixl\n   endpoints_file: eps.yaml\n"                    \
	"   prefill_labels: [a, p]\n   decode_labels: [d]\n"

Test(conf_file, endpoints_file)
{
	char path[64];
	struct conf_error err;
	struct conf *c = NULL;
	const struct conf_pool *p;

	(void)snprintf(path, sizeof(path), "%s/main.yaml", dir);
	cr_assert_eq(
		chdir("/"), 0); /* the name is relative to the configuration, not to the process */
	cr_assert_eq(chdir(dir), 0);
	write_file("main.yaml", FILE_POOL);
	write_file("eps.yaml",
		"- {url: http://a, role: prefill}\n- {url: http://b, label: p, max_inflight: 3}\n\n"
		"- url: http://a\n  label: d\n");
	cr_assert_eq(chdir("/"), 0);
	cr_assert_eq(conf_load(path, &c, &err), 0, "%s", err.what);
	p = &c->pools[0];
	cr_assert_eq(p->nendpoints, 3);
	cr_expect_eq(p->endpoints[0].role, ROLE_PREFILL);
	cr_expect_null(p->endpoints[0].label);
	cr_expect_eq(p->endpoints[1].role, ROLE_PREFILL);
	cr_expect_str_eq(p->endpoints[1].label, "p");
	cr_expect_eq(p->endpoints[1].max_inflight, 3);
	cr_expect_eq(p->endpoints[2].role, ROLE_DECODE);
	cr_expect_eq(p->endpoints[2].line, 4);
	conf_free(&c);
	cr_assert_eq(chdir(dir), 0);
	write_file("eps.yaml", "# none yet\n");
	cr_assert_eq(conf_load(path, &c, &err), 0, "%s", err.what);
	cr_expect_eq(c->pools[0].nendpoints, 0);
	conf_free(&c);
}

/* What a change of a watched file brings in force. */
Test(conf_file, again_with_the_watched_files)
{
	struct conf_args args = {.file = "main.yaml", .port = "7777"};
	struct conf *was = NULL, *now = NULL;
	struct conf_error err;

	write_file("main.yaml",
		"workers: auto\npools:\n"
		" - {name: a, connector: nixl, endpoints_file: eps.yaml, watch: true, engine_api_key_file: key}\n"
		" - {name: b, connector: nixl, endpoints_file: big}\n");
	write_file("eps.yaml", "- {url: http://a, role: prefill}\n");
	write_file("big", "- {url: http://b, role: prefill}\n");
	write_file("key", "k0");
	cr_assert_eq(conf_from_args(&args, &was, &err), 0, "%s", err.what);
	was->workers = 3;
	was->live.max_connections = 77;
	write_file("main.yaml", "nonsense");
	write_file("eps.yaml", "- {url: http://c, role: decode}\n");
	write_file("big", "nonsense");
	write_file("key", "");
	for (int i = 0; i < 2; i++) { /* what was read again can be read again */
		cr_assert_eq(conf_again(&args, was, &now, &err), 0, "%s", err.what);
		cr_expect_str_eq(now->pools[0].endpoints[0].url, "http://c");
		cr_expect_str_eq(now->pools[1].endpoints[0].url, "http://b");
		cr_expect_str_eq(now->pools[0].api_key, "k0");
		cr_expect_eq(now->workers, 3);
		cr_expect_eq(now->live.max_connections, 77);
		cr_expect_eq(now->listen[0].port, 7777);
		cr_expect_eq(conf_diff(was, now, NULL, NULL, &err), i == 0 ? CONF_LIVE : 0);
		conf_free(&was);
		was = now;
	}
	write_file("eps.yaml", "\n# being written\n");
	cr_expect_eq(conf_again(&args, was, &now, &err), -1);
	cr_expect_not_null(strstr(err.what, "empty"));
	cr_expect_str_eq(err.file, "./eps.yaml" + 2);
	write_file("eps.yaml", "[]\n");
	cr_assert_eq(conf_again(&args, was, &now, &err), 0, "%s", err.what);
	cr_expect_eq(now->pools[0].nendpoints, 0);
	conf_free(&now);
	conf_free(&was);
}

/* What stands in fleet.yaml, as a reader of fleet files gives it. */
static int
fake_fleet(const char *path, struct conf_fleet *ret, struct conf_error *err)
{
	char *at = NULL;
	struct conf_read r = {.file = path, .err = err};

	if (conf_yaml_read(&r, path, 0, &ret->text, &ret->n) != 0)
		return -1;
	at = memchr(ret->text, '#', ret->n); /* its comment is the connector */
	ret->connector = at != NULL ? mem_strndup(at + 1, 4) : NULL;
	return 0;
}

#define FLEET_POOL "pools:\n - {name: a, connector: nixl, fleet_file: fleet.yaml"

Test(conf_file, fleet_file)
{
	struct conf_args args = {.file = "main.yaml", .fleet_reader = fake_fleet};
	struct conf *was = NULL, *now = NULL;
	struct conf_error err;

	write_file("main.yaml", FLEET_POOL ", watch: true}\n");
	write_file("fleet.yaml", "#nixl\n[{role: prefill, url: http://a}]\n");
	cr_assert_eq(conf_from_args(&args, &was, &err), 0, "%s", err.what);
	cr_expect_str_eq(was->pools[0].endpoints[0].url, "http://a");
	write_file("fleet.yaml", "#nixl\n[{role: prefill, url: http://b}]\n");
	cr_assert_eq(conf_again(&args, was, &now, &err), 0, "%s", err.what);
	cr_expect_str_eq(now->pools[0].endpoints[0].url, "http://b");
	cr_expect_eq(conf_diff(was, now, NULL, NULL, &err), CONF_LIVE);
	conf_free(&now);
	write_file("fleet.yaml", "#p2p_\n[]\n");
	cr_expect_eq(conf_again(&args, was, &now, &err), -1);
	cr_expect(err.line == 2 && strcmp(err.key, "pools[0].connector") == 0 &&
			  strstr(err.what, "started with p2p_") != NULL,
		"%d %s %s", err.line, err.key, err.what);
	write_file("fleet.yaml", "\n[{role: prefill, url: http://a, kv_addr: \":1\"}]\n");
	cr_expect_eq(conf_again(&args, was, &now, &err), -1);
	cr_expect(err.line == 2 && strcmp(err.file, "fleet.yaml") == 0 &&
			  strcmp(err.key, "prefill[0].kv_addr") == 0,
		"%s:%d %s %s", err.file, err.line, err.key, err.what);
	conf_free(&was);
}

/* Without watch, another file's change does not bring in force what the fleet file has become. */
Test(conf_file, fleet_file_that_is_not_watched)
{
	struct conf_args args = {.file = "main.yaml", .fleet_reader = fake_fleet};
	struct conf *was = NULL, *now = NULL;
	struct conf_error err;

	write_file("main.yaml", FLEET_POOL "}\n");
	write_file("fleet.yaml", "[{role: prefill, url: http://a}]\n");
	cr_assert_eq(conf_from_args(&args, &was, &err), 0, "%s", err.what);
	write_file("fleet.yaml", "nonsense");
	cr_assert_eq(conf_again(&args, was, &now, &err), 0, "%s", err.what);
	cr_expect_str_eq(now->pools[0].endpoints[0].url, "http://a");
	conf_free(&now);
	cr_expect_eq(conf_from_args(&args, &now, &err), -1);
	conf_free(&was);
}

#define KEY_POOL "pools:\n - connector: nixl\n   engine_api_key_file: key\n   " KEY_EPS
#define KEY_EPS "prefill: [{url: \"http://p\"}]\n   decode: [{url: \"http://d\"}]\n"

Test(conf_file, engine_api_key_file)
{
	struct conf_error err;
	struct conf *old = NULL, *next = NULL;
	char path[64], long_key[4096 + 3];

	(void)snprintf(path, sizeof(path), "%s/main.yaml", dir);
	write_file("main.yaml", KEY_POOL);
	write_file("key", "sk-0\n");
	cr_assert_eq(chdir("/"), 0); /* relative to the configuration */
	cr_assert_eq(conf_load(path, &old, &err), 0, "%s", err.what);
	cr_assert_eq(chdir(dir), 0);
	cr_expect_str_eq(old->pools[0].api_key, "sk-0");
	cr_assert_eq(conf_load(path, &next, &err), 0);
	cr_expect_eq(conf_diff(old, next, NULL, NULL, &err), 0);
	conf_free(&next);
	write_file("key", "sk-1");
	cr_assert_eq(conf_load(path, &next, &err), 0);
	cr_expect_str_eq(next->pools[0].api_key, "sk-1");
	cr_expect_eq(conf_diff(old, next, NULL, NULL, &err), CONF_LIVE,
		"a rotated key is a change, though no line of the file is another");
	conf_free(&next);
	memset(long_key, 'k', 4096);
	(void)strcpy(long_key + 4096, "\n");
	write_file("key", long_key);
	cr_assert_eq(conf_load(path, &next, &err), 0, "%s", err.what);
	conf_free(&next);
	conf_free(&old);
}

Test(conf_file, wrong_api_key_files)
{
	static const struct {
		const char *text, *word;
	} t[] = {
		{"", "is empty"},
		{"\n", "is empty"},
		{"sk-secret\n\n", "no header may carry"},
		{"sk-secret\r\n", "no header may carry"},
		{"sk-secret x", "no header may carry"},
		{"sk-secret\x01", "no header may carry"},
		{"sk-secret\xc3\xa9", "no header may carry"},
		{NULL, "more than 4096 bytes"},
	};
	struct conf_error err;
	struct conf *c = NULL;
	char long_key[4096 + 3];

	memset(long_key, 'k', sizeof(long_key) - 1);
	long_key[sizeof(long_key) - 1] = '\0';
	write_file("main.yaml", KEY_POOL);
	for (size_t i = 0; i < NELEMS(t); i++) {
		write_file("key", t[i].text != NULL ? t[i].text : long_key);
		cr_expect_eq(conf_load("main.yaml", &c, &err), -1);
		cr_expect(err.line == 3 && strcmp(err.key, "pools[0].engine_api_key_file") == 0 &&
				  strstr(err.what, t[i].word) != NULL &&
				  strstr(err.what, "secret") == NULL,
			"%zu: line %d key %s: %s", i, err.line, err.key, err.what);
	}
	cr_assert_eq(unlink("key"), 0);
	cr_expect_eq(conf_load("main.yaml", &c, &err), -1);
	cr_expect_not_null(strstr(err.what, "No such file"), "%s", err.what);
	cr_assert_eq(mkfifo("fifo", 0600), 0);
	write_file("main.yaml",
		"pools:\n - connector: nixl\n   engine_api_key_file: fifo\n   " KEY_EPS);
	cr_expect_eq(conf_load("main.yaml", &c, &err), -1);
	cr_expect_not_null(strstr(err.what, "cannot be read"), "%s", err.what);
}

Test(conf_file, wrong_endpoints_files)
{
	static const struct bad t[] = {
		{"a: b\n", 1, "", "a list of endpoints"},
		{"- x\n", 1, "[0]", "a mapping of keys"},
		{"\n- {role: prefill}\n", 2, "[0].url", "missing"},
		{"- {url: http://a, role: prefill}\n- {url: http://b}\n", 2, "[1]",
			"neither role nor label"},
		{"- {url: http://a, role: prefill, label: p}\n", 1, "[0]", "together"},
		{"- {url: http://a, role: both}\n", 1, "[0].role", "prefill, decode"},
		{"- {url: http://a, label: prefill}\n", 1, "[0]", "label prefill is in neither"},
		{"- {url: ftp://a, label: p}\n", 1, "[0].url", "http://"},
		{"- {url: http://a, label: p}\n- {url: http://a, label: a}\n", 2, "prefill",
			"first in line 1"},
		{"- {url: http://a, wait: 2}\n", 1, "[0].wait", "unknown"},
		{"- {url: &a http://a, role: prefill}\n", 1, "", "anchor"},
		{"[\n", 2, "", "not YAML"},
		{"- {url: http://a, label: p}\n- {url: http://b, label: d, receiver_host: h}\n", 2,
			"[1].receiver_host", "it belongs to lmcache"},
	};
	struct conf_error err;
	struct conf *c = NULL;
	char path[64];

	(void)snprintf(path, sizeof(path), "%s/eps.yaml", dir);
	write_file("main.yaml", FILE_POOL);
	for (size_t i = 0; i < NELEMS(t); i++) {
		char main_path[64];

		write_file("eps.yaml", t[i].text);
		(void)snprintf(main_path, sizeof(main_path), "%s/main.yaml", dir);
		cr_expect_eq(conf_load(main_path, &c, &err), -1, "%s", t[i].text);
		cr_expect_str_eq(err.file, path);
		cr_expect(err.line == t[i].line && strcmp(err.key, t[i].key) == 0 &&
				  strstr(err.what, t[i].word) != NULL,
			"%s-> line %d key %s: %s", t[i].text, err.line, err.key, err.what);
	}
}

Test(conf_file, endpoints_by_the_ten_thousand, .timeout = 60)
{
	struct conf_error err;
	struct conf *c = NULL;
	FILE *f;

	write_file("main.yaml", "shared_memory: {max_endpoints: 65536}\n" FILE_POOL);
	f = fopen("eps.yaml", "w");
	cr_assert_not_null(f);
	for (int i = 0; i < 60000; i++)
		(void)fprintf(f, "- {url: \"http://10.%d.%d.%d\", label: %s}\n", i >> 16,
			i >> 8 & 255, i & 255, i & 1 ? "p" : "d");
	cr_assert_eq(fclose(f), 0);
	cr_assert_eq(conf_load("main.yaml", &c, &err), 0, "%s", err.what);
	cr_expect_eq(c->pools[0].nendpoints, 60000);
	conf_free(&c);
}

/* --- reload ----------------------------------------------------------------------------------- */

struct kept {
	int n, line;
	char key[64];
};

static void
on_kept(void *arg, const char *key, int line)
{
	struct kept *k = arg;

	k->n++;
	k->line = line;
	(void)snprintf(k->key, sizeof(k->key), "%s", key);
}

/* The classes of the keys that conf_changes() names. */
static int
classes_named(const struct conf *old, const struct conf *next)
{
	FILE *out = fopen("/dev/null", "w");
	struct conf_cost cost = conf_changes(old, next, out);

	(void)fclose(out);
	return (cost.live > 0 ? CONF_LIVE : 0) | (cost.generation > 0 ? CONF_GENERATION : 0) |
	       (cost.restart > 0 ? CONF_RESTART : 0);
}

static int
diff(const char *old_text, const char *new_text, struct kept *kept, struct conf_error *err)
{
	struct conf *old = parse(old_text), *next = parse(new_text);
	int rc, named = classes_named(old, next);

	*kept = (struct kept){.n = 0};
	rc = conf_diff(old, next, on_kept, kept, err);
	if (rc >= 0)
		cr_expect_eq(named, rc, "%s -> %s", old_text, new_text);
	if (rc >= 0) /* what was kept is in `next`: a second look finds nothing for a restart */
		cr_expect_eq(conf_diff(old, next, on_kept, kept, err), rc & ~CONF_RESTART);
	conf_free(&old);
	conf_free(&next);
	return rc;
}

Test(conf, diff_names_the_classes)
{
	static const struct {
		const char *a, *b;
		int classes;
	} t[] = {
		{POOLS, POOLS, 0},
		{POOLS, "# moved\n\nrise: 2\nworkers: auto\n" POOLS, 0},
		{POOLS, POOLS "rise: 5\n", CONF_LIVE},
		{POOLS, POOLS "log_level: debug\n", CONF_LIVE},
		{POOLS "workers: 1\n", POOLS "workers: 2\n", CONF_GENERATION},
		{POOLS, POOLS "listen: [\"a:1\"]\n", CONF_GENERATION},
		{POOLS "listen: [\"a:1\"]\n", POOLS "listen: [\"a:1\", \"b:1\"]\n",
			CONF_GENERATION},
		{POOLS, POOLS "rise: 5\nclient: {id_header: X-A}\n", CONF_LIVE | CONF_GENERATION},
		{POOLS, "pools: [" POOL ", {name: x, connector: nixl, " EPS "}]\n", CONF_LIVE},
		{POOLS, "pools: [{connector: nixl, policy: round_robin, " EPS "}]\n", CONF_LIVE},
		{POOLS, "pools: [{connector: nixl, timeouts: {stream_idle: 1s}, " EPS "}]\n",
			CONF_LIVE},
		{POOLS, "pools: [{connector: nixl, name: pool1, models: [m], " EPS "}]\n",
			CONF_LIVE},
		{POOLS,
			"pools: [{connector: nixl, prefill: [{url: http://p}], decode: [{url: "
			"http://e}]}]\n",
			CONF_LIVE},
		{POOLS,
			"pools: [{connector: nixl, prefill: [{url: http://p, max_inflight: 1}], "
			"decode: [{url: http://d}]}]\n",
			CONF_LIVE},
		{POOLS,
			"pools: [{connector: nixl, prefill: [{url: http://p}], "
			"decode: [{url: http://d}, {url: http://e}]}]\n",
			CONF_LIVE},
		{POOLS, POOLS "limits: {max_fanout: 9}\n", CONF_LIVE},
		{POOLS, "pools: [{connector: nixl, nixl: {kv_lease: 1s}, " EPS "}]\n", CONF_LIVE},
		{PAIR("lmcache", "", PORTS),
			PAIR("lmcache", "", PORTS) "   lmcache: {ready_messages: 1}\n", CONF_LIVE},
		{PAIR("lmcache", "", PORTS),
			PAIR("lmcache", "", "receiver_init_port: 7301, receiver_alloc_port: 7400"),
			CONF_LIVE},
		{PAIR("lmcache", "", PORTS),
			PAIR("lmcache", "",
				"receiver_init_port: [7300], receiver_alloc_port: 7400"),
			0},
		{OF("shared_storage", "shared_storage: {cache_hit_threshold: 0.8}"),
			OF("shared_storage", "shared_storage: {cache_hit_threshold: 0.9}"),
			CONF_LIVE},
	};
	struct conf_error err;
	struct kept kept;

	for (size_t i = 0; i < NELEMS(t); i++) {
		cr_expect_eq(diff(t[i].a, t[i].b, &kept, &err), t[i].classes, "%s", t[i].b);
		cr_expect_eq(kept.n, 0);
	}
}

Test(conf, diff_keeps_what_needs_a_restart)
{
	struct conf_error err;
	struct kept kept;
	struct conf *old, *next;

	cr_expect_eq(diff(POOLS, POOLS "\nshared_memory:\n  max_pools: 20\n", &kept, &err),
		CONF_RESTART);
	cr_expect_eq(kept.n, 1);
	cr_expect_str_eq(kept.key, "shared_memory.max_pools");
	cr_expect_eq(kept.line, 4);
	cr_expect_eq(diff(POOLS "control_socket: /a\n", POOLS "rise: 5\n", &kept, &err),
		CONF_RESTART | CONF_LIVE);
	cr_expect_str_eq(kept.key, "control_socket");
	cr_expect_eq(kept.line, 0, "the key is gone");

	old = parse(POOLS "control_socket: \"\"\nlmcache: {listen: tcp://*:1}\n");
	next = parse(POOLS "control_socket: /b\n");
	cr_expect_eq(conf_diff(old, next, NULL, NULL, &err), CONF_RESTART | CONF_LIVE);
	cr_expect_null(next->control_socket, "the old value, which was none");
	cr_expect_null(next->lmcache_listen, "applied at once");
	conf_free(&old);
	conf_free(&next);
}

Test(conf, diff_refuses_what_does_not_fit_the_running_process)
{
	struct conf_error err;
	struct kept kept;

	cr_expect_eq(diff(POOLS "shared_memory: {max_workers: 2}\nworkers: 2\n",
			     POOLS "\nshared_memory: {max_workers: 4}\nworkers: 3\n", &kept, &err),
		-1);
	cr_expect_str_eq(err.file, "dir/t.yaml");
	cr_expect_str_eq(err.key, "shared_memory.max_workers");
	cr_expect_eq(err.line, 3);
	cr_expect_not_null(strstr(err.what, "3 workers are more than 2"));
}

Test(conf, auto_workers_keep_within_the_slots)
{
	struct conf *c = parse(POOLS "shared_memory: {max_workers: 1}\n");
	struct conf *next = parse(POOLS);
	struct conf_error err;

	cr_expect_eq(c->workers, 1);
	cr_expect_eq(conf_diff(c, next, NULL, NULL, &err), CONF_RESTART);
	cr_expect_eq(next->workers, 1);
	conf_free(&c);
	conf_free(&next);
}

Test(conf, auto_workers_follow_the_affinity_mask)
{
	cpu_set_t set, one;
	struct conf *c;
	int cpu = 0;

	cr_assert_eq(sched_getaffinity(0, sizeof(set), &set), 0);
	while (!CPU_ISSET(cpu, &set))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
	c = parse(POOLS);
	cr_expect_eq(c->workers, 1);
	conf_free(&c);
}

/* --- command line ----------------------------------------------------------------------------- */

#define MAX_ARGS 64
#define MAX_LINE 4096

/* Splits at blanks; 'x' stands for itself, so a value with blanks is not possible here. */
static int
args(const char *line, struct conf_args *a, struct conf_error *err, char store[MAX_LINE])
{
	char *argv[MAX_ARGS + 1], *save;
	int argc = 0;

	(void)snprintf(store, MAX_LINE, "pdrouter %s", line);
	for (char *p = strtok_r(store, " ", &save); p != NULL && argc < MAX_ARGS;
		p = strtok_r(NULL, " ", &save))
		argv[argc++] = p;
	argv[argc] = NULL;
	return conf_args_parse(argc, argv, a, err);
}

static int
from(const char *line, struct conf **ret, struct conf_error *err)
{
	char store[MAX_LINE];
	struct conf_args a;

	cr_assert_eq(args(line, &a, err, store), 0, "%s: %s %s", line, err->key, err->what);
	return conf_from_args(&a, ret, err);
}

#define STACK                                                                                      \
	"--service-discovery static --routing-logic disaggregated_prefill_orchestrated "           \
	"--static-backends http://a:1,http://b:2,http://[::1]:3 --static-models m,m,m "            \
	"--static-model-labels p,d,d2 --prefill-model-labels p,p2 --decode-model-labels d,d2 "

#define SHARED                                                                                     \
	"--routing-logic disaggregated_prefill --static-backends http://a:1,http://b:2 "           \
	"--static-models m,m --static-model-labels p,d --prefill-model-labels p "                  \
	"--decode-model-labels d "
#define LMCACHE SHARED "--nixl-proxy-host 0.0.0.0 "
#define SGLANG "--pd-disaggregation --prefill http://p:1 --decode http://d:1 "
#define WHOLE                                                                                      \
	"--service-discovery static --static-backends http://a:1,http://b:2 --static-models m,m "

Test(conf, args_options)
{
	char store[MAX_LINE];
	struct conf_args a;
	struct conf_error err;

	cr_assert_eq(args("-c f -t --port=7", &a, &err, store), 0);
	cr_expect_str_eq(a.file, "f");
	cr_expect(a.check && !a.version && !a.help);
	cr_expect_str_eq(a.port, "7");
	cr_assert_eq(args("--config=f --version --help", &a, &err, store), 0);
	cr_expect_str_eq(a.file, "f");
	cr_expect(a.version && a.help && !a.check);
	cr_assert_eq(args("--config f -h", &a, &err, store), 0);
	cr_expect(a.help);
	cr_assert_eq(args("-c f --print-config", &a, &err, store), 0);
	cr_expect(a.print && !a.check);
	cr_assert_eq(args("--prefill u 1 --decode v --prefill=w --pd-dis --prefill x none", &a,
			     &err, store),
		0);
	cr_expect_eq(a.nurls, 4);
	cr_expect_str_eq(a.urls[0].url, "u");
	cr_expect_str_eq(a.urls[0].port, "1");
	cr_expect_str_eq(a.urls[1].url, "v");
	cr_expect_null(a.urls[1].port);
	cr_expect_str_eq(a.urls[2].url, "w");
	cr_expect_null(a.urls[2].port);
	cr_expect_str_eq(a.urls[3].port, "none");
	cr_expect_eq(args("--prefill u 1 2", &a, &err, store), -1);
	cr_expect_str_eq(err.key, "--prefill");
	cr_expect_not_null(strstr(err.what, "one port at most"));
	cr_expect_eq(args("--decode v 1", &a, &err, store), -1);
	cr_expect_str_eq(err.key, "1");
	cr_expect_eq(args("--prot 7", &a, &err, store), -1);
	cr_expect_str_eq(err.key, "--prot");
	cr_expect_eq(args("--port", &a, &err, store), -1);
	cr_expect_not_null(strstr(err.what, "needs a value"));
	cr_expect_eq(args("-c", &a, &err, store), -1);
	cr_expect_eq(args("file.yaml", &a, &err, store), -1);
	cr_expect_str_eq(err.key, "file.yaml");
	cr_expect_eq(args("--rate-limit-tokens-per-second 5 6", &a, &err, store), -1);
	cr_expect_eq(args("--api-key a b", &a, &err, store), -1);
	cr_expect_eq(args("--cors-allowed-origins a b", &a, &err, store), 0);
}

/* A command line as it was copied from a script or a unit, the program included. */
Test(conf, args_with_another_routers_program)
{
	static const char *const programs[] = {"vllm-router ", "/opt/venv/bin/vllm-router ",
		"python3 -m vllm_router.app ", "-t python -u -m vllm_router ",
		"--print-config -t /usr/bin/python3.12 -m sglang_router.launch_router ",
		"smg launch ", "sglang-router launch "};
	static const char *const others[] = {"python3 ", "python3 -m ",
		"python3 -m vllm.entrypoints ", "python3 router.py ", "launch ", "uvicorn ",
		"--port vllm-router smg "};
	char line[MAX_LINE], store[MAX_LINE];
	struct conf_args a;
	struct conf_error err;

	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
		(void)snprintf(line, sizeof(line), "%s--prefill u 1 --decode v", programs[i]);
		cr_expect_eq(args(line, &a, &err, store), 0, "%s: %s %s", line, err.key, err.what);
		cr_expect(a.nurls == 2 && strcmp(a.urls[1].url, "v") == 0, "%s", line);
		cr_expect_eq(a.check, strstr(line, "-t ") == line || i == 4, "%s", line);
	}
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		(void)snprintf(line, sizeof(line), "%s--decode v", others[i]);
		cr_expect_eq(args(line, &a, &err, store), -1, "%s", line);
	}
	cr_expect_eq(args("vllm-router", &a, &err, store), 0);
	cr_expect_eq(args("python3 -m vllm_router.app", &a, &err, store), 0);
	cr_assert_eq(args("-c vllm-router", &a, &err, store), 0);
	cr_expect_str_eq(a.file, "vllm-router", "a file of that name");
}

Test(conf, args_of_production_stack)
{
	struct conf_error err;
	struct conf *c = NULL;
	const struct conf_pool *p;

	cr_assert_eq(from(STACK, &c, &err), 0, "%s %s", err.key, err.what);
	cr_expect_null(c->path);
	cr_expect_str_eq(c->listen[0].text, "0.0.0.0:8001");
	cr_expect_eq(c->live.max_body, 64u << 20);
	cr_assert_eq(c->npools, 1);
	p = &c->pools[0];
	cr_expect_str_eq(p->name, "m");
	cr_expect_eq(p->nmodels, 1);
	cr_expect_eq(p->connector, CONNECTOR_ORCHESTRATED);
	cr_expect_eq(p->shake.handoff, HANDOFF_KV_TRANSFER_PARAMS);
	cr_expect_eq(p->shake.remote_host, REMOTE_HOST_PREFILL);
	cr_expect_eq(p->policy, POLICY_ROUND_ROBIN);
	cr_expect_eq(p->timeouts.whole_answer_ms, 600000);
	cr_assert_eq(p->nendpoints, 3);
	cr_expect_eq(p->endpoints[0].role, ROLE_PREFILL);
	cr_expect_eq(p->endpoints[1].role, ROLE_DECODE);
	cr_expect_str_eq(p->endpoints[2].url, "http://[::1]:3");
	cr_expect_eq(p->endpoints[2].role, ROLE_DECODE);
	conf_free(&c);
	cr_assert_eq(from(STACK "--host :: --port=9000", &c, &err), 0);
	cr_expect_str_eq(c->listen[0].text, "[::]:9000");
	conf_free(&c);
}

Test(conf, args_two_models_are_two_pools)
{
	struct conf_error err;
	struct conf *c = NULL;

	cr_assert_eq(
		from("--routing-logic=disaggregated_prefill_orchestrated --static-models=m,n,m,n "
		     "--static-backends=http://a,http://b,http://c,http://d "
		     "--static-model-labels=p,p,d,d "
		     "--prefill-model-labels=p --decode-model-labels=d",
			&c, &err),
		0, "%s %s", err.key, err.what);
	cr_assert_eq(c->npools, 2);
	cr_expect_str_eq(c->pools[1].name, "n");
	cr_expect_str_eq(c->pools[1].endpoints[0].url, "http://b");
	cr_expect_str_eq(c->pools[1].endpoints[1].url, "http://d");
	conf_free(&c);
}

Test(conf, args_wrong)
{
	static const struct {
		const char *line, *key, *word;
	} t[] = {
		{"", "", "give -c FILE"},
		{"--port 80", "", "give -c FILE"},
		{STACK "--service-discovery k8s", "--service-discovery",
			"in a configuration file dns"},
		{STACK "--routing-logic fastest", "--routing-logic",
			"fastest is not known here: disaggregated_prefill, "
			"disaggregated_prefill_orchestrated, roundrobin, session, prefixaware, kvaware"},
		{STACK "--routing-logic ttft", "--routing-logic", "least_loaded"},
		{STACK "--routing-logic priority", "--routing-logic", "pools of their own"},
		{STACK "--routing-logic session", "--session-key", "is missing"},
		{STACK "--routing-logic session --session-key X:Y", "--session-key", "no colon"},
		{STACK "--load-balancing-strategy random", "--load-balancing-strategy",
			"not known here: round_robin, least_loaded"},
		{STACK "--disagg-connector-type lmcache", "--disagg-connector-type",
			"needs --routing-logic disaggregated_prefill"},
		{STACK "--disagg-connector-type mooncake", "--disagg-connector-type",
			"nixl, lmcache"},
		{STACK "--routing-threshold many", "--routing-threshold", "not a number"},
		{STACK "--routing-threshold 1000000001", "--routing-threshold", "out of bounds"},
		{STACK "--engine-stats-interval 1,5", "--engine-stats-interval",
			"not a number of seconds"},
		{STACK "--engine-stats-interval 0", "--engine-stats-interval", "out of bounds"},
		{STACK "--engine-stats-interval 0.0005", "--engine-stats-interval",
			"not a number of seconds"},
		{STACK "--engine-stats-interval 1.", "--engine-stats-interval",
			"not a number of seconds"},
		{STACK "--backend-health-check-timeout-seconds 1 --health-check-timeout-secs 2",
			"--health-check-timeout-secs", "given twice"},
		{STACK "--log-level loud", "--log-level", "critical, error, warning"},
		{STACK "--log-format xml", "--log-format", "text, json"},
		{STACK "--health-check-endpoint health", "--health-check-endpoint",
			"does not start with /"},
		{STACK "--static-aliases a:m", "--static-aliases", "--served-model-name"},
		{STACK "--dynamic-config-json f", "--dynamic-config-json", "use -c FILE"},
		{STACK "--dynamic-config-yaml f", "--dynamic-config-yaml", "use -c FILE"},
		{STACK "--callbacks f", "--callbacks", "no Python"},
		{STACK "--enable-batch-api", "--enable-batch-api", "batch service"},
		{STACK "--feature-gates SemanticCache=true", "--feature-gates", "in front"},
		{STACK "--root-path /x", "--root-path", "in front"},
		{SHARED "--disagg-connector-type nixl --nixl-proxy-host h",
			"--disagg-connector-type", "nixl cannot be used with --nixl-proxy-host"},
		{LMCACHE "--decoder-registry nothing", "--decoder-registry", "not a JSON object"},
		{LMCACHE "--decoder-registry [1]", "--decoder-registry", "not a JSON object"},
		{LMCACHE "--decoder-registry {\"http://b:2\":", "--decoder-registry", "not YAML"},
		{LMCACHE "--decoder-registry {\"http://b:2\":1}", "--decoder-registry",
			"http://b:2 is not an object"},
		{LMCACHE "--decoder-registry {\"http://b:2\":{\"receiver_init_port\":1}}",
			"--decoder-registry", "http://b:2 has no receiver_alloc_port"},
		{LMCACHE
			"--decoder-registry "
			"{\"http://b:2\":{\"receiver_init_port\":[1,\"x\"],\"receiver_alloc_port\":2}}",
			"--decoder-registry", "1,x is not a port or a list"},
		{LMCACHE "--decoder-registry "
			 "{\"http://b:2\":{\"receiver_init_port\":[],\"receiver_alloc_port\":2}}",
			"--decoder-registry", "not a port"},
		{LMCACHE
			"--decoder-registry "
			"{\"http://b:2\":{\"receiver_init_port\":[1,2],\"receiver_alloc_port\":2}}",
			"--decoder-registry", "1 ports, but receiver_init_port has 2"},
		{LMCACHE "--decoder-registry "
			 "{\"http://b:2\":{\"receiver_init_port\":0,\"receiver_alloc_port\":2}}",
			"--decoder-registry", "not a port from 1 to 65535"},
		{LMCACHE "--decoder-registry {\"http://b:2\":{\"receiver_hots\":\"h\"}}",
			"--decoder-registry", "receiver_hots is not a known member"},
		{LMCACHE "--decoder-init-port 7300;7301", "--decoder-init-port",
			"7300;7301 is not a port"},
		{LMCACHE "--decoder-init-port 7300,7301", "--nixl-peer-alloc-port", "1 ports, but"},
		{LMCACHE "--nixl-peer-alloc-port 99999", "--nixl-peer-alloc-port", "1 to 65535"},
		{LMCACHE "--decoder-host a/b", "--decoder-host", "not a host name"},
		{LMCACHE "--nixl-proxy-port x", "--nixl-proxy-host", "tcp://"},
		{SGLANG "--prefill http://q:1 x", "--prefill", "x is not a port or none"},
		{SGLANG "--prefill http://q:1 70000", "--prefill", "0 to 65535"},
		{SGLANG "--prefill http://p:1", "--prefill", "is listed twice"},
		{SGLANG "--decode ftp://x", "--decode", "http://"},
		{SGLANG "--policy manual", "--policy", "use policy: session"},
		{SGLANG "--prefill-policy bucket", "--prefill-policy", "use power_of_two"},
		{SGLANG "--decode-policy fastest", "--decode-policy",
			"cache_aware, prefix_hash, random, round_robin, power_of_two"},
		{SGLANG "--routing-threshold 5", "--routing-threshold",
			"cannot be used with the connector sglang"},
		{SGLANG "--routing-logic roundrobin", "--routing-logic", "another router"},
		{SGLANG "--service-discovery --policy random", "--service-discovery",
			"use dns in a configuration file"},
		{SGLANG "--service-discovery --selector a=b", "--selector", "use dns"},
		{SGLANG "--cors-allowed-origins http://x http://y", "--cors-allowed-origins",
			"use cors.origins in a configuration file"},
		{STACK "--service-discovery=-x", "--service-discovery", "-x is not known here"},
		{SGLANG "--service-discovery x --selector a=b", "--selector", "use dns"},
		{SGLANG "--dp-aware", "--dp-aware", "dp_ranks"},
		{SGLANG "--api-key k", "--api-key", "engine_api_key_file"},
		{SGLANG "--enable-igw", "--enable-igw", "several pools"},
		{SGLANG "--tls-cert-path f", "--tls-cert-path", "tls.certificates"},
		{SGLANG "--max-payload-size 1MB", "--max-payload-size", "number of bytes"},
		{SGLANG "--max-payload-size 1", "--max-payload-size", "1KiB to 2GiB"},
		{SGLANG "--retry-max-retries five", "--retry-max-retries", "not a number"},
		{SGLANG "--retry-max-retries -1", "--retry-max-retries", "not a number"},
		{SGLANG "--max-concurrent-requests -2", "--max-concurrent-requests", "nor -1"},
		{SGLANG "--max-concurrent-requests 1000001", "--max-concurrent-requests",
			"0 to 1000000"},
		{SGLANG "--queue-size many", "--queue-size", "not a number"},
		{SGLANG "--queue-size 65537", "--queue-size", "0 to 65536"},
		{SGLANG "--queue-timeout-secs 3601", "--queue-timeout-secs", "1ms to 1h"},
		{SGLANG "--prometheus-port many", "--prometheus-port", "port"},
		{SGLANG "--prometheus-host a:b", "--prometheus-host", "address"},
		{SGLANG "--cb-failure-threshold 256", "--cb-failure-threshold", "0 to 255"},
		{SGLANG "--cb-timeout-duration-secs 0", "--cb-timeout-duration-secs", "1ms to 1h"},
		{SGLANG "--request-timeout-secs 30m", "--request-timeout-secs",
			"number of seconds"},
		{SGLANG "--request-timeout-secs 86401", "--request-timeout-secs", "0 to 24h"},
		{STACK "--enable-retries --max-retries x", "--max-retries", "not a number"},
		{STACK "--max-instance-failover-reroute-attempts x",
			"--max-instance-failover-reroute-attempts", "not a number"},
		{SGLANG "--health-failure-threshold 0", "--health-failure-threshold", "1 to 1000"},
		{"--prefill http://p --decode http://d", "--pd-disaggregation", "is missing"},
		{"--pd-disaggregation --prefill http://p", "--pd-disaggregation",
			"pool pool1 has no decode endpoint"},
		{"--static-backends http://a", "--routing-logic", "missing"},
		{"--routing-logic disaggregated_prefill_orchestrated --static-backends http://a",
			"--static-models", "missing"},
		{STACK "--static-models m,m", "--static-models", "2 entries for 3 backends"},
		{STACK "--static-model-labels p,d", "--static-model-labels",
			"2 entries for 3 backends"},
		{STACK "--static-model-labels p,d,d3", "--static-model-labels",
			"label 'd3' of http://[::1]:3"},
		{STACK "--static-model-labels p,d,", "--static-model-labels", "label ''"},
		{STACK "--static-model-labels p,pd,d2", "--static-model-labels", "label 'pd'"},
		{STACK "--static-backends http://a,http://b,http://b", "--static-backends",
			"twice"},
		{STACK "--static-models m,m,", "--static-models", "1 to 255"},
		{STACK "--static-models m,m,n", "--static-backends",
			"pool n has no prefill endpoint"},
		{STACK "--prefill-model-labels p,d", "--decode-model-labels",
			"d is also one of --prefill-model-labels"},
		{STACK "--prefill-model-labels p,p", "--prefill-model-labels", "twice"},
		{STACK "--port 0", "--port", "1 to 65535"},
		{STACK "--port x", "--port", "1 to 65535"},
		{STACK "--host a_b/c", "--host", "not a host name"},
		{STACK "-c x.yaml", "--service-discovery", "cannot be used with -c"},
		{"-c x.yaml --static-models m", "--static-models", "cannot be used with -c"},
	};
	struct conf_error err;
	struct conf *c = NULL;

	for (size_t i = 0; i < NELEMS(t); i++) {
		memset(&err, 0, sizeof(err));
		cr_expect_eq(from(t[i].line, &c, &err), -1, "%s", t[i].line);
		cr_expect_str_empty(err.file);
		cr_expect_eq(err.line, 0);
		cr_expect(strcmp(err.key, t[i].key) == 0 && strstr(err.what, t[i].word) != NULL,
			"%s\n-> %s: %s", t[i].line, err.key, err.what);
	}
}

Test(conf_file, args_host_and_port_override_the_file)
{
	struct conf_error err;
	struct conf *c = NULL;

	write_file("main.yaml", "listen: [\"10.0.0.1:80\", \":81\"]\n" POOLS);
	cr_assert_eq(from("-c main.yaml --port 99", &c, &err), 0);
	cr_assert_eq(c->nlisten, 1);
	cr_expect_str_eq(c->listen[0].text, "10.0.0.1:99");
	conf_free(&c);
	cr_assert_eq(from("-c main.yaml --host ::1", &c, &err), 0);
	cr_expect_str_eq(c->listen[0].text, "[::1]:80");
	conf_free(&c);
	cr_assert_eq(from("-c main.yaml", &c, &err), 0);
	cr_expect_eq(c->nlisten, 2);
	conf_free(&c);
	cr_expect_eq(from("-c main.yaml --port 99999", &c, &err), -1);
	cr_expect_str_eq(err.key, "--port");
}

/* --- what flags amount to --------------------------------------------------------------------- */

/* The caller frees it. */
static char *
written(const struct conf *c)
{
	char *text = NULL;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	cr_assert_not_null(out);
	conf_write(c, out);
	cr_assert_eq(fclose(out), 0);
	return text;
}

/* What is written reads as the same configuration, and that is written alike. */
static void
expect_round_trip(struct conf *c, const char *text)
{
	struct conf *again = parse(text);
	struct conf_error err;
	char *more = written(again);

	cr_expect_str_eq(more, text);
	cr_expect_eq(conf_diff(c, again, NULL, NULL, &err), 0, "%s", text);
	free(more);
	conf_free(&again);
}

#define POOL_A_B                                                                                   \
	"    prefill:\n      - {url: \"http://a:1\"}\n    decode:\n      - {url: \"http://b:2\"}\n"
#define POOL_AB_AB                                                                                 \
	"    routing_threshold: 1000000000\n    single_engine_role: decode\n"                      \
	"    prefill:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"             \
	"    decode:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"
#define POOL_LMCACHE(d)                                                                            \
	"lmcache:\n  listen: \"tcp://0.0.0.0:7500\"\npools:\n  - models: [\"m\"]\n    connector: " \
	"lmcache\n    policy: round_robin\n    prefill:\n      - {url: \"http://a:1\"}\n    "      \
	"decode:\n      - {url: \"http://b:2\", " d "}\n"
#define LISTEN_STACK "listen: [\"0.0.0.0:8001\"]\n"
#define POOL_OF(connector, rest)                                                                   \
	"pools:\n  - models: [\"m\"]\n    connector: " connector "\n    policy: round_robin\n" rest
#define POLICY_SGLANG "pools:\n  - connector: sglang\n    policy: cache_aware\n"
#define POOL_SGLANG(rest)                                                                          \
	"listen: [\"0.0.0.0:30000\"]\n" rest "    prefill:\n      - {url: \"http://p:1\"}\n    "   \
	"decode:\n      - {url: \"http://d:1\"}\n"
#define REGISTRY                                                                                      \
	"--decoder-registry {\"http://b:2\":{\"receiver_host\":\"dec-0.svc\",\"receiver_init_port\":" \
	"[7300,7301],\"receiver_alloc_port\":[7400,7401]}} "

static const struct {
	const char *line, *yaml;
} amounts[] = {
	{SHARED, LISTEN_STACK POOL_OF("shared_storage", POOL_A_B)},
	{SHARED "--routing-logic disaggregated_prefill_orchestrated --host :: --port 80",
		"listen: [\"[::]:80\"]\n" POOL_OF("orchestrated", POOL_A_B)},
	{SHARED "--disagg-connector-type nixl", LISTEN_STACK POOL_OF("nixl", POOL_A_B)},
	{SHARED "--disagg-connector-type nixl --routing-logic disaggregated_prefill_orchestrated",
		LISTEN_STACK POOL_OF("orchestrated", POOL_A_B)},
	{SHARED "--load-balancing-strategy round_robin",
		LISTEN_STACK POOL_OF("shared_storage", POOL_A_B)},
	{SHARED "--load-balancing-strategy least_loaded --routing-threshold 4096", LISTEN_STACK
		"pools:\n  - models: [\"m\"]\n    connector: shared_storage\n"
		"    prefill_policy: least_loaded\n    routing_threshold: 4096\n" POOL_A_B},
	{SHARED "--disagg-connector-type lmcache",
		LISTEN_STACK POOL_OF("lmcache",
			"    lmcache:\n      ready_messages: 0\n"
			"    prefill:\n      - {url: \"http://a:1\"}\n    decode:\n      - {url: "
			"\"http://b:2\", receiver_init_port: [7300], receiver_alloc_port: [7400]}\n")},
	{LMCACHE, LISTEN_STACK POOL_LMCACHE(
			  "receiver_init_port: [7300], receiver_alloc_port: [7400]")},
	{LMCACHE REGISTRY, LISTEN_STACK POOL_LMCACHE("receiver_host: \"dec-0.svc\", "
						     "receiver_init_port: [7300, 7301], "
						     "receiver_alloc_port: [7400, 7401]")},
	{LMCACHE REGISTRY "--decoder-host other --decoder-init-port 1 --decoder-alloc-port 2",
		LISTEN_STACK POOL_LMCACHE(
			"receiver_host: \"dec-0.svc\", receiver_init_port: [7300, "
			"7301], receiver_alloc_port: [7400, 7401]")},
	{LMCACHE "--decoder-registry {\"http://b:2\":{\"receiver_init_port\":1,"
		 "\"receiver_alloc_port\":2,\"receiver_query_port\":[3]}}",
		LISTEN_STACK POOL_LMCACHE("receiver_init_port: [1], receiver_alloc_port: [2]")},
	{LMCACHE "--decoder-registry {\"http://x\":{}} --decoder-host h --decoder-init-port "
		 "7310,7311 --decoder-alloc-port 7410,7411",
		LISTEN_STACK POOL_LMCACHE("receiver_host: \"h\", receiver_init_port: [7310, 7311], "
					  "receiver_alloc_port: [7410, 7411]")},
	{LMCACHE "--nixl-peer-host h --nixl-peer-init-port 7310 --nixl-peer-alloc-port 7410",
		LISTEN_STACK POOL_LMCACHE("receiver_host: \"h\", receiver_init_port: [7310], "
					  "receiver_alloc_port: [7410]")},
	{LMCACHE "--nixl-peer-host 0.0.0.0 --nixl-peer-init-port 7310 --decoder-init-port 7320",
		LISTEN_STACK POOL_LMCACHE(
			"receiver_init_port: [7320], receiver_alloc_port: [7400]")},
	{SHARED "--nixl-proxy-host localhost --nixl-proxy-port 8500 --decoder-host ::1",
		LISTEN_STACK "lmcache:\n  listen: \"tcp://127.0.0.1:8500\"\n" POOL_OF("lmcache",
			"    prefill:\n      - {url: \"http://a:1\"}\n    decode:\n      - {url: "
			"\"http://b:2\", receiver_host: \"[::1]\", receiver_init_port: [7300], "
			"receiver_alloc_port: [7400]}\n")},
	{WHOLE "--routing-logic roundrobin", LISTEN_STACK POOL_OF("shared_storage", POOL_AB_AB)},
	{WHOLE "--routing-logic prefixaware --prefix-min-match-length 128",
		LISTEN_STACK "pools:\n  - models: [\"m\"]\n    connector: shared_storage\n"
			     "    policy: cache_aware\n" POOL_AB_AB},
	{WHOLE "--routing-logic kvaware --kv-aware-threshold 2000 --lmcache-controller-port 9000",
		LISTEN_STACK "pools:\n  - models: [\"m\"]\n    connector: shared_storage\n"
			     "    policy: cache_aware\n" POOL_AB_AB},
	{SGLANG "--policy prefix_hash",
		POOL_SGLANG("pools:\n  - connector: sglang\n    policy: prefix\n")},
	{WHOLE "--routing-logic session --session-key X-User", LISTEN_STACK
		"pools:\n  - models: [\"m\"]\n    connector: shared_storage\n    policy: "
		"session\n    session_header: \"X-User\"\n" POOL_AB_AB},
	{WHOLE "--routing-logic roundrobin --static-models /models/a+b,/models/a+b", LISTEN_STACK
		"pools:\n  - name: \"pool1\"\n    models: [\"/models/a+b\"]\n    connector: shared_storage\n"
		"    policy: round_robin\n" POOL_AB_AB},
	{WHOLE "--routing-logic roundrobin --engine-stats-interval 15 "
	       "--static-backend-health-check-interval 60 "
	       "--backend-health-check-timeout-seconds 10 --log-level trace --log-format json "
	       "--health-check-endpoint /ping",
		LISTEN_STACK
		"stats_interval: 15s\nhealth_interval: 1m\nhealth_timeout: 10s\nlog_level: debug\n"
		"log_format: json\npools:\n  - models: [\"m\"]\n    connector: shared_storage\n"
		"    policy: round_robin\n    routing_threshold: 1000000000\n    single_engine_role: decode\n"
		"    health_path: \"/ping\"\n"
		"    prefill:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"
		"    decode:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"},
	{WHOLE "--routing-logic roundrobin --engine-stats-interval 0.25 "
	       "--static-backend-health-check-timeout-seconds 0.5 --log-level critical",
		LISTEN_STACK "stats_interval: 250ms\nhealth_timeout: 500ms\nlog_level: "
			     "error\n" POOL_OF("shared_storage", POOL_AB_AB)},
	{SGLANG, POOL_SGLANG("pools:\n  - connector: sglang\n    policy: cache_aware\n")},
	{"--pd-disaggregation --prefill http://p:1 8998 --prefill http://q:1 NONE --prefill "
	 "http://r:1 --decode http://d:1 --decode http://e:1 --policy round_robin --port 8000",
		"pools:\n  - connector: sglang\n    policy: round_robin\n    prefill:\n"
		"      - {url: \"http://p:1\", bootstrap_port: 8998}\n      - {url: \"http://q:1\"}\n"
		"      - {url: \"http://r:1\"}\n    decode:\n      - {url: \"http://d:1\"}\n"
		"      - {url: \"http://e:1\"}\n"},
	{SGLANG "--policy random --prefill-policy cache_aware --decode-policy power_of_two",
		POOL_SGLANG(
			"pools:\n  - connector: sglang\n    policy: random\n    prefill_policy: "
			"cache_aware\n    decode_policy: power_of_two\n")},
	{SGLANG "--health-check-interval-secs 60 --health-check-timeout-secs 6 "
		"--health-failure-threshold 4 --health-success-threshold 1 "
		"--health-check-endpoint /health --max-payload-size 1048576 "
		"--shutdown-grace-period-secs 180 --log-level warn",
		POOL_SGLANG(
			"limits:\n  max_body: 1MiB\ndrain_timeout: 3m\nhealth_interval: 1m\n"
			"health_timeout: 6s\nrise: 1\nfall: 4\nlog_level: warn\npools:\n  - "
			"connector: sglang\n    policy: cache_aware\n    health_path: \"/health\"\n")},
	{SHARED "--max-instance-failover-reroute-attempts 3",
		LISTEN_STACK POOL_OF("shared_storage", "    retries: 3\n" POOL_A_B)},
	{SHARED "--enable-retries",
		LISTEN_STACK POOL_OF("shared_storage", "    retries: 4\n" POOL_A_B)},
	{SHARED "--enable-retries --max-retries 4 --max-instance-failover-reroute-attempts 9 "
		"--initial-backoff-ms 100 --jitter-factor 0.1",
		LISTEN_STACK POOL_OF("shared_storage", "    retries: 3\n" POOL_A_B)},
	{SHARED "--max-retries 4", LISTEN_STACK POOL_OF("shared_storage", POOL_A_B)},
	{SHARED "--max-instance-failover-reroute-attempts 25",
		LISTEN_STACK POOL_OF("shared_storage", "    retries: 10\n" POOL_A_B)},
	{SGLANG "--retry-max-retries 5 --queue-size 2000 --queue-timeout-secs 30 "
		"--cb-failure-threshold 7 --cb-success-threshold 2 --cb-timeout-duration-secs 600 "
		"--cb-window-duration-secs 60 --request-timeout-secs 1800 --rate-limit-tokens-per-second 9",
		POOL_SGLANG(
			"shared_memory:\n  queue: 2000\npools:\n  - connector: sglang\n    policy: cache_aware\n"
			"    timeouts:\n      request: 30m\n    retries: 4\n    eject_failures: 7\n"
			"    eject_time: 10m\n    queue_size: 2000\n    queue_timeout: 30s\n")},
	{SGLANG "--prometheus-port 29001",
		POOL_SGLANG("admin:\n  listen: [\"0.0.0.0:29001\"]\n" POLICY_SGLANG)},
	{SGLANG "--prometheus-host ::1",
		POOL_SGLANG("admin:\n  listen: [\"[::1]:29000\"]\n" POLICY_SGLANG)},
	{SGLANG "--prometheus-port 29001 --prometheus-host 127.0.0.1",
		POOL_SGLANG("admin:\n  listen: [\"127.0.0.1:29001\"]\n" POLICY_SGLANG)},
	{SGLANG "--retry-max-retries 1 --queue-size 0",
		POOL_SGLANG(
			"pools:\n  - connector: sglang\n    policy: cache_aware\n    retries: 0\n"
			"    queue_size: 0\n")},
	{SGLANG "--retry-max-retries 0 --max-concurrent-requests -1",
		POOL_SGLANG(
			"pools:\n  - connector: sglang\n    policy: cache_aware\n    retries: 0\n")},
	{SGLANG "--retry-max-retries 5 --disable-retries --cb-failure-threshold 3 "
		"--disable-circuit-breaker --max-concurrent-requests 0",
		POOL_SGLANG(
			"pools:\n  - connector: sglang\n    policy: cache_aware\n    retries: 0\n"
			"    eject_failures: 0\n    eject_rate: 0\n")},
	{"--pd-disaggregation --prefill http://p:1 --decode http://d:1 --decode http://e:1 "
	 "--max-concurrent-requests 7",
		"listen: [\"0.0.0.0:30000\"]\npools:\n  - connector: sglang\n    policy: cache_aware\n"
		"    prefill:\n      - {url: \"http://p:1\"}\n    decode:\n"
		"      - {url: \"http://d:1\", max_inflight: 4}\n"
		"      - {url: \"http://e:1\", max_inflight: 4}\n"},
	{"--worker-urls http://a:1 http://b:2 --policy power_of_two --max-concurrent-requests 64",
		"listen: [\"0.0.0.0:30000\"]\npools:\n  - connector: shared_storage\n    policy: "
		"power_of_two\n    engine: sglang\n    routing_threshold: 1000000000\n    single_engine_role: "
		"decode\n"
		"    prefill:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"
		"    decode:\n      - {url: \"http://a:1\", max_inflight: 32}\n"
		"      - {url: \"http://b:2\", max_inflight: 32}\n"},
	{"--worker-urls http://a:1 http://b:2 --policy power_of_two",
		"listen: [\"0.0.0.0:30000\"]\npools:\n  - connector: shared_storage\n    policy: "
		"power_of_two\n    engine: sglang\n    routing_threshold: 1000000000\n    single_engine_role: "
		"decode\n"
		"    prefill:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"
		"    decode:\n      - {url: \"http://a:1\"}\n      - {url: \"http://b:2\"}\n"},
	{"--worker-urls http://a:1 --policy random --health-check-endpoint /health",
		"listen: [\"0.0.0.0:30000\"]\npools:\n  - connector: shared_storage\n    policy: "
		"random\n    engine: sglang\n    routing_threshold: 1000000000\n    single_engine_role: "
		"decode\n    health_path: \"/health\"\n"
		"    prefill:\n      - {url: \"http://a:1\"}\n"
		"    decode:\n      - {url: \"http://a:1\"}\n"},
};

Test(conf, flags_amount_to)
{
	struct conf_error err;

	for (size_t i = 0; i < NELEMS(amounts); i++) {
		struct conf *c = NULL;
		char *text;

		cr_assert_eq(from(amounts[i].line, &c, &err), 0, "%s\n%s %s", amounts[i].line,
			err.key, err.what);
		cr_expect_null(c->path);
		text = written(c);
		cr_expect_str_eq(text, amounts[i].yaml, "%s\n%s", amounts[i].line, text);
		expect_round_trip(c, text);
		free(text);
		conf_free(&c);
	}
}

/* More of them than a configuration has by default. */
Test(conf, flags_of_many_engines_and_models)
{
	char *urls = NULL, *models = NULL;
	struct conf_error err;
	struct conf *c = NULL;
	char *argv[8] = {(char[]){"pdrouter"}, (char[]){"--routing-logic=roundrobin"}};
	struct conf_args *a = MEM_NEW(struct conf_args);
	size_t n;
	FILE *u = open_memstream(&urls, &n), *m = open_memstream(&models, &n);

	(void)fputs("--static-backends=", u);
	(void)fputs("--static-models=", m);
	for (int i = 0; i < 600; i++) {
		(void)fprintf(u, "%shttp://10.0.%d.%d", i > 0 ? "," : "", i / 256, i % 256);
		(void)fprintf(m, "%sm%d", i > 0 ? "," : "", i % 100);
	}
	(void)fclose(u);
	(void)fclose(m);
	argv[2] = urls;
	argv[3] = models;
	cr_assert_eq(conf_args_parse(4, argv, a, &err), 0);
	cr_assert_eq(conf_from_args(a, &c, &err), 0, "%s: %s", err.key, err.what);
	cr_expect_eq(c->npools, 100);
	cr_expect_geq(c->max_pools, 100);
	cr_expect_geq(c->max_endpoints, 1200);
	conf_free(&c);
	free(a);
	free(urls);
	free(models);
}

struct noted {
	char text[2048];
};

static void
on_note(void *arg, const char *flag, const char *why)
{
	struct noted *n = arg;
	size_t at = strlen(n->text);

	(void)snprintf(n->text + at, sizeof(n->text) - at, "%s: %s\n", flag, why);
}

Test(conf, flags_without_a_meaning_are_told)
{
	static const struct {
		const char *line, *notes;
	} t[] = {
		{SHARED, ""},
		{LMCACHE REGISTRY, ""},
		{SGLANG, ""},
		{"-c x", ""},
		{"-t", ""},
		{LMCACHE REGISTRY "--nixl-finished-req-ttl 120.0 --nixl-cleanup-interval 60",
			"--nixl-finished-req-ttl: notices without a waiting request are dropped at once\n"
			"--nixl-cleanup-interval: notices without a waiting request are dropped at once\n"},
		{SHARED "--max-instance-failover-reroute-attempts 2 --static-backend-health-checks "
			"--static-model-types chat,chat",
			"--static-backend-health-checks: engines are always probed, by health_path\n"
			"--static-model-types: probes use health_path for all models\n"},
		{SHARED "--max-retries 3 --max-concurrent-requests 9 --max-backoff-ms 5 "
			"--max-instance-failover-reroute-attempts 11",
			"--max-backoff-ms: a retry uses another engine at once, without a delay\n"
			"--max-concurrent-requests: it belongs to --pd-disaggregation or --worker-urls\n"
			"--max-retries: it belongs to --enable-retries\n"
			"--max-instance-failover-reroute-attempts: retries is 10, the maximum\n"},
		{SGLANG "--rate-limit-tokens-per-second 5 --retry-max-retries 11 --disable-circuit-breaker",
			"--rate-limit-tokens-per-second: no key limits all clients together: "
			"client.rate limits each client, max_inflight each engine\n"},
		{SHARED "--session-key X --nixl-proxy-port 1 --policy random",
			"--nixl-proxy-port: it belongs to the connector lmcache, which --nixl-proxy-host or "
			"--disagg-connector-type lmcache chooses\n"
			"--session-key: it belongs to --routing-logic session\n"
			"--policy: it belongs to --pd-disaggregation\n"},
		{SHARED REGISTRY,
			"--decoder-registry: it belongs to the connector lmcache, which --nixl-proxy-host or "
			"--disagg-connector-type lmcache chooses\n"},
		{WHOLE "--routing-logic roundrobin --static-model-labels x --routing-threshold 5",
			"--routing-threshold: every engine serves whole requests\n"
			"--static-model-labels: every engine serves whole requests\n"},
		{LMCACHE "--decoder-registry {\"http://b:2/\":{}}", ""},
		{LMCACHE "--decoder-registry {\"http://a:1\":{}}",
			"--decoder-registry: does not name http://b:2: the ports of the other flags apply, or 7300 and "
			"7400\n"
			"--decoder-registry: names http://a:1, which is no decode engine\n"},
		{LMCACHE "--static-backends http://a:1,http://b:2,http://c:2 --static-models m,m,m "
			 "--static-model-labels p,d,d --nixl-peer-host h",
			"--nixl-peer-host: there are several decode engines: each LMCache is expected "
			"at the host of its engine\n"},
		{SGLANG "--prometheus-duration-buckets 0.1 2 --chat-template x --enable-trace",
			"--prometheus-duration-buckets: the buckets of /metrics are fixed\n"
			"--chat-template: the engines have the chat template\n"
			"--enable-trace: use tracing.otlp and tracing.sample in a configuration file\n"},
		{SGLANG "--worker-urls http://x --mini-lb --request-id-headers a b",
			"--mini-lb: there is one router here\n"
			"--request-id-headers: the request id is always in X-Request-Id\n"
			"--worker-urls: with --pd-disaggregation --prefill and --decode name the "
			"engines\n"},
	};

	for (size_t i = 0; i < NELEMS(t); i++) {
		char store[MAX_LINE];
		struct noted n = {""};
		struct conf_args a;
		struct conf_error err;

		cr_assert_eq(args(t[i].line, &a, &err, store), 0, "%s: %s", err.key, err.what);
		conf_args_notes(&a, on_note, &n);
		cr_expect_str_eq(n.text, t[i].notes, "%s", t[i].line);
	}
}

/* Every flag there is can be given: it becomes something, is noted, or is refused by name. */
Test(conf, every_flag_of_the_help_is_known)
{
	static char help[1 << 16];
	FILE *out = fmemopen(help, sizeof(help), "w");
	size_t n = 0;

	conf_args_help(out);
	(void)fclose(out);
	for (const char *p = help; (p = strstr(p, "\n  --")) != NULL; n++) {
		char store[MAX_LINE], line[128];
		struct conf_args a;
		struct conf_error err;
		size_t len = strcspn(p + 3, " \n");

		p += 3;
		if (strncmp(p, "--version", 9) == 0 || strncmp(p, "--print", 7) == 0)
			continue;
		(void)snprintf(line, sizeof(line), "%.*s%s", (int)len, p,
			p[len] == ' ' && p[len + 1] != ' ' ? " 1" : "");
		cr_expect_eq(args(line, &a, &err, store), 0, "%s: %s", line, err.what);
	}
	cr_expect_gt(n, 100, "%zu", n);
}

Test(conf, samples_are_written_and_read_alike)
{
	struct conf_error err;
	glob_t files;

	cr_assert_eq(glob("etc/*.yaml", 0, NULL, &files), 0);
	cr_assert_eq(glob("etc/examples/*.yaml", GLOB_APPEND, NULL, &files), 0);
	cr_assert_geq(files.gl_pathc, 2 + CONNECTOR_N, "an example for each connector");
	for (size_t i = 0; i < files.gl_pathc; i++) {
		const char *file = files.gl_pathv[i];
		struct conf *c = NULL;
		char *text;

		cr_assert_eq(conf_load(file, &c, &err), 0, "%s: %s", file, err.what);
		text = written(c);
		expect_round_trip(c, text);
		free(text);
		conf_free(&c);
	}
	globfree(&files);
}

#define SIBLINGS                                                                                   \
	"siblings: {listen: \"tcp://*:9310\", routers: [\"tcp://10.0.0.2:9310\", "                 \
	"\"tcp://[fd00::2]:9310\"], secret_file: secret}\npools:\n - connector: nixl\n   " KEY_EPS

Test(conf_file, siblings)
{
	struct conf_error err;
	struct kept kept = {.n = 0};
	struct conf *old = NULL, *next = NULL, *again;
	struct conf_siblings_key key;
	char *text;

	write_file("main.yaml", SIBLINGS);
	write_file("secret", "sixteen bytes, or more\n");
	cr_assert_eq(conf_load("main.yaml", &old, &err), 0, "%s", err.what);
	cr_expect_eq(old->nsiblings_routers, 2);
	cr_assert_not_null(old->siblings_key);
	cr_assert_not_null(old->notifier_key);
	key = *old->siblings_key;
	cr_expect(key.digest[0] != 0 && memcmp(key.digest, key.message, sizeof(key.digest)) != 0);
	text = written(old);
	cr_expect_not_null(strstr(text, "tcp://[fd00::2]:9310"), "%s", text);
	again = parse(text); /* the file by its full name */
	cr_expect_eq(memcmp(again->siblings_key, &key, sizeof(key)), 0);
	conf_free(&again);
	free(text);
	write_file("secret", "sixteen bytes, or more"); /* a newline is no part of it */
	cr_assert_eq(conf_load("main.yaml", &next, &err), 0);
	cr_expect_eq(conf_diff(old, next, on_kept, &kept, &err), 0);
	conf_free(&next);
	write_file("secret", "sixteen other bytes\n");
	cr_assert_eq(conf_load("main.yaml", &next, &err), 0);
	cr_expect_neq(memcmp(next->siblings_key, &key, sizeof(key)), 0);
	cr_expect_eq(conf_diff(old, next, on_kept, &kept, &err), CONF_RESTART);
	cr_expect(kept.n == 1 && strcmp(kept.key, "siblings.secret_file") == 0 && kept.line == 1);
	cr_expect_eq(
		memcmp(next->siblings_key, &key, sizeof(key)), 0, "the digests are made with it");
	conf_free(&next);
	write_file("main.yaml", KEY_POOL);
	write_file("key", "sk");
	cr_assert_eq(conf_load("main.yaml", &next, &err), 0);
	(void)conf_diff(old, next, NULL, NULL, &err);
	cr_expect_not_null(next->siblings_key, "until the restart");
	cr_expect_str_eq(next->siblings_listen, "tcp://*:9310");
	cr_expect_eq(next->nsiblings_routers, 0);
	conf_free(&next);
	conf_free(&old);
	/* the other way round: nothing of it before the restart */
	cr_assert_eq(conf_load("main.yaml", &old, &err), 0);
	write_file("main.yaml", SIBLINGS);
	cr_assert_eq(conf_load("main.yaml", &next, &err), 0);
	cr_expect_eq(
		conf_diff(old, next, NULL, NULL, &err), CONF_RESTART | CONF_LIVE, "%s", err.what);
	cr_expect(next->siblings_listen == NULL && next->siblings_key == NULL);
	conf_free(&next);
	conf_free(&old);
}

Test(conf_file, secrets_that_are_none)
{
	static const char *const t[] = {"", "\n", "fifteen bytes..\n"};
	struct conf_error err;
	struct conf *c = NULL;
	char long_one[4096 + 3];

	memset(long_one, 'k', sizeof(long_one) - 1);
	long_one[sizeof(long_one) - 1] = '\0';
	write_file("main.yaml", SIBLINGS);
	for (size_t i = 0; i < NELEMS(t) + 1; i++) {
		write_file("secret", i < NELEMS(t) ? t[i] : long_one);
		cr_expect_eq(conf_load("main.yaml", &c, &err), -1, "%zu", i);
		cr_expect(err.line == 1 && strcmp(err.key, "siblings.secret_file") == 0 &&
				  strstr(err.what, "bytes") != NULL &&
				  strstr(err.what, "fifteen") == NULL,
			"%zu: line %d key %s: %s", i, err.line, err.key, err.what);
	}
}

/* Each key once at another value than its default. */
Test(conf, every_key_is_written)
{
	struct conf *c = parse(
		"listen: [\":80\", '[::1]:81']\nadmin: {listen: [\":82\", \"unix:/run/a\"], socket_mode: 0660, socket_group: adm}\nmetrics_on_client_port: true\n"
		"cors: {origins: [\"https://a.test\"], headers: [X-A], credentials: true}\n"
		"tls: {min_version: 1.3, ciphers: AES128-SHA, max_handshakes: 7, watch: true}\n"
		"workers: 3\ndns_servers: [\"10.0.0.2\"]\n"
		"limits: {max_body: 1GiB, max_head: 16KiB, max_connections: 7, max_answer: 2048B, max_fanout: 9,\n"
		" max_buffered: 2GiB}\n"
		"shared_memory: {max_workers: 4, max_endpoints: 99, max_pools: 12, flags_per_worker: 128, queue: 9, clients: 16,\n"
		" running_requests: 18, recent_requests: 19,\n"
		" max_api_keys: 17, prefix_index: 2MiB}\n"
		"client: {head_timeout: 1s, body_timeout: 2s, idle_timeout: 3m, write_timeout: 4h, max_inflight: 5, rate: 6/m,\n"
		" burst: 7, proxy_networks: [10.9.0.0/16], proxy_protocol: true, forward_address: true, max_silent_connections: 9, id_header: X-Real-IP, tcp_user: 8s}\n"
		"upstream: {idle_timeout: \"250ms\", max_idle: 0}\n"
		"stats_interval: 300ms\nhealth_interval: 1m\nhealth_timeout: 6s\nrise: 1\nfall: 9\n"
		"drain_timeout: 0\nreload_drain_timeout: 9m\nupgrade_drain_timeout: 8m\nupgrade_trial: 2s\nworker_watchdog: 0s\nlog_level: debug\nlog_format: json\nlog_to: journald\nlog_sample: 0.015\ntracing: {sample: 1, otlp: \"http://127.0.0.1:9\", ring: 64KiB}\n"
		"user: nobody\ngroup: nogroup\nsandbox: false\ncontrol_socket: \"\"\ncontrol_socket_mode: 0640\ncontrol_socket_group: adm\nstate_file: /var/lib/x\nlmcache: {listen: \"tcp://*:7501\", networks: [10.8.0.0/16]}\n"
		"announce: {listen: \"tcp://*:1\", forget: 9s}\nsiblings: {networks: [10.7.0.0/16], ring: 32KiB}\npools:\n"
		"- {name: a, models: [\"405\", 'o\"r\\g'], connector: orchestrated, policy: session, prefill_policy: random,\n"
		"   decode_policy: prefix, prefill_load: requests, decode_load: tokens, session_header: X-A,\n"
		"   session_member: user, prefix_bytes: 2KiB, pairing: require, slow_start: 1s, engine: sglang,\n"
		"   orchestrated: {handoff: disagg_prefill_resp, remote_host: keep, kv_lease: 1s, fanout: true},\n"
		"   routing_threshold: 5,\n"
		"   allow_route_header: true, single_engine_role: decode, cached_tokens_from: prefill, health_path: /h,\n"
		"   timeouts: {connect: 1s, prefill: 2s, first_byte: 4s, stream_idle: 3s, whole_answer: 6s, request: 5s, tcp_user: 7s, down_grace: 8s}, retries: 3, retry_budget: 5,\n"
		"   fallback: none, fallback_budget: 7, resume: true, allow_timeout_header: true, eject_failures: 6, eject_rate: 7, max_ejected: 8,\n"
		"   eject_time: 9s, eject_max_time: 10s, eject_slow: true, outlier: {factor: 4, min_samples: 5}, queue_size: 9, queue_timeout: 1s, allow_priority: true, trust_found: true,\n"
		"   priority_header: X-P, load_metrics: {running: r, waiting: w}, tls: {server_name: s.test, verify: false},\n"
		"   kv_events: 'tcp://*:5557', kv_events_replay: 'tcp://*:5558',\n"
		"   dns: [{name: d.test, port: 1, role: decode, weight: 2, group: g}], announce_networks: [10.0.0.0/8],\n"
		"   prefill: [{url: http://p, max_inflight: 3, weight: 4, group: g, bootstrap_host: h, bootstrap_port: 5,\n"
		"              kv_events: 'tcp://10.0.0.1:5557', kv_events_replay: 'tcp://[fd00::1]:5558', dp_ranks: 6}]}\n"
		"- {name: b, connector: lmcache,\n"
		"   lmcache: {first_token: decode, tokenize: decode, kv_ready_timeout: 3s, ready_messages: 1},\n"
		"   prefill: [{url: http://p}], decode: [{url: http://d, receiver_host: r, " PORTS
		"}]}\n"
		"- {name: c, connector: sglang, sglang: {bootstrap: stream, learn_timeout: 1s}, " EPS
		"}\n"
		"- {name: d, connector: shared_storage, disaggregate_agent_paths: true, shared_storage: {cache_hit_threshold: 0.8}, " EPS
		"}\n"
		"- {name: e, connector: nixl, nixl: {transfer_mode: push}, tls: {verify: false},\n"
		"   dns: [{name: e.test, port: 1, scheme: https, role: decode}], " EPS "}\n"
		"- {name: f, connector: p2p_nccl, prefill: [{url: http://p, kv_addr: \":1\"}], decode: [{url: http://d, kv_addr: \"h:1\"}]}\n");
	const struct conf_keys *const tables[] = {&conf_root_keys, &conf_pool_keys,
		&conf_connector_keys, &conf_endpoint_keys, &conf_dns_keys};
	/* of files, which have tests of their own; what has no value but the lists' entries */
	static const char *const apart[] = {"tls.certificates", "tls.listen", "tls.client_ca",
		"endpoints_file", "fleet_file", "engine_api_key_file", "api_keys_file",
		"admin.api_keys_file", "watch", "prefill_labels", "decode_labels", "mooncake",
		"p2p_nccl", "tls.ca", "tls.cert", "tls.key", "siblings.listen", "siblings.routers",
		"siblings.secret_file"};
	char *text = written(c), name[64];

	expect_round_trip(c, text);
	for (size_t t = 0; t < NELEMS(tables); t++)
		for (size_t i = 0; i < tables[t]->n; i++) {
			const char *path = tables[t]->key[i].path, *dot = strrchr(path, '.');
			size_t k = 0;

			while (k < NELEMS(apart) && strcmp(apart[k], path) != 0)
				k++;
			(void)snprintf(name, sizeof(name), "%s: ", dot != NULL ? dot + 1 : path);
			name[strlen(name) - 1] = '\0';
			cr_expect(k < NELEMS(apart) || strstr(text, name) != NULL,
				"%s is not written:\n%s", path, text);
		}
	free(text);
	conf_free(&c);
}

Test(conf_file, files_are_written_by_their_full_names)
{
	struct conf_error err;
	struct conf *c = NULL;
	char *text, full[128];

	write_file("key", "sk");
	write_file("eps.yaml", "- {url: http://a, label: p}\n- {url: http://b, label: d}\n");
	write_file("main.yaml",
		"pools: [{connector: nixl, endpoints_file: eps.yaml, engine_api_key_file: key, watch: true,\n"
		" prefill_labels: [p], decode_labels: [d, e]}]\n");
	cr_assert_eq(conf_load("main.yaml", &c, &err), 0, "%s", err.what);
	text = written(c);
	for (int i = 0; i < 2; i++) {
		(void)snprintf(full, sizeof(full), "%s: \"%s/%s\"\n",
			i == 0 ? "endpoints_file" : "engine_api_key_file", dir,
			i == 0 ? "eps.yaml" : "key");
		cr_expect_not_null(strstr(text, full), "%s", text);
	}
	cr_expect_null(strstr(text, "http://"), "%s", text);
	conf_free(&c);
	c = parse(text);
	cr_expect_eq(c->pools[0].nendpoints, 2);
	cr_expect_eq(c->pools[0].ndecode_labels, 2);
	cr_expect(c->pools[0].watch);
	conf_free(&c);
	free(text);
}

/* A row whose doc or default is nonsense would only be seen by an operator. */
Test(conf, table_rows)
{
	const struct conf_keys *const tables[] = {
		&conf_root_keys, &conf_pool_keys, &conf_file_keys};

	for (size_t t = 0; t < NELEMS(tables); t++)
		for (size_t i = 0; i < tables[t]->n; i++) {
			const struct conf_key *k = &tables[t]->key[i];

			cr_expect_gt(strlen(k->doc), 5, "%s", k->path);
			cr_expect_leq(k->min, k->max, "%s", k->path);
			for (size_t j = 0; j < i; j++)
				cr_expect_str_neq(k->path, tables[t]->key[j].path);
		}
}
