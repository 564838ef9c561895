"""Blocks that nobody can be told about at the moment: they are named again, to engines that are up and have room."""
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from procs import SLOW, free_port, wait

POOL = {"retries": 0, "fallback": "none"}


def test_the_only_decode_engine_comes_back(world):
    p, port = world.engine("prefill", prefill_delay=400), free_port()
    d = world.engine("decode", port=port)
    r = world.router(world.pool([p], [d], **POOL), health_interval="10s")
    asked = []
    t = threading.Thread(target=lambda: asked.append(r.complete()))
    t.start()
    p.wait_metric("pdsim:running_requests", 1)
    d.stop(signal.SIGKILL)
    t.join()
    assert (asked[0].status, p.metric("pdsim:held_requests")) == (502, 1)
    world.engine("decode", port=port)
    p.wait_metric("pdsim:held_requests", 0)
    assert p.counter("kv_fetched") == 0 and p.counter("kv_released") == 1


def test_a_stop_waits_for_no_lease(world):
    """One try more, and the blocks are left to the prefill engine's lease."""
    world.check_engines = False
    r, (p,), (d,) = world.pd(pool=POOL, drain_timeout="60s")
    d.stop(signal.SIGKILL)
    assert r.complete().status == 502 and p.metric("pdsim:held_requests") == 1
    began = time.monotonic()
    assert r.stop() == 0
    assert time.monotonic() - began < 3 * SLOW
    assert [x["url"] for x in r.lines("KV not released: the engine frees it when its lease ends")] == [p.url]


def namings(d):
    """The requests that name KV, in the order of their coming."""
    return [x for x in d.requests() if x.json()["model"] == "pdrouter-release"]


def named(d):
    return [x.status for x in namings(d)]


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500, 503])
def test_a_background_request_that_is_not_understood_goes_out_again(world, status):
    """After a second where it had no room."""
    r, (p,), (d,) = world.pd(pool=POOL, workers=1)
    d.fault("reset")
    d.fault("status", status=status)
    assert r.complete().status == 502
    p.wait_metric("pdsim:held_requests", 0)
    assert named(d) == [status, 404] and p.counter("kv_released") == 1
    assert r.metric("kv_released_total") == 1
    first, again = namings(d)
    assert status not in (429, 503) or again.time - first.time > 0.95


@pytest.mark.parametrize("status", [429, 503])
def test_an_engine_without_room_is_not_asked(world, status):
    """For a second after its answer.  This 503 has no Retry-After, so requests do not avoid the engine."""
    r, (p,), (d,) = world.pd(pool=POOL, workers=1)
    d.fault("status", status=status)
    began = time.time()
    assert r.complete().status == status
    p.wait_metric("pdsim:held_requests", 0)
    (only,) = namings(d)
    assert only.time - began > 0.95


def test_an_engine_that_has_just_had_no_room_is_not_asked(world):
    """Requests may go there again, sooner than a second after its 429."""
    r, (p,), d = world.pd(1, 2, pool={**POOL, "policy": "round_robin"}, workers=1)
    d[0].fault("status", status=429)
    while r.complete().status != 429:
        pass
    at = time.time()
    time.sleep(0.2)  # requests avoid it for half of that
    d[1].fault("reset")
    while r.complete().status != 502:
        pass
    p.wait_metric("pdsim:held_requests", 0)
    assert all(x.time - at > 0.8 for x in namings(d[0]))


def test_an_engine_that_is_down_is_not_asked(world):
    r, _, (d,) = world.pd(pool=POOL, workers=1)
    d.pause()
    c = r.open_stream()
    d.wait_metric("pdsim:running_requests", 1)
    d.tell("/sim/health", status=503)
    assert c.head().status == 502
    time.sleep(0.3)  # so long nobody is asked
    assert namings(d) == []
    d.tell("/sim/health", status=200)
    d.go_on()
    wait("it is asked", lambda: named(d) == [404])


def test_the_third_answer_is_the_last(world):
    """The blocks are left to the prefill engine's lease.  The pauses become longer, and are of random length."""
    world.check_engines = False
    r, (p,), (d,) = world.pd(pool=POOL, workers=1)
    d.fault("status", status=500, count=-1)
    for _ in range(10):
        assert r.complete().status == 500
    wait("all are given up", lambda: len(r.lines("KV not released: the engine frees it when its lease ends")) == 10)
    assert p.metric("pdsim:held_requests") == 10 and r.metric("endpoint_kv_outstanding", engine=p.url) == 0
    line = r.lines("KV not released: the engine frees it when its lease ends")[0]
    assert line["url"] == p.url and line["attempt"].startswith(tuple(x["req"] for x in r.ends()))
    at = [x.time for x in namings(d)]
    assert len(at) == 30 and at[20] - at[0] > 2.5 and at[29] - at[20] > 0.3


def test_all_workers_share_one_budget_for_them(world):
    """No more than clients' requests.  Without it each of these would name its KV twice within 0.3 s."""
    world.check_engines = False
    r, _, (d,) = world.pd(pool=POOL)
    d.fault("status", status=500, count=-1)
    began = time.monotonic()
    with ThreadPoolExecutor(10) as clients:
        for _ in range(130):
            clients.submit(r.complete)
    wait("all were named once", lambda: d.counter("faults") >= 2 * 130)
    time.sleep(0.5)  # for those that may not go out
    assert d.counter("faults") <= 2 * 130 + 5 or time.monotonic() - began > 9  # the budget is of 10 s


def test_an_overload_is_not_multiplied(world):
    """Both decode engines have no room for 3 s, at 20 requests a second; without pauses there were 8.5 posts a request."""
    r, (p,), d = world.pd(1, 2, pool={"retries": 2})
    for e in d:
        e.fault("status", status=429, count=-1)
    with ThreadPoolExecutor(20) as clients:
        for _ in range(60):
            clients.submit(r.complete)
            time.sleep(0.05)
    posts = p.counter("kv_held") + sum(e.counter("faults") for e in d)
    for e in d:
        e.tell("/sim/fault", kind="none")
    p.wait_metric("pdsim:held_requests", 0)
    assert posts <= 60 * 6
