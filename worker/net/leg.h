/*
 * One upstream exchange: a request to one engine and its answer.
 *
 * Process: worker.
 * Ownership: embedded in its owner (a pair's legs: req.h; errand.h), who says by `ops` what is sent and
 * hears what happened.  Borrows one connection from the connection pool while it is active; may hold one reservation
 * of its endpoint, from selection until leg_end(), and holds a reference until leg_fini().
 *
 *   IDLE -> CONNECT -> SEND -> HEAD -> BODY -> DONE
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/http/http.h"
#include "proto/json/splice.h"
#include "shm/base/conf.h"

struct leg;
struct pair;
struct upconn;
struct endpoint;
struct worker;

/* What a leg is for.  The first two are roles: enum role converts. */
enum leg_kind { LEG_PREFILL = ROLE_PREFILL, LEG_DECODE = ROLE_DECODE, LEG_ASK, LEG_ERRAND };
#define LEG_PAIR_N (LEG_ASK + 1) /* a pair's */

enum leg_state { LEG_IDLE, LEG_CONNECT, LEG_SEND, LEG_HEAD, LEG_BODY, LEG_DONE, LEG_NSTATES };
enum leg_fail {
	LEG_FAIL_NONE,
	LEG_FAIL_CONNECT,   /* refused, unreachable */
	LEG_FAIL_SHORT,     /* we have no descriptor (or port) for it: not the engine's fault */
	LEG_FAIL_BROKEN,    /* closed or reset before the answer's end */
	LEG_FAIL_GARBAGE,   /* what came is not HTTP, or not framed right */
	LEG_FAIL_TOO_LARGE, /* a kept answer above max_answer */
	LEG_FAIL_N
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
};

struct leg_ops {
	/* False: it must not be sent any more; the owner has ended or rewound the leg. */
	bool (*compose)(struct leg *, struct leg_message *);
	/* May be called before leg_start() returns. */
	void (*event)(struct leg *, enum leg_event);
	/* Payload of an answer that is not kept; `done` with its last byte. */
	void (*payload)(struct leg *, const struct span *pieces, size_t n, bool done);
};

struct leg {
	const struct leg_ops *ops;
	struct worker *w;
	struct pair *pair; /* NULL: an errand's */
	enum leg_kind kind;
	enum leg_state state;
	enum leg_fail fail;
	bool reserved;      /* a reservation at endpoint slot `ep` is held */
	uint32_t tokens;    /* counted there with the reservation */
	struct leg *lender; /* of an attempt that this one is to replace; NULL: none */
	bool borrowed;      /* the reservation is the lender's */
	uint64_t
		trial; /* the one request that tries an ejected endpoint (shm/eject.h); 0: it is not */
	uint64_t busy; /* what it found at a busy endpoint (shm/busy.h); 0: not busy */
	bool recorded; /* its outcome is (worker/schedule/outcome.h) */
	bool on_wire;  /* counted as sent there */
	bool fresh;    /* to be sent on no kept connection */
	bool resent;
	bool reached;    /* bytes of its request have gone to the engine */
	bool got_bytes;  /* a byte of an answer has come */
	bool keep;       /* the answer is collected in `answer`, not handed on */
	bool releases;   /* went out in its release form: max_tokens 1, for nobody to read */
	bool tells_kv;   /* its request has a hand-over in it, which is good for one fetch */
	bool stale;      /* it failed by that: the connection had gone stale */
	bool hung_up;    /* our side is closed: leg_hang_up() */
	bool held_read;  /* reading stopped while the client is slow */
	bool first_told; /* LEG_EV_FIRST has been raised */
	bool said_done;  /* set by the owner: the stream has said that it is complete */
	struct endpoint *ep;
	struct upconn *uc;
	/* time limits: of connecting, of the answer (from sending to its end, or between its bytes) */
	uint64_t connect_ms, wait_ms;
	uint64_t first_ms;    /* in place of wait_ms until LEG_EV_FIRST; 0: wait_ms */
	bool wait_each;       /* the clock starts again with every byte */
	bool reprieved;       /* leg_expired() has given it another tick */
	uint64_t deadline_ms; /* 0: no clock runs */

	/* the answer */
	int status;
	bool keep_alive;
	bool sse; /* text/event-stream */
	bool length_known;
	uint64_t length;
	struct http_body body;
	/* end-to-end header lines to hand to the client, "Name: value\r\n"... */
	char *head;
	uint32_t head_len;
	char *partial; /* an incomplete head, between reads */
	uint32_t partial_len;
	char *answer; /* with keep: the body */
	size_t answer_len, answer_cap;
};

/* Sends the request; the endpoint has been set by selection.  Failure comes as LEG_EV_FAIL, possibly
 * before this returns. */
void leg_start(struct leg *leg);
/* Stops the exchange: gives back or closes the connection, the reservation, the endpoint.  Idempotent.
 * What was kept (answer, head) stays until leg_fini(). */
void leg_end(struct leg *leg);
void leg_fini(struct leg *leg);
/* Frees what was kept of the answer. */
void leg_forget_answer(struct leg *leg);
/* Back to IDLE, to be started again at the same endpoint; a reservation that is held stays. */
void leg_rewind(struct leg *leg);
/* A leg that changes its owner, the bytes of its struct having been copied: its connection follows. */
void leg_moved(struct leg *leg, struct pair *to);
/* Takes over its lender's place; the lender gets it back when this leg gives it up, unless pair_adopt() keeps it. */
void leg_borrow(struct leg *leg);
/* Undoes a selection: reservation and endpoint of a leg that has not been started. */
void leg_give_back(struct leg *leg);
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
/* The state's clock ran out: true if that was while connecting. */
bool leg_connecting(const struct leg *leg);

/* For connpool.c: the borrowed connection's events. */
void leg_on_read(struct leg *leg);
void leg_on_drained(struct leg *leg);
void leg_on_error(struct leg *leg);

const char *leg_state_name(enum leg_state s);
/* False if the state's row has an empty cell: a unit test walks the table. */
bool leg_handles(enum leg_state s);
