"""nixl and orchestrated, in all they offer: two engines of each role, the openai SDK against a direct call, each leg's
failures, the client's leaving; then what only they have (push, leases, fan-out, ranks, usage).

The SDK's objects are those of a direct call but for: `id` and `created`, an engine's own; in streams, the order of events that
belong to different choices; with fanout, the texts of samples, each drawn by an engine of its own."""
import itertools
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

import expect
from fleets import LATE
from legs import (DECODE_FAILS, FRESH, IN_THE_STREAM, MESSAGES, PREFILL_FAILS, SCHEMA, SHAPE, STREAM, TOOLS, UNREADABLE, ask,
                  by_choice, call_a_tool, chooses_no_peer, code_of, fails_in_a_whole_answer, fails_in_the_stream, fresh, own_words, same, says,
                  serve_again, taken, tool_called, unseen)
from members import values
from procs import MODEL, SLOW, metric_sum, silence, wait
from raw import text_of
from stages import BaseFleet, Stage, lasting, staged

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KINDS = {
    "nixl": {},
    "orchestrated": {"connector": "orchestrated", "handoff": "kv_transfer_params"},
    "answer": {"connector": "orchestrated", "handoff": "disagg_prefill_resp"},
}
GAUGES = ["pdsim:held_blocks", "pdsim:open_rooms", "pdsim:running_requests", "pdrouter_kv_flags_armed", "pdrouter_endpoint_in_flight"]


def handshake(kind):
    return {"handoff": "disagg_prefill_resp"} if kind == "answer" else {}


class Fleet(BaseFleet):
    """Two prefill and two decode engines behind a router, and one engine that is asked directly."""
    view = staticmethod(by_choice)

    def __init__(self, kind, pool=None, engine=None, **keys):
        super().__init__()
        self.kind = kind
        engine = {**handshake(kind), **(engine or {})}
        self.router, self.p, self.d = self.world.pd(
            2, 2, engine=engine, pool={**KINDS[kind], "policy": "round_robin", **(pool or {})},
            workers=1, **keys)  # one: each has a round of its own
        self.direct = self.world.engine("both")
        self.router.wait_all_up()

    def settled(self):
        """The router lives; nothing is held, open, armed or in flight; what engines count against the router is looked at in the end."""
        self.router.lives()

        def quiet():
            rows = self.router.metrics(*(name for name in GAUGES if name.startswith("pdrouter_")))
            for e in (*self.p, *self.d):
                rows += e.metrics()
            return not any(metric_sum(rows, name, {}) for name in GAUGES)
        wait("nothing held, open, armed or in flight", quiet)


@pytest.fixture(scope="module", params=list(KINDS))
def fleet_of(request):
    yield from lasting(request, Fleet(request.param))


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
    got = same(fleet, stream, chat=True, tools=TOOLS, tool_choice="required")
    assert '"weather"' in json.dumps(got) and '"tool_calls"' in json.dumps(got)
    (p,), (d,) = fleet.legs()
    assert p.json()["tools"] == d.json()["tools"] == TOOLS and p.json()["tool_choice"] == d.json()["tool_choice"] == "required"


@STREAM
def test_structured_output(fleet, stream):
    got = same(fleet, stream, chat=True, response_format=SCHEMA)
    assert set(json.loads(words(got, stream)[0])) == {"words"}
    (p,), (d,) = fleet.legs()
    assert p.json()["response_format"] == d.json()["response_format"] == SCHEMA


@STREAM
def test_tool_calls_are_the_engines_own(desk, stream):
    """What the decode engine says of tools is what the SDK sees, to the byte."""
    r, p, d = desk.router, desk.p, desk.d
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(ask, r.address, stream, chat=True, tools=TOOLS, messages=MESSAGES)
        p.expect(f"POST {CHAT}").prefilled()
        call_a_tool(d.expect(f"POST {CHAT}"), stream)
        tool_called(got.result(), stream)


@STREAM
@SHAPE
def test_logprobs(fleet, stream, chat):
    got = same(fleet, stream, chat=chat, **({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}))
    assert "token" in json.dumps(got)


@STREAM
@SHAPE
def test_n(fleet, stream, chat):
    """Several samples of one handoff: the decode engine alone where it describes only one, else one branch."""
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
    """One branch for each prompt; choices by their place in the list, usage summed."""
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


def test_nothing_of_a_client_chooses_a_peer(fleet):
    """Be it one request, several samples, or several prompts."""
    for more in ({}, {"n": 2}, {"prompt": [f"a{next(FRESH)}", f"b{next(FRESH)}"]}):
        chooses_no_peer(fleet, more, own=("kv_transfer_params", "disagg_prefill_resp"))


# --- failures -----------------------------------------------------------------------------------------

SHORT = {"timeouts": {"connect": "2s", "prefill": f"{400 * SLOW}ms", **silence(f"{400 * SLOW}ms")}}


class Desk(Stage):
    """Scripted engines, one of each role, for a file of tests that leave them in order."""

    def __init__(self, kind, pool=None, **keys):
        super().__init__()
        self.kind = kind
        self.router, (self.p,), (self.d,) = self.world.scripts(pool={**KINDS[kind], **(pool or {})}, **keys)

    def forget(self):
        """After a test that failed: what it left undone is not the next one's."""
        for e in (self.p, self.d) * 2:  # the one may be asked for the other's sake
            e.forget()


@pytest.fixture(scope="module", params=list(KINDS))
def desk_of(request):
    yield from lasting(request, Desk(request.param))


@pytest.fixture
def desk(desk_of):
    yield desk_of
    desk_of.at_rest()
    assert desk_of.p.asked.empty() and desk_of.d.asked.empty(), "an engine was asked that should not have been"


@pytest.fixture(scope="module")
def desks(request):
    """desks(kind, pool): scripted engines behind such a pool, started once."""
    made = {}
    with ExitStack() as all_:
        def get(kind, pool=None, **keys):
            key = json.dumps([kind, pool, keys], sort_keys=True)
            if key not in made:
                made[key] = all_.enter_context(contextmanager(lasting)(request, Desk(kind, pool, **keys)))
            return made[key]
        get.forget = made.clear  # after a test that failed: what it left undone is not the next one's
        yield get


def begin(desk, stream, path=COMPLETIONS, **members):
    return desk.router.client().request("POST", path, {"model": MODEL, "prompt": "x", "stream": stream, **members})


FAILS_OF_P = {**PREFILL_FAILS, **UNREADABLE}


@pytest.mark.parametrize("how", FAILS_OF_P)
def test_failure_of_prefill(desk, desks, how):
    """The decode engine is not asked; the client gets an honest status, be it a stream or not."""
    does, status, code = FAILS_OF_P[how]
    if how == "late":
        desk = desks(desk.kind, SHORT)
    for stream in (False, True) if how != "late" else (True,):
        fresh(desk.p)
        c = begin(desk, stream)
        does(desk.p.expect())
        a = c.read()
        assert (a.status, a.error["code"]) == (status, code) and desk.d.asked.empty()


@pytest.mark.parametrize("status", [400, 401, 422, 429, 500, 503])
def test_failure_of_prefill_with_a_status(desk, status):
    """Its own words pass, byte by byte: the client's fault or its own."""
    for stream in (False, True):
        c = begin(desk, stream)
        want = says(desk.p.expect(), status)
        assert own_words(c.read()) == want and desk.d.asked.empty()


@pytest.mark.parametrize("how", DECODE_FAILS)
def test_failure_of_decode(desk, desks, how):
    """Before its first byte: a status of ours."""
    does, status, code = DECODE_FAILS[how]
    if how == "late":
        desk = desks(desk.kind, SHORT)
    for stream in (False, True) if how != "late" else (True,):
        fresh(desk.d)
        c = begin(desk, stream)
        desk.p.expect().prefilled()
        does(desk.d.expect())
        a = c.read()
        assert (a.status, a.error["code"]) == (status, code_of(code, stream))


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_failure_of_decode_with_a_status(desk, status):
    for stream in (False, True):
        c = begin(desk, stream)
        desk.p.expect().prefilled()
        want = says(desk.d.expect(), status)
        assert own_words(c.read()) == want


@pytest.mark.parametrize("how", IN_THE_STREAM)
def test_failure_of_decode_in_the_stream(desk, desks, how):
    if how == "late":
        desk = desks(desk.kind, SHORT)
    c = begin(desk, True)
    desk.p.expect().prefilled()
    ex = desk.d.expect().stream_head().event("a")
    events = c.events()
    assert text_of([next(events)]) == "a"
    fails_in_the_stream(desk.router, c, events, ex, how)


def test_failure_of_decode_in_a_whole_answer(desk):
    c = begin(desk, False)
    desk.p.expect().prefilled()
    fails_in_a_whole_answer(c, desk.d.expect())


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

SLOW_ENGINES = {"prefill_delay": 80, "fetch_delay": 80, "token_delay": 4}


@pytest.fixture(scope="module", params=list(KINDS))
def slow_of(request):
    yield from lasting(request, Fleet(request.param, engine=SLOW_ENGINES))


@pytest.mark.parametrize("stage", ["before prefill answers", "between the legs", "in the answer"])
@STREAM
def test_client_gone(slow_of, stage, stream):
    """No block stays held, whenever it leaves."""
    f = slow_of
    f.legs()
    rid = f"gone-{next(FRESH)}"
    c = f.router.client().request("POST", COMPLETIONS, {
        "model": MODEL, "prompt": f"a long prompt {rid} " * 20, "stream": stream, "max_tokens": 50}, [("X-Request-Id", rid)])
    if stage == "before prefill answers":
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.p))
    else:
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.d))
    if stage == "in the answer" and stream:
        c.head()
    elif stage == "in the answer":
        wait(stage, lambda: any(e.metric("pdsim:held_blocks") == 0 and e.counter("kv_fetched") for e in f.p))
    c.close()
    assert f.router.end_of(rid)["reason"] == "client_gone"
    f.settled()
    p, d = f.legs()
    assert p[0].aborted == (stage == "before prefill answers") and len(p) == 1
    assert len(d) == (stage != "before prefill answers")


# --- handoffs -----------------------------------------------------------------------------------------


@STREAM
@SHAPE
def test_a_first_token_that_ends_the_text_hands_off_all_the_same(fleet, stream, chat):
    """An engine that finishes by anything but length hands nothing over (vLLM to 0.19): no stop, no EOS, on its leg."""
    text = f"<<eos>> {next(FRESH)}"
    prompt = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    missing, fetched = fleet.router.metric("kv_handoff_missing_total"), sum(e.counter("kv_fetched") for e in fleet.p)
    got = same(fleet, stream, chat=chat, stop=["zzz"], extra_body={"stop_token_ids": [7], "ignore_eos": False}, **prompt)
    assert (got[-1] if stream else got)["choices"][0]["finish_reason"] == "stop"
    (p,), (d,) = fleet.legs()
    assert (d.json()["stop"], d.json()["stop_token_ids"], d.json()["ignore_eos"]) == (["zzz"], [7], False)
    if fleet.kind != "answer":  # which hands off the answer itself
        assert values(p.body, "ignore_eos") == ["true"] and not {"stop", "stop_token_ids"} & set(p.json())
        assert sum(e.counter("kv_fetched") for e in fleet.p) == fetched + 1
    assert fleet.router.metric("kv_handoff_missing_total") == missing


@STREAM
@pytest.mark.parametrize("kind", ["nixl", "orchestrated"])
@pytest.mark.parametrize("answer", ['{"id":"x","choices":[]}', '{"id":"x","kv_transfer_params":null}', '{"kv_transfer_params" :\nnull }'])
def test_no_handoff_is_decoded_without_and_counted(desks, kind, answer, stream):
    desk = desks(kind)
    before = desk.router.metric("kv_handoff_missing_total")
    body = b'{"model":"sim-model", "prompt":"x","u":1e400,"stream":%s}' % (b"true" if stream else b"false")
    c = desk.router.client().request("POST", COMPLETIONS, body)
    desk.p.expect().reply(body=answer.encode())
    ex = desk.d.expect()
    assert ex.body == body
    ex.reply(body=b'{"id" : "x"}')
    assert c.read().body == b'{"id" : "x"}' and desk.router.metric("kv_handoff_missing_total") == before + 1


@pytest.mark.parametrize("kind", ["nixl", "orchestrated"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_remote_host_of_the_prefill_url(world, kind, host):
    """An engine that does not know its own address is fetched from all the same; an IPv6 one goes without its brackets."""
    p, d = (world.engine(role, host=host, advertise_host="localhost.invalid") for role in ("prefill", "decode"))
    r = world.router(world.pool([p], [d], connector=kind, remote_host="prefill_host"))
    assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert d.last().json()["kv_transfer_params"]["remote_host"] == host and p.counter("kv_fetched") == 1


@pytest.mark.parametrize("kind", ["nixl", "orchestrated"])
def test_remote_host_kept(world, kind):
    p, d = world.engine("prefill", host="::1"), world.engine("decode", host="::1")
    r = world.router(world.pool([p], [d], connector=kind, remote_host="keep"))
    assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert d.last().json()["kv_transfer_params"]["remote_host"] == "::1"


class Gate:
    """A way to an engine that may be shut: then connections are not even established, for the queue of the
    listening socket is full."""
    PATIENT = {"timeouts": {"connect": "20s"}}  # the kernel tries again after 1, 2, 3, 4, 5, 7 and 11 s

    def __init__(self, engine):
        self.target = engine.address
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.listener.settimeout(0.02)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.shut, self.parked, self.stuffed = threading.Event(), threading.Event(), []
        threading.Thread(target=self._run, daemon=True).start()

    def close(self):
        self.parked.clear()
        self.shut.set()
        assert self.parked.wait(10), "the last accept() is not over"
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(self.listener.getsockname())
        self.stuffed.append(s)

    def open(self):
        self.shut.clear()

    def _run(self):
        while True:
            if self.shut.is_set():
                self.parked.set()
                time.sleep(0.005)
                continue
            try:
                a = self.listener.accept()[0]
            except socket.timeout:
                continue
            b = socket.create_connection(self.target)
            for x, y in ((a, b), (b, a)):
                threading.Thread(target=self._copy, args=(x, y), daemon=True).start()

    @staticmethod
    def _copy(x, y):
        with suppress(OSError):
            while data := x.recv(65536):
                y.sendall(data)
            y.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("kind, again, source", [("orchestrated", 1, "decode"), ("nixl", 2, "decode"), ("nixl", 1, "prefill")])
def test_a_handoff_that_is_too_old_is_not_used(world, kind, again, source):
    """The decode engine takes the connection when the lease is over: prefill is done again under a fresh id, once.  If the second
    handoff is too old as well, the decode engine prefills by itself."""
    p, d = world.engine("prefill", prefill_delay=200), world.engine("decode")
    gate = Gate(d)
    r = world.router(world.pool([p], [{"url": gate.url}], connector=kind, kv_lease="300ms", cached_tokens_from=source, **Gate.PATIENT),
                     health_interval="30s", stats_interval="30s")
    gate.close()
    c = r.open_stream("hello", n=4)
    wait("the first handoff", lambda: p.counter("kv_held") == 1)
    time.sleep(0.4)
    gate.open()
    if again == 2:  # the second connection waits as long
        p.wait_requests(2)
        gate.close()
        wait("the second handoff", lambda: p.counter("kv_held") == 2)
        time.sleep(0.4)
        gate.open()
    assert text_of(c.events()) == expect.text("hello", 4)
    assert r.metric("prefill_again_total") == 1
    r.wait_idle()
    assert 150 <= r.all_ended()[-1]["prefill_ms"] < 600, "the second prefill alone"
    first, second = p.requests()
    assert first["x-request-id"] != second["x-request-id"] == d.last()["x-request-id"]
    sent = d.last().json()
    if again == 2:
        assert "kv_transfer_params" not in sent and p.counter("kv_fetched") == 0
    else:
        assert second["x-request-id"] in sent["kv_transfer_params"]["remote_request_id"] and p.counter("kv_fetched") == 1
    world.check_engines = False  # the blocks of a handoff that is not used wait for their lease


def test_a_handoff_in_time_is_used(world):
    r, (p,), (d,) = world.pd(pool={"kv_lease": "10s"}, engine={"prefill_delay": 50})
    assert r.complete("hello").status == 200 and r.metric("prefill_again_total") == 0 and len(p.requests()) == 1


# --- push -------------------------------------------------------------------------------------------------

PUSH = {"transfer_mode": "push", "remote_host": "keep"}
IDENTITY = ('"remote_engine_id":"e-%d","remote_host":"10.1.2.3","remote_port":5600,"tp_size":2,"pp_size":1')


def internal(ex, suffix=""):
    """What vLLM calls a request inside, where it adds nothing random."""
    rid = ex["x-request-id"]
    return (f"chatcmpl-{rid}" if ex.path == CHAT else f"cmpl-{rid}-0") + suffix


def params(ex, life=1, suffix=""):
    """kv_transfer_params of a prefill engine in one of its lives."""
    return ('{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_request_id":"%s",%s}'
            % (internal(ex, suffix), IDENTITY % life))


def known(ex, life=1):
    """What decode is told before prefill has said it."""
    return ('{"do_remote_prefill":true,"do_remote_decode":false,"remote_request_id":"%s",%s}' % (internal(ex), IDENTITY % life))


class Push:
    def __init__(self, world, **keys):
        self.r, (self.p,), (self.d,) = world.scripts(pool={**PUSH, **keys}, workers=1)

    def begin(self, path=COMPLETIONS, stream=True):
        prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
        return self.r.client().request("POST", path, {"model": MODEL, "stream": stream, **prompt})

    def learn(self, life=1, suffix="", path=COMPLETIONS):
        """A request whose decode leg waits for the prefill answer."""
        c = self.begin(path)
        ex = self.p.expect()
        assert self.d.quiet(0.1), "nothing is known yet"
        told = params(ex, life, suffix)
        ex.prefilled(told)
        self.decodes(c, told)

    def decodes(self, c, told):
        """The decode engine is told this, and its answer is the client's."""
        ex = self.d.expect()
        assert values(ex.body, "kv_transfer_params") == [told]
        ex.stream("b")
        assert text_of(c.events()) == "b"


@pytest.fixture
def push(world):
    return Push(world)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_push_starts_both_legs_once_the_engine_is_known(push, path):
    push.learn(path=path)
    for _ in range(2):
        c = push.begin(path)
        d, p = push.d.expect(), push.p.expect()
        assert values(d.body, "kv_transfer_params") == [known(d)] and d["x-request-id"] == p["x-request-id"]
        p.prefilled(params(p))
        d.stream("a", "b")
        assert text_of(c.events()) == "ab"


def test_push_of_a_prefill_that_has_another_identity(push):
    """It was restarted in between: decode is told anew, and what is known now is used from then on."""
    push.learn()
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    p.prefilled(params(p, 2))
    assert d.gone()
    d.close()
    push.decodes(c, params(p, 2))
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    assert values(d.body, "kv_transfer_params") == [known(d, 2)]
    p.prefilled(params(p, 2))
    d.stream("c")
    assert text_of(c.events()) == "c"


@pytest.mark.parametrize("how", ["500", "reset", "error event"])
def test_push_decode_refuses_predicted_parameters(push, how):
    """It finds no such engine and says so before prefill has answered: it is asked again with what prefill says then."""
    push.learn()
    fresh(push.d)
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    if how == "500":
        d.reply(500, {"error": {"message": "no such engine"}})
    elif how == "reset":
        d.reset()
    else:
        d.stream_head().chunk(b'data: {"error":{"message":"no such engine","code":500}}\n\ndata: [DONE]\n\n').write(b"0\r\n\r\n").end()
    assert push.d.quiet(0.1)
    p.prefilled(params(p, 2))
    push.decodes(c, params(p, 2))


def test_push_that_is_corrected_is_fetched(push):
    """A drain of the prefill engine does not wait for the stream."""
    push.learn()
    fresh(push.d)
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    d.reply(500, {"error": {"message": "no such engine"}})
    assert push.d.quiet(0.1)
    p.prefilled(params(p, 2))
    ex = push.d.expect().stream_head().event("b")
    c.head()
    wait("the KV is fetched", lambda: push.r.metric("endpoint_kv_outstanding", engine=push.p.url) == 0)
    ex.end()


def test_push_decode_refuses_before_it_has_read_all(push):
    """The refusal is found when the rest of the request cannot be sent any more."""
    push.learn()
    push.d.deaf = True
    c = push.r.client().request("POST", COMPLETIONS, {"model": MODEL, "stream": True, "prompt": "x" * (16 << 20)})
    d, p = push.d.expect(), push.p.expect()
    worker, = push.r.children()
    os.kill(worker, signal.SIGSTOP)
    push.d.deaf = False
    d.write(b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}").reset()
    os.kill(worker, signal.SIGCONT)
    time.sleep(0.1)  # the router has read it
    p.prefilled(params(p))
    push.d.expect().stream("b")
    assert text_of(c.events()) == "b"


def test_push_decode_refuses_while_another_request_learns(push):
    """By the time prefill answers, what it says is known: decode must be told all the same."""
    push.learn()
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    d.reply(500, {"error": {"message": "no such engine"}})
    time.sleep(0.1)  # the router has read it
    push.learn(life=2)
    p.prefilled(params(p, 2))
    push.decodes(c, params(p, 2))


def test_push_of_another_identity_that_another_request_has_learned(push):
    """What decode was told counts, not what is known by the time prefill answers."""
    push.learn()
    one = push.begin()
    d1, p1 = push.d.expect(), push.p.expect()
    two = push.begin()
    d2, p2 = push.d.expect(), push.p.expect()
    for c, d, p in [(two, d2, p2), (one, d1, p1)]:
        p.prefilled(params(p, 2))
        assert d.gone()
        d.close()
        push.decodes(c, params(p, 2))


@STREAM
@pytest.mark.parametrize("source", ["decode", "prefill"], ids=["passed", "rewritten"])
@pytest.mark.parametrize("whole_before", [False, True], ids=["begun", "whole"])
def test_push_decode_answers_before_prefill(world, stream, source, whole_before):
    """Its words wait until prefill has borne out what it was told."""
    push = Push(world, cached_tokens_from=source)
    push.learn()
    c = push.begin(stream=stream)
    d, p = push.d.expect(), push.p.expect()
    answer = {"id": "x", "object": "text_completion", "created": 1, "model": MODEL, "choices": [
        {"index": 0, "text": "a", "finish_reason": None}]}
    data = b"data: " + json.dumps(answer).encode() + b"\n\n" if stream else json.dumps(answer).encode()
    end = b"data: [DONE]\n\n" if stream else b""
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(data + end))
    d.write(head + data + end if whole_before else head + data[:20])
    assert c.silent(0.1)
    p.prefilled(params(p))
    if not whole_before:
        d.write(data[20:] + end)
    d.end()
    a = c.read()
    assert a.status == 200 and (a.body == data + end if source == "decode" else a.body.count(b'"a"') == 1)
    assert not stream or a.body.endswith(end)
    assert push.r.end(2)["reason"] == "ok"


@STREAM
def test_push_decode_answers_before_a_prefill_that_is_another(push, stream):
    push.learn()
    c = push.begin(stream=stream)
    d, p = push.d.expect(), push.p.expect()
    d.stream("wrong") if stream else d.reply(body={"choices": [{"text": "wrong"}]})
    assert c.silent(0.1)
    p.prefilled(params(p, 2))
    d = push.d.expect()
    assert values(d.body, "kv_transfer_params") == [params(p, 2)]
    d.stream("b") if stream else d.reply(body={"choices": [{"text": "b"}]})
    a = c.read()
    assert b"wrong" not in a.body and b'"b"' in a.body.replace(b" ", b"")


@pytest.mark.parametrize("others", [False, True], ids=["no other engine", "another engine"])
@pytest.mark.parametrize("how", ["500", "reset", "late"])
def test_push_prefill_of_a_branch_fails_after_its_decode_engine_has_answered(world, how, others):
    """The other branch's answer is at the client by then.  What is withheld is never confirmed: the branch begins anew or ends all."""
    push = Push.__new__(Push)
    push.r, p, (push.d,) = world.scripts(1 + others, pool={**PUSH, "fanout": True, "policy": "round_robin", "retries": 1,
                                                           "timeouts": {"prefill": LATE}}, workers=1)
    push.r.wait_all_up()
    for push.p in p:
        push.learn()
    c = push.r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": True})
    d = [push.d.expect(), push.d.expect()]
    at = {ex["x-request-id"]: ex for ex, _ in (taken(p), taken(p))}
    at[d[0]["x-request-id"]].prefilled(params(d[0]))
    d[0].stream_head().event("a")
    events = c.events()
    assert text_of([next(events)]) == "a"
    d[1].stream_head().event("withheld")
    assert c.silent(0.1)
    failed = at[d[1]["x-request-id"]]
    says(failed, 500) if how == "500" else PREFILL_FAILS[how][0](failed)
    if others:
        again, ex = push.d.expect(), taken(p)[0]
        ex.prefilled(params(ex))
        again.stream("b")
        d[0].chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
        assert text_of(events) == "b"
    else:
        assert [e.json()["error"]["code"] for e in events] == [500 if how == "500" else PREFILL_FAILS[how][2]]
        assert d[0].gone()
        d[0].close()
    for ex in (failed, d[1]):
        ex.close()


def test_push_without_a_handoff(push):
    """Prefill has nothing to push: decode, which waits for it, is asked again without."""
    push.learn()
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    p.prefilled("null")
    assert d.gone()
    d.close()
    d = push.d.expect()
    assert values(d.body, "kv_transfer_params") == []
    d.stream("b")
    assert text_of(c.events()) == "b" and push.r.metric("kv_handoff_missing_total") == 1


def test_a_handoff_that_is_too_old_and_no_room_to_prefill_again(world):
    """The only prefill engine is full by then: the decode engine prefills, on the connection that it has just taken."""
    p, d = world.script(), world.script()
    gate = Gate(d)
    r = world.router(world.pool([{"url": p.url, "max_inflight": 1}], [{"url": gate.url}], kv_lease="300ms", **Gate.PATIENT), workers=1,
                     health_interval="30s", stats_interval="30s")
    gate.close()
    ask = {"model": MODEL, "prompt": "x", "stream": True}
    c = r.client().request("POST", COMPLETIONS, ask)
    p.expect().prefilled()
    time.sleep(0.4)
    other = r.client().request("POST", COMPLETIONS, ask)
    full = p.expect()
    gate.open()
    ex = d.expect()
    ex.stream("b")
    assert text_of(c.events()) == "b" and "kv_transfer_params" not in ex.json()
    assert "no engine" in r.end()["detail"] and r.metric("prefill_again_total") == 0
    other.close()
    assert full.gone()
    full.close()


def test_a_prefill_engine_that_has_restarted_before_decode_is_asked(world):
    """Its blocks are gone: it prefills again."""
    p, d = world.engine("prefill"), world.engine("decode")
    gate = Gate(d)
    r = world.router(world.pool([p], [{"url": gate.url}], retries=0, fallback="none", **Gate.PATIENT), health_interval="100ms", fall=1000, rise=1)
    gate.close()
    c = r.open_stream("hello", n=4)
    wait("the first handoff", lambda: p.counter("kv_held") == 1)
    p.stop(signal.SIGKILL)
    r.wait_metric("endpoint_up", 0, engine=p.url)
    p = world.engine("prefill", port=p.port)
    r.wait_metric("endpoint_up", 1, engine=p.url)
    gate.open()
    assert text_of(c.events()) == expect.text("hello", 4)
    assert r.metric("prefill_again_total") == 1 == p.counter("kv_fetched")


def test_push_prefill_that_is_silent(world):
    """Decode was sent what may be wrong by then: that it waits is not its fault."""
    r, (p,), d = world.scripts(1, 2, pool={**PUSH, "eject_failures": 1, "retries": 0, "timeouts": {"prefill": "500ms"}}, workers=1)
    r.wait_all_up()
    ask = {"model": MODEL, "stream": True, "prompt": "x"}
    c = r.client().request("POST", COMPLETIONS, ask)
    ex = p.expect()
    ex.prefilled(params(ex))
    wait("a decode leg", lambda: next((e for e in d if not e.asked.empty()), None)).expect().stream("b")
    assert text_of(c.events()) == "b"
    c = r.client().request("POST", COMPLETIONS, ask)
    silent = p.expect()
    waiting = wait("a decode leg", lambda: next((e for e in d if not e.asked.empty()), None)).expect()
    assert c.read().status == 504
    assert r.metric("ejections_total") == 0
    for ex in (silent, waiting):
        assert ex.gone()
        ex.close()


def test_push_that_is_corrected_keeps_its_slot(world):
    """Decode has answered in full before prefill denies what it was sent: what it is sent then counts against max_inflight."""
    push = Push.__new__(Push)
    push.p, push.d = world.script(), world.script()
    push.r = world.router(world.pool([push.p], [{"url": push.d.url, "max_inflight": 1}], queue_size=0, **PUSH), workers=1)
    push.learn()
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    d.stream("wrong")
    c.silent(0.1)
    p.prefilled(params(p, 2))
    again = push.d.expect()
    assert push.begin().read().status == 429
    again.stream("b")
    assert text_of(c.events()) == "b"


def test_push_handoff_that_is_too_old(world):
    """The decode engine, asked at once, takes the connection when the lease is over: then it is asked when prefill is done again."""
    push = Push.__new__(Push)
    push.p, push.d = world.script(), world.script()
    gate = Gate(push.d)
    push.r = world.router(world.pool([push.p], [{"url": gate.url}], kv_lease="1300ms", **PUSH, **Gate.PATIENT), workers=1,
                          health_interval="30s", stats_interval="30s")
    push.learn()
    fresh(push.d)
    time.sleep(0.1)  # it is seen
    gate.close()
    c = push.begin()
    first = push.p.expect()
    first.prefilled(params(first))
    time.sleep(1.4)
    gate.open()
    second = push.p.expect()
    assert second["x-request-id"] != first["x-request-id"]
    second.prefilled(params(second))
    push.decodes(c, params(second))
    assert push.r.metric("prefill_again_total") == 1


def test_push_with_engines_that_add_to_ids(push):
    """What a request is called inside cannot be known beforehand: one leg after the other, for ever."""
    for _ in range(2):
        push.learn(suffix="-0a1b2c3d")


@pytest.mark.parametrize("whose", ["p", "d"])
def test_push_forgets_an_engine_whose_leg_failed(push, whose):
    push.learn()
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    if whose == "p":
        p.reply(500, {"error": {"message": "no"}})
        assert c.read().status == 500 and d.gone()
        d.close()
    else:
        p.prefilled(params(p))
        d.reply(500, {"error": {"message": "no"}})
        assert c.read().status == 500
    push.learn()


@pytest.mark.parametrize("when", ["before prefill answers", "after"])
def test_push_client_gone(push, when):
    push.learn()
    c = push.begin()
    d, p = push.d.expect(), push.p.expect()
    if when == "after":
        p.prefilled(params(p))
        d.stream_head().event("a")
        c.head()
    c.close()
    if when != "after":  # it aborts, and closes in turn
        assert p.gone()
        p.close()
    assert push.r.end(2)["reason"] == "client_gone" and d.gone()
    d.close()


# The same before engines that push.

PUSHING = {"transfer": "push", "no_id_suffix": True}


@pytest.fixture(scope="module")
def pushing_of(request):
    yield from lasting(request, Fleet("nixl", pool={"transfer_mode": "push"}, engine={**PUSHING, "prefill_delay": 30}))


@pytest.fixture
def pushing(pushing_of):
    pushing_of.legs()
    yield pushing_of
    pushing_of.settled()


@STREAM
@SHAPE
def test_push_is_the_engines_own_answer(pushing, stream, chat):
    for i in range(6):
        more = {"messages": [{"role": "user", "content": f"{i} {next(FRESH)}"}]} if chat else {}
        same(pushing, stream, chat=chat, **more)
    _, d = pushing.legs()
    told = ["remote_block_ids" in r.json()["kv_transfer_params"] for r in d]
    assert len(told) == 6 and told.count(False) >= 4, "both legs at once for all but each engine's first"


@STREAM
def test_push_of_several_prompts(pushing, stream):
    same(pushing, stream, prompt=[f"prompt {next(FRESH)} " * (i + 1) for i in range(4)])


@STREAM
@pytest.mark.parametrize("late", [False, True], ids=["status", "error event"])
def test_push_of_a_prefill_engine_that_was_restarted(world, stream, late):
    """Decode engines refuse what is said of its former life; the client never knows."""
    options = {**PUSHING, "prefill_delay": 50}
    p, d = world.engine("prefill", **options), world.engine("decode", **{**options, **({"late_errors": True} if late else {})})
    r = world.router(world.pool([p], [d], transfer_mode="push"), workers=1)

    def ask(text):
        if stream:
            assert text_of(list(r.open_stream(text, n=5).events())) == expect.text(text, 5)
        else:
            assert r.complete(text, max_tokens=5).json()["choices"][0]["text"] == expect.text(text, 5)

    ask("1 hello"), ask("2 hello")
    with r.unwatched():
        p.stop()
        p = world.engine("prefill", port=p.port, **options)
        ask("3 hello"), ask("4 hello")
    assert len(p.requests()) == 2


# --- several samples, several prompts -----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["nixl", "orchestrated"])
def fan_of(request):
    yield from lasting(request, Fleet(request.param, pool={"fanout": True}))


@pytest.fixture
def fan(fan_of):
    fan_of.legs()
    yield fan_of
    fan_of.settled()


def words(got, stream):
    """The text of each choice."""
    out = {}
    for obj in got if stream else [got]:
        for c in obj["choices"]:
            part = c["delta"]["content"] if "delta" in c else c["message"]["content"] if "message" in c else c["text"]
            out[c["index"]] = out.get(c["index"], "") + (part or "")
    return out


def without_words(obj):
    """The same object with nothing that a sample draws for itself."""
    if isinstance(obj, list):
        return [without_words(x) for x in obj]
    if not isinstance(obj, dict):
        return obj
    return {k: without_words(v) for k, v in obj.items() if k not in ("text", "content", "logprobs")}


@STREAM
@SHAPE
def test_fanout_makes_a_branch_for_each_sample(fan, stream, chat):
    more = {"stream_options": {"include_usage": True}} if stream else {}
    prompt = {"messages": MESSAGES} if chat else {"prompt": f"p {next(FRESH)}"}
    before = fan.router.metric("fanned_out_branches_total")
    got = by_choice(ask(fan.router.address, stream, chat=chat, n=3, seed=40, **more, **prompt))
    direct = by_choice(ask(fan.direct.address, stream, chat=chat, n=3, seed=40, **more, **prompt))
    assert without_words(got) == without_words(direct)
    text = expect.text_chat({"messages": MESSAGES}, 12) if chat else expect.text(prompt["prompt"], 12)
    assert words(got, stream) == {0: text, 1: text, 2: text}  # the simulator knows no seed
    assert (got[-1] if stream else got)["usage"] == (direct[-1] if stream else direct)["usage"]
    p, d = fan.legs()
    for leg in (p, d):
        assert [r.json()["n"] for r in leg] == [1, 1, 1] and sorted(r.json()["seed"] for r in leg) == [40, 41, 42]
        assert len({r["x-request-id"] for r in leg}) == 3
    assert len([e for e in (*fan.p, *fan.d) if e.requests()]) == 4 and fan.router.metric("fanned_out_branches_total") == before + 3


@STREAM
@SHAPE
def test_fanout_logprobs(fan, stream, chat):
    more = {"logprobs": True, "messages": MESSAGES} if chat else {"logprobs": 1, "prompt": f"p {next(FRESH)}"}
    got = by_choice(ask(fan.router.address, stream, chat=chat, n=2, **more))
    one = by_choice(ask(fan.direct.address, stream, chat=chat, **more))
    for k in range(2):
        mine = [c["logprobs"] for obj in (got if stream else [got]) for c in obj["choices"] if c["index"] == k]
        assert mine == [c["logprobs"] for obj in (one if stream else [one]) for c in obj["choices"]]
    assert "token" in json.dumps(got)


@STREAM
def test_fanout_of_samples_of_prompts(fan, stream):
    """Choice k of prompt i has index i * n + k, each prompt's tokens count once."""
    prompts = [f"first {next(FRESH)}", f"the second one {next(FRESH)}"]
    more = {"stream_options": {"include_usage": True}} if stream else {}
    got = by_choice(ask(fan.router.address, stream, prompt=prompts, n=2, seed=7, **more))
    direct = by_choice(ask(fan.direct.address, stream, prompt=prompts, n=2, seed=7, **more))
    assert without_words(got) == without_words(direct)
    texts = [expect.text(p, 12) for p in prompts]
    assert words(got, stream) == {0: texts[0], 1: texts[0], 2: texts[1], 3: texts[1]}
    p, d = fan.legs()
    for leg in (p, d):
        assert sorted((r.json()["prompt"], r.json()["seed"]) for r in leg) == sorted((x, s) for x in prompts for s in (7, 8))


@STREAM
def test_fanout_of_tool_calls(fan, stream):
    """Each choice's calls are those of one sample."""
    got = by_choice(ask(fan.router.address, stream, chat=True, n=2, tools=TOOLS, tool_choice="required", messages=MESSAGES))
    one = by_choice(ask(fan.direct.address, stream, chat=True, tools=TOOLS, tool_choice="required", messages=MESSAGES))
    for k in range(2):
        mine = [{**c, "index": 0} for obj in (got if stream else [got]) for c in obj["choices"] if c["index"] == k]
        assert mine == [c for obj in (one if stream else [one]) for c in obj["choices"]]
    assert '"weather"' in json.dumps(got)


def test_fanout_without_a_usage_asked_for(fan):
    """A stream whose client did not ask has no usage."""
    with fan.router.client() as c:
        c.request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": True, "max_tokens": 3})
        events = [e.data for e in c.events()]
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1 and len(events) == 7
    assert not any("usage" in json.loads(e) for e in events[:-1])


@pytest.mark.parametrize("members", [{"n": 5}, {"prompt": ["a", "b", "c", "d", "e"]}, {"prompt": ["a", "b", "c"], "n": 2},
                                     {"n": 4294967295}], ids=["samples", "prompts", "both", "32 bits"])
def test_more_than_max_fanout_is_for_a_decode_engine_alone(desks, members):
    desk = desks("nixl", {"fanout": True}, limits={"max_fanout": 4})
    body = {"model": MODEL, "prompt": "x", **members}
    c = desk.router.client().request("POST", COMPLETIONS, body)
    ex = desk.d.expect()
    assert ex.json() == body and desk.p.quiet(0.05)
    ex.reply(body={"choices": []})
    assert c.read().status == 200


def two_branches(desk, stream, path=COMPLETIONS):
    """A request for two samples whose prefill is done: (client, the two decode legs)."""
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "x"}
    c = desk.router.client().request("POST", path, {"model": MODEL, "n": 2, "stream": stream, **prompt})
    legs = [desk.p.expect(), desk.p.expect()]
    for ex in legs:
        ex.prefilled()
    return c, [desk.d.expect(), desk.d.expect()]


@STREAM
def test_one_prefill_engine_fails_one_of_many_branches(world, stream):
    """The others' legs end with it.  A handoff that was on its way just then waits for its lease."""
    r, p, d = world.pd(2, 2, engine={"kv_timeout": 1})
    world.check_engines = False
    p[0].fault("fail", status=503, delay_ms=20)
    c = r.client().request("POST", COMPLETIONS, {
        "model": MODEL, "prompt": [f"p {next(FRESH)} " * 30 for _ in range(6)], "max_tokens": 400, "stream": stream})
    a = c.read()
    assert a.status == 503 or (stream and a.status == 200 and b'"error"' in a.body and b"[DONE]" not in a.body), a.body[-300:]
    for e in (*p, *d):
        e.wait_metric("pdsim:running_requests", 0)
        e.wait_metric("pdsim:held_blocks", 0)


FAN = {"fanout": True}


def release_kv(ex, stream):
    """A decode engine that has its request keeps it until it says something: by then it has fetched the KV."""
    with suppress(OSError):  # its own time may be over
        ex.stream_head().event("a") if stream else ex.reply(body={"choices": []})
    assert not stream or ex.gone()
    ex.close()


@STREAM
def test_one_branches_prefill_fails_the_whole(desks, stream):
    desk = desks("nixl", FAN)
    c = desk.router.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": stream})
    one, two = desk.p.expect(), desk.p.expect()
    one.prefilled()
    d = desk.d.expect()
    two.reply(429, {"error": {"message": "busy"}})
    a = c.read()
    assert (a.status, a.json()) == (429, {"error": {"message": "busy"}})
    release_kv(d, stream)


@STREAM
@pytest.mark.parametrize("how", ["500", "reset", "late"])
def test_one_branches_decode_fails_the_whole_before_the_first_event(desks, stream, how):
    desk = desks("nixl", FAN if how != "late" else {**FAN, **SHORT})
    fresh(desk.d)
    c, (one, two) = two_branches(desk, stream)
    if how == "500":
        one.reply(500, {"error": {"message": "no"}})
    elif how == "reset":
        one.reset()
        serve_again(c, {desk.d: lambda ex: ex.reset()})
    a = c.read()
    assert a.status == {"500": 500, "reset": 502, "late": 504}[how]
    release_kv(two, stream)


@pytest.mark.parametrize("how", ["500", "reset", "error event", "no stream"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_one_branches_decode_fails_the_whole_after_the_first_event(desks, how, path):
    desk = desks("nixl", FAN)
    fresh(desk.d)
    c, (one, two) = two_branches(desk, True, path)
    key = {"delta": {"content": "a"}} if path == CHAT else {"text": "a"}
    obj = {"id": "x", "object": "chat.completion.chunk" if path == CHAT else "text_completion", "created": 1, "model": MODEL,
           "choices": [{"index": 0, **key, "finish_reason": None}]}
    one.stream_head().chunk(b"data: " + json.dumps(obj).encode() + b"\n\n")
    events = c.events()
    assert text_of([next(events)]) == "a"
    {"500": lambda: two.reply(500, {"error": {"message": "no more"}}),
     "reset": lambda: (two.reset(), serve_again(c, {desk.d: lambda ex: ex.reset()})),
     "error event": lambda: two.stream_head().chunk(b'data: {"error":{"message":"no more","code":500}}\n\n'),
     "no stream": lambda: two.reply(body={"choices": []})}[how]()
    rest = list(events)
    assert len(rest) == 1 and "error" in rest[0].json() and "[DONE]" not in rest[0].data
    if how in ("500", "error event"):
        assert rest[0].json()["error"]["message"] == "no more"
    assert one.gone()
    one.close()
    two.close()


def test_one_part_of_a_whole_answer_is_no_json(desks):
    desk = desks("nixl", FAN)
    c, (one, two) = two_branches(desk, False)
    one.reply(body={"id": "x", "object": "text_completion", "created": 1, "model": MODEL, "choices": [
        {"index": 0, "text": "a", "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
    two.reply(body=b"oops")
    a = c.read()
    assert (a.status, a.error["code"]) == (502, "decode_bad_answer")


def test_a_branch_is_corrected_while_another_streams(world):
    push = Push(world, fanout=True)
    push.learn()
    c = push.r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": True})
    legs = {}
    for e in [push.d, push.p] * 2:
        ex = e.expect()
        legs.setdefault(ex["x-request-id"], {})[e] = ex
    one, two = legs.values()
    one[push.p].prefilled(params(one[push.p]))
    one[push.d].stream_head().event("a")
    events = c.events()
    assert text_of([next(events)]) == "a"
    two[push.p].prefilled("null")
    assert two[push.d].gone()
    two[push.d].close()
    again = push.d.expect()
    assert again.json() == {"model": MODEL, "prompt": "x", "n": 1, "stream": True}
    again.stream("b")
    one[push.d].chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert text_of(events) == "b"


class Held:
    """Two samples for a client that does not read, so that the engine of the first is not read either: the other's is
    still being connected to."""

    def __init__(self, world):
        p, (one, two) = world.script(), [world.script() for _ in range(2)]
        self.first, self.two, self.gate = one, two, Gate(two)
        self.r = world.router(world.pool([p], [one, {"url": self.gate.url}], fanout=True, **Gate.PATIENT),
                              health_interval="30s", stats_interval="30s", workers=1)
        self.r.wait_metric("endpoint_up", 1, engine=self.gate.url)  # one of a role is enough to be ready
        self.gate.close()
        self.c = self.r.client(rcvbuf=4096).request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": True})
        for ex in [p.expect(), p.expect()]:
            ex.prefilled()
        self.one = one.expect().stream_head()
        self.fill(self.one)

    @staticmethod
    def fill(leg):
        """Says more than buffers hold, for as long as it is read: how many bytes."""
        leg.conn.sock.settimeout(1)
        said = 0
        with suppress(socket.timeout):
            while said < 64 << 20:
                leg.event("x" * 60000)
                said += 60000
        return said


def test_a_client_that_is_slow_when_another_branch_begins(world):
    held = Held(world)
    held.gate.open()
    two = held.two.expect(timeout=20).stream_head()
    assert held.fill(two) < 60 << 20 and held.r.metric("send_queue_bytes") < 1 << 20
    held.one.reset()
    two.reset()


def test_a_client_that_was_slow_while_another_branch_was_connected(world):
    """It reads on, and then that connection fails."""
    held = Held(world)
    held.c.sock.settimeout(0.5)
    with suppress(socket.timeout):
        while held.c.sock.recv(1 << 20):
            pass
    held.gate.listener.close()
    assert held.r.end()["reason"] == "decode_broken"
    told = held.first.expect()  # of the other branch's blocks
    assert told.json()["max_tokens"] == 1
    told.reply(body={"choices": []})
    held.one.reset()


@pytest.mark.parametrize("stage", ["before prefill answers", "between the legs", "in the stream"])
def test_client_gone_from_several_branches(slow_of, stage):
    """Each branch's blocks are freed, wherever each of them is."""
    f = slow_of
    f.legs()
    rid = f"gone-{next(FRESH)}"
    c = f.router.client().request("POST", COMPLETIONS, {"model": MODEL, "stream": True, "max_tokens": 50, "prompt": [
        f"long {rid} " * (20 * i + 1) for i in range(4)]}, [("X-Request-Id", rid)])
    if stage == "before prefill answers":
        wait(stage, lambda: sum(e.metric("pdsim:running_requests") for e in f.p) == 4)
    else:
        wait(stage, lambda: any(e.metric("pdsim:running_requests") for e in f.d))
    if stage == "in the stream":
        c.head()
    c.close()
    assert f.router.end_of(rid)["reason"] == "client_gone"
    f.settled()


@pytest.mark.parametrize("kind", KINDS)
def test_client_gone_as_one_of_several_prefills_answers(desks, kind):
    """The branch whose blocks are committed is told to fetch them, by one token nobody reads; the other is released."""
    desk = desks(kind)
    before = desk.router.metric("kv_released_total")
    c = desk.router.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": ["x", "y"], "stream": True, "max_tokens": 50})
    one, two = desk.p.expect(), desk.p.expect()
    body = b'{"kv_transfer_params":{"remote_block_ids":[1]}}'
    one.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:10]))
    time.sleep(0.1)  # the router has read it
    c.close()
    assert two.gone()
    two.close()
    one.write(body[10:]).end()
    d = desk.d.expect()
    sent = d.json()
    assert (sent["prompt"], sent["max_tokens"], sent["stream"]) == (one.json()["prompt"], 1, False)
    assert b'"remote_block_ids":[1]' in d.body
    d.reply(body={"choices": []})
    desk.router.wait_metric("kv_released_total", before + 1)
    assert desk.d.quiet(0.05)


def test_client_gone_and_the_handoff_is_too_old(world):
    """The lease of the blocks is over before the decode engine can be told: nobody is asked for more than to refuse it."""
    p, d = world.script(), world.script()
    gate = Gate(d)
    r = world.router(world.pool([p], [{"url": gate.url}], kv_lease="300ms", **Gate.PATIENT), health_interval="30s", stats_interval="30s")
    gate.close()
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "stream": True})
    p.expect().prefilled()
    time.sleep(0.1)  # the router has read it
    c.close()
    time.sleep(0.4)
    gate.open()
    assert r.end()["reason"] == "client_gone"
    assert p.quiet(0.1) and d.quiet(0.1) and r.metric("prefill_again_total") == 0


def test_client_gone_and_one_prefill_engine_does_not_hang_up(world):
    """Its time is over; another branch's blocks are fetched all the same, later."""
    p, d = world.script(), world.script()
    gate = Gate(d)
    r = world.router(world.pool([p], [{"url": gate.url}], fanout=True, **Gate.PATIENT),
                     health_interval="30s", stats_interval="30s")
    gate.close()
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": True})
    one, two = p.expect(), p.expect()
    one.prefilled()
    time.sleep(0.1)  # the router has read it
    c.close()
    wait("the grace of the other", lambda: r.metric("endpoint_in_flight", role="prefill") == 0)
    gate.open()
    ex = d.expect()
    assert ex.json()["max_tokens"] == 1
    ex.reply(body={"choices": []})
    assert r.end()["reason"] == "client_gone"
    two.end(keep=False)


def test_client_gone_while_the_decode_engine_takes_its_request(world):
    """It is waited for as long as any other that answers in one piece."""
    r, (p,), (d,) = world.scripts()
    d.deaf = True
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x" * (16 << 20)})
    p.expect().prefilled()
    ex = d.expect()
    c.close()
    assert r.end()["reason"] == "client_gone"
    ex.reset()


# --- ranks and usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_data_parallel_ranks_in_turn_for_each_engine(world, kind):
    """An engine with ranks is told which; one without is not; a client's own header never passes."""
    p, d = (world.engine(role, **handshake(kind)) for role in ("prefill", "decode"))
    r = world.router(world.pool([{"url": p.url, "dp_ranks": 3}], [{"url": d.url, "dp_ranks": 2}], **KINDS[kind]), workers=1)
    for i in range(6):
        assert r.complete(f"x{i}", headers=[("X-Data-Parallel-Rank", "9")]).status == 200
    assert [s.all("x-data-parallel-rank") for s in p.requests()] == [["0"], ["1"], ["2"]] * 2
    assert [s.all("x-data-parallel-rank") for s in d.requests()] == [["0"], ["1"]] * 3


def test_push_with_ranks_is_serial(world):
    """The side channel's port holds the rank: an identity is one rank's."""
    p, d = world.script(), world.script()
    r = world.router(world.pool([{"url": p.url, "dp_ranks": 2}], [d], **PUSH), workers=1)
    for _ in range(2):
        c = r.open_stream("x")
        ex = p.expect()
        assert d.quiet(0.1)
        ex.prefilled(params(ex))
        d.expect().stream("a")
        assert text_of(c.events()) == "a"


def usage(cached=None, out=1):
    u = {"prompt_tokens": 90, "total_tokens": 90 + out, "completion_tokens": out}
    return u if cached is None else {**u, "prompt_tokens_details": {"cached_tokens": cached}}


FIX = {"cached_tokens_from": "prefill"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of_prefill, want", [(16, 16), (0, 0), (None, 0)])
def test_cached_tokens_are_those_of_prefill(desks, kind, of_prefill, want):
    desk = desks(kind, FIX)
    c = begin(desk, False)
    desk.p.expect().reply(body={"id": "p", "choices": [], "usage": usage(of_prefill), "kv_transfer_params": {"a": 1}})
    desk.d.expect().reply(body=b'{"id":"x","u":1e400,"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":'
                          + json.dumps(usage(89, 5)).encode() + b'}')
    a = c.read()
    assert a.json()["usage"] == usage(want, 5) and values(a.body, "u") == ["1e400"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True},
                                     {"include_usage": True, "continuous_usage_stats": True}])
def test_cached_tokens_are_those_of_prefill_in_a_stream(desks, kind, options):
    """Events without a usage pass as they are."""
    desk = desks(kind, FIX)
    c = begin(desk, True, **({"stream_options": options} if options is not None else {}))
    desk.p.expect().reply(body={"id": "p", "choices": [], "usage": usage(16), "kv_transfer_params": {"a": 1}})
    ex = desk.d.expect().stream_head()
    options = options or {}
    each = {"usage": usage(89, 1)} if options.get("continuous_usage_stats") else {}
    event = {"id": "x", "object": "text_completion", "created": 1, "model": MODEL,
             "choices": [{"index": 0, "text": "a", "finish_reason": None}], "odd": 18446744073709551617}
    ex.chunk(b"data: " + json.dumps({**event, **each}).encode() + b"\n\n")
    if options.get("include_usage"):
        ex.chunk(b"data: " + json.dumps({**event, "choices": [], "usage": usage(89, 5)}).encode() + b"\n\n")
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    events = list(c.events())
    want = [{**event, **({"usage": usage(16, 1)} if each else {})}]
    if options.get("include_usage"):
        want.append({**event, "choices": [], "usage": usage(16, 5)})
    assert [e.json() for e in events[:-1]] == want and events[-1].data == "[DONE]"
    if not each:
        assert events[0].raw == b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.mark.parametrize("kind", ["nixl", "orchestrated"])
def test_usage_is_that_of_a_direct_call(kind):
    """The decode engine counts all of the prompt as cached; what was cached is what the prefill engine says."""
    with staged(Fleet(kind, pool={**FIX, "fanout": True}, engine={"prompt_tokens_details": True})) as f:
        f.direct = f.world.engine("both", prompt_tokens_details=True)
        for stream, chat, cached in itertools.product((False, True), (False, True), (0, 3)):
            more = {"extra_body": {"pdsim": {"cached_tokens": cached}}, **({"stream_options": {"include_usage": True}} if stream else {})}
            # of nothing cached engines say null, the router says 0
            got = same(f, stream, chat=chat, **more) if cached else ask(f.router.address, stream, chat=chat, **unseen(chat), **more)
            details = (got[-1] if stream else got)["usage"].get("prompt_tokens_details") or {}
            assert details.get("cached_tokens", 0) == cached
        f.settled()


def test_usage_of_decode_alone_is_its_own(desks):
    """No prefill engine has worked: what decode says is true."""
    desk = desks("nixl", FIX)
    c = begin(desk, False, n=2)
    body = json.dumps({"id": "x", "choices": [], "usage": usage(7)}).encode()
    desk.d.expect().reply(body=body)
    assert c.read().body == body


def test_usage_is_passed_unless_asked_for(desks):
    desk = desks("nixl")
    c = begin(desk, False)
    desk.p.expect().prefilled()
    body = json.dumps({"id": "x", "choices": [], "usage": usage(89)}).encode()
    desk.d.expect().reply(body=body)
    assert c.read().body == body
