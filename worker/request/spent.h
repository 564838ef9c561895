/*
 * The tokens that a request with a key has used: what its engines report at the end of the answer.  Where they
 * report none, the router's estimate of the prompt, and one token for each event of a stream or for 4 bytes of an
 * answer in one piece: so a usage that a client moves away from the answer's end saves it nothing.
 *
 * Process: worker.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct req;

#define SPENT_TAIL 512 /* bytes before an answer's end that are searched: a usage and [DONE] */
#define SPENT_BYTES_PER_TOKEN 4

/* The last bytes of an answer. */
struct spent_tail {
	uint64_t bytes; /* of the whole answer */
	size_t n;       /* in `text` */
	char text[SPENT_TAIL];
};

struct spent {
	uint64_t prompt, completion;
};

/* At the head: the tokens of the request count if its key has a limit of tokens, and its path spends any. */
void spent_begin(struct req *req);
/* The next bytes of the answer. */
void spent_note(struct req *req, const char *p, size_t n);
/* Of a request that has ended; nothing if it was refused. */
struct spent spent_of(const struct req *req);
