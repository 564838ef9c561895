/*
 * The virtual time of a queue (queue.h): which model's turn it is among models that wait for the same endpoints.
 *
 * Start-time fair queueing (Goyal, Vin, Cheng 1996), with prompt tokens as the unit of service.  A waiter starts
 * where the model's former request finishes, but not before the virtual time; it finishes its own tokens later.
 * The least start goes first.  So models that wait for the same endpoints are served equal numbers of tokens,
 * and the first waiter of a model that had less goes before all waiters of a model that had more.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct queue_head;

/* Where a new waiter of the model starts.  `waiting`: the last finish of the model's waiters that go before it, or 0. */
uint64_t fair_start(const struct queue_head *q, uint64_t model, uint64_t waiting);
/* A waiter of the model was served. */
void fair_served(struct queue_head *q, uint64_t model, uint64_t start, uint64_t finish);
/* No request waits: all models are equal again. */
void fair_idle(struct queue_head *q);

/* Whether a time can be at all. */
bool fair_possible(uint64_t time);
/* Master: whether its times can be; if they cannot, all models are equal again. */
bool fair_sound(const struct queue_head *q);
void fair_begin_anew(struct queue_head *q);
