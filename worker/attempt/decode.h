/*
 * The decode side of an attempt: handlers of its decode leg, and the steps after a prefill
 * answer that confirms or contradicts what decode was sent before it.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct attempt;
struct span;

void decode_first(struct attempt *a);
void decode_more(struct attempt *a);
void decode_answered(struct attempt *a);
void decode_failed(struct attempt *a);
void decode_late(struct attempt *a);
/* Probes have found the engine down; it has been down for timeouts.down_grace. */
void decode_down(struct attempt *a);
void decode_gone(struct attempt *a);
/* Payload of an answer that the leg does not collect. */
void decode_payload(struct attempt *a, const struct span *pieces, size_t n, bool done);
/* The prefill engine has confirmed what decode was sent: relays the decode answer, which was withheld so far. */
void decode_confirmed(struct attempt *a);
