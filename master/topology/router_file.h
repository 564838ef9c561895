/* Inside master/topology/: pdrouter.yaml of a fleet. */
#pragma once
#include "master/topology/engine.h"
#include "shm/base/mem.h"

void topo_router_file(const struct topo_plan *p, struct membuf *out);
/* The engine's address as the router has it; the caller frees it. */
char *topo_url(const struct topo_engine *e);
