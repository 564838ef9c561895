/* Inside master/topology/: pdrouter.yaml of a fleet. */
#pragma once
#include "master/topology/engine.h"
#include "shm/base/mem.h"

/* Where the router finds the engines. */
enum topo_source {
	TOPO_LISTED,   /* in the file itself */
	TOPO_FOLLOWED, /* in the fleet file, if the router's fleet_file names it */
};
void topo_router_file(const struct topo_plan *p, enum topo_source source, struct membuf *out);

/* All that comes before the engines: the pool is open. */
void topo_router_head(const struct topo_plan *p, struct membuf *out);
/* The port for clients; 0: it has none. */
uint32_t topo_api_port(const struct topo_engine *e);
/* False: the engines have both roles. */
bool topo_is_split(const struct topo_plan *p);
/* The engine as an entry of a pool: keys and values, without the braces. */
void topo_router_entry(struct membuf *out, const struct topo_engine *e);
/* The engine's address as the router has it; the caller frees it. */
char *topo_url(const struct topo_engine *e);
