#include "tests/engine/prompt.h"

#include <string.h>

#include "tests/engine/buf.h"
#include "tests/engine/text.h"

enum { MESSAGES = 0, ADD_GENERATION_PROMPT = 5, CONTINUE_FINAL_MESSAGE = 6 };

const char *const prompt_parts[PROMPT_PARTS] = {[MESSAGES] = "messages",
	"tools",
	"documents",
	"chat_template",
	"chat_template_kwargs",
	[ADD_GENERATION_PROMPT] = "add_generation_prompt",
	[CONTINUE_FINAL_MESSAGE] = "continue_final_message",
	"mm_processor_kwargs",
	"reasoning_effort"};

#define WORDS_MAX 65536

/* Where the words begin that the text ends with; they are counted. */
static size_t
before_words(const struct buf *text, size_t *ret_n)
{
	size_t at = text->len;
	uint32_t id;

	for (*ret_n = 0; *ret_n < WORDS_MAX; ++*ret_n) {
		const char *space = at == 0 ? NULL : memrchr(text->p, ' ', at);

		if (space == NULL || !text_find(space, (size_t)(text->p + at - space), &id))
			break;
		at = (size_t)(space - text->p);
	}
	return at;
}

/* The text's bytes, and ids of the words at its end. */
static void
put_words(struct jv str, struct toks *t)
{
	struct buf text = {0};
	size_t n, at, end;
	uint32_t id = 0;

	json_text_buf(str, &text);
	at = before_words(&text, &n);
	toks_bytes(t, text.p, at);
	toks_end(t);
	for (; n > 0; n--, at = end) {
		const char *next = memchr(text.p + at + 1, ' ', text.len - at - 1);

		end = next == NULL ? text.len : (size_t)(next - text.p);
		(void)text_find(text.p + at, end - at, &id);
		toks_id(t, id);
	}
	buf_free(&text);
}

void
prompt_string(struct jv str, bool words, struct toks *t)
{
	if (words)
		put_words(str, t);
	else
		json_text(str, toks_bytes, t);
	toks_end(t);
}

static void
put_part(unsigned i, struct toks *t)
{
	toks_bytes(t, prompt_parts[i], strlen(prompt_parts[i]));
	toks_bytes(t, ":", 1);
}

static struct jv
last_of(struct jv list)
{
	struct jv key, val, last = {NULL, 0};
	struct jiter it;

	(void)json_iter(&it, list);
	while (json_next(&it, &key, &val))
		last = val;
	return last;
}

/* The messages but the last one, in the spelling of json_canon(). */
static void
put_all_but(struct jv list, struct jv last, struct toks *t)
{
	struct jv key, val;
	struct jiter it;
	bool any = false;

	toks_bytes(t, "[", 1);
	(void)json_iter(&it, list);
	while (json_next(&it, &key, &val) && val.p != last.p) {
		if (any)
			toks_bytes(t, ",", 1);
		json_canon(val, toks_bytes, t);
		any = true;
	}
	toks_bytes(t, "]", 1);
}

/* The rules of vLLM's request and of the template it calls; the second member is true when absent. */
static const char *
refuse_open(struct jv last, struct jv begin, bool sglang)
{
	if (!sglang && (json_null(begin) || json_true(begin)))
		return "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
	if (!json_is(json_get(last, "role"), "assistant"))
		return sglang ? NULL
			      : "Cannot set `continue_final_message` to True when the last message is "
				"not from the assistant.";
	if (json_kind(json_get(last, "content")) != '"')
		return "continue_final_message: the final message has no text";
	return NULL;
}

const char *
prompt_chat(const struct jv parts[PROMPT_PARTS], bool sglang, struct toks *t)
{
	const struct jv last = last_of(parts[MESSAGES]), begin = parts[ADD_GENERATION_PROMPT];
	bool open = json_true(parts[CONTINUE_FINAL_MESSAGE]);
	const char *wrong = open ? refuse_open(last, begin, sglang) : NULL;

	if (wrong != NULL)
		return wrong;
	/* SGLang takes the member for nothing where the last message is not the assistant's */
	open = open && json_is(json_get(last, "role"), "assistant");
	for (unsigned i = 0; i < PROMPT_PARTS; i++) {
		const bool says_nothing =
			json_null(parts[i]) || i == CONTINUE_FINAL_MESSAGE ||
			(i == ADD_GENERATION_PROMPT && (open || sglang || json_true(begin)));

		if (says_nothing)
			continue;
		put_part(i, t);
		if (i == MESSAGES && open)
			put_all_but(parts[i], last, t);
		else
			json_canon(parts[i], toks_bytes, t);
		toks_bytes(t, "\n", 1);
	}
	toks_end(t);
	if (open)
		put_words(json_get(last, "content"), t);
	toks_end(t);
	return NULL;
}
