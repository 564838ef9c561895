"""admin.listen: the address for operators, and what the clients' address answers beside it."""
import grp
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from manager import Manager
from procs import BIN, MODEL, free_port, wait
from raw import Client

OPERATORS = ["/metrics", "/health", "/ready", "/live", "/version"]
CLIENTS = ["/v1/models", "/v1/completions", "/generate"]


def admin():
    return {"listen": [f"127.0.0.1:{free_port()}"]}


@pytest.fixture
def router(world):
    return world.pd(admin=admin())[0]


def status(r, path):
    with r.operator() as c:
        return c.get(path).status


def test_each_address_answers_its_own_paths(router):
    assert [status(router, path) for path in OPERATORS] == [200] * 5
    assert [status(router, path) for path in CLIENTS] == [404] * 3
    assert [router.get(path).status for path in OPERATORS] == [404, 200, 200, 200, 200]
    assert router.get("/metrics").error["message"].endswith("it is answered at admin.listen")
    assert router.complete().status == 200 and router.get("/v1/models").status == 200


def test_engine_addresses_are_for_operators(world):
    r, p, _ = world.pd(admin=admin())
    p[0].kill(9)
    for path in "/health", "/ready", f"/health?pool={MODEL}":
        wait(path, lambda path=path: status(r, path) == r.get(path).status == 503)
        with r.operator() as c:
            one, = c.get(path).json()["pools"][MODEL]["prefill"]["not_up"]
        page = r.get(path)
        assert sorted(one) == ["endpoint", "state"] and one["endpoint"] == p[0].url and b"http" not in page.body
        assert [list(x) for x in page.json()["pools"][MODEL]["prefill"]["not_up"]] == [["state"]]


def test_metrics_may_be_for_clients_too(router):
    router.reload(metrics_on_client_port=True)
    assert router.get("/metrics").status == 200
    router.reload(metrics_on_client_port=False)
    assert router.get("/metrics").status == 404


def test_a_reload_opens_and_closes_the_address(world):
    r, _, _ = world.pd()
    r.reload(admin=admin())
    assert status(r, "/metrics") == 200 and r.get("/metrics").status == 404
    with r.operator() as c:
        port = c.sock.getpeername()[1]
    r.reload(admin={"listen": []})
    assert r.get("/metrics").status == 200
    with pytest.raises(ConnectionRefusedError):
        Client(("127.0.0.1", port))


def test_an_address_is_for_one_of_them(world):
    r, _, _ = world.pd()
    r.change(admin={"listen": list(r.config["listen"])})
    assert re.search(r"admin.listen\[0\]: 127.0.0.1:\d+ is there twice", r.ctl("reload").stderr) and r.complete().status == 200


@pytest.mark.parametrize("key", ["listen", "admin.listen"])
def test_the_key_of_an_address_that_cannot_be_opened_is_named(world, key):
    r, _, _ = world.pd()
    config, bad = r.config, ["203.0.113.7:9101"]  # TEST-NET-3, nobody's
    r.change(**({"listen": bad} if key == "listen" else {"admin": {"listen": bad}}))
    assert re.search(rf"yaml:\d+: {key}: 203.0.113.7:9101: cannot listen", r.ctl("reload").stderr)
    r.config = config  # it is still in force
    assert r.complete().status == 200


def test_operators_come_in_when_no_client_can(world):
    r, _, _ = world.pd(admin=admin(), workers=1, limits={"max_connections": 1})
    with r.client() as busy, r.client() as late:
        assert busy.get("/live").status == 200
        late.request("GET", "/live")
        assert status(r, "/metrics") == 200 and late.silent(0.01)
        busy.close()
        assert late.read().status == 200


def test_operators_have_a_bound(world):
    """Sixty-four of one worker; a further one waits, and clients do not."""
    r, _, _ = world.pd(admin=admin(), workers=1)
    held = [r.operator() for _ in range(64)]
    assert all(c.get("/live").status == 200 for c in held)
    late = r.operator().request("GET", "/live")
    assert r.complete().status == 200 and late.silent(0.01)
    held.pop().close()
    assert late.read().status == 200
    for c in [late, *held]:
        c.close()


@pytest.mark.parametrize("host, keys, said", [("0.0.0.0", {}, 1), ("0.0.0.0", {"admin": admin()}, 0), ("127.0.0.1", {}, 0)])
def test_clients_that_can_read_operators_pages_are_named(world, host, keys, said):
    """The router has started when the lines are read: it answers."""
    r, _, _ = world.pd(**keys, args=["--host", host])
    assert len(r.lines("clients can read /metrics and the engines' addresses in /health")) == said


@pytest.fixture
def path(world):
    return world.file("admin", "sock")


def of_path(path, **keys):
    return {"listen": [f"unix:{path}"], **keys}


def test_operators_may_have_a_unix_socket(world, path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)  # else the file is left for systemd, which keeps the socket
    r, _, _ = world.pd(admin=of_path(path))
    assert r.metric("build_info") == 1 and [status(r, p) for p in OPERATORS] == [200] * 5
    assert status(r, "/v1/models") == 404 and r.get("/metrics").status == 404
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    r.reload(admin=of_path(path, socket_mode="0660", socket_group=grp.getgrgid(os.getegid()).gr_name))
    assert oct(path.stat().st_mode & 0o777) == "0o660" and r.metric("generation") == 1
    r.reload(admin=of_path(path, socket_mode="0660", socket_group="no-such-group"))
    assert oct(path.stat().st_mode & 0o777) == "0o600" and len(r.lines("admin.listen: only its owner can connect")) == 1
    r.reload(admin={"listen": []})
    assert not path.exists() and r.get("/metrics").status == 200
    r.reload(admin=of_path(path))
    path.unlink()
    r.reload(admin=of_path(path), workers=1)
    assert status(r, "/metrics") == 200, "a file that somebody has removed is made again"
    r.kill(signal.SIGTERM)
    wait("its end", lambda: r.p.poll() is not None)
    assert not path.exists()


def test_the_file_of_a_dead_router_is_replaced_and_that_of_a_live_one_is_not(world, path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))
    r, p, d = world.pd(admin=of_path(path))
    assert status(r, "/live") == 200
    other, _, _ = world.pd()
    other.change(admin=of_path(path))
    assert re.search(r"admin.listen: unix:.*: cannot listen: another process listens there", other.ctl("reload").stderr)
    assert status(r, "/live") == 200
    other.change(admin=of_path(other.control))
    assert "has the path of the control_socket" in other.ctl("reload").stderr
    other.change(admin={"listen": []})


@pytest.mark.parametrize("kept", [True, False], ids=["with its file", "without"])
def test_systemd_keeps_a_unix_socket(world, path, kept):
    """It may have removed the file's directory meanwhile: then the socket is of no use."""
    manager = Manager(world)
    with manager.watches():
        r, _, _ = world.pd(admin=of_path(path))
    while not any(s.getsockname() == str(path) for s in manager.stored):
        manager.until("FDSTORE=1")
    r.kill(signal.SIGTERM)
    wait("its end", lambda: r.p.poll() is not None)
    assert path.exists()
    if not kept:
        path.unlink()
    fd = next(s.fileno() for s in manager.stored if s.getsockname() == str(path))
    with open(world.file("again"), "wb") as log:
        run = subprocess.Popen(["bash", "-c", "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=pdrouter; "
                                f"exec {BIN}/pdrouter -c {r.config_path} --host 127.0.0.1 --port {free_port()} 3<&{fd}"], pass_fds=[fd], stderr=log)
    try:
        wait("it listens", lambda: b"in force" in Path(log.name).read_bytes())
        assert (b'"socket passed"' in Path(log.name).read_bytes()) == kept
        with Client(str(path)) as c:
            assert c.get("/live").status == 200
    finally:
        run.terminate()
        assert run.wait(10) == 0
        manager.close()
    assert not path.exists()
