/*
 * The masters of two instances talk over a SOCK_SEQPACKET pair: one line of text per packet, a word and its value.
 * A line that the reader does not know is ignored, since the other instance may be of another version.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

struct event_base;
struct talk;

#define TALK_BYTES 1024

struct talk_hooks {
	/* `word` is the first word of the line, `rest` what follows it, or "". */
	void (*line)(void *arg, const char *word, const char *rest);
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
void talk_say(const struct talk *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, before there is a talk. */
void talk_say_on(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
