/*
 * Which engines have the beginning of a prompt: looked up for a selection of policy cache_aware, and kept for the next
 * prompts once an engine is chosen (shm/prefix.h).
 *
 * Process: worker, inside the read section.  Other policies cost nothing here.
 * Ownership: the worker has one struct cached, made at its start.  What a selection points to is valid until the next
 * prompt is looked up.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/schedule/select.h"

struct cached;
struct connector;
struct demand;
struct reservation;
struct worker;

/* NULL: shared_memory.prefix_index is 0. */
struct cached *cached_new(struct worker *w);
void cached_free(struct cached **);

/* Looks up the prompt where the policy of a role that the connector asks needs it.  `one`: the role whose engine serves
 * a connector with one engine. */
void cached_look(struct worker *w, const struct demand *d, const struct connector *c, enum role one,
	struct selection s[ROLE_N]);
/* The endpoint of the reservation was chosen by that selection: its engine will have the prompt.  Once for a slot, also
 * if another attempt takes the slot over. */
void cached_keep(struct worker *w, const struct selection *s, struct reservation *r);
