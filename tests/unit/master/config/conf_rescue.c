/* The keys of what happens when engines fail or are full: defaults, bounds, what must hold between them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf.h"
#include "master/config/conf_keys.h"

#define NELEMS(v) (sizeof(v) / sizeof((v)[0]))
#define SEC UINT64_C(1000)
#define EPS "prefill: [{url: \"http://p\"}], decode: [{url: \"http://d\"}]"
#define POOLS "pools: [{connector: nixl, " EPS "}]\n"
/* the key in the pool's first line, the text's third */
#define POOL(connector, keys)                                                                      \
	"pools:\n - connector: " connector "\n   " keys "\n   prefill: [{url: http://p}]\n"        \
	"   decode: [{url: http://d}]\n"

static struct conf *
parse(const char *text)
{
	struct conf_error err;
	struct conf *c = NULL;
	char buf[800];

	cr_assert_eq(conf_parse("t.yaml", text, strlen(text), &c, &err), 0, "%s\n%s",
		conf_error_text(&err, buf, sizeof(buf)), text);
	return c;
}

static void
expect_bad(const char *text, int line, const char *key, const char *word)
{
	struct conf_error err = {.line = -1};
	struct conf *c = NULL;

	cr_expect_eq(conf_parse("t.yaml", text, strlen(text), &c, &err), -1, "%s", text);
	cr_expect(err.line == line && strcmp(err.key, key) == 0 && strstr(err.what, word) != NULL,
		"%s-> line %d key %s: %s (expected %d, %s: ..%s..)", text, err.line, err.key,
		err.what, line, key, word);
	conf_free(&c);
}

Test(conf_rescue, defaults)
{
	struct conf *c = parse(POOLS);
	const struct conf_pool *p = &c->pools[0];

	cr_expect_eq(p->rescue.retries, 2);
	cr_expect_eq(p->rescue.retry_budget, 20);
	cr_expect_eq(p->rescue.fallback, FALLBACK_DIRECT);
	cr_expect_eq(p->rescue.fallback_budget, 8192);
	cr_expect_eq(p->rescue.resume, 0);
	cr_expect_eq(p->rescue.allow_timeout_header, 0);
	cr_expect_eq(p->ejection.failures, 5);
	cr_expect_eq(p->ejection.rate, 50);
	cr_expect_eq(p->ejection.max_percent, 50);
	cr_expect_eq(p->ejection.time_ms, 10 * SEC);
	cr_expect_eq(p->ejection.max_ms, 300 * SEC);
	cr_expect_eq(p->ejection.slow, 0);
	cr_expect_eq(p->outlier.factor, 3);
	cr_expect_eq(p->outlier.min_samples, 20);
	cr_expect_eq(p->queue.size, 100);
	cr_expect_eq(p->queue.timeout_ms, 60 * SEC);
	cr_expect_eq(p->queue.allow_priority, 0);
	cr_expect_str_eq(p->priority_header, "X-Vllm-Priority");
	cr_expect_eq(p->timeouts.first_byte_ms, 120 * SEC);
	cr_expect_eq(p->timeouts.request_ms, 0);
	cr_expect_eq(c->live.client_max_inflight, 0);
	cr_expect_eq(c->live.client_rate.n, 0);
	cr_expect_eq(c->live.client_burst, 0);
	cr_expect_null(c->client_id_header);
	cr_expect_eq(c->live.max_buffered, UINT64_C(1) << 30);
	cr_expect_eq(c->queue_slots, 1024);
	cr_expect_eq(c->client_entries, 4096);
	conf_free(&c);
}

Test(conf_rescue, every_key)
{
	struct conf *c = parse(
		"client: {max_inflight: 3, rate: 4/m, burst: 5}\nlimits: {max_buffered: 64MiB}\n"
		"shared_memory: {queue: 6, clients: 8}\n" POOL("nixl",
			"retries: 7\n   retry_budget: 8\n   fallback: none\n   fallback_budget: 19\n   resume: true\n"
			"   allow_timeout_header: true\n   eject_failures: 9\n   eject_rate: 10\n"
			"   max_ejected: 11\n   eject_time: 12s\n   eject_max_time: 13s\n   eject_slow: true\n"
			"   outlier: {factor: 17, min_samples: 18}\n   queue_size: 6\n"
			"   queue_timeout: 14s\n   allow_priority: true\n   priority_header: X-P\n"
			"   timeouts: {first_byte: 15s, request: 16s}"));
	const struct conf_pool *p = &c->pools[0];

	cr_expect_eq(p->rescue.retries, 7);
	cr_expect_eq(p->rescue.retry_budget, 8);
	cr_expect_eq(p->rescue.fallback, FALLBACK_NONE);
	cr_expect_eq(p->rescue.fallback_budget, 19);
	cr_expect_eq(p->rescue.resume, 1);
	cr_expect_eq(p->rescue.allow_timeout_header, 1);
	cr_expect_eq(p->ejection.failures, 9);
	cr_expect_eq(p->ejection.rate, 10);
	cr_expect_eq(p->ejection.max_percent, 11);
	cr_expect_eq(p->ejection.time_ms, 12 * SEC);
	cr_expect_eq(p->ejection.max_ms, 13 * SEC);
	cr_expect_eq(p->ejection.slow, 1);
	cr_expect_eq(p->outlier.factor, 17);
	cr_expect_eq(p->outlier.min_samples, 18);
	cr_expect_eq(p->queue.size, 6);
	cr_expect_eq(p->queue.timeout_ms, 14 * SEC);
	cr_expect_eq(p->queue.allow_priority, 1);
	cr_expect_str_eq(p->priority_header, "X-P");
	cr_expect_eq(p->timeouts.first_byte_ms, 15 * SEC);
	cr_expect_eq(p->timeouts.request_ms, 16 * SEC);
	cr_expect_eq(c->live.client_max_inflight, 3);
	cr_expect_eq(c->live.client_rate.n, 4);
	cr_expect_eq(c->live.client_rate.per_s, 60);
	cr_expect_eq(c->live.client_burst, 5);
	cr_expect_eq(c->live.max_buffered, UINT64_C(64) << 20);
	cr_expect_eq(c->queue_slots, 6);
	cr_expect_eq(c->client_entries, 8);
	conf_free(&c);
}

/* Both ends of each key are taken; what lies beyond, and what is of another kind, is not. */
Test(conf_rescue, bounds)
{
	static const struct {
		const char *section, *key; /* section NULL: of the pool */
		const char *good[2], *bad[3], *word;
	} t[] = {
		{NULL, "retries", {"0", "10"}, {"11", "-1", "2.0"}, ""},
		{NULL, "retry_budget", {"0", "100"}, {"101", "20%", "some"}, ""},
		{NULL, "fallback", {"direct", "none"}, {"true", "decode", "None"}, "direct, none"},
		{NULL, "fallback_budget", {"0", "1000000000"}, {"1000000001", "50%", "8k"}, ""},
		{NULL, "resume", {"true", "false"}, {"1", "yes", "[true]"}, ""},
		{NULL, "allow_timeout_header", {"true", "false"}, {"0", "on", "x"}, ""},
		{NULL, "eject_failures", {"0", "255"}, {"256", "-1", "5s"}, ""},
		{NULL, "eject_rate", {"0", "100"}, {"101", "0.5", "50%"}, ""},
		{NULL, "max_ejected", {"0", "100"}, {"101", "0.5", "50%"}, ""},
		{NULL, "eject_time", {"1ms", "1h"}, {"0", "61m", "10"}, ""},
		{NULL, "eject_max_time", {"10s", "24h"}, {"0", "25h", "300"}, ""},
		{NULL, "eject_slow", {"true", "false"}, {"1", "slow", "3"}, ""},
		{"outlier", "factor", {"0", "1000"}, {"1001", "2.5", "-1"}, ""},
		{"outlier", "min_samples", {"1", "31"}, {"0", "32", "many"}, ""},
		{NULL, "queue_size", {"0", "1024"}, {"65537", "-1", "100k"}, ""},
		{NULL, "queue_timeout", {"1ms", "1h"}, {"0", "2h", "60"}, ""},
		{NULL, "allow_priority", {"true", "false"}, {"1", "low", "{}"}, ""},
		{NULL, "priority_header", {"X-P", "\"\""}, {"\"a b\"", "X-Request-Id", "5"}, ""},
		{"timeouts", "first_byte", {"1ms", "24h"}, {"0", "25h", "5"}, ""},
		{"timeouts", "stream_idle", {"1ms", "24h"}, {"0", "25h", "5"}, ""},
		{"timeouts", "whole_answer", {"1ms", "24h"}, {"0", "25h", "5"}, ""},
		{"timeouts", "down_grace", {"0", "1h"}, {"2h", "-1s", "5"}, ""},
		{"timeouts", "tcp_user", {"0", "1h"}, {"999ms", "2h", "5"}, ""},
		{"timeouts", "request", {"0", "24h"}, {"25h", "5", "none"}, ""},
		{"client", "max_inflight", {"0", "1000000"}, {"1000001", "-1", "many"}, ""},
		{"client", "rate", {"0/m", "1000000"}, {"1000001", "0.5", "10/d"}, "0"},
		{"client", "rate", {"1/h", "10/s"}, {"1000001/h", "10 /m", "/m"}, "0"},
		{"client", "id_header", {"X-Real-IP", "\"\""}, {"\"a b\"", "Host", "5"}, ""},
		{"limits", "max_buffered", {"64MiB", "1024GiB"}, {"1GB", "1", "1025GiB"}, ""},
		{"shared_memory", "queue", {"100", "65536"}, {"65537", "-1", "1KiB"}, ""},
		{"shared_memory", "clients", {"8", "65536"}, {"0", "12", "65544"}, ""},
	};

	for (size_t i = 0; i < NELEMS(t); i++)
		for (size_t k = 0; k < 5; k++) {
			const char *value = k < 2 ? t[i].good[k] : t[i].bad[k - 2];
			const bool root = t[i].section != NULL && t[i].section[0] != 't' &&
					  t[i].section[0] != 'o';
			char key[96], text[512], path[128];
			struct conf *c;

			(void)snprintf(key, sizeof(key),
				t[i].section != NULL ? "%s: {%s: %s}" : "%s%s: %s",
				t[i].section != NULL ? t[i].section : "", t[i].key, value);
			(void)snprintf(text, sizeof(text),
				root ? POOLS "%s\n"
				     : "pools:\n - connector: nixl\n   %s\n   prefill: [{url: http://p}]\n"
				       "   decode: [{url: http://d}]\n",
				key);
			(void)snprintf(path, sizeof(path), "%s%s%s%s", root ? "" : "pools[0].",
				t[i].section != NULL ? t[i].section : "",
				t[i].section != NULL ? "." : "", t[i].key);
			if (k < 2) {
				c = parse(text);
				conf_free(&c);
			} else {
				expect_bad(text, root ? 2 : 3, path, t[i].word);
			}
		}
}

Test(conf_rescue, defaults_that_depend_on_others)
{
	static const struct {
		const char *text;
		enum fallback_kind fallback;
		uint64_t first_byte_s, eject_max_s;
	} t[] = {
		{POOL("orchestrated", "name: x"), FALLBACK_DIRECT, 120, 300},
		{POOL("shared_storage", "name: x"), FALLBACK_DIRECT, 120, 300},
		{POOL("mooncake", "name: x"), FALLBACK_DIRECT, 120, 300},
		{POOL("sglang", "name: x"), FALLBACK_NONE, 120, 300},
		{POOL("sglang", "fallback: none"), FALLBACK_NONE, 120, 300},
		{"pools: [{connector: p2p_nccl, prefill: [{url: http://p, kv_addr: \":1\"}], decode: [{url: http://d, "
		 "kv_addr: \":1\"}]}]\n",
			FALLBACK_NONE, 120, 300},
		{POOL("nixl", "timeouts: {whole_answer: 30s}"), FALLBACK_DIRECT, 120, 300},
		{POOL("nixl", "timeouts: {first_byte: 40s}"), FALLBACK_DIRECT, 40, 300},
		{POOL("nixl", "eject_time: 1s"), FALLBACK_DIRECT, 120, 300},
		{POOL("nixl", "eject_time: 10m"), FALLBACK_DIRECT, 120, 600},
	};

	for (size_t i = 0; i < NELEMS(t); i++) {
		struct conf *c = parse(t[i].text);
		const struct conf_pool *p = &c->pools[0];

		cr_expect_eq(p->rescue.fallback, t[i].fallback, "%s", t[i].text);
		cr_expect_eq(p->timeouts.first_byte_ms, t[i].first_byte_s * SEC, "%s", t[i].text);
		cr_expect_eq(p->ejection.max_ms, t[i].eject_max_s * SEC, "%s", t[i].text);
		conf_free(&c);
	}
}

Test(conf_rescue, what_does_not_go_together)
{
	expect_bad(POOL("sglang", "fallback: direct"), 3, "pools[0].fallback",
		"decode engines of the connector sglang cannot serve without a prefill engine: write none");
	expect_bad(
		"pools: [{connector: p2p_nccl, fallback: direct, prefill: [{url: http://p, kv_addr: \":1\"}],\n"
		" decode: [{url: http://d, kv_addr: \":1\"}]}]\n",
		1, "pools[0].fallback", "p2p_nccl");
	expect_bad(POOL("nixl", "retries: 0\n   resume: true"), 4, "pools[0].resume",
		"retries: 0 allows none");
	expect_bad(POOL("nixl", "eject_max_time: 9s"), 3, "pools[0].eject_max_time",
		"is less than eject_time");
	expect_bad(POOLS "client: {burst: 5}\n", 2, "client.burst", "without client.rate");
	expect_bad(POOLS "client: {rate: 0, burst: 5}\n", 2, "client.burst", "without client.rate");
	expect_bad(POOLS "limits: {max_buffered: 1MiB}\n", 2, "limits.max_buffered",
		"is less than limits.max_body");
	expect_bad(POOLS "limits: {max_body: 2GiB, max_buffered: 1GiB}\n", 2, "limits.max_buffered",
		"no request of that size");
	expect_bad(POOL("nixl", "queue_size: 1025"), 3, "pools[0].queue_size",
		"1025 waiting requests are more than shared_memory.queue has room for: write at most 1024, or "
		"1025 there");
	/* whichever comes first in the file */
	expect_bad("shared_memory: {queue: 5}\n" POOL("nixl", "queue_size: 6"), 4,
		"pools[0].queue_size", "write at most 5, or 6 there");
	expect_bad(POOL("nixl", "queue_size: 6") "shared_memory: {queue: 5}\n", 3,
		"pools[0].queue_size", "write at most 5, or 6 there");
	expect_bad("shared_memory: {queue: 5}\npools:\n - {connector: nixl, " EPS "}\n"
		   " - {name: b, connector: nixl, queue_size: 6, " EPS "}\n",
		4, "pools[1].queue_size", "write at most 5");
}

/* Only what is asked for is an error: a default gives way. */
Test(conf_rescue, defaults_give_way)
{
	static const struct {
		const char *text;
		uint32_t queue_size;
		uint64_t max_buffered;
	} t[] = {
		{POOLS "shared_memory: {queue: 64}\n", 64, UINT64_C(1) << 30},
		{POOLS "shared_memory: {queue: 0}\n", 0, UINT64_C(1) << 30},
		{"shared_memory: {queue: 2000}\n" POOLS, 100, UINT64_C(1) << 30},
		{POOLS "limits: {max_body: 2GiB}\n", 100, UINT64_C(2) << 30},
	};

	for (size_t i = 0; i < NELEMS(t); i++) {
		struct conf *c = parse(t[i].text);

		cr_expect_eq(c->pools[0].queue.size, t[i].queue_size, "%s", t[i].text);
		cr_expect_eq(c->live.max_buffered, t[i].max_buffered, "%s", t[i].text);
		conf_free(&c);
	}
}

static int
diff(const char *was, const char *becomes, struct conf_error *err, struct conf **ret_next)
{
	struct conf *old = parse(was);
	int classes;

	*ret_next = parse(becomes);
	classes = conf_diff(old, *ret_next, NULL, NULL, err);
	conf_free(&old);
	return classes;
}

Test(conf_rescue, what_a_reload_does_with_each)
{
	static const struct {
		const char *text;
		int classes;
	} t[] = {
		{POOL("nixl", "retries: 3"), CONF_LIVE},
		{POOL("nixl", "retry_budget: 3"), CONF_LIVE},
		{POOL("nixl", "fallback: none"), CONF_LIVE},
		{POOL("nixl", "fallback: direct"), 0},
		{POOL("nixl", "fallback_budget: 3"), CONF_LIVE},
		{POOL("nixl", "fallback_budget: 8192"), 0},
		{POOL("nixl", "resume: true"), CONF_LIVE},
		{POOL("nixl", "allow_timeout_header: true"), CONF_LIVE},
		{POOL("nixl", "eject_failures: 3"), CONF_LIVE},
		{POOL("nixl", "eject_rate: 3"), CONF_LIVE},
		{POOL("nixl", "max_ejected: 3"), CONF_LIVE},
		{POOL("nixl", "eject_time: 3s"), CONF_LIVE},
		{POOL("nixl", "eject_max_time: 30s"), CONF_LIVE},
		{POOL("nixl", "eject_slow: true"), CONF_LIVE},
		{POOL("nixl", "outlier: {factor: 4}"), CONF_LIVE},
		{POOL("nixl", "queue_size: 3"), CONF_LIVE},
		{POOL("nixl", "queue_timeout: 3s"), CONF_LIVE},
		{POOL("nixl", "allow_priority: true"), CONF_LIVE},
		{POOL("nixl", "priority_header: X-Other"), CONF_LIVE},
		{POOL("nixl", "priority_header: \"\""), CONF_LIVE},
		{POOL("nixl", "timeouts: {first_byte: 3s}"), CONF_LIVE},
		{POOL("nixl", "timeouts: {stream_idle: 3s}"), CONF_LIVE},
		{POOL("nixl", "timeouts: {whole_answer: 3s}"), CONF_LIVE},
		{POOL("nixl", "timeouts: {request: 3s}"), CONF_LIVE},
		{POOL("nixl", "timeouts: {request: 0}"), 0},
		{POOL("nixl", "name: pool1") "client: {max_inflight: 3}\n", CONF_LIVE},
		{POOL("nixl", "name: pool1") "client: {rate: 3}\n", CONF_LIVE},
		{POOL("nixl", "name: pool1") "client: {rate: 0/h}\n", 0},
		{POOL("nixl", "name: pool1") "client: {id_header: X-User}\n", CONF_GENERATION},
		{POOL("nixl", "name: pool1") "limits: {max_buffered: 2GiB}\n", CONF_LIVE},
		{POOL("nixl", "name: pool1") "shared_memory: {queue: 2048}\n", CONF_RESTART},
		{POOL("nixl", "name: pool1") "shared_memory: {clients: 64}\n", CONF_RESTART},
	};
	struct conf_error err;
	struct conf *next;

	for (size_t i = 0; i < NELEMS(t); i++) {
		cr_expect_eq(diff(POOLS, t[i].text, &err, &next), t[i].classes, "%s", t[i].text);
		conf_free(&next);
	}
}

/* The shared memory is as large as it was at the start: what a reload asks for must fit into that. */
Test(conf_rescue, a_reload_keeps_within_the_shared_memory)
{
	static const char small[] = POOLS "shared_memory: {queue: 10}\n";
	struct conf_error err;
	struct conf *next;

	cr_expect_eq(diff(small, POOL("nixl", "queue_size: 11") "shared_memory: {queue: 20}\n",
			     &err, &next),
		-1);
	cr_expect_str_eq(err.key, "pools[0].queue_size");
	cr_expect_eq(err.line, 3);
	cr_expect_not_null(strstr(err.what, "write at most 10"), "%s", err.what);
	conf_free(&next);
	/* the default follows what there is, not what the file now says */
	cr_expect_eq(diff(small, POOLS, &err, &next), CONF_RESTART);
	cr_expect_eq(next->queue_slots, 10);
	cr_expect_eq(next->pools[0].queue.size, 10);
	conf_free(&next);
	cr_expect_eq(diff(POOLS, POOLS "shared_memory: {queue: 10}\n", &err, &next), CONF_RESTART);
	cr_expect_eq(next->pools[0].queue.size, 100);
	conf_free(&next);
}
