/* The bodies of both legs, byte by byte (protocols.md 2.1, 2.4, 3.1). */
#include "tests/unit/worker/handshake/bodies.h"

#define SKELETON                                                                                   \
	"{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"        \
	"\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"

TestSuite(connector, .fini = drop_request);

Test(connector, nixl_prefill_is_one_token_unstreamed)
{
	new_request(CONNECTOR_NIXL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":64,\"stream\":true,"
		"\"stream_options\":{\"include_usage\":true},\"min_tokens\":5,\"seed\":18446744073709551617}");
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":1,\"stream\":false,\"seed\":18446744073709551617"
		",\"ignore_eos\":true,\"kv_transfer_params\":" SKELETON "}");
}

Test(connector, nixl_lowers_max_completion_tokens_only_where_it_stands)
{
	new_request(CONNECTOR_NIXL, "{\"max_completion_tokens\":9}");
	expect_body(ROLE_PREFILL,
		"{\"max_completion_tokens\":1,\"stream\":false,\"max_tokens\":1,\"ignore_eos\":true,\"kv_transfer_params\":" SKELETON
		"}");
}

Test(connector, nixl_decode_is_the_clients_body_and_the_raw_object)
{
	new_request(CONNECTOR_NIXL, "{\"model\":\"m\", \"x\":1e400,\"max_tokens\":64}");
	cr_assert_eq(
		prefill_says(
			"{\"id\":\"c\",\"kv_transfer_params\":{\"remote_block_ids\":[[3,\"4\",9007199254740993]], \"n\":1.0}}"),
		1);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\", \"x\":1e400,\"max_tokens\":64,\"kv_transfer_params\":"
		"{\"remote_block_ids\":[[3,\"4\",9007199254740993]], \"n\":1.0}}");
}

Test(connector, an_answer_without_kv_params_is_no_error)
{
	new_request(CONNECTOR_NIXL, "{\"model\":\"m\"}");
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":null}"), 0);
	expect_body(ROLE_DECODE, "{\"model\":\"m\"}");
	cr_assert_eq(prefill_says("{\"id\":1}"), 0);
	cr_assert_eq(prefill_says("[1]"), -1);
	cr_assert_eq(prefill_says("oops"), -1);
}

Test(connector, a_client_cannot_choose_peers_or_ids)
{
	new_request(CONNECTOR_NIXL,
		"{\"kv_transfer_params\":{\"remote_host\":\"evil\"},\"bootstrap_host\":\"evil\",\"a\":1,"
		"\"r\\u0069d\":\"x\",\"request_id\":\"y\",\"data_parallel_rank\":3}");
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"r\\u0069d\":\"id-0123456789abcdef\",\"request_id\":\"id-0123456789abcdef\"}");
}

Test(connector, release_takes_one_token)
{
	new_request(CONNECTOR_NIXL, "{\"max_tokens\":64,\"stream\":true}");
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":{\"a\":1}}"), 1);
	t.release_only = true;
	expect_body(ROLE_DECODE,
		"{\"max_tokens\":1,\"stream\":false,\"kv_transfer_params\":{\"a\":1}}");
}

Test(connector, orchestrated_names_the_prefill_host)
{
	new_request(CONNECTOR_ORCHESTRATED, "{\"a\":1}");
	request_pool.shake.remote_host = REMOTE_HOST_PREFILL;
	cr_assert_eq(
		prefill_says(
			"{\"kv_transfer_params\":{\"remote_host\" : \"localhost\",\"remote_port\":5600}}"),
		1);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":{\"remote_host\" : \"10.0.0.7\",\"remote_port\":5600}}");
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":{\"remote_port\":5600}}"), 1);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":{\"remote_host\":\"10.0.0.7\",\"remote_port\":5600}}");
}

Test(connector, orchestrated_hands_the_whole_answer_over)
{
	new_request(CONNECTOR_ORCHESTRATED, "{\"a\":1,\"stream\":true}");
	request_pool.shake.handoff = HANDOFF_DISAGG_PREFILL_RESP;
	expect_body(ROLE_PREFILL, "{\"a\":1,\"stream\":false,\"max_tokens\":1}");
	cr_assert_eq(prefill_says("{\"id\":\"cmpl-1\", \"created\":12345678901234567890}"), 1);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"stream\":true,\"disagg_prefill_resp\":{\"id\":\"cmpl-1\", \"created\":12345678901234567890}}");
	cr_assert_eq(prefill_says("not json"), -1);
}

Test(connector, lists_of_prompts_are_counted)
{
	static const struct {
		const char *body;
		size_t n;
	} rows[] = {{"{\"prompt\":\"a\"}", 1}, {"{\"prompt\":[1,2,3]}", 1},
		{"{\"prompt\":[\"a\"]}", 1}, {"{\"prompt\":[\"a,\\\",b\"]}", 1},
		{"{\"prompt\":[\"a\",\"b\"]}", 2}, {"{\"prompt\":[ [1,2,3] ]}", 1},
		{"{\"prompt\":[[1],[2],[3,4]]}", 3}, {"{\"prompt\":[]}", 1},
		{"{\"prompt\":[\"a\\\\\",\"b\"]}", 2}, {"{}", 1},
		/* engines refuse these as a whole */
		{"{\"prompt\":[\"a\",[1]]}", 1}, {"{\"prompt\":[[1],\"a\"]}", 1},
		{"{\"prompt\":[\"a\",1]}", 1}, {"{\"prompt\":[\"a\",null]}", 1}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		new_request(CONNECTOR_NIXL, rows[i].body);
		facts.route = ROUTE_COMPLETIONS;
		cr_assert_eq(connector_prompts(&t.of), rows[i].n, "%s", rows[i].body);
		facts.route = ROUTE_CHAT;
		cr_assert_eq(connector_prompts(&t.of), 1, "no chat has any");
	}
}

Test(connector, requests_for_the_prompts_logprobs)
{
	static const struct {
		const char *body;
		bool chat, wants;
	} rows[] = {{"{\"prompt_logprobs\":0}", false, true},
		{"{\"prompt_logprobs\":1}", true, true},
		{"{\"prompt_logprobs\":null}", true, false}, {"{\"logprobs\":1}", false, false},
		{"{\"echo\":true,\"logprobs\":0}", false, true},
		{"{\"echo\":true,\"logprobs\":true}", true, false},
		{"{\"echo\":true,\"logprobs\":null}", false, false},
		{"{\"echo\":false,\"logprobs\":1}", false, false},
		{"{\"echo\":true}", false, false}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		new_request(CONNECTOR_NIXL, rows[i].body);
		facts.route = rows[i].chat ? ROUTE_CHAT : ROUTE_COMPLETIONS;
		cr_assert_eq(connector_prompt_logprobs(&t.of) != NULL, rows[i].wants, "%s",
			rows[i].body);
	}
}

Test(connector, limits_beyond_the_context)
{
	static const struct {
		const char *body;
		uint32_t context;
		bool chat, beyond;
	} rows[] = {{"{\"max_tokens\":65}", 64, false, true},
		{"{\"max_tokens\":64}", 64, false, false}, {"{\"max_tokens\":65}", 0, false, false},
		{"{}", 64, false, false}, {"{\"max_tokens\":65.5}", 64, false, false},
		{"{\"max_completion_tokens\":65}", 64, true, true},
		{"{\"max_completion_tokens\":65}", 64, false, false},
		{"{\"max_completion_tokens\":9,\"max_tokens\":65}", 64, true, false},
		{"{\"max_tokens\":62,\"prompt\":[1,2,3]}", 64, false, true},
		{"{\"max_tokens\":61,\"prompt\":[1,2,3]}", 64, false, false},
		{"{\"max_tokens\":62,\"prompt\":[[1,2],[3]]}", 64, false, false}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		new_request(CONNECTOR_NIXL, rows[i].body);
		facts.route = rows[i].chat ? ROUTE_CHAT : ROUTE_COMPLETIONS;
		request_pool.max_context = rows[i].context;
		cr_assert_eq(connector_too_long(&t.of), rows[i].beyond, "%s", rows[i].body);
	}
}
