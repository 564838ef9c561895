"""Hosts that vanish: no FIN, no RST, no answer to a probe.  Engines and clients whose host is gone are noticed."""
import signal
from contextlib import contextmanager

import pytest

from faraway import Host
from fleets import build, right
from procs import MODEL, SLOW, wait
from raw import Client, text_of
from test_resume import body_of, is_whole, path_of

NEVER = {"health_interval": "1h", "fall": 1000}  # probes notice nothing
SOON = f"{SLOW}s"


@pytest.fixture
def host():
    h = Host()
    yield h
    h.close()


def there(world, host):
    with host.sockets():
        return world.script(host=host.there)


# --- timeouts.tcp_user, client.tcp_user ---

@pytest.mark.parametrize("stage", ["prefill", "sent", "stream"])
def test_an_engine_whose_host_vanishes(host, world, stage):
    """Its connection ends: another engine serves, or a stream ends with an error."""
    gone = there(world, host)
    roles = ([gone], [world.script()]) if stage == "prefill" else ([world.script()], [gone])
    r = world.router(world.pool(*roles, fallback="none", retries=0, timeouts={"tcp_user": SOON}), **NEVER)
    c = r.open_stream()
    if stage == "prefill":
        gone.expect()
    else:
        roles[0][0].expect().prefilled()
        ex = gone.expect()
    if stage == "stream":
        ex.stream_head().event("a")
        next(c.events())
    host.vanish()
    code = c.read().error["code"] if stage != "stream" else next(c.events()).json()["error"]["code"]
    assert code == ("prefill_broken" if stage == "prefill" else "decode_broken") and r.end()["total_ms"] < 5000 * SLOW
    host.come_back()  # it refuses the KV that it was to get


def test_a_request_on_a_kept_connection_to_a_host_that_has_vanished(host, world):
    """Nobody acknowledges it: probes of a quiet connection do not help."""
    gone = there(world, host)
    timeouts = {"tcp_user": SOON, "connect": "500ms"}
    r = world.router(world.pool([gone], [world.script()], fallback="none", retries=0, timeouts=timeouts), workers=1, **NEVER)
    c = r.client().request("POST", "/tokenize", {"model": MODEL, "prompt": "x"})
    gone.expect().reply(body={"count": 1})
    assert c.read().status == 200
    host.vanish()
    c.request("POST", "/tokenize", {"model": MODEL, "prompt": "x"})
    assert c.read().status >= 500


@pytest.mark.parametrize("stage", ["prefill", "stream"])
def test_a_client_whose_host_vanishes(host, world, stage):
    """As one that leaves: its engine is free."""
    world.listen_host = host.here
    r, (p,), (d,) = world.scripts(client={"tcp_user": SOON})
    with host.sockets():
        c = Client(r.address)
    c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "stream": True})
    ex = p.expect()
    if stage == "stream":
        ex.prefilled()
        ex = d.expect().stream_head().event("a")
        next(c.events())
    host.vanish()
    if stage == "stream":
        ex.event("b")
    assert ex.gone(5 * SLOW) and r.end()["reason"] == "client_gone"
    ex.close()


@pytest.mark.timing
def test_a_client_that_reads_nothing_has_not_vanished(world):
    """Its host answers: client.write_timeout is its limit."""
    r, (p,), (d,) = world.scripts(client={"tcp_user": SOON})
    c = Client(r.address, rcvbuf=4096)
    c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "stream": True})
    p.expect().prefilled()
    ex = d.expect().stream_head()
    for _ in range(40 * SLOW):
        ex.event("a" * 3000)
        assert not ex.gone(0.05)
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert [e.data for e in c.events()][-1] == "[DONE]"


# --- an engine that freezes: it accepts and says nothing, until the probes find it down ---

SICK = {"health_timeout": f"{200 * SLOW}ms", "fall": 1, "rise": 1}


def asked(r, engines):
    """The one of them that has the request."""
    return wait("a request", lambda: next((e for e in engines if r.metric("endpoint_in_flight", engine=e.url)), None))


@contextmanager
def frozen(r, engine, down=True):
    engine.kill(signal.SIGSTOP)
    try:
        if down:
            r.wait_metric("endpoint_up", 0, engine=engine.url)
        yield
    finally:
        engine.kill(signal.SIGCONT)


def freezing(world, grace, pool=None, **keys):
    """A fleet whose decode engines send an event each 100 ms."""
    return build(world, "nixl", pool={"timeouts": {"down_grace": grace}, **(pool or {})}, decode={"token_delay": 100}, **SICK, **keys)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_request_to_an_engine_that_has_just_frozen(world, role):
    """It goes elsewhere once the engine is down; what it costs is a try."""
    r, p, d = build(world, "nixl", **SICK)
    engines = {"prefill": p, "decode": d}[role]
    with frozen(r, engines[0], down=False):
        for _ in engines:
            right(r, True)
    lines = [x for x in r.all_ended() if x["tries"]]
    assert [x["tries"] for x in lines] == [1] and lines[0]["total_ms"] < 8000 * SLOW


@pytest.mark.parametrize("nd", [1, 2])
def test_a_decode_engine_that_goes_down_while_prefill_works(world, nd):
    """It is asked nothing any more: another one gets the same KV."""
    r, (p,), d = world.scripts(nd=nd, pool={"retries": 1}, **SICK)
    c = r.open_stream()
    ex = p.expect()
    down = asked(r, d)
    down.probes["/health"] = (503, b"")
    r.wait_metric("endpoint_up", 0, engine=down.url)
    ex.prefilled()
    if nd == 1:
        assert c.read().error["code"] == "decode_down"
        return
    next(e for e in d if e is not down).expect().stream("a")
    assert text_of(c.events()) == "a" and p.quiet(0.1) and down.quiet(0.1)


def test_a_prefill_engine_that_goes_down_after_its_answer(world):
    """Decode may have fetched the KV: its engine is left to say whether it has."""
    r, (p,), (d,) = world.scripts(pool={"timeouts": {"down_grace": "0s"}}, **SICK)
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect()
    p.probes["/health"] = (503, b"")
    r.wait_metric("endpoint_up", 0, engine=p.url)
    assert not ex.gone(0.3 * SLOW)  # ticks pass
    ex.stream("a")
    assert text_of(c.events()) == "a"


@pytest.mark.parametrize("stream", [True, False])
def test_without_another_engine_it_is_an_error(world, stream):
    """An answer in one piece has the time of down_grace: it may be nearly generated."""
    r, p, d = freezing(world, "200ms", {"retries": 0}, np=1, nd=1)
    with frozen(r, d[0], down=False):
        a = r.complete("hi", stream=stream)
    assert (a.status, a.error["code"]) == (502, "decode_down") and r.end()["reason"] == "decode_down"


def begun(r):
    """(body, events still to come, the first one) of a stream."""
    body = body_of(True)
    events = r.client().request("POST", path_of(body), body).events()
    first = next(events)
    return body, events, first


@pytest.mark.parametrize("resume", [True, False])
def test_streams_of_an_engine_that_is_down(world, resume):
    """They end after down_grace, or others continue them."""
    r, p, d = freezing(world, "200ms", {"resume": resume})
    body, events, first = begun(r)
    with frozen(r, asked(r, d)):
        events = [first, *events]
    if resume:
        is_whole(body, events)
    else:
        assert events[-1].json()["error"]["code"] == "decode_down"
    assert r.end()["total_ms"] < 8000 * SLOW


def test_an_engine_that_comes_up_again_keeps_its_streams(world):
    r, p, d = freezing(world, "30s", {"resume": True})
    body, events, first = begun(r)
    with frozen(r, asked(r, d)):
        pass
    is_whole(body, [first, *events])
    assert r.end()["tries"] is None and r.metric("attempts_failed_total") == 0


def test_the_grace_begins_anew(world):
    """An engine that is down now and then is never down for long."""
    r, p, d = freezing(world, f"{1500 * SLOW}ms")
    body = body_of(True, n=20)
    c = r.client().request("POST", path_of(body), body)
    events = c.events()
    first = next(events)
    engine = asked(r, d)
    for _ in range(3):
        with frozen(r, engine):
            pass
        r.wait_metric("endpoint_up", 1, engine=engine.url)
    is_whole(body, [first, *events])


def test_one_engine_alone(world):
    """/v1/embeddings has no second leg, and its answer is in one piece."""
    r, _, d = freezing(world, "200ms", {"retries": 0, "single_engine_role": "decode"}, np=1, nd=1)
    with frozen(r, d[0], down=False):
        a = r.post("/v1/embeddings", {"model": MODEL, "input": "x"})
    assert (a.status, a.error["code"]) == (502, "engine_down")


def test_the_only_prefill_engine(world):
    r, p, _ = build(world, "nixl", np=1, nd=1, pool={"retries": 0}, **SICK)
    with frozen(r, p[0], down=False):
        a = r.complete("hi")
    assert (a.status, a.error["code"]) == (502, "prefill_down")
