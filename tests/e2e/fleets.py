"""Fleets of every hand-shake, engines that fail in them, and what must hold whichever of them has failed: the client's
answer is an undisturbed one's, no handoff is used twice, nothing stays held."""
from types import SimpleNamespace

import expect
from legs import FRESH, REFUSED, RESET, unaccepting
from members import values
from procs import MODEL, SLOW, free_port, metric_sum, wait
from raw import text_of
from stages import BaseFleet
from test_lmcache import receiver
from test_mooncake import engines as mooncakes
from test_mooncake import entry as bootstrapped
from test_p2p_nccl import entry as addressed

URL = "/v1/completions"
FAR = {"health_interval": "60s"}  # nobody notices but the request
LATE = f"{500 * SLOW}ms"  # more than a loaded machine stands still
# of each: the pool's keys, both roles' engines
KINDS = {
    "nixl": ({}, {}),
    "push": ({"transfer_mode": "push"}, {"transfer": "push", "no_id_suffix": True}),
    "orchestrated": ({"connector": "orchestrated", "handoff": "kv_transfer_params"}, {}),
    "answer": ({"connector": "orchestrated", "handoff": "disagg_prefill_resp"}, {"handoff": "disagg_prefill_resp"}),
    "lmcache": ({"connector": "lmcache"}, {"handshake": "lmcache"}),
    "lmcache decode": ({"connector": "lmcache", "first_token": "decode"}, {"handshake": "lmcache"}),
    "sglang": ({"connector": "sglang"}, {"handshake": "sglang"}),
    "storage": ({"connector": "shared_storage"}, {"handshake": "shared_storage"}),
    "decode first": ({"connector": "shared_storage", "cache_hit_threshold": 0.8}, {"handshake": "shared_storage"}),
    "p2p_nccl": ({"connector": "p2p_nccl"}, {"handshake": "p2p_nccl"}),
    "mooncake": ({"connector": "mooncake"}, {"handshake": "mooncake"}),
    "mooncake old": ({"connector": "mooncake", "handoff": "kv_transfer_params"}, {"handshake": "mooncake_old"}),
}
AT_ONCE = {"push", "sglang", "mooncake"}  # both legs: a decode engine is asked again with a prefill engine
PUSHED = {"lmcache", "lmcache decode", "p2p_nccl"}  # what was written into a decode engine that failed is its own to drop
FREED = {"nixl", "push", "orchestrated", "answer"}  # by a decode engine's refusal; of other LEASED what a decode engine was told of waits for its time
LEASED = {"nixl", "push", "orchestrated", "answer", "mooncake", "mooncake old"}  # prefill engines hold what decode engines fetch
TOLD = {"kv_transfer_params", "disagg_prefill_resp"}  # members that hand off

FULL = {"kind": "status", "status": 429, "body": '{"error":{"message":"busy","type":"rate","param":null,"code":429}}'}
BUSY = {**FULL, "headers": {"Retry-After": "7"}}
# before anything of an answer: pdsim's faults
COMMON = {
    "reset": RESET, "half head": {"kind": "half_head"}, "garbage": {"kind": "garbage"}, "500": {"kind": "fail"}, "503": {"kind": "status"},
    "429": FULL, "timeout": {"kind": "no_answer"},
}
FAILS_OF_P = {**COMMON, "empty": {"kind": "empty200"}, "no json": {"kind": "status", "status": 200, "body": "oops"}}
FAILS_OF_D = {**COMMON, "error event": {"kind": "error_event", "after_events": 0}, "cut": {"kind": "truncate"}}
CLIENTS_FAULT = REFUSED


def engines(world, kind, role, n, **options):
    of_kind = dict(KINDS[kind][1])
    if kind.startswith("mooncake"):
        return mooncakes(world, kind == "mooncake old", role, n, **options)
    if kind.startswith("lmcache"):
        if role == "prefill":
            of_kind["tp"] = 2
        else:
            of_kind.update(receiver_ports="0,0", skip_last=int(kind == "lmcache"))
    if kind in ("storage", "decode first"):
        folder = world.dir / "storage"
        folder.mkdir(exist_ok=True)
        of_kind["storage"] = folder
    return [world.engine(role, **{**of_kind, **options}) for _ in range(n)]


def build(world, kind, np=2, nd=2, pool=None, prefill=None, decode=None, **keys):
    """(router, [p...], [d...]): engines of pdsim, asked in turn by one worker; as many tries as needed, no fallback."""
    prefill = dict(prefill or {})
    if kind.startswith("lmcache"):
        port = free_port()
        prefill["proxy"] = f"127.0.0.1:{port}"
        keys = {"lmcache": {"listen": f"tcp://127.0.0.1:{port}"}, **keys}
    p, d = engines(world, kind, "prefill", np, **prefill), engines(world, kind, "decode", nd, **(decode or {}))
    entries = [p, d]
    if kind.startswith("lmcache"):
        entries = [p, map(receiver, d)]
    elif kind == "p2p_nccl":
        entries = [map(addressed, p), map(addressed, d)]
    elif kind.startswith("mooncake"):
        entries = [map(bootstrapped, p), d]
    more = {"policy": "round_robin", "retries": 2, "retry_budget": 100, "fallback": "none", **KINDS[kind][0], **(pool or {})}
    if kind.startswith("lmcache"):
        more.setdefault("kv_ready_timeout", LATE)
    r = world.router(world.pool(*entries, **more), **{"workers": 1, **keys})
    return r.wait_all_up(), p, d


class Fleet(BaseFleet):
    """Two engines of each role, behind a router that tries again.  Those of the role `forgetful` free by themselves, after
    a second, what they hold."""

    def __init__(self, kind, forgetful=None, **how):
        super().__init__()
        self.kind = kind
        if forgetful:
            how = {forgetful: {"kv_timeout": 1}, **how}
        self.router, self.p, self.d = build(self.world, kind, **how)
        for e in self.all:
            e.refuses_on_purpose = e.role == forgetful
        self.counts = {}

    @property
    def all(self):
        return [*self.p, *self.d]

    def count(self, name, **labels):
        return self.router.metric(name, **labels) or 0

    def mark(self):
        super().mark()
        names = [f"pdrouter_{name}_total" for name in ("attempts_failed", "rescued", "direct", "requests")]
        rows = self.router.metrics(*names)
        self.counts = {name.removeprefix("pdrouter_"): metric_sum(rows, name, {}) or 0 for name in names}
        self.spent = sum(e.counter("faults") for e in self.all)

    def since(self, name):
        return self.count(name) - self.counts[name]

    def faults(self):
        return sum(e.counter("faults") for e in self.all) - self.spent

    def settled(self):
        """Nothing is held, open, armed or in flight; no handoff was used twice."""
        self.at_rest()
        for e in self.all:
            page = e.at_rest(5)
            assert metric_sum(page, "pdsim:kv_expired_total", {}) == 0 or e.refuses_on_purpose, "released, not timed out"
            assert metric_sum(page, "pdsim:kv_replayed_total", {}) == 0
        if self.kind != "mooncake old":  # an engine says the same of all it holds
            never_twice(self.d)


def admitted(engine):
    """Its requests but those that say in their model's name that they are to be refused."""
    return [r for r in engine.requests() if r.json().get("model") == MODEL]


def never_twice(decode):
    """No decode engine was given what it, or another, had been given before."""
    told = [v for e in decode for r in admitted(e) for key in TOLD for v in values(r.body, key) if v != "null"]
    assert len(set(told)) == len(told), "a handoff went out twice"


def ask(router, stream, prompt, n=6):
    """The text of an answer that shows nothing of what happened."""
    if not stream:
        a = router.complete(prompt, max_tokens=n)
        assert a.status == 200, a.body
        return a.json()["choices"][0]["text"]
    c = router.open_stream(prompt, n=n)
    assert c.head().status == 200, c.answer.raw
    events = list(c.events())
    assert events[-1].data == "[DONE]", c.answer.body
    assert len({e.json()["id"] for e in events[:-1]}) == 1, "one id"
    return text_of(events)


def right(router, stream):
    """An answer is that of engines that do not fail."""
    prompt = f"Once upon a time {next(FRESH)}"
    assert ask(router, stream, prompt) == expect.text(prompt, 6)
    return prompt


def with_room(fleet, stream):
    """No engine is passed by because of a 429 that came before."""
    if fleet.router.metric("endpoint_busy"):
        wait("room", lambda: right(fleet.router, stream) and not fleet.router.metric("endpoint_busy"))
        fleet.mark()


def meets(fleet, stream, engine, fault):
    """Asks until this engine has met its fault; every answer is right.  The number of requests that took."""
    with_room(fleet, stream)
    engine.fault(**fault)
    for i in range(1, 5):
        right(fleet.router, stream)
        if fleet.faults():
            return i
    raise AssertionError("the engine was not asked in four requests")


def unanswering(engine):
    """In this engine's place a host that answers no connection."""
    return unaccepting(SimpleNamespace(close=engine.stop, address=engine.address))


def end_with(router, word):
    """The line of the one request that has this word at `rescued`."""
    return wait(f"a line with {word}", lambda: [x for x in router.ends() if x.get("rescued") == word])[-1]
