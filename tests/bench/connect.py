#!/usr/bin/env python3
"""Time to the first token of N connections that are opened at once, beside haproxy in the same run.  See README.md."""
import argparse
import resource
import sys

from run import Bench, body
from stage import Stage

PROXIES = ("router", "haproxy")
BURSTS = {64: 8, 500: 4}  # connections, bursts a round
MOST_US = {64: lambda haproxy: 8000, 500: lambda haproxy: haproxy + 5000}  # of the router's p99


def measure(workers, rounds, legs):
    got = {}
    with Stage(proxies=PROXIES, workers=workers, legs=legs) as stage:
        bench = Bench(stage, {})
        for _ in range(rounds):
            for n, bursts in BURSTS.items():
                for who in PROXIES:
                    r = bench.load(who, "stream", body("fast", stream=True, tokens=4), conns=n, bursts=bursts, events=6)
                    got.setdefault((n, who), []).append(r["first_us"])
    return got


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--workers", default="2,8")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--legs", type=int, choices=(1, 2), default=2, help="1: decode alone, as haproxy passes a request on")
    opt = ap.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    missed = 0
    print(f"{'workers':>7} {'connections':>11}   {'router p50':>10} {'p99':>7}   {'haproxy p50':>11} {'p99':>7}   ms")
    for workers in map(int, opt.workers.split(",")):
        got = measure(workers, opt.rounds, opt.legs)
        for n in BURSTS:
            low = {(who, q): min(r[q] for r in got[n, who]) for who in PROXIES for q in ("p50", "p99")}
            most = MOST_US[n](low["haproxy", "p99"])
            ok = low["router", "p99"] <= most
            missed += not ok
            print(f"{workers:7} {n:11}   {low['router', 'p50'] / 1000:10.1f} {low['router', 'p99'] / 1000:7.1f}   "
                  f"{low['haproxy', 'p50'] / 1000:11.1f} {low['haproxy', 'p99'] / 1000:7.1f}   "
                  f"{'ok  ' if ok else 'MISS'} p99 at most {most / 1000:.1f}", flush=True)
    print(f"the lowest of {opt.rounds} rounds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
