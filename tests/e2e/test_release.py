"""The release rule: once a prefill engine has committed KV for a request a decode engine is told, whoever went away in
between.  Who is told, how, and that no simulated engine holds a block until its own timeout."""
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleets import FAR, FREED, KINDS, LATE, LEASED, URL, build, never_twice, right, unanswering
from legs import FRESH, STREAM, leave, taken, unaccepting
from members import values
from procs import MODEL, SLOW, silence, wait
from raw import Closed, text_of
from test_drain import drain
from test_retry import FAN, HAND, POOL, REACHED, begin, fails, nobody, scripts

LATER = f"{1500 * SLOW}ms"  # a drain and two reloads are over by then
BODY = b'{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"length"}],"kv_transfer_params":%s}'


def half(ex, n=1):
    """The first half of a prefill answer, and the rest of it, to be written later."""
    body = BODY % (HAND % n).encode()
    ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:20]))
    return body[20:]


def rest(ex, of):
    ex.write(of).end()


def told(engines, n=1):
    """A decode engine is asked for one token that nobody reads."""
    ex, who = taken(engines)
    body = ex.json()
    assert (body["max_tokens"], body.get("stream", False)) == (1, False) and not {"min_tokens", "stream_options"} & set(body)
    assert values(ex.body, "kv_transfer_params") == [HAND % n]
    ex.reply(body={"choices": []})
    return who


def refusable(engines, n=1):
    """A request no decode engine admits: its refusal is what makes the prefill engine free what it holds."""
    ex = wait("a request to be refused", lambda: [x for e in engines for x in e.refused])[0]
    assert ex.path == URL and len(ex.body) < 1000 and not ex.json().get("stream") and ex.json()["model"] != MODEL
    assert values(ex.body, "kv_transfer_params") == [HAND % n]


def freed(p, d, timeout=5):
    """All blocks are free, and no engine had to wait for its own timeout."""
    for e in (*p, *d):
        e.wait_metric("pdsim:held_blocks", 0, timeout)
        e.wait_metric("pdsim:running_requests", 0, timeout)
        assert e.counter("kv_expired") == e.counter("kv_replayed") == 0


# --- the client goes --------------------------------------------------------------------------------------


def test_client_gone_before_the_prefill_engine_answers(world):
    """Hanging up is all: nothing was committed."""
    r, p, d = scripts(world)
    c = begin(r)
    ex, _ = taken(p)
    c.close()
    assert ex.gone() and nobody(d)
    ex.close()
    assert r.end()["reason"] == "client_gone" and not r.metric("kv_released_total")


def test_client_gone_as_the_prefill_engine_answers(world):
    """The answer had been written when the engine saw that the router had hung up: it is read to its end, and a decode engine is told."""
    r, p, d = scripts(world)
    c = begin(r)
    ex, _ = taken(p)
    c.close()
    assert ex.gone() and nobody(d)
    rest(ex, half(ex))
    told(d)
    r.wait_metric("kv_released_total", 1, reason="client_gone")


@STREAM
def test_client_gone_between_the_legs(world, stream):
    r, p, d = scripts(world)
    c = begin(r, stream, min_tokens=3)
    ex, _ = taken(p)
    later = half(ex)
    c.silent(0.05)
    c.close()
    rest(ex, later)
    told(d)
    assert r.end()["reason"] == "client_gone"
    r.wait_metric("kv_released_total", 1, reason="client_gone")
    assert nobody([*p, *d])


def test_client_gone_and_the_decode_engine_refuses_the_connection(world):
    """It was not reached: another one is told."""
    r, p, d = scripts(world, 1, 3, **FAR)
    d[0].close()
    d[1].close()
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    c.silent(0.05)
    c.close()
    rest(ex, later)
    told(d[2:])
    r.wait_metric("kv_released_total", 1)


def test_client_gone_while_the_decode_engine_is_connected(world):
    """A host that does not answer: when its time is over, another one is told."""
    r, p, d = scripts(world, 1, 2, pool={"timeouts": {"connect": LATE}}, **FAR)
    with unaccepting(d[0]):
        for i in range(2):  # one of them goes to it
            c = begin(r)
            ex, _ = taken(p)
            later = half(ex, i)
            c.silent(0.05)
            c.close()
            rest(ex, later)
            told(d[1:], i)
    r.wait_metric("kv_released_total", 2)


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("kind", sorted(LEASED))
def test_client_gone_while_engines_fail(world, kind, how):
    """At many moments, of tries too."""
    r, p, d = build(world, kind, prefill={"prefill_delay": 8}, decode={"fetch_delay": 8, "token_delay": 2},
                    pool={"timeouts": {"prefill": LATE, **silence(LATE)}})
    for i in range(24):
        if i % 3 == 1:
            p[i % 2].fault("fail")
        if i % 3 == 2 and kind in FREED:
            d[i % 2].fault("reset", delay_ms=5 + 2 * (i % 4))
        c = begin(r, i % 2 == 0, prompt=f"gone {next(FRESH)} " * 20)
        c.silent(0.002 * i + 0.0005)
        leave(c, how)
    r.end(24)
    freed(p, d, timeout=20)  # a request that names KV may meet resets too
    world.check_engines = kind != "push"  # a decode engine that is told anew is told under another id
    for e in (*p, *d):
        e.fault("none")
    right(r, True)


def test_decode_engine_that_stands_still_reads_its_request_too_late(world):
    """Another one has made the prefill engine free the KV by then: the late one finds that its client has left, and fetches nothing."""
    r, p, d = build(world, "nixl", pool={"timeouts": {"first_byte": LATE, "stream_idle": LATE, "whole_answer": LATE}}, **FAR)
    d[0].kill(signal.SIGSTOP)
    assert sorted(r.complete(f"late {i}").status for i in range(2)) == [200, 504]
    for e in p:
        e.wait_metric("pdsim:held_blocks", 0)
    d[0].kill(signal.SIGCONT)
    wait("the late one to see it", lambda: d[0].counter("aborted") == 1)
    freed(p, d)


# --- the prefill engine is late -----------------------------------------------------------------------------


def test_prefill_that_is_late_is_hung_up_on(world):
    """Not a byte of its answer has come: it aborts, and holds nothing."""
    r, p, d = scripts(world, pool={"timeouts": {"prefill": LATE}})
    c = begin(r)
    ex, _ = taken(p)
    other, _ = taken(p)
    assert ex.gone()
    ex.close()
    other.prefilled(HAND % 2)
    leg, _ = taken(d)
    leg.reply(body={"choices": []})
    assert c.read().status == 200 and nobody(d) and not r.metric("kv_released_total")


@pytest.mark.parametrize("retries", [0, 1])
def test_prefill_that_is_late_and_has_begun_to_answer(world, retries):
    """The client waits no longer; what comes is read to its end, and a decode engine is told."""
    r, p, d = scripts(world, pool={"retries": retries, "timeouts": {"prefill": LATE}})
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    if retries:
        taken(p)[0].prefilled(HAND % 2)
        leg, _ = taken(d)
        assert values(leg.body, "kv_transfer_params") == [HAND % 2]
        leg.reply(body={"choices": []})
        assert c.read().status == 200
    else:
        assert c.read().error["code"] == "prefill_timeout"
    assert nobody(d, 0.1)
    rest(ex, later)
    told(d)
    r.wait_metric("kv_released_total", 1, reason="prefill_late")


@pytest.mark.parametrize("since", ["full", "drained", "removed", "replaced"])
def test_a_slot_that_the_next_attempt_took_over_is_not_taken_again_unseen(world, since):
    """The decode engine has one slot, which goes over to the next attempt.  The first prefill engine's answer comes when that
    slot is in use, or after an operator was told that nothing is in flight there, or when it is another engine's."""
    p, d, *others = [world.script(), world.script()], *(world.script() for _ in range(3))
    keys = {**POOL, "retries": 1, "timeouts": {"prefill": LATER}}
    r = world.router(world.pool(p, [{"url": d.url, "max_inflight": 1}], **keys), workers=1, shared_memory={"max_endpoints": 4})
    c = begin(r.wait_all_up())
    ex, _ = taken(p)
    later = half(ex)
    taken(p)[0].prefilled(HAND % 2)
    leg = d.expect()
    if since != "full":
        leg.reply(body={"choices": []})
        assert c.read().status == 200
        assert "Nothing is in flight there any more" in drain(r, d.url, "--wait").stdout
    if since in ("removed", "replaced"):
        for n in range(1, 3 if since == "replaced" else 2):  # of four slots the second one is given d's
            r.reload(pools=[world.pool(p, [{"url": e.url, "max_inflight": 1} for e in others[:n]], **keys)])
            r.wait_all_up()
    assert not ex.gone(0.01), "it is read to its end"
    rest(ex, later)
    assert d.quiet() and nobody(others)
    if since == "full":
        leg.reply(body={"choices": []})
        assert c.read().status == 200
    assert not r.in_flight()
    r.look_over()


def test_a_leg_read_to_its_end_delays_no_request(world):
    """The client's next request on the same connection is served meanwhile."""
    r, p, d = scripts(world, pool={"retries": 0, "timeouts": {"prefill": LATE}})
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    assert c.read().status == 504
    c.request("POST", URL, {"model": MODEL, "prompt": "next"})
    taken(p)[0].prefilled(HAND % 2)
    taken(d)[0].reply(body={"choices": []})
    assert c.read().status == 200
    rest(ex, later)
    told(d)


def test_prefill_that_never_ends_its_answer(world):
    """It is not waited for for ever."""
    r, p, d = scripts(world, pool={"retries": 0, "timeouts": {"prefill": LATE}})
    c = begin(r)
    ex, _ = taken(p)
    half(ex)
    assert c.read().status == 504
    assert ex.gone(10 * SLOW)
    ex.close()
    r.wait_metric("endpoint_in_flight", 0)
    assert nobody(d)


@pytest.mark.parametrize("kind", sorted(LEASED))
def test_late_prefill_of_the_simulator(world, kind):
    """Each answer comes about when its time is over."""
    r, p, d = build(world, kind, prefill={"prefill_delay": 300 * SLOW - 5}, pool={"timeouts": {"prefill": LATE}})
    with ThreadPoolExecutor(8) as pool:
        got = [a.status for a in pool.map(lambda i: r.complete(f"late {next(FRESH)}"), range(24))]
    assert set(got) <= {200, 504}
    freed(p, d)


# --- the decode engine fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("how", ["reset", "500", "late", "garbage"])
def test_decode_engine_fails_and_was_reached(world, how, retries):
    """Nobody knows whether it has fetched: the handoff goes out once more, in a request that no engine admits."""
    r, p, d = scripts(world, pool={"retries": retries, "timeouts": silence(LATE)})
    c = begin(r, stream=how == "late")  # an answer in one piece that is late is not tried again
    taken(p)[0].prefilled(HAND % 1)
    leg, _ = taken(d)
    REACHED[how](leg)
    if retries:
        taken(p)[0].prefilled(HAND % 2)
    if retries:
        ex, _ = taken(d)
        assert values(ex.body, "kv_transfer_params") == [HAND % 2]
        ex.reply(body={"choices": []})
    assert c.read().status == (200 if retries else {"500": 500, "late": 504}.get(how, 502))
    refusable(d)
    r.wait_metric("kv_released_total", 1, reason="decode_failed")
    assert nobody(d)
    leg.end(keep=False)


def test_decode_engine_that_is_the_only_one(world):
    """It may be told itself: whoever refuses tells the prefill engine."""
    r, p, d = scripts(world, 1, 1)
    c = begin(r)
    taken(p)[0].prefilled(HAND % 1)
    REACHED["reset"](taken(d)[0])
    assert c.read().status == 502
    refusable(d)


def test_decode_engine_refuses(world):
    """The client's mistake, or its limit: the engine that was told of the handoff tells the prefill engine itself."""
    r, p, d = world.pd(1, 2, pool=POOL)
    for e in d:
        e.fault("refuse", status=400)
    assert r.complete("hi").status == 400
    freed(p, d)


@pytest.mark.parametrize("status", [401, 403])
def test_decode_engine_refuses_the_key(world, status):
    """Its server does: the engine never had the request, so other engines are named the handoff to refuse."""
    r, p, d = world.pd(1, 2, pool=POOL)
    for e in d:
        e.fault("status", status=status, contains="hello", count=-1)
    assert r.complete("hello").status == status
    freed(p, d)


@STREAM
@pytest.mark.parametrize("how", ["reset", "fail", "no_answer", "half_head", "empty200"])
@pytest.mark.parametrize("kind", sorted(FREED))
def test_decode_fails_and_no_engine_is_left(world, kind, how, stream):
    """With the simulator: every hold is gone long before its time, though the request is lost."""
    r, p, d = build(world, kind, 1, 1, pool={"retries": 0, "timeouts": silence(LATE)})
    for _ in range(3):
        d[0].fault(how, delay_ms=20 if how == "reset" else 0)
        assert r.complete(f"lost {next(FRESH)}", stream=stream).status >= 500
        freed(p, d)
    right(r, stream)
    never_twice(d)


@pytest.mark.parametrize("kind", sorted(LEASED - FREED))
def test_what_no_refusal_frees(world, kind):
    """Engines that know no such thing: the prefill engine's own time, once it is over, is all; the client hears at once."""
    r, p, d = build(world, kind, 1, 1, prefill={"kv_timeout": 1}, pool={"retries": 0})
    p[0].refuses_on_purpose = True
    for stream in (False, True):
        for _ in range(4):
            d[0].fault("fail")
            assert r.complete(f"lost {next(FRESH)}", stream=stream).status == 500
    p[0].wait_metric("pdsim:held_blocks", 0, 5)
    right(r, True)


@pytest.mark.parametrize("kind", ["nixl", "orchestrated", "mooncake old"])
def test_no_decode_engine_is_reached(world, kind):
    """All refuse the connection but one that comes later in turn."""
    r, p, d = build(world, kind, 1, 3, **FAR)
    d[0].stop()
    d[1].stop()
    for _ in range(3):
        right(r, False)
    freed(p, d[2:])


# --- several branches --------------------------------------------------------------------------------------------


def test_one_branch_fails_as_another_prefill_answers(world):
    """The whole request has failed; what the other prefill engine has begun to hand off is fetched all the same."""
    r, p, d = scripts(world, pool={**FAN, "retries": 0})
    c = begin(r, n=2)
    one, two = taken(p)[0], taken(p)[0]
    later = half(one)
    wait("the router to have read it", lambda: c.silent(0.05))
    fails(two)
    assert c.read().status == 500
    rest(one, later)
    told(d)
    r.wait_metric("kv_released_total", 1)


def test_one_branch_fails_while_another_prefill_works(world):
    r, p, d = scripts(world, pool={**FAN, "retries": 0})
    c = begin(r, n=2)
    one, two = taken(p)[0], taken(p)[0]
    fails(two)
    assert c.read().status == 500 and one.gone() and nobody(d)
    one.close()


@STREAM
def test_one_of_many_branches_fails(world, stream):
    """At any moment of the others."""
    r, p, d = world.pd(2, 2, engine={"prefill_delay": 5, "fetch_delay": 5}, pool={**POOL, "retries": 0})
    for i in range(6):
        p[0].fault("fail", status=503, delay_ms=4 * i)
        begun = r.client().request("POST", URL, {"model": MODEL, "max_tokens": 40, "stream": stream,
                                                 "prompt": [f"p {next(FRESH)} " * 30 for _ in range(6)]})
        try:
            begun.read()
        except Closed:
            pass
        begun.close()
    freed(p, d)


# --- the worker goes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGTERM", "reload"])
def test_drain_between_the_legs(world, how):
    """The drain's time is over for the client, not for what a prefill engine has begun to hand off."""
    r, p, d = scripts(world, drain_timeout="300ms", reload_drain_timeout="300ms")
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    c.silent(0.05)
    if how == "SIGTERM":
        r.kill(signal.SIGTERM)
    else:
        r.reload(client={"id_header": "X-A"})
    assert c.read().error["code"] == "shutdown"
    rest(ex, later)
    told(d)
    if how == "reload":
        r.wait_metric("kv_released_total", 1, reason="shutdown")


STAGES = {"prefilling": {"prefill": {"prefill_delay": 250}}, "fetching": {"decode": {"fetch_delay": 250}}}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", sorted(LEASED))
def test_drain_at_every_stage(world, kind, stage):
    """Its time is over before the engines are done."""
    r, p, d = build(world, kind, drain_timeout="100ms", **STAGES[stage])
    clients = [begin(r, i % 2 == 0, prompt=f"drain {next(FRESH)}") for i in range(4)]
    wait("all are there", lambda: sum(len(e.requests()) for e in (p if stage == "prefilling" else d)) >= 4)
    r.kill(signal.SIGTERM)
    for c in clients:
        try:
            c.read()
        except Closed:
            pass
        c.close()
    freed(p, d)


# --- what only some hand-shakes have ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["limit", "text"])
def test_lmcache_answer_that_ended_with_prefills_token(world, end):
    """The client has all of it; the decode engine still holds what was written there, and is told."""
    r, p, d = build(world, "lmcache")
    for i in range(4):
        prompt = f"{'<<eos>> ' if end == 'text' else ''}short {next(FRESH)}"
        assert r.complete(prompt, max_tokens=1 if end == "limit" else 9, stream=bool(i % 2)).status == 200
    freed(p, d)
    r.wait_metric("kv_released_total", 4)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_released_that_was_fetched(world, kind):
    """An undisturbed request costs no engine a second one."""
    r, p, d = build(world, kind)
    for stream in (False, True):
        right(r, stream)
    assert not r.metric("kv_released_total")
    assert sum(len(e.requests()) for e in p) == 2 and sum(len(e.requests()) for e in d) == (4 if kind == "decode first" else 2)
    freed(p, d)


def test_whole_request_times_out_between_the_legs(world):
    r, p, d = scripts(world, pool={"timeouts": {"request": LATE}})
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    assert c.read().status == 504
    rest(ex, later)
    told(d)
    r.wait_metric("kv_released_total", 1)


@pytest.mark.parametrize("kind", sorted(LEASED))
def test_a_decode_host_that_answers_no_connection(world, kind):
    """What was handed off goes to another, none is held."""
    r, p, d = build(world, kind, pool={"timeouts": {"connect": LATE}}, **FAR)
    with unanswering(d[0]):
        for _ in range(2):
            right(r, False)
    freed(p, d[1:])


def test_a_late_prefill_whose_request_is_released_after_its_stream_has_begun_elsewhere(world):
    """The text that a detached attempt still needs has its members until that attempt has ended."""
    r, p, d = scripts(world, pool={"resume": True, "retries": 1, "timeouts": {"prefill": LATE}})
    c = begin(r, True)
    ex, _ = taken(p)
    later = half(ex)
    taken(p)[0].prefilled(HAND % 2)
    leg, _ = taken(d)
    leg.stream_head().chunk(b'data: {"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n')
    it = c.events()
    next(it)
    rest(ex, later)
    told(d)
    leg.chunk(b'data: {"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"b","finish_reason":"length"}]}\n\ndata: [DONE]\n\n').write(b"0\r\n\r\n").end()
    assert text_of(it) == "b"
    r.wait_metric("kv_released_total", 1, reason="prefill_late")
