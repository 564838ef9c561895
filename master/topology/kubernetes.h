/* The same fleet as plain objects of Kubernetes: pure, as render.h is. */
#pragma once
#include "master/topology/render.h"

struct topo_kubernetes {
	const char *image, *router_image; /* of the engines' and the router's containers */
	const char *namespace;
};

/*
 * One file for each group and one for the routers.  A plan that cannot be rendered so gets findings, and there are
 * no files.  The plan had no findings before.
 */
struct topo_files topo_render_kubernetes(struct topo_plan *p, const struct topo_kubernetes *how);
