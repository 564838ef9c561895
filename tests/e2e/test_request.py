"""What the engines are sent, byte for byte, and what the client gets back."""
import json
import re

import pytest

import expect
from members import kept, members, values
from procs import MODEL, free_port, wait
from raw import Client, text_of

PREFILL_OWNS = {"max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "kv_transfer_params", "stop", "stop_token_ids", "ignore_eos",
                "request_id", "rid"}
DECODE_OWNS = {"kv_transfer_params", "request_id", "rid"}
ASKED = ('{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
         '"remote_host":null,"remote_port":null}')
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "what is it?"}]}


def legs(shared, body, path="/v1/completions", headers=()):
    """Sends raw bytes through the router; the answer and what each engine was sent."""
    a = shared.router.post(path, body, headers)
    return a, shared.p.last(), shared.d.last()


def test_completion_text(shared, router):
    a = router.complete("hello", max_tokens=5)
    assert a.status == 200 and a["content-type"] == "application/json"
    assert a.json()["choices"][0]["text"] == expect.text("hello", 5)


def test_completion_stream(shared, router):
    c = router.open_stream("hello", n=7)
    events = list(c.events())
    assert c.answer.status == 200 and c.answer["content-type"].startswith("text/event-stream")
    assert text_of(events) == expect.text("hello", 7) and events[-1].data == "[DONE]"
    assert len(events) == 8


def test_chat_text(shared, router):
    a = router.post("/v1/chat/completions", {**CHAT, "max_tokens": 6})
    assert a.json()["choices"][0]["message"]["content"] == expect.text_chat(CHAT, 6)


def test_chat_stream_with_usage(shared, router):
    with router.client() as c:
        c.request("POST", "/v1/chat/completions",
                  {**CHAT, "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}})
        events = list(c.events())
    assert text_of(events) == expect.text_chat(CHAT, 6)
    assert events[-2].json()["usage"]["completion_tokens"] == 6 and events[-1].data == "[DONE]"


def test_prefill_leg_is_limited(shared, router):
    body = {**CHAT, "max_tokens": 9, "max_completion_tokens": 8, "min_tokens": 3, "stream": True,
            "stream_options": {"include_usage": True}}
    with router.client() as c:
        c.request("POST", "/v1/chat/completions", body)
        assert list(c.events())[-1].data == "[DONE]"
    sent = shared.p.last().json()
    assert (sent["max_tokens"], sent["max_completion_tokens"], sent["stream"]) == (1, 1, False)
    assert "min_tokens" not in sent and "stream_options" not in sent
    assert values(shared.p.last().body, "kv_transfer_params") == [ASKED]
    decode = shared.d.last().json()
    assert {k: decode[k] for k in body} == body
    assert decode["kv_transfer_params"]["do_remote_prefill"] is True


def test_max_tokens_is_set_when_absent(shared, router):
    _, p, d = legs(shared, json.dumps(CHAT).encode(), "/v1/chat/completions")
    assert p.json()["max_tokens"] == 1 and "max_completion_tokens" not in p.json()
    assert "max_tokens" not in d.json() and "stream" not in d.json()


NASTY = {
    "big_integers": b'{"model":"sim-model","prompt":"x","max_tokens":2,"a":9223372036854775809,"b":-18446744073709551617}',
    "float_beyond_double": b'{"model":"sim-model","prompt":"x","max_tokens":2,"a":1e400,"b":-0.0,"c":1E+2,"d":1.10}',
    "doubled_unknown_keys": b'{"model":"sim-model","u":1,"prompt":"x","u":2,"max_tokens":2,"u":{"u":3,"u":4}}',
    "key_order": b'{"z":1,"max_tokens":2,"y":2,"prompt":"x","x":3,"model":"sim-model","a":4}',
    "blanks": b' \r\n{ \t"model" :\n"sim-model" , "prompt":\t"x",\r\n"max_tokens" : 2 ,"u" : [ 1 , 2 ] }\n ',
    "escapes": rb'{"model":"sim-model","prompt":"\u0041\/\ud83d\ude42\n","max_tokens":2,"\u0075":"\u0000"}',
    "escaped_model": rb'{"mod\u0065l":"sim\u002dmodel","prompt":"x","max_tokens":2}',
    "non_ascii": '{"model":"sim-model","prompt":"日本語 naïve 🙂","max_tokens":2,"ключ":"значение"}'.encode(),
    "nested_owned_names": b'{"model":"sim-model","prompt":"x","max_tokens":2,"u":{"max_tokens":7,"stream":true,"rid":"q"}}',
    "deep": b'{"model":"sim-model","prompt":"x","max_tokens":2,"u":' + b"[" * 90 + b"]" * 90 + b"}",
    "null_members": b'{"model":"sim-model","prompt":"x","max_tokens":2,"stop":null,"u":null,"logit_bias":{}}',
    "user_id_alike": b'{"model":"sim-model","prompt":"x","max_tokens":2,"request_ids":["a"],"ridx":1,"streams":true}',
}


@pytest.mark.parametrize("name", NASTY)
def test_members_are_kept_as_sent(shared, router, name):
    body = NASTY[name]
    a, p, d = legs(shared, body)
    assert a.status == 200, a.body
    assert kept(p.body, PREFILL_OWNS) == kept(body, PREFILL_OWNS)
    assert kept(d.body, DECODE_OWNS) == kept(body, DECODE_OWNS)


def test_escaped_owned_key_is_owned(shared, router):
    body = rb'{"model":"sim-model","prompt":"x","max\u005ftokens":5,"strea\u006d":false,"min_\u0074okens":2}'
    a, p, d = legs(shared, body)
    assert a.status == 200
    assert p.json()["max_tokens"] == 1 and "min_tokens" not in p.json()
    assert len([k for k, _, _ in members(p.body) if k == "max_tokens"]) == 1
    assert kept(d.body, DECODE_OWNS) == kept(body, DECODE_OWNS)


def test_doubled_owned_key(shared, router):
    """JSON libraries take the last of a double: the prefill leg must not be left with any other."""
    body = b'{"model":"sim-model","max_tokens":5,"prompt":"x","max_tokens":6,"stream":false,"stream":false}'
    a, p, d = legs(shared, body)
    assert a.status == 200
    assert set(values(p.body, "max_tokens")) == {"1"} and set(values(p.body, "stream")) == {"false"}
    assert kept(d.body, DECODE_OWNS) == kept(body, DECODE_OWNS)


def test_request_id_members_are_replaced(shared, router):
    body = b'{"request_id":"mine","model":"sim-model","rid":"mine","prompt":"x","max_tokens":2}'
    a, p, d = legs(shared, body)
    for leg in (p, d):
        assert leg.json()["request_id"] == leg.json()["rid"] == leg["x-request-id"]
    assert a["x-request-id"] != "mine"


PEER_MEMBERS = {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80},
                "disagg_prefill_resp": {"id": "x"}, "disagg_spec": {"receiver_host": "evil"}, "bootstrap_host": "evil",
                "bootstrap_port": 1, "bootstrap_room": 7, "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1,
                "data_parallel_rank": 3}


@pytest.mark.parametrize("name", PEER_MEMBERS)
def test_members_that_choose_peers_are_stripped(shared, router, name):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2, name: PEER_MEMBERS[name]}
    a, p, d = legs(shared, json.dumps(body).encode())
    assert a.status == 200
    for leg in (p, d):
        for value in values(leg.body, name):
            assert name == "kv_transfer_params" and "169.254" not in value


@pytest.mark.parametrize("params", [
    '{"remote_block_ids":[1,2,3],"remote_engine_id":"e"}',
    '{"remote_block_ids":["a7","b8"],"remote_engine_id":"e"}',
    '{"remote_block_ids":[[1,2],[3],[]],"remote_engine_id":"e"}',
    '{"remote_block_ids":[9007199254740993,18446744073709551617],"x":1e400,"y":-0.0}',
    '{ "b" : 1 ,\n"a":2, "a":3, "\\u0041":"\\/" }',
    '{"remote_block_ids":[' + ",".join(str(i) for i in range(8192)) + "]}",
], ids=["ints", "strings", "nested", "beyond_numbers", "odd_text", "8192_blocks"])
def test_kv_transfer_params_pass_as_raw_json(world, params):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream("x")
    p.expect("POST /v1/completions").prefilled(params)
    ex = d.expect("POST /v1/completions")
    assert values(ex.body, "kv_transfer_params") == [params]
    ex.stream("a", "b")
    assert text_of(c.events()) == "ab"


@pytest.mark.parametrize("form", ["ints", "strings", "nested"])
def test_block_ids_of_every_form_are_fetched(world, form):
    r, (p,), (d,) = world.pd(engine={"block_ids": form, "big_ids": True})
    assert r.complete("a longer prompt " * 20, max_tokens=3).status == 200
    assert p.counter("kv_fetched") == 1 and d.counter("kv_loaded") == 1


@pytest.mark.parametrize("answer", [b'{"id":"x","choices":[]}', b'{"id":"x","kv_transfer_params":null}'])
def test_prefill_without_handoff_is_decoded_without_it(world, answer):
    r, (p,), (d,) = world.scripts()
    c = r.open_stream("x")
    p.expect().reply(body=answer)
    ex = d.expect()
    assert values(ex.body, "kv_transfer_params") == []
    ex.stream("a")
    assert text_of(c.events()) == "a"
    r.wait_metric("kv_handoff_missing_total", 1)


# --- headers ---

TRACE = [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("tracestate", "a=1,b=2")]
HEADERS = [("Authorization", "Bearer sk-1"), ("baggage", "k=v"), ("OpenAI-Organization", "org-1"), ("X-Own", "one"), ("X-Own", "two"),
           ("Accept", "text/event-stream"), ("User-Agent", "test/1")]
DROPPED = [("Connection", "keep-alive, X-Listed"), ("X-Listed", "1"), ("Keep-Alive", "timeout=5"), ("TE", "trailers"),
           ("Proxy-Authorization", "Basic eDp5"), ("X-Data-Parallel-Rank", "3"), ("x-override-rid", "1"),
           ("X-Override-Bootstrap-Host", "evil")]


def test_end_to_end_headers_reach_both_legs(shared, router):
    _, p, d = legs(shared, b'{"model":"sim-model","prompt":"x","max_tokens":1}', headers=HEADERS + TRACE + DROPPED)
    for leg in (p, d):
        for name, value in HEADERS:
            assert value in leg.all(name), name
        assert leg["traceparent"].startswith(TRACE[0][1][:36]) and leg.all("tracestate") == ["a=1,b=2"]
        for name, _ in DROPPED:
            if name != "Connection":
                assert leg.all(name) == [], name
        assert "x-listed" not in (leg["connection"] or "").lower()
        assert leg.all("host") == [f"127.0.0.1:{(shared.p if leg is p else shared.d).port}"]
        assert leg.all("content-length") == [str(len(leg.body))]
        assert leg["content-type"] == "application/json"


UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def test_request_id_of_the_client(shared, router):
    a = router.complete(headers=[("X-Request-Id", "my-id.7")])
    assert a["x-request-id"] == "my-id.7"
    p, d = shared.p.last()["x-request-id"], shared.d.last()["x-request-id"]
    assert p == d and re.fullmatch(r"my-id\.7-[0-9a-f]{16}", p)
    assert router.end_of("my-id.7")["attempt"] == p
    router.complete(headers=[("X-Request-Id", "my-id.7")])
    assert shared.p.last()["x-request-id"] != p, "an attempt's id must never be used twice"


def test_request_id_made_up(shared, router):
    a, b = router.complete(), router.complete()
    assert re.fullmatch(UUID, a["x-request-id"]) and a["x-request-id"] != b["x-request-id"]
    assert shared.d.last()["x-request-id"].startswith(b["x-request-id"] + "-")


@pytest.mark.parametrize("bad", ["x" * 500, 'quote"d', "a b", "\x7fé"])
def test_request_id_that_cannot_be_used(shared, router, bad):
    """Whatever the client says, the engines get one usable id and the log line is one line."""
    a = router.complete(headers=[("X-Request-Id", bad)])
    assert a.status in (200, 400)
    if a.status == 200:
        assert re.fullmatch(r"[\x21-\x7e]{1,300}", shared.d.last()["x-request-id"])
        assert shared.p.last()["x-request-id"] == shared.d.last()["x-request-id"]
        assert a["x-request-id"] and len(a.all("x-request-id")) == 1


def test_the_line_names_client_and_model(world):
    four, six = ("127.0.0.1", free_port()), ("::1", free_port("::1"))
    r = world.router(world.pool([world.engine("prefill")], [world.engine("decode")]), listen=["%s:%d" % four, "[%s]:%d" % six], wait_for=None)
    r.port = four[1]
    r.wait_for("ready")
    for address, source, model, status in (four, "127.0.0.9", MODEL, 200), (four, "127.0.0.8", "none", 404), (six, "::1", "none", 404):
        with Client(address, source=source) as c:
            assert c.post("/v1/completions", {"model": model, "prompt": "x"}).status == status
    wait("their lines", lambda: len(r.ends()) == 3)
    assert {(e["client"], e["model"]) for e in r.ends()} == {("127.0.0.9", MODEL), ("127.0.0.8", "none"), ("::1", "none")}


def test_answer_headers_of_the_engine_pass(world):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "x"})
    p.expect().prefilled()
    d.expect().reply(body={"ok": 1}, headers=[("X-Engine", "a"), ("X-Engine", "b"), ("Connection", "X-Hop"), ("X-Hop", "1"),
                                              ("Keep-Alive", "timeout=5"), ("X-Request-Id", "engine-id")])
    a = c.read()
    assert a.all("x-engine") == ["a", "b"] and not a.all("x-hop") and not a.all("keep-alive")
    assert a.all("x-request-id") != ["engine-id"] and len(a.all("x-request-id")) == 1


def test_query_string_reaches_the_engines(shared, router):
    a = router.post("/v1/completions?x=1&y=%20", {"model": MODEL, "prompt": "x", "max_tokens": 1})
    assert a.status == 200


def test_query_string_reaches_the_engines_as_it_was_sent(world):
    r, (p,), (d,) = world.scripts()
    for query in ("?foo=bar&x=%20a/b?c", "", "?" + "q" * 2000):
        c = r.client().request("POST", "/v1/completions" + query, {"model": MODEL, "prompt": "hi"})
        ex = p.expect()
        assert ex.path == "/v1/completions" + query
        ex.prefilled()
        ex = d.expect()
        assert ex.path == "/v1/completions" + query
        ex.reply(body={})
        assert c.read().status == 200


def test_query_string_that_is_too_long(router):
    a = router.post("/v1/completions?" + "q" * 2001, {"model": MODEL, "prompt": "hi"})
    assert a.status == 414 and a.error["code"] == "uri_too_long"


def test_large_bodies_pass(shared, router):
    prompt = "0123456789abcdef" * (128 * 64)  # 128 KiB
    a = router.complete(prompt, max_tokens=3)
    assert a.json()["choices"][0]["text"] == expect.text(prompt, 3)
    prompt = "x" * (8 << 20)
    assert router.complete(prompt, max_tokens=1).status == 200


# of short messages: it is scanned in several turns of the worker's loop
LONG = {"model": MODEL, "messages": [{"role": "user", "content": f"\u00e9 {i}\n"} for i in range(40000)], "max_tokens": 3}


def test_a_long_body_is_scanned_in_turns(shared, router):
    body = json.dumps(LONG).encode()
    a = router.post("/v1/chat/completions", body, [("X-Request-Id", "a-long-body")])
    assert a.json()["choices"][0]["message"]["content"] == expect.text_chat(LONG, 3)
    assert router.end_of("a-long-body")["states"].startswith("hbp")
    a = router.post("/v1/chat/completions", body + b"x")
    assert a.status == 400 and a.error["code"] == "bad_json" and "text after the object" in a.error["message"]


def test_a_client_leaves_while_its_body_is_scanned(shared, router):
    """Or a moment before or after: its request ends once."""
    with router.client() as c:
        c.request("POST", "/v1/chat/completions", LONG, [("X-Request-Id", "it-leaves")])
    assert router.end_of("it-leaves")["reason"] in ("client_gone", "ok")
    wait("its end", lambda: router.metric("requests_in_flight") == 1)
    assert router.complete().status == 200


def test_log_line_of_a_request(shared, router):
    router.complete(headers=[("X-Request-Id", "a-line")])
    line = router.end_of("a-line")
    assert line["attempt"].startswith("a-line-") and line["reason"] == "ok"
    assert line["prefill"] == shared.p.url and line["decode"] == shared.d.url and line["pool"] == MODEL
    assert line["status"] == 200 and line["bytes_out"] > 100 and line["total_ms"] >= line["prefill_ms"]
    assert len([x for x in router.lines("request") if x["req"] == "a-line"]) == 1


def test_engines_behind_an_api_key(world):
    """The client's key goes to both; without it the engine's own 401 comes back."""
    r, (p,), (d,) = world.pd(engine={"api_key": "sk-1"})
    assert r.complete(headers=[("Authorization", "Bearer sk-1")]).status == 200
    a = r.complete()
    assert a.status == 401 and a.body == p.client().post("/v1/completions", {}).body and len(d.requests()) == 1


def test_one_model_of_the_list(shared, router):
    listed = json.loads(router.get("/v1/models").body)["data"][0]
    one = router.get("/v1/models/" + listed["id"])
    assert (one.status, json.loads(one.body)) == (200, listed)
    assert router.get("/v1/models/%" + "%02x" % ord(listed["id"][0]) + listed["id"][1:]).status == 200
    missing = router.get("/v1/models/nobody%2Fserves")
    assert (missing.status, json.loads(missing.body)["error"]["code"]) == (404, 404)
    assert router.post("/v1/models/x", b"{}").status == 405
