/*
 * Paths: which of them go through an engine, which the router answers itself.
 */
#pragma once
#include <stdbool.h>

#include "proto/http/http.h"
#include "shm/base/conf.h"

/* Bytes of a query string that is sent to an engine; a longer one is refused with 414. */
#define ROUTE_QUERY_MAX 2000

enum route {
	ROUTE_NONE, /* no such path */
	ROUTE_CHAT,
	ROUTE_COMPLETIONS,
	ROUTE_GENERATE, /* SGLang's own */
	/* one leg (protocols.md 1.1); route_is_agent(): or two */
	ROUTE_EMBEDDINGS,
	ROUTE_EMBED,
	ROUTE_POOLING,
	ROUTE_CLASSIFY,
	ROUTE_CLASSIFY_V1,
	ROUTE_SCORE,
	ROUTE_SCORE_V1,
	ROUTE_RERANK,
	ROUTE_RERANK_V1,
	ROUTE_RERANK_V2,
	ROUTE_ENCODE,
	ROUTE_TOKENIZE,
	ROUTE_TOKENIZE_V1,
	ROUTE_DETOKENIZE,
	ROUTE_DETOKENIZE_V1,
	ROUTE_RESPONSES,
	ROUTE_RESPONSE,        /* one that its engine keeps */
	ROUTE_RESPONSE_CANCEL, /* the same, while it is generated */
	ROUTE_MESSAGES,
	ROUTE_GENERATE_IDS,
	ROUTE_RENDER,
	ROUTE_RENDER_CHAT,
	ROUTE_COUNT_TOKENS,
	ROUTE_TRANSCRIPTIONS,
	ROUTE_TRANSLATIONS,
	/* answered by the router itself */
	ROUTE_MODEL, /* one of the list */
	ROUTE_MODELS,
	ROUTE_LIVE,
	ROUTE_HEALTH,
	ROUTE_READY,
	ROUTE_METRICS,
	ROUTE_VERSION,
	/* the status page, at the addresses of operators alone: request/status_page.c, status_stream.c */
	ROUTE_HOME,
	ROUTE_STATUS,
	ROUTE_STATUS_STYLE,
	ROUTE_STATUS_SCRIPT,
	ROUTE_STATUS_RUNBOOK,
	ROUTE_STATUS_EVENTS,
	ROUTE_PREFLIGHT, /* OPTIONS on any of these: request/cors.h */
	ROUTE_N
};

/* Returns the route of a request's path, which is compared exactly as written. */
enum route route_find(struct span path);
/* Returns the path for the metric label, "{id}" in place of its variable part; "other" for ROUTE_NONE. */
const char *route_path(enum route r);
/* What serves the requests of a path: the router, two engines, or one engine. */
enum route_by { ROUTE_BY_US, ROUTE_BY_TWO, ROUTE_BY_ONE };
enum route_by route_by(enum route r);
/* Whether the path is answered at such an address. */
bool route_open(enum route r, enum door door, const struct conf *conf);
/* Returns true for the paths of the status page. */
bool route_is_status(enum route r);
/* Returns true for the paths that go to engines. */
bool route_forwards(enum route r);
/* Returns true for the paths that need a key of who comes through this door, where there are keys. */
bool route_needs_key(enum route r, enum door door);
/* What the router reads of a request's body. */
enum route_body {
	ROUTE_BODY_JSON, /* a JSON object */
	ROUTE_BODY_FORM, /* a form: its field `model` */
	ROUTE_BODY_NONE, /* nothing: the path says all */
};
enum route_body route_body(enum route r);
/* Returns true for the paths whose answers cost an engine tokens: not those that count or write tokens, or that
 * return an answer that was charged when it was made. */
bool route_spends(enum route r);
/* Returns true for the paths of Anthropic's API, whose errors have another shape. */
bool route_is_anthropic(enum route r);
/* Returns true for the paths of agents: one engine serves them, or two
 * (`disaggregate_agent_paths`). */
bool route_is_agent(enum route r);
/* Returns the role whose engines serve a path that one engine serves alone (ROUTE_BY_ONE). */
enum role route_single_role(enum route r, const struct conf_handshake *shake);
/* Returns the offset of the variable part of a path, such as the model of /v1/models/{id}; 0: it has none. */
size_t route_rest(enum route r);
/* Returns what follows the variable part of a path, such as "/cancel". */
const char *route_after(enum route r);
/* Returns true if the path allows the method; *ret_allow is the value of the Allow header. */
bool route_method_ok(enum route r, enum http_method m, const char **ret_allow);
/* Returns the method by which an engine is asked. */
const char *route_method(enum route r);
