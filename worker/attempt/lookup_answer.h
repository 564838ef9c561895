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
/* Each tick: gives a lookup up whose time is over; a shared or failed one is due again. */
void lookup_tick(struct attempt *a, uint64_t now_ms);
