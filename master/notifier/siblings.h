/*
 * Other routers before the same engines: what this one tells them, and what they tell.
 *
 * A message (proto/wire/sibling_message.h) has the prompts that workers have sent since the last one, with their engines,
 * and the load of each engine.  The other routers insert the prompts into their prefix index and add the loads to their
 * own (shm/sibling_load.h).
 *
 * Process: notifier.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct conf;
struct metrics_slab;
struct siblings;
struct seg;

/* Before the sandbox.  NULL: it was logged why; *ret_code is then an exit code. */
struct siblings *siblings_new(struct seg *seg, struct metrics_slab *slab, const struct conf *conf,
	void *ctx, int *ret_code);
void siblings_free(struct siblings **); /* NULL is fine; before the context ends */

/* Adds what is to be polled for siblings_take(); returns how many there are, SIBLINGS_ITEMS at most. */
#define SIBLINGS_ITEMS 16
int siblings_items(const struct siblings *r, zmq_pollitem_t *items);
/* Reads what has come, and sends what there is to send when it is time.  True: there may be more. */
bool siblings_take(struct siblings *r);
/* The longest time until the next call. */
#define SIBLINGS_TURN_MS 10
/* What libzmq may hold of messages, and its descriptors, with so many other routers. */
uint64_t siblings_bytes(const struct conf *conf);
uint64_t siblings_fds(const struct conf *conf);
