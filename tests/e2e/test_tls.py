"""TLS with clients: what is offered, tickets, clients' certificates, certificates that change under load, time limits.
What pieces, cuts and ends do is in tests/unit/worker/net/tls.c, what a wrong file says in
tests/unit/master/config/conf_tls.c."""
import shutil
import socket
import ssl
import threading
import time

import openai
import pytest

from certs import Cert, Records, TlsClient
from procs import MODEL, free_port, wait
from raw import Client, Closed
from stages import Stage, lasting
from test_upgrade import Instances

BODY = {"model": MODEL, "prompt": "x", "max_tokens": 2}
# https://wiki.mozilla.org/Security/Server_Side_TLS, intermediate, version 5.7
MOZILLA = {f"{kx}-{rest}" for kx in ("ECDHE-ECDSA", "ECDHE-RSA", "DHE-RSA")
           for rest in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")}


def tls(cert, **keys):
    """The address, and the keys of a router that speaks TLS there."""
    address = ("127.0.0.1", free_port())
    return address, {"tls": {"listen": [f"127.0.0.1:{address[1]}"], "certificates": [cert.row()], **keys}}


class Both(Stage):
    def __init__(self):
        super().__init__()
        self.cert = Cert(self.world.dir, "localhost", days=9)
        self.rsa = Cert(self.world.dir, "rsa.test", key="rsa")
        self.address, keys = tls(self.cert)
        keys["tls"]["certificates"].append(self.rsa.row())
        self.router, _, (self.d,) = self.world.pd(client={"proxy_networks": ["127.0.0.5/32"], "proxy_protocol": True}, **keys)

    def client(self, **kw):
        return TlsClient(self.address, self.cert.trusting(), **kw)


@pytest.fixture(scope="module")
def both(request):
    yield from lasting(request, Both())


def test_the_sdk(both):
    sdk = openai.OpenAI(base_url=f"https://127.0.0.1:{both.address[1]}/v1", api_key="k", max_retries=0,
                        http_client=openai.DefaultHttpxClient(verify=both.cert.trusting()))
    whole = sdk.completions.create(**BODY).choices[0].text
    assert whole and "".join(e.choices[0].text for e in sdk.completions.create(**BODY, stream=True)) == whole
    with both.router.client() as plain:
        assert plain.post("/v1/completions", BODY).json()["choices"][0]["text"] == whole, "the other address is plain"


def offered(both, name, cert, version, cipher):
    ctx = cert.trusting()
    ctx.minimum_version = ctx.maximum_version = version
    ctx.set_ciphers(f"{cipher}:@SECLEVEL=0")
    try:
        with TlsClient(both.address, ctx, name=name) as c:
            return c.sock.version(), c.sock.cipher()[0]
    except (ssl.SSLError, ConnectionResetError):
        return None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_offered_is_mozillas_intermediate_profile(both):
    names = [("localhost", both.cert), ("rsa.test", both.rsa)]
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ctx.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    old = [c["name"] for c in ctx.get_ciphers() if c["protocol"] != "TLSv1.3"]
    assert len(old) > 60
    answers = [offered(both, *who, ssl.TLSVersion.TLSv1_2, c) for who in names for c in old]
    assert {c for _, c in filter(None, answers)} == MOZILLA
    for version in ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1:
        assert not any(offered(both, *who, version, "ALL") for who in names)
    assert offered(both, *names[0], ssl.TLSVersion.TLSv1_3, "ALL")[0] == "TLSv1.3"
    with both.client() as c:
        assert c.sock.selected_alpn_protocol() is None and c.sock.compression() is None


def test_each_event_is_a_record(both):
    ctx = both.cert.trusting()
    ctx.set_alpn_protocols(["http/1.1"])
    body = b'{"model": "%s", "prompt": "x", "max_tokens": 6, "stream": true}' % MODEL.encode()
    with socket.create_connection(both.address) as s:
        c = Records(s, ctx)
        assert c.tls.selected_alpn_protocol() == "http/1.1"
        both.d.pause()
        c.write(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        both.d.wait_metric("pdsim:running_requests", 1)
        both.d.step()
        c.until(b"data:")
        for _ in range(3):
            both.d.step()
            data = s.recv(65536)
            assert data[0] == 23 and len(data) == 5 + int.from_bytes(data[3:5], "big"), "one record"
            c.raw.write(data)
            assert c.read().count(b"data:") == 1
        both.d.go_on()
        c.until(b"[DONE]")


def test_a_large_body(both):
    with both.client() as c:
        for size in 1 << 20, 16384, 16385:
            assert c.post("/v1/completions", {**BODY, "prompt": "x" * size}).status == 200
            assert len(both.d.last().body) >= size, "it keeps 1 MiB"


def test_plain_http_is_told_so(both):
    with Client(both.address) as c:
        a = c.get("/live")
        assert a.status == 400 and a.body == b"this port speaks TLS: write https://\r\n"


def sessions(address, ctx, n, session=None):
    """How many of n connections resumed a session."""
    resumed = 0
    for _ in range(n):
        with TlsClient(address, ctx, session=session) as c:
            assert c.get("/live").status == 200
            resumed += c.sock.session_reused
            session = c.sock.session
    return resumed, session


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_a_session_is_resumed_at_any_worker_of_any_generation(world, version):
    cert = Cert(world.dir, "localhost")
    address, keys = tls(cert)
    r, _, _ = world.pd(workers=2, **keys)
    ctx = cert.trusting(maximum_version=ssl.TLSVersion[version])
    resumed, session = sessions(address, ctx, 12)
    assert resumed == 11
    r.reload(workers=1)
    assert sessions(address, ctx, 3, session)[0] == 3
    assert r.metric("tls_handshakes_total", result="resumed") == 14 and r.metric("tls_handshakes_total", result="full") == 1


def test_clients_certificates(world):
    cert, ca = Cert(world.dir, "localhost"), Cert(world.dir, "ca")
    own = {name: Cert(world.dir, name, by=by, days=days) for name, by, days in
           (("good", ca, 9), ("stranger", cert, 9), ("expired", ca, -1))}
    address, keys = tls(cert, client_ca=ca.cert)
    r, _, _ = world.pd(**keys)

    def status(who):
        try:
            with TlsClient(address, cert.trusting(own=own.get(who))) as c:
                return c.get("/live").status
        except (OSError, Closed):
            return None
    assert {who: status(who) for who in (*own, "none")} == {"good": 200, "stranger": None, "expired": None, "none": None}
    assert r.metric("tls_handshakes_total", result="failed") == 3
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        ctx = cert.trusting(own=own["good"])
        ctx.maximum_version = version
        assert sessions(address, ctx, 4)[0] == 0, "its certificate would not be looked at again"


def test_handshakes_have_the_time_of_a_head(world):
    cert = Cert(world.dir, "localhost")
    address, keys = tls(cert)
    r, _, _ = world.pd(client={"head_timeout": "200ms", "idle_timeout": "60s"}, **keys)
    with Client(address) as silent, Client(address) as dripping, TlsClient(address, cert.trusting()) as idle:
        end = time.monotonic() + 20
        with pytest.raises(OSError):
            for byte in b"\x16\x03\x01\x02\x00" + 300 * b"\x01":
                dripping.send(bytes([byte]))
                time.sleep(0.02)
                assert time.monotonic() < end
        assert silent.closed() and idle.get("/live").status == 200
    assert r.metric("tls_handshakes_total", result="unfinished") == 2


def test_the_proxy_protocol_precedes_the_handshake(both):
    line = b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 8000\r\n"
    with both.client(source="127.0.0.5", first=line) as c:
        answer = c.post("/v1/completions", BODY)
    assert both.router.end_of(answer["x-request-id"])["client"] == "203.0.113.9"


class Load(threading.Thread):
    """New connections and kept ones, until stopped."""

    def __init__(self, address, ctx):
        super().__init__(daemon=True)
        self.address, self.ctx, self.statuses, self.stopped = address, ctx, [], False
        self.start()

    def run(self):
        while not self.stopped:
            with TlsClient(self.address, self.ctx) as c:
                for _ in range(3):
                    answer = c.post("/v1/completions", BODY)
                    self.statuses.append(answer.status)
                    if answer["connection"] == "close":
                        break

    def end(self):
        self.stopped = True
        self.join(20)
        return set(self.statuses)


@pytest.mark.parametrize("watch", [True, False])
def test_a_certificate_is_exchanged_under_load(world, watch):
    certs = [Cert(world.dir, name) for name in ("localhost", "second")]
    address, keys = tls(certs[0], watch=watch)
    ctx = certs[0].trusting(check_hostname=False)
    ctx.load_verify_locations(certs[1].cert)
    r, _, _ = world.pd(**keys)
    load = [Load(address, ctx) for _ in range(2)]
    wait("load", lambda: all(x.statuses for x in load))
    for which in "key", "cert":
        shutil.copy(getattr(certs[1], which), getattr(certs[0], which))
    if not watch:
        assert "a file of tls has changed" in r.ctl("config", "diff").stdout
        r.ctl("reload")

    def named():
        with TlsClient(address, ctx) as c:
            return dict(x[0] for x in c.sock.getpeercert()["subject"])["commonName"]
    wait("the other certificate", lambda: named() == "second")
    assert [x.end() for x in load] == [{200}, {200}]
    assert r.metric("generation") == 2


def test_a_certificate_that_expires_soon(both):
    assert f'level=warn msg="a certificate expires soon" process=master slot=0 file={both.cert.cert} reason=' in both.router.log()
    assert 8 * 86400 < both.router.metric("tls_certificate_expiry_seconds", certificate=both.cert.cert) <= 9 * 86400
    assert both.router.metric("tls_certificate_expiry_seconds", certificate=both.rsa.cert) > 14 * 86400


@pytest.mark.usefixtures("reaper")
def test_an_upgrade_passes_the_socket_on(world):
    cert, p, d = Cert(world.dir, "localhost"), world.engine("prefill"), world.engine("decode")
    address, keys = tls(cert)
    i = Instances(world, world.pool([p], [d]), workers=1, **keys)
    i.upgrade()
    with TlsClient(address, cert.trusting()) as c:
        assert c.post("/v1/completions", BODY).status == 200
    assert i.r.metric("instance") == 2
    i.only_one_left()


@pytest.mark.parametrize("how", ["whole", "cut"])
def test_a_cut_answer_ends_without_close_notify(world, how):
    """With HTTP/1.0 the close alone ends an answer of unknown length: nothing may call it whole."""
    cert = Cert(world.dir, "localhost")
    address, keys = tls(cert)
    _, (p,), (d,) = world.scripts(**keys)
    strict = cert.trusting()
    strict.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    with TlsClient(address, strict) as c:
        c.request("POST", "/v1/completions", BODY, version="1.0")
        p.expect().prefilled()
        ex = d.expect().write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").chunk(b"x" * 300000)
        c.sock.suppress_ragged_eofs = False
        assert b" 200 OK" in c.sock.recv(16)
        if how == "whole":
            ex.chunk(b"").close()
            while c.sock.recv(65536):
                pass
            return
        ex.close()
        with pytest.raises(ssl.SSLError, match="(?i)eof"):
            while c.sock.recv(65536):
                pass
