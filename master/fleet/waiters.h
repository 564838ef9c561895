/*
 * The master's part in the queues for slots (shm/queue.h): wakes the first waiter of each pool when
 * the master has freed a slot or changed what can be chosen, and repeats wake-ups that a dead or
 * stalled worker has not passed on.
 *
 * Process: master.
 */
#pragma once

struct event_base;
struct seg;
struct waiters;

/* wake_fds: eventfds by process slot; the caller owns them. */
struct waiters *waiters_new(struct event_base *base, struct seg *seg, const int *wake_fds);
void waiters_free(struct waiters **);
/* States or the table have changed: the first waiter of each pool tries again.  NULL is fine. */
void waiters_wake(struct waiters *ws);
/*
 * After a dead process was reaped, and once a second: writes the eventfd of every worker whose
 * waiter is woken but has not tried yet, since the process that woke it may have died before.
 */
void waiters_wake_again(struct waiters *ws);
