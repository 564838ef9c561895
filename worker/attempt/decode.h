/*
 * The decode side of an attempt: handlers of its decode leg, and what follows when the prefill answer bears out, or
 * not, what decode was sent before it.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "worker/base/end_list.h"

struct attempt;
struct span;

void decode_first(struct attempt *a);
void decode_more(struct attempt *a);
void decode_answered(struct attempt *a);
void decode_failed(struct attempt *a);
void decode_late(struct attempt *a);
/* Payload of an answer that is not kept. */
void decode_payload(struct attempt *a, const struct span *pieces, size_t n, bool done);
/* The prefill engine has confirmed what decode was sent: its answer, withheld so far, is the client's. */
void decode_confirmed(struct attempt *a);
/* Decode was sent something wrong: it is sent its request again once prefill has answered. */
void decode_correct(struct attempt *a);
/* The stream had said [DONE] before its engine broke off; `end`: how it ends if the client has not all of it. */
void decode_finish(struct attempt *a, enum req_end end);
