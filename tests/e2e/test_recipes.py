"""etc/proxies/: what an operator puts before the router lets streams through as they come, and says whose they are.
Debian has no Envoy: `make proxies` fetches one and sets PDR_ENVOY; without it the recipe is read, and not run."""
import contextlib
import os
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
ENVOY = os.environ.get("PDR_ENVOY")
COMMAND = {"nginx.conf": ["nginx", "-e", "stderr", "-g", "daemon off; pid nginx.pid;", "-p"], "haproxy.cfg": ["haproxy", "-db", "-f"],
           **({"envoy.yaml": [ENVOY, "--use-dynamic-base-id", "--concurrency", "2", "-l", "warn", "-c"]} if ENVOY else {})}


class Proxy:
    """In front of a router, as its file says, but for the two addresses and the room on this machine."""

    def __init__(self, recipe, r, folder):
        self.port = free_port()
        text, n = re.subn(r"127\.0\.0\.1(:|, port_value: )8000\b", rf"{r.host}\g<1>{r.port}", (PROXIES / recipe).read_text())
        text, m = re.subn(r"(listen |bind |address: )(0\.0\.0\.0)?(:|, port_value: |)80\b",
                          lambda m: f"{m[1]}127.0.0.1{m[3] or ':'}{self.port}", text)
        assert n == m == 1
        for much in ("worker_connections 16384", "maxconn 65536"):
            text = text.replace(much, much.split()[0] + " 500")
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


def test_a_client_keeps_its_id(before):
    r, proxy, _ = before
    with proxy.client() as c:
        assert c.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1}, [("X-Request-Id", "mine")])["x-request-id"] == "mine"
    assert r.end_of("mine")["status"] == 200


@pytest.mark.skipif(not ENVOY, reason="only Envoy has a bound of 1,024 that the recipe lifts; `make proxies` runs it")
@pytest.mark.parametrize("before", ["envoy.yaml"], indirect=True)
def test_more_streams_than_envoys_own_bound(before):
    _, proxy, d = before
    d.pause()
    with contextlib.ExitStack() as all_of_them:
        clients = [all_of_them.enter_context(proxy.client()) for _ in range(1100)]
        for c in clients:
            c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 2, "stream": True})
        wait("all are there", lambda: d.metric("pdsim:running_requests") == len(clients))
        d.go_on()
        assert all(list(c.events())[-1].data == "[DONE]" for c in clients)


def test_envoys_recipe_is_whole():
    """Its time limits are lifted, and it leaves a connection before the router does: a request that meets a close is a 503 of Envoy."""
    made = yaml.safe_load((PROXIES / "envoy.yaml").read_text())["static_resources"]
    manager = made["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    assert route["timeout"] == "0s" and manager["stream_idle_timeout"] == "3600s" and manager["use_remote_address"]
    cluster = made["clusters"][0]
    assert cluster["name"] == route["cluster"]
    options = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
    idle = options["common_http_protocol_options"]["idle_timeout"]
    routers = yaml.safe_load((PROXIES.parent / "pdrouter.yaml").read_text())["client"]["idle_timeout"]
    assert int(idle.removesuffix("s")) < int(routers.removesuffix("s"))
