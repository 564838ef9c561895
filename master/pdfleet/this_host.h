/* A plan against the host that this is: addresses, programs, models, devices, disks. */
#pragma once
#include "master/topology/engine.h"

/* Adds findings.  `h` is this host.  Looks names up, so it may take seconds. */
void this_host_check(struct topo_plan *p, const struct topo_host *h);
