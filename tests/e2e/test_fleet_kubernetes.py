"""pdctl fleet render --to kubernetes: objects that the published JSON schemas accept, of the same topology."""
import copy
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import json_schema
from procs import BIN, ROOT
from test_fleet_file import CONNECTORS, TEMPLATES, bytes_of, example, fleet, written

SCHEMA = json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text())["definitions"]


def faults(x, schema):
    return json_schema.faults(x, schema, SCHEMA)


def render(world, file, *args):
    out = world.file("objects")
    return out, fleet("render", "--to", "kubernetes", "--image", "engine:1", "-f", written(world, file), "-t", TEMPLATES, "--output", out, *args)


def objects(world, file, *args):
    out, done = render(world, file, *args)
    assert (done.returncode, done.stderr) == (0, "")
    all = [o for text in bytes_of(out).values() for o in yaml.safe_load_all(text)]
    for o in all:
        assert list(faults(o, SCHEMA[o["kind"]])) == [], o["metadata"]
    return {(o["kind"], o["metadata"]["name"]): o for o in all}


def test_the_check_sees_faults(world):
    o = objects(world, example(*CONNECTORS[0]))["Deployment", "f-decode"]
    assert list(faults(o, SCHEMA["Deployment"])) == []
    for change, said in ((lambda o: o.update(kind="Deploy"), ".kind"), (lambda o: o["spec"].pop("selector"), ".spec.selector: missing"),
                         (lambda o: o["spec"].update(replicas="2"), ".spec.replicas"), (lambda o: o["spec"].update(replica=2), ".replica: unknown"),
                         (lambda o: o["spec"]["template"]["spec"]["containers"][0]["env"][0].update(value=1), ".env[0].value")):
        bad = copy.deepcopy(o)
        change(bad)
        assert any(said in f for f in faults(bad, SCHEMA["Deployment"])), said


@pytest.mark.parametrize("kind,connector", CONNECTORS, ids=[f"{k}-{c['name']}-{c['since']}" for k, c in CONNECTORS])
def test_every_connector_of_the_templates(world, kind, connector):
    """Every object is valid, services find their pods, the router takes its file, and no name of a host is left."""
    all = objects(world, example(kind, connector), "--namespace", "prod")
    assert all["Deployment", "f-prefill"]["spec"]["replicas"] == 2 and "10.0.0." not in json.dumps(list(all.values()))
    for part in ("prefill", "decode", "router"):
        pod = all["Deployment", f"f-{part}"]["spec"]["template"]
        selector = all["Service", f"f-{part}"]["spec"]["selector"]
        assert selector == pod["metadata"]["labels"] == all["Deployment", f"f-{part}"]["spec"]["selector"]["matchLabels"]
        c = pod["spec"]["containers"][0]
        assert all["Service", f"f-{part}"]["spec"]["ports"][0]["port"] == c["ports"][0]["containerPort"]
        assert {m["name"] for m in c["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
        assert part == "router" or c["resources"] == {"limits": {"nvidia.com/gpu": 2}}
        assert "${" not in json.dumps(c) and "\\u000" not in json.dumps(c)
    path = world.file("pdrouter", "yaml")
    path.write_text(all["ConfigMap", "f-router"]["data"]["pdrouter.yaml"])
    assert "name: f-decode.prod.svc.cluster.local" in path.read_text()
    done = subprocess.run([BIN / "pdrouter", "-t", "-c", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def expanded(text, env):
    """As Kubernetes replaces $(NAME) and $$ (third_party/forked/golang/expansion)."""
    return re.sub(r"\$(?:\$|\((\w+)\))", lambda m: env[m[1]] if m[1] else "$", text)


def test_a_pod_knows_its_own_address(world):
    """The file of an LMCache engine is written by the pod, with its address; a $ of the user stays one."""
    kind, connector = next((k, c) for k, c in CONNECTORS if c["name"] == "lmcache")
    file = example(kind, connector)
    file["engine"]["command"] = ["/bin/sh", "-c", 'cat "$LMCACHE_CONFIG_FILE"; echo "$0 $$(POD_IP)"', "${name} 50%"]
    pod = objects(world, file)["Deployment", "f-decode"]["spec"]["template"]["spec"]["containers"][0]
    fields = {"POD_IP": "10.9.9.9", "POD_NAME": "f-decode-x", "NODE_NAME": "n"}
    assert {e["name"] for e in pod["env"] if "valueFrom" in e} == set(fields)
    folder = pod["volumeMounts"][1]["mountPath"]
    env = {e["name"]: expanded(e["value"], fields).replace(folder, str(world.dir)) for e in pod["env"] if "value" in e}
    command = [expanded(w, fields).replace(folder, str(world.dir)) for w in pod["command"]]
    done = subprocess.run(command, env={**env, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    text, _, last = done.stdout.rstrip("\n").rpartition("\n")
    assert re.fullmatch(r"f-decode-x 50% \d+\(POD_IP\)", last) and yaml.safe_load(text)["pd_peer_host"] == "10.9.9.9"


def test_engines_that_need_their_number_are_a_stateful_set(world):
    file = example(*CONNECTORS[0])
    file["decode"]["args"] = ["--seed", "${replica}"]
    all = objects(world, file)
    s = all["StatefulSet", "f-decode"]["spec"]
    c = s["template"]["spec"]["containers"][0]
    assert s["serviceName"] == "f-decode" and c["command"][-2:] == ["--seed", "$(POD_INDEX)"]
    assert [e["valueFrom"]["fieldRef"]["fieldPath"] for e in c["env"] if e["name"] == "POD_INDEX"] == ["metadata.labels['apps.kubernetes.io/pod-index']"]
    assert ("Deployment", "f-prefill") in all


def test_a_fleet_without_disaggregation_and_without_routers(world):
    file = example(*CONNECTORS[0])
    del file["connector"], file["prefill"]
    file["engines"] = file.pop("decode")
    all = objects(world, file)
    assert all["ConfigMap", "f-router"]["data"]["pdrouter.yaml"].count("f-engines.default.svc") == 2
    del file["router"]
    assert set(objects(world, file)) == {("Deployment", "f-engines"), ("Service", "f-engines")}


def test_same_input_same_bytes(world):
    file = example(*CONNECTORS[0])
    assert bytes_of(render(world, file)[0]) == bytes_of(render(world, file)[0])


@pytest.mark.parametrize("change, said", [
    (lambda f: f.update(fleet="F_1"), "fleet: F_1 cannot be part of a service's name"),
    (lambda f: f["decode"].update(overrides=[{"replica": 1, "env": {"A": "b"}}]), "args and env of a replica have no place"),
    (lambda f: f["decode"].update(args=["${rdma}"]), "${rdma} has no value for decode"),
    (lambda f: f["router"].update(config={"workers": 0}), "pdrouter would refuse workers")])
def test_what_pods_cannot_have(world, change, said):
    file = example(*CONNECTORS[0])
    change(file)
    out, done = render(world, file)
    assert done.returncode == 1 and said in done.stderr and not out.exists()


@pytest.mark.parametrize("args, said", [(["--output", "x"], "needs --to kubernetes"), (["--to", "compose"], "needs --to kubernetes"),
                                        (["--to", "kubernetes"], "needs --output, and an image")])
def test_wrong_command_lines(world, args, said):
    done = fleet("render", "-f", written(world, example(*CONNECTORS[0])), "-t", ROOT / "etc/fleet", *args)
    assert done.returncode == 2 and said in done.stderr
