#include "worker/attempt/symptom.h"

#include <stddef.h>
#include <string.h>

/*
 * vLLM ends a request whose KV could not be loaded (kv_load_failure_policy fail) with its text for any error inside, and
 * no other word (vllm issue 40978).  SGLang's scheduler names what it waited for; its "it might be dead" accuses the
 * prefill engine even where the decode engine cannot transfer, and its prefill engine fails with such a text when the
 * decode engine has not come for the KV.  So none of them proves who is at fault: shm/blame.h.
 */
static const struct {
	enum engine_kind engine;
	enum failure_leg leg;
	const char *text;
} rows[] = {
	{ENGINE_VLLM, FAILED_DECODE, "Internal server error"},
	{ENGINE_SGLANG, FAILED_DECODE, "Decode handshake failed"},
	{ENGINE_SGLANG, FAILED_DECODE, "Decode transfer failed"},
	{ENGINE_SGLANG, FAILED_DECODE, "Could not fetch prefill parallel info"},
	{ENGINE_SGLANG, FAILED_DECODE, "bootstrap_room mismatch"},
	{ENGINE_SGLANG, FAILED_DECODE, "KVTransferError"},
	{ENGINE_SGLANG, FAILED_PREFILL, "Prefill bootstrap failed"},
	{ENGINE_SGLANG, FAILED_PREFILL, "Prefill transfer failed"},
};

static bool
contains(struct span text, const char *word)
{
	return text.n > 0 && memmem(text.p, text.n, word, strlen(word)) != NULL;
}

bool
symptom_of_abort(struct span answer)
{
	return contains(answer, SYMPTOM_ABORT);
}

bool
symptom_of_kv(enum engine_kind engine, enum failure_leg leg, enum failure_cause cause, int status,
	struct span text)
{
	/* 500, or an error event under a 200; 502, 503, 504: the engine, or a proxy before it, is not there */
	if (cause != CAUSE_UNUSABLE && !(cause == CAUSE_STATUS && status == 500))
		return false;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].engine == engine && rows[i].leg == leg && contains(text, rows[i].text))
			return true;
	return false;
}
