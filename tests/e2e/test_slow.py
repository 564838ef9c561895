"""Slow engines: one that takes three times the time of its peers gets less, is named, and gets its share back when it is fast."""
import pytest

from procs import MODEL, Load, free_port, wait

PROMPT = "a prompt of some words " * 8
# times of the engines: well above what the estimates take for noise (shm/pace.h)
TIMES = {"prefill_delay": 40, "token_delay": 8}
POOL = {"outlier": {"factor": 3, "min_samples": 10}}
COUNTER = {"prefill": "kv_held", "decode": "kv_loaded"}
UNKNOWN = "endpoint no longer slow, its times are not known any more"
TEN_TIMES = {"kind": "slow", "factor": 10, "count": -1}


def fleet(world, role, pool=None, engine=None, **keys):
    """(router, [two engines of the role])."""
    np, nd = (2, 1) if role == "prefill" else (1, 2)
    r, p, d = world.pd(np, nd, engine={**TIMES, **(engine or {})}, pool={**POOL, **(pool or {})}, **keys)
    return r, p if role == "prefill" else d


def stream(r):
    c = r.open_stream(prompt=PROMPT, n=20)
    assert c.read().status == 200
    c.close()


def whole(r):
    assert r.complete(prompt=PROMPT, max_tokens=20).status == 200


def load(r, ask=stream, n=16):
    return Load(n, lambda _: ask(r))


def endpoint(r, e):
    return next(x for x in r.status()["fleet"]["endpoints"] if x["url"] == e.url)


def is_slow(r, e):
    return r.metric("endpoint_slow", engine=e.url) == 1


def until_slow(r, e):
    wait("slow", lambda: is_slow(r, e), 20)


def share(role, e, engines, n=80):
    """Its share of the next n requests."""
    before = [x.counter(COUNTER[role]) for x in engines]

    def new():
        return [x.counter(COUNTER[role]) - b for x, b in zip(engines, before)]
    wait("requests", lambda: sum(new()) >= n, 60)
    return new()[engines.index(e)] / sum(new())


@pytest.mark.parametrize("role, ask", [("prefill", whole), ("decode", stream), ("decode", whole)])
def test_a_slow_engine_gets_less_until_it_is_fast(world, role, ask):
    r, engines = fleet(world, role)
    e = engines[0]
    e.fault(**TEN_TIMES)
    requests = load(r, ask)
    until_slow(r, e)
    wait("the requests that it had are over", lambda: r.metric("endpoint_in_flight", engine=e.url) <= 3)
    assert share(role, e, engines) < 0.1
    assert r.ctl("undrain", e.url).stdout.endswith(": slow\n"), "as the status says; it was not drained"
    assert endpoint(r, e)["slow_times"] > 3 and "slow: " in r.ctl("status").stdout and not is_slow(r, engines[1])
    assert r.metric("endpoint_token_seconds", engine=e.url) > 3 * r.metric("endpoint_token_seconds", engine=engines[1].url)
    e.tell("/sim/fault", kind="none")
    wait("fast", lambda: not is_slow(r, e), 30)
    assert share(role, e, engines) > 0.3
    assert not requests.stop().bad
    line, = r.lines("endpoint slow, its share is lowered")
    assert (line["url"], line["role"]) == (e.url, role) and len(r.lines("endpoint no longer slow")) == 1


def test_requests_of_others_are_no_fault(world):
    """Another router's requests wait before this one's at the engine, which serves them one after the other."""
    r, engines = fleet(world, "prefill", pool={"policy": "round_robin"}, engine={"max_running": 1})
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}

    def ask(_):
        with engines[0].client() as c:
            assert c.post("/v1/completions", body).status == 200
    others, requests = Load(10, ask), load(r, whole, 8)
    wait("foreign load", lambda: r.metric("endpoint_score", engine=engines[0].url) >= 8)
    share("prefill", engines[0], engines, 60)
    times = [r.metric("endpoint_token_seconds", engine=e.url) for e in engines]
    assert times[0] > 3 * times[1] and not r.lines("endpoint slow, its share is lowered")
    assert not others.stop().bad + requests.stop().bad


def test_longer_prompts_are_no_fault(world):
    """Sessions with prompts of ten times the length, at an engine that takes ten times as long for one."""
    r, p = fleet(world, "prefill", pool={"policy": "session"})
    sessions = {}  # of each engine
    for i in range(20):
        r.complete(prompt=PROMPT * 10, headers=[("X-Session-Id", str(i))], max_tokens=1)
        sessions.setdefault(r.end(i + 1)["prefill"], str(i))
    prompts = {p[0]: PROMPT * 100, p[1]: PROMPT * 10}

    def ask(i):
        e = p[i % 2]
        assert r.complete(prompt=prompts[e], headers=[("X-Session-Id", sessions[e.url])], max_tokens=1).status == 200
    p[0].fault(**TEN_TIMES)
    requests = Load(16, ask)
    wait("requests", lambda: min(e.counter("kv_held") for e in p) > 80, 30)
    assert r.metric("endpoint_token_seconds", engine=p[0].url) is not None
    assert not r.lines("endpoint slow, its share is lowered") and not requests.stop().bad


@pytest.mark.parametrize("percent", [50, 0])
def test_eject_slow(world, percent):
    """It is ejected only if that is configured, and not beyond max_ejected."""
    r, engines = fleet(world, "decode", pool={"eject_slow": True, "max_ejected": percent})
    engines[0].fault(**TEN_TIMES)
    requests = load(r)
    until_slow(r, engines[0])
    if percent > 0:
        wait("ejected", lambda: r.metric("endpoint_ejected", engine=engines[0].url) == 1)
    assert r.metric("ejections_total", engine=engines[0].url) == len(r.lines("endpoint ejected, it is slow")) == (percent > 0)
    assert not requests.stop().bad


def test_a_new_life_is_not_slow(world):
    d = [world.engine("decode", port=free_port(), token_delay=80), world.engine("decode", token_delay=8)]
    r = world.router(world.pool([world.engine("prefill")], d, **POOL, retries=2, eject_failures=5)).wait_all_up()
    requests = load(r)
    until_slow(r, d[0])
    requests.stop()
    d[0].kill(9)
    wait("down", lambda: endpoint(r, d[0])["state"] == "down")
    wait("not slow", lambda: not is_slow(r, d[0]) and len(r.lines(UNKNOWN)) == 1)
    d[0].next_life(token_delay=8)
    wait("up", lambda: endpoint(r, d[0])["state"] == "up")
    assert not is_slow(r, d[0]) and r.metric("endpoint_token_seconds", engine=d[0].url) is None


def test_without_peers_no_engine_is_slow(world):
    r, (slow, other) = fleet(world, "decode")
    slow.fault(**TEN_TIMES)
    requests = load(r)
    until_slow(r, slow)
    assert not requests.stop().bad
    other.kill(9)
    wait("not slow", lambda: not is_slow(r, slow))
    line, = r.lines(UNKNOWN)
    assert line["url"] == slow.url and "times" not in line and endpoint(r, slow)["share"] == 1


def test_factor_0_compares_nothing(world):
    r, engines = fleet(world, "decode")
    engines[0].fault(**TEN_TIMES)
    requests = load(r)
    until_slow(r, engines[0])
    r.reload(pools=[{**r.config["pools"][0], "outlier": {"factor": 0}}])
    wait("its share", lambda: not is_slow(r, engines[0]) and endpoint(r, engines[0])["share"] == 1)
    assert not requests.stop().bad
