/* From a fleet file and its template to engines, and to all that is wrong with them. */
#pragma once
#include "master/topology/engine.h"

/* Never NULL.  Both arguments must outlive the plan.  The same input gives the same plan. */
struct topo_plan *topo_plan_make(const struct topology *t, const struct topo_template *template);
/* For a host whose files are elsewhere; `paths` must outlive the plan as well. */
struct topo_plan *topo_plan_make_at(const struct topology *t, const struct topo_template *template,
	const struct topo_paths *paths);
/* The same for a caller that writes no pdrouter.yaml: that file is not checked. */
struct topo_plan *topo_plan_engines(const struct topology *t, const struct topo_template *template);
/* NULL is fine; *p becomes NULL. */
void topo_plan_free(struct topo_plan **p);
