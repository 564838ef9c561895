"""Engines fail while others wait for their places: what a failed attempt holds is its own request's first."""
import threading
import time

import pytest

from procs import MODEL, SLOW, wait
from test_resume import ask, body_of, is_whole

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
def test_fallback_while_others_wait_for_the_place(world, engines, budget):
    """One place at the decode engine, and the prefill engines fail them all: who has the place keeps it, whether no other
    prefill engine is left or the budget is spent."""
    p = [world.script(probes={URL: lambda ex: ex.reply(500, body={"error": {"message": "ill", "code": 500}})}) for _ in range(engines)]
    d = world.script(probes={URL: lambda ex: ex.reply(body=ANSWER)})
    pool = world.pool(p, [{"url": d.url, "max_inflight": 1}], queue_size=100, queue_timeout="30s",
                      retries=2, retry_budget=budget, fallback="direct")
    r = world.router(pool, workers=4)
    r.wait_all_up()
    got = crowd(r, 24, 25)
    assert set(got) == {200} and len(got) == 600, {s: got.count(s) for s in set(got)}
    assert r.metric("queued_total") > 100
    wait("nothing is held", lambda: r.in_flight() == 0 and r.metric("queue_waiting") == 0)


def ill(ex):
    ex.reply(500, body={"error": {"message": "ill", "code": 500}})


def working(ex):
    time.sleep(0.01)
    ex.prefilled()


def test_a_try_waits_for_its_place(world):
    """Half of the prefill engines fail all, and the other half is full: nobody is refused for that."""
    p = [world.script(probes={URL: ill}), world.script(probes={URL: working})]
    d = world.script(probes={URL: lambda ex: ex.reply(body=ANSWER)})
    pool = world.pool([{"url": e.url, "max_inflight": 1} for e in p], [d], queue_size=100, queue_timeout="30s", retries=2, retry_budget=100)
    r = world.router(pool, workers=2)
    r.wait_all_up()
    got = crowd(r, 8, 15)
    assert got == [200] * 120, {s: got.count(s) for s in set(got)}
    assert r.metric("rescued_total", by="retry") == r.metric("attempts_failed_total") > 60
    wait("nothing is held", lambda: r.in_flight() == 0 and r.metric("queue_waiting") == 0)
    r.look_over()


class Half:
    """One prefill engine is full with a request that the story answers for, the other one fails."""

    def __init__(self, world, **keys):
        self.good, bad = world.script(), world.script(probes={URL: ill})
        d = world.script(probes={URL: lambda ex: ex.reply(body=ANSWER)})
        entries = [{"url": e.url, "max_inflight": 1} for e in (self.good, bad)]
        self.r = world.router(world.pool(entries, [d], **{"queue_size": 1, "queue_timeout": "30s", "retries": 2, **keys}), workers=2)
        self.r.wait_all_up()
        self.first = self.ask()
        self.held = self.good.expect()

    def ask(self):
        c = self.r.client()
        c.request("POST", URL, {"model": MODEL, "prompt": "x"})
        return c

    def waiting(self, n):
        wait(f"{n} waiting", lambda: self.r.metric("queue_waiting") == n)

    def done(self):
        self.held.prefilled()
        assert self.first.read().status == 200
        self.waiting(0)
        wait("nothing is held", lambda: self.r.in_flight() == 0)
        self.r.look_over()


def test_a_try_is_called_like_others(world):
    h = Half(world)
    second = h.ask()
    h.waiting(1)
    h.held.prefilled()
    h.held, h.first, first = h.good.expect(), second, h.first
    assert first.read().status == 200
    h.done()


def test_a_try_whose_place_does_not_come(world):
    h = Half(world, queue_timeout="300ms")
    at = time.monotonic()
    a = h.ask().read()
    assert (a.status, a.error["code"]) == (503, "queue_timeout") and 0.29 < time.monotonic() - at < 0.3 + 0.4 * SLOW
    h.done()


def test_the_whole_requests_time_counts_there(world):
    h = Half(world, timeouts={"request": "300ms"}, queue_timeout="30s")
    a = h.ask().read()
    assert (a.status, a.error["code"]) == (504, "request_timeout")
    h.first.read()
    h.waiting(0)
    h.held.gone()


def test_a_client_leaves_while_its_try_waits(world):
    h = Half(world)
    second = h.ask()
    h.waiting(1)
    second.close()
    h.waiting(0)
    h.done()


def test_no_room_to_wait(world):
    """The queue is full: the failure is the client's to hear."""
    h = Half(world)
    second = h.ask()
    h.waiting(1)
    assert h.ask().read().status in (429, 500)
    second.close()
    h.waiting(0)
    h.done()


def test_a_stream_waits_for_its_next_engine(world):
    """A decode engine that dies in every stream, and one with a single place, for all of them."""
    p, d = world.engine("prefill"), [world.engine("decode") for _ in range(2)]
    pool = world.pool([p], [{"url": e.url, "max_inflight": 1} for e in d], queue_size=100, queue_timeout="30s", retries=5, retry_budget=100,
                      resume=True)
    r = world.router(pool, workers=2)
    r.wait_all_up()
    d[0].fault(kind="reset_mid_stream", count=-1)
    bad = []

    def client():
        for _ in range(5):
            body = body_of(chat=True)
            try:
                is_whole(body, ask(r, body)[0])
            except Exception as e:  # of a thread
                bad.append(e)

    crowd = [threading.Thread(target=client) for _ in range(6)]
    for t in crowd:
        t.start()
    for t in crowd:
        t.join()
    assert not bad, (len(bad), bad[0])
    assert r.metric("rescued_total", by="resume") > 5
    wait("nothing is held", lambda: r.in_flight() == 0 and r.metric("queue_waiting") == 0)
    r.look_over()
