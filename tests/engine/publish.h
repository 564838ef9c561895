/*
 * KV events: what the prefix cache stores and evicts, published over ZMQ as vLLM's ZmqEventPublisher does.
 *
 * Events are collected and go out as one batch; each batch has a number.  The last batches are kept, and sent again to
 * who asks for them on the replay port.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct conn;
struct prefix_prompt;
struct publish;
struct sim;

/* NULL without --kv-events: nothing is published, and the other functions do nothing. */
struct publish *publish_new(struct sim *sim);
void publish_free(struct publish **);

/* n blocks whose ids stand at `at` in the prompt, behind the block `parent` (0: they are the first). */
void publish_stored(struct publish *p, uint64_t parent, const uint64_t *hashes, size_t n,
	const struct prefix_prompt *prompt, uint64_t at);
void publish_removed(struct publish *p, uint64_t hash);
void publish_cleared(struct publish *p);
/* Sends the batch, if it has an event. */
void publish_batch(struct publish *p);
/* POST /sim/kv_events: see README.md */
void publish_sim(struct conn *c);
