"""What a first reading of retries and of the release rule found wrong: each test is one of those faults."""
import json
import socket
from contextlib import suppress

import pytest

from fleets import FAR, LATE
from legs import STREAM, taken
from members import values
from procs import wait
from raw import Closed, text_of
from test_lmcache import PORTS
from test_mooncake import ids
from test_release import half, refusable, rest, told
from test_retry import FAN, HAND, POOL, begin, fails, nobody, scripts

DONE = {"choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}]}


def of(world, prefill, decode, **keys):
    pool = world.pool(prefill, decode, **{**POOL, **keys.pop("pool", {})})
    return world.router(pool, **{"workers": 1, **keys}).wait_all_up()


def mooncakes(world, np=2, nd=2, query=None, **keys):
    """Scripted; their bootstrap servers answer by themselves."""
    p = [world.script(probes={"/query": query or json.dumps(ids(f"e-{i}")).encode()}) for i in range(np)]
    d = [world.script() for _ in range(nd)]
    return of(world, [{"url": e.url, "bootstrap_port": e.port} for e in p], d, pool={"connector": "mooncake", **keys.pop("pool", {})}, **keys), p, d


def lmcaches(world, np=2, nd=2, **keys):
    """Scripted; the prefill answer tells when the KV is there."""
    p, d = [world.script() for _ in range(np)], [world.script() for _ in range(nd)]
    return of(world, p, [{"url": e.url, **json.loads(json.dumps(PORTS))} for e in d], pool={"connector": "lmcache", "ready_messages": 0, **keys.pop("pool", {})}, **keys), p, d


# --- which engines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nixl", "fallback", "sglang"])
def test_its_own_slot_is_free_for_the_next_try(world, kind):
    """One place at the only decode engine: it is this request's own."""
    probes = {"/server_info": b'{"disaggregation_bootstrap_port":8998}'} if kind == "sglang" else None
    p, d = [world.script(probes=probes) for _ in range(2)], world.script(probes=probes)
    pool = {"nixl": {}, "fallback": {"retries": 0, "fallback": "direct"}, "sglang": {"connector": "sglang"}}[kind]
    r = of(world, p, [{"url": d.url, "max_inflight": 1}], pool=pool)
    c = begin(r)
    fails(taken(p)[0])
    again = taken(p)[0] if kind != "fallback" else None
    if kind == "sglang":
        again.reply(body=DONE)
    elif kind == "nixl":
        again.prefilled()
    ex = taken([d], [])[0]
    while kind == "sglang" and ex["x-request-id"] != again["x-request-id"]:  # that of the attempt that failed
        ex = taken([d], [])[0]
    ex.reply(body=DONE)
    assert c.read().status == 200 and r.end()["reason"] == "ok"


def test_the_rank_is_one_of_the_engine_that_is_asked(world):
    """The first decode engine, which has ranks, refuses the connection; the other has none."""
    p, d = world.script(), [world.script() for _ in range(2)]
    r = of(world, [p], [{"url": d[0].url, "dp_ranks": 8}, d[1]], **FAR)
    d[0].close()
    for _ in range(2):
        c = begin(r)
        p.expect().prefilled()
        leg = d[1].expect()
        assert leg["x-data-parallel-rank"] is None
        leg.reply(body=DONE)
        assert c.read().status == 200
    assert r.metric("rescued_total", by="retry")


def test_the_first_token_of_another_prefill_engine(world):
    """LMCache: one engine does not tell its token, the next one does: the text has it."""
    r, p, d = lmcaches(world)
    c = begin(r, prompt=[1, 2])
    taken(p)[0].prefilled("{}")
    fails(taken(d)[0], 503)
    taken(p)[0].prefilled('{"first_tok":7}')
    leg, _ = taken(d)
    assert leg.json()["prompt"] == [1, 2, 7]
    leg.reply(body={"id": "x", "choices": [{"index": 0, "text": "bc", "finish_reason": "length"}]})
    assert c.read().json()["choices"][0]["text"] == "abc"


def test_no_first_token_of_another_prefill_engine(world):
    """The other way round."""
    r, p, d = lmcaches(world)
    c = begin(r, prompt=[1, 2])
    fails(taken(p)[0], 503)
    taken(p)[0].prefilled("{}")
    leg, _ = taken(d)
    assert leg.json()["prompt"] == [1, 2]
    leg.reply(body={"id": "x", "choices": [{"index": 0, "text": "abc", "finish_reason": "length"}]})
    assert c.read().json()["choices"][0]["text"] == "abc"


# --- nobody hangs, nothing crashes ----------------------------------------------------------------------------


@STREAM
def test_decode_fails_while_prefill_works_and_no_engine_is_left(world, stream):
    """Mooncake, both at once: the decode engine's own words reach the client."""
    r, p, d = mooncakes(world, 1, 1)
    c = begin(r, stream)
    leg, _ = taken(p)
    want = fails(taken(d)[0])
    a = c.read()
    assert (a.status, a.body) == want[:2]
    assert leg.gone()
    leg.close()


def test_client_leaves_while_one_of_several_asks(world):
    """One prefill engine works, another has failed and the next one is being asked who it is."""
    silent = []
    r, p, d = mooncakes(world, 3, 1, pool=FAN)
    c = begin(r, n=2)
    legs = [taken(p) for _ in range(2)]
    third, = (e for e in p if e not in [e for _, e in legs])
    third.probes["/query"] = lambda ex: (silent.append(ex), ex.over.wait())  # and says nothing
    fails(legs[0][0])
    wait("the lookup", lambda: silent)
    c.close()
    assert legs[1][0].gone()
    r.lives()
    c = r.client().request("GET", "/health")
    assert c.read().status == 200
    wait("three ticks", lambda: c.silent(0.3))
    assert r.metric("worker_restarts_total") == 0
    for ex in (legs[1][0], *silent):
        ex.close()


def test_what_is_half_sent_is_not_moved(world):
    """A decode engine that reads nothing has not been told: the handoff is free for it, or another, in a request anew."""
    r, p, d = scripts(world, pool={**FAN, "retries": 0})
    for e in d:
        e.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        e.deaf = True
    c = begin(r, n=2, prompt="x" * (8 << 20))
    one, two = taken(p)[0], taken(p)[0]
    one.prefilled(HAND % 1)
    deaf = wait("the decode leg", lambda: next((e.asked.get() for e in d if not e.asked.empty()), None))
    for e in d:
        e.deaf = False
        e.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    fails(two)
    assert c.read().status == 500
    told(d)
    with suppress(Closed, OSError):
        while True:
            deaf.conn._more()
    assert len(deaf.conn.buf) < 8 << 20
    deaf.close()


# --- handoffs that no decode engine uses ---------------------------------------------------------------------------


def test_release_that_a_decode_engine_fails(world):
    """The client has gone; who is told instead says 500: nobody knows whether it has fetched."""
    r, p, d = scripts(world)
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    c.silent(0.05)
    c.close()
    rest(ex, later)
    leg, _ = taken(d)
    fails(leg)
    refusable(d)


def test_client_gone_and_the_decode_engine_fails(world):
    """It had been asked for the client."""
    r, p, d = scripts(world)
    c = begin(r)
    taken(p)[0].prefilled(HAND % 1)
    leg, _ = taken(d)
    c.close()
    wait("noticed", lambda: r.metric("requests_in_flight") and c)
    fails(leg)
    refusable(d)


# --- what is told of it -------------------------------------------------------------------------------------------


def test_why_it_failed_is_in_the_line(world):
    """Not what was found when others were looked for."""
    p, d = [world.script() for _ in range(2)], world.script()
    r = of(world, [{"url": e.url, "max_inflight": 1} for e in p], [d], **FAR)
    busy = begin(r)
    ex, who = taken(p)
    next(e for e in p if e is not who).close()
    c = begin(r)
    assert c.read().status == 502
    assert r.end()["detail"] == "connection refused or unreachable"
    ex.prefilled()
    taken([d])[0].reply(body=DONE)
    assert busy.read().status == 200


def test_the_attempts_id_is_in_the_line(world):
    """Where what it left is released by another request, too."""
    r, p, d = scripts(world, pool={"retries": 0, "timeouts": {"prefill": LATE}})
    c = begin(r, headers=[("X-Request-Id", "mine")])
    ex, _ = taken(p)
    later = half(ex)
    assert c.read().status == 504
    assert r.end()["attempt"] == ex["x-request-id"]
    rest(ex, later)
    told(d)


def test_first_byte_is_noted_once(world):
    """What the router has read and thrown away was none."""
    r, p, d = scripts(world)
    c = begin(r)
    taken(p)[0].prefilled(HAND % 1)
    taken(d)[0].write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"id"').reset()
    taken(p)[0].prefilled(HAND % 2)
    taken(d)[0].reply(body=DONE)
    assert c.read().status == 200
    assert r.metric("time_to_first_token_seconds_count") == 1


def test_no_first_byte_of_what_nobody_reads(world):
    r, p, d = scripts(world)
    c = begin(r)
    ex, _ = taken(p)
    later = half(ex)
    c.silent(0.05)
    c.close()
    rest(ex, later)
    told(d)
    wait("over", lambda: r.metric("requests_in_flight") == 1)
    assert not r.metric("time_to_first_token_seconds_count")


def test_a_lookup_that_is_asked_again_is_one_attempt(world):
    """Mooncake: a bootstrap server that refuses connections until learn_timeout."""
    p, d, gone = (world.script() for _ in range(3))
    gone.close()
    r = of(world, [{"url": p.url, "bootstrap_port": gone.port}], [d], pool={"connector": "mooncake", "learn_timeout": "1s"})
    c = begin(r)
    assert c.read().status == 503
    assert r.metric("attempts_failed_total") == 1


def test_a_stream_that_is_tried_again(world):
    """Its first byte is the second engine's."""
    r, p, d = scripts(world)
    c = begin(r, True)
    taken(p)[0].prefilled(HAND % 1)
    leg, _ = taken(d)
    leg.stream_head().write(b"1f\r\ndata: {").reset()
    taken(p)[0].prefilled(HAND % 2)
    taken(d)[0].stream("a")
    assert text_of(c.events()) == "a" and nobody(p)
    assert r.metric("time_to_first_token_seconds_count") == 1


# --- an engine that is stopped ends what runs with the reason `abort`, under its 200 -----------------------------


def aborted(text):
    return json.dumps({"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": "abort"}], "usage": {"completion_tokens": 1}},
                      separators=(",", ":")).encode()


@pytest.mark.parametrize("how", ["whole", "whole in two writes", "stream"])
def test_an_aborted_answer_of_which_the_client_has_nothing(world, how):
    """vLLM, stopped without a drain, aborts all requests; whatever text there is has not been sent."""
    r, p, d = scripts(world)
    c = begin(r, how == "stream")
    taken(p)[0].prefilled(HAND % 1)
    ex, first = taken(d)
    if how == "stream":
        ex.stream_head().chunk(b"data: " + aborted("") + b"\n\n" + b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    elif how == "whole":
        ex.reply(body=aborted("half"))
    else:
        body = aborted("half")
        at = body.index(b"_reason")
        ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:at]))
        c.silent(0.05)
        ex.write(body[at:]).end()
    taken(p)[0].prefilled(HAND % 2)
    ex, second = taken(d)
    ex.stream("ab") if how == "stream" else ex.reply(body=DONE)
    got = text_of(c.events()) if how == "stream" else c.read().json()["choices"][0]["text"]
    assert got == "ab" and first is not second
    assert (r.end()["reason"], r.end()["rescued"]) == ("ok", "retry")


def test_an_aborted_answer_without_another_engine(world):
    """The client gets what there is, as the engine wrote it; the log has a word on it."""
    r, p, (d,) = scripts(world, 1, 1)
    c = begin(r)
    taken(p)[0].prefilled()
    taken([d])[0].reply(body=aborted("half"))
    a = c.read()
    assert (a.status, a.body) == (200, aborted("half"))
    assert (r.end()["reason"], r.end()["detail"]) == ("ok", "the decode engine has aborted the request")


def test_the_word_in_a_text_is_no_abort(world):
    r, p, d = scripts(world)
    c = begin(r)
    taken(p)[0].prefilled()
    body = json.dumps({"choices": [{"index": 0, "text": '"finish_reason":"abort"', "finish_reason": "stop"}]}, separators=(",", ":")).encode()
    taken(d)[0].reply(body=body)
    assert c.read().body == body and nobody([*p, *d]) and r.end()["rescued"] is None


def test_an_aborted_prefill(world):
    """It has no KV: without another prefill engine the decode engine would compute all prompts of one that is stopped."""
    r, p, (d,) = scripts(world, 2, 1)
    c = begin(r)
    ex, first = taken(p)
    ex.reply(body=aborted(""))
    ex, second = taken(p)
    ex.prefilled(HAND % 2)
    ex = d.expect()
    assert values(ex.body, "kv_transfer_params") == [HAND % 2] and first is not second
    ex.reply(body=DONE)
    assert c.read().status == 200 and (r.end()["rescued"], r.end()["kv"]) == ("retry", None)


def test_an_aborted_prefill_without_another_engine(world):
    """As a prefill answer without KV parameters."""
    r, (p,), (d,) = scripts(world, 1, 1)
    c = begin(r)
    p.expect().reply(body=aborted(""))
    ex = d.expect()
    assert "kv_transfer_params" not in ex.json()
    ex.reply(body=DONE)
    assert c.read().status == 200 and r.end()["kv"] == "missing"


def test_an_aborted_prefill_is_not_the_answer(world):
    """LMCache: its end would be the answer's."""
    r, p, d = lmcaches(world)
    c = begin(r, prompt=[1, 2, 3])
    ex, first = taken(p)
    ex.reply(body=aborted(""))
    ex, second = taken(p)
    ex.reply(body={"id": "x", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "kv_transfer_params": {"first_tok": 7}})
    taken(d)[0].reply(body={"id": "y", "choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
    assert c.read().json()["choices"][0]["text"] == "ab" and first is not second


def test_an_aborted_answer_that_is_rewritten(world):
    """The client has nothing of it: another engine is asked, as where an answer passes unchanged."""
    r, p, d = scripts(world, pool={"cached_tokens_from": "prefill"})
    c = begin(r)
    taken(p)[0].prefilled(HAND % 1)
    taken(d)[0].reply(body=aborted("half"))
    taken(p)[0].prefilled(HAND % 2)
    taken(d)[0].reply(body=DONE)
    assert c.read().json()["choices"][0]["text"] == "ab"


def test_an_aborted_branch(world):
    """One of two samples: it alone is generated again."""
    r, p, d = scripts(world, pool={"fanout": True})
    c = begin(r, n=2)
    for i in 1, 2:
        taken(p)[0].prefilled(HAND % i)
    one, two = taken(d)[0], taken(d)[0]
    one.reply(body=aborted("half"))
    taken(p)[0].prefilled(HAND % 3)
    taken(d)[0].reply(body=DONE)
    two.reply(body=DONE)
    assert [x["text"] for x in c.read().json()["choices"]] == ["ab", "ab"]


def test_an_aborted_answer_that_is_rewritten_without_another_engine(world):
    r, p, (d,) = scripts(world, 1, 1, pool={"cached_tokens_from": "prefill"})
    c = begin(r)
    taken(p)[0].prefilled()
    taken([d])[0].reply(body=aborted("half"))
    assert c.read().json()["choices"][0]["text"] == "half"
    assert (r.end()["reason"], r.end()["detail"]) == ("ok", "the decode engine has aborted the request")
