/*
 * Completion flags: "the KV cache of this transfer has arrived" (design.md, "Completion flags").
 *
 * The request id of the transfer, which the router chose, names the flag: worker, slot, gen and a nonce,
 * which is the instance (16 bits) and 48 random bits.  The notifier counts down, sets the worker's ready bit, then writes the worker's
 * eventfd.  The worker reads the eventfd, then exchanges the bits, then reads the flags.  A bit is
 * only a hint.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/seg.h"

#define FLAG_ID_LEN 40 /* worker:2 slot:4 gen:12 nonce:16 hex digits, with separators and a NUL */

struct flag_ref {
	uint32_t worker, slot;
	uint64_t gen, nonce;
};

/* A worker's own free list; process-private. */
struct flag_set;
struct flag_set *flag_set_new(struct seg *seg, uint32_t worker);
void flag_set_free(struct flag_set **);

/* Arms a slot for `notices` (1..255) before the prefill leg is sent.  False: all slots are in
 * use. */
bool flag_arm(struct flag_set *fs, uint8_t notices, struct flag_ref *ret);
/* True once all its notices have come. */
bool flag_is_ready(const struct flag_set *fs, const struct flag_ref *ref);
/* Ends the flag, whatever has arrived; late notices find another gen. */
void flag_free(struct flag_set *fs, const struct flag_ref *ref);
/* After reading the eventfd: calls fn for each slot whose bit was set and which is READY. */
void flag_collect(struct flag_set *fs, void (*fn)(uint32_t slot, void *arg), void *arg);
/* Twice a second, for a part of the flags: writes the words again that are not as this worker and the notifier have left them.  A flag whose notices cannot
 * be known any more is READY: flag_collect() follows. */
void flag_restore(struct flag_set *fs);
uint32_t flag_armed(const struct flag_set *fs); /* for the gauge */

/* Id on the wire and back; parse returns false unless it is of exactly this form and in range. */
void flag_id_format(const struct flag_ref *ref, char out[FLAG_ID_LEN]);
/* The instance of pdrouter that the id belongs to, also of one with other sizes; false: no id. */
bool flag_id_instance(const char *text, size_t len, uint32_t *ret);
bool flag_id_parse(const struct seg *seg, const char *text, size_t len, struct flag_ref *ret);

/* Notifier. */
enum flag_notice { FLAG_COUNTED, FLAG_READY_NOW, FLAG_STALE, FLAG_WRONG_NONCE };
/* Counts one notice down; at FLAG_READY_NOW the ready bit is set and the caller writes the worker's
 * eventfd. */
enum flag_notice flag_notify(struct seg *seg, const struct flag_ref *ref);
/* A fresh notifier: sets all bits of all workers; the caller writes all eventfds. */
void flag_kick_all(struct seg *seg);

/* Master: one slot of a worker that has no process.  Returns whether it was armed. */
bool flag_clear(struct seg *seg, uint32_t worker, uint32_t slot);
/* Master, after waitpid: every slot of a dead worker becomes gen+1, FREE.  Returns how many were armed. */
uint32_t flag_reap(struct seg *seg, uint32_t worker);

/* For check.c: whether the slot's word is one that is ever written here; *ret_used: armed or ready. */
bool flag_sound(const struct seg *seg, uint32_t worker, uint32_t slot, bool *ret_used);
