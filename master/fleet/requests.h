/*
 * `pdctl request ID` and `pdctl requests`: where requests in flight are, and how the last ones ended (shm/notes.h).
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

/*
 * Both append the answer and return 0, or -1: then *out holds the reason, one line without its end.
 * `what` of requests_list(): "[json] [slower=MS] [within=MS]"; with `slower` also requests that have ended, of those that took
 * at least so long; with `within` also those that have ended within this time.
 * `what` of requests_find(): "[json] ID".
 */
int requests_list(struct fleet *f, const char *what, struct evbuffer *out);
int requests_find(struct fleet *f, const char *what, struct evbuffer *out);
