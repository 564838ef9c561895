/*
 * The prefill side of an attempt: handlers of its prefill leg.
 *
 * Process: worker.
 */
#pragma once

struct attempt;

void prefill_more(struct attempt *a);
void prefill_answered(struct attempt *a);
void prefill_failed(struct attempt *a);
void prefill_late(struct attempt *a);
/* Probes have found the engine down; it has been down for timeouts.down_grace. */
void prefill_down(struct attempt *a);
void prefill_gone(struct attempt *a);
