/*
 * The words of the exported spans: one line per kind of span and per attribute.  Workers write the number, the exporter
 * writes the text (master/exporter/).  Attributes of the GenAI and HTTP conventions of OpenTelemetry have their names;
 * those that begin with `pdrouter.` are ours.
 */
#pragma once

/* clang-format off */
/* X(C name, name of the span, kind in OTLP: 1 internal, 2 server, 3 client); a request is named by its path */
#define SPAN_NAMES(X)                                                                                   \
	X(REQUEST, "request", 2)                                                                        \
	X(QUEUE, "queue", 1)                                                                            \
	X(LOOKUP, "lookup", 3)                                                                          \
	X(PREFILL, "prefill", 3)                                                                        \
	X(KV, "kv_transfer", 1)                                                                         \
	X(DECODE, "decode", 3)                                                                          \
	X(RELEASE, "release", 3)                                                                        \
	X(RESUME, "resume", 1)

/* X(C name, name of the attribute, TEXT or NUMBER) */
#define SPAN_ATTRS(X)                                                                                   \
	X(METHOD, "http.request.method", TEXT)                                                          \
	X(PATH, "url.path", TEXT)                                                                       \
	X(STATUS, "http.response.status_code", NUMBER)                                                  \
	X(RESENDS, "http.request.resend_count", NUMBER)                                                 \
	X(URL, "url.full", TEXT)                                                                        \
	X(ERROR, "error.type", TEXT)                                                                    \
	X(OPERATION, "gen_ai.operation.name", TEXT)                                                     \
	X(MODEL, "gen_ai.request.model", TEXT)                                                          \
	X(INPUT, "gen_ai.usage.input_tokens", NUMBER)                                                   \
	X(CACHED, "gen_ai.usage.cache_read.input_tokens", NUMBER)                                       \
	X(OUTPUT, "gen_ai.usage.output_tokens", NUMBER)                                                 \
	X(REQUEST_ID, "pdrouter.request_id", TEXT)                                                      \
	X(REASON, "pdrouter.reason", TEXT)                                                              \
	X(DETAIL, "pdrouter.detail", TEXT)                                                              \
	X(POOL, "pdrouter.pool", TEXT)                                                                  \
	X(KEY, "pdrouter.key", TEXT)                                                                    \
	X(DIRECT, "pdrouter.direct", TEXT)                                                              \
	X(TRIES, "pdrouter.tries", NUMBER)                                                              \
	X(RESCUED, "pdrouter.rescued", TEXT)                                                            \
	X(STATE, "tracestate", TEXT) /* a field of the span, no attribute */
/* clang-format on */

#define SPAN_NAME_ENUM(id, name, kind) SPAN_##id,
enum span_name { SPAN_NAMES(SPAN_NAME_ENUM) SPAN_NNAMES };
#undef SPAN_NAME_ENUM

#define SPAN_ATTR_ENUM(id, name, type) SA_##id,
enum span_attr { SPAN_ATTRS(SPAN_ATTR_ENUM) SA_N };
#undef SPAN_ATTR_ENUM
