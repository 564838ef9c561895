#include "worker/attempt/tokens.h"

#include "worker/attempt/attempt.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

/* The paths that call prompt and completion by other names: Anthropic's, and OpenAI's Responses. */
static bool
says_input(const struct attempt *a)
{
	const enum route route = a->t.of.facts->route;

	return route == ROUTE_RESPONSES || route_is_anthropic(route);
}

/* The engine of that role has computed the prompt. */
static void
compare(const struct attempt *a, enum role role, uint64_t cached, uint64_t prompt)
{
	const struct reservation *r = &a->reserved.of[role];

	if (r->ep != NULL && prompt != USAGE_NONE && reservation_of_this_life(a->w, r))
		prefix_record(a->w->seg, r->ep->slot, &r->guess,
			cached != USAGE_NONE ? cached : PREFIX_UNSAID, prompt);
}

void
tokens_prefilled(struct attempt *a)
{
	const struct leg *p = attempt_prefill_leg(a);
	const size_t kv = a->t.kv.n < p->answer_len ? a->t.kv.n : 0; /* they come last */
	const size_t n = p->answer_len - kv;

	a->cached_tokens = usage_at_end(p->answer, n, USAGE_CACHED);
	a->prompt_tokens = usage_at_end(p->answer, n, says_input(a) ? USAGE_INPUT : USAGE_PROMPT);
	compare(a, ROLE_PREFILL, a->cached_tokens, a->prompt_tokens);
}

static uint64_t
in_tail(const struct attempt *a, enum usage_number which)
{
	return a->leg[LEG_DECODE].status == 200 ? usage_at_end(a->tail.text, a->tail.n, which)
						: USAGE_NONE;
}

void
tokens_answered(const struct attempt *a)
{
	if (a->prefill == PREFILL_NOT_NEEDED)
		compare(a, ROLE_DECODE, in_tail(a, USAGE_CACHED),
			in_tail(a, says_input(a) ? USAGE_INPUT : USAGE_PROMPT));
}

uint64_t
tokens_generated(const struct attempt *a)
{
	return in_tail(a, says_input(a) ? USAGE_OUTPUT : USAGE_COMPLETION);
}

/* A decode engine that has got KV calls the whole prompt cached: the prefill engine's numbers come first. */
static struct tokens
of_attempt(const struct attempt *a)
{
	const bool prefilled = a->prefill == PREFILL_ANSWERED;

	return (struct tokens){
		.prompt = prefilled && a->prompt_tokens != USAGE_NONE
				  ? a->prompt_tokens
				  : in_tail(a, says_input(a) ? USAGE_INPUT : USAGE_PROMPT),
		.cached = prefilled ? a->cached_tokens : in_tail(a, USAGE_CACHED),
		.completion = tokens_generated(a),
	};
}

static uint64_t
sum(uint64_t a, uint64_t b)
{
	return a == USAGE_NONE || b == USAGE_NONE ? USAGE_NONE : a + b;
}

struct tokens
tokens_of(const struct job *job)
{
	struct tokens all = {USAGE_NONE, USAGE_NONE, USAGE_NONE};

	if (job->rescue == RESCUE_RESUME)
		return all;
	for (uint32_t i = 0; i < job->nbranches; i++) {
		const struct branch *b = &job->branches[i];
		struct tokens one;

		if (b->attempt == NULL)
			return (struct tokens){USAGE_NONE, USAGE_NONE, USAGE_NONE};
		one = of_attempt(b->attempt);
		if (i == 0) {
			all = one;
			continue;
		}
		if (b->prompt.p !=
			job->branches[i - 1].prompt.p) { /* samples of one prompt are adjacent */
			all.prompt = sum(all.prompt, one.prompt);
			all.cached = sum(all.cached, one.cached);
		}
		all.completion = sum(all.completion, one.completion);
	}
	return all;
}
