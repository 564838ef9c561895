/* Inside master/topology/: the port plan. */
#pragma once
#include "master/topology/engine.h"

/*
 * The port of a name is a sum: its first port, plus the replica's number times the ports that one engine
 * needs.  So a port depends on no other engine, and stays when the fleet is scaled.
 */
void topo_ports_plan(struct topo_plan *p);
/* The ports that the parsed pdrouter.yaml has from router.config, for the two checks below. */
void topo_ports_router(struct topo_plan *p, const struct conf *conf);
/* Findings: two claims of one port on one host. */
void topo_ports_check(struct topo_plan *p);
/* Findings of `p`: its claims against those of another fleet on the same hosts.  Both plans have no findings. */
void topo_ports_beside(struct topo_plan *p, const struct topo_plan *other);
