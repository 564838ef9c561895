"""SGLang's bootstrap room: both engines get the client's body at once and meet in a room; the decode engine's
answer is the client's, and the first failure of either ends the other."""
import itertools
import json
import threading
import time

import openai
import pytest

import expect
from members import kept, members, values
from procs import MODEL, Load, SLOW, World, wait

SIM = {"handshake": "sglang"}
POOL = {"connector": "sglang"}
COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
ROOM_MAX = 2**63 - 1
ADDED = {"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 日本語? 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": {
    "type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}]
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class Fleet:
    """2P2D, and one engine that is asked directly."""

    def __init__(self):
        self.world = w = World()
        self.router, self.p, self.d = w.pd(2, 2, engine=SIM, pool={**POOL, "policy": "round_robin"})
        self.router.wait_all_up()
        self.direct = w.engine("both", **SIM)

    def ask(self, engine, path, body):
        with engine.client() as c:
            return c.post(path, body)


@pytest.fixture(scope="module")
def fleet(request):
    f = Fleet()
    try:
        yield f
        if request.session.testsfailed == 0:
            assert all(e.requests() for e in f.p + f.d), "an engine was never used"
            f.world.finish()
    finally:
        f.world.close()


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
    """One pair, with a room for each prompt."""
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
    """A pair for each sample, for a room serves one.  Differs from a direct call: the simulator's samples differ by their number
    alone, which the engines of a pair are not told (SGLang's draw); all else is the same."""
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


def test_n_with_a_seed_gives_each_its_own(world):
    r, (p,), (d,) = scripted(world)
    c = r.client().request("POST", COMPLETIONS, {"model": MODEL, "prompt": "x", "n": 2, "seed": 5})
    both = [p.expect(), p.expect()]
    assert sorted((x.json()["seed"], x.json()["n"]) for x in both) == [(5, 1), (6, 1)]
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
    assert a.status == 400 and "/v1/completions" in a.error["message"]


def test_generate_other_methods(fleet):
    with fleet.router.client() as c:
        a = c.get(GENERATE)
    assert a.status == 405 and a["allow"] == "POST, PUT"


# --- what goes out ---

INFO = b'{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"version":"0.5.23"}'


def scripted(world, np=1, nd=1, entry=None, pool=None, **keys):
    """A router before scripted engines that are known to be SGLang's."""
    p = [world.script(probes={"/server_info": INFO}) for _ in range(np)]
    d = [world.script(probes={"/server_info": INFO.replace(b"prefill", b"decode")}) for _ in range(nd)]
    entries = [{"url": e.url, **(entry or {})} for e in p]
    r = world.router(world.pool(entries, d, **{**POOL, **(pool or {})}), **keys)
    return r, p, d


def test_bodies_are_the_clients_own(world):
    """At once, byte by byte the same but for the members that say where to meet."""
    r, (p,), (d,) = scripted(world)
    body = (b'{ "model":"sim-model", "prompt":"x","max_tokens":64,"min_tokens":2,"stream":true,"stream_options":{"include_usage":true},'
            b'"logit_bias":{"1":1e400},"seed":18446744073709551617,"ignore_eos":false,"stop":["\\u0041"],"foo":[1.0,2]}')
    c = r.client().request("POST", COMPLETIONS, body, [("X-Request-Id", "mine"), ("Authorization", "Bearer k"), ("traceparent", "00-1")])
    legs = [p.expect(f"POST {COMPLETIONS}"), d.expect(f"POST {COMPLETIONS}")]
    assert legs[0].body == legs[1].body
    for ex in legs:
        assert kept(ex.body, ADDED) == [(k, v) for _, k, v in members(body)]
        j = ex.json()
        assert j["bootstrap_host"] == "127.0.0.1" and j["bootstrap_port"] == 8998 and 1 <= j["bootstrap_room"] <= ROOM_MAX
        assert j["rid"] == ex["x-request-id"] and j["rid"].startswith("mine-")
        assert (ex["authorization"], ex["traceparent"]) == ("Bearer k", "00-1") and ex["x-data-parallel-rank"] is None
    legs[1].stream("a", "b")
    assert [e.data for e in c.events()][-1] == "[DONE]"
    legs[0].reply(body={"choices": []})


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
        self.d = [world.script(probes={"/server_info": INFO, COMPLETIONS: self.decode}) for _ in range(nd)]

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
