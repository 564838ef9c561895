/* NixlConnector: both legs' bodies, byte by byte, pull and push (protocols.md 1.6, 2.1 to 2.7). */
#include "tests/unit/worker/handshake/bodies.h"

#define SKELETON                                                                                   \
	"{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"        \
	"\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"
/* as the sample of 2.2, white space and all */
#define PARAMS                                                                                                            \
	"{\"do_remote_prefill\":true,\"do_remote_decode\":false,\n"                                                       \
	"   \"remote_block_ids\":[[3,4,5]],\"remote_engine_id\":\"0d6f\",\"remote_request_id\":\"cmpl-7e-0-1a2b3c4d\",\n" \
	"   \"remote_host\":\"10.0.0.7\",\"remote_port\":5600,\"tp_size\":1,\"remote_num_tokens\":48}"
#define ANSWER(params)                                                                                  \
	"{\"id\":\"cmpl-7e\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" a\"," \
	"\"finish_reason\":\"length\"}],\n \"kv_transfer_params\":" params "}"

TestSuite(nixl, .fini = drop_request);

Test(nixl, the_sample)
{
	new_request(CONNECTOR_NIXL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":64,\"stream\":true}");
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":1,\"stream\":false,\"ignore_eos\":true,"
		"\"kv_transfer_params\":" SKELETON "}");
	cr_assert_eq(prefill_says(ANSWER(PARAMS)), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":64,\"stream\":true,\"kv_transfer_params\":" PARAMS
		"}");
}

Test(nixl, prefill_row_by_row)
{
	static const struct {
		const char *member, *becomes;
	} rows[] = {
		{"\"max_completion_tokens\":9", "\"max_completion_tokens\":1,"},
		{"\"stream\":true,\"stream_options\":{\"include_usage\":true}",
			"\"stream\":false,"},
		{"\"min_tokens\":3", ""},
		{"\"n\":4", "\"n\":1,"},
		{"\"best_of\":4", ""},
		{"\"stop\":[\"a\",\"b\"]", ""},
		{"\"stop_token_ids\":[1,2]", ""},
		{"\"ignore_eos\":false", "\"ignore_eos\":true,"},
		{"\"logprobs\":3", "\"logprobs\":3,"},
		{"\"cache_salt\":\"x\"", "\"cache_salt\":\"x\","},
		{"\"tools\":[{\"type\":\"function\"}]", "\"tools\":[{\"type\":\"function\"}],"},
		{"\"response_format\":{\"type\":\"json_object\"}",
			"\"response_format\":{\"type\":\"json_object\"},"},
		{"\"chat_template_kwargs\":{\"a\":1e400}",
			"\"chat_template_kwargs\":{\"a\":1e400},"},
		{"\"priority\":9223372036854775809", "\"priority\":9223372036854775809,"},
	};
	char body[256], want[600];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		bool streams = strstr(rows[i].becomes, "\"stream\"") != NULL;
		bool eos = strstr(rows[i].becomes, "ignore_eos") != NULL;

		(void)snprintf(body, sizeof(body), "{%s,\"max_tokens\":7}", rows[i].member);
		(void)snprintf(want, sizeof(want),
			"{%s\"max_tokens\":1%s%s,\"kv_transfer_params\":%s}", rows[i].becomes,
			streams ? "" : ",\"stream\":false", eos ? "" : ",\"ignore_eos\":true",
			SKELETON);
		new_request(CONNECTOR_NIXL, body);
		expect_body(ROLE_PREFILL, want);
		expect_body(ROLE_DECODE, body);
	}
}

Test(nixl, versions_of_the_object_pass_as_they_are)
{
	static const char *const objects[] = {
		"{\"remote_block_ids\":[1,2],\"remote_port\":5557}", /* to 0.17 */
		"{\"remote_block_ids\":[[1],[2,3]],\"pp_size\":1}",  /* hybrid models */
		"{\"remote_block_ids\":[\"a7\"],\"remote_blocks_expiry_time\":null,"
		"\"remote_registration_generation\":18446744073709551617}", /* 0.33 */
		"{}", "\"a word\"", "7"};
	char answer[512], want[512];

	for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
		(void)snprintf(
			answer, sizeof(answer), "{\"kv_transfer_params\" : %s }", objects[i]);
		(void)snprintf(
			want, sizeof(want), "{\"a\":1,\"kv_transfer_params\":%s}", objects[i]);
		new_request(CONNECTOR_NIXL, "{\"a\":1}");
		cr_assert_eq(prefill_says(answer), HANDOFF_OK);
		expect_body(ROLE_DECODE, want);
	}
}

Test(nixl, prefill_host_in_the_object)
{
	static const struct {
		const char *host, *object, *want;
	} rows[] = {
		{"10.0.0.7", "{\"remote_host\":\"localhost\",\"x\":1}",
			"{\"remote_host\":\"10.0.0.7\",\"x\":1}"},
		{"fd00::7", "{\"x\":1,\"remote_host\" : null}",
			"{\"x\":1,\"remote_host\" : \"fd00::7\"}"},
		{"p.example", "{\"remote_host\":[1,{\"a\":2}],\"x\":1}",
			"{\"remote_host\":\"p.example\",\"x\":1}"},
		{"p.example", "{}", "{\"remote_host\":\"p.example\"}"},
		{"p.example", "{ \n}", "{\"remote_host\":\"p.example\" \n}"},
		{"p.example", "{\"a\":{\"remote_host\":\"b\"}}",
			"{\"remote_host\":\"p.example\",\"a\":{\"remote_host\":\"b\"}}"},
		{"p.example", "\"a word\"", "\"a word\""},
	};
	char answer[256], want[256];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		(void)snprintf(
			answer, sizeof(answer), "{\"kv_transfer_params\":%s}", rows[i].object);
		(void)snprintf(want, sizeof(want), "{\"kv_transfer_params\":%s}", rows[i].want);
		new_request(CONNECTOR_NIXL, "{}");
		request_pool.shake.remote_host = REMOTE_HOST_PREFILL;
		eps[ROLE_PREFILL].host = fixed(rows[i].host);
		cr_assert_eq(prefill_says(answer), HANDOFF_OK);
		expect_body(ROLE_DECODE, want);
		drop_request();
	}
}

Test(nixl, one_sample_of_one_prompt)
{
	new_request(CONNECTOR_NIXL,
		"{\"prompt\":[\"a\",\"b\\u0041\"],\"n\":3,\"best_of\":3,\"seed\":40,\"max_tokens\":5}");
	facts.parts = 6;
	facts.samples = 3;
	t.prompt = (struct span){"\"b\\u0041\"", 9};
	t.seeded = true;
	t.seed = 42;
	expect_body(ROLE_PREFILL,
		"{\"prompt\":\"b\\u0041\",\"n\":1,\"seed\":42,\"max_tokens\":1,\"stream\":false,\"ignore_eos\":true,"
		"\"kv_transfer_params\":" SKELETON "}");
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":{\"a\":1}}"), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"prompt\":\"b\\u0041\",\"n\":1,\"seed\":42,\"max_tokens\":5,\"kv_transfer_params\":{\"a\":1}}");
}

Test(nixl, several_samples_go_to_decode_unless_fanned_out)
{
	struct req_pool pool;

	memset(&pool, 0, sizeof(pool));
	cr_assert_eq(connector_nixl.samples(&pool), SEVERAL_DIRECT);
	cr_assert_eq(connector_nixl.prompts(&pool), SEVERAL_BRANCHES);
	pool.shake.fanout = 1;
	cr_assert_eq(connector_nixl.samples(&pool), SEVERAL_BRANCHES);
}

/* --- push ---------------------------------------------------------------------------------------- */

#define WHO                                                                                        \
	"\"remote_engine_id\":\"0d6f\",\"remote_host\":\"10.0.0.7\",\"remote_port\":5600,\"tp_size\":2"
#define TOLD(id)                                                                                   \
	"{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_request_id\":\"" id       \
	"\"," WHO "}"

/* A request of a pool that pushes, as far as its endpoints are chosen; what is known stays. */
static void
push(enum route route)
{
	char *known = eps[ROLE_PREFILL].learned;

	eps[ROLE_PREFILL].learned = NULL;
	drop_request();
	new_request(CONNECTOR_NIXL, "{\"a\":1}");
	eps[ROLE_PREFILL].learned = known;
	facts.route = route;
	request_pool.shake.transfer_mode = TRANSFER_PUSH;
	cr_assert_eq(connector_nixl.begin(&t), END_OK);
}

static void
learn(void)
{
	push(ROUTE_COMPLETIONS);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL);
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":{\"remote_block_ids\":[1],"
				  "\"remote_request_id\":\"cmpl-id-0123456789abcdef-0\"," WHO "}}"),
		HANDOFF_OK);
}

Test(nixl, push_sends_decode_the_predicted_id)
{
	learn();
	push(ROUTE_COMPLETIONS);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AT_ONCE);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":" TOLD("cmpl-id-0123456789abcdef-0") "}");
	drop_request();
	learn();
	push(ROUTE_CHAT);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":" TOLD("chatcmpl-id-0123456789abcdef") "}");
}

Test(nixl, push_is_confirmed_or_corrected)
{
	static const struct {
		const char *params;
		enum handoff want;
		bool knows;
	} rows[] = {
		{"{" WHO ",\"remote_request_id\":\"cmpl-id-0123456789abcdef-0\"}", HANDOFF_OK,
			true},
		{"{\"remote_engine_id\":\"new\",\"remote_request_id\":\"cmpl-id-0123456789abcdef-0\"}",
			HANDOFF_RETRY, true},
		{"{" WHO ",\"remote_request_id\":\"cmpl-id-0123456789abcdef-0-0a1b2c3d\"}",
			HANDOFF_RETRY, false},
		{"{" WHO "}", HANDOFF_RETRY, false},
		{"{\"remote_request_id\":\"cmpl-id-0123456789abcdef-0\"}", HANDOFF_RETRY, false},
		{"{\"remote_engine_id\":7,\"remote_request_id\":\"cmpl-id-0123456789abcdef-0\"}",
			HANDOFF_RETRY, false},
		{"null", HANDOFF_RETRY, true},
	};
	char answer[512];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		learn();
		push(ROUTE_COMPLETIONS);
		(void)snprintf(
			answer, sizeof(answer), "{\"kv_transfer_params\":%s}", rows[i].params);
		cr_assert_eq(prefill_says(answer), rows[i].want, "%s", rows[i].params);
		cr_assert_eq(
			eps[ROLE_PREFILL].learned != NULL, rows[i].knows, "%s", rows[i].params);
		drop_request();
	}
}

Test(nixl, push_is_serial_where_nothing_is_known_for_sure)
{
	learn();
	push(ROUTE_COMPLETIONS);
	connector_nixl.failed(&t, ROLE_DECODE);
	push(ROUTE_COMPLETIONS);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL, "a leg has failed");
	drop_request();
	learn();
	push(ROUTE_COMPLETIONS);
	t.starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
	eps[ROLE_PREFILL].disconnects++;
	(void)connector_nixl.begin(&t);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL, "all connections were gone");
	eps[ROLE_PREFILL].disconnects--;
	t.rank[ROLE_PREFILL] = 1;
	(void)connector_nixl.begin(&t);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL, "the port is one rank's");
	t.rank[ROLE_PREFILL] = -1;
	request_pool.shake.transfer_mode = TRANSFER_PULL;
	(void)connector_nixl.begin(&t);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL, "not in this mode");
}

/* --- /v1/messages and /v1/responses ------------------------------------------------------------- */

Test(nixl, messages)
{
	new_request(CONNECTOR_NIXL,
		"{\"model\":\"m\",\"max_tokens\":64,\"stream\":true,\"stop_sequences\":[\"x\"],"
		"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":32},\"messages\":[]}");
	facts.route = ROUTE_MESSAGES;
	/* an engine that is asked for a prefill takes no offence at the budget (vLLM 0.31) */
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"max_tokens\":1,\"stream\":false,"
		"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":32},\"messages\":[],\"ignore_eos\":true,"
		"\"kv_transfer_params\":" SKELETON "}");
	cr_assert_eq(prefill_says("{\"content\":[],\"kv_transfer_params\":{\"a\":1}}"), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"max_tokens\":64,\"stream\":true,\"stop_sequences\":[\"x\"],"
		"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":32},\"messages\":[],"
		"\"kv_transfer_params\":{\"a\":1}}");
	t.release_only = true;
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"max_tokens\":1,\"stream\":false,\"stop_sequences\":[\"x\"],"
		"\"messages\":[],\"kv_transfer_params\":{\"a\":1}}");
}

Test(nixl, thinking_without_a_budget_stays)
{
	static const char *const thinking[] = {
		"{\"type\":\"disabled\"}", "{\"type\":\"adaptive\"}", "null", "7"};
	char body[128], want[160];

	for (size_t i = 0; i < sizeof(thinking) / sizeof(thinking[0]); i++) {
		(void)snprintf(
			body, sizeof(body), "{\"max_tokens\":1,\"thinking\":%s}", thinking[i]);
		(void)snprintf(want, sizeof(want),
			"{\"max_tokens\":1,\"thinking\":%s,\"stream\":false}", thinking[i]);
		new_request(CONNECTOR_NIXL, body);
		facts.route = ROUTE_MESSAGES;
		t.release_only = true;
		expect_body(ROLE_DECODE, want);
		drop_request();
	}
}

Test(nixl, responses)
{
	static const char client[] = "{\"input\":\"hi\",\"max_output_tokens\":64,\"store\":true}";
	struct splice_edit e;

	new_request(CONNECTOR_NIXL, client);
	facts.route = ROUTE_RESPONSES;
	expect_body(ROLE_PREFILL,
		"{\"input\":\"hi\",\"max_output_tokens\":1,\"store\":false,\"stream\":false,\"ignore_eos\":true,"
		"\"kv_transfer_params\":" SKELETON "}");
	eps[ROLE_DECODE].url = fixed("http://d:1");
	edit_leg(&t, ROLE_DECODE, &e);
	cr_assert_eq(e.on[SK_REQUEST_ID].op, SE_SET, "the engine keeps it under the router's name");
	cr_assert_eq(splice_op_of(&e, SK_STORE), SE_KEEP);
	cr_assert_eq(memcmp(e.on[SK_REQUEST_ID].value, "\"resp_", 6), 0);
}

/* Of chat's internal id vLLM makes that of /v1/messages; that of /v1/responses no answer tells beforehand. */
Test(nixl, push_of_the_paths_of_agents)
{
	learn();
	push(ROUTE_MESSAGES);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AT_ONCE);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":" TOLD("chatcmpl-id-0123456789abcdef") "}");
	drop_request();
	learn();
	push(ROUTE_RESPONSES);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL);
	cr_assert_eq(
		prefill_says("{\"kv_transfer_params\":{\"remote_engine_id\":\"x\"}}"), HANDOFF_OK);
	cr_assert_not_null(eps[ROLE_PREFILL].learned, "what chats have taught stays");
}
