/*
 * The spans of an attempt's legs, in a trace that is exported (shm/spans.h): when a leg was sent, to whom, how it ended.
 *
 * A span begins when the leg's header lines are written, with the id that the engine is sent as its parent.  It is put
 * into the ring when the leg has failed, when the leg is sent again, or with the attempt.
 *
 * Process: worker.
 * Ownership: the attempt owns its leg_spans.  All functions but leg_spans_new() take NULL: a trace that is not exported.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/spans.h"
#include "worker/attempt/leg_kind.h"

struct facts;
struct leg_spans;
struct trace;
struct trace_state;
struct worker;

/* A leg of a trace that is exported, when its lines are written. */
struct leg_sent {
	const char *url, *request_id;
	uint32_t tries; /* of the request before this one */
	bool releases;  /* the client has its answer or has left: the leg only frees KV */
};

/* Why a leg failed: static texts. */
struct leg_failure {
	const char *type; /* one word */
	const char *detail;
	int status; /* of its answer; 0: none */
};

/* Begins the record of a child of the request's span, with an id of its own. */
void leg_span_child(const struct trace *trace, const struct trace_state *state, enum span_name name,
	struct span_record *ret);

/* Returns NULL if the request's trace is not exported. */
struct leg_spans *leg_spans_new(struct worker *w, const struct facts *facts);
void leg_spans_free(struct leg_spans **s);

/* A leg is sent.  Returns the id of its span; 0 with NULL. */
uint64_t leg_span_begin(struct leg_spans *s, enum leg_kind kind, const struct leg_sent *leg);
/* The first byte of the leg's answer is here. */
void leg_span_first(struct leg_spans *s, enum leg_kind kind);
/* The leg is over.  The first call says when: what is learned of the leg later does not move its end. */
void leg_span_over(struct leg_spans *s, enum leg_kind kind, int status);
/* The leg has failed: puts its span into the ring. */
void leg_span_failed(struct leg_spans *s, enum leg_kind kind, const struct leg_failure *why);
/* The attempt continues a stream of which the client has a part: the pause begins. */
void leg_spans_resume(struct leg_spans *s);
/* The attempt ends: puts what is left into the ring.  A leg that is not over is broken off. */
void leg_spans_end(struct leg_spans *s);
