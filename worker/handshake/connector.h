/*
 * How the KV cache moves between the two engines of an attempt: one struct of functions per hand-shake, one
 * file each.  The attempt's state machines know none of them by name.
 *
 * Process: worker.  No I/O here: connectors say what is to be sent, and read what has come.
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
	ENGINES_DECODE, /* a decode engine does all of it */
	ENGINES_SINGLE, /* one engine, of the role that the pool's configuration says */
};

/* The event that starts a leg. */
enum leg_starts { STARTS_AT_ONCE, STARTS_AFTER_PREFILL, STARTS_AFTER_KV, STARTS_NEVER };

/* What becomes of a request for several samples, or of several prompts. */
enum several {
	SEVERAL_WHOLE,    /* one attempt serves them all */
	SEVERAL_BRANCHES, /* a branch, with an attempt of its own, for each */
	SEVERAL_DIRECT,   /* the decode engine alone, without a hand-shake */
};

/* What an engine's answer gave. */
enum handoff {
	HANDOFF_BAD = -1, /* not usable: the leg has failed */
	HANDOFF_NONE,     /* no KV parameters: decode goes without, counted */
	HANDOFF_OK,
	HANDOFF_RETRY, /* the decode engine was sent something else, and must be sent this */
};

/* A request to an engine before the legs: what must be known to make them. */
struct lookup {
	enum role role;   /* whose engine */
	const char *path; /* a GET if `edit` is NULL, else a POST of the client's body, edited */
	uint16_t port;    /* of that host; 0: the endpoint's own */
	void (*edit)(struct transfer *, struct splice_edit *);
};

#define CONNECTOR_ANSWER_ID 160 /* a client's id, a prefix, quotes */

struct connector {
	const struct connector_info *info; /* what it can do: one table for master and worker */
	enum engines engines;
	enum leg_starts starts[ROLE_N];
	/* A decode engine that refuses a request before its admission makes the prefill engine free the blocks
	 * named there (vLLM's NixlConnector from 0.21, vllm PR 41269): the member that names them.  NULL: no
	 * member is known to. */
	const char *(*refusal)(const struct req_pool *);
	/* Edits to the client's body for each leg; `e` comes with the peer-choosing members already cut. */
	void (*edit[ROLE_N])(struct transfer *, struct splice_edit *e);
	/* The prefill engine has answered 200 with t->prefill_answer: takes out what decode is given.  NULL:
	 * nothing is taken. */
	enum handoff (*prefilled)(struct transfer *);

	/* The rest may be NULL, false or 0, as `refusal` and `prefilled` above may be NULL. */

	/* The engines are chosen: what this transfer is known by.  END_OK, or why it cannot be (t->detail). */
	enum req_end (*begin)(struct transfer *);
	/* False: nothing (more) to look up. */
	bool (*lookup)(struct transfer *, struct lookup *ret);
	/* t->lookup_answer came with a 200. */
	enum handoff (*looked_up)(struct transfer *);
	bool lookup_repeats;     /* an answer of no use is asked for again until learn_timeout */
	enum req_end lookup_end; /* how the request ends when nothing is learned */
	/* More of the prefill answer is here: HANDOFF_OK starts what STARTS_AFTER_PREFILL. */
	enum handoff (*prefill_more)(struct transfer *);
	/* A leg has failed: forget what was learned of its engine. */
	void (*failed)(struct transfer *, enum role role);
	/* NULL: SEVERAL_WHOLE. */
	enum several (*samples)(const struct req_pool *), (*prompts)(const struct req_pool *);
	/* Path of the leg; NULL: the client's. */
	const char *(*path)(const struct transfer *, enum role);
	/* Why the decode engine must serve this request alone; NULL: it need not. */
	const char *(*unfit)(const struct demand *);
	/* Why this request cannot be served at all; NULL: it can. */
	const char *(*refuses)(const struct demand *);
	/* The prefill answer is (the start of) the client's answer: true if it ends there, without decode. */
	bool (*complete)(struct transfer *);
	/* True if the answers must be rewritten for the client; fills `how`, which comes with what any request
	 * says.  `id` is room for how->id. */
	bool (*rewrites)(
		const struct demand *, struct answer_how *how, char id[CONNECTOR_ANSWER_ID]);
	/* The decode engine, asked before the prefill engine, has said t->decode_answer so far: HANDOFF_RETRY if
	 * it asks for prefill, HANDOFF_NONE if that is not known yet. */
	enum handoff (*decode_first)(struct transfer *);
};

/* True: a hand-shake of two engines. */
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

/* How many prompts a member lists; 0: it is missing or one prompt, be it of token ids. */
size_t connector_list_of_prompts(const struct splice *doc, const struct splice_member *m);
/* Of the request; 1 for one. */
size_t connector_prompts(const struct demand *d);

/* The client's own id as an answer's id, in quotes, where the engine's id will not do. */
const char *connector_answer_id(const struct demand *d, char id[CONNECTOR_ANSWER_ID]);
enum several connector_several_whole(const struct req_pool *pool);
/* A branch for each with `fanout: true`, else direct. */
enum several connector_fanout(const struct req_pool *pool);
enum several connector_several_branches(const struct req_pool *pool);
