"""Clients and engines that mean harm or are broken: the router's memory, CPU and other requests are safe."""
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import expect
from certs import Cert, TlsClient
from procs import MODEL, SLOW, VARIANT, free_port, wait
from raw import Client, Closed, text_of

URL = "/v1/completions"
OK = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2}).encode()


def cpu(r):
    """Seconds of CPU its workers have used."""
    ticks = 0
    for pid in r.children():
        fields = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def idle(r, seconds=0.6):
    """True if the workers do next to nothing for a while: a loop that spins uses it all."""
    before = cpu(r)
    time.sleep(seconds)  # CPU is measured over it
    return cpu(r) - before < 0.3 * seconds


@pytest.mark.parametrize("length", ["9000000000000000000", "9223372036854775807", "9223372036854775808", "67108865"])
def test_lengths_beyond_all_limits(world, length):
    r, _, _ = world.pd()
    with r.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + length.encode() + b"\r\n\r\n{")
        a = c.read()
    assert a.status in (400, 413) and r.complete().status == 200


@pytest.mark.parametrize("line", [b"GET /live", b"GET /live ", b"hello", b"GET  /live HTTQ/1.1", b"\x16\x03\x01"])
def test_a_line_that_is_no_request_line_is_refused_at_once(world, line):
    """Not when the time for a head is over."""
    r, _, _ = world.pd()
    with r.client() as c:
        c.send(line + b"\r\n")
        assert c.read().status == 400 and c.closed()


def test_a_head_may_come_slowly(world):
    r, _, _ = world.pd()
    with r.client() as c:
        for byte in b"\r\nGET /live HTTP/1.1\r\nHost: a\r\n\r\n":
            c.send(bytes([byte]))
        assert c.read().status == 200


@pytest.mark.parametrize("size", [b"7fffffffffffffff", b"ffffffffffffffff", b"4000001"])
def test_chunks_beyond_all_limits(world, size):
    """Refused as announced or when they come; nothing is set aside for them before."""
    r, _, _ = world.pd(workers=1)
    before = r.rss_kib()
    with r.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n{")
        if not c.silent(0.3):
            assert c.read().error["code"] == "body_too_large"
        assert r.complete().status == 200 and r.rss_kib() - before < 4096 * SLOW


def test_engine_lengths_beyond_all_limits(world):
    r, (p,), (d,) = world.scripts()
    for length in (b"9223372036854775807", b"99999999999999999999"):
        c = r.client().request("POST", URL, OK)
        p.expect().write(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n{").close()
        assert c.read().error["code"] in ("prefill_bad_answer", "prefill_broken")


def test_client_that_pipelines_and_never_reads(world):
    """What it sends is not read any further: nothing grows without bound."""
    r, _, _ = world.pd(workers=1)
    before = r.rss_kib()
    c = r.client(rcvbuf=4096)
    c.sock.settimeout(1)
    sent = 0
    try:
        for _ in range(400):
            c.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
            sent += 1000
    except OSError:
        pass
    assert sent < 400000, "it was never stopped"
    assert VARIANT != "release" or r.rss_kib() - before < 4096
    assert r.complete().status == 200 and idle(r)
    c.reset()


@pytest.mark.parametrize("how", ["close", "reset"])
def test_slow_client_leaves_while_the_engine_is_held(world, how):
    """Reading from the engine has stopped; the leaving must be seen all the same, and nothing spins."""
    r, (p,), (d,) = world.pd(workers=1)
    c = r.open_stream(n=1000, rcvbuf=16384, pdsim={"event_bytes": 60000})
    c.head()
    wait("the engine to stand still", lambda: d.metric("pdsim:paused_streams") == 1)
    getattr(c, how)()
    assert r.end()["reason"] == "client_gone" and idle(r)


def test_engine_resets_while_it_is_held(world):
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.open_stream(rcvbuf=16384)
    p.expect().prefilled()
    ex = d.expect().stream_head()
    ex.conn.sock.settimeout(0.5)
    try:
        for _ in range(200):
            ex.chunk(b"data: " + b"x" * 60000 + b"\n\n")
    except OSError:
        pass  # held
    ex.reset()
    assert idle(r), "a reset while reading is stopped"
    try:
        body = b"".join(x for _, x in c.chunks()) if c.head() else b""
        assert b"decode_broken" in body[-300:]
    except Closed:
        pass  # a cut between chunks is honest too


def test_client_that_sends_a_byte_at_a_time_holds_nobody(world):
    r, _, _ = world.pd(workers=1, client={"head_timeout": "1s"})
    slow = [r.client().send(b"POST /v1/comp") for _ in range(50)]
    for _ in range(5):
        assert r.complete().status == 200
    for c in slow:
        assert c.read().status == 408


def test_many_connections_at_once(world):
    r, _, _ = world.pd(client={"max_silent_connections": 0})  # the last one may be a second later than the first
    clients = [r.client() for _ in range(500)]
    for i, c in enumerate(clients):
        c.request("POST", URL, {"model": MODEL, "prompt": f"p{i}", "max_tokens": 2})
    for i, c in enumerate(clients):
        assert c.read().json()["choices"][0]["text"] == expect.text(f"p{i}", 2)


def test_bytes_on_an_idle_engine_connection_answer_nobody(world):
    """Said before it was asked: the next client must not get it."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled()
    d.expect().reply(body=b'{"n":1}')
    assert c.read().body == b'{"n":1}'
    for conn in [c for c in d.conns if c.sock.fileno() != -1]:  # those of probes may have ended
        conn.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen")
    c.request("POST", URL, OK)
    p.expect().prefilled()
    d.expect().reply(body=b'{"n":2}')
    assert c.read().body == b'{"n":2}'


def test_answers_without_a_body(world):
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.client()
    for status in (204, 304):
        c.request("POST", URL, OK)
        p.expect().prefilled()
        d.expect().write(b"HTTP/1.1 %d Nothing\r\n\r\n" % status).end()
        a = c.read()
        assert a.status == status and a.body == b"" and c.silent(0.1)
    assert c.get("/live").status == 200


def test_an_answer_before_the_end_of_a_large_body(world):
    """The engine refuses before it has read all of it: its 413 is the answer, not a 502."""
    r, (p,), (d,) = world.scripts()
    p.deaf = True  # reads heads alone
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * 20_000_000})
    p.expect().reply(413, b'{"error":{"message":"too much"}}', keep=False)
    a = c.read()
    assert a.status == 413 and a.json()["error"]["message"] == "too much"


def test_stream_without_its_media_type_is_not_held_back(world):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").chunk(b"data: a\n\n")
    assert c.head().status == 200 and next(c.chunks())[1] == b"data: a\n\n"
    ex.write(b"0\r\n\r\n").end()


def test_stream_cut_behind_its_done_is_whole(world):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    d.expect().stream_head().event("a").chunk(b"data: [DONE]\n\n").close()
    try:
        events = list(c.events())
        assert [e.data for e in events][-1] == "[DONE]" and text_of(events) == "a"
    except Closed as e:
        assert b"error" not in e.got
    assert b"error" not in c.answer.body


def test_engine_heads_that_are_no_heads(world):
    """Never relayed, and the connection is never used again."""
    r, (p,), (d,) = world.scripts()
    long = b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300000 + b"\r\nContent-Length: 0\r\n\r\n"
    for bad in (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
                b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 99 Low\r\n\r\n", long):
        c = r.client().request("POST", URL, OK)
        p.expect().prefilled()
        ex = d.expect()
        try:
            ex.write(bad).close()
        except OSError:
            ex.close()
        assert c.read().error["code"] == "decode_broken", bad[:40]


def asked(engines):
    """The request of the one that has one."""
    return wait("a request", lambda: next((e for e in engines if not e.asked.empty()), None)).expect()


def test_a_refusal_of_a_length_that_nobody_can_hold(world):
    """The router reads it, to pass it on if the other engine refuses as well."""
    r, (p,), d = world.scripts(nd=2, workers=1, pool={"policy": "round_robin", "retries": 2})
    pids = r.children()
    for _ in range(2):  # an engine that has accepted no request is not doubted
        c = r.open_stream("x")
        p.expect().prefilled()
        asked(d).stream("a")
        assert text_of(c.events()) == "a"
    c = r.open_stream("x")
    p.expect().prefilled()
    asked(d).write(b"HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: 1000000000000000\r\n\r\n{")
    p.expect().prefilled()
    asked(d).stream("b")
    assert text_of(c.events()) == "b" and r.children() == pids


def test_error_texts_carry_no_engine_address(world):
    """Clients learn nothing of what stands behind: log and metrics have it."""
    r, (p,), (d,) = world.scripts(fall=1000, health_interval="1h")
    d.close()
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled()
    a = c.read()
    assert a.status == 502 and str(d.port).encode() not in a.raw + a.body and b"127.0.0.1" not in a.raw + a.body
    assert SLOW and d.url in json.dumps(r.end())


def test_client_resets_with_a_huge_next_request_half_read(world):
    """Reading had stopped at what is buffered of the next request: the reset must still be seen, once."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.client().request("POST", URL, OK)
    ex = p.expect()
    c.send(b"GET /live HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70000)
    c.silent(0.2)
    c.reset()
    assert idle(r)
    assert ex.gone()
    ex.close()
    assert r.end()["reason"] == "client_gone" and d.quiet(0.1)


def test_prefill_answer_without_a_body(world):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, OK)
    p.expect().write(b"HTTP/1.1 204 No Content\r\n\r\n").end()
    a = c.read()
    assert (a.status, a.body) == (204, b"") or a.status == 502
    assert d.quiet(0.1)


def test_prefill_answer_up_to_the_close(world):
    """HTTP/1.0 manners: no length, the end is the end."""
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, OK)
    p.expect().write(b'HTTP/1.0 200 OK\r\n\r\n{"kv_transfer_params":{"a":1}}').close()
    ex = d.expect()
    assert ex.json()["kv_transfer_params"] == {"a": 1}
    ex.write(b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"text":1}').close()
    a = c.read()
    assert a.status == 200 and a.body == b'{"text":1}' and r.end()["reason"] == "ok"


def test_answers_nobody_has_read_yet_survive_the_drain(world):
    """Queued for a client that reads slowly, on a connection that is kept: SIGTERM does not cut them."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.client(rcvbuf=2048)
    for _ in range(20):
        c.request("POST", URL, OK)
        p.expect().prefilled()
        d.expect().reply(body=b'{"t":"' + b"x" * 60000 + b'"}')
    r.kill(signal.SIGTERM)
    r.wait_log("stopping")
    for _ in range(20):
        assert len(c.read().body) == 60008


def test_unasked_answer_and_the_next_request_in_one_turn(world):
    """The worker sees both at once: what the engine said before it was asked is not the answer."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled()
    d.expect().reply(body=b'{"n":1}')
    assert c.read().body == b'{"n":1}'
    (worker,) = r.children()
    r.murder(worker, signal.SIGSTOP)
    c.request("POST", URL, OK)
    for conn in list(p.conns):
        conn.sock.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\nPOISON")
    os.kill(worker, signal.SIGCONT)
    p.expect().prefilled()
    d.expect().reply(body=b'{"n":2}')
    assert c.read().body == b'{"n":2}'


def test_blank_line_cut_in_two_between_requests(world):
    r, _, _ = world.pd(workers=1)
    c = r.client().send(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n\r")
    assert c.read().status == 200
    c.send(b"\nGET /live HTTP/1.1\r\nHost: a\r\n\r\n")
    assert c.read().status == 200


def test_a_refusal_before_the_end_of_the_body_and_close(world):
    """400 and a close while the body is still on its way: the refusal arrives, or an honest 502."""
    r, (p,), (d,) = world.scripts()
    p.deaf = True
    for _ in range(3):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * 20_000_000})
        p.expect().reply(400, b"bad", keep=False)
        a = c.read()
        assert (a.status, a.body) == (400, b"bad") or a.error["code"] == "prefill_broken"


def test_drain_ends_a_stream_that_nobody_reads(world):
    r, _, _ = world.pd(drain_timeout="500ms")
    c = r.open_stream(n=1000, rcvbuf=16384, pdsim={"event_bytes": 60000})
    c.head()
    r.kill(signal.SIGTERM)
    assert r.p.wait(5 * SLOW) == 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_refusal_whose_body_comes_with_the_reset(world, role):
    """The head of a 413 before the end of the body is read; its body and the reset of our unread request come together."""
    r, (p,), (d,) = world.scripts(workers=1)
    e = p if role == "prefill" else d
    e.deaf = True
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * (12 << 20)})
    if role == "decode":
        p.expect(timeout=20).prefilled()
    ex = e.expect(timeout=20)
    ex.write(b"HTTP/1.1 413 No\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n")
    (worker,) = r.children()
    time.sleep(0.2)  # for the head to be read
    os.kill(worker, signal.SIGSTOP)
    ex.write(b"{}")
    ex.close()
    time.sleep(0.1)  # for both to be there
    os.kill(worker, signal.SIGCONT)
    a = c.read()
    assert (a.status, a.body) == (413, b"{}")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_refusal_without_a_length_that_ends_with_the_reset(world, role):
    """The end of the connection would be the end of the 413; the unread request makes it a reset."""
    r, (p,), (d,) = world.scripts(workers=1)
    e = p if role == "prefill" else d
    e.deaf = True
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * (12 << 20)})
    if role == "decode":
        p.expect(timeout=20).prefilled()
    e.expect(timeout=20).write(b"HTTP/1.1 413 No\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}").close()
    a = c.read()
    assert (a.status, a.body) == (413, b"{}") and r.metric("endpoint_failures_total", engine=e.url, cause="reset") == 0


def drain(c):
    """Reads what comes until nothing does any more."""
    try:
        while c.sock.recv(1 << 16):
            pass
    except OSError:
        pass
    c.close()


@pytest.mark.parametrize("what", ["rewritten", "tried first", "names the room"])
def test_event_of_a_million_lines(world, what):
    """What has come of an event is not searched again with each piece that comes."""
    pool = {"rewritten": {"connector": "p2p_nccl"},
            "tried first": {"connector": "shared_storage", "cache_hit_threshold": 0.5},
            "names the room": {"connector": "sglang", "bootstrap": "stream"}}[what]
    p, d = world.script(), world.script()
    more = {"p2p_nccl": {"kv_addr": ":1"}}.get(pool["connector"], {})
    r = world.router(world.pool([{"url": p.url, **more}], [{"url": d.url, **more}], **pool), workers=1)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "hi", "stream": True})
    ex = (d if what == "tried first" else p).expect()
    if what == "rewritten":
        ex.prefilled()
        ex = d.expect()
    before = cpu(r)
    threading.Thread(target=drain, args=(c,)).start()
    ex.stream_head()
    for _ in range(768):
        ex.chunk(b":\n" * 8192)
    ex.chunk(b"\n")
    wait("the end of it", lambda: idle(r), timeout=60)
    used = cpu(r) - before
    ex.reset()
    assert used < 2 * SLOW, used  # else 5 s and more


SILENT = 2.2  # s after which a connection without a head counts


def gone(c):
    """Closed or reset by the router before it has read anything."""
    try:
        return c.sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_an_address_has_few_connections_without_a_head(world):
    """A piece of a head is none; a head, and a close, make room for another connection."""
    r, _, _ = world.pd(workers=1, client={"max_silent_connections": 3})
    held = [r.client() for _ in range(3)]
    held[0].send(b"GET /live HTTP/1.1\r\nHost: x\r\n")
    time.sleep(SILENT)
    with r.client() as late:
        assert gone(late)
    with Client(r.address, source="127.0.0.9") as other:
        assert other.get("/live").status == 200
        assert other.get("/metrics").body.count(b"pdrouter_silent_connections_closed_total 1\n") == 1
    held[0].send(b"\r\n")
    assert held[0].read().status == 200
    held.append(r.client())
    time.sleep(SILENT)
    with r.client() as late:
        assert gone(late), "the kept connection does not count, the new one does"
    with r.client() as crowd:
        assert crowd.get("/live").status == 200, "whose head comes within the second does not count"
    for c in held:
        c.close()


def test_handshakes_count_and_proxies_do_not(world):
    cert, port = Cert(world.dir, "localhost"), free_port()
    r, _, _ = world.pd(workers=1, client={"max_silent_connections": 2, "proxy_networks": ["127.0.0.5/32"]},
                       tls={"certificates": [cert.row()], "listen": [f"127.0.0.1:{port}"]})
    held = [Client(("127.0.0.1", port)) for _ in range(2)]
    time.sleep(SILENT)
    for address in ("127.0.0.1", port), r.address:
        with Client(address) as late:
            assert gone(late)
    held += [Client(r.address, source="127.0.0.5") for _ in range(5)]
    with TlsClient(("127.0.0.1", port), cert.trusting(), source="127.0.0.9") as other:
        assert other.get("/live").status == 200
    assert held[-1].get("/live").status == 200
    for c in held:
        c.close()
