/*
 * Every way a request can end: C name, the word (log field `reason`, metric label, `code` of the error
 * body, name in the tests), HTTP status sent when no byte of an answer has gone out yet (0: none is sent,
 * or it is the engine's own), `type` of the error body, default message.
 */
#pragma once

/* clang-format off */
#define END_LIST(X)                                                                                     \
	X(OK, "ok", 0, NULL, NULL)                                                                      \
	X(LOCAL, "local", 0, NULL, NULL) /* answered by the router itself */                            \
	X(ENGINE_STATUS, "engine_status", 0, NULL, NULL) /* an engine's own error, passed on unchanged */ \
	X(CLIENT_GONE, "client_gone", 0, NULL, NULL)                                                    \
	X(CLIENT_STALLED, "client_stalled", 0, NULL, NULL)                                              \
	X(BAD_HTTP, "bad_http", 400, "invalid_request_error", "malformed HTTP request")                 \
	X(BAD_VERSION, "bad_version", 505, "invalid_request_error", "HTTP version not supported")       \
	X(BAD_CODING, "bad_coding", 501, "invalid_request_error", "transfer coding not supported")      \
	X(BAD_ENCODING, "bad_encoding", 415, "invalid_request_error", "content encoding not supported") \
	X(HEAD_TOO_LARGE, "head_too_large", 431, "invalid_request_error", "request head too large")     \
	X(URI_TOO_LONG, "uri_too_long", 414, "invalid_request_error", "query string too long")          \
	X(HEAD_TIMEOUT, "head_timeout", 408, "invalid_request_error", "request head took too long")     \
	X(BODY_TIMEOUT, "body_timeout", 408, "invalid_request_error", "request body took too long")     \
	X(BODY_TOO_LARGE, "body_too_large", 413, "invalid_request_error", "request body too large")     \
	X(BAD_JSON, "bad_json", 400, "invalid_request_error", "the body is not a JSON object")          \
	X(NOT_FOUND, "not_found", 404, "not_found_error", "no such path")                               \
	X(METHOD, "method_not_allowed", 405, "invalid_request_error", "method not allowed")             \
	X(API_KEY, "invalid_api_key", 401, "invalid_request_error", "a valid API key is needed")        \
	X(MODEL_NOT_ALLOWED, "model_not_allowed", 403, "invalid_request_error",                         \
		"the API key may not use this model")                                                   \
	X(MODEL_NOT_FOUND, "model_not_found", 404, "NotFoundError", "the model does not exist")       \
	X(RESPONSE_NOT_FOUND, "response_not_found", 404, "invalid_request_error",                       \
		"no engine has this response")                                                          \
	X(NO_PREFILL, "no_prefill_endpoint", 503, "service_unavailable", "no prefill endpoint is up")   \
	X(NO_DECODE, "no_decode_endpoint", 503, "service_unavailable", "no decode endpoint is up")      \
	X(FALLBACK_BUDGET, "fallback_budget", 503, "service_unavailable",                               \
		"no prefill endpoint can serve, and decode endpoints may take no more of its load")     \
	X(NO_CAPACITY, "no_capacity", 429, "rate_limit_error", "all endpoints are at max_inflight")     \
	X(CLIENT_RATE, "client_rate", 429, "rate_limit_error", "this client asks too often")           \
	X(CLIENT_INFLIGHT, "client_inflight", 429, "rate_limit_error",                                  \
		"this client has too many requests in flight")                                          \
	X(CLIENT_TOKENS, "client_tokens", 429, "rate_limit_error",                                      \
		"this key has used its tokens of this minute")                                          \
	X(OVERLOADED, "overloaded", 503, "service_unavailable", "the router has no room for more")      \
	X(QUEUE_FULL, "queue_full", 429, "rate_limit_error",                                            \
		"all endpoints are at max_inflight, and as many requests wait as may")                  \
	X(QUEUE_TIMEOUT, "queue_timeout", 503, "service_unavailable",                                   \
		"no endpoint was below its max_inflight in time")                                       \
	X(PREFILL_CONNECT, "prefill_connect_timeout", 504, "server_error",                              \
		"the prefill engine could not be reached in time")                                      \
	X(PREFILL_TIMEOUT, "prefill_timeout", 504, "server_error", "the prefill engine took too long")  \
	X(PREFILL_BROKEN, "prefill_broken", 502, "server_error", "the prefill engine broke off")        \
	X(PREFILL_ANSWER, "prefill_bad_answer", 502, "server_error",                                    \
		"the prefill engine's answer is not usable")                                            \
	X(DECODE_CONNECT, "decode_connect_timeout", 504, "server_error",                                \
		"the decode engine could not be reached in time")                                       \
	X(FIRST_BYTE, "first_byte_timeout", 504, "server_error",                                        \
		"the engine began no answer within timeouts.first_byte")                                \
	X(STREAM_IDLE, "stream_idle_timeout", 504, "server_error",                                      \
		"the engine sent no byte for timeouts.stream_idle")                                     \
	X(WHOLE_ANSWER, "whole_answer_timeout", 504, "server_error",                                    \
		"the engine had no answer within timeouts.whole_answer")                                \
	X(DECODE_ANSWER, "decode_bad_answer", 502, "server_error",                                      \
		"the decode engine's answer is not usable")                                             \
	X(ENGINE_CONNECT, "engine_connect_timeout", 504, "server_error",                                \
		"the engine could not be reached in time")                                              \
	X(PREFILL_DOWN, "prefill_down", 502, "server_error", "the prefill engine went down")            \
	X(DECODE_DOWN, "decode_down", 502, "server_error", "the decode engine went down")               \
	X(ENGINE_DOWN, "engine_down", 502, "server_error", "the engine went down")                      \
	X(ENGINE_BROKEN, "engine_broken", 502, "server_error", "the engine broke off")                  \
	X(TOKENIZE, "tokenize_failed", 502, "server_error", "the engine could not tell the prompt's tokens") \
	X(NOT_LEARNED, "not_learned", 503, "service_unavailable",                                       \
		"the prefill engine has not said where its KV cache is fetched")                        \
	X(UNSUPPORTED, "not_supported", 400, "invalid_request_error", "not possible here")              \
	X(TOO_MANY_BRANCHES, "too_many_choices", 400, "invalid_request_error",                             \
		"more samples or prompts than limits.max_fanout allows")                                \
	X(REQUEST_TIMEOUT, "request_timeout", 504, "server_error", "the request took too long")         \
	X(DECODE_BROKEN, "decode_broken", 502, "server_error", "the decode engine broke off")           \
	X(SHUTDOWN, "shutdown", 503, "service_unavailable", "the router is shutting down")
/* clang-format on */

#define END_ENUM(id, word, status, type, message) END_##id,
enum req_end { END_LIST(END_ENUM) END_N };
#undef END_ENUM

/* The row of an end: what the router logs, counts and sends. */
struct end_info {
	const char *word;
	int status; /* 0: none is sent, or the engine's own */
	const char *type, *message;
};

extern const struct end_info end_info[END_N];

static inline const char *
end_word(enum req_end end)
{
	return end_info[end].word;
}
