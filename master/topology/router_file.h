/* Inside master/topology/: pdrouter.yaml of a fleet. */
#pragma once
#include "master/topology/endpoint.h"
#include "master/topology/engine.h"
#include "shm/base/mem.h"

/* The engines are listed, or the file names the fleet file to follow. */
void topo_router_file(const struct topo_plan *p, struct membuf *out);
/* What pdrouter reads in that file; the caller frees it.  NULL, with *err filled: pdrouter refuses it. */
struct conf *topo_router_conf(const struct topo_plan *p, struct conf_error *err);

/* All that comes before the engines: the pool is open.  `control`: the path of the control socket, if the user gives none;
 * NULL: that of pdrouter. */
void topo_router_head(const struct topo_plan *p, const char *control, struct membuf *out);
