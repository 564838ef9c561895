/*
 * Other routers before the same engines: what they call each endpoint (shm/siblings.h), and what comes from them.
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

/* After a publication: the endpoints of the current table, and no others, are known to other routers. */
void siblings_publish(const struct fleet *f);
/* A line for each router of siblings.routers; nothing without them. */
void siblings_print(const struct fleet *f, struct evbuffer *out);
/* The same as a list. */
void siblings_json(const struct fleet *f, struct evbuffer *out);
