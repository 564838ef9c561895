"""Paths that one engine answers alone: which, who, what passes, how it fails; and the paths that no client reaches."""
import base64
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import openai
import pytest

import expect
from legs import DECODE_FAILS, code_of, serve_again, unaccepting
from members import kept, members, values
from procs import MODEL, SLOW, World, silence, wait
from raw import Closed
from stages import Stage, lasting

PATHS = ["/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/v1/classify", "/score", "/v1/score", "/rerank", "/v1/rerank",
         "/v2/rerank", "/encode", "/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/v1/responses", "/v1/messages",
         "/v1/messages/count_tokens", "/inference/v1/generate", "/v1/completions/render", "/v1/chat/completions/render"]
GENERATING = ["/v1/responses", "/v1/messages", "/inference/v1/generate"]  # served by decode engines if nothing is configured
AUDIO = ["/v1/audio/transcriptions", "/v1/audio/translations"]
ODD = (b' {"model":"sim-model", "input":["a","\\u0041"],"n":2,"max_tokens":7,"stream":false,"big":9223372036854775809,'
       b'"x":1e400,"x":2}\n')
JSON = [("Content-Type", "application/json")]
LIMITS = {"timeouts": {"connect": "2s", "prefill": "20s", **silence(f"{400 * SLOW}ms")}}


def unnamed(data):
    """Bytes without the id of a response, which no two calls share, nor the member by which the router names it."""
    return re.sub(rb'resp_[0-9a-f]+', b"", re.sub(rb',"request_id":"resp_[0-9a-f]{48}"', b"", data))


class Desk(Stage):
    """Scripted engines, two of each role; `own` are those of the role that serves the path sent last."""

    def __init__(self, configured):
        super().__init__()
        pool = {**LIMITS, "policy": "round_robin", "allow_route_header": True, **({} if configured is None else {"single_engine_role": configured})}
        self.router, p, d = self.world.scripts(2, 2, pool=pool, workers=1, limits={"max_answer": "64KiB"})
        self.engines, self.configured, self.path = {"prefill": p, "decode": d}, configured, None
        self.router.wait_all_up()

    @property
    def role(self):
        return self.configured or ("decode" if self.path in GENERATING else "prefill")

    @property
    def own(self):
        return self.engines[self.role]

    @property
    def others(self):
        return self.engines["prefill" if self.role == "decode" else "decode"]

    def send(self, path, body=ODD, headers=()):
        self.path = path
        return self.router.client().request("POST", path, body, headers)

    def taken(self):
        """The next request, whichever engine of the right role has it; nobody else has any."""
        e = wait("a request", lambda: [e for e in self.own if not e.asked.empty()])[0]
        assert all(o.asked.empty() for o in self.others)
        return e.expect()

    def line(self, answer):
        return self.line_of(answer["x-request-id"])

    def line_of(self, req):
        return wait("its line", lambda: [x for x in self.router.lines("request") if x["req"] == req])[0]


@pytest.fixture(scope="module", params=[None, "decode"], ids=["default", "decode"])
def desk_of(request):
    yield from lasting(request, Desk(request.param))


@pytest.fixture
def desk(desk_of):
    yield desk_of
    desk_of.router.lives()
    for e in (*desk_of.own, *desk_of.others):
        e.finish()
    desk_of.at_rest()


@pytest.mark.parametrize("path", PATHS)
def test_body_and_answer_pass_byte_by_byte(desk, path):
    c = desk.send(path)
    ex = desk.taken()
    assert (ex.method, ex.path, unnamed(ex.body)) == ("POST", path, ODD) and ex["content-type"] == "application/json"
    body = b'{ "data":[1e400], "kv_transfer_params":{"a":1} ,"id":"x"}\n'
    ex.reply(200, body, headers=[*JSON, ("X-Engine", "1")])
    a = c.read()
    assert (a.status, a.body, a["x-engine"], a["content-type"]) == (200, body, "1", "application/json")
    line = desk.line(a)
    assert line["reason"] == "ok" and line["pool"] == MODEL
    other = {"prefill": "decode", "decode": "prefill"}[desk.role]
    assert line[desk.role] in [e.url for e in desk.own] and line.get(other) is None


def test_all_engines_of_the_role_take_turns(desk):
    ports = []
    for _ in range(4):
        c = desk.send("/v1/embeddings")
        ex = desk.taken()
        ports.append(ex["host"])
        ex.reply(body={})
        assert c.read().status == 200
    assert len(set(ports)) == 2 and ports[:2] == ports[2:]


def test_reserved_while_it_runs(desk):
    c = desk.send("/v1/score")
    ex = desk.taken()
    assert desk.router.metric("endpoint_in_flight", role=desk.role) == 1
    assert desk.router.metric("endpoint_in_flight") == 1
    ex.reply(body={})
    c.read()


@pytest.mark.parametrize("status", [400, 401, 404, 405, 413, 422, 429, 500, 503])
def test_errors_are_the_engines_own(desk, status):
    c = desk.send("/v1/embeddings")
    body = b'{"detail" : "no \\u0041"}'
    desk.taken().reply(status, body, headers=[*JSON, ("X-Why", "because")])
    a = c.read()
    assert (a.status, a.body, a["x-why"]) == (status, body, "because")
    assert desk.line(a)["reason"] == "engine_status"


FAILS = {how: (does, status, code_of(code, False).replace("decode", "engine")) for how, (does, status, code) in DECODE_FAILS.items()}


@pytest.mark.parametrize("how", FAILS)
def test_failures(desk, how):
    does, status, code = FAILS[how]
    c = desk.send("/v1/rerank")
    does(desk.taken())
    if how == "reset":
        serve_again(c, dict.fromkeys(desk.own, does))
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_that_refuses_connections(world, role):
    """Its own role's engine is gone, the other role's is not asked instead."""
    r, (p,), (d,) = world.scripts(pool={"single_engine_role": role}, health_interval="30s")
    (p if role == "prefill" else d).close()
    a = r.post("/v1/embeddings", {"model": MODEL, "input": "x"})
    assert (a.status, a.error["code"]) == (502, "engine_broken")
    assert (d if role == "prefill" else p).quiet(0.05)
    assert [x["role"] for x in r.lines("attempt failed")] == [role]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_that_does_not_accept(world, role):
    r, (p,), (d,) = world.scripts(pool={"single_engine_role": role, "timeouts": {"connect": "300ms"}}, fall=1000, health_interval="1h")
    deaf, other = (p, d) if role == "prefill" else (d, p)
    with unaccepting(deaf):
        a = r.post("/v1/embeddings", {"model": MODEL, "input": "x"})
        assert (a.status, a.error["code"]) == (504, "engine_connect_timeout") and other.quiet(0.02)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_only_its_own_role_must_be_up(world, role):
    r, (p,), (d,) = world.scripts(pool={"single_engine_role": role})
    other, down = (d, "decode") if role == "prefill" else (p, "prefill")
    other.close()
    r.wait_metric("endpoint_up", 0, role=down)
    c = r.client().request("POST", "/v1/embeddings", {"model": MODEL, "input": "x"})
    (p if role == "prefill" else d).expect().reply(body={"ok": 1})
    assert c.read().json() == {"ok": 1}


def test_one_role_for_every_path(world):
    """single_engine_role: prefill holds for the paths that generate text too."""
    r, (p,), (d,) = world.scripts(pool={"single_engine_role": "prefill"})
    for path in GENERATING:
        c = r.client().request("POST", path, {"model": MODEL, "input": "x"})
        p.expect().reply(body={"ok": 1})
        assert c.read().json() == {"ok": 1}
    assert d.quiet(0.05)


def test_nobody_is_up(world):
    r, (p,), (d,) = world.scripts()
    p.close()
    r.wait_metric("endpoint_up", 0, role="prefill")
    a = r.post("/v1/embeddings", {"model": MODEL, "input": "x"})
    assert (a.status, a.error["code"]) == (503, "no_prefill_endpoint") and d.quiet(0.05)


def test_full(world):
    """max_inflight counts them too."""
    p, d = world.script(), world.script()
    r = world.router(world.pool([{"url": p.url, "max_inflight": 1}], [d]), workers=1)
    c = r.client().request("POST", "/v1/embeddings", {"model": MODEL, "input": "x"})
    ex = p.expect()
    a = r.post("/v1/embeddings", {"model": MODEL, "input": "x"})
    assert (a.status, a.error["code"]) == (429, "no_capacity") and 1 <= int(a["retry-after"]) <= 60
    ex.reply(body={})
    assert c.read().status == 200


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_ranks_take_turns(world, role):
    """Of an engine with data-parallel ranks each request has the next one, whatever the client says."""
    p, d = world.script(), world.script()
    r = world.router(world.pool([{"url": p.url, "dp_ranks": 3}], [{"url": d.url, "dp_ranks": 3}], single_engine_role=role), workers=1)
    for rank in (0, 1, 2, 0):
        c = r.client().request("POST", "/v1/embeddings", {"model": MODEL, "input": "x"}, [("X-Data-Parallel-Rank", "7")])
        ex = (p if role == "prefill" else d).expect()
        assert [v for k, v in ex.headers if k.lower() == "x-data-parallel-rank"] == [str(rank)]
        ex.reply(body={})
        assert c.read().status == 200


def test_answer_cut_in_the_middle(desk):
    """The missing bytes are never made up for."""
    c = desk.send("/v1/embeddings")
    desk.taken().write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{").reset()
    try:
        a = c.read()
        assert (a.status, a.error["code"]) == (502, "engine_broken")
    except Closed:
        pass


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_big_bodies_both_ways(world, role):
    """8 MiB in; 4 MiB out, though a leg's kept answer may have 64 KiB here."""
    r, (p,), (d,) = world.scripts(pool={"single_engine_role": role}, limits={"max_answer": "64KiB"})
    body = json.dumps({"model": MODEL, "input": "x" * (8 << 20)}).encode()
    answer = b'{"data":"' + base64.b64encode(os.urandom(3 << 20)) + b'"}'
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(r.post, "/v1/embeddings", body)
        ex = (p if role == "prefill" else d).expect()
        assert ex.body == body
        ex.reply(200, answer, headers=JSON)
        a = got.result()
    assert a.status == 200 and a.body == answer


def test_chunked_body_and_answer(desk):
    c = desk.router.client().send(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(ODD), 7):
        part = ODD[at:at + 7]
        c.send(b"%x\r\n%s\r\n" % (len(part), part))
    c.send(b"0\r\n\r\n")
    ex = desk.taken()
    assert ex.body == ODD and ex["content-length"] == str(len(ODD)) and ex["transfer-encoding"] is None
    ex.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").chunk(b'{"a"').chunk(b":1}").write(b"0\r\n\r\n").end()
    assert c.read().body == b'{"a":1}'


RESPONSE_EVENTS = [b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n',
                   b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n',
                   b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r"}}\n\n']


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_stream(desk, path):
    """Named events and no [DONE]: each reaches the client before the next is there, bytes unchanged."""
    c = desk.send(path, {"model": MODEL, "input": "x", "stream": True})
    ex = desk.taken().stream_head()
    got = b""
    for i, event in enumerate(RESPONSE_EVENTS):
        ex.chunk(event)
        if i == 0:
            events = c.events()
        got += next(events).raw
    ex.write(b"0\r\n\r\n").end()
    assert list(events) == [] and got == b"".join(RESPONSE_EVENTS)
    assert c.answer["content-type"].startswith("text/event-stream") and desk.line(c.answer)["reason"] == "ok"


@pytest.mark.parametrize("how", ["reset", "close", "late"])
def test_stream_that_breaks_off(desk, how):
    c = desk.send("/v1/responses", {"model": MODEL, "input": "x", "stream": True})
    ex = desk.taken().stream_head().chunk(RESPONSE_EVENTS[0])
    events = c.events()
    assert next(events).raw == RESPONSE_EVENTS[0]
    {"reset": ex.reset, "close": ex.close, "late": lambda: None}[how]()
    assert next(events).json()["error"]["code"] == ("stream_idle_timeout" if how == "late" else "engine_broken")
    assert list(events) == []


@pytest.mark.parametrize("stage", ["asked", "answering", "stream"])
def test_client_gone(desk, stage):
    c = desk.send("/v1/responses", {"model": MODEL, "input": "x", "stream": stage == "stream"}, [("X-Request-Id", f"leaves-{stage}")])
    ex = desk.taken()
    if stage == "answering":
        ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    elif stage == "stream":
        ex.stream_head().chunk(RESPONSE_EVENTS[0])
        next(c.events())
    c.close()
    assert ex.gone()
    ex.close()
    assert desk.line_of(f"leaves-{stage}")["reason"] == "client_gone"


PEERS = {"kv_transfer_params": {"remote_host": "evil"}, "ec_transfer_params": {"0": {"peer_host": "evil"}}, "disagg_prefill_resp": {"id": "evil"}, "disagg_spec": {"receiver_host": "evil"},
         "disaggregated_params": {"bootstrap_host": "evil"}, "bootstrap_host": "evil", "bootstrap_port": 1, "bootstrap_room": 7,
         "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "data_parallel_rank": 3, "rid": "evil", "request_id": "evil"}
PEER_HEADERS = [("X-Data-Parallel-Rank", "3"), ("x-override-rid", "evil"), ("X-Override-Bootstrap-Host", "evil"),
                ("X-Override-Bootstrap-Room", "5"), ("x-override-routed-dp-rank", "1"), ("X-PD-Route", "evil"),
                ("Connection", "close, X-Listed"), ("X-Listed", "evil"), ("Proxy-Authorization", "Basic evil")]


@pytest.mark.parametrize("path", [*PATHS, "/v1/completions", "/v1/chat/completions"])
def test_nothing_of_a_client_chooses_a_peer(desk, path):
    """On no path, with one leg or two; what else the client says passes."""
    body = json.dumps({"model": MODEL, "prompt": "x", "messages": [], "u": 1.0, **PEERS}).encode()
    two = path in ("/v1/completions", "/v1/chat/completions")
    headers = [h for h in PEER_HEADERS if not (two and h[0] == "X-PD-Route")]
    c = desk.send(path, body, [*headers, ("X-Mine", "1"), ("Authorization", "Bearer k")])
    legs = []
    if two:
        prefill, decode = (desk.own, desk.others) if desk.role == "prefill" else (desk.others, desk.own)
        for role in (prefill, decode):
            e = wait("a leg", lambda r=role: [e for e in r if not e.asked.empty()])[0]
            legs.append(e.expect())
            legs[-1].reply(body=b'{"choices":[]}', headers=JSON)
    else:
        legs.append(desk.taken())
        legs[-1].reply(body=b"{}", headers=JSON)
    assert c.read().status == 200
    for leg in legs:
        assert b"evil" not in leg.raw_head + leg.body
        for name in ("x-data-parallel-rank", "x-pd-route", "x-listed"):
            assert leg[name] is None
        assert not [k for k, _ in leg.headers if k.lower().startswith("x-override-")]
        assert leg["x-mine"] == "1" and leg["authorization"] == "Bearer k"
        assert values(leg.body, "rid") == [json.dumps(leg["x-request-id"])]
        assert values(leg.body, "request_id") == values(leg.body, "rid") or (path == "/v1/responses" and '"resp_' in values(leg.body, "request_id")[0])
        names = {k for k, _, _ in members(leg.body)}
        assert not names & (set(PEERS) - {"kv_transfer_params", "rid", "request_id"})
        if not two:
            assert kept(leg.body, {"rid", "request_id"}) == kept(body, set(PEERS))


@pytest.mark.parametrize("path", PATHS + AUDIO)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_other_methods(desk, path, method):
    with desk.router.client() as c:
        c.request(method, path, b"{}" if method in ("PUT", "DELETE") else None)
        a = c.read(head_only=method == "HEAD")
    assert (a.status, a["allow"]) == (405, "POST")
    assert all(e.asked.empty() for e in (*desk.own, *desk.others))


def test_unknown_model_and_bad_bodies(desk):
    for body, status, code in ((b'{"model":"nobody"}', 404, 404), (b"[1]", 400, "bad_json"), (b'{"model":1}', 400, "bad_json"),
                               (b"", 400, "bad_json"), (b'{"model":"sim-model"', 400, "bad_json")):
        a = desk.router.post("/v1/embeddings", body)
        assert (a.status, a.error["code"]) == (status, code), body
    assert all(e.asked.empty() for e in (*desk.own, *desk.others))


def test_route_header_does_not_matter(desk):
    """X-PD-Route speaks of two legs; whatever it says, one engine answers."""
    for word in ("direct", "disaggregated", "nonsense"):
        c = desk.send("/v1/embeddings", headers=[("X-PD-Route", word)])
        ex = desk.taken()
        assert ex["x-pd-route"] is None
        ex.reply(body={})
        assert c.read().status == 200


def test_the_model_says_which_pool(world):
    p, d, q, e = (world.script(models=[m]) for m in "aabb")
    r = world.router({**world.pool([p], [d]), "models": ["a"]}, {**world.pool([q], [e]), "models": ["b"], "single_engine_role": "decode"}, workers=1)
    r.wait_all_up()
    for model, engine in (("a", p), ("b", e)):
        c = r.client().request("POST", "/v1/embeddings", {"model": model, "input": "x"})
        engine.expect().reply(body={"by": model})
        assert c.read().json() == {"by": model}
    assert d.quiet(0.05) and q.quiet(0.05)


def test_tokenize_and_detokenize_of_an_engine(world):
    r, (p,), (d,) = world.pd()
    ids = expect.token_ids("hello 日本語")
    a = r.post("/tokenize", {"model": MODEL, "prompt": "hello 日本語"})
    assert (a.json()["tokens"], a.json()["count"]) == (ids, len(ids))
    assert r.post("/detokenize", {"model": MODEL, "tokens": ids}).json()["prompt"] == "hello 日本語"


class Sims(Stage):
    """A simulated engine of each role, and one to be asked directly."""

    def __init__(self):
        super().__init__()
        self.router, (self.p,), (self.d,) = self.world.pd(engine={"name": "own"}, workers=1)
        self.direct = self.world.engine("both", name="own")

    def finish(self):
        assert [e.metric("pdsim:controlled_total") for e in (self.p, self.d)] == [0, 0], "a client has reached what controls an engine"
        super().finish()


@pytest.fixture(scope="module")
def sims(request):
    s = Sims()
    yield from lasting(request, s, (s.router, s.p, s.d, s.direct))


@pytest.mark.parametrize("path", [p for p in PATHS if p not in ("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/v1/classify")])
def test_an_engines_own_answer(sims, path):
    r, _, _, direct = sims
    body = json.dumps({"model": MODEL, "input": ["hello", "日本語"], "query": "q", "documents": ["a", "b"], "text_1": "a", "text_2": ["b", "c"],
                       "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}).encode()
    with direct.client() as c:
        want = c.post(path, body)
    a = r.post(path, body)
    assert (a.status, unnamed(a.body)) == (want.status, unnamed(want.body)) and a.status == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_an_engines_own_events(sims, path):
    r, _, _, direct = sims
    body = {"model": MODEL, "input": "hello", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True}
    got = []
    for at in (direct, r):
        with at.client() as c:
            c.request("POST", path, body)
            got.append([unnamed(e.raw) for e in c.events()])
    assert got[0] == got[1] and len(got[0]) >= 3


def test_sdk(sims):
    r, _, _, direct = sims
    got = []
    for e in (r, direct):
        c = openai.OpenAI(base_url=f"http://127.0.0.1:{e.port}/v1", api_key="k", max_retries=0)
        got.append([c.embeddings.create(model=MODEL, input=["hello", "there"], encoding_format="float").model_dump(),
                    [unnamed(x.model_dump_json().encode()) for x in c.responses.create(model=MODEL, input="hello", stream=True)],
                    c.models.retrieve(MODEL).id])
    assert got[0] == got[1]


# --- audio: a form, whose field `model` is all the router looks at ------------------------------------------

SOUND = bytes(range(256)) * 40 + b'\r\n--other\r\nContent-Disposition: form-data; name="model"\r\n\r\nevil\r\n--b0undar\r\n'


def form(*fields, boundary="b0undary", head="form-data"):
    """[(name, value)], a value of bytes being a file."""
    out = b""
    for name, value in fields:
        lines = f'Content-Disposition: {head}; name="{name}"'
        if isinstance(value, bytes):
            lines += '; filename="a.wav"\r\nContent-Type: audio/wav'
        out += f"--{boundary}\r\n{lines}\r\n\r\n".encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


def typed(boundary="b0undary"):
    return [("Content-Type", f"multipart/form-data; boundary={boundary}")]


@pytest.mark.parametrize("path", AUDIO)
def test_audio_passes_byte_by_byte(desk, path):
    body = form(("file", SOUND), ("model", MODEL), ("language", "en"), ("temperature", "0"))
    c = desk.send(path, body, [*typed(), *PEER_HEADERS, ("X-Mine", "1")])
    ex = desk.taken()
    assert (ex.method, ex.path, ex.body) == ("POST", path, body) and ex["content-type"] == typed()[0][1] and ex["x-mine"] == "1"
    assert ex["x-data-parallel-rank"] is None and b"x-override" not in ex.raw_head.lower() and b"X-Listed" not in ex.raw_head
    ex.reply(200, b'{"text":"\\u0041"}', headers=JSON)
    a = c.read()
    assert (a.status, a.body) == (200, b'{"text":"\\u0041"}') and desk.line(a)["reason"] == "ok"


def test_audio_as_events(desk):
    c = desk.send(AUDIO[0], form(("model", MODEL), ("stream", "true"), ("file", SOUND)), typed())
    ex = desk.taken().stream_head()
    said = [b'data: {"object":"transcription.chunk","choices":[{"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"]
    ex.chunk(said[0])
    events = c.events()
    assert next(events).raw == said[0]
    ex.chunk(said[1]).write(b"0\r\n\r\n").end()
    assert [e.raw for e in events] == said[1:]


@pytest.mark.parametrize("how", FAILS)
def test_audio_fails(desk, how):
    does, status, code = FAILS[how]
    c = desk.send(AUDIO[1], form(("model", MODEL), ("file", SOUND)), typed())
    does(desk.taken())
    if how == "reset":
        serve_again(c, dict.fromkeys(desk.own, does))
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code)


TWO = {"by field": (form(("model", "b"), ("file", SOUND)), typed(), "b"),
       "behind the file": (form(("file", SOUND), ("model", "a")), typed(), "a"),
       "behind eight MiB": (form(("file", os.urandom(8 << 20)), ("model", "a")), typed(), "a"),
       "quoted boundary": (form(("model", "b"), boundary="a b:c"), typed('"a b:c"'), "b"),
       "other case": (form(("model", "b"), head="FORM-DATA").replace(b"Content-Disposition", b"content-disposition"), typed(), "b"),
       "two": (form(("model", "b"), ("model", "a")), typed(), 400),
       "two lines": (form(("model", "b")).replace(b"\r\n\r\n", b'\r\nContent-Disposition: form-data; name="x"\r\n\r\n', 1), typed(), 400),
       "not a file's": (form(("model", b"a"), ("model", "b")), typed(), "b"),
       "unknown": (form(("model", "c")), typed(), 404), "none": (form(("file", SOUND)), typed(), 404), "empty": (form(("model", "")), typed(), 404),
       "no boundary": (form(("model", "b")), [("Content-Type", "multipart/form-data")], 404),
       "other boundary": (form(("model", "b")), typed("else"), 404), "no type": (form(("model", "b")), [("Content-Type", "text/plain")], 404),
       "cut off": (form(("model", "b"))[:60], typed(), 404), "no body": (b"", typed(), 404),
       "too long": (form(("model", "b" * 300)), typed(), 400), "zero byte": (form(("model", "b\0")), typed(), 400)}


@pytest.fixture(scope="module")
def two(request):
    w = World()
    p, d, q, e = (w.script(models=[m]) for m in "aabb")
    r = w.router({**w.pool([p], [d]), "models": ["a"]}, {**w.pool([q], [e]), "models": ["b"], "single_engine_role": "decode"}, workers=1)
    yield from lasting(request, w, (r.wait_all_up(), {"a": p, "b": e}, [d, q]))


@pytest.mark.parametrize("how", TWO)
def test_audio_finds_its_pool(two, how):
    r, engines, others = two
    body, headers, want = TWO[how]
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(r.post, AUDIO[0], body, headers)
        if isinstance(want, str):
            ex = engines[want].expect()
            assert ex.body == body
            ex.reply(body={"by": want})
        a = got.result()
    assert a.status == (200 if isinstance(want, str) else want), a.body
    if want == 404:
        assert a.error["code"] == 404
    assert all(e.asked.empty() for e in (*engines.values(), *others))


def test_audio_without_a_model_where_there_is_one_pool(desk):
    for body, headers in ((form(("file", SOUND)), typed()), (b"not a form", [("Content-Type", "audio/wav")])):
        c = desk.send(AUDIO[0], body, headers)
        ex = desk.taken()
        assert ex.body == body
        ex.reply(422, b"the engine's word")
        assert c.read().body == b"the engine's word"


def test_a_form_elsewhere_is_no_json(desk):
    for path in ("/v1/embeddings", "/v1/chat/completions", "/v1/responses"):
        a = desk.router.post(path, form(("model", MODEL)), typed())
        assert (a.status, a.error["code"]) == (400, "bad_json")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK's, of translations
def test_audio_by_the_sdk(sims):
    """Its own boundary and order of fields."""
    r, _, _, direct = sims
    got = []
    for e in (r, direct):
        c = openai.OpenAI(base_url=f"http://127.0.0.1:{e.port}/v1", api_key="k", max_retries=0)
        got.append([c.audio.transcriptions.create(model=MODEL, file=("a.wav", SOUND)).text.split()[0],
                    c.audio.translations.create(model=MODEL, file=("a.wav", SOUND)).text.split()[0]])
        with pytest.raises(openai.NotFoundError):
            openai.OpenAI(base_url=r.base_url, api_key="k", max_retries=0).audio.transcriptions.create(model="nobody", file=("a.wav", SOUND))
    assert got[0] == got[1] == AUDIO


# --- models ---------------------------------------------------------------------------------------------


def test_one_model_by_name(world):
    """The router's own answer, of all pools; names with a slash, raw or escaped, are names."""
    names = ["plain", "org/model-7b", "日本 語"]
    engines = [(world.engine("prefill", model=m), world.engine("decode", model=m)) for m in names]
    r = world.router(*({**world.pool([p], [d]), "models": [m], "name": f"pool-{i}"} for i, (m, (p, d)) in enumerate(zip(names, engines))))
    r.wait_all_up()
    listed = {m["id"]: m for m in r.get("/v1/models").json()["data"]}
    assert set(listed) == set(names)
    for path, name in (("plain", "plain"), ("org/model-7b", "org/model-7b"), ("org%2fmodel%2D7b", "org/model-7b"),
                       (quote("日本 語"), "日本 語")):
        a = r.get("/v1/models/" + path)
        assert (a.status, a.json()) == (200, listed[name]), path
        with r.client() as c:
            c.request("HEAD", "/v1/models/" + path)
            assert c.read(head_only=True).status == 200
    for path in ("", "nobody", "plain/", "org", "org%2", "%00", "plain%00", "../models/plain", "x" * 3000):
        assert r.get("/v1/models/" + path).status in (400, 404), path
    for method in ("POST", "PUT", "DELETE"):
        with r.client() as c:
            c.request(method, "/v1/models/plain", b"{}")
            assert c.read().status == 405


@pytest.mark.parametrize("params", ['{"extra_args":{"kv_transfer_params":{"remote_host":"x"}}}', '{"a":1,"extra_args":{}}',
                                    r'{"extra\u005fargs":{"kv_transfer_params":{}}}'])
def test_sampling_params_choose_no_peer(desk, params):
    """vLLM reads KV parameters there, which top-level members never bring."""
    a = desk.send("/inference/v1/generate", b'{"token_ids":[1],"sampling_params":%s}' % params.encode()).read()
    assert (a.status, a.error["code"]) == (400, "not_supported") and "extra_args" in a.error["message"]
    assert all(e.asked.empty() for e in (*desk.own, *desk.others))


@pytest.mark.parametrize("args", ['{"kv_transfer_params":"x"}', '{"a":1,"ec_transfer_params":[1]}', r'{"kv\u005ftransfer_params":"x"}'])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_vllm_xargs_have_no_parameters_of_a_transfer(desk, path, args):
    """vLLM looks for them there; it allows texts, of which its scheduler dies: one request would end all engines that are tried."""
    a = desk.send(path, b'{"model":"sim-model","prompt":"x","input":"x","messages":[],"max_tokens":1,"vllm_xargs":%s}' % args.encode()).read()
    message = json.loads(a.body)["error"]["message"]
    assert a.status == 400 and "vllm_xargs" in message
    assert all(e.asked.empty() for e in (*desk.own, *desk.others))


def test_other_vllm_xargs_pass(desk):
    c = desk.send("/v1/messages", b'{"messages":[],"vllm_xargs":{"a":"kv_transfer_params","b":1}}')
    ex = desk.taken()
    assert ex.json()["vllm_xargs"] == {"a": "kv_transfer_params", "b": 1}
    ex.reply(body=b"{}")
    assert c.read().status == 200


# --- never reachable ----------------------------------------------------------------------------------

# protocols.md 1.1: what operates an engine, develops it or looks into it; vLLM's, then SGLang's
HIDDEN = ["/server_info", "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/reset_mm_cache", "/collective_rpc", "/abort_requests",
          "/pause", "/resume", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load", "/ping", "/invocations", "/tokenizer_info",
          "/kv_event_sources", "/scale_elastic_ep", "/docs", "/openapi.json",
          "/flush_cache", "/abort_request", "/pd_role_switch", "/get_server_info", "/model_info", "/get_model_info", "/health_generate",
          "/v1/loads", "/get_load", "/update_weights_from_disk", "/init_weights_update_group", "/update_weights_from_tensor",
          "/release_memory_occupation", "/resume_memory_occupation", "/start_profile", "/stop_profile", "/set_internal_state",
          "/configure_logging", "/open_session", "/close_session", "/query", "/route"]
TWISTED = ["/v1/../flush_cache", "/v1/embeddings/../../sleep", "//flush_cache", "/flush_cache/", "/%66lush_cache", "/FLUSH_CACHE",
           "/v1/embeddings/", "/v1//embeddings", "/v1/embeddings%2f..%2fsleep", "/v1/embeddings;/sleep", "/v1/modelsx", "/v1/embeddingsx",
           "/v1/embedding"]


@pytest.mark.parametrize("path", HIDDEN + TWISTED)
def test_admin_paths_do_not_exist(desk, path):
    """Whatever the method; with a model in the body or without; nothing of it reaches an engine."""
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        body = ODD if method in ("POST", "PUT", "PATCH", "DELETE") else None
        with desk.router.client() as c:
            c.request(method, path, body)
            a = c.read(head_only=method == "HEAD")
        assert a.status in ((404, 501) if method == "PATCH" else (404,)), (method, a.status)
        if method != "HEAD":
            assert a.error["code"] == "not_found" or a.status == 501
    assert all(e.asked.empty() and path not in e.probed for e in (*desk.own, *desk.others)
               if path not in ("/server_info", "/get_server_info"))


def test_admin_paths_of_an_engine_that_has_them(sims):
    """`sims` looks at the end whether any of it has arrived."""
    r, p, d, _ = sims
    for path in HIDDEN + TWISTED:
        for method in ("GET", "POST", "DELETE"):
            with r.client() as c:
                c.request(method, path, None if method == "GET" else ODD)
                assert c.read().status == 404, (method, path)
    with d.client() as c:
        assert c.post("/sleep", {}).status == 200, "it has them"
    assert d.metric("pdsim:controlled_total") == 1
    d.tell("/sim/reset")


def test_absolute_and_odd_targets_do_not_help(desk):
    """A target that names a host, or none, is no way round."""
    host = desk.own[0].url
    for target in (f"{host}/sleep", "*", f"{host}/v1/../sleep", "sleep"):
        with desk.router.client() as c:
            c.request("POST", target, ODD)
            assert c.read().status in (400, 404)
    assert all(e.asked.empty() for e in (*desk.own, *desk.others))


def test_no_tunnel(desk):
    with desk.router.client() as c:
        c.send(b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n" % desk.own[0].url[7:].encode())
        assert c.read().status in (400, 404, 405, 501)
    with desk.router.client() as c:
        c.send(b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert c.read().status == 404
