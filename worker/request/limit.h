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
 * Room for request bodies: what is here (kept), and of large ones with a Content-Length what is still to come
 * (promised), so that they are refused at their heads and not when all have come half way.  Large ones may use
 * seven eighths alone: small ones go on beside them.  A body that is alone always has room.
 */
/* A head has been read that declares so many bytes.  False: there is no room for them. */
bool limit_promise(struct req *req, uint64_t length);
/* `more` bytes beside those of req->body_cap; counted if there is room. */
bool limit_grow(struct req *req, uint64_t more);
/* What does not come fast enough is promised no longer: it has to find room as it comes. */
void limit_tick(struct req *req, uint64_t now_ms);
/* The body is freed, or will not come. */
void limit_drop_body(struct req *req);
/* So many bytes of a half head or a kept answer are here, or (negative) were freed. */
void limit_keep(struct worker *w, int64_t bytes);
/* They are more than there may be. */
bool limit_full(const struct worker *w);

/* Who comes from there, for the table of quotas. */
uint64_t limit_hash_address(const struct seg *seg, const struct sockaddr_storage *ss);
