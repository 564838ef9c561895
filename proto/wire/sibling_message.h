/*
 * What routers tell each other: which engine got which prompt, and how much each has in flight where.
 *
 * A message, all numbers little-endian:
 *
 *	"pdrx" | version:8 | 0:24 | sender:64 | life:64 | number:64 | sent, microseconds of the wall clock:64 |
 *	loads:32 | notes:32
 *	a load: engine:64 | requests:32 | prompt tokens:32
 *	a note: engine:64 | tokens to compute:32 | digests:32 | a digest:64 ...
 *	MAC:256
 *
 * - sender: drawn by the router's process that sends; a router knows its own messages by it
 * - life: grows with each start of a sender; number: 1 more with each message of a life.  A receiver takes no message twice
 * - engine: a hash of its URL, role and the name of its pool, the same in all routers
 * - a digest: of a cut of the prompt (shm/base/prefix_key.h)
 * - the MAC is HMAC-SHA256 of all bytes before it (proto/tls/mac.h)
 *
 * A message without loads and notes says that the sender lives.  A sender that has the secret may still send anything that
 * can be read here: counts are bounded by the message's size alone.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIBLING_MESSAGE_HEAD 48
#define SIBLING_MESSAGE_LOAD 16
#define SIBLING_MESSAGE_NOTE 16
#define SIBLING_MESSAGE_MAC 32
#define SIBLING_MESSAGE_MAX 65536 /* bytes of a message with its MAC */
#define SIBLING_MESSAGE_DIGESTS 64

struct sibling_message {
	uint64_t sender, life, number, sent_us;
	uint32_t nloads, nnotes;
	/* what follows is of the reader */
	const unsigned char *at, *end;
	uint32_t loads_left, notes_left;
};

struct wire_load {
	uint64_t engine;
	uint32_t requests, tokens;
};

struct wire_note {
	uint64_t engine;
	uint32_t computes;
	uint32_t n;
	uint64_t digest[SIBLING_MESSAGE_DIGESTS];
};

/* --- reading */

/* The head of a message whose MAC is right, `len` without the MAC.  False: it cannot be read, not all of it. */
bool sibling_message_read(const void *bytes, size_t len, struct sibling_message *ret);
/* The next one; first all loads, then all notes.  False: there is none. */
bool sibling_message_load(struct sibling_message *m, struct wire_load *ret);
bool sibling_message_note(struct sibling_message *m, struct wire_note *ret);

/* --- writing: all loads, then all notes, then the head */

struct sibling_writer {
	unsigned char *to; /* [SIBLING_MESSAGE_MAX] */
	size_t len;
	uint32_t nloads, nnotes;
};

void sibling_write_begin(struct sibling_writer *w, unsigned char *to);
/* False: there is no room. */
bool sibling_write_load(struct sibling_writer *w, const struct wire_load *l);
bool sibling_write_note(struct sibling_writer *w, const struct wire_note *n);
/* Returns the bytes of the message without its MAC, which follows there. */
size_t sibling_write_end(struct sibling_writer *w, const struct sibling_message *head);
