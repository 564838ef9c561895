"""The orchestrated connector: both handoffs, and who names the prefill engine's host."""
import json

import pytest

import expect
from members import kept, members, values
from procs import MODEL
from raw import text_of

URL = "/v1/completions"
RESP = {"connector": "orchestrated", "handoff": "disagg_prefill_resp"}
KV = {"connector": "orchestrated", "handoff": "kv_transfer_params"}
ANSWER = b' {"id":"cmpl-1","big":9223372036854775809,"x":1e400,"x":2,"choices":[{"text":"\\u0041"}],"kv_transfer_params":null}\n'


def test_prefill_answer_is_handed_off_whole(world):
    r, (p,), (d,) = world.scripts(pool=RESP)
    body = b'{"model":"sim-model","prompt":"x","max_tokens":7,"stream":true,"stream_options":{"include_usage":true},"u":1e400}'
    c = r.client().request("POST", URL, body)
    ask = p.expect()
    assert values(ask.body, "kv_transfer_params") == [] and values(ask.body, "max_tokens") == ["1"]
    assert not ask.json()["stream"] and "stream_options" not in ask.json()
    ask.reply(body=ANSWER)
    ex = d.expect()
    assert values(ex.body, "disagg_prefill_resp") == [ANSWER.decode().strip()]
    assert kept(ex.body, {"disagg_prefill_resp"}) == [(k, v) for _, k, v in members(body)]
    ex.stream("a", "b")
    assert text_of(c.events()) == "ab"


@pytest.mark.parametrize("stream", [True, False])
def test_handoff_by_answer_against_the_simulator(world, stream):
    r, (p,), (d,) = world.pd(engine={"handoff": "disagg_prefill_resp"}, pool=RESP)
    if stream:
        assert text_of(list(r.open_stream("hello", n=6).events())) == expect.text("hello", 6)
    else:
        assert r.complete("hello", max_tokens=6).json()["choices"][0]["text"] == expect.text("hello", 6)
    assert d.last().json()["disagg_prefill_resp"]["object"] == "text_completion"


def test_chat_by_answer(world):
    r, _, (d,) = world.pd(engine={"handoff": "disagg_prefill_resp"}, pool=RESP)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 5}
    a = r.post("/v1/chat/completions", body)
    assert a.json()["choices"][0]["message"]["content"] == expect.text_chat(body, 5)
    assert d.last().json()["disagg_prefill_resp"]["object"] == "chat.completion"


def test_remote_host_is_the_prefill_urls_by_default(world):
    r, (p,), (d,) = world.scripts(pool=KV)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    ask = p.expect()
    assert ask.json()["kv_transfer_params"]["do_remote_decode"] is True
    ask.prefilled('{"remote_block_ids":[9007199254740993],"remote_host":"localhost","remote_port":5600,"z":1e400}')
    ex = d.expect()
    assert values(ex.body, "kv_transfer_params") == [
        '{"remote_block_ids":[9007199254740993],"remote_host":"127.0.0.1","remote_port":5600,"z":1e400}']
    ex.reply(body={})
    assert c.read().status == 200


@pytest.mark.parametrize("params, want", [
    ('{"remote_port":1}', {"remote_host": "127.0.0.1", "remote_port": 1}),
    ("{}", {"remote_host": "127.0.0.1"}), ("{ }", {"remote_host": "127.0.0.1"}),
    ('{"remote_host":null}', {"remote_host": "127.0.0.1"}),
    ('{"a":{"remote_host":"x"},"remote\\u005fhost":"y"}', {"a": {"remote_host": "x"}, "remote_host": "127.0.0.1"}),
])
def test_remote_host_is_put_in(world, params, want):
    r, (p,), (d,) = world.scripts(pool=KV)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled(params)
    ex = d.expect()
    assert json.loads(values(ex.body, "kv_transfer_params")[0]) == want
    ex.reply(body={})
    assert c.read().status == 200


@pytest.mark.parametrize("connector", ["nixl", "orchestrated"])
def test_remote_host_kept_as_it_is(world, connector):
    r, (p,), (d,) = world.scripts(pool={"connector": connector, "remote_host": "keep"})
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled('{"remote_host":"10.1.2.3"}')
    ex = d.expect()
    assert values(ex.body, "kv_transfer_params") == ['{"remote_host":"10.1.2.3"}']
    ex.reply(body={})
    assert c.read().status == 200


def test_wrong_advertised_host_is_repaired(world):
    """The engine says `localhost.invalid`, the router knows better: the blocks are fetched."""
    r, (p,), (d,) = world.pd(engine={"advertise_host": "localhost.invalid"}, pool=KV)
    assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert p.counter("kv_fetched") == 1


@pytest.mark.parametrize("pool", [KV, RESP], ids=["kv", "resp"])
def test_prefill_status_stops_the_request(world, pool):
    r, (p,), (d,) = world.scripts(pool=pool)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().reply(429, {"error": {"message": "busy"}})
    assert c.read().status == 429 and d.quiet(0.1)


def test_answer_that_is_no_object(world):
    r, (p,), (d,) = world.scripts(pool=RESP)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().reply(body=b"[1]")
    assert c.read().error["code"] == "prefill_bad_answer" and d.quiet(0.1)
