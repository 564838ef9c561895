"""Engines that announce themselves over ZMQ as vLLM's P2pNcclConnector does: a DEALER whose identity is its
ZMQ address, one msgpack map every 3 s."""
import time

import msgspec
import pytest
import zmq

from procs import MODEL, free_port, wait


class Announcer:
    """The engine's side (protocols.md 7.2)."""

    def __init__(self, port, kind, http, kv):
        self.ctx = zmq.Context()
        self.sock = self.ctx.socket(zmq.DEALER)
        self.sock.linger = 0
        self.sock.setsockopt_string(zmq.IDENTITY, kv)
        self.sock.connect(f"tcp://127.0.0.1:{port}")
        self.message = {"type": kind, "http_address": http, "zmq_address": kv}

    def speak(self, **changes):
        self.sock.send(msgspec.msgpack.encode({**self.message, **changes}))

    def close(self):
        self.sock.close()
        self.ctx.term()


def status(r):
    return {e["url"]: e for e in r.status()["fleet"]["endpoints"]}


def address(engine):
    return engine.url.removeprefix("http://")


@pytest.fixture
def fleet(world):
    """A router that knows no engine, two engines that could announce themselves."""
    port = free_port()
    p, d = world.engine("prefill"), world.engine("decode")
    pool = {"name": "found", "models": [MODEL], "connector": "nixl", "announce_networks": ["127.0.0.0/8"]}
    r = world.router(pool, announce={"listen": f"tcp://127.0.0.1:{port}", "forget": "1s"}, wait_for="live")
    said = [Announcer(port, "P", address(p), "127.0.0.1:21001"), Announcer(port, "D", address(d), "127.0.0.1:22001")]
    yield r, p, d, said
    for one in said:
        one.close()


def keep_speaking(said, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for one in said:
            one.speak()
        time.sleep(0.2)


def test_announced_engines_serve_and_are_forgotten_when_silent(fleet):
    r, p, d, said = fleet
    assert r.get("/ready").status == 503
    for one in said:
        one.speak()

    def both():
        for one in said:
            one.speak()
        known = status(r)
        return known if {p.url, d.url} <= set(known) and all(e["state"] == "up" for e in known.values()) else None
    known = wait("both are up", both)
    assert r.get("/ready").status == r.complete().status == 200
    assert known[p.url]["role"] == "prefill" and known[p.url]["source"] == "announced"
    assert known[d.url]["role"] == "decode"
    keep_speaking(said[:1], 2)
    assert p.url in status(r), "it announced itself all the time"
    # silent for longer than `forget`
    wait("the other is gone", lambda: said[0].speak() or d.url not in status(r))
    assert r.complete().status == 503


def test_what_is_not_from_a_configured_network_is_refused(fleet):
    r, p, _, said = fleet
    said[0].speak(http_address="10.9.9.9:8000")
    wait("refused", lambda: r.metric("announcements_refused_total") == 1)
    said[0].speak(type="X")
    said[0].speak(http_address="engine:8000")
    said[0].sock.send(b"\xc1garbage")
    wait("refused", lambda: r.metric("announcements_refused_total") == 4)
    assert r.metric("announcements_total") == 0 and status(r) == {}
    line, = r.lines("announcement refused, further ones are only counted for a minute")
    assert line["http_address"] == "10.9.9.9:8000" and line["from"] == "127.0.0.1" and "announce_networks" in line["reason"]
    assert len(r.children("notifier")) == 1


def test_a_notifier_that_dies_forgets_nothing_that_matters(fleet):
    r, p, d, said = fleet

    def ready():
        for one in said:
            one.speak()
        return set(status(r)) == {p.url, d.url} and r.get("/ready").status == 200
    wait("the pool can serve", ready)
    r.murder(r.children("notifier")[0])
    r.look_over()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for one in said:
            one.speak()
        assert r.complete().status == 200
        time.sleep(0.1)
    assert set(status(r)) == {p.url, d.url}


def test_the_wrong_pool_gets_none_of_them(world):
    """Two pools with a network each: an engine belongs to the pool its address is of."""
    port = free_port()
    p, d = world.engine("prefill", host="127.0.0.2"), world.engine("decode", host="127.0.0.3")
    pools = [{"name": "one", "models": ["other"], "connector": "nixl", "announce_networks": ["127.0.0.3/32 from 127.0.0.1"]},
             {"name": "two", "models": [MODEL], "connector": "nixl", "announce_networks": ["127.0.0.0/24 from 127.0.0.1"]}]
    r = world.router(*pools, announce={"listen": f"tcp://127.0.0.1:{port}"}, wait_for="live")
    said = [Announcer(port, "P", address(p), "127.0.0.2:1"), Announcer(port, "D", address(d), "127.0.0.3:1")]
    for one in said:
        one.speak()
    wait("both are known", lambda: len(status(r)) == 2)
    known = status(r)
    assert (known[p.url]["pool"], known[d.url]["pool"]) == ("two", "one")
    for one in said:
        one.close()


def test_an_engine_announces_its_own_address_alone(fleet):
    """Or prompts would go to whatever address a stranger names."""
    r, p, _, said = fleet
    said[0].speak(http_address="127.0.0.2:8000")
    wait("refused", lambda: r.metric("announcements_refused_total") == 1)
    r.change(pools=[{**r.config["pools"][0], "announce_networks": ["127.0.0.0/24", "127.0.0.2 from 127.0.0.0/24"]}])
    r.reload()
    wait("it may", lambda: said[0].speak(http_address="127.0.0.2:8000") or "http://127.0.0.2:8000" in status(r))
    said[0].speak(http_address="127.0.0.3:8000")
    said[0].speak()
    wait("its own is known", lambda: p.url in status(r))
    assert "http://127.0.0.3:8000" not in status(r)


def test_a_flood_of_engines_is_bounded(fleet):
    r, _, _, said = fleet
    (former,) = r.children("notifier")
    r.change(pools=[{**r.config["pools"][0], "announce_networks": ["127.0.0.0/8 from 127.0.0.1"]}])
    r.reload()
    wait("the former notifier, which would refuse them, is gone", lambda: former not in r.children("notifier"))
    for i in range(400):
        said[0].speak(http_address=f"127.0.{1 + i // 200}.{1 + i % 200}:9")
    wait("all counted", lambda: r.metric("announcements_total") + r.metric("announcements_refused_total") == 400)
    assert r.metric("announcements_total") == 256
    assert len(status(r)) <= 256


def test_a_reload_that_adds_the_address_starts_a_notifier(world):
    r, p, d = world.pd()
    assert r.children("notifier") == []
    port = free_port()
    pools = [{**r.config["pools"][0], "announce_networks": ["127.0.0.0/8"]}]
    r.change(announce={"listen": f"tcp://127.0.0.1:{port}"}, pools=pools)
    r.reload()
    wait("a notifier", lambda: len(r.children("notifier")) == 1)
    extra = world.engine("decode")
    one = Announcer(port, "D", address(extra), "127.0.0.1:22009")
    one.speak()
    wait("it is up", lambda: status(r).get(extra.url, {}).get("state") == "up")
    one.close()
