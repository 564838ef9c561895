#!/usr/bin/env python3
"""Time to the first token of N connections that are opened at once, beside haproxy in the same run.  See README.md."""
import argparse
import sys

from loads import Loads, body, raise_files
from stage import Stage

PROXIES = ("router", "haproxy")
BURSTS = {64: 8, 500: 4, 5000: 1}  # connections, bursts a round
QUANTILES = ("p50", "p99")
# of the router's, in us; a connection that does not fit in the queue of a listening socket (4,096) begins again after 1 s
MOST_US = {64: {"p50": lambda haproxy: 5000, "p99": lambda haproxy: 8000}, 500: {"p99": lambda haproxy: haproxy + 5000}}


def measure(workers, rounds, fds, legs=2):
    """First event, the lowest of the rounds, by connections, proxy and quantile."""
    got = {}
    with Stage(proxies=PROXIES, workers=workers, legs=legs, fds=fds) as stage:
        loads = Loads(stage, {})
        for _ in range(rounds):
            for n, bursts in BURSTS.items():
                for who in PROXIES:
                    r = loads.load(who, "stream", body("fast", stream=True, tokens=4), conns=n, bursts=bursts, events=6)
                    for q in QUANTILES:
                        got[n, who, q] = min(r["first_us"][q], got.get((n, who, q), float("inf")))
    return got


def table(bursts):
    """Of (workers, what measure() returned).  Returns the marks that are missed."""
    missed = []
    print(f"\n{'workers':>7} {'connections':>11}   {'router p50':>10} {'p99':>7}   {'haproxy p50':>11} {'p99':>7}   ms")
    for workers, got in bursts:
        for n in BURSTS:
            marks = []
            for q, most_of in MOST_US.get(n, {}).items():
                most = most_of(got[n, "haproxy", q])
                ok = got[n, "router", q] <= most
                marks.append(f"{'ok  ' if ok else 'MISS'} {q} at most {most / 1000:.1f}")
                missed += [] if ok else [f"{n} connections, {workers} workers, {q}"]
            print(f"{workers:7} {n:11}   {got[n, 'router', 'p50'] / 1000:10.1f} {got[n, 'router', 'p99'] / 1000:7.1f}   "
                  f"{got[n, 'haproxy', 'p50'] / 1000:11.1f} {got[n, 'haproxy', 'p99'] / 1000:7.1f}   {', '.join(marks)}".rstrip(),
                  flush=True)
    return missed


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--workers", default="2,8")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--legs", type=int, choices=(1, 2), default=2, help="1: decode alone, as haproxy passes a request on")
    opt = ap.parse_args()
    fds = raise_files(20000)
    missed = table([(workers, measure(workers, opt.rounds, fds, opt.legs)) for workers in map(int, opt.workers.split(","))])
    print(f"the lowest of {opt.rounds} rounds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
