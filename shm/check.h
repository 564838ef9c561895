/*
 * The invariant checker: walks the whole segment and says what in it breaks an invariant of
 * shm/README.md.  `pdctl check` runs it, debug builds of the master every second, and the tests after
 * whatever they did to the processes.
 *
 * Process: master (or a test in its place): the one that forks, reaps and publishes, so that process
 * slots, endpoint states, tags and tables stand still meanwhile.  Workers and the notifier go on, or
 * stand anywhere: what their next instructions would put right is not reported.
 */
#pragma once
#include <stdint.h>

#include "shm/core/seg.h"

struct rcu_writer;

#define CHECK_LINES 64 /* findings that get a line; all are counted */

/* One finding: "I7 endpoint 3: 5 requests are counted, the rows add up to 4". */
typedef void check_report(const char *line, void *arg);

/*
 * Returns how many findings there are; 0 = all is well.  `build`: as for seg_check().  `w`: whose tables
 * these are; NULL: retired arenas are not looked at.  Reads every page of the segment once, which makes
 * untouched ones take memory.
 */
unsigned check_segment(const struct seg *seg, uint64_t build, const struct rcu_writer *w,
	check_report *report, void *arg);
