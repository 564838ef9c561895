/*
 * What a process uses of the machine: each process says it of itself, once a second, in its process slot.  No other
 * process could: children are not dumpable, so with the unit's ProtectProc= the master does not see their folders of /proc,
 * and their own filter of system calls lets them open no file.  So the files are opened before.
 *
 * Process: all; the worker that answers /metrics reads.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/seg.h"

/* A process's own.  It owns two descriptors. */
struct usage {
	int statm, fds;    /* files of /proc; -1: there is no /proc */
	uint64_t start_ms; /* wall clock */
	uint64_t max_fds;
	uint64_t next_ms; /* clock_ms() of the next report */
};

/* Before the process's system calls are filtered. */
void usage_begin(struct usage *u);
/* Closes the descriptors. */
void usage_end(struct usage *u);
/* To be called more often than once a second: all but one call a second returns at once.  `fds`: number of the
 * process's open descriptors as far as it knows, 0: it does not; the kernel's number goes before (from Linux 6.2 on). */
void usage_report(struct usage *u, struct seg *seg, uint32_t slot, uint64_t now_ms, uint64_t fds);

/* What a process said last.  0 in a field that it does not know. */
struct usage_said {
	uint64_t cpu_us, resident_bytes, fds, max_fds, start_ms;
};
/* False: there is no such process, or it has not said anything yet. */
bool usage_read(const struct seg *seg, uint32_t slot, struct usage_said *ret);
