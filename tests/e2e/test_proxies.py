"""Proxies before the router: whose address limits and the log know a request by."""
import ipaddress
import socket
import subprocess

import pytest

from procs import MODEL, free_port, wait
from raw import Client

BODY = {"model": MODEL, "prompt": "x", "max_tokens": 2}
PROXY = "127.0.0.5"  # a source address of this machine that no test uses otherwise


def router(world, protocol=False, **keys):
    return world.pd(workers=1, client={"proxy_networks": ["127.0.0.5/32", "10.7.0.0/16"], "proxy_protocol": protocol, **keys})[0]


def ask(r, headers=(), source=PROXY, first=b""):
    with Client(r.address, source=source) as c:
        c.send(first)
        return c.post("/v1/completions", BODY, headers)


def client_of(r, *args, **kw):
    """Whom the log names."""
    a = ask(r, *args, **kw)
    assert a.status == 200
    return wait("its line", lambda: [e["client"] for e in r.ends() if e["req"] == a["x-request-id"]])[0]


def v2(source, to="10.0.0.1"):
    a, b = ipaddress.ip_address(source).packed, ipaddress.ip_address(to).packed
    body = a + b + (4711).to_bytes(2, "big") + (8000).to_bytes(2, "big")
    return b"\r\n\r\n\0\r\nQUIT\n\x21" + (b"\x11" if len(a) == 4 else b"\x21") + len(body).to_bytes(2, "big") + body


@pytest.mark.parametrize("headers, client", [
    ([("X-Forwarded-For", "203.0.113.9")], "203.0.113.9"),
    ([("X-Forwarded-For", "6.6.6.6, 203.0.113.9, 10.7.1.1")], "203.0.113.9"),  # what the client itself wrote is before it
    ([("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "203.0.113.9,10.7.1.1")], "203.0.113.9"),
    ([("X-Forwarded-For", "2001:db8::7")], "2001:db8::7"),
    ([("X-Forwarded-For", "[2001:db8::7]:443")], "2001:db8::7"),
    ([("X-Forwarded-For", "203.0.113.9:443")], "203.0.113.9"),
    ([("X-Forwarded-For", "::ffff:203.0.113.9")], "203.0.113.9"),
    ([("X-Forwarded-For", "203.0.113.9, "), ("X-Forwarded-For", "")], "203.0.113.9"),
    ([("Forwarded", "for=6.6.6.6")], PROXY),
    ([("X-Forwarded-For", "10.7.0.1, 10.7.0.2")], "10.7.0.1"),  # a proxy's own request
    ([("X-Forwarded-For", "unknown")], PROXY), ([("X-Forwarded-For", "")], PROXY), ([("X-Forwarded-For", "6.6.6.6, a")], PROXY), ([], PROXY),
])
def test_a_proxy_names_its_client(world, headers, client):
    r = router(world)
    assert client_of(r, headers) == client
    assert client_of(r, headers, source="127.0.0.6") == "127.0.0.6", "anybody else is not believed"


def test_limits_are_of_the_client(world):
    r = router(world, rate="1/m", burst=2)
    told = [ask(r, [("X-Forwarded-For", f"203.0.113.{i}")]).status for i in (1, 1, 1, 2, 2, 2)]
    assert told == [200, 200, 429] * 2


@pytest.mark.parametrize("header, client", [
    (b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 8000\r\n", "203.0.113.9"), (v2("203.0.113.9"), "203.0.113.9"), (v2("2001:db8::7", "::1"), "2001:db8::7"),
    (b"PROXY TCP6 ::ffff:203.0.113.9 ::ffff:10.0.0.1 4711 8000\r\n", "203.0.113.9"), (v2("::ffff:203.0.113.9", "::1"), "203.0.113.9"),
    (b"PROXY UNKNOWN\r\n", None), (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", None),
    (b"PROXY TCP4 10.7.1.1 10.0.0.1 4711 8000\r\n", "6.6.6.6"),  # a proxy before the proxy
    (v2("::ffff:10.7.1.1", "::1"), "6.6.6.6"),
])
def test_the_proxy_protocol(world, header, client):
    r = router(world, protocol=True)
    assert client_of(r, [("X-Forwarded-For", "6.6.6.6")], first=header) == client
    with Client(r.address, source=PROXY) as c:
        for i in range(len(header)):
            c.send(header[i:i + 1])
        assert c.post("/v1/completions", BODY).status == c.post("/v1/completions", BODY).status == 200
    assert client_of(r, source="127.0.0.6") == "127.0.0.6", "others need no header"


def test_a_proxy_without_the_header_is_not_served(world):
    r = router(world, protocol=True)
    for first in b"GET /live HTTP/1.1\r\nHost: r\r\n\r\n", b"PROXY TCP9 a b c d\r\n", b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\x0c":
        with Client(r.address, source=PROXY) as c:
            c.send(first)
            assert c.closed()
    assert r.metric("proxy_header_errors_total") == 3
    with Client(r.address, source="127.0.0.6") as c:
        c.send(b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 8000\r\n")
        assert c.read().status == 400


def test_half_a_header_has_the_time_of_a_head(world):
    r = router(world, protocol=True, head_timeout="200ms", idle_timeout="60s")
    with Client(r.address, source=PROXY) as silent, Client(r.address, source=PROXY) as half:
        half.send(b"PROXY TCP4 ")
        assert half.closed() and silent.silent(0.01), "a proxy may connect before it has a client"


def test_operators_need_no_header(world):
    port = free_port()
    r, _, _ = world.pd(client={"proxy_networks": ["127.0.0.0/8"], "proxy_protocol": True}, wait_for=None, admin={"listen": [f"127.0.0.1:{port}"]})

    def status():
        try:
            with r.operator() as c:
                return c.get("/ready").status
        except OSError:
            return None
    wait("ready", lambda: status() == 200)


class Haproxy:
    """In front of a router, by a source address of its own."""

    def __init__(self, r, send, path):
        self.port = free_port()
        path.write_text(f"defaults\n mode tcp\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n"
                        f"listen a\n bind 127.0.0.1:{self.port}\n server r {r.host}:{r.port} {send} source {PROXY}\n")
        self.p = subprocess.Popen(["haproxy", "-db", "-f", path], stderr=subprocess.DEVNULL)

    def connects(self):
        try:
            return socket.create_connection(("127.0.0.1", self.port)).close() is None
        except OSError:
            return False


@pytest.mark.parametrize("send", ["send-proxy", "send-proxy-v2"])
def test_haproxy_speaks_it(world, send, tmp_path):
    r = router(world, protocol=True)
    proxy = Haproxy(r, send, tmp_path / "haproxy.cfg")
    try:
        wait("haproxy", proxy.connects)
        with Client(("127.0.0.1", proxy.port), source="127.0.0.7") as c:
            assert c.post("/v1/completions", BODY).status == 200
        wait("its line", lambda: [e["client"] for e in r.ends()] == ["127.0.0.7"])
    finally:
        proxy.p.terminate()
        proxy.p.wait()
