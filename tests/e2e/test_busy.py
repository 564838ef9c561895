"""An engine that answers 429, or 503 with Retry-After, is busy: all workers pass it by for a while, then one request tries it."""
import os
import signal
import time

import pytest

from procs import MODEL, SLOW, Load, wait

DEFAULT = {"retries": 2, "retry_budget": 20}
POOL = {**DEFAULT, "policy": "round_robin"}
FULL = {"kind": "status", "status": 429, "count": -1}
FOUR = {"workers": 4}
FAR = {"health_interval": "60s"}


@pytest.fixture(autouse=True)
def blocks_are_not_counted(world):
    """What engines that refuse leave behind: test_release.py."""
    world.check_engines = False


def full(e, after=None, **fault):
    """The engine answers 429 from now on."""
    e.fault(**{**FULL, **({"headers": {"Retry-After": str(after)}} if after is not None else {}), **fault})


def heal(e):
    e.tell("/sim/fault", kind="none")


def asked(e):
    """Requests of clients that the engine has seen."""
    return sum(x.json().get("model", MODEL) == MODEL for x in e.requests())


def busy(r, e):
    return r.metric("endpoint_busy", engine=e.url)


def left_ms(r, e):
    """For how long first choices pass it by, as pdctl says."""
    return next(x["busy_left_ms"] for x in r.status()["fleet"]["endpoints"] if x["url"] == e.url)


def ask(r, n=1):
    """n requests one after the other; their statuses."""
    return [r.complete().status for _ in range(n)]


# --- one of two is busy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_busy_engine_gets_few_first_tries(world, role):
    """Default configuration: no client sees the 429, and at most 3% of first tries meet it."""
    r, p, d = world.pd(2, 2, pool=DEFAULT)
    e = (p if role == "prefill" else d)[0]
    full(e)
    assert set(ask(r, 300)) == {200}
    assert 1 <= asked(e) <= 9 and busy(r, e) == 1
    assert r.metric("endpoint_busy_answers_total", engine=e.url) == asked(e)
    assert r.metric("ejections_total") == 0 and r.metric("retry_budget_spent_total") == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_its_share_again_3_s_after_it_answers(world, role):
    r, p, d = world.pd(2, 2, pool=DEFAULT, **FOUR)
    e = (p if role == "prefill" else d)[0]
    full(e)
    got = set()
    load = Load(2, lambda i: got.add(r.complete().status))
    wait("its longest time", lambda: left_ms(r, e) > 1000, 20)
    heal(e)
    wait("it is chosen again", lambda: not busy(r, e), 3 * SLOW)
    load.stop()
    since = time.time()
    assert not load.bad and got == {200}
    assert set(ask(r, 20)) == {200} and sum(x.time >= since for x in e.requests()) >= 8


def test_four_workers_know_of_one_answer(world):
    r, _, d = world.pd(1, 2, pool=POOL, **FOUR)
    full(d[0], after=30)
    assert set(ask(r, 40)) == {200} and asked(d[0]) == 1


@pytest.mark.parametrize("policy", ["least_loaded", "power_of_two", "random", "session", "prefix"])
def test_every_policy_passes_it_by(world, policy):
    r, _, d = world.pd(1, 2, pool={**DEFAULT, "policy": policy})
    full(d[0], after=30)
    for k in range(30):
        assert r.complete(prompt=f"{k} prompt " * 50, headers=[("X-Session-ID", str(k))]).status == 200
    assert asked(d[0]) == 1


def test_503_with_retry_after_is_busy_and_not_failing(world):
    r, _, d = world.pd(1, 2, pool={**POOL, "eject_failures": 1})
    full(d[0], status=503, after=30)
    assert set(ask(r, 20)) == {200}
    assert asked(d[0]) == 1 and busy(r, d[0]) == 1 and r.metric("ejections_total") == 0


def test_503_alone_is_a_failure(world):
    r, _, d = world.pd(1, 2, pool={**POOL, "eject_failures": 0, "eject_rate": 0})
    full(d[0], status=503)
    assert set(ask(r, 10)) == {200} and not busy(r, d[0])


# --- for how long ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after,ms", [("5", 5000), ("3600", 60000), ("0", 100), ("soon", 100)])
def test_as_long_as_retry_after_says(world, after, ms):
    """At most 60 s; what is no number of seconds does not count."""
    r, _, d = world.pd(1, 2, pool=POOL)
    full(d[0], after=after)
    assert set(ask(r, 2)) == {200}
    assert ms - 4000 < left_ms(r, d[0]) <= ms


def test_the_time_doubles_up_to_2_s(world):
    r, _, d = world.pd(1, 2, pool=POOL)
    full(d[0])
    start, seen = time.monotonic(), 0
    longest = 0
    while time.monotonic() - start < 4 * SLOW:
        assert r.complete().status == 200
        longest = max(longest, left_ms(r, d[0]))
    assert 1000 < longest <= 2000 and asked(d[0]) <= 6 + 4 * SLOW


# --- the one request that tries it ----------------------------------------------------------------------


def tried(r, e):
    """The engine is well again and holds the one request that tries it; returns all streams and what it had seen."""
    full(e)
    assert ask(r, 4) == [200] * 4
    heal(e)
    e.pause()
    before = asked(e)
    wait("its time is over", lambda: left_ms(r, e) == 0)
    streams = [r.open_stream(n=2) for _ in range(12)]
    wait("the trial", lambda: asked(e) == before + 1)
    return streams, before


def test_one_request_tries_it(world):
    """For 2 s at most: then another one may, so that a long prompt does not keep it out."""
    r, _, d = world.pd(1, 2, pool=POOL, **FOUR)
    streams, before = tried(r, d[0])
    wait("the others", lambda: asked(d[1]) >= 11)
    d[0].go_on()
    assert all(len(list(c.events())) == 3 for c in streams)
    wait("it has room", lambda: not busy(r, d[0]))
    assert set(ask(r, 10)) == {200} and asked(d[0]) >= before + 5


def test_a_killed_worker_gives_its_trial_back(world):
    r, _, d = world.pd(1, 2, pool=POOL, **FOUR)
    tried(r, d[0])
    for pid in r.children("worker"):
        r.murder(pid)
    d[0].go_on()
    r.wait_for("ready")
    wait("tried again", lambda: ask(r) and not busy(r, d[0]))
    r.look_over()


def test_a_stopped_worker_does_not_keep_its_trial(world):
    r, _, d = world.pd(1, 2, pool=POOL, worker_watchdog="0", **FOUR)
    streams, _ = tried(r, d[0])
    pids = r.children("worker")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait("its time is over", lambda: left_ms(r, d[0]) == 0, 5)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    d[0].go_on()
    wait("tried again", lambda: ask(r) and not busy(r, d[0]))
    for c in streams:
        c.reset()


# --- nobody else ----------------------------------------------------------------------------------------


def test_the_only_engine_is_asked_all_the_same(world):
    """It knows best whether it has room by now, and its 429 is the client's."""
    r, _, (d,) = world.pd(1, 1, pool=DEFAULT)
    full(d, after=9)
    for n in range(1, 4):
        a = r.complete()
        assert (a.status, a["retry-after"]) == (429, "9") and asked(d) == n
    heal(d)
    assert r.complete().status == 200 and busy(r, d) == 0


def test_busy_engines_one_after_the_other(world):
    """Three of four are full, which nobody knows yet, and retries is 1: the request finds the fourth."""
    r, _, d = world.pd(1, 4, pool={**POOL, "retries": 1, "retry_budget": 0})
    for e in d[:3]:
        full(e, after=30)
    assert set(ask(r, 20)) == {200}
    assert [asked(e) for e in d[:3]] == [1, 1, 1]


def test_who_is_full_is_waited_for_before_who_is_busy(world):
    p, d = world.engine("prefill"), [world.engine("decode") for _ in range(2)]
    r = world.router(world.pool([p], [{"url": e.url, "max_inflight": 1} for e in d], **POOL, queue_size=10))
    r.wait_all_up()
    full(d[0], after=30)
    for _ in range(2):
        assert r.complete().status == 200
        r.wait_idle()  # the next one is not to find the other full
    before = r.metric("queued_total")
    d[1].pause()
    held = r.open_stream(n=2)
    d[1].wait_metric("pdsim:running_requests", 1)
    waits = r.open_stream(n=2)
    r.wait_metric("queued_total", before + 1)
    d[1].go_on()
    assert held.read().status == waits.read().status == 200 and asked(d[0]) == 1


# --- what a retry costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("policy", ["least_loaded", "round_robin"])
def test_a_retry_does_not_take_a_turn(world, role, policy):
    """First choices go round as if there were none."""
    r, p, d = world.pd(2, 2, pool={**DEFAULT, "policy": policy, "eject_failures": 0, "eject_rate": 0, "retry_budget": 100}, workers=1)
    e = (p if role == "prefill" else d)[0]
    e.fault(kind="fail", count=-1)
    assert set(ask(r, 40)) == {200} and asked(e) == 20


def test_a_retry_that_the_budget_refuses_does_not_take_a_turn(world):
    r, _, d = world.pd(1, 2, pool={**DEFAULT, "eject_failures": 0, "eject_rate": 0, "retry_budget": 0}, workers=1)
    d[0].fault(kind="fail", count=-1)
    assert ask(r, 60).count(500) == 20 and asked(d[0]) == 30


def test_going_on_to_one_with_room_costs_no_budget(world):
    r, _, d = world.pd(1, 2, pool={**POOL, "retries": 1, "retry_budget": 0}, workers=1)
    for n in range(1, 15):
        full(d[0], count=1)
        wait("met", lambda: set(ask(r)) == {200} and asked(d[0]) and r.metric("endpoint_busy_answers_total") == n)
        wait("back", lambda: set(ask(r)) == {200} and not busy(r, d[0]))
    assert r.metric("retry_budget_spent_total") == 0


# --- what is told ---------------------------------------------------------------------------------------


def test_pdctl_tells(world):
    r, _, d = world.pd(1, 2, pool=POOL)
    full(d[0], after=30)
    assert set(ask(r, 2)) == {200}
    line = next(x for x in r.ctl("status").stdout.splitlines() if d[0].url in x)
    assert " busy " in line and "s left" in line
    assert left_ms(r, d[1]) == 0 and busy(r, d[1]) == 0
    assert r.get("/health").json()["pools"][MODEL]["can_serve"]


def test_undrained_it_is_not_busy(world):
    r, _, d = world.pd(1, 2, pool=POOL)
    full(d[0], after=60)
    assert set(ask(r, 2)) == {200} and busy(r, d[0])
    heal(d[0])
    said = r.ctl("undrain", d[0].url).stdout
    assert said.startswith(f"no longer busy: {d[0].url}, ") and said.endswith(": up\n")
    assert busy(r, d[0]) == 0 and set(ask(r, 4)) == {200} and asked(d[0]) > 1


def test_one_that_was_down_begins_anew(world):
    r, _, d = world.pd(1, 2, pool=POOL)
    full(d[0], after=60)
    assert set(ask(r, 2)) == {200} and busy(r, d[0])
    d[0].tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=d[0].url)
    heal(d[0])
    d[0].tell("/sim/health", status=200)
    r.wait_metric("endpoint_up", 1, engine=d[0].url)
    assert busy(r, d[0]) == 0 and set(ask(r, 4)) == {200} and asked(d[0]) > 1
