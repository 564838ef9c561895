/*
 * Answers of several engines become one.  The samples are those of the LMCache proxies' and vLLM's wire, byte for byte; a
 * test is a script of what the engines say, and the text the client gets.
 */
#include "proto/answer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/sse.h"
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
