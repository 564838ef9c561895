/*
 * The KV side of one attempt: its engines, its id, its parameters.  Connectors read and fill
 * it; the attempt sends the requests that they make from it.
 *
 * Process: worker.
 * Ownership: part of its attempt.  Engines point into the attempt's reservations, answers
 * into its legs.  Texts made here live until transfer_drop_texts().
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

/* The messages by which a prefill engine reports that its KV has arrived (LMCache). */
enum notices { NOTICES_NONE, NOTICES_AWAITED, NOTICES_READY };

struct transfer {
	struct worker *w;
	struct demand of;
	const struct connector *connector;
	enum leg_starts
		/* the connector's values, unless it sets others for this attempt */
		starts[ROLE_N];
	struct endpoint *engine[ROLE_N]; /* NULL: none of this role */
	int32_t rank[ROLE_N];            /* requested data-parallel rank; -1: none */
	char *id, *id_json;              /* X-Request-Id of the legs, plain and in quotes */
	struct span prompt; /* one element of the client's list of prompts; NULL: all of it */
	int64_t seed;       /* with `seeded`: replaces the client's seed */
	bool seeded;
	/* fact: requests sent from now on only free KV, and their answers are dropped */
	bool release_only;
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
	int64_t first_token; /* of the prefill answer; -1: unknown */
};

void transfer_init(
	struct transfer *t, struct worker *w, const struct connector *c, struct demand of);
/* Frees the flag, the texts and the id. */
void transfer_fini(struct transfer *t);
/* Frees the texts that only the engines' requests used. */
void transfer_drop_texts(struct transfer *t);

/* Returns a formatted text that lives until transfer_drop_texts(), for edits to refer to. */
struct span transfer_text(struct transfer *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Sets a fresh id, the client's with a random end: engines find KV by it, so no id is used
 * twice. */
void transfer_new_id(struct transfer *t);
/* Sets the id to `id`, unchanged, of at most TRANSFER_ID_MAX bytes. */
void transfer_set_id(struct transfer *t, const char *id, size_t n);
/* Sets the next data-parallel rank of the engine, in turn. */
void transfer_next_rank(struct transfer *t, enum role role);
/* Waits for `count` notices under a flag of the worker's; ret_id gets the id on the wire.
 * Returns false if all flags are in use. */
bool transfer_await_notices(struct transfer *t, uint8_t count, char ret_id[FLAG_ID_LEN]);
/* Gives the flag back; `ready`: the notices have come, or are no longer waited for. */
void transfer_drop_flag(struct transfer *t, bool ready);
/* Returns true if the notices have come, even before the worker was woken for them. */
bool transfer_kv_arrived(const struct transfer *t);
/* Checks that there is a prefill answer, and takes nothing from it.  Returns as
 * connector.prefilled. */
enum handoff transfer_take_answer(struct transfer *t);
/* Takes kv_transfer_params from the prefill answer, as raw JSON.  Returns as
 * connector.prefilled. */
enum handoff transfer_take_kv(struct transfer *t);
/* Returns the id by which the prefill engine names itself in the KV parameters, raw; empty if there is none. */
struct span transfer_engine_id(const struct transfer *t);
