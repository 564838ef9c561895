#!/usr/bin/env python3
"""Chaos: one router, several pools, load of many kinds, and everything fails at random.  See README.md.

    chaos.py [--seconds 600] [--seed N] [--kill-workers S] [--connector NAME,...] [--rate N] [--every S] [--only STEP,...]
             [--without STEP,...] [--keep FOLDER]
"""
import argparse
import asyncio
import json
import os
import random
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e"), str(HERE.parent / "engine")]

from fleet import POOLS, USUAL, Fleet  # noqa: E402
from load import Clients, clock  # noqa: E402
from oracle import Oracle  # noqa: E402
from procs import Router, metric_sum  # noqa: E402
from storm import Storm  # noqa: E402


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=random.randrange(1, 10**6))
    p.add_argument("--kill-workers", type=float, default=0, metavar="S", help="two workers every S seconds")
    p.add_argument("--connector", default="all", help="all, or some of: " + " ".join(POOLS))
    p.add_argument("--rate", type=float, default=60, help="requests a second, on average")
    p.add_argument("--every", type=float, default=0.35, help="seconds from step to step, on average")
    names = {"type": lambda text: text.split(","), "default": (), "metavar": "STEP,..."}
    p.add_argument("--only", help="these steps of the plan alone", **names)
    p.add_argument("--without", help="all steps of the plan but these", **names)
    p.add_argument("--calm", action="store_true", help="no step: what the load alone does")
    p.add_argument("--keep", help="a folder for logs, the steps and all that was wrong")
    return p.parse_args()


def count(rows, name, **labels):
    return int(metric_sum(rows, "pdrouter_" + name, labels) or 0)


async def figures(o, fleet, clients, storm, oracle):
    v = clients.outcomes
    rows = await oracle.router_metrics()
    print(f"requests {clients.number}: ok {v['ok']}, honest errors {v['honest error']}, left by their clients {v['left']}, nonsense refused "
          f"{v['refused nonsense']}, lost with killed workers {v['lost with its worker']}, lost: {v['WRONG']}")
    if v["stale"]:
        print(f"asked again, since a draining worker had closed an idle connection: {v['stale']}")
    print("honest errors:", ", ".join(f"{k} {n}" for k, n in clients.errors.most_common()) or "none")
    print("saved by " + ", ".join(f"{by} {count(rows, 'rescued_total', by=by)}" for by in ("retry", "fallback", "resume"))
          + f"; attempts failed {count(rows, 'attempts_failed_total')}, kv released {count(rows, 'kv_released_total')}, "
          f"ejections {count(rows, 'ejections_total')}, worker restarts {count(rows, 'worker_restarts_total')}, "
          f"notifier restarts {count(rows, 'notifier_restarts_total')}, reloads {count(rows, 'reloads_total')}")
    print("kinds:", ", ".join(f"{k} {n}" for k, n in sorted(clients.kinds.items())))
    print(f"steps {sum(storm.counts.values())}:", ", ".join(f"{k} {n}" for k, n in sorted(storm.counts.items())))
    print(f"at once at most {clients.in_flight_max}; the slowest answer took {clients.slowest[0]:.1f} s ({clients.slowest[1]})")
    print("memory, KiB a minute over each long life's second half:",
          ", ".join(f"{k} {pid}: {s:+d} ({a} to {b} KiB)" for k, pid, s, a, b, _ in oracle.slopes()) or "no life was long enough")
    if storm.killed:
        print(f"blocks that died with {len(storm.killed)} killed workers: {getattr(oracle, 'orphans', 0)} handoffs")
    if getattr(oracle, "unread", 0):
        print(f"blocks that nothing but being read frees, and whose decode engine failed then (LMCache): {oracle.unread} handoffs")
    if getattr(oracle, "unreachable", 0):
        print(f"blocks whose engine named an address that nobody can reach: {oracle.unreachable} handoffs")
    if getattr(oracle, "off", 0):
        print(f"blocks that only an answer named which was lost with its host: {oracle.off} handoffs")
    if getattr(oracle, "waiting", 0):
        print(f"requests whose end an engine did not hear of, since its host was off: {oracle.waiting}")
    if getattr(oracle, "in_vain", 0):
        print(f"blocks named to engines of which none refused (three answers), left to their lease: {oracle.in_vain} handoffs")


async def run(o):
    names = USUAL if o.connector == "all" else tuple(o.connector.split(","))
    now = clock()
    fleet = Fleet(names)
    print(f"seed {o.seed}; {o.seconds:g} s; pools: {' '.join(names)}; network: {fleet.wire.kind} ({fleet.wire.why})", flush=True)
    try:
        await fleet.start(Router)
        clients = Clients(o.seed, names, fleet.router.address, now, fleet.host)
        storm = Storm(fleet, clients, o.seed, now, o.every, o.kill_workers, o.only, o.without)
        oracle = Oracle(fleet, clients, storm, now)
        await oracle.begin()
        until = now() + o.seconds
        work = [clients.run(o.rate, until), oracle.watch(until)]
        if not o.calm:
            work.append(storm.run(until - min(3, o.seconds / 10)))
        await asyncio.gather(*work)
        await fleet.revive()
        await clients.settle()
        await oracle.recovered()
        await oracle.end()
        await figures(o, fleet, clients, storm, oracle)
        fleet.router.told_to_stop = True
        code = fleet.router.stop(timeout=25)
        if code != 0:
            oracle.wrong("the router ends with", code)
        if clients.outcomes["ok"] < 0.3 * clients.number or clients.number < o.seconds * o.rate / 5:
            oracle.wrong("this was no test", f"{clients.outcomes['ok']} ok of {clients.number}")
        outcome(o, fleet, storm, oracle)
        return 1 if oracle.bad else 0
    finally:
        fleet.close()


def outcome(o, fleet, storm, oracle):
    shown = {}
    for one in oracle.bad:
        key = one.get("why", one["oracle"])[:40]
        shown[key] = shown.get(key, 0) + 1
        if shown[key] <= 3:
            print("BAD " + json.dumps(one, default=str)[:3000])
    if oracle.bad:
        print(f"FAILED, seed {o.seed}: {len(oracle.bad)} things are bad: {shown}")
    else:
        print(f"passed, seed {o.seed}")
    if o.keep:
        Path(o.keep).mkdir(parents=True, exist_ok=True)
        shutil.copy(fleet.router.log_path, Path(o.keep) / "router.log")
        for core in fleet.world.dir.glob("core*"):
            shutil.copy(core, o.keep)
        (Path(o.keep) / "steps").write_text("\n".join(" ".join(map(str, x)) for x in storm.log) + "\n")
        (Path(o.keep) / "bad").write_text("\n".join(json.dumps(x, default=str) for x in oracle.bad) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99")
    sys.exit(asyncio.run(run(options())))
