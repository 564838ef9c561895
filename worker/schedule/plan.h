/*
 * Choosing: which pool serves a request, and which endpoint of each role.
 *
 * Process: worker.  One read section: look at the table, reserve, copy out what is kept.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/view.h"

struct attempt;
struct req;

/*
 * Fills req->job.facts.pool, req->job.connector and the branches, each with an attempt whose endpoints are reserved.  Raises RQ_PLANNED, or RQ_REFUSE with
 * the reason; or calls req_wait() while an endpoint that has just been added is not known yet.
 */
void plan_request(struct req *req);
/* What another attempt needs: both engines, a decode engine beside the prefill engine it has, or the one engine
 * that does it all. */
enum plan_for { FOR_BOTH, FOR_DECODE, FOR_ONE };
/*
 * Chooses and reserves for `next` whoever was not tried before.  FOR_DECODE: a decode engine beside the prefill engine
 * of `of`.  Else in place of `of`: where no other place is free, the place that `of` holds will do, and moves.
 * `most`: engines that are away for this reason at most are taken where nobody else could serve; *ret_last_resort
 * (or NULL): an ejected endpoint was.  First choices' cursors do not move.  False: nobody is left, nothing has
 * changed.
 */
bool plan_again(struct attempt *next, enum plan_for what, struct attempt *of, enum ep_away most,
	bool *ret_last_resort);
