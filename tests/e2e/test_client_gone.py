"""The client leaves: at every stage the legs are closed or released, and no prefill engine is left
holding blocks for a decode engine that never comes."""
import pytest

from procs import MODEL, wait

URL = "/v1/completions"


def leave(c, how):
    c.reset() if how == "reset" else c.close()


@pytest.fixture(params=["close", "reset"])
def how(request):
    return request.param


def test_in_the_head(world, how):
    r, (p,), _ = world.scripts()
    c = r.client().send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-")
    leave(c, how)
    r.wait_metric("client_connections", 1)  # the one that asks
    assert p.quiet(0.1)


def test_in_the_body(world, how):
    r, (p,), _ = world.scripts()
    c = r.client().send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    leave(c, how)
    assert r.end()["reason"] == "client_gone" and p.quiet(0.1)


def test_while_the_prefill_engine_works(world, how):
    """Its connection is closed: a vLLM aborts and holds nothing."""
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    ex = p.expect()
    leave(c, how)
    assert ex.gone() and d.quiet(0.1)
    ex.close()
    assert r.end()["reason"] == "client_gone" and r.end()["states"][-1] == "d"


@pytest.mark.parametrize("stream", [True, False])
def test_as_the_prefill_engine_answers(world, how, stream):
    """Half of the answer is here when the client leaves: the decode engine is asked all the same, for
    one token, since only it can free the blocks."""
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "stream": stream, "max_tokens": 50, "min_tokens": 5})
    body = b'{"kv_transfer_params":{"remote_block_ids":[1]}}'
    ex = p.expect().write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:10]))
    leave(c, how)
    wait("the router to see it", lambda: not r.metric("client_connections") or r.metric("client_connections") == 1)
    if ex.gone(0.3):  # closed before the full answer: nothing is held
        ex.close()
        assert d.quiet(0.1)
        return
    ex.write(body[10:]).end()
    sent = d.expect()
    assert sent.json()["max_tokens"] == 1 and not sent.json()["stream"] and "min_tokens" not in sent.json()
    assert sent.json()["kv_transfer_params"] == {"remote_block_ids": [1]}
    sent.reply(body={"choices": []})
    assert r.end()["reason"] == "client_gone" and r.metric("kv_released_total") == 1


def test_before_the_decode_engine_has_answered(world, how):
    """It has the request but has not said a byte: may it have fetched? It is read to an answer."""
    r, (p,), (d,) = world.pd(engine={"fetch_delay": 300})
    c = r.open_stream(n=100)
    wait("the blocks to be held", lambda: p.counter("kv_held") == 1)
    d.wait_requests()
    leave(c, how)
    assert r.end()["reason"] == "client_gone"
    p.wait_metric("pdsim:held_blocks", 0, 5)
    assert p.counter("kv_fetched") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_held_blocks_go_back_to_none(world, how, stream):
    """Leaves at many moments between the legs; the engine's own timeout (30 s) must never be needed."""
    r, (p,), (d,) = world.pd(engine={"prefill_delay": 10, "fetch_delay": 10, "token_delay": 2})
    for i in range(20):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": f"p{i}" * 50, "stream": stream, "max_tokens": 20})
        c.silent(0.002 * i + 0.0005)
        leave(c, how)
    r.end(20)
    p.wait_metric("pdsim:held_blocks", 0, 5)
    r.wait_metric("endpoint_in_flight", 0)
    assert p.counter("kv_expired") == 0


def test_in_the_stream(world, how):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().event("a")
    assert next(c.events()).data
    leave(c, how)
    assert ex.gone(), "the engine must not go on for nobody"
    assert r.end()["reason"] == "client_gone"


def test_of_a_plain_answer(world, how):
    r, (p,), (d,) = world.pd(engine={"token_delay": 20})
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "max_tokens": 5000})
    wait("the decode engine to run", lambda: d.metric("pdsim:running_requests") == 1)
    leave(c, how)
    assert r.end()["reason"] == "client_gone"
    d.wait_metric("pdsim:running_requests", 0, 7)  # it has 5 s from the client's leaving; the whole answer takes 100
    assert d.requests()[0].aborted


def test_one_of_many(world):
    """The others on the same engines are not touched."""
    r, (p,), (d,) = world.pd(engine={"token_delay": 5})
    streams = [r.open_stream(f"p{i}", n=60) for i in range(10)]
    for c in streams[::2]:
        c.head()
        c.reset()
    for c in streams[1::2]:
        assert len(list(c.events())) == 61
    reasons = sorted(x["reason"] for x in [r.end(i + 1) for i in range(10)])
    assert reasons == ["client_gone"] * 5 + ["ok"] * 5


def test_a_client_that_takes_nothing(world):
    """client.write_timeout: its stream is ended, the engine is released."""
    r, (p,), (d,) = world.pd(client={"write_timeout": "500ms"})
    c = r.open_stream(n=1000, rcvbuf=16384, pdsim={"event_bytes": 60000})
    c.head()
    assert r.end()["reason"] == "client_stalled"
    d.wait_metric("pdsim:running_requests", 0)


def test_pipelined_next_request_is_dropped_with_its_client(world):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    c.request("POST", URL, {"model": MODEL, "prompt": "second"})
    ex = p.expect()
    c.reset()
    assert ex.gone() and p.quiet(0.2)
    ex.close()
