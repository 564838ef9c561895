"""Relaying: an event at a time, back-pressure, and the client side of HTTP/1.1."""
import json
import socket
import statistics
import time

import pytest

import expect
from procs import MODEL, SLOW, VARIANT, wait
from raw import Closed, text_of

BODY = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 3}).encode()


@pytest.mark.timing
def test_an_event_reaches_the_client_alone_and_at_once(world):
    """The engine writes one event, then nothing: the client has it within 50 ms, and has only it."""
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head()
    events, delays = c.events(), []
    for i in range(5):
        sent = time.monotonic()
        ex.event(f"word {i}")
        e = next(events)
        delays.append(e.at - sent)
        assert e.json()["choices"][0]["text"] == f"word {i}"
        assert c.silent(0.2), "nothing else may come"
    assert statistics.median(delays) < 0.05 * SLOW and c.silent(0.6)
    ex.write(b"0\r\n\r\n").end()
    assert list(events) == []


def test_bytes_pass_unchanged(world):
    """Comments, CRLF events, several data lines, odd chunk borders: the body is the engine's own."""
    r, (p,), (d,) = world.scripts()
    parts = [b": ping\n\ndata: {\"a\":", b"1}\n\nda", b"ta: x\r\ndata: y\r\n\r\n", b"event: z\nid: 4\nretry: 10\n\n",
             "data: \u65e5\u672c\n\n".encode()[:8], "data: \u65e5\u672c\n\n".encode()[8:], b"data: [DONE]\n\n"]
    with r.client() as c:
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "stream": True})
        p.expect().prefilled()
        ex = d.expect().stream_head()
        for part in parts:
            ex.chunk(part)
        ex.write(b"0\r\n\r\n").end()
        assert c.read().body == b"".join(parts)


def test_half_an_event_waits_for_its_end(world):
    """No client can use it, and the error event of a stream that is cut must not become part of it."""
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().chunk(b"data: a\n\n")
    assert c.head().status == 200 and next(c.chunks())[1] == b"data: a\n\n"
    ex.chunk(b"data: ha")
    assert c.silent(0.1)
    ex.chunk(b"lf\n\nda")
    assert next(c.chunks())[1] == b"data: half\n\n"
    ex.chunk(b"ta: b\n\n").write(b"0\r\n\r\n").end()
    assert b"".join(x for _, x in c.chunks()) == b"data: b\n\n"


def test_an_event_larger_than_any_buffer_passes(world):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().chunk(b"data: " + b"x" * 300000)
    c.head()
    ex.chunk(b"\n\n").write(b"0\r\n\r\n").end()
    assert b"".join(x for _, x in c.chunks()) == b"data: " + b"x" * 300000 + b"\n\n"


def test_answer_with_a_length_keeps_it(world):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", "/v1/completions", BODY)
    p.expect().prefilled()
    d.expect().reply(body=b'{"x":1}')
    a = c.read()
    assert a.body == b'{"x":1}' and a["content-length"] == "7"


def test_answer_that_ends_with_the_connection(world):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", "/v1/completions", BODY)
    p.expect().prefilled()
    ex = d.expect().write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    ex.write(b"data: a\n\n").write(b"data: [DONE]\n\n").close()
    assert [e.data for e in c.events()] == ["a", "[DONE]"]
    assert r.end()["reason"] == "ok"


BIG = {"pdsim": {"event_bytes": 60000}}  # the simulator pads its events


def flat(r, before_kib):
    """ASan keeps what is freed for a while, so memory is looked at in the release build."""
    return VARIANT != "release" or r.rss_kib() - before_kib < 2048


def still(engine):
    """Waits until the engine has stopped writing because nobody reads; the events it has written."""
    seen = []

    def stands():
        seen.append(engine.counter("events"))
        time.sleep(0.05)
        return len(seen) > 6 and len(set(seen[-6:])) == 1 and engine.metric("pdsim:paused_streams") == 1
    wait("the engine to stand still", stands)
    return seen[-1]


def test_slow_client_stops_the_engine(world):
    """A client that does not read stops the engine's socket; the router's memory stays flat."""
    r, (p,), (d,) = world.pd(engine={"sndbuf": 65536}, workers=1)
    before = r.rss_kib()
    c = r.open_stream(n=1000, rcvbuf=16384, **BIG)
    assert c.head().status == 200
    events = still(d)
    assert events < 500 and flat(r, before)
    assert sum(data.count(b"data: ") for _, data in c.chunks()) == 1001, "all arrives once the client reads again"
    assert flat(r, before)


def test_other_streams_are_not_held_by_a_slow_one(world):
    r, (p,), (d,) = world.pd(workers=1)
    slow = r.open_stream(n=1000, rcvbuf=16384, **BIG)
    slow.head()
    still(d)
    assert text_of(list(r.open_stream("b", n=50).events())) == expect.text("b", 50)
    slow.reset()
    assert r.end(2)["reason"] == "client_gone"


# --- connections ---

def test_keep_alive_serves_many_requests(shared, router):
    with router.client() as c:
        for i in range(20):
            if i % 3:
                assert c.post("/v1/completions", BODY).status == 200
            else:
                c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 2, "stream": True})
                assert len(list(c.events())) == 3
            assert c.get("/live").status == 200


def test_pipelined_requests_are_answered_in_order(shared, router):
    with router.client() as c:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        many = b""
        for i in range(5):
            body = json.dumps({"model": MODEL, "prompt": f"p{i}", "max_tokens": 3}).encode()
            many += head % len(body) + body
        c.send(many + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        for i in range(5):
            assert c.read().json()["choices"][0]["text"] == expect.text(f"p{i}", 3)
        assert "version" in c.read().json()


@pytest.mark.parametrize("step", [1, 7, 64])
def test_request_in_small_pieces(shared, router, step):
    with router.client() as c:
        raw = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
        for i in range(0, len(raw), step):
            c.send(raw[i:i + step])
        assert c.read().json()["choices"][0]["text"] == expect.text("hi", 3)


def test_chunked_request_body(shared, router):
    with router.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(BODY), 10):
            part = BODY[i:i + 10]
            c.send(b"%X;ext=1\r\n%s\r\n" % (len(part), part))
        c.send(b"0\r\nX-Trailer: 1\r\n\r\n")
        assert c.read().status == 200
        assert shared.d.last().json()["prompt"] == "hi" and not shared.d.last().all("transfer-encoding")
        assert not shared.d.last().all("x-trailer")
        assert c.get("/live").status == 200


def test_expect_100_continue(shared, router):
    with router.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert c.head().status == 100
        c.send(BODY)
        assert c.read().status == 200
        assert not shared.p.last().all("expect") and not shared.d.last().all("expect")


def test_http_1_0_client(shared, router):
    with router.client() as c:
        a = c.request("POST", "/v1/completions", BODY, version="1.0").read()
        assert a.status == 200 and not a["transfer-encoding"] and c.closed()
        assert a.json()["choices"][0]["text"] == expect.text("hi", 3)


def test_http_1_0_client_streams_to_the_end_of_the_connection(shared, router):
    with router.client() as c:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 3, "stream": True}
        c.request("POST", "/v1/completions", body, version="1.0")
        events = list(c.events())
        assert text_of(events) == expect.text("hi", 3) and not c.answer["transfer-encoding"]


def test_connection_close_is_honoured(shared, router):
    with router.client() as c:
        a = c.post("/v1/completions", BODY, [("Connection", "close")])
        assert a.status == 200 and (a["connection"] or "").lower() == "close" and c.closed()


@pytest.mark.parametrize("path", ["/live", "/v1/models", "/metrics", "/health"])
def test_head_has_no_body(shared, router, path):
    with router.client() as c:
        a = c.request("HEAD", path).read(head_only=True)
        assert a.status == 200 and c.silent(0.1)
        assert c.get("/live").status == 200, "the connection is still in step"


def test_half_closed_client_gets_its_answer(shared, router):
    """shutdown(SHUT_WR) after the request: what curl and some proxies do."""
    with router.client() as c:
        c.request("POST", "/v1/completions", BODY, [("Connection", "close")])
        c.sock.shutdown(socket.SHUT_WR)
        try:
            a = c.read()
        except Closed:
            return  # taken for a client that has gone: allowed, but nothing may be left behind
        assert a.status == 200


def test_idle_connection_is_closed(world):
    r, _, _ = world.pd(client={"idle_timeout": "300ms"})
    c = r.client()
    assert c.get("/live").status == 200
    assert c.closed(3)


def test_blank_lines_before_a_request(shared, router):
    with router.client() as c:
        c.send(b"\r\n\r\n")
        assert c.get("/live").status == 200
