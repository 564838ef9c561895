"""The control socket: whatever its clients do, the master stays small and goes on answering."""
import contextlib
import grp
import os
import re
import resource
import signal
import socket
from pathlib import Path

import pytest

from procs import BAD_WORDS, SLOW, VARIANT, wait


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
        s.sendall(b"ping\nworkers\nwhat\nrequests json\nrequests of\nrequests\nrequest x\nstatus json\nping\n")
        s.shutdown(socket.SHUT_WR)
        lines = read_all(s).decode().splitlines()
    assert lines[0] == "OK" and lines[-3].endswith("}") and lines[-2:] == ["OK", "OK"]
    assert [x[:3] for x in lines if x[:3] in ("OK", "ERR")] == ["OK", "OK", "ERR", "OK", "ERR", "OK", "ERR", "OK", "OK"]
    assert {"reload dry-run", "prefix", "request", "ping"} <= set(next(x for x in lines if "unknown" in x).partition("known: ")[2].split(", "))
    assert '{"requests":[],"left_out":0}' in lines


def test_a_group_may_use_it(world):
    """Its permissions follow a reload; with a group that does not exist only the owner is left."""
    own = grp.getgrgid(os.getegid()).gr_name
    group = next((g.gr_name for g in grp.getgrall() if g.gr_gid != os.getegid() and (os.geteuid() == 0 or g.gr_gid in os.getgroups())), own)
    r, _, _ = world.pd(control_socket_mode="0660", control_socket_group=group)

    def has():
        st = r.control.stat()
        return oct(st.st_mode & 0o777), grp.getgrgid(st.st_gid).gr_name
    assert has() == ("0o660", group)
    r.reload(control_socket_mode="0640")
    assert has() == ("0o640", group)
    r.reload(control_socket_group="")
    assert has() == ("0o640", own)
    r.reload(control_socket_group="no-such-group")
    assert has()[0] == "0o600" and len(r.lines("control socket: only its owner can connect")) == 1


def test_pdctl_says_what_is_wrong_with_a_command_line(world):
    r, _, _ = world.pd()
    for args, word in ((["nosuch"], "nosuch is not a command"), ([], "a command is needed"),
                       (["ping", "ping"], "one command only"), (["ping", "--wait"], "--wait is not for ping"), (["weight", "h:1"], "weight: ENGINE N|default is needed"),
                       (["drain", "--host", "h", "--group", "g"], "--host or --group, not both"), (["undrain", "h:1", "--timeout", "1"], "--timeout is of --wait or --when-up")):
        done = r.ctl(*args)
        assert done.returncode == 2 and word in done.stderr and "usage:" in done.stderr
    gone = r.ctl("-s", f"{r.control}.not", "ping")
    assert gone.returncode == 1 and "No such file" in gone.stderr and "is pdrouter running" in gone.stderr


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
        kept = 4096 if VARIANT == "release" else 16384  # a sanitizer keeps freed blocks for a while
        assert sent < 1 << 18 and master_kib(r) < before + kept
        assert r.ctl("ping").returncode == 0
        s.settimeout(4 * SLOW)
        s.shutdown(socket.SHUT_WR)
        assert read_all(s).count(b"\nOK\n") == sent // 12, "each one is answered in the end"


def test_reloads_that_wait_and_are_given_up_do_not_shut_others_out(world):
    r, _, d = world.pd(workers=1, drain_timeout="60s", shared_memory={"max_workers": 1})
    c = r.open_stream(n=1000)
    c.head()
    d[0].pause()
    r.reload(client={"id_header": "X-A"})
    r.change(client={"id_header": "X-B"})  # needs a third worker slot while the first worker still drains
    for i in range(16):
        with control(r) as s:
            s.sendall(b"reload\n")
            if i % 2:
                s.shutdown(socket.SHUT_WR)
            wait("it to wait", lambda i=i: len(r.lines("reload waits: old generations of workers have all process slots")) == i + 1)
    assert r.ctl("ping").returncode == 0 and len(r.children()) == 2
    c.reset()
    d[0].go_on()
    wait("the reload in the end", lambda: r.metric("generation") == 3 and len(r.children()) == 1)


def test_half_closed_client_gets_the_outcome_of_its_reload(world):
    """`echo reload | nc -U`: the answer comes after the end of its input."""
    r, _, _ = world.pd()
    with control(r) as s:
        s.sendall(b"reload\n")
        s.shutdown(socket.SHUT_WR)
        assert read_all(s) == b"OK\n"


@contextlib.contextmanager
def another_version(r):
    """The segment's header says another version than the program's: the 4 bytes behind its magic."""
    r.excused = ("I2 the header is not",)
    maps = (Path("/proc") / str(r.pid) / "maps").read_text()
    at = int(re.search(r"^([0-9a-f]+)-.*memfd:pdrouter", maps, re.M)[1], 16) + 8
    with open(f"/proc/{r.pid}/mem", "r+b", buffering=0) as mem:
        mem.seek(at)
        version = mem.read(4)
        mem.seek(at)
        mem.write(b"\xff\xff\xff\xff")
        try:
            yield
        finally:
            mem.seek(at)
            mem.write(version)


def test_check_says_what_is_broken(world):
    """And a debug build of the master says so by itself, which no test may overlook."""
    r, _, _ = world.pd()
    r.look_over()
    with another_version(r):
        done = r.ctl("check")
        assert (done.returncode, done.stderr) == (1, "broken invariants: 1\n")
        assert done.stdout == "I2 the header is not of this version, build and size\n"
        if VARIANT != "release":
            assert BAD_WORDS.search(r.wait_log(r.excused[0]))
    r.look_over()


def test_worker_refuses_a_segment_of_another_version(world):
    """It does not serve, and is not started again and again: what it was born into will not change."""
    r, _, _ = world.pd(workers=2)
    wait("all workers", lambda: r.ctl("workers").stdout.count("state=ready") == 2)  # one that starts would end the router
    with another_version(r):
        r.murder(r.children()[0])
        r.wait_log("the shared memory is not of this version and build")
        wait("it to be given up", lambda: len(r.children()) == 1)
    assert r.complete().status == 200 and r.metric("worker_restarts_total") == 1


@pytest.mark.skipif(VARIANT != "release", reason="the sanitizer's allocator ends the process")
def test_a_master_without_memory_refuses_and_lives(world):
    """The kernel gives it no further page: what it is asked fails, and no engine is blamed."""
    r, p, _ = world.pd()
    r.wait_all_up()
    was = resource.prlimit(r.pid, resource.RLIMIT_AS, (1, resource.RLIM_INFINITY))
    for command in ("status", "reload", "config"):
        done = r.ctl(command, *(["diff"] if command == "config" else []))
        assert (done.returncode, done.stderr) == (1, "out of memory\n"), done
    r.kill(signal.SIGHUP)
    r.wait_log('"error":"out of memory"')
    p[0].next_life()
    r.wait_log("this machine lacks resources; their states stay")
    assert r.metric("out_of_memory_total") > 4 and r.metric("reloads_failed_total") == 1
    resource.prlimit(r.pid, resource.RLIMIT_AS, was)
    assert r.ctl("reload").returncode == 0
    wait("it is learned", lambda: r.metric("endpoint_up", engine=p[0].url) == 1)
    assert r.complete().status == 200
