/* Inside master/topology/: args and env of the fleet file against what the template derives from the plan. */
#pragma once
#include "master/topology/engine.h"

/* Findings: a flag or a variable of the user that overrules the plan. */
void topo_overrule(struct topo_plan *p);
