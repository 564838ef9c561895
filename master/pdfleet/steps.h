/*
 * Brings the engines of this host to what the fleet file says.  Each engine has a step; the table in steps.c says what
 * happens in it.  The steps of several engines go on side by side.
 *
 *  remove:   TURN -> DRAIN -> STOP -> GONE
 *  start:    TURN -> START -> HEALTH -> UP -> DONE
 *  restart:  TURN -> DRAIN -> STOP -> START -> HEALTH -> UP -> DONE
 *  undrain:  TURN -> HEALTH -> UP -> DONE
 *  none:     TURN -> HEALTH -> DONE
 *  START or HEALTH goes wrong:  -> BACK -> BACK_HEALTH -> FAILED; without former files -> FAILED
 *  another engine has failed:   TURN -> LEFT
 *
 * No step depends on what an earlier run remembered: a run that is killed anywhere is continued by the next one.
 */
#pragma once
#include "master/pdfleet/members.h"

struct steps {
	const struct topo_plan *plan;
	const struct runner *runner;
	struct routers *routers;
	struct members *members;
	uint64_t start_ms; /* from the start of an engine until it is healthy */
	uint64_t drain_ms; /* from a drain until its requests are over */
	bool keep_drains;  /* of engines that this run has not drained */
	bool yes;          /* the only engine of a role may be restarted as well */
};

/* 0: every engine is as the file says.  1: not all of them; each has had its message. */
int steps_run(struct steps *s);
/* One line for each engine that was stopped before its requests were over; true: there was one. */
bool steps_say_cut(const struct steps *s);

/* Inside steps.c, and for its test: what a step has in the table. */
bool step_is_last(enum step step);
