/*
 * A request, from the first byte of its head to the last byte of its answer: the state table in request.c
 * is the heart of the router, read that first.
 *
 * Process: worker.
 * Ownership: a request belongs to its worker's list; the connection points to it while the client is
 * there.  req_end() is its one end; the loop frees it after the turn.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/answer/answer.h"
#include "proto/http/http.h"
#include "proto/json/splice.h"
#include "shm/base/conf.h"
#include "shm/metrics.h"
#include "worker/handshake/connector.h"
#include "worker/base/end_list.h"
#include "worker/attempt/attempt.h"
#include "worker/base/facts.h"
#include "worker/base/text.h"
#include "worker/schedule/plan.h"

struct client;
struct evbuffer;
struct resume;
struct worker;

enum req_state {
	REQ_HEAD,
	REQ_BODY,
	REQ_PLAN,
	REQ_SERVE, /* its attempts run: attempt/ */
	REQ_DONE,
	REQ_NSTATES
};

enum req_event {
	RQ_HEAD,        /* the head has been read */
	RQ_BODY,        /* the body is complete */
	RQ_PLANNED,     /* all endpoints are chosen and reserved */
	RQ_TIMEOUT,     /* the clock of the state */
	RQ_EXPIRED,     /* the time of the whole request is over */
	RQ_CLIENT_GONE, /* closed or reset its connection */
	RQ_REFUSE,      /* we will not do it: req->job.end says why */
	RQ_SHUTDOWN,    /* the drain time is over */
	RQ_N
};

/* How the answer's end is told. */
enum framing { FRAMING_NONE, FRAMING_LENGTH, FRAMING_CHUNKED, FRAMING_CLOSE };

/* How the decode answer is passed on. */
enum relay_kind {
	RELAY_PLAIN,  /* bytes as they come */
	RELAY_SHORT,  /* a short answer waits for its end, so that its status is honest */
	RELAY_STREAM, /* event by event */
};

struct req {
	struct job job; /* what its attempts share */
	struct worker *w;
	struct client *client; /* NULL once the client has gone */
	enum req_state state;
	uint64_t deadline_ms; /* of the state; 0: none.  PLAN: see plan.waiter */

	/* what the client asked for */
	bool head_only;           /* HEAD */
	bool keep_alive;          /* its connection may serve another request */
	bool http10;              /* no chunked answers */
	struct http_body framing; /* of its body */
	uint64_t body_from_ms;    /* its head was read */
	uint64_t declared; /* of a large body: what its head declares and is not here (limit.h) */

	struct plan plan; /* what it asks of the scheduler, and waits for */

	/* the answer to the client (relay.c) */
	enum framing framing_out;
	enum relay_kind relay;
	struct evbuffer *held; /* a half event, or a short answer not sent yet; NULL when empty */

	/* how it went */
	int status; /* sent to the client; 0: none */
	uint64_t events;
	char trace[REQ_NSTATES + 8]; /* first letters of the states and steps it went through */
	uint64_t t_start_us, t_body_us, t_first_us, t_event_us;
	uint64_t bytes_out, bytes_in;
	uint32_t quota;         /* index of its client's quota (shm/quota.h) + 1; 0: none */
	uint32_t retry_after_s; /* told with a refusal of ours; 0: nothing, or the status' own */
	uint64_t walked;        /* the latest walk over the worker's requests that has visited it */
	TAILQ_ENTRY(req) link;
};

struct req *req_new(struct worker *w, struct client *c);
/* After the turn. */
void req_free(struct req **);

void req_event(struct req *req, enum req_event ev);
/* Refuses with one of our own answers, in states that may. */
void req_refuse(struct req *req, enum req_end end, const char *detail);

/* The only writer of req->state. */
void req_enter(struct req *req, enum req_state to);
/* The one end: legs end, reservations go back, one line, one count. */
void req_end(struct req *req, enum req_end end);
/* Answers with that end's error. */
void req_refuse_with(struct req *req, enum req_end end);
/* Nobody is there to be answered, or no word of ours would reach him. */
void req_drop(struct req *req);
/* Notes a step in the log's `states`. */
void req_trace(struct req *req, char letter);
/* A byte of the answer goes to the client: what the first one took is noted. */
void req_first_byte(struct req *req);

/* The client has parsed the head: takes over what it keeps of it. */
void req_head(struct req *req, const struct http_head *h);
/* Body bytes; `done` with the last. */
void req_body(struct req *req, const char *p, size_t n);
/* Every tick: raises RQ_TIMEOUT where a clock has run out. */
void req_tick(struct req *req, uint64_t now_ms);

const char *req_state_name(enum req_state s);
/* False for an empty cell of the state table: a unit test walks it. */
bool req_handles(enum req_state s, enum req_event ev);
const char *end_word(enum req_end e);
const char *end_message(enum req_end e);
