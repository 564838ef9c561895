"""Before the first byte: an engine that fails is not the client's business while another can do it.  Every failure of each
role under every hand-shake with simulated engines, then who is asked what, how often, and with which handoff."""
import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import expect
from fleets import (AT_ONCE, BUSY, CLIENTS_FAULT, FAILS_OF_D, FAILS_OF_P, FAR, FREED, KINDS, LATE, LEASED, PUSHED, TOLD, URL, Fleet, admitted, ask,
                    build, end_with, meets, never_twice, right, unanswering)
from legs import DECODE_FAILS, STREAM, fresh, says, taken
from members import values
from procs import BIN, MODEL, silence, wait
from raw import text_of
from stages import lasting
from test_sglang import scripted as sglang_scripts

POOL = {"policy": "round_robin", "retries": 2, "fallback": "none"}
ALONE = [k for k in KINDS if k not in ("sglang", "p2p_nccl", "answer")]  # pdsim's decode engines that can prefill


# --- every failure, every hand-shake ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(KINDS))
def of_p(request):
    """Prefill engines have half a second."""
    yield from lasting(request, Fleet(request.param, pool={"timeouts": {"prefill": LATE}}))


@pytest.fixture(scope="module", params=list(KINDS))
def of_d(request):
    """Decode engines have; where nothing tells it otherwise, what a failed one was to have is held until its time is over."""
    kind = request.param
    late = {**silence(LATE), **({"prefill": LATE} if kind == "sglang" else {})}
    forgetful = "decode" if kind in PUSHED else "prefill" if kind in LEASED - FREED else None
    yield from lasting(request, Fleet(kind, forgetful, pool={"timeouts": late}))


@pytest.fixture
def p_fails(of_p):
    of_p.mark()
    yield of_p
    of_p.settled()


@pytest.fixture
def d_fails(of_d):
    of_d.mark()
    yield of_d
    of_d.settled()


@STREAM
@pytest.mark.parametrize("how", FAILS_OF_P)
def test_prefill_fails(p_fails, how, stream):
    """The other one serves; where decode comes after it, decode is asked once, with what the other one handed off."""
    f = p_fails
    if (f.kind, how) == ("sglang", "no json"):
        how = "empty"  # a 200 of SGLang's with any words in it proves nothing, and decode has the last one
    n = meets(f, stream, f.p[0], FAILS_OF_P[how])
    if f.kind in ("storage", "decode first") and how in ("empty", "no json"):
        return  # what it says is not looked at: the decode engine misses its cache
    wait("counted", lambda: f.since("rescued_total") == 1)
    p, d = f.legs()
    assert len(p) == n + 1 and f.since("attempts_failed_total") >= 1
    assert len({r["x-request-id"] for r in p}) == n + 1, "each try has an id of its own"
    if f.kind not in AT_ONCE and f.kind != "decode first":
        good = {r["x-request-id"] for r in p if r["x-request-id"] in {x["x-request-id"] for x in d}}
        assert len(d) == len(good) == n, "nothing came of the failed one"


def told_anew(p, d):
    """A push's decode engine that fails before its prefill engine has answered may have been told wrong: decode is asked once more, under
    an id of its own.  Of these legs of both roles those requests; each names the prefill leg of its own prompt."""
    prompts = {r["x-request-id"]: r.json()["prompt"] for r in p}
    found = [r for r in d if r.json()["model"] == MODEL and r["x-request-id"] not in prompts]
    for r in found:
        named = r.json()["kv_transfer_params"]["remote_request_id"]
        assert [prompt for rid, prompt in prompts.items() if rid in named] == [r.json()["prompt"]]
    return found


@STREAM
@pytest.mark.parametrize("how", FAILS_OF_D)
def test_decode_fails(d_fails, how, stream):
    """Prefill is done again under another id, and the other decode engine gets what comes of that."""
    f = d_fails
    if (how, stream) in (("cut", True), ("error event", False)):
        stream = not stream  # only one of them has it before the first byte
    stream = stream or how == "timeout"  # an answer in one piece is not tried again then: test_whole.py
    if f.kind == "lmcache":
        how, stream = "reset" if how in ("error event", "timeout") else how, False  # a stream begins with prefill's token
    n = meets(f, stream, f.d[0], FAILS_OF_D[how])
    p, d = f.legs()
    anew = told_anew(p, d) if f.kind == "push" else []
    wait("counted", lambda: f.since("rescued_total") == 1 - len(anew))
    for r in anew:  # where the prefill engine is known both legs begin at once; it is the same engine's
        f.d[0].resent += 1
        assert [x.json()["prompt"] for x in admitted(f.d[0])].count(r.json()["prompt"]) == 2
    if f.kind != "decode first":
        assert len(p) == n + f.since("rescued_total")
    assert len({r["x-request-id"] for r in p}) == len(p)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_connection_refused(world, kind, role):
    r, p, d = build(world, kind, **FAR)
    with r.unwatched():
        (p if role == "prefill" else d)[0].stop()
        for stream in (False, False, kind != "lmcache", kind != "lmcache"):  # a stream of LMCache's begins with prefill's token
            right(r, stream)
        wait("counted", lambda: r.metric("rescued_total", by="retry") >= 2)
    if kind != "mooncake old":
        never_twice([e for e in d if e.p.poll() is None])
    if (kind, role) == ("push", "decode"):  # where the prefill engine is known both legs begin at once: the dead one was asked first
        d[1].resent = len(told_anew(sum((e.requests() for e in p), []), d[1].requests()))
        assert d[1].resent <= r.metric("rescued_total", by="retry")
    if role == "decode" and kind not in AT_ONCE and kind in LEASED:
        assert sum(len(e.requests()) for e in p) == 4, "the handoff was good for the other one"
    world.check_engines = kind not in PUSHED | {"sglang"}  # what was written for the dead one, who asked for it


@pytest.mark.parametrize("kind, fallback", [("push", "none"), ("push", "direct"), ("mooncake", "none"), ("mooncake", "direct"),
                                            ("sglang", "none")])
def test_prefill_is_silent_and_decode_the_only_one(world, kind, fallback):
    """Both wait, and which is at fault nobody knows: another decode engine is better, but the same one will do."""
    np = 2 if fallback == "none" else 1
    r, p, d = build(world, kind, np, 1, pool={"timeouts": {"prefill": LATE}, "fallback": fallback})
    for _ in range(2):
        right(r, False)
    p[0].fault("no_answer")
    for stream in (False, True):
        right(r, stream)
    wait("counted", lambda: r.metric("rescued_total", by="retry" if np == 2 else "fallback") == 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_connection_that_never_comes(world, kind, role):
    r, p, d = build(world, kind, pool={"timeouts": {"connect": LATE}}, **FAR)
    with unanswering((p if role == "prefill" else d)[0]):
        right(r, False)
        right(r, kind != "lmcache")
    wait("counted", lambda: r.metric("rescued_total", by="retry") >= 1)
    world.check_engines = kind not in PUSHED | {"sglang"}


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_engine_sees_an_id_twice_after_a_reset(world, kind, role):
    """Nothing was acknowledged, yet the engine had read the request: an attempt with other ids (rooms, KV) follows, and is no try."""
    r, p, d = build(world, kind, workers=1)

    def reset(turn):
        """A reset that comes later than 2 ms is a failure."""
        assert [r.complete().status for _ in range(4)] == [200] * 4, "all have kept connections"
        for e in p if role == "prefill" else d:
            e.fault("reset_unacked")
        got = [r.complete(f"again {turn} {i}").status for i in range(4)]
        return got == [200] * 4 and r.metric("upstream_stale_total") >= 1
    assert any(map(reset, range(25)))
    for e in (*p, *d):
        assert e.counter("duplicate_request_ids") == e.counter("duplicate_rooms") == e.counter("kv_replayed") == 0
    # of these a decode engine that fails may leave KV, and one that is told anew is told under another id
    world.check_engines = role == "prefill" or kind in FREED - {"push"} | {"storage", "decode first", "sglang"}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_reset_by_the_only_engine_which_has_one_slot(world, role):
    """The next attempt takes the slot over from the one that failed."""
    p, d = world.engine("prefill"), world.engine("decode")
    r = world.router(world.pool(*([{"url": e.url, "max_inflight": 1}] for e in (p, d)), retries=0, fallback="none"), workers=1)

    def reset(turn):
        assert r.wait_all_up().complete().status == 200
        (p if role == "prefill" else d).fault("reset_unacked")
        return r.complete(f"again {turn}").status == 200
    assert any(map(reset, range(25))), "later than 2 ms it is a failure"
    assert r.metric("upstream_stale_total") >= 1 and p.counter("duplicate_request_ids") == d.counter("duplicate_request_ids") == 0


@pytest.mark.parametrize("retries", [0, 2])
def test_kv_params_are_not_resent_on_a_fresh_connection(world, retries):
    """A reset does not say whether the engine had read it.  All kept connections are dead: the second attempt has fresh ones, and
    is no try, for no engine has failed."""
    def reset(turn):
        """As above: later than 2 ms it is a failure."""
        assert [r.complete().status for _ in range(4)] == [200] * 4, "all have kept connections"
        failed = r.metric("attempts_failed_total")
        for e in d:
            e.fault("close_keepalive")
        got = [r.complete(f"again {turn} {i}").status for i in range(4)]
        never_twice(d)
        return got == [200] * 4 and r.metric("attempts_failed_total") == failed
    r, p, d = build(world, "nixl", workers=1, pool={"retries": retries})
    assert any(map(reset, range(25)))
    assert r.metric("upstream_stale_total") >= 1 and not r.metric("ejections_total")
    world.check_engines = False  # what a reset that came late left behind waits for its time


# --- who is asked what ------------------------------------------------------------------------------------


def scripts(world, np=2, nd=2, pool=None, **keys):
    r, p, d = world.scripts(np, nd, pool={**POOL, **(pool or {})}, **{"workers": 1, **keys})
    return r.wait_all_up(), p, d


def nobody(engines, seconds=0.2):
    return all(e.quiet(seconds / len(engines)) for e in engines)


def begin(r, stream=False, path=URL, headers=(), **members):
    return r.client().request("POST", path, {"model": MODEL, "prompt": "x", "max_tokens": 9, "stream": stream, **members}, headers)


def fails(ex, status=500):
    return says(ex, status)


HAND = '{"do_remote_prefill":true,"remote_block_ids":[%d],"remote_engine_id":"e"}'


@STREAM
def test_another_prefill_engine(world, stream):
    """A fresh id on the same client's; the decode engine hears of the second alone; one line says how it went."""
    r, p, d = scripts(world)
    c = begin(r, stream, headers=[("X-Request-Id", "mine")])
    one, first = taken(p)
    fails(one)
    two, second = taken(p)
    assert first is not second and one.body == two.body
    assert one["x-request-id"] != two["x-request-id"] and two["x-request-id"].startswith("mine-")
    two.prefilled(HAND % 2)
    leg, _ = taken(d)
    assert values(leg.body, "kv_transfer_params") == [HAND % 2] and leg["x-request-id"] == two["x-request-id"]
    if stream:
        leg.stream("a", "b")
        assert text_of(c.events()) == "ab"
    else:
        leg.reply(body={"choices": [{"text": "ab"}]})
        assert c.read().status == 200
    assert c.answer["x-request-id"] == "mine"
    line = r.end()
    assert (line["reason"], line["rescued"], line["tries"]) == ("ok", "retry", 1)
    assert r.metric("rescued_total", by="retry") == r.metric("attempts_failed_total") == 1


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_as_often_as_configured(world, retries, role):
    """Each time another engine; the last one's own words in the end."""
    r, p, d = scripts(world, 4, 4, pool={"retries": retries})
    c = begin(r)
    asked = set()
    for _ in range(retries + 1):
        ex, who = taken(p)
        if role == "decode":
            ex.prefilled()
            ex, who = taken(d)
        asked.add(who)
        want = fails(ex, 503)
    assert len(asked) == retries + 1
    a = c.read()
    assert (a.status, a.body) == want[:2] and r.end()["reason"] == "engine_status"
    assert nobody(p) and r.metric("attempts_failed_total") == retries + 1
    assert not r.metric("rescued_total")


def test_both_roles_share_the_tries(world):
    r, p, d = scripts(world, 3, 3)
    c = begin(r)
    fails(taken(p)[0])
    for _ in range(2):
        taken(p)[0].prefilled()
        fails(taken(d)[0], 503)
    assert c.read().status == 503 and nobody(p)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_no_engine_twice(world, role):
    """However many tries are allowed."""
    r, p, d = scripts(world, pool={"retries": 10})
    c = begin(r)
    asked = []
    for _ in range(2):
        ex, who = taken(p)
        if role == "decode":
            ex.prefilled()
            ex, who = taken(d)
        asked.append(who)
        fails(ex)
    assert asked[0] is not asked[1]
    assert c.read().status == 500 and nobody(p)


def test_a_prefill_engine_that_did_well_may_be_asked_again(world):
    r, (p,), d = scripts(world, 1, 2)
    c = begin(r, True)
    ids = []
    for i in range(2):
        ex = p.expect()
        ids.append(ex["x-request-id"])
        ex.prefilled(HAND % i)
        leg, _ = taken(d)
        if i == 0:
            fails(leg)
    leg.stream("a")
    assert text_of(c.events()) == "a" and ids[0] != ids[1]


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_clients_mistake_goes_back(world, role, status):
    """As it is, and costs nothing: no other engine would say anything else."""
    r, p, d = scripts(world)
    c = begin(r)
    ex, _ = taken(p)
    if role == "decode":
        ex.prefilled()
        ex, _ = taken(d)
    want = says(ex, status)
    a = c.read()
    assert (a.status, a.body) == want[:2] and nobody(p)
    assert not r.metric("attempts_failed_total") and r.end()["reason"] == "engine_status"


def test_a_clients_mistake_after_a_retry(world):
    r, p, _ = scripts(world)
    c = begin(r)
    fails(taken(p)[0])
    want = says(taken(p)[0], 400)
    a = c.read()
    assert (a.status, a.body) == want[:2]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_busy_engines(world, role):
    """Another may have room; when none has, the client is told when to come again."""
    r, p, d = scripts(world)
    for others in ("busy", "free"):
        c = begin(r)
        for i in range(2):
            ex, _ = taken(p)
            if role == "decode":
                ex.prefilled(HAND % i)
                ex, _ = taken(d)
            if i == 0 or others == "busy":
                ex.reply(429, {"error": {"message": "busy"}}, headers=[("Retry-After", "7")])
        if others == "busy":
            a = c.read()
            assert (a.status, a["retry-after"]) == (429, "7") and b"busy" in a.body
            continue
        if role == "prefill":
            ex.prefilled(HAND % 7)
            ex, _ = taken(d)
        ex.reply(body={"choices": []})
        assert c.read().status == 200


@pytest.mark.parametrize("answer", ["null", None])
def test_no_handoff_is_no_failure(world, answer):
    r, p, d = scripts(world)
    c = begin(r)
    ex, _ = taken(p)
    ex.prefilled(answer) if answer else ex.reply(body={"choices": []})
    leg, _ = taken(d)
    assert not values(leg.body, "kv_transfer_params")
    leg.reply(body={"choices": []})
    assert c.read().status == 200 and nobody(p)
    assert r.metric("kv_handoff_missing_total") == 1 and not r.metric("attempts_failed_total")


# --- handoffs are used once -------------------------------------------------------------------------------


def first_event_is_an_error(ex):
    ex.stream_head().chunk(b'data: {"error":{"message":"KV load failed","code":500}}\n\n').close()


REACHED = {**{how: DECODE_FAILS[how][0] for how in DECODE_FAILS}, "500": fails, "503": lambda ex: fails(ex, 503),
           "error event": first_event_is_an_error, "head alone": lambda ex: ex.stream_head().close()}


def test_decode_engine_refuses_the_connection(world):
    """It saw nothing: the same handoff, to another one; prefill is not done again."""
    r, (p,), d = scripts(world, 1, 2, **FAR)
    d[0].close()
    for _ in range(2):
        c = begin(r, True)
        p.expect().prefilled(HAND % 5)
        leg, _ = taken(d[1:])
        assert values(leg.body, "kv_transfer_params") == [HAND % 5]
        leg.stream("a")
        assert text_of(c.events()) == "a"
    assert r.metric("rescued_total", by="retry") >= 1 and p.quiet(0.1)


@STREAM
@pytest.mark.parametrize("how", REACHED)
def test_decode_engine_was_reached(world, how, stream):
    """The handoff is spent, whoever would get it: prefill again, another decode engine."""
    if how == "error event" and not stream:
        how = "500"
    stream = stream or how == "late"  # an answer in one piece is not tried again then: test_whole.py
    r, p, d = scripts(world, pool={"timeouts": silence(LATE)})
    c = begin(r, stream)
    one, _ = taken(p)
    one.prefilled(HAND % 1)
    leg, first = taken(d)
    assert values(leg.body, "kv_transfer_params") == [HAND % 1]
    REACHED[how](leg)
    two, _ = taken(p)
    assert one["x-request-id"] != two["x-request-id"]
    two.prefilled(HAND % 2)
    last, second = taken(d)
    assert first is not second and values(last.body, "kv_transfer_params") == [HAND % 2]
    last.stream("a", "b") if stream else last.reply(body={"choices": [{"text": "ab"}]})
    if stream:
        assert text_of(c.events()) == "ab"
    else:
        assert c.read().status == 200
    assert (r.end()["reason"], r.end()["rescued"]) == ("ok", "retry")
    leg.end(keep=False)


@pytest.mark.parametrize("how", ["reset", "500"])
def test_the_only_decode_engine_fails(world, how):
    """Nobody is left: an honest error, and no second prefill for nothing."""
    r, p, (d,) = scripts(world, 2, 1)
    c = begin(r, True)
    taken(p)[0].prefilled()
    REACHED[how](taken([d])[0])
    a = c.read()
    assert a.status == (500 if how == "500" else 502) and nobody(p)


def test_a_whole_answer_that_breaks_off(world):
    """The client has nothing of it yet."""
    r, p, d = scripts(world)
    c = begin(r)
    taken(p)[0].prefilled(HAND % 1)
    ex, first = taken(d)
    ex.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"id"').reset()
    taken(p)[0].prefilled(HAND % 2)
    ex, second = taken(d)
    ex.reply(body={"choices": [{"text": "b"}]})
    a = c.read()
    assert a.json() == {"choices": [{"text": "b"}]} and first is not second


def test_a_stream_that_has_begun_is_not_begun_again(world):
    r, p, d = scripts(world)
    c = begin(r, True)
    taken(p)[0].prefilled()
    ex, _ = taken(d)
    ex.stream_head().event("a")
    events = c.events()
    assert next(events).data
    ex.reset()
    assert [e.json()["error"]["code"] for e in events] == ["decode_broken"]
    assert nobody(p) and not r.metric("rescued_total")


# --- the budget ---------------------------------------------------------------------------------------------


def test_budget(world):
    """A fault of all is not multiplied; when it is over, requests are saved again."""
    r, p, _ = world.pd(3, 1, pool={**POOL, "retry_budget": 20}, workers=1)
    r.wait_all_up()
    for e in p:
        e.fault("status", status=503, count=-1)
    with ThreadPoolExecutor(8) as pool:
        assert {a.status for a in pool.map(lambda i: r.complete(f"p{i}"), range(300))} == {503}
    tries = sum(e.counter("faults") for e in p) - 300
    assert 20 <= tries <= 0.2 * 300 + 10 and r.metric("retry_budget_spent_total") > 0
    for e in p:
        e.fault("none")
    for i in range(200):
        assert r.complete(f"good {i}").status == 200
    p[0].fault("status", status=503)
    for i in range(3):
        assert r.complete(f"saved {i}").status == 200
    wait("saved", lambda: r.metric("rescued_total", by="retry") >= 1)


@pytest.mark.parametrize("budget, saved", [(0, 10), (100, 40)])
def test_ten_tries_are_always_allowed(world, budget, saved):
    """A percentage of few requests would be none; ten of all workers together."""
    r, p, _ = world.pd(2, 1, pool={**POOL, "retry_budget": budget}, workers=4)
    r.wait_all_up()
    p[0].fault("status", status=503, count=-1)
    answers = [r.complete(f"p{i}").status for i in range(40)]
    assert set(answers) <= {200, 503}
    assert r.metric("rescued_total", by="retry") in ([saved] if budget == 0 else range(18, saved + 1))
    assert (503 in answers) == (budget == 0)


# --- decode alone -------------------------------------------------------------------------------------------

DIRECT = {"fallback": "direct"}


def test_fallback_is_the_untouched_request(world):
    r, p, d = scripts(world, pool=DIRECT)
    body = b'{ "model":"sim-model" ,"prompt":"x",  "max_tokens":77,"min_tokens":3,"u":1e400,"seed":12345678901234567890}'
    c = r.client().request("POST", URL, body)
    for _ in range(2):
        fails(taken(p)[0])
    ex, _ = taken(d)
    assert ex.body == body
    ex.reply(body={"choices": []})
    assert c.read().status == 200
    line = r.end()
    assert (line["reason"], line["rescued"]) == ("ok", "fallback")
    assert r.metric("rescued_total", by="fallback") == r.metric("direct_total") == 1


@STREAM
@pytest.mark.parametrize("kind", ALONE)
def test_fallback(world, kind, stream):
    """The client sees nothing of it; the decode engine computes the prompt."""
    r, p, d = build(world, kind, pool=DIRECT)
    for e in p:
        e.fault("fail", count=-1)
    prompt = right(r, stream)
    line = end_with(r, "fallback")
    assert line["reason"] == "ok" and r.metric("rescued_total", by="fallback") == 1
    alone = [x for e in d for x in admitted(e) if x.status == 200 and "cache_hit_threshold" not in x.json()]
    assert len(alone) == 1 and alone[0].json()["prompt"] == prompt and not set(alone[0].json()) & TOLD
    assert alone[0].json()["max_tokens"] == 6, "its own limits"
    assert sum(e.counter("local_prefills") for e in d) == 1


@pytest.mark.parametrize("how, why", [("reset", "connection closed before the end of the answer"), ("garbage", "answer is not HTTP"),
                                      ("500", "its status was 5xx"), ("empty", "its answer is of no use"),
                                      ("timeout", "it was late"), ("refused", "connection refused or unreachable")])
def test_fallback_says_why(world, how, why):
    """In the line of a request that ended well."""
    r, p, d = build(world, "nixl", 1, 1, pool={**DIRECT, "timeouts": {"prefill": LATE}}, **FAR)
    p[0].stop() if how == "refused" else p[0].fault(**FAILS_OF_P[how])
    right(r, False)
    line = end_with(r, "fallback")
    assert (line["reason"], line["detail"], line["direct"]) == ("ok", why, "fallback")
    (failed,) = r.lines("attempt failed")
    assert (failed["req"], failed["url"], failed["role"], failed["why"]) == (line["req"], p[0].url, "prefill", why)


@STREAM
def test_fallback_when_no_prefill_engine_is_up(world, stream):
    """Their probes have failed: nobody is tried."""
    r, p, d = build(world, "nixl", 1, 1, pool=DIRECT)
    p[0].stop()
    r.wait_metric("endpoint_up", 0, engine=p[0].url)
    right(r, stream)
    line = end_with(r, "fallback")
    assert (line["reason"], line["direct"], line["tries"]) == ("ok", "no_prefill", None) and not r.lines("attempt failed")
    r.config["pools"][0]["fallback"] = "none"
    r.reload()
    assert r.complete("x").error["code"] == "no_prefill_endpoint"


def test_fallback_is_the_default(world):
    p, d = [world.engine("prefill") for _ in range(2)], [world.engine("decode")]
    pool = {k: v for k, v in world.pool(p, d).items() if k not in ("retries", "fallback")}
    r = world.router(pool, workers=1).wait_all_up()
    for e in p:
        e.fault("fail", count=-1)
    right(r, False)
    assert end_with(r, "fallback")["tries"] == 1
    assert all(len(e.requests()) == 1 for e in p), "both were tried before"


@pytest.mark.parametrize("what", ["retries", "none left", "budget"])
def test_fallback_when_there_is_no_other_try(world, what):
    pool = {"retries": {"retries": 0}, "none left": {"retries": 9, "retry_budget": 100}, "budget": {"retry_budget": 0}}[what]
    r, p, d = world.pd(2, 1, pool={**POOL, **DIRECT, **pool}, workers=1)
    r.wait_all_up()
    for e in p:
        e.fault("fail", count=-1)
    for _ in range(20):
        right(r, False)
    wait("counted", lambda: r.metric("rescued_total", by="fallback") == 20)
    asked = sum(len(e.requests()) for e in p)
    assert asked == {"retries": 20, "none left": 40, "budget": 30}[what]


def test_fallback_none_is_the_error(world):
    r, p, d = scripts(world)
    c = begin(r)
    fails(taken(p)[0])
    want = fails(taken(p)[0], 503)
    a = c.read()
    assert (a.status, a.body) == want[:2] and nobody(d)


def test_no_fallback_from_a_4xx(world):
    r, p, d = scripts(world, pool=DIRECT)
    c = begin(r)
    says(taken(p)[0], 400)
    assert c.read().status == 400 and nobody(d) and not r.metric("direct_total")


@pytest.mark.parametrize("status", [429, 503])
def test_no_fallback_from_busy_prefill_engines(world, status):
    """They say when there is room again: decode engines are not to be filled with what they refuse."""
    r, p, d = world.pd(2, 1, pool={**POOL, **DIRECT}, workers=1)
    r.wait_all_up()
    for e in p:
        e.fault(**{**BUSY, "status": status})
    a = r.complete("hi")
    assert (a.status, a["retry-after"]) == (status, "7") and d[0].requests() == []


def test_fallback_after_decode_engines_failed(world):
    """Not to one that was asked before."""
    r, (p,), d = scripts(world, 1, 2, pool={**DIRECT, "retries": 1})
    c = begin(r)
    p.expect().prefilled(HAND % 1)
    leg, first = taken(d)
    fails(leg)
    fails(p.expect())
    leg, second = taken(d)
    assert first is not second and not values(leg.body, "kv_transfer_params") and leg.json()["max_tokens"] == 9
    leg.reply(body={"choices": []})
    assert c.read().status == 200 and end_with(r, "fallback")


@pytest.mark.parametrize("connector", ["sglang", "p2p_nccl"])
def test_engines_that_cannot_prefill_alone_are_never_asked_to(world, connector):
    """Said so, it is a mistake in the configuration; unsaid, it is none."""
    kind = connector
    r, p, d = build(world, kind)
    config = json.loads(json.dumps(r.config))
    config["pools"][0]["fallback"] = "direct"
    path = world.file("direct", "yaml")
    path.write_text(json.dumps(config, indent=1))
    done = subprocess.run([BIN / "pdrouter", "-t", "-c", path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "fallback" in done.stderr and connector in done.stderr
    del config["pools"][0]["fallback"]
    path.write_text(json.dumps(config, indent=1))
    assert subprocess.run([BIN / "pdrouter", "-t", "-c", path], capture_output=True, check=False).returncode == 0
    r.write(config)
    assert r.ctl("reload").returncode == 0
    for e in p:
        e.fault("fail", count=-1)
    assert r.complete("hi").status == 500
    assert not r.metric("direct_total")
    for x in (x for e in d for x in e.requests()):
        assert connector == "sglang" and x.json()["bootstrap_room"], "only as one of two"


# --- several branches ------------------------------------------------------------------------------------------

FAN = {"fanout": True}


@STREAM
def test_one_branch_of_several_is_tried_again_alone(world, stream):
    r, p, d = scripts(world, pool=FAN)
    c = begin(r, stream, n=2)
    one, two = taken(p)[0], taken(p)[0]
    one.prefilled(HAND % 1)
    leg, _ = taken(d)
    fails(two)
    three, _ = taken(p)
    assert three["x-request-id"] not in (one["x-request-id"], two["x-request-id"])
    three.prefilled(HAND % 3)
    other, _ = taken(d)
    for ex, text in ((leg, "a"), (other, "b")):
        ex.stream(text) if stream else ex.reply(body={"choices": [{"index": 0, "text": text, "finish_reason": "length"}]})
    if stream:
        assert sorted(x["text"] for e in c.events() if e.data != "[DONE]" for x in e.json()["choices"] if x["text"]) == ["a", "b"]
    else:
        choices = c.read().json()["choices"]  # whose leg arrived first is not known
        assert sorted(x["index"] for x in choices) == [0, 1] and sorted(x["text"] for x in choices) == ["a", "b"]
    assert nobody([*p, *d]) and r.end()["rescued"] == "retry"


def test_one_branch_that_cannot_be_saved_fails_all(world):
    """All or nothing: the other's answer is not shown."""
    r, p, d = scripts(world, pool={**FAN, "retries": 1})
    c = begin(r, n=2)
    one, two = taken(p)[0], taken(p)[0]
    one.prefilled(HAND % 1)
    leg, _ = taken(d)
    leg.reply(body={"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
    fails(two)
    fails(taken(p)[0], 503)
    assert c.read().status == 503


def test_branches_of_many_requests(world):
    """Simulated engines, several branches of each request fail."""
    r, p, d = build(world, "nixl", 3, 3, pool={**FAN, "retries": 3, "retry_budget": 100})
    p[0].fault("fail", count=5)
    d[0].fault("fail", count=5)
    for i in range(8):
        a = r.complete(f"fan {i}", n=3)
        assert a.status == 200 and {x["text"] for x in a.json()["choices"]} == {expect.text(f"fan {i}", 4)}
    never_twice(d)
    assert r.metric("rescued_total", by="retry") >= 3


# --- meanwhile ----------------------------------------------------------------------------------------------


def test_client_leaves_between_tries(world):
    r, p, d = scripts(world)
    c = begin(r)
    fails(taken(p)[0])
    ex, _ = taken(p)
    c.close()
    assert ex.gone()
    ex.close()
    assert nobody([*p, *d]) and r.end()["reason"] == "client_gone"


def test_client_leaves_as_the_engine_fails(world):
    """No other engine is troubled for nobody."""
    r, p, _ = world.pd(2, 1, pool=POOL, workers=1)
    r.wait_all_up()
    for e in p:
        e.fault("fail", delay_ms=30, count=-1)
    for i in range(10):
        c = begin(r)
        c.silent(0.005 * i + 0.001)
        c.reset()
    r.end(10)
    assert {x["reason"] for x in r.ends()} <= {"client_gone", "engine_status"}


def test_tried_again_while_draining(world):
    r, p, d = scripts(world)
    c = begin(r, True)
    ex, _ = taken(p)
    r.kill(signal.SIGTERM)
    r.wait_log("stopping")
    fails(ex)
    taken(p)[0].prefilled()
    taken(d)[0].stream("a", "b")
    assert text_of(c.events()) == "ab"
    c.close()


def test_a_worker_per_try_is_not_needed(world):
    """Two at a time meet the same dead engine: each finds its way, neither takes the other's."""
    r, p, d = world.pd(2, 2, pool=POOL)
    r.wait_all_up()
    p[0].fault("fail", count=4)
    d[1].fault("fail", count=4)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: ask(r, i % 2 == 0, f"par {i}"), range(12)))
    assert got == [expect.text(f"par {i}", 6) for i in range(12)]
    never_twice(d)


# --- SGLang: both at once -----------------------------------------------------------------------------------


@STREAM
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sglang_is_tried_again_in_a_new_room(world, role, stream):
    """The other leg is aborted at once, under the rid it has."""
    r, p, d = sglang_scripts(world, 2, 2, pool={**POOL, "connector": "sglang"}, workers=1)
    r.wait_all_up()
    c = begin(r, stream)
    told = []
    (leg_p, p1), (leg_d, d1) = taken(p), taken(d)
    failed, other, who = (leg_p, leg_d, d1) if role == "prefill" else (leg_d, leg_p, p1)
    fails(failed)
    (next_p, p2), (next_d, d2) = taken(p, told), taken(d, told)
    wait("the abort", lambda: who in [e for _, e in told] or taken_abort(who, told))  # the one that failed is told too
    assert {(x.path, x.json()["rid"]) for x, _ in told} == {("/abort_request", other.json()["rid"])}
    assert (p1 is not p2) if role == "prefill" else (d1 is not d2)
    old, new = leg_p.json(), next_p.json()
    assert old["bootstrap_room"] != new["bootstrap_room"] and old["rid"] != new["rid"]
    assert {k: next_d.json()[k] for k in ("bootstrap_room", "rid")} == {k: new[k] for k in ("bootstrap_room", "rid")}
    next_p.reply(body={"choices": [{"index": 0, "text": "t", "finish_reason": "length"}]})
    next_d.stream("a") if stream else next_d.reply(body={"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})
    assert (text_of(c.events()) if stream else c.read().json()["choices"][0]["text"]) == "a"
    assert other.gone() and r.end()["rescued"] == "retry"
    other.close()


def taken_abort(engine, told):
    """The request to abort, where it comes after the next try."""
    if engine.asked.empty():
        return False
    ex = engine.expect("POST /abort_request")
    ex.reply()
    told.append((ex, engine))
    return True


def test_a_kept_connection_is_not_a_try(world):
    """Idle ones that died are replaced for the same engine: no attempt has failed."""
    r, p, d = scripts(world, 1, 1)
    for i in range(2):
        c = begin(r)
        p[0].expect().prefilled(HAND % i)
        d[0].expect().reply(body={"choices": []})
        assert c.read().status == 200
        fresh(*p, *d)
    assert not r.metric("attempts_failed_total") and not r.metric("retry_budget_spent_total")


@pytest.mark.parametrize("kind", KINDS)
def test_a_clients_mistake_under_every_hand_shake(world, kind):
    r, p, d = build(world, kind, pool={"timeouts": silence(LATE)})
    for e in p:
        e.fault(**CLIENTS_FAULT)
    a = r.complete("mistaken")
    assert (a.status, a.error["code"]) == (400, 400) and not r.metric("attempts_failed_total")
    assert sum(e.counter("faults") for e in p) == 1
