/* Two fleets on the same hosts. */
#pragma once
#include "master/topology/engine.h"

/* Adds to the findings of `p` what the two fleets cannot share: names, GPUs, ports, the router of a host.
 * Both plans have no findings of their own. */
void topo_check_beside(struct topo_plan *p, const struct topo_plan *other);
