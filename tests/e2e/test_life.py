"""Engines that restart: the router notices a new life, learns it anew before the next request goes there, and gives it traffic
with its first good probe."""
import contextlib
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleets import build
from procs import MODEL, SLOW, Load, wait

URL = "/v1/completions"
# retries hide what is noticed late; probes are as far from each other as by default
RETRIES = {"policy": "round_robin", "retries": 2, "retry_budget": 100, "eject_failures": 5, "eject_time": "60s"}
USUAL = {"health_interval": "2s", "rise": 2, "fall": 3, "stats_interval": "1s"}


@pytest.fixture(autouse=True)
def blocks_are_not_checked(world):
    """What a killed engine has not fetched stays held: test_release.py."""
    world.check_engines = False


STOPPED, RESTARTED = "engine has stopped, its port refuses connections", "engine has restarted, what it reports is read again"


def lives(r):
    return r.lines(STOPPED) + r.lines(RESTARTED)


def shown(r, e):
    (x,) = [x for x in r.status()["fleet"]["endpoints"] if x["url"] == e.url]
    return x


def ask(r, **members):
    return lambda _: check(r.complete(max_tokens=2, **members))


def check(a):
    assert a.status == 200, a.body


def again(world, e, **options):
    """Another process of the same role on the port of one that has ended."""
    return world.engine(e.role, port=e.port, **options)


def traffic_after(e, began):
    """Seconds from the start of an engine to its first request of a client."""
    return wait("traffic", lambda: e.requests())[0].time - began


def cut_streams(r, n):
    """Streams that run, and are to be reset."""
    streams = [r.open_stream(n=500) for _ in range(n)]
    for c in streams:
        c.head()


# --- back quickly ---------------------------------------------------------------------------------------


def test_a_killed_engine_is_back_with_its_first_good_probe(world):
    """Its streams were reset, which ejects it for a minute: the new life has nothing to do with that."""
    r, _, d = world.pd(1, 2, pool=RETRIES, workers=2, engine={"token_delay": 20}, **USUAL)
    cut_streams(r, 16)
    load = Load(4, ask(r))
    d[0].stop(signal.SIGKILL)
    wait("out", lambda: r.metric("endpoint_up", engine=d[0].url) == 0)
    began = time.time()
    late = traffic_after(again(world, d[0]), began)
    load.stop()
    assert load.bad == [] and r.metric("endpoint_ejected", engine=d[0].url) == 0
    assert late < 1 * SLOW, "a round each 250 ms"


def test_another_engine_id_in_the_kv_parameters(world):
    """No request and no probe has met the restart, and its figures are seldom asked for: its first answer tells."""
    r, (p,), _ = world.pd(1, 1, health_interval="60s", stats_interval="60s", pool=RETRIES)
    assert r.complete("of the first life").status == 200
    wait("its start time is known", lambda: shown(r, p)["running"] is not None)
    for life in range(4):  # one id in 32 looks like the known one
        p.stop(signal.SIGKILL)
        p = again(world, p)
        # 429: its start time was seen between its answer and decode's request, and no other engine can prefill again
        assert r.complete(f"of life {life}").status in (200, 429)
        with contextlib.suppress(AssertionError):
            wait("noticed", lambda: lives(r), 2)
            break
    assert [x["url"] for x in lives(r)] == [p.url]
    assert r.complete("of the last").status == 200


def test_kv_of_the_present_life_is_freed(world):
    """The new life is counted while it works on a request that was sent before: what it holds for that one is not taken for lost."""
    world.check_engines = True
    r, (p,), (d,) = world.pd(1, 1, health_interval="60s", stats_interval="60s", pool=RETRIES)
    assert r.complete("of the first life").status == 200
    wait("its start time is known", lambda: shown(r, p)["running"] is not None)
    p.stop(signal.SIGKILL)
    p = again(world, p)
    p.fault("slow", delay_ms=500 * SLOW, contains="late")
    with ThreadPoolExecutor(1) as later:
        late = later.submit(r.complete, "late")
        wait("it is there", lambda: p.requests())
        p.fault("reset", delay_ms=60, contains="sign")  # has the engine looked at
        r.complete("sign")
        wait("noticed", lambda: lives(r), 5)
        assert late.result().status == 200
    p.wait_metric("pdsim:held_blocks", 0)


def test_without_a_request_too(world):
    """Only probes see that it has restarted; two of them, since the first one is refused."""
    r, _, d = world.pd(1, 2, health_interval="300ms", fall=9)
    d[0].stop(signal.SIGKILL)
    wait("out", lambda: shown(r, d[0])["state"] != "up")
    assert shown(r, d[0])["state"] == "starting" and "Connection refused" in shown(r, d[0])["reason"]
    again(world, d[0])
    r.wait_metric("endpoint_up", 1, engine=d[0].url)
    (line,) = r.lines(STOPPED)
    assert (line["url"], line["reason"]) == (d[0].url, "connection refused")


# --- learned anew ---------------------------------------------------------------------------------------


def test_it_comes_back_with_another_model(world):
    p = world.engine("prefill", model=[MODEL, "other"])
    d = [world.engine("decode", model=MODEL) for _ in range(2)]
    r = world.router(world.pool([p], d, **{**RETRIES, "models": [], "name": "learns"}), **USUAL).wait_all_up()
    load = Load(4, ask(r))
    d[0].stop(signal.SIGKILL)
    new = again(world, d[0], model="other")
    wait("the new name", lambda: shown(r, d[0])["models"] == ["other"])
    load.stop()
    assert load.bad == [] and new.requests() == [], "none for its former model"
    wait("its state", lambda: shown(r, d[0])["state"] == "up")
    assert r.complete(model="other").status == 200 and len(new.requests()) == 1


@pytest.mark.parametrize("drained", [False, True])
def test_sglang_comes_back_with_another_bootstrap_port(world, drained):
    r, p, _ = build(world, "sglang", pool=RETRIES, **USUAL)
    load = Load(4, ask(r))
    if drained:
        assert r.ctl("drain", "--wait", p[0].url).returncode == 0
    was = shown(r, p[0])["bootstrap_port"]
    p[0].stop(signal.SIGKILL)
    new = again(world, p[0], handshake="sglang")
    assert new.bootstrap != was
    if drained:
        assert r.ctl("undrain", p[0].url).returncode == 0
    wait("requests there", lambda: len(new.requests()) > 5)
    load.stop()
    assert load.bad == [] and shown(r, p[0])["bootstrap_port"] == new.bootstrap
    assert new.counter("rooms_missing") == new.counter("rooms_invalid") == 0


def page(started):
    return b"vllm:num_requests_running 0\nprocess_start_time_seconds %.2f\n" % started


def test_a_start_time_that_changes(world):
    """No round was refused and no request has failed: the figure alone says that it is another process."""
    p = world.script(probes={"/metrics": page(1000)})
    d = world.script(probes={"/metrics": page(1000)})
    r = world.router({**world.pool([p], [d]), "models": [], "name": "learns"}, health_interval="60s")
    wait("figures", lambda: shown(r, d)["running"] == 0 and shown(r, p)["running"] == 0)
    d.probes["/v1/models"] = p.probes["/v1/models"] = b'{"data":[{"id":"other"}]}'
    p.probes["/metrics"] = page(999)
    d.probes["/metrics"] = page(1001)
    wait("what it serves now", lambda: shown(r, d)["models"] == ["other"] and shown(r, d)["state"] == "up")
    (line,) = r.lines(RESTARTED)
    assert line["url"] == d.url, "an earlier start is another replica's"


def test_engine_ids_of_ranks_are_no_new_life(world):
    """vLLM gives each data-parallel rank an id of its own: the engine is looked at, and has started when it had."""
    looked, d = [], world.script()
    p = world.script(probes={"/metrics": lambda ex: (looked.append(1), ex.reply(body=page(1000)))})
    r = world.router(world.pool([p], [d]), health_interval="60s", stats_interval="60s")
    wait("figures", lambda: shown(r, p)["running"] == 0)
    for id in ("e_dp0", "e_dp1", "e_dp2", "e_dp3") * 2:
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
        p.expect().prefilled('{"remote_block_ids":[1,2],"remote_engine_id":"%s"}' % id)
        d.expect().reply(body={"choices": []})
        assert c.read().status == 200
    wait("looked at", lambda: len(looked) >= 2)  # an id in 32 looks like one that is known
    assert len(looked) <= 4 and not lives(r)


def test_what_is_reported_changes(world):
    info = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 9001, "version": "1", "random_seed": 7}
    p = world.script(probes={"/server_info": json.dumps(info).encode()})
    d = world.script()
    r = world.router(world.pool([p], [d], engine="sglang"), health_interval="50ms")
    for key, value in ("random_seed", 8), ("disaggregation_bootstrap_port", 9002), ("version", "2"):
        info[key] = value
        before = len(lives(r))
        p.probes["/server_info"] = json.dumps(info).encode()
        wait(key, lambda n=before: len(lives(r)) == n + 1)
        wait("up", lambda: shown(r, p)["state"] == "up")
    assert shown(r, p)["bootstrap_port"] == 9002 and shown(r, p)["version"] == "2"


def test_requests_that_fail_have_the_engine_looked_at(world):
    """It serves another model, and neither a probe nor a figure is due: the answer to one request says so."""
    p, d = world.script(), world.script()
    r = world.router({**world.pool([p], [d]), "models": [], "name": "learns"}, health_interval="60s", stats_interval="60s")
    d.probes["/v1/models"] = b'{"data":[{"id":"other"}]}'
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled()
    d.expect().reply(404, b'{"error":{"message":"The model does not exist"}}')
    assert c.read().status == 404
    wait("what it serves now", lambda: shown(r, d)["models"] == ["other"])


# --- misconfigured --------------------------------------------------------------------------------------

ASTRAY = "endpoint is misconfigured, no requests go there"


def astray(r, e):
    wait("its state", lambda: shown(r, e)["state"] == "misconfigured")
    assert r.metric("endpoint_state", engine=e.url, state="misconfigured") == 1
    (line,) = r.lines(ASTRAY)
    assert line["url"] == e.url and line["reason"] == shown(r, e)["reason"] and line["reason"] in r.ctl("status").stdout
    return line["reason"]


def test_one_that_serves_another_model_gets_nothing(world):
    r, _, d = world.pd(1, 2, pool=RETRIES, **USUAL)
    load = Load(4, ask(r))
    d[0].stop(signal.SIGKILL)
    new = again(world, d[0], model="other")
    assert astray(r, d[0]) == "serves other, but none of the configured models"
    load.stop()
    assert load.bad == [] and new.requests() == []
    new.stop(signal.SIGKILL)
    new = again(world, d[0])
    wait("requests there", lambda: r.complete().status == 200 and new.requests())


def test_one_of_the_other_role_gets_nothing(world):
    """It says so at its next round, or when a request has failed."""
    info = b'{"disaggregation_mode":"%s","version":"1"}'
    p, d = (world.script(probes={"/server_info": info % role}) for role in (b"prefill", b"decode"))
    r = world.router(world.pool([p], [d], engine="sglang"))
    r.wait_all_up()
    d.probes["/server_info"] = info % b"prefill"
    assert astray(r, d) == "listed as decode engine, but says it is a prefill engine"
    d.probes["/server_info"] = info % b"decode"
    wait("up", lambda: shown(r, d)["state"] == "up" and shown(r, d)["reason"] == "")


def test_a_reload_that_names_what_it_serves(world):
    p, d = world.script(models=["other"]), world.script(models=["other"])
    r = world.router(world.pool([p], [d], name="main"), wait_for="live")
    wait("both", lambda: [shown(r, e)["state"] for e in (p, d)] == ["misconfigured"] * 2)
    assert r.complete().status == 503
    r.reload(pools=[world.pool([p], [d], name="main", models=["other"])])
    r.wait_all_up()
