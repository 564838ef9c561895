/*
 * Answers of several engines become one.  The samples are those of the LMCache proxies' and vLLM's wire, byte for byte; a
 * test is a script of what the engines say, and the text the client gets.
 */
#include "proto/answer/answer.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "tests/unit/feed.h"

#define ROOM 65536

/*
 * One step: "P0 {..}" is the prefill's answer for part 0, "D0 .." an event's data (or a whole
 * body), "R0 .." an event as it stands, "E0" the part's end.  The answer's end follows the last step.
 */
struct script {
	const char *const *steps;
	struct answer *a;
	struct membuf out;
	bool stream;
	int result; /* of the step that failed, or of the end */
	size_t at;  /* the number of that step */
};

static int
do_step(struct script *s, const char *step)
{
	uint32_t part = (uint32_t)(step[1] - '0');
	const char *text = step + 3;
	char *event = NULL;
	int r;

	switch (step[0]) {
	case 'P':
		return answer_prefill(s->a, part, text, strlen(text), &s->out);
	case 'E':
		return answer_part_end(s->a, part, &s->out);
	case 'R':
		return answer_event(s->a, part, text, strlen(text), &s->out);
	default:
		if (!s->stream)
			return answer_whole(s->a, part, text, strlen(text));
		event = mem_printf("data: %s\n\n", text);
		r = answer_event(s->a, part, event, strlen(event), &s->out);
		free(event);
		return r;
	}
}

static void
run_bounded(struct script *s, const struct answer_how *how, const char *const *steps, size_t room)
{
	*s = (struct script){.a = answer_new(how, room), .stream = how->stream};
	for (; s->result == 0 && steps[s->at] != NULL; s->at += s->result == 0)
		s->result = do_step(s, steps[s->at]);
	if (s->result == 0)
		s->result = answer_end(s->a, &s->out);
	membuf_add(&s->out, "", 1);
	answer_free(&s->a);
	cr_assert_null(s->a);
}

static void
run(struct script *s, const struct answer_how *how, const char *const *steps)
{
	run_bounded(s, how, steps, ROOM);
}

#define STEPS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void
expect(const struct answer_how *how, const char *const *steps, const char *want)
{
	struct script s;

	run(&s, how, steps);
	cr_assert_eq(s.result, ANSWER_OK, "step %zu gave %d", s.at, s.result);
	cr_assert_str_eq(s.out.p, want);
	membuf_free(&s.out);
}

/* The step `at` is refused with `result`. */
static void
refused(const struct answer_how *how, const char *const *steps, size_t at, int result)
{
	struct script s;

	run(&s, how, steps);
	cr_assert_eq(s.result, result, "%s: gave %d", steps[at], s.result);
	cr_assert_eq(s.at, at, "refused at %zu", s.at);
	membuf_free(&s.out);
}

/* --- the samples -------------------------------------------------------------------------- */

#define PREFILL                                                                                    \
	"{\"id\":\"cmpl-P\",\"created\":100,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":"   \
	"\"He\",\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":9,"                    \
	"\"completion_tokens\":1,\"total_tokens\":10},\"kv_transfer_params\":{\"first_tok\":1598}" \
	"}"
#define CHAT                                                                                       \
	"{\"id\":\"chatcmpl-R\",\"object\":\"chat.completion.chunk\",\"created\":100,\"model\":\"m\","
#define TEXT "{\"id\":\"cmpl-P\",\"object\":\"text_completion\",\"created\":100,\"model\":\"m\","
#define D_TEXT "{\"id\":\"cmpl-D\",\"object\":\"text_completion\",\"created\":101,\"model\":\"m\","
#define ROLE                                                                                       \
	"data: " CHAT "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"   \
	"\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define DELTA(text)                                                                                \
	"data: " CHAT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text                   \
	"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define DONE "data: [DONE]\n\n"

static const struct answer_how completions = {.first_token = true, .stream = true, .parts = 1};
static const struct answer_how chat = {.chat = true,
	.from_completions = true,
	.first_token = true,
	.stream = true,
	.usage = true,
	.parts = 1,
	.id = "\"chatcmpl-R\""};

Test(answer, completions_stream)
{
	expect(&completions,
		STEPS("P0 " PREFILL,
			"D0 " D_TEXT "\"choices\":[{\"index\":0,\"text\":\"llo\",\"logprobs\":null,"
			"\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,"
			"\"token_ids\":null}],\"usage\":null}",
			"D0 [DONE]", "E0"),
		"data: " TEXT
		"\"choices\":[{\"index\":0,\"text\":\"He\",\"logprobs\":null,\"finish_reason\":"
		"null,\"stop_reason\":null}],\"usage\":null}\n\n"
		"data: " TEXT
		"\"choices\":[{\"index\":0,\"text\":\"llo\",\"logprobs\":null,\"finish_reason\":"
		"null,\"stop_reason\":null}],\"usage\":null}\n\n" DONE);
}

Test(answer, chat_stream)
{
	expect(&chat,
		STEPS("P0 " PREFILL,
			"D0 " D_TEXT
			"\"choices\":[{\"index\":0,\"text\":\"llo\",\"finish_reason\":null}]}",
			"D0 " D_TEXT
			"\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\","
			"\"stop_reason\":null}]}",
			"D0 " D_TEXT
			"\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":6,"
			"\"total_tokens\":16}}",
			"D0 [DONE]", "E0"),
		ROLE DELTA("He") DELTA(
			"llo") "data: " CHAT
			       "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
			       "\"stop_reason\":null}]}\n\n"
			       "data: " CHAT
			       "\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7,"
			       "\"total_tokens\":16}}\n\n" DONE);
}

#define D_BODY                                                                                     \
	D_TEXT "\"choices\":[{\"index\":0,\"text\":\"llo\",\"logprobs\":null,"                     \
	       "\"finish_reason\":\"stop\",\"prompt_logprobs\":null}],\"usage\":{"                 \
	       "\"prompt_tokens\":10,\"completion_tokens\":6,\"total_tokens\":16},"                \
	       "\"kv_transfer_params\":null}"

Test(answer, whole_bodies)
{
	struct answer_how how = chat;

	how.stream = false;
	expect(&how, STEPS("P0 " PREFILL, "D0 " D_BODY, "E0"),
		"{\"id\":\"chatcmpl-R\",\"object\":\"chat.completion\",\"created\":100,\"model\":\"m\","
		"\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello\"},"
		"\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,"
		"\"completion_tokens\":7,\"total_tokens\":16}}");
	how = completions;
	how.stream = false;
	expect(&how, STEPS("P0 " PREFILL, "D0 " D_BODY, "E0"),
		TEXT "\"choices\":[{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,"
		     "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{"
		     "\"prompt_tokens\":9,\"completion_tokens\":7,\"total_tokens\":16}}");
}

/* --- the first token ---------------------------------------------------------------------- */

#define D_EVENT(choice) D_TEXT "\"choices\":[" choice "]}"
#define FINISH                                                                                     \
	"data: " CHAT "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"                  \
	"\"finish_reason\":\"stop\"}]}\n\n"
#define PREFILL_OF(choice, usage)                                                                  \
	"{\"id\":\"cmpl-P\",\"created\":100,\"model\":\"m\",\"choices\":[" choice                  \
	"],\"usage\":" usage "}"
#define ENDED                                                                                      \
	PREFILL_OF("{\"index\":0,\"text\":\"He\",\"finish_reason\":\"stop\",\"stop_reason\":7}",   \
		"{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}")

/* The role is told once, text and end may come in one event, an empty text without end is an event. */
Test(answer, chat_events)
{
	struct answer_how how = chat;

	how.usage = false;
	expect(&how,
		STEPS("P0 " PREFILL_OF(
			      "{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}", "null"),
			"D0 " D_EVENT("{\"index\":0,\"text\":\"\"}"),
			"D0 " D_EVENT("{\"index\":0,\"text\":\"\\u00e9\\\"\",\"finish_reason\":"
				      "\"length\",\"stop_reason\":\"x\"}"),
			"E0"),
		ROLE DELTA("") DELTA(
			"") "data: " CHAT
			    "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\u00e9\\\"\"},\"logprobs\":"
			    "null,\"finish_reason\":\"length\",\"stop_reason\":\"x\"}]}\n\n" DONE);
}

Test(answer, chat_without_first_token)
{
	struct answer_how how = chat;

	how.usage = how.first_token = false;
	how.id = NULL;
	expect(&how,
		STEPS("D0 {\"id\":\"chatcmpl-R\",\"created\":100,\"model\":\"m\",\"choices\":[{\"index\":0,"
		      "\"text\":\"a\"},{\"index\":0,\"text\":null}]}",
			"D0 " D_EVENT(""), "E0"),
		ROLE
		"data: " CHAT
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"logprobs\":null,"
		"\"finish_reason\":null},{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":"
		"null,\"finish_reason\":null}]}\n\ndata: " CHAT "\"choices\":[]}\n\n" DONE);
}

Test(answer, prefill_ended_chat_stream)
{
	struct answer_how how = chat;

	expect(&how, STEPS("P0 " ENDED, "E0"),
		ROLE DELTA(
			"He") "data: " CHAT
			      "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
			      "\"stop_reason\":7}]}\n\n"
			      "data: " CHAT
			      "\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,"
			      "\"total_tokens\":10}}\n\n" DONE);
	/* max_tokens was 1; nobody asked for the usage */
	how.usage = false;
	expect(&how, STEPS("P0 " PREFILL, "E0"),
		ROLE DELTA(
			"He") "data: " CHAT
			      "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]"
			      "}\n\n" DONE);
}

Test(answer, prefill_ended_completions)
{
	struct answer_how how = completions;

	how.usage = true;
	expect(&how, STEPS("P0 " ENDED, "E0"),
		"data: " TEXT
		"\"choices\":[{\"index\":0,\"text\":\"He\",\"logprobs\":null,\"finish_reason\":null,"
		"\"stop_reason\":null}],\"usage\":null}\n\n"
		"data: " TEXT
		"\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
		"\"stop_reason\":7}],\"usage\":null}\n\n"
		"data: " TEXT
		"\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,"
		"\"total_tokens\":10}}\n\n" DONE);
	how.stream = false;
	expect(&how, STEPS("P0 " ENDED, "E0"),
		TEXT
		"\"choices\":[{\"index\":0,\"text\":\"He\",\"logprobs\":null,\"finish_reason\":"
		"\"stop\",\"stop_reason\":7}],\"usage\":{\"prompt_tokens\":9,"
		"\"completion_tokens\":1,\"total_tokens\":10}}");
}

Test(answer, nothing_known_of_identity)
{
	expect(&completions,
		STEPS("P0 {\"choices\":[{\"text\":\"a\"}]}", "D0 {\"choices\":[]}", "E0"),
		"data: {\"id\":\"\",\"object\":\"text_completion\",\"created\":0,\"model\":\"\","
		"\"choices\":[{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null,"
		"\"stop_reason\":null}],\"usage\":null}\n\n"
		"data: {\"id\":\"\",\"object\":\"text_completion\",\"created\":0,\"model\":\"\","
		"\"choices\":[],\"usage\":null}\n\n" DONE);
}

/* Both a first token and several parts: each choice has its own head. */
Test(answer, first_tokens_of_parts)
{
	struct answer_how how = chat;

	how.parts = 2;
	how.samples = 2;
	how.usage = false;
	expect(&how,
		STEPS("P1 " PREFILL,
			"D1 " D_EVENT("{\"index\":0,\"text\":\"y\",\"finish_reason\":\"stop\"}"),
			"E1", "P0 " ENDED, "E0"),
		"data: " CHAT
		"\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":"
		"\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
		"data: " CHAT
		"\"choices\":[{\"index\":1,\"delta\":{\"content\":\"He\"},\"logprobs\":"
		"null,\"finish_reason\":null}]}\n\n"
		"data: " CHAT
		"\"choices\":[{\"index\":1,\"delta\":{\"content\":\"y\"},\"logprobs\":"
		"null,\"finish_reason\":\"stop\"}]}\n\n" ROLE DELTA(
			"He") "data: " CHAT
			      "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
			      "\"stop_reason\":7}]}\n\n" DONE);
	how.stream = false;
	expect(&how, STEPS("P1 " PREFILL, "D1 " D_BODY, "E1", "P0 " ENDED, "E0"),
		"{\"id\":\"chatcmpl-R\",\"object\":\"chat.completion\",\"created\":100,\"model\":\"m\","
		"\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"He\"},"
		"\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":7},{\"index\":1,"
		"\"message\":{\"role\":\"assistant\",\"content\":\"Hello\"},\"logprobs\":null,"
		"\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8,"
		"\"total_tokens\":17}}");
}

Test(answer, prefill_ended)
{
	static const struct {
		const char *json;
		bool ended;
	} cases[] = {
		{PREFILL, false},
		{ENDED, true},
		{"{\"choices\":[{\"finish_reason\":null}]}", false},
		{"{\"choices\":[{}]}", false},
		{"{\"choices\":[{\"finish_reason\":7}]}", false},
		{"{\"choices\":[]}", false},
		{"{\"choices\":{}}", false},
		{"{}", false},
		{"", false},
		{"{\"choices\":[{\"finish_reason\":\"stop\"}]", false},
		{"{\"choices\":[{\"finish_reason\":\"stop\"},{\"finish_reason\":\"length\"}]}",
			false},
		{"{\"choices\":[{\"finish_reason\":\"stop\"},{\"finish_reason\":\"stop\"}]}", true},
		{"{\"choices\":[1]}", false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		cr_assert_eq(answer_prefill_ended(cases[i].json, strlen(cases[i].json)),
			cases[i].ended, "%s", cases[i].json);
}

/* --- logprobs ----------------------------------------------------------------------------- */

#define P_LOGPROBS                                                                                 \
	"{\"text_offset\":[0],\"token_logprobs\":[-0.5],\"tokens\":[\"He\"],\"top_logprobs\":["    \
	"{\"He\":-0.5,\"Ha\":-1.25,\"Ho\":-2e0}]}"
/* D counts from its own first character, the client from P's. */
#define D_LOGPROBS_BEHIND                                                                          \
	"{\"text_offset\":[2,5],\"token_logprobs\":[-1,null],\"tokens\":[\"\\u00e9\\ud83d\\ude00"  \
	"\",\"\\n\"],\"top_logprobs\":[{\"\\u00e9\":-1.0},null]}"
#define D_LOGPROBS                                                                                 \
	"{\"text_offset\":[0,3],\"token_logprobs\":[-1,null],\"tokens\":[\"\\u00e9\\ud83d\\ude00"  \
	"\",\"\\n\"],\"top_logprobs\":[{\"\\u00e9\":-1.0},null]}"
#define P_WITH_LOGPROBS                                                                            \
	PREFILL_OF("{\"index\":0,\"text\":\"He\",\"logprobs\":" P_LOGPROBS                         \
		   ",\"finish_reason\":\"length\"}",                                               \
		"null")
#define D_CHOICE_LOGPROBS                                                                          \
	"{\"index\":0,\"text\":\"x\",\"logprobs\":" D_LOGPROBS ",\"finish_reason\":\"stop\"}"
#define CHAT_P                                                                                     \
	"{\"token\":\"He\",\"logprob\":-0.5,\"bytes\":[72,101],\"top_logprobs\":[{\"token\":\"He"  \
	"\",\"logprob\":-0.5,\"bytes\":[72,101]},{\"token\":\"Ha\",\"logprob\":-1.25,\"bytes\":["  \
	"72,97]}]}"
#define CHAT_D                                                                                     \
	"{\"token\":\"\\u00e9\\ud83d\\ude00\",\"logprob\":-1,\"bytes\":[195,169,240,159,152,128]," \
	"\"top_logprobs\":[{\"token\":\"\\u00e9\",\"logprob\":-1.0,\"bytes\":[195,169]}]},"        \
	"{\"token\":\"\\n\",\"logprob\":-9999.0,\"bytes\":[10],\"top_logprobs\":[]}"

Test(answer, logprobs_chat)
{
	struct answer_how how = chat;
	static const char *const steps[] = {
		"P0 " P_WITH_LOGPROBS, "D0 " D_EVENT(D_CHOICE_LOGPROBS), "E0", NULL};

	how.usage = false;
	how.top_logprobs = 2;
	expect(&how, steps,
		ROLE "data: " CHAT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"He\"},"
		     "\"logprobs\":{\"content\":[" CHAT_P "]},\"finish_reason\":null}]}\n\n"
		     "data: " CHAT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},"
		     "\"logprobs\":{\"content\":[" CHAT_D
		     "]},\"finish_reason\":\"stop\"}]}\n\n" DONE);
	how.stream = false;
	expect(&how, steps,
		"{\"id\":\"chatcmpl-R\",\"object\":\"chat.completion\",\"created\":100,\"model\":\"m\","
		"\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hex\"},"
		"\"logprobs\":{\"content\":[" CHAT_P "," CHAT_D "]},\"finish_reason\":\"stop\"}]}");
}

/* Without top_logprobs vLLM's completions name the chosen token there; chat does not. */
Test(answer, logprobs_chat_none_asked)
{
	struct answer_how how = chat;

	how.stream = how.first_token = false;
	how.choices = 2;
	expect(&how,
		STEPS("D0 " D_EVENT(
			      "{\"index\":0,\"text\":\"a\",\"logprobs\":{\"tokens\":[\"a\",\"\"],"
			      "\"token_logprobs\":[-1],\"top_logprobs\":[{\"a\":-1}]}},"
			      "{\"index\":1,\"logprobs\":{\"tokens\":[],\"top_logprobs\":null}}"),
			"E0"),
		"{\"id\":\"chatcmpl-R\",\"object\":\"chat.completion\",\"created\":101,\"model\":\"m\","
		"\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\"},"
		"\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1,\"bytes\":[97],"
		"\"top_logprobs\":[]},{\"token\":\"\",\"logprob\":-9999.0,\"bytes\":[],"
		"\"top_logprobs\":[]}]},\"finish_reason\":null},{\"index\":1,\"message\":{\"role\":"
		"\"assistant\",\"content\":\"\"},\"logprobs\":{\"content\":[]},\"finish_reason\":null}"
		"]}");
}

#define TEXT_CHOICE(text, logprobs)                                                                \
	"{\"index\":0,\"text\":\"" text "\",\"logprobs\":" logprobs                                \
	",\"finish_reason\":null,\"stop_reason\":null}"

Test(answer, logprobs_completions)
{
	struct answer_how how = completions;
	static const char *const steps[] = {"P0 " P_WITH_LOGPROBS,
		"D0 " D_EVENT("{\"index\":0,\"text\":\"x\",\"logprobs\":" D_LOGPROBS "}"), "E0",
		NULL};

	expect(&how, steps,
		"data: " TEXT "\"choices\":[" TEXT_CHOICE(
			"He", P_LOGPROBS) "],\"usage\":null}\n\n"
					  "data: " TEXT "\"choices\":[" TEXT_CHOICE("x",
						  D_LOGPROBS_BEHIND) "],\"usage\":null}\n\n" DONE);
	how.stream = false;
	expect(&how, steps,
		TEXT "\"choices\":[" TEXT_CHOICE("Hex",
			"{\"text_offset\":[0,2,5],\"token_logprobs\":[-0.5,-1,null],\"tokens\":[\"He\","
			"\"\\u00e9\\ud83d\\ude00\",\"\\n\"],\"top_logprobs\":[{\"He\":-0.5,\"Ha\":-1.25,"
			"\"Ho\":-2e0},{\"\\u00e9\":-1.0},null]}") "],\"usage\":null}");
}

Test(answer, logprobs_of_one_leg_alone)
{
	struct answer_how how = completions;

	how.stream = false;
	expect(&how,
		STEPS("P0 " P_WITH_LOGPROBS, "D0 " D_EVENT("{\"index\":0,\"text\":\"x\"}"), "E0"),
		TEXT "\"choices\":[" TEXT_CHOICE("Hex", P_LOGPROBS) "],\"usage\":null}");
	expect(&how,
		STEPS("P0 " PREFILL,
			"D0 " D_EVENT("{\"index\":0,\"logprobs\":{\"tokens\":[\"a\"],\"x\":1}}"),
			"E0"),
		TEXT "\"choices\":[" TEXT_CHOICE(
			"He", "{\"tokens\":[\"a\"],\"x\":1}") "],\"usage\":null}");
	/* lists that are empty, or only there on one side */
	expect(&how,
		STEPS("P0 " PREFILL_OF(
			      "{\"logprobs\":{\"tokens\":[ ],\"a\":[1],\"x\":[1],\"y\":2}}",
			      "null"),
			"D0 " D_EVENT("{\"logprobs\":{ \"tokens\" : [\"a\"] ,\"a\":[],\"x\":null,"
				      "\"y\":[3]} }"),
			"E0"),
		TEXT "\"choices\":[" TEXT_CHOICE("",
			"{ \"tokens\" : [\"a\"] ,\"a\":[],\"x\":null,\"y\":[3]}") "],\"usage\":null}");
}

/* An offset counts characters, however the engine wrote them. */
Test(answer, logprobs_behind_any_text)
{
	static const struct {
		const char *text, *offsets, *want;
	} rows[] = {{"", "[0,1]", "[0,1]"}, {"\xc3\xa9\xf0\x9f\x98\x80", "[0,1]", "[2,3]"},
		{"\\u00e9\\ud83d\\ude00\\n\\\"", "[0,null, 1 ]", "[4,null, 5 ]"},
		{"a\\ud83d", "[]", "[]"}, {"a", "null", "null"}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct answer_how how = completions;
		char prefill[200], event[200], want[400];
		const char *steps[] = {prefill, event, "E0", NULL};

		how.stream = false;
		(void)snprintf(prefill, sizeof(prefill),
			"P0 " PREFILL_OF("{\"text\":\"%s\"}", "null"), rows[i].text);
		(void)snprintf(event, sizeof(event),
			"D0 " D_EVENT("{\"text\":\"x\",\"logprobs\":{\"text_offset\":%s}}"),
			rows[i].offsets);
		(void)snprintf(want, sizeof(want),
			TEXT "\"choices\":[" TEXT_CHOICE(
				"%sx", "{\"text_offset\":%s}") "],\"usage\":null}",
			rows[i].text, rows[i].want);
		expect(&how, steps, want);
	}
}

/* --- usages ------------------------------------------------------------------------------- */

#define USAGE_EVENT(usage) "D0 " D_TEXT "\"choices\":[],\"usage\":" usage "}"
#define P_USAGE(usage) "P0 " PREFILL_OF("{\"index\":0,\"text\":\"\"}", usage)
#define P_CACHED "{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}"

/* What the client gets of D's usage when P said `prefill`. */
static void
expect_usage(bool first_token, bool fix, const char *prefill, const char *usage, const char *want)
{
	struct answer_how how = {
		.first_token = first_token, .cached_from_prefill = fix, .parts = 1};
	const char *at;
	char *p = mem_printf("P0 {\"choices\":[{}],\"usage\":%s}", prefill);
	char *d = mem_printf("D0 {\"choices\":[],\"usage\":%s}", usage);
	char *tail = mem_printf("\"usage\":%s}", want);
	struct script s;

	run(&s, &how, STEPS(p, d, "E0"));
	cr_assert_eq(s.result, ANSWER_OK, "%s: %d", usage, s.result);
	at = strstr(s.out.p, "\"usage\"");
	cr_assert_not_null(at);
	cr_assert_str_eq(at, tail);
	membuf_free(&s.out);
	free(p);
	free(d);
	free(tail);
}

Test(answer, usage_shifts)
{
	expect_usage(true, false, "null", "{\"prompt_tokens\":10,\"x\":{\"y\":1}}",
		"{\"prompt_tokens\":9,\"x\":{\"y\":1}}");
	/* what is no count stays */
	expect_usage(true, false, "null",
		"{\"prompt_tokens\":0,\"completion_tokens\":1e2,\"completion_tokens\":null}",
		"{\"prompt_tokens\":0,\"completion_tokens\":1e2,\"completion_tokens\":null}");
	expect_usage(true, false, "null", "{\"prompt_tokens\":12345678901234567}",
		"{\"prompt_tokens\":12345678901234567}");
	expect_usage(true, false, "null", "{}", "{}");
	expect_usage(
		false, false, P_CACHED, "{ \"prompt_tokens\" : 10 }", "{ \"prompt_tokens\" : 10 }");
}

Test(answer, usage_cached_tokens)
{
	static const char d[] =
		"{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"a\":1,\"cached_tokens\":8,\"b\":2}}";

	expect_usage(false, true, P_CACHED, d,
		"{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"a\":1,\"cached_tokens\":4,\"b\":2}}");
	expect_usage(false, true, "null", d,
		"{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"a\":1,\"cached_tokens\":0,\"b\":2}}");
	expect_usage(true, false, "{\"prompt_tokens_details\":null}", d,
		"{\"prompt_tokens\":8,\"prompt_tokens_details\":null}");
	expect_usage(true, false, P_CACHED, d,
		"{\"prompt_tokens\":8,\"prompt_tokens_details\":{\"a\":1,\"cached_tokens\":4,\"b\":2}}");
	expect_usage(true, true, "{\"prompt_tokens_details\":{\"cached_tokens\":null}}", d,
		"{\"prompt_tokens\":8,\"prompt_tokens_details\":{\"a\":1,\"cached_tokens\":0,\"b\":2}}");
	/* D says nothing of it */
	expect_usage(false, true, P_CACHED, "{\"prompt_tokens_details\":null}",
		"{\"prompt_tokens_details\":{\"cached_tokens\":4}}");
	expect_usage(false, true, P_CACHED, "{\"a\":1}",
		"{\"a\":1,\"prompt_tokens_details\":{\"cached_tokens\":4}}");
	expect_usage(
		false, true, P_CACHED, "{}", "{\"prompt_tokens_details\":{\"cached_tokens\":4}}");
	/* nobody does */
	expect_usage(false, true, "null", "{\"prompt_tokens_details\":{\"cached_tokens\":null}}",
		"{\"prompt_tokens_details\":{\"cached_tokens\":null}}");
	expect_usage(false, true, "{\"prompt_tokens_details\":{}}",
		"{\"prompt_tokens_details\":{\"a\":1}}", "{\"prompt_tokens_details\":{\"a\":1}}");
	expect_usage(true, false, "null", "{\"prompt_tokens_details\":null}",
		"{\"prompt_tokens_details\":null}");
}

Test(answer, usage_continuous)
{
	struct answer_how how = chat;

	how.continuous_usage = true;
	expect(&how,
		STEPS("P0 " PREFILL,
			"D0 " D_TEXT
			"\"choices\":[{\"index\":0,\"text\":\"llo\",\"finish_reason\":null}],"
			"\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1,\"total_tokens\":11}}",
			USAGE_EVENT(
				"{\"prompt_tokens\":10,\"completion_tokens\":1,\"total_tokens\":11}"),
			"E0"),
		"data: " CHAT
		"\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
		"\"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":9,"
		"\"total_tokens\":9,\"completion_tokens\":0}}\n\n"
		"data: " CHAT
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":\"He\"},\"logprobs\":null,"
		"\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,"
		"\"total_tokens\":10}}\n\n"
		"data: " CHAT
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":\"llo\"},\"logprobs\":null,"
		"\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,"
		"\"total_tokens\":11}}\n\n"
		"data: " CHAT
		"\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,"
		"\"total_tokens\":11}}\n\n" DONE);
	/* P says nothing of it */
	how.usage = false;
	expect(&how, STEPS(P_USAGE("null"), "E0"),
		"data: "
		"{\"id\":\"chatcmpl-R\",\"object\":\"chat.completion.chunk\",\"created\":100,"
		"\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":"
		"\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n" DELTA("") DELTA("") DONE);
}

/* An engine can be told to send usages that the client did not ask for: they pass. */
Test(answer, usage_not_asked_for)
{
	expect(&completions, STEPS("P0 " PREFILL, USAGE_EVENT("{\"prompt_tokens\":10}"), "E0"),
		"data: " TEXT "\"choices\":[" TEXT_CHOICE(
			"He", "null") "],\"usage\":null}\n\n"
				      "data: " TEXT
				      "\"choices\":[],\"usage\":{\"prompt_tokens\":9}}\n\n" DONE);
}

/* --- one part whose members stay ---------------------------------------------------------- */

Test(answer, another_id)
{
	struct answer_how how = {.stream = true, .parts = 1, .id = "\"cmpl-mine\""};

	expect(&how,
		STEPS("D0 { \"x\" : 1e400, \"id\" :\"cmpl-___1.2.3.4:5\",\"created\":1, \"choices\":[{"
		      "\"index\":7,\"text\":\"\\/\"}],\"system_fingerprint\":null,\"usage\":null}",
			"D0 {\"id\":1,\"choices\":[],\"usage\":{\"a\":12345678901234567890}}",
			"D0 {\"created\":2}", "D0 [DONE]", "E0"),
		"data: { \"x\" : 1e400, \"id\" :\"cmpl-mine\",\"created\":1, \"choices\":[{"
		"\"index\":7,\"text\":\"\\/\"}],\"system_fingerprint\":null,\"usage\":null}\n\n"
		"data: {\"id\":\"cmpl-mine\",\"choices\":[],\"usage\":{\"a\":12345678901234567890}}\n\n"
		"data: {\"created\":2}\n\n" DONE);
	how.stream = false;
	expect(&how,
		STEPS("D0 {\"choices\":[{}] , \"id\":\"a\",\"usage\":{\"b\" : 1}, \"c\":[]}\n",
			"E0"),
		"{\"choices\":[{}] , \"id\":\"cmpl-mine\",\"usage\":{\"b\" : 1}, \"c\":[]}\n");
}

Test(answer, cached_tokens_of_p)
{
	struct answer_how how = {.stream = true, .cached_from_prefill = true, .parts = 1};

	expect(&how,
		STEPS(P_USAGE(P_CACHED),
			"D0 {\"id\":\"D\",\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":"
			"{\"prompt_tokens_details\":{\"cached_tokens\":9}},\"service_tier\":null}",
			"D0 {\"id\":\"D\",\"choices\":[],\"usage\":{\"prompt_tokens_details\":{"
			"\"cached_tokens\":9}}}",
			"E0"),
		"data: {\"id\":\"D\",\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":"
		"{\"prompt_tokens_details\":{\"cached_tokens\":4}},\"service_tier\":null}\n\n"
		"data: {\"id\":\"D\",\"choices\":[],\"usage\":{\"prompt_tokens_details\":{"
		"\"cached_tokens\":4}}}\n\n" DONE);
}

/* --- fan-out ------------------------------------------------------------------------------ */

#define CHUNK(id, created, choices, rest)                                                          \
	"{\"id\":\"" id "\",\"object\":\"chat.completion.chunk\",\"created\":" created             \
	",\"model\":\"m\",\"choices\":[" choices "]" rest "}"
#define SAYS(index, text) "{\"index\":" index ",\"delta\":{\"content\":\"" text "\"}}"

static const struct answer_how fan_out = {
	.chat = true, .stream = true, .usage = true, .parts = 3, .samples = 3};

Test(answer, fan_out_stream)
{
	expect(&fan_out,
		STEPS("D1 " CHUNK("b", "2", SAYS("0", "x"), ",\"system_fingerprint\":\"f\""),
			"D0 " CHUNK("a", "1", SAYS("0", "y"), ",\"usage\":{\"prompt_tokens\":3}"),
			"R2 : ping\n\n",
			"D1 " CHUNK("b", "2", "",
				",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
				"\"prompt_tokens_details\":{\"cached_tokens\":2},\"completion_tokens_details\":{"
				"\"reasoning_tokens\":1},\"reasoning_tokens\":0},\"z\":0"),
			"D1 [DONE]", "E1",
			"D0 " CHUNK("a", "1", "",
				",\"usage\":{\"prompt_tokens\":3,\"total_tokens\":10,\"completion_tokens\":7,"
				"\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{"
				"\"reasoning_tokens\":4,\"x\":null,\"deep\":{\"n\":1}},\"reasoning_tokens\":5}"),
			"D0 [DONE]", "E0", "D2 " CHUNK("c", "3", "", ""), "D2 [DONE]", "E2"),
		"data: " CHUNK("b", "2", SAYS("1", "x"),
			",\"system_fingerprint\":\"f\"") "\n\n"
							 "data: " CHUNK("b", "2", SAYS("0", "y"),
								 ",\"usage\":{\"prompt_tokens\":3}") "\n\n"
												     ": ping\n\n"
												     "data: " CHUNK(
													     "b",
													     "2",
													     "",
													     "") "\n\n"
														 "data: " CHUNK(
															 "b",
															 "2",
															 "",
															 ",\"usage\":{\"prompt_tokens\":3,\"total_tokens\":12,\"completion_tokens\":9,"
															 "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{"
															 "\"reasoning_tokens\":5,\"x\":null,\"deep\":{\"n\":1}},\"reasoning_tokens\":5},"
															 "\"z\":0") "\n\n" DONE);
}

/* Prompts each count, and each part may have several choices. */
Test(answer, fan_out_prompts)
{
	struct answer_how how = {.stream = true, .parts = 2, .choices = 2, .id = "\"i\""};

	expect(&how,
		STEPS("D0 " CHUNK("a", "1", SAYS("0", "p") "," SAYS("1", "q"), ""),
			"D1 " CHUNK("b", "1", SAYS("1", "r"), ",\"usage\":null"),
			"D0 " CHUNK("a", "1", "",
				",\"usage\":{\"prompt_tokens\":3,\"total_tokens\":4}"),
			"D1 " CHUNK("b", "1", "",
				",\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":1,\"total_tokens\":4}"),
			"E0", "E1"),
		"data: " CHUNK("i", "1", SAYS("0", "p") "," SAYS("1", "q"),
			"") "\n\n"
			    "data: " CHUNK("i", "1", SAYS("3", "r"),
				    ",\"usage\":null") "\n\n"
						       "data: " CHUNK("i", "1", "",
							       ",\"usage\":{\"prompt_tokens\":43,\"total_tokens\":44}") "\n\n" DONE);
}

static const char *
first_step(const struct answer_how *how)
{
	return how->first_token ? "P0 " PREFILL : "R0 \n";
}

/* The step's result; what it gave the client in ret. */
static int
event_result(const struct answer_how *how, const char *step, struct membuf *ret)
{
	struct script s = {.a = answer_new(how, ROOM), .stream = how->stream};
	int r = do_step(&s, first_step(how));
	size_t before = s.out.n;

	cr_assert_eq(r, ANSWER_OK);
	r = do_step(&s, step);
	ret->n = 0;
	membuf_add(ret, s.out.p + before, s.out.n - before);
	membuf_add(ret, "", 1);
	membuf_free(&s.out);
	answer_free(&s.a);
	return r;
}

/* A client may ask for any number of samples: it is only counted with, and never a reason to abort. */
Test(answer, many_choices)
{
	struct answer_how how = {.stream = true, .parts = 3, .choices = UINT32_MAX};
	struct membuf out = {0};

	expect(&how,
		STEPS("D2 {\"choices\":[{\"index\":200}]}", "D0 [DONE]", "D1 [DONE]", "E0", "E1",
			"E2"),
		"data: {\"choices\":[{\"index\":8589934790}]}\n\n" DONE);
	how = chat;
	how.choices = UINT32_MAX;
	cr_assert_eq(event_result(&how, "D0 {\"choices\":[{\"index\":127}]}", &out), ANSWER_OK);
	cr_assert_eq(event_result(&how, "D0 {\"choices\":[{\"index\":128}]}", &out), ANSWER_BAD);
	membuf_free(&out);
}

Test(answer, fan_out_bodies)
{
	struct answer_how how = fan_out;

	how.stream = false;
	expect(&how,
		STEPS("D2 {\"id\":\"c\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"z\"}}],"
		      "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5,\"total_tokens\":8}}",
			"E2", "D1 {\"id\":\"b\",\"choices\":[ ]}", "E1",
			"D0 {\"id\":\"a\",\"x\":{},\"choices\":[ {\"index\":0,\"message\":{\"content\":"
			"\"y\"}} ],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":"
			"7},\"kv_transfer_params\":null}",
			"E0"),
		"{\"id\":\"a\",\"x\":{},\"choices\":[ {\"index\":0,\"message\":{\"content\":\"y\"}} ,"
		"{\"index\":2,\"message\":{\"content\":\"z\"}}],\"usage\":{\"prompt_tokens\":3,"
		"\"completion_tokens\":9,\"total_tokens\":12},\"kv_transfer_params\":null}");
	how.parts = 2;
	expect(&how,
		STEPS("D0 {\"usage\":{\"a\":1},\"choices\":[]}",
			"D1 {\"choices\":[{\"index\":0}, 	{\"x\":1,"
			"\"index\":0}],\"usage\":{}}",
			"E0", "E1"),
		"{\"usage\":{\"a\":1},\"choices\":[{\"index\":1}, 	{\"x\":1,\"index\":1}]}");
}

/* --- /generate ---------------------------------------------------------------------------- */

static const struct answer_how generate = {.shape = ANSWER_GENERATE, .parts = 1};

#define META(lists) "\"meta_info\":{\"id\":\"x\"" lists "}"
#define INPUT(list) ",\"input_token_logprobs\":" list

Test(answer, generate_bodies)
{
	expect(&generate,
		STEPS("P0 {\"text\":\"a\"," META(INPUT(
			      "[[-0.5,1,\"He\"]]") ",\"input_top_logprobs\":[null]") ",\"index\":0}",
			"D0 {\"text\":\"ab\"," META(
				INPUT("[[-1,2,null]]") ",\"input_top_logprobs\":null") ",\"x\":1}",
			"E0"),
		"{\"text\":\"ab\"," META(INPUT(
			"[[-0.5,1,\"He\"],[-1,2,null]]") ",\"input_top_logprobs\":null") ",\"x\":1}");
	/* either says nothing of it */
	expect(&generate, STEPS("P0 {\"text\":\"a\"}", "D0 {" META(INPUT("[1]")) "}", "E0"),
		"{" META(INPUT("[1]")) "}");
	expect(&generate, STEPS("P0 {\"meta_info\":null}", "D0 {\"meta_info\":{}}", "E0"),
		"{\"meta_info\":{}}");
	expect(&generate, STEPS("P0 {" META(INPUT("[1]")) "}", "D0 {\"meta_info\":[]}", "E0"),
		"{\"meta_info\":[]}");
	expect(&generate, STEPS("D0 {\"text\":\"a\"}", "E0"), "{\"text\":\"a\"}");
	expect(&generate, STEPS("P0 {" META(INPUT("[]")) "}", "D0 {" META(INPUT("[ ]")) "}", "E0"),
		"{" META(INPUT("[]")) "}");
}

Test(answer, generate_lists)
{
	expect(&generate,
		STEPS("P0 [{" META(INPUT("[1]")) "},{},{" META(INPUT("[3]")) "}]",
			"D0 [{" META(INPUT("[4]")) "}, {" META(INPUT("[5]")) "} ,{" META(
				INPUT("[]")) "},{" META(INPUT("[7]")) "}]",
			"E0"),
		"[{" META(INPUT("[1,4]")) "}, {" META(INPUT("[5]")) "} ,{" META(
			INPUT("[3]")) "},{" META(INPUT("[7]")) "}]");
	expect(&generate, STEPS("P0 []", "D0 [ ]", "E0"), "[]");
}

/* protocols.md 5.5: its first event names the room and tells nothing of the prompt. */
Test(answer, generate_of_a_prefill_engine_that_streams)
{
	static const char prefill[] =
		"P0 data: {\"id\":\"r\",\"disaggregated_params\":{\"bootstrap_room\":1}}\n\n"
		"data: {" META(INPUT("[1]")) "}\n\ndata: [DONE]\n\n";
	struct answer_how how = generate;

	expect(&how, STEPS(prefill, "D0 {" META(INPUT("[2]")) "}", "E0"),
		"{" META(INPUT("[1,2]")) "}");
	how.stream = true;
	expect(&how, STEPS(prefill, "D0 {" META(INPUT("[2]")) "}", "E0"),
		"data: {" META(INPUT("[1,2]")) "}\n\n" DONE);
}

Test(answer, generate_stream)
{
	struct answer_how how = generate;

	how.stream = true;
	expect(&how,
		STEPS("P0 data: {" META(INPUT("[1]")) "}\n\ndata: {" META(
			      INPUT("[9]")) "}\n\n: x\n\n"
					    "data: [DONE]\n\ndata: {\"cut",
			"D0 {\"text\":\"a\"," META(INPUT("[2]")) "}",
			"D0 {\"text\":\"b\"," META("") "}",
			"D0 {\"text\":\"c\"," META(INPUT("[]")) "}", "D0 [DONE]", "E0"),
		"data: {\"text\":\"a\"," META(INPUT("[1,2]")) "}\n\ndata: {\"text\":\"b\"," META(
			"") "}\n\ndata: {\"text\":\"c\"," META(INPUT("[1]")) "}\n\n" DONE);
	expect(&how,
		STEPS("P0 data: {" META(INPUT("[1]")) ",\"index\":1}\n\ndata: {\"index\":0," META(
			      INPUT("[0]")) "}\n\n",
			"D0 {" META(INPUT("[2]")) ",\"index\":0}",
			"D0 {" META(INPUT("[3]")) ",\"index\":1}",
			"D0 {" META(INPUT("[4]")) ",\"index\":2}", "E0"),
		"data: {" META(INPUT("[0,2]")) ",\"index\":0}\n\ndata: {" META(
			INPUT("[1,3]")) ",\"index\":1}\n\n"
					"data: {" META(INPUT("[4]")) ",\"index\":2}\n\n" DONE);
}

/* Its text and its logprobs go into an event as they stand, but for the ends of lines. */
Test(answer, prefill_answer_of_several_lines)
{
	struct answer_how how = generate;

	expect(&completions,
		STEPS("P0 {\r\n\"id\":\"cmpl-P\",\n\"created\":100,\"model\":\"m\",\"choices\":[{\"index\":0,"
		      "\"text\":\"He\",\"logprobs\":{\"text_offset\":[\r0\n],\"token_logprobs\":[-0.5],"
		      "\"tokens\":[\"He\"],\"top_logprobs\":[{\"He\"\r\n:-0.5}]},\"finish_reason\":\"stop\"}]}",
			"E0"),
		"data: " TEXT
		"\"choices\":[{\"index\":0,\"text\":\"He\",\"logprobs\":{\"text_offset\":"
		"[ 0 ],\"token_logprobs\":[-0.5],\"tokens\":[\"He\"],\"top_logprobs\":[{\"He\"  :-0.5}]},"
		"\"finish_reason\":null,\"stop_reason\":null}],\"usage\":null}\n\n"
		"data: " TEXT
		"\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
		"\"stop_reason\":null}],\"usage\":null}\n\n" DONE);
	how.stream = true;
	expect(&how, STEPS("P0 {" META(INPUT("[1\n]")) "}", "D0 {" META(INPUT("[\t2]")) "}", "E0"),
		"data: {" META(INPUT("[1 ,2]")) "}\n\n" DONE);
}

Test(answer, generate_fan_out)
{
	struct answer_how how = generate;
	static const char *const bodies[] = {"D1 {\"text\":\"b\"}", "E1", "D0 {\"text\":\"a\"}",
		"E0", "D2 [ ]", "E2", "D3 [{\"text\":\"c\"},{}]", "E3", NULL};

	how.parts = 4;
	expect(&how, bodies, "[{\"text\":\"a\"},{\"text\":\"b\"},{\"text\":\"c\"},{}]");
	how.parts = 2;
	expect(&how, STEPS("D0 []", "E0", "D1 {}", "E1"), "[{}]");
	how.stream = true;
	expect(&how,
		STEPS("D1 {\"text\":\"b\"}", "D0 {\"index\":0,\"text\":\"a\"}", "D1 {}", "E0",
			"E1"),
		"data: {\"text\":\"b\",\"index\":1}\n\ndata: {\"index\":0,\"text\":\"a\"}\n\n"
		"data: {\"index\":1}\n\n" DONE);
}

/* --- events that are no chunks ------------------------------------------------------------ */

#define ERROR "{\"error\":{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":500}}"
#define OLD_ERROR "{\"object\":\"error\",\"message\":\"no\",\"code\":500}"

static const struct answer_how *const streams[] = {&completions, &chat, &fan_out,
	&(const struct answer_how){.stream = true, .parts = 1, .id = "\"x\""},
	&(const struct answer_how){.stream = true, .parts = 1, .shape = ANSWER_GENERATE}};
#define N_STREAMS (sizeof(streams) / sizeof(streams[0]))

Test(answer, errors_pass)
{
	static const char *const errors[] = {"R0 data: " ERROR "\n\n",
		"R0 data:" OLD_ERROR "\r\n\r\n",
		"R0 event: x\ndata: {\"choices\":[],\"error\":\"x\"}\n\n",
		"R0 data: {\"error\":\ndata: {}}\n\n"};
	struct membuf out = {0};

	for (size_t i = 0; i < N_STREAMS; i++)
		for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
			cr_assert_eq(event_result(streams[i], errors[e], &out), ANSWER_ERROR);
			cr_assert_str_eq(out.p, errors[e] + 3);
		}
	membuf_free(&out);
}

Test(answer, other_lines_pass)
{
	static const char *const same[] = {": ping\n\n", "event: x\r\nid: 7\r\n\r\n",
		"retry: 1\r\r", "datum: {}\n\n", ":\n\n"};
	static const char *const nothing[] = {
		"\n", "\r\n", "data: [DONE]\n\n", "data:[DONE]\r\r", "event: x\ndata: [DONE]\n\n"};
	struct membuf out = {0};

	for (size_t i = 0; i < N_STREAMS; i++) {
		for (size_t k = 0; k < sizeof(same) / sizeof(same[0]); k++) {
			char *step = mem_printf("R0 %s", same[k]);

			cr_assert_eq(event_result(streams[i], step, &out), ANSWER_OK);
			cr_assert_str_eq(out.p, same[k]);
			free(step);
		}
		for (size_t k = 0; k < sizeof(nothing) / sizeof(nothing[0]); k++) {
			char *step = mem_printf("R0 %s", nothing[k]);

			cr_assert_eq(event_result(streams[i], step, &out), ANSWER_OK);
			cr_assert_str_eq(out.p, "");
			free(step);
		}
	}
	membuf_free(&out);
}

Test(answer, lines_of_an_event)
{
	struct answer_how how = {.stream = true, .parts = 1, .id = "\"x\""};

	expect(&how,
		STEPS("R0 id: 1\r\ndata:{\"id\":\r\n: c\r\ndata:  1,\r\ndata\r\ndata: \"a\":[]}\r\nevent: e\r\n\r\n",
			"R0 data: {\"id\":2}\r\r", "R0 data: {\"id\":2\rdata: }\n\n", "E0"),
		"id: 1\r\ndata: {\"id\":\t \"x\",\t\t\"a\":[]}\r\n: c\r\nevent: e\r\n\r\n"
		"data: {\"id\":\"x\"}\r\rdata: {\"id\":\"x\"\t}\r\n\n" DONE);
}

/* --- what engines may not say ------------------------------------------------------------- */

Test(answer, bad_events)
{
	static const char *const bad[] = {"R0 data\n\n", "R0 data: \n\n", "D0 []", "D0 {",
		"D0 {} x", "D0 {\"id\":nul}", "D0 'error'", "D0 {\"id\" 1}",
		"D0 {\"id\":1 \"x\":2}", "R0 data: {\"id\":\"a\ndata: b\"}\n\n", "D0 \xff"};
	struct membuf out = {0};

	for (size_t i = 0; i < N_STREAMS; i++)
		for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
			cr_assert_eq(
				event_result(streams[i], bad[k], &out), ANSWER_BAD, "%s", bad[k]);
			cr_assert_str_eq(out.p, "");
		}
	membuf_free(&out);
}

static void
bad_choices(const struct answer_how *how, const char *const *choices)
{
	struct membuf out = {0};

	for (; *choices != NULL; choices++) {
		char *step = mem_printf("D0 {\"id\":\"a\",\"choices\":%s}", *choices);

		cr_assert_eq(event_result(how, step, &out), ANSWER_BAD, "%s", step);
		cr_assert_str_eq(out.p, "");
		free(step);
	}
	membuf_free(&out);
}

Test(answer, bad_choices)
{
	bad_choices(&chat, STEPS("null", "{}", "[1]", "[{\"index\":1}]", "[{\"index\":-1}]",
				   "[{\"index\":\"0\"}]", "[{\"text\":1}]", "[{\"logprobs\":[]}]",
				   "[{\"finish_reason\":1}]", "[{\"logprobs\":{}}]",
				   "[{\"logprobs\":{\"tokens\":[1]}}]",
				   "[{\"logprobs\":{\"tokens\":[\"a\"],\"top_logprobs\":[[]]}}]",
				   "[],\"usage\":[]", "[{\"index\":0},]"));
	bad_choices(&completions, STEPS("[{\"text\":{}}]", "[{\"index\":1}]"));
	bad_choices(&fan_out, STEPS("null", "[1]", "[{}]", "[{\"index\":1}]", "[{\"index\":0.0}]",
				      "[{\"index\":null}]"));
}

Test(answer, bad_generate)
{
	struct answer_how how = {.shape = ANSWER_GENERATE, .stream = true, .parts = 2};

	refused(&how, STEPS("D0 {\"index\":1}"), 0, ANSWER_BAD);
	refused(&how, STEPS("D0 {\"index\":\"0\"}"), 0, ANSWER_BAD);
	refused(&how, STEPS("P0 data: x\n\n"), 0, ANSWER_BAD);
	refused(&how, STEPS("P0 data: {" META(INPUT("[1]")) ",\"index\":9007199254740992}\n\n"), 0,
		ANSWER_LARGE);
	refused(&generate, STEPS("P0 x"), 0, ANSWER_BAD);
	refused(&generate, STEPS("P0 [1]"), 0, ANSWER_BAD);
	refused(&generate, STEPS("P0 [{}"), 0, ANSWER_BAD);
	refused(&generate, STEPS("D0 "), 0, ANSWER_BAD);
	refused(&generate, STEPS("D0 [1]", "E0"), 2, ANSWER_BAD);
	refused(&generate, STEPS("D0 {} x", "E0"), 2, ANSWER_BAD);
	refused(&generate, STEPS("D0 {\"error\":1}", "E0"), 2, ANSWER_BAD);
}

Test(answer, bad_prefills)
{
	static const char *const bad[] = {"P0 ", "P0 {}", "P0 {\"choices\":[]}", "P0 " ERROR,
		"P0 {\"object\":\"error\",\"choices\":[{}]}", "P0 {\"choices\":[{\"index\":1}]}",
		"P0 {\"choices\":[{}]", "P0 {\"choices\":[{\"text\":[]}]}",
		"P0 {\"choices\":[{\"logprobs\":{}}],\"id\":\"x\"}"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refused(&chat, STEPS(bad[i]), 0, ANSWER_BAD);
}

Test(answer, bad_bodies)
{
	struct answer_how how = {.parts = 2};

	refused(&how, STEPS("D0 {}"), 0, ANSWER_BAD);
	refused(&how, STEPS("D0 " ERROR), 0, ANSWER_BAD);
	refused(&how, STEPS("D0 {\"choices\":[]"), 0, ANSWER_BAD);
	refused(&how, STEPS("D0 {\"choices\":[{\"index\":1}]}", "D1 {\"choices\":[]}", "E0", "E1"),
		4, ANSWER_BAD);
	refused(&how, STEPS("D0 {\"choices\":[]}", "D1 {\"choices\":[{}]}", "E0", "E1"), 4,
		ANSWER_BAD);
	how = completions;
	how.stream = false;
	refused(&how, STEPS("P0 " PREFILL, "D0 {\"choices\":[{\"text\":1}]}", "E0"), 3, ANSWER_BAD);
	refused(&how,
		STEPS("P0 " P_WITH_LOGPROBS,
			"D0 {\"choices\":[{\"logprobs\":{\"tokens\":[]}}],\"usage\":{}}", "E0"),
		3, ANSWER_OK);
}

Test(answer, missing_parts)
{
	refused(&fan_out, STEPS("D0 {\"choices\":[]}", "E0"), 2, ANSWER_BAD);
	refused(&fan_out, STEPS("E0", "E1", "E2"), 3, ANSWER_BAD);
	refused(&completions, STEPS("P0 " PREFILL), 1, ANSWER_BAD);
	refused(&completions, STEPS("E0"), 1, ANSWER_BAD);
}

/* --- hostile engines ---------------------------------------------------------------------- */

/* What stands in place of a member must not be multiplied by saying the member again and again. */
Test(answer, members_that_are_said_twice)
{
	struct answer_how how = completions;

	bad_choices(&fan_out,
		STEPS("[],\"choices\":[]", "[],\"id\":1,\"id\":1", "[],\"model\":1,\"model\":1",
			"[],\"created\":1,\"created\":1", "[],\"usage\":{},\"usage\":{}"));
	how.stream = false;
	refused(&how,
		STEPS("P0 " PREFILL, "D0 {\"choices\":[{\"text\":\"\"},{\"text\":\"\"}]}", "E0"), 3,
		ANSWER_BAD);
	refused(&how,
		STEPS("P0 " P_WITH_LOGPROBS,
			"D0 {\"choices\":[{\"logprobs\":{\"tokens\":[],\"tokens\":[]}}]}", "E0"),
		3, ANSWER_BAD);
	refused(&generate,
		STEPS("P0 {" META(INPUT("[1]")) "}", "D0 {" META(INPUT("[]") INPUT("[]")) "}",
			"E0"),
		3, ANSWER_BAD);
	refused(&generate,
		STEPS("P0 {" META(INPUT("[1]")) "}",
			"D0 {" META(INPUT("[]")) "," META(INPUT("[]")) "}", "E0"),
		3, ANSWER_BAD);
}

/* `n` times `text`, between two others; the caller frees it. */
static char *
repeated(const char *before, const char *text, size_t n, const char *after)
{
	struct membuf b = {NULL, 0, 0};

	membuf_add(&b, before, strlen(before));
	for (size_t i = 0; i < n; i++)
		membuf_add(&b, text, strlen(text));
	membuf_add(&b, after, strlen(after) + 1);
	return b.p;
}

/* What takes quadratic time would take minutes for these; none is an engine's. */
Test(answer, many_members, .timeout = 20)
{
	const struct answer_how two = {.parts = 2};
	struct answer_how how = completions;
	char *p = repeated("P0 {\"choices\":[{\"text\":\"", "a", 1 << 20, "\"}]}");
	char *d = repeated("D0 {\"choices\":[{}", ",{\"logprobs\":{}}", 1 << 16, "]}");
	struct script s;

	run_bounded(&s, &how, STEPS(p, d, "E0"), 64 << 20);
	cr_assert_eq(s.result, ANSWER_OK);
	membuf_free(&s.out);
	free(p);
	free(d);

	p = repeated("P0 {\"choices\":[{\"logprobs\":{", "\"a\":[],", 1 << 17, "\"b\":[]}}]}");
	d = repeated("D0 {\"choices\":[{\"logprobs\":{", "\"a\":[],", 1 << 17, "\"c\":[]}}]}");
	how.stream = false;
	run_bounded(&s, &how, STEPS(p, d, "E0"), 64 << 20);
	cr_assert_eq(s.result, ANSWER_OK);
	membuf_free(&s.out);
	free(p);
	free(d);

	d = repeated("D0 {\"choices\":[],\"usage\":{", "\"a\":1,", 1 << 17, "\"b\":1}}");
	run_bounded(&s, &two, STEPS(d), 64 << 20);
	cr_assert_eq(s.result, ANSWER_BAD);
	membuf_free(&s.out);
	free(d);

	/* each event of a stream has them */
	d = repeated("D0 {\"choices\":[],\"id\":\"", "a", 2000, "\"}");
	refused(&fan_out, STEPS(d), 0, ANSWER_BAD);
	free(d);
}

Test(answer, memory_of_usages)
{
	char *p = repeated("P0 {\"choices\":[{}],\"usage\":{", "\"a\":1,", 1000, "\"b\":1}}");

	refused(&completions, STEPS(p), 0, ANSWER_BAD);
	free(p);
}

/* A stream lasts: what one large event needed is not kept for the small ones behind it. */
Test(answer, memory_behind_a_large_event)
{
	char *d = repeated("data: {\"choices\":[{\"index\":0,\"text\":\"", "a", 4 << 20,
		"\"}],\ndata: \"usage\":{}}\n\n");
	const struct answer_how *const hows[] = {&chat, &fan_out};

	for (size_t i = 0; i < 2; i++) {
		struct answer *a = answer_new(hows[i], ROOM);
		struct membuf out = {NULL, 0, 0};
		struct mallinfo2 before = mallinfo2(), after;

		cr_assert_eq(answer_event(a, 0, d, strlen(d), &out), ANSWER_OK);
		cr_assert_gt(out.n, 4 << 20);
		membuf_free(&out);
		after = mallinfo2(); /* zeros under ASan */
		cr_assert_lt(
			after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + (1 << 20));
		answer_free(&a);
	}
	free(d);
}

/* --- memory ------------------------------------------------------------------------------- */

/* Whatever the room: either it is too little, or the answer is the same. */
static void
any_room(const struct answer_how *how, const char *const *steps)
{
	struct script whole, s;
	bool large = false, fits = false;

	run(&whole, how, steps);
	cr_assert_eq(whole.result, ANSWER_OK, "%d", whole.result);
	for (size_t room = 0; !fits; room++) {
		run_bounded(&s, how, steps, room);
		fits = s.result == ANSWER_OK;
		if (fits)
			cr_assert_str_eq(s.out.p, whole.out.p);
		else
			cr_assert_eq(s.result, ANSWER_LARGE, "%d", s.result);
		large |= !fits;
		membuf_free(&s.out);
	}
	cr_assert(large);
	membuf_free(&whole.out);
}

Test(answer, room)
{
	struct answer_how how = chat;

	any_room(&chat, STEPS("P0 " P_WITH_LOGPROBS, USAGE_EVENT("{\"prompt_tokens\":10}"), "E0"));
	any_room(&chat, STEPS("P0 " ENDED, "E0"));
	any_room(&completions, STEPS(P_USAGE(P_CACHED), "E0"));
	how.stream = false;
	any_room(&how, STEPS("P0 " PREFILL, "D0 " D_BODY, "E0"));
	any_room(&fan_out,
		STEPS("D1 " CHUNK("b", "2", SAYS("0", "x"), ""),
			"D0 " CHUNK("a", "1", "", ",\"usage\":{}"), "D2 [DONE]", "E0", "E1", "E2"));
	how = (struct answer_how){.shape = ANSWER_GENERATE, .stream = true, .parts = 1};
	any_room(&how, STEPS("P0 data: {" META(INPUT("[1]")) ",\"index\":3}\n\n", "D0 {}", "E0"));
	any_room(&generate, STEPS("P0 [{" META(INPUT("[1]")) "},{}]", "D0 [{},{}]", "E0"));
}

Test(answer, free_of_none)
{
	struct answer *a = NULL;

	answer_free(&a);
	cr_assert_null(a);
}

/* --- reads -------------------------------------------------------------------------------- */

/* The stream as it is read: bytes gather until an event is whole. */
struct reading {
	struct answer *a;
	struct membuf in, out;
};

static void
reading_start(void *ctx)
{
	struct reading *r = ctx;
	static const char p[] = PREFILL;

	r->in.n = r->out.n = 0;
	answer_free(&r->a);
	r->a = answer_new(&chat, ROOM);
	cr_assert_eq(answer_prefill(r->a, 0, p, sizeof(p) - 1, &r->out), ANSWER_OK);
}

static void
reading_piece(void *ctx, const char *p, size_t n)
{
	struct reading *r = ctx;
	size_t at = 0, len;

	membuf_add(&r->in, p, n);
	for (; (len = sse_next(r->in.p + at, r->in.n - at)) > 0; at += len) {
		char *event = mem_dup(r->in.p + at, len);

		cr_assert_eq(answer_event(r->a, 0, event, len, &r->out), ANSWER_OK);
		free(event);
	}
	memmove(r->in.p, r->in.p + at, r->in.n - at);
	r->in.n -= at;
}

static void
reading_check(void *ctx, const char *how)
{
	static const char want[] = ROLE DELTA("He") ": \n\n" DELTA("llo") FINISH
		"data: " CHAT "\"choices\":[],\"usage\":{\"prompt_tokens\":9}}\n\n" DONE;
	struct reading *r = ctx;
	size_t from = 0;

	cr_assert_eq(answer_part_end(r->a, 0, &r->out), ANSWER_OK);
	cr_assert_eq(answer_end(r->a, &r->out), ANSWER_OK);
	cr_assert_eq(r->in.n, 0, "%s", how);
	for (size_t i = 0; i < r->out.n; i++) { /* the engine's line ends pass */
		char c = r->out.p[i];

		if (c == '\r' && i + 1 < r->out.n && r->out.p[i + 1] == '\n')
			continue;
		r->out.p[from++] = (char)(c == '\r' ? '\n' : c);
	}
	cr_assert_eq(from, sizeof(want) - 1, "%s: %.*s", how, (int)from, r->out.p);
	cr_assert_arr_eq(r->out.p, want, from, "%s", how);
}

Test(answer, reads)
{
	static const struct feeder feeder = {reading_start, reading_piece, reading_check};
	static const char in[] =
		": \n\ndata: " D_EVENT("{\"index\":0,\"text\":\"llo\"}") "\r\n\r\ndata:" D_EVENT(
			"{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}") "\n\n"
										  "data: {\"choices\":[],\ndata:\"usage\":{\"prompt_tokens\":10}}\n\n"
										  "data: [DONE]\r\n\r\n";
	struct reading r = {0};

	feed_splits(&feeder, &r, in, sizeof(in) - 1);
	answer_free(&r.a);
	membuf_free(&r.in);
	membuf_free(&r.out);
}
