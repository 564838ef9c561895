/* Shared storage: bodies byte by byte, and what a decode engine that is asked first may say (protocols.md 6). */
#include "tests/unit/worker/handshake/bodies.h"

TestSuite(shared_storage, .fini = drop_request);

static void
decode_first(const char *body)
{
	new_request(CONNECTOR_SHARED_STORAGE, body);
	(void)strcpy(request_pool.shake.cache_hit_threshold, "0.8");
	cr_assert_eq(t.connector->begin(&t), END_OK);
}

/* As the attempt does after a refusal. */
static void
refused(void)
{
	t.starts[ROLE_PREFILL] = STARTS_AT_ONCE;
	t.starts[ROLE_DECODE] = STARTS_AFTER_PREFILL;
}

Test(shared_storage, prefill_is_one_token_and_decode_the_clients_own)
{
	static const char body[] =
		" {\"model\":\"m\", \"prompt\":\"hi\",\"max_tokens\":64,\"max_completion_tokens\":9,"
		"\"min_tokens\":5,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"n\":2,"
		"\"best_of\":3,\"stop\":[\"a\"],\"cache_salt\":\"s\",\"x\":1e400}\n";

	new_request(CONNECTOR_SHARED_STORAGE, body);
	cr_assert_eq(t.connector->begin(&t), END_OK);
	cr_assert_eq(t.starts[ROLE_PREFILL], STARTS_AT_ONCE);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL);
	expect_body(ROLE_PREFILL,
		" {\"model\":\"m\", \"prompt\":\"hi\",\"max_tokens\":1,\"max_completion_tokens\":1,"
		"\"stream\":false,\"n\":1,\"stop\":[\"a\"],\"cache_salt\":\"s\",\"x\":1e400}\n");
	expect_body(ROLE_DECODE, body);
	cr_assert_null(t.connector->prefilled, "nothing of the answer is looked at");
	cr_assert_eq(t.connector->info->cleanup, CLEANUP_NONE);
}

Test(shared_storage, limits_are_added_where_there_are_none)
{
	new_request(CONNECTOR_SHARED_STORAGE, "{\"model\":\"m\",\"messages\":[]}");
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"messages\":[],\"stream\":false,\"max_tokens\":1}");
	expect_body(ROLE_DECODE, "{\"model\":\"m\",\"messages\":[]}");
}

Test(shared_storage, a_client_chooses_neither_peers_nor_the_threshold)
{
	new_request(CONNECTOR_SHARED_STORAGE,
		"{\"kv_transfer_params\":{\"remote_host\":\"evil\"},\"a\":1,\"rid\":\"x\","
		"\"cache_hit_threshold\":0.9}");
	cr_assert_eq(t.connector->begin(&t), END_OK);
	expect_body(ROLE_PREFILL,
		"{\"a\":1,\"rid\":\"id-0123456789abcdef\",\"cache_hit_threshold\":0,\"stream\":false,\"max_tokens\":1}");
	expect_body(
		ROLE_DECODE, "{\"a\":1,\"rid\":\"id-0123456789abcdef\",\"cache_hit_threshold\":0}");
}

Test(shared_storage, decode_first)
{
	decode_first("{\"prompt\":\"hi\",\"cache_hit_threshold\":0.1}");
	cr_assert_eq(t.starts[ROLE_PREFILL], STARTS_NEVER);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AT_ONCE);
	expect_body(ROLE_DECODE, "{\"prompt\":\"hi\",\"cache_hit_threshold\":0.8}");
	refused();
	expect_body(ROLE_PREFILL,
		"{\"prompt\":\"hi\",\"cache_hit_threshold\":0,\"stream\":false,\"max_tokens\":1}");
	expect_body(ROLE_DECODE, "{\"prompt\":\"hi\",\"cache_hit_threshold\":0}");
}

Test(shared_storage, decode_first_of_one_prompt_only)
{
	static const struct {
		const char *body;
		bool first;
	} rows[] = {{"{\"prompt\":\"a\"}", true}, {"{\"prompt\":[1,2,3]}", true},
		{"{\"prompt\":[\"a\"]}", true}, {"{\"messages\":[{},{}]}", true},
		{"{\"prompt\":[\"a\",\"b\"]}", false}, {"{\"prompt\":[[1],[2]]}", false}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct answer_how how = {.cached_from_prefill = true};
		char id[CONNECTOR_ANSWER_ID];

		decode_first(rows[i].body);
		cr_assert_eq(
			t.starts[ROLE_PREFILL] == STARTS_NEVER, rows[i].first, "%s", rows[i].body);
		cr_assert_not(t.connector->rewrites(&t.of, &how, id));
		cr_assert_neq(how.cached_from_prefill, rows[i].first, "%s", rows[i].body);
	}
}

#define EVENT(choice) "data: {\"id\":\"x\",\"choices\":[" choice "]}\n\n"
#define ROLE                                                                                       \
	EVENT("{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}")
#define REFUSES "{\"index\":0,\"delta\":{},\"finish_reason\":\"cache_threshold\"}"

Test(shared_storage, what_it_says)
{
	static const struct {
		const char *text;
		bool sse;
		enum handoff want;
	} rows[] = {{"", true, HANDOFF_NONE}, {"data: {\"choi", true, HANDOFF_NONE},
		{ROLE, true, HANDOFF_NONE}, {ROLE ROLE, true, HANDOFF_NONE},
		{": ping\n\n", true, HANDOFF_NONE}, {"\n\n", true, HANDOFF_NONE},
		{EVENT(""), true, HANDOFF_NONE},
		{EVENT("{\"index\":0,\"text\":\"\",\"finish_reason\":null}"), true, HANDOFF_NONE},
		{EVENT(REFUSES), true, HANDOFF_RETRY}, {ROLE EVENT(REFUSES), true, HANDOFF_RETRY},
		{ROLE ": ping\n\n" EVENT("") EVENT(REFUSES), true, HANDOFF_RETRY},
		{"event: x\r\ndata:{\"choices\":[" REFUSES "]}\r\n\r\n", true, HANDOFF_RETRY},
		{EVENT("{\"delta\":{\"content\":\"a\"}}," REFUSES), true, HANDOFF_RETRY},
		{EVENT("{\"index\":0,\"text\":\"a\",\"finish_reason\":null}"), true, HANDOFF_OK},
		{EVENT("{\"delta\":{\"content\":\"a\"}}") EVENT(REFUSES), true, HANDOFF_OK},
		{EVENT("{\"delta\":{\"role\":\"assistant\",\"tool_calls\":[]}}"), true, HANDOFF_OK},
		{ROLE EVENT("{\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}"), true,
			HANDOFF_OK},
		{"data: [DONE]\n\n", true, HANDOFF_OK},
		{"data: {\"error\":{}}\n\n", true, HANDOFF_OK},
		{"data: oops\n\n", true, HANDOFF_OK},
		{"data: {\"choices\":[1]}\n\n", true, HANDOFF_OK},
		{"{\"choices\":[" REFUSES "]}", false, HANDOFF_RETRY},
		{"{\"choices\":[{\"finish_reason\":\"stop\"}," REFUSES "]}", false, HANDOFF_RETRY},
		{"{\"choices\":[{\"text\":\"\\\"cache_threshold\\\"\",\"finish_reason\":\"stop\"}]}",
			false, HANDOFF_OK},
		{"{\"choices\":{}}", false, HANDOFF_OK}, {"oops", false, HANDOFF_OK},
		{"", false, HANDOFF_OK}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		decode_first("{\"prompt\":\"hi\"}");
		t.decode_answer.sse = rows[i].sse;
		give(&t.decode_answer, rows[i].text);
		cr_assert_eq(t.connector->decode_first(&t), rows[i].want, "%s", rows[i].text);
	}
}
