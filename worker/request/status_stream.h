/*
 * The stream of the status page: one sample a second (status_sample.h) for all viewers of this worker.  Without viewers no
 * sample is made, and nothing is kept.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct req;
struct status_stream;
struct worker;

#define STATUS_VIEWERS 16 /* of all workers of an instance */

/* Returns false if the request gets the stream, until `over` is called: the worker drains, or the request's key is no longer good.
 * True: it is answered, because there are as many viewers as may be, or its method is HEAD. */
bool status_stream_answer(struct req *req, void (*over)(struct req *req));
/* The request ends, whether its stream is over or not. */
void status_stream_leave(struct req *req);
/* What happens once a second: the next sample begins. */
void status_stream_tick(struct status_stream *st);
void status_stream_free(struct status_stream **);
