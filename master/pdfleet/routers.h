/* The routers of a fleet, as this host can speak to them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "master/topology/engine.h"

struct router {
	const struct topo_host *host;
	char *control; /* path of its control socket; NULL: the router is on another host */
	char *url;     /* where it answers /metrics; NULL: nowhere that this host can reach */
	enum { FIGURES_UNTRIED, FIGURES_READ, FIGURES_UNREAD } figures; /* of one on another host */
};

struct routers {
	struct router *v;
	size_t n;
	char *health_path; /* that the routers ask engines for */
};

/* `here`: this host. */
struct routers routers_of(const struct topo_plan *p, const struct topo_host *here);
void routers_free(struct routers *r);

/* Routers of other hosts, and one that does not run, are passed over: they have no drain.  A refusal is a message. */
void routers_drain(const struct routers *r, const char *url);
void routers_undrain(const struct routers *r, const char *url);
/* Whether a router of this host has drained the engine. */
bool routers_have_drained(const struct routers *r, const char *url);

/* What the router of this host has at an engine, as its control socket tells. */
enum router_use {
	ROUTER_USE_UNKNOWN, /* no router of this host answers */
	ROUTER_USE_SERVING,
	ROUTER_USE_DRAINING,
	ROUTER_USE_GONE, /* the router does not know the engine */
	ROUTER_USE_N
};
/* NULL: it is unknown. */
const char *router_use_name(enum router_use use);
struct router_left {
	unsigned long requests, kv;
	enum router_use use;
};
struct router_left routers_left_at(const struct routers *r, const char *url);
/* What routers have at the engine: requests, or KV that is to be fetched.  Of several answers the last one here counts. */
enum routers_load {
	ROUTERS_IDLE, /* a router of this host that does not answer has nothing */
	ROUTERS_UNKNOWN, /* the figures of a router of another host cannot be read, which is a message the first time */
	ROUTERS_BUSY,
};
enum routers_load routers_load_at(struct routers *r, const char *url);
/* What the routers say of an engine; of several answers the last one here counts. */
enum routers_view {
	ROUTERS_NONE,    /* no router that answers knows it */
	ROUTERS_UP,      /* each that answers and knows it may choose it */
	ROUTERS_DRAINED, /* a router does not choose it because it was told so */
	ROUTERS_SILENT,  /* the router of this host does not answer */
	ROUTERS_DOWN,    /* a router does not choose it */
};
enum routers_view routers_see(const struct routers *r, const char *url);
#define ROUTERS_UP_MS 120000 /* routers have probed a new engine by then */
/* No router keeps requests from it. */
bool routers_say_up(const struct routers *r, const char *url);
/* Nothing is left to wait for: a drain ends when someone ends it. */
bool routers_are_settled(const struct routers *r, const char *url);
/* Why a router gives the engine no requests, for a message; the caller frees it. */
char *routers_why_not_up(const struct routers *r, const char *url);
/* The message that ROUTERS_UP_MS are over.  Returns -1. */
int routers_say_late(const struct routers *r, const char *name, const char *url);
/* Whether the router of this host knows the engine. */
bool routers_know(const struct routers *r, const char *url);
