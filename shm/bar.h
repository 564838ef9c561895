/*
 * Why a request cannot go to an endpoint now: what a worker's selection looks at (worker/schedule/policy.h), for those who
 * explain it.  tests/unit/worker/schedule/bar.c holds both against each other.
 *
 * Process: master.
 */
#pragma once
#include <stdint.h>

#include "shm/table.h"
#include "shm/view.h"

/* clang-format off */
/* In this order: the first that holds is said. */
#define BARS(X)                                                                         \
	X(NONE, "yes")                                                                  \
	X(STATE, "state")            /* it is not up: its state says why */             \
	X(STALE, "new table")        /* the table with this life of its slot is not out */ \
	X(UNRESOLVED, "unresolved")  /* its name has no address */                      \
	X(MODEL, "other model")                                                         \
	X(EJECTED, "ejected")                                                           \
	X(BUSY, "busy")              /* it has answered that it has no room */          \
	X(FULL, "full")              /* as many requests as max_inflight are there */   \
	X(GROUP, "group")            /* no engine of the other role in its group can be chosen */
/* clang-format on */
#define BAR_ENUM(id, word) BAR_##id,
enum bar { BARS(BAR_ENUM) BAR_N };
#undef BAR_ENUM

/* `groups`: a bit for each group number that may be chosen. */
enum bar bar_of(
	const struct table_pick *p, const struct ep_view *e, uint32_t model, uint64_t groups);
const char *bar_word(enum bar bar);
