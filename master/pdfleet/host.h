/* Which host of the fleet file this machine is. */
#pragma once
#include "master/topology/topology.h"

/*
 * The host that `name` names.  NULL as a name: the host that is named as the machine, else the only one with an
 * address of this machine.  NULL after a message: there is none.
 */
const struct topo_host *host_find(const struct topology *t, const char *name);
