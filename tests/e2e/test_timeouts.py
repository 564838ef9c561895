"""Every stage's time limit, the whole request's, and the race rule: an answer that is there when the timer is wins."""
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from procs import MODEL, SLOW
from raw import text_of
from script import ScriptedEngine
from test_lmcache import desk_with

URL = "/v1/completions"
HEADER = "X-Request-Timeout-Ms"
DONE = b"data: [DONE]\n\n"


def ms(n):
    return f"{n * SLOW}ms"


def refused(a, code, status=504):
    assert (a.status, a.error["code"]) == (status, code), a.body


def ask(r, headers=(), **members):
    return r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "max_tokens": 4, **members}, headers)


# --- first_byte ---

FIRST = {"timeouts": {"first_byte": ms(300), "stream_idle": "20s", "whole_answer": "20s"}}


@pytest.mark.parametrize("begun", ["nothing", "head"])
def test_first_byte_is_of_the_answers_body(world, begun):
    """vLLM sends the head of a stream at once, whatever becomes of it."""
    r, (p,), (d,) = world.scripts(pool=FIRST)
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect()
    if begun == "head":
        ex.stream_head()
    refused(c.read(), "first_byte_timeout")
    assert ex.gone()


@pytest.mark.timing
def test_after_the_first_byte_it_is_the_streams_silence(world):
    r, (p,), (d,) = world.scripts(pool=FIRST)
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().event("a")
    time.sleep(0.6 * SLOW)
    ex.event("b").chunk(DONE).write(b"0\r\n\r\n").end()
    assert [e.data for e in c.events()][-1] == "[DONE]"


@pytest.mark.timing
def test_comments_are_bytes(world):
    """A stream that its engine keeps alive is not idle."""
    r, (p,), (d,) = world.scripts(pool={"timeouts": {"stream_idle": ms(300)}})
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().event("a")
    for _ in range(4):
        time.sleep(0.15 * SLOW)
        ex.chunk(b": ping\n\n")
    events = list(c.events())
    assert events[-1].json()["error"]["code"] == "stream_idle_timeout" and r.end()["total_ms"] > 750 * SLOW


@pytest.mark.timing
def test_an_answer_in_one_piece_has_its_own_time(world):
    """Its first byte comes when all is generated."""
    r, (p,), (d,) = world.scripts(pool=FIRST)
    c = ask(r)
    p.expect().prefilled()
    ex = d.expect()
    time.sleep(0.6 * SLOW)
    ex.reply(body={"ok": 1})
    assert c.read().json() == {"ok": 1}


# --- the whole request ---

WHOLE = {"timeouts": {"request": ms(400)}}


@pytest.mark.parametrize("at", ["prefill", "decode", "half an answer"])
def test_request_timeout_before_the_first_byte(world, at):
    r, (p,), (d,) = world.scripts(pool=WHOLE)
    c = ask(r)
    ex = p.expect()
    if at != "prefill":
        ex.prefilled()
        ex = d.expect()
    if at == "half an answer":
        ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    refused(c.read(), "request_timeout")
    assert r.end()["reason"] == "request_timeout" and r.end()["total_ms"] > 400 * SLOW - 1, "deadlines are whole milliseconds"
    if at == "decode":
        ex.reply(body={})  # it is let finish, which frees the prefill engine's blocks
    else:
        assert ex.gone()


@pytest.mark.parametrize("half", [False, True])
def test_request_timeout_in_the_stream(world, half):
    """However busy the stream is; half an event is not sent."""
    r, (p,), (d,) = world.scripts(pool=WHOLE)
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head()
    stop = threading.Event()

    def chatter():
        try:
            while not stop.wait(0.02):
                ex.event("a")
                if half:
                    ex.chunk(b"data: {")
                    stop.wait()
        except OSError:
            pass

    t = threading.Thread(target=chatter)
    t.start()
    try:
        events = list(c.events())
    finally:
        stop.set()
        t.join()
    assert events[-1].json()["error"]["code"] == "request_timeout"
    assert all(e.json()["choices"] for e in events[:-1]) and len(events) > 1
    assert ex.gone() and r.end()["reason"] == "request_timeout"


def test_a_request_that_nobody_can_serve_yet_is_bounded_too(world):
    """An engine that starts is waited for, but not longer than that."""
    slow = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{slow.getsockname()[1]}"
    r = world.router(world.pool([url], [url], **WHOLE), wait_for="live", health_timeout="20s", fall=100)
    refused(r.complete(), "request_timeout")
    slow.close()


@pytest.mark.timing
def test_time_is_the_routers_from_the_last_byte_on(world):
    """A client that sends slowly has limits of its own."""
    r, (p,), (d,) = world.scripts(pool=WHOLE)
    body = b'{"model": "%s", "prompt": "x"}' % MODEL.encode()
    c = r.client().send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (URL.encode(), len(body)))
    time.sleep(0.6 * SLOW)
    c.send(body)
    p.expect().prefilled()
    d.expect().reply(body={"ok": 1})
    assert c.read().status == 200


# --- the client's own bound ---

@pytest.mark.parametrize("allowed, pool_s, said, bounded", [
    (True, None, 400 * SLOW, True), (True, 20, 400 * SLOW, True), (True, 0.4 * SLOW, 20000, True),
    (False, None, 400 * SLOW, False), (False, None, "soon", False), (True, 20, 86400000, False)])
def test_header(world, allowed, pool_s, said, bounded):
    """The smaller one counts; where it is not allowed it says nothing.  Engines never see it."""
    keys = {"allow_timeout_header": allowed, **({"timeouts": {"request": f"{int(pool_s * 1000)}ms"}} if pool_s else {})}
    r, (p,), (d,) = world.scripts(pool=keys)
    c = ask(r, [(HEADER, said)])
    ex = p.expect()
    assert ex[HEADER] is None
    ex.prefilled()
    ex = d.expect()
    assert ex[HEADER] is None
    if bounded:
        refused(c.read(), "request_timeout")
        return
    time.sleep(0.6 * SLOW)
    ex.reply(body={"ok": 1})
    assert c.read().status == 200


@pytest.mark.parametrize("said", ["0", "", "-5", "1.5", "5s", "0x10", "86400001", "99999999999999999999999999", " ,5", "1 2"])
def test_wrong_header(world, said):
    r, (p,), _ = world.scripts(pool={"allow_timeout_header": True})
    for path in (URL, "/v1/embeddings"):
        a = r.post(path, {"model": MODEL, "prompt": "x", "input": "x"}, [(HEADER, said)])
        refused(a, "not_supported", 400)
        assert HEADER in a.error["message"]
    assert p.quiet(0.05)


# --- the race rule: worker and timer stand still while the answer comes ---

N = 48  # more than the loop takes from the kernel at once (libevent: 32): some are only seen by looking again
LIMIT_S = 2.0 if SLOW == 1 else 4.0


@contextmanager
def stopped(r):
    """The worker sleeps until all its timers are over."""
    pid, = r.children()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        time.sleep(LIMIT_S + 0.2)
    finally:
        os.kill(pid, signal.SIGCONT)


def racing(world, limit):
    return world.scripts(pool={"timeouts": {limit: f"{int(LIMIT_S * 1000)}ms"}}, workers=1, worker_watchdog="0s", fall=1000, health_interval="1h")


def all_win(r, clients):
    won = [[e.data for e in c.events()][-1:] == ["[DONE]"] if c.head().status == 200 else c.answer.status for c in clients]
    assert won == [True] * N
    assert {x["reason"] for x in r.ends()} <= {"ok"}


def test_prefill_that_answers_at_the_moment_of_its_timer_wins(world):
    r, (p,), (d,) = racing(world, "prefill")
    clients = [r.open_stream() for _ in range(N)]
    asked = [p.expect() for _ in range(N)]
    with stopped(r):
        for ex in asked:
            ex.prefilled()
    for _ in range(N):
        d.expect().stream("a")
    all_win(r, clients)


@pytest.mark.parametrize("stage", ["first_byte", "stream_idle", "request", "half a head"])
def test_decode_that_answers_at_the_moment_of_its_timer_wins(world, stage):
    limit = "first_byte" if stage == "half a head" else stage
    r, (p,), (d,) = racing(world, limit)
    clients = [r.open_stream() for _ in range(N)]
    for _ in range(N):
        p.expect().prefilled()
    asked = [d.expect() for _ in range(N)]
    if stage == "stream_idle":
        for ex in asked:
            ex.stream_head().event("a")
        for c in clients:
            c.head()
    elif stage == "half a head":
        for ex in asked:
            ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    with stopped(r):
        for ex in asked:
            if stage == "half a head":
                ex.write(b"Transfer-Encoding: chunked\r\n\r\n")
            elif stage != "stream_idle":
                ex.stream_head()
            ex.event("b").chunk(DONE).write(b"0\r\n\r\n").end()
    if stage == "stream_idle":
        won = [[e.data for e in c.events()][-1:] for c in clients]
        assert won == [["[DONE]"]] * N
    else:
        all_win(r, clients)


@pytest.mark.parametrize("rest", ["all", "half a head", "half a body"])
def test_a_client_that_speaks_at_the_moment_of_its_timer_is_served(world, rest):
    """A connection that has been idle for as long as it may, a head and a body that are completed."""
    limit = {"all": "idle_timeout", "half a head": "head_timeout", "half a body": "body_timeout"}[rest]
    r, p, d = world.pd(workers=1, worker_watchdog="0s", client={limit: f"{int(LIMIT_S * 1000)}ms"})
    body = b'{"model": "%s", "prompt": "x", "max_tokens": 1}' % MODEL.encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (URL.encode(), len(body))
    at = {"all": 0, "half a head": 20, "half a body": len(head) + 20}[rest]
    clients = [r.client() for _ in range(N)]
    for c in clients:
        assert c.get("/live").status == 200
        c.send((head + body)[:at])
        time.sleep(0.005)  # one by one: after a burst the loop takes more of them at once
    time.sleep(0.1)
    with stopped(r):
        for c in clients:
            c.send((head + body)[at:])
    assert [c.read().status for c in clients] == [200] * N


class Late(ScriptedEngine):
    """In another's place: connections are not even made until open()."""

    def __init__(self, address):
        self.full = []
        super().__init__(models=(MODEL,), host=address[0], port=address[1])

    def _accept(self):
        self.listener.listen(0)
        for _ in range(4):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(self.address)
            self.full.append(s)
        self.may = threading.Event()
        self.may.wait()
        self.listener.listen(2 * N)
        super()._accept()

    def open(self):
        self.may.set()


def test_connect_that_is_done_at_the_moment_of_its_timer_wins(world):
    """The kernel asks again a second after its first attempt was passed over."""
    r, (p,), (d,) = racing(world, "connect")
    p.close()
    late = Late(p.address)
    world.scripted.append(late)
    time.sleep(0.1)
    clients = [r.open_stream() for _ in range(N)]
    time.sleep(0.3)
    with stopped(r):
        late.open()
        time.sleep(1)
        assert late.asked.empty()
    for _ in range(N):
        late.expect().prefilled()
    for _ in range(N):
        d.expect().stream("a")
    all_win(r, clients)
    for s in late.full:
        s.close()


def test_notices_that_are_there_at_the_moment_of_their_timer_are_not_late():
    """The notifier goes on while the worker sleeps."""
    n = 16
    with desk_with(pool={"kv_ready_timeout": f"{int(LIMIT_S * 1000)}ms"}, workers=1, worker_watchdog="0s") as k:
        clients = [k.ask(True) for _ in range(n)]
        asked = [k.p.expect() for _ in range(n)]
        for ex in asked:
            ex.prefilled('{"first_tok":7}')
        for c in clients:
            c.head()
        with stopped(k.router):
            for ex in asked:
                k.arrived(ex)
        for _ in range(n):
            k.d.expect().stream("b")
        assert [text_of(c.events()) for c in clients] == ["ab"] * n
        assert k.router.metric("kv_ready_timeouts_total") == 0
