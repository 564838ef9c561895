/*
 * One version of the shared endpoint table: all its rows, in an arena of fixed size.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct conf;
struct conf_error;
struct fleet;

struct version_stamp {
	uint64_t version;   /* counts publications */
	uint64_t created_s; /* time(2) of the first publication: when the models were created */
};

/* What did not fit into the arena and was left out. */
struct version_cut {
	bool cards;     /* what engines tell of their models */
	bool names;     /* learned model names */
	bool endpoints; /* found endpoints: their no_room is set */
};

/*
 * Builds a version of f->conf and f->order in the arena.  Neither engines with thousands of
 * adapters nor name servers with long answers may keep a new configuration from taking effect:
 * what does not fit is left out: first what engines tell of their models, then model names.
 */
struct version_cut version_build(
	const struct fleet *f, const struct version_stamp *stamp, void *arena);

/* As fleet_check(). */
int version_check(const struct fleet *f, const struct conf *conf, struct conf_error *err);
