/*
 * Requests that wait in the queues of shared memory (shm/queue.h), as far as the master sees to them: it
 * calls the first of each pool whenever it has made room or changed what can be chosen; and makes good what
 * a worker that has died, or stands still, owes the others.
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
/* A process has died, after it was reaped; also done once a second, for those that are stopped: whoever was
 * called is told so once more, since its caller may not have come to it. */
void waiters_tell(struct waiters *ws);
