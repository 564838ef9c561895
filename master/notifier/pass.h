/*
 * Notices between instances of pdrouter: after an upgrade the newest instance has the ZMQ address.  Its notifier passes
 * the notices that belong to requests of older instances to their notifiers.  A packet has one batch: request ids, a
 * line each.
 *
 * Process: notifier.  Never blocks; what finds no room is lost and counted.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heritage;
struct pass;

/* `batch`: the most ids between two calls of pass_send(). */
struct pass *pass_new(const struct heritage *h, size_t batch);
void pass_free(struct pass **); /* NULL is fine */

/* An id as flag_id_format() makes it.  False if no such older instance is known, or its batch is full. */
bool pass_add(struct pass *p, uint32_t instance, const char *id);
/* Sends what was added.  Returns how many notices are lost. */
size_t pass_send(struct pass *p);

enum pass_got {
	PASS_NOTHING,
	PASS_PACKET,
	PASS_END, /* all newer instances have ended: the descriptor stays readable for ever */
};
/* One packet of the newer instance, each id to fn. */
enum pass_got pass_receive(int fd, void (*fn)(void *arg, const char *id), void *arg);
