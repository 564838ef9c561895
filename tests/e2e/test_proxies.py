"""Proxies before the router: whose address limits and the log know a request by."""
import ipaddress
import socket
import subprocess

import pytest

from certs import Cert, TlsClient
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


FROM_OUTSIDE = [("X-Forwarded-For", "6.6.6.6"), ("Forwarded", "for=6.6.6.6;by=x"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "7.7.7.7")]


def sent(engine):
    seen = engine.last()
    return [seen.all(name) for name in ("x-forwarded-for", "forwarded", "x-forwarded-proto")]


def test_engines_are_sent_the_clients_address(world):
    cert = Cert(world.dir, "localhost")
    port = free_port()
    r, p, d = world.pd(client={"proxy_networks": ["127.0.0.5/32"], "forward_address": True},
                       tls={"certificates": [cert.row()], "listen": [f"127.0.0.1:{port}"]})
    own = [["127.0.0.6"], ["for=127.0.0.6;proto=http"], ["http"]]
    for headers in [], FROM_OUTSIDE:
        assert ask(r, headers, source="127.0.0.6").status == 200
        assert sent(p[0]) == sent(d[0]) == own
    assert ask(r, FROM_OUTSIDE).status == 200  # by a proxy
    assert sent(d[0]) == [[f"6.6.6.6, 7.7.7.7, {PROXY}"], [f"for=6.6.6.6;by=x, for={PROXY};proto=http"], ["https"]]
    assert ask(r, []).status == 200
    assert sent(d[0]) == [[PROXY], [f"for={PROXY};proto=http"], ["http"]]
    with TlsClient(("127.0.0.1", port), cert.trusting()) as c:
        assert c.post("/v1/completions", BODY).status == 200
    assert sent(d[0]) == [["127.0.0.1"], ["for=127.0.0.1;proto=https"], ["https"]]


def test_an_ipv6_address_and_none_are_sent(world):
    r, _, d = world.pd(client={"proxy_networks": ["127.0.0.5/32"], "proxy_protocol": True, "forward_address": True})
    assert ask(r, FROM_OUTSIDE, first=v2("2001:db8::7", "::1")).status == 200
    assert sent(d[0]) == [["2001:db8::7"], ['for="[2001:db8::7]";proto=http'], ["http"]]
    assert ask(r, FROM_OUTSIDE, first=b"PROXY UNKNOWN\r\n").status == 200
    assert sent(d[0]) == [[], ["for=unknown;proto=http"], ["http"]]


def test_lines_pass_as_they_are_without_the_key(world):
    r, _, d = world.pd()
    assert ask(r, FROM_OUTSIDE).status == 200
    assert sent(d[0]) == [["6.6.6.6", "7.7.7.7"], ["for=6.6.6.6;by=x"], ["https"]]
