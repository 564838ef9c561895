/* What an answer is made into, and the result of a step: for answer.h and the files below it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define ANSWER_PARTS_MAX 128
#define ANSWER_CHOICES_MAX 128 /* of one part that is written anew; more are ANSWER_BAD */

enum answer_shape {
	ANSWER_OPENAI,   /* chat completions and completions */
	ANSWER_GENERATE, /* SGLang's /generate */
};

struct answer_how {
	enum answer_shape shape;
	/* shape for the client: chat.completion(.chunk), else text_completion */
	bool chat;
	bool from_completions; /* the engines answer with text_completion although `chat` */
	/*
	 * P's answer holds the first token, and D's prompt held it too: P's text is put in front,
	 * the usage is corrected, and members that describe D's prompt (token ids, prompt logprobs)
	 * are left out.  The engines answer with text_completion.
	 */
	bool first_token;
	bool stream;              /* the client requested events */
	bool usage;               /* ... and for stream_options.include_usage */
	bool continuous_usage;    /* ... and for continuous_usage_stats */
	bool cached_from_prefill; /* cached_tokens are P's: D counts the KV it received as cached */
	uint32_t parts;           /* 1 .. ANSWER_PARTS_MAX */
	uint32_t samples;         /* parts that are samples of one prompt, next to each other: its
				  prompt_tokens count once; 0 is 1 */
	uint32_t choices; /* each part answers with up to so many; 0 is 1.  With several parts,
				  choice k of part i becomes index i * choices + k */
	uint32_t
		top_logprobs; /* what a chat client asked for: engines that speak text_completion add
				  the chosen token to as many */
	const char *id; /* a JSON string with its quotes, in place of the engines' id; NULL: the
				  first one seen.  Copied. */
};

enum {
	ANSWER_OK = 0,
	/* the event is an engine's error; it is in out, and nothing may follow it */
	ANSWER_ERROR = 1,
	ANSWER_BAD = -1,   /* invalid output of an engine: the caller ends the answer */
	ANSWER_LARGE = -2, /* max_bytes is too small */
};
