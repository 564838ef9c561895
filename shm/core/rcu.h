/*
 * A read-copy-update domain that spans processes (design.md, "RCU domain"): publication of
 * immutable tables (of endpoints, shm/table.h, and of clients' keys, shm/api_keys.h), lock-free readers, reuse of a retired arena once no reader can hold it.
 *
 * Process: rcu_enter/leave in workers; the rest in the master alone.  A section is one selection
 * and its reservation; never across an event-loop callback.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"

struct api_keys;
struct table;

/* NULL before the first publication.  The table is valid until rcu_leave(). */
const struct table *rcu_enter(struct seg *seg, uint32_t slot);
void rcu_leave(struct seg *seg, uint32_t slot);
/* In a section: the keys of clients, valid until rcu_leave(); NULL: clients need none. */
const struct api_keys *rcu_keys(const struct seg *seg);
/* Anywhere: whether clients need a key. */
bool rcu_has_keys(const struct seg *seg);

/* The master's side; process-private. */
struct rcu_writer;
struct rcu_writer *rcu_writer_new(struct seg *seg);
void rcu_writer_free(struct rcu_writer **);

/* A free arena to build the next table in (seg->arena_bytes), or NULL while all wait for readers. */
void *rcu_arena_get(struct rcu_writer *w);
/* An arena obtained and not published goes back. */
void rcu_arena_put(struct rcu_writer *w, void *arena);
/* Makes the table at the start of `arena` the current one; the former is retired. */
void rcu_publish(struct rcu_writer *w, void *arena);
/* The same for the table of keys, in arenas of its own (seg->keys_arena_bytes).  NULL: clients need none. */
void *rcu_keys_arena_get(struct rcu_writer *w);
void rcu_publish_keys(struct rcu_writer *w, void *arena);
/* Frees what no reader can hold any more (poisoned in debug builds).  Returns the number of arenas
 * still retired: call again, from a timer, while it is not 0. */
unsigned rcu_poll(struct rcu_writer *w);
/* True once no reader can hold the table that was current when rcu_cookie() returned `cookie`. */
uint64_t rcu_cookie(const struct rcu_writer *w);
bool rcu_passed(const struct rcu_writer *w, uint64_t cookie);
/* The current table, for its only writer. */
const struct table *rcu_current(const struct rcu_writer *w);
/* After waitpid returned that pid: its line holds nothing any more. */
void rcu_reap(struct seg *seg, uint32_t slot);

/* For check.c: the oldest gp any reader is inside a section with (UINT64_MAX: none is), and what the
 * writer keeps of arena i: below SHM_ARENAS of tables of endpoints, then SHM_KEYS_ARENAS of keys. */
enum arena_use { ARENA_FREE, ARENA_OBTAINED, ARENA_CURRENT, ARENA_RETIRED };
struct rcu_arena {
	enum arena_use use;
	uint64_t cookie;     /* retired: free once no reader shows an older gp */
	uint64_t retired_ms; /* clock_ms */
};
uint64_t rcu_oldest(const struct seg *seg);
const struct rcu_arena *rcu_arena_read(const struct rcu_writer *w, size_t i);
