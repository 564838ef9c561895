"""pdctl fleet plan, apply and roll on a host without systemd: the runner starts the simulator and the router itself.  The host
becomes what the fleet file says, one engine of a role at a time, and no request of the load fails."""
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
import yaml

from procs import BIN, MODEL, ROOT, SLOW, Load, alive, free_port, metric_sum, parse_metrics, wait
from raw import Client

TEMPLATES = ROOT / "etc" / "fleet"


class Host:
    """A fleet file of this host, and the folder below which `--plain` keeps everything."""

    templates = ("-t", TEMPLATES)
    address = "127.0.0.1"  # of the router

    def __init__(self, world, prefill, decode, name="f"):
        self.world, self.name, self.dir, self.path = world, name, world.file("host"), world.file("fleet", "yaml")
        self.ports = {r: [(free_port(), free_port()) for _ in range(4)] for r in ("prefill", "decode")}
        self.port = free_port()
        self.replicas = {"prefill": prefill, "decode": decode}
        self.args = {"prefill": [], "decode": []}
        self.program, self.config, self.has_router = [str(BIN / "pdsim")], {}, True

    def group(self, role):
        n = self.replicas[role]
        return {"replicas": n, "args": list(self.args[role]), "overrides": [
            {"replica": i, "ports": {"api": api, "side": side}} for i, (api, side) in enumerate(self.ports[role][:n])]}

    def write(self):
        command = [*self.program, "--role", "${role}", "--host", "${address}", "--port", "${port.api}",
                   "--side-port", "${port.side}", "--model", "${served_as}", "--name", "${name}", "--token-delay", "2"]
        router = {"hosts": ["here"], "listen": [f"127.0.0.1:{self.port}"], "pool": {"queue_size": 0, "retries": 0, "fallback": "none"},
                  "config": {"control_socket": str(self.dir / "ctl"), "workers": 1, "rise": 1, "fall": 1, "health_interval": "50ms",
                             **self.config}}
        self.path.write_text(yaml.safe_dump({
            "fleet": self.name, "model": {"path": "/nowhere", "served_as": MODEL}, "connector": "nixl",
            "engine": {"kind": "vllm", "version": "0.33", "command": command}, "hosts": {"here": {"address": "127.0.0.1"}},
            "prefill": self.group("prefill"), "decode": self.group("decode"),
            **({"router": router} if self.has_router else {})}, sort_keys=False))

    def line(self, command, *args):
        self.write()
        return [BIN / "pdctl", "fleet", command, "-f", self.path, *self.templates, "--host", "here", "--plain", self.dir, *map(str, args)]

    def do(self, command, *args, code=0):
        """What it prints."""
        done = subprocess.run(self.line(command, *args), capture_output=True, text=True, timeout=60 * SLOW)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def pids(self):
        """{unit: pid} of those that run."""
        found = {p.stem.removeprefix("pdrouter-engine@"): int(p.read_text().split()[0]) for p in self.dir.glob("run/*.pid")}
        return {unit: pid for unit, pid in found.items() if alive(pid)}

    def files(self):
        return {str(p.relative_to(self.dir)): p.read_bytes() for p in self.dir.glob("etc/**/*") if p.is_file()}

    def ask(self, _=0):
        with Client((self.address, self.port)) as c:
            answer = c.post("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 20, "stream": True})
            assert answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n"), answer.body

    def stream(self, n=250):
        """The head of its answer has come; its events take half a second."""
        c = Client((self.address, self.port))
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": n, "stream": True})
        assert c.read(head_only=True).status == 200
        return c

    def is_up(self, role, i):
        """What the router says of the engine."""
        with Client(("127.0.0.1", self.port)) as c:
            samples = parse_metrics(c.get("/metrics").body.decode(), "pdrouter_endpoint_up")
        return metric_sum(samples, "pdrouter_endpoint_up", {"engine": f"http://127.0.0.1:{self.ports[role][i][0]}"}) == 1

    def crash(self, role, i):
        os.kill(self.pids()[f"{self.name}-{role}-{i}"], signal.SIGKILL)
        wait("its router to know", lambda: not self.is_up(role, i))

    @contextlib.contextmanager
    def load(self, n=4):
        """Streams all the time, of which none fails."""
        load = Load(n, self.ask)
        try:
            yield load
            wait("some more answers", lambda at=load.done: load.done > at + n or load.bad)
        finally:
            load.stop()
        assert not load.bad, load.bad[:3]

    def end(self):
        for pid in self.pids().values():
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            wait("its end", lambda p=pid: not alive(p))


@pytest.fixture
def make(world):
    hosts = []

    def new(*args, kind=Host, **kw):
        hosts.append(kind(world, *args, **kw))
        return hosts[-1]
    yield new
    for host in hosts:
        host.end()


def actions(text, *words):
    return [line for line in text.splitlines() if line.split()[0] in words]


def test_from_nothing_to_nothing_to_do(make):
    host = make(1, 1)
    assert actions(host.do("plan", code=3), "start") == ["start pdrouter", "start f-prefill-0", "start f-decode-0"]
    assert not host.files() and not host.pids()
    host.do("apply")
    host.ask()
    pids, files = host.pids(), host.files()
    assert set(pids) == {"pdrouter", "f-prefill-0", "f-decode-0"} and len(files) == 5
    assert host.do("apply") == "" and host.do("plan") == ""
    assert (host.pids(), host.files()) == (pids, files)


def test_a_change_goes_from_engine_to_engine_under_load(make):
    host = make(2, 2)
    host.do("apply")
    before = host.pids()
    host.args["decode"] = ["--blocks", "500"]
    plan = host.do("plan", code=3)
    assert '"--blocks" "500"' in plan and actions(plan, "restart") == ["restart f-decode-0", "restart f-decode-1"]
    with host.load():
        done = host.do("apply")
    assert actions(done, "drain", "restart", "undrain") == [f"{w} f-decode-{i}" for i in (0, 1) for w in ("drain", "restart", "undrain")]
    after = host.pids()
    assert {u for u in before if before[u] != after[u]} == {"f-decode-0", "f-decode-1"}
    assert not [f for f in host.files() if f.endswith((".former", ".new"))]


def test_roll_restarts_all_under_load(make):
    host = make(2, 2)
    host.do("apply")
    before = host.pids()
    with host.load():
        host.do("roll")
    after = host.pids()
    assert {u for u in before if before[u] == after[u]} == {"pdrouter"}
    host.args["decode"] = ["--blocks", "500"]
    assert "apply it first" in host.do("roll", code=1)


def test_scaled_up_and_down_under_load(make):
    host = make(2, 1)
    host.do("apply")
    with host.load():
        host.replicas["decode"] = 2
        host.do("apply")
        assert len(host.pids()) == 5
        host.replicas.update(prefill=1)
        plan, done = host.do("plan", code=3), host.do("apply")
    removed = actions(done, "drain", "stop", "remove")
    assert len(removed) == 4 and actions(plan, "drain", "stop", "remove") == removed
    assert actions(done, "drain", "stop", "reload") == ["drain f-prefill-1", "stop f-prefill-1", "reload pdrouter"]
    assert "f-prefill-1" not in host.pids() and not [f for f in host.files() if "prefill-1" in f]
    assert host.do("plan") == ""


def test_an_engine_that_cannot_start_goes_back_to_its_former_files(make):
    host = make(2, 2)
    host.do("apply")
    files, before = host.files(), host.pids()
    host.args["prefill"] = ["--no-such-option"]
    with host.load():
        done = host.do("apply", code=1)
    assert "no-such-option" in done and "restart f-prefill-0 (former files)" in done and "f-prefill-1: not restarted\n" in done
    after = host.pids()
    assert host.files() == files and {u for u in before if before[u] != after[u]} == {"f-prefill-0"}
    host.args["prefill"] = []
    assert host.do("plan") == ""


def test_the_only_engine_of_a_role_needs_yes(make):
    host = make(1, 1)
    host.do("apply")
    before = host.pids()
    host.args["prefill"] = ["--blocks", "500"]
    assert "the only prefill engine" in host.do("apply", code=1)
    assert host.pids() == before
    host.do("apply", "--yes")
    host.ask()
    assert host.pids()["f-prefill-0"] != before["f-prefill-0"]


def test_what_a_killed_apply_leaves_the_next_one_finishes(make):
    host, rnd, kills = make(2, 2), random.Random(os.environ.get("PDR_SEED", "7")), int(os.environ.get("PDR_KILLS", "5"))
    host.do("apply")
    with host.load():
        for n in range(kills):
            host.args["decode"] = ["--blocks", 501 + n]
            p = subprocess.Popen(list(map(str, host.line("apply"))), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rnd.uniform(0, 0.25))
            p.kill()
            p.wait()
        host.do("apply")
    assert host.do("apply") == "" and not [f for f in host.files() if f.endswith((".former", ".new"))]
    runs = [open(f"/proc/{host.pids()[f'f-decode-{i}']}/cmdline").read() for i in (0, 1)]
    assert all(f"\0--blocks\0{500 + kills}\0" in line for line in runs)


def test_an_engine_that_died_is_started_and_a_drain_is_ended(make):
    host = make(1, 1)
    host.do("apply")
    os.kill(host.pids()["f-decode-0"], signal.SIGKILL)
    wait("its end", lambda: "f-decode-0" not in host.pids())
    assert actions(host.do("apply"), "start") == ["start f-decode-0"]
    url = f"http://127.0.0.1:{host.ports['prefill'][0][0]}"
    subprocess.run([BIN / "pdctl", "-s", host.dir / "ctl", "drain", url], check=True, stdout=subprocess.DEVNULL)
    assert "f-prefill-0  running  healthy  router draining  in-flight 0" in host.do("status")
    assert host.do("plan", "--keep-drains") == "" and host.do("apply", "--keep-drains") == ""
    assert host.do("plan", code=3) == "undrain f-prefill-0\n"
    assert host.do("apply") == "undrain f-prefill-0\n"
    host.ask()


def test_an_engine_that_fails_is_not_left_drained(make):
    """It has no former files to go back to, and serves later than it should."""
    host = make(1, 2)
    host.program[:0] = ["/bin/sh", "-c", 'while [ -e "$0" ]; do sleep 0.05; done; exec "$@"', str(host.dir / "late")]
    host.do("apply")
    (host.dir / "late").touch()
    done = host.do("roll", "--start-timeout", 1, code=1)
    assert actions(done, "drain", "restart", "undrain") == [f"{w} f-decode-0" for w in ("drain", "restart", "undrain")]
    (host.dir / "late").unlink()
    assert host.do("plan") == ""


def test_an_engine_that_ends_while_apply_runs_is_started(make):
    """It ran as the file says when apply looked: a stop of a killed roll may still have been on its way."""
    host = make(1, 1)
    host.do("apply")
    before = host.pids()
    os.kill(before["f-prefill-0"], signal.SIGKILL)
    wait("its end", lambda: "f-prefill-0" not in host.pids())
    with subprocess.Popen(list(map(str, host.line("apply"))), stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "start f-prefill-0\n"
        os.kill(before["f-decode-0"], signal.SIGKILL)
        assert actions(p.stdout.read(), "start") == ["start f-decode-0"]
    assert p.returncode == 0 and host.do("plan") == ""


def test_an_engine_that_its_router_takes_for_down_does_not_serve(make):
    """It has become healthy before its router says up.  The other engine is not taken away."""
    host = make(1, 2)
    host.config = {"rise": 1000, "health_timeout": "1s"}  # the router does not say up again while the test runs
    host.do("apply")
    os.kill(host.pids()["f-decode-1"], signal.SIGSTOP)
    wait("its router to know", lambda: not host.is_up("decode", 1))
    os.kill(host.pids()["f-decode-1"], signal.SIGCONT)
    host.args["decode"] = ["--blocks", "500"]
    with host.load(), subprocess.Popen(list(map(str, host.line("apply"))), stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "drain f-decode-1\n"
        p.kill()


def test_a_file_that_is_not_its_own_is_never_touched(make):
    host = make(1, 1)
    own = host.dir / "etc/systemd/system/pdrouter-engine@f-decode-9.service.d/engine.conf"
    own.parent.mkdir(parents=True)
    own.write_text("# mine\n[Service]\nExecStart=/bin/true\n")
    host.do("apply")
    router = host.dir / "etc/pdrouter/pdrouter.yaml"
    mine = router.read_text().replace("fleet f:", "fleet g:")
    router.write_text(mine)
    host.args["decode"] = ["--blocks", "500"]
    before = host.files()
    assert "move it away" in host.do("apply", "--yes", code=1)
    assert host.files() == before and own.read_text().startswith("# mine")


def test_an_engine_that_hides_its_environment(make):
    """As setproctitle does: what runs is told by the time of its start."""
    host = make(1, 1)
    host.program[:0] = ["/usr/bin/env", "-i"]
    host.do("apply")
    assert host.do("apply") == ""
    host.args["decode"] = ["--blocks", "500"]
    assert actions(host.do("apply", "--yes"), "restart") == ["restart f-decode-0"]
    assert host.do("apply") == ""


def test_an_engine_that_hides_its_address_is_drained(make):
    """Its address is in its environment file; the file of the fleet may have another one by now."""
    host = make(1, 2)
    host.program[:0] = ["/usr/bin/env", "-i"]
    host.do("apply")
    host.ports["decode"][0] = (free_port(), free_port())
    with host.load():
        assert actions(host.do("apply"), "drain", "restart") == ["drain f-decode-0", "restart f-decode-0"]
        host.replicas["decode"] = 1
        assert actions(host.do("apply"), "drain", "stop") == ["drain f-decode-1", "stop f-decode-1"]


def test_two_at_once_take_turns(make):
    host = make(1, 1)
    both = [subprocess.Popen(list(map(str, host.line("apply"))), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [p.communicate(timeout=60 * SLOW)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert sorted(len(actions(text, "start")) for text in said) == [0, 3] and len(host.pids()) == 3


# --- files that a killed apply has left, and files of others

def test_a_former_router_file_that_a_killed_apply_left_is_not_taken_for_the_last_good_one(make):
    """It was killed between the router's OK and the removal."""
    host = make(1, 1)
    host.do("apply")
    router = host.dir / "etc/pdrouter/pdrouter.yaml"
    good, former = router.read_text(), router.with_suffix(".yaml.former")
    former.write_text(good + "# of long ago\n")
    host.do("apply")
    assert not former.exists() and router.read_text() == good
@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_one_of_two_has_crashed_and_the_file_has_one(make, yes):
    """The one that goes serves until the crashed one does; with --yes it does not wait."""
    host = make(1, 2)
    host.do("apply")
    os.kill(host.pids()["f-decode-0"], signal.SIGKILL)
    wait("its end", lambda: "f-decode-0" not in host.pids())
    host.replicas["decode"] = 1
    done = actions(host.do("apply", "--start-timeout", 5, *yes), "start", "stop")
    assert done == ["start f-decode-0", "stop f-decode-1"][::-1 if yes else 1]
    assert set(host.pids()) == {"pdrouter", "f-prefill-0", "f-decode-0"}


def test_one_of_two_has_crashed_in_both_roles_and_the_file_has_one_of_each(make):
    """Each engine that goes waits for the crashed one of its role, which no engine that goes of the other role holds up."""
    host = make(2, 2)
    host.do("apply")
    host.crash("prefill", 0)
    host.crash("decode", 0)
    host.replicas.update(prefill=1, decode=1)
    with host.load():
        done = actions(host.do("apply", "--start-timeout", 5), "start", "stop")
    assert sorted(done) == ["start f-decode-0", "start f-prefill-0", "stop f-decode-1", "stop f-prefill-1"]
    assert done[0].startswith("start") and host.do("plan") == ""


def test_an_engine_that_hangs_is_restarted_before_the_one_that_goes(make):
    """The other role starts its crashed engine when the GPUs of the one that goes are free."""
    host, late = make(2, 1), ["/bin/sh", "-c", 'while [ -e "$0" ]; do sleep 0.05; done; exec "$@"', None]
    late[-1], plain = str(host.dir / "late"), host.program
    host.program = late + plain
    host.do("apply")
    (host.dir / "late").touch()
    host.crash("prefill", 0)
    with subprocess.Popen(list(map(str, host.line("apply"))), stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "start f-prefill-0\n"
        wait("it to hang", lambda: "f-prefill-0" in host.pids())
        p.kill()
    host.crash("decode", 0)
    host.program, host.replicas["prefill"] = plain, 1
    done = actions(host.do("apply", "--start-timeout", 5), "start", "restart", "stop")
    assert done == ["restart f-prefill-0", "stop f-prefill-1", "start f-decode-0"] and host.do("plan") == ""


class HostOfQueues(Host):
    """The shared memory of a running router has places for so many, whatever its file says later."""
    queue, places = 0, 1

    def write(self):
        super().write()
        fleet = yaml.safe_load(self.path.read_text())
        fleet["router"]["pool"]["queue_size"] = self.queue
        fleet["router"]["config"]["shared_memory"] = {"queue": self.places}
        self.path.write_text(yaml.safe_dump(fleet))


def test_a_router_file_that_is_refused_goes_back_to_the_one_in_force(make):
    """Not to one that was in force before, and that a killed apply has left."""
    host = make(1, 1, kind=HostOfQueues)
    host.do("apply")
    router = host.dir / "etc/pdrouter/pdrouter.yaml"
    good, former = router.read_text(), router.with_suffix(".yaml.former")
    former.write_text(good.replace("rise: 1", "rise: 2"))
    host.queue = host.places = 100
    assert "queue_size" in host.do("apply", code=1)
    assert not former.exists() and router.read_text() == good
    host.queue, host.places = 0, 1
    assert host.do("plan") == ""


def test_files_of_an_engine_whose_first_apply_was_killed_are_removed(make):
    """It had written the environment file, which may hold keys, or a part of it, and no drop-in."""
    host = make(1, 1)
    host.do("apply")
    folder, before = host.dir / "etc/pdrouter/fleet", host.files()
    ours = (folder / "f-decode-0.env").read_text()
    left = {"f-decode-1.env": ours, "f-decode-2.env.new": ours.splitlines(keepends=True)[0]}
    kept = {"f-decode-3.env": "KEY=mine\n", "g-decode-1.env": ours, "f-decode-x.env": ours}
    for name, text in {**left, **kept}.items():
        (folder / name).write_text(text)
    plan = host.do("plan", code=3)
    assert sorted(plan.splitlines()) == [f"remove {folder}/f-decode-{n}.env" for n in (1, 2)]
    assert host.do("apply") == plan
    assert host.do("plan") == "" and {p.name for p in folder.iterdir()} >= set(kept)
    assert host.files() == {**before, **{f"etc/pdrouter/fleet/{n}": t.encode() for n, t in kept.items()}}


def test_a_file_that_an_engine_no_longer_needs_is_removed(make):
    """Such as that of LMCache, when the connector is another one now."""
    host = make(1, 1)
    host.do("apply")
    ours, before = (host.dir / "etc/pdrouter/fleet/f-decode-0.env").read_text(), host.files()
    old, mine = (host.dir / f"etc/pdrouter/fleet/f-{role}-0.yaml" for role in ("decode", "prefill"))
    old.write_text(ours.splitlines(keepends=True)[0] + "chunk_size: 256\n")
    mine.write_text("mine\n")
    assert host.do("plan", code=3) == f"remove {old}\n"
    assert f"remove {old}" in host.do("status", code=3)
    assert host.do("apply") == f"remove {old}\n" and host.do("plan") == ""
    mine.unlink()
    assert host.files() == before


def test_requests_that_were_cut_do_not_keep_the_router_from_its_file(make):
    """The exit code is 1; the rest of apply is done."""
    host = make(1, 2)
    host.do("apply")
    streams, host.replicas["decode"] = [host.stream(2000) for _ in range(4)], 1
    done = host.do("apply", "--drain-timeout", 0, code=1)
    assert "f-decode-1: was stopped after --drain-timeout although requests were left\n" in done
    assert actions(done, "stop", "reload") == ["stop f-decode-1", "reload pdrouter"] and host.do("plan") == ""
    for s in streams:
        s.close()


def test_remove_is_the_end_of_a_fleet_on_its_host(make):
    """Without --yes it shows what it would do.  A file of the user stays."""
    host = make(1, 2)
    assert host.do("remove") == ""
    host.do("apply")
    before, files = host.pids(), host.files()
    mine = host.dir / "etc/systemd/system/pdrouter-engine@f-decode-0.service.d/mine.conf"
    mine.write_text("[Service]\n")
    plan = host.do("remove", code=1)
    assert "say --yes" in plan and host.pids() == before and set(host.files()) == {*files, str(mine.relative_to(host.dir))}
    done = host.do("remove", "--yes")
    assert sorted(actions(plan, "drain", "stop", "remove")) == sorted(actions(done, "drain", "stop", "remove"))
    assert done.splitlines()[-2:] == ["stop pdrouter", f"remove {host.dir}/etc/pdrouter/pdrouter.yaml"]
    assert not host.pids() and not any(alive(pid) for pid in before.values()) and list(host.files()) == [str(mine.relative_to(host.dir))]
    assert host.do("remove", "--yes") == ""


# --- the router's control socket

class HostOfDefaults(Host):
    """The file says nothing about the control socket, or names that of another router."""
    control = {}

    def write(self):
        super().write()
        fleet = yaml.safe_load(self.path.read_text())
        del fleet["router"]["config"]["control_socket"]
        fleet["router"]["config"].update(self.control)
        self.path.write_text(yaml.safe_dump(fleet))


def test_plain_keeps_the_control_socket_below_its_folder(make):
    host = make(1, 1, kind=HostOfDefaults)
    host.do("apply")
    assert (host.dir / "run/control.sock").is_socket() and host.do("plan") == ""
    assert f"control_socket: \"{host.dir}/run/control.sock\"\n" in (host.dir / "etc/pdrouter/pdrouter.yaml").read_text()


def test_a_router_of_another_configuration_is_not_taken_for_the_fleets(world, make):
    nobody = ["http://127.0.0.1:1"]
    other = world.router(world.pool(nobody, nobody), wait_for=None)
    wait("it to answer", lambda: other.ctl("ping").returncode == 0)
    host = make(1, 1, kind=HostOfDefaults)
    host.control = {"control_socket": str(other.control)}
    for command in ("plan", "apply", "status"):
        assert f"process {other.pid}, with {other.config_path}; " in host.do(command, code=1)
    assert not host.files() and not host.pids()
