/*
 * Torture of the shared structures: what the parts share.  README.md says what each part does.
 *
 * Children are processes, or threads under TSan; a *life* is one child from its start to its end.
 * The main program is the master: it publishes, stops, kills, reaps.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/seg.h"

struct rcu_writer;

#define CHILDREN 8u /* also the number of worker slots; a child's number is its slot */
#define ENDPOINTS 3u
#define RECORDED 5u /* endpoints after those, for the recorders alone */

/* What must not be.  Names and meanings: torture.c. */
enum bad {
	BAD_READ,
	BAD_ROW,
	BAD_ARENA,
	BAD_LIMIT,
	BAD_SUM,
	BAD_LEAK,
	BAD_LOST,
	BAD_EARLY,
	BAD_NOTICE,
	BAD_GEN,
	BAD_TORN,
	BAD_OLD,
	BAD_TRIALS,
	BAD_OUT,
	BAD_EJECTED,
	BAD_FOREVER,
	BAD_RATE,
	BAD_HINT,
	BAD_CHECK,
	BAD_IDLE,
	BAD_DEATH,
	BAD_N
};

enum end {
	END_NOT,
	END_LEAVE, /* put everything back and return */
	END_DIE    /* threads only: return at once, as if killed */
};

struct life {
	uint32_t child;
	uint64_t rnd;
	const uint64_t *end; /* enum end; W: master */
};

extern struct seg *seg;

/* Counts one; from any process. */
void bad(enum bad what);
/* Zeroed memory that all processes of the run see; made before any fork, never freed. */
void *shared(size_t bytes);
enum end life_end(const struct life *l);
uint64_t next_random(uint64_t *state);
void spin(uint64_t turns);
/* For rnd_u64(): each life draws its own, so a seed repeats it. */
void rnd_seed(uint64_t seed);

/* Sequentially consistent, and not the primitives under test. */
#define seen_get(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define seen_set(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define seen_add(p, n) __atomic_add_fetch((p), (n), __ATOMIC_SEQ_CST)

/* Each part: set up once, its bodies, what the master does for it. */
void readers_init(void);
void reader(struct life *l);
void reader_bury(uint32_t child);
bool publish(void); /* false if all arenas wait for readers */
const struct rcu_writer *publisher(void);
void readers_settle(void);
void readers_report(void);

void reservers_init(void);
void reservers_calm(void);
void reservers_storm(void);
void reserver(struct life *l);
void reserver_bury(uint32_t child);
void reservers_settle(void);
void reservers_report(void);

void arrivals_init(void);
void arrivals_calm(void);
void arrivals_storm(void);
void arriver(struct life *l);
void arriver_bury(uint32_t child);
void arrivals_settle(void);
void arrivals_report(void);

#define WAITERS 4u /* children 0 .. 3 */
void flags_init(void);
void waiter(struct life *l);
void waiter_bury(uint32_t child);
void waiter_wake(uint32_t child);
void notifier(struct life *l);
void notifier_bury(uint32_t child);
void flags_settle(void);
void flags_report(void);

void recorders_init(void);
void recorders_calm(void);
void recorders_storm(void);
void recorder(struct life *l);
void recorder_bury(uint32_t child);
void recorders_settle(void);
void recorders_report(void);

void queuers_init(void);
void queuers_calm(void);
void queuers_storm(void);
void queuer(struct life *l);
void queuer_bury(uint32_t child);
void queuer_wake(uint32_t child);
void queuers_settle(void);
void queuers_report(void);

void changes_init(void);
void changer(struct life *l);
void requester(struct life *l);
void changes_settle(void);
void changes_report(void);

void announce_init(void);
void announcer(struct life *l);
void listener(struct life *l);
void announce_settle(void);
void announce_report(void);

void noters_init(void);
void noter(struct life *l);
void collector(struct life *l);
void noters_settle(void);
void noters_report(void);

void indexers_init(void);
void indexer(struct life *l);
void scribbler(struct life *l);
void indexers_settle(void);
void indexers_report(void);
