/*
 * A pair: one P leg, one D leg, and the hand-over between them.  A request has one; more where it asks for
 * several samples or prompts and the hand-over describes one (protocols.md 1.2, 2.6, 5.1).
 *
 * Process: worker.
 * Ownership: a request's array, made in PLAN and freed with it.  Connectors read and fill pairs; exchange.c
 * moves them on.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/answer/sse.h"
#include "shm/base/mem.h"
#include "shm/flags.h"
#include "worker/handshake/connector.h"
#include "worker/net/leg.h"

struct made;
struct req;

#define PAIR_ID_MAX 400 /* P2pNccl's holds two addresses */

struct pair {
	struct req *req;
	uint32_t index;   /* among the request's pairs; the index of its choice in the answer */
	uint32_t attempt; /* counts: the legs of an earlier one are not meant any more */
	char id[PAIR_ID_MAX + 1];      /* X-Request-Id of its legs; never the same twice */
	char id_json[PAIR_ID_MAX + 3]; /* the same, in quotes */
	struct leg leg[LEG_PAIR_N];
	enum leg_starts starts[ROLE_N]; /* the connector's, unless it knows better for this pair */
	int32_t rank[ROLE_N];           /* data-parallel rank asked for; -1: none */
	struct span prompt;             /* its element of a list of prompts, else NULL */
	int64_t seed;                   /* with `seeded`: instead of the client's */
	bool seeded;

	struct question question; /* under way, while leg[LEG_ASK] runs */
	struct endpoint *asking;  /* told that somebody asks it; NULL: not by us */
	uint32_t questions;       /* asked so far */
	bool asked;               /* nothing is left to ask */
	uint64_t
		ask_deadline_ms; /* what is not known by then has not been told; 0: no limit but the leg's */
	bool begun;              /* its legs may run */
	bool spoke;              /* the client has something of its answer */
	bool prefilled;          /* the prefill engine has answered, and its answer was taken */
	bool redone;             /* prefill was done again */
	bool handed;             /* it holds KV until a decode engine fetches it */
	bool failed;             /* counted as an attempt that has */
	bool both_silent; /* its decode engine was passed by for its prefill engine's sake */
	bool used_up;     /* a decode engine was told of that, and has failed: never told again */
	bool released;    /* the client has gone: what is sent only frees that KV */
	bool early;       /* decode's answer came before prefill's, and is kept until then */
	bool retold;      /* decode refused what it was told before that */
	bool kv_ready;    /* its notices have come, or are not waited for any more */
	bool decoded;     /* nothing more comes from its decode leg */
	uint64_t prefilled_ms;
	uint64_t kv_deadline_ms; /* 0: not waiting for notices */

	/* what decode is given of the prefill answer: raw JSON inside leg[P].answer or `made` */
	struct span kv;
	struct made *made; /* texts its bodies refer to: pair_text() */
	bool armed;
	struct flag_ref flag;
	struct span transfer; /* LMCache: the id that notices come with */
	uint64_t room;        /* SGLang's bootstrap room */
	/* what an `ask` answered, for the connector that asked */
	struct span tokens; /* of the prompt, as a JSON list */
	uint64_t ntokens, max_context;
	int64_t first_token; /* -1: not told */

	struct sse sse;      /* of its decode answer */
	struct membuf event; /* a half event, where answers are rewritten */
	bool behind;         /* whole ones, too: they wait for the client to read */
};

static inline struct leg *
pair_prefill(struct pair *pair)
{
	return &pair->leg[LEG_PREFILL];
}

static inline struct leg *
pair_decode(struct pair *pair)
{
	return &pair->leg[LEG_DECODE];
}

/* The leg whose engine another leg of the pair is sent for: a question is asked for the sake of one that comes later. */
static inline struct leg *
pair_asked_for(const struct leg *leg)
{
	const enum leg_kind at =
		leg->kind == LEG_ASK ? (enum leg_kind)leg->pair->question.role : leg->kind;

	return &leg->pair->leg[at];
}

/* Of the endpoint that a leg of one role was chosen: on paths for one engine the pool says whose that is. */
enum role pair_role(const struct leg *leg);

/* Makes `n` pairs, their legs ready for endpoints; frees those of an earlier try to plan. */
void pair_make(struct req *req, uint32_t n);
/* Ends and frees them all. */
void pair_free(struct req *req);
/* Ends it and frees all it holds. */
void pair_fini(struct pair *pair);
/* Makes it ready for new endpoints, another attempt: what was left of the last one is gone. */
void pair_renew(struct pair *pair);
/* One beside the request's, to choose endpoints for; the caller's. */
struct pair *pair_scratch(struct req *req);
void pair_scratch_free(struct pair **pair);
/* It has its endpoints: what this attempt is known by.  END_OK, or why it cannot be. */
enum req_end pair_begin(struct pair *pair);
/* Takes over the endpoint that was chosen for a leg of another pair, and its reservation. */
void pair_adopt(struct pair *pair, enum role role, struct pair *from);
/* Takes over all of it, legs that run included; `from` is left as one that has been freed. */
void pair_move(struct pair *to, struct pair *from);
/* Frees what only the engines' requests were made of. */
void pair_drop_texts(struct pair *pair);

/* A text that lives until the request's bodies are dropped, for edits to refer to. */
struct span pair_text(struct pair *pair, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A fresh id, the client's with a random end: old engines find the KV by it, so it must never come twice. */
void pair_new_id(struct pair *pair);
/* The same, but `id` as it is, of at most PAIR_ID_MAX bytes. */
void pair_set_id(struct pair *pair, const char *id, size_t n);

/* Which data-parallel rank of each engine serves it, where they have several: one after the other. */
void pair_next_ranks(struct pair *pair);
void pair_next_rank(struct pair *pair, enum role role);
/* Waits for `notices` under a flag of the worker's; the id on the wire is in ret_id.  False: all flags are in
 * use. */
bool pair_arm(struct pair *pair, uint8_t notices, char ret_id[FLAG_ID_LEN]);
void pair_disarm(struct pair *pair);

/*
 * Starts what starts at this event.  Events may come at once: the request may be over afterwards.
 */
void pair_start(struct pair *pair, enum leg_starts when);
/* Asks what is to be asked; `asked` once nothing is left. */
void pair_ask(struct pair *pair);
/* The question is over, whatever came. */
void pair_ask_over(struct pair *pair);
/* Its decode answer waits for the prefill answer, whose part of the log probabilities comes first. */
bool pair_waits_for_prefill(const struct pair *pair);
/* For a leg that is asked once more: of an endpoint chosen before, whose limit has been looked at. */
void pair_reserve_again(struct pair *pair, struct leg *leg);
/* Places that another attempt has taken over (plan.h) are counted again: this one goes on after all. */
void pair_keep_places(struct pair *pair);
/* A hand-over that is too old is not used: all from the start, with a fresh id. */
void pair_prefill_again(struct pair *pair);
/* Tells engines that wait for each other to forget it (LEAVES_ROOM). */
void pair_abort(struct pair *pair);
