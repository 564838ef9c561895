"""Waiting for a slot: all engines of a role are at max_inflight.  Who waits holds nothing, is called in its turn by whoever
frees a slot, in whatever worker, and is told the truth when that takes too long."""
import hashlib
import os
import re
import signal
import statistics
import threading
import time
from pathlib import Path

import pytest
import yaml

from legs import taken
from procs import MODEL, SLOW, wait

URL = "/v1/completions"
DIRECT = [("X-PD-Route", "direct")]


def prefills_by_itself(ex):
    ex.prefilled()


class Narrow:
    """A prefill engine that answers by itself and a decode engine that the test answers for, with few slots."""

    def __init__(self, world, slots=1, p_slots=0, p_script=False, workers=4, pool=None, **keys):
        self.p = world.script(probes=None if p_script else {URL: prefills_by_itself})
        self.d = world.script()
        keys = {"queue_size": 50, "queue_timeout": "30s", "allow_route_header": True, **(pool or {}), **keys}
        top = {k: keys.pop(k) for k in ("shared_memory", "drain_timeout", "worker_watchdog", "pools") if k in keys}
        self.pool = world.pool([{"url": self.p.url, "max_inflight": p_slots}], [{"url": self.d.url, "max_inflight": slots}], **keys)
        self.r = world.router(self.pool, workers=workers, **top)
        self.r.wait_all_up()
        self.clients = {}

    def ask(self, name, headers=(), **members):
        c = self.r.client()
        c.request("POST", URL, {"model": MODEL, "prompt": name, "max_tokens": 4, **members}, [("X-Request-Id", name), *headers])
        self.clients[name] = c
        return c

    def waiting(self, n, **labels):
        wait(f"{n} waiting", lambda: self.r.metric("queue_waiting", **labels) == n)

    def line_up(self, names, headers=(), **members):
        """One after the other; returns when all of them wait."""
        had = self.r.metric("queue_waiting")
        for i, name in enumerate(names):
            self.ask(name, headers, **members)
            self.waiting(had + i + 1)

    def serve(self, name=None):
        """The next request at the decode engine is this one, and is answered."""
        ex = self.d.expect()
        got = ex.json()["prompt"]
        assert name is None or got == name
        ex.reply(body={"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": got, "finish_reason": "stop"}]})
        a = self.clients.pop(got).read()
        assert (a.status, a.json()["choices"][0]["text"]) == (200, got)
        return got

    def done(self):
        """Nobody waits, nothing is held."""
        self.waiting(0)
        self.r.wait_idle()
        self.r.look_over()


def names(n, what="r"):
    return [f"{what}{i}" for i in range(n)]


def worker_of(r, name):
    return r.end_of(name)["slot"]


# --- order ---
def test_first_come_first_served_across_workers(world):
    q = Narrow(world)
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(24))
    first.reply(body={"choices": []})
    assert q.clients.pop("first").read().status == 200
    for name in names(24):
        q.serve(name)
    assert {worker_of(q.r, n) for n in names(24)} == {0, 1, 2, 3}
    ends = [q.r.end_of(n) for n in names(24)]
    assert all(e["queued_ms"] > 0 and e["reason"] == "ok" for e in ends) and q.r.end_of("first")["queued_ms"] is None
    assert q.r.metric("queued_total") == 24 == q.r.metric("queue_wait_seconds_count")
    q.done()


def test_all_are_served_whatever_the_crowd_does(world):
    """4 workers, 1 slot, 40 clients that ask again and again: nobody starves, the engine never sees two at once."""
    inside, most, lock = [0], [0], threading.Lock()

    def answer(ex):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.001)
        with lock:
            inside[0] -= 1
        ex.reply(body={"choices": []})

    q = Narrow(world)
    q.d.probes[URL] = answer
    waits, bad = [], []

    def client(i):
        with q.r.client() as c:
            for k in range(6):
                at = time.monotonic()
                a = c.post(URL, {"model": MODEL, "prompt": f"{i}-{k}"}, DIRECT)
                waits.append(time.monotonic() - at)
                if a.status != 200:
                    bad.append(a.body)

    crowd = [threading.Thread(target=client, args=(i,)) for i in range(40)]
    for t in crowd:
        t.start()
    for t in crowd:
        t.join()
    assert not bad and len(waits) == 240 and most[0] == 1
    assert max(waits) < 5 * statistics.mean(waits) + 0.5 * SLOW, (max(waits), statistics.mean(waits))
    q.done()


@pytest.mark.timing
def test_a_freed_slot_reaches_the_next_within_a_millisecond(world):
    """In the median of a round; a machine that is busy with other things gets some more rounds."""
    ends, arrivals = [], []

    def answer(ex):
        arrivals.append(ex.conn.at)
        ex.reply(body={"choices": []})
        ends.append(time.monotonic())

    q, medians = Narrow(world), []
    while not medians or (medians[-1] >= 0.001 and len(medians) < 8):
        q.ask("first", DIRECT)
        first = q.d.expect()
        q.line_up(names(40), DIRECT)
        q.d.probes[URL] = answer
        first.reply(body={"choices": []})
        for c in q.clients.values():
            assert c.read().status == 200
        gaps = [b - a for a, b in zip(ends, arrivals[1:])]
        assert len(gaps) == 39
        medians.append(statistics.median(gaps))
        ends.clear(), arrivals.clear(), q.clients.clear()
        del q.d.probes[URL]
    assert medians[-1] < 0.001, medians
    q.done()


def ctxt(pid):
    text = (Path("/proc") / str(pid) / "status").read_text()
    return sum(int(x) for x in re.findall(r"^\w*voluntary_ctxt_switches:\s+(\d+)", text, re.M))


def ticks(pid):
    return sum(int(x) for x in (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[11:13])


def test_nobody_polls(world):
    """Three seconds of waiting: but for the clock's ten turns a second a worker does nothing."""
    q = Narrow(world, queue_size=100)
    q.ask("first", DIRECT)
    first = q.d.expect()
    for n in names(100):
        q.ask(n, DIRECT)
    q.waiting(100)
    pids, spurious = q.r.children(), q.r.metric("queue_spurious_wakeups_total")
    before = [(ticks(p), ctxt(p)) for p in pids]
    time.sleep(3)
    after = [(ticks(p), ctxt(p)) for p in pids]
    assert all(b[0] - a[0] <= 5 * SLOW and b[1] - a[1] < 120 for a, b in zip(before, after)), (before, after)
    assert q.r.metric("queue_spurious_wakeups_total") - spurious <= 6  # the master's, one a second
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for _ in range(100):
        q.serve()
    q.done()


# --- bounds ---
def test_the_queue_is_bounded_across_workers(world):
    q = Narrow(world, queue_size=3)
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(3))
    for i in range(12):
        with q.r.client() as c:
            a = c.post(URL, {"model": MODEL, "prompt": "x"})
            assert (a.status, a.error["code"], a.error["type"]) == (429, "queue_full", "rate_limit_error")
            assert int(a["retry-after"]) >= 1
    assert q.r.metric("queue_waiting") == 3
    q.r.wait_metric("requests_total", 12, reason="queue_full", status=429)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for n in names(3):
        q.serve(n)
    q.done()


def test_a_rush_fills_it_exactly(world):
    q = Narrow(world, queue_size=7)
    q.ask("first")
    first = q.d.expect()
    crowd = [q.ask(n) for n in names(60)]
    q.waiting(7)
    wait("the others are refused", lambda: q.r.metric("requests_total", reason="queue_full") == 53)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for _ in range(7):
        q.serve()
    assert sum(c.read().status == 429 for c in crowd if c in q.clients.values()) == 53
    q.done()


def test_the_deadline(world):
    q = Narrow(world, queue_timeout="300ms")
    q.ask("first")
    first = q.d.expect()
    at = time.monotonic()
    a = q.ask("late").read()
    took = time.monotonic() - at
    assert (a.status, a.error["code"]) == (503, "queue_timeout") and 0.29 < took < 0.3 + 0.4 * SLOW
    end = q.r.end_of("late")
    assert (end["reason"], end["states"]) == ("queue_timeout", "hbpd") and end["queued_ms"] >= 290
    q.waiting(0)
    q.line_up(["next"])
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    q.serve("next")
    q.done()


def test_queue_size_0_refuses_at_once(world):
    q = Narrow(world, queue_size=0)
    q.ask("first")
    first = q.d.expect()
    a = q.r.complete("second")
    assert (a.status, a.error["code"]) == (429, "no_capacity") and a["retry-after"] in ("1", "2")
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    assert q.r.metric("queued_total") == 0
    q.done()


def test_more_branches_than_slots_never_wait(world):
    """A request of four branches, one slot: it could wait for ever."""
    d = world.engine("decode")
    p = world.engine("prefill")
    r = world.router(world.pool([p], [{"url": d.url, "max_inflight": 3}], fanout=True, queue_size=5, queue_timeout="30s"))
    r.wait_all_up()
    a = r.complete("wide", n=4)
    assert (a.status, a.error["code"]) == (429, "no_capacity")
    assert r.complete("narrow", n=3).status == 200
    r.wait_idle()


def quiet(r, seconds=0.4):
    """Who waits is left alone; the master's call, one a second, may fall in between."""
    spurious = r.metric("queue_spurious_wakeups_total")
    time.sleep(seconds)
    return r.metric("queue_spurious_wakeups_total") - spurious <= 2


def test_who_waits_for_several_slots_takes_none_meanwhile(world):
    """Two of three slots are free: who took and gave them back would call itself by that, again and again."""
    q = Narrow(world, slots=3, fanout=True)
    q.ask("first", DIRECT)
    first = q.d.expect()
    q.line_up(["wide", "wide too"], n=3)
    assert quiet(q.r) and q.r.metric("endpoint_in_flight", role="decode") == 1
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for _ in range(6):
        q.d.expect().reply(body={"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "t", "finish_reason": "stop"}]})
    assert all(c.read().status == 200 for c in q.clients.values())
    q.done()


class Groups:
    """Groups a and b, each with a prefill and a decode engine, whose branches must be of one."""

    def __init__(self, world, p_slots, d_slots):
        self.p, self.d = [world.script() for _ in "ab"], [world.script() for _ in "ab"]
        ends = [[{"url": e.url, "group": g, "max_inflight": n} for e, g, n in zip(role, "ab", slots)]
                for role, slots in ((self.p, p_slots), (self.d, d_slots))]
        self.r = world.router(world.pool(*ends, pairing="require", queue_size=9, queue_timeout="30s"), workers=2)
        self.r.wait_all_up()

    def ask(self):
        return self.r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})

    def waits(self):
        c = self.ask()
        wait("it waits", lambda: self.r.metric("queue_waiting") == 1)
        return c

    def goes_on(self, i, ex, c):
        ex.prefilled()
        self.d[i].expect().reply(body={"choices": []})
        return c.read().status == 200


def at_prefill(g, c=None):
    """Whose prefill leg comes next, a new request's if not this one's: (its group, its request there, its client)."""
    c = c or g.ask()
    ex, e = taken(g.p)
    return g.p.index(e), ex, c


def test_who_waits_for_a_group_takes_nothing_meanwhile(world):
    """Prefill has a slot in one group, decode in the other."""
    g = Groups(world, (2, 1), (1, 2))
    busy = [at_prefill(g), at_prefill(g)]
    assert {i for i, _, _ in busy} == {0, 1}
    c = g.waits()
    assert quiet(g.r) and g.r.metric("endpoint_in_flight", role="prefill") == 2
    assert all(g.goes_on(*one) for one in busy)
    assert g.goes_on(*at_prefill(g, c))
    g.r.wait_idle()


def test_a_group_without_a_decode_engine_is_none_to_wait_for(world):
    """The other is whole, and full: a request waits for that."""
    g = Groups(world, (1, 1), (1, 1))
    g.d[0].probes["/health"] = lambda ex: ex.reply(503)
    g.r.wait_metric("endpoint_up", 0, engine=g.d[0].url)
    busy = at_prefill(g)
    assert busy[0] == 1
    c = g.waits()
    assert g.goes_on(*busy) and g.goes_on(1, g.p[1].expect(), c)
    g.r.wait_idle()


# --- priority ---
def test_priority_by_header_and_by_member(world):
    q = Narrow(world, allow_priority=True)
    q.ask("first")
    first = q.d.expect()
    q.line_up(["plain"])
    q.line_up(["low"], [("X-Vllm-Priority", "5")])
    q.line_up(["member"], priority=-1)
    q.line_up(["header"], [("X-Vllm-Priority", "-2")], priority=9)
    q.line_up(["plain too"])
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for name in ("header", "member", "plain", "plain too", "low"):
        q.serve(name)
    q.done()


def test_a_keys_priority_has_a_bound(world):
    q, path = Narrow(world, allow_priority=True), world.dir / "keys.yaml"
    rows = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **more}
            for name, more in (("bound", {"priority_max": 3}), ("free", {}))]
    path.write_text(yaml.safe_dump(rows))
    q.r.reload(api_keys_file=str(path))
    q.ask("first", [("X-Api-Key", "free")])
    first = q.d.expect()
    q.line_up(["bound"], [("X-Api-Key", "bound")], priority=-9)
    q.line_up(["later"], [("X-Api-Key", "free")], priority=4)
    q.line_up(["free"], [("X-Api-Key", "free")], priority=2)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for name in ("free", "bound", "later"):
        q.serve(name)
    q.done()


def test_a_priority_that_is_none(world):
    q = Narrow(world, allow_priority=True)
    for text in ("high", "1.5", "99999999999", "--1", "+", " "):
        a = q.r.complete("x", headers=[("X-Vllm-Priority", text)])
        assert (a.status, a.error["code"]) == (400, "not_supported"), text
    for value in ("high", 1.5, 99999999999, None, [1]):
        q.ask("member", priority=value)
        ex = q.d.expect()
        assert ex.json()["priority"] == value  # the engine's to refuse
        ex.reply(body={"choices": []})
        assert q.clients.pop("member").read().status == 200
    q.done()


def test_priority_counts_only_where_it_is_allowed(world):
    q = Narrow(world)
    q.ask("first")
    first = q.d.expect()
    q.line_up(["plain"])
    q.line_up(["hasty"], [("X-Vllm-Priority", "-9")], priority=-9)
    q.line_up(["odd"], [("X-Vllm-Priority", "soon")])
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for name in ("plain", "hasty", "odd"):
        q.serve(name)
    q.done()


# --- who goes away ---
def test_a_client_leaves_while_it_waits(world):
    q = Narrow(world)
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(4))
    q.clients.pop("r0").close()
    q.clients.pop("r2").reset()
    q.waiting(2)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    q.serve("r1")
    q.serve("r3")
    assert q.d.quiet() and {q.r.end_of(n)["reason"] for n in ("r0", "r2")} == {"client_gone"}
    q.done()


def worker_with(q, port):
    """The pid of the worker that has the connection from this port."""
    inode = next(x.split()[9] for x in Path("/proc/net/tcp").read_text().splitlines()[1:]
                 if int(x.split()[2].split(":")[1], 16) == port and int(x.split()[1].split(":")[1], 16) == q.r.port)
    for pid in q.r.children():
        for fd in (Path("/proc") / str(pid) / "fd").iterdir():
            try:
                if os.readlink(fd) == f"socket:[{inode}]":
                    return pid
            except OSError:
                pass
    raise AssertionError("no worker has accepted it yet")


def owner(q, name):
    return worker_with(q, q.clients[name].sock.getsockname()[1])


def test_a_worker_is_killed_while_its_requests_wait(world):
    q = Narrow(world, workers=2)
    q.ask("first")
    first = q.d.expect()
    busy = owner(q, "first")
    q.line_up(names(12))
    owners = {n: owner(q, n) for n in names(12)}
    victim = next(p for p in q.r.children() if p != busy)
    q.r.murder(victim)
    left = [n for n in names(12) if owners[n] != victim]
    assert 0 < len(left) < 12
    q.waiting(len(left))
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for n in left:
        q.serve(n)
    q.done()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_worker_stands_still_when_its_request_is_called(world, killed):
    """The next in the queue is served all the same: within a second, or as soon as the dead one is reaped."""
    q = Narrow(world, workers=2, worker_watchdog="0s")
    q.ask("first")
    first = q.d.expect()
    busy = owner(q, "first")
    victim = next(p for p in q.r.children() if p != busy)
    for i in range(40):
        q.line_up([f"r{i}"])
        if owner(q, f"r{i}") == victim and i > 0:
            break
    owners = {n: owner(q, n) for n in q.clients if n != "first"}
    first_called = next(n for n in owners if owners[n] == victim)
    for n in list(owners)[:list(owners).index(first_called)]:  # those before it leave
        q.clients.pop(n).close()
        del owners[n]
    q.waiting(len(owners))
    q.line_up(["other"])
    while owner(q, "other") == victim:
        q.clients.pop("other").close()
        q.waiting(len(owners))
        q.line_up(["other"])
    os.kill(victim, signal.SIGSTOP)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    if killed:
        time.sleep(0.05)  # it has been called
        q.r.murder(victim)
    at = time.monotonic()
    mine = [n for n in owners if owners[n] != victim] + ["other"]
    q.serve(mine[0])
    assert time.monotonic() - at < 3 * SLOW
    for n in mine[1:]:
        q.serve(n)
    if not killed:
        os.kill(victim, signal.SIGCONT)
        for n in [n for n in owners if owners[n] == victim]:
            q.serve()
    q.done()


def test_all_engines_of_a_role_go_down_while_requests_wait(world):
    q = Narrow(world)
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(5))
    q.d.probes["/health"] = (503, b"")
    for n in names(5):
        a = q.clients.pop(n).read()
        assert (a.status, a.error["code"]) == (503, "no_decode_endpoint")
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    q.done()


def test_who_goes_alone_has_waited_already(world):
    """No prefill engine is up any more: the same request waits on for a decode engine, not anew."""
    q = Narrow(world, queue_timeout="1s", pool={"fallback": "direct"})
    q.ask("first")
    first = q.d.expect()
    q.line_up(["late"])
    time.sleep(0.5)
    q.p.probes["/health"] = (503, b"")
    a = q.clients.pop("late").read()
    assert (a.status, a.error["code"]) == (503, "queue_timeout")
    end = q.r.end_of("late")
    assert end["detail"] == "decode" and 950 <= end["queued_ms"] < 1000 + 400 * SLOW, end
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    q.done()


def test_who_was_to_go_alone_goes_with_a_prefill_engine_that_is_up_again(world):
    """It waits for a decode engine meanwhile, and was to go alone when it began to wait."""
    q = Narrow(world, pool={"fallback": "direct"})
    for up in (0, 1):
        q.p.probes["/health"] = b"" if up else (503, b"")
        q.r.wait_metric("endpoint_up", up, engine=q.p.url)
        if not up:
            q.ask("first")
            first = q.d.expect()
            q.line_up(["late"])
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    q.serve("late")
    assert (q.r.end_of("first")["direct"], q.r.end_of("late")["direct"]) == ("no_prefill", None)
    q.done()


def test_an_engine_that_comes_up_serves_who_waits(world):
    more = world.script(probes={"/health": (503, b"")})
    q = Narrow(world)
    pool = {**q.pool, "decode": [*q.pool["decode"], {"url": more.url, "max_inflight": 2}]}
    q.r.reload(pools=[pool])
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(3))
    more.probes["/health"] = b""
    got = [more.expect() for _ in range(2)]
    assert sorted(ex.json()["prompt"] for ex in got) == ["r0", "r1"]
    q.waiting(1)
    for ex in [*got, first]:
        ex.reply(body={"choices": []})
    wait("the last one", lambda: not (q.d.asked.empty() and more.asked.empty()))
    (q.d if not q.d.asked.empty() else more).expect().reply(body={"choices": []})
    assert all(c.read().status == 200 for c in q.clients.values())
    q.done()


# --- configuration ---
def test_queue_size_is_changed_by_a_reload(world):
    q = Narrow(world, queue_size=1)
    q.ask("first")
    first = q.d.expect()
    q.line_up(["r0"])
    assert q.r.complete("x").status == 429
    q.r.reload(pools=[{**q.pool, "queue_size": 3}])
    q.line_up(["r1", "r2"])
    assert q.r.complete("x").status == 429
    q.r.reload(pools=[{**q.pool, "queue_size": 0}])
    a = q.r.complete("x")
    assert (a.status, a.error["code"]) == (429, "no_capacity")
    assert q.r.metric("queue_waiting") == 3  # they stay
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for n in names(3):
        q.serve(n)
    q.done()


def test_a_raised_max_inflight_calls_those_who_wait(world):
    q = Narrow(world)
    q.ask("first")
    held = [q.d.expect()]
    q.line_up(names(5))
    pool = {**q.pool, "decode": [{"url": q.d.url, "max_inflight": 4}]}
    q.r.reload(pools=[pool])
    held += [q.d.expect() for _ in range(3)]
    assert sorted(ex.json()["prompt"] for ex in held) == ["first", "r0", "r1", "r2"]
    q.waiting(2)
    for ex in held:
        ex.reply(body={"choices": []})
    for n in ("first", "r0", "r1", "r2"):
        assert q.clients.pop(n).read().status == 200
    assert sorted([q.serve(), q.serve()]) == ["r3", "r4"]
    q.done()


def test_the_old_generation_serves_those_who_wait_in_it(world):
    q = Narrow(world, workers=2, drain_timeout="20s")
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(4))
    q.r.reload(workers=3)
    # of the old generation only workers with waiters stay: one may have all of them
    wait("a new generation", lambda: len(q.r.children()) >= 4)
    q.line_up(names(2, "new"))
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for n in [*names(4), *names(2, "new")]:
        q.serve(n)
    wait("the old generation is gone", lambda: len(q.r.children()) == 3)
    assert all(q.r.end_of(n)["reason"] == "ok" for n in names(4))
    q.done()


def test_a_shutdown_serves_whom_it_can_and_tells_the_others(world):
    q = Narrow(world, drain_timeout="1s")
    q.ask("first")
    first = q.d.expect()
    q.line_up(names(3))
    q.r.kill(signal.SIGTERM)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    q.serve("r0")
    q.d.expect()  # r1's, which is never answered
    codes = {n: q.clients[n].read().error["code"] for n in ("r1", "r2")}
    assert codes == {"r1": "shutdown", "r2": "shutdown"}


def test_pools_have_queues_of_their_own(world):
    engines = [[world.script(models=[f"m{i}"], probes=probes) for probes in ({URL: prefills_by_itself}, {})] for i in range(10)]
    pools = [{**world.pool([p], [{"url": d.url, "max_inflight": 1}], queue_size=2, queue_timeout="30s"), "models": [f"m{i}"]}
             for i, (p, d) in enumerate(engines)]
    r = world.router(*pools, workers=3)
    r.wait_all_up()
    clients, held = [], []
    for i, (_, d) in enumerate(engines):
        for k in range(3):
            c = r.client()
            clients.append(c.request("POST", URL, {"model": f"m{i}", "prompt": str(k)}))
            if k == 0:
                held.append(d.expect())
        wait(f"two wait in pool {i}", lambda i=i: r.metric("queue_waiting", pool=f"m{i}") == 2)
        assert r.complete("x", model=f"m{i}").error["code"] == "queue_full"
    held[4].reply(body={"choices": []})
    nxt = engines[4][1].expect()
    assert nxt.json() and all(d.asked.empty() for i, (_, d) in enumerate(engines) if i != 4)
    assert [r.metric("queue_waiting", pool=f"m{i}") for i in range(10)] == [2] * 4 + [1] + [2] * 5
    queue = {p["name"]: p["queue"] for p in r.status()["fleet"]["pools"]}
    assert queue["m4"]["waiting"] == 1 and queue["m5"]["waiting"] == 2 and queue["m5"]["size"] == 2
    assert "pool m5: 2 of 2 waiting, the first for" in r.ctl("status").stdout
    for ex in [*held[:4], *held[5:], nxt]:
        ex.reply(body={"choices": []})
    for i, (_, d) in enumerate(engines):
        for _ in range(1 if i == 4 else 2):
            d.expect().reply(body={"choices": []})
    assert all(c.read().status == 200 for c in clients)
    r.wait_idle()
    assert r.metric("queue_waiting") == 0


# --- one role full, the other not ---
def test_decode_full_prefill_free(world):
    """The prefill engine hears of nobody who could not go on to decode."""
    q = Narrow(world, p_script=True)
    q.ask("first")
    q.p.expect().prefilled()
    first = q.d.expect()
    q.line_up(names(3))
    assert q.p.quiet(0.2)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for n in names(3):
        ex = q.p.expect()
        assert ex.json()["prompt"] == n and q.p.asked.empty()
        ex.prefilled()
        q.serve(n)
    q.done()


def test_prefill_full_decode_free(world):
    """Who needs decode alone passes those who wait for a prefill engine; those are called when it is free."""
    q = Narrow(world, slots=4, p_slots=1, p_script=True)
    q.ask("first")
    first = q.p.expect()
    q.line_up(names(3))
    q.ask("direct", DIRECT)
    q.serve("direct")
    first.prefilled()
    for n in names(3):
        ex = q.p.expect()
        assert ex.json()["prompt"] == n
        ex.prefilled()
    held = [q.d.expect() for _ in range(4)]
    for ex in held:
        ex.reply(body={"choices": []})
    assert all(c.read().status == 200 for c in q.clients.values())
    q.done()


def test_one_who_needs_decode_alone_waits_its_turn(world):
    """Decode is full: direct requests and disaggregated ones wait in one line."""
    q = Narrow(world)
    q.ask("first")
    first = q.d.expect()
    q.line_up(["split0"])
    q.line_up(["direct0"], DIRECT)
    q.line_up(["split1"])
    q.line_up(["direct1"], DIRECT)
    first.reply(body={"choices": []})
    q.clients.pop("first").read()
    for n in ("split0", "direct0", "split1", "direct1"):
        time.sleep(0.05)  # a waiter that was woken for nothing has tried: it could take the slot that is freed next
        q.serve(n)
    q.done()


def two_models(world, workers):
    """A pool whose decode engines, of one slot each, serve a model each: (router, ma's, mb's, ask(model, prompt))."""
    a, b = world.script(), world.script()
    p = world.script(probes={URL: prefills_by_itself})
    for e, m in ((a, "ma"), (b, "mb")):
        e.probes["/v1/models"] = ('{"object":"list","data":[{"id":"%s","object":"model"}]}' % m).encode()
    p.probes["/v1/models"] = b'{"object":"list","data":[{"id":"ma","object":"model"},{"id":"mb","object":"model"}]}'
    pool = {**world.pool([p], [{"url": a.url, "max_inflight": 1}, {"url": b.url, "max_inflight": 1}], queue_size=9, queue_timeout="30s"),
            "name": "two"}
    del pool["models"]
    r = world.router(pool, workers=workers)
    r.wait_all_up()

    def ask(model, prompt):
        return r.client().request("POST", URL, {"model": model, "prompt": prompt})
    return r, a, b, ask


def test_models_of_one_pool_that_different_engines_serve(world):
    """Engine B is free: who waits for A's model keeps nobody from it, and nobody who asks B's takes A's slot."""
    r, a, b, ask = two_models(world, 3)
    clients = [ask("ma", "a0")]
    held = a.expect()
    for i in range(3):
        clients.append(ask("ma", f"a{i + 1}"))
        wait("it waits", lambda i=i: r.metric("queue_waiting") == i + 1)
    for i in range(3):
        clients.append(ask("mb", f"b{i}"))
        ex = b.expect()
        assert ex.json()["prompt"] == f"b{i}"
        ex.reply(body={"choices": []})
        assert clients.pop().read().status == 200
    clients.append(ask("mb", "b3"))
    other = b.expect()
    clients.append(ask("mb", "b4"))
    wait("four wait", lambda: r.metric("queue_waiting") == 4)
    other.reply(body={"choices": []})
    ex = b.expect()
    assert ex.json()["prompt"] == "b4"
    ex.reply(body={"choices": []})
    for i in range(3):
        held.reply(body={"choices": []})
        held = a.expect()
        assert held.json()["prompt"] == f"a{i + 1}"
    held.reply(body={"choices": []})
    assert all(c.read().status == 200 for c in clients)
    r.wait_idle()
    assert r.metric("queue_waiting") == 0


def test_two_slots_at_once_for_two_models(world):
    """Engines of two models end while the worker of both who wait stands still: the first takes one slot, and says of the other."""
    r, a, b, ask = two_models(world, 1)
    took = []
    for turn in range(4):
        clients = [ask("ma", "a0"), ask("mb", "b0")]
        held = [a.expect(), b.expect()]
        for i, m in enumerate(("ma", "mb")):
            clients.append(ask(m, m + "1"))
            wait("it waits", lambda i=i: r.metric("queue_waiting") == i + 1)
        worker = r.children()[0]
        os.kill(worker, signal.SIGSTOP)
        for ex in held:
            ex.reply(body={"choices": []})
        began = time.monotonic()
        os.kill(worker, signal.SIGCONT)
        others = b.expect()
        took.append(time.monotonic() - began)
        others.reply(body={"choices": []})
        a.expect().reply(body={"choices": []})
        assert all(c.read().status == 200 for c in clients)
        r.wait_idle()
    assert statistics.median(took) < 0.1 * SLOW, took  # else the master's call, one a second, finds it
