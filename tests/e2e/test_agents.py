"""/v1/messages and /v1/responses by a prefill and a decode engine (`disaggregate_agent_paths`): what each leg is sent, with
which connectors, what stays with one engine, how it fails, and what is released."""
import json

import pytest

from legs import STREAM, taken
from procs import MODEL, wait
from test_mooncake import pd as mooncakes

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
JSON = [("Content-Type", "application/json")]
POOL = {"disaggregate_agent_paths": True}
RESCUE = {**POOL, "retries": 2, "fallback": "direct"}
PATHS = pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
KINDS = {
    "nixl": ({}, {}),
    "push": ({"transfer_mode": "push"}, {"transfer": "push", "no_id_suffix": True}),
    "orchestrated": ({"connector": "orchestrated", "handoff": "kv_transfer_params"}, {}),
}
FIRST = "message_start", "response.created"
LAST = "message_stop", "response.incomplete"


def body(path, **more):
    own = {"messages": [{"role": "user", "content": "a prompt"}], "system": "be brief", "max_tokens": 6} if path == MESSAGES else {
        "input": [{"role": "user", "content": "a prompt"}], "instructions": "be brief", "max_output_tokens": 6}
    return {"model": MODEL, **own, **more}


def post(r, path, of, headers=()):
    return begin(r, path, of, headers).read()


def begin(r, path, of, headers=()):
    return r.client().request("POST", path, of, headers)


def events(answer):
    return [json.loads(line[5:]) for line in answer.body.split(b"\n") if line.startswith(b"data:")]


def said(path, answer, stream):
    """The text of an answer, and its usage: what it took and what it gave."""
    if not stream:
        obj = json.loads(answer.body)
        part = obj if path == MESSAGES else obj["output"][0]
        return part["content"][0]["text"], (obj["usage"]["input_tokens"], obj["usage"]["output_tokens"])
    got = events(answer)
    assert got[0]["type"] in FIRST and got[-1]["type"] in LAST
    text = "".join(e["delta"]["text"] if path == MESSAGES else e["delta"] for e in got if e["type"].endswith(("block_delta", "text.delta")))
    usage = got[-2]["usage"] if path == MESSAGES else got[-1]["response"]["usage"]
    return text, (usage["input_tokens"], usage["output_tokens"])


def line_of(r, n=1):
    """The log line of the n-th request."""
    return wait(f"{n} request lines", lambda: len(r.lines("request")) >= n and r.lines("request"))[n - 1]


def legs(p, d):
    """The one request that each role's engine was sent."""
    (a,), (b,) = p.requests(), d.requests()
    return a, b


# --- with simulated engines ---------------------------------------------------------------------------


@PATHS
@STREAM
@pytest.mark.parametrize("kind", KINDS)
def test_two_engines(world, kind, path, stream):
    """The decode engine fetches what the prefill engine holds: the simulator refuses any other prompt, and any change of the parameters."""
    pool, engine = KINDS[kind]
    r, (p,), (d,) = world.pd(engine=engine, pool={**POOL, **pool}, workers=1)
    of = body(path, stream=stream, cache_salt="s")
    first = said(path, post(r, path, of), stream)
    a, b = legs(p, d)
    limit = "max_tokens" if path == MESSAGES else "max_output_tokens"
    assert (a.path, b.path) == (path, path) and a.json()[limit] == 1 and a.json()["stream"] is False
    assert a.json()["kv_transfer_params"]["do_remote_decode"] and b.json()["kv_transfer_params"]["do_remote_prefill"]
    assert {k: v for k, v in b.json().items() if k not in ("kv_transfer_params", "request_id")} == of
    assert first[1][1] == 6 and len(first[0].split()) == 6
    assert said(path, post(r, path, of), stream) == first
    assert (d.counter("kv_loaded"), d.counter("local_prefills"), d.counter("kv_refused")) == (2, 0, 0)
    p.wait_metric("pdsim:held_blocks", 0)
    at_once = kind == "push" and path == MESSAGES  # both legs at once: the internal id of a response is not known beforehand
    assert ("remote_block_ids" in d.last().json()["kv_transfer_params"]) is not at_once
    line = line_of(r, 2)
    assert (line["route"], line["prompt_tokens"], line["completion_tokens"], line["reason"]) == (path, *first[1], "ok")


@PATHS
@STREAM
def test_mooncake(world, path, stream):
    """Both legs at once; the prefill answer, which has no KV parameters, must have ended by its limit in the words of its path."""
    r, (p,), (d,) = mooncakes(world, n=1, pool=POOL, workers=1)
    of = body(path, stream=stream)
    text, usage = said(path, post(r, path, of), stream)
    a, b = legs(p, d)
    assert a.json()["kv_transfer_params"]["transfer_id"] == b.json()["kv_transfer_params"]["transfer_id"]
    assert usage[1] == len(text.split()) == 6 and not r.metric("kv_handoff_missing_total")
    assert (d.counter("kv_loaded"), d.counter("local_prefills")) == (1, 0)
    p.wait_metric("pdsim:held_blocks", 0)


@PATHS
def test_engines_that_know_no_kv_of_these_paths(world, path):
    """vLLM up to 0.18: the decode engine computes the prompt, and that is counted as everywhere."""
    r, (p,), (d,) = world.pd(engine={"vllm": "0.13"}, pool=POOL)
    assert post(r, path, body(path)).status == 200
    assert r.metric("kv_handoff_missing_total") == 1


def test_thinking(world):
    """The budget stays with the prefill leg, whose limit is below it, and is gone from the request that only frees KV."""
    r, (p,), (d,) = world.pd(engine={"fetch_delay": 200}, pool=POOL)
    thinks = {"type": "enabled", "budget_tokens": 1024}
    c = begin(r, MESSAGES, body(MESSAGES, max_tokens=2000, thinking=thinks))
    wait("the decode leg", lambda: d.requests())
    a, b = legs(p, d)
    assert a.json()["thinking"] == b.json()["thinking"] == thinks
    c.close()
    p.wait_metric("pdsim:held_blocks", 0)


# --- with scripted engines ----------------------------------------------------------------------------


HAND = '{"do_remote_prefill":true,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_port":7}'


def prefilled(ex):
    ex.reply(body=f'{{"id":"x","content":[],"usage":{{"input_tokens":3,"output_tokens":1}},"kv_transfer_params":{HAND}}}'.encode(), headers=JSON)


@PATHS
def test_the_bodies(world, path):
    """Byte by byte, but for the id that names a response."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "cached_tokens_from": "prefill"})
    of = body(path, stream=True, **({"stop_sequences": ["x"], "n": 2} if path == MESSAGES else {"stop": ["x"], "tools": [{"type": "function"}, {"type": "custom"}]}))
    c = begin(r, path, of)
    ex = p.expect(f"POST {path}")
    got, want = ex.json(), {**of, "stream": False, "ignore_eos": True}
    want.pop("stop_sequences", None)
    want.pop("stop", None)
    want.update({"max_tokens": 1} if path == MESSAGES else {"max_output_tokens": 1, "store": False})
    if path == MESSAGES:
        want["n"] = 1
    assert got.pop("kv_transfer_params")["do_remote_decode"] is True and got == want
    prefilled(ex)
    ex = d.expect(f"POST {path}")
    got = ex.json()
    assert HAND.encode() in ex.body and got.pop("kv_transfer_params") and ("request_id" in got) == (path == RESPONSES)
    assert got.pop("request_id", "resp_").startswith("resp_") and got == of
    ex.stream_head().chunk(b'event: a\ndata: {"type":"a","usage":{"cached_tokens":3}}\n\n').write(b"0\r\n\r\n")
    ex.end()
    assert c.read().body == b'event: a\ndata: {"type":"a","usage":{"cached_tokens":3}}\n\n'


@pytest.mark.parametrize("more", [
    {"background": True},
    {"background": 1},
    {"tools": [{"type": "function"}, {"type": "code_interpreter"}]},
    {"tools": [{"name": "no type"}]},
    {"tools": {}},
], ids=["background", "background as a number", "tools of the engine", "tools of no type", "no list of tools"])
def test_responses_of_one_engine(world, more):
    """What needs an engine's memory, outlives its request, or generates several times goes to the decode engine alone."""
    r, (p,), (d,) = world.scripts(pool=POOL)
    c = begin(r, RESPONSES, body(RESPONSES, **more))
    ex = d.expect(f"POST {RESPONSES}")
    assert "kv_transfer_params" not in ex.json() and p.asked.empty()
    ex.reply(body=b"{}", headers=JSON)
    assert c.read().status == 200 and line_of(r)["direct"] is None


def test_a_response_that_goes_on_from_another(world):
    """It goes to the decode engine that keeps the other, which alone knows the prompt."""
    r, (p,), d = world.scripts(1, 2, pool=POOL)
    c = begin(r, RESPONSES, body(RESPONSES))
    prefilled(p.expect())
    ex, holder = taken(d)
    name = ex.json()["request_id"]
    ex.reply(body=b"{}", headers=JSON)
    assert c.read().status == 200
    for _ in range(3):
        c = begin(r, RESPONSES, body(RESPONSES, previous_response_id=name))
        ex = holder.expect(f"POST {RESPONSES}")
        assert "kv_transfer_params" not in ex.json() and p.asked.empty()
        ex.reply(body=b"{}", headers=JSON)
        assert c.read().status == 200


@PATHS
def test_short_prompts_and_the_clients_choice(world, path):
    """The threshold counts what stands before the messages too; a prompt below it goes to the decode engine alone."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "routing_threshold": 200, "allow_route_header": True})
    before = "system" if path == MESSAGES else "instructions"
    for of, headers, why in ((body(path), [], "threshold"), (body(path, **{before: "x" * 4000}), [("X-PD-Route", "direct")], "client")):
        c = begin(r, path, of, headers)
        ex = d.expect()
        assert "kv_transfer_params" not in ex.json() and p.asked.empty()
        ex.reply(body=b"{}", headers=JSON)
        assert c.read().status == 200
        wait("its line", lambda: [x for x in r.lines("request") if x["direct"] == why])
    c = begin(r, path, body(path, **{before: "x" * 4000}))
    prefilled(p.expect())
    d.expect().reply(body=b"{}", headers=JSON)
    assert c.read().status == 200


@PATHS
def test_prefill_engines_fail(world, path):
    """Another prefill engine is tried; without one the decode engine serves alone."""
    r, p, (d,) = world.scripts(2, 1, pool=RESCUE, fall=1000)
    c = begin(r, path, body(path))
    ex, who = taken(p)
    ex.reply(500, b"{}", headers=JSON)
    prefilled(p[1 - p.index(who)].expect())
    ex = d.expect()
    assert HAND.encode() in ex.body
    ex.reply(body=b"{}", headers=JSON)
    assert c.read().status == 200
    c = begin(r, path, body(path))
    for _ in p:
        taken(p)[0].reply(500, b"{}", headers=JSON)
    ex = d.expect()
    assert "kv_transfer_params" not in ex.json()
    ex.reply(body=b"{}", headers=JSON)
    assert c.read().status == 200


@PATHS
@pytest.mark.parametrize("split", [True, False], ids=["two engines", "one engine"])
def test_a_stream_that_begins_with_an_error(world, path, split):
    """vLLM reports KV that it could not load, as any failure, in an event under its 200: nothing of it has reached the client."""
    r, p, d = world.scripts(2, 2, pool={**RESCUE, "disaggregate_agent_paths": split})
    c = begin(r, path, body(path, stream=True))
    for last in (False, True):
        if split:
            prefilled(taken(p)[0])
        ex, who = taken(d)
        ex.stream_head()
        if last:
            ex.chunk(b'event: b\ndata: {"type":"b"}\n\n').write(b"0\r\n\r\n")
        else:
            ex.chunk(b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Internal server error"}}\n\n').write(b"0\r\n\r\n")
        ex.end()
    answer = c.read()
    assert answer.body == b'event: b\ndata: {"type":"b"}\n\n' and line_of(r)["reason"] == "ok"


@PATHS
def test_an_error_in_mid_stream(world, path):
    """It passes as it is; the log and the engine's record call it a failure."""
    r, (p,), (d,) = world.scripts(pool=POOL)
    error = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n'
    c = begin(r, path, body(path, stream=True))
    prefilled(p.expect())
    ex = d.expect()
    ex.stream_head().chunk(b'event: a\ndata: {"type":"a"}\n\n').chunk(error).write(b"0\r\n\r\n")
    ex.end()
    assert c.read().body == b'event: a\ndata: {"type":"a"}\n\n' + error
    assert line_of(r)["reason"] == "engine_status"


@PATHS
@STREAM
def test_the_client_leaves_between_the_legs(world, path, stream):
    """A decode engine is sent the request for one token, in a form that no engine refuses."""
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 4000}, "max_tokens": 5000} if path == MESSAGES else {"max_output_tokens": 5000}
    r, (p,), (d,) = world.scripts(pool=POOL)
    c = begin(r, path, body(path, stream=stream, **thinks))
    ex = p.expect()
    body_ = f'{{"content":[],"kv_transfer_params":{HAND}}}'.encode()
    ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body_), body_[:9]))
    c.silent(0.05)
    c.close()
    line_of(r)
    ex.write(body_[9:]).end()
    ex = d.expect(f"POST {path}")
    got = ex.json()
    assert HAND.encode() in ex.body and got["stream"] is False and "thinking" not in got
    assert got["max_tokens" if path == MESSAGES else "max_output_tokens"] == 1 and got.get("store") is (None if path == MESSAGES else False)
    ex.reply(body=b"{}", headers=JSON)
    r.wait_metric("kv_released_total", 1, reason="client_gone")


def test_shared_storage(world):
    """Nothing names the KV.  Decode first needs a threshold, which these paths have no member for: prefill comes first."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "connector": "shared_storage", "cache_hit_threshold": 0.8})
    of = body(MESSAGES, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    c = begin(r, MESSAGES, of)
    ex = p.expect(f"POST {MESSAGES}")
    want = {k: v for k, v in of.items() if k != "thinking"}
    assert ex.json() == {**want, "max_tokens": 1, "stream": False}
    ex.reply(body=b'{"content":[]}', headers=JSON)
    ex = d.expect(f"POST {MESSAGES}")
    assert ex.json() == of
    ex.reply(body=b"{}", headers=JSON)
    assert c.read().status == 200


def test_disabled_thinking_stays(world):
    """It changes what the template makes of the messages, so both engines must see it."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "connector": "shared_storage"})
    of = body(MESSAGES, thinking={"type": "disabled"})
    c = begin(r, MESSAGES, of)
    ex = p.expect()
    assert ex.json()["thinking"] == {"type": "disabled"}
    ex.reply(body=b"{}", headers=JSON)
    d.expect().reply(body=b"{}", headers=JSON)
    assert c.read().status == 200


def test_errors_have_anthropics_form(world):
    """Of a prefill leg too."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "fallback": "none", "retries": 0}, fall=1000)
    c = begin(r, MESSAGES, body(MESSAGES))
    p.expect().reset()
    got = c.read()
    assert got.status == 502 and json.loads(got.body)["type"] == "error" and line_of(r)["reason"] == "prefill_broken"


def test_a_stored_response_of_two_engines(world):
    """single_engine_role does not say who keeps the responses that two engines have made."""
    r, (p,), (d,) = world.scripts(pool={"disaggregate_agent_paths": True, "single_engine_role": "prefill"})
    c = r.client().request("POST", "/v1/responses", {"model": MODEL, "input": "x"})
    p.expect().reply(body=json.dumps({"id": "x", "output": [], "kv_transfer_params": json.loads(HAND)}, separators=(",", ":")).encode())
    ex = d.expect()
    name = ex.json()["request_id"]
    ex.reply(body={"id": name})
    assert c.read().status == 200
    c = r.client().request("GET", f"/v1/responses/{name}")
    d.expect().reply(body={"id": name})
    assert c.read().json() == {"id": name}
