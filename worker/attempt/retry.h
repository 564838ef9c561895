/*
 * When an attempt of a pair fails before the client has anything of it: other engines are tried, then the decode
 * engine alone (`retries`, `retry_budget`, `fallback` of the pool).
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct leg;

/*
 * `leg` has failed, and its attempt with it: it has ended, or its clock has run out, or its answer is of no use.
 * True: the pair goes on with other engines, or the request by the decode engine alone; events may have come of
 * it at once, and the request may even be over.  False: nothing was changed, and the failure is the client's to
 * hear.
 */
bool retry(struct leg *leg);
