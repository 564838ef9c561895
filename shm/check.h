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
