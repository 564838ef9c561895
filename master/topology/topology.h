/*
 * The fleet file: engines and routers of one fleet, as one immutable struct topology.
 *
 * Process: pdfleet, which `pdctl fleet` starts, and the master, which reads the fleet_file of a pool.  A file with
 * a mistake in its form gives one error and no topology.  What is wrong with a well-formed file,
 * topo_plan_make() finds (plan.h).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf_error;

/* A text of a file, and the place where a message about it points. */
struct topo_text {
	char *text;
	const char *file; /* of the topology or the template that owns the text */
	int line;
};

struct topo_texts {
	struct topo_text *v;
	size_t n;
};

/* NAME: VALUE of a mapping with free names. */
struct topo_setting {
	char *name;
	struct topo_text value;
};

struct topo_settings {
	struct topo_setting *v;
	size_t n;
};

/* A port that an engine needs: `side: 5600`, or `side: {first: 5600, each: rank}`. */
struct topo_port {
	char *name;
	uint32_t first;
	bool each_rank;         /* one port for each rank */
	bool for_data_parallel; /* only engines with several data-parallel ranks have it */
	int line;
};

struct topo_ports {
	struct topo_port *v;
	size_t n;
};

#define TOPO_GPUS_MAX 64

struct topo_gpus {
	uint16_t v[TOPO_GPUS_MAX];
	size_t n;
	int line; /* 0: not given */
};

struct topo_host {
	char *name;
	char *address, *rdma, *group; /* NULL: not given */
	struct topo_gpus gpus;
	int line;
};

enum topo_role { TOPO_PREFILL, TOPO_DECODE, TOPO_ENGINES, TOPO_ROLE_N };
const char *topo_role_name(unsigned role);

/* What one replica of a group has in place of the group's. */
struct topo_override {
	uint32_t replica;
	char *host; /* NULL: chosen */
	struct topo_gpus gpus;
	struct topo_texts args; /* behind the group's */
	struct topo_settings env;
	struct topo_ports ports; /* first ports of this replica */
	int line;
};

struct topo_group {
	int line; /* 0: the fleet has no engines of this role */
	uint32_t replicas, tensor_parallel, data_parallel;
	struct topo_texts hosts; /* empty: all */
	struct topo_texts args;
	struct topo_settings env;
	struct topo_ports ports; /* first ports, in place of the template's */
	struct topo_override *overrides;
	size_t noverrides;
};

/* Ranks of one engine: each has a GPU. */
static inline uint32_t
topo_ranks(const struct topo_group *g)
{
	return g->tensor_parallel * g->data_parallel;
}

struct topo_router {
	int line; /* 0: the fleet has no router */
	struct topo_texts hosts, listen;
	char *fleet_file; /* path of the fleet file for the routers, which follow it; NULL: they do not */
	struct topo_settings pool;   /* keys of the pool; the values are YAML */
	struct topo_settings config; /* keys of the top level */
};

struct topology {
	char *path;
	char *name;
	char *model, *served_as;
	struct {
		char *kind, *version, *venv;
		struct topo_texts command; /* empty: the template's */
		char *container, *runtime; /* an image, or NULL; what runs it */
		struct topo_texts container_args;
	} engine;
	char *connector; /* NULL: none */
	uint32_t port_offset;
	struct topo_host *hosts;
	size_t nhosts;
	struct topo_group groups[TOPO_ROLE_N];
	struct topo_router router;
	int *lines; /* of the top-level keys, by row */
};

/* The bytes of a fleet file or a template: 0 and the caller frees *ret, or -1 with *err filled. */
int topo_read_file(const char *path, char **ret, size_t *ret_n, struct conf_error *err);
/* Both return 0 and the caller owns *ret, or -1 with *err filled. */
int topo_load(const char *path, struct topology **ret, struct conf_error *err);
int topo_parse(const char *path, const void *text, size_t n, struct topology **ret,
	struct conf_error *err);
/* NULL is fine; *t becomes NULL. */
void topo_free(struct topology **t);

/* NULL: there is none of that name. */
struct topo_setting *topo_setting(const struct topo_settings *v, const char *name);
/* The line of a top-level key, 0 if it is not given. */
int topo_line(const struct topology *t, const char *key);
/* NULL: there is none of that name. */
const struct topo_host *topo_host(const struct topology *t, const char *name);
/* Of two fleets: hosts with one address are one. */
bool topo_same_host(const struct topo_host *a, const struct topo_host *b);
bool topo_has_router(const struct topology *t, const struct topo_host *h);
/* What a replica has of its own, or NULL. */
const struct topo_override *topo_override(const struct topo_group *g, uint32_t replica);
