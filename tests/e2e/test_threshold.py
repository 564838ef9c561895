"""routing_threshold and X-PD-Route: which prompts go straight to a decode engine, what it is sent, how that fails."""
import json
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

import expect
from legs import DECODE_FAILS, code_of
from procs import BIN, MODEL, SLOW, World, free_port, silence, wait
from raw import Closed, text_of
from stages import BaseFleet, lasting

URL, CHAT = "/v1/completions", "/v1/chat/completions"
AT = 10  # the threshold of these tests: 40 characters, or 10 of a list


class Fleet(BaseFleet):
    """Two engines of each role; prompts below AT go direct, unless a client says otherwise."""

    def __init__(self, **pool):
        super().__init__()
        self.router, self.p, self.d = self.world.pd(2, 2, pool={
            "policy": "round_robin", "routing_threshold": AT, **pool}, workers=1, limits={"max_fanout": 16})
        self.router.wait_all_up()

    def asked(self):
        """Requests of the prefill engines, of the decode engines, so far."""
        return tuple(sum(len(e.requests()) for e in role) for role in (self.p, self.d))

    def ask(self, body, path=URL, headers=()):
        """The answer, and whether it came from a decode engine alone, whose body is returned too."""
        before = [{r["x-request-id"] for e in role for r in e.requests()} for role in (self.p, self.d)]
        a = self.router.post(path, body, headers)
        new = [[r for e in role for r in e.requests() if r["x-request-id"] not in was]
               for role, was in zip((self.p, self.d), before)]
        return a, not new[0], new[1]


@pytest.fixture(scope="module")
def fleet_of(request):
    yield from lasting(request, Fleet())


@pytest.fixture(scope="module")
def open_fleet_of(request):
    yield from lasting(request, Fleet(allow_route_header=True))


@pytest.fixture
def fleet(fleet_of):
    yield fleet_of
    fleet_of.at_rest()


@pytest.fixture
def open_fleet(open_fleet_of):
    yield open_fleet_of
    open_fleet_of.at_rest()


def chat(*contents):
    return {"messages": [{"role": "user", "content": c} for c in contents]}


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}
# what is asked, and whether that is below
PROMPTS = {
    "one character": ({"prompt": "x"}, True),
    "three below": ({"prompt": "x" * 37}, True),
    "one below": ({"prompt": "x" * 39}, True),
    "at": ({"prompt": "x" * 40}, False),
    "above": ({"prompt": "x" * 41}, False),
    "far above": ({"prompt": "x" * 4000}, False),
    "characters, not bytes: below": ({"prompt": "日" * 39}, True),
    "characters, not bytes: at": ({"prompt": "日" * 40}, False),
    "beyond the BMP: below": ({"prompt": "🙂" * 39}, True),
    "beyond the BMP: at": ({"prompt": "🙂" * 40}, False),
    "escapes: below": ({"prompt": '"\\\n' * 13}, True),
    "escapes: at": ({"prompt": '"\\\n\t' * 10}, False),
    "list of strings, below": ({"prompt": ["x" * 400] * 9}, True),
    "list of strings, at": ({"prompt": [f"x{i}" for i in range(10)]}, False),
    "token ids, below": ({"prompt": list(range(100, 109))}, True),
    "token ids, at": ({"prompt": list(range(100, 110))}, False),
    "lists of token ids, below": ({"prompt": [list(range(50)), list(range(60))]}, True),
    "lists of token ids, at": ({"prompt": [[i, i + 1] for i in range(10)]}, False),
}
CHATS = {
    "below": (chat("x" * 39), True),
    "at": (chat("x" * 40), False),
    "several messages, below": (chat("x" * 20, "y" * 19), True),
    "several messages, at": (chat("x" * 20, "y" * 20), False),
    "text parts, below": (chat(parts("x" * 20, "y" * 19)), True),
    "text parts, at": (chat(parts("x" * 20, "y" * 20)), False),
    "a picture does not count": (chat([*parts("x" * 39), PICTURE]), True),
    "a string and parts": (chat("x" * 20, [PICTURE, *parts("y" * 20)]), False),
    "a role does not count": ({"messages": [{"role": "system", "content": "x", "name": "y" * 60}, {"role": "user", "content": "z" * 38}]}, True),
    "tools do not count": ({**chat("x"), "tools": [{"type": "function", "function": {"name": "f", "description": "d" * 90}}]}, True),
}


@pytest.mark.parametrize("path, name", [(URL, n) for n in PROMPTS] + [(CHAT, n) for n in CHATS])
def test_at_above_and_below(fleet, path, name):
    """Below the decode engine has the client's own bytes and nobody else is asked; else both legs run."""
    what, below = (PROMPTS if path == URL else CHATS)[name]
    body = json.dumps({"model": MODEL, "max_tokens": 3, "unknown": 9223372036854775809, **what}).encode()
    direct, short = fleet.router.metric("direct_total"), fleet.router.metric("direct_short_total")
    a, alone, sent = fleet.ask(body, path)
    assert a.status == 200, a.body
    assert alone == below
    assert fleet.router.metric("direct_total") - direct == fleet.router.metric("direct_short_total") - short == below
    if below:
        assert [r.body for r in sent] == [body] and sent[0].path == path
        assert fleet.router.end_of(a["x-request-id"])["direct"] == "threshold"
    else:
        assert all("kv_transfer_params" in r.json() for r in sent)


def test_both_decode_engines_serve_them(fleet):
    before = [len(e.requests()) for e in fleet.d]
    for i in range(6):
        assert fleet.router.complete(f"short {i}").status == 200
    assert [len(e.requests()) - b for e, b in zip(fleet.d, before)] == [3, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_direct_answers_are_whole(fleet, stream):
    """A short prompt, streams and samples included: the engine's own answer."""
    if stream:
        events = list(fleet.router.open_stream("short", n=6, stream_options={"include_usage": True}).events())
        assert text_of(events) == expect.text("short", 6) and events[-1].data == "[DONE]"
        assert events[-2].json()["usage"]["completion_tokens"] == 6
    else:
        a, alone, _ = fleet.ask({"model": MODEL, "prompt": "short", "max_tokens": 6, "n": 3})
        assert alone and [c["text"] for c in a.json()["choices"]] == [expect.text("short", 6, k) for k in range(3)]


def test_members_that_choose_peers_are_cut_on_the_direct_way(fleet):
    a, alone, (sent,) = fleet.ask({"model": MODEL, "prompt": "x", "max_tokens": 1, "kv_transfer_params": {"remote_host": "evil"}, "rid": "evil"},
                                  headers=[("X-Data-Parallel-Rank", "3"), ("X-Override-Rid", "evil")])
    assert a.status == 200 and alone
    assert b"evil" not in sent.body and "evil" not in str(sent.headers) and sent["x-data-parallel-rank"] is None


def test_zero_is_always_two_legs(world):
    r, (p,), (d,) = world.pd(pool={"routing_threshold": 0})
    assert r.complete("x").status == 200 and len(p.requests()) == 1


def test_each_pool_has_its_own(world):
    engines = [(world.engine("prefill", model=m), world.engine("decode", model=m)) for m in ("a", "b")]
    r = world.router(*({**world.pool([p], [d]), "models": [m], "routing_threshold": t}
                       for m, (p, d), t in zip("ab", engines, (5, 50))), workers=1)
    r.wait_all_up()
    for m in "ab":
        assert r.post(URL, {"model": m, "prompt": "x" * 40, "max_tokens": 1}).status == 200
    assert [len(p.requests()) for p, _ in engines] == [1, 0] and [len(d.requests()) for _, d in engines] == [1, 1]


def test_a_reload_changes_it(world):
    r, (p,), (d,) = world.pd(pool={"routing_threshold": 100}, workers=1)
    assert r.complete("x" * 40).status == 200 and p.requests() == []
    r.reload(pools=[world.pool([p], [d], routing_threshold=10)])
    assert r.complete("y" * 40).status == 200 and len(p.requests()) == 1


@pytest.mark.parametrize("key", ["routing_threshold", "allow_route_header"])
def test_not_with_sglang(tmp_path, key):
    """Its decode engines cannot do without a prefill engine: said when the configuration is read."""
    config = {"listen": [f"127.0.0.1:{free_port()}"], "pools": [{
        "models": [MODEL], "connector": "sglang", key: 100 if key == "routing_threshold" else True,
        "prefill": [{"url": "http://127.0.0.1:1"}], "decode": [{"url": "http://127.0.0.1:2"}]}]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run([BIN / "pdrouter", "-c", tmp_path / "c.yaml"], capture_output=True, text=True, timeout=20 * SLOW, check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and key in said and "sglang" in said


# --- what the direct way does when something fails ----------------------------------------------------


def test_needs_no_prefill_engine(world):
    r, (p,), (d,) = world.pd(pool={"routing_threshold": AT})
    p.stop()
    r.wait_metric("endpoint_up", 0, role="prefill")
    assert r.complete("short").status == 200
    a = r.complete("long" * 20)
    assert (a.status, a.error["code"]) == (503, "no_prefill_endpoint")


@pytest.fixture(scope="module")
def desk_of(request):
    w = World()
    yield from lasting(request, w, w.scripts(pool={"routing_threshold": AT, "timeouts": silence(f"{400 * SLOW}ms")}, workers=1))


@pytest.fixture
def desk(desk_of):
    r, (p,), (d,) = desk_of
    yield r, p, d
    assert p.asked.empty() and d.asked.empty()
    d.finish()
    wait("nothing in flight", lambda: r.metric("endpoint_in_flight") == 0)


@pytest.mark.parametrize("how", DECODE_FAILS)
@pytest.mark.parametrize("stream", [False, True])
def test_failure_of_decode(desk, how, stream):
    r, _, d = desk
    does, status, code = DECODE_FAILS[how]
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "stream": stream})
    does(d.expect())
    while how == "reset" and c.silent(0.05) and not d.asked.empty():
        does(d.expect())  # of a kept connection: TCP had acknowledged nothing, so it was sent again
    a = c.read()
    assert (a.status, a.error["code"]) == (status, code_of(code, stream))


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_decode_refuses(desk, status):
    r, _, d = desk
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    d.expect().reply(status, b'{"error" : "no"}')
    a = c.read()
    assert (a.status, a.body) == (status, b'{"error" : "no"}')


def test_decode_breaks_off(desk):
    r, _, d = desk
    c = r.open_stream("x")
    d.expect().stream_head().event("a").reset()
    events = list(c.events())
    assert events[-1].json()["error"]["code"] == "decode_broken" and text_of(events[:-1]) == "a"
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    d.expect().write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{").reset()
    try:
        assert c.read().status == 502
    except Closed:
        pass


@pytest.mark.parametrize("streams", [False, True])
def test_client_gone(desk, streams):
    r, _, d = desk
    c = r.open_stream("x", [("X-Request-Id", f"leaves-{streams}")])
    ex = d.expect()
    if streams:
        ex.stream_head().event("a")
        next(c.events())
    c.close()
    assert ex.gone()
    ex.close()
    assert r.end_of(f"leaves-{streams}")["reason"] == "client_gone"


# --- auto -----------------------------------------------------------------------------------------------


class Learner:
    """Two engines of each role that take so many ms for a prompt they compute, and a router that learns."""

    def __init__(self, world, p_ms, d_ms):
        p = [world.engine("prefill", prefill_delay=p_ms) for _ in range(2)]
        d = [world.engine("decode", prefill_delay=d_ms) for _ in range(2)]
        self.router = world.router(world.pool(p, d, routing_threshold="auto"), workers=1).wait_all_up()
        self.dice = random.Random(7)
        self.direct = 0

    def one(self, size):
        with self.router.open_stream("x" * size, n=1) as c:
            assert text_of(list(c.events())) == expect.text("x" * size, 1)

    def ask(self, n):
        """The share of n streams of all lengths that went direct."""
        before = self.router.metric("direct_total")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self.one, [self.dice.choice((40, 200, 1000, 4000, 12000)) for _ in range(n)]))
        return (self.router.metric("direct_total") - before) / n


@pytest.mark.timing
def test_auto_learns_that_direct_is_quicker(world):
    """Prefill takes 20 ms on its way, 2 ms on the decode engine: in the end all go direct, whole answers too."""
    a = Learner(world, 20, 2)
    assert a.ask(100) < 0.5, "it begins with two legs"
    for _ in range(40):
        if a.ask(100) >= 0.95:
            break
    assert a.ask(100) >= 0.95
    before = a.router.metric("direct_total")
    for size in (40, 4000, 12000):
        assert a.router.complete("x" * size).status == 200
    assert a.router.metric("direct_total") - before == 3


@pytest.mark.timing
def test_auto_leaves_what_is_quicker(world):
    """2 ms on the prefill engine, 40 ms on the decode engine: hardly anything goes direct, from the start."""
    a = Learner(world, 2, 40)
    assert a.ask(100) <= 0.25
    assert a.ask(900) <= 0.02
    before = a.router.metric("direct_total")
    for size in (40, 4000, 12000):
        assert a.router.complete("x" * size).status == 200
    assert a.router.metric("direct_total") == before


# --- X-PD-Route ---------------------------------------------------------------------------------------

LONG, SHORT = "a long prompt, well above the threshold of ten tokens", "short"


@pytest.mark.parametrize("word, prompt, alone", [
    ("direct", LONG, True), ("direct", SHORT, True), ("disaggregated", LONG, False), ("disaggregated", SHORT, False),
    ("DIRECT", LONG, True), ("Disaggregated", SHORT, False)])
@pytest.mark.parametrize("path", [URL, CHAT])
def test_route_header(open_fleet, word, prompt, alone, path):
    """What the client says holds against the threshold, and ends with us."""
    what = {"prompt": prompt} if path == URL else chat(prompt)
    a, was_alone, sent = open_fleet.ask({"model": MODEL, "max_tokens": 2, **what}, path, [("X-PD-Route", word)])
    assert a.status == 200 and was_alone == alone
    assert all(r["x-pd-route"] is None for e in (*open_fleet.p, *open_fleet.d) for r in e.requests()[-1:])
    if alone:
        assert open_fleet.router.end_of(a["x-request-id"])["direct"] == "client"


@pytest.mark.parametrize("word", ["", "directly", "direct, disaggregated", "prefill", "1"])
def test_route_header_that_says_nothing_known(open_fleet, word):
    before = open_fleet.asked()
    for path, what in ((URL, {"prompt": LONG}), (CHAT, chat(SHORT))):
        a = open_fleet.router.post(path, {"model": MODEL, **what}, [("X-PD-Route", word)])
        assert a.status == 400 and "X-PD-Route" in a.error["message"] and a.error["type"] == "invalid_request_error"
    assert open_fleet.asked() == before


def test_samples_go_direct_whatever_is_said(open_fleet):
    """One handoff describes one sample (NIXL): a route override cannot change that."""
    a, alone, _ = open_fleet.ask({"model": MODEL, "prompt": LONG, "n": 2, "max_tokens": 2}, headers=[("X-PD-Route", "disaggregated")])
    assert a.status == 200 and alone


@pytest.mark.parametrize("word", ["direct", "disaggregated", "nonsense"])
def test_route_header_that_is_not_allowed(fleet, word):
    """Ignored, not an error, not passed on."""
    for prompt, alone in ((LONG, False), (SHORT, True)):
        a, was_alone, sent = fleet.ask({"model": MODEL, "prompt": prompt, "max_tokens": 2}, headers=[("X-PD-Route", word)])
        assert a.status == 200 and was_alone == alone and sent[0]["x-pd-route"] is None


def test_many_at_once(open_fleet):
    """Both ways beside each other: every prompt its own answer."""
    def one(i):
        prompt = f"{i} " + (LONG if i % 2 else SHORT)
        headers = [("X-PD-Route", ("direct", "disaggregated")[i // 2 % 2])] if i % 3 else []
        return open_fleet.router.complete(prompt, headers, max_tokens=5).json()["choices"][0]["text"] == expect.text(prompt, 5)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))
