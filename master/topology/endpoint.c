#include "master/topology/endpoint.h"

#include <stdlib.h>
#include <string.h>

#include "master/topology/text.h"
#include "shm/base/mem.h"

uint32_t
topo_api_port(const struct topo_engine *e)
{
	for (size_t i = 0; i < e->ports.n; i++)
		if (strcmp(e->ports.v[i].name, "api") == 0)
			return e->ports.v[i].first;
	return 0; /* conf_parse() refuses such a URL */
}

char *
topo_url(const struct topo_engine *e)
{
	const char *address = e->host->address;
	bool ip6 = strchr(address, ':') != NULL;

	return mem_printf(
		"http://%s%s%s:%u", ip6 ? "[" : "", address, ip6 ? "]" : "", topo_api_port(e));
}

void
topo_router_entry(struct membuf *out, const struct topo_engine *e)
{
	char *url = topo_url(e);

	topo_add(out, "url: \"%s\"", url);
	free(url);
	if (e->host->group != NULL) {
		topo_add(out, ", group: ");
		topo_add_yaml(out, e->host->group);
	}
	for (size_t i = 0; i < e->endpoint.n; i++)
		topo_add(out, ", %s: %s", e->endpoint.v[i].name, e->endpoint.v[i].value.text);
}

bool
topo_is_split(const struct topo_plan *p)
{
	return p->t->groups[TOPO_PREFILL].line != 0;
}

/* --- as a list
 * ---------------------------------------------------------------------------------- */

/* The group that comes next in the file; TOPO_ROLE_N: none. */
static unsigned
next_group(const struct topology *t, const bool done[TOPO_ROLE_N])
{
	unsigned best = TOPO_ROLE_N;

	for (unsigned role = 0; role < TOPO_ROLE_N; role++)
		if (t->groups[role].line != 0 && !done[role] &&
			(best == TOPO_ROLE_N || t->groups[role].line < t->groups[best].line))
			best = role;
	return best;
}

static void
add_entry(struct membuf *out, const struct topo_engine *e, enum topo_role role)
{
	topo_add(out, "{role: %s, ", topo_role_name(role));
	topo_router_entry(out, e);
	topo_add(out, "}, ");
}

/* One list in flow style, in which a group's engines are in the line of the group. */
static void
write_list(const struct topo_plan *p, struct membuf *out)
{
	bool done[TOPO_ROLE_N] = {false};
	unsigned role;
	int line = 1;

	topo_add(out, "[");
	while ((role = next_group(p->t, done)) != TOPO_ROLE_N) {
		done[role] = true;
		for (; line < p->t->groups[role].line; line++)
			topo_add(out, "\n");
		for (size_t i = 0; i < p->nengines; i++) {
			if (p->engines[i].role != role)
				continue;
			if (role == TOPO_PREFILL || !topo_is_split(p))
				add_entry(out, &p->engines[i], TOPO_PREFILL);
			if (role == TOPO_DECODE || !topo_is_split(p))
				add_entry(out, &p->engines[i], TOPO_DECODE);
		}
	}
	topo_add(out, "]\n");
}

struct conf_fleet
topo_endpoints(const struct topo_plan *p)
{
	struct membuf out = {.p = NULL};

	write_list(p, &out);
	return (struct conf_fleet){
		.text = out.p,
		.n = out.n,
		.connector = p->connector != NULL && topo_is_split(p) ? mem_strdup(p->t->connector)
								      : NULL,
	};
}
