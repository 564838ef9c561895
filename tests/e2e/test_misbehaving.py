"""Engines that misbehave as real ones do, in the default configuration and under a load of 30 requests a second.  The mark: of the
requests at most 5% fail in the first 5 s and at most 1% after that, and no healthy engine is ejected.

Without PDR_MISBEHAVE_S one case of most rows runs, for some seconds.  `make misbehave SECONDS=60` runs all for so long and prints the
figures."""
import contextlib
import os
import time

import pytest

from paced import AFTER, AT_FIRST, GRACE, Figures, Paced
from procs import MODEL, Router, free_port

FULL = "PDR_MISBEHAVE_S" in os.environ
SECONDS = float(os.environ.get("PDR_MISBEHAVE_S", 8))  # from the fault to the end
BEFORE = 5 if FULL else 3  # seconds of load without a fault
ENGINE = {"prefill_delay": 50, "token_delay": 25}  # an answer takes 0.4 s
pytestmark = pytest.mark.timeout(2 * SECONDS + 120)


def cases(names, smoke, more=()):
    """Cases of a row: `smoke` always, `more` with PDR_MISBEHAVE_S."""
    return pytest.mark.parametrize(names, [*smoke, *(more if FULL else [])])


class Scene:
    """Engines, a router that knows their addresses and nothing else, and clients."""

    def __init__(self, world, record, np=2, nd=2, pool=None, models=(MODEL,), max_inflight=0, **engine):
        """The engines of a role serve `models` in turn."""
        self.world, self.record, self.pool = world, record, {"connector": "nixl", **(pool or {})}
        self.engine = {**ENGINE, **engine}
        self.p = [self.start("prefill", models[i % len(models)]) for i in range(np)]
        self.d = [self.start("decode", models[i % len(models)]) for i in range(nd)]
        self.engines = [*self.p, *self.d]
        roles = {role: [{"url": e.url, "max_inflight": max_inflight} for e in self.of(role)] for role in ("prefill", "decode")}
        self.router = Router(world, {"log_format": "json", "pools": [{**self.pool, **roles}]})
        world.routers.append(self.router)
        self.router.wait_all_up()
        self.loads = []
        self.load = self.paced()
        time.sleep(BEFORE)

    def paced(self, **keys):
        self.loads.append(Paced(self.router, **keys))
        return self.loads[-1]

    def start(self, role, model):
        options = {"late_errors": self.pool["connector"] == "nixl", **self.engine}
        if self.pool["connector"] == "sglang":
            options.update(handshake="sglang", bootstrap_port=free_port() if role == "prefill" else False)
        return self.world.engine(role, port=free_port(), model=model, **{k: v for k, v in options.items() if v is not False})

    def of(self, role):
        return self.p if role == "prefill" else self.d

    def ejections(self):
        rows = self.router.metrics()
        return {labels["endpoint"]: v for name, labels, v in rows if name == "pdrouter_ejections_total" and v}

    @contextlib.contextmanager
    def fault(self, *bad, seconds=SECONDS):
        """What is done inside happens to these engines.  Runs on for so long, and then the mark is asserted."""
        f = Figures(self.load)
        yield f
        time.sleep(max(0.0, f.at + seconds - time.monotonic()))
        self.load.stop()
        out = set(self.ejections()) - {e.url for e in bad}
        first, after = f.failed()
        self.record("figures", {"failed in 5 s": first, "failed after": after, "share": f.share(*bad), "share after": f.share(*bad, since=GRACE),
                                "p50": f.percentile(50), "p99": f.percentile(99), "healthy ejected": len(out), "why": f.why()})
        assert (first <= AT_FIRST, after <= AFTER, out) == (True, True, set()), (first, after, f.why(), out)


@pytest.fixture
def scene(world, record_property):
    """What engines that fail leave behind: test_release.py."""
    world.check_engines = False
    made = []

    def make(*args, **keys):
        made.append(Scene(world, record_property, *args, **keys))
        return made[0]
    yield make
    for load in [load for one in made for load in one.loads]:
        load.stopping = True


@cases("of", [2])
def test_no_kv_parameters(scene, of):
    """Nobody fails.  The engine is named."""
    s = scene(of, of)
    with s.fault(s.p[0]) as f:
        s.p[0].fault("null_kv", count=-1)
    named = [s.router.metric("endpoint_failures_total", cause="kv_missing", endpoint=e.url) for e in s.p]
    assert named[0] > 20 and named[1] == 0 and not f.why()


@cases("status, headers, role", [(429, {}, "decode")],
       [(429, {}, "prefill"), (429, {"Retry-After": "1"}, "decode"), (503, {"Retry-After": "1"}, "decode"), (503, {}, "decode"), (503, {}, "prefill")])
def test_busy(scene, status, headers, role):
    s = scene()
    bad = s.of(role)[0]
    with s.fault(bad):
        bad.fault("status", status=status, headers=headers, count=-1)


@cases("delay", [3000], [300, 1000])
def test_a_prefill_engine_is_stopped_when_it_is_drained(scene, delay):
    """Its KV is fetched some time after its answer.  Nobody fails."""
    s = scene(fetch_delay=delay)
    with s.fault(s.p[0]) as f:
        done = s.router.ctl("drain", s.p[0].url, "--wait")
        s.p[0].stop()
    assert done.returncode == 0 and not f.why()
