/*
 * What a kind of engine needs, as data: a template, etc/fleet/KIND.yaml.  The texts have ${names} (names.c).
 */
#pragma once
#include "master/topology/topology.h"

/* What engines of a role need; an engine gets the parts that apply to it, in their order. */
struct topo_part {
	struct topo_texts args;
	struct topo_settings env;
	struct topo_ports ports;
	struct topo_texts file; /* lines of one more file: ${file} is its path */
	struct topo_settings
		endpoint; /* keys of its entry in the router's pool; the values are YAML */
};

/* Which tensor_parallel of prefill and decode engines the connector can join. */
enum topo_tp_rule {
	TOPO_TP_ANY,
	TOPO_TP_EQUAL,
	TOPO_TP_DECODE_MULTIPLE, /* decode's is a multiple of prefill's */
	TOPO_TP_MULTIPLE,        /* one of them is a multiple of the other */
	TOPO_TP_N
};
/* NULL: the rule allows both; else what the rule asks for. */
const char *topo_tp_refuses(enum topo_tp_rule rule, uint32_t prefill, uint32_t decode);

/* KV caches on a disk, in the words of the engine's environment. */
struct topo_disk {
	char *variable; /* its value is a path */
	char *scheme;   /* of the value; another one is no disk */
	char *size;     /* variable with the size in GiB, or NULL */
};

/* A connector, as some versions of the engine have it. */
struct topo_connector {
	char *name, *since, *until; /* NULL: no bound; until 0.13 has 0.13.2 */
	struct topo_texts also;     /* further names: connectors with the same engines */
	enum topo_tp_rule tensor_parallel;
	uint32_t one_router;       /* 1: the engines report to one router */
	uint32_t no_data_parallel; /* 1: it cannot tell data-parallel ranks apart */
	struct topo_part all, prefill, decode, rdma; /* rdma: on hosts that have it */
	struct topo_settings pool, router; /* keys of the router's pool and top level; YAML */
	struct topo_ports router_ports;
	struct topo_texts needs_env; /* variables that the fleet file must set */
	struct topo_disk *disks;
	size_t ndisks;
	struct topo_texts agree; /* flags and variables with one value in all engines */
	int line;
};

/* How a container runtime runs an engine: its command line, piece by piece, in front of the engine's. */
struct topo_container {
	char *name;
	struct topo_texts command;
	struct topo_texts gpus, rdma;  /* of engines and hosts that have them */
	struct topo_texts model, file; /* where the model, and the one more file, is on the host */
	char *variable;                /* flag that hands a variable over; its name follows */
	struct topo_texts image;
	struct topo_texts
		cleanup;        /* a command that removes a container that was left; empty: none */
	struct topo_texts unit; /* lines for the unit's [Service] */
};

struct topo_template {
	char *path;
	struct topo_texts command;
	char *program; /* in containers, in place of the command's first word; or NULL */
	struct topo_container *containers;
	size_t ncontainers;
	struct topo_settings
		same_flags; /* other names of flags of the template: -tp: --tensor-parallel-size */
	char *since;        /* first version that knows `command`; NULL: any */
	char *version_path; /* of an engine's answer with a member `version` */
	uint32_t needs_gpus, needs_version; /* 0, 1 */
	struct topo_part all, prefill, decode, engines;
	struct topo_part venv; /* of engines that run from engine.venv, without a container */
	struct topo_part gpus; /* of engines whose GPUs are planned */
	struct topo_part data_parallel; /* of engines with several data-parallel ranks */
	struct topo_settings pool, router;
	struct topo_connector *connectors;
	size_t nconnectors;
};

/* Both return 0 and the caller owns *ret, or -1 with *err filled. */
int topo_template_load(const char *path, struct topo_template **ret, struct conf_error *err);
int topo_template_parse(const char *path, const void *text, size_t n, struct topo_template **ret,
	struct conf_error *err);
/* NULL is fine; *t becomes NULL. */
void topo_template_free(struct topo_template **t);

/* Negative, 0 or positive.  Compares as many numbers as `bound` has: 0.13 has 0.13.2. */
long topo_version_cmp(const char *version, const char *bound);
/* NULL: the template has no such runtime. */
const struct topo_container *topo_container(const struct topo_template *t, const char *name);
bool topo_is_connector(const struct topo_connector *c, const char *name);
/* Of a version such as 0.21.1; NULL: the template has no such connector for it. */
const struct topo_connector *topo_connector(
	const struct topo_template *t, const char *name, const char *version);
