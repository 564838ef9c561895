#!/usr/bin/env python3
"""Memory of a worker per idle relayed stream: what N streams add to N others.  The streams are opened 20 at
a time: many that are opened at once leave gaps in the heap (bodies that were freed), which later requests use
again; that figure is run.py's.  The kernel's part is not in it."""
import argparse
import re
import resource
import subprocess
from pathlib import Path

from loads import body
from stage import BIN, Stage, tree

GROUP = 20


def private_kib(pid):
    """What the workers alone have: heap, no shared segment and no program text."""
    rollups = (Path(f"/proc/{p}/smaps_rollup").read_text() for p in tree(pid)[1:])
    return sum(int(re.search(r"^Private_Dirty:\s+(\d+)", r, re.M)[1]) for r in rollups)


def load(stage, text, **options):
    path = stage.dir / "body"
    path.write_text(text)
    args = [BIN / "pdload", "--port", stage.ports["router"]["idle"], "--body", path]
    for k, v in options.items():
        args += [f"--{k}"] + ([] if v is True else [v])
    return [str(a) for a in args]


def open_streams(stage, n, opened):
    for _ in range(0, n, GROUP):
        p = subprocess.Popen(load(stage, body("idle", stream=True, tokens=16), conns=GROUP, hold=True),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        opened.append(p)
        if b"held" not in p.stdout.readline():
            raise SystemExit("memory: not all streams could be opened")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--streams", type=int, default=1000, help=f"a multiple of {GROUP}")
    n = ap.parse_args().streams
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    with Stage(proxies=("router",), fds=min(hard, 20000)) as stage:
        subprocess.run(load(stage, body("idle", tokens=1), conns=GROUP, requests=200), stdout=subprocess.DEVNULL,
                       timeout=60, check=True)
        try:
            open_streams(stage, n, opened)
            before = private_kib(stage.pid["router"])
            open_streams(stage, n, opened)
            print(f"idle stream {(private_kib(stage.pid['router']) - before) / n:6.2f} KiB of a worker")
        finally:
            for p in opened:
                p.stdin.close()
                p.wait()


main()
