/*
 * The side channel between engines: questions and answers as lines over TCP.  Each question has a
 * number of the asker's choosing, so an answer may take as long as it likes and overtake others.
 *
 *	<number> <VERB> <word> ...  ->  <number> <answer>
 *	<number> FORGET                 nobody waits for that answer any more; has none itself
 *
 * Words are percent-encoded.  Verbs belong to the hand-shakes (shake.h): side.c knows none.
 */
#pragma once
#include <stdint.h>

struct addrinfo;
struct buf;
struct side;
struct side_op;
struct side_q;
struct sim;

/* `answer` is decoded; "UNREACHABLE" and "TIMEOUT" (--fetch-timeout) are ours. */
typedef void side_done(void *arg, const char *answer);

struct side *side_new(struct sim *sim, int listen_fd); /* takes the socket */
void side_free(struct side **s);
/* Questions are taken there too, and side_port() tells them apart; takes the socket. */
void side_listen(struct side *s, int listen_fd, int port);
void side_word(struct buf *line, const char *word); /* percent-encoded, with a space behind it */
/* done() follows, never from inside; until then side_forget() makes the answer go nowhere.  `done`
 * may be NULL.  NULL: the host has no address; done() will not follow. */
struct side_op *side_ask(struct side *s, const char *host, int port, const struct buf *line,
	side_done *done, void *arg);
void side_forget(struct side_op *op);

/* The end of a question: sim->shake->asked() got it, and owes one answer. */
void side_answer(struct side_q *q, const char *answer);
int side_port(const struct side_q *q); /* where it came in */
/* gone(arg) is called, instead of an answer being owed, when the asker has forgotten it or left. */
void side_on_gone(struct side_q *q, void (*gone)(void *arg), void *arg);

struct addrinfo *side_resolve(const char *host, int port); /* for freeaddrinfo(); NULL: unknown */
