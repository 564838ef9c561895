#!/usr/bin/env python3
"""check.py [--all]: command lines, variables and files that `pdctl fleet` renders for the engines, and those that
etc/ shows, against the sources of released engines.  Prints a table; exits 1 if anything is not as an engine wants it."""
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import yaml

from arguments import Arguments, Refused
from source import Source
from wheel import ROOT, Wheel, number, versions

PDCTL = os.path.join(ROOT, "build", os.environ.get("VARIANT", "release"), "pdctl")
# LMCache's own versions are not those of vLLM: the first that has the keys of etc/fleet/vllm.yaml, and the newest
LMCACHE_SINCE = "0.3.7"
# name: (keys of both groups, whether the hosts have RDMA)
SHAPES = {"plain": ({}, False), "tensor": ({"tensor_parallel": 2}, False), "rdma": ({"tensor_parallel": 2}, True),
          "data": ({"data_parallel": 2}, False), "data tensor rdma": ({"data_parallel": 2, "tensor_parallel": 2}, True)}
# what the engines' own sources do not define
OTHERS = re.compile("PATH|CUDA_VISIBLE_DEVICES|PYTHONHASHSEED|UCX_NET_DEVICES|PDROUTER_.*|HF_.*|PYTORCH_.*|NCCL_.*")
NEEDED = {"LMCACHE_REMOTE_URL": "lm://10.0.0.9:65432"}


class Engine:
    """A released engine.  said(command, env, files): what is wrong with one process."""

    def __init__(self, wheel, caches):
        self.wheel, self.kind, self.caches = wheel, wheel.package, caches
        self.arguments = Arguments(wheel)
        self.source = self.arguments.source
        self.lines, self.wrong = 0, [f"not understood: {argument}" for argument in self.arguments.unclear]

    def strings(self, *modules):
        return set().union(*(m.strings for m in map(self.source.module, modules) if m is not None))

    def check(self, where, command, env, files=()):
        self.lines += 1
        self.wrong += [f"{where}: {found}" for found in
                       itertools.chain(self.of_command(command), self.of_variables(env), *map(self.of_file, files))]

    def of_command(self, command):
        after = {"vllm": "serve", "sglang": "sglang.launch_server"}[self.kind]
        try:
            parsed = self.arguments.parser.parse_args(command[command.index(after) + 1:])
        except Refused as e:
            yield str(e)
            return
        if getattr(parsed, "kv_transfer_config", None):
            yield from self.of_connector(parsed.kv_transfer_config)

    def of_connector(self, config):
        """The connector is registered, and its source names the keys that it is given."""
        base = "vllm.distributed.kv_transfer.kv_connector"
        factory = self.source.module(base + ".factory")
        module = re.search(r'register_connector\(\s*"%s",\s*"([\w.]+)"' % config["kv_connector"], self.wheel.read(factory.path))
        if module is None:
            yield f"no connector is named {config['kv_connector']}"
            return
        places = [self.source.strings(re.match(r".*/v1/\w+", module[1].replace(".", "/"))[0])]  # a file, or all of a folder
        if config["kv_connector"].startswith("LMCache"):
            places = [c.strings("lmcache.integration.vllm.vllm_v1_adapter") | places[0] for c in self.caches]
        for key in config.get("kv_connector_extra_config", {}):
            if not all(key in place for place in places):
                yield f"{config['kv_connector']} has no key {key} in kv_connector_extra_config"

    def of_variables(self, env):
        for name in env:
            if name.startswith("VLLM_") and name not in self.strings("vllm.envs"):
                yield f"no variable {name}"
            elif name.startswith(("SGLANG_", "SGL_")) and name not in self.words_of_sglang():
                yield f"no variable {name}"
            elif name.startswith("LMCACHE_"):
                yield from (f"no variable {name} in LMCache {c.version}" for c in self.caches if not c.has(name))
            elif not name.startswith(("VLLM_", "SGLANG_", "SGL_")) and not OTHERS.fullmatch(name):
                yield f"nobody knows the variable {name}"

    def words_of_sglang(self):
        module = self.source.module("sglang.srt.environ")  # older versions read their variables where they need them
        return self.source.strings("sglang/srt/") if module is None else module.strings | module.ids

    def of_file(self, keys):
        yield from (f"LMCache {c.version} has no key {key}" for c in self.caches for key in keys if key not in c.keys)

    def of_paths(self, paths):
        """URLs that routers and pdctl ask for."""
        served = self.source.strings(f"{self.kind}/srt/entrypoints/" if self.kind == "sglang" else "vllm/entrypoints/")
        self.wrong += [f"no path {p}" for p in paths if p not in served]


class Cache:
    """A released LMCache."""

    def __init__(self, version):
        self.version, self.source = version, Source(Wheel("lmcache", version))
        self.keys = self.strings("lmcache.v1.config")

    def strings(self, module):
        return self.source.module(module).strings

    def has(self, variable):
        return variable.removeprefix("LMCACHE_").lower() in self.keys or variable in self.strings("lmcache.integration.vllm.utils")


def in_range(kind, row, every=False):
    """The oldest and the newest release that a template's row is for, or all of them, as pdctl compares versions."""
    def fits(version):
        v, since, until = number(version), number(row.get("since", "0")), row.get("until")
        return v >= since and (until is None or v[:len(number(until))] <= number(until))
    found = [v for v in versions(kind) if fits(v)]
    return found if every or len(found) < 2 else [found[0], found[-1]]


def rendered(fleet_file):
    """(where, command, variables, keys of files) of each engine that pdctl renders."""
    with tempfile.TemporaryDirectory() as out:
        out = os.path.join(out, "plan")
        # pdctl of the build tree finds etc/fleet; with -t a router that follows the file would be a finding
        done = subprocess.run([PDCTL, "fleet", "plan", "-f", fleet_file, "--output", out],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            yield done.stderr.strip(), None, None, None
        for folder, _, names in os.walk(out):
            if "engine.conf" not in names:
                continue
            unit = folder.rpartition("@")[2].partition(".service")[0]
            host = folder[:folder.index("/etc/systemd")]
            with open(os.path.join(folder, "engine.conf")) as f:
                command = unquoted(re.search("^ExecStart=(.*)", f.read(), re.M)[1])
            with open(os.path.join(host, f"etc/pdrouter/fleet/{unit}.env")) as f:
                env = dict(re.findall('^([A-Z_]+)="(.*)"$', f.read(), re.M))
            files = [yaml.safe_load(open(host + v)) for k, v in env.items() if k.endswith("_FILE")]
            yield unit, command, env, files


def unquoted(text):
    """systemd.service(5), command lines: what is between quotes, $$ and %% for one."""
    return [re.sub(r"\\(.)", r"\1", w).replace("$$", "$").replace("%%", "%") for w in re.findall(r'"((?:[^"\\]|\\.)*)"', text)]


def fleet(kind, version, connector, shape, needs):
    keys, rdma = SHAPES[shape]
    group = {"hosts": ["a"], **keys, "args": ["--dtype", "bfloat16"], "env": {n: NEEDED[n] for n in needs}}
    text = {"fleet": "x", "model": {"path": "org/model", "served_as": "name"}, "engine": {"kind": kind, "version": version, "venv": "/venv"},
            "hosts": {"a": {"address": "10.0.0.1", "gpus": 16, **({"rdma": "mlx5_0,mlx5_1"} if rdma else {})}},
            "router": {"hosts": ["a"], "listen": ["10.0.0.1:8000"]}}
    return text | ({"connector": connector, "prefill": group, "decode": group} if connector else {"engines": group})


class Run:
    def __init__(self, every):
        self.every, self.engines, self.folder = every, {}, tempfile.TemporaryDirectory()
        self.caches = [Cache(LMCACHE_SINCE), Cache(versions("lmcache")[-1])]

    def engine(self, kind, version):
        if (kind, version) not in self.engines:
            self.engines[kind, version] = Engine(Wheel(kind, version), self.caches)
        return self.engines[kind, version]

    def fleet_file(self, engine, what, text):
        path = os.path.join(self.folder.name, "fleet.yaml")
        with open(path, "w") as f:
            f.write(text)
        for unit, command, env, files in rendered(path):
            if command is None:
                engine.wrong.append(f"{what}: {unit}")
            else:
                engine.check(f"{what}: {unit}", command, env, files)

    def template(self, kind):
        with open(os.path.join(ROOT, f"etc/fleet/{kind}.yaml")) as f:
            template = yaml.safe_load(f)
        for row in template["connectors"] + [{"name": None}]:
            lowest = min((r["since"] for r in template["connectors"]), key=number)
            for version in in_range(kind, {"since": lowest, **row}, self.every):
                engine = self.engine(kind, version)
                engine.of_paths([template.get("version_path", "/version"), row.get("pool", {}).get("health_path", "/health")])
                for connector, shape in itertools.product([row["name"]] + row.get("also", []), SHAPES):
                    if "data" not in shape or not row.get("no_data_parallel"):
                        text = json.dumps(fleet(kind, version, connector, shape, row.get("needs_env", [])))
                        self.fleet_file(engine, f"{connector or 'engines'}, {shape}", text)
                if row["name"] is not None:
                    self.example(engine, row["name"])

    def example(self, engine, connector):
        """The commands in the comments of etc/examples/CONNECTOR.yaml."""
        with open(os.path.join(ROOT, f"etc/examples/{connector}.yaml")) as f:
            text = "".join(line.lstrip("#") for line in f if line.startswith("#"))
        for found in commands(text):
            engine.check(f"etc/examples/{connector}.yaml", *found, lmcache_keys(text))

    def docs(self):
        """The fleet files of etc/docs whose engines are those of a template."""
        for page in sorted(os.listdir(os.path.join(ROOT, "etc/docs"))):
            with open(os.path.join(ROOT, "etc/docs", page)) as f:
                blocks = re.findall(r"^```yaml[^\n]*\n((?:# fleet\.yaml\n)?fleet:.*?)^```", f.read(), re.M | re.S)
            for text in blocks:
                engine = yaml.safe_load(text)["engine"]
                if "command" in engine:
                    continue
                version = in_range(engine["kind"], {"since": engine["version"], "until": engine["version"]})[-1]
                self.fleet_file(self.engine(engine["kind"], version), "etc/docs/" + page, text)


def commands(text):
    """(words, variables) of shell commands that start an engine: a line, and those that a backslash or an open quote adds."""
    text = text.replace("\\\n", " ")
    for start in re.finditer(r"((?:[A-Z_]+=\S+ +)*)((?:vllm serve|python -m sglang).*\n)", text):
        for end in re.finditer("\n", text[start.start(2):]):
            try:
                yield shlex.split(text[start.start(2):start.start(2) + end.start()]), re.findall("([A-Z_]+)=", start[1])
                break
            except ValueError:  # no closing quotation
                continue


def lmcache_keys(text):
    return [re.findall(r"(\w+):", keys) for keys in re.findall(r"\w+\.yaml:((?:\s+\w+: [^,\n]*(?:\[[^]]*\])?,?)+)", text)]


def main():
    run = Run("--all" in sys.argv[1:])
    for kind in ("vllm", "sglang"):
        run.template(kind)
    run.docs()
    print(f"{'engine':8} {'version':12} {'flags':>5} {'command lines':>13} {'findings':>8}")
    for (kind, version), e in sorted(run.engines.items(), key=lambda i: (i[0][0], number(i[0][1]))):
        print(f"{kind:8} {version:12} {len(e.arguments.parser._actions):5} {e.lines:13} {len(e.wrong):8}")
        for line in sorted(set(e.wrong)):
            print("   ", line)
    print("LMCache:", ", ".join(c.version for c in run.caches))
    wrong = sum(len(e.wrong) for e in run.engines.values())
    print(f"{sum(e.lines for e in run.engines.values())} command lines, {wrong} findings")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
