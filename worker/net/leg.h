/*
 * One upstream exchange: an HTTP request to one engine and its answer.
 *
 * Process: worker.
 * Ownership: part of its owner (an attempt, or a background request).  The owner's `ops`
 * supply the request and receive the events.  The endpoint is the owner's.  A leg uses one
 * connection while it is active.
 *
 * IDLE -> CONNECT -> SEND -> HEAD -> BODY -> DONE
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/http/http.h"
#include "proto/json/splice.h"

struct endpoint;
struct leg;
struct upconn;
struct worker;

/* LEG_DONE: the exchange is over, answered or failed (`fail`). */
enum leg_state { LEG_IDLE, LEG_CONNECT, LEG_SEND, LEG_HEAD, LEG_BODY, LEG_DONE, LEG_NSTATES };
enum leg_fail {
	LEG_FAIL_NONE,
	LEG_FAIL_CONNECT, /* refused, unreachable */
	LEG_FAIL_DOWN,    /* probes had found the engine down before the request was sent */
	/* the router has no descriptor (or port) left: not the engine's fault */
	LEG_FAIL_SHORTAGE,
	/* TLS has failed, and this worker's keys of tls are not those in force: not the engine's fault */
	LEG_FAIL_OLD_KEYS,
	/* a reused connection was reset, and the request must not be sent twice */
	LEG_FAIL_STALE,
	LEG_FAIL_BROKEN,    /* closed or reset before the answer's end */
	LEG_FAIL_GARBAGE,   /* the bytes received are not HTTP, or the framing is wrong */
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

/* The connection that the request uses. */
enum leg_route {
	LEG_ANY_CONN,   /* an idle one, or a new one */
	LEG_FRESH_CONN, /* a new one: idle ones may all be dead */
	LEG_RESENT,     /* a new one, after the idle one turned out to be dead */
};

/* How the answer is read. */
enum leg_reading {
	LEG_READING,
	LEG_READ_HELD, /* reading is paused: the client is slow */
	LEG_HUNG_UP,   /* the router's side is closed: leg_hang_up() */
};

enum leg_event {
	LEG_EV_FIRST, /* the answer begins: head and first body byte, or its end if it has no body */
	LEG_EV_KEPT,  /* more of a kept answer is here */
	LEG_EV_ANSWER, /* the whole answer is here */
	LEG_EV_FAIL,   /* leg->fail has the cause */
	LEG_EV_DOWN,   /* probes have found the engine down: at each tick */
	LEG_EV_GONE,   /* ... and it has been down for timeouts.down_grace */
	LEG_EV_N
};

/* prefix 128 + path + query 2000 (ROUTE_QUERY_MAX) + authority 262 + id 512 + words, and the engine's
 * key 4096 */
#define LEG_LINES 8448

/* A request as its owner fills it.  All but `lines` must live until the answer has begun. */
struct leg_message {
	char lines[LEG_LINES]; /* request line and the router's own headers, each with CRLF */
	size_t nlines;
	struct span headers; /* the client's lines, each with CRLF */
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	size_t nsegs;
	size_t body_len; /* of all segments */
	bool once;       /* the request must not reach an engine twice */
};

struct leg_ops {
	/* Fills the message.  Returns false if the request must not be sent any more; the owner
	 * has then ended or rewound the leg. */
	bool (*compose)(struct leg *, struct leg_message *);
	/* May be called before leg_start() returns. */
	void (*event)(struct leg *, enum leg_event);
	/* Payload of an answer that is not kept; `done` with its last byte. */
	void (*payload)(struct leg *, const struct span *pieces, size_t n, bool done);
	/* Returns true if a stream that its engine closes is complete according to its last
	 * events. */
	bool (*complete)(const struct leg *);
};

struct leg {
	const struct leg_ops *ops;
	void *owner;
	struct worker *w;
	struct endpoint *ep;   /* the owner's; must stay valid while the leg is active */
	TAILQ_ENTRY(leg) link; /* in ep->legs, while the leg is active */
	struct upconn *uc;
	enum leg_state state;
	enum leg_fail fail;
	const char *why; /* sock_tls_why() of the connection that failed; or NULL */
	enum leg_progress progress;
	enum leg_route route;
	enum leg_reading reading;
	/* mode, set by the owner: the whole answer is stored in `answer`; else payload() gets
	 * it */
	bool keep;
	/* property of the exchange: of an answer below 300 no line of the head is wanted */
	bool body_alone;
	/* fact about the message that was sent: it must not reach an engine twice */
	bool once;
	bool wait_each; /* property of the exchange: the time limit begins again with every byte */
	bool reprieved; /* fact: leg_expired() has given an answer that has begun one more tick */
	/* time limits: of connecting, of the answer (from sending to its end, or between its bytes) */
	uint64_t connect_ms, wait_ms;
	uint64_t first_ms;    /* in place of wait_ms until LEG_EV_FIRST; 0: wait_ms */
	uint64_t deadline_ms; /* 0: no clock runs */
	/* when the present time limit began: the sending, a byte of the answer, leg_wait_anew() */
	uint64_t since_ms;
	/* in clock_us(): since when the connection is being made; how long that took, 0: it was there */
	uint64_t connect_from_us, connect_us;

	/* the answer */
	int status;
	bool keep_alive; /* fact from the answer's head: the connection is reusable afterwards */
	bool sse;        /* fact from the answer's head: text/event-stream */
	uint64_t length; /* with HTTP_BODY_LENGTH in `body` */
	struct http_body body;
	/* end-to-end header lines for the client, "Name: value\r\n"...; NULL: none were wanted */
	char *head;
	char *partial; /* an incomplete head, between reads */
	uint32_t head_len, partial_len;
	/* the first piece of the body's bytes that are handed to the owner now; NULL: none are */
	const struct span *piece;
	char *answer; /* with keep: the body */
	size_t answer_len, answer_cap;
};

static inline bool
leg_length_known(const struct leg *leg)
{
	return leg->body.framing == HTTP_BODY_LENGTH;
}

/* Sends the request to leg->ep.  A failure is reported as LEG_EV_FAIL, possibly before this
 * function returns. */
void leg_start(struct leg *leg);
/* Ends the leg with LEG_EV_FAIL.  Its owner calls it, in compose(). */
void leg_fail(struct leg *leg, enum leg_fail why);
/* Stops the exchange: gives back or closes the connection.  Idempotent.  The stored answer and
 * head stay until leg_fini(). */
void leg_end(struct leg *leg);
void leg_fini(struct leg *leg);
/* Frees the stored answer. */
void leg_forget_answer(struct leg *leg);
/* Frees the stored head lines. */
void leg_forget_head(struct leg *leg);
/* Ends the leg and sets it to IDLE, so that it can be started again. */
void leg_rewind(struct leg *leg);
/* Returns the leg's connection, which the caller takes over and closes later; NULL if there is
 * none. */
struct upconn *leg_take_conn(struct leg *leg);
/*
 * Closes the router's side only.  An engine treats that as the client's close and aborts
 * (uvicorn closes in turn).  An answer that the engine had already written still arrives, and
 * shows that the engine holds KV.
 */
void leg_hang_up(struct leg *leg);
/* Stops and resumes reading an answer that has begun while the client is slow; no effect on any
 * other leg. */
void leg_hold(struct leg *leg, bool hold);
/* Begins the time limit again, although no byte has come. */
void leg_wait_anew(struct leg *leg);
/* Sets the deadline to `ms` from now, until the time limit begins again. */
void leg_wait_at_most(struct leg *leg, uint64_t ms);
/* Moves the deadline to `until_ms` (clock_ms) if it is later. */
void leg_wait_until(struct leg *leg, uint64_t until_ms);
/* Returns true from the connect until the answer's end. */
bool leg_active(const struct leg *leg);
/* Returns true once the whole request has been handed to the kernel. */
bool leg_sent(const struct leg *leg);
/*
 * Returns true if the time limit is over, after reading all available bytes: an answer that
 * arrives at the same moment wins (so the leg and its owner may be over).  An answer that has
 * only begun has until the next tick.
 */
bool leg_expired(struct leg *leg, uint64_t now_ms);
/* Reads the available bytes, as the loop would.  Returns false if there were none. */
bool leg_look(struct leg *leg);
/* Tells the legs of endpoints that are down (LEG_EV_DOWN, and LEG_EV_GONE when it is due): once a tick. */
void leg_tell_down(struct worker *w, uint64_t now_ms);
/* Returns true while the connection is being made. */
bool leg_connecting(const struct leg *leg);

/* Returns text for the log that lives as long as the worker: how a leg failed; NULL if it has not. */
const char *leg_fail_text(const struct leg *leg);
/* Returns false if the state's row has an empty cell: a unit test checks the table. */
bool leg_handles(enum leg_state s);
