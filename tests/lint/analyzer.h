/*
 * Included before everything when clang-tidy reads a file.  Its analyzer cannot see that TAILQ_REMOVE()
 * of the first element changes the head (the element's back pointer is unknown to it), and so takes
 * `while (!TAILQ_EMPTY(h)) x_end(TAILQ_FIRST(h));` for a use after free.  Here each look at a head finds
 * something new.
 */
#pragma once
#include <sys/queue.h>

void *lint_any(void);

#undef TAILQ_EMPTY
#undef TAILQ_FIRST
#define TAILQ_EMPTY(head) (TAILQ_FIRST(head) == NULL)
#define TAILQ_FIRST(head) ((__typeof__((head)->tqh_first))lint_any())
