/*
 * Reading a request: its head and body become facts and text (worker/base/facts.h, text.h).
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "worker/base/end_list.h"

#define INTAKE_PIECE (128u << 10) /* bytes of one body in one turn of the loop */

struct req;

/* The result of reading some bytes of a client. */
struct intake {
	size_t used;        /* how many of the bytes were used; 0: more bytes are needed */
	enum req_end end;   /* END_OK, or why the request is refused */
	const char *detail; /* of a refusal: static text, or NULL */
	bool whole;         /* the head, or the body, is complete */
};

/* Gives the request an id of the router's own. */
void intake_make_id(struct req *req);
/* Reads bytes of the head.  *scanned: how many of them an earlier call has searched for the
 * head's end. */
struct intake intake_head(struct req *req, const char *p, size_t n, size_t *scanned);
/* Returns the memory that is allocated for all bytes of the body which still come, at most INTAKE_PIECE of it; no length:
 * there is none.  intake_body() takes bytes that were read there without copying them. */
struct iovec intake_room(const struct req *req);
/* Reads bytes of the body. */
struct intake intake_body(struct req *req, const char *p, size_t n);
/* The body is complete: parses the members that the router needs.  Returns NULL, or why the
 * request cannot be served. */
const char *intake_read(struct req *req);
