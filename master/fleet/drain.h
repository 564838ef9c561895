/*
 * Draining by the operator's word: an endpoint gets no new requests, those it has go on to their end.  The
 * word is one store into the endpoint's state (master/fleet/publish.h), never a publication; probes go on and
 * do not bring it back.  It outlives a reload, not a restart nor the endpoint's removal.
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

/*
 * All three take `what`: "ENDPOINT [role=ROLE] [pool=POOL]", an endpoint being its URL or host:port, and
 * write lines of text.  0, or -1: then *out holds one line without its end, the reason.
 */

/* One line for each place the endpoint has, then what follows from it. */
int drain_begin(struct fleet *f, const char *what, struct evbuffer *out);
int drain_end(struct fleet *f, const char *what, struct evbuffer *out);
/* "REQUESTS in flight, WORD": WORD is `draining`, `serving` if one of its places is not drained, or `gone`
 * if it is neither configured nor has requests. */
int drain_look(const struct fleet *f, const char *what, struct evbuffer *out);
