/*
 * The KV side of one attempt: which engines, under which id, with which parameters.  Connectors read and
 * fill it; the attempt that it is part of sends what they make of it.
 *
 * Process: worker.
 * Ownership: part of its attempt.  Engines point into the attempt's reservations, answers into its
 * legs.  Texts made here live until transfer_drop_texts().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/flags.h"
#include "worker/base/facts.h"
#include "worker/base/text.h"
#include "worker/handshake/connector.h"

struct endpoint;
struct worker;

#define TRANSFER_ID_MAX 400 /* P2pNccl's holds two addresses */

/* What an engine has answered so far. */
struct engine_answer {
	const char *text;
	size_t len;
	bool sse;
};

/* The messages by which a prefill engine tells that its KV has arrived (LMCache). */
enum notices { NOTICES_NONE, NOTICES_AWAITED, NOTICES_READY };

struct transfer {
	struct worker *w;
	struct demand of;
	const struct connector *connector;
	enum leg_starts
		starts[ROLE_N]; /* the connector's, unless it knows better for this attempt */
	struct endpoint *engine[ROLE_N]; /* NULL: none of this role */
	int32_t rank[ROLE_N];            /* data-parallel rank asked for; -1: none */
	char *id, *id_json;              /* X-Request-Id of the legs, plain and in quotes */
	struct span prompt; /* one element of the client's list of prompts; NULL: all of it */
	int64_t seed;       /* with `seeded`: in place of the client's */
	bool seeded;
	bool release_only; /* what is sent from now on only frees KV: nobody reads answers */
	struct span stream_options; /* in place of the client's; NULL: as they are */

	struct engine_answer prefill_answer, decode_answer, lookup_answer;
	const char *detail; /* why a function refused: static text for the log, or NULL */

	/* the KV parameters that decode is sent: raw JSON inside the prefill answer or in `made` */
	struct span kv;
	struct made_text *made;

	enum notices notices;
	struct flag_ref flag;  /* with NOTICES_AWAITED */
	struct span notice_id; /* LMCache: the id that the notices carry */
	uint64_t room;         /* SGLang: the bootstrap room */

	/* from lookups */
	uint32_t lookups;   /* sent so far */
	struct span tokens; /* of the prompt, as a JSON list */
	uint64_t ntokens, max_context;
	int64_t first_token; /* of the prefill answer; -1: not told */
};

void transfer_init(
	struct transfer *t, struct worker *w, const struct connector *c, struct demand of);
/* Frees the flag, the texts and the id. */
void transfer_fini(struct transfer *t);
/* Frees what only the engines' requests were made of. */
void transfer_drop_texts(struct transfer *t);

/* A text that lives until transfer_drop_texts(), for edits to refer to. */
struct span transfer_text(struct transfer *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* A fresh id, the client's with a random end: engines find KV by it, so no id is used twice. */
void transfer_new_id(struct transfer *t);
/* The same, but `id` as it is, of at most TRANSFER_ID_MAX bytes. */
void transfer_set_id(struct transfer *t, const char *id, size_t n);
/* The data-parallel rank of an engine that serves this transfer: one after the other. */
void transfer_next_rank(struct transfer *t, enum role role);
/* Waits for `count` notices under a flag of the worker's; the id on the wire is in ret_id.  False: all flags
 * are in use. */
bool transfer_await_notices(struct transfer *t, uint8_t count, char ret_id[FLAG_ID_LEN]);
/* Gives the flag back; `ready`: the notices have come, or are not waited for any more. */
void transfer_drop_flag(struct transfer *t, bool ready);
/* Whether the notices have come, even if nobody has been woken for them yet. */
bool transfer_kv_arrived(const struct transfer *t);
/* Takes nothing out of the prefill answer, which must be one.  Returns as connector.prefilled. */
enum handoff transfer_take_answer(struct transfer *t);
/* Takes kv_transfer_params out of the prefill answer, as raw JSON.  Returns as connector.prefilled. */
enum handoff transfer_take_kv(struct transfer *t);
