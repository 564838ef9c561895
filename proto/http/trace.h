/*
 * W3C Trace Context (www.w3.org/TR/trace-context): which trace a request belongs to.
 *
 * traceparent: version "00", 32 digits of the trace id, 16 of the parent's span id, 2 of flags.  A later version may
 * have more behind them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/http/http.h"

#define TRACE_ID 32
#define TRACE_PARENT 55 /* "00-" id "-" span "-" flags */
#define TRACE_STATE 256 /* bytes of a tracestate that are kept */

struct trace {
	char id[TRACE_ID + 1]; /* lower-case hex; "": the request has no trace */
	uint8_t flags;
	uint64_t parent; /* the client's span; 0: none, or not known */
	uint64_t span;   /* the request's own, where its spans are exported; 0: they are not */
};

/* A tracestate; "": none. */
struct trace_state {
	char text[TRACE_STATE + 1];
};

#define TRACE_SAMPLED 1u

/* Reads the value of a traceparent.  Returns false, and an empty trace, if it is none. */
bool trace_read(const char *p, size_t n, struct trace *ret);
/* Adds the members of one line of a tracestate, in their order.  A member that does not fit is left out whole, as the
 * standard allows.  Returns false if one is no member: then the trace has no state. */
bool trace_add_state(struct trace_state *t, struct span line);
/* Makes a new trace, from random bits. */
void trace_make(struct trace *ret, uint64_t high, uint64_t low);
/* Writes the value of the traceparent that names `span` as the parent, TRACE_PARENT bytes.  A span of 0 is written as
 * 1: all zeros are no id. */
void trace_write(const struct trace *t, uint64_t span, char ret[TRACE_PARENT]);
