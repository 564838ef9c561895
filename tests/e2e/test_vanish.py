"""Hosts that vanish: no FIN, no RST, no answer to a probe.  Engines and clients whose host is gone are noticed."""
import pytest

from faraway import Host
from procs import MODEL, SLOW
from raw import Client

NEVER = {"health_interval": "1h", "fall": 1000}  # probes notice nothing
SOON = f"{SLOW}s"


@pytest.fixture
def host():
    h = Host()
    yield h
    h.close()


def there(world, host):
    with host.sockets():
        return world.script(host=host.there)


# --- timeouts.tcp_user, client.tcp_user ---

@pytest.mark.parametrize("stage", ["prefill", "sent", "stream"])
def test_an_engine_whose_host_vanishes(world, host, stage):
    """Its connection ends: another engine serves, or a stream ends with an error."""
    gone = there(world, host)
    roles = ([gone], [world.script()]) if stage == "prefill" else ([world.script()], [gone])
    r = world.router(world.pool(*roles, fallback="none", retries=0, timeouts={"tcp_user": SOON}), **NEVER)
    c = r.open_stream()
    if stage == "prefill":
        gone.expect()
    else:
        roles[0][0].expect().prefilled()
        ex = gone.expect()
    if stage == "stream":
        ex.stream_head().event("a")
        next(c.events())
    host.vanish()
    code = c.read().error["code"] if stage != "stream" else next(c.events()).json()["error"]["code"]
    assert code == ("prefill_broken" if stage == "prefill" else "decode_broken") and r.end()["total_ms"] < 5000 * SLOW
    host.come_back()  # it refuses the KV that it was to get


@pytest.mark.parametrize("stage", ["prefill", "stream"])
def test_a_client_whose_host_vanishes(world, host, stage):
    """As one that leaves: its engine is free."""
    world.listen_host = host.here
    r, (p,), (d,) = world.scripts(client={"tcp_user": SOON})
    with host.sockets():
        c = Client(r.address)
    c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "stream": True})
    ex = p.expect()
    if stage == "stream":
        ex.prefilled()
        ex = d.expect().stream_head().event("a")
        next(c.events())
    host.vanish()
    if stage == "stream":
        ex.event("b")
    assert ex.gone(5 * SLOW) and r.end()["reason"] == "client_gone"
    ex.close()


@pytest.mark.timing
def test_a_client_that_reads_nothing_has_not_vanished(world):
    """Its host answers: client.write_timeout is its limit."""
    r, (p,), (d,) = world.scripts(client={"tcp_user": SOON})
    c = Client(r.address, rcvbuf=4096)
    c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "x", "stream": True})
    p.expect().prefilled()
    ex = d.expect().stream_head()
    for _ in range(40 * SLOW):
        ex.event("a" * 3000)
        assert not ex.gone(0.05)
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert [e.data for e in c.events()][-1] == "[DONE]"
