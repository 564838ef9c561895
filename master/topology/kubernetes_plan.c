#include "master/topology/kubernetes_plan.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_address.h"
#include "master/topology/compose.h"
#include "master/topology/finding.h"
#include "master/topology/plan.h"
#include "master/topology/ports.h"
#include "shm/base/mem.h"

#define ROUTER_PORT 8000

const struct topo_pod_variable topo_pods[TOPO_POD_N] = {
	[TOPO_POD_IP] = {"\001", "POD_IP", "status.podIP"},
	[TOPO_POD_NAME] = {"\002", "POD_NAME", "metadata.name"},
	/* from Kubernetes 1.28 on */
	[TOPO_POD_INDEX] = {"\003", "POD_INDEX", "metadata.labels['apps.kubernetes.io/pod-index']"},
	[TOPO_POD_NODE] = {"\004", "NODE_NAME", "spec.nodeName"},
};

/* The port of the first address that has one. */
static uint32_t
router_port(const struct topo_router *r)
{
	for (size_t i = 0; i < r->listen.n; i++) {
		const char *colon = strrchr(r->listen.v[i].text, ':');
		uint32_t port = colon != NULL ? conf_port_of(colon + 1) : 0;

		if (port != 0)
			return port;
	}
	return ROUTER_PORT;
}

static void
make_hosts(const struct topo_plan *p, struct topo_kubernetes_plan *k)
{
	k->pod = (struct topo_host){
		.name = mem_strdup(topo_pods[TOPO_POD_NODE].text),
		.address = mem_strdup(topo_pods[TOPO_POD_IP].text),
	};
	/* the name of the routers' service */
	k->routers = (struct topo_host){
		.name = mem_strdup("routers"), .address = mem_printf("%s-router", p->t->name)};
	k->nrouters = (uint32_t)p->t->router.hosts.n;
	k->router_port = router_port(&p->t->router);
	k->router_host = (struct topo_text){k->routers.name, p->t->path, p->t->router.line};
	k->listen = (struct topo_text){
		mem_printf("0.0.0.0:%u", k->router_port), p->t->path, p->t->router.line};
	k->t.hosts = &k->routers;
	k->t.nhosts = 1;
	if (k->nrouters > 0)
		k->t.router.hosts = (struct topo_texts){&k->router_host, 1};
	k->t.router.listen = (struct topo_texts){&k->listen, 1};
	k->t.engine.container_args = (struct topo_texts){.n = 0};
	k->t.router.fleet_file = NULL; /* pods have no fleet file: the routers ask DNS */
}

/* The engine of a group; `of`: the first one of the same group on metal. */
static void
add_engine(struct topo_kubernetes_plan *k, const struct topo_engine *of)
{
	struct topo_group *g = &k->t.groups[of->role];
	struct topo_engine *e = &k->plan->engines[k->plan->nengines++];

	k->replicas[of->role] = g->replicas;
	for (size_t i = 0; i < g->noverrides; i++)
		if (g->overrides[i].args.n > 0 || g->overrides[i].env.n > 0)
			topo_found(k->plan, k->t.path, g->overrides[i].line, of->name,
				"pods of a group are equal: args and env of a replica have no place");
	g->noverrides = 0;
	*e = (struct topo_engine){
		.role = of->role,
		.number = topo_pods[TOPO_POD_INDEX].text,
		.name = mem_strdup(topo_pods[TOPO_POD_NAME].text),
		.host = &k->pod,
		.group = g,
	};
	/* a container sees the GPUs that it was given, and numbers them from 0 */
	for (; e->gpus.n < of->gpus.n; e->gpus.n++)
		e->gpus.v[e->gpus.n] = (uint16_t)e->gpus.n;
}

/* The program is that of the image, as with any container; Kubernetes itself runs it, without further words. */
static const struct topo_container pods;

void
topo_kubernetes_plan(const struct topo_plan *p, struct topo_kubernetes_plan *k)
{
	*k = (struct topo_kubernetes_plan){.t = *p->t, .plan = MEM_NEW(struct topo_plan)};
	make_hosts(p, k);
	*k->plan = *p;
	k->plan->t = &k->t;
	k->plan->container = &pods;
	k->plan->engines = mem_array(TOPO_ROLE_N, sizeof(*k->plan->engines));
	k->plan->nengines = 0;
	k->plan->router_ports = (struct topo_claims){.n = 0};
	k->plan->pool = k->plan->router = (struct topo_settings){.v = NULL};
	k->plan->composed = 0;
	k->plan->findings = NULL;
	k->plan->nfindings = 0;
	for (size_t i = 0; i < p->nengines; i++)
		if (p->engines[i].replica == 0)
			add_engine(k, &p->engines[i]);
	topo_ports_plan(k->plan);
	topo_compose(k->plan);
}

void
topo_kubernetes_plan_fini(struct topo_kubernetes_plan *k)
{
	topo_plan_free(&k->plan);
	free(k->pod.name);
	free(k->pod.address);
	free(k->routers.name);
	free(k->routers.address);
	free(k->listen.text);
}
