/*
 * Inside master/topology/: a fleet whose engines are pods.
 *
 * A group has one engine here, which stands for all of its pods.  Each pod has an address of its own, so all of
 * them have the ports of replica 0.  What differs from pod to pod is a variable of the pod's environment: the
 * texts of the engine have a byte for it that no fleet file can have.
 */
#pragma once
#include "master/topology/engine.h"

enum topo_pod { TOPO_POD_IP, TOPO_POD_NAME, TOPO_POD_INDEX, TOPO_POD_NODE, TOPO_POD_N };

struct topo_pod_variable {
	const char *text;  /* one byte: where the texts of an engine have it */
	const char *name;  /* of the variable */
	const char *field; /* of the pod */
};
extern const struct topo_pod_variable topo_pods[TOPO_POD_N];

struct topo_kubernetes_plan {
	struct topology t; /* that of the fleet, but for hosts, overrides and routers */
	struct topo_host pod, routers;
	struct topo_text router_host, listen;
	uint32_t replicas[TOPO_ROLE_N], nrouters, router_port;
	struct topo_plan *plan; /* its findings: what pods cannot have */
};

void topo_kubernetes_plan(const struct topo_plan *p, struct topo_kubernetes_plan *ret);
void topo_kubernetes_plan_fini(struct topo_kubernetes_plan *k);
