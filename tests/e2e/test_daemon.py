"""What surrounds the router: signals without a meaning, a second instance, a log that nobody reads."""
import fcntl
import json
import os
import signal
import subprocess
from contextlib import suppress

import pytest

import expect
from procs import BIN, MODEL, SLOW, alive, free_port, metric_sum, parse_metrics, tree, wait
from raw import Client, text_of

# --- signals ------------------------------------------------------------------------------------------------

MEANINGLESS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR,
               signal.SIGSTKFLT, signal.SIGXFSZ, signal.SIGPIPE, signal.SIGWINCH, signal.SIGURG, signal.SIGCONT,
               signal.SIGRTMIN, signal.SIGRTMAX]


def test_signals_without_a_meaning_change_nothing(world):
    """To the master, the workers and the notifier, while a stream is under way."""
    r, _, d = world.pd(lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"})
    wait("the notifier", lambda: r.children("notifier"))
    d[0].pause()
    c = r.open_stream("on", n=6)
    d[0].wait_requests()
    pids = {r.pid, *r.children(), *r.children("notifier")}
    for pid in pids:
        for sig in MEANINGLESS:
            if (pid, sig) != (r.pid, signal.SIGUSR2):  # an upgrade
                os.kill(pid, sig)
    d[0].go_on()
    assert text_of(list(c.events())) == expect.text("on", 6)
    assert pids == {r.pid, *r.children(), *r.children("notifier")} and r.complete().status == 200


def test_a_key_on_the_terminal_reaches_the_master_alone(world):
    """^C and ^\\ go to the whole process group: children leave both to the master."""
    r, _, d = world.pd()
    pids = r.children()
    for pid in pids:
        for sig in (signal.SIGINT, signal.SIGQUIT):
            os.kill(pid, sig)
    assert r.complete().status == 200 and r.children() == pids


@pytest.mark.parametrize("first", [None, signal.SIGTERM])
def test_sigquit_stops_at_once(world, first):
    """As a second SIGTERM does: what is under way ends with an error, the exit code is 0."""
    r, _, d = world.pd(drain_timeout="60s")
    d[0].pause()
    c = r.open_stream(n=4)
    d[0].wait_requests()
    pids = tree(r.pid)
    if first:
        r.kill(first)
        r.wait_log("streams may finish")
    r.kill(signal.SIGQUIT)
    r.wait_log("stopping at once")
    assert r.p.wait(10 * SLOW) == 0 and not any(alive(p) for p in pids)
    a = c.read()
    assert (a.status, a.error["code"]) == (503, "shutdown")
    d[0].go_on()


# --- a second instance --------------------------------------------------------------------------------------


def start_again(world, r, *args):
    """Another pdrouter with the configuration of this one, at another port."""
    log = world.file("again", "log")
    with open(log, "wb") as err:
        return subprocess.Popen([BIN / "pdrouter", "-c", r.config_path, "--port", str(free_port()), *args], stderr=err), log


def test_a_second_one_with_the_same_control_socket_does_not_start(world):
    r, _, _ = world.pd()
    p, log = start_again(world, r)
    assert p.wait(10 * SLOW) == 1
    assert "another pdrouter has this control socket" in log.read_text() and str(r.control) in log.read_text()
    assert r.ctl("ping").returncode == 0 and r.complete().status == 200


def test_of_two_that_start_at_once_one_serves(world):
    """A socket file of a killed one is there, which both would replace."""
    r, _, _ = world.pd()
    r.kill(signal.SIGKILL)
    r.p.wait()
    world.routers.remove(r)
    assert r.control.exists()
    both = [start_again(world, r)[0] for _ in range(6)]
    wait("all but one gone", lambda: [p.poll() for p in both].count(None) == 1)
    (left,) = (p for p in both if p.poll() is None)
    assert {p.returncode for p in both if p is not left} == {1}
    wait("it answers", lambda: r.ctl("ping").returncode == 0)
    left.terminate()
    assert left.wait(10 * SLOW) == 0 and not r.control.exists()


def test_a_socket_without_its_lock_file_is_not_taken(world):
    """Something that cleans /tmp has removed the lock."""
    r, _, _ = world.pd()
    os.unlink(f"{r.control}.lock")
    p, log = start_again(world, r)
    assert p.wait(10 * SLOW) == 1 and "another pdrouter" in log.read_text() and r.ctl("ping").returncode == 0


def test_another_control_socket_on_the_command_line(world):
    """Two routers with one configuration on a host."""
    r, _, _ = world.pd()
    other = world.file("other", "sock")
    p, _ = start_again(world, r, "--control-socket", str(other))
    try:
        wait("it answers", lambda: subprocess.run([BIN / "pdctl", "-s", other, "ping"], check=False).returncode == 0)
    finally:
        p.terminate()
    assert p.wait(10 * SLOW) == 0 and r.ctl("ping").returncode == 0


# --- a log that nobody reads --------------------------------------------------------------------------------


def test_lines_that_the_log_does_not_take_are_counted(world):
    """Requests are served all the same; the first line that goes says how many are missing."""
    r, _, _ = world.pd(workers=1)
    port, (reader, writer) = free_port(), os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 16384)
    p = subprocess.Popen([BIN / "pdrouter", "-c", r.config_path, "--port", str(port), "--control-socket", ""], stderr=writer)
    os.close(writer)

    def ready():
        with suppress(OSError), Client(("127.0.0.1", port)) as c:
            return c.get("/ready").status == 200
    wait("ready", ready)
    with Client(("127.0.0.1", port)) as c:
        def dropped():
            assert c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}).read().status == 200
            return metric_sum(parse_metrics(c.get("/metrics").body.decode()), "pdrouter_log_lines_dropped_total", {})
        wait("a full pipe", dropped)
        n = dropped()
        log = os.read(reader, 1 << 20)
        assert dropped() == n, "these lines are written"
        log += os.read(reader, 1 << 20)
    lines = [json.loads(x) for x in log.decode().splitlines() if x.startswith("{")]
    assert sum(x["lines"] for x in lines if x["msg"] == "log lines were dropped: stderr was full") == n
    assert lines[-1]["msg"] == "request"
    p.terminate()
    assert p.wait(10 * SLOW) == 0
    os.close(reader)
