"""Policies by role, sessions, prefixes, weights, groups, loads in tokens, places, adapters: which engines
see what."""
import collections
import re
import threading

import pytest

from procs import MODEL, Load, wait

URL = "/v1/completions"
SESSIONS = [f"session-{i}" for i in range(12)]


def spread(engines):
    return [len(e.requests()) for e in engines]


def seen(engines, what):
    """By engine: what(request) of each request it has seen."""
    return [{what(s) for s in e.requests()} for e in engines]


def homes(engines, what):
    """{session: the engines that saw it}."""
    return {k: {i for i, have in enumerate(seen(engines, what)) if k in have} for k in SESSIONS}


def by_header(s):
    return s["X-Session-Id"]


def forget(engines):
    """What they have seen, and that they are to say they fail."""
    for e in engines:
        e.tell("/sim/reset")


def ask_all(r, times=1, member=None):
    for _ in range(times):
        for s in SESSIONS:
            how = {member: s} if member else {"headers": [("x-SESSION-id", s)]}
            assert r.complete(**how).status == 200


def set_up(r, engine, up):
    engine.tell("/sim/health", status=200 if up else 503)
    r.wait_metric("endpoint_up", int(up), engine=engine.url)


def engine_pairs(r, n):
    return collections.Counter((x["prefill"], x["decode"]) for x in [r.end(i + 1) for i in range(n)])


# --- sessions and prefixes ---
def test_a_session_stays_at_its_engines(world):
    """Through all workers, connections of their own, a new generation, another order in the file."""
    r, p, d = world.pd(3, 3, pool={"policy": "session"}, workers=4)
    r.wait_all_up()
    ask_all(r, 2)
    before = [homes(p, by_header), homes(d, by_header)]
    r.reload(workers=2, pools=[world.pool(p[::-1], d[1:] + d[:1], policy="session")])
    ask_all(r, 2)
    assert [homes(p, by_header), homes(d, by_header)] == before
    for role in before:
        assert all(len(at) == 1 for at in role.values()), role
        assert len(set.union(*role.values())) > 1, "twelve sessions, three engines"


def test_a_session_named_by_a_member(world):
    r, p, d = world.pd(2, 3, pool={"policy": "session", "session_header": "X-User", "session_member": "user"}, workers=2)
    r.wait_all_up()
    ask_all(r, 3, member="user")
    for engines in p, d:
        at = homes(engines, lambda s: s.json().get("user"))
        assert all(len(x) == 1 for x in at.values()), at
    forget(d)
    for s in SESSIONS:  # the header wins, and names the same session
        assert r.complete(user="other", headers=[("X-User", s)]).status == 200
    assert homes(d, lambda s: s["X-User"]) == at


def test_a_session_whose_engine_is_down_goes_elsewhere_and_returns(world):
    r, p, d = world.pd(1, 3, pool={"policy": "session"})
    r.wait_all_up()
    ask_all(r)
    before = homes(d, by_header)
    (lost,) = before[SESSIONS[0]]
    forget(d)
    set_up(r, d[lost], False)
    ask_all(r)
    meanwhile = homes(d, by_header)
    assert all(at == before[s] for s, at in meanwhile.items() if before[s] != {lost}), "nobody else moves"
    assert all(len(at) == 1 and at != {lost} for at in meanwhile.values())
    set_up(r, d[lost], True)
    forget(d)
    ask_all(r)
    assert homes(d, by_header) == before


def test_requests_without_a_session_go_where_load_is_least(world):
    r, p, d = world.pd(1, 4, pool={"policy": "session"}, stats_interval="1h", workers=1)
    r.wait_all_up()
    for _ in range(8):
        assert r.complete().status == 200
    assert spread(d) == [2, 2, 2, 2]


def test_prompts_that_begin_alike_go_together(world):
    """One worker: to another the answered request may still look in flight when the next one comes."""
    r, p, d = world.pd(3, 3, pool={"policy": "prefix", "prefix_bytes": "64B"}, workers=1, stats_interval="1h")
    r.wait_all_up()
    for i in range(4):
        for s in SESSIONS:
            assert r.complete(f"{s} {'x' * 80} {i}").status == 200
    for engines in p, d:
        at = homes(engines, lambda s: s.json()["prompt"].split()[0])
        assert all(len(x) == 1 for x in at.values()), at
        assert len(set.union(*at.values())) > 1
    forget(d)
    for s in SESSIONS:  # ids, not text
        ids = [ord(c) for c in s] + [7] * 40
        for i in range(2):
            assert r.complete([*ids, i]).status == 200
    at = [{str(q.json()["prompt"][:-1]) for q in e.requests()} for e in d]
    assert sum(len(x) for x in at) == len(SESSIONS), "each at one engine"


def test_a_common_prefix_does_not_overload_its_engine(world):
    """24 streams whose prompts begin alike at 4 engines: 1.25 times a quarter each, the last has what is left."""
    r, p, d = world.pd(1, 4, engine={"token_delay": 50}, pool={"policy": "prefix"}, stats_interval="1h", workers=2)
    r.wait_all_up()
    streams = [r.open_stream("x" * 2000 + str(i), n=100) for i in range(24)]
    for c in streams:
        c.head()
    counts = sorted(spread(d))
    assert sum(counts) == 24 and counts[3] <= 8 and counts[0] >= 1, counts
    for c in streams:
        c.reset()


# --- weights and rounds ---
def test_round_robin_by_weight(world):
    p, d = world.engine("prefill"), [world.engine("decode") for _ in range(3)]
    pool = world.pool([p], [{"url": e.url, "weight": w} for e, w in zip(d, (1, 3, 2))], policy="round_robin")
    r = world.router(pool, workers=1)
    r.wait_all_up()
    for _ in range(36):
        assert r.complete(max_tokens=1).status == 200
    assert spread(d) == [6, 18, 12]
    forget(d)
    set_up(r, d[1], False)
    for _ in range(12):
        assert r.complete(max_tokens=1).status == 200
    assert spread(d) == [4, 0, 8]


def test_rounds_of_both_roles_by_weight_meet_all_engine_pairs(world):
    p, d = [world.engine("prefill") for _ in range(2)], [world.engine("decode") for _ in range(2)]
    r = world.router(world.pool(*[[{"url": e.url, "weight": w} for e, w in zip(es, (1, 3))] for es in (p, d)],
                                policy="round_robin"), workers=1)
    r.wait_all_up()
    for _ in range(32):
        assert r.complete(max_tokens=1).status == 200
    assert spread(p) == [8, 24] and spread(d) == [8, 24]
    assert len(engine_pairs(r, 32)) == 4


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "power_of_two", "random"])
def test_weights_of_long_streams(world, policy):
    """Held load: 40 streams at weights 1 and 3."""
    p, d = world.engine("prefill"), [world.engine("decode", token_delay=50) for _ in range(2)]
    r = world.router(world.pool([p], [{"url": e.url, "weight": w} for e, w in zip(d, (1, 3))], policy=policy), stats_interval="1h")
    r.wait_all_up()
    streams = [r.open_stream(f"p{i}", n=200) for i in range(40)]
    for c in streams:
        c.head()
    counts = spread(d)
    slack = 10 if policy == "random" else 2  # 3.6 standard deviations
    assert sum(counts) == 40 and abs(counts[1] - 30) <= slack, counts
    for c in streams:
        c.reset()


def test_first_choices_of_workers_differ(world):
    """Eight workers that all began with the same engine would be a herd."""
    p, d = world.engine("prefill"), [world.engine("decode") for _ in range(8)]
    r = world.router(world.pool([p], d, policy="round_robin"), workers=8)
    r.wait_all_up()
    clients = [r.client() for _ in range(8)]
    for c in clients:
        assert c.post(URL, {"model": MODEL, "prompt": "x", "max_tokens": 1}).status == 200
    assert len([n for n in spread(d) if n]) >= 4, spread(d)
    for c in clients:
        c.close()


def test_policies_by_role(world):
    r, p, d = world.pd(3, 3, pool={"policy": "random", "prefill_policy": "session", "decode_policy": "round_robin"}, workers=1)
    r.wait_all_up()
    for _ in range(9):
        assert r.complete(headers=[("X-Session-Id", "one")]).status == 200
    assert sorted(spread(p)) == [0, 0, 9] and spread(d) == [3, 3, 3]


# --- groups ---
def grouped(world, engines, groups):
    return [{"url": e.url, "group": g} for e, g in zip(engines, groups)]


def group_world(world, np="ab", nd="ab", **pool):
    p, d = [world.engine("prefill") for _ in np], [world.engine("decode") for _ in nd]
    r = world.router(world.pool(grouped(world, p, np), grouped(world, d, nd), **pool), workers=1)
    return r.wait_all_up(), p, d


def test_engine_pairs_are_of_one_group(world):
    for pairing in "prefer", "require":
        r, p, d = group_world(world, "abc", "cab", pairing=pairing, policy="round_robin")
        for _ in range(12):
            assert r.complete(max_tokens=1).status == 200
        assert engine_pairs(r, 12) == {(p[0].url, d[1].url): 4, (p[1].url, d[2].url): 4, (p[2].url, d[0].url): 4}


def test_all_engines_of_a_group_have_their_turns(world):
    """One cursor for all groups would be moved past the second of each by the other group's requests."""
    r, p, d = group_world(world, "ab", "aabb", policy="round_robin")
    for _ in range(32):
        assert r.complete(max_tokens=1).status == 200
    assert spread(d) == [8, 8, 8, 8]


def test_prefer_falls_back_across_groups(world):
    r, p, d = group_world(world, pairing="prefer", policy="round_robin")
    set_up(r, d[0], False)
    for _ in range(6):
        assert r.complete(max_tokens=1).status == 200
    assert engine_pairs(r, 6) == {(p[0].url, d[1].url): 3, (p[1].url, d[1].url): 3}


def test_require_takes_a_group_that_is_whole(world):
    r, p, d = group_world(world, pairing="require", policy="round_robin")
    set_up(r, d[0], False)
    for _ in range(6):
        assert r.complete(max_tokens=1).status == 200
    assert engine_pairs(r, 6) == {(p[1].url, d[1].url): 6}
    set_up(r, p[1], False)
    a = r.complete()
    assert a.status == 503 and a.error["code"] == "no_decode_endpoint", "a has no decode engine, b no prefill engine"
    assert "in the group of a prefill engine" in a.error["message"] and "in the group" in r.end(7)["detail"]
    assert r.get("/ready").status == 503 and "no group has both roles up" in r.get("/health").body.decode()
    r.wait_idle()
    assert r.metric("endpoint_prompt_tokens") == 0
    set_up(r, d[0], True)
    assert r.complete().status == 200 and len(d[0].requests()) == 1
    set_up(r, p[0], False)
    assert r.complete().error["code"] == "no_prefill_endpoint"


def test_require_and_no_decode_engine_at_all(world):
    r, p, d = group_world(world, pairing="require")
    for e in d:
        set_up(r, e, False)
    for _ in range(4):
        a = r.complete()
        assert a.status == 503 and a.error["code"] == "no_decode_endpoint"
    r.wait_idle()
    assert r.metric("endpoint_prompt_tokens") == 0 and spread(p) == [0, 0]


def test_require_and_the_group_is_full(world):
    p, d = [world.script() for _ in "ab"], [world.script() for _ in "ab"]
    limited = [{**e, "max_inflight": 1} for e in grouped(world, d, "ab")]
    r = world.router(world.pool(grouped(world, p, "ab"), limited, pairing="require", policy="round_robin"), workers=1)
    r.wait_all_up()
    held = [r.open_stream(f"p{i}") for i in range(2)]
    for e in p:
        e.expect().prefilled()
    exs = [e.expect() for e in d]
    a = r.complete()
    assert a.status == 429 and a.error["code"] == "no_capacity"
    assert r.metric("endpoint_in_flight", role="prefill") == 0
    exs[1].stream("a")
    list(held[1].events())
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p[1].expect().prefilled()
    d[1].expect().reply(body={})
    assert c.read().status == 200, "the group that has a place again"
    exs[0].stream("a")
    list(held[0].events())


# --- load ---
def test_a_huge_prompt_counts_for_what_it_is(world):
    r, p, (d,) = world.scripts(2, 1, stats_interval="1h")
    r.wait_all_up()
    huge = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * 400_000})
    first = wait("the huge one", lambda: [(e, e.asked.get()) for e in p if not e.asked.empty()])[0]
    other = p[1 - p.index(first[0])]
    assert r.metric("endpoint_prompt_tokens", engine=first[0].url) == 100_000
    small = [r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * 40}) for _ in range(6)]
    exs = [other.expect() for _ in small]
    assert first[0].asked.empty() and r.metric("endpoint_prompt_tokens", engine=other.url) == 60
    for c, ex in zip([huge, *small], [first[1], *exs]):
        ex.prefilled()
        d.expect().reply(body={})
    assert all(c.read().status == 200 for c in [huge, *small])
    wait("nothing is left", lambda: r.metric("endpoint_prompt_tokens") == 0)


def test_prefill_load_by_requests(world):
    r, p, (d,) = world.scripts(2, 1, stats_interval="1h", pool={"prefill_load": "requests"})
    r.wait_all_up()
    asks = [r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * n}) for n in (400_000, 40, 40, 40)]
    exs = [e.expect() for e in p for _ in range(2)]
    for ex in exs:
        ex.prefilled()
        d.expect().reply(body={})
    assert all(c.read().status == 200 for c in asks)


def test_foreign_load_ages_by_the_interval_in_force(world):
    """The interval of a scrape may change without new workers."""
    p, d = world.engine("prefill"), [world.engine("decode", load=20), world.engine("decode")]
    r = world.router(world.pool([p], d), stats_interval="100ms")
    r.wait_all_up()
    pids = r.children()
    r.reload(stats_interval="1h")
    d[0].tell("/sim/load", running=0)  # nobody will ask
    threading.Event().wait(0.5)  # older than three of the former intervals
    assert r.metric("endpoint_score", engine=d[0].url) == 20
    for _ in range(4):
        assert r.complete(max_tokens=1).status == 200
    assert spread(d) == [0, 4] and r.children() == pids


def test_max_inflight_is_exact_across_eight_workers(world):
    """A storm: never one above the limit, and all places in use."""
    p = [world.engine("prefill", prefill_delay=15) for _ in range(2)]
    d = [world.engine("decode", token_delay=10) for _ in range(3)]
    limits = [3, 2, 4, 1, 5]
    entries = [{"url": e.url, "max_inflight": n} for e, n in zip([*p, *d], limits)]
    r = world.router(world.pool(entries[:2], entries[2:]), workers=8)
    r.wait_all_up()
    got = collections.Counter()

    def ask(i):
        a = r.complete(f"p{i}", max_tokens=6)
        assert a.status in (200, 429), a.body
        got[a.status] += 1

    load = Load(40, ask)
    try:
        wait("all places in use", lambda: [e.metric("pdsim:running_requests_max") for e in [*p, *d]] == limits, 20)
        wait("a storm", lambda: got[200] > 200 and got[429] > 200, 20)
    finally:
        load.stop()
    assert not load.bad and [e.metric("pdsim:running_requests_max") for e in [*p, *d]] == limits
    r.wait_metric("endpoint_prompt_tokens", 0)


# --- adapters ---
def test_an_adapter_goes_to_the_engines_that_have_it(world):
    def fleet(role):
        return [world.engine(role, model=m) for m in ([MODEL], [MODEL, "lora"], [MODEL], [MODEL, "lora"])]

    p, d = fleet("prefill"), fleet("decode")
    pool = world.pool(p, d, policy="round_robin")
    del pool["models"]
    r = world.router(pool, workers=1)
    r.wait_all_up()
    for _ in range(16):
        assert r.complete(model="lora", max_tokens=1).status == 200
        assert r.complete(max_tokens=1).status == 200
    for engines in p, d:
        by_model = [collections.Counter(s.json()["model"] for s in e.requests()) for e in engines]
        assert [c["lora"] for c in by_model] == [0, 8, 0, 8]
        # all have their turns of the base model, whatever the adapter's requests do to the round
        assert all(3 <= c[MODEL] <= 5 for c in by_model), by_model
    for e in d[1], d[3]:
        set_up(r, e, False)
    a = r.complete(model="lora")
    assert a.status == 503 and a.error["code"] == "no_decode_endpoint"
    assert r.complete().status == 200


def test_full_is_said_only_of_engines_that_serve_the_model(world):
    p = world.engine("prefill", model=[MODEL, "lora"])
    d = [world.engine("decode", model=[MODEL]), world.engine("decode", model=[MODEL, "lora"])]
    pool = world.pool([p], [{"url": e.url, "max_inflight": 1} for e in d])
    del pool["models"]
    r = world.router(pool)
    r.wait_all_up()
    assert r.complete(model="lora").status == 200
    set_up(r, d[1], False)
    a = r.complete(model="lora")
    assert a.status == 503 and a.error["code"] == "no_decode_endpoint", "the other one has a limit and is not full"


# --- what an operator sees ---
def test_weights_groups_tokens_and_policies_are_shown(world):
    p, d = world.script(), world.script()
    pool = world.pool([{"url": p.url, "group": "rack-1", "weight": 7}], [{"url": d.url, "max_inflight": 4}],
                      policy="power_of_two", prefill_policy="prefix", name="main")
    r = world.router(pool)
    r.wait_all_up()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * 6_000_004})
    ex = p.expect()
    for e in p, d:
        assert r.metric("endpoint_prompt_tokens", engine=e.url) == 1_500_001
    assert r.metric("endpoint_weight", engine=p.url) == 7 and r.metric("endpoint_weight", engine=d.url) is None
    assert r.metric("endpoint_group", engine=p.url, group="rack-1") == 1 and r.metric("endpoint_group", engine=d.url) is None
    assert r.metric("pool_policy_info", pool="main", role="prefill", policy="prefix", load="tokens") == 1
    assert r.metric("pool_policy_info", pool="main", role="decode", policy="power_of_two", load="requests") == 1
    fleet = r.status()["fleet"]
    assert fleet["pools"] == [{"name": "main", "connector": "nixl", "pairing": "prefer",
                               "prefill": {"policy": "prefix", "load": "tokens"},
                               "decode": {"policy": "power_of_two", "load": "requests"},
                               "queue": {"waiting": 0, "size": 0, "oldest_ms": 0}}]
    rows = {e["url"]: e for e in fleet["endpoints"]}
    assert [rows[e.url]["prompt_tokens"] for e in (p, d)] == [1_500_001] * 2
    assert (rows[p.url]["weight"], rows[p.url]["group"], rows[d.url]["weight"], rows[d.url]["group"]) == (7, "rack-1", 1, "")
    text = r.ctl("status").stdout
    assert re.search(rf"{p.url} .*rack-1 +7 +up +1 +1500001 ", text) and "weight" in text, text
    assert re.search(rf"{d.url} .*up +1/4 ", text) and (rows[d.url]["max_inflight"], rows[p.url]["max_inflight"]) == (4, 0)
    ex.prefilled()
    d.expect().reply(body={})
    assert c.read().status == 200


def test_columns_that_nobody_uses_are_left_out(world):
    r, _, _ = world.pd()
    r.wait_all_up()
    text = r.ctl("status").stdout
    assert "tokens" in text and "weight" not in text and "group" not in text
