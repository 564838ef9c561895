"""pdctl fleet on a host whose router is on another one: what is known of it comes from its address for clients."""
import socket

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
        self.world.listen_host = own_address()
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
