/*
 * One upstream exchange: an HTTP request to one engine and its answer.
 *
 * Process: worker.
 * Ownership: part of its owner (an attempt, or a background request), who says by `ops` what is sent and
 * hears what happened.  The endpoint is the owner's.  A leg uses one connection while it is active.
 *
 *   IDLE -> CONNECT -> SEND -> HEAD -> BODY -> DONE
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/http/http.h"
#include "proto/json/splice.h"

struct endpoint;
struct leg;
struct upconn;
struct worker;

enum leg_state { LEG_IDLE, LEG_CONNECT, LEG_SEND, LEG_HEAD, LEG_BODY, LEG_DONE, LEG_NSTATES };
enum leg_fail {
	LEG_FAIL_NONE,
	LEG_FAIL_CONNECT,  /* refused, unreachable */
	LEG_FAIL_SHORTAGE, /* we have no descriptor (or port) for it: not the engine's fault */
	LEG_FAIL_STALE,    /* a kept connection was reset, and the request must not be sent twice */
	LEG_FAIL_BROKEN,   /* closed or reset before the answer's end */
	LEG_FAIL_GARBAGE,  /* what came is not HTTP, or not framed right */
	LEG_FAIL_TOO_LARGE, /* a kept answer above max_answer */
	LEG_FAIL_N
};

/* How far the exchange has come. */
enum leg_progress {
	LEG_UNREACHED, /* no byte of the request has gone out */
	LEG_REACHED,   /* bytes of the request have gone to the engine */
	LEG_ANSWERING, /* a byte of an answer has come */
	LEG_BEGUN,     /* LEG_EV_FIRST has been raised: head and first body byte are here */
};

/* Over which connection the request goes. */
enum leg_route {
	LEG_ANY_CONN,   /* a kept one, or a new one */
	LEG_FRESH_CONN, /* no kept one: they may all be dead */
	LEG_RESENT,     /* a new one, since the kept one turned out to be dead */
};

/* How the answer is read. */
enum leg_reading {
	LEG_READING,
	LEG_READ_HELD, /* not at the moment: the client is slow */
	LEG_HUNG_UP,   /* our side is closed: leg_hang_up() */
};

enum leg_event {
	LEG_EV_FIRST, /* the answer begins: head and first body byte, or its end if it has no body */
	LEG_EV_KEPT,  /* more of a kept answer is here */
	LEG_EV_ANSWER, /* the whole answer is here */
	LEG_EV_FAIL,   /* leg->fail says how */
	LEG_EV_N
};

/* prefix 128 + path + query 2000 (ROUTE_QUERY_MAX) + authority 262 + id 512 + words */
#define LEG_LINES 4096

/* A request as its owner lays it out.  All but `lines` must live until the answer has begun. */
struct leg_message {
	char lines[LEG_LINES]; /* request line and our own headers, each with CRLF */
	size_t nlines;
	struct span headers; /* the client's lines, each with CRLF */
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	size_t nsegs;
	size_t body_len; /* of all segments */
	bool once;       /* it must not reach an engine twice */
};

struct leg_ops {
	/* False: it must not be sent any more; the owner has ended or rewound the leg. */
	bool (*compose)(struct leg *, struct leg_message *);
	/* May be called before leg_start() returns. */
	void (*event)(struct leg *, enum leg_event);
	/* Payload of an answer that is not kept; `done` with its last byte. */
	void (*payload)(struct leg *, const struct span *pieces, size_t n, bool done);
	/* Whether a stream that its engine closes has said that it is complete. */
	bool (*complete)(const struct leg *);
};

struct leg {
	const struct leg_ops *ops;
	void *owner;
	struct worker *w;
	struct endpoint *ep; /* the owner's; must stay while the leg is active */
	struct upconn *uc;
	enum leg_state state;
	enum leg_fail fail;
	enum leg_progress progress;
	enum leg_route route;
	enum leg_reading reading;
	bool keep;      /* the owner wants the answer whole, in `answer`; else payload() has it */
	bool once;      /* of the message that was sent: it must not reach an engine twice */
	bool wait_each; /* the clock starts again with every byte */
	bool reprieved; /* leg_expired() has given an answer that has begun another tick */
	/* time limits: of connecting, of the answer (from sending to its end, or between its bytes) */
	uint64_t connect_ms, wait_ms;
	uint64_t first_ms;    /* in place of wait_ms until LEG_EV_FIRST; 0: wait_ms */
	uint64_t deadline_ms; /* 0: no clock runs */

	/* the answer */
	int status;
	bool keep_alive; /* the connection can be used again after it */
	bool sse;        /* text/event-stream */
	uint64_t length; /* with HTTP_BODY_LENGTH in `body` */
	struct http_body body;
	/* end-to-end header lines to hand to the client, "Name: value\r\n"... */
	char *head;
	uint32_t head_len;
	char *partial; /* an incomplete head, between reads */
	uint32_t partial_len;
	char *answer; /* with keep: the body */
	size_t answer_len, answer_cap;
};

static inline bool
leg_length_known(const struct leg *leg)
{
	return leg->body.framing == HTTP_BODY_LENGTH;
}

/* Sends the request to leg->ep.  Failure comes as LEG_EV_FAIL, possibly before this returns. */
void leg_start(struct leg *leg);
/* Stops the exchange: gives back or closes the connection.  Idempotent.  What was kept (answer, head) stays
 * until leg_fini(). */
void leg_end(struct leg *leg);
void leg_fini(struct leg *leg);
/* Frees what was kept of the answer. */
void leg_forget_answer(struct leg *leg);
/* Ends it, and back to IDLE: to be started again. */
void leg_rewind(struct leg *leg);
/* The request was taken over by somebody who closes its connection later; NULL: there is none. */
struct upconn *leg_take_conn(struct leg *leg);
/*
 * Closes our side only.  An engine takes that for the client's leaving and aborts (uvicorn closes in
 * turn), but an answer that it had already written still arrives, and with it the word that it holds KV.
 */
void leg_hang_up(struct leg *leg);
/* Stops and resumes reading an answer that has begun while the client is slow; nothing for any other leg. */
void leg_hold(struct leg *leg, bool hold);
/* Its clock starts again, without a byte having come. */
void leg_wait_anew(struct leg *leg);
/* It is given so long from now, until its clock starts again. */
void leg_wait_at_most(struct leg *leg, uint64_t ms);
/* True from the connect until the answer's end. */
bool leg_active(const struct leg *leg);
/* True once the whole request has been handed to the kernel. */
bool leg_sent(const struct leg *leg);
/*
 * Whether its clock has run out, once all that is there has been taken: an answer that comes at the same
 * moment wins (so the leg may be over, and its owner with it).  One that has only begun has until the next
 * tick.
 */
bool leg_expired(struct leg *leg, uint64_t now_ms);
/* Takes what is there, as the loop would; false: nothing was. */
bool leg_look(struct leg *leg);
/* True while the connection is being made. */
bool leg_connecting(const struct leg *leg);

/* For the log: how a leg failed; NULL if it has not. */
const char *leg_fail_text(enum leg_fail fail);
/* False if the state's row has an empty cell: a unit test walks the table. */
bool leg_handles(enum leg_state s);
