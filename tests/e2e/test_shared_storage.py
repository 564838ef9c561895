"""shared_storage: the KV is where both engines look by themselves.  As it is by default, and with cache_hit_threshold, where the
decode engine is asked first: two engines of each role, the openai SDK against a direct call, failures, the client's leaving.

The SDK's objects are those of a direct call but for `id` and `created`, an engine's own."""
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from legs import (CALL, DECODE_FAILS, FRESH, IN_THE_STREAM, MESSAGES, PREFILL_FAILS, SCHEMA, SHAPE, STREAM, TOOLS, ask,
                  call_a_tool, chooses_no_peer, code_of, fails_in_a_whole_answer, fails_in_the_stream, own_words, says, serve_again, tool_called)
from legs import same as same_answer
from members import kept, members, values
from procs import MODEL, SLOW, metric_sum, parse_metrics, silence, wait
from raw import text_of
from recorded import CASES, load
from stages import BaseFleet, Stage, lasting
from test_sdk import outcome

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KINDS = {"prefill first": {}, "decode first": {"cache_hit_threshold": 0.8}}
PREFILL_OWNS = {"max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "n", "best_of", "cache_hit_threshold"}


class Fleet(BaseFleet):
    """Two prefill and two decode engines before one storage, and an engine that is asked directly.  A decode engine that
    would have to compute a prompt answers 500: only what has been prefilled, or is refused for its cache, gets an answer."""

    def __init__(self, kind, engine=None, **pool):
        super().__init__()
        self.kind, self.first = kind, kind == "decode first"
        storage = self.world.dir / "storage"
        storage.mkdir()
        shared = {"handshake": "shared_storage", "storage": storage, **(engine or {})}
        self.p = [self.world.engine("prefill", **shared) for _ in range(2)]
        self.d = [self.world.engine("decode", refuse_local=True, **shared) for _ in range(2)]
        self.direct = self.world.engine("both")
        self.router = self.world.router(self.world.pool(
            self.p, self.d, "shared_storage", policy="round_robin", **KINDS[kind], **pool), workers=1)
        self.router.wait_all_up()

    def two(self):
        """The one prefill and the one decode leg of a prompt that was nowhere, and the try before them."""
        p, d = self.legs()
        tries = [r for r in d if r["x-request-id"] not in {x["x-request-id"] for x in p}]
        assert len(tries) == self.first and len(p) == 1 and len(d) == 1 + self.first
        for one in tries:
            assert one.json()["cache_hit_threshold"] == 0.8
        return p[0], next(r for r in d if r not in tries)

    def misses(self):
        return self.router.metric("kv_cache_misses_total")

    def settled(self):
        self.at_rest()
        for e in (*self.p, *self.d):  # the rest of Engine.check() at the end
            e.wait_metric("pdsim:running_requests", 0)
            assert e.counter("local_prefills") == 0


@pytest.fixture(scope="module", params=list(KINDS))
def fleet_of(request):
    yield from lasting(request, Fleet(request.param))


def same(fleet, stream, **asked):
    """Through the router as directly, whose decode engine wants prefill of one prompt that is nowhere."""
    before = fleet.misses()
    direct = same_answer(fleet, stream, **asked)
    several = isinstance(asked.get("prompt"), list) and isinstance(asked["prompt"][0], (str, list)) and len(asked["prompt"]) > 1
    assert fleet.misses() - before == (fleet.first and not several)
    return direct


def again(fleet, stream, **asked):
    """The same prompt once more: the decode engine alone where it is asked first."""
    fleet.legs()
    before = fleet.misses()
    got = ask(fleet.router.address, stream, **asked)
    p, d = fleet.legs()
    assert (len(p), len(d)) == ((0, 1) if fleet.first else (1, 1)) and fleet.misses() == before
    return got


# --- the row of the table ---------------------------------------------------------------------------


@SHAPE
def test_stream(fleet, chat):
    got = same(fleet, True, chat=chat, stream_options={"include_usage": True})
    assert got[-1]["usage"]["completion_tokens"] == 12 and len(got) > 12
    p, d = fleet.two()
    assert not p.json()["stream"] and d.json()["stream"] and "stream_options" not in p.json()


@SHAPE
def test_whole(fleet, chat):
    assert same(fleet, False, chat=chat)["usage"]["completion_tokens"] == 12
    p, d = fleet.two()
    assert p.json()["max_tokens"] == 1 and d.json()["max_tokens"] == 12


@SHAPE
@STREAM
def test_prompt_that_is_there_already(fleet, stream, chat):
    """Decode first: one leg.  Prefill first: both, since nobody has asked."""
    what = {"chat": True, "messages": [{"role": "user", "content": f"there {next(FRESH)}"}]} if chat else {"prompt": f"there {next(FRESH)}"}
    first = ask(fleet.router.address, stream, **what)
    assert again(fleet, stream, **what) == first == ask(fleet.direct.address, stream, **what)
    if fleet.first:
        assert fleet.router.metric("endpoint_in_flight", role="prefill") == 0


@STREAM
def test_chat(fleet, stream):
    """All four engines are used, in turn, and no request id comes twice."""
    for i in range(8):
        same(fleet, stream, chat=True, max_completion_tokens=5)
    assert {e.port for e in (*fleet.p, *fleet.d) if e.requests()} == {e.port for e in (*fleet.p, *fleet.d)}
    p, d = fleet.legs()
    ids = Counter(r["x-request-id"] for r in d)
    assert len(p) == 8 and set(ids.values()) == {1} and {r["x-request-id"] for r in p} <= set(ids)
    assert all(r.json()["max_completion_tokens"] == 1 for r in p)
    assert all(r.json()["max_completion_tokens"] == 5 for r in d)


@STREAM
def test_completions(fleet, stream):
    """Stops stay on the prefill leg: nothing hangs on how its one token ends."""
    for _ in range(4):
        same(fleet, stream, stop=["zzz"])
    p, d = fleet.legs()
    assert len(p) == 4 and all(r.json()["stop"] == ["zzz"] for r in (*p, *d))


@STREAM
def test_tools(fleet, stream):
    same(fleet, stream, chat=True, tools=TOOLS, tool_choice="auto")
    p, d = fleet.two()
    assert p.json()["tools"] == d.json()["tools"] == TOOLS and p.json()["tool_choice"] == d.json()["tool_choice"] == "auto"


@STREAM
def test_tool_calls(fleet, stream):
    """Arguments are a document of the decode engine's; prefill's one token is none of it."""
    got = same(fleet, stream, chat=True, tools=TOOLS, tool_choice="required", max_tokens=40)
    assert ("tool_calls" in json.dumps(got)) and "weather" in json.dumps(got)
    p, _ = fleet.two()
    assert p.json()["tool_choice"] == "required"


@STREAM
def test_structured_output(fleet, stream):
    got = same(fleet, stream, chat=True, response_format=SCHEMA, max_tokens=40)
    assert "words" in json.dumps(got)
    p, d = fleet.two()
    assert p.json()["response_format"] == d.json()["response_format"] == SCHEMA


@STREAM
def test_tool_calls_are_the_engines_own(desk, stream):
    """What the decode engine says of tools is what the SDK sees."""
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(ask, desk.router.address, stream, chat=True, tools=TOOLS, messages=MESSAGES)
        call_a_tool(desk.to_decode(CHAT), stream)
        tool_called(got.result(), stream)


@STREAM
@SHAPE
def test_logprobs(fleet, stream, chat):
    got = same(fleet, stream, chat=chat, **({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}))
    assert "token" in json.dumps(got)


@STREAM
@SHAPE
def test_n(fleet, stream, chat):
    """One prompt, one KV: one branch, whose prefill computes it once."""
    got = same(fleet, stream, chat=chat, n=3, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert (got[-1] if stream else got)["usage"]["completion_tokens"] == 36
    p, d = fleet.two()
    assert p.json()["n"] == 1 and d.json()["n"] == 3


@STREAM
def test_list_prompts(fleet, stream):
    """One branch for all: the prefill engine stores each.  The decode engine is never asked first, or it might answer some."""
    prompts = [f"prompt {next(FRESH)} " * (i + 1) for i in range(12)]
    got = same(fleet, stream, prompt=prompts, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert (got[-1] if stream else got)["usage"]["completion_tokens"] == 144
    (p,), (d,) = fleet.legs()
    assert p.json()["prompt"] == d.json()["prompt"] == prompts
    assert d.json().get("cache_hit_threshold", 0) == 0


@STREAM
def test_token_ids(fleet, stream):
    """A list of numbers is one prompt, a list of such lists several."""
    ids = [next(FRESH), 22, 333, 4444]
    same(fleet, stream, prompt=ids)
    p, d = fleet.two()
    assert p.json()["prompt"] == d.json()["prompt"] == ids
    lists = [[next(FRESH), 2, 3], [4, 5, 6, next(FRESH)]]
    same(fleet, stream, prompt=lists)
    (p,), (d,) = fleet.legs()
    assert p.json()["prompt"] == d.json()["prompt"] == lists


@pytest.mark.parametrize("name", CASES)
def test_recorded_bodies(fleet, name):
    """What clients of other languages and ages really send."""
    case = load(name)
    direct, through = outcome(fleet.direct.address, case), outcome(fleet.router.address, case)
    assert direct[0] == case.status and through == direct


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"prompt": ["a1", "b1"]}], ids=["one", "samples", "prompts"])
def test_nothing_of_a_client_chooses_a_peer(fleet, more):
    chooses_no_peer(fleet, more)


def test_many_at_once(fleet):
    """Prompts that are there and prompts that are not beside each other, each its own answer."""
    prompts = [f"many {i % 12} {next(FRESH) if i % 2 else ''}" for i in range(48)]
    want = {p: fleet.direct.client().post(COMPLETIONS, {"model": MODEL, "prompt": p, "max_tokens": 5}).json()["choices"][0]["text"]
            for p in set(prompts)}
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda p: fleet.router.complete(p, max_tokens=5).json()["choices"][0]["text"], prompts))
    assert got == [want[p] for p in prompts]


# --- scripted engines ---------------------------------------------------------------------------------

LIMITS = {"timeouts": {"connect": "2s", "prefill": f"{250 * SLOW}ms", **silence(f"{250 * SLOW}ms")}}
REFUSAL = b'{"id":"x","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"cache_threshold"}]}'


def event(**choice):
    return b"data: " + json.dumps({"id": "x", "object": "x", "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


ROLE = event(delta={"role": "assistant", "content": ""}, finish_reason=None)
REFUSING = {  # streams that ask for prefill, as their chunks
    "completions": [event(text="", finish_reason="cache_threshold"), b"data: [DONE]\n\n"],
    "chat": [ROLE, event(delta={"content": ""}, finish_reason="cache_threshold"), b"data: [DONE]\n\n"],
    "in one write": [ROLE + event(delta={}, finish_reason="cache_threshold") + b"data: [DONE]\n\n"],
    "in pieces": [ROLE[:9], ROLE[9:], *(bytes([b]) for b in event(delta={}, finish_reason="cache_threshold")), b"data: [DONE]\n\n"],
    "after a comment": [b": ping\n\n", b"\n", event(text="", finish_reason="cache_threshold"), b"data: [DONE]\n\n"],
    "after usage": [b'data: {"choices":[],"usage":{}}\n\n', event(text="", finish_reason="cache_threshold"), b"data: [DONE]\n\n"],
    "the second sample": [ROLE, event(delta={"role": "assistant", "content": ""}, finish_reason=None),
                          event(delta={"content": ""}, finish_reason="cache_threshold"), b"data: [DONE]\n\n"],
    "carriage returns": [ROLE.replace(b"\n", b"\r\n"), event(text="", finish_reason="cache_threshold").replace(b"\n", b"\r\n"),
                         b"data: [DONE]\r\n\r\n"],
}


class Desk(Stage):
    """Scripted engines, one of each role."""

    def __init__(self, kind, **keys):
        super().__init__()
        self.kind, self.first = kind, kind == "decode first"
        self.router, (self.p,), (self.d,) = self.world.scripts(
            pool={"connector": "shared_storage", **KINDS[kind], **LIMITS}, workers=1, **keys)

    def ask(self, stream=False, path=COMPLETIONS, headers=(), **members_):
        return self.router.client().request("POST", path, {"model": MODEL, "prompt": "x", "stream": stream, **members_}, headers)

    def refuse(self, stream=False):
        """The decode engine, if asked first, wants prefill."""
        if self.first:
            self.refused(self.d.expect(), stream)

    def refused(self, ex, stream=False):
        if stream and ex.json()["stream"]:
            body = b"".join(REFUSING["chat"])
            ex.reply(body=body, headers=[("Content-Type", "text/event-stream; charset=utf-8")])
        else:
            ex.reply(body=REFUSAL, headers=[("Content-Type", "application/json")])

    def to_prefill(self, stream=True):
        self.refuse(stream)
        return self.p.expect()

    def to_decode(self, path=COMPLETIONS, stream=True):
        """The request to the decode engine, prefill being done."""
        self.to_prefill(stream).reply(body={"choices": []})
        return self.d.expect(f"POST {path}")


@pytest.fixture(scope="module", params=list(KINDS))
def desk_of(request):
    yield from lasting(request, Desk(request.param))


def left_in_order(desk):
    desk.router.lives()
    unasked = desk.p.asked.empty() and desk.d.asked.empty()
    desk.p.finish()
    desk.d.finish()
    assert unasked
    desk.at_rest()


@pytest.fixture
def desk(desk_of):
    yield desk_of
    left_in_order(desk_of)


@pytest.fixture(scope="module")
def first_of(request):
    yield from lasting(request, Desk("decode first", limits={"max_answer": "64KiB"}))


@pytest.fixture
def first(first_of):
    yield first_of
    left_in_order(first_of)


BODY = (b' {"model":"sim-model" ,"prompt":"\\u0041","max_tokens":9,"max_completion_tokens":8,"min_tokens":3,"n":2,"best_of":3,"stream":true,'
        b'"stream_options":{"include_usage":true},"stop":"z","cache_salt":"s","big":9223372036854775809,"x":1e400,"x":2}')


def test_bodies(desk):
    """Byte by byte: decode's is the client's own, prefill's is for one token."""
    c = desk.router.client().request("POST", COMPLETIONS, BODY)
    p = desk.to_prefill()
    p.reply(body={"choices": []})
    d = desk.d.expect()
    assert d["x-request-id"] == p["x-request-id"]
    assert kept(p.body, PREFILL_OWNS) == kept(BODY, PREFILL_OWNS)
    own = {k: v for k, _, v in members(p.body) if k in PREFILL_OWNS}
    zero = {"cache_hit_threshold": "0"} if desk.first else {}
    assert own == {"max_tokens": "1", "max_completion_tokens": "1", "n": "1", "stream": "false", **zero}
    if desk.first:
        assert kept(d.body, {"cache_hit_threshold"}) == kept(BODY, {}) and values(d.body, "cache_hit_threshold") == ["0"]
    else:
        assert d.body == BODY
    d.stream("a", "b")
    assert text_of(c.events()) == "ab"


def test_threshold_of_the_client(desk):
    """It would make the engines refuse what they are to compute: never above 0 there; a try has the operator's."""
    c = desk.ask(cache_hit_threshold=0.99)
    if desk.first:
        ex = desk.d.expect()
        assert values(ex.body, "cache_hit_threshold") == ["0.8"]
        ex.reply(body=REFUSAL)
    p = desk.p.expect()
    p.reply(body={})
    d = desk.d.expect()
    assert values(p.body, "cache_hit_threshold") == values(d.body, "cache_hit_threshold") == ["0"]
    d.reply(body={"ok": 1})
    assert c.read().json() == {"ok": 1}


def test_prefill_answer_is_not_looked_at(desk):
    """Its status is: whatever it says, decode goes on, for nothing of it is handed off."""
    for body in (b"", b"oops", b"[1]", b'{"kv_transfer_params":{"remote_host":"evil"}}', b'{"choices":[{"finish_reason":"stop"}]}'):
        c = desk.ask()
        desk.to_prefill(False).reply(body=body)
        d = desk.d.expect()
        assert "kv_transfer_params" not in d.json()
        d.reply(body={"ok": 1}, headers=[("X-Engine", "d")])
        a = c.read()
        assert a.json() == {"ok": 1} and a["x-engine"] == "d"


def test_decode_waits_for_prefill(desk):
    c = desk.ask()
    ex = desk.to_prefill(False)
    assert desk.d.quiet(0.1)
    ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
    assert desk.d.quiet(0.1), "half of an answer is no answer"
    ex.write(b'"a": 12}').end()
    desk.d.expect().reply(body={})
    assert c.read().status == 200


@STREAM
@pytest.mark.parametrize("how", PREFILL_FAILS)
def test_failure_of_prefill(desk, how, stream):
    """The decode engine is not asked (again); the client gets an honest status, be it a stream or not."""
    does, status, code = PREFILL_FAILS[how]
    c = desk.ask(stream)
    does(desk.to_prefill(stream))
    if how == "reset":
        serve_again(c, {desk.d: lambda ex: desk.refused(ex, stream), desk.p: does})
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code) and desk.d.quiet(0.02)
    assert a["content-type"] == "application/json"


@pytest.mark.parametrize("status", [400, 401, 422, 429, 500, 503])
def test_failure_of_prefill_with_a_status(desk, status):
    """Its own words pass, byte by byte: not under a 200, not as an event (production-stack does both)."""
    for stream in (False, True):
        c = desk.ask(stream)
        want = says(desk.to_prefill(stream), status)
        assert own_words(c.read()) == want and desk.d.quiet(0.02)


@STREAM
@pytest.mark.parametrize("how", DECODE_FAILS)
def test_failure_of_decode(desk, how, stream):
    """Before its first byte: a status of ours."""
    does, status, code = DECODE_FAILS[how]
    c = desk.ask(stream)
    does(desk.to_decode(stream=stream))
    if how == "reset":
        serve_again(c, {desk.p: lambda ex: ex.reply(body={"choices": []}), desk.d: does})
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code_of(code, stream))


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_failure_of_decode_with_a_status(desk, status):
    for stream in (False, True):
        c = desk.ask(stream)
        want = says(desk.to_decode(stream=stream), status)
        assert own_words(c.read()) == want


@pytest.mark.parametrize("how", IN_THE_STREAM)
def test_failure_of_decode_in_the_stream(desk, how):
    c = desk.ask(True)
    ex = desk.to_decode().stream_head().event("a")
    events = c.events()
    assert text_of([next(events)]) == "a" and c.answer["content-type"].startswith("text/event-stream")
    fails_in_the_stream(desk.router, c, events, ex, how)


def test_failure_of_decode_in_a_whole_answer(desk):
    c = desk.ask()
    fails_in_a_whole_answer(c, desk.to_decode(stream=False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_that_refuses_connections(world, kind, role):
    r, (p,), (d,) = world.scripts(pool={"connector": "shared_storage", **KINDS[kind]}, health_interval="30s")
    (p if role == "prefill" else d).close()
    c = r.open_stream("x")
    if kind == "decode first" and role == "prefill":
        d.expect().reply(body=REFUSAL)
    if kind == "prefill first" and role == "decode":
        p.expect().reply(body={})
    a = c.read()
    assert (a.status, a.error["code"]) == (502, f"{role}_broken")


# --- asking decode first ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", REFUSING)
def test_refusing_stream_is_not_shown(first, how):
    """However it comes: the client sees the second answer alone, from its first byte."""
    before = first.router.metric("kv_cache_misses_total")
    c = first.ask(True, CHAT)
    ex = first.d.expect().stream_head()
    tried = ex["x-request-id"]
    for one in REFUSING[how]:
        try:
            ex.chunk(one)
        except OSError:
            break  # it has read enough
    ex.close()
    p = first.p.expect()
    assert c.silent(0.02)
    p.reply(body={})
    d = first.d.expect()
    assert p["x-request-id"] == d["x-request-id"] != tried
    d.stream_head().chunk(ROLE).chunk(event(delta={"content": "a"})).chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert [e.raw for e in c.events()] == [ROLE, event(delta={"content": "a"}), b"data: [DONE]\n\n"]
    assert first.router.metric("kv_cache_misses_total") == before + 1


ACCEPTING = {
    "completions": [event(text="a", finish_reason=None), event(text="b", finish_reason="length")],
    "chat": [ROLE, event(delta={"content": "a"}, finish_reason=None)],
    "ended at once": [ROLE, event(delta={"content": ""}, finish_reason="stop")],
    "tools": [event(delta={"role": "assistant", "content": None, "tool_calls": [CALL]}, finish_reason=None)],
    "thinking": [ROLE, event(delta={"reasoning_content": "hm"}, finish_reason=None)],
    "the word in the text": [event(text='"finish_reason":"cache_threshold"', finish_reason=None)],
    "an error": [b'data: {"error":{"message":"no","code":500}}\n\n'],
}


@pytest.mark.parametrize("how", ACCEPTING)
def test_accepting_stream_passes_at_once(first, how):
    """Byte by byte, as soon as it is clear; the prefill engine is neither asked nor counted busy."""
    c = first.ask(True, CHAT)
    ex = first.d.expect().stream_head()
    for one in ACCEPTING[how]:
        ex.chunk(one)
    events = c.events()
    assert [next(events).raw for _ in ACCEPTING[how]] == ACCEPTING[how]
    assert first.router.metric("endpoint_in_flight", role="prefill") == 0 and first.router.metric("endpoint_in_flight", role="decode") == 1
    for _ in range(3):
        ex.chunk(event(text="z"))
        assert next(events).raw == event(text="z")
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert [e.data for e in events] == ["[DONE]"] and first.p.asked.empty()
    line = first.router.end_of(c.answer["x-request-id"])
    assert line["reason"] == ("engine_status" if how == "an error" else "ok") and line.get("prefill") is None


@pytest.mark.parametrize("events, reason", [
    ([event(text="a"), b"data: [DONE]\n\n"], "ok"), ([b'data: {"error":{"message":"no"}}\n\n', b"data: [DONE]\n\n"], "engine_status"),
    ([ROLE, b"data: [DONE]\n\n"], "ok"), ([b"data: [DONE]\n\n"], "ok")])
def test_accepting_stream_that_is_there_at_once(first, events, reason):
    """All of it in one read, its end too."""
    c = first.ask(True, CHAT)
    first.d.expect().reply(body=b"".join(events), headers=[("Content-Type", "text/event-stream")])
    assert [e.raw for e in c.events()] == events
    assert first.router.end_of(c.answer["x-request-id"])["reason"] == reason and first.p.asked.empty()


@pytest.mark.parametrize("body, asks", [
    (REFUSAL, True), (REFUSAL.replace(b'"choices"', b'"u":[1,{}],"\\u0063hoices"'), True),
    (b'{"choices":[{"text":"a","finish_reason":"stop"},{"text":"","finish_reason":"cache_threshold"}]}', True),
    (b'{"choices":[{"text":"\\"cache_threshold\\"","finish_reason":"stop"}]}', False),
    (b'{"choices":[{"message":{"content":"","finish_reason":"cache_threshold"},"finish_reason":"stop"}]}', False),
    (b'{"choices":[]}', False), (b'{"choices":{}}', False), (b"{}", False), (b"oops", False), (b"", False)])
def test_whole_answers(first, body, asks):
    """One that asks for prefill is not shown, every other passes as it is."""
    c = first.ask()
    first.d.expect().reply(body=body, headers=[("Content-Type", "application/json"), ("X-Engine", "1")])
    if asks:
        first.p.expect().reply(body={})
        first.d.expect().reply(body=b'{"second" : 1}', headers=[("X-Engine", "2")])
    a = c.read()
    assert (a.body, a["x-engine"]) == ((b'{"second" : 1}', "2") if asks else (body, "1")) and first.p.asked.empty()


def test_second_refusal_is_the_engines_word(first):
    """It was told 0: whoever refuses again is not asked a third time."""
    for stream in (False, True):
        c = first.ask(stream)
        first.refuse(stream)
        first.p.expect().reply(body={})
        first.d.expect().reply(body=REFUSAL)
        assert c.read().body == REFUSAL and first.d.quiet(0.02)


def test_both_legs_are_counted(first):
    """While the second answer runs, its engine is reserved, as if it had been asked once."""
    for stream in (False, True):
        c = first.ask(stream)
        assert wait("the try", lambda: first.router.metric("endpoint_in_flight", role="decode")) == 1
        first.refuse(stream)
        ex = first.p.expect()
        for role in ("prefill", "decode"):
            assert first.router.metric("endpoint_in_flight", role=role) == 1
        ex.reply(body={})
        d = first.d.expect()
        assert first.router.metric("endpoint_in_flight", role="decode") == 1
        d.reply(body={"ok": 1})
        assert c.read().status == 200


@pytest.mark.parametrize("how", DECODE_FAILS)
@STREAM
def test_failure_of_the_try(first, how, stream):
    does, status, code = DECODE_FAILS[how]
    c = first.ask(stream)
    does(first.d.expect())
    if how == "reset":
        serve_again(c, {first.d: does})
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code_of(code, stream)) and first.p.quiet(0.02)


@pytest.mark.parametrize("how", ["reset", "closed", "late"])
def test_failure_of_a_try_that_has_begun(first, how):
    """Nothing of it has gone out yet: an honest status even for a stream."""
    c = first.ask(True, CHAT)
    does, status, code = DECODE_FAILS[how]
    does(first.d.expect().stream_head().chunk(ROLE))
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code_of(code, True, begun=True))


@pytest.mark.parametrize("status", [400, 429, 500])
def test_status_of_the_try(first, status):
    for stream in (False, True):
        c = first.ask(stream)
        first.d.expect().reply(status, b'{"no" : 1}')
        a = c.read()
        assert (a.status, a.body) == (status, b'{"no" : 1}') and first.p.asked.empty()


def test_a_try_that_never_says_anything(first):
    """What is kept is bounded by max_answer."""
    c = first.ask(True, CHAT)
    ex = first.d.expect().stream_head()
    try:
        for _ in range(2000):
            ex.chunk(ROLE)
    except OSError:
        pass
    ex.close()
    a = c.read()
    assert (a.status, a.error["code"]) == (502, "decode_bad_answer")


@STREAM
def test_a_whole_answer_for_a_stream(first, stream):
    """A stream that was asked for and answered in one piece passes as it is."""
    c = first.ask(stream)
    first.d.expect().reply(body={"choices": [{"text": "a", "finish_reason": "stop"}]})
    assert c.read().json()["choices"][0]["text"] == "a"


# --- the client leaves ----------------------------------------------------------------------------------

STAGES = ["try", "try has begun", "prefill", "prefill answers", "decode", "in the stream"]


@STREAM
@pytest.mark.parametrize("stage", STAGES)
def test_client_gone(desk, stage, stream):
    """Both engines are released at once: nothing is held for anybody."""
    if stage.startswith("try") and not desk.first:
        return
    me = f"leaves-{next(FRESH)}"
    c = desk.ask(stream, headers=[("X-Request-Id", me)])
    if stage.startswith("try"):
        ex = desk.d.expect()
        if stage == "try has begun":
            if stream:
                ex.stream_head().chunk(ROLE)
            else:
                ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    elif stage.startswith("prefill"):
        ex = desk.to_prefill(stream)
        if stage == "prefill answers":
            ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    else:
        ex = desk.to_decode(stream=stream)
        if stage == "in the stream" and stream:
            ex.stream_head().event("a")
            next(c.events())
        elif stage == "in the stream":
            ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    c.close()
    assert ex.gone()
    ex.close()
    assert desk.router.end_of(me)["reason"] == "client_gone"
    assert desk.p.quiet(0.02) and desk.d.quiet(0.02)


@STREAM
def test_clients_that_leave_at_many_moments(fleet, stream):
    ids = [f"leaves-{next(FRESH)}" for _ in range(16)]
    for e in (*fleet.p, *fleet.d):
        e.fault("slow", delay_ms=10, count=-1)
    for i, me in enumerate(ids):
        c = fleet.router.client().request("POST", COMPLETIONS, {
            "model": MODEL, "prompt": f"{me} " * 20, "stream": stream, "max_tokens": 20}, [("X-Request-Id", me)])
        c.silent(0.004 * i + 0.0005)
        c.close()
    assert {fleet.router.end_of(me)["reason"] for me in ids} <= {"client_gone", "ok"}
    for e in (*fleet.p, *fleet.d):
        e.fault("none")
    fleet.settled()


# --- what the engines hold ------------------------------------------------------------------------------


def test_storage_that_is_late(world):
    """Not written yet when decode looks: a decode engine computes it itself; nobody waits, nothing is wrong."""
    storage = world.dir / "storage"
    storage.mkdir()
    shared = {"handshake": "shared_storage", "storage": storage}
    p, d = world.engine("prefill", kv_delay=300, **shared), world.engine("decode", **shared)
    r = world.router(world.pool([p], [d], "shared_storage"))
    assert r.complete("late", max_tokens=4).status == 200 and d.counter("local_prefills") == 1
    wait("the KV to be written", lambda: p.counter("kv_stored") == 1)
    assert r.complete("late", max_tokens=4).status == 200 and d.counter("kv_loaded") == 1


def test_metrics_of_both_outcomes(world):
    storage = world.dir / "storage"
    storage.mkdir()
    shared = {"handshake": "shared_storage", "storage": storage}
    p, d = world.engine("prefill", **shared), world.engine("decode", **shared)
    r = world.router(world.pool([p], [d], "shared_storage", cache_hit_threshold=1), workers=1)
    for i in range(6):
        assert r.complete(f"prompt {i // 3}").status == 200
    rows = parse_metrics(r.get("/metrics").body.decode())
    assert metric_sum(rows, "pdrouter_kv_cache_misses_total", {}) == 2
    assert metric_sum(rows, "pdrouter_prefill_seconds_count", {}) == 2
    assert len(p.requests()) == 2 and len(d.requests()) == 8 and d.counter("kv_loaded") == 6
