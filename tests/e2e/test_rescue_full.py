"""Engines fail while others wait for their places: what a failed attempt holds is its own request's first."""
import threading

import pytest

from procs import MODEL, wait

URL = "/v1/completions"
ANSWER = {"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "y", "finish_reason": "stop"}]}


def crowd(r, clients, each):
    """So many clients, each with so many requests one after the other; the statuses."""
    got = []

    def client(i):
        with r.client() as c:
            for k in range(each):
                got.append(c.post(URL, {"model": MODEL, "prompt": f"{i}-{k}"}).status)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


@pytest.mark.parametrize("engines, budget", [(1, 100), (2, 0)])
def test_fallback_while_others_wait_for_the_slot(world, engines, budget):
    """One place at the decode engine, and the prefill engines fail them all: who has the place keeps it, whether no other
    prefill engine is left or the budget is spent."""
    p = [world.script(probes={URL: lambda ex: ex.reply(500, body={"error": {"message": "failing", "code": 500}})}) for _ in range(engines)]
    d = world.script(probes={URL: lambda ex: ex.reply(body=ANSWER)})
    pool = world.pool(p, [{"url": d.url, "max_inflight": 1}], queue_size=100, queue_timeout="30s",
                      retries=2, retry_budget=budget, fallback="direct")
    r = world.router(pool, workers=4)
    r.wait_all_up()
    got = crowd(r, 24, 25)
    assert set(got) == {200} and len(got) == 600, {s: got.count(s) for s in set(got)}
    assert r.metric("queued_total") > 100
    wait("nothing is held", lambda: r.in_flight() == 0 and r.metric("queue_waiting") == 0)
