"""Which engine is chosen."""
import collections

from procs import MODEL, wait
from test_learn import shown

URL = "/v1/completions"


def spread(engines):
    return [len(e.requests()) for e in engines]


def test_round_robin_takes_each_in_turn(world):
    r, p, d = world.pd(3, 2, pool={"policy": "round_robin"}, workers=1)
    r.wait_all_up()
    for _ in range(12):
        assert r.complete().status == 200
    assert spread(p) == [4, 4, 4] and spread(d) == [6, 6]


def test_round_robin_mixes_engine_pairs(world):
    """In lock-step, P1 would only ever meet D1: one sick engine of each role would fail everything."""
    r, p, d = world.pd(2, 2, pool={"policy": "round_robin"}, workers=2)
    r.wait_all_up()
    for _ in range(40):
        assert r.complete().status == 200
    engine_pairs = collections.Counter((x["prefill"], x["decode"]) for x in [r.end(i + 1) for i in range(40)])
    assert spread(p) == [20, 20] or min(spread(p)) >= 15
    assert min(spread(d)) >= 15
    assert len(engine_pairs) == 4, engine_pairs


def test_least_loaded_avoids_the_busy_one(world):
    r, p, d = world.pd(2, 2, engine={"token_delay": 50})
    r.wait_all_up()
    busy = r.open_stream(n=100)
    busy.head()
    taken = next(e for e in d if e.requests())
    other = next(e for e in d if e is not taken)
    for i in range(6):
        assert r.complete(max_tokens=1).status == 200
        r.end(i + 1)  # or it still counts
    assert len(taken.requests()) == 1 and len(other.requests()) == 6
    busy.reset()


def test_least_loaded_spreads_ties(world):
    """After the only scrape: one that comes between two requests may show an engine busier than it is."""
    r, p, d = world.pd(4, 4, stats_interval="1h")
    r.wait_all_up()
    wait("it", lambda: len([1 for name, _, _ in r.metrics() if name == "pdrouter_endpoint_running"]) == 8)
    for _ in range(32):
        assert r.complete().status == 200
    assert min(spread(p)) >= 4 and min(spread(d)) >= 4


def test_foreign_load_counts(world):
    """Another router's requests on an engine, seen in its metrics."""
    p = world.engine("prefill")
    d = [world.engine("decode", load=20), world.engine("decode")]
    r = world.router(world.pool([p], d))
    r.wait_all_up()
    wait("the scrape", lambda: r.metric("endpoint_running", engine=d[0].url) == 20)
    wait("the score", lambda: r.metric("endpoint_score", engine=d[0].url) == 20)
    for _ in range(8):
        assert r.complete().status == 200
    assert spread(d) == [0, 8]
    d[0].tell("/sim/load", running=0)
    d[1].tell("/sim/load", running=30)
    wait("the scores", lambda: r.metric("endpoint_score", engine=d[1].url) == 30 and
         r.metric("endpoint_score", engine=d[0].url) == 0)
    for _ in range(8):
        assert r.complete().status == 200
    assert spread(d) == [8, 8]


def test_tokens_that_engines_count(world):
    """Of all clients of an engine, while its requests last: /metrics has the counters, status the rate, pdctl top shows it."""
    r, (p,), (d,) = world.pd(engine={"token_delay": 20})
    c = r.open_stream(n=100000)
    c.head()
    wait("its rate", lambda: (shown(r, d.url)["tokens_s"] or 0) > 0)
    assert r.metric("endpoint_engine_generated_tokens_total", engine=d.url) > 0
    wait("the prompt", lambda: r.metric("endpoint_engine_prompt_tokens_total", engine=p.url) > 0)
    c.reset()
    wait("none are generated", lambda: shown(r, d.url)["tokens_s"] == 0)


def test_an_absurd_load_is_not_believed(world):
    """The engine is used all the same, and status names it."""
    p = world.engine("prefill")
    d = [world.engine("decode", load=10**9), world.engine("decode")]
    r = world.router(world.pool([p], d))
    r.wait_all_up()
    (line,) = wait("the warning", lambda: r.lines("load of endpoint unknown, only own requests count"))
    assert (line["url"], line["reason"]) == (d[0].url, "more than 100000 requests")
    for _ in range(8):
        assert r.complete().status == 200
    assert min(spread(d)) >= 2  # a request may be chosen for before the former gave its slot back
    assert [shown(r, e.url)["load_unknown"] for e in d] == ["more than 100000 requests", ""]
    assert [r.metric("endpoint_load_absurd", engine=e.url) for e in d] == [1, 0]
    assert "load unknown: more than 100000 requests" in r.ctl("status").stdout
    d[0].tell("/sim/load", running=3)
    wait("the log line", lambda: r.lines("load of endpoint known again"))
    assert r.metric("endpoint_score", engine=d[0].url) == 3 and r.metric("endpoint_load_absurd") == 0


def test_own_streams_are_not_counted_twice(world):
    """The scrape sees our own requests too: score = in flight, not twice that."""
    r, (p,), (d,) = world.pd(engine={"token_delay": 50})
    r.wait_all_up()
    streams = [r.open_stream(f"p{i}", n=200) for i in range(6)]
    for c in streams:
        c.head()
    wait("the scrape", lambda: r.metric("endpoint_running", role="decode") == 6)
    assert r.metric("endpoint_in_flight", role="decode") == 6
    wait("the score", lambda: r.metric("endpoint_score", role="decode") == 6)
    for c in streams:
        c.reset()
    wait("all gone", lambda: r.metric("endpoint_score", role="decode") == 0)


def test_max_inflight_is_kept(world):
    p, d = world.script(), world.script()
    r = world.router(world.pool([p], [{"url": d.url, "max_inflight": 2}]), workers=2)
    r.wait_all_up()
    held = [r.open_stream(f"p{i}") for i in range(2)]
    for _ in held:
        p.expect().prefilled()
    exs = [d.expect() for _ in held]
    a = r.complete()
    assert a.status == 429 and a.error["code"] == "no_capacity" and p.quiet(0.1)
    assert "max_inflight: decode" in a.error["message"] and r.end()["detail"] == "decode"
    assert r.metric("endpoint_in_flight", role="prefill") in (0, 2), "the refused one's reservation is given back"
    for ex in exs:
        ex.stream("a")
    for c in held:
        assert len(list(c.events())) == 2
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled()
    d.expect().reply(body={})
    assert c.read().status == 200


def test_pools_by_model(world):
    pa, da = world.engine("prefill", model="a"), world.engine("decode", model="a")
    pb, db = world.engine("prefill", model="b/c"), world.engine("decode", model="b/c")
    r = world.router({**world.pool([pa], [da]), "models": ["a"], "name": "first"},
                     {**world.pool([pb], [db]), "models": ["b/c"], "name": "second"})
    r.wait_all_up()
    assert r.complete(model="a").status == 200 and r.complete(model="b/c").status == 200
    assert len(da.requests()) == len(db.requests()) == 1
    r.wait_metric("requests_total", 1, pool="second", reason="ok")
    assert sorted(m["id"] for m in r.get("/v1/models").json()["data"]) == ["a", "b/c"]


def test_models_are_learned(world):
    p = world.engine("prefill", model=["x", "lora-1"])
    d = world.engine("decode", model=["x", "lora-1"])
    pool = world.pool([p], [d])
    del pool["models"]
    r = world.router(pool)
    r.wait_all_up()
    wait("the models", lambda: {m["id"] for m in r.get("/v1/models").json()["data"]} == {"x", "lora-1"})
    assert r.complete(model="lora-1").status == 200 and r.complete(model="y").status == 404
