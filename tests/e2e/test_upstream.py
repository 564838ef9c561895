"""Connections to engines: kept, replaced when stale, never sent anything twice."""
import time

import pytest

from fleets import admitted
from procs import MODEL, wait
from raw import text_of

URL = "/v1/completions"


def test_connections_are_kept(world):
    r, (p,), (d,) = world.pd(workers=1)
    for _ in range(10):
        assert r.complete().status == 200
    assert r.metric("upstream_connections_opened_total") == 2 and r.metric("upstream_reused_total") == 18


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_stale_connection_is_replaced_invisibly(world, role):
    """The engine closed while idle, as uvicorn does: the next request goes out on a new connection."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.open_stream()
    p.expect().prefilled()
    d.expect().stream("a")
    assert text_of(c.events()) == "a"
    e = p if role == "prefill" else d
    for conn in list(e.conns):
        conn.sock.shutdown(2)
    c = r.open_stream("again")
    p.expect().prefilled()
    d.expect().stream("b")
    assert text_of(c.events()) == "b" and p.quiet(0.1) and d.quiet(0.1)


def test_connection_reset_as_the_request_arrives(world):
    """The simulator's close_keepalive resets a kept connection when the next request comes in on it.
    Its kernel has acknowledged the bytes by then, so the router must not send them again by itself."""
    r, (p,), (d,) = world.pd(workers=1)
    assert r.complete().status == 200
    d.fault("close_keepalive")
    a = r.complete("second")
    assert a.status in (200, 502)
    assert len(admitted(d)) <= 2
    world.check_engines = a.status == 200  # else the blocks wait for their timeout: nobody can fetch them


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_vanished_connection_is_replaced(world, role):
    """No FIN was seen and not a byte acknowledged: the kernel answers with a reset, and we send anew.  What decode was told is
    good for one fetch, and a reset does not say that nothing was read: prefill first."""
    r, (p,), (d,) = world.pd(workers=1)
    assert r.complete().status == 200
    with (p if role == "prefill" else d).client() as c:  # needs CAP_NET_ADMIN: without it this is an ordinary second request
        vanished = c.post("/sim/fault", {"kind": "vanish"}).status == 200
    assert r.complete("second").status == 200 and len(admitted(d)) == 2
    assert len(p.requests()) == 2 + (vanished and role == "decode")
    assert r.metric("upstream_stale_total") == vanished and not r.metric("attempts_failed_total")


def test_reset_after_the_request_was_read_is_not_resent(world):
    """The engine may have begun: a request is sent twice only if no byte of it was acknowledged."""
    r, (p,), (d,) = world.scripts(workers=1)
    for last in (False, True):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
        ex = p.expect()
        if last:
            time.sleep(0.3)  # longer than a kernel delays its acknowledgement
            ex.reset()
        else:
            ex.prefilled()
            d.expect().reply(body={})
        assert c.read().status == (502 if last else 200)
    assert p.quiet(0.2) and d.quiet(0.1)


@pytest.mark.timing
def test_idle_connections_are_closed_before_the_engine_does(world):
    r, (p,), (d,) = world.pd(workers=1, upstream={"idle_timeout": "300ms"})
    assert r.complete().status == 200
    assert r.metric("upstream_idle_connections") == 2
    start = time.monotonic()
    r.wait_metric("upstream_idle_connections", 0, 3)
    assert time.monotonic() - start > 0.1
    assert r.complete().status == 200 and r.metric("upstream_stale_total") == 0


def test_max_idle(world):
    r, (p,), (d,) = world.pd(workers=1, upstream={"max_idle": 1}, engine={"token_delay": 10})
    streams = [r.open_stream(f"p{i}", n=10) for i in range(6)]
    for c in streams:
        list(c.events())
    wait("idle ones closed", lambda: r.metric("upstream_idle_connections") <= 2)


def test_connection_close_of_the_engine_is_honoured(world):
    r, (p,), (d,) = world.scripts(workers=1)
    for _ in range(2):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
        p.expect().prefilled()
        d.expect().reply(body={}, headers=[("Connection", "close")], keep=False)
        assert c.read().status == 200
    assert r.metric("upstream_reused_total") == 1, "the prefill engine's alone"


def test_unread_bytes_make_a_connection_unusable(world):
    """An engine that says more than its answer is out of step: that connection is not used again."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled()
    ex = d.expect()
    ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen").end()
    assert c.read().body == b"{}"
    c.request("POST", URL, {"model": MODEL, "prompt": "y"})
    p.expect().prefilled()
    d.expect().reply(body=b'{"mine":1}')
    assert c.read().body == b'{"mine":1}'


def test_interim_answers_of_an_engine_are_skipped(world):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled()
    d.expect().write(b"HTTP/1.1 100 Continue\r\n\r\n").reply(body=b"{}")
    assert c.read().body == b"{}"
