"""pdctl fleet on a host whose router is on another one: what is known of it comes from its address for clients."""
import socket
import subprocess
import time

import pytest
import yaml

from procs import wait
from test_fleet_apply import Host, actions, make  # noqa: F401 (a fixture)


def own_address():
    """Of this machine, as other hosts see it: pdctl fleet refuses 127.0.0.1 in a fleet of several hosts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but 127.0.0.1")
        return s.getsockname()[0]


class Far(Host):
    """All engines are here; the router is one of `world`.  Arguments are those of the first replica."""

    def write(self):
        args, self.args = self.args, {"prefill": [], "decode": []}
        super().write()
        self.args = args
        file = yaml.safe_load(self.path.read_text())
        file["hosts"] = {"here": {"address": own_address()}, "there": {"address": "198.51.100.1"}}
        file["router"] |= {"hosts": ["there"], "listen": [f"{own_address()}:{self.port}"]}
        for role in args:
            file[role]["hosts"] = ["here"]
            file[role]["overrides"][0]["args"] = args[role]
        self.path.write_text(yaml.safe_dump(file, sort_keys=False))

    def urls(self, role):
        return [f"http://{own_address()}:{api}" for api, _ in self.ports[role][:self.replicas[role]]]

    def start(self):
        """Engines and router."""
        self.world.listen_host = self.address = own_address()
        router = self.world.router(self.world.pool(self.urls("prefill"), self.urls("decode")), wait_for="live")
        self.port = router.port
        self.do("apply")
        return router


def test_an_engine_that_was_drained_at_the_router(world, make):  # noqa: F811
    """As etc/docs/fleet.md says: the drain stays, and apply does not wait for the router to choose the engine."""
    host = make(1, 2, kind=Far)
    router = host.start()
    url, before = host.urls("decode")[0], host.pids()
    assert router.ctl("drain", url, "--wait").returncode == 0
    host.args["decode"] = ["--blocks", "500"]
    assert actions(host.do("apply"), "restart", "undrain") == ["restart f-decode-0"]
    assert [u for u, pid in host.pids().items() if before[u] != pid] == ["f-decode-0"]
    assert "f-decode-0  running  healthy  router draining  " in host.do("status")
    assert router.ctl("undrain", url).returncode == 0
    wait("all to be up", lambda: all(e["state"] == "up" for e in router.status()["fleet"]["endpoints"]))
    assert "f-decode-0  running  healthy  router up  " in host.do("status") and host.do("apply") == ""


def cut(host, *args):
    """Of an apply that restarts decode-0 when the time of its drain is over: what it prints, and the seconds that it took."""
    host.args["decode"], before = ["--blocks", "500"], time.monotonic()
    done = host.do("apply", *args, code=1)
    assert actions(done, "drain", "restart") == ["drain f-decode-0", "restart f-decode-0"]
    return done, time.monotonic() - before


def test_a_router_that_does_not_answer_may_have_requests(make):  # noqa: F811
    """An engine that its router cannot be asked about gets all of the time of a drain."""
    host = make(1, 2, kind=Far)
    host.start().stop()
    done, took = cut(host, "--drain-timeout", 1)
    assert took > 1
    assert done.count(f"figures of the router on there cannot be read: http://{own_address()}:{host.port}/metrics\n") == 1
    assert "f-decode-0: was stopped after --drain-timeout and whether requests were left is not known\n" in done


def test_requests_that_are_left_are_said_and_rolls_name_engines(make):  # noqa: F811
    """The recipe of etc/docs/fleet.md cuts none: drain at the router, roll one engine, undrain."""
    host = make(1, 2, kind=Far)
    router = host.start()
    urls, before = host.urls("decode"), host.pids()
    router.ctl("drain", urls[1], "--wait")
    stream = host.stream(5000)
    assert "f-decode-0: was stopped after --drain-timeout although requests were left\n" in cut(host, "--drain-timeout", 0, "--yes")[0]
    assert actions(host.do("roll", "decode-1"), "restart") == ["restart f-decode-1"]
    router.ctl("undrain", urls[1])
    after = host.pids()
    assert {u for u in after if before[u] != after[u]} == {"f-decode-0", "f-decode-1"}
    assert "this host has no engine decode-2" in host.do("roll", "decode-2", code=1) and host.pids() == after
    stream.close()


def test_an_engine_waits_for_another_one_and_says_so(make):  # noqa: F811
    host = make(1, 2, kind=Far)
    router = host.start()
    router.ctl("drain", host.urls("decode")[0], "--wait")
    said = "f-decode-1: all other decode engines are drained, and their drains are kept: this one is kept, too\n"
    assert said in host.do("roll", "decode-1", "--keep-drains", code=1)
    with subprocess.Popen(list(map(str, host.line("roll", "decode-1"))), stdout=subprocess.PIPE, text=True) as p:
        line = next(text for text in p.stdout if " waits " in text)
        assert line.startswith("f-decode-1 waits for another decode engine (f-decode-0: draining), at most 1")
        router.ctl("undrain", host.urls("decode")[0])
        assert actions(p.stdout.read(), "restart") == ["restart f-decode-1"]
    assert p.returncode == 0
