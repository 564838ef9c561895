/* Inside master/topology/: which host and which GPUs each engine gets. */
#pragma once
#include "master/topology/engine.h"

/*
 * Hosts and GPUs that overrides name are taken first.  The other replicas take turns over the hosts of their
 * group.  Prefill engines take GPUs from the first on, decode engines from the last on, so that a group
 * can grow without moving the other one.
 */
void topo_place(struct topo_plan *p);
