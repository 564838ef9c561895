/* The commands that converge this host to the fleet file: plan, apply, roll; and remove, which is its end. */
#pragma once
#include "master/pdfleet/runner.h"

struct apply_options {
	const char *host; /* NULL: that of this machine */
	unsigned start_s; /* an engine is healthy by then, or goes back to its former files */
	unsigned drain_s; /* the longest wait for requests of a drained engine */
	bool yes;         /* the only engine of a role is restarted as well */
	bool keep_drains;
	char *const *only; /* roll: these engines; nonly 0: all */
	int nonly;
};

/* All return an exit code. */
/* Prints what apply would do, and changes nothing: 3 if that is anything. */
int apply_show(const struct topo_plan *p, const struct runner *r, const struct apply_options *o);
int apply_run(const struct topo_plan *p, const struct runner *r, const struct apply_options *o);
/* Restarts the engines of this host, one at a time per role.  Other differences are for apply. */
int apply_roll(const struct topo_plan *p, const struct runner *r, const struct apply_options *o);
/* Stops the engines and the router of this host, and removes their files; without o->yes it shows them, and changes nothing. */
int apply_remove(const struct topo_plan *p, const struct runner *r, const struct apply_options *o);
