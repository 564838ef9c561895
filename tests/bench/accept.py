#!/usr/bin/env python3
"""What a new connection costs with 2 to 64 workers: sleeps that all workers together end for it, and their CPU.
Connections are opened one after the other, a GET /live on each.  See README.md."""
import argparse
import socket
import sys
import time
from pathlib import Path

from stage import Stage, tree

MOST_WAKES = 3  # of all workers for a connection and its request, however many workers there are

MORE = "shared_memory: {max_workers: 64}\n"


def spent(pids):
    """Sleeps, and microseconds of CPU, of these processes."""
    sleeps = us = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            us += int((task / "schedstat").read_text().split()[0]) / 1000
            sleeps += next(int(line.split()[1]) for line in (task / "status").read_text().splitlines()
                           if line.startswith("voluntary_ctxt"))
    return sleeps, us


def connect(port, count):
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), 10) as s:
            s.sendall(b"GET /live HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            if b" 200 " not in s.recv(4096):
                raise SystemExit("accept: /live was refused")
            while s.recv(4096):
                pass


def measure(workers, count):
    """Sleeps and CPU for one connection, less what the workers take without any in the same time."""
    with Stage(proxies=("router",), workers=workers, more=MORE) as stage:
        pids, port = tree(stage.pid["router"])[1:], stage.ports["router"]["fast"]
        connect(port, 100)
        at, begin = spent(pids), time.monotonic()
        connect(port, count)
        took, loaded = time.monotonic() - begin, spent(pids)
        time.sleep(took)
        idle = spent(pids)
    return [(loaded[i] - at[i] - (idle[i] - loaded[i])) / count for i in (0, 1)]


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--workers", default="2,8,16,64")
    ap.add_argument("--count", type=int, default=1000)
    opt = ap.parse_args()
    missed = 0
    print(f"{'workers':>7} {'wakes':>7} {'us of CPU':>10}   for a connection")
    for workers in map(int, opt.workers.split(",")):
        wakes, us = measure(workers, opt.count)
        missed += wakes > MOST_WAKES
        print(f"{workers:7} {wakes:7.2f} {us:10.1f}   {'ok' if wakes <= MOST_WAKES else 'MISS'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
