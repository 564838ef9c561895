/*
 * Choosing: which pool serves a request, and which endpoint of each role.
 *
 * Process: worker.  One read section: look at the table, reserve, copy out what is kept.
 */
#pragma once

struct req;

/*
 * Fills req->pool, req->connector and both legs' endpoints, reserved.  Raises RQ_PLANNED, or RQ_REFUSE with
 * the reason; or calls req_wait() while an endpoint that has just been added is not known yet.
 */
void plan_request(struct req *req);
