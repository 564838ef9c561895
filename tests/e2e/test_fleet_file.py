"""The fleet file: pdctl fleet checks it and renders files that the router, the engines and systemd take as they are; the
pages in etc/docs/ show nothing that does not happen."""
import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from procs import BIN, MODEL, ROOT, Process, free_port, wait
from raw import Client, Closed

TEMPLATES = ROOT / "etc" / "fleet"
CONNECTORS = [(t.stem, {**c, "name": name}) for t in sorted(TEMPLATES.glob("*.yaml"))
              for c in yaml.safe_load(t.read_text())["connectors"] for name in (c["name"], *c.get("also", []))]
UNIT = "etc/systemd/system/pdrouter-engine@{}.service.d/engine.conf"


def fleet(*args, cwd=None, bin=BIN):
    return subprocess.run([bin / "pdctl", "fleet", *map(str, args)], capture_output=True, text=True, cwd=cwd)


def written(world, file):
    """A fleet file, without the aliases that PyYAML writes for values that are there twice."""
    path = world.file("fleet", "yaml")
    path.write_text(yaml.safe_dump(json.loads(json.dumps(file)), sort_keys=False))
    return path


def plan(world, file, *args):
    """The rendered folders of the hosts."""
    path, out = written(world, file), world.file("rendered")
    done = fleet("plan", "-f", path, "-t", TEMPLATES, "--output", out, *args)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def bytes_of(out):
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def accepted(out, host):
    """pdrouter would start with that host's file."""
    done = subprocess.run([BIN / "pdrouter", "-t", "-c", out / host / "etc/pdrouter/pdrouter.yaml"], capture_output=True, text=True)
    return done.returncode == 0 or done.stderr


def simulated(world):
    """A file of 2P2D on this host, whose engines are the simulator."""
    def group():
        return {"replicas": 2, "overrides": [{"replica": i, "ports": {"api": free_port(), "side": free_port()}} for i in (0, 1)]}
    command = [str(BIN / "pdsim"), "--role", "${role}", "--host", "${address}", "--port", "${port.api}", "--side-port", "${port.side}",
               "--model", "${served_as}", "--name", "50% $HOME ${name}"]
    return {"fleet": "sim", "model": {"path": "/nowhere", "served_as": MODEL}, "connector": "nixl",
            "engine": {"kind": "vllm", "version": "0.33", "command": command},
            "hosts": {"here": {"address": "127.0.0.1"}}, "prefill": group(), "decode": {**group(), "env": {"NOTE": 'a "b" `c` $d \\e'}},
            "router": {"hosts": ["here"], "listen": [f"127.0.0.1:{free_port()}"], "pool": {"retries": 0, "fallback": "none"},
                       "config": {"control_socket": str(world.file("ctl", "sock")), "workers": 1, "rise": 1, "health_interval": "100ms"}}}


def start(world, root, name):
    """An engine as systemd would start it: the words of ExecStart, the variables of the environment file."""
    line = re.search(r"^ExecStart=(.*)$", (root / UNIT.format(name)).read_text(), re.M)[1]
    argv = [w.replace("%%", "%").replace("$$", "$") for w in shlex.split(line)]
    env = root / f"etc/pdrouter/fleet/{name}.env"
    e = Process(["sh", "-c", 'set -a; . "$0"; exec "$@"', env, *argv], world.file(name, "log"), world.dir)
    world.others.append(e)
    e.port = int(re.search(rb"http=(\d+)", e.p.stdout.readline())[1])
    return e


def metric(port, name):
    with Client(("127.0.0.1", port)) as c:
        return sum(float(v) for v in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", c.get("/metrics").body.decode(), re.M))


def test_what_is_rendered_serves(world):
    file = simulated(world)
    root = plan(world, file) / "here"
    assert accepted(root.parent, "here") is True
    engines = {r: [start(world, root, f"sim-{r}-{i}") for i in (0, 1)] for r in ("prefill", "decode")}
    world.others.append(Process([BIN / "pdrouter", "-c", root / "etc/pdrouter/pdrouter.yaml"], world.file("router", "log"), world.dir))
    address = ("127.0.0.1", int(file["router"]["listen"][0].split(":")[1]))

    def answer():
        try:
            with Client(address) as c:
                return c.post("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 4}).status == 200
        except (OSError, Closed):
            return False
    wait("an answer", answer)
    assert sum(metric(e.port, "pdsim:kv_fetched_total") for e in engines["decode"] + engines["prefill"]) > 0
    environ = open(f"/proc/{engines['decode'][0].pid}/environ").read().split("\0")
    assert 'NOTE=a "b" `c` $d \\e' in environ and "VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1" in environ
    with Client(("127.0.0.1", engines["decode"][1].port)) as c:
        assert "50% $HOME sim-decode-1" in c.get("/version").body.decode()


def test_same_input_same_bytes(world):
    file = simulated(world)
    first = bytes_of(plan(world, file))
    assert first == bytes_of(plan(world, file)) and len(first) == 9
    assert first == bytes_of(plan(world, file, "--host", "here"))


def test_the_templates_of_the_build_tree_are_found(world):
    done = fleet("check", "-f", written(world, simulated(world)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_a_folder_that_is_not_empty_is_left_alone(world):
    out = plan(world, simulated(world))
    before = bytes_of(out)
    done = fleet("plan", "-f", written(world, simulated(world)), "-t", TEMPLATES, "--output", out)
    assert done.returncode == 1 and "is not empty" in done.stderr and bytes_of(out) == before


def example(kind, connector):
    """A fleet file for one row of a template, with the first version that has it."""
    group = {"replicas": 2, "tensor_parallel": 2, "env": {k: "x" for k in connector.get("needs_env", [])}}
    return {"fleet": "f", "model": {"path": "m"}, "engine": {"kind": kind, "version": connector["since"], "venv": "/opt/engine"},
            "connector": connector["name"],
            "hosts": {h: {"address": a, "gpus": 4, "rdma": "mlx5_0"} for h, a in (("a", "10.0.0.1"), ("b", "10.0.0.2"))},
            "prefill": {**group, "hosts": ["a"]}, "decode": {**group, "hosts": ["b"]}, "router": {"hosts": ["b"]}}


@pytest.mark.parametrize("kind,connector", CONNECTORS, ids=[f"{k}-{c['name']}-{c['since']}" for k, c in CONNECTORS])
def test_every_connector_of_the_templates(world, kind, connector):
    """The router takes its file; no ${name} is left in any; what is JSON by its look is JSON, what is YAML is YAML."""
    out = plan(world, example(kind, connector))
    assert accepted(out, "b") is True
    for path, text in bytes_of(out).items():
        assert b"${" not in text.replace(b"$${", b""), path
        if path.endswith(".yaml"):
            yaml.safe_load(text)
        for line in re.findall(rb"^ExecStart=(.*)$", text, re.M):
            for word in shlex.split(line.decode()):
                assert not word.startswith("{") or isinstance(yaml.safe_load(word), dict)


@pytest.mark.parametrize("connector", ["nixl", "lmcache"])
def test_kv_caches_go_over_the_rdma_devices(world, connector):
    out = plan(world, example("vllm", next(c for k, c in CONNECTORS if k == "vllm" and c["name"] == connector)))
    for name in ("a/etc/pdrouter/fleet/f-prefill-0.env", "b/etc/pdrouter/fleet/f-decode-0.env"):
        assert 'UCX_NET_DEVICES="mlx5_0:1"\n' in (out / name).read_text()


def test_one_host_with_both_roles_shares_no_port(world):
    file = example(*CONNECTORS[0])
    file["hosts"] = {"a": {"address": "10.0.0.1", "gpus": 8}}
    for part in ("prefill", "decode", "router"):
        file[part]["hosts"] = ["a"]
    for part in ("prefill", "decode"):
        file[part].update(tensor_parallel=1, data_parallel=2)
    assert accepted(plan(world, file), "a") is True


def test_a_fleet_without_disaggregation(world):
    file = example(*CONNECTORS[0])
    del file["connector"], file["prefill"]
    file["engines"] = file.pop("decode")
    out = plan(world, file)
    assert accepted(out, "b") is True
    assert f"engine: {CONNECTORS[0][0]}" in (out / "b/etc/pdrouter/pdrouter.yaml").read_text()
    assert "kv-transfer" not in (out / "b" / UNIT.format("f-engines-0")).read_text()


def check(world, file, *args):
    """What check says, without the name of the file."""
    path = written(world, file)
    done = fleet("check", "-f", path, "-t", TEMPLATES, *args)
    return done.stderr.replace(f"{path}:", "").splitlines() or [done.stdout.strip()]


def test_check_of_this_host(world):
    good = simulated(world)
    good["model"]["path"] = str(world.dir)
    good["hosts"]["here"]["gpus"] = 4
    assert check(world, good, "--host", "here") == ["ok"]
    bad = {**good, "model": {"path": "/nowhere"}, "engine": {"kind": "vllm", "version": "0.21", "venv": "/nowhere"},
           "hosts": {"here": {"address": "192.0.2.1", "gpus": 4, "rdma": "no_0"}}}
    assert check(world, bad) == ["ok"]
    said = " ".join(check(world, bad, "--host", "here"))
    for word in ("model.path: /nowhere: No such file", "engine: /nowhere/bin/vllm: No such file",
                 "no interface of this host has the address 192.0.2.1", "no RDMA device no_0"):
        assert word in said, said


def test_check_of_this_hosts_disk(world):
    file = simulated(world)
    env = {"LMCACHE_REMOTE_URL": "lm://10.0.0.9:1", "LMCACHE_LOCAL_DISK": f"file://{world.dir}", "LMCACHE_MAX_LOCAL_DISK_SIZE": "1e9"}
    file.update(connector="shared_storage", model={"path": "m"}, engine={**file["engine"], "command": ["/bin/true"]})
    for role in ("prefill", "decode"):
        file[role] = {"env": env, "ports": {"api": free_port()}}
    said = " ".join(check(world, file, "--host", "here"))
    assert f"LMCACHE_LOCAL_DISK: {world.dir} has " in said and "want 2000000000 GiB" in said
    env["LMCACHE_LOCAL_DISK"] = "file:///nowhere"
    assert "LMCACHE_LOCAL_DISK: /nowhere: No such file" in " ".join(check(world, file, "--host", "here"))


def test_check_of_several_files(world):
    first = written(world, {**simulated(world), "fleet": "first"})
    said = check(world, simulated(world), "-f", first)
    assert any("router.hosts: here has the router of" in line for line in said)
    assert fleet("plan", "-f", first, "-f", first, "-t", TEMPLATES).returncode == 2


@pytest.mark.parametrize("runtime", ["podman", "docker"])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_containers(world, kind, runtime):
    """What the shell of the runtime would see: its own words, then the image, then the engine's, without a folder of this host."""
    file = example(*next(c for c in CONNECTORS if c[0] == kind))
    file["engine"].update(container="registry/engine:1", container_runtime=runtime, container_args=["--volume=/srv:/srv"])
    del file["engine"]["venv"]
    text = (plan(world, file) / "a" / UNIT.format("f-prefill-0")).read_text()
    argv = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
    at = argv.index("registry/engine:1")
    assert argv[:2] == [f"/usr/bin/{runtime}", "run"] and "f-prefill-0" in argv[:at]
    assert {"--network=host", "--env=CUDA_VISIBLE_DEVICES", "--device=/dev/infiniband", "--volume=/srv:/srv"} <= set(argv[:at])
    assert argv[at + 1] in ("serve", "-m") and argv[at - 1] in ("--entrypoint=vllm", "--entrypoint=python3")
    assert not any("/opt" in word or word.startswith("--env") for word in argv[at:])


@pytest.mark.parametrize("runtime", ["podman", "docker"])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_no_container_outlives_its_unit(world, kind, runtime):
    """An engine that does not end by a signal is no process of the unit: systemd and --plain end it in a way of their own."""
    file = example(*next(c for c in CONNECTORS if c[0] == kind))
    file["engine"].update(container="registry/engine:1", container_runtime=runtime)
    del file["engine"]["venv"]
    text = (plan(world, file) / "a" / UNIT.format("f-prefill-0")).read_text()
    after = shlex.split(re.search(r"^ExecStopPost=-(.*)$", text, re.M)[1])
    assert after[:3] == [f"/usr/bin/{runtime}", "rm", "--force"] and after[-1] == "f-prefill-0"
    assert '"--env=PDROUTER_FLEET_PID_FILE"' in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("manager,folder", [("--system", "systemd"), ("--user", "systemd/user")])
def test_systemd_takes_the_units(world, manager, folder):
    out = plan(world, simulated(world))
    units = out / "here/etc/systemd/system"
    shutil.copy(ROOT / "systemd/pdrouter.slice", units)
    for unit in ("pdrouter-engine@.service", "pdrouter.service"):
        text = (ROOT / folder / unit).read_text()
        (units / unit).write_text(text.replace("/usr/local/bin", str(BIN)).replace("file:/usr/local/share/doc/pdrouter", "man:x(1)"))

    def verify(unit):
        return subprocess.run(["systemd-analyze", "verify", "--man=no", manager, unit], capture_output=True, text=True,
                              env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:", "XDG_RUNTIME_DIR": str(world.dir)})
    for unit in ("pdrouter-engine@sim-decode-1.service", "pdrouter.service"):
        done = verify(unit)
        assert (done.returncode, done.stderr) == (0, "")
    assert verify("pdrouter-engine@unknown.service").returncode != 0


def test_a_user_may_run_the_units():
    """A user's systemd fails to start a unit that drops capabilities, and knows no multi-user.target."""
    needs_root = re.compile("^(Protect(Kernel|Clock|Hostname|Control)|Capability|Ambient|User=|DynamicUser|WantedBy=multi-user)", re.M)
    assert not [u for u in (ROOT / "systemd/user").iterdir() if needs_root.search(u.read_text())]


# --- the page -----------------------------------------------------------------------------------------------

def installed(world):
    """A prefix as `make install` makes it: programs, and the templates where they look for them."""
    prefix = world.file("prefix")
    (prefix / "bin").mkdir(parents=True)
    for program in ("pdctl", "pdfleet", "pdrouter"):
        shutil.copy(BIN / program, prefix / "bin")
    shutil.copytree(TEMPLATES, prefix / "share/pdrouter/fleet")
    return prefix


@pytest.mark.parametrize("page", ["fleet", "from_production_stack"])
def test_the_pages(world, page):
    """Its YAML blocks become the files that their first line names; each command prints what the page shows."""
    text = (ROOT / f"etc/docs/{page}.md").read_text()
    for name, block in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", text, re.M | re.S):
        (world.dir / name).write_text(f"# {name}\n{block}")
    env = {**os.environ, "PATH": f"{installed(world)}/bin:{os.environ['PATH']}"}
    commands = re.findall(r"^    \$ (.*)\n((?:    (?!\$).*\n)*)", text, re.M)
    assert len(commands) >= 2
    for command, shown in commands:
        done = subprocess.run(command, shell=True, cwd=world.dir, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.stdout == re.sub(r"^    ", "", shown, flags=re.M), command


def test_pdctl_says_where_pdfleet_should_be(world):
    prefix = installed(world)
    (prefix / "bin/pdfleet").unlink()
    done = fleet("check", bin=prefix / "bin")
    assert done.returncode == 1 and "bin/pdfleet: No such file" in done.stderr


@pytest.mark.parametrize("args,word", [([], "a command is needed"), (["go"], "go is not a command"), (["check", "x"], "too much: x"),
                                       (["check", "--output", "x"], "is for plan and render only"), (["--what"], "--what is not an option"),
                                       (["--host"], "--host needs a value")])
def test_wrong_command_lines(world, args, word):
    done = fleet("-f", written(world, simulated(world)), "-t", TEMPLATES, *args)
    assert done.returncode == 2 and word in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(" (see pdctl fleet --help)\n")


def test_an_unknown_kind_names_where_its_template_was_searched(world):
    path = written(world, {**simulated(world), "engine": {"kind": "other"}})
    done = fleet("check", "-f", path, "-t", TEMPLATES)
    assert done.returncode == 1 and f"{path}:7: engine.kind: no template for other: neither {TEMPLATES}/other.yaml" in done.stderr
