"""etc/proxies/: what an operator puts before the router lets streams through as they come, and says whose they are."""
import re
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

import expect
from procs import MODEL, free_port, wait
from raw import Client, text_of

PROXIES = Path(__file__).parents[2] / "etc" / "proxies"
COMMAND = {"nginx.conf": ["nginx", "-e", "stderr", "-g", "daemon off; pid nginx.pid;", "-p"], "haproxy.cfg": ["haproxy", "-db", "-f"]}


class Proxy:
    """In front of a router, as its file says, but for the two addresses and the room on this machine."""

    def __init__(self, recipe, r, folder):
        self.port = free_port()
        text = (PROXIES / recipe).read_text().replace("127.0.0.1:8000", f"{r.host}:{r.port}")
        text, n = re.subn(r"(listen |bind :)80\b", lambda m: m[1].replace(":", "") + f"127.0.0.1:{self.port}", text)
        assert n == 1
        for much in ("16384", "65536"):
            text = text.replace(much, "500")
        file = folder / recipe
        file.write_text(text)
        where = [f"{folder}/", "-c", recipe] if recipe == "nginx.conf" else [file]
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.p = subprocess.Popen([*COMMAND[recipe], *where], stdout=log, stderr=log, cwd=folder)
        wait("the proxy", self.connects)

    def connects(self):
        assert self.p.poll() is None, self.log.read_text()
        try:
            return socket.create_connection(("127.0.0.1", self.port)).close() is None
        except OSError:
            return False

    def client(self, source=None):
        return Client(("127.0.0.1", self.port), source=source)


@pytest.fixture(params=sorted(COMMAND))
def before(request, world, tmp_path):
    """The router, the proxy, a decode engine that waits until it is told to go on."""
    tmp_path.chmod(0o755)  # nginx's workers are of another user
    r, _, (d,) = world.pd(client={"proxy_networks": ["127.0.0.1/32"]})
    proxy = Proxy(request.param, r, tmp_path)
    yield r, proxy, d
    proxy.p.terminate()
    proxy.p.wait()


def test_a_stream_comes_as_it_is_made(before):
    r, proxy, d = before
    d.pause()
    with proxy.client("127.0.0.7") as c:
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 5, "stream": True})
        events = c.events()
        wait("it is there", lambda: d.metric("pdsim:running_requests") == 1)
        got = []
        for _ in range(2):
            d.step()
            got.append(next(events))  # the engine has sent no more
        d.go_on()
        got += list(events)
        assert text_of(got) == expect.text("x", 5) and got[-1].data == "[DONE]"
    assert r.all_ended()[-1]["client"] == "127.0.0.7"


def test_a_client_that_leaves_ends_its_request(before):
    r, proxy, d = before
    d.pause()
    with proxy.client() as c:
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 5, "stream": True})
        wait("it is there", lambda: r.metric("requests_in_flight") == 2)
    wait("the router has noticed", lambda: [e["reason"] for e in r.ends()] == ["client_gone"])
    d.go_on()


def test_a_large_body_passes(before):
    r, proxy, _ = before
    prompt = "long " * 400000
    with proxy.client() as c:
        a = c.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert a.status == 200 and a.json()["choices"][0]["text"] == expect.text(prompt, 1)


def test_envoys_recipe_is_whole():
    """Debian has no Envoy: what is tested is that its time limits are lifted and the addresses are those of the other recipes."""
    made = yaml.safe_load((PROXIES / "envoy.yaml").read_text())["static_resources"]
    manager = made["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    assert route["timeout"] == "0s" and manager["stream_idle_timeout"] == "3600s" and manager["use_remote_address"]
    assert made["clusters"][0]["name"] == route["cluster"]
