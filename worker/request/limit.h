/*
 * The quota of one client: requests in flight and per second (client.max_inflight, .rate,
 * .burst); and the memory that all clients together may use in all workers
 * (limits.max_buffered).
 *
 * A client is identified by its API key: the credentials of Authorization, or X-API-Key as
 * Anthropic's clients send it.  A client without a key is identified by its address, an IPv6
 * address by its /64.  Keys are neither checked here nor stored: only a hash is written to
 * shared memory (shm/quota.h).  If a proxy before the router names the client
 * (client.id_header), that name identifies the client.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/base/end_list.h"

struct address;
struct http_head;
struct req;
struct seg;
struct worker;

/* Call it when the request's head is here and its body is not.  Returns END_OK if the request
 * may continue, which is then counted until limit_leave(); else the end to refuse it with, and
 * sets req->retry_after_s. */
enum req_end limit_enter(struct req *req, const struct http_head *h);
/* Idempotent. */
void limit_leave(struct req *req);
/*
 * Room for request bodies.  Two sums of all workers (shm/stored.h) count against limits.max_buffered:
 * the bytes that are here (buffered), and the bytes that large bodies with a Content-Length still have
 * to send (declared).
 * Declared bytes count so that a large body is refused at its head, and not when half of it has come.
 * Large bodies may use seven eighths of the room, so that small ones always find some.  A body that is
 * alone always has room: no other of its worker, and next to nothing in the other workers.
 */
/* Counts the `length` bytes that a request's head declares, of a large body.  Returns false if there
 * is no room for them. */
bool limit_declare(struct req *req, uint64_t length);
/* Counts `more` bytes beside those of req->job.text->body_cap.  Returns false if there is no
 * room for them. */
bool limit_grow(struct req *req, uint64_t more);
/* A body that comes too slowly loses its declared bytes: it must find room for them as they
 * come. */
void limit_tick(struct req *req, uint64_t now_ms);
/* The rest of the body has come, or will not come: it is declared no longer. */
void limit_drop_declared(struct req *req);
/* Returns true if all workers buffer more bytes (worker/base/buffered.h) than limits.max_buffered
 * allows. */
bool limit_full(const struct worker *w);

/* Returns the hash that identifies a client without a key: of its address, of an IPv6 address
 * by its /64. */
uint64_t limit_hash_address(const struct seg *seg, const struct address *a);
