/*
 * The invariant checker: walks the whole segment and reports each violation of an invariant of
 * shm/README.md.  `pdctl check` runs it, debug builds of the master run it every second, and tests
 * run it after each fault that they cause.
 *
 * Process: master (or a test in its place).  The master forks, reaps and publishes, so process
 * slots, endpoint states, tags and tables do not change meanwhile.  Workers and the notifier
 * continue, or are stopped anywhere: an inconsistency that their next instructions would remove is
 * not reported.
 */
#pragma once
#include <stdint.h>

#include "shm/core/seg.h"

struct rcu_writer;

#define CHECK_LINES 64 /* findings that get a line; all are counted */

/* One finding: "I7 endpoint 3: 5 requests are counted, the rows add up to 4". */
typedef void check_report(const char *line, void *arg);

/*
 * Returns the number of findings; 0: the segment is consistent.  `build`: as for seg_check().  `w`:
 * the writer of the tables; NULL: retired arenas are not checked.  Reads every page of the segment
 * once, so untouched pages take memory.
 */
unsigned check_segment(const struct seg *seg, uint64_t build, const struct rcu_writer *w,
	check_report *report, void *arg);

/* How far a walk that repairs has come. */
struct check_cursor {
	uint32_t part, unit;
	/* so many walks do not leave out what is not in use, and follow each other at once: after findings */
	uint32_t whole;
	uint64_t began_ms; /* clock_ms() of this walk; 0: none has begun */
};
/*
 * Master: continues the walk for about `most_us`, and repairs what is wrong (shm/mend.h).  A walk begins once a
 * second at most: until then nothing is done.  Words of a living worker
 * that this worker alone writes are left to it (shm/own.h).  Endpoints, clients and flags that are not in use are left
 * out, so that their pages stay untouched.  The unit that it has begun is finished: a slot, a worker, a pool.
 */
void check_mend(struct seg *seg, struct check_cursor *at, uint64_t most_us);
