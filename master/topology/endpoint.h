/* Inside master/topology/: engines as the endpoints of a pool. */
#pragma once
#include "master/topology/engine.h"
#include "shm/base/mem.h"

/* The port for clients; 0: it has none. */
uint32_t topo_api_port(const struct topo_engine *e);
/* False: the engines have both roles. */
bool topo_is_split(const struct topo_plan *p);
/* The engine as an entry of a pool: keys and values, without the braces. */
void topo_router_entry(struct membuf *out, const struct topo_engine *e);
/* The engine's address as the router has it; the caller frees it. */
char *topo_url(const struct topo_engine *e);
/* All engines, as the text of an endpoints_file.  Of a plan without findings; the caller frees the members. */
struct conf_fleet topo_endpoints(const struct topo_plan *p);
