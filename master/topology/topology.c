/* Looks things up in a fleet file that has been read. */
#include "master/topology/topology.h"

#include <string.h>

const char *
topo_role_name(unsigned role)
{
	static const char *const names[] = {"prefill", "decode", "engines"};

	return names[role];
}

struct topo_setting *
topo_setting(const struct topo_settings *v, const char *name)
{
	for (size_t i = 0; i < v->n; i++)
		if (strcmp(v->v[i].name, name) == 0)
			return &v->v[i];
	return NULL;
}

const struct topo_host *
topo_host(const struct topology *t, const char *name)
{
	for (size_t i = 0; i < t->nhosts; i++)
		if (strcmp(t->hosts[i].name, name) == 0)
			return &t->hosts[i];
	return NULL;
}

bool
topo_same_host(const struct topo_host *a, const struct topo_host *b)
{
	return strcasecmp(a->address, b->address) == 0;
}

bool
topo_has_router(const struct topology *t, const struct topo_host *h)
{
	for (size_t i = 0; i < t->router.hosts.n; i++)
		if (strcmp(t->router.hosts.v[i].text, h->name) == 0)
			return true;
	return false;
}

const struct topo_override *
topo_override(const struct topo_group *g, uint32_t replica)
{
	for (size_t i = 0; i < g->noverrides; i++)
		if (g->overrides[i].replica == replica)
			return &g->overrides[i];
	return NULL;
}
