/*
 * Faults, switched on by POST /sim/fault: one row of a table for each kind.
 *
 * A fault meets a request at one of three points: before it is looked at (fault_begin), when its
 * whole answer is about to be written (fault_on_reply), or between two events of a stream
 * (fault_due, fault_cut).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/engine/json.h"

struct conn;
struct fault;
struct sim;

const char *fault_add(struct sim *sim, struct jv spec); /* NULL, or what is wrong with it */
void fault_clear(struct sim *sim);
unsigned fault_armed(struct sim *sim);

bool fault_match(struct conn *c, bool is_gen); /* takes one of its count; sets c->fault */
void fault_begin(struct conn *c, void (*go_on)(struct conn *));
bool fault_on_reply(struct conn *c, const char *p, size_t head, size_t len); /* true: dealt with */
bool fault_due(const struct conn *c, uint64_t events); /* this stream ends here */
bool fault_is_stall(const struct conn *c); /* ... by standing still; else call fault_cut() */
void fault_cut(struct conn *c);
bool fault_null_kv(const struct conn *c);
int fault_refusal(const struct conn *c); /* the status; 0: it is not refused */
bool fault_is(const struct conn *c, const char *kind);
double fault_gap_ms(const struct conn *c, double dflt);     /* between the tokens of a stream */
double fault_prefill_ms(const struct conn *c, double dflt); /* of a prompt */
/* True: this prefill leg's answer gives a wrong address of its KV, this one. */
bool fault_side(const struct conn *c, const char **host, int *port);
/* A kept connection, whose next request waits unread in fd, is to be reset now. */
bool fault_take_keepalive(struct sim *sim, int fd);
void fault_put(struct fault **f);
