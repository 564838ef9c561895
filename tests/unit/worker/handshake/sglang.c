/* SGLang: both legs' bodies, byte by byte, rooms, and what an answer of the prefill engine says (protocols.md 5). */
#include "tests/unit/worker/handshake/bodies.h"

#define ROOM "6148914691236517205" /* of protocols.md 5.1; above 2^53 */

static void
begin(const char *body)
{
	worker.slot = 0;
	worker.next_room = 0;
	new_request(CONNECTOR_SGLANG, body);
	eps[ROLE_PREFILL].bootstrap_port = 8998;
	cr_assert_eq(t.connector->begin(&t), END_OK);
	t.room = UINT64_C(6148914691236517205);
}

static void
expect_both(const char *want)
{
	expect_body(ROLE_PREFILL, want);
	expect_body(ROLE_DECODE, want);
}

TestSuite(sglang, .fini = drop_request);

/* The sample of protocols.md 5.1, and nothing else changed. */
Test(sglang, both_bodies_are_the_same)
{
	begin("{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"max_tokens\":64}");
	facts.route = ROUTE_CHAT;
	cr_assert_eq(t.connector->starts[ROLE_PREFILL], STARTS_AT_ONCE);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AT_ONCE);
	expect_both(
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"max_tokens\":64,"
		"\"bootstrap_host\":\"10.0.0.7\",\"bootstrap_port\":8998,\"bootstrap_room\":" ROOM
		",\"rid\":\"id-0123456789abcdef\"}");
}

Test(sglang, a_list_of_prompts_gets_lists)
{
	begin("{\"prompt\":[\"a\",\"b\"]}");
	expect_both(
		"{\"prompt\":[\"a\",\"b\"],\"bootstrap_host\":[\"10.0.0.7\",\"10.0.0.7\"],"
		"\"bootstrap_port\":[8998,8998],\"bootstrap_room\":[" ROOM ",6148914691236517206],"
		"\"rid\":[\"id-0123456789abcdef\",\"id-0123456789abcdef_1\"]}");
}

Test(sglang, each_of_a_batch_is_of_the_rank)
{
	begin("{\"input_ids\":[[1],[2,3],[4]]}");
	facts.route = ROUTE_GENERATE;
	eps[ROLE_PREFILL].dp_ranks = 4;
	t.rank[ROLE_PREFILL] = 3;
	t.room = 4003;
	expect_body(ROLE_PREFILL,
		"{\"input_ids\":[[1],[2,3],[4]],\"bootstrap_host\":[\"10.0.0.7\",\"10.0.0.7\",\"10.0.0.7\"],"
		"\"bootstrap_port\":[8998,8998,8998],\"bootstrap_room\":[4003,4007,4011],"
		"\"rid\":[\"id-0123456789abcdef\",\"id-0123456789abcdef_1\",\"id-0123456789abcdef_2\"]}");
	expect_body(ROLE_DECODE,
		"{\"input_ids\":[[1],[2,3],[4]],\"bootstrap_host\":[\"10.0.0.7\",\"10.0.0.7\",\"10.0.0.7\"],"
		"\"bootstrap_port\":[8998,8998,8998],\"bootstrap_room\":[4003,4007,4011],"
		"\"disagg_prefill_dp_rank\":3,"
		"\"rid\":[\"id-0123456789abcdef\",\"id-0123456789abcdef_1\",\"id-0123456789abcdef_2\"]}");
}

/* One prompt is no list, whatever the path calls it; members of other paths are none of its prompts. */
Test(sglang, what_is_a_list)
{
	static const struct {
		enum route route;
		const char *body;
		bool list;
	} rows[] = {{ROUTE_COMPLETIONS, "{\"prompt\":\"a\"}", false},
		{ROUTE_COMPLETIONS, "{\"prompt\":[1,2]}", false},
		{ROUTE_COMPLETIONS, "{\"prompt\":[\"a\"]}", true},
		{ROUTE_COMPLETIONS, "{\"prompt\":[[1,2]]}", true},
		{ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"text\":[\"b\"]}", false},
		{ROUTE_CHAT, "{\"messages\":[],\"prompt\":[\"a\",\"b\"]}", false},
		{ROUTE_GENERATE, "{\"text\":[\"a\"]}", true},
		{ROUTE_GENERATE, "{\"text\":\"a\",\"prompt\":[\"b\"]}", false},
		{ROUTE_GENERATE, "{\"input_ids\":[1,2]}", false},
		{ROUTE_GENERATE, "{\"input_ids\":[[1,2]]}", true}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct splice_edit e;

		begin(rows[i].body);
		facts.route = rows[i].route;
		edit_leg(&t, ROLE_DECODE, &e);
		cr_assert_eq(
			e.on[SK_BOOTSTRAP_ROOM].value[0] == '[', rows[i].list, "%s", rows[i].body);
		cr_assert_eq(e.on[SK_RID].value[0] == '[', rows[i].list, "%s", rows[i].body);
		drop_request();
	}
}

static int
by_value(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* 1 .. 2^63 - 1, no two the same, whatever the worker's slot; congruent to the rank where there are ranks. */
Test(sglang, rooms)
{
	static const uint32_t slots[] = {0, 1, 127};
	static uint64_t rooms[3 * 4096];
	size_t n = 0;

	for (size_t s = 0; s < 3; s++) {
		begin("{}");
		worker.slot = slots[s];
		worker.next_room = UINT32_MAX; /* its count wraps */
		for (int i = 0; i < 4096; i++) {
			const uint32_t ranks = i % 3 == 0 ? 0 : i % 3 == 1 ? 7 : 1024;

			eps[ROLE_PREFILL].dp_ranks = ranks;
			t.rank[ROLE_PREFILL] = ranks > 0 ? i % (int)ranks : -1;
			cr_assert_eq(t.connector->begin(&t), END_OK);
			cr_assert(t.room >= 1 && t.room <= INT64_MAX);
			if (ranks > 0)
				cr_assert_eq(t.room % ranks, i % (int)ranks);
			rooms[n++] = t.room;
		}
	}
	qsort(rooms, n, sizeof(rooms[0]), by_value);
	for (size_t i = 1; i < n; i++)
		cr_assert_gt(rooms[i] - rooms[i - 1], 0);
}

/* Largest batch, most ranks: the last room is still below the next request's first. */
Test(sglang, rooms_of_a_batch_end_before_the_next)
{
	begin("{}");
	eps[ROLE_PREFILL].dp_ranks = 1024;
	t.rank[ROLE_PREFILL] = 1023;
	for (int i = 0; i < 1000; i++) {
		uint64_t last;

		cr_assert_eq(t.connector->begin(&t), END_OK);
		last = t.room + UINT64_C(4095) * 1024;
		cr_assert_eq(t.connector->begin(&t), END_OK);
		cr_assert_gt(t.room, last);
	}
}

static enum handoff
learned(const char *answer)
{
	struct lookup q;

	begin("{}");
	eps[ROLE_PREFILL].bootstrap_port = 0;
	cr_assert(t.connector->lookup(&t, &q));
	cr_assert_eq(q.role, ROLE_PREFILL);
	cr_assert_str_eq(q.path, "/server_info");
	cr_assert(t.connector->lookup(&t, &q));
	cr_assert_str_eq(q.path, "/get_server_info", "its name before 0.5.9");
	give(&t.lookup_answer, answer);
	return t.connector->looked_up(&t);
}

Test(sglang, the_port_is_asked_for)
{
	struct lookup q;

	cr_assert_eq(learned("{\"disaggregation_bootstrap_port\":0}"), HANDOFF_BAD);
	cr_assert_eq(learned("{\"disaggregation_bootstrap_port\":65536}"), HANDOFF_BAD);
	cr_assert_eq(learned("{\"disaggregation_bootstrap_port\":\"8998\"}"), HANDOFF_BAD);
	cr_assert_eq(learned("oops"), HANDOFF_BAD);
	cr_assert_eq(
		learned("{\"tp_size\":8,\"disaggregation_bootstrap_port\":8997,\"version\":\"0.5.23\"}"),
		HANDOFF_OK);
	cr_assert_not(t.connector->lookup(&t, &q));
	t.room = 5;
	expect_both(
		"{\"bootstrap_host\":\"10.0.0.7\",\"bootstrap_port\":8997,\"bootstrap_room\":5,\"rid\":\"id-0123456789abcdef\"}");
	t.connector->failed(&t, ROLE_DECODE);
	cr_assert_not(t.connector->lookup(&t, &q));
	t.connector->failed(&t, ROLE_PREFILL);
	cr_assert(t.connector->lookup(&t, &q), "it may come back with another");
}

static enum handoff
says(const char *answer, bool sse)
{
	t.prefill_answer.sse = sse;
	return prefill_says(answer);
}

#define META(reason)                                                                               \
	"{\"text\":\"a error\",\"meta_info\":{\"id\":\"x\",\"finish_reason\":" reason "}}"
#define ABORT "{\"type\":\"abort\",\"message\":\"m\"}"

/* 200 is no proof: an error or an abort under it is a failure, a word in a text is none (pitfall 20). */
Test(sglang, answers_of_the_prefill_engine)
{
	begin("{}");
	cr_assert_eq(
		says("{\"choices\":[{\"text\":\"an \\\"error\\\"\",\"finish_reason\":\"length\"}]}",
			false),
		HANDOFF_OK);
	cr_assert_eq(says("{\"error\":null,\"choices\":[]}", false), HANDOFF_OK);
	cr_assert_eq(says("{\"error\":{\"message\":\"m\"}}", false), HANDOFF_BAD);
	cr_assert_eq(says("{\"object\":\"error\",\"message\":\"m\"}", false), HANDOFF_BAD);
	cr_assert_eq(
		says("{\"object\": \"text_completion\",\"choices\":[{\"finish_reason\": \"abort\"}]}",
			false),
		HANDOFF_BAD);
	cr_assert_eq(says(META("null"), false), HANDOFF_OK);
	cr_assert_eq(says(META("{\"type\":\"length\",\"length\":1}"), false), HANDOFF_OK);
	cr_assert_eq(says(META(ABORT), false), HANDOFF_BAD);
	cr_assert_eq(says("[" META("null") ", " META(ABORT) "]", false), HANDOFF_BAD);
	cr_assert_eq(says("[" META("null") "]", false), HANDOFF_OK);
	cr_assert_eq(
		says("data: " META("null") "\n\ndata: " META(ABORT) "\n\n", true), HANDOFF_BAD);
	cr_assert_eq(says("data: " META("null") "\n\ndata: [DONE]\n\n", true), HANDOFF_OK);
	cr_assert_eq(says("data: {\"error\":{}}\n\ndata: [DONE]\n\n", true), HANDOFF_BAD);
	cr_assert_eq(
		says("\"abort\" error", false), HANDOFF_OK, "no JSON: decode's answer decides");
}

#define PARAMS                                                                                     \
	"{\"bootstrap_host\":\"h\", \"bootstrap_port\":9,\"bootstrap_room\":9223372036854775807}"

Test(sglang, the_prefill_engine_names_the_room)
{
	begin("{\"model\":\"m\",\"bootstrap_room\":1,\"stream\":false}");
	request_pool.shake.bootstrap = BOOTSTRAP_STREAM;
	cr_assert_eq(t.connector->begin(&t), END_OK);
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL);
	expect_body(
		ROLE_PREFILL, "{\"model\":\"m\",\"stream\":true,\"rid\":\"id-0123456789abcdef\"}");
	give(&t.prefill_answer, "data: {\"disaggregated_params\":" PARAMS "}\n");
	cr_assert_neq(t.connector->prefill_more(&t), HANDOFF_OK, "half an event");
	give(&t.prefill_answer, "data: {\"disaggregated_params\":" PARAMS "}\n\ndata: {}\n\n");
	cr_assert_eq(t.connector->prefill_more(&t), HANDOFF_OK);
	cr_assert_eq(t.connector->prefill_more(&t), HANDOFF_NONE, "once");
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\",\"bootstrap_room\":9223372036854775807,\"stream\":false,\"bootstrap_host\":\"h\","
		"\"bootstrap_port\":9,\"rid\":\"id-0123456789abcdef\"}");
}

Test(sglang, what_cannot_be_served)
{
	static const struct {
		enum route route;
		const char *body;
		bool refused;
	} rows[] = {{ROUTE_GENERATE, "{\"sampling_params\":{\"n\":2}}", true},
		{ROUTE_GENERATE, "{\"sampling_params\":{\"n\":1}}", false},
		{ROUTE_GENERATE, "{\"sampling_params\":[{\"n\":2},{\"n\":2}]}", true},
		{ROUTE_GENERATE, "{\"sampling_params\":[ ]}", false},
		{ROUTE_GENERATE, "{\"sampling_params\":[{}]}", false},
		{ROUTE_GENERATE, "{\"sampling_params\":null}", false},
		{ROUTE_GENERATE, "{\"sampling_params\":7}", false},
		{ROUTE_COMPLETIONS, "{\"sampling_params\":{\"n\":2}}", false}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		begin(rows[i].body);
		facts.route = rows[i].route;
		cr_assert_eq(
			t.connector->refuses(&t.of) != NULL, rows[i].refused, "%s", rows[i].body);
	}
}
