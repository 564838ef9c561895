/*
 * KV through a store that both engines know by content (protocols.md 6): LMCache on a shared disk or
 * server, production-stack's disaggregated_prefill.  Nothing names the transfer, so the bodies are the client's.
 *
 * cache_hit_threshold: the decode engine is asked first; one that has less than that share of the prompt's KV
 * says so by finish_reason "cache_threshold", and only then is prefill asked (llm-d's shared-storage mode).
 */
#include <string.h>

#include "worker/req.h"

static bool
decode_first_mode(const struct pair *pair)
{
	return pair->req->pool.shake.cache_hit_threshold[0] != '\0';
}

static enum req_end
begin(struct pair *pair)
{
	if (decode_first_mode(pair)) {
		pair->starts[ROLE_PREFILL] = STARTS_NEVER;
		pair->starts[ROLE_DECODE] = STARTS_AT_ONCE;
	}
	return END_OK;
}

static void
decode_edit(struct pair *pair, struct splice_edit *e)
{
	if (decode_first_mode(pair) && pair->starts[ROLE_PREFILL] == STARTS_NEVER)
		connector_set(e, SK_CACHE_HIT_THRESHOLD, SE_SET,
			pair->req->pool.shake.cache_hit_threshold);
}

/* Where the JSON of an event begins; the text itself if it is no event. */
static struct span
payload(const char *text, size_t n)
{
	if (n > 5 && memcmp(text, "data:", 5) == 0)
		return (struct span){text + 5, n - 5};
	return (struct span){text, n};
}

static enum taken
decode_first(struct pair *pair, const char *text, size_t n)
{
	static const char word[] = "\"cache_threshold\"";
	const struct span json = payload(text, n);
	struct splice_seg choices, choice, reason;
	size_t at = 0;

	(void)pair;
	if (splice_member_raw(json.p, json.n, "choices", &choices) != 1 || choices.p[0] != '[' ||
		!splice_element(&choices, &at, &choice) ||
		splice_member_raw(choice.p, choice.n, "finish_reason", &reason) != 1)
		return TAKEN;
	return reason.n == sizeof(word) - 1 && memcmp(reason.p, word, reason.n) == 0 ? TAKEN_AGAIN
										     : TAKEN;
}

const struct connector connector_shared_storage = {
	.starts = {[ROLE_PREFILL] = STARTS_AT_ONCE, [ROLE_DECODE] = STARTS_AFTER_PREFILL},
	.leaves = LEAVES_NOTHING,
	.edit = {[ROLE_PREFILL] = connector_limit_prefill, [ROLE_DECODE] = decode_edit},
	.begin = begin,
	.decode_first = decode_first,
	.samples = connector_several_whole,
	.prompts = connector_several_whole,
};
