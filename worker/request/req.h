/*
 * The object: what a client asked for, and how much of the answer was sent.  request.c moves it through its states; the
 * other files of this room read it, and fill the fields that name them.
 *
 * Process: worker.
 * Ownership: a request belongs to its worker's list; the client points to it while the client is there.
 * request.c's req_end() is its one end; the loop frees it after the turn.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/http/http.h"
#include "shm/metrics.h"
#include "shm/notes.h"
#include "worker/attempt/job.h"
#include "worker/base/address.h"
#include "worker/base/rounds.h"
#include "worker/request/cors.h"
#include "worker/request/exposition.h"
#include "worker/schedule/plan.h"

struct body_scan;
struct client;
struct evbuffer;
struct local_page;
struct spent_tail;
struct status_viewer;

enum req_state {
	REQ_HEAD,
	REQ_BODY,
	REQ_SCAN, /* a long body is scanned: scan.c */
	REQ_PAGE, /* a long page of the router itself is written: local.c */
	REQ_PLAN,
	REQ_SERVE, /* the attempts run: attempt/ */
	REQ_DONE,
	REQ_NSTATES
};

/* How the end of the answer is marked. */
enum framing { FRAMING_NONE, FRAMING_LENGTH, FRAMING_CHUNKED, FRAMING_CLOSE };

/* How the decode answer is passed on. */
enum relay_kind {
	RELAY_PLAIN,  /* bytes as they come */
	RELAY_SHORT,  /* a short answer waits for its end, so that its status is honest */
	RELAY_STREAM, /* event by event */
};

/* The key that a request came with (key.h). */
struct client_key {
	char name[CONF_KEY_NAME + 1];
	enum door door; /* of an operator, or of a client */
	unsigned char sha256[CONF_SHA256];
	struct conf_key_terms terms;
	struct spent_tail *tail; /* of the answer (spent.h); NULL: its tokens do not count */
};

/* When it was enqueued, and for how long it has waited in the queue; 0: it has not.  In PLAN its waiter knows. */
struct req_queued {
	uint64_t from_us, us;
};

struct req {
	struct job job; /* the part that the attempts see */
	struct worker *w;
	struct client *client; /* NULL once the client has left */
	struct address from;
	enum req_state state;
	uint64_t deadline_ms; /* of the state; 0: none.  PLAN: see plan.waiter */

	/* what the client asked for */
	bool head_only; /* property of the head: the method is HEAD */
	/* whether the connection may serve another request: from the head, cleared by an end
	 * that needs the close */
	bool keep_alive;
	bool http10;              /* property of the head: HTTP/1.0, so no chunked answers */
	bool traced;              /* property of the head: it has a traceparent that can be read */
	struct http_body framing; /* framing of the request's body */
	uint64_t body_from_ms;    /* when the head was read */
	/* bytes of a large body that its head declares and that have not come (limit.h) */
	uint64_t declared;

	enum route_override override;
	int32_t priority_max; /* the most urgent that its key allows */
	uint64_t
		client_deadline_ms; /* of X-Request-Timeout-Ms; 0: none, or CLIENT_DEADLINE_WRONG */

	struct plan *plan; /* PLAN: the request to the scheduler, and its waiter; else NULL */
	struct req_queued queued;

	struct client_key *key; /* NULL: clients needed none */
	struct cors cors;
	enum exposition_form form; /* of /metrics, as the head asks */
	struct body_scan *scan;    /* REQ_SCAN, else NULL */
	/* REQ_PAGE: what is written (local.c), or the stream that is viewed (status_stream.c); else NULL */
	struct local_page *page;
	struct status_viewer *viewer;

	/* the answer to the client (relay.c) */
	enum framing framing_out;
	enum relay_kind relay;
	struct evbuffer *held; /* a half event, or a short answer not sent yet; NULL when empty */

	/* how it went */
	int status; /* status sent to the client; 0: none */
	uint64_t events;
	char trace[REQ_NSTATES + 8]; /* first letters of the states and steps of this request */
	uint64_t t_start_us, t_body_us, t_first_us, t_event_us;
	uint64_t bytes_out, bytes_in;
	uint32_t quota; /* index of its client's quota (shm/quota.h) + 1; 0: none */
	/* Retry-After that is known exactly (limit.h); 0: estimated (retry_after.h) */
	uint32_t retry_after_s;
	uint32_t note;         /* its number in shm/notes.h; 0: none */
	struct note_now noted; /* what it shows */
	struct visit visit;    /* by the tick */
	TAILQ_ENTRY(req) link;
};
