/* Symptoms: real engines' texts, and what carries no text. */
#include "worker/attempt/symptom.h"

#include <criterion/criterion.h>
#include <string.h>

static bool
said_by(enum failure_leg leg, enum engine_kind engine, enum failure_cause cause, int status,
	const char *text)
{
	return symptom_of_kv(
		engine, leg, cause, status, (struct span){text, text == NULL ? 0 : strlen(text)});
}

static bool
said(enum engine_kind engine, enum failure_cause cause, int status, const char *text)
{
	return said_by(FAILED_DECODE, engine, cause, status, text);
}

#define VLLM_BODY                                                                                  \
	"{\"error\":{\"message\":\"Internal server error\",\"type\":\"InternalServerError\","      \
	"\"param\":null,\"code\":500}}"
#define SGLANG_ROOM "for request rank=0 decode_req.req.rid='a' decode_req.req.bootstrap_room=7"

Test(symptom, texts_of_kv_that_could_not_be_loaded)
{
	static const struct {
		enum engine_kind engine;
		const char *text;
	} rows[] = {
		{ENGINE_VLLM, VLLM_BODY},
		{ENGINE_VLLM, "data: " VLLM_BODY "\n\ndata: [DONE]\n\n"},
		{ENGINE_SGLANG, "{\"message\":\"Decode handshake failed " SGLANG_ROOM "\"}"},
		{ENGINE_SGLANG, "{\"message\":\"Decode transfer failed " SGLANG_ROOM "\"}"},
		{ENGINE_SGLANG, "Could not fetch prefill parallel info from 10.0.0.1:8998"},
		{ENGINE_SGLANG, "Metadata corruption detected - bootstrap_room mismatch"},
		{ENGINE_SGLANG, "500: KVTransferError(bootstrap_room=7): timed out after 300s"},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cr_expect(
			said(rows[i].engine, CAUSE_STATUS, 500, rows[i].text), "%s", rows[i].text);
		cr_expect(said(rows[i].engine, CAUSE_UNUSABLE, 200, rows[i].text), "%s",
			rows[i].text);
		cr_expect_not(
			said(!rows[i].engine, CAUSE_STATUS, 500, rows[i].text), "another engine's");
	}
}

Test(symptom, texts_of_a_prefill_engine_that_no_decode_engine_came_for)
{
	static const char *const texts[] = {
		"{\"object\":\"error\",\"message\":\"Prefill bootstrap failed for request rank=0 req.rid='a' "
		"req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Request 7 timed out after "
		"300.0s in KVPoll.Bootstrapping\"}",
		"{\"object\":\"error\",\"message\":\"Prefill transfer failed for request rank=0 req.rid='a' "
		"req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Decode instance could be "
		"dead, remote mooncake session 10.0.0.2:15596 is not alive\"}"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		cr_expect(said_by(FAILED_PREFILL, ENGINE_SGLANG, CAUSE_STATUS, 500, texts[i]));
		cr_expect_not(said_by(FAILED_LOOKUP, ENGINE_SGLANG, CAUSE_STATUS, 500, texts[i]));
		cr_expect_not(said_by(FAILED_PREFILL, ENGINE_VLLM, CAUSE_STATUS, 500, texts[i]));
	}
	cr_expect_not(said_by(FAILED_PREFILL, ENGINE_VLLM, CAUSE_STATUS, 500, VLLM_BODY),
		"no decode engine has to do with its error");
}

Test(symptom, what_is_not_about_kv)
{
	static const int statuses[] = {400, 404, 429, 501, 502, 503, 504};

	for (enum engine_kind engine = 0; engine < ENGINE_N; engine++) {
		cr_expect_not(said(engine, CAUSE_STATUS, 500, "{\"error\":\"CUDA error\"}"));
		cr_expect_not(said(engine, CAUSE_STATUS, 500, NULL));
		cr_expect_not(said(engine, CAUSE_UNUSABLE, 200, NULL));
	}
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
		cr_expect_not(said(ENGINE_VLLM, CAUSE_STATUS, statuses[i], VLLM_BODY));
	for (enum failure_cause cause = 0; cause < CAUSE_N; cause++)
		if (cause != CAUSE_STATUS && cause != CAUSE_UNUSABLE)
			cr_expect_not(said(ENGINE_VLLM, cause, 500, VLLM_BODY));
}
