"""One router before pools of all seven connectors at once: each request finds its own pool's hand-shake, beside the others."""
import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import expect
from procs import Load, free_port
from raw import text_of
from stages import Stage, lasting

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# by connector, which is also the model's name: what its engines are started with, what its pool says
ENGINES = {
    "nixl": ({}, {}),
    "orchestrated": ({"handshake": "disagg_prefill_resp"}, {"handoff": "disagg_prefill_resp"}),
    "lmcache": ({"handshake": "lmcache", "kv_delay": 2}, {}),
    "sglang": ({"handshake": "sglang"}, {"engine": "sglang"}),
    "shared_storage": ({"handshake": "shared_storage"}, {"cache_hit_threshold": 0.5}),
    "p2p_nccl": ({"handshake": "p2p_nccl"}, {}),
    "mooncake": ({"handshake": "mooncake", "fetch_delay": 2}, {}),
}
NAMES = list(ENGINES)


class Seven(Stage):
    """An engine of each role for each connector; a decode engine answers 500 to what was not handed off to it."""

    def __init__(self):
        super().__init__()
        w = self.world
        self.notices = free_port()
        storage = w.dir / "storage"
        storage.mkdir()
        self.p, self.d, self.pools = {}, {}, {}
        for name, (options, pool) in ENGINES.items():
            options = {"model": name, "prefill_delay": 1, **options, **({"storage": storage} if name == "shared_storage" else {})}
            of_p = {"lmcache": {"proxy": f"127.0.0.1:{self.notices}"}, "mooncake": {"bootstrap_port": 0}}.get(name, {})
            of_d = {"lmcache": {"receiver_ports": 0, "skip_last": 1}}.get(name, {})
            p = self.p[name] = w.engine("prefill", **options, **of_p)
            d = self.d[name] = w.engine("decode", refuse_local=True, **options, **of_d)
            self.pools[name] = {"name": name, "models": [name], "connector": name, **pool,
                                "prefill": [self.entry(name, p)], "decode": [self.entry(name, d)]}
        self.router = w.router(*self.pools.values(), workers=2, lmcache={"listen": f"tcp://127.0.0.1:{self.notices}"}).wait_all_up()

    @staticmethod
    def entry(name, e):
        more = {}
        if name == "p2p_nccl":
            more = {"kv_addr": f":{e.side}"}
        elif name == "mooncake" and e.role == "prefill":
            more = {"bootstrap_port": e.bootstrap}
        elif name == "lmcache" and e.role == "decode":
            more = {"receiver_init_port": e.ports["init"], "receiver_alloc_port": e.ports["alloc"]}
        return {"url": e.url, **more}

    def ask(self, name, prompt, chat=False, stream=False, n=6):
        """The text of an answer."""
        body = {"model": name, "max_tokens": n, "stream": stream}
        body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        with self.router.client() as c:
            c.request("POST", CHAT if chat else COMPLETIONS, body)
            if stream:
                return text_of(list(c.events()))
            a = c.read()
        assert a.status == 200, a.body
        choice = a.json()["choices"][0]
        return choice["message"]["content"] if chat else choice["text"]

    def right(self, name, prompt, chat=False, stream=False, n=6):
        want = expect.text_chat({"messages": [{"role": "user", "content": prompt}]}, n) if chat else expect.text(prompt, n)
        got = self.ask(name, prompt, chat, stream, n)
        assert got == want, (name, prompt, chat, stream, got, want)


@pytest.fixture(scope="module")
def seven_of(request):
    yield from lasting(request, Seven())


@pytest.fixture
def seven(seven_of):
    yield seven_of
    seven_of.at_rest()
    seven_of.router.look_over()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("name", NAMES)
def test_each_alone(seven, name, chat, stream):
    before = {n: len(e.requests()) for n, e in seven.p.items()}
    seven.right(name, f"alone {name} {chat} {stream}", chat, stream)
    assert {n: len(e.requests()) - before[n] for n, e in seven.p.items()} == {n: n == name for n in NAMES}


def test_all_at_once(seven):
    """Streams and whole answers, of both shapes, of every pool, interleaved in two workers."""
    before = {n: (len(seven.p[n].requests()), len(seven.d[n].requests())) for n in NAMES}
    jobs = [(name, f"{name} at once {i} " * (1 + i % 3), i % 2 == 1, i // 2 % 2 == 1, 3 + i % 7) for i in range(8) for name in NAMES]
    with ThreadPoolExecutor(14) as pool:
        list(pool.map(lambda j: seven.right(*j), jobs))
    for name in NAMES:
        p, d = seven.p[name].requests()[before[name][0]:], seven.d[name].requests()[before[name][1]:]
        tries = 8 if name == "shared_storage" else 0
        assert (len(p), len(d)) == (8, 8 + tries), name
        assert seven.d[name].counter("local_prefills") == 0


def test_nothing_of_one_hand_shake_in_another(seven):
    """What each engine is sent beyond the client's own members is its connector's."""
    own = {"nixl": ({"kv_transfer_params"}, {"kv_transfer_params"}), "orchestrated": (set(), {"disagg_prefill_resp"}),
           "sglang": ({"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"},) * 2,
           "shared_storage": ({"cache_hit_threshold"},) * 2, "p2p_nccl": (set(), set()),
           "mooncake": ({"kv_transfer_params"},) * 2, "lmcache": ({"kv_transfer_params"}, set())}
    client = {"model", "prompt", "max_tokens", "stream", "ignore_eos"}
    for name in NAMES:
        seven.right(name, f"what of {name}")
        for engine, members in zip((seven.p[name], seven.d[name]), own[name]):
            assert set(engine.last().json()) - client == members, (name, engine.role)
            assert engine.last()["x-request-id"].startswith("___prefill_addr_") == (name == "p2p_nccl")


def test_counted_by_pool(seven):
    before = {n: seven.router.metric("requests_total", pool=n) or 0 for n in NAMES}
    for i, name in enumerate(NAMES):
        for k in range(i + 1):
            seven.right(name, f"count {name} {k}", n=2)
    assert {n: seven.router.metric("requests_total", pool=n) - before[n] for n in NAMES} == {n: i + 1 for i, n in enumerate(NAMES)}


def test_the_sdk_lists_and_uses_all(seven):
    c = openai.OpenAI(base_url=seven.router.base_url, api_key="k", max_retries=0)
    assert sorted(m.id for m in c.models.list()) == sorted(NAMES)
    for name in NAMES:
        got = c.chat.completions.create(model=name, messages=[{"role": "user", "content": "hi"}], max_tokens=4, stream=True)
        text = "".join(x.choices[0].delta.content or "" for x in got if x.choices)
        assert text == expect.text_chat({"messages": [{"role": "user", "content": "hi"}]}, 4), name
        assert c.models.retrieve(name).id == name


@pytest.mark.parametrize("name", NAMES)
def test_one_that_fails_is_alone(seven, name):
    """Its engines fail every request, the other six do not notice."""
    others = [n for n in NAMES if n != name]
    for e in (seven.p[name], seven.d[name]):
        e.fault("fail", count=-1)
    try:
        with ThreadPoolExecutor(8) as pool:
            good = pool.map(lambda n: seven.right(n, f"beside {name} {n}", n=4), others)
            bad = pool.map(lambda i: seven.router.post(COMPLETIONS, {"model": name, "prompt": f"x{i}", "max_tokens": 3}).status, range(3))
            list(good)
            assert set(bad) == {500}
    finally:
        for e in (seven.p[name], seven.d[name]):
            e.fault("none")
    seven.right(name, f"well again {name}")


def test_a_pool_leaves_and_comes_back_under_load(seven):
    """Reloads beside running requests: those of the others never fail, its own end as they began."""
    def one(i):
        seven.right(NAMES[i % 6], f"load {i % 6} {next(count)}", stream=i % 2 == 1, n=3)
    count = itertools.count()
    load = Load(6, one)
    try:
        for _ in range(2):
            seven.router.reload(pools=[seven.pools[n] for n in NAMES[:6]])
            a = seven.router.post(COMPLETIONS, {"model": "mooncake", "prompt": "x"})
            assert (a.status, a.error["code"]) == (404, 404)
            seven.router.reload(pools=list(seven.pools.values()))
            seven.router.wait_all_up()
            seven.right("mooncake", "back again")
    finally:
        load.stop()
    assert not load.bad, load.bad[:3]
    assert load.done > 20


def test_an_answer_for_each_of_many(seven):
    """Sixty streams open at the same time, read only when all have begun."""
    made = []
    for i in range(56):
        name = NAMES[i % 7]
        c = seven.router.client().request("POST", COMPLETIONS, {"model": name, "prompt": f"open {i}", "max_tokens": 20, "stream": True})
        made.append((f"open {i}", c))
    texts = Counter(text_of(list(c.events())) == expect.text(prompt, 20) for prompt, c in made)
    assert texts == {True: 56}
    for _, c in made:
        c.close()
