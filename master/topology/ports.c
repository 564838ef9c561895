#include "master/topology/ports.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_address.h"
#include "master/topology/finding.h"
#include "master/topology/parts.h"
#include "master/topology/text.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"

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

static void
no_such_port(struct topo_plan *p, const struct topo_engine *e, const struct topo_port *port)
{
	struct membuf names = {.p = NULL};

	for (size_t i = 0; i < e->ports.n; i++)
		topo_add(&names, "%s%s", i > 0 ? ", " : "", e->ports.v[i].name);
	topo_found(p, p->t->path, port->line, topo_role_name(e->role),
		"these engines have no port named %.40s, but %.*s", port->name,
		names.n > 0 ? (int)names.n : 4, names.n > 0 ? names.p : "none");
	membuf_free(&names);
}

/* A name that the engine's template does not have is a mistake, unless the command is the user's own. */
static void
add_own(struct topo_plan *p, struct topo_engine *e, const struct topo_ports *ports)
{
	struct topo_ports one;

	for (size_t i = 0; i < ports->n; i++) {
		one = (struct topo_ports){&ports->v[i], 1};
		if (find(&e->ports, ports->v[i].name) == NULL && p->t->engine.command.n == 0)
			no_such_port(p, e, &ports->v[i]);
		else
			add(p, e, &one, 0, p->t->path);
	}
}

static void
plan_engine(struct topo_plan *p, struct topo_engine *e)
{
	const struct topo_part *parts[TOPO_PARTS];
	size_t n = topo_parts(p, e, parts);

	for (size_t i = 0; i < n; i++)
		add(p, e, &parts[i]->ports, p->t->port_offset, p->template->path);
	add_own(p, e, &e->group->ports);
	for (size_t i = 0; i < e->ports.n; i++)
		e->ports.v[i].first += e->replica * e->ports.v[i].n;
	if (e->override != NULL)
		add_own(p, e, &e->override->ports);
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
				p->t->router.line, "port_offset"};
	}
}

/* --- collisions
 * ---------------------------------------------------------------------------------- */

static bool
overlap(const struct topo_claim *a, const struct topo_claim *b)
{
	return a->first < b->first + b->n && b->first < a->first + a->n;
}

/* An engine, or the router of a host. */
struct owner {
	const char *name, *file; /* file: "", or of another fleet, with a blank before it */
	const struct topo_claims *claims;
	const char *key; /* where a finding points */
	int line;
};

static struct owner
owner_of(const struct topo_engine *e)
{
	return (struct owner){e->name, "", &e->ports, topo_role_name(e->role), e->group->line};
}

/* Two owners of ports on one host: a finding at the second. */
static void
compare(struct topo_plan *p, const struct topo_host *h, const struct owner *first,
	const struct owner *second)
{
	for (size_t i = 0; i < first->claims->n; i++)
		for (size_t k = 0; k < second->claims->n; k++) {
			const struct topo_claim *a = &first->claims->v[i],
						*b = &second->claims->v[k];

			char *key;

			if (!overlap(a, b))
				continue;
			key = b->key != NULL
				      ? mem_strdup(b->key)
				      : mem_printf("ports: {%.40s: ...} or port_offset", b->name);
			topo_found(p, p->t->path, second->line, second->key,
				"port %u (%.40s) of %.80s on %.60s is taken by %.80s (%.40s)%.200s: "
				"write %s",
				a->first > b->first ? a->first : b->first, b->name, second->name,
				h->name, first->name, a->name, first->file, key);
			free(key);
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

static void
add_router_port(struct topo_claims *c, const struct topo_plan *p, const char *name,
	const char *address, int line, const char *key)
{
	const char *colon = strrchr(address, ':');
	uint16_t port = colon != NULL ? conf_port_of(colon + 1) : 0;

	if (port != 0 && c->n < TOPO_CLAIMS_MAX)
		c->v[c->n++] = (struct topo_claim){name, port, 1, p->t->path, line, key};
}

/* A port that engines report to is the router's lmcache.listen, and has its claim. */
static bool
is_reported_to(const struct topo_plan *p, const char *address)
{
	const char *colon = strrchr(address, ':');

	for (size_t i = 0; colon != NULL && i < p->router_ports.n; i++)
		if (p->router_ports.v[i].first == conf_port_of(colon + 1))
			return true;
	return false;
}

void
topo_ports_router(struct topo_plan *p, const struct conf *conf)
{
	const struct {
		const char *name, *address;
	} one[] = {{"lmcache.listen", conf->lmcache_listen},
		{"announce.listen", conf->announce_listen}};

	for (size_t i = 0; i < conf->nadmin_listen; i++)
		if (conf_listen_path(&conf->admin_listen[i]) == NULL)
			add_router_port(&p->config_ports, p, "admin.listen",
				conf->admin_listen[i].text, p->t->router.line, "router.config");
	for (size_t i = 0; i < conf->tls.nlisten; i++)
		add_router_port(&p->config_ports, p, "tls.listen", conf->tls.listen[i].text,
			p->t->router.line, "router.config");
	for (size_t i = 0; i < sizeof(one) / sizeof(one[0]); i++)
		if (one[i].address != NULL && !is_reported_to(p, one[i].address))
			add_router_port(&p->config_ports, p, one[i].name, one[i].address,
				p->t->router.line, "router.config");
}

/* The ports of `listen`, those of router.config, and those that engines report to. */
static struct topo_claims
claims_of_router(const struct topo_plan *p)
{
	struct topo_claims c = p->router_ports;
	const struct topo_texts *listen = &p->t->router.listen;

	for (size_t i = 0; i < p->config_ports.n && c.n < TOPO_CLAIMS_MAX; i++)
		c.v[c.n++] = p->config_ports.v[i];
	for (size_t i = 0; i < listen->n; i++)
		add_router_port(
			&c, p, "listen", listen->v[i].text, listen->v[i].line, "router.listen");
	return c;
}

static struct owner
router_of(const struct topo_plan *p, const struct topo_claims *claims)
{
	return (struct owner){"the router", "", claims, "router.listen", p->t->router.line};
}

void
topo_ports_check(struct topo_plan *p)
{
	struct topo_claims claims = claims_of_router(p);
	struct owner router = router_of(p, &claims), engine, other;

	compare_within(p, &claims, router.line, router.key, router.name);
	for (size_t i = 0; i < p->nengines; i++) {
		const struct topo_engine *e = &p->engines[i];

		engine = owner_of(e);
		compare_within(p, &e->ports, engine.line, engine.key, engine.name);
		for (size_t k = 0; e->host != NULL && k < i; k++) {
			other = owner_of(&p->engines[k]);
			if (p->engines[k].host == e->host)
				compare(p, e->host, &other, &engine);
		}
		if (e->host != NULL && topo_has_router(p->t, e->host))
			compare(p, e->host, &router, &engine);
	}
}

/* All owners of ports of another plan that are on this host, against an owner of this plan. */
static void
compare_beside(struct topo_plan *p, const struct topo_plan *other, const char *file,
	const struct topo_host *h, const struct owner *ours)
{
	struct topo_claims claims = claims_of_router(other);
	struct owner theirs = router_of(other, &claims);

	theirs.file = file;
	for (size_t i = 0; i < other->t->nhosts; i++)
		if (topo_same_host(&other->t->hosts[i], h) &&
			topo_has_router(other->t, &other->t->hosts[i]))
			compare(p, h, &theirs, ours);
	for (size_t i = 0; i < other->nengines; i++) {
		theirs = owner_of(&other->engines[i]);
		theirs.file = file;
		if (topo_same_host(other->engines[i].host, h))
			compare(p, h, &theirs, ours);
	}
}

void
topo_ports_beside(struct topo_plan *p, const struct topo_plan *other)
{
	char *file = mem_printf(" of %s", other->t->path);
	struct topo_claims claims = claims_of_router(p);
	struct owner ours = router_of(p, &claims);

	for (size_t i = 0; i < p->t->nhosts; i++)
		if (topo_has_router(p->t, &p->t->hosts[i]))
			compare_beside(p, other, file, &p->t->hosts[i], &ours);
	for (size_t i = 0; i < p->nengines; i++) {
		ours = owner_of(&p->engines[i]);
		compare_beside(p, other, file, p->engines[i].host, &ours);
	}
	free(file);
}
