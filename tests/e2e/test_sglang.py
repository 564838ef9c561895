"""SGLang's bootstrap room: both engines get the client's body at once and meet in a room; the decode engine's
answer is the client's, and the first failure of either ends the other."""
import itertools
import json
import signal
import threading
import time

import openai
import pytest

import expect
from legs import DECODE_FAILS, MESSAGES, PREFILL_FAILS, STREAM, TOOLS
from members import kept, members, values
from procs import MODEL, SLOW, VARIANT, Load, silence, wait
from raw import text_of
from recorded import CASES, load
from stages import BaseFleet, lasting
from test_sdk import outcome

SIM = {"handshake": "sglang"}
POOL = {"connector": "sglang"}
COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
ROOM_MAX = 2**63 - 1
ADDED = {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"}


class Fleet(BaseFleet):
    """2P2D, and one engine that is asked directly."""

    def __init__(self):
        super().__init__()
        w = self.world
        self.router, self.p, self.d = w.pd(2, 2, engine=SIM, pool={**POOL, "policy": "round_robin"})
        self.router.wait_all_up()
        self.direct = w.engine("both", **SIM)

    def finish(self):
        assert all(e.requests() for e in self.p + self.d), "an engine was never used"
        super().finish()


@pytest.fixture(scope="module")
def fleet(request):
    yield from lasting(request, Fleet())


def sdk(at, **kw):
    return openai.OpenAI(base_url=f"http://{at.address[0]}:{at.address[1]}/v1", api_key="sk-test", max_retries=0, **kw)


def plain(answer, stream):
    """What the SDK made of the answer, without what is fresh each time; events of several choices by choice."""
    out = [x.model_dump(exclude={"id", "created"}) for x in (answer if stream else [answer])]
    return sorted(out, key=lambda x: x["choices"][0]["index"] if x.get("choices") else 1000)


def same(fleet, stream, ask):
    """The parsed answer through the router is the direct one, whichever engines it went to.

    What the protocol itself changes, and so is not compared: `id` (an id of the router's, the same on both legs; SGLang calls
    its answers by their rid) and `created`."""
    direct = plain(ask(sdk(fleet.direct)), stream)
    for _ in range(3):
        assert plain(ask(sdk(fleet.router)), stream) == direct
    return direct


def usage(stream):
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


# --- the SDK's own objects, against a direct call's ---

@STREAM
def test_chat(fleet, stream):
    got = same(fleet, stream, lambda c: c.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20, seed=7, **usage(stream)))
    assert got[-1]["usage"]["completion_tokens"] == 20


@STREAM
def test_completions(fleet, stream):
    got = same(fleet, stream, lambda c: c.completions.create(model=MODEL, prompt="Once upon", max_tokens=9, stop=["\n\n"], **usage(stream)))
    assert "".join(x["text"] for e in got for x in e["choices"]) == expect.text("Once upon", 9)


@STREAM
def test_tools(fleet, stream):
    """They are part of the prompt, so both engines must have them or the KV would be another's."""
    def ask(c):
        return c.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="auto", max_tokens=12, **usage(stream))
    same(fleet, stream, ask)
    sent = [json.loads(e.last().body)["tools"] for e in fleet.p + fleet.d if b'"tools"' in e.last().body]
    assert len(sent) >= 2 and all(t == TOOLS for t in sent)


@STREAM
def test_structured_output(fleet, stream):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}}
    same(fleet, stream, lambda c: c.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=form, max_tokens=5, **usage(stream)))
    assert any(b"json_schema" in e.last().body for e in fleet.p) and any(b"json_schema" in e.last().body for e in fleet.d)


@STREAM
@pytest.mark.parametrize("path", ["chat", "completions"])
def test_logprobs(fleet, stream, path):
    def ask(c):
        if path == "chat":
            return c.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=1, **usage(stream))
        return c.completions.create(model=MODEL, prompt="x", max_tokens=4, logprobs=1, **usage(stream))
    got = same(fleet, stream, ask)
    assert any(x["logprobs"] for e in got for x in e["choices"])


@STREAM
def test_token_ids(fleet, stream):
    for prompt in ([104, 105, 106], [[104, 105], [106]]):
        same(fleet, stream, lambda c, p=prompt: c.completions.create(model=MODEL, prompt=p, max_tokens=4, **usage(stream)))


@STREAM
def test_list_of_prompts(fleet, stream):
    """One branch, with a room for each prompt."""
    prompts = ["alpha", "beta \",\\", "gamma]"]
    same(fleet, stream, lambda c: c.completions.create(model=MODEL, prompt=prompts, max_tokens=5, **usage(stream)))
    body = [e for e in fleet.d if e.last().json()["prompt"] == prompts][0].last().json()
    assert len(set(body["bootstrap_room"])) == len(set(body["rid"])) == 3
    assert len(body["bootstrap_host"]) == len(body["bootstrap_port"]) == 3
    assert all(r.startswith(body["rid"][0]) for r in body["rid"]), "one /abort_request reaches them all"


@STREAM
def test_list_of_one_prompt_is_a_list(fleet, stream):
    same(fleet, stream, lambda c: c.completions.create(model=MODEL, prompt=["solo"], max_tokens=3, **usage(stream)))
    assert any(isinstance(e.last().json()["bootstrap_room"], list) for e in fleet.d)


def by_index(answer, stream, path):
    """{index: text} of an answer of several choices, and its usage."""
    text, used = {}, None
    for e in answer if stream else [answer]:
        used = getattr(e, "usage", None) or used
        for x in e.choices:
            piece = x.text if path == "completions" else (x.delta if stream else x.message).content
            text[x.index] = text.get(x.index, "") + (piece or "")
    return text, used


@STREAM
@pytest.mark.parametrize("path", ["chat", "completions"])
def test_n(fleet, stream, path):
    """A branch for each sample, for a room serves one.  Differs from a direct call: the simulator's samples differ by their number
    alone, which the engines of a branch are not told (SGLang's draw); all else is the same."""
    def ask(at):
        c = sdk(at)
        if path == "chat":
            return by_index(c.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, n=3, **usage(stream)), stream, path)
        return by_index(c.completions.create(model=MODEL, prompt="several", max_tokens=6, n=3, **usage(stream)), stream, path)
    direct, through = ask(fleet.direct), ask(fleet.router)
    assert through[1] == direct[1], "usage: the prompt counts once"
    assert sorted(through[0]) == [0, 1, 2] and set(through[0].values()) == {direct[0][0]}


@STREAM
def test_n_of_a_list_of_prompts(fleet, stream):
    """The samples of a prompt lie side by side, as the engine has it."""
    def ask(at):
        return by_index(sdk(at).completions.create(model=MODEL, prompt=["one", "two"], max_tokens=4, n=2, **usage(stream)), stream, "completions")
    direct, through = ask(fleet.direct), ask(fleet.router)
    assert through[0] == {0: direct[0][0], 1: direct[0][0], 2: direct[0][2], 3: direct[0][2]} and through[1] == direct[1]


@pytest.mark.parametrize("seed, want", [(5, [5, 6]), (-1, [-1, 0]), (2**63 - 1, [-2**63, 2**63 - 1]), (2**63, [2**63] * 2),
                                        (1.5, [1.5, 1.5])])
def test_n_with_a_seed_gives_each_its_own(world, seed, want):
    """What is no seed is for the engine to refuse."""
    r, (p,), (d,) = scripted(world)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "seed": seed})
    both = [p.expect(), p.expect()]
    assert sorted(x.json()["seed"] for x in both) == want and [x.json()["n"] for x in both] == [1, 1]
    for i, ex in enumerate([d.expect(), d.expect()]):
        ex.reply(body={"id": "x", "choices": [{"index": 0, "text": str(i), "finish_reason": "length"}], "usage": {}})
    for ex in both:
        ex.reply(body={"choices": []})
    assert [x["index"] for x in c.read().json()["choices"]] == [0, 1]


def test_too_many_samples_are_refused(fleet):
    assert fleet.router.complete(n=9).error["code"] == "too_many_choices"
    assert fleet.router.complete(prompt=["a", "b", "c"], n=3).status == 400
    assert fleet.router.complete(n=8, max_tokens=1).status == 200


def test_streamed_tokens_come_as_they_are_made(fleet):
    for d in fleet.d:
        d.pause()
    try:
        c = fleet.router.open_stream("slow", n=4)
        wait("a stream", lambda: sum(d.metric("pdsim:streams_running") for d in fleet.d) == 1)
        events = c.events()
        for _ in range(4):
            for d in fleet.d:
                d.step()
            assert next(events).json()["choices"][0]["text"]
    finally:
        for d in fleet.d:
            d.go_on()
    assert [e.data for e in events][-1] == "[DONE]"


@pytest.mark.parametrize("name", CASES)
def test_recorded_bodies_get_the_engines_own_answer(fleet, name):
    """Of a refusal the status, which may be the router's own; of several samples the number, see test_n."""
    case = load(name)
    direct, through = outcome(fleet.direct.address, case), outcome(fleet.router.address, case)
    if b'"n"' in case.body and direct[0] == 200:
        assert through[0] == 200 and through[2] == direct[2] and len(through[1]) == len(direct[1])
    else:
        assert through == direct if direct[0] == 200 else through[0] == direct[0]


# --- /generate ---

def bare(answer):
    """Without what is fresh each time: ids."""
    for x in answer if isinstance(answer, list) else [answer]:
        x["meta_info"].pop("id")
    return answer


def native(fleet, at, body, method="POST"):
    with at.client() as c:
        c.request(method, GENERATE, body)
        if not body.get("stream"):
            a = c.read()
            assert a.status == 200, a.body
            return bare(a.json())
        events = list(c.events())
        assert events[-1].data == "[DONE]"
        return sorted((bare(e.json()) for e in events[:-1]), key=lambda x: x.get("index", 0))


NATIVE = {
    "text": {"text": "once upon"},
    "texts": {"text": ["once", "upon", "a"]},
    "ids": {"input_ids": [104, 105]},
    "lists of ids": {"input_ids": [[104, 105], [106]]},
    "one text in a list": {"text": ["once"]},
    "an n that is none": {"text": "once", "n": 3},
}


@STREAM
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("body", NATIVE.values(), ids=NATIVE.keys())
def test_generate(fleet, body, stream, logprobs):
    """With return_logprob the prompt's come from the prefill engine, in a stream in each event."""
    body = {**body, "sampling_params": {"max_new_tokens": 4}, **({"stream": True} if stream else {})}
    if logprobs:
        body |= {"return_logprob": True, "logprob_start_len": 0}
    direct = native(fleet, fleet.direct, body)
    assert native(fleet, fleet.router, body) == direct == native(fleet, fleet.router, body, "PUT")
    if logprobs:
        assert direct[0]["meta_info"]["input_token_logprobs"] if isinstance(direct, list) else direct["meta_info"]["input_token_logprobs"]


@STREAM
def test_generate_many_texts_with_logprobs(fleet, stream):
    body = {"text": [f"text {i}" for i in range(300)], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True, "stream": stream}
    assert native(fleet, fleet.router, body) == native(fleet, fleet.direct, body)


@pytest.mark.parametrize("params", [{"n": 2}, [{"n": 2}, {"n": 2}]], ids=["one", "list"])
def test_generate_several_samples_are_refused(fleet, params):
    a = fleet.router.post(GENERATE, {"text": ["x", "y"], "sampling_params": params})
    assert a.status == 400 and a.error["code"] == "not_supported" and "/v1/completions" in a.error["message"]


def test_generate_other_methods(fleet):
    with fleet.router.client() as c:
        a = c.get(GENERATE)
    assert a.status == 405 and a["allow"] == "POST, PUT"


# --- what goes out ---

INFO = b'{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"version":"0.5.23"}'
INFO_OF_D = INFO.replace(b"prefill", b"decode")


def scripted(world, np=1, nd=1, entry=None, pool=None, **keys):
    """A router before scripted engines that are known to be SGLang's."""
    p = [world.script(probes={"/server_info": INFO}) for _ in range(np)]
    d = [world.script(probes={"/server_info": INFO_OF_D}) for _ in range(nd)]
    entries = [{"url": e.url, **(entry or {})} for e in p]
    r = world.router(world.pool(entries, d, **{**POOL, **(pool or {})}), **keys)
    return r, p, d


def test_bodies_are_the_clients_own(world):
    """At once, byte by byte the same but for the members that say where to meet."""
    r, (p,), (d,) = scripted(world)
    body = (b'{ "model":"sim-model", "prompt":"x","max_tokens":64,"min_tokens":2,"stream":true,"stream_options":{"include_usage":true},'
            b'"logit_bias":{"1":1e400},"seed":18446744073709551617,"ignore_eos":false,"stop":["\\u0041"],"foo":[1.0,2]}')
    c = r.client().request("POST", COMPLETIONS, body, [("X-Request-Id", "mine"), ("Authorization", "Bearer k"), ("X-Own", "one")])
    legs = [p.expect(f"POST {COMPLETIONS}"), d.expect(f"POST {COMPLETIONS}")]
    assert legs[0].body == legs[1].body
    for ex in legs:
        assert kept(ex.body, ADDED) == [(k, v) for _, k, v in members(body)]
        j = ex.json()
        assert j["bootstrap_host"] == "127.0.0.1" and j["bootstrap_port"] == 8998 and 1 <= j["bootstrap_room"] <= ROOM_MAX
        assert j["rid"] == ex["x-request-id"] and j["rid"].startswith("mine-")
        assert (ex["authorization"], ex["x-own"]) == ("Bearer k", "one") and ex["x-data-parallel-rank"] is None
    legs[1].stream("a", "b")
    assert [e.data for e in c.events()][-1] == "[DONE]"
    legs[0].reply(body={"choices": []})


def test_an_idle_stream_keeps_nothing_of_the_prefill_answer(world):
    r, (p,), (d,) = scripted(world, workers=1)
    streams, before = [], 0
    for _ in range(11):
        c = r.open_stream("x")
        legs = [d.expect().stream_head().event("a"), p.expect()]
        legs[1].reply(body={"choices": [], "padding": "x" * (2 << 20)})
        streams.append((c, legs[0]))
        wait("the prefill answer", lambda: r.metric("endpoint_in_flight", role="prefill") == 0)
        before = before or r.rss_kib()
    grown = r.rss_kib() - before
    for c, ex in streams:
        ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
        assert text_of(c.events()) == "a"
    assert VARIANT != "release" or grown < 8192, f"{grown} KiB"


def test_clients_choose_no_peer(world):
    r, (p,), (d,) = scripted(world)
    evil = {"bootstrap_host": "evil", "bootstrap_port": 1, "bootstrap_room": 7, "rid": "theirs", "request_id": "theirs", "routed_dp_rank": 3,
            "disagg_prefill_dp_rank": 3, "data_parallel_rank": 3, "kv_transfer_params": {"remote_host": "evil"}, "disaggregated_params": {}}
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", **evil},
                           [("X-Override-Bootstrap-Host", "evil"), ("x-override-rid", "theirs"), ("X-Data-Parallel-Rank", "3")])
    for ex in (p.expect(), d.expect()):
        j = ex.json()
        assert not {"routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank", "kv_transfer_params", "disaggregated_params"} & set(j)
        assert j["bootstrap_host"] == "127.0.0.1" and j["bootstrap_port"] == 8998 and j["bootstrap_room"] != 7
        assert j["rid"] == j["request_id"] == ex["x-request-id"] and "theirs" not in ex.body.decode()
        assert not [k for k, _ in ex.headers if k.lower().startswith("x-override") or k.lower() == "x-data-parallel-rank"]
        assert all(len(values(ex.body, k)) == 1 for k in ADDED)
        ex.reply(body={"choices": []})
    assert c.read().status == 200


def test_a_chat_with_a_stray_list_of_prompts_has_one_room(world):
    r, (p,), (d,) = scripted(world)
    c = r.client().request("POST", CHAT, {"model": MODEL, "messages": MESSAGES, "prompt": ["a", "b"], "text": ["a"]})
    for ex in (p.expect(), d.expect()):
        assert isinstance(ex.json()["bootstrap_room"], int) and isinstance(ex.json()["rid"], str)
        ex.reply(body={"choices": []})
    assert c.read().status == 200


@pytest.mark.parametrize("host, said", [("fd00::7", "[fd00::7]"), ("10.1.2.3", "10.1.2.3"), ("p-7.example", "p-7.example")])
def test_configured_bootstrap_address(world, host, said):
    r, (p,), (d,) = scripted(world, entry={"bootstrap_host": host, "bootstrap_port": 7001})
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": ["x", "y"]})
    for ex in (p.expect(), d.expect()):
        assert ex.json()["bootstrap_host"] == [said] * 2 and ex.json()["bootstrap_port"] == [7001] * 2
        ex.reply(body={"choices": []})
    assert c.read().status == 200


def test_ipv6_engines_meet(world):
    p, d = world.engine("prefill", host="::1", **SIM), world.engine("decode", host="::1", **SIM)
    r = world.router(world.pool([p], [d], **POOL))
    assert r.complete("six", max_tokens=4).json()["choices"][0]["text"] == expect.text("six", 4)
    assert d.last().json()["bootstrap_host"] == "[::1]"


# --- rooms and ranks ---

class Rooms:
    """Engines that meet in rooms, for many requests at once: a prefill engine answers when its decode engine has come, and both
    refuse a room they have seen."""

    def __init__(self, world, np, nd):
        self.met, self.seen, self.lock, self.bad = {}, {}, threading.Lock(), []
        self.p = [world.script(probes={"/server_info": INFO, COMPLETIONS: self.prefill}) for _ in range(np)]
        self.d = [world.script(probes={"/server_info": INFO_OF_D, COMPLETIONS: self.decode}) for _ in range(nd)]

    def come(self, ex, side):
        body = ex.json()
        rooms = body["bootstrap_room"] if isinstance(body["bootstrap_room"], list) else [body["bootstrap_room"]]
        with self.lock:
            for room in rooms:
                if (side, room) in self.seen or not 1 <= room <= ROOM_MAX:
                    self.bad.append((side, room))
                self.seen[side, room] = True
            return self.met.setdefault(rooms[0], [threading.Event(), threading.Event()]), len(rooms)

    def reply(self, ex, n):
        ex.reply(body={"choices": [{"index": i, "text": "t", "finish_reason": "length"} for i in range(n)]})

    def prefill(self, ex):
        (here, there), n = self.come(ex, "p")
        here.set()
        assert there.wait(20), "decode never came"
        self.reply(ex, n)

    def decode(self, ex):
        (there, here), n = self.come(ex, "d")
        here.set()
        assert there.wait(20), "prefill never came"
        self.reply(ex, n)


def test_rooms_never_come_twice(world):
    engines = Rooms(world, 2, 2)
    r = world.router(world.pool(engines.p, engines.d, **POOL), workers=2)
    clients = [r.client() for _ in range(8)]
    bodies = itertools.cycle([{}, {"prompt": ["a", "b", "c"]}, {"n": 2}])

    def ask(i):
        assert clients[i].post(COMPLETIONS, {"model": MODEL, "prompt": "x", **next(bodies)}).status == 200
    load = Load(8, ask)
    wait("enough", lambda: load.done >= 1200 // SLOW or load.bad, 30)
    load.stop()
    assert not load.bad and not engines.bad
    sides = [side for side, _ in engines.seen]
    assert sides.count("p") == sides.count("d") >= 2000 // SLOW, "each room was entered from both sides"
    assert len({room >> 56 for _, room in engines.seen}) == 2, "both workers have drawn"


@pytest.mark.parametrize("members", [{}, {"prompt": ["a", "b", "c"]}, {"n": 3}], ids=["one", "list", "n"])
def test_rooms_are_congruent_to_the_rank(world, members):
    """The engine counts every request whose rank is not its room's (pdsim:rank_mismatch)."""
    p = world.engine("prefill", dp_size=4, follow_bootstrap_room=True, **SIM)
    d = world.engine("decode", dp_size=4, follow_bootstrap_room=True, **SIM)
    r = world.router(world.pool([{"url": p.url, "dp_ranks": 4}], [{"url": d.url, "dp_ranks": 2}], **POOL), workers=1)
    for _ in range(4):
        assert r.complete(**members, max_tokens=3).status == 200
    ranks = []
    for a, b in zip(p.requests(), d.requests()):
        rooms = a.json()["bootstrap_room"]
        rooms = rooms if isinstance(rooms, list) else [rooms]
        assert {x % 4 for x in rooms} == {int(a["x-data-parallel-rank"])}
        assert "disagg_prefill_dp_rank" not in a.json()
        ranks.append(int(a["x-data-parallel-rank"]))
    assert {x["x-data-parallel-rank"] for x in d.requests()} == {"0", "1"} and set(ranks) == {0, 1, 2, 3}
    assert {x.json()["disagg_prefill_dp_rank"] for x in d.requests()} == {0, 1, 2, 3}


# --- failures: the first of either half ends the other at once ---

KEY = ("Authorization", "Bearer k")


def begin(world, stream=False, pool=None, body=None, **keys):
    """(router, p, d, client, both legs): a request that both engines have."""
    r, (p,), (d,) = scripted(world, pool=pool, **keys)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "stream": stream, **(body or {})}, [KEY])
    return r, p, d, c, p.expect(f"POST {COMPLETIONS}"), d.expect(f"POST {COMPLETIONS}")


def forgets(engine, leg):
    """The engine is told to abort the request, with the client's key, and only then hung up on."""
    a = engine.expect("POST /abort_request")
    rid = leg.json()["rid"]
    assert a.json() == {"rid": rid[0] if isinstance(rid, list) else rid}
    assert a[KEY[0]] == KEY[1] and a["content-type"] == "application/json"
    assert not leg.gone(0.03), "an engine that is hung up on first may not know the rid any more"
    a.reply()
    assert leg.gone()
    leg.close()
    return a


def test_a_long_key_reaches_the_abort_whole(world):
    """It is longer than what the router itself writes in a head, and nothing of the router's memory follows it."""
    r, (p,), (d,) = scripted(world)
    key = "Bearer " + "k" * 20000
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"}, [("Authorization", key)])
    legs = {e: e.expect(f"POST {COMPLETIONS}") for e in (p, d)}
    c.close()
    for e, leg in legs.items():
        a = e.expect("POST /abort_request")
        assert a["authorization"] == key and a.json() == {"rid": leg.json()["rid"]}
        a.reply()
        assert leg.gone()
        leg.close()


def flat(message, code):
    return {"object": "error", "message": message, "type": "Bad", "param": None, "code": code}


def streamed(ex, *events):
    ex.stream_head()
    for e in events:
        ex.chunk(b"data: " + json.dumps(e).encode() + b"\n\n")
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n")
    ex.end()


ABORT = {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "no KV", "status_code": 500}}}
FAILS_OF_P = {
    **{how: PREFILL_FAILS[how] for how in ("reset", "closed", "garbage")},
    "half": (lambda ex: ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{").reset(), 502, "prefill_broken"),
    "500": (lambda ex: ex.reply(500, flat("out of memory", 500)), 500, "out of memory"),
    "503": (lambda ex: ex.reply(503, {"error": {"message": "loading"}}), 503, "loading"),
    "400": (lambda ex: ex.reply(400, flat("input is too long", 400)), 400, "input is too long"),
    "error under 200": (lambda ex: ex.reply(200, flat("bootstrap failed", 500)), 502, "prefill_bad_answer"),
    "error event": (lambda ex: streamed(ex, {"error": {"message": "no KV"}}), 502, "prefill_bad_answer"),
    "abort event": (lambda ex: streamed(ex, ABORT), 502, "prefill_bad_answer"),
    "abort of several": (lambda ex: ex.reply(200, [{"text": "a", "meta_info": {"finish_reason": None}}, ABORT]), 502, "prefill_bad_answer"),
    "abort of a choice": (lambda ex: ex.reply(200, {"choices": [{"text": "", "finish_reason": "abort"}]}), 502, "prefill_bad_answer"),
}


@STREAM
@pytest.mark.parametrize("how", FAILS_OF_P)
def test_prefill_fails(world, how, stream):
    fail, status, word = FAILS_OF_P[how]
    r, p, d, c, leg_p, leg_d = begin(world, stream)
    fail(leg_p)
    forgets(d, leg_d)
    a = c.read()
    assert a.status == status and word in a.body.decode()
    assert r.end()["reason"] == ("engine_status" if status != 502 else word) and r.metric("aborts_total") == 1


FAR = {"health_interval": "60s"}  # nobody notices but the request


def test_prefill_refuses_the_connection(world):
    r, (p,), (d,) = scripted(world, **FAR)
    p.close()
    assert r.complete().error["code"] == "prefill_broken"
    assert d.quiet(0.1) or d.expect("POST /abort_request")


FAILS_OF_D = {
    **{how: DECODE_FAILS[how] for how in ("reset", "closed", "garbage")},
    "500": (lambda ex: ex.reply(500, flat("KV transfer failed", 500)), 500, "KV transfer failed"),
    "429": (lambda ex: ex.reply(429, {"error": {"message": "busy"}}), 429, "busy"),
    "400": (lambda ex: ex.reply(400, flat("bad grammar", 400)), 400, "bad grammar"),
}


@STREAM
@pytest.mark.parametrize("how", FAILS_OF_D)
def test_decode_fails(world, how, stream):
    fail, status, word = FAILS_OF_D[how]
    r, p, d, c, leg_p, leg_d = begin(world, stream)
    fail(leg_d)
    forgets(p, leg_p)
    a = c.read()
    assert a.status == status and word in a.body.decode()
    assert r.end()["reason"] == ("engine_status" if status != 502 else word)


def test_decode_refuses_the_connection(world):
    r, (p,), (d,) = scripted(world, **FAR)
    d.close()
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"}, [KEY])
    came = sorted([p.expect(), p.expect()], key=lambda x: x.path)  # two connections: either may be first
    assert [x.path for x in came] == ["/abort_request", COMPLETIONS] and came[0].json()["rid"] == came[1].json()["rid"]
    came[0].reply()
    assert came[1].gone() and c.read().error["code"] == "decode_broken"


@pytest.mark.parametrize("answered", [False, True])
def test_decode_breaks_off_in_the_stream(world, answered):
    """The client is told by an event; a prefill engine that has not answered by then is told too."""
    r, p, d, c, leg_p, leg_d = begin(world, stream=True)
    if answered:
        leg_p.reply(body={"choices": [{"index": 0, "text": "t", "finish_reason": "length"}]})
    leg_d.stream_head().event("a")
    events = c.events()
    assert next(events).json()["choices"][0]["text"] == "a"
    leg_d.reset()
    assert [e for e in events if e.data != "[DONE]"][-1].json()["error"]["code"] == "decode_broken"
    if not answered:
        forgets(p, leg_p)
    assert r.end()["reason"] == "decode_broken" and p.quiet(0.05)


@pytest.mark.parametrize("how", ["reset", "error event", "500"])
def test_prefill_fails_after_decode_began(world, how):
    """Decode has its KV by then: its answer goes on, and nobody is told anything."""
    r, p, d, c, leg_p, leg_d = begin(world, stream=True)
    leg_d.stream_head().event("a")
    events = c.events()
    assert next(events).json()["choices"][0]["text"] == "a"
    FAILS_OF_P[how][0](leg_p)
    leg_d.event("b").chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert [e.data for e in events][-1] == "[DONE]" and r.end()["reason"] == "ok"
    assert d.quiet(0.05) and r.metric("aborts_total") == 0


@pytest.mark.parametrize("body", [{"finish_reason": "length"}, {"finish_reason": "stop"}])
def test_prefills_200_proves_nothing(world, body):
    """`length` is its normal end, and that of an abort: the decode engine's error is the answer."""
    r, p, d, c, leg_p, leg_d = begin(world)
    leg_p.reply(body={"choices": [{"index": 0, "text": "t", **body}]})
    assert c.silent(0.05)
    leg_d.reply(500, flat("transfer failed", 500))
    assert c.read().status == 500 and p.quiet(0.05)


@STREAM
def test_decode_answers_before_prefill(world, stream):
    r, p, d, c, leg_p, leg_d = begin(world, stream)
    if stream:
        leg_d.stream("a", "b")
        assert [e.data for e in c.events()][-1] == "[DONE]"
    else:
        leg_d.reply(body={"choices": [{"index": 0, "text": "whole", "finish_reason": "stop"}]})
        assert c.read().json()["choices"][0]["text"] == "whole"
    assert r.end()["reason"] == "ok" and leg_p.gone()
    leg_p.close()


@pytest.mark.parametrize("late", ["prefill", "decode"])
def test_an_engine_is_late(world, late):
    """Both are told: the late one may still be at work."""
    limit = {"prefill": "prefill", "decode": "whole_answer"}[late]
    timeouts = {"prefill": "10s", **silence("10s"), limit: "300ms"}
    r, p, d, c, leg_p, leg_d = begin(world, pool={"timeouts": timeouts})
    if late == "decode":
        leg_p.reply(body={"choices": []})
    else:
        forgets(p, leg_p)
    forgets(d, leg_d)
    assert c.read().error["code"] == f"{limit}_timeout" and r.end()["status"] == 504


def test_the_stream_stands_still(world):
    r, p, d, c, leg_p, leg_d = begin(world, stream=True, pool={"timeouts": silence("300ms")})
    leg_p.reply(body={"choices": []})
    leg_d.stream_head().event("a")
    forgets(d, leg_d)
    assert b"stream_idle_timeout" in [e.raw for e in c.events()][-1] and r.end()["reason"] == "stream_idle_timeout"


def test_an_abort_that_is_not_answered_holds_nothing_up(world):
    r, p, d, c, leg_p, leg_d = begin(world)
    leg_p.reset()
    assert c.read().status == 502
    unanswered = d.expect("POST /abort_request")
    assert leg_d.gone(3 * SLOW) and unanswered.gone(3 * SLOW), "two seconds at most"


@pytest.mark.parametrize("body", [{"n": 2}, {"prompt": ["a", "b"]}], ids=["n", "list"])
def test_one_failure_fails_the_whole(world, body):
    """Of several samples each branch is ended, of a list the one branch, by its first rid."""
    r, (p,), (d,) = scripted(world)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", **body}, [KEY])
    branches = body.get("n", 1)
    at_p, at_d = [p.expect() for _ in range(branches)], [d.expect() for _ in range(branches)]
    at_d[-1].reply(500, flat("no", 500))
    told = [e.expect("POST /abort_request") for e in [p] * branches + [d] * (branches - 1)]
    rids = [x.json()["rid"] for x in at_p]
    assert {x.json()["rid"] for x in told} == {x if isinstance(x, str) else x[0] for x in rids}
    for x in told:
        x.reply()
    assert c.read().status == 500


def test_one_failure_in_a_merged_stream(world):
    r, (p,), (d,) = scripted(world)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "stream": True})
    for ex in (p.expect(), p.expect()):
        ex.reply(body={"choices": []})
    first, second = d.expect(), d.expect()
    first.stream_head().event("a")
    events = c.events()
    assert next(events).json()["choices"][0]["text"] == "a"
    second.reset()
    assert [e for e in events if e.data != "[DONE]"][-1].json()["error"]["code"] == "decode_broken"
    d.expect("POST /abort_request").reply()
    assert first.gone()


def test_prefill_of_a_branch_that_is_done_may_fail(world):
    """Its decode engine has answered: what is missing is the other sample's alone."""
    r, (p,), (d,) = scripted(world)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2})
    at_p, at_d = [p.expect(), p.expect()], [d.expect(), d.expect()]
    answer = {"id": "x", "choices": [{"index": 0, "text": "t", "finish_reason": "stop"}]}
    done = [x for x in at_d if x.json()["rid"] == at_p[0].json()["rid"]][0]
    done.reply(body=answer)
    wait("it to be read", lambda: r.metric("endpoint_in_flight", engine=d.url) == 1)
    at_p[0].reset()
    at_p[1].reply(body={"choices": []})
    at_d[1 - at_d.index(done)].reply(body=answer)
    assert len(c.read().json()["choices"]) == 2


# --- the client leaves ---

@pytest.fixture(params=["close", "reset"])
def leave(request):
    return lambda c: c.reset() if request.param == "reset" else c.close()


@STREAM
def test_client_gone_while_both_work(world, leave, stream):
    r, p, d, c, leg_p, leg_d = begin(world, stream)
    leave(c)
    forgets(p, leg_p)
    forgets(d, leg_d)
    assert r.end()["reason"] == "client_gone"


@STREAM
def test_client_gone_after_prefill_answered(world, leave, stream):
    r, p, d, c, leg_p, leg_d = begin(world, stream)
    leg_p.reply(body={"choices": [{"index": 0, "text": "t", "finish_reason": "length"}]})
    r.wait_metric("endpoint_in_flight", 0, engine=p.url)
    leave(c)
    forgets(d, leg_d)
    assert r.end()["reason"] == "client_gone" and p.quiet(0.05)


@pytest.mark.parametrize("answered", [False, True])
def test_client_gone_in_the_stream(world, leave, answered):
    r, p, d, c, leg_p, leg_d = begin(world, stream=True)
    if answered:
        leg_p.reply(body={"choices": []})
    leg_d.stream_head().event("a")
    assert next(c.events()).data
    leave(c)
    if not answered:
        forgets(p, leg_p)
    forgets(d, leg_d)
    assert r.end()["reason"] == "client_gone"


def test_client_gone_while_the_address_is_asked_for(world, leave):
    r, (p,), (d,) = scripted(world)
    p.probes["/server_info"] = p.probes["/get_server_info"] = lambda ex: (ex.gone(10), ex.close())
    r, p = unlearned(world, p, d)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"})
    wait("the lookup", lambda: asked(p))
    leave(c)
    assert r.end()["reason"] == "client_gone" and r.end()["states"] == "hbpad"
    assert p.quiet(0.05) and d.quiet(0.05)


@STREAM
def test_client_gone_at_any_moment(world, leave, stream):
    """Rooms must not stay open until the engines' own time-out (10 s)."""
    r, p, d = world.pd(2, 2, engine={**SIM, "prefill_delay": 10, "fetch_delay": 10, "token_delay": 2}, pool=POOL)
    r.wait_all_up()
    for i in range(20):
        c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": f"p{i}" * 50, "stream": stream, "max_tokens": 20})
        c.silent(0.002 * i + 0.0005)
        leave(c)
    r.end(20)
    for e in p + d:
        e.wait_metric("pdsim:open_rooms", 0, 3)
        e.wait_metric("pdsim:running_requests", 0, 3)
    r.wait_idle()
    assert r.metric("kv_flags_armed") in (0, None)


@pytest.mark.parametrize("leaves", [False, True])
def test_engines_are_sent_aborts_before_the_router_exits(world, leaves):
    """The last word of a worker that ends, be it cut short or drained by its last client's leaving."""
    r, p, d, c, leg_p, leg_d = begin(world, stream=True, drain_timeout="5s" if leaves else "200ms")
    r.kill(signal.SIGTERM)
    if leaves:
        r.wait_log("stopping")
        c.close()
    forgets(p, leg_p)
    forgets(d, leg_d)
    assert r.p.wait(5 * SLOW) == 0


# --- the readiness gate ---

def asked(p):
    """The worker's own lookups: they carry the request's id, the master's do not."""
    return [x for x in p.lookups if x["x-request-id"]]


def unlearned(world, p=None, d=None, **keys):
    """A router that knows nothing of its prefill engine yet, and that engine, which counts the lookups."""
    p = p or world.script()
    d = d or world.script(probes={"/server_info": INFO_OF_D})
    p.lookups, answers = [], {}

    def lookup(ex):
        p.lookups.append(ex)
        answer = answers.get(ex.path, (404, b"")) if ex["x-request-id"] else (404, b"")
        answer(ex) if callable(answer) else ex.reply(*answer) if isinstance(answer, tuple) else ex.reply(200, answer)
    for path in ("/server_info", "/get_server_info"):
        answers[path] = p.probes[path]
        p.probes[path] = lookup
    p.answers = answers
    return world.router(world.pool([p], [d], **POOL, learn_timeout=keys.pop("learn_timeout", "2s")), **keys), p


def finish(p, d, c):
    for e in (p, d):
        ex = e.expect()
        assert values(ex.body, "bootstrap_port") == ["8998"]
        ex.reply(body={"choices": []})
    assert c.read().status == 200


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_an_unknown_address_is_asked_for(world, path):
    """... under its older name too; and once known, nobody asks again."""
    d = world.script()
    r, p = unlearned(world, d=d, workers=1)
    p.answers[path] = INFO
    for _ in range(2):
        finish(p, d, r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"}, [KEY]))
    assert [x.path for x in asked(p)] == ["/server_info", "/get_server_info"][:1 + (path == "/get_server_info")]
    assert asked(p)[0][KEY[0]] == KEY[1]


def test_requests_wait_until_it_is_known(world):
    """One lookup for all who wait, again and again; then they all go."""
    d = world.script()
    r, p = unlearned(world, d=d, workers=1, learn_timeout="10s")
    waiting = [r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"}) for _ in range(10)]
    wait("lookups", lambda: len(asked(p)) >= 4)
    assert d.quiet(0.05) and r.metric("requests_in_flight") == 11
    hold = threading.Event()
    p.answers["/server_info"] = p.answers["/get_server_info"] = lambda ex: (hold.wait(5), ex.reply(200, INFO))
    before = len(asked(p))
    wait("a lookup that is not answered", lambda: len(asked(p)) > before)
    time.sleep(0.3)
    assert len(asked(p)) == before + 1, "one at a time"
    hold.set()
    for _ in waiting:
        finish_one(p, d)
    assert [c.read().status for c in waiting] == [200] * 10


def finish_one(p, d):
    for e in (p, d):
        e.expect().reply(body={"choices": []})


@pytest.mark.parametrize("answer", [(404, b""), (200, b"{}"), (200, b"nonsense"), (200, b'{"disaggregation_bootstrap_port":0}'),
                                    lambda ex: (ex.gone(5), ex.close()), lambda ex: ex.reset()],
                         ids=["404", "none", "no json", "zero", "silence", "reset"])
def test_an_address_that_stays_unknown_is_a_503(world, answer):
    d = world.script()
    r, p = unlearned(world, d=d, learn_timeout="400ms")
    p.answers["/server_info"] = p.answers["/get_server_info"] = answer
    began = time.monotonic()
    a = r.complete()
    assert a.status == 503 and a.error["code"] == "not_learned" and a.error["type"] == "service_unavailable"
    assert 0.35 < time.monotonic() - began < 1.5 * SLOW
    assert p.quiet(0.02) and d.quiet(0.02) and r.end()["states"] == "hbpad"


def test_a_prefill_engine_that_failed_is_asked_again(world):
    """It may come back with another port."""
    d = world.script()
    r, p = unlearned(world, d=d, workers=1)
    p.answers["/server_info"] = INFO
    finish(p, d, r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"}))
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"})
    leg = d.expect(f"POST {COMPLETIONS}")
    p.expect().reply(500, flat("restarting", 500))
    d.expect("POST /abort_request").reply()
    assert leg.gone()
    leg.close()
    assert c.read().status == 500
    p.answers["/server_info"] = INFO.replace(b"8998", b"8999")
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"})
    assert p.expect().json()["bootstrap_port"] == d.expect().json()["bootstrap_port"] == 8999
    c.close()


# --- bootstrap: stream ---

@pytest.fixture(scope="module")
def own_rooms(request):
    f = BaseFleet()
    w = f.world
    f.p = [w.engine("prefill", bootstrap_stream=True, prefill_delay=3, **SIM) for _ in range(2)]
    f.d = [w.engine("decode", **SIM) for _ in range(2)]
    f.router = w.router(w.pool(f.p, f.d, policy="round_robin", bootstrap="stream", **POOL))
    f.router.wait_all_up()
    f.direct = w.engine("both", **SIM)
    yield from lasting(request, f)


@STREAM
def test_prefill_names_the_room(own_rooms, stream):
    for prompt in ("once", ["once", "upon"], [1, 2, 3]):
        same(own_rooms, stream, lambda c, x=prompt: c.completions.create(model=MODEL, prompt=x, max_tokens=5, **usage(stream)))
    same(own_rooms, stream, lambda c: c.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, max_tokens=5, **usage(stream)))
    assert all("bootstrap_room" not in e.last().json() and e.last().json()["stream"] for e in own_rooms.p)


def test_a_client_that_does_not_read_does_not_make_the_router_keep_it_all(world):
    """With log probabilities each event grows by those of the whole prompt: a read of small ones may become hundreds of MiB."""
    r, (p,), (d,) = scripted(world, workers=1)
    inputs = [[-0.5, i, "x" * 50] for i in range(8000)]
    with r.client(rcvbuf=65536) as c:
        c.request("POST", GENERATE, {"text": "a", "stream": True, "return_logprob": True})
        one, other = d.expect(), p.expect()
        other.reply(body={"text": "a", "meta_info": {"input_token_logprobs": inputs, "finish_reason": {"type": "length"}}})
        event = b'data: {"text":"%d","meta_info":{"input_token_logprobs":[],"finish_reason":null}}\n\n'
        one.stream_head().chunk(b"".join(event % i for i in range(60))).chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
        r.wait_metric("endpoint_in_flight", 0, role="prefill")
        wait("the first are queued", lambda: r.metric("send_queue_bytes") > 0)
        time.sleep(0.3)
        assert r.metric("send_queue_bytes") < 4 << 20
        got = [e.data for e in c.events()]
    assert got[-1] == "[DONE]" and [json.loads(e)["text"] for e in got[:-1]] == [str(i) for i in range(60)]
    assert all(len(json.loads(e)["meta_info"]["input_token_logprobs"]) == 8000 for e in got[:-1:50])
    r.wait_metric("requests_total", 1, path=GENERATE, reason="ok")


@STREAM
@pytest.mark.parametrize("texts", ["once", ["once", "upon"]], ids=["one", "list"])
def test_prefill_names_the_room_and_tells_logprobs(own_rooms, stream, texts):
    body = {"text": texts, "sampling_params": {"max_new_tokens": 3}, "return_logprob": True, "logprob_start_len": 0, "stream": stream}
    assert native(own_rooms, own_rooms.router, body) == native(own_rooms, own_rooms.direct, body)


def test_room_comes_in_the_first_event(world):
    """Decode starts as soon as that event is whole, with its members as they stand."""
    r, (p,), (d,) = scripted(world, pool={"bootstrap": "stream"})
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "max_tokens": 3})
    ex = p.expect()
    ex.stream_head().chunk(b'data: {"id":"x","disaggregated_params":{"bootstrap_host":"h","bootstrap_po')
    assert d.quiet(0.05)
    ex.chunk(b'rt":9,"bootstrap_room":9223372036854775807}}\n\n')
    leg = d.expect()
    assert values(leg.body, "bootstrap_room") == ["9223372036854775807"] and leg.json()["bootstrap_host"] == "h"
    assert leg.json()["bootstrap_port"] == 9 and leg.json()["rid"] == ex.json()["rid"] and "stream" not in leg.json()
    leg.reply(body={"choices": []})
    assert c.read().status == 200


@pytest.mark.parametrize("how", ["no params", "whole", "reset", "503", "silence"])
def test_no_room_comes(world, how):
    r, (p,), (d,) = scripted(world, pool={"bootstrap": "stream", "timeouts": {"prefill": "300ms"}})
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x"}, [KEY])
    ex = p.expect()
    if how == "no params":
        ex.stream("a")
    elif how == "whole":
        ex.reply(body={"choices": []})
    elif how == "reset":
        ex.stream_head().reset()
    elif how == "503":
        ex.reply(503, flat("busy", 503))
    else:
        forgets(p, ex)
    a = c.read()
    want = {"no params": "prefill_bad_answer", "whole": "prefill_bad_answer", "reset": "prefill_broken", "silence": "prefill_timeout"}
    assert a.status == 503 if how == "503" else a.error["code"] == want[how]
    assert d.quiet(0.05)


# --- connections ---

def test_idle_connections_that_died_are_replaced(world):
    """The engine saw nothing of it, so the room is still unused (sglang#9926)."""
    r, (p,), (d,) = world.pd(engine=SIM, pool=POOL)

    def all_served(turn):
        assert r.complete().status == 200
        for e in (p, d):
            e.fault("close_keepalive")
        return [r.complete(f"again {turn} {i}", max_tokens=3).status for i in range(3)] == [200] * 3
    assert any(map(all_served, range(5))), "a reset that comes later than 2 ms says nothing"


def test_many_at_once_over_two_by_two(world):
    r, p, d = world.pd(2, 2, engine={**SIM, "prefill_delay": 5, "fetch_delay": 2}, pool=POOL)
    r.wait_all_up()
    clients = [r.client() for _ in range(16)]
    bodies = itertools.cycle([{}, {"n": 2}, {"prompt": ["a", "b"]}, {"stream": True}])

    def ask(i):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3, **next(bodies)}
        assert clients[i].post(COMPLETIONS, body).status == 200
    load = Load(16, ask)
    wait("enough", lambda: load.done >= 400 // SLOW or load.bad, 30)
    load.stop()
    for c in clients:
        c.close()
    assert not load.bad and all(len(e.requests()) > 10 for e in p + d)
