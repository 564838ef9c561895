#!/usr/bin/env python3
"""What the lists promise: every end reason has a test, so has every feature of every connector and each row of tests/PROMISES.md,
every list of connectors and policies is whole, metric names follow Prometheus' rules, every folder has its README, that of a room names each of its files, nothing names the machine it was made on, and no merge is unfinished."""
import ast
import collections
import functools
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ["master", "worker", "shm", "proto", "tests", "etc", "systemd"]
ROOMS = ["master", "worker", "shm", "proto"]
PROMISES, TESTED = "tests/PROMISES.md", "## What is tested of each hand-shake"
# what no committed file has
STRAY = [(re.compile(r"(?<![\w./-])/wor[k]/\w"), "names a path of the machine it was made on"),
         (re.compile(r"^(<{7}|>{7}) ", re.M), "a merge was not finished here")]
UNITS = r"(_seconds|_bytes)$"
faults = []


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def end_reasons():
    path = "worker/base/end_list.h"
    tests = "".join(read(p) for p in glob.glob("tests/e2e/*.py"))
    text = read(path)
    found = list(re.finditer(r"^\tX\((\w+),\s*\"(\w+)\"", text, re.M))
    if not found:
        faults.append(f"{path}: no end reasons found: has the list changed its shape?")
    for m in found:
        if not re.search(r"[\"']" + m.group(2) + r"[\"']", tests):
            faults.append(f"{path}:{line_of(text, m.start())}: no test in tests/e2e/ ends with \"{m.group(2)}\"")


def log_line():
    """etc/docs/logging.md: a row for each field of a request's line, and each end reason."""
    page = read("etc/docs/logging.md")
    fields = re.findall(r"(?:LOG_[A-Z]+|_of)\(\"(\w+)\"", read("worker/request/access_log.c"))
    named = {name for row in rows_under("etc/docs/logging.md", "## The line of a request", "field") for name in re.findall(r"`(\w+)`", row[0])}
    same_names("etc/docs/logging.md: The line of a request", named - {"process", "slot"}, set(fields))
    reasons = re.findall(r"^\tX\(\w+,\s*\"(\w+)\"", read("worker/base/end_list.h"), re.M)
    shown = page.partition("\n### How a request can end\n")[2].partition("\n## ")[0]
    named = {name for line in shown.split("\n") if line.startswith("| `") and "`reason`" not in line for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    same_names("etc/docs/logging.md: How a request can end", named, set(reasons))


def metrics():
    path = "shm/metrics_list.h"
    text = read(path)
    kind = None
    seen = collections.Counter()
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r"#define METRIC_(\w+)\(X\)", line)
        kind = m.group(1) if m else kind
        m = re.search(r"\"(pdrouter_\w*|[\w:]+)\"", line) if line.startswith("\tX(") else None
        if m:
            seen[m.group(1)] += 1
            metric(f"{path}:{n}", kind, m.group(1))
    if not seen:
        faults.append(f"{path}: no metrics found: has the list changed its shape?")
    for path in sorted(glob.glob("worker/request/stats*.c")):
        stats = read(path)
        for m in re.finditer(r"(?:heading\(\s*x,\s*|^\t\{ )\"(\w+)\",\s*\"(\w+)\"", stats, re.M):
            seen[m.group(1)] += 1
            metric(f"{path}:{line_of(stats, m.start())}", m.group(2).upper() + "S", m.group(1))
    for name in seen:
        if name.endswith("_total") and name[:-len("_total")] in seen:
            faults.append(f"{path}: {name}: OpenMetrics knows it without _total, and that is another metric's name")
    for name, times in seen.items():
        if times > 1:
            faults.append(f"{path}: {name} stands there {times} times")


def metric(at, kind, name):
    if not re.fullmatch(r"(pdrouter|process)(_[a-z0-9]+)+", name):
        faults.append(f"{at}: {name}: a name is pdrouter_ (process_ as in Prometheus' client libraries) and lower case words, no colon")
    if kind in ("COUNTERS", "TOKENS") and not name.endswith("_total"):
        faults.append(f"{at}: {name}: a counter ends with _total")
    if kind not in ("COUNTERS", "TOKENS") and name.endswith("_total"):
        faults.append(f"{at}: {name}: only a counter ends with _total")
    if kind == "HISTOGRAMS" and not re.search(UNITS, name):
        faults.append(f"{at}: {name}: a histogram ends with its base unit, _seconds or _bytes")
    if re.search(r"_(ms|us|ns|milliseconds|microseconds|minutes|kb|kib|mb|mib)(_total)?$", name):
        faults.append(f"{at}: {name}: base units only, seconds and bytes")
    if re.search(r"_(bucket|sum|count)$", name):
        faults.append(f"{at}: {name}: ends like a histogram's series")


def readmes():
    for folder in FOLDERS:
        if not os.path.isfile(os.path.join(folder, "README.md")):
            faults.append(f"{folder}/README.md: is missing")
    for folder in sorted({os.path.dirname(p) for room in ROOMS for p in glob.glob(f"{room}/**/*.[ch]", recursive=True)}):
        named = [re.escape(name).replace(r"\*", ".*") for name in re.findall(r"([\w*]+)\.(?:\[ch\]|[ch]\b)", read(f"{folder}/README.md"))]
        for file in sorted({os.path.basename(p).split(".")[0] for p in glob.glob(f"{folder}/*.[ch]")}):
            if not any(re.fullmatch(name, file) for name in named):
                faults.append(f"{folder}/README.md: says nothing of {file}")


@functools.cache
def defined_in(file):
    """Functions of a file of tests/e2e, those that it takes from rows.py included."""
    body = ast.parse(read(f"tests/e2e/{file}")).body
    defined = {n.name for n in body if isinstance(n, ast.FunctionDef)}
    return defined | {a.name for n in body if isinstance(n, ast.ImportFrom) and n.module == "rows" for a in n.names}


def tested():
    """PROMISES' table of tests: a column for each connector, no empty cell, every name a test of the column's file."""
    text = read(PROMISES)
    at = text.find(TESTED)
    table = [[c.strip().strip("`") for c in line[1:-1].split("|")]
             for line in re.split(r"\n##+ ", text[at:])[0].split("\n") if at >= 0 and line.startswith("|")]
    names = re.findall(r"^X\(\w+, (\w+),", read("shm/base/connector_list.h"), re.M)
    if not names or not table or sorted(table[0][1:]) != sorted(names):
        faults.append(f"{PROMISES}: the table of what is tested needs a column for each of {', '.join(names)}")
        return
    head, _, files, *rows = table
    for name, file in zip(head[1:], files[1:]):
        defined = defined_in(file)
        for row in rows:
            cell = row[head.index(name)]
            if cell not in defined:
                faults.append(f"{PROMISES}: {name}, {row[0]}: \"{cell}\" is no test of tests/e2e/{file}")


def rows_under(path, heading, header):
    """First two cells of a table below a heading, by the first cell of its head."""
    at = read(path).partition(f"\n{heading}\n")[2]
    lines = re.split(r"\n#{2,3} ", at)[0].partition(f"\n| {header} |")[2].split("\n\n")[0].rstrip("\n").split("\n")[2:]
    return [[c.strip() for c in line[1:-1].split("|")[:2]] for line in lines]


def same_names(at, found, names):
    for name in sorted(set(found) ^ set(names)):
        faults.append(f"{at}: {name} " + ("is missing" if name in names else "does not exist"))


def connectors():
    """The tables of connectors in README.md, etc/docs/handshakes.md and etc/README.md, the last one with the keys of each."""
    text = read("shm/base/connector_list.h")
    keys = {name: re.findall(r'"(\w+)"', "".join(re.findall(r"\.keys = \{(.*?)\}", facts, re.S)))
            for name, facts in re.findall(r"^X\(\w+, (\w+),(.*?)(?=^X\(|\Z)", text, re.M | re.S)}
    for page, heading in (("README.md", "### Hand-shakes"), ("etc/docs/handshakes.md", "## Connectors")):
        same_names(f"{page}: {heading}", [re.findall(r"\w+", row[0])[0] for row in rows_under(page, heading, "`connector`")], keys)
    shown = {row[0].strip("`"): row[1] for row in rows_under("etc/README.md", "## Pools", "connector")}
    same_names("etc/README.md: the table of connectors", shown, keys)
    for name in shown.keys() & keys.keys():
        own = re.match(r"(`\w+`(, )?)*", shown[name])[0]
        same_names(f"etc/README.md: keys of {name}", re.findall(r"\w+", own), keys[name])


def policies():
    """What lists the policies: etc/docs/routing.md, worker/schedule/README.md, the message that etc/README.md quotes."""
    names = re.findall(r'\[POLICY_\w+\] = "(\w+)"', read("shm/base/conf_names.c"))
    same_names("etc/docs/routing.md: the table of policies",
               [name for row in rows_under("etc/docs/routing.md", "## Policies", "policy") for name in re.findall(r"`(\w+)`", row[0])], names)
    listed = read("worker/schedule/README.md").partition("\n## Policies\n")[2].partition(":")[0]
    same_names("worker/schedule/README.md: Policies", re.findall(r"`(\w+)`", listed), names)
    message = re.search(r"is not a policy: (.*)", read("etc/README.md"))
    same_names("etc/README.md: \"is not a policy\"", message[1].split(", ") if message else [], names)


def causes():
    """The table of causes of failures in etc/docs/engines.md says what the list says."""
    listed = dict(re.findall(r'^\tX\(\w+, "(\w+)", "([^"]+)"', read("shm/core/layout.h"), re.M))
    shown = {row[0].strip("`"): row[1] for row in rows_under("etc/docs/engines.md", "## Engines that fail requests", "`cause`")}
    same_names("etc/docs/engines.md: the table of causes", shown, set(listed) - {"good"})
    for name in sorted(listed.keys() & shown.keys()):
        if listed[name] != shown[name]:
            faults.append(f"etc/docs/engines.md: the cause {name} means \"{listed[name]}\" (shm/core/layout.h)")


@functools.cache
def tests_of(path):
    """Names of a file's tests, of what looks at a run of tests/chaos; none if it is not there."""
    if not os.path.isfile(path):
        return set()
    if path.endswith(".py"):
        named = {n.name for n in ast.walk(ast.parse(read(path))) if isinstance(n, ast.FunctionDef)}
        return named if "chaos" in path else {name for name in named if name.startswith("test_")}
    return set(re.findall(r"\bTest\(\w+, (\w+)", read(path)))


def happens():
    """The promises: three cells a row, and every test it names is there."""
    lines = read(PROMISES).partition(TESTED)[0].split("\n")
    rows = [(n, [c.strip() for c in line[1:-1].split(" | ")]) for n, line in enumerate(lines, 1) if line.startswith("| ")]
    rows = [(n, cells) for n, cells in rows if cells[0] != "situation"]
    if not rows:
        faults.append(f"{PROMISES}: has no row")
    for n, cells in rows:
        named = re.findall(r"`([\w/.]+)::(\w+)`", cells[-1])
        if len(cells) != 3 or not all(cells) or not named or len(named) != cells[-1].count("`") // 2:
            faults.append(f"{PROMISES}:{n}: a row is a situation, what the router does, and `file::test`s")
        for file, test in named:
            folders = ["tests/e2e", "tests/chaos", "tests/unit"]
            if not any(test in tests_of(os.path.join(f, file)) for f in folders):
                faults.append(f"{PROMISES}:{n}: {file}::{test} is no test of {', '.join(folders)}")


def quick():
    """tests/e2e/quick.py names one test of every file; the files that it starts first exist."""
    longest, _, rest = read("tests/e2e/quick.py").partition("LONGEST = ")[2].partition("QUICK = ")
    table = ast.literal_eval(rest)
    files = {os.path.basename(p) for p in glob.glob("tests/e2e/test_*.py")}
    for file in set(ast.literal_eval(longest)) - files:
        faults.append(f"tests/e2e/quick.py: {file}: no such file")
    for file in sorted(files ^ set(table)):
        faults.append(f"tests/e2e/quick.py: {file}: " + ("no row" if file in files else "no such file"))
    for file in sorted(files & set(table)):
        if table[file] not in defined_in(file):
            faults.append(f"tests/e2e/quick.py: {table[file]} is no test of {file}")


def metrics_asked():
    """A metric of the router that an end-to-end test names exists; its name there has no pdrouter_."""
    sources = "".join(read(p) for p in ["shm/metrics_list.h", *glob.glob("worker/*/*.c")])
    have = {re.sub("^pdrouter_", "", name) for name in re.findall(r'"(pdrouter_\w+)', sources)}
    for path in sorted(glob.glob("tests/e2e/*.py")):
        text = read(path)
        for m in re.finditer(r'(?:\br(?:outer)?\.(?:wait_)?metric\(|\bgauge\(\w+, )"(\w+)"', text):
            if re.sub(r"_(bucket|sum|count)$", "", m[1]) not in have and m[1] not in have:
                faults.append(f"{path}:{line_of(text, m.start())}: the router has no metric pdrouter_{m[1]}")


def stray():
    for folder, names, files in os.walk("."):
        names[:] = [n for n in names if n not in (".git", "build", "__pycache__")]
        for path in (os.path.normpath(os.path.join(folder, f)) for f in files if f != ".git"):
            text = read(path)
            for pattern, what in STRAY:
                for m in pattern.finditer(text):
                    faults.append(f"{path}:{line_of(text, m.start())}: {what}: {m.group(0)}")


def main():
    os.chdir(ROOT)
    end_reasons()
    log_line()
    metrics()
    readmes()
    tested()
    connectors()
    policies()
    causes()
    happens()
    quick()
    metrics_asked()
    stray()
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
