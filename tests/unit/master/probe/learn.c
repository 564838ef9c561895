/* What the fleet learns of engines, what it waits for, and what it does not believe. */
#include "tests/unit/master/engines.h"

#include <stdlib.h>

#include "master/probe/health.h"
#include "master/probe/learn.h"

#define JSON(text) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" text
#define STATUS(n) "HTTP/1.1 " n " x\r\nContent-Length: 0\r\n\r\n"
#define INFO(mode, port)                                                                           \
	JSON("{\"disaggregation_mode\":\"" mode "\",\"disaggregation_bootstrap_port\":" port       \
	     ",\"version\":\"0.5.9\"}")

TestSuite(learn, .init = engines_setup, .fini = engines_teardown, .timeout = 200);

static struct conf_pool *
one_pool(enum role role, enum engine_kind engine, const char *model)
{
	struct conf_pool *p = conf_pool(conf_make(), "main", model);

	p->engine = engine;
	for (size_t i = 0; i < nfakes; i++)
		conf_endpoint(p, role, fakes[i].url);
	return p;
}

static void
go(void)
{
	apply(confs[nconfs - 1]);
}

static struct runtime *
runtime_of(const struct fake *f)
{
	return &endpoint_of(f->url)->engine.runtime;
}

static const char *
contradiction(const struct fake *f)
{
	static char buf[256];

	return learn_contradiction(&endpoint_of(f->url)->engine, buf, sizeof(buf));
}

static bool
has_version(void *f)
{
	return row_of(((struct fake *)f)->url)->version[0] != '\0';
}

static bool
has_port(void *f)
{
	return row_of(((struct fake *)f)->url)->bootstrap_port != 0;
}

Test(learn, a_vllm_engine_is_up_before_all_of_it_is_known)
{
	struct fake *f = fake_new("127.0.0.1");

	f->models = MODELS("{\"id\":\"m\",\"max_model_len\":8192},"
			   "{\"id\":\"lora\",\"max_model_len\":4096,\"parent\":\"m\"}");
	f->version = JSON("{\"version\":\"0.33.0\"}");
	one_pool(ROLE_DECODE, ENGINE_VLLM, "m");
	go();
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(f->nmodels, 1);
	cr_assert(wait_for(has_version, f, 5000));
	cr_assert_str_eq(row_of(f->url)->version, "0.33.0");
	cr_assert_eq(row_of(f->url)->max_context, 8192);
	cr_assert_eq(table_now()->pools[0].nmodels, 1, "the configured ones are");
	cr_assert_eq(row_of(f->url)->bootstrap_port, 0);
	cr_assert_eq(f->ninfo, 0);
	cr_assert_eq(table_now()->version, 2, "all of it in one publication");
	cr_assert_str_empty(contradiction(f));
}

Test(learn, an_sglang_engine_is_not_up_before)
{
	struct fake *f = fake_new("127.0.0.1");

	f->info = RESET;
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	run_for(20);
	cr_assert_neq(state_of(f), EP_UP);
	f->info = INFO("prefill", "9001");
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(row_of(f->url)->bootstrap_port, 9001, "a worker that sees it UP has the port");
	cr_assert_str_eq(row_of(f->url)->bootstrap_host, "127.0.0.1");
	cr_assert_str_eq(row_of(f->url)->version, "0.5.9");
	cr_assert_eq(f->nversion, 0);
	cr_assert_eq(f->nold_info, 0);
	cr_assert_str_empty(contradiction(f));
}

Test(learn, the_older_name_of_server_info)
{
	struct fake *f = fake_new("127.0.0.1");

	f->old_info = INFO("prefill", "9001");
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(row_of(f->url)->bootstrap_port, 9001);
}

Test(learn, an_engine_that_says_nothing_is_used_as_configured)
{
	static const char *const nothing[] = {ABSENT, STATUS("401"), STATUS("500"), STATUS("200"),
		JSON("[1]"), JSON("{\"a\":1}"), JSON("{\"version\":\"0.5.9\"")};
	struct fake *f = fake_new("127.0.0.1");
	struct conf_pool *p;

	for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
		f->info = nothing[i];
		p = one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
		p->endpoints[0].bootstrap_port = 7000;
		go();
		f->health = OK;
		cr_assert(wait_for(is_up, f, 5000), "%s", nothing[i]);
		cr_assert_eq(row_of(f->url)->bootstrap_port, 7000);
		cr_assert_eq(runtime_of(f)->bootstrap_port, 0);
		cr_assert_str_empty(contradiction(f));
		f->health = UNHEALTHY;
		cr_assert(wait_for(is_down, f, 5000));
	}
}

Test(learn, server_info_without_an_answer_is_not_waited_for_for_ever)
{
	struct fake *f = fake_new("127.0.0.1");

	f->info = CLOSES;
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	cr_assert(wait_for(is_up, f, 10000));
	cr_assert_geq(f->ninfo, 5);
	cr_assert_leq(f->ninfo, 6);
}

Test(learn, models_still_gate_where_none_are_named)
{
	struct fake *f = fake_new("127.0.0.1");

	f->models = STATUS("404");
	f->info = INFO("decode", "8998");
	one_pool(ROLE_DECODE, ENGINE_SGLANG, NULL);
	go();
	run_for(400);
	cr_assert_neq(state_of(f), EP_UP);
	cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine), "GET /v1/models: status 404");
	f->models = MODELS("{\"id\":\"a\"},{\"id\":\"lora\",\"parent\":\"a\"}");
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(row_of(f->url)->nmodels, 2);
	cr_assert_eq(row_of(f->url)->bootstrap_port, 0, "a decode engine has none");
	f->info = JSON("{\"disaggregation_bootstrap_port\":8998,\"version\":\"0.4.6\"}");
	run_for(15 * 50 * 3 / 2 + 300);
	cr_assert_str_eq(row_of(f->url)->version, "0.4.6");
	cr_assert_eq(row_of(f->url)->bootstrap_port, 0, "whatever its args say");
}

static unsigned rounds; /* of queries: so many are awaited */

static bool
has_asked(void *f)
{
	return ((struct fake *)f)->nmodels > rounds; /* the last of them has ended */
}

#define CARD(created, perm, len)                                                                   \
	"{\"id\":\"m\",\"created\":" created ",\"max_model_len\":" len                             \
	",\"permission\":[{\"id\":\"modelperm-" perm "\",\"created\":" created "}]}"

static bool
has_4k(void *f)
{
	return row_of(((struct fake *)f)->url)->max_context == 4096;
}

/* As vLLM answers: with the time and with ids that are drawn anew. */
Test(learn, a_list_is_read_again_if_it_tells_something_else)
{
	struct fake *f = fake_new("127.0.0.1");
	const struct model_set *set;
	char **read;

	f->models = MODELS(CARD("1700000000", "00ff", "8192"));
	one_pool(ROLE_DECODE, ENGINE_VLLM, NULL);
	confs[nconfs - 1]->health_interval_ms = 10;
	go();
	cr_assert(wait_for(is_up, f, 5000));
	set = &endpoint_of(f->url)->engine.models;
	read = set->names;
	rounds = f->nmodels + 1; /* one may have begun */
	f->models = MODELS(CARD("1700000033", "a1b2", "8192"));
	cr_assert(wait_for(has_asked, f, 5000));
	cr_assert_eq(set->names, read, "nothing was allocated for it");
	cr_assert_eq(row_of(f->url)->max_context, 8192);
	f->models = MODELS(CARD("1700000066", "c3d4", "4096"));
	cr_assert(wait_for(has_4k, f, 5000));
	cr_assert_neq(set->names, read);
}

Test(learn, the_version_is_asked_in_one_round_of_ten)
{
	struct fake *f = fake_new("127.0.0.1");

	f->version = JSON("{\"version\":\"0.33.0\"}");
	one_pool(ROLE_DECODE, ENGINE_VLLM, NULL);
	confs[nconfs - 1]->health_interval_ms = 10;
	go();
	rounds = 20;
	cr_assert(wait_for(has_asked, f, 10000));
	cr_assert_eq(f->nversion, 2, "in rounds 0 and 10");
	cr_assert_str_eq(runtime_of(f)->version, "0.33.0");
}

static uint64_t
digest(const char *text, const char *wanted)
{
	return models_digest(text, strlen(text), &wanted, wanted != NULL);
}

Test(learn, a_digest_of_a_list_leaves_out_what_is_drawn_anew)
{
	static const char *const cards[] = {
		CARD("170000000", "00ff", "8192"), CARD("18", "a1b2c3d4", "8192")};
	/* what is told of a model is never left out, whatever it looks like */
	static const char *const others[] = {"", "{\"id\":\"modelperm-1\"}",
		"{\"id\":\"modelperm-2\"}", "{\"root\":\"\\\"created\\\":1\"}",
		"{\"root\":\"\\\"created\\\":2\"}", "{\"created\":1}", "{\"created\":\"1\"}",
		"{\"created\":\"2\"}", "{\"created\":1a}", "{\"max_model_len\":1}",
		"{\"permission\":[{\"id\":\"1\"}],\"root\":\"1\"}",
		"{\"permission\":[{\"id\":\"2\"}],\"root\":\"2\"}", "{\"max_model_len\":2}",
		"{\"parent\":\"1\"}", "{\"parent\":\"2\"}", "{\"owned_by\":\"1\"}",
		"{\"owned_by\":\"2\"}", CARD("1", "2", "3")};
	const size_t n = sizeof(others) / sizeof(others[0]);

	cr_assert_eq(digest(cards[0], NULL), digest(cards[1], NULL));
	cr_assert_neq(digest(cards[0], NULL), digest(cards[0], "m"), "the pool names other models");
	cr_assert_neq(digest(cards[0], "l"), digest(cards[0], "m"));
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			cr_assert_neq(
				digest(others[i], NULL), digest(others[k], NULL), "%s", others[i]);
}

static bool
is_misconfigured(void *f)
{
	return state_of(f) == EP_MISCONFIGURED;
}

Test(learn, configured_values_win_and_contradictions_are_told)
{
	struct fake *f = fake_new("127.0.0.1"), *g = fake_new("127.0.0.1");
	struct conf_pool *p;

	f->info = INFO("prefill", "9001");
	g->info = INFO("decode", "9001");
	f->models = g->models = MODELS("{\"id\":\"m\"}");
	p = one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	p->endpoints[0].bootstrap_port = 7000;
	go();
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert(wait_for(is_misconfigured, g, 5000), "all its requests would fail");
	cr_assert_eq(row_of(f->url)->bootstrap_port, 7000);
	cr_assert_str_eq(
		contradiction(f), "bootstrap_port is configured as 7000, but it says 9001");
	cr_assert_str_eq(
		contradiction(g), "listed as prefill engine, but says it is a decode engine");
	cr_assert_eq(row_of(g->url)->bootstrap_port, 0, "nobody listens there");
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "other"); /* a reload */
	go();
	cr_assert_eq(
		row_of(f->url)->bootstrap_port, 9001, "the key is gone, the learned one stays");
	cr_assert_str_eq(contradiction(f), "serves m, but none of the configured models");
	cr_assert(wait_for(is_misconfigured, f, 5000));
}

/* Of a long list the configured models are taken wherever they stand. */
Test(learn, a_configured_model_behind_256_others)
{
	struct fake *f = fake_new("127.0.0.1"), *g = fake_new("127.0.0.1");
	char list[16 << 10], answer[20 << 10];
	size_t n = 0;

	for (int i = 0; i < 300; i++)
		n += (size_t)snprintf(
			list + n, sizeof(list) - n, "%s{\"id\":\"lora-%d\"}", i > 0 ? "," : "", i);
	(void)snprintf(answer, sizeof(answer), MODELS("%s"), list);
	f->models = answer;
	g->models = MODELS("{\"id\":\"lora-299\"}");
	one_pool(ROLE_DECODE, ENGINE_VLLM, "lora-299");
	go();
	cr_assert(wait_for(is_up, f, 5000) && wait_for(is_up, g, 5000));
	cr_expect_str_empty(contradiction(f));
	cr_expect_eq(endpoint_of(f->url)->engine.models.n, MODELS_MAX + 1);
	one_pool(ROLE_DECODE, ENGINE_VLLM, "lora-300"); /* a reload */
	go();
	cr_assert(wait_for(is_misconfigured, f, 5000));
}

Test(learn, another_engine_may_come_back)
{
	struct fake *f = fake_new("127.0.0.1");

	f->info = INFO("prefill", "9001");
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	cr_assert(wait_for(is_up, f, 5000));
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	f->info = RESET;
	f->health = OK;
	run_for(100);
	cr_assert_eq(state_of(f), EP_DOWN, "it has not said anything yet");
	f->info = JSON(
		"{\"disaggregation_mode\":\"prefill\",\"disaggregation_bootstrap_port\":9002}");
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(row_of(f->url)->bootstrap_port, 9002);
	cr_assert_str_empty(row_of(f->url)->version, "the former engine's");
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	f->info = ABSENT;
	f->health = OK;
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(row_of(f->url)->bootstrap_port, 0, "nor its port");
}

static bool
has_new_port(void *f)
{
	return row_of(((struct fake *)f)->url)->bootstrap_port == 9002;
}

Test(learn, another_port_is_published_before_it_is_up_again)
{
	struct fake *f = fake_new("127.0.0.1");
	uint64_t life;

	f->info = INFO("prefill", "9001");
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	cr_assert(wait_for(is_up, f, 5000));
	life = restart_life(seg, endpoint_of(f->url)->engine.slot);
	f->info = INFO("prefill", "9002");
	for (uint64_t end = clock_ms() + 5000; !has_new_port(f); run_for(1)) {
		cr_assert_lt(clock_ms(), end);
		if (restart_life(seg, endpoint_of(f->url)->engine.slot) != life)
			cr_assert(has_new_port(f) || state_of(f) != EP_UP);
	}
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(restart_life(seg, endpoint_of(f->url)->engine.slot), life + 1);
}

Test(learn, what_is_known_later_is_no_new_life)
{
	struct fake *f = fake_new("127.0.0.1");
	uint64_t life;

	f->info = JSON("{\"disaggregation_mode\":\"prefill\"}");
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	cr_assert(wait_for(is_up, f, 5000));
	life = restart_life(seg, endpoint_of(f->url)->engine.slot);
	f->info = INFO("prefill", "9002");
	cr_assert(wait_for(has_new_port, f, 5000));
	cr_assert_eq(restart_life(seg, endpoint_of(f->url)->engine.slot), life);
}

static unsigned info_asked;

static bool
is_asked_again(void *f)
{
	return ((struct fake *)f)->ninfo > info_asked;
}

/* The engine has answered one more query with this text, at least. */
static void
says_next(struct fake *f, const char *info)
{
	f->info = info;
	info_asked = f->ninfo;
	cr_assert(wait_for(is_asked_again, f, 5000));
	run_for(20);
}

/* Replicas behind one address answer in turn: each seed is a sign of a restart once. */
Test(learn, seeds_that_come_again_are_no_new_life)
{
	static const char *const infos[] = {
		JSON("{\"disaggregation_mode\":\"prefill\",\"random_seed\":7}"),
		JSON("{\"disaggregation_mode\":\"prefill\",\"random_seed\":8}")};
	struct fake *f = fake_new("127.0.0.1");
	uint64_t life;

	f->info = infos[0];
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	confs[nconfs - 1]->health_interval_ms = 10;
	go();
	cr_assert(wait_for(is_up, f, 5000));
	life = restart_life(seg, endpoint_of(f->url)->engine.slot);
	for (int i = 0; i < 10; i++)
		says_next(f, infos[i % 2]);
	cr_expect_eq(restart_life(seg, endpoint_of(f->url)->engine.slot), life + 1);
	says_next(f, JSON("{\"disaggregation_mode\":\"prefill\",\"random_seed\":9}"));
	cr_expect_eq(restart_life(seg, endpoint_of(f->url)->engine.slot), life + 2);
	cr_expect_eq(table_now()->version, 2, "a seed is nothing that workers are told");
}

static bool
says_decode(void *f)
{
	return strcmp(runtime_of(f)->mode, "decode") == 0;
}

Test(learn, it_is_asked_again)
{
	struct fake *f = fake_new("127.0.0.1");

	f->info = INFO("prefill", "9001");
	f->models = MODELS("{\"id\":\"a\"}");
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, NULL);
	go();
	cr_assert(wait_for(is_up, f, 5000));
	f->models = MODELS("{\"id\":\"a\"},{\"id\":\"lora\"}");
	f->info = STATUS("503"); /* says nothing this time */
	run_for(15 * 50 * 3 / 2 + 300);
	cr_assert_eq(row_of(f->url)->nmodels, 2);
	cr_assert_eq(row_of(f->url)->bootstrap_port, 9001, "what it said before stays");
	f->models = SILENT; /* and delays neither the health probe nor the other query */
	unsigned asked = f->nhealth, info = f->ninfo;
	run_for(3000 + 15 * 50 * 3 / 2 + 300);
	cr_assert_eq(state_of(f), EP_UP);
	cr_assert_geq(f->nhealth, asked + 50);
	cr_assert_gt(f->ninfo, info);
	cr_assert_eq(row_of(f->url)->nmodels, 2);
	f->models = MODELS("{\"id\":\"a\"}");
	f->info = INFO("decode", "9001");
	cr_assert(wait_for(says_decode, f, 3000 + 5000)); /* the list may be awaited again */
	cr_assert_eq(row_of(f->url)->nmodels, 1);
	cr_assert_str_eq(
		contradiction(f), "listed as prefill engine, but says it is a decode engine");
}

Test(learn, what_is_no_version_mode_or_port_is_not_believed)
{
	static const struct {
		const char *info, *version, *mode;
		uint32_t port;
	} t[] = {
		{JSON("{\"version\":\"1\\u001b[2J\",\"disaggregation_mode\":\"pre fill\","
		      "\"disaggregation_bootstrap_port\":70000}"),
			"", "", 0},
		{JSON("{\"version\":\"v\\u00e9\",\"disaggregation_mode\":\"\","
		      "\"disaggregation_bootstrap_port\":-1}"),
			"", "", 0},
		{JSON("{\"version\":1,\"disaggregation_mode\":null,"
		      "\"disaggregation_bootstrap_port\":\"8998\"}"),
			"", "", 0},
		{JSON("{\"version\":\"0123456789012345678901234567890123456789012345678\","
		      "\"disaggregation_mode\":\"0123456789abcdef\","
		      "\"disaggregation_bootstrap_port\":65535}"),
			"", "", 65535},
		{JSON("{\"version\":\"01234567890123456789012345678901234567890123456\","
		      "\"disaggregation_mode\":\"null\",\"disaggregation_bootstrap_port\":8998}"),
			"01234567890123456789012345678901234567890123456", "null", 0},
		{JSON("{\"version\":\"0.6\",\"disaggregation_mode\":\"dynamic\","
		      "\"disaggregation_bootstrap_port\":8998}"),
			"0.6", "dynamic", 8998},
	};
	struct fake *f = fake_new("127.0.0.1");

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		f->info = t[i].info;
		f->health = OK;
		one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
		go();
		cr_assert(wait_for(is_up, f, 5000));
		cr_assert_str_eq(runtime_of(f)->version, t[i].version, "%zu", i);
		cr_assert_str_eq(runtime_of(f)->mode, t[i].mode, "%zu", i);
		cr_assert_eq(runtime_of(f)->bootstrap_port, t[i].port, "%zu", i);
		f->health = UNHEALTHY;
		cr_assert(wait_for(is_down, f, 5000));
	}
}

Test(learn, an_answer_too_large_is_not_read)
{
	struct fake *f = fake_new("127.0.0.1");

	f->info = ENDLESS;
	one_pool(ROLE_PREFILL, ENGINE_SGLANG, "m");
	go();
	cr_assert(wait_for(is_up, f, 20000), "5 times no answer");
	cr_assert_str_empty(runtime_of(f)->version);
}

static void
keys_are(struct fake *f, const char *key)
{
	unsigned health = f->nhealth, metrics = f->nmetrics;

	f->key[0] = '\0';
	while (f->nhealth < health + 2 || f->nmetrics < metrics + 2) {
		run_for(10);
		if (f->nhealth > health) /* those asked before are done */
			cr_assert_str_eq(f->key, key);
	}
}

Test(learn, the_key_goes_with_every_query)
{
	struct fake *f = fake_new("127.0.0.1");
	struct conf_pool *p;

	f->info = INFO("prefill", "9001");
	f->wants_key = "Bearer sk-1";
	p = one_pool(ROLE_PREFILL, ENGINE_SGLANG, NULL);
	go();
	run_for(300);
	cr_assert_neq(state_of(f), EP_UP);
	cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine),
		"GET /v1/models: status 401, engine refuses our key: key (none)?");
	p = one_pool(ROLE_PREFILL, ENGINE_SGLANG, NULL);
	p->api_key = (char[]){"sk-0"};
	go();
	run_for(500);
	cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine),
		"GET /v1/models: status 401, engine refuses our key",
		"an engine that repeats the key is not quoted");
	p = one_pool(ROLE_PREFILL, ENGINE_SGLANG, NULL);
	p->api_key = (char[]){"sk-1"};
	go();
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert(wait_for(is_scraped, f, 5000));
	cr_assert_eq(row_of(f->url)->nmodels, 1);
	cr_assert(has_port(f));
	keys_are(f, "Bearer sk-1");
}

Test(learn, a_found_engine_gets_no_key_unless_its_pool_trusts_it)
{
	struct conf_pool pool = {.api_key = (char[]){"sk-1"}};
	struct engine e = {.pool = &pool};

	cr_assert_str_eq(engine_key(&e), "sk-1");
	e.found = true;
	cr_assert_null(engine_key(&e));
	pool.trust_found = 1;
	cr_assert_str_eq(engine_key(&e), "sk-1");
}

static bool
ramps(const struct fake *f)
{
	return ep_ramp_from(seg, endpoint_of(f->url)->engine.slot) != 0;
}

Test(learn, slow_start_is_for_those_that_were_down)
{
	struct fake *f = fake_new("127.0.0.1"), *learns = fake_new("127.0.0.1");
	struct conf_pool *p;

	p = one_pool(ROLE_DECODE, ENGINE_VLLM, NULL);
	p->slow_start_ms = 60000;
	go();
	cr_assert(wait_for(is_up, f, 5000) && wait_for(is_up, learns, 5000));
	cr_assert_not(ramps(f), "a fleet that starts spares nobody");
	f->health = learns->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000) && wait_for(is_down, learns, 5000));
	f->health = learns->health = OK;
	learns->models = MODELS("{\"id\":\"new\"}"); /* it is up with the next publication */
	cr_assert(wait_for(is_up, f, 5000) && wait_for(is_up, learns, 5000));
	cr_assert(ramps(f) && ramps(learns));
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	p = one_pool(ROLE_DECODE, ENGINE_VLLM, NULL); /* a reload without it */
	go();
	f->health = OK;
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_not(ramps(f));
}
