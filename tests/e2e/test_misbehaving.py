"""Engines that misbehave as real ones do, in the default configuration and under a load of 30 requests a second.  The mark: of the
requests at most 5% fail in the first 5 s and at most 1% after that, and no healthy engine is ejected.

`make misbehave SECONDS=60` runs all cases for so long and prints the figures.  `make test` runs one case of most rows, for some
seconds: cases(smoke).  A row without such a case has not reached its mark, or needs a longer time than that."""
import contextlib
import os
import signal
import time

import pytest

from paced import AFTER, AT_FIRST, GRACE, Figures, Paced
from procs import MODEL, Router, free_port, wait

FULL = "PDR_MISBEHAVE_S" in os.environ
SECONDS = float(os.environ.get("PDR_MISBEHAVE_S", 8))  # from the fault to the end
BEFORE = 5 if FULL else 3  # seconds of load without a fault
FEW = 0.02 if FULL else 0.2  # an ejected engine's share of its role's tries: its half-open trials
ENGINE = {"prefill_delay": 50, "token_delay": 25}  # an answer takes 0.4 s
pytestmark = pytest.mark.timeout(2 * SECONDS + 120)


def cases(names, smoke, more=()):
    """Cases of a row: `smoke` always, `more` with PDR_MISBEHAVE_S."""
    rows = [*smoke, *(more if FULL else [])]
    return pytest.mark.parametrize(names, rows) if rows else lambda test: None


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
        return {labels["engine"]: v for name, labels, v in rows if name == "pdrouter_ejections_total" and v}

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
    named = [s.router.metric("endpoint_failures_total", cause="kv_missing", engine=e.url) for e in s.p]
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


STATUSES = {401: '{"error":"Unauthorized"}', 403: '{"detail":"Forbidden"}', 400: None, 404: (
    '{"error":{"message":"The model `sim-model` does not exist.","type":"NotFoundError","param":"model","code":404}}')}


@cases("status, role, of", [(404, "decode", 2), (401, "prefill", 3)],
       [(s, r, n) for s in STATUSES for r in ("decode", "prefill") for n in (2, 3) if (s, r, n) not in ((404, "decode", 2), (401, "prefill", 3))])
def test_fast_refusals(scene, status, role, of):
    """It looks fast and idle."""
    s = scene(of, of)
    bad = s.of(role)[0]
    body = {"body": STATUSES[status]} if STATUSES[status] else {}
    with s.fault(bad) as f:
        bad.fault("status", status=status, count=-1, **body)
    assert f.share(bad, since=GRACE) < FEW


@cases("role", [], ["decode", "prefill"])
def test_a_key_that_the_router_does_not_have(scene, role):
    s = scene()
    bad = s.of(role)[0]
    with s.fault(bad):
        bad.next_life(after=1, api_key="secret")


@cases("of, late", [(2, True)], [(3, True), (3, False), (2, False)])
def test_kv_that_nobody_can_fetch(scene, of, late):
    """The side channel's host is wrong: the decode engine asks another engine and fails at once."""
    s = scene(of, of, late_errors=late)
    bad, other = s.p[:2]
    with s.fault(bad) as f:
        bad.fault("kv_unreachable", count=-1, host="localhost", port=other.side)
    assert f.share(bad, since=GRACE) < FEW


@cases("role, models", [("decode", None)], [("prefill", None), ("decode", [MODEL]), ("prefill", [MODEL])])
def test_another_model_after_a_restart(scene, role, models):
    """It is away for 2 s, too short to be `down`."""
    s = scene(pool={"models": models} if models else {})
    bad = s.of(role)[0]
    with s.fault(bad) as f:
        bad.next_life(after=2, model="another-model")
    assert f.share(bad, since=GRACE) == 0


@cases("drained", [False], [True])
def test_another_bootstrap_port_after_a_restart(scene, drained):
    s = scene(pool={"connector": "sglang", "engine": "sglang", "fallback": "none"})
    bad = s.p[0]
    with s.fault(bad) as f:
        if drained:
            s.router.ctl("drain", bad.url, "--wait")
        new = bad.next_life(after=2, bootstrap_port=free_port(), sig=signal.SIGTERM if drained else signal.SIGKILL)
        if drained:
            s.router.ctl("undrain", bad.url)
        wait("it serves again", lambda: new.metric("pdsim:running_requests_max") > 0)
    assert not FULL or f.share(bad, since=GRACE) > 0.1


@cases("role", [], ["prefill", "decode"])
def test_another_role_after_a_restart(scene, role):
    s = scene(pool={"connector": "sglang", "engine": "sglang", "fallback": "none"})
    bad = s.of(role)[0]
    with s.fault(bad) as f:
        bad.next_life(after=2, role="decode" if role == "prefill" else "prefill")
    assert f.share(bad, since=GRACE) == 0


@cases("role", [], ["decode", "prefill"])
def test_back_after_a_restart(scene, role):
    """It is well again 2 s after it was killed, and has its share of the traffic 4 s later: two good probes."""
    s = scene()
    bad = s.of(role)[0]
    with s.fault(bad) as f:
        bad.next_life(after=2)
    assert 2 <= f.first_at(bad, since=2) < 6.5 and f.share(bad, since=7) > 0.3


@cases("role, of", [("decode", 2)], [("decode", 3), ("prefill", 2), ("prefill", 3)])
def test_ten_times_slower(scene, role, of):
    """Nobody fails, and the engine is named.  When it is fast again it gets its share back."""
    s = scene(of, of)
    bad = s.of(role)[0]
    with s.fault(bad, seconds=max(SECONDS, 30) if FULL else SECONDS) as f:
        bad.fault("slow", factor=10, count=-1)
        wait("slow", lambda: s.router.metric("endpoint_slow", engine=bad.url) == 1, 20)
    assert not f.why() and not s.ejections() and (not FULL or f.share(bad, since=20) < 0.02)
    bad.tell("/sim/fault", kind="none")
    s.paced()
    wait("fast", lambda: s.router.metric("endpoint_slow", engine=bad.url) == 0, 30)


@cases("role, waiting, fixed", [("decode", 10**9, False)], [("prefill", 10**9, False), ("decode", 20, True), ("prefill", 20, True)])
def test_absurd_figures(scene, role, waiting, fixed):
    """The engine has its share all the same, at once or after some 15 s, and status names it."""
    s = scene()
    bad = s.of(role)[0]
    with s.fault(bad, seconds=max(SECONDS, 30) if fixed else SECONDS) as f:
        bad.tell("/sim/load", waiting=waiting, running=0, fixed=fixed)
        wait("its name", lambda: [e["url"] for e in s.router.status()["fleet"]["endpoints"] if e["load_unknown"]] == [bad.url], 60)
    assert f.share(bad, since=20 if fixed else GRACE) > 0.2


@cases("kind", [], ["fail", "reset", "empty200"])
def test_requests_that_fail_because_of_themselves(scene, kind):
    """Bodies that every engine fails with, as many as others.  No engine is ejected, and no other client hears of it."""
    s = scene()
    with s.fault() as f:
        for e in s.engines:
            e.fault(kind, contains="poison", count=-1)
        poison = s.paced(name="poison")
    poison.stop()
    assert not f.why() and all(a.wrong for a in poison.asks)


@cases("of", [], [2])
def test_a_flood_for_another_model(scene, of):
    """One pool, each engine serves one model.  The other model's clients ask three times what its engines can do: none of ours is
    refused."""
    s = scene(of, of, models=(MODEL, "another-model"), max_inflight=13)
    flood = s.paced(rate=120, model="another-model", name="flood")
    with s.fault() as f:
        pass
    flood.stop()
    assert not f.why() and "429" in {a.wrong for a in flood.asks}
