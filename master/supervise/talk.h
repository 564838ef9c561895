/*
 * The masters of two instances talk over a SOCK_SEQPACKET pair: one line of text per packet, a word and its value.
 * A line that the reader does not know is ignored, and what follows a value that it knows, since the other instance may
 * be of another version.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct event_base;
struct talk;

#define TALK_BYTES 1024

enum talk_word {
	/* the newer instance says: */
	TALK_ERROR,    /* `error TEXT`: the last error in its log */
	TALK_DRAIN_MS, /* `drain_ms N`: its upgrade_drain_timeout, before `ready` */
	TALK_READY,
	TALK_COMMIT,    /* its trial shall end */
	TALK_REPORT,    /* `left` is wanted */
	TALK_END,       /* the older one must end within its drain_timeout */
	TALK_DRAIN,     /* `drain NUMBER ENDPOINT`: what an operator wants (drain.h) */
	TALK_UNDRAIN,   /* the same */
	TALK_IN_FLIGHT, /* the same */
	TALK_WEIGHT,    /* the same (weight.h), without an answer */
	/* the older one: */
	TALK_ANNOUNCED, /* `announced ENGINE` (announced.h) */
	TALK_TAKE,      /* it accepts no longer */
	TALK_FINAL,     /* it will not serve again */
	TALK_LEFT,      /* `left N`: its requests, once a second */
	TALK_LEFT_AT,   /* `left-at NUMBER REQUESTS KV`: the answer to what an operator wants */
	/* both: this instance stops, and the other one has to */
	TALK_STOP,
	TALK_STOP_NOW,
	TALK_NWORDS
};

/* `value` is what follows the word, or "". */
typedef void talk_fn(void *arg, const char *value);

struct talk_hooks {
	talk_fn *const *on; /* [TALK_NWORDS]; NULL: the word is ignored */
	/* The other master has ended, or has closed its socket.  Called once, from an event of the loop. */
	void (*end)(void *arg);
	void *arg;
};

/* Takes fd.  The hooks may free the talk. */
struct talk *talk_new(struct event_base *base, int fd, const struct talk_hooks *hooks);
void talk_free(struct talk **); /* NULL is fine */
/* Until the end of the pause another instance reads this socket, which both have. */
void talk_pause(struct talk *t, bool pause);
int talk_fd(const struct talk *t);
/* A line that finds no room is lost: the reader has not read for hundreds of lines. */
void talk_say(const struct talk *t, enum talk_word word);
void talk_say_value(const struct talk *t, enum talk_word word, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The same, before there is a talk. */
void talk_say_value_on(int fd, enum talk_word word, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Reads a number at *value, which is then behind it and a space.  Returns false if there is none of at most max. */
bool talk_number(const char **value, uint64_t max, uint64_t *ret);
