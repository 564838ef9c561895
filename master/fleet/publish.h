/*
 * The only writer of the shared endpoint table: makes a version of configuration, addresses and
 * learned models, and decides which slot of the endpoint words is whose.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

struct conf;
struct conf_error;
struct endpoint;
struct fleet;
struct publish;
struct rcu_writer;

struct publish *publish_new(struct fleet *f);
void publish_free(struct publish **);
/* Whose the tables are, for check_segment(). */
const struct rcu_writer *publish_writer(const struct publish *p);

/* As fleet_check(). */
int publish_check(const struct publish *p, const struct conf *conf, struct conf_error *err);

/* A new configuration stands in the fleet: numbers its pools.  Publishes nothing yet. */
void publish_config(struct publish *p);

/* Gives the endpoint a free slot, in its next life and STARTING; false if there is none. */
bool publish_slot(struct publish *p, struct endpoint *ep);
/* The endpoint is no longer configured: DRAINING at once, no longer the operator's word, out of the next table, its slot free when
 * no reader can hold that table's predecessor and no reservation is left.  Then it is freed. */
void publish_drop(struct publish *p, struct endpoint *ep);
/* It is configured again before that: same slot, same life, STARTING. */
void publish_revive(struct publish *p, struct endpoint *ep);

/* It is up: the workers hear it at once, or with the next table if its row there is not right.  If it
 * was down and its pool has a slow_start, its weight ramps up from then on. */
void publish_up(struct publish *p, struct endpoint *ep);
void publish_down(struct publish *p, struct endpoint *ep);

/* The operator's word: no new requests, whatever its health is; and whatever that is now again.  An endpoint
 * that is up then has a slow start if its pool has one: it is idle, and would get all requests at once. */
void publish_drain(struct publish *p, struct endpoint *ep);
void publish_undrain(struct publish *p, struct endpoint *ep);

/* Something the table is made of has changed: one publication at the end of this loop turn. */
void publish_soon(struct publish *p);
/* Something of little hurry has: with the next publication, or one of its own within 100 ms, so that
 * a fleet that starts does not get one for each of its engines. */
void publish_later(struct publish *p);
/* Publishes now if an arena is free, else as soon as one is. */
void publish_now(struct publish *p);
/* Readers or reservations may have gone: frees arenas and slots, publishes what waited. */
void publish_poll(struct publish *p);
