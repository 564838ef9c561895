/*
 * KV events of engines: a subscription for each source that the master has published (shm/kv_events.h).
 *
 * Each publisher numbers its messages.  A number that skips some shows a gap: the notifier asks the publisher's replay
 * socket for what is missing.  A number that goes back shows another life of the engine, whose cache is empty.
 *
 * Process: notifier.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct events;
struct metrics_slab;
struct seg;

/* Before the sandbox: no subscription yet.  NULL with errno of libzmq. */
struct events *events_new(struct seg *seg, struct metrics_slab *slab, void *ctx);
void events_free(struct events **); /* NULL is fine; before the context ends */

/* Readable when events_take() may have something to do. */
int events_fd(const struct events *e);
/* A part of what has come.  True: there may be more.  Once every half second it also follows the sources. */
bool events_take(struct events *e);
/* ZMQ sockets for so many endpoints. */
uint32_t events_sockets(uint32_t max_endpoints);
/* The descriptors of these, and what libzmq may hold of what publishers send, where an endpoint has at most so many ranks.
 * 0 ranks: no engine publishes. */
uint64_t events_fds(uint32_t max_endpoints, uint32_t ranks);
uint64_t events_bytes(uint32_t max_endpoints, uint32_t ranks);
