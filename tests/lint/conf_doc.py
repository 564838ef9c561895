#!/usr/bin/env python3
"""The table of configuration keys (master/config/conf_keys.h) against etc/: both ways, defaults and comments.

- every key stands in etc/pdrouter.yaml with its class and one-line doc, and nothing else does;
- the value there is the default: the file without that line reads as the same configuration;
- the table of what a reload does (etc/docs/configuration.md) has each key in the row of its class;
- the keys of an endpoints_file stand in etc/README.md;
- the flags of other routers (master/config/conf_flags.h) stand in etc/README.md with what they become;
- all sample files are accepted by the parser, and there is one for each connector;
- the unit waits for longer than drain_timeout, and has what systemd/README.md names.
Usage: conf_doc.py [conf_dump]; without an argument it is compiled.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAMPLE, UNIT, RELOAD = "etc/pdrouter.yaml", "systemd/pdrouter.service", "etc/docs/configuration.md"
# what an upgrade, a restart, the state_file, a host without memory and a line for each request need
NEEDED = {"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "FileDescriptorStoreMax": r"[1-9]\d*", "StateDirectory": r"\w+",
            "OOMPolicy": "continue", "OOMScoreAdjust": r"-[1-9]\d*", "LimitCORE": "0", "LogRateLimitIntervalSec": "1s",
            "LogRateLimitBurst": r"\d{6,}"}
# `key: value   # [class] doc`, at any depth, perhaps as the first key of a list's entry
LINE = re.compile(r"^(?P<indent> *)(?P<dash>- )?(?P<key>[a-z_]+):(?P<value>[^#]*?)(?: *# \[(?P<class>\w+)\] (?P<doc>.*))?$")
TABLE_OF = {"": "root", "pools": "pool", "pools.prefill": "endpoint", "pools.decode": "endpoint"}
faults = []


def source(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


CONNECTORS = re.findall(r"^X\(\w+, (\w+),", source("shm/base/connector_list.h"), re.M)
POLICIES = re.findall(r'\[POLICY_\w+\] = "(\w+)"', source("shm/base/conf_names.c"))


def listed(key, text, names):
    """The help text of a key lists exactly these names."""
    for name in sorted(set(re.findall(r"\w+", text)) - {"or"} ^ set(names)):
        what = "is missing" if name in names else "does not exist"
        faults.append(f"master/config/conf_keys.h: {key}: {name} {what} in the help text")


def having(key):
    """The connectors whose row names a key."""
    rows = re.findall(r"^X\(\w+, (\w+),(.*?)(?=^X\(|\Z)", source("shm/base/connector_list.h"), re.M | re.S)
    return ", ".join(name for name, facts in rows if f'"{key}"' in facts) or "none has it"


def build(folder):
    tool = os.path.join(folder, "conf_dump")
    sources = [f"master/config/{f}" for f in os.listdir("master/config") if f.endswith(".c")]
    sources += [f"shm/base/{f}" for f in os.listdir("shm/base") if f.endswith(".c")]
    subprocess.run(
        [os.environ.get("CC", "gcc"), "-std=gnu11", "-D_GNU_SOURCE", "-I.", "-O0", "-o", tool, "tests/lint/conf_dump.c",
         *sources, "proto/http/http.c", "proto/http/http_url.c", "proto/tls/client.c", "proto/tls/context.c", "proto/tls/pem.c", "proto/tls/mac.c",
         "-lyaml", "-lhttp_parser", "-lssl", "-lcrypto"], check=True)
    return tool


def sample_keys(lines):
    """(line number, table, path in the table, whole line's match) of each key of the sample."""
    stack = []  # (indent, name) of the open sections
    for number, line in enumerate(lines, 1):
        m = LINE.match(line)
        if not m or line.lstrip().startswith("#"):
            continue
        indent = len(m["indent"]) + (2 if m["dash"] else 0)
        while stack and stack[-1][0] >= indent:
            stack.pop()
        above = [name for _, name in stack]
        stack.append((indent, m["key"]))
        for depth in range(len(above), -1, -1):
            table = TABLE_OF.get(".".join(above[:depth]))
            if table:
                yield number, table, ".".join(above[depth:] + [m["key"]]), m
                break


def read_same(tool, lines, without):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write("\n".join(without) + "\n")
        f.flush()
        return subprocess.run([tool, "same", SAMPLE, f.name], capture_output=True, text=True)


def without_key(lines, number, m):
    """The sample without one key's line, and without a section that is empty then."""
    kept = lines[:number - 1] + lines[number:]
    if m["dash"]:  # the entry's dash moves to its next key
        kept[number - 1] = m["indent"] + "- " + kept[number - 1].lstrip()
    above = LINE.match(lines[number - 2])
    if above and above["value"].strip() == "" and not re.match(" " * len(m["indent"]) + r"\S", kept[number - 1]):
        del kept[number - 2]
    return kept


def at_default(lines, number, m):
    """The sample with one key at its default: without its line, and without the line of the key that its default follows."""
    kept = without_key(lines, number, m)
    return [x for x in kept if not re.match(r" +policy: ", x)] if m["key"] == "prefill_policy" else kept


def flag_cell(name, arg):
    """As a cell of a table of Markdown has it: a bar would end it."""
    return f"--{name} {arg}".strip().replace("|", "\\|")


def compare_classes(class_of):
    """The table of what a reload does has each key of the root in the row of its class, once."""
    shown = {}
    for klass, keys in re.findall(r"^  \| `(\w+)`: [^|]*\| ([^|]*) \|$", source(RELOAD), re.M):
        for key in re.findall(r"`([\w.]+)`", keys):
            shown.setdefault(key, []).append(klass)
    for key in sorted(set(class_of) | set(shown)):
        want = [class_of[key]] if key in class_of else []
        if shown.get(key, []) != want:
            faults.append(f"{RELOAD}: what a reload does: {key} should be in the row {want}, not {shown.get(key, [])}")


def check_unit(drain_timeout):
    has = dict(re.findall(r"^(\w+)=(.*)$", source(UNIT), re.M))
    drain_s = int(drain_timeout[:-1]) * {"s": 1, "m": 60}[drain_timeout[-1]]
    faults.extend(f"{UNIT}: {key} must be longer than the default of drain_timeout, {drain_timeout}"
                  for key in ("TimeoutStartSec", "TimeoutStopSec") if int(has.get(key, 0)) <= drain_s)
    faults.extend(f"{UNIT}: {key}={value} is needed: systemd/README.md" for key, value in NEEDED.items()
                  if not re.fullmatch(value, has.get(key, "")))


def main():
    os.chdir(ROOT)
    folder = tempfile.TemporaryDirectory()
    tool = sys.argv[1] if len(sys.argv) > 1 else build(folder.name)
    out = subprocess.run([tool, "keys"], capture_output=True, text=True, check=True).stdout
    rows = {}
    for name in CONNECTORS:
        TABLE_OF["pools." + name] = "connector"
    for line in out.splitlines():
        table, path, default, klass, doc = line.split("\t")
        rows[table, path] = (default, klass, doc)
    with open(SAMPLE) as f:
        lines = f.read().splitlines()

    for sample in (SAMPLE, "etc/pdrouter-minimal.yaml", *sorted(glob.glob("etc/examples/*.yaml"))):
        r = subprocess.run([tool, "check", sample], capture_output=True, text=True)
        if r.returncode != 0:
            faults.append(r.stderr.strip())
    readable = not faults
    listed("connector", rows["pool", "connector"][2].split(":")[1], CONNECTORS)
    listed("policy", rows["pool", "policy"][2], POLICIES)
    for connector in CONNECTORS:
        sample = f"etc/examples/{connector}.yaml"
        if not os.path.exists(sample) or not re.search(rf"^ +connector: {connector}$", open(sample).read(), re.M):
            faults.append(f"{sample}: no example of the connector {connector}")
    shown = set()
    sections = {(t, p.rsplit(".", 1)[0]) for t, p in rows if "." in p}
    for number, table, path, m in sample_keys(lines):
        row = rows.get((table, path))
        if row is None:
            if (table, path) not in sections and "pools." + path not in TABLE_OF:
                faults.append(f"{SAMPLE}:{number}: {path}: not in the table")
            continue
        default, klass, doc = row
        if m["doc"] is None:
            continue  # a further example of a key explained elsewhere
        shown.add((table, path))
        if (m["class"], m["doc"]) != (klass, doc):
            faults.append(f"{SAMPLE}:{number}: {path}: the comment should be: # [{klass}] {doc}")
        if default == "(required)" or (table == "pool" and path in ("prefill", "decode")):
            continue
        if not default.startswith("(") and m["value"].strip().strip('"[]') != default.strip("[]"):
            faults.append(f"{SAMPLE}:{number}: {path}: the default is {default}")
        r = read_same(tool, lines, at_default(lines, number, m)) if readable else None
        if r is not None and r.returncode != 0:
            faults.append(f"{SAMPLE}:{number}: {path}: without this line: {r.stderr.strip()}")

    check_unit(rows["root", "drain_timeout"][0])
    compare_classes({path: klass for (table, path), (_, klass, _) in rows.items() if table == "root"})
    with open("etc/README.md") as f:
        readme = f.read()
    for (table, path), (default, klass, doc) in rows.items():
        if table == "endpoints_file":
            if f"| `{path}` | {doc} |" not in readme:
                faults.append(f"etc/README.md: no row | `{path}` | {doc} |")
        elif (table, path) not in shown:
            where = f"the map of a connector that has it (shm/base/connector_list.h: {having(path)})" if table == "connector" else f"the keys of: {table}"
            faults.append(f"{SAMPLE}: {path} is missing among {where}: a line `{path}: {default}   # [{klass}] {doc}`")
    flags = subprocess.run([tool, "flags"], capture_output=True, text=True, check=True).stdout
    for kind, name, arg, doc in (line.split("\t") for line in flags.splitlines()):
        row = f"| `{flag_cell(name, arg)}` | {doc} |" if kind != "idle" else f"`--{name}`"
        if row not in readme:
            faults.append(f"etc/README.md: nowhere: {row}")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
