/*
 * Connections that have sent no complete head for a second, counted by the address they come from (IPv6: its
 * /64).  One address that opens connections and sends nothing cannot keep more of them than
 * client.max_silent_connections.  A crowd of clients behind one address sends its heads within the second.
 *
 * Process: worker.  Each worker counts its own connections, so a killed worker takes its counts with it.
 * The table has a fixed size: addresses share a counter when their hashes meet.  The hash has the seed of this start,
 * so no client can choose whose counter it shares.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"

struct address;
struct silent;
struct worker;

struct silent *silent_new(void);
void silent_free(struct silent **s); /* NULL is fine */

/* Of one connection.  All 0: it has sent a head. */
struct silence {
	uint64_t due_ms;  /* when the connection counts; 0: it counts already, or never */
	uint32_t counter; /* that it counts in, and 1; 0: none */
};

/* A connection was accepted. */
void silent_begin(struct silence *s, uint64_t now_ms);
/*
 * Looks whether the connection counts by now; those of operators and of client.proxy_networks do not.  False: its
 * address has too many, and the connection was counted as closed.
 */
bool silent_look(struct worker *w, struct silence *s, enum door door, const struct address *from,
	uint64_t now_ms);
/* It has sent a head, or has ended.  Again: nothing happens. */
void silent_end(struct worker *w, struct silence *s);
