"""TLS with engines: requests of three hand-shakes, verification, resumption, engines that stall or end within a record.  What a
wrong file says is in tests/unit/master/config/conf_engine_tls.c."""
import contextlib
import itertools
import json
import shutil
import socket
import threading

import openai
import pytest

from certs import Cert
from nameserver import NameServer
from procs import MODEL, SLOW, free_port, wait
from raw import text_of
from stages import Stage, lasting
from tlsrelay import TlsRelay

NIXL, SGLANG, LMCACHE = "nixl", "sglang", "lmcache"
ENGINES = {NIXL: {}, SGLANG: {"handshake": "sglang"}, LMCACHE: {"handshake": "lmcache", "kv_delay": 2}}


class Relays:
    """TLS before engines, ended with the world."""

    def __init__(self, world):
        self.world, self.all = world, []

    def before(self, engine, cert, **kw):
        relay = TlsRelay(cert, engine.address, **kw)
        self.all.append(relay)
        return relay

    def close(self):
        for r in self.all:
            r.close()


class Fleet(Stage):
    """Three pools, two engines of each role in the first, each engine behind a relay of its own."""

    def __init__(self):
        super().__init__()
        w = self.world
        self.relays = Relays(w)
        self.ca = Cert(w.dir, "ca", days=9)
        self.own = Cert(w.dir, "engine", by=self.ca)
        self.at, self.engines, pools, notices = {}, {}, [], free_port()
        for name, options in ENGINES.items():
            n = 2 if name == NIXL else 1
            of_p = {"proxy": f"127.0.0.1:{notices}"} if name == LMCACHE else {}
            of_d = {"receiver_ports": 0, "skip_last": 1} if name == LMCACHE else {}
            p = [w.engine("prefill", model=name, **options, **of_p) for _ in range(n)]
            d = [w.engine("decode", model=name, refuse_local=True, **options, **of_d) for _ in range(n)]
            self.at[name] = {e: self.relays.before(e, self.own) for e in p + d}
            self.engines[name] = p, d
            ports = {"receiver_init_port": d[0].ports["init"], "receiver_alloc_port": d[0].ports["alloc"]} if name == LMCACHE else {}
            pools.append(w.pool([self.url(name, e) for e in p], [{"url": self.url(name, e), **ports} for e in d], name,
                                name=name, models=[name], tls={"ca": self.ca.cert}, retries=2, policy="round_robin",
                                fallback="none"))
        self.router = w.router(*pools, workers=1, lmcache={"listen": f"tcp://127.0.0.1:{notices}"}).wait_all_up()

    def url(self, name, e):
        return self.at[name][e].url

    def close(self):
        super().close()
        self.relays.close()


@pytest.fixture(scope="module")
def fleet(request):
    yield from lasting(request, Fleet())


@pytest.fixture
def relays(world):
    made = Relays(world)
    yield made
    made.close()


@pytest.mark.parametrize("name", ENGINES)
def test_each_hand_shake(fleet, name):
    sdk = openai.OpenAI(base_url=fleet.router.base_url, api_key="k", max_retries=0)
    body = {"model": name, "prompt": "one two three four", "max_tokens": 5}
    whole = sdk.completions.create(**body).choices[0].text
    assert whole and "".join(e.choices[0].text for e in sdk.completions.create(**body, stream=True)) == whole
    chat = sdk.chat.completions.create(model=name, messages=[{"role": "user", "content": "hi"}], max_tokens=3)
    assert chat.choices[0].message.content
    p, d = fleet.engines[name]
    assert all(any(e.requests() for e in role) for role in (p, d))
    for relay in fleet.at[name].values():
        assert set(relay.protocols) == {"http/1.1"} and not any(relay.names), "an address is not asked for as a name"


def test_sessions_are_resumed_by_workers_and_probes(fleet):
    relay = fleet.at[SGLANG][fleet.engines[SGLANG][1][0]]
    wait("probes that resume", lambda: sum(relay.sessions) > 3)
    assert relay.sessions.count(False) <= 4, "of a worker; of health, learning and load where they begin at once"
    with fleet.router.unwatched():
        assert fleet.router.complete(model=SGLANG).status == 200
        before = len(relay.sessions)
        relay.hang_up()
        assert fleet.router.complete(model=SGLANG).status == 200
        assert relay.sessions[before:] == [True]
    assert fleet.router.metric("engine_tls_handshakes_total", result="resumed") > 0
    assert not fleet.router.metric("engine_tls_handshakes_total", result="failed")


def test_an_engine_that_ends_within_a_record_is_replaced(fleet):
    relay = fleet.at[NIXL][fleet.engines[NIXL][1][0]]
    relay.cut = b"text/event-stream"
    for _ in range(4):  # both decode engines have a turn
        with fleet.router.open_stream(model=NIXL) as c:
            assert text_of(list(c.events()))
    assert relay.cut is None and fleet.router.metric("rescued_total", by="retry") == 1
    fleet.router.wait_all_up()


def test_a_client_that_leaves_ends_its_stream(fleet):
    _, d = fleet.engines[NIXL]
    for e in d:
        e.pause()
    with fleet.router.open_stream(model=NIXL) as c:
        wait("decode", lambda: sum(e.metric("pdsim:running_requests") for e in d) == 1)
        for e in d:
            e.step()
        c.until(b"data:")
    wait("its end, while no token comes", lambda: sum(e.metric("pdsim:running_requests") for e in d) == 0)
    for e in d:
        e.go_on()


def bad_certs(w):
    ca = Cert(w.dir, "ca")
    return ca, {"unable to get local issuer certificate": Cert(w.dir, "stranger", by=Cert(w.dir, "other")),
                "IP address mismatch": Cert(w.dir, "elsewhere", by=ca, ip="127.0.0.9"),
                "certificate has expired": Cert(w.dir, "old", by=ca, days=-1)}


def reason_of(r, url):
    return next(e["reason"] for e in r.status()["fleet"]["endpoints"] if e["url"] == url)


def test_engines_that_cannot_be_verified(world, relays):
    ca, bad = bad_certs(world)
    p, d = world.script(), world.script()
    before = {why: relays.before(d, cert) for why, cert in bad.items()}
    good, other = relays.before(p, Cert(world.dir, "good", by=ca)), relays.before(d, Cert(world.dir, "named.test", by=ca, ip="127.0.0.9"))
    r = world.router(world.pool([good], [*before.values(), other], tls={"ca": ca.cert}, retries=0, timeouts={"connect": "400ms"}),
                     wait_for="live")
    for why, relay in before.items():
        wait(why, lambda why=why, relay=relay: f"tls: certificate verify failed: {why}" in reason_of(r, relay.url))
    assert not d.probed
    # a name in place of the address; and with verify: false anybody
    pool = r.config["pools"][0]
    r.reload(pools=[{**pool, "tls": {"ca": ca.cert, "server_name": "named.test"}}])
    r.wait_metric("endpoint_up", 1, engine=other.url)
    assert other.names[-1] == "named.test"
    r.wait_metric("endpoint_up", 1)
    r.reload(pools=[{**pool, "tls": {"verify": False}}])
    r.wait_all_up()
    line, = r.lines("engines are not verified")
    assert line["level"] == "warn" and line["pool"] == MODEL


def test_what_fails_a_request(world, relays):
    ca, bad = bad_certs(world)
    own = Cert(world.dir, "good", by=ca)
    p, d = world.script(), world.script()
    at_p, at_d = relays.before(p, own), relays.before(d, own)
    r = world.router(world.pool([at_p], [at_d], tls={"ca": ca.cert}, retries=0, timeouts={"connect": "400ms"}),
                     workers=1).wait_all_up()

    n = itertools.count(1)

    def detail():
        with r.client() as c:
            c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})
            p.expect().prefilled()
            assert c.read().status in (502, 503, 504)
        return r.end(next(n))
    with r.unwatched():  # nobody notices it but requests
        for why, cert in bad.items():
            at_d.show(cert)
            assert f"tls: certificate verify failed: {why}" in detail()["detail"]
        at_d.close()
        with socket.create_server(("127.0.0.1", at_d.port)):  # connects, and does not answer the handshake
            line = detail()
            assert 400 <= line["total_ms"] < 2000 * SLOW
    relays.all.remove(at_d)


def test_an_engine_that_wants_a_certificate(world, relays):
    ca, own = Cert(world.dir, "ca"), Cert(world.dir, "router")
    p, d = world.script(), world.script()
    at = [relays.before(e, Cert(world.dir, f"good{e.port}", by=ca), clients=own) for e in (p, d)]
    r = world.router(world.pool([at[0]], [at[1]], tls={"ca": ca.cert}), wait_for="live")
    wait("the reason", lambda: "the engine wants a certificate: set tls.cert" in reason_of(r, at[0].url))
    r.reload(pools=[{**r.config["pools"][0], "tls": {"ca": ca.cert, **own.row()}}])
    r.wait_all_up()
    assert r.metric("tls_certificate_expiry_seconds", certificate=own.cert) > 0
    assert r.metric("tls_certificate_expiry_seconds", certificate=ca.cert) > 0


def test_large_bodies_both_ways(world, relays):
    """8 MiB each way, the answer to a client that reads slowly."""
    ca = Cert(world.dir, "ca")
    p, d = world.script(), world.script()
    at = [relays.before(e, Cert(world.dir, f"good{e.port}", by=ca)) for e in (p, d)]
    r = world.router(world.pool([at[0]], [at[1]], tls={"ca": ca.cert}, single_engine_role="decode"), workers=1).wait_all_up()
    big = bytes(range(97, 113)) * (8 << 16)
    with r.client(rcvbuf=4096) as c:
        c.request("POST", "/v1/embeddings", b'{"model":"%s","input":"%s"}' % (MODEL.encode(), big))
        ex = d.expect()
        assert big in ex.body
        writer = threading.Thread(target=ex.reply, kwargs={"body": big})
        writer.start()
        c.until(b"\r\n\r\n")
        assert writer.is_alive(), "it waits for the client"
        assert c.take(len(big)) == big
        writer.join()


def test_certificates_are_exchanged_while_they_are_watched(world, relays):
    old, new = Cert(world.dir, "old"), Cert(world.dir, "new")
    ca = world.dir / "ca.pem"
    shutil.copy(old.cert, ca)
    p, d = world.script(), world.script()
    at = [relays.before(e, old) for e in (p, d)]
    r = world.router(world.pool([at[0]], [at[1]], tls={"ca": str(ca)}), tls={"watch": True}).wait_all_up()
    for relay in at:
        relay.show(new)
    wait("down", lambda: r.metric("endpoint_up") == 0)
    shutil.copy(new.cert, ca)
    r.wait_all_up()
    with r.client() as c:
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2})
        p.expect().prefilled()
        d.expect().reply(body={"ok": 1})
        assert c.read().status == 200


def test_engines_of_a_name(world, relays):
    """`scheme: https` of an entry of dns: addresses, whose certificate has the name that the pool says."""
    with contextlib.closing(NameServer()) as names:
        ca = Cert(world.dir, "ca")
        own = Cert(world.dir, "engines.test", by=ca, ip="127.0.0.9")
        engines = {role: world.engine(role) for role in ("prefill", "decode")}
        at = {role: relays.before(e, own) for role, e in engines.items()}
        for role in engines:
            names.set(f"{role}.test", "127.0.0.1")
        entries = [{"name": f"{role}.test", "port": relay.port, "scheme": "https", "role": role} for role, relay in at.items()]
        pool = world.pool([], [], dns=entries, tls={"ca": ca.cert, "server_name": "engines.test"})
        r = world.router(pool, dns_servers=[names.address]).wait_all_up()
        assert {e["url"] for e in r.status()["fleet"]["endpoints"]} == {relay.url for relay in at.values()}
        assert r.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2}).status == 200
        # another scheme is another engine, which does not understand what it is asked
        r.reload(pools=[{**pool, "dns": [{**e, "scheme": "http"} for e in entries]}])
        wait("others", lambda: {f"http://127.0.0.1:{relay.port}" for relay in at.values()} <= {e["url"] for e in r.status()["fleet"]["endpoints"]})


def begun(c, body):
    """The worker that the client has reached reads a body, which is yet to come."""
    c.send(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
           b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    c.until(b"100 Continue\r\n\r\n")


BODY = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 2}).encode()


def test_an_old_worker_passes_by_engines_behind_tls(world, relays):
    """It has begun to read two requests when its pool gets engines behind https://, which it has no keys for."""
    cert = Cert(world.dir, "engine")
    p, d, tls_p, tls_d = (world.script() for _ in range(4))
    at = [relays.before(e, cert) for e in (tls_p, tls_d)]
    with_tls = {"tls": {"ca": cert.cert}, "policy": "round_robin"}
    r = world.router(world.pool([p], [d], policy="round_robin"), workers=1).wait_all_up()
    with r.client() as one, r.client() as two:
        begun(one, BODY)
        begun(two, BODY)
        r.reload(pools=[world.pool([at[0], p], [at[1], d], **with_tls)])
        r.wait_all_up()
        one.send(BODY)
        p.expect().prefilled()
        d.expect().reply(body={"ok": 1})
        assert one.read().status == 200
        r.reload(pools=[world.pool(at[:1], at[1:], **with_tls)])
        wait("gone", lambda: r.metric("endpoint_up", engine=p.url) != 1)
        two.send(BODY)
        assert two.read().status == 503
    assert "this worker began before the pool did" in r.end(2)["detail"]
    assert r.metric("endpoint_ejected") == r.metric("endpoint_failures_total") == 0


def test_an_old_worker_does_not_blame_engines_that_have_a_new_authority(world, relays):
    """It has begun to read a request when engines and tls.ca change, and chooses when its own authorities are the old ones."""
    old, new = Cert(world.dir, "old"), Cert(world.dir, "new")
    ca = world.dir / "ca.pem"
    shutil.copy(old.cert, ca)
    p, d = [world.script(), world.script()], world.script()
    at = [relays.before(e, old) for e in (*p, d)]
    r = world.router(world.pool(at[:2], at[2:], tls={"ca": str(ca)}, policy="round_robin", eject_failures=1, retries=1),
                     tls={"watch": True}, workers=1).wait_all_up()
    with r.client() as c:
        begun(c, BODY)
        for relay in at:
            relay.show(new)
        wait("down", lambda: r.metric("endpoint_up") == 0)
        shutil.copy(new.cert, ca)
        r.wait_all_up()
        c.send(BODY)
        assert c.read().status == 503
    line = r.end(1)
    assert line["reason"] == "no_prefill_endpoint" and "tls: certificate verify failed" in line["detail"]
    assert r.metric("endpoint_ejected") == r.metric("endpoint_failures_total") == 0


def test_an_old_worker_waits_in_nobodys_way(world, relays):
    """Its request waits for a slot of the plain engine; one of a new worker takes the engine that a reload has added behind TLS."""
    cert = Cert(world.dir, "engine")
    p, d, tls_d = (world.script() for _ in range(3))
    at = relays.before(tls_d, cert)
    pool = world.pool([p], [{"url": d.url, "max_inflight": 1}], single_engine_role="decode", queue_size=8, queue_timeout="30s")
    r = world.router(pool, workers=1).wait_all_up()
    ask = {"model": MODEL, "input": "x"}
    with r.client() as first, r.client() as second:
        first.request("POST", "/v1/embeddings", ask)
        held = d.expect()
        second.request("POST", "/v1/embeddings", ask)
        r.wait_metric("queue_waiting", 1)
        r.reload(pools=[{**pool, "tls": {"ca": cert.cert}, "decode": [*pool["decode"], {"url": at.url}]}])
        r.wait_metric("endpoint_up", 1, engine=at.url)
        with r.client() as third:
            third.request("POST", "/v1/embeddings", ask)
            tls_d.expect().reply(body={"ok": 3})
            assert third.read().status == 200
        held.reply(body={"ok": 1})
        assert first.read().status == 200
        d.expect().reply(body={"ok": 2})
        assert second.read().status == 200
