/*
 * A request that waits for a place: it rests in PLAN, holds nothing, and stands in its pool's queue
 * (shm/queue.h).  plan.c asks here before it chooses and when nobody could be chosen; whoever gives a place
 * back says so here.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "worker/base/end_list.h"

struct req;
struct selection;
struct table_pool;
struct worker;

/* Before endpoints are chosen: END_OK; END_NO_CAPACITY if others wait whom it would overtake;
 * END_UNSUPPORTED if it names a priority that is none. */
enum req_end wait_before(struct req *req, const struct table_pool *tp);
/* Nobody could be chosen.  True: it stands in the queue, plan once more.  False: it waits there to be called,
 * if req->waits; else it is refused, for *why. */
bool wait_again(struct req *req, enum req_end *why);
/* Its endpoints are reserved: out of the queue, and inside the read section a look whether another place is
 * left, in all of `roles`. */
void wait_served(struct req *req, const struct selection *s, uint32_t roles);
/* The read section is over: calls whoever is owed one. */
void wait_settle(struct worker *w, uint32_t pool);
/* The same for a request that may have waited itself. */
void wait_settle_for(struct req *req);
/* The request ends, or is not waiting for a place any more. */
void wait_leave(struct req *req);

/* Its time is over.  True: it was called at the last moment, and has been planned or refused. */
bool wait_late(struct req *req);
/* The eventfd was read: those of this worker that were called try. */
void wait_collect(struct worker *w);
/* A place of a role has been given back, or an endpoint has room again. */
void wait_released(struct worker *w, uint32_t pool, enum role role);
