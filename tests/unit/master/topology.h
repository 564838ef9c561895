/* A fleet file and a template in memory, for the tests of master/topology/. */
#pragma once
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "master/topology/plan.h"

#define TEMPLATE                                                                                                        \
	"command: [/bin/engine, \"${all_addresses}\", --model, \"${model}\", --port, \"${port.api}\"]\n"                \
	"needs_gpus: true\n"                                                                                            \
	"same_flags: {-p: --port}\n"                                                                                    \
	"program: engine\n"                                                                                             \
	"containers: [{name: podman, command: [/bin/podman, --name, \"${name}\"], gpus: [--gpu], rdma: [--rdma],\n"     \
	"   model: [\"-v${model}\"], file: [\"-v${file}\"], variable: --env=, image: [\"${program}\", \"${image}\"],\n" \
	"   cleanup: [/bin/podman, rm, \"${name}\"], unit: [Delegate=yes]}]\n"                                          \
	"needs_version: true\n"                                                                                         \
	"since: \"0.5\"\n"                                                                                              \
	"venv: {env: {PATH: \"${venv}/bin:/bin\"}}\n"                                                                   \
	"gpus: {env: {GPUS: \"${gpus}\"}}\n"                                                                            \
	"router: {health_timeout: 20s}\n"                                                                               \
	"data_parallel: {args: [--ranks, \"${data_parallel}\"], endpoint: {dp_ranks: \"${data_parallel}\"}}\n"          \
	"prefill: {ports: {api: 8100, rpc: {first: 9500, for: data_parallel}}}\n"                                       \
	"decode: {ports: {api: 8200}}\n"                                                                                \
	"engines: {ports: {api: 8300}}\n"                                                                               \
	"connectors:\n"                                                                                                 \
	" - name: nixl\n"                                                                                               \
	"   also: [orchestrated]\n"                                                                                     \
	"   since: \"0.9\"\n"                                                                                           \
	"   until: \"0.13\"\n"                                                                                          \
	"   agree: [--block-size, --kv.parallel, CHUNK]\n"                                                              \
	"   tensor_parallel: decode_multiple\n"                                                                         \
	"   all: {env: {SIDE: \"${address}:${port.side}\"}, args: [--kv, '{\"a\":\"b\"}']}\n"                           \
	"   prefill: {ports: {side: {first: 5600, each: rank}}}\n"                                                      \
	"   decode: {ports: {side: {first: 6600, each: rank}}}\n"                                                       \
	"   rdma: {env: {NET: \"${rdma_ports}\"}}\n"                                                                    \
	" - {name: lmcache, one_router: true, no_data_parallel: true, needs_env: [CACHE],\n"                            \
	"    all: {ports: {init: {first: 7300, each: rank}}, file: [\"ports: [${ports.init}]\"],\n"                     \
	"          env: {FILE: \"${file}\", TO: \"${router.address}:${router.port.notices}\"}},\n"                      \
	"    decode: {endpoint: {receiver_init_port: \"[${ports.init}]\",\n"                                            \
	"                        receiver_alloc_port: \"[${ports.init}]\"}},\n"                                         \
	"    router: {lmcache: '{listen: \"tcp://*:${router.port.notices}\"}'},\n"                                      \
	"    router_ports: {notices: 7500}}\n"

#define FLEET                                                                                      \
	"fleet: f\n"                                                                               \
	"model: {path: m}\n"                                                                       \
	"engine: {kind: vllm, version: \"0.12\"}\n"
#define HOSTS                                                                                      \
	"hosts:\n"                                                                                 \
	"  a: {address: 10.0.0.1, gpus: 8, rdma: mlx5_0, group: rack-1}\n"                         \
	"  b: {address: 10.0.0.2, gpus: [0, 1, 2, 3]}\n"
#define ROUTER "router: {hosts: [a], pool: {retries: 1}}\n"
/* the line of `connector` is 4, that of `prefill` is 8 */
#define FULL(prefill, decode)                                                                      \
	FLEET "connector: nixl\n" HOSTS "prefill: {" prefill "}\ndecode: {" decode "}\n" ROUTER

struct made {
	struct topology *t;
	struct topo_template *template;
	struct topo_plan *plan;
};

static inline struct made
make(const char *fleet)
{
	struct made m = {.t = NULL};
	struct conf_error err;
	char buf[1024];

	cr_assert_eq(topo_parse("f.yaml", fleet, strlen(fleet), &m.t, &err), 0, "%s\n%s",
		conf_error_text(&err, buf, sizeof(buf)), fleet);
	cr_assert_eq(topo_template_parse("t.yaml", TEMPLATE, strlen(TEMPLATE), &m.template, &err),
		0, "%s", conf_error_text(&err, buf, sizeof(buf)));
	m.plan = topo_plan_make(m.t, m.template);
	return m;
}

static inline void
unmake(struct made *m)
{
	topo_plan_free(&m->plan);
	topo_template_free(&m->template);
	topo_free(&m->t);
}

/* A plan without findings. */
static inline struct made
make_good(const char *fleet)
{
	struct made m = make(fleet);
	char buf[1024] = "";

	if (m.plan->nfindings > 0)
		(void)conf_error_text(&m.plan->findings[0], buf, sizeof(buf));
	cr_assert_eq(m.plan->nfindings, 0, "%s", buf);
	return m;
}
