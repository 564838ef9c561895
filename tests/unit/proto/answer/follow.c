/*
 * A stream goes on after its engine has died: what the next engine is asked, and what the client sees of its events, byte for
 * byte.
 */
#include "proto/answer/follow.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/splice.h"
#include "proto/answer/sse.h"
#include "shm/base/mem.h"

#define ROOM 65536

struct stream {
	struct splice doc;
	struct follow *f;
	struct membuf out;
	int result; /* of the last event */
};

static void
scan(struct splice *doc, const char *body)
{
	const char *why = NULL;
	size_t at = 0;

	cr_assert_eq(
		splice_scan(doc, body, strlen(body), &why, &at), 0, "%s: %s at %zu", body, why, at);
}

static void
start_bounded(struct stream *s, const char *body, bool chat, size_t room)
{
	const char *why;

	memset(s, 0, sizeof(*s));
	scan(&s->doc, body);
	why = follow_refuses(&s->doc, chat);
	cr_assert_null(why, "%s: %s", body, why);
	s->f = follow_new(&s->doc, chat, room);
}

static void
start(struct stream *s, const char *body, bool chat)
{
	start_bounded(s, body, chat, ROOM);
}

static void
end(struct stream *s)
{
	membuf_free(&s->out);
	follow_free(&s->f);
	cr_assert_null(s->f);
}

static int
says(struct stream *s, const char *json)
{
	char *event = mem_printf("data: %s\n\n", json);

	s->result = follow_event(s->f, event, strlen(event), &s->out);
	free(event);
	return s->result;
}

/* What the client has got since the last call. */
static void
got(struct stream *s, const char *want)
{
	membuf_add(&s->out, "", 1);
	cr_assert_str_eq(s->out.p, want);
	s->out.n = 0;
}

static void
dies(struct stream *s, const char *want)
{
	struct membuf body = {NULL, 0, 0};
	struct splice doc;

	cr_assert_null(follow_why_not(s->f));
	cr_assert_not(follow_complete(s->f));
	follow_next(s->f, &s->doc, &body);
	membuf_add(&body, "", 1);
	if (want != NULL)
		cr_assert_str_eq(body.p, want);
	scan(&doc, body.p);
	membuf_free(&body);
}

#define CHUNK(id, rest)                                                                            \
	"{\"id\":\"" id "\",\"object\":\"chat.completion.chunk\",\"created\":" id                  \
	"0,\"model\":\"m" id "\",\"choices\":[" rest "}"
#define ROLE(id, usage)                                                                               \
	CHUNK(id,                                                                                     \
		"{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null," \
		"\"finish_reason\":null}]" usage)
#define SAY(id, text, usage)                                                                       \
	CHUNK(id, "{\"index\":0,\"delta\":{\"content\":\"" text                                    \
		  "\"},\"finish_reason\":null}]" usage)
#define STOP(id, usage)                                                                            \
	CHUNK(id, "{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]" usage)
#define USE(in, out)                                                                               \
	",\"usage\":{\"prompt_tokens\":" #in ",\"total_tokens\":99,\"completion_tokens\":" #out "}"
#define TOTAL(in, all, out)                                                                        \
	",\"usage\":{\"prompt_tokens\":" #in ",\"total_tokens\":" #all                             \
	",\"completion_tokens\":" #out "}"
#define EVENT(json) "data: " json "\n\n"
#define NO_USAGE ",\"usage\":null"

#define HI "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true"

/* --- one leg */

Test(follow, passes_what_needs_no_change)
{
	static const char *const events[] = {
		": ping\n\n",
		EVENT(ROLE("1", USE(9, 0))),
		"event: x\r\ndata: " SAY("1", "a\\n", USE(9, 1)) "\r\n\r\n",
		EVENT(CHUNK("1", "]" USE(9, 2))),
		EVENT("[DONE]"),
	};
	struct stream s;

	start(&s,
		HI ",\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}",
		true);
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		cr_assert_eq(follow_event(s.f, events[i], strlen(events[i]), &s.out), FOLLOW_OK);
		got(&s, events[i]);
	}
	end(&s);
}

Test(follow, usages_nobody_asked_for_are_taken_out)
{
	struct stream s;

	start(&s, HI "}", true);
	(void)says(&s, ROLE("1", USE(9, 0)));
	got(&s, EVENT(ROLE("1", NO_USAGE)));
	(void)says(&s, SAY("1", "a", USE(9, 1)));
	got(&s, EVENT(SAY("1", "a", NO_USAGE)));
	(void)says(&s, CHUNK("1", "]" USE(9, 1)));
	got(&s, "");
	end(&s);
	start(&s, HI ",\"stream_options\":{\"include_usage\":true}}", true);
	(void)says(&s, SAY("1", "a", USE(9, 1)));
	got(&s, EVENT(SAY("1", "a", NO_USAGE)));
	(void)says(&s, CHUNK("1", "]" USE(9, 1)));
	got(&s, EVENT(CHUNK("1", "]" USE(9, 1))));
	end(&s);
}

/* Events of the form of the ones before are not parsed as a whole; those that begin with "data:{" always are. */
Test(follow, an_event_of_the_usual_form_is_as_any_other)
{
	static const char *const events[] = {
		ROLE("1", USE(9, 0)),
		SAY("1", "a", USE(9, 1)),
		SAY("1", "b", USE(9, 2)),
		SAY("1", "", USE(9, 2)),
		SAY("1", "\\\"\u00e9", USE(9, 4)),
		SAY("1", "no usage", NO_USAGE),
		SAY("1", "none", ""),
		SAY("1", "none again", ""),
		SAY("1", "c", ",\"usage\":{\"prompt_tokens\":9}"),
		SAY("1", "d", ",\"usage\":{\"completion_tokens\":8,\"prompt_tokens\":9}"),
		SAY("1", "e", ",\"usage\":{\"completion_tokens\":9,\"prompt_tokens\":9}"),
		CHUNK("1", "{\"index\":0,\"delta\":{\"content\":null},\"finish_reason\":null}]" USE(
				   9, 9)),
		SAY("1", "f", USE(9, 10)),
		STOP("1", USE(9, 10)),
		CHUNK("1", "]" USE(9, 10)),
	};
	static const char *const asks[] = {HI "}",
		HI ",\"stream_options\":{\"include_usage\":true}}",
		HI ",\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}"};

	for (size_t k = 0; k < sizeof(asks) / sizeof(asks[0]); k++)
		for (size_t n = 1; n <= sizeof(events) / sizeof(events[0]); n++) {
			struct stream s, parsed;

			start(&s, asks[k], true);
			start(&parsed, asks[k], true);
			for (size_t i = 0; i < n; i++) {
				char *event = mem_printf("data:%s\n\n", events[i]);

				cr_assert_eq(says(&s, events[i]), FOLLOW_OK);
				cr_assert_eq(
					follow_event(parsed.f, event, strlen(event), &parsed.out),
					FOLLOW_OK);
				free(event);
				cr_assert_eq(follow_tokens(s.f), follow_tokens(parsed.f), "%zu", i);
			}
			membuf_add(&parsed.out, "", 1);
			got(&s, parsed.out.p);
			cr_assert_eq(follow_complete(s.f), follow_complete(parsed.f));
			if (!follow_complete(s.f)) {
				struct membuf next = {NULL, 0, 0};

				follow_next(parsed.f, &parsed.doc, &next);
				membuf_add(&next, "", 1);
				dies(&s, next.p);
				membuf_free(&next);
			}
			parsed.out.n = 0;
			follow_finish(s.f, &s.out);
			follow_finish(parsed.f, &parsed.out);
			membuf_add(&parsed.out, "", 1);
			got(&s, parsed.out.p);
			end(&s);
			end(&parsed);
		}
}

Test(follow, a_broken_usage_is_found_in_an_event_of_the_usual_form)
{
	struct stream s;

	start(&s, HI "}", true);
	for (int i = 0; i < 2; i++)
		cr_assert_eq(says(&s, SAY("1", "a", USE(9, 1))), FOLLOW_OK);
	cr_assert_eq(says(&s, SAY("1", "a", ",\"usage\":{\"prompt_tokens\":}")), FOLLOW_BAD);
	cr_assert_eq(
		says(&s, SAY("1", "a",
				 ",\"usage\":{\"prompt_tokens\":9,\n\"completion_tokens\":1}")),
		FOLLOW_BAD, "two lines");
	cr_assert_eq(says(&s, SAY("1", "a", ",\"usage\":{},\"error\":{\"x\":1}")), FOLLOW_DIED);
	end(&s);
}

Test(follow, asks_for_usages_beside_the_clients_options)
{
	static const char *const rows[][2] = {
		{HI "}", "{"},
		{HI ",\"stream_options\":null}", "{"},
		{HI ",\"stream_options\":{}}", "{"},
		{HI ",\"stream_options\":{\"include_usage\":false, \"x\" : [1, 2]}}",
			"{\"x\":[1, 2],"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct membuf out = {NULL, 0, 0};
		struct splice doc;
		char want[200];

		scan(&doc, rows[i][0]);
		follow_options(&doc, &out);
		membuf_add(&out, "", 1);
		(void)snprintf(want, sizeof(want),
			"%s\"include_usage\":true,\"continuous_usage_stats\":true}", rows[i][1]);
		cr_assert_str_eq(out.p, want);
		membuf_free(&out);
	}
}

/* --- going on */

Test(follow, chat_goes_on)
{
	struct stream s;

	start(&s,
		HI
		",\"max_tokens\":10,\"min_tokens\":1,\"seed\":7,\"stream_options\":{\"include_usage\":true}}",
		true);
	(void)says(&s, ROLE("1", USE(9, 0)));
	(void)says(&s, SAY("1", "one \\\"", USE(9, 1)));
	(void)says(&s, SAY("1", "\\u00e9", USE(9, 2)));
	(void)says(&s, SAY("1", "", USE(9, 3))); /* a token whose text has not come */
	s.out.n = 0;
	cr_assert_eq(follow_tokens(s.f), 2);
	dies(&s, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
		 "\"assistant\",\"content\":\"one \\\"\\u00e9\"}],\"stream\":true,\"max_tokens\":8,"
		 "\"min_tokens\":0,\"seed\":7,\"stream_options\":{\"include_usage\":true},"
		 "\"continue_final_message\":true,\"add_generation_prompt\":false}");
	(void)says(&s, ROLE("2", USE(11, 0)));
	got(&s, "");
	(void)says(&s, SAY("2", " two", USE(11, 1)));
	got(&s, EVENT(SAY("1", " two", NO_USAGE)));
	(void)says(&s, STOP("2", USE(11, 2)));
	got(&s, EVENT(STOP("1", NO_USAGE)));
	(void)says(&s, CHUNK("2", "]" USE(11, 2)));
	got(&s, EVENT(CHUNK("1", "]" TOTAL(9, 13, 4))));
	(void)says(&s, "[DONE]");
	got(&s, EVENT("[DONE]"));
	end(&s);
}

Test(follow, goes_on_again_and_again)
{
	struct stream s;

	start(&s,
		HI
		",\"max_completion_tokens\":9,\"max_tokens\":3,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}",
		true);
	(void)says(&s, ROLE("1", USE(9, 0)));
	dies(&s, HI
		",\"max_completion_tokens\":9,\"max_tokens\":3,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}");
	(void)says(&s, ROLE("2", USE(9, 0)));
	(void)says(&s, SAY("2", "a", USE(9, 1)));
	s.out.n = 0;
	dies(&s, NULL);
	(void)says(&s, SAY("3", "b", USE(10, 2)));
	got(&s, EVENT(SAY("1", "b", TOTAL(9, 12, 3))));
	dies(&s,
		"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
		"\"assistant\",\"content\":\"ab\"}],\"stream\":true,\"max_completion_tokens\":6,"
		"\"max_tokens\":1,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":"
		"true},\"continue_final_message\":true,\"add_generation_prompt\":false}");
	end(&s);
}

Test(follow, a_role_that_was_not_told_is)
{
	struct stream s;

	start(&s, HI "}", true);
	dies(&s, HI "}");
	(void)says(&s, ROLE("2", ""));
	got(&s, EVENT(ROLE("2", "")));
	dies(&s, HI "}");
	(void)says(&s,
		CHUNK("3", "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"x\"}}]"));
	got(&s, EVENT(CHUNK("2", "{\"index\":0,\"delta\":{\"role\":null,\"content\":\"x\"}}]")));
	end(&s);
}

/* An engine that tells no usages: an event is a token. */
Test(follow, counts_events_where_nobody_counts)
{
	struct stream s;

	start(&s, "{\"prompt\":\"p\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
		false);
	(void)says(&s, "{\"id\":\"1\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}");
	(void)says(&s, "{\"id\":\"1\",\"choices\":[{\"index\":0,\"text\":\"\"}]}");
	(void)says(&s, "{\"id\":\"1\",\"choices\":[{\"index\":0,\"text\":\"b\"}]}");
	dies(&s,
		"{\"prompt\":\"pab\",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_tokens\":14}");
	s.out.n = 0;
	(void)says(&s,
		"{\"id\":\"2\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":6},\"total_tokens\":10}}");
	got(&s, EVENT("{\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":5,\"prompt_tokens_details\":null,\"total_tokens\":10}}"));
	end(&s);
}

Test(follow, completions_go_on)
{
	struct stream s;

	start(&s, "{\"prompt\" : [\"p \\ud83d\\ude42\"],\"max_tokens\":5,\"logprobs\":1}", false);
	(void)says(&s,
		"{\"id\":1,\"choices\":[{\"index\":0,\"text\":\" \xc3\xa9\\n\",\"logprobs\":{\"text_offset\":[0]}}]}");
	got(&s, EVENT("{\"id\":1,\"choices\":[{\"index\":0,\"text\":\" \xc3\xa9\\n\",\"logprobs\":{\"text_offset\":[0]}}]}"));
	dies(&s, "{\"prompt\" : \"p \\ud83d\\ude42 \xc3\xa9\\n\",\"max_tokens\":4,\"logprobs\":1}");
	(void)says(&s,
		"{\"id\":2,\"choices\":[{\"index\":0,\"text\":\"xy\",\"logprobs\":{\"text_offset\":[ 0, 1 ],\"tokens\":[]}}]}");
	got(&s, EVENT("{\"id\":1,\"choices\":[{\"index\":0,\"text\":\"xy\",\"logprobs\":{\"text_offset\":[ 3, 4 ],\"tokens\":[]}}]}"));
	end(&s);
}

Test(follow, appends_to_a_message_the_client_left_open)
{
	struct stream s;

	start(&s,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"content\":\"So\",\"role\":\"assistant\"} ],\"continue_final_message\":true,\"add_generation_prompt\":false}",
		true);
	(void)says(&s, SAY("1", " it", ""));
	dies(&s,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"content\":\"So it\",\"role\":\"assistant\"} ],\"continue_final_message\":true,\"add_generation_prompt\":false}");
	end(&s);
}

/* --- the end */

Test(follow, finishes_what_is_complete)
{
	struct stream s;

	start(&s, HI ",\"stream_options\":{\"include_usage\":true}}", true);
	(void)says(&s, SAY("1", "a", USE(9, 1)));
	cr_assert_not(follow_complete(s.f));
	(void)says(&s, STOP("1", USE(9, 2)));
	cr_assert(follow_complete(s.f));
	s.out.n = 0;
	follow_finish(s.f, &s.out);
	got(&s, EVENT("{\"object\":\"chat.completion.chunk\",\"id\":\"1\",\"created\":10,\"model\":\"m1\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"total_tokens\":11,\"completion_tokens\":2}}")
			EVENT("[DONE]"));
	end(&s);
	start(&s, HI ",\"stream_options\":{\"include_usage\":true}}", true);
	(void)says(&s, STOP("1", USE(9, 2)));
	(void)says(&s, CHUNK("1", "]" USE(9, 2)));
	s.out.n = 0;
	follow_finish(s.f, &s.out);
	got(&s, EVENT("[DONE]"));
	end(&s);
}

Test(follow, a_reached_limit_is_an_end)
{
	struct stream s;

	start(&s, "{\"prompt\":\"p\",\"max_tokens\":2}", false);
	(void)says(&s, "{\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}");
	cr_assert_not(follow_complete(s.f));
	(void)says(&s, "{\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"b\"}]}");
	cr_assert(follow_complete(s.f));
	s.out.n = 0;
	follow_finish(s.f, &s.out);
	got(&s, EVENT("{\"object\":\"text_completion\",\"id\":\"c\",\"created\":0,\"model\":\"\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":null}")
			EVENT("[DONE]"));
	follow_finish(s.f, &s.out);
	got(&s, ""); /* once */
	end(&s);
}

/* --- what is not gone on with */

Test(follow, refuses)
{
	static const char *const rows[][3] = {
		/* the word, a chat's members, and what the same asks that is fine */
		{"several_choices", "\"n\":2", "\"n\":1"},
		{"several_choices", "\"best_of\":3", "\"best_of\":null"},
		{"beam_search", "\"use_beam_search\":true", "\"use_beam_search\":false"},
		{"echo", "\"echo\":true", "\"echo\":false"},
		{"structured_output", "\"response_format\":{\"type\":\"json_object\"}",
			"\"response_format\":{\"type\":\"text\"}"},
		{"structured_output", "\"structured_outputs\":{}", "\"structured_outputs\":null"},
		{"structured_output", "\"guided_json\":\"{}\"", "\"guided_json\":null"},
		{"structured_output", "\"guided_regex\":\"a\"",
			"\"guided_decoding_backend\":\"x\""},
		{"structured_output", "\"guided_choice\":[\"a\"]", "\"stop\":[\"a\"]"},
		{"structured_output", "\"guided_grammar\":\"a\"", "\"tools\":[{}]"},
		{"structured_output", "\"regex\":\"a\"", "\"logprobs\":true"},
		{"structured_output", "\"ebnf\":\"a\"", "\"logit_bias\":{\"1\":2}"},
		{"structured_output", "\"json_schema\":\"a\"", "\"temperature\":0.5"},
		{"structured_output", "\"structural_tag\":\"a\"", "\"seed\":-1"},
		{"tool_choice", "\"tool_choice\":\"required\"", "\"tool_choice\":\"auto\""},
		{"tool_choice", "\"tool_choice\":{\"type\":\"function\"}",
			"\"tool_choice\":\"none\""},
		{"tool_choice", "\"function_call\":{\"name\":\"f\"}", "\"function_call\":\"auto\""},
		{"prompt_logprobs", "\"prompt_logprobs\":1", "\"prompt_logprobs\":null"},
		{"token_ids", "\"return_token_ids\":true", "\"return_token_ids\":false"},
		{"hidden_states", "\"return_hidden_states\":true",
			"\"return_hidden_states\":false"},
		{"truncation", "\"truncate_prompt_tokens\":5", "\"truncate_prompt_tokens\":null"},
		{"session", "\"session_params\":{}", "\"session_params\":null"},
		{"escaped_name", "\"\\u006e\":2", "\"user\":\"\\u006e\""},
		{"stream_options", "\"stream_options\":[]", "\"stream_options\":{}"},
		{"stream_options", "\"stream_options\":{\"include_usage\":1}",
			"\"stream_options\":null"},
		{"limit", "\"max_tokens\":5.0", "\"max_tokens\":5"},
		{"limit", "\"max_completion_tokens\":\"5\"", "\"max_completion_tokens\":null"},
		{"limit", "\"min_tokens\":-1", "\"min_tokens\":0"},
		{"template", "\"add_generation_prompt\":false", "\"add_generation_prompt\":true"},
		{"template", "\"continue_final_message\":true", "\"continue_final_message\":false"},
		{"template", "\"continue_final_message\":1", "\"continue_final_message\":null"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (int fine = 0; fine < 2; fine++) {
			char *body = mem_printf(HI ",%s}", rows[i][1 + fine]);
			struct splice doc;
			const char *why;

			scan(&doc, body);
			why = follow_refuses(&doc, true);
			if (fine)
				cr_assert_null(why, "%s: %s", body, why);
			else
				cr_assert_str_eq(why == NULL ? "-" : why, rows[i][0], "%s", body);
			free(body);
		}
	}
}

Test(follow, refuses_prompts_it_cannot_lengthen)
{
	static const char *const chat[] = {"{}", "{\"messages\":[]}", "{\"messages\":\"x\"}"};
	static const char *const plain[] = {"{}", "{\"prompt\":[1,2]}", "{\"prompt\":[]}",
		"{\"prompt\":[[1]]}", "{\"prompt\":[\"a\",\"b\"]}", "{\"prompt\":null}",
		"{\"prompt\":\"a\",\"suffix\":\"b\"}",
		"{\"prompt\":\"a\",\"prompt_embeds\":\"b\"}"};
	struct splice doc;

	for (size_t i = 0; i < sizeof(chat) / sizeof(chat[0]); i++) {
		scan(&doc, chat[i]);
		cr_assert_str_eq(follow_refuses(&doc, true), "prompt", "%s", chat[i]);
	}
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		scan(&doc, plain[i]);
		cr_assert_str_eq(follow_refuses(&doc, false), "prompt", "%s", plain[i]);
	}
	scan(&doc, "{\"prompt\":\"a\",\"max_tokens\":null}");
	cr_assert_str_eq(follow_refuses(&doc, false), "limit");
	scan(&doc, "{\"prompt\":\"a\",\"max_tokens\":0}");
	cr_assert_str_eq(follow_refuses(&doc, false), "limit");
}

Test(follow, gives_up_once_more_than_text_has_come)
{
	static const char *const rows[][2] = {
		{"tool_call", "{\"index\":0,\"delta\":{\"tool_calls\":[{}]}}"},
		{"tool_call",
			"{\"index\":0,\"delta\":{\"role\":\"assistant\",\"tool_calls\":[{}]}}"},
		{"tool_call", "{\"index\":0,\"delta\":{\"function_call\":{}}}"},
		{"reasoning", "{\"index\":0,\"delta\":{\"reasoning_content\":\"h\"}}"},
		{"reasoning", "{\"index\":0,\"delta\":{\"reasoning\":\"h\"}}"},
		{"refusal", "{\"index\":0,\"delta\":{\"refusal\":\"n\"}}"},
		{"other_content", "{\"index\":0,\"delta\":{\"audio\":{}}}"},
		{"other_content", "{\"index\":0,\"delta\":{\"content\":[1]}}"},
		{"several_choices", "{\"index\":1,\"delta\":{\"content\":\"a\"}}"},
		{"several_choices", "{\"index\":0,\"delta\":{}},{\"index\":0,\"delta\":{}}"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *json = mem_printf("{\"id\":\"1\",\"choices\":[%s]}", rows[i][1]);
		char *want = mem_printf(EVENT("%s"), json);
		struct stream s;

		start(&s, HI "}", true);
		(void)says(&s, ROLE("1", ""));
		(void)says(&s, SAY("1", "a", ""));
		s.out.n = 0;
		dies(&s, NULL); /* seen and passed in a later leg, too */
		cr_assert_eq(says(&s, json), FOLLOW_OK);
		if (strstr(json, "role") == NULL)
			got(&s, want);
		else
			cr_assert_gt(s.out.n, 0);
		cr_assert_str_eq(follow_why_not(s.f), rows[i][0], "%s", json);
		/* what the engine says now passes, whatever it is */
		s.out.n = 0;
		cr_assert_eq(says(&s, "{\"error\":{\"code\":500}}"), FOLLOW_OK);
		got(&s, EVENT("{\"error\":{\"code\":500}}"));
		cr_assert_eq(says(&s, "no JSON"), FOLLOW_OK);
		got(&s, EVENT("no JSON"));
		end(&s);
		free(json);
		free(want);
	}
}

Test(follow, empty_members_are_no_more_than_text)
{
	struct stream s;

	start(&s, HI "}", true);
	(void)says(&s,
		"{\"choices\":[{\"index\":0,\"delta\":{\"role\":null,\"content\":\"a\",\"tool_calls\":null,\"reasoning_content\":null,\"refusal\":\"\"}}]}");
	(void)says(
		&s, "{\"choices\":[{\"index\":0,\"delta\":{\"content\":null,\"tool_calls\":[]}}]}");
	cr_assert_null(follow_why_not(s.f));
	cr_assert_eq(follow_tokens(s.f), 1);
	end(&s);
}

Test(follow, keeps_no_more_text_than_it_may)
{
	struct stream s;

	start_bounded(&s, HI "}", true, 3);
	(void)says(&s, SAY("1", "abc", ""));
	cr_assert_null(follow_why_not(s.f));
	(void)says(&s, SAY("1", "d", ""));
	cr_assert_str_eq(follow_why_not(s.f), "long_answer");
	end(&s);
}

Test(follow, dies_by_words)
{
	static const struct {
		const char *json;
		int result;
	} rows[] = {
		{"{\"error\":{\"message\":\"x\",\"code\":500}}", FOLLOW_DIED},
		{"{\"error\":\"x\"}", FOLLOW_DIED},
		{"{\"object\":\"error\",\"message\":\"x\",\"code\":503}", FOLLOW_DIED},
		{"{\"error\":{\"code\":429}}", FOLLOW_DIED},
		{"{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\"}]}",
			FOLLOW_DIED},
		{"{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"error\"}]}",
			FOLLOW_DIED},
		{"{\"choices\":[", FOLLOW_BAD},
		{"[1]", FOLLOW_BAD},
		{"", FOLLOW_BAD},
		{"{\"error\":null,\"choices\":[]}", FOLLOW_OK},
		{"{\"error\":{\"code\":400}}",
			FOLLOW_OK}, /* the client's own, and no other engine's */
		{"{\"object\":\"error\",\"code\":404}", FOLLOW_OK},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct stream s;

		start(&s, HI "}", true);
		(void)says(&s, SAY("1", "a", ""));
		s.out.n = 0;
		cr_assert_eq(says(&s, rows[i].json), rows[i].result, "%s", rows[i].json);
		cr_assert_eq(s.out.n > 0, rows[i].result == FOLLOW_OK);
		cr_assert_eq(follow_tokens(s.f), 1);
		if (rows[i].result == FOLLOW_OK && strstr(rows[i].json, "code") != NULL)
			cr_assert_str_eq(follow_why_not(s.f), "client_error");
		end(&s);
	}
}

/* --- whatever dies when */

/* What an engine that is asked `body` says from there on: the words of `all` behind those it is given. */
static void
engine(struct stream *s, const char *const *all, size_t from, size_t events, size_t *at)
{
	for (size_t i = 0; i < events && all[from + i] != NULL; i++, (*at)++) {
		char *json =
			mem_printf("{\"id\":\"%zu\",\"choices\":[{\"index\":0,\"text\":\"%s\"}]}",
				from, all[from + i]);

		(void)says(s, json);
		free(json);
	}
}

/* Of every number of engines' deaths, each at every event: the client's text is the same. */
Test(follow, no_text_is_lost_or_doubled)
{
	static const char *const words[] = {
		" a", "\xe6\x97\xa5", "\\\"", "\\\\", "\\ud83d\\ude42", "\\n", " z", NULL};
	const char *whole = " a\xe6\x97\xa5\\\"\\\\\\ud83d\\ude42\\n z";

	for (size_t first = 0; first < 7; first++) {
		for (size_t second = 0; first + second < 7; second++) {
			char *want =
				mem_printf("{\"prompt\":\"p%s\",\"max_tokens\":%d}", whole, 93);
			struct membuf body = {NULL, 0, 0};
			struct stream s;
			size_t at = 0;

			start(&s, "{\"prompt\":\"p\",\"max_tokens\":100}", false);
			engine(&s, words, at, first, &at);
			dies(&s, NULL);
			engine(&s, words, at, second, &at);
			dies(&s, NULL);
			engine(&s, words, at, 99, &at);
			follow_next(s.f, &s.doc, &body);
			membuf_add(&body, "", 1);
			cr_assert_str_eq(body.p, want);
			membuf_free(&body);
			free(want);
			end(&s);
		}
	}
}
