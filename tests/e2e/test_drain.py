"""pdctl drain: an engine gets no new requests, those it has go on, and nothing but its operator brings it back."""
import re
import signal
import subprocess
import time

import pytest

import expect
from procs import MODEL, BIN, SLOW, Load, wait
from raw import text_of

FOR_GOOD = "It gets no new requests until `pdctl undrain`, a restart of pdrouter, or its removal from the configuration.\n"


def shown(r, url, role=None):
    return next(e for e in r.status()["fleet"]["endpoints"] if e["url"] == url and role in (None, e["role"]))


def drain(r, *args, code=0):
    done = r.ctl("drain", *args)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def undrain(r, *args):
    done = r.ctl("undrain", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def bring_back(r, url):
    """It is starting first, for some milliseconds: what it says about itself is learned anew."""
    undrain(r, url)
    wait("up again", lambda: shown(r, url)["state"] == "up")


def ask(r, n=6):
    for _ in range(n):
        assert r.complete(max_tokens=1).status == 200


def asked(engine):
    return engine.metric("pdsim:requests_total", path="/v1/completions") or 0


def begun(seen):
    """When the client began the request, which it says in its id."""
    return int(re.match(r"t(\d+)", seen["x-request-id"])[1]) / 1e6


def drained_under_load(world):
    """Four workers, asked all the time, and five drains: what a client begins after the answer never goes there.  Seconds until
    the last request of each drain was there that had been chosen before."""
    r, p, d = world.pd(2, 2, workers=4, pool={"policy": "round_robin"})
    r.wait_all_up()

    def one(_):
        a = r.complete(max_tokens=2, headers=[("X-Request-Id", f"t{time.time_ns() // 1000}")])
        assert a.status == 200, a.body

    load = Load(8, one)
    late = []
    for _ in range(5):
        for e in (p[0], d[0]):
            wait("requests there", lambda e=e, n=asked(e): asked(e) > n + 8)
            drain(r, e.url)
            answered = time.time()
            time.sleep(0.15 * SLOW)
            seen = e.requests()
            assert [s["x-request-id"] for s in seen if begun(s) > answered] == []
            if e is p[0]:  # the other leg of a branch waits for its prefill
                late.append(max(s.time for s in seen) - answered)
            undrain(r, e.url)
    load.stop()
    assert load.bad == [] and load.done > 50
    return late


def test_nothing_new_comes_under_load(world):
    drained_under_load(world)


@pytest.mark.timing
def test_what_was_chosen_before_a_drain_comes_at_once(world):
    """Within 10 ms; a machine that is busy with other things gets some more rounds."""
    rounds = []
    while not rounds or (rounds[-1] >= 0.010 and len(rounds) < 4):
        rounds.append(max(drained_under_load(world)))
    assert rounds[-1] < 0.010, rounds


def test_streams_go_on_to_their_end(world):
    r, p, d = world.pd(1, 2, workers=4, engine={"token_delay": 10}, pool={"policy": "round_robin"})
    r.wait_all_up()
    streams = [r.open_stream(f"s{i}", n=120 * SLOW) for i in range(8)]
    for c in streams:
        c.head()
    n = d[0].metric("pdsim:running_requests")
    assert n > 0
    said = drain(r, d[0].url).stdout
    m = re.match(rf"draining: {d[0].url}, decode of pool \S+: (\d+) in flight\n", said)
    assert int(m[1]) == n and said.endswith(FOR_GOOD) and "503" not in said
    row = shown(r, d[0].url)
    assert (row["state"], row["drained"], row["else"], row["in_flight"]) == ("draining", True, "up", n)
    assert "(drained by pdctl; else up)" in r.ctl("status").stdout
    assert r.metric("endpoint_up", engine=d[0].url) == 0
    assert r.metric("endpoint_state", engine=d[0].url, state="draining") == 1
    assert r.metric("endpoints_draining") == 0, "these are no longer configured"
    before = len(d[0].requests())
    ask(r, 8)
    for i, c in enumerate(streams):
        assert text_of(list(c.events())) == expect.text(f"s{i}", 120 * SLOW)
    assert len(d[0].requests()) == before
    wait("nothing there", lambda: shown(r, d[0].url)["in_flight"] == 0)
    assert undrain(r, d[0].url).stdout == f"undrained: {d[0].url}, decode of pool {row['pool']}: starting\n", "learned anew first"
    assert not shown(r, d[0].url)["drained"]
    ask(r)
    assert len(d[0].requests()) > before


def test_wait_returns_when_nothing_is_left(world):
    r, p, d = world.pd(1, 2, engine={"token_delay": 10}, pool={"policy": "round_robin"})
    r.wait_all_up()
    streams = [r.open_stream(n=300) for _ in range(4)]
    for c in streams:
        c.head()
    d[0].pause()
    done = drain(r, d[0].url, "--wait", "--timeout", "0.3", code=3)
    assert re.search(r"\d still in flight, 0 KV outstanding after 0.3 s; it stays drained", done.stderr)
    waits = subprocess.Popen([BIN / "pdctl", "-s", r.control, "drain", "--wait", d[0].url], stdout=subprocess.PIPE, text=True)
    time.sleep(0.3)
    assert waits.poll() is None
    d[0].go_on()
    out = waits.communicate(timeout=20 * SLOW)[0]
    assert waits.returncode == 0 and "draining as before: " in out and "Nothing is in flight there any more" in out
    assert d[0].metric("pdsim:running_requests") == 0
    for c in streams:
        list(c.events())
    assert drain(r, "--wait", d[0].url).returncode == 0, "at once"


def test_wait_ends_when_it_is_undrained_or_removed(world):
    r, p, d = world.pd(1, 2, engine={"token_delay": 10}, pool={"policy": "round_robin"})
    r.wait_all_up()
    streams = [r.open_stream(n=200) for _ in range(2)]
    for c in streams:
        c.head()
    for how in ("undrain", "removal"):
        d[0].pause()
        waits = subprocess.Popen([BIN / "pdctl", "-s", r.control, "drain", "--wait", d[0].url], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        wait("it to be drained", lambda: shown(r, d[0].url)["drained"])
        if how == "undrain":
            undrain(r, d[0].url)
        else:
            r.reload(pools=[world.pool(p, d[1:])])
            assert shown(r, d[0].url)["state"] == "draining" and waits.poll() is None
            d[0].go_on()
        out, err = waits.communicate(timeout=20 * SLOW)
        assert waits.returncode == (1 if how == "undrain" else 0), out + err
        assert how == "removal" or "has been undrained" in err
    for c in streams:
        list(c.events())


def test_a_reload_keeps_it_and_new_workers_too(world):
    r, p, d = world.pd(1, 2)
    r.wait_all_up()
    drain(r, d[0].url)
    before = len(d[0].requests())
    r.kill(signal.SIGHUP)
    wait("the reload", lambda: r.metric("reloads_total") == 1)
    r.reload(workers=3)
    r.reload(pools=[world.pool(p, [d[1], d[0]], policy="round_robin")])
    ask(r)
    wait("the former workers are gone", lambda: len(r.children()) == 3)
    victim = r.children()[0]
    r.murder(victim)
    wait("another worker", lambda: victim not in r.children() and len(r.children()) == 3)
    ask(r)
    assert len(d[0].requests()) == before and shown(r, d[0].url)["drained"]
    bring_back(r, d[0].url)
    ask(r)
    assert len(d[0].requests()) > before


def test_removed_and_added_again_it_is_not_drained(world):
    r, p, d = world.pd(1, 2, pool={"policy": "round_robin"})
    r.wait_all_up()
    held = r.open_stream(n=4)
    held.head()
    for e in d:
        e.pause()
    for _ in range(2):  # revived while it still has a request or its slot is given anew
        drain(r, d[0].url)
        r.reload(pools=[world.pool(p, d[1:])])
        r.reload(pools=[world.pool(p, d, policy="round_robin")])
        r.wait_metric("endpoint_up", 1, engine=d[0].url)
        assert not shown(r, d[0].url)["drained"]
        for e in d:
            e.go_on()
        list(held.events()) if held.answer and not held.answer.complete else None
    before = len(d[0].requests())
    ask(r)
    assert len(d[0].requests()) > before


def test_probes_do_not_bring_it_back(world):
    """Drained while it is down, and it comes up meanwhile; drained while it is up, and it goes down meanwhile."""
    r, p, d = world.pd(1, 2, pool={"policy": "round_robin"})
    r.wait_all_up()
    port = d[0].port
    d[0].stop(signal.SIGKILL)
    wait("down", lambda: shown(r, d[0].url)["state"] == "down")
    drain(r, d[0].url)
    row = shown(r, d[0].url)
    assert (row["state"], row["else"]) == ("draining", "down") and "(drained by pdctl; else down: " in r.ctl("status").stdout
    again = world.engine("decode", port=port)
    wait("up, were it not drained", lambda: shown(r, again.url)["else"] == "up")
    time.sleep(0.3)
    ask(r)
    assert again.requests() == [] and shown(r, again.url)["state"] == "draining"
    again.stop(signal.SIGKILL)
    wait("down again", lambda: shown(r, again.url)["else"] == "down")
    third = world.engine("decode", port=port)
    wait("up again", lambda: shown(r, third.url)["else"] == "up")
    bring_back(r, third.url)
    ask(r)
    assert third.requests()


def test_undrained_while_down_it_waits_for_its_probes(world):
    r, p, d = world.pd(1, 2)
    r.wait_all_up()
    drain(r, d[0].url)
    d[0].stop(signal.SIGKILL)
    wait("down", lambda: shown(r, d[0].url)["else"] == "down")
    assert undrain(r, d[0].url).stdout.endswith(": down\n")
    assert shown(r, d[0].url)["state"] == "down"
    ask(r)
    world.engine("decode", port=d[0].port)
    r.wait_metric("endpoint_up", 1, engine=d[0].url)


def test_an_ejected_one_that_is_undrained_is_tried_at_once(world):
    """Its operator has seen to it."""
    r, p, d = world.pd(1, 2, pool={"policy": "round_robin", "eject_failures": 2, "eject_time": "300s", "retries": 2})
    r.wait_all_up()
    d[0].fault("status", status=500, count=-1)
    while shown(r, d[0].url)["ejected"] != "ejected":
        assert r.complete(max_tokens=1).status == 200, "another did it"
    drain(r, d[0].url)
    d[0].fault("none", count=-1)
    row = shown(r, d[0].url)
    assert (row["state"], row["ejected"]) == ("draining", "ejected")
    assert undrain(r, d[0].url).stdout.startswith(f"undrained, ejection ended: {d[0].url}, ")
    assert shown(r, d[0].url)["ejected"] == "in"
    wait("up again", lambda: shown(r, d[0].url)["state"] == "up")
    before = asked(d[0])
    ask(r)
    assert asked(d[0]) > before


def test_undrain_ends_an_ejection(world):
    """Its operator has repaired the engine, which was never drained."""
    r, p, d = world.pd(1, 2, pool={"policy": "round_robin", "eject_failures": 2, "eject_time": "300s", "retries": 2})
    r.wait_all_up()
    d[0].fault("status", status=500, count=-1)
    wait("ejected", lambda: [ask(r, 1)] and shown(r, d[0].url)["ejected"] == "ejected")
    d[0].fault("none", count=-1)
    named = f"{d[0].url}, decode of pool {shown(r, d[0].url)['pool']}"
    assert undrain(r, d[0].url).stdout == f"ejection ended: {named}: starting\n", "learned anew first"
    (back,) = r.lines("endpoint back, undrained by pdctl")
    assert (back["url"], back["last"]) == (d[0].url, "5xx")
    r.wait_metric("endpoint_up", 1, engine=d[0].url)
    before = asked(d[0])
    ask(r)
    assert asked(d[0]) > before and shown(r, d[0].url)["ejected"] == "in"
    assert undrain(r, d[0].url).stdout == f"was not drained: {named}: up\n"


def test_who_waits_hears_of_it(world):
    """Undrained, it takes who waits for a slot at once; and if the last one is drained, all who wait are refused."""
    r, p, d = world.pd(1, 2, pool={"queue_size": 10})
    d[0].pause(), d[1].pause()
    r.reload(pools=[world.pool(p, [{"url": e.url, "max_inflight": 1} for e in d], queue_size=10)])
    r.wait_all_up()
    drain(r, d[0].url)
    held = r.open_stream()
    wait("it to be there", lambda: asked(d[1]) == 1)
    waits = r.open_stream()
    time.sleep(0.2)
    assert asked(d[0]) == 0 and asked(d[1]) == 1
    undrain(r, d[0].url)
    at = time.monotonic()
    wait("it to be there", lambda: asked(d[0]) == 1)
    assert time.monotonic() - at < 0.5 * SLOW
    third = r.open_stream()
    time.sleep(0.2)
    drain(r, d[0].url)
    drain(r, d[1].url)
    a = third.read()
    assert (a.status, a.error["code"]) == (503, "no_decode_endpoint")
    for e in d:
        e.go_on()
        undrain(r, e.url)
    for c in (held, waits):
        assert list(c.events())[-1].data == "[DONE]"


def test_the_last_one_may_be_drained(world):
    r, p, d = world.pd()
    assert f"no other decode endpoint of pool {shown(r, d[0].url)['pool']} is up: new requests get 503" in drain(r, d[0].url).stdout
    a = r.complete()
    assert (a.status, a.error["code"]) == (503, "no_decode_endpoint")
    assert r.get("/ready").status == 503
    bring_back(r, d[0].url)
    assert r.complete().status == 200 and r.get("/ready").status == 200


def test_a_restart_forgets_it(world):
    r, p, d = world.pd()
    drain(r, d[0].url)
    r.check()  # stops it
    again = world.router(world.pool(p, d))
    assert again.complete().status == 200 and not shown(again, d[0].url)["drained"]


def test_slow_start_after_it(world):
    """It is idle, and would be given all requests at once."""
    r, p, d = world.pd(1, 2, pool={"slow_start": "30s"})
    r.wait_all_up()
    drain(r, d[0].url)
    bring_back(r, d[0].url)
    assert shown(r, d[0].url)["slow_start_percent"] < 50 and "slow_start_percent" not in shown(r, d[1].url)


def test_slots_of_one_engine(world):
    """Both roles and two pools; each may be drained by itself."""
    e, other = world.script(models=[MODEL, "b"]), world.script(models=[MODEL, "b"])
    pools = [{**world.pool([e, other], [e, other]), "name": "a"},
             {**world.pool([e, other], [other, e]), "name": "b", "models": ["b"]}]
    r = world.router(*pools).wait_all_up()

    def drained():
        return sorted((x["pool"], x["role"]) for x in r.status()["fleet"]["endpoints"] if x["drained"])

    everywhere = [("a", "decode"), ("a", "prefill"), ("b", "decode"), ("b", "prefill")]
    for name in (e.url, e.url + "/", e.url.upper().replace("HTTP", "http"), f"127.0.0.1:{e.port}"):
        assert drain(r, name).stdout.count("draining: ") == 4
        assert drained() == everywhere
        assert undrain(r, name).stdout.count("undrained: ") == 4
        assert drained() == []
    drain(r, e.url, "--role", "prefill")
    assert drained() == [("a", "prefill"), ("b", "prefill")]
    drain(r, "--pool", "b", e.url)
    assert drained() == [("a", "prefill"), ("b", "decode"), ("b", "prefill")]
    undrain(r, e.url, "--pool", "b", "--role", "decode")
    assert drained() == [("a", "prefill"), ("b", "prefill")]
    assert undrain(r, e.url, "--pool", "b").stdout.count("was not drained: ") == 1


@pytest.mark.parametrize("args, word", [
    (["http://127.0.0.1:1"], "no such endpoint: http://127.0.0.1:1; there is http://"),
    (["127.0.0.1"], "no such endpoint: 127.0.0.1; there is http://"),
    (["x" * 300], "too long: "), (["a b"], "neither role=prefill, role=decode nor pool=NAME: b"),
    ([""], "an endpoint is needed"), (["URL", "--role", "cook"], "nor pool=NAME: role=cook"),
    (["URL", "--role", "decode"], "is not there, it is prefill of pool "), (["URL", "--pool", "p2"], "is not there, it is prefill of pool ")])
def test_what_is_wrong_is_said(world, args, word):
    r, p, _ = world.scripts()
    for command in ("drain", "undrain"):
        done = r.ctl(command, *[p[0].url if x == "URL" else x for x in args])
        assert done.returncode == 1 and word in done.stderr, done.stderr
    assert not any(e["drained"] for e in r.status()["fleet"]["endpoints"])


def test_near_names_and_one_that_is_not_enough(world):
    es = [world.script() for _ in range(8)]
    pool = world.pool(es, [{"url": es[0].url + "/x"}, {"url": es[0].url + "/y"}])
    r = world.router(pool, wait_for="live")
    near = r.ctl("drain", es[3].url + "0").stderr
    assert near.split("there is ")[1].split(", ")[0] == es[3].url and near.count("http://") == 6
    done = r.ctl("drain", f"127.0.0.1:{es[0].port}", "--role", "decode")
    assert done.returncode == 1 and done.stderr == f"which one? {es[0].url}/x or {es[0].url}/y\n"
    drain(r, es[0].url + "/y")
    assert [e["url"] for e in r.status()["fleet"]["endpoints"] if e["drained"]] == [es[0].url + "/y"]


def test_wrong_command_lines(world):
    r, _, _ = world.scripts()
    for args, word in ((["drain"], "an engine is needed"), (["drain", "x", "y"], "too much behind drain: y"),
                       (["undrain", "x", "--wait"], "--wait is not for undrain"),
                       (["drain", "x", "--timeout", "3"], "--timeout is of --wait"),
                       (["drain", "x", "--wait", "--timeout", "soon"], "a number of seconds"),
                       (["status", "--role", "decode"], "--role is not for status")):
        done = r.ctl(*args)
        assert done.returncode == 2 and word in done.stderr and "usage:" in done.stderr


def test_wait_over_many_drains_never_lies(world):
    """--wait says 0 only when no worker is about to send one there: a reservation is looked at twice."""
    r, p, d = world.pd(1, 2, workers=4, pool={"policy": "round_robin"})
    r.wait_all_up()
    load = Load(6, lambda _: r.complete(max_tokens=1))
    for _ in range(10):
        drain(r, d[0].url, "--wait")
        n = asked(d[0])
        time.sleep(0.03)
        assert asked(d[0]) == n
        undrain(r, d[0].url)
    assert load.stop().bad == []
