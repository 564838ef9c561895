/* Inside master/topology/: the parts of a template that apply to one engine. */
#pragma once
#include "master/topology/engine.h"

#define TOPO_PARTS 8

/* In the order in which they apply; returns their number. */
static inline size_t
topo_parts(const struct topo_plan *p, const struct topo_engine *e,
	const struct topo_part *ret[TOPO_PARTS])
{
	const struct topo_template *t = p->template;
	const struct topo_part *const role[TOPO_ROLE_N] = {
		[TOPO_PREFILL] = &t->prefill,
		[TOPO_DECODE] = &t->decode,
		[TOPO_ENGINES] = &t->engines,
	};
	const struct topo_connector *c = e->role == TOPO_ENGINES ? NULL : p->connector;
	size_t n = 0;

	ret[n++] = &t->all;
	ret[n++] = role[e->role];
	if (p->t->engine.venv != NULL && p->t->engine.container == NULL && p->container == NULL)
		ret[n++] = &t->venv;
	if (e->gpus.n > 0)
		ret[n++] = &t->gpus;
	if (e->group->data_parallel > 1)
		ret[n++] = &t->data_parallel;
	if (c == NULL)
		return n;
	ret[n++] = &c->all;
	ret[n++] = e->role == TOPO_PREFILL ? &c->prefill : &c->decode;
	if (e->host != NULL && e->host->rdma != NULL)
		ret[n++] = &c->rdma;
	return n;
}
