/* MooncakeConnector: both legs' bodies, byte by byte, and the engine id that decode gets (protocols.md 8). */
#include "tests/unit/worker/handshake/bodies.h"

#define IDS                                                                                        \
	"{\"0\":{\"engine_id\":\"ab\",\"worker_addr\":{\"0\":{\"0\":\"tcp://10.0.0.7:1\"}}},"      \
	"\"1\":{\"engine_id\":\"c\\u0064\",\"worker_addr\":{}}}"
#define ONE "{\"0\":{\"engine_id\":\"ab\"}}"
#define LENGTH                                                                                     \
	"{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"length\"}]}"

static void
begin(const char *body)
{
	new_request(CONNECTOR_MOONCAKE, body);
	request_pool.shake.handoff = HANDOFF_TRANSFER_ID;
	cr_assert_eq(t.connector->begin(&t), END_OK);
}

/* True: something is asked. */
static bool
asks(void)
{
	struct lookup q;

	memset(&q, 0, sizeof(q));
	if (!t.connector->lookup(&t, &q))
		return false;
	cr_assert_eq(q.role, ROLE_PREFILL);
	cr_assert_str_eq(q.path, "/query");
	cr_assert_eq(q.port, 8998, "VLLM_MOONCAKE_BOOTSTRAP_PORT");
	cr_assert_null(q.edit, "a GET");
	return true;
}

static enum handoff
told(const char *text)
{
	cr_assert(asks());
	give(&t.lookup_answer, text);
	return t.connector->looked_up(&t);
}

TestSuite(mooncake, .fini = drop_request);

Test(mooncake, both_bodies)
{
	begin("{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":64,\"stream\":true,\"stop\":[\"a\"]}");
	cr_assert_eq(told(ONE), HANDOFF_OK);
	cr_assert_eq(t.starts[ROLE_PREFILL], STARTS_AT_ONCE);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AT_ONCE);
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":1,\"stream\":false,\"ignore_eos\":true,"
		"\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
		"\"transfer_id\":\"xfer-id-0123456789abcdef\"}}");
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":64,\"stream\":true,\"stop\":[\"a\"],"
		"\"kv_transfer_params\":{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
		"\"transfer_id\":\"xfer-id-0123456789abcdef\",\"remote_bootstrap_addr\":\"http://10.0.0.7:8998\","
		"\"remote_engine_id\":\"ab\"}}");
	cr_assert_eq(prefill_says(LENGTH), HANDOFF_OK);
}

Test(mooncake, before_0_17_decode_gets_what_prefill_answered)
{
	new_request(CONNECTOR_MOONCAKE, "{\"max_tokens\":64}");
	request_pool.shake.handoff = HANDOFF_KV_TRANSFER_PARAMS;
	cr_assert_eq(t.connector->begin(&t), END_OK);
	cr_assert_not(asks());
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL);
	expect_body(ROLE_PREFILL,
		"{\"max_tokens\":1,\"stream\":false,\"ignore_eos\":true,"
		"\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false}}");
	cr_assert_eq(
		prefill_says(
			"{\"kv_transfer_params\":{\"do_remote_prefill\":true,"
			"\"do_remote_decode\":false,\"remote_host\":\"h\",\"remote_port\":7}}"),
		HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"max_tokens\":64,\"kv_transfer_params\":{\"do_remote_prefill\":true,"
		"\"do_remote_decode\":false,\"remote_host\":\"h\",\"remote_port\":7}}");
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":null}"), HANDOFF_NONE);
}

Test(mooncake, the_address_that_decode_is_sent)
{
	static const struct {
		const char *host, *want;
	} rows[] = {{"fd00::7", "http://[fd00::7]:9"}, {"[fd00::7]", "http://[fd00::7]:9"},
		{"p.example.net", "http://p.example.net:9"}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char want[300];

		begin("{\"a\":1}");
		cr_assert_eq(told(ONE), HANDOFF_OK);
		eps[ROLE_PREFILL].bootstrap_host = fixed(rows[i].host);
		eps[ROLE_PREFILL].bootstrap_port = 9;
		(void)snprintf(want, sizeof(want),
			"{\"a\":1,\"kv_transfer_params\":{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
			"\"transfer_id\":\"xfer-id-0123456789abcdef\",\"remote_bootstrap_addr\":\"%s\","
			"\"remote_engine_id\":\"ab\"}}",
			rows[i].want);
		expect_body(ROLE_DECODE, want);
		drop_request();
	}
}

/* Of the rank that prefill is asked for, raw; gone round where the endpoint says nothing of ranks. */
Test(mooncake, ranks)
{
	begin("{}");
	t.rank[ROLE_PREFILL] = 1;
	cr_assert_eq(told(IDS), HANDOFF_OK);
	cr_assert_eq(t.kv.n, 9);
	cr_assert_arr_eq(t.kv.p, "\"c\\u0064\"", 9);
	for (int i = 0; i < 4; i++) {
		t.rank[ROLE_PREFILL] = -1;
		cr_assert_not(asks());
		cr_assert_eq(t.rank[ROLE_PREFILL], i % 2);
	}
	t.rank[ROLE_PREFILL] = 2;
	cr_assert(asks(), "it has not been learned");
	cr_assert_eq(told(IDS), HANDOFF_BAD);
	drop_request();

	begin("{}");
	cr_assert_eq(told(ONE), HANDOFF_OK);
	cr_assert_eq(t.rank[ROLE_PREFILL], -1, "one engine needs no header");
}

Test(mooncake, what_is_no_engine_id)
{
	static const char *const bad[] = {"", "oops", "[]", "{}", "{\"0\":1}", "{\"0\":{}}",
		"{\"0\":{\"engine_id\":7}}", "{\"0\":{\"engine_id\":null}}",
		"{\"1\":{\"engine_id\":\"x\"}}", ONE "x"};

	begin("{}");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(told(bad[i]), HANDOFF_BAD, "%s", bad[i]);
	cr_assert_null(eps[ROLE_PREFILL].learned);
}

/* The attempt keeps what it has read: another request's failure must not leave its decode leg without. */
Test(mooncake, forgotten_after_failures_and_restarts)
{
	begin("{}");
	cr_assert_eq(told(ONE), HANDOFF_OK);
	cr_assert_not(asks());
	t.connector->failed(&t, ROLE_DECODE);
	cr_assert_eq(t.kv.n, 4);
	cr_assert(asks(), "any failure");
	cr_assert_eq(told(ONE), HANDOFF_OK);
	eps[ROLE_PREFILL].disconnects++;
	cr_assert(asks(), "all its connections were gone");
}

/* A repeated prefill has another id: decode is sent this id and the engine id. */
Test(mooncake, prefill_done_again)
{
	begin("{\"a\":1}");
	cr_assert_eq(told(ONE), HANDOFF_OK);
	cr_assert_eq(prefill_says(LENGTH), HANDOFF_OK);
	t.kv = (struct span){NULL, 0};
	transfer_set_id(&t, "again", strlen("again"));
	cr_assert_eq(prefill_says(LENGTH), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
		"\"transfer_id\":\"xfer-again\",\"remote_bootstrap_addr\":\"http://10.0.0.7:8998\","
		"\"remote_engine_id\":\"ab\"}}");
}

Test(mooncake, an_answer_not_ended_by_length_has_no_kv_params)
{
	begin("{\"a\":1}");
	cr_assert_eq(told(ONE), HANDOFF_OK);
	cr_assert_eq(prefill_says("{\"choices\":[{\"index\":0,\"finish_reason\":\"abort\"}]}"),
		HANDOFF_RETRY);
	expect_body(ROLE_DECODE, "{\"a\":1}");
	cr_assert_eq(prefill_says("oops"), HANDOFF_BAD);
	cr_assert_eq(prefill_says("{\"object\":\"error\"}"), HANDOFF_BAD);
}

/* /v1/messages and /v1/responses say in other words that they ended by their limit, and so left KV. */
Test(mooncake, paths_of_agents)
{
	static const struct {
		enum route route;
		const char *answer;
		enum handoff want;
	} rows[] = {
		{ROUTE_MESSAGES, "{\"content\":[],\"stop_reason\":\"max_tokens\"}", HANDOFF_OK},
		{ROUTE_MESSAGES, "{\"content\":[],\"stop_reason\":\"end_turn\"}", HANDOFF_RETRY},
		{ROUTE_MESSAGES, "{\"content\":[]}", HANDOFF_RETRY},
		{ROUTE_MESSAGES, LENGTH, HANDOFF_BAD},
		{ROUTE_RESPONSES, "{\"output\":[],\"status\":\"incomplete\"}", HANDOFF_OK},
		{ROUTE_RESPONSES, "{\"output\":[],\"status\":\"completed\"}", HANDOFF_RETRY},
		{ROUTE_RESPONSES, "{\"status\":\"incomplete\"}", HANDOFF_BAD},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		begin("{\"a\":1}");
		facts.route = rows[i].route;
		cr_assert_eq(told(ONE), HANDOFF_OK);
		cr_assert_eq(prefill_says(rows[i].answer), rows[i].want, "%s", rows[i].answer);
		drop_request();
	}
}
