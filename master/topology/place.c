#include "master/topology/place.h"

#include <stdio.h>
#include <stdlib.h>

#include "master/topology/finding.h"
#include "shm/base/mem.h"

#define KEY_SIZE 64

/* The engine that has the i-th GPU of each host. */
struct taken {
	const struct topo_engine *(*by)[TOPO_GPUS_MAX];
};

/* Hosts that a replica may run on. */
struct candidates {
	const struct topo_host **v;
	size_t n;
};

static size_t
number_of(const struct topo_plan *p, const struct topo_host *h)
{
	return (size_t)(h - p->t->hosts);
}

static bool
gpus_are_planned(const struct topo_plan *p, const struct topo_host *h)
{
	bool own_command = p->t->engine.command.n > 0;

	return h->gpus.n > 0 || (p->template->needs_gpus != 0 && !own_command);
}

/* The group's hosts that exist; a name that is none is a finding. */
static struct candidates
candidates_of(struct topo_plan *p, enum topo_role role)
{
	const struct topo_group *g = &p->t->groups[role];
	struct candidates c = {mem_array(g->hosts.n + p->t->nhosts, sizeof(*c.v)), 0};
	const struct topo_host *h;
	char key[KEY_SIZE];

	for (size_t i = 0; i < g->hosts.n; i++) {
		h = topo_host(p->t, g->hosts.v[i].text);
		(void)snprintf(key, sizeof(key), "%s.hosts[%zu]", topo_role_name(role), i);
		if (h == NULL)
			topo_found(p, p->t->path, g->hosts.v[i].line, key, "no host is named %.80s",
				g->hosts.v[i].text);
		else
			c.v[c.n++] = h;
	}
	for (size_t i = 0; g->hosts.n == 0 && i < p->t->nhosts; i++)
		c.v[c.n++] = &p->t->hosts[i];
	return c;
}

/* --- what overrides ask for
 * ---------------------------------------------------------------------- */

static void
take_named_gpu(struct topo_plan *p, struct taken *t, struct topo_engine *e, uint16_t gpu)
{
	const struct topo_gpus *have = &e->host->gpus;
	const struct topo_engine **by = t->by[number_of(p, e->host)];
	size_t i = 0;

	while (i < have->n && have->v[i] != gpu)
		i++;
	if (i == have->n)
		topo_found(p, p->t->path, e->override->gpus.line, e->name,
			"host %.60s has no GPU %u", e->host->name, gpu);
	else if (by[i] != NULL)
		topo_found(p, p->t->path, e->override->gpus.line, e->name,
			"GPU %u of %.60s is asked for twice: %.80s has it", gpu, e->host->name,
			by[i]->name);
	else
		by[i] = e;
}

static void
place_named(struct topo_plan *p, struct taken *t, struct topo_engine *e, const struct candidates *c)
{
	const struct topo_override *o = e->override;

	if (o == NULL)
		return;
	e->host = o->host != NULL ? topo_host(p->t, o->host) : NULL;
	if (o->host != NULL && e->host == NULL)
		topo_found(p, p->t->path, o->line, e->name, "no host is named %.80s", o->host);
	if (o->gpus.line == 0)
		return;
	if (o->host == NULL && c->n == 1)
		e->host = c->v[0];
	if (o->host == NULL && c->n > 1)
		topo_found(p, p->t->path, o->gpus.line, e->name,
			"gpus of a replica need its host: the group has several");
	if (o->gpus.n != topo_ranks(e->group))
		topo_found(p, p->t->path, o->gpus.line, e->name,
			"%zu GPUs are named, but the engine has %u ranks", o->gpus.n,
			topo_ranks(e->group));
	e->gpus = o->gpus;
	for (size_t i = 0; e->host != NULL && i < o->gpus.n; i++)
		take_named_gpu(p, t, e, o->gpus.v[i]);
}

/* --- what is chosen
 * ------------------------------------------------------------------------------ */

static size_t
count_free(const struct topo_plan *p, const struct taken *t, const struct topo_host *h)
{
	size_t n = 0;

	for (size_t i = 0; i < h->gpus.n; i++)
		n += t->by[number_of(p, h)][i] == NULL;
	return n;
}

/* Gives the engine GPUs of its host, decode engines from the last on, in ascending order. */
static void
take_gpus(struct topo_plan *p, struct taken *t, struct topo_engine *e)
{
	const struct topo_gpus *have = &e->host->gpus;
	const struct topo_engine **by = t->by[number_of(p, e->host)];
	size_t left = topo_ranks(e->group);

	for (size_t k = 0; left > 0 && k < have->n; k++) {
		size_t i = e->role == TOPO_DECODE ? have->n - 1 - k : k;

		if (by[i] == NULL) {
			by[i] = e;
			left--;
		}
	}
	for (size_t i = 0; i < have->n; i++)
		if (by[i] == e)
			e->gpus.v[e->gpus.n++] = have->v[i];
}

static bool
fits(const struct topo_plan *p, const struct taken *t, const struct topo_engine *e,
	const struct topo_host *h)
{
	return !gpus_are_planned(p, h) || count_free(p, t, h) >= topo_ranks(e->group);
}

static void
does_not_fit(struct topo_plan *p, const struct taken *t, const struct topo_engine *e,
	const struct candidates *c)
{
	char key[KEY_SIZE];
	size_t most = 0;

	for (size_t i = 0; i < c->n; i++)
		if (count_free(p, t, c->v[i]) > most)
			most = count_free(p, t, c->v[i]);
	(void)snprintf(key, sizeof(key), "%s.replicas", topo_role_name(e->role));
	topo_found(p, p->t->path, e->group->line, key,
		"replica %u does not fit: it needs %u GPUs on one host, and no host of the group "
		"has more than %zu left",
		e->replica, topo_ranks(e->group), most);
}

static void
place_chosen(struct topo_plan *p, struct taken *t, struct topo_engine *e, struct candidates c)
{
	if (e->override != NULL && e->override->gpus.line != 0)
		return; /* named */
	if (e->host != NULL)
		c = (struct candidates){&e->host, 1};
	else if (e->override != NULL && e->override->host != NULL)
		return; /* its host does not exist, which is a finding already */
	for (size_t i = 0; i < c.n; i++) {
		const struct topo_host *h = c.v[(e->replica + i) % c.n];

		if (!fits(p, t, e, h))
			continue;
		e->host = h;
		if (gpus_are_planned(p, h))
			take_gpus(p, t, e);
		return;
	}
	if (c.n > 0)
		does_not_fit(p, t, e, &c);
}

void
topo_place(struct topo_plan *p)
{
	struct taken t = {mem_array(p->t->nhosts + 1, sizeof(*t.by))};
	struct candidates c[TOPO_ROLE_N];

	for (unsigned role = 0; role < TOPO_ROLE_N; role++)
		c[role] = candidates_of(p, role);
	for (size_t i = 0; i < p->nengines; i++)
		place_named(p, &t, &p->engines[i], &c[p->engines[i].role]);
	for (size_t i = 0; i < p->nengines; i++)
		place_chosen(p, &t, &p->engines[i], c[p->engines[i].role]);
	for (unsigned role = 0; role < TOPO_ROLE_N; role++)
		free(c[role].v);
	free(t.by);
}
