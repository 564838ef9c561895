/*
 * One upstream exchange: a request to one engine and its answer.
 *
 * Process: worker.
 * Ownership: embedded in a pair (req.h); borrows one connection from the pool while it is active, and
 * holds one reservation of its endpoint from selection until leg_end(), and a reference until leg_fini().
 *
 *   IDLE -> CONNECT -> SEND -> HEAD -> BODY -> DONE
 *
 * What happened is told to the request as an event: RQ_FIRST (head and first body byte are here, or the
 * answer's end if it has no body), RQ_ANSWER (the whole answer), RQ_LEG_FAIL (fail says why).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/http.h"
#include "shm/base/conf.h"

struct pair;
struct upconn;
struct upstream;
struct worker;

enum leg_state { LEG_IDLE, LEG_CONNECT, LEG_SEND, LEG_HEAD, LEG_BODY, LEG_DONE, LEG_NSTATES };
enum leg_fail {
	LEG_FAIL_NONE,
	LEG_FAIL_CONNECT,   /* refused, unreachable */
	LEG_FAIL_BROKEN,    /* closed or reset before the answer's end */
	LEG_FAIL_GARBAGE,   /* what came is not HTTP, or not framed right */
	LEG_FAIL_TOO_LARGE, /* a kept answer above max_answer */
};

struct leg {
	struct pair *pair;
	enum role role;
	enum leg_state state;
	enum leg_fail fail;
	bool reserved;   /* a reservation at endpoint slot `ep` is held */
	uint32_t tokens; /* counted there with the reservation */
	bool on_wire;    /* counted as sent there */
	bool resent;
	bool got_bytes;  /* a byte of an answer has come */
	bool keep;       /* the answer is collected in `answer`, not relayed */
	bool releases;   /* went out in its release form: max_tokens 1, for nobody to read */
	bool hung_up;    /* our side is closed: leg_hang_up() */
	bool held_read;  /* reading stopped while the client is slow */
	bool first_told; /* RQ_FIRST has been raised */
	struct upstream *up;
	struct upconn *uc;
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

/* Sends the request; the endpoint has been set by selection.  Failure comes as RQ_LEG_FAIL, possibly
 * before this returns. */
void leg_start(struct leg *leg);
/* Stops the exchange: gives back or closes the connection, the reservation, the endpoint.  Idempotent.
 * What was kept (answer, head) stays until leg_fini(). */
void leg_end(struct leg *leg);
void leg_fini(struct leg *leg);
/* Undoes a selection: reservation and endpoint of a leg that has not been started. */
void leg_give_back(struct leg *leg);
/*
 * Closes our side only.  An engine takes that for the client's leaving and aborts (uvicorn closes in
 * turn), but an answer that it had already written still arrives, and with it the word that it holds KV.
 */
void leg_hang_up(struct leg *leg);
/* Stops and resumes reading the answer while the client is slow. */
void leg_hold(struct leg *leg, bool hold);
/* True from the connect until the answer's end. */
bool leg_active(const struct leg *leg);
/* True once the whole request has been handed to the kernel. */
bool leg_sent(const struct leg *leg);
/* The state's clock ran out: true if that was while connecting. */
bool leg_connecting(const struct leg *leg);

/* For pool.c: the borrowed connection's events. */
void leg_on_read(struct leg *leg);
void leg_on_drained(struct leg *leg);
void leg_on_error(struct leg *leg);

const char *leg_state_name(enum leg_state s);
/* False if the state's row has an empty cell: a unit test walks the table. */
bool leg_handles(enum leg_state s);
