#include "master/topology/check.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "master/config/conf.h"
#include "master/topology/finding.h"
#include "master/topology/ports.h"
#include "master/topology/router_file.h"
#include "master/topology/text.h"
#include "shm/base/mem.h"

#define NAME_MAX_BYTES 63
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

/* Part of the name of a unit or a folder. */
static bool
is_name(const char *s)
{
	return strlen(s) <= NAME_MAX_BYTES && s[0] != '\0' && strchr(LETTERS, s[0]) != NULL &&
	       s[strspn(s, LETTERS "._-")] == '\0';
}

void
topo_check_names(struct topo_plan *p)
{
	const struct topology *t = p->t;

	if (!is_name(t->name))
		topo_found(p, t->path, topo_line(t, "fleet"), "fleet",
			"%.80s cannot be part of a unit's name: up to %d letters, digits and ._-, a "
			"letter or digit first",
			t->name, NAME_MAX_BYTES);
	for (size_t i = 0; i < t->nhosts; i++)
		if (!is_name(t->hosts[i].name))
			topo_found(p, t->path, t->hosts[i].line, "hosts",
				"%.80s cannot be a host's name: up to %d letters, digits and ._-, a "
				"letter or digit first",
				t->hosts[i].name, NAME_MAX_BYTES);
}

/* --- roles and connector
 * ------------------------------------------------------------------------- */

/* Adds a name of the i-th connector, unless an earlier row of the template has it. */
static void
add_name(struct membuf *out, const struct topo_template *t, size_t i, const char *name)
{
	for (size_t k = 0; k < i; k++)
		if (topo_is_connector(&t->connectors[k], name))
			return;
	topo_add(out, "%s%s", out->n > 0 ? ", " : "", name);
}

/* Says which versions have the connector, or which connectors there are. */
static void
no_connector(struct topo_plan *p)
{
	const struct topo_template *tp = p->template;
	const struct topology *t = p->t;
	struct membuf versions = {.p = NULL}, others = {.p = NULL};

	for (size_t i = 0; i < tp->nconnectors; i++) {
		const struct topo_connector *c = &tp->connectors[i];

		if (topo_is_connector(c, t->connector))
			topo_add(&versions, "%s%s to %s", versions.n > 0 ? ", " : "",
				c->since != NULL ? c->since : "the first",
				c->until != NULL ? c->until : "the newest");
		add_name(&others, tp, i, c->name);
		for (size_t k = 0; k < c->also.n; k++)
			add_name(&others, tp, i, c->also.v[k].text);
	}
	if (versions.n > 0)
		topo_found(p, t->path, topo_line(t, "connector"), "connector",
			"%.40s %.40s has no %.40s: versions %.*s have it", t->engine.kind,
			t->engine.version != NULL ? t->engine.version : "", t->connector,
			(int)versions.n, versions.p);
	else
		topo_found(p, t->path, topo_line(t, "connector"), "connector",
			"%.80s has no connector %.40s, but %.*s", tp->path, t->connector,
			others.n > 0 ? (int)others.n : 4, others.n > 0 ? others.p : "none");
	membuf_free(&versions);
	membuf_free(&others);
}

static void
check_tensor_parallel(struct topo_plan *p)
{
	const struct topo_group *g = p->t->groups;
	const char *wants = topo_tp_refuses(p->connector->tensor_parallel,
		g[TOPO_PREFILL].tensor_parallel, g[TOPO_DECODE].tensor_parallel);

	if (wants != NULL)
		topo_found(p, p->t->path, g[TOPO_DECODE].line, "decode.tensor_parallel",
			"%s needs %s: prefill has %u, decode %u", p->t->connector, wants,
			g[TOPO_PREFILL].tensor_parallel, g[TOPO_DECODE].tensor_parallel);
}

static void
check_data_parallel(struct topo_plan *p)
{
	char key[32];

	for (unsigned role = 0; role < TOPO_ENGINES; role++) {
		(void)snprintf(key, sizeof(key), "%s.data_parallel", topo_role_name(role));
		if (p->t->groups[role].data_parallel > 1)
			topo_found(p, p->t->path, p->t->groups[role].line, key,
				"%s cannot tell data-parallel ranks apart", p->t->connector);
	}
}

static void
check_container(struct topo_plan *p)
{
	const struct topology *t = p->t;
	struct membuf known = {.p = NULL};

	if (t->engine.container == NULL && t->engine.container_args.n > 0)
		topo_found(p, t->path, topo_line(t, "engine.container_args"),
			"engine.container_args", "needs engine.container");
	if (t->engine.container == NULL || p->container != NULL)
		return;
	for (size_t i = 0; i < p->template->ncontainers; i++)
		topo_add(&known, "%s%s", i > 0 ? ", " : "", p->template->containers[i].name);
	topo_found(p, t->path, topo_line(t, "engine.container"), "engine.container_runtime",
		"%.80s has no %.60s, but %.*s", p->template->path, t->engine.runtime,
		known.n > 0 ? (int)known.n : 4, known.n > 0 ? known.p : "none");
	membuf_free(&known);
}

/* Templates compare the numbers of a version, so a number is first. */
static bool
check_version(struct topo_plan *p)
{
	const char *v = p->t->engine.version;

	if (v == NULL || isdigit((unsigned char)v[0]) || p->template->needs_version == 0)
		return true;
	if (v[0] == 'v' && isdigit((unsigned char)v[1]))
		topo_found(p, p->t->path, topo_line(p->t, "engine.version"), "engine.version",
			"%.60s does not begin with a number: write \"%.60s\"", v, v + 1);
	else
		topo_found(p, p->t->path, topo_line(p->t, "engine.version"), "engine.version",
			"%.60s does not begin with a number: write one such as \"0.21.0\"", v);
	return false;
}

/* The template's command line has flags that an older engine refuses. */
static void
check_since(struct topo_plan *p)
{
	const struct topology *t = p->t;
	const char *since = p->template->since;

	if (since != NULL && t->engine.version != NULL && t->engine.command.n == 0 &&
		topo_version_cmp(t->engine.version, since) < 0)
		topo_found(p, t->path, topo_line(t, "engine.version"), "engine.version",
			"%.80s is for %.40s and later: give engine.command, or a template of your own",
			p->template->path, since);
}

void
topo_check_roles(struct topo_plan *p)
{
	const struct topology *t = p->t;
	const struct topo_group *g = t->groups;
	bool split = g[TOPO_PREFILL].line != 0, version_is_good = check_version(p);

	check_container(p);
	if (version_is_good)
		check_since(p);
	if (g[TOPO_ENGINES].line != 0 && (split || g[TOPO_DECODE].line != 0))
		topo_found(p, t->path, g[TOPO_ENGINES].line, "engines",
			"a fleet has engines, or prefill and decode");
	if (split && g[TOPO_DECODE].line == 0)
		topo_found(
			p, t->path, g[TOPO_PREFILL].line, "prefill", "there are no decode engines");
	if (p->nengines == 0)
		topo_found(p, t->path, 0, "", "the fleet has no engines: write prefill and decode");
	if (split && t->connector == NULL)
		topo_found(p, t->path, g[TOPO_PREFILL].line, "connector",
			"is missing: how does the KV cache move from prefill to decode?");
	if (t->engine.version == NULL && p->template->needs_version != 0)
		topo_found(p, t->path, topo_line(t, "engine.kind"), "engine.version",
			"is missing: it decides which connectors %s has", t->engine.kind);
	else if (t->connector != NULL && !split)
		topo_found(p, t->path, topo_line(t, "connector"), "connector",
			"only prefill and decode engines have one");
	else if (t->connector != NULL && p->connector == NULL && version_is_good)
		no_connector(p);
	if (split && g[TOPO_DECODE].line != 0 && p->connector != NULL)
		check_tensor_parallel(p);
	if (p->connector != NULL && p->connector->no_data_parallel != 0)
		check_data_parallel(p);
	for (unsigned role = 0; role < TOPO_ROLE_N; role++)
		for (size_t i = 0; i < g[role].noverrides; i++)
			if (g[role].overrides[i].replica >= g[role].replicas)
				topo_found(p, t->path, g[role].overrides[i].line,
					topo_role_name(role), "there is no replica %u of %u",
					g[role].overrides[i].replica, g[role].replicas);
}

/* --- addresses
 * ----------------------------------------------------------------------------------- */

#define LOOPBACK_TRAP "is the host itself: engines on other hosts cannot reach it"

/* Why other hosts cannot use this address, or NULL. */
static const char *
trap_of(const char *address, bool several)
{
	static const char *const any[] = {"0.0.0.0", "::", "[::]", "*"};
	static const char *const loopback[] = {"localhost", "::1", "ip6-localhost"};
	struct in6_addr ip6;

	for (size_t i = 0; i < sizeof(any) / sizeof(any[0]); i++)
		if (strcmp(address, any[i]) == 0)
			return "is no host's address: it means all addresses";
	if (several && strncmp(address, "127.", 4) == 0)
		return LOOPBACK_TRAP;
	for (size_t i = 0; several && i < sizeof(loopback) / sizeof(loopback[0]); i++)
		if (strcasecmp(address, loopback[i]) == 0)
			return LOOPBACK_TRAP;
	if (address[strspn(address, LETTERS "._-:")] != '\0' ||
		(strchr(address, ':') != NULL && inet_pton(AF_INET6, address, &ip6) != 1))
		return "is neither an address nor a name, without port and brackets";
	return NULL;
}

void
topo_check_hosts(struct topo_plan *p)
{
	const struct topology *t = p->t;
	const char *why;

	if (t->nhosts == 0)
		topo_found(p, t->path, topo_line(t, "hosts"), "hosts", "the fleet has no hosts");
	for (size_t i = 0; i < t->nhosts; i++) {
		const struct topo_host *h = &t->hosts[i];

		why = trap_of(h->address, t->nhosts > 1);
		if (why != NULL)
			topo_found(
				p, t->path, h->line, h->name, "address %.80s %s", h->address, why);
		for (size_t k = 0; k < i; k++)
			if (strcasecmp(t->hosts[k].address, h->address) == 0)
				topo_found(p, t->path, h->line, h->name,
					"address %.80s is that of host %.60s too", h->address,
					t->hosts[k].name);
	}
}

/* --- the router
 * ---------------------------------------------------------------------------------- */

void
topo_check_router(struct topo_plan *p)
{
	const struct topology *t = p->t;
	const struct topo_router *r = &t->router;

	for (size_t i = 0; i < r->hosts.n; i++)
		if (topo_host(t, r->hosts.v[i].text) == NULL)
			topo_found(p, t->path, r->hosts.v[i].line, "router.hosts",
				"no host is named %.80s", r->hosts.v[i].text);
	if (r->line != 0 && r->hosts.n == 0)
		topo_found(p, t->path, r->line, "router.hosts", "is empty");
	if (p->connector != NULL && p->connector->one_router != 0 && r->hosts.n > 1)
		topo_found(p, t->path, r->line, "router.hosts",
			"the engines of %s report to one router only", p->t->connector);
}

void
topo_check_router_file(struct topo_plan *p)
{
	const struct topo_router *r = &p->t->router;
	struct conf_error err;
	struct conf *conf;

	if (r->line == 0)
		return;
	conf = topo_router_conf(p, &err);
	if (conf == NULL)
		topo_found(p, p->t->path, r->line, "router", "pdrouter would refuse %s: %s",
			err.key, err.what);
	else
		topo_ports_router(p, conf);
	conf_free(&conf);
	topo_ports_check(p); /* again: no finding was there, so all are of the new ports */
}
