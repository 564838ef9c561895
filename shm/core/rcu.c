/*
 * The domain that spans processes.  One 64-bit counter `gp` moves at each publication; each reader
 * shows in its own line which value it started under, or 0.
 *
 * Why one phase is enough: the publisher writes the pointer, then (full barrier) moves gp and reads
 * the lines; a reader writes its line, then (full barrier) reads the pointer.  Of two such, at
 * least one sees the other's write: either the scan sees the line, or the reader sees the new
 * pointer.  A reader that already loaded the new gp comes after the barrier and so sees the new
 * pointer too.  A line that shows an older gp than a retired table's cookie may hold it; any other
 * cannot.
 *
 * There are two pointers, of the endpoints and of the keys of clients.  What is said above holds for
 * each of them: a section begins before it loads either.
 *
 * rcu.pml is this file as a model: `make verify` searches it whole, and shows that without either
 * barrier, or with gp before the pointer, a freed table is read.
 */
#include "shm/core/rcu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/api_keys.h"
#include "shm/table.h"

#define RCU_ACTIVE 1u /* lowest bit of a reader's line */
#define RCU_STEP 2u
#define RCU_POISON 0xdb /* debug builds: what a freed arena is filled with */

const struct table *
rcu_enter(struct seg *seg, uint32_t slot)
{
	uint64_t *ctr = &seg->readers[slot].ctr;
	const struct table *t;

	(void)suspect(SUSPECT_READERS, slot, shm_load(ctr) != 0); /* sections do not nest */
	/*
	 * A full barrier: our line must be visible before we load the pointer, or the scan could miss
	 * us and the master reuse the table we are about to read.  Pairs with switched()'s barrier
	 * between pointer and gp; the scan behind that barrier is oldest_reader()'s.  The gp we show
	 * may be an old one by now: that holds more back, never less.
	 */
	(void)shm_xchg(ctr, shm_load(&seg->rcu->gp) | RCU_ACTIVE);
	/* The table's bytes are loaded through the pointer: ordered by dependency.  Pairs with
	 * rcu_publish()'s release of it. */
	t = shm_deref(seg->rcu->table);
#ifdef PDROUTER_DEBUG
	mem_section(true);
	assert(t == NULL || table_intact(t, seg->arena_bytes));
#endif
	return t;
}

const struct api_keys *
rcu_keys(const struct seg *seg)
{
	/* As the table in rcu_enter().  Pairs with rcu_publish_keys()'s release. */
	const struct api_keys *keys = shm_deref(seg->rcu->keys);

#ifdef PDROUTER_DEBUG
	assert(keys == NULL || api_keys_intact(keys, seg->keys_arena_bytes));
#endif
	return keys;
}

bool
rcu_has_keys(const struct seg *seg)
{
	return shm_load(&seg->rcu->keys) != NULL;
}

void
rcu_leave(struct seg *seg, uint32_t slot)
{
	uint64_t *ctr = &seg->readers[slot].ctr;

	(void)suspect(SUSPECT_READERS, slot, shm_load(ctr) == 0);
#ifdef PDROUTER_DEBUG
	mem_section(false);
#endif
	/* Our loads from the table come before the line is clear.  Pairs with oldest_reader()'s
	 * acquire: what rcu_poll() then frees is written after we are done. */
	shm_store_release(ctr, 0);
}

struct rcu_writer {
	struct seg *seg;
	struct rcu_arena arenas[SHM_ALL_ARENAS]; /* those of keys last */
};

struct rcu_writer *
rcu_writer_new(struct seg *seg)
{
	struct rcu_writer *w = MEM_NEW(struct rcu_writer);

	w->seg = seg;
	shm_store(&seg->rcu->gp, RCU_STEP);
	return w;
}

void
rcu_writer_free(struct rcu_writer **w)
{
	free(*w);
	*w = NULL;
}

static unsigned char *
arena_at(const struct rcu_writer *w, size_t i)
{
	if (i < SHM_ARENAS)
		return w->seg->arenas + i * w->seg->arena_bytes;
	return w->seg->keys_arenas + (i - SHM_ARENAS) * w->seg->keys_arena_bytes;
}

static struct rcu_arena *
arena_of(struct rcu_writer *w, const void *p)
{
	for (size_t i = 0; i < SHM_ALL_ARENAS; i++)
		if (arena_at(w, i) == p)
			return &w->arenas[i];
	return NULL;
}

static struct rcu_arena *
arena_obtained(struct rcu_writer *w, const void *p)
{
	struct rcu_arena *a = arena_of(w, p);

	assert(a != NULL && a->use == ARENA_OBTAINED);
	return a;
}

/* A free one of those from `first` to `end` - 1. */
static void *
obtain(struct rcu_writer *w, size_t first, size_t end)
{
	(void)rcu_poll(w);
	for (size_t i = first; i < end; i++) {
		if (w->arenas[i].use != ARENA_FREE)
			continue;
		w->arenas[i].use = ARENA_OBTAINED;
		return arena_at(w, i);
	}
	return NULL;
}

void *
rcu_arena_get(struct rcu_writer *w)
{
	return obtain(w, 0, SHM_ARENAS);
}

void *
rcu_keys_arena_get(struct rcu_writer *w)
{
	return obtain(w, SHM_ARENAS, SHM_ALL_ARENAS);
}

void
rcu_arena_put(struct rcu_writer *w, void *arena)
{
	arena_obtained(w, arena)->use = ARENA_FREE;
}

/* A pointer has been switched from the table in `prev` to the one in `next`; NULL: there is none. */
static void
switched(struct rcu_writer *w, struct rcu_arena *prev, struct rcu_arena *next)
{
	struct rcu_domain *d = w->seg->rcu;
	const uint64_t gp = shm_load(&d->gp) + RCU_STEP;

	/*
	 * Pointer before gp: a reader that shows the new gp must have seen the new pointer. Pointer
	 * before the scan (oldest_reader(), at any later time): a reader whose line it misses must
	 * see the new pointer.  Pairs with rcu_enter()'s exchange between line and pointer.
	 */
	shm_mb();
	shm_store(&d->gp, gp);
	if (next != NULL)
		next->use = ARENA_CURRENT;
	if (prev != NULL) {
		prev->use = ARENA_RETIRED;
		prev->cookie = gp;
		prev->retired_ms = clock_ms();
	}
}

void
rcu_publish(struct rcu_writer *w, void *arena)
{
	struct rcu_domain *d = w->seg->rcu;
	struct rcu_arena *next = arena_obtained(w, arena), *prev = arena_of(w, rcu_current(w));
	const struct table *t = arena;

	assert(table_intact(t, w->seg->arena_bytes));
	/* A release: the table's bytes before the pointer to them.  Pairs with rcu_enter()'s
	 * dereference. */
	shm_assign(d->table, t);
	switched(w, prev, next);
}

void
rcu_publish_keys(struct rcu_writer *w, void *arena)
{
	struct rcu_domain *d = w->seg->rcu;
	struct rcu_arena *next = arena != NULL ? arena_obtained(w, arena) : NULL;
	struct rcu_arena *prev = d->keys != NULL ? arena_of(w, d->keys) : NULL;
	const struct api_keys *keys = arena;

	assert(keys == NULL || api_keys_intact(keys, w->seg->keys_arena_bytes));
	if (next == NULL && prev == NULL)
		return;
	/* A release: the table's bytes before the pointer to them.  Pairs with rcu_keys()'s dereference. */
	shm_assign(d->keys, keys);
	switched(w, prev, next);
}

/* The oldest gp any reader is inside a section with; UINT64_MAX if none is. */
static uint64_t
oldest_reader(const struct seg *seg)
{
	uint64_t oldest = UINT64_MAX;

	/* only workers read, and each restores its own line (shm/own.h) */
	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++) {
		/*
		 * A clear line means that its reader's loads are done, so the arena may be written
		 * again.  Pairs with rcu_leave()'s release.  The scan as a whole comes after the
		 * full barrier of rcu_publish(), which pairs with rcu_enter()'s: a line that is not
		 * seen here belongs to a reader of the new table.
		 */
		const uint64_t ctr = shm_load_acquire(&seg->readers[i].ctr);

		if ((ctr & RCU_ACTIVE) != 0 && ctr - RCU_ACTIVE < oldest)
			oldest = ctr - RCU_ACTIVE;
	}
	return oldest;
}

static void
arena_reclaim(struct rcu_writer *w, size_t i)
{
	w->arenas[i].use = ARENA_FREE;
#ifdef PDROUTER_DEBUG
	/* a late reader fails table_intact() */
	memset(arena_at(w, i), RCU_POISON,
		i < SHM_ARENAS ? w->seg->arena_bytes : w->seg->keys_arena_bytes);
#endif
}

unsigned
rcu_poll(struct rcu_writer *w)
{
	const uint64_t oldest = oldest_reader(w->seg);
	unsigned waiting = 0;

	for (size_t i = 0; i < SHM_ALL_ARENAS; i++) {
		if (w->arenas[i].use != ARENA_RETIRED)
			continue;
		if (oldest >= w->arenas[i].cookie)
			arena_reclaim(w, i);
		else
			waiting++;
	}
	return waiting;
}

uint64_t
rcu_cookie(const struct rcu_writer *w)
{
	return shm_load(&w->seg->rcu->gp) + RCU_STEP; /* gp after the publication that retires it */
}

bool
rcu_passed(const struct rcu_writer *w, uint64_t cookie)
{
	return shm_load(&w->seg->rcu->gp) >= cookie && oldest_reader(w->seg) >= cookie;
}

const struct table *
rcu_current(const struct rcu_writer *w)
{
	return w->seg->rcu->table; /* ours alone to write */
}

void
rcu_reap(struct seg *seg, uint32_t slot)
{
	/*
	 * No order needed: the process is gone, and by the time waitpid() says so all that it had
	 * stored is out; oldest_reader() runs in this process; and fork() puts this store before the
	 * first rcu_enter() of the slot's next process.  Earlier than waitpid() it would be wrong.
	 */
	shm_store(&seg->readers[slot].ctr, 0);
}

uint64_t
rcu_oldest(const struct seg *seg)
{
	return oldest_reader(seg);
}

const struct rcu_arena *
rcu_arena_read(const struct rcu_writer *w, size_t i)
{
	return &w->arenas[i];
}
