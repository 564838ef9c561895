"""KV events: the notifier subscribes to engines, counts what their prefix caches store and evict, asks again for what it has
missed, and believes no publisher more than its own figures."""
import json
import os
import signal
import struct
from pathlib import Path

import msgspec
import pytest
import zmq

from procs import SLOW, free_port, wait

BLOCK = 16
FORMS = ["bytes", "map"]  # tests/unit has all of them
EVENTS = {"cache_blocks": 8, "kv_events": 0, "kv_replay": 0}
SAYS = {"stored": "endpoint_kv_stored_tokens_total", "removed": "endpoint_kv_removed_tokens_total",
        "cleared": "endpoint_kv_cleared_total"}


def source(engine, **more):
    return {"url": engine.url, "kv_events": f"tcp://127.0.0.1:{engine.ports['events'][0]}",
            "kv_events_replay": f"tcp://127.0.0.1:{engine.ports['replay'][0]}", **more}


class Fleet:
    def __init__(self, world, of=source, pool=None, engine=None, others=(), **keys):
        self.p = world.engine("prefill", **{**EVENTS, **(engine or {})})
        self.d = world.engine("decode")
        self.router = world.router(world.pool([of(self.p), *others], [self.d], **(pool or {})), **{"workers": 1, **keys})
        self.n = 0
        self.subscribed()

    def subscribed(self):
        """A subscription takes a moment: batches go out until one has come."""
        def some():
            self.p.tell("/sim/kv_events", batches=1, blocks=1)
            return self.says("stored")
        wait("the subscription", some)
        wait("all that was sent", lambda: self.router.metric("endpoint_kv_events_age_seconds") > 0.05)
        self.marks = {k: self.says(k) for k in SAYS}

    def says(self, what):
        return self.router.metric(SAYS[what], engine=self.p.url)

    def more(self, what):
        return self.says(what) - self.marks[what]

    def held(self):
        return self.router.metric("endpoint_kv_held_tokens", engine=self.p.url)

    def ask(self, blocks):
        """A prompt of so many blocks that no other prompt begins with."""
        self.n += 1
        prompt = f"{self.n:06d}".ljust(3 * BLOCK * blocks, "x")
        with self.router.client() as c:
            a = c.post("/v1/completions", {"model": "sim-model", "prompt": prompt, "max_tokens": 1})
        assert a.status == 200, a.body

    def until(self, **want):
        wait(lambda: f"{want}, not { {k: self.more(k) for k in SAYS} }", lambda: all(self.more(k) == v for k, v in want.items()))


@pytest.mark.parametrize("form", FORMS)
def test_what_engines_store_and_evict_is_counted(world, form):
    f = Fleet(world, engine={"kv_form": form})
    f.ask(5)
    f.until(stored=5 * BLOCK, removed=0, cleared=0)
    f.ask(5)
    f.until(stored=10 * BLOCK, removed=2 * BLOCK, cleared=0)
    with f.p.client() as c:
        assert c.post("/reset_prefix_cache", {}).status == 200
    f.until(cleared=1)
    f.ask(3)
    f.until(stored=13 * BLOCK, removed=2 * BLOCK, cleared=1)
    assert f.held() == 3 * BLOCK
    assert f.router.metric("kv_events_bad_total") == 0
    assert f.router.metric("kv_event_messages_missed_total") == 0
    assert f.router.metric("endpoint_kv_events_lag_seconds") < 60
    f.router.look_over()


@pytest.mark.parametrize("how", ["evicted", "cleared"])
def test_the_policy_expects_what_is_still_there(world, how):
    """The engine's cache changes without this router's doing."""
    drained = world.engine("prefill")  # among one engine there is nothing to choose, so nothing is looked up
    f = Fleet(world, pool={"prefill_policy": "cache_aware"}, others=[drained],
              engine={"cache_blocks": 64, "prompt_tokens_details": True})
    assert f.router.ctl("drain", drained.url).returncode == 0
    prompt = "the same beginning ".ljust(3 * BLOCK * 20, "y")

    def figure(name):
        return f.router.metric(f"endpoint_prefix_{name}_total", engine=f.p.url) or 0

    def ask(of):
        with f.router.client() as c:
            assert c.post("/v1/completions", {"model": "sim-model", "prompt": of, "max_tokens": 1}).status == 200

    def expected():
        before, answers = figure("expected_tokens"), figure("answers")
        ask(prompt)
        wait("the answer's figures", lambda: figure("answers") > answers)
        return figure("expected_tokens") - before
    for _ in range(2):
        ask("a" * 100)  # of an engine that has said nothing of its cache nothing is recorded
    with f.p.client() as c:
        assert c.post("/reset_prefix_cache", {}).status == 200  # now all of its cache is known
    f.until(cleared=1)
    f.marks = {k: f.says(k) for k in SAYS}
    assert expected() == 0
    f.until(stored=20 * BLOCK)
    assert expected() > 100
    with f.p.client() as c:
        if how == "cleared":
            assert c.post("/reset_prefix_cache", {}).status == 200
            f.until(cleared=1)
        else:
            for k in range(3):
                other = f"other {k}".ljust(3 * BLOCK * 30, "z")
                assert c.post("/v1/completions", {"model": "sim-model", "prompt": other, "max_tokens": 1}).status == 200
            f.until(stored=110 * BLOCK, removed=46 * BLOCK)
    assert expected() == 0


def test_missed_batches_are_asked_for(world):
    f = Fleet(world)
    with f.p.client() as c:
        assert c.post("/reset_prefix_cache", {}).status == 200
    f.until(cleared=1)
    f.p.tell("/sim/kv_events", drop=2)
    f.ask(1)
    f.ask(2)
    f.ask(1)  # its number shows the gap
    f.until(stored=4 * BLOCK)
    f.router.wait_metric("kv_event_messages_replayed_total", 2)
    assert f.router.metric("kv_event_messages_missed_total") == 0
    assert f.p.counter("kv_replays") == 1
    assert f.held() == 4 * BLOCK


def test_what_is_not_sent_again_is_missed(world):
    f = Fleet(world, of=lambda e: {k: v for k, v in source(e).items() if k != "kv_events_replay"})
    f.p.tell("/sim/kv_events", drop=2)
    for _ in range(3):
        f.ask(1)
    f.router.wait_metric("kv_event_messages_missed_total", 2)
    f.until(stored=BLOCK)
    assert f.held() is None


def test_a_replay_that_has_lost_some_says_so(world):
    f = Fleet(world, engine={"kv_buffer": 2})
    f.p.tell("/sim/kv_events", drop=3)
    for _ in range(4):
        f.ask(1)
    f.until(stored=2 * BLOCK)
    f.router.wait_metric("kv_event_messages_missed_total", 2)


def test_another_life_of_the_engine_has_an_empty_cache(world):
    ports = {"kv_events": free_port(), "kv_replay": free_port()}
    f = Fleet(world, engine={**ports, "port": free_port()})
    f.p = f.p.next_life(signal.SIGKILL)
    f.router.wait_all_up()

    def cleared():
        f.p.tell("/sim/kv_events", batches=1, blocks=1)
        return f.more("cleared") == 1
    wait("the new life", cleared)


def test_a_liar_only_counts_wrongly(world):
    """A publisher that says what it likes, and a replay that never answers."""
    context = zmq.Context()
    pub, silent = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (pub, silent)]
    p, d = world.engine("prefill"), world.engine("decode")
    entry = {"url": p.url, "kv_events": f"tcp://127.0.0.1:{ports[0]}", "kv_events_replay": f"tcp://127.0.0.1:{ports[1]}"}
    r = world.router(world.pool([entry], [d]), workers=1)

    def send(number, events, *more):
        pub.send_multipart([b"", struct.pack(">Q", number), msgspec.msgpack.encode([0.5, events, 0]), *more])

    def first():
        send(7, [["AllBlocksCleared"]])
        return r.metric("kv_events_total")
    wait("the subscription", first)
    bad = r.metric("kv_events_bad_total")
    send(8, [["BlockStored", [1] * 1000, None, [], 65537, None]])
    send(9, [["BlockStored", "x", None, [], 16, None], ["BlockRemoved"], ["Other"], 5, []])
    send(10, [], b"another part")
    pub.send_multipart([b"", b"short", b"\x90"])
    pub.send(b"\x00" * 8)
    pub.send_multipart([b""] * 1000)
    r.wait_metric("kv_events_bad_total", bad + 7)
    pub.send(b"x" * (2 << 20))  # its connection is cut, and made again

    def gap():
        send(2**63, [["AllBlocksCleared"]])
        return r.metric("kv_event_messages_missed_total") >= 1 << 20
    wait("the replay is given up", gap)
    r.lives()
    assert len(r.children("notifier")) == 1
    assert r.metric("notifier_restarts_total") == 0
    context.destroy(linger=0)


def test_reload_adds_and_removes_subscriptions(world):
    p = [world.engine("prefill", **EVENTS) for _ in range(2)]
    d = world.engine("decode")
    plain = world.pool([p[0].url, p[1].url], [d])
    r = world.router(plain, workers=1)
    assert not r.children("notifier")

    def stored(e):
        return r.metric(SAYS["stored"], engine=e.url) or 0

    def counted(e, since):
        e.tell("/sim/kv_events", batches=1, blocks=1)
        return stored(e) > since
    r.reload(pools=[world.pool([source(p[0]), p[1].url], [d])])
    wait("the first", lambda: counted(p[0], 0))
    notifier = r.children("notifier")
    r.reload(pools=[world.pool([source(p[0]), source(p[1])], [d])])
    wait("the second", lambda: counted(p[1], 0))
    assert r.children("notifier") == notifier
    r.reload(pools=[world.pool([p[0].url, source(p[1])], [d])])
    ended = wait("its end", lambda: r.lines("subscription to KV events ended"))
    assert str(p[0].ports["events"][0]) in ended[0]["address"]
    before, of_second = stored(p[0]), stored(p[1])
    for _ in range(3):
        p[0].tell("/sim/kv_events", batches=1, blocks=1)
    wait("the second still", lambda: counted(p[1], of_second))
    assert stored(p[0]) == before
    r.reload(pools=[plain])
    wait("no notifier", lambda: not r.children("notifier"))


def test_many_events_cost_little(world):
    """100,000 events a second are to cost a tenth of a core: 1 us each.  0.4 to 0.5 us were measured; a busy machine takes more."""
    f = Fleet(world)
    pid, before = f.router.children("notifier")[0], f.router.metric("kv_events_total")

    def cpu():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    began = cpu()
    for _ in range(100):
        f.p.tell("/sim/kv_events", batches=200, blocks=10)
    f.router.wait_metric("kv_events_total", before + 200_000)
    assert f.router.metric("kv_event_messages_missed_total") == 0
    assert SLOW > 1 or (cpu() - began) / 200_000 < 2e-6


def test_the_pools_address_holds_for_all_engines(world):
    """A star is the address of each engine: the same text as in the engine's own configuration."""
    port = free_port()
    f = Fleet(world, of=lambda e: e.url, engine={"kv_events": port}, pool={"kv_events": f"tcp://*:{port}"})
    f.ask(2)
    f.until(stored=2 * BLOCK)


def test_a_killed_notifier_subscribes_again(world):
    f = Fleet(world)
    f.ask(2)
    f.until(stored=2 * BLOCK)
    f.router.murder(f.router.children("notifier")[0])

    def more():
        f.p.tell("/sim/kv_events", batches=1, blocks=1)
        return f.more("stored") > 2 * BLOCK
    wait("its successor", more)  # which counts on


class Ids:
    """Two prefill engines whose caches are known, and prompts of token ids."""

    def __init__(self, world, **engine):
        self.world = world
        self.p = [world.engine("prefill", **{**EVENTS, "cache_blocks": 64, **engine}) for _ in range(2)]
        pool = world.pool([source(e) for e in self.p], [world.engine("decode")], prefill_policy="cache_aware")
        self.router = world.router(pool, workers=1)
        self.n = 0
        for e in self.p:
            wait("the subscription", lambda e=e: self.stored_after(e, lambda: e.tell("/sim/kv_events", batches=1, blocks=1)))
            cleared = self.router.metric(SAYS["cleared"], engine=e.url)
            with e.client() as c:
                assert c.post("/reset_prefix_cache", {}).status == 200
            wait("its empty cache", lambda e=e, n=cleared: self.router.metric(SAYS["cleared"], engine=e.url) > n)

    def stored_after(self, engine, do):
        do()
        return self.router.metric(SAYS["stored"], engine=engine.url)

    def prompt(self, blocks):
        """No other prompt begins with it."""
        self.n += 1
        return [10 * self.n] + [7 + k % 50 for k in range(blocks * BLOCK - 1)]

    def straight(self, engine, prompt, **members):
        """A stranger's request."""
        with engine.client() as c:
            a = c.post("/v1/completions", {"model": "sim-model", "prompt": prompt, "max_tokens": 1, **members})
        assert a.status == 200, a.body

    def hits(self, prompt, **members):
        file = self.world.file("prompt")
        file.write_text(json.dumps({"prompt": prompt, **members}, indent=1))
        said = self.router.ctl("explain", "sim-model", "--json", "--prompt", str(file))
        assert said.returncode == 0, said.stderr
        return [e["expected_hit"] for e in json.loads(said.stdout)["roles"]["prefill"]["engines"]]

    def until(self, prompt, want, **members):
        wait(lambda: f"{want}, not {self.hits(prompt, **members)}", lambda: self.hits(prompt, **members) == want)


@pytest.mark.parametrize("form", FORMS)
def test_prompts_of_ids_are_expected_where_a_stranger_has_sent_them(world, form):
    f = Ids(world, kv_form=form)
    prompt = f.prompt(20)
    f.straight(f.p[1], prompt)
    f.until(prompt, [0, 20 * BLOCK])
    assert f.hits(prompt[:10 * BLOCK] + [1] * 200) == [0, 8 * BLOCK], "up to the unit of 64 ids"
    seen = len(f.p[1].requests())
    for _ in range(3):
        assert f.router.complete(prompt + [1, 2, 3]).status == 200
    assert len(f.p[1].requests()) == seen + 3


def test_a_salt_is_part_of_the_ids(world):
    f = Ids(world, kv_form="map")
    prompt = f.prompt(20)
    f.straight(f.p[0], prompt, cache_salt="s")
    f.until(prompt, [20 * BLOCK, 0], cache_salt="s")
    assert f.hits(prompt) == f.hits(prompt, cache_salt="t") == [0, 0]


def test_prompts_of_ids_that_were_evicted_are_expected_no_more(world):
    f = Ids(world)
    prompt, used = f.prompt(20), f.prompt(20)
    assert f.router.complete(prompt).status == 200
    wait("its blocks", lambda: max(f.hits(prompt)) == 20 * BLOCK)
    home = f.hits(prompt).index(20 * BLOCK)
    f.straight(f.p[home], used)
    for _ in range(6):  # three caches full
        f.straight(f.p[home], f.prompt(30))
        f.straight(f.p[home], used)
    f.until(prompt, [0, 0])
    f.until(used, [20 * BLOCK * (i == home) for i in range(2)])
    with f.p[home].client() as c:
        assert c.post("/reset_prefix_cache", {}).status == 200
    f.until(used, [0, 0])
