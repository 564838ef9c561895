/*
 * KV events: what an engine says over ZMQ about the prefix cache that it keeps.  A message has three frames: the topic,
 * a number of 8 bytes (kv_events_number()), and a batch of events in msgpack (kv_events_read()).
 *
 * Sources: vLLM's distributed/kv_events.py and SGLang's disaggregation/kv_events.py, which came from the former.  The
 * forms have changed: a batch and an event were arrays with the members in the order of the class, and later vLLM made
 * them maps; members were added at the end (data_parallel_rank, medium, lora_name, extra_keys, group_idx, ...); a block's
 * hash is an integer or bytes.  All of these are read, and members that are not known here are passed.
 *
 * Reads without allocating and without a stack.  A publisher is not trusted: numbers are bounded by the message's size
 * or by KV_EVENTS_BLOCK_MAX.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire/msgpack.h"

#define KV_EVENTS_BLOCK_MAX 65536 /* tokens of a block; engines have 1 to some thousands */
#define KV_EVENTS_END UINT64_MAX  /* number of the message that ends a replay; its batch is empty */

enum kv_event_kind {
	KV_EVENT_STORED,
	KV_EVENT_REMOVED,
	KV_EVENT_CLEARED, /* all blocks */
	KV_EVENT_OTHER,   /* of a kind that is not known here */
	KV_EVENT_BAD,     /* of a known kind, but a member is missing or absurd */
};

/* Values of a list, in the message. */
struct kv_list {
	struct msgpack at;
	uint64_t n; /* that are left */
};

#define KV_EVENT_EXTRA_MAX 2

struct kv_event {
	enum kv_event_kind kind;
	uint64_t blocks;       /* stored or removed; at most the message's bytes */
	uint32_t block_tokens; /* of each; stored */
	/* Neither of another memory than the GPU's, nor of a further group of layers: models with several kinds of attention
	 * store the same tokens once in each group. */
	bool counts;
	/* The following last as long as the message.  Of blocks stored: */
	struct kv_list ids; /* of the tokens of all blocks */
	bool first;         /* no block is before them; else: */
	uint64_t parent;    /* the hash of the one before */
	bool adapter;       /* an adapter computed them: */
	struct msgpack_text adapter_name;
	/* what the first block's hash depends on besides the ids: adapter, salt.  More, or other kinds: KV_EVENT_EXTRA_MAX
	 * + 1 */
	unsigned nextra;
	struct msgpack_text extra[KV_EVENT_EXTRA_MAX];
	struct kv_list hashes; /* of blocks stored or removed */
};

struct kv_batch {
	double at_s;   /* seconds since 1970 */
	uint32_t rank; /* data-parallel; 0 if it is not told */
};

typedef void kv_event_fn(const struct kv_event *e, void *arg);

/* Calls fn for each event in order.  False if the message is not one complete batch; fn may have been called by then. */
bool kv_events_read(const void *msg, size_t len, struct kv_batch *ret, kv_event_fn *fn, void *arg);
/* The next value.  False: it is none. */
bool kv_events_id(struct kv_list *ids, uint32_t *ret);
bool kv_events_hash(struct kv_list *hashes, uint64_t *ret);
/* The second frame.  False: it has not 8 bytes. */
bool kv_events_number(const void *frame, size_t len, uint64_t *ret);
