/*
 * `pdctl drain`: an endpoint gets no new requests, and its requests in flight continue.  The endpoint is
 * drained when none is left and its engine holds no KV that a decode engine has yet to fetch.  Draining is one
 * store into the endpoint's state word (state.h), never a publication.  Probes continue and do not bring
 * the endpoint back.  A drain outlives a reload, and with a state_file a restart (keep.h), but not the
 * endpoint's removal from the configuration.  The answers come when the state_file is written.
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

/*
 * `what`: "ENDPOINT [role=ROLE] [pool=POOL]"; ENDPOINT is a URL or host:port.  All three append lines of
 * text.  They return 0, or -1: then *out holds the reason, one line without its end.
 */

/* One line for each pool and role of the endpoint, then the consequences. */
int drain_begin(struct fleet *f, const char *what, struct evbuffer *out);
/* One line for each: what has ended, a drain, an ejection, or that it was busy; and its state now. */
int drain_end(struct fleet *f, const char *what, struct evbuffer *out);
/* "REQUESTS in flight, COUNT KV outstanding, WORD": WORD is `draining`, `serving` if the endpoint is not
 * drained in one of its pools and roles, or `gone` if it is neither configured nor has requests or KV. */
int drain_poll(const struct fleet *f, const char *what, struct evbuffer *out);
