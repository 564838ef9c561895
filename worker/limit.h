/*
 * What one client may have: requests in flight and per second (client.max_inflight, .rate, .burst); and what
 * all of them together may have of a worker's memory (limits.max_buffered).
 *
 * A client is its API key: the credentials of Authorization, or X-API-Key as Anthropic's clients send it.
 * Without one it is its address, an IPv6 one by its /64.  Keys are not checked here, nor kept: only a hash
 * goes to shared memory (shm/clients.h).  Where a proxy in front says who it is (client.id_header), it is
 * whom that header names.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/end_list.h"

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
 * Whether a body that has `have` bytes may have `more`.  Large ones may use the first seven eighths alone: so
 * they are refused first, and small ones go on.  A body that is alone always may.
 */
bool limit_room(const struct worker *w, uint64_t have, uint64_t more);
/* So many bytes of a body or a kept answer are here, or (negative) were freed. */
void limit_keep(struct worker *w, int64_t bytes);

/* Who comes from there, for the table of clients. */
uint64_t limit_hash_address(const struct seg *seg, const struct sockaddr_storage *ss);
