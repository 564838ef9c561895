/* The router of this host: its configuration, and the process that follows it. */
#pragma once
#include "master/pdfleet/routers.h"
#include "master/pdfleet/runner.h"
#include "master/topology/render.h"

#define ROUTER_UNIT "pdrouter"

enum router_change {
	ROUTER_NONE,
	ROUTER_START,  /* it does not run */
	ROUTER_RELOAD, /* its file, or the configuration in force, is another one */
	ROUTER_REMOVE, /* the fleet file has no router on this host */
};

/* What is printed of a change; all NULL of ROUTER_NONE. */
struct router_words {
	const char *action;  /* plan and apply */
	const char *differs; /* status: how the router differs from the fleet file */
};
extern const struct router_words router_words[];

struct router_unit {
	const struct topo_plan *plan;
	const struct runner *runner;
	const char *control;     /* its control socket; NULL: no router on this host */
	struct topo_files files; /* one, or none */
	enum router_change change;
	struct unit_status status;
};

/* 0, or -1 after a message; *ret is to be freed in both cases. */
int router_unit_look(const struct topo_plan *p, const struct topo_host *h, const struct runner *r,
	const struct routers *routers, struct router_unit *ret);
/* As if the fleet file had no router on this host. */
void router_unit_give_up(struct router_unit *u);
void router_unit_free(struct router_unit *u);

/* Prints what u->change, which is one, does to the router. */
void router_unit_say(const struct router_unit *u);
/* Does what u->change says.  0, or -1 after a message; the former file is back then. */
int router_unit_apply(const struct router_unit *u);
