/*
 * Which worker accepts: a worker watches the listening sockets while it has no more than its share of the connections
 * (shm/accept.h), below limits.max_connections, and while enough descriptors are left for engines.  Operators
 * (admin.listen) are accepted by all workers, also by one that has too many
 * clients.
 *
 * Process: worker.
 */
#pragma once
#include <event2/event.h>
#include <stdint.h>

#include "shm/base/conf.h"

struct worker;

/* Counts the descriptors that are open now as the worker's own: call it before the first
 * connection, and after event_add() of its eventfd.  `on_accept` is raised for each connection
 * that waits while the worker listens; it calls listen_accepted() after the accept. */
void listen_init(struct worker *w, event_callback_fn on_accept);
void listen_fini(struct worker *w);
/* Open descriptors of the worker, as far as it counts them. */
uint64_t listen_fds(const struct worker *w);
/* Its entry of the heritage. */
const struct door_fd *listen_of(const struct worker *w, int listen_fd);
/* Starts or stops watching the sockets: call it after each close. */
void listen_update(struct worker *w);
/* The same after each accept, and the next connection wakes another worker. */
void listen_accepted(struct worker *w, int listen_fd);
/* Another worker has woken this one: perhaps it may accept now, or a connection waits that the other one leaves. */
void listen_woken(struct worker *w);
/* Finds a connection whose wake-up went to a worker that has been killed before it accepted. */
void listen_heartbeat(const struct worker *w);
/* The worker drains: it accepts the connection that may have woken it alone, and never again.  Its
 * descriptors of the sockets are closed, so that the port is free as soon as those who do accept
 * have ended.  Again: nothing happens. */
void listen_end(struct worker *w);
/* Call it at each tick: listen_update(), and looks for workers that have stopped while
 * connections wait. */
void listen_tick(struct worker *w, uint64_t now_ms);
