#!/usr/bin/env python3
"""kubernetes_schema.py _definitions.json > tests/e2e/kubernetes_schema.json

Cuts the definitions of the objects that `pdctl fleet render --to kubernetes` writes out of the JSON schemas that are
published for Kubernetes: `_definitions.json` of the strict variant (github.com/yannh/kubernetes-json-schema; the Python package
kubernetes-validate carries the same files).  They are made from api/openapi-spec/swagger.json of kubernetes/kubernetes.
Descriptions go, and so do members that nothing here writes: a test then refuses them, as it refuses unknown ones."""
import json
import sys

VERSION = "v1.34.0"
ROOTS = ["apps.v1.Deployment", "apps.v1.StatefulSet", "core.v1.Service", "core.v1.ConfigMap"]
DROPPED = set("""affinity ephemeralContainers status managedFields topologySpreadConstraints volumeClaimTemplates resourceClaims
    volumeDevices envFrom ownerReferences overhead dnsConfig hostAliases readinessGates schedulingGates initContainers
    sessionAffinityConfig seLinuxOptions windowsOptions ordinals persistentVolumeClaimRetentionPolicy claims grpc tcpSocket
    seccompProfile appArmorProfile sysctls fileKeyRef workloadRef restartPolicyRules resizePolicy""".split())
VOLUMES = {"configMap", "emptyDir", "hostPath", "name", "persistentVolumeClaim", "secret"}


def main():
    published = json.load(open(sys.argv[1]))["$defs"]
    found = {}

    def short(name):
        return name.rpartition(".")[2]

    def cut(x):
        if isinstance(x, list):
            return [cut(v) for v in x]
        if not isinstance(x, dict):
            return x
        x = {k: v for k, v in x.items() if not k.startswith("x-kubernetes") and (k != "description" or isinstance(v, dict))}
        if "$ref" in x:
            name = x.pop("$ref").rpartition("/")[2]
            visit(name)
            return {**cut(x), "$ref": f"#/definitions/{short(name)}"}
        return {k: cut(v) for k, v in x.items()}

    def visit(name):
        if short(name) in found:
            return
        found[short(name)] = None
        schema = dict(published[name])
        if "properties" in schema:
            schema["properties"] = {k: v for k, v in schema["properties"].items()
                                    if k not in DROPPED and (short(name) != "Volume" or k in VOLUMES)}
        found[short(name)] = cut(schema)

    for root in ROOTS:
        visit(f"io.k8s.api.{root}")
    print('{"source": "the JSON schemas published for Kubernetes %s, strict; cut by tests/tools/kubernetes_schema.py",\n"definitions": {' % VERSION)
    print(",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(found.items())) + "}}")


main()
