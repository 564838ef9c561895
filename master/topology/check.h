/* Inside master/topology/: what is wrong, beside what placing, ports and texts find. */
#pragma once
#include "master/topology/engine.h"

void topo_check_names(struct topo_plan *p);
void topo_check_roles(struct topo_plan *p);
void topo_check_hosts(struct topo_plan *p);
void topo_check_router(struct topo_plan *p);
/* The router's file as pdrouter would read it; to be called on a plan without findings. */
void topo_check_router_file(struct topo_plan *p);
