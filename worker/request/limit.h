/*
 * What one client may have: requests in flight and per second (client.max_inflight, .rate, .burst); and what
 * all of them together may have of a worker's memory (limits.max_buffered).
 *
 * A client is its API key: the credentials of Authorization, or X-API-Key as Anthropic's clients send it.
 * Without one it is its address, an IPv6 one by its /64.  Keys are not checked here, nor kept: only a hash
 * goes to shared memory (shm/quota.h).  Where a proxy in front says who it is (client.id_header), it is
 * whom that header names.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/base/end_list.h"

struct http_head;
struct req;
struct seg;
struct sockaddr_storage;
struct worker;

/* The request's head is here, its body is not.  END_OK: it may go on, and is counted until limit_leave();
 * else what to refuse it with, req->retry_after_s set. */
enum req_end limit_enter(struct req *req, const struct http_head *h);
/* Idempotent. */
void limit_leave(struct req *req);
/*
 * Room for request bodies.  Two sums count against limits.max_buffered: the bytes that are here
 * (buffered), and the bytes that large bodies with a Content-Length still have to send (declared).
 * Declared bytes count so that a large body is refused at its head, and not when half of it has come.
 * Large bodies may use seven eighths of the room, so that small ones always find some.  A body that is
 * alone always has room.
 */
/* A request's head declares `length` bytes.  False: there is no room for them. */
bool limit_declare(struct req *req, uint64_t length);
/* Room for `more` bytes beside those of req->job.text->body_cap; counts them if there is room. */
bool limit_grow(struct req *req, uint64_t more);
/* A body that comes too slowly loses its declared bytes: it has to find room for them as they come. */
void limit_tick(struct req *req, uint64_t now_ms);
/* The rest of the body has come, or will not come: it is declared no longer. */
void limit_drop_declared(struct req *req);
/* More bytes are buffered (worker/base/buffered.h) than limits.max_buffered allows. */
bool limit_full(const struct worker *w);

/* The hash under which the quota of a client without a key is found: its address, an IPv6 one by its /64. */
uint64_t limit_hash_address(const struct seg *seg, const struct sockaddr_storage *ss);
