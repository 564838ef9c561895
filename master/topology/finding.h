/* What is wrong with a plan. */
#pragma once
#include "master/topology/engine.h"

/* Adds a finding, unless the plan has the same one already. */
void topo_found(struct topo_plan *p, const char *file, int line, const char *key, const char *fmt,
	...) __attribute__((format(printf, 5, 6)));
/* The fleet file's findings by line, then those of the template. */
void topo_findings_sort(struct topo_plan *p);
