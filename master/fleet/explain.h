/*
 * `pdctl explain MODEL`: which engines of each role could be chosen now for a request, with what they are compared by, and
 * why the others could not.  Nothing is sent, and nothing changes.  It reads the table and the words that workers read.
 *
 * Process: master.
 */
#pragma once
#include <stddef.h>

struct evbuffer;
struct fleet;

/*
 * `what`: "[json] MODEL".  `prompt`: n bytes of a prompt, or of a request's body that has one; NULL: none.  Appends the
 * answer and returns 0, or -1: then *out holds the reason, one line without its end.
 */
int explain(struct fleet *f, const char *what, const char *prompt, size_t n, struct evbuffer *out);
