#include "master/topology/ports.h"

#include <string.h>

#include "master/config/conf_address.h"
#include "master/topology/finding.h"
#include "master/topology/parts.h"

#define PORT_MAX 65535u

static struct topo_claim *
find(struct topo_claims *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strcmp(c->v[i].name, name) == 0)
			return &c->v[i];
	return NULL;
}

/* The claim of that name, a new one if there is none. */
static struct topo_claim *
claim(struct topo_plan *p, struct topo_claims *c, const struct topo_port *port, const char *file)
{
	struct topo_claim *have = find(c, port->name);

	if (have != NULL)
		return have;
	if (c->n == TOPO_CLAIMS_MAX) {
		topo_found(p, file, port->line, port->name, "more than %d ports", TOPO_CLAIMS_MAX);
		return NULL;
	}
	c->v[c->n].name = port->name;
	return &c->v[c->n++];
}

/* `offset` is added to the first port of each. */
static void
add(struct topo_plan *p, struct topo_engine *e, const struct topo_ports *ports, uint32_t offset,
	const char *file)
{
	for (size_t i = 0; i < ports->n; i++) {
		const struct topo_port *port = &ports->v[i];
		struct topo_claim *c;

		if (port->for_data_parallel && e->group->data_parallel == 1)
			continue;
		c = claim(p, &e->ports, port, file);
		if (c == NULL)
			return;
		c->n = port->each_rank || c->n > 1 ? topo_ranks(e->group) : 1;
		c->first = port->first + offset;
		c->file = file;
		c->line = port->line;
	}
}

/* A name that the engine's template does not have is a mistake, unless the command is the user's own. */
static void
add_own(struct topo_plan *p, struct topo_engine *e, const struct topo_ports *ports, uint32_t offset)
{
	for (size_t i = 0; i < ports->n; i++)
		if (find(&e->ports, ports->v[i].name) == NULL && p->t->engine.command.n == 0)
			topo_found(p, p->t->path, ports->v[i].line, topo_role_name(e->role),
				"these engines have no port named %.40s", ports->v[i].name);
	add(p, e, ports, offset, p->t->path);
}

static void
plan_engine(struct topo_plan *p, struct topo_engine *e)
{
	const struct topo_part *parts[TOPO_PARTS];
	size_t n = topo_parts(p, e, parts);

	for (size_t i = 0; i < n; i++)
		add(p, e, &parts[i]->ports, p->t->port_offset, p->template->path);
	add_own(p, e, &e->group->ports, 0);
	for (size_t i = 0; i < e->ports.n; i++)
		e->ports.v[i].first += e->replica * e->ports.v[i].n;
	if (e->override != NULL)
		add_own(p, e, &e->override->ports, 0);
	for (size_t i = 0; i < e->ports.n; i++)
		if (e->ports.v[i].first + e->ports.v[i].n - 1 > PORT_MAX)
			topo_found(p, e->ports.v[i].file, e->ports.v[i].line, e->name,
				"port %u (%.40s) is above %u", e->ports.v[i].first,
				e->ports.v[i].name, PORT_MAX);
}

void
topo_ports_plan(struct topo_plan *p)
{
	const struct topo_connector *c = p->connector;
	struct topo_claim *r;

	for (size_t i = 0; i < p->nengines; i++)
		plan_engine(p, &p->engines[i]);
	for (size_t i = 0; c != NULL && i < c->router_ports.n; i++) {
		r = claim(p, &p->router_ports, &c->router_ports.v[i], p->template->path);
		if (r != NULL)
			*r = (struct topo_claim){c->router_ports.v[i].name,
				c->router_ports.v[i].first + p->t->port_offset, 1, p->t->path,
				p->t->router.line};
	}
}

/* --- collisions
 * ---------------------------------------------------------------------------------- */

static bool
overlap(const struct topo_claim *a, const struct topo_claim *b)
{
	return a->first < b->first + b->n && b->first < a->first + a->n;
}

/* Two owners of ports on one host, the second of which is an engine. */
static void
compare(struct topo_plan *p, const char *owner, const struct topo_claims *claims,
	const struct topo_engine *e)
{
	for (size_t i = 0; i < claims->n; i++)
		for (size_t k = 0; k < e->ports.n; k++) {
			const struct topo_claim *a = &claims->v[i], *b = &e->ports.v[k];

			if (a == b || !overlap(a, b))
				continue;
			topo_found(p, p->t->path, e->group->line, topo_role_name(e->role),
				"port %u (%.40s) of %.80s on %.60s is taken by %.80s (%.40s): write "
				"ports: {%.40s: ...} or port_offset",
				a->first > b->first ? a->first : b->first, b->name, e->name,
				e->host->name, owner, a->name, b->name);
		}
}

static void
compare_within(struct topo_plan *p, const struct topo_claims *c, int line, const char *key,
	const char *owner)
{
	for (size_t k = 1; k < c->n; k++)
		for (size_t i = 0; i < k; i++)
			if (overlap(&c->v[i], &c->v[k]))
				topo_found(p, p->t->path, line, key,
					"port %u is asked for twice: %.40s and %.40s of %.80s",
					c->v[k].first, c->v[i].name, c->v[k].name, owner);
}

/* The ports of `listen` and those that engines report to. */
static struct topo_claims
claims_of_router(const struct topo_plan *p)
{
	struct topo_claims c = p->router_ports;
	const struct topo_texts *listen = &p->t->router.listen;

	for (size_t i = 0; i < listen->n && c.n < TOPO_CLAIMS_MAX; i++) {
		const char *colon = strrchr(listen->v[i].text, ':');
		uint16_t port = colon != NULL ? conf_port_of(colon + 1) : 0;

		if (port != 0)
			c.v[c.n++] = (struct topo_claim){
				"listen", port, 1, p->t->path, listen->v[i].line};
	}
	return c;
}

void
topo_ports_check(struct topo_plan *p)
{
	struct topo_claims router = claims_of_router(p);
	const struct topo_texts *hosts = &p->t->router.hosts;

	compare_within(p, &router, p->t->router.line, "router.listen", "the router");
	for (size_t i = 0; i < p->nengines; i++) {
		const struct topo_engine *e = &p->engines[i];

		compare_within(p, &e->ports, e->group->line, topo_role_name(e->role), e->name);
		if (e->host == NULL)
			continue;
		for (size_t k = 0; k < i; k++)
			if (p->engines[k].host == e->host)
				compare(p, p->engines[k].name, &p->engines[k].ports, e);
		for (size_t k = 0; k < hosts->n; k++)
			if (topo_host(p->t, hosts->v[k].text) == e->host)
				compare(p, "the router", &router, e);
	}
}
