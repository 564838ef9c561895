#!/usr/bin/env python3
"""Instructions of the worker per request and per relayed event, under callgrind: unlike microseconds they
repeat to a percent on any machine.  Each work is done N and 2N times by a router of its own; the
difference is N of it.  The kernel's part is not in it.

--check compares with the figures of instructions.txt, which --write makes: those of a shorter run, of the works that
repeat beside other work, too."""
import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from loads import body
from stage import BIN, Stage, key_of, post, tree

# name: N, what the body is like, options of pdload for n of it
WORKS = {
    "request of 1 KiB": (1000, dict(), lambda n: dict(conns=4, requests=n)),
    "its client has a key": (1000, dict(), lambda n: dict(conns=4, requests=n, key=key_of(4711))),
    "one of 10,000 keys": (1000, dict(), lambda n: dict(conns=4, requests=n, key=key_of(4711))),
    "its trace is exported": (1000, dict(), lambda n: dict(conns=4, requests=n)),
    "choice of 2 engines": (1000, dict(), lambda n: dict(conns=4, requests=n)),
    "choice of 2, 2,000 endpoints": (1000, dict(), lambda n: dict(conns=4, requests=n, warm=1000)),
    "request of 128 KiB": (100, dict(size=128 << 10), lambda n: dict(conns=4, requests=n)),
    "1 KiB, cache_aware": (1000, dict(), lambda n: dict(conns=4, requests=n)),
    "128 KiB, cache_aware": (100, dict(size=128 << 10), lambda n: dict(conns=4, requests=n)),
    "event alone": (4000, dict(stream=True, tokens=100000), lambda n: dict(conns=8, steps=n // 8)),
    "event, resume on": (2000, dict(stream=True, tokens=100000), lambda n: dict(conns=8, steps=n // 8)),
    "event in a burst": (51200, dict(stream=True, tokens=100000),
                         lambda n: dict(conns=8, steps=n // 512, step_size=64, freeze=True)),
}


KEYS = {"one of 10,000 keys": 10000}  # in the router's api_keys_file; it has none for the others
# lines of the router's configuration; no collector listens there
MORE = {"choice of 2, 2,000 endpoints": "shared_memory: {max_endpoints: 2100}\nhealth_interval: 60s\nstats_interval: 60s\n",
        "its trace is exported": "tracing: {sample: 1, otlp: \"http://127.0.0.1:9\", ring: 16MiB}\n"}
# a line of each pool
POOL = {"event, resume on": "resume: true", "1 KiB, cache_aware": "prefill_policy: cache_aware",
        "128 KiB, cache_aware": "prefill_policy: cache_aware",
        "choice of 2 engines": "policy: least_loaded", "choice of 2, 2,000 endpoints": "policy: least_loaded"}
# of each role; a worker has met each after 1,000 requests; among one prefill engine nothing is looked up
ADDRESSES = {"choice of 2, 2,000 endpoints": 1000, "1 KiB, cache_aware": 2, "128 KiB, cache_aware": 2}
WITHIN = {"choice of 2 engines": "plan_make", "choice of 2, 2,000 endpoints": "plan_make"}  # the function that is measured

KEPT = Path(__file__).with_name("instructions.txt")
SHORT = {"request of 1 KiB": 300, "request of 128 KiB": 40, "event in a burst": 51200}  # of --check: what n is
MOST_MORE = 0.05
# memcpy() and its like are chosen by the processor, and the bytes of `rep movsb` count as instructions
SAME_EVERYWHERE = "glibc.cpu.hwcaps=-AVX2,-ERMS,-FSRM"


def worker_profile(where, master):
    """The profile of the one worker, and its instructions."""
    out = [p for p in where.glob("cg.*") if p.name != f"cg.{master}" and "exporter_main" not in p.read_text()]
    if len(out) != 1:
        raise SystemExit(f"callgrind: one profile of a worker expected, found {out}")
    return out[0], int(re.search(r"^(?:summary|totals): (\d+)", out[0].read_text(), re.M)[1])


def work(where, text, options, name):
    """One router's life with that load."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    under = ["valgrind", "-q", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={where}/cg.%p",
             *([f"--toggle-collect={WITHIN[name]}"] if name in WITHIN else [])]
    with Stage(proxies=("router",), router_under=under, keys=KEYS.get(name, 0), more=MORE.get(name, ""), pool=POOL.get(name, ""),
               addresses=ADDRESSES.get(name, 1)) as stage:
        path = stage.dir / "body"
        path.write_text(text)
        args = [BIN / "pdload", "--port", stage.ports["router"]["fast"], "--body", path]
        if "steps" in options:
            post(stage.direct["fast"], "/sim/pause_stream", "{}")
            args += ["--step-port", stage.direct["fast"]]
        if "freeze" in options:
            args += ["--pids", ",".join(map(str, tree(stage.pid["router"])))]
        for k, v in options.items():
            args += [f"--{k.replace('_', '-')}"] + ([] if v is True else [v])
        subprocess.run([str(a) for a in args], stdout=subprocess.DEVNULL, timeout=120, check=True)
        master = stage.pid["router"]
    return worker_profile(where, master)


def measure(name, n, keep):
    """Instructions of one of the work."""
    _, ask, options = WORKS[name]
    got = []
    for times in (1, 2):
        where = Path(keep).absolute() / f"{name.replace(' ', '-')}.{times}"
        got.append(work(where, body("fast", **ask), options(n * times), name)[1])
    return (got[1] - got[0]) / n


def toolchain():
    """Other instructions come from another compiler.  The program names its own."""
    by = re.findall(rb"(?:GCC|clang)[ :][ -~]*", (BIN / "pdrouter").read_bytes())
    wide = "avx2" in Path("/proc/cpuinfo").read_text().split()  # long strings of JSON take other instructions without it
    return f"{by[0].decode()}, {platform.machine()}{' avx2' if wide else ''}, libc {platform.libc_ver()[1]}"


def write(keep):
    rows = [f"{name}: {measure(name, n, keep):.0f}\n" for name, n in SHORT.items()]
    KEPT.write_text(f"toolchain: {toolchain()}\n" + "".join(rows))


def check(keep):
    """How many figures are more than MOST_MORE above those that are kept."""
    kept = dict(line.split(": ", 1) for line in KEPT.read_text().splitlines())
    if kept.pop("toolchain") != toolchain():
        print(f"not compared: {KEPT.name} is of another toolchain than {toolchain()}")
        return 0
    more = 0
    for name, figure in kept.items():
        got = measure(name, SHORT[name], keep)
        bad = got > int(figure) * (1 + MOST_MORE)
        more += bad
        print(f"{name:<21} {got:10.0f} instructions, {100 * got / int(figure) - 100:+.1f}%{'  MORE' if bad else ''}", flush=True)
    if more > 0:
        print(f"more than {100 * MOST_MORE:.0f}% above {KEPT.name}: is it worth that?  Then callgrind.py --write")
    return more


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--keep", default="build/callgrind", help="folder for the profiles")
    ap.add_argument("--only", help="one of: " + ", ".join(WORKS))
    ap.add_argument("--check", action="store_true")
    ap.add_argument("--write", action="store_true")
    opt = ap.parse_args()
    if opt.check or opt.write:
        os.environ["GLIBC_TUNABLES"] = SAME_EVERYWHERE
        return write(opt.keep) if opt.write else check(opt.keep)
    for name, (n, _, _) in WORKS.items():
        if opt.only in (None, name):
            print(f"{name:<29} {measure(name, n, opt.keep):10.0f} instructions", flush=True)
    print(f"profiles: {opt.keep}/NAME.2/cg.PID, for callgrind_annotate --inclusive=yes", file=sys.stderr)
    return 0


sys.exit(main())
