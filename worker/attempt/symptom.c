#include "worker/attempt/symptom.h"

#include <stddef.h>
#include <string.h>

/*
 * vLLM ends a request whose KV could not be loaded (kv_load_failure_policy fail) with its text for any error inside, and
 * no other word (vllm issue 40978).  SGLang's scheduler names what it waited for; its "it might be dead" accuses the
 * prefill engine even where the decode engine cannot transfer.  So none of them proves who is at fault: shm/blame.h.
 */
static const struct {
	enum engine_kind engine;
	const char *text;
} rows[] = {
	{ENGINE_VLLM, "Internal server error"},
	{ENGINE_SGLANG, "Decode handshake failed"},
	{ENGINE_SGLANG, "Decode transfer failed"},
	{ENGINE_SGLANG, "Could not fetch prefill parallel info"},
	{ENGINE_SGLANG, "KVTransferError"},
};

bool
symptom_of_kv(enum engine_kind engine, enum failure_cause cause, int status, struct span text)
{
	/* 500, or an error event under a 200; 502, 503, 504: the engine, or a proxy before it, is not there */
	if (cause != CAUSE_UNUSABLE && !(cause == CAUSE_STATUS && status == 500))
		return false;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (rows[i].engine == engine && text.n > 0 &&
			memmem(text.p, text.n, rows[i].text, strlen(rows[i].text)) != NULL)
			return true;
	return false;
}
