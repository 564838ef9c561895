"""nixl and orchestrated, in all they offer: two engines of each role, the openai SDK against a direct call, each leg's
failures, the client's leaving; then what only they have (push, leases, fan-out, ranks, usage).

The SDK's objects are those of a direct call but for: `id` and `created`, an engine's own; in streams, the order of events that
belong to different choices; with fanout, the texts of samples, each drawn by an engine of its own."""
import itertools
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache

import openai
import pytest

import expect
from members import kept, values
from procs import MODEL, SLOW, World, metric_sum, parse_metrics, wait
from raw import Closed, text_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KINDS = {
    "nixl": {},
    "orchestrated": {"connector": "orchestrated", "handoff": "kv_transfer_params"},
    "answer": {"connector": "orchestrated", "handoff": "disagg_prefill_resp"},
}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 日本語? 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
FRESH = itertools.count()
DROPPED = {"id", "created"}


def handshake(kind):
    return {"handoff": "disagg_prefill_resp"} if kind == "answer" else {}


class Fleet:
    """Two prefill and two decode engines behind a router, and one engine that is asked directly."""

    def __init__(self, kind, pool=None, engine=None, **keys):
        self.kind, self.world, self.seen = kind, World(), set()
        engine = {**handshake(kind), **(engine or {})}
        self.router, self.p, self.d = self.world.pd(
            2, 2, engine=engine, pool={**KINDS[kind], "policy": "round_robin", **(pool or {})},
            workers=1, **keys)  # one: each has a round of its own
        self.direct = self.world.engine("both")
        self.router.wait_all_up()

    def legs(self):
        """What each role's engines were sent since last asked, oldest first for each engine."""
        new = [[r for e in role for r in e.requests() if r["x-request-id"] not in self.seen] for role in (self.p, self.d)]
        self.seen |= {r["x-request-id"] for leg in new for r in leg}
        return new

    def used(self):
        """How often which pair of engines has served, since legs() was last asked."""
        at = [{r["x-request-id"]: i for i, e in enumerate(role) for r in e.requests()} for role in (self.p, self.d)]
        return Counter((at[0][rid], at[1][rid]) for rid in at[0] if rid not in self.seen)

    def settled(self):
        """Nothing is held, open, armed or in flight."""
        wait("nothing in flight", lambda: self.router.metric("endpoint_in_flight") == 0)
        assert not self.router.metric("kv_flags_armed")
        for e in (*self.p, *self.d):
            e.wait_metric("pdsim:held_blocks", 0)
            e.check()

    def close(self, ok):
        try:
            if ok:
                self.world.finish()
        finally:
            self.world.close()


@pytest.fixture(scope="module", params=list(KINDS))
def fleet_of(request):
    f = Fleet(request.param)
    yield f
    f.close(request.session.testsfailed == 0)


@pytest.fixture
def fleet(fleet_of):
    fleet_of.legs()
    yield fleet_of
    assert fleet_of.router.p.poll() is None, "the router died:\n" + fleet_of.router.log()[-5000:]
    fleet_of.settled()
    fleet_of.router.look_over()


@cache
def sdk(address):
    return openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="sk-test", max_retries=0, timeout=20)


def plain(obj):
    return {k: v for k, v in obj.model_dump().items() if k not in DROPPED}


def chunks(stream):
    """A stream's objects; those of each choice in their order, the choices one after the other."""
    all_ = list(stream)
    assert len({c.id for c in all_}) == 1, "one stream, one id"
    return sorted((plain(c) for c in all_), key=lambda c: c["choices"][0]["index"] if c["choices"] else 1 << 30)


def ask(address, stream, chat=False, **members):
    """What the SDK makes of the answer."""
    api = sdk(address).chat.completions if chat else sdk(address).completions
    if chat:
        members.setdefault("messages", MESSAGES)
    else:
        members.setdefault("prompt", f"Once upon a time {next(FRESH)}")
    a = api.create(**{"model": MODEL, "max_tokens": 12, **members}, stream=stream)
    return chunks(a) if stream else plain(a)


def same(fleet, stream, **members):
    """Through the router as directly."""
    if not members.get("chat"):
        members.setdefault("prompt", f"Once upon a time {next(FRESH)}")
    direct = ask(fleet.direct.address, stream, **members)
    assert ask(fleet.router.address, stream, **members) == direct
    return direct


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
SHAPE = pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])


# --- the row of the table ---------------------------------------------------------------------------


@SHAPE
def test_stream(fleet, chat):
    got = same(fleet, True, chat=chat, stream_options={"include_usage": True})
    assert got[-1]["usage"]["completion_tokens"] == 12 and len(got) > 12
    (p,), (d,) = fleet.legs()
    assert not p.json()["stream"] and d.json()["stream"] and "stream_options" not in p.json()


@SHAPE
def test_whole(fleet, chat):
    assert same(fleet, False, chat=chat)["usage"]["completion_tokens"] == 12


@STREAM
def test_chat(fleet, stream):
    """All four engines are used, in turn, and no two requests share an id."""
    for i in range(8):
        same(fleet, stream, chat=True, messages=[*MESSAGES, {"role": "assistant", "content": str(i)}], max_completion_tokens=5)
    met = fleet.used()
    assert len(met) == 4 and set(met.values()) == {2}, "every prefill engine meets every decode engine"
    p, d = fleet.legs()
    assert {r["x-request-id"] for r in p} == {r["x-request-id"] for r in d} and len({r["x-request-id"] for r in p}) == 8
    assert all(r.json()["max_completion_tokens"] == 1 for r in p)


@STREAM
def test_completions(fleet, stream):
    for _ in range(4):
        same(fleet, stream, stop=["zzz"])
    assert set(fleet.used().values()) == {1}
    p, d = fleet.legs()
    assert all(r.json()["stop"] == ["zzz"] for r in d) and all(("stop" in r.json()) == (fleet.kind == "answer") for r in p)


@STREAM
def test_tools(fleet, stream):
    same(fleet, stream, chat=True, tools=TOOLS, tool_choice="auto")
    (p,), (d,) = fleet.legs()
    assert p.json()["tools"] == d.json()["tools"] == TOOLS and p.json()["tool_choice"] == d.json()["tool_choice"] == "auto"


CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


@STREAM
def test_tool_calls_are_the_engines_own(desk, stream):
    """What the decode engine says of tools is what the SDK sees, to the byte."""
    r, p, d = desk.router, desk.p, desk.d
    head = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(ask, r.address, stream, chat=True, tools=TOOLS)
        p.expect(f"POST {CHAT}").prefilled()
        ex = d.expect(f"POST {CHAT}")
        if stream:
            ex.stream_head()
            deltas = [{"role": "assistant", "content": ""}, {"tool_calls": [{"index": 0, **CALL}]},
                      {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}]
            for delta in deltas:
                obj = {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
                ex.chunk(b"data: " + json.dumps(obj).encode() + b"\n\n")
            ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
            calls = got.result()[1]["choices"][0]["delta"]["tool_calls"]
        else:
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            ex.reply(body={**head, "object": "chat.completion", "choices": [
                {"index": 0, "message": message, "finish_reason": "tool_calls"}]})
            calls = got.result()["choices"][0]["message"]["tool_calls"]
    assert calls[0]["function"] == CALL["function"] and calls[0]["id"] == "call-1"


@STREAM
@SHAPE
def test_logprobs(fleet, stream, chat):
    got = same(fleet, stream, chat=chat, **({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}))
    assert "token" in json.dumps(got)


@STREAM
@SHAPE
def test_n(fleet, stream, chat):
    """Several samples of one hand-over: the decode engine alone where it describes only one, else one pair."""
    before = fleet.router.metric("direct_total")
    got = same(fleet, stream, chat=chat, n=3, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert (got[-1] if stream else got)["usage"]["completion_tokens"] == 36
    p, d = fleet.legs()
    assert len(d) == 1 and d[0].json()["n"] == 3
    if fleet.kind == "answer":
        assert len(p) == 1 and p[0].json()["n"] == 1
    else:
        assert p == [] and fleet.router.metric("direct_total") == before + 1
        assert "kv_transfer_params" not in d[0].json()


@STREAM
def test_list_prompts(fleet, stream):
    """One pair for each prompt; choices by their place in the list, usage summed."""
    prompts = [f"prompt {next(FRESH)} " * (i + 1) for i in range(4)]
    got = same(fleet, stream, prompt=prompts, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert (got[-1] if stream else got)["usage"]["completion_tokens"] == 48
    p, d = fleet.legs()
    assert sorted(r.json()["prompt"] for r in p) == sorted(r.json()["prompt"] for r in d) == sorted(prompts)
    assert len({r["x-request-id"] for r in p}) == 4


@STREAM
def test_token_ids(fleet, stream):
    """A list of numbers is one prompt, a list of such lists several."""
    same(fleet, stream, prompt=[1, 22, 333, 4444])
    p, d = fleet.legs()
    assert len(p) == len(d) == 1 and p[0].json()["prompt"] == [1, 22, 333, 4444]
    same(fleet, stream, prompt=[[1, 2, 3], [4, 5, 6, 7]])
    p, d = fleet.legs()
    assert sorted(r.json()["prompt"] for r in p) == [[1, 2, 3], [4, 5, 6, 7]]


PEERS = {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 80}, "rid": "evil",
         "disagg_prefill_resp": {"id": "evil"}, "disagg_spec": {"receiver_host": "evil"}, "bootstrap_host": "evil",
         "bootstrap_port": 1, "bootstrap_room": 7, "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "data_parallel_rank": 3,
         "request_id": "evil"}
PEER_HEADERS = [("X-Data-Parallel-Rank", "3"), ("x-override-rid", "evil"), ("X-Override-Bootstrap-Host", "evil")]


def test_nothing_of_a_client_chooses_a_peer(fleet):
    """Be it one request, several samples, or several prompts."""
    for more in ({}, {"n": 2}, {"prompt": [f"a{next(FRESH)}", f"b{next(FRESH)}"]}):
        prompt = f"mine {next(FRESH)}"
        a = fleet.router.complete(**{"prompt": prompt, **PEERS, **more}, headers=PEER_HEADERS)
        assert a.status == 200, a.body
        for leg in sum(fleet.legs(), []):
            assert b"evil" not in leg.body and "evil" not in str(leg.headers) and leg["x-data-parallel-rank"] is None
            assert not set(leg.json()) & (set(PEERS) - {"kv_transfer_params", "disagg_prefill_resp", "rid", "request_id"})
            assert leg.json()["rid"] == leg.json()["request_id"] == leg["x-request-id"]


# --- failures -----------------------------------------------------------------------------------------

LIMITS = {"timeouts": {"connect": "2s", "prefill": f"{500 * SLOW}ms", "decode": f"{500 * SLOW}ms"}}


class Desk:
    """Scripted engines, one of each role, for a file of stories that leave them in order."""

    def __init__(self, kind, pool=None, **keys):
        self.kind, self.world = kind, World()
        self.router, (self.p,), (self.d,) = self.world.scripts(pool={**KINDS[kind], **LIMITS, **(pool or {})}, **keys)


@pytest.fixture(scope="module", params=list(KINDS))
def desk_of(request):
    k = Desk(request.param)
    yield k
    try:
        if request.session.testsfailed == 0:
            k.world.finish()
    finally:
        k.world.close()


@pytest.fixture
def desk(desk_of):
    yield desk_of
    assert desk_of.router.p.poll() is None, "the router died:\n" + desk_of.router.log()[-5000:]
    desk_of.p.finish()
    desk_of.d.finish()
    wait("nothing in flight", lambda: desk_of.router.metric("endpoint_in_flight") == 0)
    assert not desk_of.router.metric("kv_flags_armed")
    assert desk_of.p.asked.empty() and desk_of.d.asked.empty()


def fresh(*engines):
    """Gives up their kept connections: a request on one may be sent again where nothing of it was acknowledged."""
    for e in engines:
        for c in list(e.conns):
            with suppress(OSError):  # it is closing anyway
                c.sock.shutdown(socket.SHUT_RDWR)


def begin(desk, stream, path=COMPLETIONS, **members):
    return desk.router.client().request("POST", path, {"model": MODEL, "prompt": "x", "stream": stream, **members})


PREFILL_FAILS = {  # how: what P does, the answer's status and code
    "reset": (lambda ex: ex.reset(), 502, "prefill_broken"),
    "closed": (lambda ex: ex.close(), 502, "prefill_broken"),
    "half": (lambda ex: ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\"").close(), 502, "prefill_broken"),
    "garbage": (lambda ex: ex.write(b"SSH-2.0-x\r\n\r\n").close(), 502, "prefill_bad_answer"),
    "no json": (lambda ex: ex.reply(body=b"oops"), 502, "prefill_bad_answer"),
    "list": (lambda ex: ex.reply(body=b"[1]"), 502, "prefill_bad_answer"),
    "empty": (lambda ex: ex.reply(body=b""), 502, "prefill_bad_answer"),
    "202": (lambda ex: ex.reply(202, {"kv_transfer_params": {}}), 502, "prefill_bad_answer"),
    "late": (lambda ex: None, 504, "prefill_timeout"),
}


@pytest.mark.parametrize("how", PREFILL_FAILS)
def test_failure_of_prefill(desk, how):
    """The decode engine is not asked; the client gets an honest status, be it a stream or not."""
    does, status, code = PREFILL_FAILS[how]
    for stream in (False, True) if how != "late" else (True,):
        fresh(desk.p)
        c = begin(desk, stream)
        does(desk.p.expect())
        a = c.read()
        assert (a.status, a.error["code"]) == (status, code) and desk.d.quiet(0.05)


@pytest.mark.parametrize("status", [400, 401, 422, 429, 500, 503])
def test_failure_of_prefill_with_a_status(desk, status):
    """Its own words pass, byte by byte: the client's fault or its own."""
    body = b'{"error": {"message":"no \\u0041",  "code":%d}}' % status
    for stream in (False, True):
        c = begin(desk, stream)
        desk.p.expect().reply(status, body, headers=[("Content-Type", "application/json"), ("X-Why", "because")])
        a = c.read()
        assert (a.status, a.body, a["x-why"]) == (status, body, "because") and desk.d.quiet(0.05)


DECODE_FAILS = {
    "reset": (lambda ex: ex.reset(), 502, "decode_broken"),
    "closed": (lambda ex: ex.close(), 502, "decode_broken"),
    "garbage": (lambda ex: ex.write(b"SSH-2.0-x\r\n\r\n").close(), 502, "decode_broken"),
    "late": (lambda ex: None, 504, "decode_timeout"),
}


@pytest.mark.parametrize("how", DECODE_FAILS)
def test_failure_of_decode(desk, how):
    """Before its first byte: a status of ours."""
    does, status, code = DECODE_FAILS[how]
    for stream in (False, True) if how != "late" else (True,):
        fresh(desk.d)
        c = begin(desk, stream)
        desk.p.expect().prefilled()
        does(desk.d.expect())
        a = c.read()
        assert (a.status, a.error["code"]) == (status, code)


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_failure_of_decode_with_a_status(desk, status):
    body = b'{"error": {"message":"no \\u0041",  "code":%d}}' % status
    for stream in (False, True):
        c = begin(desk, stream)
        desk.p.expect().prefilled()
        desk.d.expect().reply(status, body, headers=[("Content-Type", "application/json"), ("X-Why", "because")])
        a = c.read()
        assert (a.status, a.body, a["x-why"]) == (status, body, "because")


@pytest.mark.parametrize("how", ["reset", "closed", "late", "error event"])
def test_failure_of_decode_in_the_stream(desk, how):
    """After its first byte: an event says so, and no [DONE] pretends."""
    c = begin(desk, True)
    desk.p.expect().prefilled()
    ex = desk.d.expect().stream_head().event("a")
    events = c.events()
    assert text_of([next(events)]) == "a"
    if how == "error event":
        ex.chunk(b'data: {"error":{"message":"KV load failed","code":500}}\n\ndata: [DONE]\n\n').write(b"0\r\n\r\n").end()
        assert next(events).json()["error"]["message"] == "KV load failed"
        assert desk.router.end(len(desk.router.ends()))["reason"] == "engine_status"
        return
    {"reset": ex.reset, "closed": ex.close, "late": lambda: None}[how]()
    last = next(events)
    assert last.json()["error"]["code"] == ("decode_timeout" if how == "late" else "decode_broken")
    assert list(events) == []


def test_failure_of_decode_in_a_whole_answer(desk):
    """The missing bytes are never made up for."""
    c = begin(desk, False)
    desk.p.expect().prefilled()
    desk.d.expect().write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"id"').reset()
    try:
        a = c.read()
        assert (a.status, a.error["code"]) == (502, "decode_broken")
    except Closed:
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_that_refuses_connections(world, kind, role):
    r, (p,), (d,) = world.scripts(pool=KINDS[kind], health_interval="30s")
    (p if role == "prefill" else d).close()
    c = r.open_stream("x")
    if role == "decode":
        p.expect().prefilled()
    a = c.read()
    assert (a.status, a.error["code"]) == (502, f"{role}_broken")


# --- the client leaves ----------------------------------------------------------------------------------

SLOW_ENGINES = {"prefill_delay": 80, "fetch_delay": 80, "token_delay": 5}


@pytest.fixture(scope="module", params=list(KINDS))
def slow_of(request):
    f = Fleet(request.param, engine=SLOW_ENGINES)
    yield f
    f.close(request.session.testsfailed == 0)


@pytest.mark.parametrize("stage", ["before prefill answers", "between the legs", "in the answer"])
@STREAM
def test_client_gone(slow_of, stage, stream):
    """No block stays held, whenever it leaves."""
    f = slow_of
    f.legs()
    done = len(f.router.ends())
    c = f.router.client().request("POST", COMPLETIONS, {
        "model": MODEL, "prompt": f"a long prompt {next(FRESH)} " * 20, "stream": stream, "max_tokens": 80})
    if stage == "before prefill answers":
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.p))
    else:
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.d))
    if stage == "in the answer" and stream:
        c.head()
    elif stage == "in the answer":
        wait(stage, lambda: any(e.metric("pdsim:held_blocks") == 0 and e.counter("kv_fetched") for e in f.p))
    c.close()
    assert f.router.end(done + 1)["reason"] == "client_gone"
    f.settled()
    p, d = f.legs()
    assert p[0].aborted == (stage == "before prefill answers") and len(p) == 1
    assert len(d) == (stage != "before prefill answers")
