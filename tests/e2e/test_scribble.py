"""A process that has gone mad stores random values in the shared memory: the master stays, workers that crash are
replaced, `pdctl check` names what is wrong, and soon after the last store the router is as it was.

PDR_SCRIBBLE_S is for how long, PDR_SCRIBBLE_SEED repeats the places: `make scribble` (tests/torture/README.md)."""
import contextlib
import os
import random
import time
from collections import Counter

import pytest

from collector import Collector
from procs import FAST, Load, SLOW, wait
from scribbler import Scribbler

SECONDS = float(os.environ.get("PDR_SCRIBBLE_S", "3"))
SEED = int(os.environ.get("PDR_SCRIBBLE_SEED") or random.randrange(10**6))
HEALED_S = 10
pytestmark = pytest.mark.timeout(2 * SECONDS + 60)


def ask(r, i):
    prompt = f"scribble {i % 10}" * 80  # of several cuts
    if i % 2:
        list(r.open_stream(prompt, n=6).events())
    else:
        r.complete(prompt, max_tokens=3)


def is_wrong(r, engines):
    """What keeps the router from being as it was: requests fail, engines are not chosen, something is in flight or broken."""
    before = [e.counter("requests") for e in engines]
    statuses = Counter(r.complete(f"healed {i}").status for i in range(12))
    left = {name: r.metric(name) for name in ("requests_in_flight", "endpoint_in_flight", "kv_flags_armed")}
    unused = [e.url for e, n in zip(engines, before) if e.counter("requests") == n]
    found = r.ctl("check").stdout
    well = set(statuses) == {200} and left == {"requests_in_flight": 1, "endpoint_in_flight": 0, "kv_flags_armed": 0}
    return None if well and not unused and found == "ok\n" else (statuses, left, unused, found)


def begin(world, collector):
    """Two engines of each role with one slot each, so that requests wait; all requests are traced."""
    p, d = ([world.engine(role) for _ in range(2)] for role in ("prefill", "decode"))
    ends = [[{"url": e.url, "max_inflight": 1} for e in role] for role in (p, d)]
    r = world.router(world.pool(*ends, queue_size=16, eject_failures=3, eject_time="1s", eject_max_time="2s", retries=2, policy="cache_aware"),
                     workers=3, log_level="debug", worker_watchdog="2s", client={"max_inflight": 100}, shared_memory={**FAST["shared_memory"], "prefix_index": "16KiB", "recent_requests": 300},
                     tracing={"otlp": collector.url, "sample": 1, "ring": "16KiB"})
    return r.wait_all_up(), p + d


@pytest.fixture
def collector():
    with contextlib.closing(Collector()) as c:
        yield c


def test_a_mad_process_does_not_end_the_router(world, collector):
    r, engines = begin(world, collector)
    r.murdered, r.excused = True, ("invariant broken", "had impossible values")
    scribbler, load = Scribbler(r, SEED), Load(6, lambda i: ask(r, i))
    wrong = set()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        r.lives()
        wrong.update(x.split()[0] for x in r.ctl("check").stdout.splitlines())
        time.sleep(0.1)
    stores, load = scribbler.stop(), load.stop()
    print(f"seed {SEED}: {stores} stores, {load.done} requests ended, {len(load.bad)} were cut or refused; found wrong: {sorted(wrong)}")
    print(Counter(r_["reason"] for r_ in r.ends()), Counter(why for why, _ in load.bad))
    r.lives()
    assert wrong & {"I1", "I7"}
    until = time.monotonic() + HEALED_S * SLOW
    while (why := is_wrong(r, engines)) is not None:
        assert time.monotonic() < until, f"seed {SEED}: not healed: {why}"
    had = len(collector.bodies)
    assert r.complete().status == 200
    wait("its spans", lambda: len(collector.bodies) > had)
