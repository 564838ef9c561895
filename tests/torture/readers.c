/*
 * The domain: the master publishes tables as fast as it can, readers look at them.
 *
 * Oracle: a table's checksum and version do not change inside a section.  The program is built with
 * PDROUTER_DEBUG, so that an arena is poisoned the moment it is taken for free.  When all readers are
 * dead and reaped, no arena waits.
 *
 * The endpoint of each table has a row of that table's version.  The master says UP as publish.c does: for the
 * newest row, once rcu_passed() says that nobody reads an older table.  The state word's time of slow start
 * holds the version for which UP was said.  Oracle: no reader finds a newer version there than its table's.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "shm/load.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "tests/torture/torture.h"

#define NOISE 16u
#define UP_EP 0u /* slot of the endpoint whose state changes */

static struct readers {
	struct seen {
		_Alignas(SHM_LINE) uint64_t reads;
	} seen[CHILDREN];
	struct {
		_Alignas(SHM_LINE) uint64_t word;
	} noise[NOISE]; /* W: all readers, master */
} * readers;

static struct rcu_writer *writer;
static uint64_t version, no_arena, killed_inside;
static uint64_t row_version, row_cookie; /* the row that is to be UP; 0: none */
static uint64_t ups;

void
readers_init(void)
{
	readers = shared(sizeof(*readers));
	writer = rcu_writer_new(seg);
	(void)publish();
}

/*
 * Stores to lines that another CPU owns fill the store buffer, so that what the section begins with
 * stays in it for long: where a barrier is missing, that shows.  Readers make noise before a section,
 * the publisher before it switches the pointer: each takes the lines away from the other.  Every
 * fourth time, since it takes most of the time.
 */
static void
make_noise(uint64_t r)
{
	for (uint32_t i = 0; i < NOISE; i++)
		__atomic_store_n(&readers->noise[i].word, r, __ATOMIC_RELAXED);
}

static bool
same(const struct table *t, uint64_t v)
{
	return t->version == v && table_intact(t, seg->arena_bytes);
}

/* False if the life ends inside the section. */
static bool
section(struct life *l)
{
	const uint64_t r = next_random(&l->rnd);
	const struct table *t;
	uint64_t v;
	bool good;

	if (r % 4 == 0)
		make_noise(r);
	t = rcu_enter(seg, l->child);
	v = t->version;
	good = same(t, v);
	if (ep_ramp_from(seg, UP_EP) > v)
		bad(BAD_ROW);
	if ((r >> 8 & 15) == 0) { /* most sections are short */
		spin(r >> 16 & 1023);
		good = good && same(t, v);
	}
	if (!good)
		bad(BAD_READ);
	readers->seen[l->child].reads++;
	if (life_end(l) != END_NOT)
		return false;
	rcu_leave(seg, l->child);
	return true;
}

void
reader(struct life *l)
{
	while (section(l)) {
		/* with few CPUs: be preempted outside, so that arenas come free */
		if (readers->seen[l->child].reads % 256 == 0)
			(void)sched_yield();
	}
}

void
reader_bury(uint32_t child)
{
	killed_inside += seg->readers[child].ctr != 0;
	rcu_reap(seg, child);
}

static void
say_up(void)
{
	if (row_version == 0 || !rcu_passed(writer, row_cookie))
		return;
	ep_state_recovered(seg, UP_EP, row_version);
	row_version = 0;
	ups++;
}

bool
publish(void)
{
	struct table_builder b;
	void *arena = rcu_arena_get(writer);
	struct table *t;
	uint64_t cookie;

	say_up();
	if (arena == NULL) {
		no_arena++;
		return false;
	}
	t = table_begin(&b, arena, seg->arena_bytes, 1, 1); /* small, so that they are many */
	t->version = t->config = ++version;
	table_endpoint_at(&b, 0)->tag = (uint32_t)ep_tag(seg, 0);
	table_pool_at(&b, 0)->name = table_str(&b, "torture");
	if (table_end(&b) != 0) {
		fprintf(stderr, "a small table did not fit its arena\n");
		exit(2);
	}
	if (version % 4 == 0)
		make_noise(version);
	cookie = rcu_cookie(writer);
	rcu_publish(writer, arena);
	if (row_version == 0) {
		row_version = version;
		row_cookie = cookie;
	}
	say_up(); /* at once, if nobody reads */
	return true;
}

const struct rcu_writer *
publisher(void)
{
	return writer;
}

static uint64_t
reads(void)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < CHILDREN; i++)
		n += readers->seen[i].reads;
	return n;
}

void
readers_settle(void)
{
	static uint64_t before;

	if (rcu_poll(writer) > 0)
		bad(BAD_ARENA);
	if (reads() == before)
		bad(BAD_IDLE);
	before = reads();
}

void
readers_report(void)
{
	printf("domain: publications=%" PRIu64 " found_no_arena=%" PRIu64 " reads=%" PRIu64
	       " killed_in_section=%" PRIu64 " said_up=%" PRIu64 "\n",
		version, no_arena, reads(), killed_inside, ups);
	rcu_writer_free(&writer);
}
