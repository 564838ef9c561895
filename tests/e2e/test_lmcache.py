"""LMCache: two engines of each role, the openai SDK against a direct call, each leg's failures, the client's leaving, and the
notices that say when the cache is there.

The SDK's objects are those of a direct call but for: `id` and `created`; with first_token: prefill, members that are null or `tool_calls: []`
there may be missing (engine-only ones are left out of an answer that is written anew); with n, the texts of samples, each drawn by a branch of its
own; in streams, the order of events that belong to different choices."""
import json
import os
import resource
import signal
import socket
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import zmq

import expect
from faraway import Host
from legs import (DECODE_FAILS, FRESH, IN_THE_STREAM, MESSAGES, PREFILL_FAILS, SHAPE, STREAM, TOOLS, UNREADABLE, ask, by_choice,
                  chooses_no_peer, code_of, fails_in_a_whole_answer, fails_in_the_stream, fresh, own_words, same, says, unseen)
from members import values
from procs import MODEL, SLOW, Load, free_port, silence, wait
from raw import Closed, text_of
from segment import READY, Segment, still_worker
from stages import BaseFleet, Stage, lasting, staged

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KINDS = {  # the pool's keys, what the prefill engines are started with, and the decode engines
    "prefill": ({}, {"tp": 2}, {"receiver_ports": "0,0", "skip_last": 1}),
    "late": ({"tokenize": "decode"}, {"notice_late": True, "kv_delay": 10, "notice_form": "dict"}, {"receiver_ports": "0", "skip_last": 1}),
    "decode": ({"first_token": "decode"}, {"tp": 2, "notice_form": "nixlproxynotif"}, {"receiver_ports": "0,0", "skip_last": 0}),
}
WAITS = 2 * SLOW  # seconds


def receiver(engine):
    """A decode endpoint with its LMCache's ports."""
    return {"url": engine.url, "receiver_init_port": engine.ports["init"], "receiver_alloc_port": engine.ports["alloc"]}


class Fleet(BaseFleet):
    """Two prefill and two decode engines behind a router, and one engine that is asked directly."""

    def __init__(self, kind, pool=None, prefill=None, decode=None, **keys):
        super().__init__()
        self.kind = kind
        self.on_time = True
        self.port = free_port()
        of_pool, of_p, of_d = KINDS[kind]
        self.p = [self.world.engine("prefill", handshake="lmcache", proxy=f"127.0.0.1:{self.port}", **{**of_p, **(prefill or {})})
                  for _ in range(2)]
        self.d = [self.world.engine("decode", handshake="lmcache", **{**of_d, **(decode or {})}) for _ in range(2)]
        pool = self.world.pool(self.p, [receiver(d) for d in self.d], connector="lmcache", policy="round_robin", **{**of_pool, **(pool or {})})
        self.router = self.world.router(pool, **{"workers": 1, "lmcache": {"listen": f"tcp://127.0.0.1:{self.port}"}, **keys})
        self.direct = self.world.engine("both")
        self.router.wait_all_up()
        self.marks = {}

    @staticmethod
    def view(answer):
        return without_nulls(by_choice(answer))

    def count(self, name):
        return sum(e.counter(name) for e in (*self.p, *self.d))

    def mark(self):
        super().mark()
        self.marks = {name: self.count(name) for name in ("kv_loaded", "local_prefills", "spec_violations")}

    def since(self, name):
        return self.count(name) - self.marks[name]

    def settled(self):
        """Nothing is held, open, armed or in flight."""
        self.at_rest()
        assert not self.on_time or not self.router.metric("kv_ready_timeouts_total"), "a notice was not read"
        for e in (*self.p, *self.d):
            e.check()
        assert self.count("spec_violations") == self.count("kv_push_failed") == 0


@pytest.fixture(scope="module", params=list(KINDS))
def fleet_of(request):
    yield from lasting(request, Fleet(request.param))


def without_nulls(value):
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None and (k, v) != ("tool_calls", [])}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def loaded(fleet, n):
    """The decode engines found all that was sent to them, n times."""
    assert (fleet.since("kv_loaded"), fleet.since("local_prefills")) == (n, 0)


# --- the row of the table ---------------------------------------------------------------------------


@SHAPE
def test_stream(fleet, chat):
    got = same(fleet, True, chat=chat, stream_options={"include_usage": True})
    assert got[-1]["usage"]["completion_tokens"] == 12 and len(got) > 12
    (p,), (d,) = fleet.legs()
    assert not p.json()["stream"] and d.json()["stream"] and "stream_options" not in p.json()
    loaded(fleet, 1)


@SHAPE
def test_whole(fleet, chat):
    assert same(fleet, False, chat=chat)["usage"]["completion_tokens"] == 12
    loaded(fleet, 1)


@STREAM
def test_chat(fleet, stream):
    """All four engines are used, in turn, no two requests share an id, and each KV went where its decode was."""
    for _ in range(8):
        same(fleet, stream, chat=True, max_completion_tokens=5)
    met = fleet.used()
    assert len(met) == 4 and set(met.values()) == {2}, "every prefill engine meets every decode engine"
    p, d = fleet.legs()
    assert {r["x-request-id"] for r in p} == {r["x-request-id"] for r in d} and len({r["x-request-id"] for r in p}) == 8
    loaded(fleet, 8)
    spec = p[0].json()["kv_transfer_params"]["disagg_spec"]
    assert spec["receiver_host"] == "127.0.0.1" and spec["receiver_init_port"] in [e.ports["init"] for e in fleet.d]
    for leg in p + d:  # the token ids on both, or the client's own path on both
        assert leg.path == (CHAT if fleet.kind == "decode" else COMPLETIONS)
        assert ("messages" in leg.json()) == (fleet.kind == "decode") and "kv_transfer_params" not in d[0].json()


@STREAM
def test_completions(fleet, stream):
    for _ in range(4):
        same(fleet, stream, stop=["zzz"])
    assert set(fleet.used().values()) == {1}
    p, d = fleet.legs()
    assert all(r.json()["stop"] == ["zzz"] for r in p + d)
    loaded(fleet, 4)


@STREAM
def test_usage_of_every_event(fleet, stream):
    """continuous_usage_stats: prompt tokens are the client's, and completion tokens count the first one."""
    if stream:
        same(fleet, True, chat=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    else:
        same(fleet, False, chat=True)


@STREAM
def test_tools(fleet, stream):
    """What the prefill engine's completions cannot parse is the decode engine's alone; with its first token, both legs are chat."""
    same(fleet, stream, chat=True, tools=TOOLS, tool_choice="auto")
    p, (d,) = fleet.legs()
    assert (d.path, d.json()["tools"], d.json()["tool_choice"]) == (CHAT, TOOLS, "auto")
    assert len(p) == (fleet.kind == "decode")
    last = fleet.router.all_ended()[-1]
    assert last.get("direct") == (None if fleet.kind == "decode" else "tools")


MEDIA = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]}]


@pytest.mark.parametrize("why, members", [
    ("media", {"chat": True, "messages": MEDIA}), ("structured_output", {"chat": True, "response_format": {"type": "json_object"}}),
    ("echo", {"echo": True})])
def test_what_cannot_be_split_is_decoded_alone(fleet, why, members):
    same(fleet, False, **members)
    p, d = fleet.legs()
    assert (len(p), len(d)) == (fleet.kind == "decode", 1)
    assert fleet.router.all_ended()[-1].get("direct") == (None if fleet.kind == "decode" else why)


@STREAM
@SHAPE
def test_logprobs(fleet, stream, chat):
    """The first token's are the prefill engine's; chat gets them as chat has them."""
    got = same(fleet, stream, chat=chat, **({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}))
    assert "top_logprobs" in json.dumps(got)
    if chat:
        same(fleet, stream, chat=True, logprobs=True)
    loaded(fleet, 2 if chat else 1)


def no_texts(got):
    """What does not hang on which words were drawn."""
    for obj in got if isinstance(got, list) else [got]:
        for c in obj["choices"]:
            for key in ("text", "delta", "message"):
                c.pop(key, None)
    return got


@STREAM
@SHAPE
def test_n(fleet, stream, chat):
    """A branch for each sample where the prefill engine makes its first token; else one branch, whose decode makes them all."""
    members = {"chat": chat, "n": 3, **({"stream_options": {"include_usage": True}} if stream else {})}
    if fleet.kind == "decode":
        got = same(fleet, stream, **members)
    else:
        members.update(unseen(chat))
        direct = fleet.view(ask(fleet.direct.address, stream, **members))
        got = fleet.view(ask(fleet.router.address, stream, **members))
        assert set(texts(got).values()) == {texts(direct)[0]}, "each is a whole sample"
        assert no_texts(got) == no_texts(direct)
    assert (got[-1] if stream else got)["usage"]["completion_tokens"] == 36
    p, d = fleet.legs()
    branches = 1 if fleet.kind == "decode" else 3
    assert len(p) == len(d) == branches and all(r.json()["n"] == 1 for r in (p if branches == 1 else p + d))
    loaded(fleet, branches)


def texts(got):
    """The text of each choice."""
    out = Counter()
    for obj in got if isinstance(got, list) else [got]:
        for c in obj["choices"]:
            said = c.get("text") or (c.get("message") or c.get("delta", {})).get("content") or ""
            out[c["index"]] = (out[c["index"]] or "") + said
    return out


def whole(got):
    return dict(texts(got))


def ends_by(got):
    return [c["finish_reason"] for obj in (got if isinstance(got, list) else [got]) for c in obj["choices"] if c.get("finish_reason")]


@STREAM
def test_list_prompts(fleet, stream):
    """One branch for each prompt; choices by their place in the list, usage summed."""
    prompts = [f"prompt {next(FRESH)} " * (i + 1) for i in range(4)]
    got = same(fleet, stream, prompt=prompts, logprobs=1, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert (got[-1] if stream else got)["usage"]["completion_tokens"] == 48
    p, d = fleet.legs()
    assert len({r["x-request-id"] for r in p}) == len({r["x-request-id"] for r in d}) == 4
    assert len({json.dumps(r.json()["kv_transfer_params"]["disagg_spec"]["req_id"]) for r in p}) == 4
    loaded(fleet, 4)


def test_more_branches_than_max_fanout(fleet):
    """A decode engine alone answers all of them."""
    same(fleet, False, prompt=[f"{i}" for i in range(9)])
    p, d = fleet.legs()
    assert (p, len(d)) == ([], 1) and fleet.router.all_ended()[-1]["direct"] == "max_fanout"


@STREAM
def test_token_ids(fleet, stream):
    """A list of numbers is one prompt that needs no tokenizer, a list of such lists several."""
    first = next(FRESH)
    same(fleet, stream, prompt=[first, 22, 333, 4444])
    (p,), (d,) = fleet.legs()
    assert p.json()["prompt"] == [first, 22, 333, 4444]
    more = expect.words([first, 22, 333, 4444], 1)[0]
    assert d.json()["prompt"] == [first, 22, 333, 4444] + ([] if fleet.kind == "decode" else [expect.WORD + expect.VOCAB.index(more[1:])])
    same(fleet, stream, prompt=[[1, first, 3], [4, 5, first, 7]])
    same(fleet, stream, prompt=[[9, first]])
    same(fleet, stream, prompt=[f"one of a list {first}"])
    p, _ = fleet.legs()
    assert [1, first, 3] in [r.json()["prompt"] for r in p] and len(p) == 4
    loaded(fleet, 5)


def test_unicode_first_tokens(fleet):
    """Whatever the first word is: emoji, quotes, control characters, brackets."""
    for i in range(20):
        prompt = f"word {i}"
        got = fleet.router.complete(prompt, max_tokens=3)
        assert got.json()["choices"][0]["text"] == expect.text(prompt, 3)
        if not expect.text(prompt, 1).isascii():
            assert text_of(fleet.router.open_stream(prompt + "!", n=3).events()) == expect.text(prompt + "!", 3)


def test_nothing_of_a_client_chooses_a_peer(fleet):
    """Be it one request, several samples, or several prompts; nor in what is asked of the tokenizer."""
    for more in ({}, {"n": 2}, {"prompt": [f"a{next(FRESH)}", f"b{next(FRESH)}"]}):
        chooses_no_peer(fleet, more, own=("kv_transfer_params",))


# --- ends that need no decode ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["prefill", "late"])
def test_no_decode_where_prefill_has_ended_the_answer(kind):
    """max_tokens 1, or a first token that ends it: the client has all of it, the decode engine is asked only to drop what it was given."""
    with staged(Fleet(kind)) as f:
        for stream in (False, True):
            for chat in (False, True):
                usage = {"stream_options": {"include_usage": True}} if stream else {}
                one = {"max_completion_tokens" if chat else "max_tokens": 1}
                end = {"messages": [{"role": "user", "content": f"<<eos>> {next(FRESH)}"}]} if chat else {"prompt": f"<<eos>> {next(FRESH)}"}
                one.update(unseen(chat))
                for members, why in (one, "length"), (end, "stop"):
                    got, direct = (f.view(ask(to.address, stream, chat=chat, **members, **usage)) for to in (f.router, f.direct))
                    # of a stream, the reason comes in an event of its own: the first token is out before it is known
                    assert whole(got) == whole(direct) and ends_by(got) == ends_by(direct) == [why]
                    assert (got[-1] if stream else got)["usage"] == (direct[-1] if stream else direct)["usage"]
        f.router.wait_metric("kv_released_total", 8)
        for e in f.d:
            e.wait_metric("pdsim:held_blocks", 0)
        p, d = f.legs()
        assert len(p) == len(d) == 8 and {(x.json()["max_tokens"], x.json()["stream"]) for x in d} == {(1, False)}
        assert not f.router.metric("kv_flags_armed")


@STREAM
def test_min_tokens_hold_for_the_first_token_too(fleet, stream):
    """Whether the text has ended is asked of the prefill engine, which must not be told less than decode."""
    same(fleet, stream, prompt=f"<<eos>> {next(FRESH)}", max_tokens=6, extra_body={"min_tokens": 3})
    (p,), (d,) = fleet.legs()
    if fleet.kind != "decode":
        assert (p.json()["min_tokens"], d.json()["min_tokens"], d.json()["max_tokens"]) == (1, 2, 5)


# --- scripted engines, and notices sent by hand ---------------------------------------------------------


class ProxyNotif(msgspec.Struct, tag=True):
    """As LMCache 0.3.7 and later define it."""
    req_id: str


class NixlProxyNotif(msgspec.Struct, tag=True):
    """As LMCache to 0.3.5 defines it."""
    req_id: str


LIMITS = {"timeouts": {"connect": "2s", "prefill": f"{500 * SLOW}ms", **silence(f"{500 * SLOW}ms")}, "kv_ready_timeout": f"{300 * SLOW}ms"}
PORTS = {"receiver_host": "dec-0.svc", "receiver_init_port": [7300, 7301], "receiver_alloc_port": [7400, 7401]}


class Desk(Stage):
    """Scripted engines, one of each role, and a socket that tells the router of KV."""

    def __init__(self, kind="prefill", pool=None, decode=None, world=None, **keys):
        super().__init__(world)
        self.kind = kind
        self.p, self.d = self.world.script(), self.world.script()
        self.port = free_port()
        pool = self.world.pool([self.p], [{"url": self.d.url, **PORTS, **(decode or {})}], connector="lmcache", first_token=kind,
                               **{**LIMITS, **(pool or {})})
        self.router = self.world.router(pool, **{"lmcache": {"listen": f"tcp://127.0.0.1:{self.port}"}, **keys})
        self.ctx, self.clients = zmq.Context(), []
        self.push = self.socket(self.port)

    def socket(self, port):
        s = self.ctx.socket(zmq.PUSH)
        s.linger = 0
        s.connect(f"tcp://127.0.0.1:{port}")
        return s

    def tell(self, req_id, n=1, form=ProxyNotif):
        for _ in range(n):
            self.push.send(msgspec.msgpack.encode(form(req_id)))

    def arrived(self, ex):
        """Both ranks tell that the KV of this prefill leg is there."""
        self.tell(id_of(ex), 2)

    def ask(self, stream=False, path=COMPLETIONS, **members):
        prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": [1, 2, 3]}
        self.clients.append(self.router.client())
        return self.clients[-1].request("POST", path, {"model": MODEL, "stream": stream, "max_tokens": 9, **prompt, **members})

    def prefilled(self, ex=None):
        """The prefill engine answers, and tells first (as LMCache to 0.4.2 does)."""
        ex = ex or self.p.expect()
        self.arrived(ex)
        ex.prefilled('{"first_tok":7}')
        return ex

    def check(self):
        self.p.finish()
        self.d.finish()
        if not self.router.told_to_stop:
            self.at_rest()
            self.router.look_over()

    def hang_up(self):
        """A kept connection would hold up the router's end."""
        for s in (self.push, *self.clients):
            s.close()
        self.ctx.term()

    def finish(self):
        self.hang_up()
        super().finish()

    def close(self):
        self.hang_up()
        super().close()


def id_of(ex):
    return ex.json()["kv_transfer_params"]["disagg_spec"]["req_id"]


@pytest.fixture(scope="module", params=["prefill", "decode"])
def desk_of(request):
    yield from lasting(request, Desk(request.param))


@pytest.fixture(scope="module")
def single(request):
    yield from lasting(request, Desk())


@pytest.fixture
def desk(desk_of):
    yield desk_of
    desk_of.check()


@pytest.fixture
def one(single):
    """A desk whose answer begins with the prefill engine's token."""
    yield single
    single.check()


@contextmanager
def desk_with(**keys):
    """A desk of its own for one test."""
    with staged(Desk(**keys)) as k:
        yield k
        k.check()


FAILS_OF_P = {**PREFILL_FAILS, **UNREADABLE}


@pytest.mark.parametrize("how", FAILS_OF_P)
def test_failure_of_prefill(desk, how):
    """The client gets an honest status; what a late one has brought is fetched for nobody."""
    does, status, code = FAILS_OF_P[how]
    for stream in (False, True) if how != "late" else (True,):
        fresh(desk.p)
        c = desk.ask(stream)
        ex = desk.p.expect()
        if how == "late":
            desk.arrived(ex)
        does(ex)
        a = c.read()
        assert (a.status, a.error["code"]) == (status, code)
        if how == "late":
            released(desk, [1, 2, 3, 0] if desk.kind == "prefill" else [1, 2, 3])
        assert desk.d.quiet(0.02)


@pytest.mark.parametrize("how", ["reset", "status"])
def test_failure_of_prefill_after_its_notices(one, how):
    """Its KV lies at the decode engine, and is fetched for nobody."""
    c = one.ask()
    ex = one.p.expect()
    counted = one.router.metric("notices_total") + 2
    one.arrived(ex)
    one.router.wait_metric("notices_total", counted)
    if how == "reset":
        ex.reset()
    else:
        ex.reply(500, {"error": {"message": "no more"}})
    assert c.read().status == {"reset": 502, "status": 500}[how]
    released(one, [1, 2, 3, 0])


@pytest.mark.parametrize("status", [400, 401, 422, 429, 500, 503])
def test_failure_of_prefill_with_a_status(desk, status):
    """Its own words pass, byte by byte: the client's fault or its own."""
    for stream in (False, True):
        c = desk.ask(stream)
        want = says(desk.p.expect(), status)
        assert own_words(c.read()) == want and desk.d.quiet(0.02)


@pytest.mark.parametrize("answer", [b'{"id":"x"}', b'{"id":"x","choices":[],"kv_transfer_params":{"first_tok":7}}',
                                    b'{"choices":[{"index":0,"text":7}],"kv_transfer_params":{"first_tok":7}}'])
def test_failure_of_prefill_to_say_its_token(one, answer):
    """A first token without a text is no start of an answer; without either, decode makes all of it."""
    c = one.ask()
    ex = one.p.expect()
    one.arrived(ex)
    ex.reply(body=answer)
    if b"first_tok" in answer:
        assert c.read().error["code"] == "prefill_bad_answer"
        released(one, [1, 2, 3, 7])
        return
    got = one.d.expect()
    assert got.json()["prompt"] == [1, 2, 3] and got.json()["max_tokens"] == 9
    got.reply(body={"id": "y", "choices": [{"index": 0, "text": "abc", "finish_reason": "stop"}]})
    assert c.read().json()["choices"][0]["text"] == "abc"


@STREAM
def test_failure_of_prefill_to_say_its_token_to_a_chat(one, stream):
    """The decode engine speaks completions all the same; its first token opens the chat, usage is its own."""
    c = one.ask(stream, path=CHAT, stream_options={"include_usage": True}) if stream else one.ask(path=CHAT)
    one.p.expect("POST /tokenize").reply(body={"count": 3, "max_model_len": 100, "tokens": [4, 5, 6]})
    ex = one.p.expect("POST /v1/completions")
    one.arrived(ex)
    ex.reply(body={"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
    got = one.d.expect("POST /v1/completions")
    assert (got.json()["prompt"], got.json()["max_tokens"], "messages" in got.json()) == ([4, 5, 6], 9, False)
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    if stream:
        got.stream_head().event("b").chunk(b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % json.dumps(usage).encode())
        got.write(b"0\r\n\r\n").end()
        events = list(c.events())
        assert events[0].json()["choices"][0]["delta"]["role"] == "assistant" and text_of(events) == "b"
        assert events[-2].json()["usage"] == usage and events[-1].data == "[DONE]"
    else:
        got.reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}], "usage": usage})
        a = c.read().json()
        assert (a["object"], a["choices"][0]["message"]["content"], a["usage"]) == ("chat.completion", "b", usage)


@pytest.mark.parametrize("how", DECODE_FAILS)
def test_failure_of_decode(desk, how):
    """Before its first byte: a status of ours, or an event where the first token is out."""
    does, status, code = DECODE_FAILS[how]
    for stream in (False, True):
        fresh(desk.d)
        c = desk.ask(stream)
        desk.prefilled()
        does(desk.d.expect())
        if stream and desk.kind == "prefill":
            events = list(c.events())
            assert text_of(events[:1]) == "a" and events[1].json()["error"]["code"] == code_of(code, stream) and len(events) == 2
        else:
            a = c.read()
            assert (a.status, a.error["code"]) == (status, code_of(code, stream))


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_failure_of_decode_with_a_status(desk, status):
    for stream in (False, True):
        c = desk.ask(stream)
        desk.prefilled()
        want = says(desk.d.expect(), status)
        if stream and desk.kind == "prefill":
            events = list(c.events())
            assert text_of(events[:1]) == "a" and events[1].json()["error"]["message"] == "no A" and len(events) == 2
        else:
            assert own_words(c.read()) == want


@pytest.mark.parametrize("how", [*IN_THE_STREAM, "nonsense"])
def test_failure_of_decode_in_the_stream(desk, how):
    c = desk.ask(True)
    desk.prefilled()
    ex = desk.d.expect().stream_head().event("b")
    events = c.events()
    assert "".join(text_of([next(events)]) for _ in range(2 if desk.kind == "prefill" else 1)).endswith("b")
    if how == "nonsense" and desk.kind == "decode":
        ex.close()
        assert next(events).json()["error"]["code"] == "decode_broken"  # what it says is not read
    elif how == "nonsense":
        ex.chunk(b"data: {]\n\n")
        assert next(events).json()["error"]["code"] == "decode_bad_answer"
        assert list(events) == []
    else:
        fails_in_the_stream(desk.router, c, events, ex, how, passes=desk.kind == "decode")
    ex.end(keep=False)


def test_failure_of_decode_in_a_whole_answer(desk):
    c = desk.ask()
    desk.prefilled()
    fails_in_a_whole_answer(c, desk.d.expect())


def test_failure_of_one_of_several_branches(one):
    """One of two samples fails: the answer as a whole does."""
    c = one.ask(n=2)
    a, b = one.p.expect(), one.p.expect()
    one.prefilled(a)
    one.d.expect()
    b.reply(500, {"error": {"message": "boom"}})
    got = c.read()
    assert got.status == 500 and got.json()["error"]["message"] == "boom"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_that_refuses_connections(role):
    with desk_with(health_interval="30s") as k:
        (k.p if role == "prefill" else k.d).close()
        c = k.ask()
        if role == "decode":
            k.prefilled()
        a = c.read()
        assert (a.status, a.error["code"]) == (502, f"{role}_broken")


TOKENIZE_FAILS = {
    "reset": (lambda ex: ex.reset(), 502, "tokenize_failed"),
    "500": (lambda ex: ex.reply(500, {"error": {"message": "boom"}}), 502, "tokenize_failed"),
    "400": (lambda ex: ex.reply(400, {"error": {"message": "too long", "code": 400, "type": "x", "param": None}}), 400, 400),
    "no tokens": (lambda ex: ex.reply(body={"count": 3}), 502, "tokenize_failed"),
    "late": (lambda ex: None, 502, "tokenize_failed"),
}


@pytest.mark.parametrize("how", TOKENIZE_FAILS)
def test_failure_of_tokenize(one, how):
    does, status, code = TOKENIZE_FAILS[how]
    fresh(one.p)
    c = one.ask(path=CHAT)
    does(one.p.expect("POST /tokenize"))
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code) and one.p.quiet(0.05) and one.d.quiet(0.05)


# --- the client leaves ----------------------------------------------------------------------------------


@STREAM
@pytest.mark.parametrize("stage", ["asking for tokens", "before prefill answers", "KV there, prefill not", "waiting for KV",
                                   "KV never comes", "before decode answers", "in the answer"])
def test_client_gone(one, stage, stream):
    """What was handed off is fetched by a decode engine, for one token, once it is there; else nothing more is asked."""
    done = len(one.router.all_ended())
    if stage == "asking for tokens":
        c = one.ask(stream, path=CHAT)
        ex = one.p.expect("POST /tokenize")
        c.close()
        assert ex.gone() and one.p.quiet(0.05)
        ex.close()
    elif stage in ("before prefill answers", "KV there, prefill not"):
        c = one.ask(stream)
        ex = one.p.expect()
        if stage == "KV there, prefill not":
            counted = one.router.metric("notices_total")
            one.arrived(ex)
            one.router.wait_metric("notices_total", counted + 2)
        c.close()
        assert ex.gone()
        ex.close()
        if stage == "KV there, prefill not":
            released(one, [1, 2, 3, 0])
    else:
        c = one.ask(stream)
        ex = one.p.expect()
        ex.prefilled('{"first_tok":7}')
        if stage in ("waiting for KV", "KV never comes"):
            if stream:
                assert text_of([next(c.events())]) == "a"
            else:
                wait("the prefill engine's answer to be read", lambda: one.router.metric("kv_flags_armed") == 1)
            c.close()
            wait("the router to see it", lambda: len(one.router.all_ended()) > done)
            if stage == "waiting for KV":
                assert one.d.quiet(0.05)
                one.arrived(ex)
            released(one, [1, 2, 3, 7])
        else:
            one.arrived(ex)
            asked = one.d.expect()
            if stage == "in the answer" and stream:
                asked.stream_head().event("b")
                assert text_of([e for _, e in zip(range(2), c.events())]) == "ab"
            c.close()
            if stage == "in the answer" and stream:
                assert asked.gone()
                asked.close()
            else:
                wait("the router to see it", lambda: len(one.router.all_ended()) > done)
                with suppress(OSError):  # a stream is released at its first byte
                    asked.stream("b") if stream else asked.reply(body={"choices": []})
    assert one.router.end(done + 1)["reason"] == "client_gone"


def test_client_gone_and_the_notices_come_as_prefill_closes():
    """Both in one turn of the worker's loop, whichever it sees first."""
    with desk_with(workers=1, log_level="debug") as k:
        worker, = k.router.children()
        seg = Segment(k.router)
        for first in "hangs up", "tells", "hangs up":
            c, ex = k.ask(), k.p.expect()
            c.close()
            assert ex.gone()  # it has 5 s to hang up in turn
            os.kill(worker, signal.SIGSTOP)
            if first == "hangs up":
                ex.close()
            k.arrived(ex)
            slot = id_of(ex).split("-")[-3]
            wait("the notifier to read them", lambda: seg.flag(0, int(slot, 16)).state == READY)
            if first == "tells":
                ex.close()
            os.kill(worker, signal.SIGCONT)
            released(k, [1, 2, 3, 0])
        seg.close()


def test_decode_fails_and_prefill_had_no_first_token():
    """Nothing was handed off but the KV, which is the failed engine's own to drop: the request ends."""
    with desk_with(workers=1) as k:
        c, ex = k.ask(), k.p.expect()
        k.arrived(ex)
        ex.prefilled("null")
        k.d.expect().reply(500, {"error": {"message": "no"}})
        assert c.read().status == 500
        k.router.wait_metric("requests_in_flight", 1)  # this very one


def test_client_gone_and_no_decode_engine_can_be_sent_to():
    """The worker is out of descriptors: the KV waits for its lease, the request ends once."""
    with desk_with(workers=1) as k:
        c = k.ask()
        ex = k.p.expect()
        k.arrived(ex)
        k.router.wait_metric("notices_total", 2)
        worker, = k.router.children()
        before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, before[1]))
        c.close()
        assert ex.gone()
        ex.close()
        assert k.router.end()["reason"] == "client_gone"
        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
        k.router.wait_metric("requests_in_flight", 1)  # this very one


def released(desk, prompt):
    got = desk.d.expect()
    assert (got.json()["prompt"], got.json()["max_tokens"], got.json()["stream"]) == (prompt, 1, False)
    got.reply(body={"choices": []})


@pytest.fixture(scope="module", params=["prefill", "decode"])
def slow_of(request):
    yield from lasting(request, Fleet(request.param, prefill={"prefill_delay": 60, "notice_late": True, "notice_delay": 60}, decode={"token_delay": 5}))


@STREAM
@pytest.mark.parametrize("stage", ["before prefill answers", "waiting for KV", "in the answer"])
def test_client_gone_from_the_simulator(slow_of, stage, stream):
    """No block stays held, whenever it leaves."""
    f = slow_of
    f.legs()
    done = len(f.router.all_ended())
    c = f.router.client().request("POST", COMPLETIONS, {
        "model": MODEL, "prompt": f"a long prompt {next(FRESH)} " * 20, "stream": stream, "max_tokens": 80})
    if stage == "before prefill answers":
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.p))
    elif stage == "waiting for KV":
        wait(stage, lambda: any(r.status == 200 for e in f.p for r in e.requests() if r["x-request-id"] not in f.seen))
    else:
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.d))
    c.close()
    assert f.router.end(done + 1)["reason"] == "client_gone"
    f.settled()
    p, d = f.legs()
    assert p[0].aborted == (stage == "before prefill answers") and len(p) == 1
    assert len(d) == (stage != "before prefill answers")


# --- notices --------------------------------------------------------------------------------------------


def pack(req_id, form):
    """A notice's bytes as engines of several versions, and others, send it."""
    if form == "uuid, as 0.3.3 to 0.3.5 send it":
        return msgspec.msgpack.encode(NixlProxyNotif(req_id))
    if form == "0.3.7 and later":
        return msgspec.msgpack.encode(ProxyNotif(req_id))
    if form == "the sample's bytes":
        return bytes.fromhex("82a474797065aa50726f78794e6f746966a67265715f6964d9") + bytes([len(req_id)]) + req_id.encode()
    if form == "dict":
        return msgspec.msgpack.encode({"req_id": req_id})
    if form == "dict in another order":
        return msgspec.msgpack.encode({"req_id": req_id, "type": "ProxyNotif"})
    if form == "dict with more in it":
        return msgspec.msgpack.encode({"rank": 1, "x": [None, {"req_id": "not this"}, 1.5, b"raw"], "req_id": req_id, "ok": True, "z": {"a": [1] * 40}})
    if form == "map of 16 bits":
        return b"\xde\x00\x01" + msgspec.msgpack.encode("req_id") + msgspec.msgpack.encode(req_id)
    assert form == "map of 32 bits, strings of 16"
    return b"\xdf\x00\x00\x00\x01\xda\x00\x06req_id\xda" + len(req_id).to_bytes(2, "big") + req_id.encode()


FORMS = ["uuid, as 0.3.3 to 0.3.5 send it", "0.3.7 and later", "the sample's bytes", "dict", "dict in another order", "dict with more in it",
         "map of 16 bits", "map of 32 bits, strings of 16"]


@pytest.mark.parametrize("form", FORMS)
def test_notices_of_every_form(one, form):
    """The first token is out at once; decode begins with the last rank's notice, not before."""
    c = one.ask(True)
    ex = one.p.expect()
    ex.prefilled('{"first_tok":7}')
    events = c.events()
    assert text_of([next(events)]) == "a" and one.d.quiet(0.03)
    one.push.send(pack(id_of(ex), form))
    assert one.d.quiet(0.03)
    one.push.send(pack(id_of(ex), form))
    one.d.expect().stream("b", "c")
    assert text_of(events) == "bc"


def test_notices_before_prefill_answers(one):
    c = one.ask()
    ex = one.p.expect()
    counted = one.router.metric("notices_total")
    one.arrived(ex)
    one.router.wait_metric("notices_total", counted + 2)
    assert one.d.quiet(0.03), "decode needs the first token"
    ex.prefilled('{"first_tok":7}')
    one.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
    assert c.read().json()["choices"][0]["text"] == "ab"


def test_notices_that_are_not_its_own(one):
    """Unknown ids, another transfer's, a former one's, one with a wrong nonce, garbage: nobody is released for them."""
    r, before = one.router, {}
    c = one.ask()
    former = one.prefilled()
    one.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
    assert c.read().status == 200
    for name in ("notices", "notices_stale", "notices_bad"):
        before[name] = r.metric(f"{name}_total")
    c = one.ask()
    ex = one.p.expect()
    mine = id_of(ex)
    assert mine != id_of(former)
    one.tell(id_of(former), 2)
    for other in ("1", "3f2c1b9a-5d7e-4c8b-9a10-0f1e2d3c4b5a", mine[:-1] + ("0" if mine[-1] != "0" else "1"), mine + "0", mine.upper()):
        if other != mine:
            one.tell(other)
    one.push.send(b"\xdf\xff\xff\xff\xff\xa1\x00\xc1")
    ex.prefilled('{"first_tok":7}')
    wait("all to be counted", lambda: r.metric("notices_bad_total") + r.metric("notices_stale_total") >= before["notices_bad"] + before["notices_stale"] + 7)
    assert r.metric("notices_total") == before["notices"] and one.d.quiet(0.03)
    one.arrived(ex)
    one.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
    assert c.read().status == 200
    stale = r.metric("notices_stale_total")
    one.arrived(ex)  # late, and twice
    r.wait_metric("notices_stale_total", stale + 2)


def test_notices_of_transfers_that_cross(one):
    """Each waits for its own."""
    cs = [one.ask(prompt=[1, 2, i]) for i in range(4)]
    exs = {ex.json()["prompt"][2]: ex for ex in (one.p.expect() for _ in cs)}
    assert len({id_of(ex) for ex in exs.values()}) == 4
    for ex in exs.values():
        ex.prefilled('{"first_tok":7}')
    one.tell(id_of(exs[3]))
    for i in (2, 0, 3, 1):
        one.tell(id_of(exs[i]), 1 if i == 3 else 2)
        got = one.d.expect()
        assert got.json()["prompt"] == [1, 2, i, 7] and one.d.quiet(0.02)
        got.reply(body={"choices": [{"index": 0, "text": str(i), "finish_reason": "stop"}]})
    assert [c.read().json()["choices"][0]["text"] for c in cs] == ["a0", "a1", "a2", "a3"]


@STREAM
def test_notices_that_never_come(one, stream):
    """After kv_ready it is decoded all the same, and counted: slower, but right."""
    late = one.router.metric("kv_ready_timeouts_total")
    c = one.ask(stream)
    ex = one.p.expect()
    one.tell(id_of(ex))  # one rank of two
    ex.prefilled('{"first_tok":7}')
    assert one.d.quiet(0.2)
    got = one.d.expect()
    assert got.json()["prompt"] == [1, 2, 3, 7]
    if stream:
        got.stream("b", "c")
        assert text_of(c.events()) == "abc"
    else:
        got.reply(body={"choices": [{"index": 0, "text": "bc", "finish_reason": "stop"}]})
        assert c.read().json()["choices"][0]["text"] == "abc"
    assert one.router.metric("kv_ready_timeouts_total") == late + 1
    assert one.router.all_ended()[-1]["detail"] == "not all notices of its KV came within kv_ready"
    stale = one.router.metric("notices_stale_total")
    one.tell(id_of(ex))
    one.router.wait_metric("notices_stale_total", stale + 1)


def test_notices_not_waited_for():
    """ready_messages: 0, engines without a ZMQ socket: the prefill answer is the signal, and no notifier runs."""
    with desk_with(pool={"ready_messages": 0}, **{"lmcache": {}}) as k:
        assert k.router.children("notifier") == []
        c = k.ask()
        ex = k.p.expect()
        assert id_of(ex)
        ex.prefilled('{"first_tok":7}')
        k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
        assert c.read().json()["choices"][0]["text"] == "ab"


def test_notices_of_one_rank_alone():
    """ready_messages: 1, a model with MLA: two ports, one notice."""
    with desk_with(pool={"ready_messages": 1}) as k:
        c = k.ask()
        ex = k.p.expect()
        spec = ex.json()["kv_transfer_params"]["disagg_spec"]
        assert {**PORTS, "req_id": id_of(ex)} == spec and values(ex.body, "prompt") == ["[1, 2, 3]"]
        k.tell(id_of(ex))
        ex.prefilled('{"first_tok":7}')
        k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
        assert c.read().status == 200


def test_more_transfers_than_flags():
    """All flags wait: an honest refusal, not a transfer that nobody hears of."""
    with desk_with(workers=1, shared_memory={"max_endpoints": 16, "flags_per_worker": 64}) as k:
        cs = [k.ask(prompt=[1, i]) for i in range(64)]
        exs = [k.p.expect() for _ in cs]
        a = k.ask().read()
        assert a.status == 429 and "flags_per_worker" in a.error["message"]
        for ex in exs:
            k.prefilled(ex)
        for _ in cs:
            k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
        assert all(c.read().status == 200 for c in cs)


# --- processes ------------------------------------------------------------------------------------------


def test_a_killed_notifier_loses_nothing():
    """Its successor hears what the engines have not got rid of, and wakes all who wait."""
    with desk_with() as k:
        c, other = k.ask(True), k.ask(True)
        a, b = k.p.expect(), k.p.expect()
        for ex in (a, b):
            ex.prefilled('{"first_tok":7}')
        k.tell(id_of(a))
        k.router.wait_metric("notices_total", 1)
        (pid,) = k.router.children("notifier")
        k.router.murder(pid)
        wait("its successor", lambda: k.router.children("notifier") not in ([], [pid]))
        k.tell(id_of(a))
        k.arrived(b)
        for _ in range(2):
            k.d.expect().stream("b")
        assert text_of(c.events()) == text_of(other.events()) == "ab"


def test_a_killed_worker_gives_back_what_it_waited_with():
    """Its clients are cut off, its flags are free, and late notices for them do no harm."""
    with desk_with(workers=1) as k:
        c = k.ask(True)
        ex = k.p.expect()
        ex.prefilled('{"first_tok":7}')
        assert text_of([next(c.events())]) == "a" and k.router.metric("kv_flags_armed") == 1
        (pid,) = k.router.children()
        k.router.murder(pid)
        with pytest.raises(Closed):
            list(c.events())
        wait("its successor", lambda: k.router.children() not in ([], [pid]))
        k.router.wait_for("ready")
        k.router.wait_metric("kv_flags_armed", 0)
        assert k.d.quiet(0.05)
        k.arrived(ex)
        k.router.wait_metric("notices_stale_total", 2)
        c = k.ask()
        k.prefilled()
        k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
        assert c.read().status == 200


def test_a_reload_moves_the_address_of_notices():
    """The old notifier goes before the new one binds; transfers that wait across it hear of their KV at the new address."""
    with desk_with() as k:
        c = k.ask(True)
        ex = k.p.expect()
        ex.prefilled('{"first_tok":7}')
        events = c.events()
        assert text_of([next(events)]) == "a"
        old = k.router.children("notifier")
        port = free_port()
        k.router.reload(lmcache={"listen": f"tcp://127.0.0.1:{port}"})
        wait("another notifier", lambda: k.router.children("notifier") not in ([], old) and len(k.router.children("notifier")) == 1)
        k.push.close()
        k.push = k.socket(port)
        k.arrived(ex)
        k.d.expect().stream("b")
        assert text_of(events) == "b"
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", k.port), timeout=1)
        c = k.ask()
        k.prefilled()
        k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
        assert c.read().status == 200


@pytest.fixture
def host():
    h = Host()
    yield h
    h.close()


def test_by_default_peers_of_the_networks_of_engines_may_notify(host):
    """A stranger is refused and named.  It may notify from the moment on when an engine of its network is known."""
    port = free_port()
    with host.sockets():
        context = zmq.Context()
        stranger = context.socket(zmq.PUSH)  # with the first socket libzmq begins its threads
    stranger.linger = 0
    try:
        with desk_with(lmcache={"listen": f"tcp://*:{port}"}) as k:
            stranger.connect(f"tcp://{host.here}:{port}")

            def received():
                """A message that a refused connection takes is lost."""
                with suppress(zmq.Again):
                    stranger.send(msgspec.msgpack.encode(ProxyNotif("42")), zmq.DONTWAIT)
                return r.metric("notices_bad_total")

            r = k.router
            wait("a refused connection", lambda: received() or r.metric("notice_connections_refused_total") > 1)
            r.wait_log("a peer was refused")
            line, = r.lines("a peer was refused, further ones are only counted for a minute")
            assert line["from"] == host.there and "lmcache.networks" in line["cure"] and r.metric("notices_bad_total") == 0
            notifier = r.children("notifier")
            with host.sockets():
                engine = r.world.script(host=host.there)
            pool = r.config["pools"][0]
            r.reload(pools=[{**pool, "prefill": [*pool["prefill"], {"url": engine.url}]}])
            wait("a message", received)
            assert r.children("notifier") == notifier
    finally:
        stranger.close()
        context.term()


def test_a_killed_notifier_under_load():
    """What it had read and not counted is lost: those transfers wait for kv_ready, and every answer is right."""
    with staged(Fleet("prefill", pool={"kv_ready_timeout": f"{300 * SLOW}ms"}, workers=2)) as f:
        f.on_time = False

        def once(i):
            prompt = f"load {i} {next(FRESH)}"
            if i % 2:
                assert text_of(f.router.open_stream(prompt, n=5).events()) == expect.text(prompt, 5)
            else:
                assert f.router.complete(prompt, max_tokens=5).json()["choices"][0]["text"] == expect.text(prompt, 5)
        load = Load(6, once)
        for _ in range(3):
            done, (pid,) = load.done, wait("a notifier", lambda: f.router.children("notifier"))
            f.router.murder(pid)
            wait("its successor", lambda: f.router.children("notifier") not in ([], [pid]))
            wait("more answers", lambda: load.done > done + 30)
        assert load.stop().bad == []
        f.settled()


@pytest.mark.parametrize("how", ["another generation", "the end"])
def test_a_draining_worker_hears_of_its_transfers(how):
    """Workers of a former configuration, or of a router that stops, finish what waits for its KV."""
    with desk_with(workers=2) as k:
        c = k.ask(True)
        ex = k.p.expect()
        ex.prefilled('{"first_tok":7}')
        events = c.events()
        assert text_of([next(events)]) == "a"
        if how == "the end":
            k.router.kill(signal.SIGTERM)
            k.router.wait_log("stopping")
        else:
            k.router.reload(workers=1)
            other = k.ask()
            k.prefilled()
            k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
            assert other.read().status == 200
        k.arrived(ex)
        k.d.expect().stream("b")
        assert text_of(events) == "b"
        if how == "the end":
            c.close()
            assert k.router.p.wait(10 * SLOW) == 0


def test_a_reload_moves_a_listener():
    """A decode engine's ports and how many notices tell of its KV: the next transfer goes by the new ones."""
    with desk_with() as k:
        pool = k.router.config["pools"][0]
        moved = {"receiver_host": "dec-1.svc", "receiver_init_port": [7310], "receiver_alloc_port": [7410]}
        k.router.reload(pools=[{**pool, "decode": [{"url": k.d.url, **moved}]}])
        c = k.ask()
        ex = k.p.expect()
        assert ex.json()["kv_transfer_params"]["disagg_spec"] == {**moved, "req_id": id_of(ex)}
        k.tell(id_of(ex))
        ex.prefilled('{"first_tok":7}')
        k.d.expect().reply(body={"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
        assert c.read().status == 200


def test_notices_come_ten_thousand_a_second():
    """What the notifier's core needs for as many, each the last one of another transfer; none is lost."""
    n = 19968  # 312 * 64
    with desk_with(workers=2, log_level="debug", shared_memory={"max_endpoints": 16, "flags_per_worker": n}) as k, \
            still_worker(k.router) as worker:
        seg = Segment(k.router)
        flags = [seg.flag(worker, slot) for slot in range(n)]
        notices = [msgspec.msgpack.encode(ProxyNotif(flag.arm(1))) for flag in flags]
        (pid,) = k.router.children("notifier")
        before = cpu_seconds(pid)
        for one in notices:
            k.push.send(one)
        k.router.wait_metric("notices_total", n, timeout=30)
        used = cpu_seconds(pid) - before
        print(f"{n / used:.0f} notices for a second of its core")
        assert {flag.state for flag in flags} == {READY} and used < n / 10000 * SLOW
        seg.close()


def cpu_seconds(pid):
    """Of all its threads."""
    tasks = (Path("/proc") / str(pid) / "task").iterdir()
    return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks) / 1e9


@pytest.mark.parametrize("form", ["nested", "flat", "silent"])
def test_decode_refuses_a_stream_that_has_begun(desk, form):
    """The error event is the engine's: `type` and `code` too, wherever they stand."""
    error = {"message": "too long", "type": "BadRequestError", "param": "max_tokens", "code": 400}
    c = desk.ask(stream=True)
    desk.prefilled()
    desk.d.expect().reply(400, {"nested": {"error": error}, "flat": {"object": "error", **error}, "silent": {"detail": "x"}}[form])
    if desk.kind == "decode":  # nothing has been sent, so the answer itself is the engine's
        assert c.read().status == 400
        return
    got = list(c.events())[-1].json()["error"]
    if form == "silent":
        assert (got["type"], got["code"]) == ("server_error", "engine_status") and got["message"]
    else:
        assert {k: got[k] for k in error} == error
