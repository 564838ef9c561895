/*
 * The paths that the router answers itself: /live, /health, /ready, /v1/models, /version,
 * /metrics.
 *
 * Process: worker; reads the table and the endpoint words, and sends nothing to engines.
 */
#pragma once

struct req;

/* Writes the whole answer of a request whose route does not generate. */
void local_answer(struct req *req);
