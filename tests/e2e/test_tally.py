"""Names everywhere: requests and failures by cause of each engine, in /metrics, `pdctl status` and the log, of all workers."""
import signal

import pytest

from fleets import BUSY, LATE
from procs import silence, wait

CAUSES = ["refused", "reset", "timeout", "5xx", "4xx", "bad_answer", "kv_unusable", "kv_missing", "busy"]
POOL = {"policy": "round_robin", "retries": 0, "fallback": "none"}
FAR = {"health_interval": "60s"}  # nobody notices but requests
# what a decode engine does, and the cause that counts it
FAULTS = {
    "reset": ("reset", {}), "half head": ("reset", {"kind": "half_head"}), "timeout": ("timeout", {"kind": "no_answer"}),
    "500": ("5xx", {"kind": "fail"}), "501": ("5xx", {"kind": "status", "status": 501}), "404": ("4xx", {"kind": "status", "status": 404}),
    "garbage": ("bad_answer", {"kind": "garbage"}), "empty": ("bad_answer", {"kind": "empty200"}), "429": ("busy", BUSY),
    "503": ("5xx", {"kind": "status", "status": 503}),
}


@pytest.fixture(autouse=True)
def blocks_are_not_checked(world):
    """What engines that fail leave behind: test_release.py."""
    world.check_engines = False


def failures(r, e):
    """Counts above 0 by cause."""
    counts = {c: r.metric("endpoint_failures_total", engine=e.url, cause=c) for c in CAUSES}
    return {c: n for c, n in counts.items() if n}


def requests(r, e):
    return r.metric("endpoint_requests_total", engine=e.url)


def shown(r, e):
    """What the status says of an engine: for programs, and its line for people."""
    line = next(x for x in r.ctl("status").stdout.splitlines() if e.url in x)
    return next(x for x in r.status()["fleet"]["endpoints"] if x["url"] == e.url), line


@pytest.mark.parametrize("how", FAULTS)
def test_each_cause_is_counted_and_shown(world, how):
    cause, fault = FAULTS[how]
    r, (p,), (d,) = world.pd(1, 1, pool={**POOL, "timeouts": silence(LATE)})
    assert (requests(r, d), failures(r, d)) == (0, {})
    d.fault(**{"kind": "reset", **fault})
    assert r.complete().status >= 400
    assert (requests(r, d), failures(r, d)) == (1, {cause: 1})
    assert (requests(r, p), failures(r, p)) == (1, {}), "the other engine did its part"
    obj, line = shown(r, d)
    assert obj["requests"] == 1 and obj["failures"] == {cause: 1} and obj["last_failure"] == cause
    assert 0 <= obj["last_failure_age_ms"] < 60000 and f" {cause} " in line and "s ago" in line
    assert shown(r, p)[0]["last_failure"] is None and "ago" not in shown(r, p)[1]


def test_a_refused_connection(world):
    r, _, (d,) = world.pd(1, 1, pool=POOL, **FAR)
    d.stop(signal.SIGKILL)
    assert r.complete().status == 502 and failures(r, d) == {"refused": 1}


def test_all_workers_add_to_one_tally(world):
    """Each of four workers serves, and one request in two fails."""
    r, _, d = world.pd(1, 2, pool={**POOL, "eject_failures": 0, "eject_rate": 0}, workers=4)
    d[0].fault("fail", count=-1)
    assert [r.complete().status for _ in range(40)].count(500) == failures(r, d[0])["5xx"] == requests(r, d[0])
    assert requests(r, d[0]) + requests(r, d[1]) == 40 and failures(r, d[1]) == {}


def test_an_answer_without_kv_parameters_is_named(world):
    """By engine, and in the line of its request; that is no failure, and ejects nobody."""
    r, p, _ = world.pd(2, 1, pool={**POOL, "eject_failures": 1})
    p[0].fault("null_kv", count=-1)
    assert [r.complete().status for _ in range(4)] == [200] * 4
    assert failures(r, p[0]) == {"kv_missing": 2} and failures(r, p[1]) == {} and requests(r, p[1]) == 2
    assert {(x["prefill"], x.get("kv")) for x in r.all_ended()} == {(p[0].url, "missing"), (p[1].url, None)}
    assert shown(r, p[0])[0]["last_failure"] == "kv_missing" and r.metric("ejections_total") == 0


def test_what_begins_anew_has_no_past(world):
    """An engine that is configured away and comes again gets a new life of its slot."""
    r, p, d = world.pd(1, 2, pool=POOL)
    d[0].fault("fail", count=2)
    wait("two failures", lambda: r.complete() and failures(r, d[0]).get("5xx") == 2)
    r.reload(pools=[world.pool(p, d[1:], **POOL)])
    wait("it is gone", lambda: all(x["url"] != d[0].url for x in r.status()["fleet"]["endpoints"]))
    r.reload(pools=[world.pool(p, d, **POOL)])
    wait("it is there", lambda: requests(r, d[0]) is not None)
    assert failures(r, d[0]) == {} and failures(r, d[1]) == {} and requests(r, d[1]) > 0


def test_ejected_and_back_name_the_cause(world):
    r, _, d = world.pd(1, 2, pool={**POOL, "eject_failures": 2, "eject_time": "200ms"})
    d[0].fault("empty200", count=2)
    wait("back", lambda: r.complete() and r.lines("endpoint back, its trial request succeeded"))
    (out,), (back,) = r.lines("endpoint ejected, its requests fail"), r.lines("endpoint back, its trial request succeeded")
    assert out["url"] == back["url"] == d[0].url and out["last"] == back["last"] == "bad_answer"
    assert "unusable" in out["why"] and "status" not in out
