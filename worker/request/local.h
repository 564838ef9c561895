/*
 * The paths that the router answers itself: /live, /health, /ready, /v1/models, /version,
 * /metrics.
 *
 * Process: worker; reads the table and the endpoint words, and sends nothing to engines.
 */
#pragma once
#include <stdbool.h>

struct req;

/* Answers a request whose route does not generate.  Returns false if the page is long: it is written in pieces, one in a
 * turn of the loop, and `written` is called after the last one. */
bool local_answer(struct req *req, void (*written)(struct req *req));
/* The client has taken all of the page that was written. */
void local_drained(struct req *req);
/* The request ends, whether its page is complete or not. */
void local_end(struct req *req);
