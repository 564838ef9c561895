"""Ejection: an engine whose requests fail is left alone for a while, by all workers, and then tried by one request."""
import itertools
import os
import signal

import pytest

from fleets import LATE, build
from legs import unaccepting
from procs import MODEL, SLOW, Load, silence, wait

# no request goes to another engine instead, so that each counts where it went
POOL = {"policy": "round_robin", "eject_failures": 5, "eject_time": "60s"}
SOON = {**POOL, "eject_time": f"{200 * SLOW}ms"}
FOUR = {"workers": 4}
FAR = {"health_interval": "60s"}  # nobody notices but requests
FAILING = {"kind": "fail", "count": -1}
REFUSES = {"kind": "status", "status": 400, "count": -1}


@pytest.fixture(autouse=True)
def blocks_are_not_checked(world):
    """What engines that fail leave behind: test_release.py."""
    world.check_engines = False


def ejected(r, e=None):
    return r.metric("endpoint_ejected", **({"engine": e.url} if e else {}))


def state(r, e):
    """What pdctl says of it: in, ejected, due or tried."""
    return next(x["ejected"] for x in r.status()["fleet"]["endpoints"] if x["url"] == e.url)


def asked(e):
    """How many requests of clients it has seen: what only frees blocks has no model of theirs."""
    return sum(x.json().get("model", MODEL) == MODEL for x in e.requests())


def ask(r, n=1):
    """n requests on connections of their own; their statuses."""
    return [r.complete().status for _ in range(n)]


def until_ejected(r, e, one=None):
    """Asks until that engine is ejected."""
    wait("ejected", lambda: [(one or r.complete)()] and ejected(r, e) == 1, 30)


def fail(r, e, **fault):
    """The engine fails until it is ejected; returns how many requests that took."""
    before = asked(e)
    e.fault(**(fault or FAILING))
    until_ejected(r, e)
    return asked(e) - before


def heal(e):
    e.tell("/sim/fault", kind="none")


def stream(r):
    """A stream read to its end, whatever that is."""
    c = r.open_stream()
    try:
        return c.read().status
    except Exception:
        return None


# --- out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_five_failures_in_a_row_eject_for_all_workers(world, role):
    r, p, d = world.pd(2, 2, pool=POOL, **FOUR)
    e = p[0] if role == "prefill" else d[0]
    assert fail(r, e) == 5
    assert set(ask(r, 40)) == {200} and asked(e) == 5
    assert ejected(r) == ejected(r, e) == r.metric("ejections_total", engine=e.url) == r.metric("ejections_total") == 1
    line, = r.lines("endpoint ejected, its requests fail")
    assert [line[key] for key in ("url", "role", "for_ms", "last", "status")] == [e.url, role, 60000, "5xx", 500]


def test_retries_hide_it(world):
    """An engine that fails costs five requests a second try, and then none."""
    r, _, d = world.pd(2, 2, pool={**POOL, "retries": 2}, **FOUR)
    d[0].fault(**FAILING)
    assert set(ask(r, 40)) == {200}
    assert asked(d[0]) == 5 and ejected(r, d[0]) == 1


def test_one_success_begins_the_count_anew(world):
    r, _, d = world.pd(1, 2, pool=POOL, workers=1)
    for _ in range(4):
        d[0].fault("fail", count=4)
        assert ask(r, 10).count(500) == 4
    assert ejected(r) == 0


def test_half_of_its_answers(world):
    """Not in a row: half of at least 20 within the last seconds."""
    r, p, _ = world.pd(2, 1, pool={**POOL, "eject_failures": 0, "eject_rate": 50}, workers=1)
    for _ in range(9):
        p[0].fault("fail")
        assert sorted(ask(r, 4)) == [200, 200, 200, 500]
    assert ejected(r) == 0 and asked(p[0]) == 18
    for _ in range(2):
        p[0].fault("fail")
        ask(r, 4)
    assert ejected(r, p[0]) == 1 and asked(p[0]) <= 21


def test_a_quarter_of_its_answers_is_not_half(world):
    r, p, _ = world.pd(2, 1, pool={**POOL, "eject_failures": 0, "eject_rate": 50}, workers=1)
    for _ in range(8):
        p[0].fault("fail")
        assert ask(r, 8).count(500) == 1
    assert ejected(r) == 0 and asked(p[0]) == 32


@pytest.mark.parametrize("kind", ["reset", "half_head", "garbage", "empty200", "truncate", "error_event", "reset_mid_stream"])
def test_whatever_fails_counts(world, kind):
    """Streams that break off too: their first byte was good, the outcome comes with the end."""
    r, _, d = world.pd(1, 2, pool=POOL)
    d[0].fault(kind, count=-1, after_events=2)
    until_ejected(r, d[0], lambda: stream(r))
    assert asked(d[0]) == 5 and ejected(r) == 1


def test_a_black_hole_is_ejected_by_timeouts(world):
    """It accepts, answers /health, and says nothing to requests."""
    r, _, d = world.pd(1, 2, pool={**POOL, "eject_failures": 3, "timeouts": silence(LATE)}, **FOUR)
    assert fail(r, d[0], kind="no_answer", count=-1) == 3
    assert set(ask(r, 20)) == {200} and r.metric("endpoint_up", engine=d[0].url) == 1
    assert asked(d[0]) == 3


def test_a_host_that_does_not_accept(world):
    """It is said that it refuses: a probe that comes through brings it back."""
    r, (p,), d = world.scripts(1, 2, pool={**POOL, "eject_failures": 1, "timeouts": {"connect": LATE}}, workers=1, **FAR)
    r.wait_all_up()
    with unaccepting(d[0]):
        held = r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "x"})
        p.expect().prefilled()
        assert held.read().status == 504 and ejected(r, d[0]) == 1
        d[1].expect().reply(body={})  # told, so that the prefill engine releases
    assert r.lines("endpoint ejected, its requests fail")[0]["last"] == "timeout"


def test_health_is_good_and_requests_fail(world):
    """Probes do not bring back an engine that answers them and nothing else."""
    r, _, d = world.pd(1, 2, pool=POOL)
    fail(r, d[0])
    seen = r.metric("probes_ok_total")
    wait("many a good probe", lambda: r.metric("probes_ok_total") > seen + 20)
    assert ejected(r, d[0]) == 1 and r.metric("endpoint_up", engine=d[0].url) == 1


def test_who_is_ejected_is_told(world):
    r, _, d = world.pd(1, 2, pool=POOL)
    fail(r, d[0])
    pool = r.get("/health").json()["pools"][MODEL]
    assert pool["can_serve"] and [x["endpoint"] for x in pool["decode"]["ejected"]] == [d[0].url] and pool["prefill"]["ejected"] == []
    assert 0 < pool["decode"]["ejected"][0]["left_ms"] <= 60000
    line = next(x for x in r.ctl("status").stdout.splitlines() if d[0].url in x)
    assert " ejected " in line and "s left; " in line
    assert state(r, d[0]) == "ejected" and state(r, d[1]) == "in"


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429, 501])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_is_the_clients_fault_never_ejects(world, role, status):
    """sglang#25811: breakers that bad requests had opened, fleet-wide."""
    r, p, d = world.pd(2, 2, pool={**POOL, "eject_failures": 1, "eject_rate": 1})
    for e in p if role == "prefill" else d:
        e.fault(**{**REFUSES, "status": status})
    assert set(ask(r, 30)) == {status}
    assert r.metric("ejections_total") == 0


@pytest.mark.parametrize("kind", ["nixl", "sglang", "mooncake", "push", "lmcache", "p2p_nccl"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_only_the_leg_at_fault_is_charged(world, kind, role):
    """As where both legs run at once, too: there four bad decodes have cost others all their engines."""
    r, p, d = build(world, kind, pool={**POOL, "retries": 0, "eject_failures": 3})
    e = p[0] if role == "prefill" else d[0]
    e.fault(**FAILING)
    until_ejected(r, e)
    assert ejected(r) == r.metric("ejections_total") == 1


# --- not too many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n,most,out", [(1, 100, 0), (2, 50, 1), (2, 100, 1), (4, 50, 2), (4, 0, 0), (5, 50, 2)])
def test_never_more_than_max_ejected(world, n, most, out):
    r, _, d = world.pd(1, n, pool={**POOL, "eject_failures": 1, "max_ejected": most}, **FOUR)
    for e in d:
        e.fault(**FAILING)
    assert set(ask(r, 8 * n)) == {500}
    assert ejected(r) == r.metric("ejections_total") == out


def test_who_is_down_counts_as_out(world):
    r, _, d = world.pd(1, 4, pool={**POOL, "eject_failures": 1})
    d[0].tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=d[0].url)
    for e in d:
        e.fault(**FAILING)
    assert set(ask(r, 20)) == {500} and ejected(r) == 1


@pytest.mark.parametrize("goes", ["down", "drained", "configured away"])
def test_one_that_goes_brings_one_back(world, goes):
    r, p, d = world.pd(1, 4, pool={**POOL, "eject_failures": 1})
    for e in d[:2]:
        fail(r, e)
    if goes == "down":
        d[3].tell("/sim/health", status=503)
    elif goes == "drained":
        assert r.ctl("drain", d[3].url).returncode == 0
    else:
        r.reload(pools=[world.pool(p, d[:3], **{**POOL, "eject_failures": 1})])
    wait("one is back", lambda: ejected(r) == 1)
    assert r.lines("endpoint back, too few of its role would be left")


def test_a_reload_that_turns_it_off(world):
    r, p, d = world.pd(1, 2, pool=POOL)
    fail(r, d[0])
    r.reload(pools=[world.pool(p, d, policy="round_robin")])
    wait("back", lambda: ejected(r) == 0)
    heal(d[0])
    assert set(ask(r, 4)) == {200} and asked(d[0]) > 5


# --- nobody else ----------------------------------------------------------------------------------------

RETRY = {**POOL, "retries": 2, "retry_budget": 100}


def test_an_ejected_engine_is_the_last_resort(world):
    """It works again and nobody knows; the only other one refuses connections, until that ejects it in its turn."""
    r, _, d = world.pd(1, 2, pool=RETRY, workers=1, **FAR)
    fail(r, d[0])
    heal(d[0])
    with r.unwatched():
        d[1].stop(signal.SIGKILL)
        assert ask(r, 10) == [200] * 10
    assert r.metric("last_resort_total") == len(r.lines("an ejected endpoint is asked, no other is left")) == 4, "the fifth failure ejects"
    assert r.lines("an ejected endpoint is asked, no other is left")[0]["why"] == "last_resort"
    assert ejected(r, d[0]) == 0
    assert r.lines("endpoint back, too few of its role would be left")[0]["url"] == d[0].url


def test_the_last_resort_is_a_retry(world):
    """Where none is made, its failure is the client's."""
    r, _, d = world.pd(1, 2, pool={**RETRY, "retries": 0}, workers=1, **FAR)
    fail(r, d[0])
    heal(d[0])
    d[1].stop(signal.SIGKILL)
    assert ask(r) == [502] and not r.metric("last_resort_total")


def test_decoding_alone_comes_before_the_last_resort(world):
    r, p, _ = world.pd(2, 1, pool={**RETRY, "fallback": "direct"}, workers=1, **FAR)
    fail(r, p[0])
    before = asked(p[0])
    p[1].fault(**FAILING)
    assert ask(r) == [200] and asked(p[0]) == before and not r.metric("last_resort_total")


def test_one_that_refuses_is_ejected_beyond_max_ejected(world):
    """It is out anyway; of those that only fail as many are back as max_ejected wants."""
    r, _, d = world.pd(1, 4, pool=RETRY, workers=1, **FAR)
    for e in d[:2]:
        fail(r, e)
    for e in d[:2]:
        heal(e)
    with r.unwatched():
        d[2].stop(signal.SIGKILL)
        until_ejected(r, d[2])
        assert ejected(r) == 2, "and one of the others is back"
        assert set(ask(r, 8)) == {200}


def test_who_refuses_alone_is_not_ejected(world):
    r, _, (d,) = world.pd(1, 1, pool=POOL, workers=1, **FAR)
    with r.unwatched():
        d.stop(signal.SIGKILL)
        assert set(ask(r, 8)) == {502} and ejected(r) == 0


# --- and back -------------------------------------------------------------------------------------------


def stuck_trial(r, e):
    """An ejected engine is due and well, but streams of it stand still: the one that tries it, among 24."""
    heal(e)
    e.pause()
    before = asked(e)
    wait("due", lambda: state(r, e) == "due")
    streams = [r.open_stream(n=2) for _ in range(24)]
    wait("the trial", lambda: asked(e) == before + 1)
    return streams, before


def test_one_request_of_all_workers_tries_it(world):
    r, _, d = world.pd(1, 2, pool=SOON, **FOUR)
    fail(r, d[0])
    streams, before = stuck_trial(r, d[0])
    wait("the others", lambda: asked(d[1]) >= 23)
    assert set(ask(r, 12)) == {200} and asked(d[0]) == before + 1 and state(r, d[0]) == "tried"
    d[0].go_on()
    assert all(len(list(c.events())) == 3 for c in streams)
    assert ejected(r) == 0
    assert [(x["role"], x["last"]) for x in r.lines("endpoint back, its trial request succeeded")] == [("decode", "5xx")]
    assert set(ask(r, 12)) == {200} and asked(d[0]) > before + 1


def test_a_failed_trial_doubles_the_time(world):
    r, _, d = world.pd(1, 2, pool={**SOON, "eject_max_time": f"{700 * SLOW}ms"}, **FOUR)
    assert fail(r, d[0]) == 5
    wait("three trials", lambda: ask(r, 4) and r.metric("ejections_total") == 4, 30)
    lines = [x["for_ms"] // SLOW for x in r.lines("endpoint ejected, its requests fail")]
    assert lines == [200, 400, 700, 700]
    assert asked(d[0]) == 5 + 3, "one request of each"


def test_one_that_fails_again_at_once_is_out_for_longer(world):
    r, _, d = world.pd(1, 2, pool=SOON, workers=1)
    fail(r, d[0])
    heal(d[0])
    wait("back", lambda: ask(r) and ejected(r) == 0)
    fail(r, d[0])
    assert [x["for_ms"] // SLOW for x in r.lines("endpoint ejected, its requests fail")] == [200, 400]


def test_a_trial_whose_client_leaves_says_nothing(world):
    r, _, d = world.pd(1, 2, pool=SOON, **FOUR)
    fail(r, d[0])
    streams, before = stuck_trial(r, d[0])
    for c in streams:
        c.reset()
    r.wait_metric("client_connections", 1)
    d[0].go_on()
    wait("due again", lambda: state(r, d[0]) == "due")
    wait("tried again", lambda: ask(r) and ejected(r) == 0)
    assert asked(d[0]) > before + 1 and r.metric("ejections_total") == 1


def test_a_worker_that_dies_gives_its_trial_away(world):
    r, _, d = world.pd(1, 2, pool=SOON, **FOUR)
    fail(r, d[0])
    _, before = stuck_trial(r, d[0])
    for pid in r.children("worker"):
        r.murder(pid)
    wait("due again", lambda: state(r, d[0]) == "due")
    d[0].go_on()
    r.wait_for("ready")
    wait("tried again", lambda: ask(r) and ejected(r) == 0)
    assert asked(d[0]) > before + 1 and r.metric("ejections_total") == 1
    r.look_over()


def test_a_worker_that_stands_still_loses_its_trial(world):
    """It has as long as all its timeouts together; when it goes on it ends nobody else's."""
    late = {"connect": "100ms", "prefill": "1s", **silence("2s")}
    r, _, d = world.pd(1, 2, pool={**SOON, "timeouts": late}, worker_watchdog="0", **FOUR)
    fail(r, d[0])
    streams, _ = stuck_trial(r, d[0])
    pids = r.children("worker")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait("its time is over", lambda: state(r, d[0]) == "due", 30)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    d[0].go_on()
    wait("back", lambda: ask(r) and ejected(r) == 0, 20)
    for c in streams:
        c.reset()


def test_a_good_probe_brings_back_one_that_was_not_reached(world):
    """No connection of a request came through, and none was refused: it may be the same life."""
    r, (p,), d = world.scripts(1, 2, pool={**POOL, "eject_failures": 1, "timeouts": {"connect": LATE}}, workers=1,
                               health_interval="1s", health_timeout="900ms", fall=50)
    r.wait_all_up()
    with unaccepting(d[0]):
        held = r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "x"})
        p.expect().prefilled()
        assert held.read().status == 504 and ejected(r, d[0]) == 1
        d[1].expect().reply(body={})
    world.script(port=d[0].port)
    wait("back", lambda: ejected(r) == 0)


def test_one_that_was_down_begins_anew(world):
    r, _, d = world.pd(1, 2, pool=POOL)
    fail(r, d[0])
    d[0].tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=d[0].url)
    heal(d[0])
    d[0].tell("/sim/health", status=200)
    r.wait_metric("endpoint_up", 1, engine=d[0].url)
    assert ejected(r) == 0 and set(ask(r, 4)) == {200} and asked(d[0]) > 5


def test_slow_start_follows(world):
    r, _, d = world.pd(1, 2, pool={**SOON, "slow_start": "120s"}, workers=1)
    fail(r, d[0])
    heal(d[0])
    wait("back", lambda: ask(r) and ejected(r) == 0)
    before = [e.metric("pdsim:requests_total", path="/v1/completions") for e in d]
    assert set(ask(r, 40)) == {200}
    late, other = [e.metric("pdsim:requests_total", path="/v1/completions") - n for e, n in zip(d, before)]
    assert late <= 4 and late + other == 40


@pytest.mark.parametrize("policy", ["least_loaded", "power_of_two", "random", "session", "prefix"])
def test_every_policy_passes_it_by_and_tries_it_once(world, policy):
    r, _, d = world.pd(1, 2, pool={**SOON, "policy": policy, "eject_failures": 3}, **FOUR)
    n = itertools.count()
    d[0].fault(**FAILING)

    def one(k=0):
        return r.complete(prompt=f"{next(n)} prompt " * 50, headers=[("X-Session-ID", str(next(n)))]).status
    until_ejected(r, d[0], one)
    load = Load(4, one)
    wait("a trial or two", lambda: r.metric("ejections_total") >= 3, 30)
    load.stop()
    assert not load.bad and asked(d[0]) - r.metric("ejections_total") in (2, 3, 4, 5), "three at first, then one each"
