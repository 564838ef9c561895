/*
 * How the KV cache moves between the engines of a pair: one struct of functions per hand-shake, one
 * file each.  The request's state machine knows none of them by name.
 *
 * Process: worker.  No I/O here: connectors say what is to be sent, and read what has come.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/answer/answer.h"
#include "proto/json/splice.h"
#include "shm/base/conf.h"
#include "worker/base/end_list.h"

struct pair;
struct req;
struct req_pool;
struct span;

/* The event that starts a leg. */
enum leg_starts { STARTS_AT_ONCE, STARTS_AFTER_PREFILL, STARTS_AFTER_KV, STARTS_NEVER };

/* What becomes of a request for several samples, or of several prompts. */
enum several {
	SEVERAL_WHOLE,  /* one pair serves them all */
	SEVERAL_PAIRS,  /* a pair for each */
	SEVERAL_DIRECT, /* the decode engine alone, without a hand-over */
};

/* What the engines hold of a request that has been given up. */
enum leaves {
	LEAVES_NOTHING, /* closing the connections is all */
	LEAVES_KV,      /* the prefill engine's blocks, until a decode engine has fetched them */
	LEAVES_ROOM,    /* each engine waits for the other: both are told by /abort_request */
};

/* What the prefill answer, or the answer to a question, was good for. */
enum taken {
	TAKEN_BAD = -1, /* not usable: the leg has failed */
	TAKEN_NOTHING,  /* nothing to hand over: decode goes without, counted */
	TAKEN,
	TAKEN_AGAIN, /* the decode leg was told otherwise and must be told anew */
};

/* A question to an engine before its legs. */
struct question {
	enum role role;   /* whose engine */
	const char *path; /* a GET if `edit` is NULL, else a POST of the client's body, edited */
	uint16_t port;    /* of that host; 0: the endpoint's own */
	void (*edit)(struct pair *, struct splice_edit *);
};

struct connector {
	enum leg_starts starts[ROLE_N];
	enum leaves leaves;
	bool leased; /* the KV is held for a time only: kv_lease */
	bool bound;  /* the hand-over is for the one decode engine that was chosen */
	/* A decode engine that refuses a request before its admission tells the prefill engine to free the
	 * blocks it names (vLLM's NixlConnector from 0.21, vllm PR 41269): the member that names them.  NULL:
	 * nothing is known to. */
	const char *(*refusal)(const struct req_pool *);
	/* Edits to the client's body for each leg; `e` comes with the peer-choosing members already cut. */
	void (*edit[ROLE_N])(struct pair *, struct splice_edit *e);
	/* The prefill engine has answered 200 with leg[P].answer: remember what decode is given.  NULL: nothing
	 * is taken. */
	enum taken (*prefilled)(struct pair *);

	/* The rest may be missing. */

	/* The endpoints are chosen: what this transfer is known by.  END_OK, or why it cannot be. */
	enum req_end (*begin)(struct pair *);
	/* False: nothing (more) to ask. */
	bool (*ask)(struct pair *, struct question *ret);
	/* leg[LEG_ASK] has answered 200. */
	enum taken (*asked)(struct pair *);
	bool asks_again;       /* what is no use is asked for again until learn_timeout */
	enum req_end ask_fail; /* why there is no answer for the client then */
	/* More of the prefill answer is here: TAKEN starts what STARTS_AFTER_PREFILL. */
	enum taken (*prefill_more)(struct pair *);
	/* A leg of it has failed: forget what was learned of its engines. */
	void (*failed)(struct pair *, enum role role);
	enum several (*samples)(const struct req_pool *), (*prompts)(const struct req_pool *);
	/* Path of the leg; NULL: the client's. */
	const char *(*path)(const struct pair *, enum role);
	/* Why the decode engine must do this request alone; NULL: it need not. */
	const char *(*unfit)(const struct req *);
	/* Why this request cannot be served at all; NULL: it can. */
	const char *(*refuses)(const struct req *);
	/* The prefill answer is (the start of) the client's answer: no decode leg where it ended there. */
	bool (*complete)(struct pair *);
	/* True if the answers must be rewritten for the client; fills `how`, which comes with what any
	 * request says. */
	bool (*rewrites)(struct req *, struct answer_how *how);
	/* What the decode engine, asked before the prefill engine, has said so far is in leg[D].answer:
	 * TAKEN_AGAIN if it asks for prefill, TAKEN_NOTHING if that is not to be told yet. */
	enum taken (*decode_first)(struct pair *);
};

/* False: one engine does it all, there is no hand-shake. */
static inline bool
connector_pairs(const struct connector *c)
{
	return c->edit[ROLE_PREFILL] != NULL;
}

extern const struct connector connector_nixl, connector_orchestrated, connector_lmcache,
	connector_sglang, connector_shared_storage, connector_p2p_nccl, connector_mooncake;

/* The decode engine does it all: short prompts, several samples of one hand-over, X-PD-Route. */
extern const struct connector connector_direct;
/* One engine, of whatever role the pool says: embeddings and the like (protocols.md 1.1). */
extern const struct connector connector_one_leg;

const struct connector *connector_find(enum connector_kind kind);

/* How many prompts a member lists; 0: it is missing or one prompt, be it of token ids. */
size_t connector_list_of_prompts(const struct splice *doc, const struct splice_member *m);
/* Of the request; 1 for one. */
size_t connector_prompts(const struct req *req);

/* Shared by connectors (connector.c). */

void connector_set(struct splice_edit *e, enum splice_key k, enum splice_op op, const char *value);
void connector_set_span(struct splice_edit *e, enum splice_key k, enum splice_op op, struct span v);
/* Limits of a prefill leg: one token, not streamed (protocols.md 1.6). */
void connector_limit_prefill(struct pair *pair, struct splice_edit *e);
/* Its first token may not end it: vLLM <= 0.19 and Mooncake hand over only what ended by length (2.3). */
void connector_no_stops(struct splice_edit *e);
/* The client's own body, untouched. */
void connector_no_edit(struct pair *pair, struct splice_edit *e);
/* Takes nothing out of the prefill answer, which must be one.  Returns as `prefilled`. */
enum taken connector_take_answer(struct pair *pair);
/* Takes kv_transfer_params out of the prefill answer, as raw JSON.  Returns as `prefilled`. */
enum taken connector_take_kv(struct pair *pair);
/* No change but that members which choose a peer or a request never pass from a client, and ids are ours. */
void connector_strip(struct pair *pair, struct splice_edit *e);
/* A whole leg's body: strips, replaces ids, one prompt and sample of several, the connector's edit, or
 * the release's. */
void connector_edit(struct pair *pair, enum role role, struct splice_edit *e);
/* What the answer calls itself, where the engine's id will not do: the client's own id, in quotes. */
const char *connector_answer_id(struct req *req);
enum several connector_several_whole(const struct req_pool *pool);
/* Pairs with `fanout: true`, else direct. */
enum several connector_fanout(const struct req_pool *pool);
enum several connector_several_pairs(const struct req_pool *pool);
