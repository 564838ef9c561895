"""Routers before the same engines tell each other which engine has which prompt, and what they have in flight there."""
import hashlib
import hmac
import os
import signal
import struct
import time

import pytest
import zmq

from procs import free_port, wait
from test_cache_aware import CACHE, POOL, at, hits, one, talk
from test_upgrade import Instances

SECRET = "a secret of some more than sixteen bytes"


class Two:
    """Two routers before the same engines, each with one worker."""

    def __init__(self, world, secrets=(SECRET, SECRET), np=4, **keys):
        self.world = world
        self.ports = [free_port(), free_port()]
        self.p = [world.engine("prefill", **CACHE) for _ in range(np)]
        self.d = world.engine("decode")
        self.routers = []
        for i in range(2):
            file = world.file(f"secret{i}")
            file.write_text(secrets[i] + "\n")
            self.routers.append(world.router(world.pool(self.p, [self.d], **POOL), workers=1, **{"stats_interval": "1h", **keys},
                                             siblings={"listen": self.address(i), "secret_file": str(file),
                                                      "routers": [self.address(k) for k in range(2)]}).wait_all_up())

    def address(self, i):
        return f"tcp://127.0.0.1:{self.ports[i]}"

    def said(self, i, of=None):
        """What router i shows of the other one, or of router `of`."""
        of = self.address(1 - i if of is None else of)
        return next(x for x in self.routers[i].status()["siblings"] if x["address"] == of)

    def see_each_other(self):
        for i in range(2):
            wait("the other router is connected", lambda i=i: self.said(i)["state"] == "connected")
        return self


@pytest.fixture
def two(world):
    return Two(world).see_each_other()


def asked(router, text):
    assert router.complete(text).status == 200


def test_the_next_turn_goes_where_the_other_router_has_sent_the_first(two):
    """Each conversation begins at one router and goes on at the other."""
    a, b = two.routers
    for name in "one", "two", "three", "four", "five", "six":
        text = talk(name, 8000)
        asked(a, text)
        home = two.p[one(two.p, name)].url
        wait("the other router knows", lambda text=text, home=home: hits(b, text)[home] > 1500)
        assert {u for u, n in hits(b, text).items() if n > 0} == {home}
        asked(b, text + talk(name + " again", 2000))
        assert at(two.p, name) == {one(two.p, name)}
        a, b = b, a


def test_what_the_other_router_has_in_flight_counts(two):
    """A request that its engine does not answer is load for both, and ends for both."""
    a, b = two.routers
    for e in two.p:
        e.fault("no_answer", contains='"held', count=-1, delay_ms=60000)
    c = a.open_stream("held" + "x" * 4000)
    wait("it is held", lambda: at(two.p, "held"))
    busy = two.p[one(two.p, "held")].url
    wait("the other router counts it", lambda: hits(b, "x", "foreign")[busy] == 1)
    for i in range(24):
        asked(b, f"{i} short")
    (e,) = (e for e in two.p if e.url == busy)
    # 1,000 tokens are in front; in turn it would get 6.  A machine that stops for a moment makes the figure old.
    assert len(e.requests()) <= 1 + 3
    c.reset()
    wait("it is gone", lambda: hits(b, "x", "foreign")[busy] == 0)


def test_no_request_counts_twice(world):
    """The engine reports the other router's request, and the other router says that it has one there."""
    two = Two(world, np=1, stats_interval="50ms").see_each_other()
    a, b = two.routers
    two.p[0].fault("no_answer", contains='"held', count=-1, delay_ms=60000)
    c = a.open_stream("held" + "x" * 4000)
    wait("it is held", lambda: at(two.p, "held"))
    # while a machine stops for a moment either counts alone, and then both until the next scrape
    wait("one, for twenty looks", lambda: all(list(hits(b, "x", "foreign").values()) == [1] for _ in range(20)))
    c.reset()
    wait("none", lambda: all(list(hits(b, "x", "foreign").values()) == [0] for _ in range(20)))


def test_a_router_by_two_addresses_counts_once(world):
    """One of its own, and one that moves (VRRP)."""
    ports = [free_port(), free_port()]
    file = world.file("secret")
    file.write_text(SECRET)
    p, d = [world.engine("prefill", **CACHE) for _ in range(2)], world.engine("decode")
    a, b = (world.router(world.pool(p, [d], **POOL), workers=1, stats_interval="1h",
                         siblings={"listen": f"tcp://0.0.0.0:{ports[i]}", "secret_file": str(file),
                                   "routers": [f"tcp://127.0.0.{k}:{ports[1 - i]}" for k in (1, 2)]}).wait_all_up() for i in range(2))
    wait("it is refused by one of them", lambda: b.metric("sibling_messages_refused_total", reason="seen"))
    assert sorted(x["state"] for x in b.status()["siblings"]) == ["connected", "silent"]
    for e in p:
        e.fault("no_answer", contains='"held', count=-1, delay_ms=60000)
    c = a.open_stream("held" + "x" * 4000)
    wait("it is held", lambda: at(p, "held"))
    wait("it counts", lambda: sum(hits(b, "x", "foreign").values()) > 0)
    assert [sum(hits(b, "x", "foreign").values()) for _ in range(10)] == [1] * 10
    c.reset()


def test_both_know_themselves(two):
    for i in range(2):
        assert two.said(i, of=i)["state"] == "own"
    wait("one is counted", lambda: two.routers[0].metric("siblings_connected") == 1)
    assert "connected" in two.routers[0].ctl("prefix").stdout


def test_another_secret_is_refused(world):
    two = Two(world, secrets=(SECRET, SECRET + "!"), np=1)
    for i in range(2):
        wait("messages are refused", lambda i=i: two.routers[i].metric("sibling_messages_refused_total", reason="secret"))
        assert two.said(i)["state"] == "silent"
        wait("it is counted", lambda i=i: two.routers[i].metric("siblings_silent") == 1)
    text = talk("conversation", 8000)
    asked(two.routers[0], text)
    assert set(hits(two.routers[1], text).values()) == {0}


def test_a_router_that_is_killed(two):
    """Its load ends, the other one says so and serves; its next notifier is seen at once."""
    a, b = two.routers
    notifier = a.children("notifier")[0]
    os.kill(notifier, signal.SIGKILL)
    wait("another notifier", lambda: a.children("notifier") not in ([], [notifier]))
    wait("it is connected", lambda: two.said(1)["state"] == "connected" and two.said(1)["ms_ago"] < 1000)
    for e in two.p:
        e.fault("no_answer", contains='"held', count=-1, delay_ms=60000)
    c = a.open_stream("held" + "x" * 4000)
    wait("its load counts", lambda: sum(hits(b, "x", "foreign").values()) == 1)
    a.stop(signal.SIGKILL)
    two.world.routers.remove(a)
    wait("it is missed", lambda: two.said(1)["state"] == "silent")
    assert b.lines("another router is silent") and sum(hits(b, "x", "foreign").values()) == 0
    asked(b, "all the same")
    c.reset()


def test_a_reload_adds_and_removes_routers(world):
    two = Two(world, np=1).see_each_other()
    a = two.routers[0]
    a.reload(siblings={**a.config["siblings"], "routers": []})
    wait("none is left", lambda: a.status()["siblings"] == [])
    wait("nothing of it counts", lambda: a.metric("siblings_connected") == 0)
    a.reload(siblings={**a.config["siblings"], "routers": [two.address(1)]})
    wait("it is connected again", lambda: two.said(0)["state"] == "connected")
    asked(a, "all the same")


def test_the_secret_stays_until_a_restart(world):
    """Digests of prompts are made with it, and the index has them."""
    two = Two(world, np=1).see_each_other()
    a = two.routers[0]
    with open(a.config["siblings"]["secret_file"], "w", encoding="ascii") as f:
        f.write("another secret of more than sixteen bytes")
    said = a.reload()
    assert "siblings.secret_file" in said.stdout + a.log()
    assert two.said(0)["state"] == "connected" and two.said(1)["state"] == "connected"


@pytest.mark.usefixtures("reaper")
def test_an_upgrade_is_another_life_of_the_router(world):
    """The new instance has the address, and the other router knows what it has sent where."""
    ports = [free_port(), free_port()]
    addresses = [f"tcp://127.0.0.1:{port}" for port in ports]
    file = world.file("secret")
    file.write_text(SECRET)
    p, d = [world.engine("prefill", **CACHE) for _ in range(2)], world.engine("decode")

    def keys(i):
        return {"workers": 1, "stats_interval": "1h",
                "siblings": {"listen": addresses[i], "secret_file": str(file), "routers": addresses}}
    old = Instances(world, world.pool(p, [d], **POOL), **keys(0))
    other = world.router(world.pool(p, [d], **POOL), **keys(1)).wait_all_up()

    def said():
        return next(x for x in other.status()["siblings"] if x["address"] == addresses[0])
    wait("it is connected", lambda: said()["state"] == "connected")
    old.upgrade()
    old.only_one_left()
    before = said()["messages"]
    wait("it is connected again", lambda: said()["messages"] > before)
    text = talk("conversation", 8000)
    asked(old.r, text)
    home = p[one(p, "conversation")].url
    wait("the other router knows", lambda: hits(other, text)[home] > 1500)


# --- a router that lies, and one that has no secret


class Fake:
    """Another router, made of what proto/wire/sibling_message.h says."""

    def __init__(self, world, secret=SECRET):
        self.key = hmac.new(secret.encode(), b"pdrouter siblings: messages", hashlib.sha256).digest()
        self.socket = zmq.Context.instance().socket(zmq.PUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        file = world.file("secret")
        file.write_text(SECRET)
        self.p = [world.engine("prefill")]
        self.router = world.router(
            world.pool(self.p, [world.engine("decode")], **POOL), workers=1, stats_interval="1h",
            siblings={"listen": f"tcp://127.0.0.1:{free_port()}", "secret_file": str(file), "routers": [f"tcp://127.0.0.1:{port}"]})
        self.life, self.number = int(time.time() * 1e6), 0
        wait("it connects", self.is_connected)

    def is_connected(self):
        self.send()
        return self.router.metric("siblings_connected") == 1

    def message(self, body=b"", loads=0, notes=0, ago_s=0, number=None, life=None):
        number = self.number if number is None else number
        self.number += 1
        sent = int((time.time() - ago_s) * 1e6)
        m = struct.pack("<4sIQQQQII", b"pdrx", 1, 7, life or self.life, number, sent, loads, notes) + body
        return m + hmac.new(self.key, m, hashlib.sha256).digest()

    def send(self, *parts, **how):
        self.socket.send_multipart(parts or [self.message(**how)])

    def refused(self, reason):
        return self.router.metric("sibling_messages_refused_total", reason=reason)


def test_messages_that_are_not_believed(world):
    f = Fake(world)
    cases = [("secret", [b"x" * 100]), ("secret", [f.message()[:-1] + b"!"]), ("form", [b"short"]), ("form", [b""]),
             ("form", [f.message(loads=2**32 - 1)]), ("form", [f.message(notes=1)]),
             ("form", [f.message(body=struct.pack("<QII", 1, 1, 65) + bytes(65 * 8), notes=1)]),
             ("form", [f.message(body=struct.pack("<QII", 1, 1, 0), notes=1)]), ("form", [f.message(), b"a second part"]),
             ("old", [f.message(ago_s=40)]), ("old", [f.message(ago_s=-40)]),
             ("seen", [f.message(number=0)]), ("seen", [f.message(life=f.life - 1, number=10**6)])]
    for reason, parts in cases:
        before = f.refused(reason)
        f.send(*parts)
        wait(f"{reason} is counted", lambda reason=reason, before=before: f.refused(reason) == before + 1)
    asked(f.router, "all the same")


def test_a_message_counts_once(world):
    f = Fake(world)
    m = f.message(body=struct.pack("<QII", 1, 1, 1) + bytes(8), notes=1)
    f.send(m)
    wait("its engine is unknown", lambda: f.router.metric("sibling_engines_unknown_total") == 1)
    f.send(m)
    wait("it was seen", lambda: f.refused("seen") == 1)
    assert f.router.metric("sibling_notes_received_total") == 1
    missed = f.router.metric("sibling_messages_missed_total")
    f.number += 5
    f.send()
    wait("five are missed", lambda: f.router.metric("sibling_messages_missed_total") == missed + 5)


def test_a_flood_of_one_router_costs_no_request(world):
    """Notes of engines that there are not, as fast as they can be sent, for a moment."""
    f = Fake(world)
    body = b"".join(struct.pack("<QII", i, 1, 64) + bytes(64 * 8) for i in range(100))
    for _ in range(400):
        f.send(body=body, notes=100)
    asked(f.router, "meanwhile")
    wait("it came through", lambda: f.router.metric("sibling_engines_unknown_total") > 1000)
    f.router.look_over()
