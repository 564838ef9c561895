/*
 * A request, from the first byte of its head to the last byte of its answer: the state table in req.c
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
#include "shm/queue.h"
#include "worker/handshake/connector.h"
#include "worker/base/end_list.h"
#include "worker/net/leg.h"
#include "worker/attempt/pair.h"
#include "worker/base/facts.h"
#include "worker/base/text.h"

struct client;
struct evbuffer;
struct resume;
struct worker;

enum req_state {
	REQ_HEAD,
	REQ_BODY,
	REQ_PLAN,
	REQ_ASK,
	REQ_EXCHANGE,
	REQ_RELAY,
	REQ_RELEASE,
	REQ_DONE,
	REQ_NSTATES
};

enum req_event {
	RQ_HEAD,        /* the head has been read */
	RQ_BODY,        /* the body is complete */
	RQ_PLANNED,     /* all endpoints are chosen and reserved */
	RQ_ASKED,       /* what the pairs had to ask is known */
	RQ_FIRST,       /* a leg's answer begins: its head and first body byte are here */
	RQ_MORE,        /* more of an answer that is kept */
	RQ_ANSWER,      /* a leg's whole answer is here */
	RQ_KV_READY,    /* a pair's notices have come; `leg` is its decode leg */
	RQ_LEG_FAIL,    /* leg->fail says how */
	RQ_TIMEOUT,     /* the clock of the state (leg NULL) or of a leg */
	RQ_EXPIRED,     /* the time of the whole request is over */
	RQ_CLIENT_GONE, /* closed or reset its connection */
	RQ_REFUSE,      /* we will not do it: req->end says why */
	RQ_SHUTDOWN,    /* the drain time is over */
	RQ_N
};

#define REQ_TRIED_MAX 24 /* of CONF_RETRIES_MAX engines of each role, and the first two */

/* What the client wants of the threshold, where the operator lets it say. */
enum req_wish { WISH_NONE, WISH_DIRECT, WISH_DISAGGREGATED, WISH_UNKNOWN };

struct req {
	struct worker *w;
	struct client *client; /* NULL once the client has gone */
	enum req_state state;
	uint64_t deadline_ms; /* of the state; 0: none */

	/* what the client asked for */
	struct facts facts;
	struct text *text;        /* NULL once no engine is to be sent anything more */
	bool head_only;           /* HEAD */
	bool keep_alive;          /* its connection may serve another request */
	bool http10;              /* no chunked answers */
	char *query;              /* of the target, or NULL */
	char *key;                /* the Authorization line, once the text is dropped; or NULL */
	struct http_body framing; /* of its body */
	uint64_t body_from_ms;    /* its head was read */
	uint64_t declared; /* of a large body: what its head declares and is not here (limit.h) */
	enum req_wish wish;
	uint64_t bound_ms; /* what it may take, as the client says; 0: nothing said */
	bool bound_wrong;  /* it said that wrongly */

	/* how it is served */
	const struct connector *connector;
	const char
		*direct; /* why the decode engine does it alone, for the log; NULL: it does not */
	struct pair *pairs;
	uint32_t npairs;
	struct answer
		*answer; /* rewrites what the engines say; NULL: it is passed on as it comes */
	struct answer_how how; /* it was made for */
	bool takes_prefill;    /* the prefill answer is part of that */
	bool needs_prefill;    /* and decode's words wait for it */

	/* when engines fail (retry.c) */
	uint32_t tried[REQ_TRIED_MAX], ntried; /* endpoint slots that are not chosen again */
	uint32_t tries;                        /* attempts after the first */
	uint32_t moves;          /* of those, from a busy engine on to one with room: no retries */
	bool alone;              /* no prefill engine was up */
	bool fell_back;          /* to the decode engine alone */
	struct resume *resume;   /* follows the stream, for others to go on with it; or NULL */
	const char *not_resumed; /* why they could not; NULL: they could, or nobody asked */
	bool resume_refused;     /* ... which has mattered */
	bool resumed;            /* they have */
	enum metric_counter released_as; /* why KV is let go */
	bool apart; /* nobody's: it lets go of what an attempt has left (release.c) */

	/* waiting for a place (wait.c) */
	bool waits;      /* in `place`, and in the worker's list */
	bool hopeless;   /* it needs more places at once than there are */
	uint32_t called; /* for places in these roles, while it tries */
	struct queue_ref place;
	TAILQ_ENTRY(req) wait_link;
	uint64_t queue_key;
	int32_t priority;
	uint32_t lacks; /* bit per role that was full at the last try */

	/* the answer to the client (relay.c) */
	bool head_sent;
	bool chunked;
	bool relay_sse;
	bool hold_short;       /* a short answer waits for its end, so that its status is honest */
	bool half_event;       /* the start of an event has gone out without its end */
	struct evbuffer *held; /* a half event, or a short answer not sent yet; NULL when empty */

	/* how it went */
	enum req_end end;
	int status;         /* sent to the client; 0: none */
	const char *detail; /* static text for the log and the error body, or NULL */
	uint64_t events;
	char trace[REQ_NSTATES + 8];     /* first letters of the states it went through */
	uint64_t t_queued_us, queued_us; /* when it began to wait for a place; how long it did */
	uint64_t t_start_us, t_body_us, t_prefill_us, t_prefilled_us, t_first_us, t_event_us;
	uint64_t bytes_out, bytes_in;
	uint32_t quota;         /* index of its client's quota (shm/quota.h) + 1; 0: none */
	uint32_t retry_after_s; /* told with a refusal of ours; 0: nothing, or the status' own */
	uint64_t walked;        /* the latest walk over the worker's requests that has visited it */
	TAILQ_ENTRY(req) link;
};

struct req *req_new(struct worker *w, struct client *c);
/* After the turn. */
void req_free(struct req **);

/* A request without a client, in the state RELEASE, for one pair of `of`: with copies of what its bodies are made
 * of. */
struct req *req_apart(const struct req *of);

/* The leg's endpoint has failed, and is not chosen again for this request.  False: as many have as are noted. */
bool req_tried(struct leg *leg);
/* It may be chosen again after all. */
void req_not_tried(const struct leg *leg);

/* Raises an event; `leg` is the leg it concerns, or NULL. */
void req_event(struct req *req, enum req_event ev, struct leg *leg);
/* Refuses with one of our own answers, in states that may. */
void req_refuse(struct req *req, enum req_end end, const char *detail);

/* For exchange.c. */

/* The only writer of req->state. */
void req_enter(struct req *req, enum req_state to);
/* The one end: legs end, reservations go back, one line, one count. */
void req_end(struct req *req, enum req_end end);
/* Answers with that end's error. */
void req_refuse_with(struct req *req, enum req_end end);
/* Nobody is there to be answered, or no word of ours would reach him. */
void req_drop(struct req *req);
/* Frees the client's bytes and the hand-over: the engines have their requests. */
void req_drop_bytes(struct req *req);
/* The client's Authorization line, for what is sent in its name; "" if there is none.  The caller's. */
char *req_copy_key(const struct req *req);
/* A byte of the answer goes to the client: what the first one took is noted. */
void req_first_byte(struct req *req);

/* Nothing can be chosen now, `why`, but soon perhaps: stays in PLAN, asked again each tick until most_ms
 * after the first time. */
void req_wait(struct req *req, enum req_end why, uint64_t most_ms);

/* The client has parsed the head: takes over what it keeps of it. */
void req_head(struct req *req, const struct http_head *h);
/* Body bytes; `done` with the last. */
void req_body(struct req *req, const char *p, size_t n);
/* The notices of a transfer that a pair waits for have come. */
void req_kv_ready(struct pair *pair);
/* Every tick: raises RQ_TIMEOUT where a clock has run out. */
void req_tick(struct req *req, uint64_t now_ms);

const char *req_state_name(enum req_state s);
/* False for an empty cell of the state table: a unit test walks it. */
bool req_handles(enum req_state s, enum req_event ev);
const char *end_word(enum req_end e);
const char *end_message(enum req_end e);
