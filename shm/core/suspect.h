/*
 * Words that cannot be.  Any process may have stored anything in what all processes write, so a reader checks such
 * a word before it indexes, counts or waits by it.  A word that cannot be is counted, reported, and treated as none;
 * its owner or the master repairs it (shm/mend.h, shm/own.h).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Parts of the memory, the labels of pdrouter_memory_repaired_total. */
/* clang-format off */
#define SUSPECTS(X)                                                                                     \
	X(READERS, "readers")                                                                           \
	X(PROCESSES, "processes")                                                                       \
	X(LOADS, "loads")                                                                               \
	X(ROWS, "rows")                                                                                 \
	X(JOURNALS, "journals")                                                                         \
	X(AWAY, "away")                                                                                 \
	X(TALLIES, "tallies")                                                                           \
	X(CLIENTS, "clients")                                                                           \
	X(FLAGS, "flags")                                                                               \
	X(ANNOUNCEMENTS, "announcements")                                                               \
	X(QUEUES, "queues")                                                                             \
	X(SPANS, "spans")                                                                               \
	X(SIBLINGS, "siblings")                                                                         \
	X(METRICS, "metrics")
/* clang-format on */
#define SUSPECT_ENUM(id, name) SUSPECT_##id,
enum suspect_where { SUSPECTS(SUSPECT_ENUM) SUSPECT_N };
#undef SUSPECT_ENUM

/* `index`: of the endpoint, slot, client or pool; `n`: so many words there since the last report. */
typedef void suspect_report(const char *where, uint64_t index, uint64_t n);

/* From now on this process counts in counters[SUSPECT_N], and reports at most one word a second of each part. */
void suspect_begin(uint64_t *counters, suspect_report *report);
void suspect_found(enum suspect_where where, uint64_t index);

/* Returns `cannot_be`. */
static inline bool
suspect(enum suspect_where where, uint64_t index, bool cannot_be)
{
	if (__builtin_expect(cannot_be, 0))
		suspect_found(where, index);
	return cannot_be;
}
