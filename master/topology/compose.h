/* Inside master/topology/: command lines and environments. */
#pragma once
#include "master/topology/engine.h"

/* Fills argv, env, file and endpoint of each engine, and the router's keys of the plan. */
void topo_compose(struct topo_plan *p);
