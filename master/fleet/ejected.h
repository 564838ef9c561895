/*
 * The master's part of ejection (shm/eject.h): what a probe means for an ejected endpoint, and the limit of
 * ejected endpoints.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

struct endpoint;
struct fleet;

/* It comes up: what its requests met before was of its former life. */
void ejected_up(const struct endpoint *ep);
/* It is up and has answered a probe: enough for one that only refused connections, not for one that fails
 * requests. */
void ejected_probed(const struct endpoint *ep);
/* The operator has seen to it.  Returns true if it was ejected. */
bool ejected_undrained(const struct endpoint *ep);
/* Its engine is slow: ejected, if it is not and `max_ejected` allows. */
void ejected_slow(const struct endpoint *ep);
/*
 * States or the table have changed, or a worker has died: brings back the endpoints that are too
 * many.  Exact once no reader holds an older table.
 */
void ejected_trim(struct fleet *f);
