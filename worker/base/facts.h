/*
 * What is known of a request once it is planned, as far as its attempts need it: values, no
 * bytes of the client.  A request has one; an attempt that outlives its request has a copy.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/http/trace.h"
#include "shm/base/conf.h"
#include "worker/base/route.h"

#define REQ_ID_MAX 128 /* longer client ids are replaced */

/* The part of a table_pool that a request keeps: copied out inside the read section. */
struct req_pool {
	uint32_t id;      /* METRIC_NO_POOL before selection */
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

/* Returns false if the array is full. */
static inline bool
tried_add(struct tried *t, uint32_t slot)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->slot[i] == slot)
			return true;
	if (t->n == REQ_TRIED_MAX)
		return false;
	t->slot[t->n++] = slot;
	return true;
}

static inline void
tried_drop(struct tried *t, uint32_t slot)
{
	for (uint32_t i = 0; i < t->n; i++)
		if (t->slot[i] == slot)
			t->slot[i--] = t->slot[--t->n];
}

struct facts {
	enum route route;
	bool stream;
	char id[REQ_ID_MAX + 1];
	struct trace trace; /* the client's, or one that begins here; none: tracing.sample */
	/* the client's tracestate, which the job frees; NULL: none, or its spans are not exported */
	struct trace_state *trace_state;
	char model[256];
	/* /v1/responses: the id of the former response that the request is about; "": of none */
	char response[REQ_ID_MAX + 1];
	/* hash of the URL of the one engine that can serve the request, since it keeps that response; 0: any
	 * engine can (response_id.h) */
	uint64_t holder;
	uint32_t tokens;   /* estimated tokens of the prompt; 0: not yet known */
	uint32_t estimate; /* what the routing threshold is compared with */
	uint32_t samples;  /* `n` */
	uint32_t parts;    /* branches: samples or prompts that are served one by one */
	struct req_pool pool;
	struct tried tried;
};

struct text;

/* What the client asked for. */
struct demand {
	struct facts *facts;
	struct text *text; /* NULL once no more bytes of it can be sent */
};
