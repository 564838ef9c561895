"""Upgrades: a new instance takes the place of a running one, and nothing that is asked meanwhile is lost."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess

import pytest

import expect
from manager import Manager
from procs import BIN, MODEL, SLOW, Load, alive, free_port, tree, wait
from raw import text_of
from test_announce import Announcer, address, status

pytestmark = pytest.mark.usefixtures("reaper")


class Instances:
    """A router whose program stands at a path of its own, so that it can be replaced."""

    def __init__(self, world, *pools, **keys):
        self.world, self.path, self.old = world, world.file("pdrouter"), []
        shutil.copy(BIN / "pdrouter", self.path)
        self.r = world.router(*pools, program=self.path, **{"upgrade_trial": "50ms", **keys})

    def install(self, text):
        """A script in place of the program; $REAL is the program."""
        new = self.path.with_suffix(".new")
        new.write_text(f"#!/bin/sh\nREAL={BIN / 'pdrouter'}\n{text}\n")
        new.chmod(0o755)
        new.rename(self.path)

    def upgrade(self):
        done = self.r.ctl("upgrade")
        assert done.returncode == 0, done.stdout + done.stderr
        self.follow()
        return done.stdout

    def follow(self):
        """The newest instance is the one that is asked and checked from now on."""
        pid = wait("the new instance", lambda: self.r.status()["pid"] not in (self.r.pid, *self.old) and self.r.status()["pid"])
        self.old.append(self.r.pid)
        self.r.follow(pid)

    def refused(self, *why):
        """An upgrade that fails leaves everything as it was."""
        done = self.r.ctl("upgrade")
        assert done.returncode == 1 and all(x in done.stderr for x in why), done.stdout + done.stderr
        assert self.r.status()["pid"] == self.r.pid and self.r.complete().status == 200
        return done

    def only_one_left(self):
        wait("the older instances to go", lambda: self.r.metric("old_instances") == 0)
        wait("their processes too", lambda: not any(alive(pid) for pid in self.old))


@pytest.fixture
def one(world):
    def make(**keys):
        p, d = world.engine("prefill", token_delay=10), world.engine("decode", token_delay=10)
        return Instances(world, world.pool([p], [d]), workers=1, **keys), p, d
    return make


def test_a_refused_upgrade_leaves_the_control_socket_alone(one):
    i, _, _ = one()
    i.r.change(control_socket_mode="0666", admin={"listen": ["203.0.113.7:9101"]})
    i.refused("cannot listen")
    assert i.r.control.stat().st_mode & 0o777 == 0o600
    i.r.change(admin={"listen": []})
    i.upgrade()
    assert i.r.control.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("init", [[], ["sh", "-c", '"$0" "$@" & wait']], ids=["process 1", "below an init"])
def test_a_container_is_not_ended_by_an_upgrade(world, init):
    """Process 1 of a container ends with the one program that it has started, and the container with it."""
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    probe = subprocess.run([*own, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no namespace of processes: {probe.stderr.strip()}")
    conf, control = world.file("container.yaml"), world.file("container.sock")
    pool = world.pool([world.engine("prefill")], [world.engine("decode")])

    def ctl(command):
        return subprocess.run([BIN / "pdctl", "-s", control, command], capture_output=True, text=True, check=False)

    conf.write_text(json.dumps({"listen": [f"127.0.0.1:{free_port()}"], "control_socket": str(control), "pools": [pool]}))
    with subprocess.Popen([*own, *init, BIN / "pdrouter", "-c", conf], stderr=subprocess.DEVNULL) as container:
        try:
            wait("the router", lambda: "state=serving" in ctl("status").stdout)
            done = ctl("upgrade")
            assert done.returncode == 1 and "start another container" in done.stderr, done.stdout + done.stderr
            assert "instance=1" in ctl("status").stdout
        finally:
            container.kill()


def test_operators_keep_their_address(one):
    i, _, _ = one(admin={"listen": [f"127.0.0.1:{free_port()}"]})
    i.upgrade()
    assert i.r.metric("instance") == 2 and i.r.get("/metrics").status == 404


def begins(d, running):
    """Each stream of a paused engine sends another event: the last one has its head then, however long an upgrade takes."""
    d.wait_metric("pdsim:running_requests", running)
    d.step(1)


def test_streams_outlive_two_upgrades(one):
    i, _, d = one()
    streams, tokens = [], 20
    d.pause()
    for n in (1, 2):
        streams.append(i.r.open_stream(f"s{n}", n=tokens))
        begins(d, n)
        streams[-1].head()
        assert i.upgrade() == f"instance {n + 1} serves, pid {i.r.pid}\n"
    assert i.r.metric("instance") == 3 and i.r.complete(max_tokens=2).status == 200
    wait("both are seen", lambda: (i.r.metric("old_instances"), i.r.metric("old_instances_requests")) == (2, 2))
    assert [x["instance"] for x in i.r.status()["older"]] == [1, 2]
    d.go_on()
    for n, c in enumerate(streams, 1):
        assert text_of(list(c.events())) == expect.text(f"s{n}", tokens)
    i.only_one_left()
    assert i.r.metric("requests_in_flight") == 1 and len(d.requests()) == 3


def test_nobody_is_refused_or_reset(one):
    i, _, _ = one()
    load = Load(4, lambda n: i.r.complete(f"p{n}", max_tokens=n))
    for _ in range(3):
        i.r.kill(signal.SIGUSR2)
        i.follow()
    load.stop()
    assert load.bad == [] and load.done > 10
    i.only_one_left()


def test_a_wrong_configuration(one):
    i, _, _ = one()
    i.r.change(workers="many")
    i.refused("the new program cannot start with this configuration", f"{i.r.config_path}:4: workers: many")
    assert i.r.metric("upgrades_failed_total") == 1
    i.r.change(workers=1)
    i.upgrade()


@pytest.mark.parametrize("text, why", [
    ("echo error while loading shared libraries: libx.so >&2; exit 127", "libx.so"),
    ('[ "$1" = -t ] && exit 0; kill -9 $$', "ended before it could serve"),
    ('[ "$1" = -t ] && exit 0; PDR_UPGRADE=instance=x exec "$REAL" "$@"', "ended before it could serve")], ids=["library", "crash", "words"])
def test_a_program_that_cannot_start(one, text, why):
    i, _, _ = one()
    i.install(text)
    i.refused(why)


def test_a_program_that_is_not_there(one):
    i, _, _ = one()
    i.path.unlink()
    i.refused("No such file or directory")


def test_an_address_that_is_taken_is_said(one):
    """The new instance reports what it has logged as an error."""
    i, _, _ = one()
    with socket.create_server(("127.0.0.1", 0)) as s:
        i.r.change(listen=[*i.r.config["listen"], f"127.0.0.1:{s.getsockname()[1]}"])
        i.refused("Address already in use")


def test_a_new_instance_that_dies_in_its_trial(one):
    """The older one serves again, with its drains and weights."""
    i, _, d = one(upgrade_trial="60s")
    held = i.r.open_stream("held", n=60)
    held.head()
    first = i.r.pid
    i.r.kill(signal.SIGUSR2)
    pid = wait("the new instance", lambda: i.r.status()["pid"] != first and i.r.status()["pid"])
    workers = tree(pid)
    assert i.r.ctl("weight", d.url, "7").returncode == 0, "the older one hears of it"
    os.kill(pid, signal.SIGKILL)
    i.r.wait_log("the new instance has ended in its trial")
    assert [e["weight"] for e in i.r.status()["fleet"]["endpoints"] if e["url"] == d.url] == [7]
    wait("its workers have ended, too", lambda: not any(alive(w) for w in workers))
    assert i.r.complete("after").status == 200 and i.r.status()["pid"] == first
    assert text_of(list(held.events())) == expect.text("held", 60)
    i.r.change(upgrade_trial="50ms")
    assert i.r.ctl("reload").returncode == 0
    i.upgrade()
    assert i.r.metric("instance") == 2 and i.r.complete().status == 200


def test_workers_that_die_again_and_again_in_the_trial(one):
    """The new master gives up, though nothing is wrong with it."""
    i, _, _ = one(upgrade_trial="60s")
    first = i.r.pid
    i.r.kill(signal.SIGUSR2)
    pid = wait("the new instance", lambda: i.r.status()["pid"] != first and i.r.status()["pid"])

    def killed():
        for worker in tree(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return not alive(pid)
    wait("its end", killed)
    i.r.wait_log("upgrade failed, .*the new instance has ended in its trial: a worker dies again and again")
    assert i.r.complete().status == 200 and i.r.status()["pid"] == first


def test_the_newest_is_killed_when_the_trial_is_over(one, world):
    """Nothing of the older instance is in the way of a fresh start: no lock and no socket."""
    i, _, _ = one(state_file=str(world.dir / "state.json"))
    held = i.r.open_stream("held", n=5000)
    held.head()
    i.upgrade()
    i.r.kill(signal.SIGKILL)
    with pytest.raises(ConnectionRefusedError):
        wait("new clients are refused", lambda: socket.create_connection(i.r.address).close())
    fresh = world.router(wait_for=None, **i.r.config)
    fresh.port, fresh.control = i.r.port, i.r.control
    fresh.wait_for("ready")
    assert fresh.complete().status == 200 and "state_file" not in fresh.log() and next(held.events())
    held.close()
    assert i.r.p.before.wait(10 * SLOW) == 0
    world.routers.remove(i.r)


def test_words_of_another_version(one):
    i, _, _ = one()
    i.install('[ -z "$PDR_UPGRADE" ] || PDR_UPGRADE="later=77:x $PDR_UPGRADE even" exec "$REAL" "$@"\nexec "$REAL" "$@"')
    i.upgrade()
    assert i.r.complete().status == 200


@pytest.mark.parametrize("disk", ["none", "file", "full"])
def test_drains_go_with_it(one, world, disk):
    path = world.dir / "state.json"
    i, _, _ = one(**({} if disk == "none" else {"state_file": str(path)}))
    other = world.engine("decode")
    i.r.reload(pools=[{**i.r.config["pools"][0], "decode": [*i.r.config["pools"][0]["decode"], {"url": other.url}]}])
    if disk == "full":
        path.with_name("state.json.new").mkdir()
    assert i.r.ctl("drain", other.url).returncode == 0
    held = i.r.open_stream(n=1000)  # the older instance, which has the lock of the file, stays
    held.head()
    i.upgrade()
    assert [e["url"] for e in i.r.status()["fleet"]["endpoints"] if e["drained"]] == [other.url]
    assert [i.r.complete().status for _ in range(4)] == [200] * 4 and not other.requests()
    assert i.r.ctl("undrain", other.url).returncode == 0
    assert disk != "file" or other.url not in path.read_text()
    held.close()


def test_systemd_follows_the_new_instance(one, world):
    """It is told the new main process, which alone speaks from then on."""
    manager = Manager(world)
    with manager.watches():
        i, _, _ = one()
    manager.until("FDSTORE=1")
    i.upgrade()
    i.only_one_left()
    said = [text.split()[0] for text in manager.until("FDSTORE=1")]
    assert said == [f"MAINPID={i.r.pid}", "READY=1", "FDSTORE=1"] and manager.silent()
    manager.close()


def test_it_serves_when_each_engine_was_probed(one):
    i, _, d = one(health_timeout="300ms")
    d.kill(signal.SIGSTOP)
    i.r.kill(signal.SIGUSR2)
    i.follow()
    assert "starting" not in [e["state"] for e in i.r.status()["fleet"]["endpoints"]]
    d.kill(signal.SIGCONT)
    i.r.wait_all_up()


def test_a_drain_waits_for_older_instances(one):
    i, _, d = one()
    d.pause()
    streams = []
    for n in (1, 2):
        streams.append(i.r.open_stream(f"s{n}", n=20))
        d.wait_metric("pdsim:running_requests", n)
        i.upgrade()
    over = i.r.ctl("drain", d.url, "--wait", "--timeout", "0")
    assert over.returncode == 3 and "Older instances: 2 in flight, 0 KV outstanding.\n" in over.stdout and "2 still in flight" in over.stderr
    d.go_on()
    assert i.r.ctl("drain", d.url, "--wait").returncode == 0
    assert d.metric("pdsim:running_requests") == 0


def test_a_drain_reaches_the_queues_of_older_instances(world):
    p, d = world.engine("prefill"), world.engine("decode", token_delay=10)
    i = Instances(world, world.pool([p], [{"url": d.url, "max_inflight": 1}], queue_size=5, queue_timeout="30s"), workers=1)
    d.pause()
    held = i.r.open_stream("held", n=20)
    begins(d, 1)
    held.head()
    waits = i.r.open_stream("waits")
    i.r.wait_metric("queue_waiting", 1)
    i.upgrade()
    assert i.r.ctl("drain", d.url).returncode == 0
    assert waits.head().status == 503
    assert i.r.ctl("undrain", d.url).returncode == 0
    i.r.wait_all_up()  # it is starting first
    d.go_on()
    assert i.r.complete().status == 200


def test_an_older_instance_that_is_silent(one):
    """Who must know that nothing goes to the engine is told that this is not known."""
    i, _, d = one()
    held = i.r.open_stream("held", n=2000)
    held.head()
    i.upgrade()
    os.kill(i.old[0], signal.SIGSTOP)
    done = i.r.ctl("drain", d.url, "--wait")
    os.kill(i.old[0], signal.SIGCONT)
    assert done.returncode == 1 and "an older instance does not answer" in done.stderr
    assert next(held.events()), "the older instance goes on"
    held.close()


def test_during_a_reload(one):
    i, _, _ = one()
    for workers in 2, 3:
        i.r.change(workers=workers)
        i.r.kill(signal.SIGHUP)
        i.r.kill(signal.SIGUSR2)
        i.follow()
        wait("workers", lambda n=workers: i.r.metric("workers") == n)
    i.only_one_left()


def test_a_reload_is_over_for_systemd_before_an_upgrade(one, world, monkeypatch):
    fifo, path = world.dir / "fifo", str(world.dir / "notify")
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(5 * SLOW)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        i, _, _ = one()
        assert b"READY=1" in sock.recv(4096)
        i.install(f"exec cat {fifo}")
        i.r.change(workers=2)
        for sig, word in (signal.SIGHUP, b"RELOADING=1"), (signal.SIGUSR2, b"READY=1"):
            i.r.kill(sig)
            next(x for x in iter(lambda: sock.recv(4096), b"") if word in x)
    assert not i.r.lines("upgrade failed, this instance serves")
    fifo.write_text("")


def test_other_addresses_and_another_control_socket(one, world):
    i, _, _ = one()
    before, first = i.r.control, i.r.port
    i.r.port, i.r.control = free_port(), world.file("ctl", "sock")
    i.r.change(listen=[f"127.0.0.1:{i.r.port}"], control_socket=str(i.r.control))
    os.kill(i.r.pid, signal.SIGUSR2)
    wait("its socket", lambda: i.r.ctl("status").returncode == 0)  # a socket file is there before anybody listens
    i.follow()
    assert i.r.complete().status == 200
    wait("the older socket is gone", lambda: not before.exists())
    with pytest.raises(ConnectionRefusedError):
        wait("the older port is shut", lambda: socket.create_connection(("127.0.0.1", first)).close())


def test_an_upgrade_takes_the_unix_socket_of_operators(one, world):
    """Its file stays the same one; a connection that waits meanwhile is answered."""
    path = world.file("admin", "sock")
    i, _, _ = one(admin={"listen": [f"unix:{path}"]})
    before = path.stat().st_ino
    i.upgrade()
    i.only_one_left()
    assert path.stat().st_ino == before and i.r.metric("instance") == 2
    i.r.kill(signal.SIGTERM)
    wait("its end", lambda: i.r.p.poll() is not None)
    assert not path.exists()


def test_sigterm_ends_all_instances(one):
    """The newest waits for the older ones: under systemd its end is the end of the service."""
    i, _, _ = one()
    held = i.r.open_stream("held", n=60)
    held.head()
    i.upgrade()
    i.r.kill(signal.SIGTERM)
    assert text_of(list(held.events())) == expect.text("held", 60) and i.r.p.wait(10) == 0
    assert not any(alive(pid) for pid in i.old)


def test_sigterm_limits_all_instances(one):
    i, _, _ = one(drain_timeout="200ms")
    held = i.r.open_stream("held", n=3000)
    held.head()
    i.upgrade()
    i.r.kill(signal.SIGTERM)
    assert list(held.events())[-1].json()["error"] and i.r.p.wait(10) == 0


def test_sigterm_in_the_trial_ends_both(one):
    i, _, _ = one(upgrade_trial="60s")
    i.r.kill(signal.SIGUSR2)
    first = i.r.p
    i.follow()
    i.r.told_to_stop = True
    first.send_signal(signal.SIGTERM)
    assert first.wait(10 * SLOW) == 0 and i.r.p.wait(10 * SLOW) == 0


def test_an_upgrade_limits_the_older_instances(one):
    i, _, d = one(upgrade_drain_timeout="100ms")
    held = i.r.open_stream("held", n=500 * SLOW)
    held.head()
    i.upgrade()
    assert list(held.events())[-1].json()["error"]
    i.only_one_left()


def test_notices_of_lmcache_find_their_instance(world):
    """Transfers of the older instance, and those of the newer one, are never given up for want of a notice."""
    port = free_port()
    p = [world.engine("prefill", handshake="lmcache", proxy=f"127.0.0.1:{port}", notice_late=True, kv_delay=30) for _ in range(2)]
    d = [world.engine("decode", handshake="lmcache", receiver_ports="0", skip_last=1) for _ in range(2)]
    pool = world.pool(p, [{"url": e.url, "receiver_init_port": e.ports["init"], "receiver_alloc_port": e.ports["alloc"]} for e in d],
                      connector="lmcache", tokenize="decode")
    i = Instances(world, pool, workers=1, lmcache={"listen": f"tcp://127.0.0.1:{port}"})
    load = Load(6, lambda n: served(i.r, n))
    for n in range(3):
        wait("requests", lambda n=n: load.done > 20 * n)
        i.upgrade()
    load.stop()
    assert load.bad == []
    i.only_one_left()
    assert "not all notices of its KV came" not in i.r.log()


def served(r, n):
    assert r.complete(f"n{n}").status == 200


def test_announced_engines_go_with_it(world):
    """Each announces itself to one instance, every few seconds."""
    port, p, d = free_port(), world.engine("prefill"), world.engine("decode")
    pool = {"name": "found", "models": [MODEL], "connector": "nixl", "announce_networks": ["127.0.0.0/8"]}
    i = Instances(world, pool, announce={"listen": f"tcp://127.0.0.1:{port}", "forget": "60s"}, wait_for="live")
    for kind, e, kv in ("P", p, "127.0.0.1:21001"), ("D", d, "127.0.0.1:22001"):
        one = Announcer(port, kind, address(e), kv)
        one.speak()
        wait("it is known", lambda e=e: e.url in status(i.r))
        one.close()
    i.r.wait_for("ready")
    i.upgrade()
    assert i.r.complete().status == 200
