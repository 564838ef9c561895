"""No prefill engine can serve: decode engines take over as many prompt tokens a second as fallback_budget says, of all workers
together.  More requests wait in the queue, or get 503 with the time when it is worth another try."""
import threading
import time

import pytest

from procs import MODEL, free_port, wait

URL = "/v1/completions"
SHORT, LONG = "x" * 400, "x" * 40000  # some 100 and 10,000 tokens


def outage(world, budget, nd=1, pool=None, prefill="http://127.0.0.1:1", **keys):
    """A router whose prefill engines are down."""
    d = [world.engine("decode") for _ in range(nd)]
    dead = world.pool([prefill], d, fallback="direct", fallback_budget=budget, **(pool or {}))
    r = world.router(dead, wait_for="live", **keys)
    wait("decode is up", lambda: r.metric("endpoint_up", role="decode") == nd)
    return r, d


def crowd(r, n, prompt):
    """Statuses and reasons of n requests at the same time."""
    got = []
    threads = [threading.Thread(target=lambda: got.append(r.complete(prompt, max_tokens=1))) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


def test_all_workers_share_one_budget(world):
    """A second's worth at once: 1,000 tokens, and the prompt that goes beyond them."""
    r, _ = outage(world, 500, nd=2, workers=4)
    got = [r.complete(SHORT, max_tokens=1) for _ in range(30)]
    went = [a for a in got if a.status == 200]
    assert 10 <= len(went) <= 15, len(went)
    assert {a.error["code"] for a in got if a.status != 200} == {"fallback_budget"}
    assert {a.status for a in got} == {200, 503} and r.metric("fallback_budget_spent_total") == 30 - len(went)


def test_short_prompts_all_go(world):
    """With the default, at some hundred requests a second."""
    r, _ = outage(world, 8192, workers=2)
    assert {a.status for _ in range(4) for a in crowd(r, 20, "hi")} == {200}
    assert not r.metric("fallback_budget_spent_total")


def test_a_long_prompt_goes_and_the_next_one_is_told_when(world):
    r, _ = outage(world, 1000)
    assert r.complete(LONG, max_tokens=1).status == 200
    a = r.complete(SHORT)
    assert (a.status, a.error["code"], a.error["type"]) == (503, "fallback_budget", "service_unavailable")
    assert 8 <= int(a["retry-after"]) <= 15
    assert r.end_of(a["x-request-id"])["reason"] == "fallback_budget"


def test_who_waits_goes_in_its_turn(world):
    """Half a second's worth each: three go at once, then two a second, whichever worker they are on."""
    r, (d,) = outage(world, 5000, workers=4, pool={"queue_size": 20})
    at = time.monotonic()
    assert [a.status for a in crowd(r, 6, "x" * 10000)] == [200] * 6
    assert 1.3 <= time.monotonic() - at
    queued = sorted(e["queued_ms"] or 0 for e in r.all_ended() if e["reason"] == "ok")
    assert queued[:3] == [0] * 3 and all(q > 250 * (i + 1) for i, q in enumerate(queued[3:])), queued
    assert r.metric("queue_waiting") == 0 and d.counter("local_prefills") == 6


def test_a_full_queue_and_a_wait_in_vain(world):
    r, _ = outage(world, 100, workers=2, pool={"queue_size": 2, "queue_timeout": "300ms"})
    assert r.complete(LONG, max_tokens=1).status == 200
    got = crowd(r, 5, SHORT)
    assert {(a.status, a.error["code"]) for a in got} == {(503, "fallback_budget")}
    assert all(50 <= int(a["retry-after"]) <= 60 for a in got)
    assert sum(e["queued_ms"] is not None for e in r.all_ended()) == 2


def test_a_prefill_engine_that_comes_up_serves_who_waits(world):
    port = free_port()
    r, (d,) = outage(world, 1, workers=2, pool={"queue_size": 9}, prefill=f"http://127.0.0.1:{port}")
    assert r.complete(SHORT, max_tokens=1).status == 200
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": SHORT, "max_tokens": 1})
    r.wait_metric("queue_waiting", 1)
    p = world.engine("prefill", port=port)
    assert c.read().status == 200 and p.counter("kv_fetched") == 1 and d.counter("local_prefills") == 1


@pytest.mark.parametrize("status", [500, 503])
def test_failing_prefill_engines(world, status):
    """They are up, and fail: the same budget."""
    r, (p,), (d,) = world.pd(pool={"fallback": "direct", "fallback_budget": 1000})
    p.fault("status", status=status, count=-1)
    assert r.complete(LONG, max_tokens=1).status == 200
    a = r.complete(SHORT)
    assert (a.status, a.error["code"]) == (503, "fallback_budget") and "5xx" in a.error["message"]
    assert 8 <= int(a["retry-after"]) <= 15 and d.counter("local_prefills") == 1
