/*
 * How long an attempt's engines take: samples for their endpoints (shm/pace.h).
 *
 * Process: worker.
 * A prefill leg gives one sample.  A decode stream gives one sample a second, and one at its end: the time of one
 * event.  A whole decode answer gives one sample if another engine has computed its prompt.  Not counted: time in which
 * the client does not read, answers of several branches, answers without their number of tokens.
 *
 * Streams are looked at by the worker's tick, so an event costs nothing.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct attempt;
struct leg;

/* The answer of a leg begins. */
void timing_first_byte(const struct attempt *a, const struct leg *leg);
/* The prefill answer was taken, at `now_us`. */
void timing_prefilled(struct attempt *a, uint64_t now_us);
/* Decode's answer begins. */
void timing_begun(struct attempt *a);
/* Called when the time of timing_next_ms() is over; earlier calls have no effect. */
void timing_tick(struct attempt *a, uint64_t now_ms);
/* Returns when the next call of timing_tick() has something to do; 0: never. */
uint64_t timing_next_ms(const struct attempt *a);
/* The client was slow, and the engine is read again: the time since then is no time of the engine. */
void timing_read_on(struct attempt *a);
/* The stream has ended well. */
void timing_stream_ended(struct attempt *a);
/* A whole answer has ended well. */
void timing_answered(struct attempt *a);
