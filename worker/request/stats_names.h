/*
 * The part of the /metrics page that shows what is counted by name: models, and keys of clients.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct exposition;
struct worker;

/* Writes some lines of `metric` from the slot *at on, and moves it.  Returns true if these were the last ones. */
bool stats_names(const struct worker *w, const struct exposition *x, uint32_t metric, uint32_t *at);
uint32_t stats_names_metrics(void);
