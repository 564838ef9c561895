/*
 * A request, from the first byte of its head to the last byte of its answer: the state table in request.c
 * is the heart of the router, read that first.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/base/end_list.h"
#include "worker/request/req.h"

struct client_ops;

enum req_event {
	RQ_HEAD,        /* the head has been read */
	RQ_BODY,        /* the body is complete */
	RQ_SCANNED,     /* a long body has been scanned */
	RQ_WRITTEN,     /* the last piece of a page of the router is written */
	RQ_PLANNED,     /* all endpoints are chosen and reserved */
	RQ_TIMEOUT,     /* the clock of the state */
	RQ_EXPIRED,     /* the time of the whole request is over */
	RQ_CLIENT_GONE, /* the client closed or reset its connection */
	RQ_REFUSE,      /* the router refuses the request: req->job.end has the reason */
	RQ_SHUTDOWN,    /* the drain time is over */
	RQ_N
};

/* What a client reports to its request: for client_new(). */
extern const struct client_ops request_client_ops;

/* Frees a request that ended: after the turn.  Sets the pointer to NULL. */
void req_free(struct req **);

void req_event(struct req *req, enum req_event ev);

/* The tick visits a request: checks its time limits, and says when the next visit is. */
void req_tick(struct visit *v, uint64_t now_ms);

const char *req_state_name(enum req_state s);
/* Returns false for an empty cell of the state table: a unit test checks all cells. */
bool req_handles(enum req_state s, enum req_event ev);
