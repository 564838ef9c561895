/*
 * How the KV cache moves between the two engines of an attempt: one struct of functions per
 * hand-shake, one file each.  The attempt's state machines name none of them.
 *
 * Process: worker.  No I/O here: connectors make requests and read answers.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/answer/answer.h"
#include "proto/json/splice.h"
#include "shm/base/conf.h"
#include "shm/base/connector_info.h"
#include "worker/base/end_list.h"

struct demand;
struct req_pool;
struct span;
struct transfer;

/* Which engines serve an attempt. */
enum engines {
	ENGINES_TWO,    /* a prefill engine and a decode engine: a hand-shake */
	ENGINES_DECODE, /* a decode engine serves the whole request */
	ENGINES_SINGLE, /* one engine, of the role that the pool's configuration says */
};

/* The event that starts a leg. */
enum leg_starts { STARTS_AT_ONCE, STARTS_AFTER_PREFILL, STARTS_AFTER_KV, STARTS_NEVER };

/* How a request for several samples, or of several prompts, is served. */
enum several {
	SEVERAL_WHOLE,    /* one attempt serves all of them */
	SEVERAL_BRANCHES, /* a branch, with an attempt of its own, for each */
	SEVERAL_DIRECT,   /* the decode engine alone, without a hand-shake */
};

/* The result of reading an engine's answer. */
enum handoff {
	HANDOFF_BAD = -1, /* the answer is unusable: the leg has failed */
	/* no KV parameters: decode is sent its request without them, which is counted */
	HANDOFF_NONE,
	HANDOFF_OK,
	HANDOFF_RETRY, /* the decode engine was sent other parameters, and must be sent these */
};

/* A request to an engine before the legs, for values that the legs need. */
struct lookup {
	enum role role;   /* the role whose engine gets the request */
	const char *path; /* a GET if `edit` is NULL, else a POST of the client's body, edited */
	uint16_t port;    /* port at the engine's host; 0: the endpoint's own */
	void (*edit)(struct transfer *, struct splice_edit *);
};

#define CONNECTOR_ANSWER_ID 160 /* a client's id, a prefix, quotes */

struct connector {
	const struct connector_info *info; /* its abilities: one table for master and worker */
	enum engines engines;
	enum leg_starts starts[ROLE_N];
	/* A decode engine that refuses a request before its admission makes the prefill engine free the blocks
	 * named there (vLLM's NixlConnector from 0.21, vllm PR 41269): the member that names them.  NULL: no
	 * member is known to. */
	const char *(*refusal)(const struct req_pool *);
	/* Edits to the client's body for each leg; `e` comes with the peer-choosing members already cut. */
	void (*edit[ROLE_N])(struct transfer *, struct splice_edit *e);
	/* The prefill engine has answered 200 with t->prefill_answer: takes the KV parameters
	 * for decode from the answer.  NULL: the answer has none. */
	enum handoff (*prefilled)(struct transfer *);

	/* The rest may be NULL, false or 0, as `refusal` and `prefilled` above may be NULL. */

	/* The engines are chosen: sets the ids of this transfer.  Returns END_OK, or why the
	 * attempt cannot begin (t->detail). */
	enum req_end (*begin)(struct transfer *);
	/* Fills the next lookup.  Returns false if no lookup is left. */
	bool (*lookup)(struct transfer *, struct lookup *ret);
	/* Reads t->lookup_answer, which came with a 200. */
	enum handoff (*looked_up)(struct transfer *);
	/* property: a lookup with an unusable answer is repeated until learn_timeout */
	bool lookup_repeats;
	enum req_end lookup_end; /* how the request ends when the lookup fails for good */
	/* More of the prefill answer is here.  HANDOFF_OK starts the legs with
	 * STARTS_AFTER_PREFILL. */
	enum handoff (*prefill_more)(struct transfer *);
	/* A leg has failed: forgets what was learned of its engine. */
	void (*failed)(struct transfer *, enum role role);
	/* NULL: SEVERAL_WHOLE. */
	enum several (*samples)(const struct req_pool *), (*prompts)(const struct req_pool *);
	/* Returns the path of the leg; NULL: the client's. */
	const char *(*path)(const struct transfer *, enum role);
	/* Returns why the decode engine must serve this request alone; NULL: it need not. */
	const char *(*unfit)(const struct demand *);
	/* Returns why this request cannot be served at all; NULL: it can. */
	const char *(*refuses)(const struct demand *);
	/* The prefill answer is (the start of) the client's answer: returns true if the answer
	 * ends there, without decode. */
	bool (*complete)(struct transfer *);
	/* Returns true if the answers must be rewritten for the client; fills `how`, which has
	 * the values of the request before.  `id` is room for how->id. */
	bool (*rewrites)(
		const struct demand *, struct answer_how *how, char id[CONNECTOR_ANSWER_ID]);
	/* The decode engine was sent its request first and has answered t->decode_answer so
	 * far.  Returns HANDOFF_RETRY if the answer asks for prefill, HANDOFF_NONE if that is
	 * not known yet. */
	enum handoff (*decode_first)(struct transfer *);
};

/* Returns true for a hand-shake of two engines. */
static inline bool
connector_two_engines(const struct connector *c)
{
	return c->engines == ENGINES_TWO;
}

/* connector_nixl and so on. */
#define CONNECTOR_EXTERN(id, word, ...) extern const struct connector connector_##word;
CONNECTOR_LIST(CONNECTOR_EXTERN)
#undef CONNECTOR_EXTERN
/* ENGINES_DECODE: short prompts, several samples of one hand-shake, X-PD-Route, no prefill engine. */
extern const struct connector connector_direct;
/* ENGINES_SINGLE: embeddings and the like (protocols.md 1.1). */
extern const struct connector connector_single;

const struct connector *connector_find(enum connector_kind kind);

/* Returns how many prompts a member lists; 0: it is missing, one prompt (a text or a list of token ids),
 * or a list of both, which engines refuse (CompletionRequest in vLLM's
 * entrypoints/openai/completion/protocol.py): none of them may be served alone. */
size_t connector_list_of_prompts(const struct splice *doc, const struct splice_member *m);
/* Returns the number of prompts of the request, at least 1. */
size_t connector_prompts(const struct demand *d);

/* Returns the member that limits how many tokens are generated; NULL: none does. */
const struct splice_member *connector_limit(const struct demand *d);
/* Reads a member's count.  Returns false if it is no plain number. */
bool connector_count(const struct demand *d, const struct splice_member *m, uint64_t *ret);
/* Returns true if the limit of tokens, with a prompt of token ids, is beyond what any decode engine of the
 * pool has reported as its context.  Engines refuse that (TokenizeParams in vLLM's renderers/params.py). */
bool connector_too_long(const struct demand *d);
/*
 * Returns "prompt_logprobs" if the request asks for them, else NULL.  Only the engine that computes the
 * prompt has them: a vLLM decode engine that has fetched the KV dies of such a request (vllm issue 50792).
 */
const char *connector_prompt_logprobs(const struct demand *d);

/* Returns the client's own id as an answer's id, in quotes, for answers that must not carry the
 * engine's id. */
const char *connector_answer_id(const struct demand *d, char id[CONNECTOR_ANSWER_ID]);
enum several connector_several_whole(const struct req_pool *pool);
/* A branch for each with `fanout: true`, else direct. */
enum several connector_fanout(const struct req_pool *pool);
enum several connector_several_branches(const struct req_pool *pool);
