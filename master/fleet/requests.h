/*
 * `pdctl request ID` and `pdctl requests`: where requests in flight are, and how the last ones ended (shm/notes.h).
 *
 * There may be a million of them, so the answer is made in parts: each looks at some thousand notes or writes some
 * hundred lines, and the master does other work in between.  A request that ends meanwhile may be there twice: in flight, and
 * ended.  Memory: 16 bytes for each request in flight that is shown, at most REQUESTS_RUNNING_MAX.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

struct evbuffer;
struct fleet;
struct requests;

#define REQUESTS_RUNNING_MAX 32768

/*
 * `what`, if `find`: "[json] ID"; else "[json] [slower=MS] [within=MS]"; with `slower` also requests that have ended, of those
 * that took at least so long; with `within` also those that have ended within this time.
 * NULL: then *out holds the reason, one line without its end.
 */
struct requests *requests_new(struct fleet *f, bool find, const char *what, struct evbuffer *out);
/* Appends the next part.  1: call it again; 0: that was all; -1: there is none with this ID, and *out holds the reason as above. */
int requests_step(struct requests *, struct evbuffer *out);
void requests_free(struct requests **); /* NULL is fine */
