/*
 * How an LMCache sender tells a router that KV has been written: one msgpack map in one frame, over
 * a ZMQ PUSH socket of each rank's own, which connects to the router.
 */
#pragma once

struct notice;
struct sim;

struct notice *notice_new(struct sim *sim); /* to --proxy; NULL when there is none */
void notice_send(struct notice *n, unsigned rank, const char *req_id);
void notice_garbage(struct notice *n, unsigned rank); /* bytes that are no msgpack map */
void notice_free(struct notice **n);
