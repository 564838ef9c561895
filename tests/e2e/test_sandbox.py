"""The sandbox of workers and notifier: a system call that they do not need ends them, as the log says; what it takes to serve
without it; the user that they become; the keys that they do not have."""
import os
import pwd
import subprocess
import time
from pathlib import Path

import pytest

from certs import Cert
from procs import BIN, VARIANT, free_port, wait

filtered = pytest.mark.skipif(VARIANT == "asan", reason="sanitizers make calls of their own")
PRELOADED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* What a request with this header would do if its bytes were code that a worker executes. */
ssize_t read(int fd, void *to, size_t n)
{
	static ssize_t (*next)(int, void *, size_t);
	if (next == NULL)
		next = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
	ssize_t got = next(fd, to, n);
	if (got > 0 && memmem(to, (size_t)got, "X-Do-Harm", 9) != NULL)
		(void)open(HARMED, O_WRONLY | O_CREAT, 0600);
	return got;
}
"""


def sandboxes(r):
    """By kind of process, whether all of them are in the sandbox."""
    return {labels["process"]: value for name, labels, value in r.metrics("pdrouter_sandbox") if name == "pdrouter_sandbox"}


def status(pid):
    """The lines of /proc/PID/status."""
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


@filtered
def test_a_forbidden_call_ends_the_worker_and_is_named(world, monkeypatch):
    source, library, harmed = (world.dir / name for name in ("harm.c", "harm.so", "harmed"))
    source.write_text(PRELOADED)
    subprocess.run(["gcc", "-shared", "-fPIC", f'-DHARMED="{harmed}"', "-o", library, source, "-ldl"], check=True)
    p, d = world.engine("prefill"), world.engine("decode")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    r = world.router(world.pool([p], [d]), workers=1)
    (pid,) = r.children()
    r.murdered = True  # as it were
    with r.client() as c:
        c.request("GET", "/live", headers=[("X-Do-Harm", "1")])
        assert c.closed(5)
    wait("its successor", lambda: r.children() not in ([], [pid]))
    (line,) = r.lines("a forbidden system call")
    assert (line["kind"], line["pid"], line["call"]) == ("worker", pid, "openat") and not harmed.exists()
    assert r.lines("process died")[0]["signal"] == "SYS" and r.complete().status == 200


def test_each_child_is_in_the_sandbox(world):
    r, _, _ = world.pd(lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"})
    (notifier,) = wait("the notifier", lambda: r.children("notifier"))
    wait("both are in it", lambda: sandboxes(r) == dict.fromkeys(("worker", "notifier"), VARIANT != "asan"))
    for pid in [*r.children(), notifier]:
        had = status(pid)
        outer = int(status("self")["Seccomp_filters"])  # of a container, perhaps
        assert had["NoNewPrivs"] == "1" and int(had["Seccomp_filters"]) == outer + (VARIANT != "asan")
        assert {had[f"Cap{which}"] for which in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert r.complete().status == 200


def memory(pid):
    """All that a process may read, a mapping at a time."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as m:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *rest = line.split()
            if rights[0] == "r" and not rest[-1].startswith("[v"):
                begin, end = (int(x, 16) for x in where.split("-"))
                m.seek(begin)
                yield m.read(end - begin)


def can_look(pid):
    try:
        return open(f"/proc/{pid}/mem", "rb").close() is None
    except PermissionError:
        return False


def holders(pid, keys):
    return {name for data in memory(pid) for name, key in keys.items() if key in data}


@pytest.mark.skipif(os.geteuid() != 0 or VARIANT != "release", reason="root alone can look; a sanitizer keeps what was freed")
def test_processes_without_need_of_keys_have_none(world):
    cert, own = Cert(world.dir, "localhost"), Cert(world.dir, "own")
    file = world.dir / "engine.key"
    file.write_text("sk-of-the-engines-4711")
    pool = world.pool([world.engine("prefill")], [world.engine("decode")], engine_api_key_file=str(file),
                      tls={"ca": cert.cert, "cert": own.cert, "key": own.key})
    small = {"max_workers": 1, "max_endpoints": 16, "prefix_index": "1MiB"}  # all of it is read
    r = world.router(pool, workers=1, shared_memory=small, tls={"listen": [f"127.0.0.1:{free_port()}"], "certificates": [cert.row()]},
                     lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"}, tracing={"otlp": f"http://127.0.0.1:{free_port()}"})
    if not can_look(*r.children()):
        pytest.skip("a container without CAP_SYS_PTRACE")
    keys = {"of engines": file.read_bytes()}
    for name, of in ("certificate", cert), ("own", own):
        keys[f"{name}, as text"] = Path(of.key).read_bytes().splitlines()[1]
        keys[f"{name}, its number"] = of.number()
        keys[f"{name}, its words"] = of.number()[::-1]
    assert holders(r.pid, keys) > {"of engines", "own, its words"}, "it finds what is there"
    r.complete()
    assert holders(*r.children(), keys) >= {"of engines", "certificate, its words", "own, its words"}
    for kind in "notifier", "exporter":
        assert holders(*wait(kind, lambda: r.children(kind)), keys) == set(), kind


def test_each_process_says_what_it_uses(world):
    """No other process could: children are not dumpable, and may open no file."""
    r, _, _ = world.pd(workers=2, lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"})
    names = {"master", "notifier", "worker-0", "worker-1"}

    def said(what):
        return {labels["process"]: value for name, labels, value in r.metrics("process_") if name == f"process_{what}"}

    wait("all have said it", lambda: set(said("start_time_seconds")) == names)
    assert all(abs(v - time.time()) < 3600 for v in said("start_time_seconds").values())
    assert set(said("resident_memory_bytes")) == names and min(said("resident_memory_bytes").values()) > 1e5
    assert all(0 < v < 1000 for v in said("cpu_seconds_total").values())
    open_fds, max_fds = said("open_fds"), said("max_fds")
    assert set(max_fds) == names and {"worker-0", "worker-1"} <= set(open_fds)
    assert all(3 <= n <= max_fds[process] for process, n in open_fds.items())


def test_an_operator_can_turn_the_filter_off(world):
    r, _, _ = world.pd(sandbox=False)
    assert sandboxes(r) == {"worker": 0} and r.complete().status == 200
    (line,) = r.lines("workers, notifier and exporter run without a filter of system calls")
    assert line["level"] == "warn" and line["reason"] == "sandbox: false"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change to another user")
def test_started_as_root_children_become_another_user(world):
    r, _, _ = world.pd(user="nobody", group="nogroup", lmcache={"listen": f"tcp://127.0.0.1:{free_port()}"})
    (notifier,) = wait("the notifier", lambda: r.children("notifier"))
    for pid in [*r.children(), notifier]:
        had, uid = status(pid), str(pwd.getpwnam("nobody").pw_uid)
        assert had["Uid"].split() == [uid] * 4 and had["Groups"].strip() == "" and had["CapBnd"] == "0" * 16
    assert r.complete().status == 200 and not r.lines("workers, notifier and exporter run as root")
    assert status(r.pid)["Uid"].split()[0] == "0", "the master serves them"


def test_a_user_that_is_not_there(world):
    r = world.router(world.pool([world.engine("prefill")], [world.engine("decode")]), user="no-such-one", wait_for=None)
    why = "user: no-such-one: there is no such user"
    assert r.p.wait(5) == 1 and why in r.log()
    done = subprocess.run([BIN / "pdrouter", "-t", "-c", r.config_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == f"{r.config_path}: {why}\n"
    world.routers.remove(r)
