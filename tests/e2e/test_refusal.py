"""Whose fault is it?  An engine that refuses (4xx) what others accept is ejected; clients' mistakes eject nobody and cost little; a request that fails on
every engine is to blame itself."""
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleets import FAR, KINDS, build
from procs import SLOW, wait
from test_eject import SOON, ask, asked, ejected, heal, state

POOL = {"eject_failures": 5, "eject_rate": 50}
LATE = {**POOL, "eject_time": "60s"}
WORD = {401: "engine refuses our key", 403: "engine refuses our key"}  # else:
OTHERS = "engine refuses what others accept"


@pytest.fixture(autouse=True)
def blocks_are_not_checked(world):
    """What engines that fail leave behind: test_release.py."""
    world.check_engines = False


def warm(r, p, d):
    """Each engine has accepted a request; by then its outcome is known."""
    for i in range(2 * max(len(p), len(d))):
        assert r.complete(f"warm {i}").status == 200
    return r, p, d


def fleet(world, np=2, nd=2, kind="nixl", **pool):
    return warm(*build(world, kind, np, nd, pool={**LATE, **pool}))


def refuse(e, status=404, count=-1, **more):
    e.fault("status", status=status, count=count, **more)


def reason(r, e):
    return next(x["reason"] for x in r.status()["fleet"]["endpoints"] if x["url"] == e.url)


def note(r, e):
    """Its line of `pdctl status`."""
    return next(x for x in r.ctl("status").stdout.splitlines() if e.url in x)


def until_ejected(r, e, one=None):
    wait("ejected", lambda: [(one or r.complete)()] and ejected(r, e) == 1, 30)


# --- the engine's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_that_refuses_what_others_accept(world, role, status):
    """Five of its refusals eject it, each served by another engine; one warning names the engine and the cause."""
    r, p, d = fleet(world)
    e = (p if role == "prefill" else d)[0]
    before = asked(e)
    refuse(e, status)
    assert set(ask(r, 20)) == {200} and asked(e) == before + 5
    assert ejected(r, e) == r.metric("ejections_total") == 1 and r.metric("second_opinions_total") == 5
    line, = r.lines(WORD.get(status, OTHERS))
    assert (line["url"], line["role"], line["status"], line["level"]) == (e.url, role, status, "warn")
    out, = r.lines("endpoint ejected, its requests fail")
    assert (out["url"], out["last"], out["status"]) == (e.url, "4xx", status)


@pytest.mark.parametrize("status", [401, 404])
def test_the_status_says_so_until_it_accepts(world, status):
    """While it is up, ejected or drained."""
    r, _, d = fleet(world, eject_failures=2, eject_rate=0)
    said = WORD.get(status, OTHERS)
    assert reason(r, d[0]) == reason(r, d[1]) == ""
    refuse(d[0], status, count=1)
    wait("a refusal", lambda: [ask(r)] and reason(r, d[0]) == said)
    assert state(r, d[0]) == "in" and f"  {said}; " in note(r, d[0])
    heal(d[0])
    wait("its next answer", lambda: [ask(r)] and reason(r, d[0]) == "")
    refuse(d[0], status)
    until_ejected(r, d[0])
    assert reason(r, d[0]) == said and f"  {said}; ejected, " in note(r, d[0])
    assert r.ctl("drain", d[0].url).returncode == 0
    assert f"(drained by pdctl; else up: {said})" in note(r, d[0]) and reason(r, d[1]) == ""


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("kind", KINDS)
def test_under_every_hand_shake(world, kind, role):
    r, p, d = fleet(world, kind=kind, eject_failures=2)
    e = (p if role == "prefill" else d)[0]
    refuse(e, 401)
    assert {r.complete(f"prompt {i}", stream=i % 3 == 0).status for i in range(12)} == {200}
    assert ejected(r, e) == r.metric("ejections_total") == 1


@pytest.mark.parametrize("n", [2, 3])
def test_streams_too_and_one_of_three(world, n):
    r, _, d = fleet(world, nd=n)
    refuse(d[0])
    for _ in range(6 * n):
        c = r.open_stream(n=2)
        assert len(list(c.events())) == 3 and c.answer.status == 200
    assert ejected(r, d[0]) == r.metric("ejections_total") == 1


def test_samples_of_one_request(world):
    """Each branch that is refused is served elsewhere."""
    r, _, d = fleet(world, eject_failures=2)
    refuse(d[0])
    assert [r.complete(["one", "two", "three", "four"]).status for _ in range(2)] == [200] * 2
    assert r.metric("fanned_out_branches_total") == 8
    assert ejected(r, d[0]) == r.metric("ejections_total") == 1


def test_a_stream_that_is_resumed_is_refused(world):
    r, _, d = fleet(world, nd=3, resume=True, retries=3)
    refuse(d[1])
    refuse(d[2])
    d[0].fault("reset_mid_stream", after_events=2)
    c = r.open_stream(n=6)
    heal(d[2])
    assert [x for x in c.events()][-1] is not None and r.end()["reason"] == "ok"


def test_its_trial_is_refused(world):
    """A refusal that its peers do not give is a failed trial: out for longer each time, and no client sees it."""
    r, _, d = fleet(world, **{**SOON, "eject_failures": 5})
    refuse(d[0])
    wait("two trials", lambda: set(ask(r, 4)) == {200} and r.metric("ejections_total") >= 3, 30)
    lines = [x["for_ms"] // SLOW for x in r.lines("endpoint ejected, its requests fail")]
    assert lines[:3] == [200, 400, 800] and len(r.lines(OTHERS)) == 1
    heal(d[0])
    wait("back", lambda: ask(r) and state(r, d[0]) == "in", 30)
    assert r.lines("engine accepts requests again")[0]["url"] == d[0].url


def test_its_trial_is_refused_without_a_second_opinion(world):
    r, _, d = fleet(world, **{**SOON, "retries": 0})
    refuse(d[0])
    until_ejected(r, d[0])
    wait("two trials", lambda: ask(r) and r.metric("ejections_total") == 3, 30)
    assert not r.metric("second_opinions_total") and not ejected(r, d[1])


@pytest.mark.parametrize("pool", [{"retries": 0}, {"retry_budget": 0}], ids=["no retries", "no budget left"])
def test_a_share_that_cannot_be_chance(world, pool):
    """No second opinion is bought: the shares of both engines decide, after some twenty requests."""
    r, p, d = fleet(world, **pool)
    while pool.get("retries") != 0 and r.metric("attempts_failed_total") < 10:  # ten tries are always allowed
        p[0].fault("fail")
        ask(r, 6)
    before = asked(d[0])
    refuse(d[0])
    until_ejected(r, d[0])
    assert asked(d[0]) - before <= 25 and r.metric("ejections_total") == 1
    assert set(ask(r, 10)) == {200}


# --- the clients' ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_clients_mistake_costs_little(world, role):
    """The first is sent to another engine, which says the same.  Then they are believed for a second, for two, for four..."""
    r, p, d = fleet(world, eject_failures=1, eject_rate=1)
    for e in p if role == "prefill" else d:
        refuse(e, 400, contains="wrong")
    began = time.monotonic()
    answers = [r.complete("wrong") for _ in range(60)]
    assert {a.status for a in answers} == {400} and "simulated failure" in answers[0].error["message"]
    assert r.metric("second_opinions_total") <= 2 + (time.monotonic() - began)
    assert not r.metric("ejections_total") and set(ask(r, 4)) == {200}


def test_a_client_that_sends_nothing_else(world):
    """Of many clients' requests one in three is wrong, for seconds: nobody is ejected, whoever is asked."""
    r, _, d = fleet(world, nd=3)
    for e in d:
        refuse(e, 400, contains="wrong")
    with ThreadPoolExecutor(6) as many:
        got = list(many.map(lambda i: r.complete("wrong" if i % 3 == 0 else "right").status, range(300)))
    assert got == [400 if i % 3 == 0 else 200 for i in range(300)]
    assert not r.metric("ejections_total") and not r.lines(OTHERS)


def test_engines_are_not_looked_at_for_each_of_a_clients_mistakes(world):
    """A refusal may come from another engine on that port; one that others confirm does not."""
    r, _, d = warm(*build(world, "nixl", pool=LATE, health_interval="60s"))
    for e in d:
        refuse(e, 404, contains="wrong")
    before, end = r.metric("probes_ok_total"), time.monotonic() + 2
    while time.monotonic() < end:
        assert r.complete("wrong").status == 404
    assert r.metric("probes_ok_total") - before < 15


def test_a_single_engine_that_refuses_is_not_looked_at_for_each_request(world):
    """No other engine can confirm its refusals, so each may be the sign of a restart: once a second is often enough."""
    r, _, d = warm(*build(world, "nixl", 1, 1, pool=LATE, health_interval="60s"))
    refuse(d[0], 404)
    before, began = r.metric("probes_ok_total"), time.monotonic()
    while time.monotonic() < began + 0.7:
        assert r.complete("any").status == 404
    assert 1 <= r.metric("probes_ok_total") - before <= 2 + (time.monotonic() - began)


def test_nobody_is_asked_where_nobody_accepts(world):
    """A fleet of which no engine has accepted anything has no second opinion."""
    r, _, d = build(world, "nixl", pool=LATE)
    for e in d:
        refuse(e)
    assert ask(r, 6) == [404] * 6
    assert not r.metric("second_opinions_total") and not r.metric("ejections_total")


def test_the_refusal_is_the_answer_where_the_other_fails(world):
    """The other engine is dead: the client learns what the first one said."""
    r, _, d = warm(*build(world, "nixl", pool=LATE, drain_timeout="100ms", **FAR))
    d[1].stop()
    refuse(d[0], body='{"error":{"message":"its own words","type":"x","param":null,"code":404}}')
    assert {(a.status, a.error["message"]) for a in (r.complete() for _ in range(3))} == {(404, "its own words")}


@pytest.mark.parametrize("status", [400, 404])
def test_a_refusal_is_no_proof_of_health(world, status):
    """It does not begin the count of failures anew."""
    r, _, d = fleet(world, retries=0, eject_failures=3, eject_rate=0)
    for kind, count in (("fail", 2), ("status", 1), ("fail", 1)):
        d[0].fault(kind, count=count, **({"status": status} if kind == "status" else {}))
    assert sorted(ask(r, 8)) == sorted([200] * 4 + [500] * 3 + [status])
    assert ejected(r, d[0]) == 1


# --- the request's --------------------------------------------------------------------------------------


def poison(engines, kind, **more):
    for e in engines:
        e.fault(kind, contains="poison", count=-1, **more)


@pytest.mark.parametrize("kind", ["fail", "reset", "empty200"])
@pytest.mark.parametrize("role, n", [("prefill", 2), ("decode", 2), ("decode", 3)])
def test_a_poisonous_request_ejects_nobody(world, role, n, kind):
    """Seven times, and all at once; seen: seven bodies of 5 MB had ejected one engine of each role."""
    r, p, d = fleet(world, n, n)
    poison(p if role == "prefill" else d, kind)
    with ThreadPoolExecutor(7) as many:
        got = [r.complete("poison").status for _ in range(7)] + list(many.map(lambda _: r.complete("poison").status, range(7)))
    assert min(got) >= 500 and not ejected(r)
    assert set(ask(r, 2 * n)) == {200}


@pytest.mark.parametrize("policy", ["session", "prefix"])
def test_a_poisonous_request_that_goes_to_one_engine_first(world, policy):
    r, _, d = fleet(world, policy=policy, **({"session_header": "X-Session"} if policy == "session" else {}))
    poison(d, "fail")
    assert min(r.complete("poison", headers=[("X-Session", "a")]).status for _ in range(9)) == 500
    assert not ejected(r) and r.metric("attempts_failed_total") == 18


def test_poisonous_requests_without_a_budget(world):
    """Once some have failed on two engines, those that fail on one and are not tried again charge nobody."""
    r, _, d = fleet(world, retry_budget=0)
    poison(d, "fail")
    assert min(r.complete("poison").status for _ in range(40)) == 500 and not ejected(r)
    assert 10 <= r.metric("attempts_failed_total") - 40 < 20


def test_a_broken_engine_among_poisonous_requests(world):
    """It fails what the other engine serves."""
    r, _, d = fleet(world)
    poison(d, "fail")
    assert min(r.complete("poison").status for _ in range(10)) == 500
    d[0].fault("fail", count=-1)
    until_ejected(r, d[0], lambda: [r.complete(x) for x in ("poison", "a", "b", "c", "d", "e")])
    assert not ejected(r, d[1])


def test_two_broken_engines_of_three_are_charged(world):
    """Where a third engine serves, the two that failed are at fault."""
    r, _, d = fleet(world, nd=3, max_ejected=67)
    for e in d[:2]:
        e.fault("fail", count=-1)
    assert set(ask(r, 40)) == {200}
    assert ejected(r, d[0]) == ejected(r, d[1]) == 1 and not ejected(r, d[2])


def test_a_deadline_acquits_nobody(world):
    """Two engines fail, and the request has no time left for one that serves it: whose fault it was is not known."""
    r, p, d = fleet(world, 2, 1, eject_failures=1, fallback="direct", allow_timeout_header=True)
    for e in p:
        e.fault("fail")
    d[0].fault("no_answer")
    assert r.complete(headers=[("X-Request-Timeout-Ms", str(400 * SLOW))]).error["code"] == "request_timeout"
    assert ejected(r) == 1 and not r.lines("endpoint back, the request had caused its last failure")
