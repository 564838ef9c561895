"""Blocks that nobody can be told about at the moment: they are named again until somebody understands, or until they are free anyway."""
import signal
import threading

import pytest

from procs import free_port

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


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500, 503])
def test_a_background_request_that_is_not_understood_goes_out_again(world, status):
    r, (p,), (d,) = world.pd(pool=POOL, workers=1)
    d.fault("reset")
    d.fault("status", status=status, count=2)
    assert r.complete().status == 502
    p.wait_metric("pdsim:held_requests", 0)
    sent = [x for x in d.requests() if x.json()["model"] == "pdrouter-release"]
    assert [x.status for x in sent] == [status, status, 404] and p.counter("kv_released") == 1
    assert r.metric("kv_released_total") == 1
