/* disaggregated_prefill_orchestrated, both forms: the legs' bodies, byte by byte (protocols.md 3). */
#include "tests/unit/worker/handshake/bodies.h"

#define BODY                                                                                       \
	"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":64,\"stream\":true}"
/* as in the sample of 3.1 */
#define SAMPLE                                                                                                                   \
	"{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\n"                                 \
	"   \"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"He\"},\"finish_reason\":\"length\"}],\n" \
	"   \"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}"

static void
begin(enum handoff_kind handoff, const char *body)
{
	new_request(CONNECTOR_ORCHESTRATED, body);
	request_pool.shake.handoff = handoff;
	request_pool.shake.remote_host = REMOTE_HOST_PREFILL;
}

TestSuite(orchestrated, .fini = drop_request);

Test(orchestrated, the_sample)
{
	begin(HANDOFF_DISAGG_PREFILL_RESP, BODY);
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":1,\"stream\":false}");
	cr_assert_eq(prefill_says(SAMPLE), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":64,\"stream\":true,"
		"\"disagg_prefill_resp\":" SAMPLE "}");
}

Test(orchestrated, the_whole_answer_is_untouched)
{
	static const char *const answers[] = {"{}", " {\"a\":1,\"a\":2}\r\n",
		"{\"big\":9223372036854775809,\"x\":1e400,\"t\":\"\\u0041\\/\"}",
		"{\"kv_transfer_params\":null}"};
	char want[256];

	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		begin(HANDOFF_DISAGG_PREFILL_RESP, "{\"a\":1}");
		cr_assert_eq(prefill_says(answers[i]), HANDOFF_OK);
		(void)snprintf(
			want, sizeof(want), "{\"a\":1,\"disagg_prefill_resp\":%s}", answers[i]);
		expect_body(ROLE_DECODE, want);
	}
}

Test(orchestrated, what_is_no_object_is_no_kv_params)
{
	static const char *const answers[] = {"", "[1]", "oops", "{\"a\":1", "{\"a\":1}{}",
		"{\"a\":1},\"evil\":{}", "\"x\"", "null"};

	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		begin(HANDOFF_DISAGG_PREFILL_RESP, "{\"a\":1}");
		cr_assert_eq(prefill_says(answers[i]), HANDOFF_BAD, "%s", answers[i]);
		begin(HANDOFF_KV_TRANSFER_PARAMS, "{\"a\":1}");
		cr_assert_eq(prefill_says(answers[i]), HANDOFF_BAD, "%s", answers[i]);
	}
}

Test(orchestrated, a_client_hands_nothing_over)
{
	begin(HANDOFF_DISAGG_PREFILL_RESP,
		"{\"disagg_prefill_resp\":{\"id\":\"evil\"},\"a\":1,\"kv_transfer_params\":{\"remote_host\":\"evil\"}}");
	expect_body(ROLE_PREFILL, "{\"a\":1,\"stream\":false,\"max_tokens\":1}");
	cr_assert_eq(prefill_says("{\"id\":\"x\"}"), HANDOFF_OK);
	expect_body(ROLE_DECODE, "{\"disagg_prefill_resp\":{\"id\":\"x\"},\"a\":1}");
}

Test(orchestrated, an_answer_that_is_not_used_leaves_the_clients_body)
{
	begin(HANDOFF_DISAGG_PREFILL_RESP, "{\"a\":1}");
	expect_body(ROLE_DECODE, "{\"a\":1}");
}

Test(orchestrated, by_parameters_it_is_nixl_with_the_urls_host)
{
	begin(HANDOFF_KV_TRANSFER_PARAMS, BODY);
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":1,\"stream\":false,"
		"\"ignore_eos\":true,\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
		"\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}}");
	cr_assert_eq(
		prefill_says(
			"{\"kv_transfer_params\":{\"remote_host\":\"localhost\",\"remote_port\":5600}}"),
		HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":64,\"stream\":true,"
		"\"kv_transfer_params\":{\"remote_host\":\"10.0.0.7\",\"remote_port\":5600}}");
	drop_request();
	begin(HANDOFF_KV_TRANSFER_PARAMS, "{\"a\":1}");
	cr_assert_eq(prefill_says("{\"kv_transfer_params\":null}"), HANDOFF_NONE);
	expect_body(ROLE_DECODE, "{\"a\":1}");
}

Test(orchestrated, what_one_set_of_kv_params_serves)
{
	struct req_pool pool;

	memset(&pool, 0, sizeof(pool));
	pool.shake.handoff = HANDOFF_DISAGG_PREFILL_RESP;
	cr_assert_eq(connector_orchestrated.samples(&pool), SEVERAL_WHOLE);
	cr_assert_eq(connector_orchestrated.prompts(&pool), SEVERAL_BRANCHES);
	pool.shake.handoff = HANDOFF_KV_TRANSFER_PARAMS;
	cr_assert_eq(connector_orchestrated.samples(&pool), SEVERAL_DIRECT);
	pool.shake.fanout = 1;
	cr_assert_eq(connector_orchestrated.samples(&pool), SEVERAL_BRANCHES);
}
