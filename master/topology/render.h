/* The files of one host of a plan: pure functions, same input, same bytes. */
#pragma once
#include "master/topology/engine.h"

struct topo_file {
	char *path; /* from the root, without its slash */
	unsigned mode;
	char *bytes;
	size_t n;
};

struct topo_files {
	struct topo_file *v;
	size_t n;
};

/* Of a plan without findings; in an order that does not change. */
struct topo_files topo_render_engine(const struct topo_plan *p, const struct topo_engine *e);
/* No file if the host has no router. */
struct topo_files topo_render_router(const struct topo_plan *p, const struct topo_host *h);
struct topo_files topo_render(const struct topo_plan *p, const struct topo_host *h);
void topo_files_free(struct topo_files *f);
