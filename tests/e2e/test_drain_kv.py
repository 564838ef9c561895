"""pdctl drain of a prefill engine: it is drained only when no decode engine has yet to fetch KV from it."""
import re
import signal

import pytest

import expect
from fleets import LEASED, build
from procs import Load, wait
from raw import text_of
from test_drain import drain, shown


def outstanding(r, engine):
    return r.metric("endpoint_kv_outstanding", engine=engine.url)


def held(world, kind="nixl", n=3, **how):
    """n streams that decode engines have begun to serve: their KV is with the prefill engine, for all that the router knows."""
    r, (p,), d = build(world, kind, 1, 2, **how)
    for e in d:
        e.pause()
    streams = [r.open_stream(f"s{i}", n=4) for i in range(n)]
    wait("KV for each", lambda: outstanding(r, p) == n and r.metric("endpoint_in_flight", engine=p.url) == 0)
    return r, p, d, streams


def finish(streams, d):
    for e in d:
        e.go_on()
    for i, c in enumerate(streams):
        assert text_of(list(c.events())) == expect.text(f"s{i}", 4)


@pytest.mark.parametrize("kind", sorted({*LEASED, "lmcache", "p2p_nccl"}))
def test_a_prefill_engine_waits_for_each_fetch(world, kind):
    r, p, d, streams = held(world, kind)
    said = drain(r, p.url).stdout
    assert re.match(rf"draining: {p.url}, prefill of pool \S+: 0 in flight, 3 KV outstanding\n", said)
    assert shown(r, p.url)["kv_outstanding"] == 3 and shown(r, d[0].url)["kv_outstanding"] == 0
    assert " kv-out " in r.ctl("status").stdout
    late = drain(r, p.url, "--wait", "--timeout", "0.1", code=3).stderr
    assert "0 still in flight, 3 KV outstanding after 0.1 s; it stays drained" in late
    finish(streams, d)
    assert "no KV is outstanding" in drain(r, p.url, "--wait").stdout
    assert outstanding(r, p) == 0 and " kv-out " not in r.ctl("status").stdout


def test_stopped_after_its_drain_no_client_fails(world):
    """Decode engines take their time to fetch; the other prefill engine serves on."""
    p, d = [world.engine("prefill") for _ in range(2)], [world.engine("decode", fetch_delay=100) for _ in range(2)]
    r = world.router(world.pool(p, d, policy="round_robin", eject_failures=1), workers=4).wait_all_up()

    def ask(i):
        assert text_of(list(r.open_stream(f"x{i}", n=3).events())) == expect.text(f"x{i}", 3)

    load = Load(10, ask)
    wait("requests", lambda: load.done > 40)
    drain(r, p[0].url, "--wait")
    p[0].stop(signal.SIGKILL)
    n = load.done
    wait("more requests", lambda: load.done > n + 60)
    load.stop()
    assert load.bad == [] and r.metric("ejections_total") == r.metric("attempts_failed_total") == 0


def test_kv_that_is_released_counts_until_then(world):
    """The client leaves after prefill: decode fetches all the same, and the drain waits for that."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.open_stream("bye")
    p.expect().prefilled()
    leg = d.expect()
    c.close()
    r.wait_metric("requests_in_flight", 1)
    assert outstanding(r, p) == 1
    leg.reply(body={"choices": []})
    r.wait_metric("endpoint_kv_outstanding", 0)


def test_kv_of_spent_parameters_counts_until_a_decode_engine_refuses_them(world):
    """Decode has failed with them: a refusal of a request that names them frees the blocks."""
    r, (p,), (d,) = world.scripts(workers=1)
    c = r.open_stream("x")
    p.expect().prefilled()
    d.expect()
    d.close()
    assert c.read().status == 502
    assert outstanding(r, p) == 1, "there is none to refuse them"
    again = world.script(port=d.port)
    r.wait_metric("endpoint_kv_outstanding", 0)
    assert len(again.refused) == 1


def test_a_killed_workers_kv_is_not_waited_for(world):
    """Its clients are gone, so no decode engine fetches: the engine's lease frees the blocks."""
    r, p, d, _ = held(world)
    world.check_engines = False
    r.murder(r.children()[0])
    wait("its successor", lambda: r.ctl("workers").stdout.count("state=ready") == 1 and outstanding(r, p) == 0)
    r.look_over()
    drain(r, p.url, "--wait")


def test_a_removed_one_keeps_its_slot_until_then(world):
    r, p, d, streams = held(world)
    other = world.engine("prefill")
    r.reload(pools=[world.pool([other], d)])
    wait("it to be removed", lambda: shown(r, p.url)["state"] == "draining")  # the other one is up
    assert shown(r, p.url)["kv_outstanding"] == 3 and "no longer listed" in shown(r, p.url)["reason"]
    assert "no longer listed" in r.ctl("status").stdout
    finish(streams, d)
    r.wait_log("endpoint drained")
    r.look_over()
