"""The control socket: whatever its clients do, the master stays small and goes on answering."""
import re
import socket
from pathlib import Path

from procs import SLOW, wait


def control(r):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(4 * SLOW)
    s.connect(str(r.control))
    return s


def read_all(s):
    return b"".join(iter(lambda: s.recv(65536), b""))


def master_kib(r):
    return int(re.search(r"VmRSS:\s+(\d+)", (Path("/proc") / str(r.pid) / "status").read_text())[1])


def test_commands_in_a_row_are_answered_in_order(world):
    r, _, _ = world.pd()
    with control(r) as s:
        s.sendall(b"ping\nworkers\nwhat\nstatus json\nping\n")
        s.shutdown(socket.SHUT_WR)
        lines = read_all(s).decode().splitlines()
    assert lines[0] == "OK" and lines[-3].endswith("}") and lines[-2:] == ["OK", "OK"]
    assert [x[:3] for x in lines if x[:3] in ("OK", "ERR")] == ["OK", "OK", "ERR", "OK", "OK"]


def test_client_that_asks_much_and_reads_slowly_does_not_grow_the_master(world):
    r, _, _ = world.pd()
    before = master_kib(r)
    with control(r) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        s.settimeout(0.5 * SLOW)
        sent = 0
        try:
            while sent < 1 << 20:
                sent += s.send(b"status json\n" * 300)
        except TimeoutError:
            pass  # the master does not read on
        assert sent < 1 << 18 and master_kib(r) < before + 4096
        assert r.ctl("ping").returncode == 0
        s.settimeout(4 * SLOW)
        s.shutdown(socket.SHUT_WR)
        assert read_all(s).count(b"\nOK\n") == sent // 12, "each one is answered in the end"


def test_reloads_that_wait_and_are_given_up_do_not_shut_others_out(world):
    r, _, d = world.pd(workers=1, drain_timeout="60s")
    c = r.open_stream(n=1000)
    c.head()
    d[0].pause()
    r.reload(workers=2)
    r.change(workers=1)  # needs a third generation while the first one still drains
    for i in range(16):
        with control(r) as s:
            s.sendall(b"reload\n")
            if i % 2:
                s.shutdown(socket.SHUT_WR)
            wait("it to wait", lambda i=i: len(r.lines("reload waits: an old generation still drains")) == i + 1)
    assert r.ctl("ping").returncode == 0 and len(r.children()) == 3
    c.reset()
    d[0].go_on()
    wait("the reload in the end", lambda: len(r.children()) == 1)


def test_half_closed_client_gets_the_outcome_of_its_reload(world):
    """`echo reload | nc -U`: the answer comes after the end of its input."""
    r, _, _ = world.pd()
    with control(r) as s:
        s.sendall(b"reload\n")
        s.shutdown(socket.SHUT_WR)
        assert read_all(s) == b"OK\n"
