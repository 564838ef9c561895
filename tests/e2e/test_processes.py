"""Processes that die, stop or are told to: others go on, nothing is left behind."""
import contextlib
import os
import re
import signal
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml

import expect
from manager import Manager
from procs import BIN, FAST, MODEL, SLOW, Load, alive, free_port, tree, wait
from raw import Client, Closed, text_of

URL = "/v1/completions"


def owners_of(r, clients):
    """For each connection of a client's, the process of the router that holds its other end."""
    def address(name):
        return f"0100007F:{name[1]:04X}"
    rows = (x.split() for x in Path("/proc/net/tcp").read_text().splitlines()[1:])  # once: it may be long
    inodes = {(x[1], x[2]): x[9] for x in rows}
    holds = {os.readlink(fd): pid for pid in r.children() for fd in Path(f"/proc/{pid}/fd").iterdir()}
    return {c: holds[f"socket:[{inodes[address(c.sock.getpeername()), address(c.sock.getsockname())]}]"] for c in clients}


def streams_with_worker(r, n, tokens, pause=()):
    """n open streams and, for each, the pid of the worker that serves it; these engines then stand still."""
    streams = [r.open_stream(f"p{i}", n=tokens) for i in range(n)]
    for c in streams:
        c.head()
    for e in pause:
        e.pause()
    return streams, owners_of(r, streams)


def test_kill_9_of_a_worker_under_load(world):
    """32 streams: those of the other worker finish, the killed one is back within a second, and what
    it held is given back."""
    r, p, d = world.pd(2, 2, engine={"token_delay": 20})
    wait("both workers", lambda: r.ctl("workers").stdout.count("state=ready") == 2)
    streams, owners = streams_with_worker(r, 32, 60, pause=d)
    victim = owners[streams[0]]
    lost = [c for c in streams if owners[c] == victim]
    assert 0 < len(lost) < 32, "both workers serve"
    r.murder(victim)
    killed = time.monotonic()
    r.look_over()
    wait("its successor", lambda: len(r.children()) == 2 and victim not in r.children() and
         r.ctl("workers").stdout.count("state=ready") == 2)
    assert time.monotonic() - killed < 1 * SLOW
    for e in d:
        e.go_on()
    for i, c in enumerate(streams):
        if c in lost:
            with pytest.raises((Closed, OSError)):
                list(c.events())
        else:
            assert text_of(list(c.events())) == expect.text(f"p{i}", 60)
    r.wait_metric("endpoint_in_flight", 0)
    assert r.metric("worker_restarts_total") == 1 and r.complete().status == 200


def test_connections_queued_while_a_worker_dies_are_served(world):
    r, _, _ = world.pd(workers=1)
    pid = r.children()[0]
    r.murder(pid, signal.SIGSTOP)
    r.look_over()
    clients = [r.client() for _ in range(20)]
    for i, c in enumerate(clients):
        c.request("POST", URL, {"model": MODEL, "prompt": f"q{i}", "max_tokens": 3})
    r.murder(pid)
    for i, c in enumerate(clients):
        assert c.read().json()["choices"][0]["text"] == expect.text(f"q{i}", 3)


def test_kill_9_again_and_again(world):
    """Workers die at whatever instruction they are at; counts stay right, others go on."""
    r, p, d = world.pd(2, 2, workers=4)
    world.check_engines = False  # a worker killed between the legs leaves blocks to their timeout

    def ask(i):
        c = r.open_stream(f"p{i}", n=5)
        events = list(c.events())
        assert text_of(events) == expect.text(f"p{i}", 5)

    load = Load(8, ask)
    for i in range(8):
        pids = wait("workers", r.children)
        r.murder(pids[i % len(pids)])
        for _ in range(5):
            r.look_over()
            time.sleep(0.03)  # the pace of the murders
    load.stop()
    assert {kind for kind, _ in load.bad} <= {"Closed", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError",
                                              "AssertionError"}
    assert len(load.bad) < load.done
    wait("all back", lambda: r.ctl("workers").stdout.count("state=ready") == 4, 20)
    r.wait_metric("endpoint_in_flight", 0)
    r.wait_metric("requests_in_flight", 1)
    for i in range(8):
        assert r.complete(f"x{i}", max_tokens=3).json()["choices"][0]["text"] == expect.text(f"x{i}", 3)


def test_kill_9_of_the_notifier(world):
    r, _, _ = world.pd(lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"})
    (pid,) = wait("the notifier", lambda: r.children("notifier"))
    c = r.open_stream()
    r.murder(pid)
    r.look_over()
    wait("its successor", lambda: r.children("notifier") not in ([], [pid]))
    assert len(list(c.events())) == 9 and r.complete().status == 200
    r.wait_metric("notifier_restarts_total", 1)


def test_kill_9_of_the_master_ends_the_children(world):
    r, _, _ = world.pd(lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"})
    pids = tree(r.pid)
    assert len(pids) == 3
    r.kill(signal.SIGKILL)
    wait("no child left", lambda: not any(alive(p) for p in pids), 3)
    r.p.wait()
    world.routers.remove(r)
    with socket.socket() as s:
        assert s.connect_ex(r.address) != 0, "nobody listens any more"


def test_short_of_memory_the_kernel_chooses_a_child(shared, router):
    def adj(pid):
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    assert all(adj(pid) > adj(router.pid) for kind in ("worker", "notifier") for pid in router.children(kind))


def test_back_off_of_a_child_that_keeps_dying(world):
    r, _, _ = world.pd(workers=1)
    started = []
    for _ in range(4):
        (pid,) = wait("a worker", r.children)
        r.murder(pid)
        r.look_over()
        t = time.monotonic()
        wait("the next", lambda: r.children() and r.children() != [pid] and "state=ready" in r.ctl("workers").stdout)
        started.append(time.monotonic() - t)
    assert started[0] < 1 * SLOW and started[-1] > started[0], started
    assert r.complete().status == 200


# --- told to stop ---

@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_lets_streams_finish(world, sig):
    r, _, _ = world.pd(engine={"token_delay": 10})
    c = r.open_stream("bye", n=60)
    c.head()
    r.kill(sig)
    r.wait_log("stopping")
    assert text_of(list(c.events())) == expect.text("bye", 60)
    assert r.p.wait(5 * SLOW) == 0


def test_sigterm_stops_accepting(world):
    r, _, _ = world.pd(engine={"token_delay": 10})
    c = r.open_stream(n=100)
    c.head()
    idle = r.client()
    assert idle.get("/live").status == 200
    r.kill(signal.SIGTERM)
    assert idle.closed(3), "an idle connection is released"

    def refused():
        try:
            with r.client(timeout=0.2) as new:
                new.get("/live")
            return False
        except OSError:
            return True
        except Closed:
            return True
    wait("no new connection is served", refused)
    assert len(list(c.events())) == 101


def test_drain_timeout_ends_what_is_left(world):
    """An error event, exit 0, on time."""
    r, _, _ = world.pd(engine={"token_delay": 50}, drain_timeout="500ms")
    c = r.open_stream(n=1000)
    c.head()
    start = time.monotonic()
    r.kill(signal.SIGTERM)
    events = list(c.events())
    assert events[-1].json()["error"] and events[-1].data != "[DONE]"
    assert r.p.wait(5 * SLOW) == 0 and 0.4 < time.monotonic() - start < 2 * SLOW


def test_drain_timeout_ends_an_old_generation_too(world):
    """A reload has set it no limit; SIGTERM does."""
    r, _, _ = world.pd(engine={"token_delay": 50}, drain_timeout="500ms")
    c = r.open_stream(n=1000)
    c.head()
    r.reload(workers=1)
    r.kill(signal.SIGTERM)
    assert list(c.events())[-1].json()["error"]
    assert r.p.wait(5 * SLOW) == 0


def test_drain_timeout_refuses_what_has_no_answer_yet(world):
    r, (p,), _ = world.scripts(drain_timeout="300ms")
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect()
    r.kill(signal.SIGTERM)
    a = c.read()
    assert a.status == 503 and a.error["code"] == "shutdown"
    assert r.p.wait(5 * SLOW) == 0


def test_second_sigterm_does_not_hurt(world):
    r, _, _ = world.pd(engine={"token_delay": 10})
    c = r.open_stream(n=50)
    c.head()
    r.kill(signal.SIGTERM)
    r.wait_log("stopping")
    threading.Timer(0.1, lambda: r.p.poll() is None and r.kill(signal.SIGTERM)).start()
    try:
        list(c.events())
    except (Closed, OSError):
        pass  # a second one may mean "now"
    assert r.p.wait(5 * SLOW) == 0


# --- stopped ---

def test_stopped_worker_is_replaced(world):
    r, _, _ = world.pd(worker_watchdog="2s")
    victim = r.children()[0]
    r.murder(victim, signal.SIGSTOP)
    r.look_over()
    wait("it is killed and replaced", lambda: victim not in r.children() and len(r.children()) == 2, 15)
    assert r.complete().status == 200


def test_stopped_worker_does_not_hold_the_others(world):
    """worker_watchdog 0: it is left alone, and half of the connections do not hang with it."""
    r, _, _ = world.pd(worker_watchdog="0s")
    victim = r.children()[0]
    r.murder(victim, signal.SIGSTOP)
    try:
        for i in range(20):
            assert r.complete(f"p{i}", max_tokens=2).status == 200
            r.look_over()
    finally:
        os.kill(victim, signal.SIGCONT)
    assert victim in r.children()


def test_connections_are_balanced(world):
    r, _, _ = world.pd(workers=4, engine={"token_delay": 100})
    wait("all workers", lambda: r.ctl("workers").stdout.count("state=ready") == 4)
    streams, owners = streams_with_worker(r, 40, 1000)
    counts = [list(owners.values()).count(pid) for pid in set(owners.values())]
    assert len(counts) == 4 and max(counts) <= 15, counts
    for c in streams:
        c.reset()


def open_at_once(r, n):
    """Opens n connections with a request on each; seconds until all are answered, and the connections."""
    conns = [socket.socket(socket.AF_INET) for _ in range(n)]
    begun = time.monotonic()
    for s in conns:
        s.connect(r.address)
        s.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    for s in conns:
        s.settimeout(20)
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
    return time.monotonic() - begun, conns


def sockets_of(pid):
    n = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            n += os.readlink(fd).startswith("socket:")
    return n


def sleeps_ended(pids):
    """How often these processes have gone to sleep: each wake-up for nothing is one more."""
    status = "".join(Path(f"/proc/{pid}/status").read_text() for pid in pids)
    return sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)))


def test_a_connection_wakes_one_worker(world):
    """EPOLLEXCLUSIVE: not all of them.  By itself a worker wakes up at heartbeats and ticks, 12 times a second."""
    r, _, _ = world.pd(workers=12)
    wait("all workers", lambda: r.ctl("workers").stdout.count("state=ready") == 12)
    pids, begun = r.children(), time.monotonic()
    before = sleeps_ended(pids)
    for _ in range(100):
        assert r.get("/live").status == 200
    wakes = sleeps_ended(pids) - before
    assert wakes < 5 * 100 + 12 * len(pids) * (time.monotonic() - begun)


@pytest.mark.timing
@pytest.mark.parametrize("workers", [2, 8])
def test_connections_opened_at_once_wait_for_no_tick(world, workers):
    """Whoever stops accepting wakes another worker: nobody waits for a worker to look again after 100 ms."""
    r, _, _ = world.pd(workers=workers)
    before, took = {pid: sockets_of(pid) for pid in r.children()}, []

    def burst():
        seconds, conns = open_at_once(r, 64)
        have = [sockets_of(pid) - n for pid, n in before.items()]
        for s in conns:
            s.close()
        wait("they are gone", lambda: all(sockets_of(pid) == n for pid, n in before.items()))
        return seconds, have

    wait("all workers accept", lambda: min(burst()[1]) > 0)
    for _ in range(7):
        seconds, have = burst()
        took.append(seconds)
        assert sum(have) == 64 and max(have) <= 1.25 * 64 / workers, have
    assert statistics.median(took) < 0.08 * SLOW, took


@pytest.mark.timing
def test_stopped_worker_holds_back_no_connection(world):
    """It has none, so the others have more than their share of the mean: it is left out once its heartbeat stops."""
    r, _, _ = world.pd(worker_watchdog="0s", workers=2)
    victim = r.children()[0]
    r.murder(victim, signal.SIGSTOP)
    try:
        seconds, conns = open_at_once(r, 64)
    finally:
        os.kill(victim, signal.SIGCONT)
    assert seconds < 1.0 * SLOW
    for s in conns:
        s.close()


# --- starting ---

def test_check_of_the_configuration(world):
    r, _, _ = world.pd()
    ok = subprocess.run([BIN / "pdrouter", "-t", "-c", r.config_path], capture_output=True, text=True, check=False)
    assert ok.returncode == 0, ok.stderr
    bad = world.file("bad", "yaml")
    bad.write_text("listen: [\"127.0.0.1:80\"]\nworkers: many\npools: []\n")
    no = subprocess.run([BIN / "pdrouter", "-t", "-c", bad], capture_output=True, text=True, check=False)
    assert no.returncode != 0 and f"{bad}:2" in no.stderr and "workers" in no.stderr


def test_started_without_stdin(world):
    """No descriptor of ours takes the place of a standard one, and children keep their log."""
    r, _, _ = world.pd()
    config, log = world.file("closed", "yaml"), world.file("closed", "log")
    config.write_text(yaml.safe_dump({**r.config, "listen": [f"127.0.0.1:{free_port()}"], "control_socket": ""}))
    with open(log, "wb") as err, subprocess.Popen(["sh", "-c", f'exec "{BIN}/pdrouter" -c "{config}" <&- >&-'], stderr=err) as p:
        try:
            wait("its workers", lambda: len(tree(p.pid)) == 2 and "in force" in log.read_text())
            for pid in (p.pid, *tree(p.pid)):
                have = [os.readlink(f"/proc/{pid}/fd/{i}") for i in range(3)]
                assert have == ["/dev/null", "/dev/null", str(log)]
        finally:
            p.terminate()
    assert p.returncode == 0


def test_address_in_use(world):
    r, _, _ = world.pd()
    again = subprocess.run([BIN / "pdrouter", "-c", r.config_path, "--control-socket", ""], capture_output=True, text=True,
                           timeout=10, check=False)
    assert again.returncode != 0 and str(r.port) in again.stderr
    assert r.complete().status == 200 and r.ctl("ping").returncode == 0, "the first one is not harmed"


def test_help_and_version():
    for flag in ("--help", "--version"):
        done = subprocess.run([BIN / "pdrouter", flag], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "pdrouter" in done.stdout
    assert subprocess.run([BIN / "pdrouter", "--nonsense"], capture_output=True, check=False).returncode != 0


@pytest.fixture
def manager(world):
    m = Manager(world)
    yield m
    m.close()


def test_sd_notify(world, manager):
    """Type=notify: READY=1, RELOADING=1 with the time, WATCHDOG=1, STOPPING=1."""
    with manager.watches(WATCHDOG_USEC="400000"):
        r, _, _ = world.pd()
    manager.until("READY=1")
    manager.until("WATCHDOG=1")
    r.kill(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in manager.until("RELOADING=1")[-1]
    manager.until("READY=1")
    r.kill(signal.SIGTERM)
    manager.until("STOPPING=1")


def test_a_restart_refuses_nobody(world, manager):
    """systemd keeps the listening socket: who connects while pdrouter restarts waits in it."""
    with manager.watches():
        r, _, _ = world.pd()
    manager.until("FDSTORE=1")
    r.check()
    with socket.create_connection(r.address) as c:
        waits, _ = manager.stored[0].accept()
        assert waits.getpeername() == c.getsockname()
        waits.close()


def test_socket_activation(world):
    """Listening sockets passed by systemd are used as they are."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        p, d = world.engine("prefill"), world.engine("decode")
        config = world.file("router", "yaml")
        config.write_text(yaml.safe_dump({**FAST, "listen": [f"127.0.0.1:{port}"], "control_socket": "",
                                          "pools": [world.pool([p], [d])]}))
        sh = f'exec {BIN}/pdrouter -c {config} 3<&{s.fileno()}'
        log = open(world.file("activated"), "wb")
        run = subprocess.Popen(["bash", "-c", "export LISTEN_PID=$$ LISTEN_FDS=1; " + sh], pass_fds=[s.fileno()], stderr=log)
    try:
        def up():
            with Client(("127.0.0.1", port)) as c:
                return c.get("/ready").status == 200
        wait("ready", up)
    finally:
        run.terminate()
        assert run.wait(10) == 0
        log.close()


def test_a_request_whose_body_is_scanned_at_the_end_is_told(world):
    """Its body is complete: it gets an answer, as the requests do that wait for an engine."""
    r, _, _ = world.scripts(workers=1, limits={"max_body": "64MiB", "max_buffered": "256MiB"})
    body = b'{"model":"m","prompt":"' + b'\\"' * (24 << 20) + b'"}'  # the slowest to scan: 0.2 s
    with r.client() as c:
        c.request("POST", URL, body)
        wait("all of the body", lambda: r.metric("client_received_bytes_total") >= len(body))
        r.kill(signal.SIGQUIT)
        a = c.read()
        assert a.status == 503 and a.error["code"] == "shutdown"
    assert r.p.wait(5 * SLOW) == 0


def test_request_that_comes_after_the_drain_time(world):
    """The worker has been told to quit and lets what was written be read: no work is begun any more."""
    r, (p,), _ = world.scripts(workers=1, drain_timeout="100ms")
    with r.client() as c:
        assert c.get("/live").status == 200
        r.kill(signal.SIGTERM)
        time.sleep(0.5)  # past the drain time, within the worker's last second
        a = c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x"}).read()
        assert a.status == 503 and a.error["code"] == "shutdown"
