/*
 * A walk over a list whose objects may end, or end each other, while they are visited.
 *
 * A visit may take any object off the list, so no object can be remembered as the next one.  Each visited
 * object moves to the list's tail and carries the walk's number: the walk is over when the head
 * carries it.  The order stays, and an object that is added meanwhile is not visited.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* Returns the next object to visit, or NULL.  `walk` is the number of this walk, greater than
 * those of earlier walks. */
#define walk_next(list, walk)                                                                      \
	({                                                                                         \
		__typeof__(TAILQ_FIRST(list)) walk_obj_ = TAILQ_FIRST(list);                       \
		if (walk_obj_ != NULL && walk_obj_->walked == (walk)) {                            \
			walk_obj_ = NULL;                                                          \
		} else if (walk_obj_ != NULL) {                                                    \
			walk_obj_->walked = (walk);                                                \
			TAILQ_REMOVE(list, walk_obj_, link);                                       \
			TAILQ_INSERT_TAIL(list, walk_obj_, link);                                  \
		}                                                                                  \
		walk_obj_;                                                                         \
	})
