/*
 * The scan of a long body: in steps, one in a turn of the loop, since other streams would wait for the scan
 * of 60 MiB for 13 ms, of 60 MiB of short messages for 84 ms.  Several bodies take turns: a step of each of 16 bodies
 * took 9 ms.
 *
 * Process: worker.
 * Ownership: the scan belongs to the request (req->scan) until it is over, or until scan_end().
 */
#pragma once
#include <stdbool.h>

#define SCAN_STEP (512u << 10) /* bytes: at most 0.7 ms */

struct req;
struct worker;

void scan_init(struct worker *w);
/* Whether the body is JSON and longer than a step. */
bool scan_is_long(const struct req *req);
/* Begins.  In a later turn `scanned` is called: the text has its members, or `why` says why it is no JSON. */
void scan_begin(struct req *req, void (*scanned)(struct req *req, const char *why));
/* The request ends, whether its body is scanned or not. */
void scan_end(struct req *req);
