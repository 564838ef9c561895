"""/metrics of a large fleet: the page is written in pieces, so that no event waits for the whole page."""
import pytest

from procs import wait
from raw import Client

N = 900  # endpoints that are down: their page has more than a MiB


@pytest.fixture
def large(world):
    d = [f"http://127.0.{1 + i // 250}.{1 + i % 250}:1" for i in range(N)]
    p = world.engine("prefill")
    return world.router(world.pool([p], d, "nixl"), wait_for="live", workers=1, shared_memory={"max_endpoints": 1024})


def series(text, name):
    return [line for line in text.splitlines() if line.startswith(f"pdrouter_{name}{{")]


def test_the_page_is_whole(large):
    a = large.get("/metrics")
    text = a.body.decode()
    assert a["transfer-encoding"] == "chunked" and a["content-type"].startswith("text/plain; version=0.0.4")
    assert len(series(text, "endpoint_up")) == len(series(text, "endpoint_state")) == N + 1
    assert text.endswith("\n") and text.count("# TYPE pdrouter_endpoint_up ") == 1


def test_head_and_http_1_0(large):
    with large.client() as c:
        assert c.request("HEAD", "/metrics").read(head_only=True).status == 200 and c.get("/live").status == 200, "no body follows"
    with large.client() as c:
        text = c.request("GET", "/metrics", version="1.0").read().body.decode()
    assert len(series(text, "endpoint_up")) == N + 1


def test_a_client_that_does_not_read(large):
    """Its page rests, and is no more in memory than a piece; others are answered meanwhile."""
    with Client(large.address, rcvbuf=4096) as slow:
        slow.request("GET", "/metrics")
        wait("it rests", lambda: large.metric("requests_in_flight") == 2)
        assert large.metric("send_queue_bytes") < 200 << 10
        assert len(series(slow.read().body.decode(), "endpoint_up")) == N + 1


def test_a_client_that_leaves_in_the_middle(large):
    for _ in range(5):
        with Client(large.address, rcvbuf=4096) as c:
            c.send(b"GET /metrics HTTP/1.1\r\nHost: r\r\n\r\n")
            c.head()
    wait("all have ended", lambda: large.metric("client_connections") == 1)
    assert large.metric("requests_in_flight") == 1, "this very one"
