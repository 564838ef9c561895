/*
 * Requests that wait in the queues of shared memory (shm/queue.h), as far as the master sees to them: it
 * calls the first of each pool whenever it has made room or changed what can be chosen, and once a second
 * besides, for a call that a stopped worker does not follow.
 *
 * Process: master.
 */
#pragma once

struct event_base;
struct seg;
struct waiters;

/* wake_fds: by process slot, borrowed. */
struct waiters *waiters_new(struct event_base *base, struct seg *seg, const int *wake_fds);
void waiters_free(struct waiters **);
/* Something has changed: whoever stands first in each pool tries; NULL is fine. */
void waiters_call(struct waiters *ws);
