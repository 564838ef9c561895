/* Which file is the template of a kind of engine. */
#pragma once
#include "master/topology/template.h"

/*
 * Loads KIND.yaml of the folder `dir` (NULL: fleet.d beside the fleet file), else that of
 * ../share/pdrouter/fleet beside the program's folder.  A `dir` is refused where routers follow the file.
 * Returns 0 and the caller owns *ret, or -1 with *err filled.
 */
int topo_template_find(const struct topology *t, const char *dir, struct topo_template **ret,
	struct conf_error *err);
