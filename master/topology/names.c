#include "master/topology/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

/* Where a name is looked up. */
struct scope {
	const struct topo_plan *p;
	const struct topo_engine *e; /* NULL: the router */
};

/* All return a text that the caller frees, or NULL: there is none here. */
static char *
name_of(const struct scope *s)
{
	return s->e != NULL ? mem_strdup(s->e->name) : NULL;
}

static char *
fleet_of(const struct scope *s)
{
	return mem_strdup(s->p->t->name);
}

static char *
role_of(const struct scope *s)
{
	return s->e != NULL ? mem_strdup(topo_role_name(s->e->role)) : NULL;
}

static char *
replica_of(const struct scope *s)
{
	if (s->e == NULL)
		return NULL;
	return s->e->number != NULL ? mem_strdup(s->e->number)
				    : mem_printf("%" PRIu32, s->e->replica);
}

static char *
address_of(const struct scope *s)
{
	return s->e != NULL && s->e->host != NULL ? mem_strdup(s->e->host->address) : NULL;
}

/* Where an engine listens, so that its host's address and those of its network reach it. */
static char *
all_addresses_of(const struct scope *s)
{
	if (s->e == NULL || s->e->host == NULL)
		return NULL;
	return mem_strdup(strchr(s->e->host->address, ':') != NULL ? "::" : "0.0.0.0");
}

static char *
host_of(const struct scope *s)
{
	return s->e != NULL && s->e->host != NULL ? mem_strdup(s->e->host->name) : NULL;
}

static char *
rdma_of(const struct scope *s)
{
	return s->e != NULL && s->e->host != NULL ? mem_strdup(s->e->host->rdma) : NULL;
}

/* The devices as UCX has them: each with its port, which is 1 where the fleet file names none. */
static char *
rdma_ports_of(const struct scope *s)
{
	struct membuf out = {.p = NULL};
	const char *d = s->e != NULL && s->e->host != NULL ? s->e->host->rdma : NULL;
	size_t n;

	for (; d != NULL; d = d[n] == ',' ? d + n + 1 : NULL) {
		n = strcspn(d, ",");
		membuf_add(&out, d, n);
		if (memchr(d, ':', n) == NULL)
			membuf_add(&out, ":1", 2);
		membuf_add(&out, d[n] == ',' ? "," : "", 1); /* or the end of the text */
	}
	return out.p;
}

static char *
gpus_of(const struct scope *s)
{
	char *list = mem_strdup(""), *longer;

	for (size_t i = 0; s->e != NULL && i < s->e->gpus.n; i++) {
		longer = mem_printf("%s%s%u", list, i > 0 ? "," : "", s->e->gpus.v[i]);
		free(list);
		list = longer;
	}
	return list;
}

static char *
model_of(const struct scope *s)
{
	return mem_strdup(s->p->t->model);
}

static char *
served_as_of(const struct scope *s)
{
	return mem_strdup(s->p->t->served_as);
}

static char *
version_of(const struct scope *s)
{
	return mem_strdup(s->p->t->engine.version);
}

static char *
venv_of(const struct scope *s)
{
	return mem_strdup(s->p->t->engine.venv);
}

static char *
tensor_parallel_of(const struct scope *s)
{
	return s->e != NULL ? mem_printf("%" PRIu32, s->e->group->tensor_parallel) : NULL;
}

static char *
data_parallel_of(const struct scope *s)
{
	return s->e != NULL ? mem_printf("%" PRIu32, s->e->group->data_parallel) : NULL;
}

static char *
image_of(const struct scope *s)
{
	return mem_strdup(s->p->t->engine.container);
}

/* What a container executes. */
static char *
program_of(const struct scope *s)
{
	const struct topo_texts *own = &s->p->t->engine.command;

	return mem_strdup(own->n > 0 ? own->v[0].text : s->p->template->program);
}

static char *
file_of(const struct scope *s)
{
	return s->e != NULL ? mem_printf("%s%s.yaml", s->p->paths->fleet, s->e->name) : NULL;
}

/* Of the first router: the one that engines report to. */
static char *
router_address_of(const struct scope *s)
{
	const struct topo_router *r = &s->p->t->router;
	const struct topo_host *h = r->hosts.n > 0 ? topo_host(s->p->t, r->hosts.v[0].text) : NULL;

	return h != NULL ? mem_strdup(h->address) : NULL;
}

static const struct {
	const char *name;
	char *(*value)(const struct scope *s);
	const char *
		key; /* of the fleet file, where the plan decides the value; NULL: args and env may differ from it */
} names[] = {
	{"name", name_of, NULL},
	{"fleet", fleet_of, NULL},
	{"role", role_of, NULL},
	{"replica", replica_of, NULL},
	{"address", address_of, "address of the host"},
	{"all_addresses", all_addresses_of, NULL},
	{"host", host_of, NULL},
	{"rdma", rdma_of, NULL},
	{"rdma_ports", rdma_ports_of, NULL},
	{"gpus", gpus_of, "gpus of hosts or overrides"},
	{"model", model_of, "model.path"},
	{"served_as", served_as_of, "model.served_as"},
	{"version", version_of, NULL},
	{"venv", venv_of, NULL},
	{"tensor_parallel", tensor_parallel_of, "tensor_parallel"},
	{"data_parallel", data_parallel_of, "data_parallel"},
	{"image", image_of, NULL},
	{"program", program_of, NULL},
	{"file", file_of, NULL},
	{"router.address", router_address_of, NULL},
};
#define NNAMES (sizeof(names) / sizeof(names[0]))

/* Families of names: PREFIX and the name of a port. */
enum family { ONE_PORT, ALL_PORTS, ROUTER_PORT, NFAMILIES };
static const char *const families[NFAMILIES] = {
	[ONE_PORT] = "port.", [ALL_PORTS] = "ports.", [ROUTER_PORT] = "router.port."};

char *
topo_names_list(void)
{
	struct membuf out = {.p = NULL};

	for (size_t i = 0; i < NNAMES; i++) {
		membuf_add(&out, names[i].name, strlen(names[i].name));
		membuf_add(&out, ", ", 2);
	}
	for (size_t i = 0; i < NFAMILIES; i++) {
		membuf_add(&out, families[i], strlen(families[i]));
		membuf_add(&out, "NAME, ", strlen("NAME, "));
	}
	out.p[out.n - 2] = '\0'; /* no comma behind the last one */
	return out.p;
}

/* The number of the name, NNAMES plus that of its family, or -1. */
static int
find(const char *name, size_t n)
{
	for (size_t i = 0; i < NNAMES; i++)
		if (strlen(names[i].name) == n && memcmp(names[i].name, name, n) == 0)
			return (int)i;
	for (size_t i = 0; i < NFAMILIES; i++)
		if (n > strlen(families[i]) && memcmp(families[i], name, strlen(families[i])) == 0)
			return (int)(NNAMES + i);
	return -1;
}

const char *
topo_names_next(const char *text, size_t *ret_n)
{
	const char *at = strstr(text, "${");

	if (at != NULL)
		*ret_n = strcspn(at, "}") + 1;
	return at;
}

const char *
topo_names_check(const char *text, size_t *ret_n)
{
	const char *at = text;

	while ((at = topo_names_next(at, ret_n)) != NULL) {
		if (*ret_n > strlen(at)) { /* no closing brace */
			*ret_n = strlen(at);
			return at;
		}
		if (find(at + 2, *ret_n - 3) == -1)
			return at;
		at += *ret_n;
	}
	return NULL;
}

char *
topo_names_key(const char *name, size_t n)
{
	int i = find(name, n);
	size_t skip;

	if (i < 0 || (size_t)i == NNAMES + ROUTER_PORT)
		return NULL;
	if ((size_t)i < NNAMES)
		return mem_strdup(names[i].key);
	skip = strlen(families[(size_t)i - NNAMES]);
	return mem_printf("ports: {%.*s: ...}", (int)(n - skip), name + skip);
}

static char *
ports_of(const struct topo_claims *claims, const char *name, size_t n, bool all)
{
	char *list, *longer;

	for (size_t i = 0; i < claims->n; i++) {
		const struct topo_claim *c = &claims->v[i];

		if (strlen(c->name) != n || memcmp(c->name, name, n) != 0)
			continue;
		list = mem_printf("%" PRIu32, c->first);
		for (uint32_t k = 1; all && k < c->n; k++) {
			longer = mem_printf("%s, %" PRIu32, list, c->first + k);
			free(list);
			list = longer;
		}
		return list;
	}
	return NULL;
}

static char *
value_of(const struct scope *s, const char *name, size_t n)
{
	int i = find(name, n);
	size_t skip;

	if (i < 0)
		return NULL;
	if ((size_t)i < NNAMES)
		return names[i].value(s);
	skip = strlen(families[(size_t)i - NNAMES]);
	if ((size_t)i == NNAMES + ROUTER_PORT)
		return ports_of(&s->p->router_ports, name + skip, n - skip, false);
	return s->e != NULL ? ports_of(&s->e->ports, name + skip, n - skip,
				      (size_t)i == NNAMES + ALL_PORTS)
			    : NULL;
}

char *
topo_names_replace(
	const struct topo_plan *p, const struct topo_engine *e, const char *text, char **ret_name)
{
	const struct scope s = {p, e};
	struct membuf out = {.p = NULL};
	const char *at;
	char *value;
	size_t n = 0;

	while ((at = topo_names_next(text, &n)) != NULL) {
		membuf_add(&out, text, (size_t)(at - text));
		value = value_of(&s, at + 2, n - 3);
		if (value == NULL)
			*ret_name = mem_strndup(at, n);
		if (value == NULL || out.n > TOPO_TEXT_MAX) {
			free(value);
			membuf_free(&out);
			return NULL;
		}
		membuf_add(&out, value, strlen(value));
		free(value);
		text = at + n;
	}
	membuf_add(&out, text, strlen(text) + 1);
	if (out.n > TOPO_TEXT_MAX)
		membuf_free(&out); /* sets p to NULL */
	return out.p;
}
