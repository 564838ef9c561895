/*
 * KV events between processes: whose events the notifier reads, and what they have said.  And which addresses engines have
 * that send notices.
 *
 * The master writes a source for each endpoint that publishes KV events (the first memfd).  The notifier reads the
 * sources, subscribes, and writes what each engine has stored in its prefix cache and removed from it.  All figures are
 * hints: they are what a publisher claims.
 *
 * Process: kv_source_put and kv_sender_put in the master; their _get and kv_counts_put in the notifier; kv_counts_get anywhere.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"

struct kv_source {
	uint32_t tag; /* life of the endpoint's slot (ep_tag()) */
	uint32_t
		ranks; /* data-parallel ranks, a publisher each: their ports follow each other; 0: no source */
	char events[KV_SOURCE_ADDRESS]; /* of rank 0: tcp://10.0.0.1:5557 */
	char replay[KV_SOURCE_ADDRESS]; /* "": what is missed is lost */
	uint64_t root;                  /* prefix_ids_model() of the engine's model */
	uint64_t row;                   /* prefix_row_of() its pool */
};

/* The address of an engine that sends notices, as an LMCache pool's does; family 0: none. */
struct kv_sender {
	uint64_t family; /* AF_INET, AF_INET6 */
	uint8_t ip[16];  /* network byte order; bytes after the address are 0 */
};

/* Of one engine, since the notifier has subscribed in this life of the slot.  Tokens and blocks are those that count
 * (struct kv_event). */
struct kv_counts {
	uint64_t tag;     /* life of the endpoint's slot; 0: none */
	uint64_t stored;  /* tokens put into its prefix cache */
	uint64_t removed; /* tokens evicted */
	uint64_t cleared; /* how often all blocks went, the engine's restarts included */
	uint64_t messages, events;
	uint64_t missed;   /* messages that neither came nor were replayed */
	uint64_t replayed; /* messages that came by a replay */
	uint64_t bad;      /* messages that are no batch, and events that make no sense */
	uint64_t at_ms;    /* clock_ms of the last message; 0: there was none */
	uint64_t lag_us;   /* age of the last message when it was read, by both clocks */
};

/* --- master */
void kv_source_put(struct seg *seg, uint32_t ep, const struct kv_source *s);
void kv_sender_put(struct seg *seg, uint32_t ep, const struct kv_sender *s);

/* --- notifier */

/* A copy, if the source is not the one of *seq, which is updated.  *seq is 0 before the first call. */
bool kv_source_get(const struct seg *seg, uint32_t ep, uint64_t *seq, struct kv_source *ret);
/* The same of a sender. */
bool kv_sender_get(const struct seg *seg, uint32_t ep, uint64_t *seq, struct kv_sender *ret);
void kv_counts_put(struct seg *seg, uint32_t ep, const struct kv_counts *c);

/* False: nothing has come in this life of the slot.  The words may be of two moments. */
bool kv_counts_get(const struct seg *seg, uint32_t ep, struct kv_counts *ret);
