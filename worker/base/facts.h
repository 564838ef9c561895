/*
 * What is known of a request once it is planned, as far as its attempts need it: values, no
 * bytes of the client.  A request has one; an attempt that outlives its request has a copy.
 *
 * Process: worker.
 * Ownership: the facts own their texts, trace and `tried`, and hold a reference to the settings of their pool.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/http/trace.h"
#include "shm/base/conf.h"
#include "worker/base/route.h"

#define REQ_ID_MAX 128    /* longer client ids are replaced */
#define REQ_MODEL_MAX 255 /* bytes of a model's name; longer ones are refused */

/* The part of a table_pool that requests keep: copied once a table, inside the read section.  Constant, but for `refs`. */
struct req_pool {
	uint32_t refs;    /* facts, and the worker while it is the latest one */
	uint32_t id;      /* METRIC_NO_POOL before selection */
	uint64_t version; /* of the table */
	const char *name; /* in the segment: stays */
	enum connector_kind connector;
	uint32_t max_context; /* table_pool.max_context */
	struct conf_handshake shake;
	struct conf_timeouts timeouts;
	struct conf_rescue rescue;
	struct conf_ejection ejection;
	struct conf_queue queue;
};

#define REQ_TRIED_MAX 24 /* CONF_RETRIES_MAX engines of each role, and the first two */

/* Endpoint slots that are not chosen again for a request. */
struct tried {
	uint32_t slot[REQ_TRIED_MAX], n;
};

struct facts {
	enum route route;
	bool stream;
	char *id; /* this text and the next two are never NULL: facts_set() */
	/* never NULL: the client's, or one that begins here; without an id (tracing.sample): none */
	const struct trace *trace;
	/* the client's tracestate, which the job frees; NULL: none, or its spans are not exported */
	struct trace_state *trace_state;
	char *model;
	/* /v1/responses: the id of the former response that the request is about; "": of none */
	char *response;
	/* hash of the URL of the one engine that can serve the request, since it keeps that response; 0: any
	 * engine can (response_id.h) */
	uint64_t holder;
	uint32_t tokens;       /* estimated tokens of the prompt; 0: not yet known */
	uint32_t estimate;     /* what the routing threshold is compared with */
	uint32_t samples;      /* `n` */
	uint32_t parts;        /* branches: samples or prompts that are served one by one */
	struct req_pool *pool; /* never NULL */
	struct tried *tried;   /* NULL: none */
};

struct req_pool *req_pool_ref(struct req_pool *pool);
void req_pool_unref(struct req_pool **pool); /* NULL is fine */

/* Sets the texts, the trace and the pool of facts that are otherwise 0. */
void facts_init(struct facts *f);
void facts_fini(struct facts *f);
/* Returns a copy without the tracestate; the caller ends it with facts_fini() and free(). */
struct facts *facts_copy(const struct facts *f);
/* Replaces one of the texts by n bytes. */
void facts_set(char **text, const char *p, size_t n);
/* Takes a copy. */
void facts_set_trace(struct facts *f, const struct trace *t);
/* Takes a reference to the settings of the pool that serves the request. */
void facts_take_pool(struct facts *f, struct req_pool *pool);

/* Returns false if REQ_TRIED_MAX slots are there. */
bool tried_add(struct facts *f, uint32_t slot);
void tried_drop(struct facts *f, uint32_t slot);
uint32_t tried_count(const struct facts *f);
/* Returns a copy, for tried_set(). */
struct tried tried_of(const struct facts *f);
void tried_set(struct facts *f, const struct tried *t);

struct text;

/* What the client asked for. */
struct demand {
	struct facts *facts;
	struct text *text; /* NULL once no more bytes of it can be sent */
};
