/* LMCache: the bodies of the lookup and of both legs, byte by byte (protocols.md 4.1, 4.5, 4.6); who is unfit. */
#include "tests/unit/worker/handshake/bodies.h"

#define RECEIVER                                                                                   \
	"\"receiver_host\":\"dec-0.svc\",\"receiver_init_port\":[7300,7301],\"receiver_alloc_port\":[7400,7401]"
#define SPEC                                                                                       \
	"{\"ret_first_tok\":true,\"disagg_spec\":{\"req_id\":\"id-0123456789abcdef\"," RECEIVER "}}"
#define CHAT(members)                                                                              \
	"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" members "}"
#define TOLD "{\"count\":3,\"max_model_len\":8192,\"tokens\":[1,15043,3186],\"token_strs\":null}"
#define FIRST(kv)                                                                                  \
	"{\"id\":\"cmpl-P\",\"choices\":[{\"text\":\"He\",\"finish_reason\":\"length\"}]" kv "}"
#define TOKEN(n) FIRST(",\"kv_transfer_params\":{\"first_tok\":" n "}")

static void
begin_at(enum route route, const char *body)
{
	drop_request(); /* the one before */
	new_request(CONNECTOR_LMCACHE, body);
	facts.samples = 1;
	facts.route = route;
	request_pool.shake.first_token = ROLE_PREFILL;
	eps[ROLE_DECODE].disagg_spec = fixed(RECEIVER);
	cr_assert_eq(connector_lmcache.begin(&t), END_OK);
}

static void
begin(const char *body)
{
	begin_at(ROUTE_COMPLETIONS, body);
}

static void
expect_lookup(const char *want)
{
	struct lookup q = {0};
	struct splice_edit e;

	cr_assert(connector_lmcache.lookup(&t, &q));
	cr_assert_str_eq(q.path, "/tokenize");
	cr_assert_eq(q.role, request_pool.shake.tokenize);
	edit_strip(&t, &e);
	q.edit(&t, &e);
	expect_edit(&e, want);
}

static enum handoff
prefilled(const char *text)
{
	give(&t.prefill_answer, text);
	return connector_lmcache.prefilled(&t);
}

static enum handoff
looked_up(const char *text)
{
	give(&t.lookup_answer, text);
	return connector_lmcache.looked_up(&t);
}

TestSuite(lmcache, .fini = drop_request);

Test(lmcache, prefill_of_token_ids_is_the_sample)
{
	struct lookup q;

	begin("{\"model\":\"m\",\"prompt\":[1,15043,3186],\"max_tokens\":64,\"stream\":true}");
	cr_assert_not(connector_lmcache.lookup(&t, &q));
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"prompt\":[1,15043,3186],\"max_tokens\":1,\"stream\":false,"
		"\"kv_transfer_params\":" SPEC "}");
	cr_assert_eq(prefilled(TOKEN("1598")), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"prompt\":[1,15043,3186,1598],\"max_tokens\":63,\"stream\":true}");
	cr_assert_str_eq(connector_lmcache.path(&t, ROLE_DECODE), "/v1/completions");
}

Test(lmcache, a_string_is_turned_into_tokens)
{
	begin("{\"model\":\"m\", \"prompt\":\"Hello, world\",\"add_special_tokens\":false,\"messages\":[]}");
	expect_lookup(
		"{\"model\":\"m\", \"prompt\":\"Hello, world\",\"add_special_tokens\":false}");
	cr_assert_eq(looked_up(TOLD), HANDOFF_OK);
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\", \"prompt\":[1,15043,3186],\"add_special_tokens\":false,\"messages\":[],"
		"\"stream\":false,\"max_tokens\":1,\"kv_transfer_params\":" SPEC "}");
	cr_assert_eq(prefilled(TOKEN("0")), HANDOFF_OK);
	expect_body(ROLE_DECODE, /* 16 without a limit: 15 are left */
		"{\"model\":\"m\", \"prompt\":[1,15043,3186,0],\"add_special_tokens\":false,\"messages\":[],\"max_tokens\":15}");
}

Test(lmcache, all_that_a_template_uses_is_asked_with)
{
	begin_at(ROUTE_CHAT,
		CHAT(",\"chat_template\":\"t\",\"chat_template_kwargs\":{\"a\":1},\"add_generation_prompt\":true,"
		     "\"continue_final_message\":false,\"documents\":[{}],\"mm_processor_kwargs\":null,\"tools\":[],"
		     "\"prompt\":\"evil\",\"kv_transfer_params\":{\"x\":1}"));
	request_pool.shake.tokenize = ROLE_DECODE;
	expect_lookup(CHAT(
		",\"chat_template\":\"t\",\"chat_template_kwargs\":{\"a\":1},\"add_generation_prompt\":true,"
		"\"continue_final_message\":false,\"documents\":[{}],\"mm_processor_kwargs\":null,\"tools\":[]"));
}

Test(lmcache, chat_becomes_completions_of_the_context_that_is_left)
{
	begin_at(ROUTE_CHAT, CHAT(",\"logprobs\":true,\"top_logprobs\":5,\"stream\":true"));
	cr_assert_eq(looked_up(TOLD), HANDOFF_OK);
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"logprobs\":5,\"stream\":false,\"prompt\":[1,15043,3186],\"max_tokens\":1,"
		"\"kv_transfer_params\":" SPEC "}");
	cr_assert_eq(prefilled(TOKEN("7")), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"logprobs\":5,\"stream\":true,\"prompt\":[1,15043,3186,7],\"max_tokens\":8188}");
}

Test(lmcache, limits_are_those_of_the_member_that_wins)
{
	begin_at(ROUTE_CHAT,
		CHAT(",\"max_completion_tokens\":9,\"max_tokens\":50,\"min_tokens\":3,\"logprobs\":true"));
	cr_assert_eq(looked_up(TOLD), HANDOFF_OK);
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"max_tokens\":1,\"min_tokens\":1,\"logprobs\":0,\"stream\":false,"
		"\"prompt\":[1,15043,3186],\"kv_transfer_params\":" SPEC "}");
	cr_assert_eq(prefilled(TOKEN("7")), HANDOFF_OK);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"max_tokens\":8,\"min_tokens\":2,\"logprobs\":0,\"prompt\":[1,15043,3186,7]}");
}

Test(lmcache, one_token_needs_no_decode)
{
	begin("{\"prompt\":[1],\"max_tokens\":1}");
	cr_assert_eq(prefilled(TOKEN("7")), HANDOFF_OK);
	cr_assert(connector_lmcache.complete(&t));
}

Test(lmcache, an_end_needs_no_decode)
{
	begin("{\"prompt\":[1]}");
	cr_assert_eq(
		prefilled(
			"{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}],\"kv_transfer_params\":{\"first_tok\":2}}"),
		HANDOFF_OK);
	cr_assert(connector_lmcache.complete(&t));
	cr_assert_eq(prefilled(TOKEN("2")), HANDOFF_OK);
	cr_assert_not(connector_lmcache.complete(&t));
}

Test(lmcache, a_missing_first_token_is_left_to_decode)
{
	static const char *const answers[] = {FIRST(""), FIRST(",\"kv_transfer_params\":null"),
		FIRST(",\"kv_transfer_params\":{}"), TOKEN("null"), TOKEN("-1"), TOKEN("1.5")};

	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		begin_at(ROUTE_CHAT, CHAT(",\"min_tokens\":2"));
		cr_assert_eq(looked_up(TOLD), HANDOFF_OK);
		cr_assert_eq(prefilled(answers[i]), HANDOFF_NONE, "%s", answers[i]);
		expect_body(ROLE_DECODE,
			"{\"model\":\"m\",\"min_tokens\":2,\"prompt\":[1,15043,3186],\"max_tokens\":8189}");
	}
	begin("{\"prompt\":[1]}");
	cr_assert_eq(prefilled("[1]"), HANDOFF_BAD);
	cr_assert_eq(prefilled("oops"), HANDOFF_BAD);
}

Test(lmcache, a_list_of_one_prompt_is_that_prompt)
{
	struct lookup q;

	begin("{\"prompt\":[[1,2]]}");
	cr_assert_not(connector_lmcache.lookup(&t, &q));
	expect_body(ROLE_PREFILL,
		"{\"prompt\":[1,2],\"stream\":false,\"max_tokens\":1,\"kv_transfer_params\":" SPEC
		"}");
	drop_request();
	begin("{\"prompt\":[\"hi\"]}");
	expect_lookup("{\"prompt\":\"hi\"}");
}

Test(lmcache, tokens_that_are_none_are_no_answer)
{
	static const char *const bad[] = {"", "[]", "{}", "{\"tokens\":[1]}",
		"{\"count\":1,\"tokens\":null}", "{\"count\":1,\"tokens\":[\"a\"]}",
		"{\"count\":1,\"tokens\":[1.5]}", "{\"count\":-1,\"tokens\":[1]}",
		"{\"count\":1,\"tokens\":[1]"};

	begin("{\"prompt\":\"x\"}");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(looked_up(bad[i]), HANDOFF_BAD, "%s", bad[i]);
	cr_assert_eq(looked_up("{\"count\":1,\"tokens\":[1]}"), HANDOFF_OK);
	begin_at(ROUTE_CHAT, CHAT("")); /* how much may follow is not known */
	cr_assert_eq(looked_up("{\"count\":1,\"tokens\":[1]}"), HANDOFF_BAD);
}

Test(lmcache, first_token_from_decode_leaves_both_bodies_alone)
{
	struct lookup q;

	begin_at(ROUTE_CHAT, CHAT(",\"tools\":[{}],\"max_completion_tokens\":9"));
	request_pool.shake.first_token = ROLE_DECODE;
	cr_assert_not(connector_lmcache.lookup(&t, &q));
	cr_assert_null(connector_lmcache.path(&t, ROLE_PREFILL));
	cr_assert_null(connector_lmcache.unfit(&t.of));
	expect_body(ROLE_PREFILL,
		CHAT(",\"tools\":[{}],\"max_completion_tokens\":1,\"stream\":false,\"max_tokens\":1,"
		     "\"kv_transfer_params\":{\"disagg_spec\":{\"req_id\":\"id-0123456789abcdef\"," RECEIVER
		     "}}"));
	cr_assert_eq(prefilled(FIRST("")), HANDOFF_OK);
	expect_body(ROLE_DECODE, CHAT(",\"tools\":[{}],\"max_completion_tokens\":9"));
	cr_assert_eq(prefilled("oops"), HANDOFF_BAD);
}

Test(lmcache, a_client_that_has_gone_takes_one_token)
{
	struct lookup q;

	begin("{\"prompt\":[1],\"max_tokens\":64,\"min_tokens\":9,\"stream\":true}");
	cr_assert_not(connector_lmcache.lookup(&t, &q));
	cr_assert_eq(prefilled(TOKEN("7")), HANDOFF_OK);
	t.release_only = true;
	expect_body(ROLE_DECODE, "{\"prompt\":[1,7],\"max_tokens\":1,\"stream\":false}");
	t.first_token = -1; /* the cache came before the answer */
	expect_body(ROLE_DECODE, "{\"prompt\":[1,0],\"max_tokens\":1,\"stream\":false}");
}

Test(lmcache, no_listener_no_transfer)
{
	begin("{}");
	eps[ROLE_DECODE].disagg_spec = fixed("");
	cr_assert_eq(connector_lmcache.begin(&t), END_NOT_LEARNED);
}

Test(lmcache, unfit)
{
	static const struct {
		const char *body, *why;
	} rows[] = {
		{CHAT(""), NULL},
		{CHAT(",\"tools\":[]"), NULL},
		{CHAT(",\"tools\":null"), NULL},
		{CHAT(",\"tools\":[{\"type\":\"function\"}]"), "tools"},
		{"{\"messages\":[{\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
			"media"},
		{"{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]}", NULL},
		{CHAT(",\"response_format\":{\"type\":\"text\"}"), NULL},
		{CHAT(",\"response_format\":null"), NULL},
		{CHAT(",\"response_format\":{\"type\":\"json_object\"}"), "structured_output"},
		{CHAT(",\"guided_choice\":[\"a\"]"), "structured_output"},
		{CHAT(",\"structured_outputs\":{\"json\":{}}"), "structured_output"},
		{CHAT(",\"echo\":true"), "echo"},
		{CHAT(",\"echo\":false"), NULL},
		{CHAT(",\"prompt_logprobs\":0"), "prompt_logprobs"},
		{CHAT(",\"return_token_ids\":true"), "token_ids"},
		{CHAT(",\"truncate_prompt_tokens\":-1"), "truncation"},
		{CHAT(",\"max_tokens\":1e1"), "limit"},
		{CHAT(",\"max_tokens\":-1"), "limit"},
		{CHAT(",\"max_tokens\":0"), "limit"},
		{CHAT(",\"max_tokens\":\"5\""), "limit"},
		{CHAT(",\"max_tokens\":null"), NULL},
		{CHAT(",\"max_tokens\":-1,\"max_completion_tokens\":4"), NULL},
		{CHAT(",\"min_tokens\":-1"), "limit"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *why;

		begin_at(ROUTE_CHAT, rows[i].body);
		why = connector_lmcache.unfit(&t.of);
		cr_assert((why == NULL) == (rows[i].why == NULL), "%s", rows[i].body);
		cr_assert(
			why == NULL || strcmp(why, rows[i].why) == 0, "%s: %s", rows[i].body, why);
	}
}
