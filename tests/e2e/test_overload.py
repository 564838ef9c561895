"""More than there is room for: descriptors, memory, connections, and clients that take their time.  New work waits
or is refused, what is under way goes on, and all is well again as soon as there is room."""
import errno
import itertools
import json
import os
import re
import resource
import selectors
import signal
import socket
import time
from pathlib import Path

import pytest

import procs
from procs import MODEL, SLOW, VARIANT, wait

OVERLOADED = (503, "overloaded", True)
MIB = 1 << 20


def told(a):
    return a.status, a.error["code"], 1 <= int(a["retry-after"]) <= 60


def worker_of(r):
    return wait("its worker", lambda: [p for p in r.children() if p > 0])[0]


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def limit_files(pid, n):
    """Of a running process; the worker looks at it every tick."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (n, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
    time.sleep(0.25)  # two ticks


def leave_no_descriptor(pid):
    """The kernel hands out the lowest free number below the limit; gaps may be anywhere among those in use."""
    used = {int(n) for n in os.listdir(f"/proc/{pid}/fd")}
    limit_files(pid, next(n for n in itertools.count() if n not in used))


def ask(c, **members):
    return c.post("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 1, **members})


def gauge(c, name):
    found = re.search(rf"^pdrouter_{name} (\S+)$", c.get("/metrics").body.decode(), re.M)
    return float(found[1])


# --- descriptors --------------------------------------------------------------------------------------------


def test_accepting_stops_before_the_descriptors_end(world):
    """What is left is for engines: clients beyond that wait in the queue, those that are in are served."""
    r, _, (d,) = world.pd(workers=1, upstream={"max_idle": 0})
    pid = worker_of(r)
    inside = r.client()
    assert ask(inside).status == 200
    limit_files(pid, open_files(pid) + 40)
    d.pause()
    stream = r.open_stream(n=8)
    d.wait_metric("pdsim:running_requests", 1)
    crowd = [r.client() for _ in range(60)]
    wait("accepting to stop", lambda: gauge(inside, "accept_pauses_total") >= 1)
    assert 10 <= gauge(inside, "client_connections") < 40
    late = r.client()
    late.request("GET", "/live")
    assert late.silent(0.5), "it waits"
    assert open_files(pid) < resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    d.go_on()
    for _ in range(5):
        assert ask(inside).status == 200, "there are descriptors for engines"
    assert [e.data for e in stream.events()][-1] == "[DONE]"
    for c in crowd:
        c.close()
    assert late.read().status == 200
    assert len(re.findall("accept paused", r.log())) <= 2


def test_no_descriptor_for_an_engine(world):
    """503, of which the engine is not at fault; a stream goes on; with descriptors all is well at once."""
    r, _, (d,) = world.pd(workers=1, upstream={"max_idle": 0}, pool={"retries": 2, "eject_failures": 1, "eject_rate": 1})
    pid = worker_of(r)
    inside, other = r.client(), r.client()
    assert ask(inside).status == 200 and ask(other).status == 200
    d.pause()
    stream = r.open_stream(n=8)
    d.wait_metric("pdsim:running_requests", 1)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    leave_no_descriptor(pid)
    for _ in range(5):
        assert told(ask(inside)) == OVERLOADED
        assert told(ask(other)) == OVERLOADED
    late = r.client()
    late.request("GET", "/live")
    assert late.silent(0.3)
    d.step(3)
    events = stream.events()
    assert [next(events).json()["choices"][0]["text"] for _ in range(3)]
    page = inside.get("/metrics").body.decode()
    assert not re.search(r"^pdrouter_(endpoint_ejected|ejections_total|attempts_failed_total)\{?.*\}? [^0]", page, re.M), page
    limit_files(pid, before)
    assert late.read().status == 200
    d.go_on()
    assert ask(inside).status == 200
    assert [e.data for e in events][-1] == "[DONE]"
    assert r.metric("requests_total", reason="overloaded") == 10


def test_a_tick_visits_all_though_one_request_ends_others(world):
    """The first one's lookup is answered when its time is over: within its visit the other that waits for the answer goes on, and
    finds no descriptor.  The last one's time is over too, and its error is out before the worker does anything else."""
    p, d, silent = world.script(), world.script(models=[MODEL, "silent"]), world.script(models=["silent"])
    pools = [world.pool([{"url": p.url, "bootstrap_port": p.port}], [d], "mooncake", learn_timeout="1s"),
             {**world.pool([silent], [d], timeouts={"prefill": "1s"}), "name": "silent", "models": ["silent"]}]
    r = world.router(*pools, workers=1, upstream={"max_idle": 0})
    pid, inside, body = worker_of(r), r.client(), b'{"0":{"engine_id":"e"}}' + b" " * 60000
    waiting = [r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "hi"}) for _ in range(2)]
    lookup = p.expect("GET /query")
    last = r.client().request("POST", "/v1/completions", {"model": "silent", "prompt": "hi"})
    ex = silent.expect()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    assert inside.get("/live").status == 200
    leave_no_descriptor(pid)
    os.kill(pid, signal.SIGSTOP)
    lookup.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Pad: %s\r\n\r\n" % (len(body), b"x" * 30000) + body).end()
    time.sleep(1.2)  # the time of all is over; the answer is more than one read takes
    os.kill(pid, signal.SIGCONT)
    assert [told(c.read()) for c in waiting] == [OVERLOADED] * 2
    assert inside.get("/live").status == 200
    assert not last.silent(0.001), "in the same tick"
    assert last.read().error["code"] == "prefill_timeout"
    limit_files(pid, before)
    assert ex.gone()
    ex.close()


def test_an_idle_connection_makes_room_for_a_needed_one(world):
    """To another engine: its descriptor is worth more elsewhere."""
    r, p, d = world.pd(2, 2, workers=1, upstream={"idle_timeout": "60s"}, pool={"policy": "round_robin"})
    r.wait_all_up()
    pid = worker_of(r)
    inside = r.client()
    assert ask(inside).status == 200
    assert [len(e.requests()) for e in p] in ([1, 0], [0, 1])
    leave_no_descriptor(pid)
    for _ in range(6):
        assert ask(inside).status == 200
    assert [len(e.requests()) > 1 for e in p + d] == [True] * 4


def test_a_limit_from_the_start(world, monkeypatch):
    """`ulimit -n 160`, as an operator may have it: max_connections is lowered, and that is told."""
    engines = world.engine("prefill"), world.engine("decode")
    before = procs.die_with_us

    def limited():  # in the child alone: this process may have more open than that
        before()
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    monkeypatch.setattr(procs, "die_with_us", limited)
    r = world.router(world.pool([engines[0]], [engines[1]]), wait_for=None, workers=1, client={"max_silent_connections": 0})
    r.wait_for("ready")
    inside = r.client()
    crowd = [r.client() for _ in range(300)]
    for _ in range(10):
        assert ask(inside).status == 200
    for c in crowd:
        c.close()
    wait("all of it", lambda: r.get("/live").status == 200)


# --- connections --------------------------------------------------------------------------------------------


def test_more_clients_than_max_connections_wait(world):
    r, _, (d,) = world.pd(workers=1, limits={"max_connections": 8})
    inside = r.client()
    assert ask(inside).status == 200
    d.pause()
    stream = r.open_stream(n=8)
    d.wait_metric("pdsim:running_requests", 1)
    crowd = [r.client() for _ in range(6)]
    wait("it is full", lambda: gauge(inside, "client_connections") == 8)
    late = r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 1})
    assert late.silent(0.5), "connected by the kernel, not accepted"
    assert gauge(inside, "accept_pauses_total") == 1
    d.go_on()
    assert ask(inside).status == 200
    assert [e.data for e in stream.events()][-1] == "[DONE]"
    crowd[0].close()
    assert late.read().status == 200
    for c in crowd:
        c.close()


# --- memory -------------------------------------------------------------------------------------------------


class Sender:
    """Sends what it is given as fast as it is taken, and reads what comes meanwhile."""

    def __init__(self, address, pieces):
        self.pieces, self.got, self.sent = [memoryview(p) for p in pieces], b"", 0
        self.gone = False
        self.sock = socket.create_connection(address)
        self.sock.setblocking(False)

    def turn(self):
        try:
            data = self.sock.recv(65536)
            self.got += data
            self.gone |= not data
        except BlockingIOError:
            pass
        except OSError:
            self.gone = True
        try:
            if self.pieces and not self.gone and not self.got:
                n = self.sock.send(self.pieces[0][:256 << 10])
                self.sent += n
                self.pieces[0] = self.pieces[0][n:]
                if not self.pieces[0]:
                    self.pieces.pop(0)
        except BlockingIOError:
            pass
        except OSError as e:
            assert e.errno in (errno.EPIPE, errno.ECONNRESET), e
            self.gone = True

    @property
    def status(self):
        return int(self.got.split(b" ", 2)[1]) if self.got else None

    @property
    def settled(self):
        return self.gone or self.got or not self.pieces


def drive(senders, until, seconds=40, meanwhile=None):
    end = time.monotonic() + seconds * SLOW
    sel = selectors.DefaultSelector()
    for s in senders:
        sel.register(s.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, s)
    try:
        while not until():
            assert time.monotonic() < end, [(s.sent, s.status, s.gone) for s in senders][:5]
            for k, mask in sel.select(0.05):
                s = k.data
                s.turn()
                want = selectors.EVENT_READ | (0 if s.settled else selectors.EVENT_WRITE)
                if s.gone:
                    sel.unregister(s.sock)
                elif want != k.events:
                    sel.modify(s.sock, want, s)
            if meanwhile:
                meanwhile()
    finally:
        sel.close()


def completion(size):
    """(head, body) of a request with a prompt of that size."""
    body = b'{"model":"%s","max_tokens":1,"prompt":"%s"}' % (MODEL.encode(), b"a" * size)
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body))
    return head, body


def rss(pid):
    """MiB of its own: the shared memory is not counted."""
    return int(re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1]) / 1024


@pytest.mark.timeout(120 * SLOW)
def test_200_clients_of_20_mb_at_256_mib(world):
    """Bodies up to the limit are kept, the others refused while they come; small ones go on."""
    r, _, _ = world.pd(workers=1, limits={"max_buffered": "256MiB", "max_body": "64MiB"}, client={"body_timeout": "60s"})
    pid = worker_of(r)
    inside = r.client()
    assert ask(inside).status == 200
    before, most, small = rss(pid), 0, 0
    head, body = completion(20 * 1000 * 1000)
    senders = [Sender(r.address, [head + body[:-1]]) for _ in range(200)]

    def watch():
        nonlocal most, small
        most = max(most, rss(pid))
        if small < 40:
            assert ask(inside).status == 200
            small += 1

    def waiting():
        return [s for s in senders if not s.got and not s.gone]
    # what is settled is in the kernel's hands, perhaps not yet in the router's
    drive(senders, lambda: all(s.settled for s in senders) and
          len(waiting()) * (len(body) - 1) <= gauge(inside, "request_buffer_bytes"), meanwhile=watch)
    kept = waiting()
    refused = [s for s in senders if s.got]
    assert 10 <= len(kept) <= 12, len(kept)
    for s in refused:
        assert s.status == 503 and b'"code":"overloaded"' in s.got and b"\r\nRetry-After: " in s.got
    assert len(refused) >= 0.95 * (200 - len(kept)), "a reset may overtake a few answers"
    assert gauge(inside, "request_buffer_bytes") <= 256 * MIB
    assert most - before <= 256 + 48 or VARIANT != "release", (before, most)
    for _ in range(20):
        assert ask(inside, prompt="a" * 10000).status == 200, "small ones have room"
    print(f"{len(kept)} kept, {len(refused)} refused, {most - before:.0f} MiB more than without")
    for s in kept[:2]:
        s.pieces = [memoryview(body[-1:])]
    drive(kept[:2], lambda: all(s.got for s in kept[:2]))
    assert [s.status for s in kept[:2]] == [200, 200]
    for s in senders:
        s.sock.close()
    wait("nothing is kept", lambda: gauge(inside, "request_buffer_bytes") == 0)
    wait("its memory is back", lambda: rss(pid) - before < 40 or VARIANT != "release")
    a = inside.post("/v1/completions", body)
    assert a.status == 200, "large ones too"
    assert r.metric("requests_total", reason="overloaded") >= 180


def test_one_bound_for_all_workers(world):
    """However large bodies are spread over the workers: none is refused while all of them fit, and the next ones are."""
    r, _, _ = world.pd(workers=2, limits={"max_buffered": "16MiB", "max_body": "4MiB"}, client={"body_timeout": "60s"})
    head, body = completion(600_000)

    def kept():
        return r.metric("request_buffer_bytes") or 0

    first = [Sender(r.address, [head + body[:-1]]) for _ in range(20)]
    drive(first, lambda: all(s.settled for s in first))
    wait("all are kept", lambda: kept() >= len(first) * (len(body) - 1))
    more = [Sender(r.address, [head + body[:-1]]) for _ in range(20)]
    drive(more, lambda: sum(bool(s.got or s.gone) for s in more) >= 16)
    assert all(s.status in (503, None) for s in more) and kept() <= 16 * MIB
    for s in first:
        assert not s.got and not s.gone
        s.pieces = [memoryview(body[-1:])]
    drive(first, lambda: all(s.got for s in first))
    assert {s.status for s in first} == {200}
    for s in first + more:
        s.sock.close()
    wait("nothing is kept", lambda: kept() == 0)


def test_bytes_of_a_killed_worker_are_free(world):
    r, _, _ = world.pd(workers=2, limits={"max_buffered": "4MiB", "max_body": "4MiB"}, client={"body_timeout": "60s"})
    head, body = completion(3_000_000)
    first = Sender(r.address, [head + body[:-1]])
    drive([first], lambda: first.settled)
    wait("it is kept", lambda: (r.metric("request_buffer_bytes") or 0) >= len(body) - 1)
    assert told(r.post("/v1/completions", body)) == OVERLOADED, "whichever worker has it"
    for pid in r.children():
        r.murder(pid)
    first.sock.close()
    wait("room", lambda: r.post("/v1/completions", body).status == 200)


def test_who_holds_large_bodies_leaves_connections_to_others(world):
    r, _, _ = world.pd(workers=2, limits={"max_body": "64MiB"}, client={"body_timeout": "60s"})
    head, body = completion(20 * MIB)
    upload = Sender(r.address, [head + body[:-1]])
    drive([upload], lambda: upload.settled)
    wait("it is kept", lambda: (r.metric("request_buffer_bytes") or 0) >= len(body) - 1)
    others = [r.client() for _ in range(10)]
    for c in others:
        assert c.get("/live").status == 200

    def connections():
        return sorted(p["connections"] for p in r.status()["processes"]
                      if p["kind"] == "worker")
    wait("the other worker has them", lambda: connections() == [1, 10])
    for c in others:
        c.close()
    upload.sock.close()


def test_a_declared_length_without_room_is_refused_at_its_head(world):
    r, _, _ = world.pd(workers=1, limits={"max_buffered": "4MiB", "max_body": "4MiB"}, client={"body_timeout": "60s"})
    head, body = completion(3_000_000)
    (first,) = senders = [Sender(r.address, [head + body[:-1]])]
    drive(senders, lambda: first.settled)
    wait("it is kept", lambda: (r.metric("request_buffer_bytes") or 0) >= 3_000_000)
    with r.client() as c:
        c.send(head)
        a = c.head()
        assert a.status == 503 and 1 <= int(a["retry-after"]) <= 60
    with r.client() as c:  # the same without a length
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 4 * MIB and not c.buf:
                c.send(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                sent += 65536
        except OSError:
            pass
        assert c.head().status == 503
    first.pieces = [memoryview(body[-1:])]
    drive(senders, lambda: first.got)
    assert first.status == 200
    first.sock.close()
    assert r.post("/v1/completions", body).status == 200


def test_half_heads_count(world):
    """Each is short, but there may be many of them."""
    r, _, _ = world.pd(workers=1, limits={"max_buffered": "1MiB", "max_body": "512KiB", "max_head": "32KiB"})
    inside = r.client()
    assert ask(inside).status == 200
    slow = [r.client() for _ in range(50)]
    for c in slow:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nX: " + b"a" * 30000)
    wait("some are refused", lambda: (r.metric("requests_total", reason="overloaded") or 0) >= 10)
    assert gauge(inside, "request_buffer_bytes") <= 1.1 * MIB
    for c in slow:
        c.close()
    wait("nothing is kept", lambda: gauge(inside, "request_buffer_bytes") == 0)
    assert ask(inside).status == 200


def test_heads_of_running_requests_count(world):
    """The router keeps the header lines for engines as long as the request runs."""
    r, _, d = world.pd(workers=1, limits={"max_buffered": "1MiB", "max_body": "512KiB", "max_head": "32KiB"})
    for e in d:
        e.tell("/sim/pause_stream")
    big, streams = [("X-A", "a" * 30000)], []
    for i in range(40):
        c = r.client()
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": f"p{i}", "max_tokens": 2, "stream": True}, big)
        streams.append(c)
    wait("some are refused", lambda: (r.metric("requests_total", reason="overloaded") or 0) >= 5)
    wait("the others run", lambda: r.metric("request_buffer_bytes") >= 30 * 30000)
    assert r.metric("request_buffer_bytes") <= 1.1 * MIB
    for c in streams:
        c.close()
    for e in d:  # a decode engine that holds KV is let finish
        e.tell("/sim/pause_stream", pause=False)
    wait("nothing is kept", lambda: r.metric("request_buffer_bytes") == 0)
    assert r.complete().status == 200


def test_a_body_that_comes_too_slowly_keeps_no_room_free(world):
    """Who declares much and sends little does not keep others out for longer than it takes to see that."""
    r, _, _ = world.pd(workers=1, limits={"max_buffered": "4MiB", "max_body": "4MiB"}, client={"body_timeout": "60s"})
    head, body = completion(3_000_000)
    claims = r.client()
    claims.send(head + body[:1000])
    wait("it is read", lambda: (r.metric("request_buffer_bytes") or 0) >= 1000)
    assert told(r.post("/v1/completions", body)) == OVERLOADED, "it may come yet"
    assert r.post("/v1/completions", completion(100_000)[1]).status == 200
    wait("room", lambda: r.post("/v1/completions", body).status == 200)
    claims.send(body[1000:])
    assert claims.read().status == 200


def test_kept_answers_count(world):
    """A prefill answer that is being read holds memory as a body does."""
    r, (p,), (d,) = world.scripts(workers=1, limits={"max_buffered": "8MiB", "max_body": "4MiB", "max_answer": "8MiB"})
    c = r.client()
    c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 4})
    x = p.expect()
    size = 6 * MIB
    x.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size + b'{"x":"' + b"x" * (size - 8) + b'"')
    wait("it is kept", lambda: (r.metric("request_buffer_bytes") or 0) >= size - 1)
    assert told(r.post("/v1/completions", completion(3_000_000)[1])) == OVERLOADED
    x.write(b"}").end()
    d.expect().reply(body={"choices": []})
    assert c.read().status == 200
    wait("nothing is kept", lambda: r.metric("request_buffer_bytes") == 0)


# --- clients that take their time ------------------------------------------------------------------------------


def more_files():
    """For this process, which plays so many clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 16000:
        if hard != resource.RLIM_INFINITY and hard < 16000:
            pytest.fail(f"needs 16000 open files, may have {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (16000, hard))


@pytest.mark.timeout(120 * SLOW)
def test_10000_idle_clients(world):
    more_files()
    r, _, _ = world.pd(workers=4, client={"idle_timeout": "10m", "max_silent_connections": 0})
    inside = r.client()
    assert ask(inside).status == 200
    pids = [p for p in r.children() if p > 0]
    before = sum(rss(p) for p in pids)
    crowd = []
    for i in range(10000):
        s = socket.socket()
        s.connect(r.address)
        crowd.append(s)
    wait("all of them", lambda: gauge(inside, "client_connections") >= 10000, 30)
    each = (sum(rss(p) for p in pids) - before) * MIB / 10000
    print(f"{each:.0f} bytes per idle connection")
    assert each < 1500 or VARIANT != "release", each
    for _ in range(20):
        began = time.monotonic()
        with r.client() as c:
            assert ask(c).status == 200
        assert time.monotonic() - began < 1 * SLOW
    assert ask(inside).status == 200
    for s in crowd[::100]:
        s.sendall(b"GET /live HTTP/1.1\r\nHost: r\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 200")
    for s in crowd:
        s.close()
    wait("they have gone", lambda: gauge(inside, "client_connections") < 10, 30)


@pytest.mark.timeout(120 * SLOW)
def test_2000_slow_heads_and_bodies_end_with_408(world):
    """A byte a second each: neither of them lasts, and nobody else hears of it."""
    more_files()
    r, _, (d,) = world.pd(workers=2, client={"head_timeout": "3s", "body_timeout": "3s", "max_silent_connections": 0})
    d.pause()
    stream = r.open_stream(n=8)
    d.wait_metric("pdsim:running_requests", 1)
    inside = r.client()
    starts = [b"", b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 1000\r\n\r\n"]
    slow = [[r.client().sock, starts[i % 2], time.monotonic(), None] for i in range(2000)]
    for one in slow:
        one[0].sendall(one[1] or b"P")
        one[0].setblocking(False)
    sel = selectors.DefaultSelector()
    for one in slow:
        sel.register(one[0], selectors.EVENT_READ, one)
    tick, asked, longest = time.monotonic(), 0, 0
    end = tick + 25 * SLOW
    left = len(slow)
    while left:
        assert time.monotonic() < end, f"{left} are still there"
        for k, _ in sel.select(0.05):
            one = k.data
            try:
                answer = one[0].recv(4096)
            except ConnectionResetError:
                answer = b"reset"
            one[3] = (time.monotonic() - one[2], answer)
            sel.unregister(one[0])
            left -= 1
        if time.monotonic() - tick >= 1:
            tick = time.monotonic()
            for one in slow:
                if one[3] is None:
                    try:
                        one[0].send(b"O")
                    except OSError:
                        pass
        began = time.monotonic()
        assert ask(inside).status == 200 if asked % 2 else inside.get("/live").status == 200
        longest, asked = max(longest, time.monotonic() - began), asked + 1
        if asked == 4:
            d.go_on()
    sel.close()
    answers = {one[3][1].split(b"\r\n")[0] for one in slow}
    assert answers == {b"HTTP/1.1 408 Request Timeout"}
    assert max(one[3][0] for one in slow) < 9 * SLOW
    assert longest < 1.5 * SLOW
    assert [e.data for e in stream.events()][-1] == "[DONE]"
    assert r.metric("requests_total", reason="head_timeout") == r.metric("requests_total", reason="body_timeout") == 1000
    for one in slow:
        one[0].close()


@pytest.mark.timeout(120 * SLOW)
def test_a_body_of_50_mb_trickles_in(world):
    """Far longer than body_timeout in all, and never so long without a byte: it is served; so is everybody else."""
    r, _, _ = world.pd(workers=1, limits={"max_body": "64MiB"}, client={"body_timeout": "1s"})
    head, body = completion(50 * 1000 * 1000)
    inside, slow = r.client(), r.client(timeout=60)
    slow.send(head)
    at, began = 0, time.monotonic()
    while at < len(body):
        slow.send(body[at:at + MIB])
        at += MIB
        assert ask(inside).status == 200
        time.sleep(0.06)
    assert time.monotonic() - began > 2
    assert slow.read().status == 200


def test_a_body_that_keeps_up_no_rate_ends(world):
    """A byte now and then would hold its place for ever, were only the time between two of them looked at."""
    r, _, _ = world.pd(client={"body_timeout": "500ms"})
    with r.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 1000\r\n\r\n{")
        began = time.monotonic()
        while c.silent(0.2):
            assert time.monotonic() - began < 5 * SLOW
            c.send(b" ")
        a = c.read()
        assert (a.status, a.error["code"]) == (408, "body_timeout")
        assert json.loads(a.body)["error"]["type"] == "invalid_request_error"
