/*
 * The KV cache of one engine: how many blocks are in use, and which are held for a decode engine.
 *
 * A hold is made when a prefill leg is answered and ends by exactly one of: a fetch whose engine
 * id, parameters and prompt all match; a release; the timeout.  A fetch that does not match leaves
 * the hold where it is, so a mix-up stays visible in pdsim:held_requests.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tests/engine/json.h"

struct buf;
struct kv;
struct sim;

struct hold {
	const char *id;  /* remote_request_id */
	uint64_t prompt; /* hash of what the blocks were computed from */
	uint64_t meta;   /* hash of what the decode engine must be told */
	uint32_t ntokens, nblocks;
	bool unreachable; /* its parameters name a wrong address */
	const uint32_t *ids;
};

enum kv_outcome { KV_OK, KV_MISSING, KV_DIFFER_ENGINE, KV_DIFFER_META, KV_DIFFER_PROMPT };

struct kv *kv_new(struct sim *sim);
void kv_free(struct kv **kv);
uint32_t kv_blocks_for(const struct sim *sim, uint64_t tokens);
/* Blocks of running requests are only counted.  False: they do not fit now. */
bool kv_reserve(struct kv *kv, uint64_t nblocks);
void kv_unreserve(struct kv *kv, uint64_t nblocks);
/* Makes a hold out of blocks that were reserved; xrid is the client's X-Request-Id, for the
 * fetcher. */
struct hold *kv_hold(struct kv *kv, const char *id, const char *xrid, uint32_t ntokens);
/* kv_transfer_params, which say that the side channel is at this host and port */
void kv_params(struct kv *kv, const struct hold *h, const char *host, int port, struct buf *out);
/* Over the members a decode engine needs, in any order; `push`: over those it is told by a router
 * that knows the engine only. */
uint64_t kv_meta(struct jv params, bool push);
/* On KV_OK the blocks are free, *ret_n is their number and the X-Request-Id is added to xrid. */
enum kv_outcome kv_fetch(struct kv *kv, const char *engine, const char *id, uint64_t prompt,
	uint64_t meta, uint32_t *ret_n, struct buf *xrid);
/* Without any question; false: there is none of that id. */
bool kv_take(struct kv *kv, const char *id);
bool kv_release(struct kv *kv, const char *engine, const char *id);
bool kv_has(struct kv *kv, const char *id);
/* A JSON list of what is held: id, request_id, blocks, age_ms, unreachable. */
void kv_list(const struct kv *kv, struct buf *out);
uint64_t kv_used(const struct kv *kv);
uint64_t kv_held_blocks(const struct kv *kv);
uint64_t kv_held_requests(const struct kv *kv);
