/*
 * The source of former engines: a reload may exchange all engines of a role.  The former ones serve until
 * another one is up (linger.h), where they still can: the pool has the same connector, engine and models.
 *
 * Process: master.
 */
#pragma once
#include "master/fleet/discover.h"

struct fleet;
struct formers;

struct formers *formers_new(struct fleet *f, found_fn *found);
void formers_free(struct formers **);

/*
 * f->conf is new, and its endpoints are not folded yet: tells discover.c which former engines stay.  The
 * configuration before must still live.
 */
void formers_apply(struct formers *fs);
