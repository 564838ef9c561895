/*
 * Handlers of the lookup leg: the answer, its failure, its time limit.
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

struct attempt;

void lookup_answered(struct attempt *a);
void lookup_failed(struct attempt *a);
void lookup_late(struct attempt *a);
/* Call it at each tick: gives up a lookup whose time is over; a shared or failed lookup becomes
 * due again. */
void lookup_tick(struct attempt *a, uint64_t now_ms);
