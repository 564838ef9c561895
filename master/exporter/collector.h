/*
 * The HTTP client of one collector: one POST at a time, over a connection that is kept between them.
 *
 *   IDLE --collector_post--> HEAD --head--> BODY --end--> IDLE
 *     |                                                    ^
 *     +------> NO_CONNECTION --the loop reports it---------+
 *
 * A kept connection that breaks before a byte of the answer was stale: the request is sent once more, on a new one.  One
 * clock of COLLECTOR_MS runs over all of it.  Any failure ends in IDLE, with the connection closed.
 *
 * Process: exporter.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "proto/http/http.h"

#define COLLECTOR_MS 10000
#define COLLECTOR_ANSWER_MAX                                                                       \
	(16u << 10) /* bytes of an answer that are kept; the rest is read and dropped */

struct collector;
struct event_base;

struct collector_answer {
	int status;             /* 0: there is no answer, for the reason `error` */
	const char *error;      /* static text */
	uint64_t retry_after_s; /* 0: not said */
	struct span body;
};

/* The answer to collector_post(), which may be called again from here. */
typedef void collector_fn(void *arg, const struct collector_answer *a);

/* `url`: as checked by the configuration: an address, no name.  The caller frees it with collector_free(). */
struct collector *collector_new(
	struct event_base *base, const char *url, collector_fn *fn, void *arg);
void collector_free(struct collector **c);

/* Sends n bytes of JSON, which stay until the answer.  None may be on its way. */
void collector_post(struct collector *c, const char *body, size_t n);
