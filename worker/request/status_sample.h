/*
 * What the status page shows each second, as two events of a stream: `fleet`, the names of pools and engines, which has
 * changed if its number has; and `now`, figures in the order of these names.
 *
 * A sample is made in steps, one in a turn of the loop: no event of a client waits for more than one step.
 *
 * Process: worker.  It reads what all processes write, and trusts no byte of it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/http/http.h"

struct status_sample;
struct worker;

struct status_sample *status_sample_new(struct worker *w);
void status_sample_free(struct status_sample **);
/* The next sample begins; one that was being made is dropped. */
void status_sample_begin(struct status_sample *s);
/* Returns true if more steps follow. */
bool status_sample_step(struct status_sample *s);
/* Of the last whole sample; empty before the first.  They stay until a step has completed the next one. */
struct span status_sample_fleet(const struct status_sample *s);
struct span status_sample_now(const struct status_sample *s);
/* Counts the changes of `fleet`; 0: there is none yet. */
uint64_t status_sample_number(const struct status_sample *s);
