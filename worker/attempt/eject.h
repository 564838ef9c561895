/*
 * The outcome of each leg of a pair, for worker/schedule/outcome.h, which says what each function records.
 *
 * Process: worker.  A background request's leg has no outcome: these functions do nothing for it.
 */
#pragma once

struct leg;

void eject_good(struct leg *leg);
void eject_begun(struct leg *leg);
void eject_bad(struct leg *leg);
/* `leg` is a lookup that was answered. */
void eject_busy(struct leg *leg);
