/*
 * Ejection: what each leg tells of its engine.  shm/eject.h keeps the books of all workers.
 *
 * Process: worker.
 * Each exchange of a prefill or decode leg has one verdict, good or bad; the first one counts, and
 * leg_start() begins the next.  None is right, too: an abort, a client that left, a drain say nothing.
 * Errands never count; an answered question before the legs (LEG_ASK) does not, one that fails the attempt is
 * the fault of the engine that was asked.
 *
 * Only the leg at fault is charged: the other one of its pair, ended because of it, has no verdict.
 *
 * Not inside a read section.  Neither call ends or frees anything of the leg's.
 */
#pragma once
#include <stdbool.h>

struct leg;

/*
 * The engine did its part: a prefill answer that was taken, a decode answer with its last byte; and a 4xx,
 * a 429 too, which is the client's mistake or a full engine's right (sglang#25811: breakers that 4xx had
 * opened).
 */
void eject_good(struct leg *leg);
/*
 * Good so far: the first byte of a decode answer with status below 500.  Ends a trial well, since a stream
 * may last, but is no verdict: that comes with the answer's end or its breaking off.
 */
void eject_begun(struct leg *leg);
/*
 * The engine is at fault: refused, silent for its time, reset, garbage, an answer cut short, 5xx, a 200
 * that cannot be used, an error event in a stream.  Before leg_end() where a clock ran out: whether it was
 * while connecting is read from the leg.
 */
void eject_bad(struct leg *leg);
/*
 * An answered question (LEG_ASK) that says that the engine has no room; nothing for any other answer.  eject_good() and
 * eject_bad() see it themselves of prefill and decode answers: such an answer is neither good nor bad.
 */
void eject_busy(struct leg *leg);
/* The answer is 429, or 503 with Retry-After: the endpoint is busy for all workers (shm/busy.h). */
bool eject_said_busy(const struct leg *leg);
/* No verdict will come: another request may have the trial that this leg was.  leg_fini() and
 * leg_give_back() call it. */
void eject_none(struct leg *leg);
