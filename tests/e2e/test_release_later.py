"""Blocks that nobody can be told about at the moment: they are named again, to engines that are up and have room."""
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from procs import SLOW, free_port

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
    assert [x["url"] for x in r.lines("KV is left to its lease")] == [p.url]


def named(d):
    """Statuses of the requests that name KV, in the order of their coming."""
    return [x.status for x in d.requests() if x.json()["model"] == "pdrouter-release"]


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500, 503])
def test_a_background_request_that_is_not_understood_goes_out_again(world, status):
    r, (p,), (d,) = world.pd(pool=POOL, workers=1)
    d.fault("reset")
    d.fault("status", status=status)
    assert r.complete().status == 502
    p.wait_metric("pdsim:held_requests", 0)
    assert named(d) == [status, 404] and p.counter("kv_released") == 1
    assert r.metric("kv_released_total") == 1


def test_the_third_answer_is_the_last(world):
    """The blocks are left to the prefill engine's lease."""
    world.check_engines = False
    r, (p,), (d,) = world.pd(pool=POOL)
    d.fault("reset")
    d.fault("status", status=500, count=-1)
    assert r.complete().status == 502
    r.wait_metric("endpoint_kv_outstanding", 0, endpoint=p.url)
    assert named(d) == [500] * 3 and p.metric("pdsim:held_requests") == 1
    line, = r.lines("KV is left to its lease")
    assert line["url"] == p.url and line["attempt"].startswith(r.end()["req"])


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
