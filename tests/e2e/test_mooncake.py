"""vLLM's MooncakeConnector, both generations, 2P2D.  From 0.17 on both legs run at once under a transfer id of the
router's, and decode is told the engine id that the prefill engine's bootstrap server tells; before, decode is
handed what prefill answered.  Nothing but a handoff that arrived makes a decode engine of pdsim answer."""
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import expect
from legs import FAULTS_OF_P, SHORT, fault_at, leave, parsed, serve_again, taken, texts, total
from members import kept, members, values
from procs import MODEL, SLOW, World, silence, wait
from raw import text_of
from rows import (  # lint: run here, for this file's fleets
    test_chat, test_completions, test_every_engine_is_used, test_failure_of_d, test_failure_of_d_in_the_stream, test_logprobs, test_n,
    test_non_stream, test_stream, test_structured_output, test_token_ids, test_tools)
from stages import BaseFleet, lasting

URL = "/v1/completions"
NEW = {"connector": "mooncake", "policy": "round_robin"}
OLD = {**NEW, "handoff": "kv_transfer_params"}


def engines(world, old, role, n=2, **options):
    options = {"handshake": "mooncake_old" if old else "mooncake", **options}
    if role == "prefill" and not old:
        options.setdefault("bootstrap_port", 0)
    return [world.engine(role, **options) for _ in range(n)]


def entry(p, **keys):
    return {"url": p.url, **({"bootstrap_port": p.bootstrap} if p.bootstrap else {}), **keys}


def pd(world, old=False, engine=None, pool=None, n=2, ranks=None, **keys):
    """n prefill and n decode engines with a router before them."""
    p, d = (engines(world, old, role, n, **(engine or {})) for role in ("prefill", "decode"))
    each = [entry(e, **({"dp_ranks": ranks} if ranks else {})) for e in p]
    r = world.router(world.pool(each, d, **{**(OLD if old else NEW), **(pool or {})}), **keys)
    return r.wait_all_up(), p, d


def ids(*names):
    return {str(i): {"engine_id": name, "worker_addr": {"0": {"0": "tcp://10.9.9.9:1"}}} for i, name in enumerate(names)}


def scripts(world, query=None, pool=None, **keys):
    """One scripted engine of each role; the bootstrap server answers what `query` says."""
    p, d = world.script(probes={"/query": json.dumps(query or ids("e-1")).encode()}), world.script()
    r = world.router(world.pool([{"url": p.url, "bootstrap_port": p.port}], [d], **{**NEW, **(pool or {})}), **keys)
    return r, p, d


class Fleet(BaseFleet):
    """Engines and a router that tests share which leave nothing behind, and one engine to be asked directly."""

    def __init__(self, old, honest=True, **kw):
        super().__init__()
        self.honest = honest
        self.direct = self.world.engine("both")
        self.router, self.p, self.d = pd(self.world, old, **kw)
        self.holder = self.p[0]

    def finish(self):
        assert not self.honest or total(self.d, "local_prefills") == 0, "all of decode's answers came of a handoff"
        super().finish()


BOTH = pytest.fixture(scope="module", params=[False, True], ids=["transfer_id", "kv_transfer_params"])


@BOTH
def fleet(request):
    yield from lasting(request, Fleet(request.param, pool={"fanout": True}))


@BOTH
def strained(request):
    """One engine of each role, whose every failure is over in 300 ms."""
    yield from lasting(request, Fleet(request.param, honest=False, n=1, pool=SHORT))


@pytest.fixture(params=[False, True], ids=["transfer_id", "kv_transfer_params"])
def old(request):
    return request.param


# --- what clients ask for ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [["ab", "cde"], [[1, 2], [3, 4, 5]]], ids=["strings", "ids"])
def test_list_prompts(fleet, prompts, stream):
    """A branch for each: one transfer is of one prompt."""
    before = total(fleet.d, "kv_loaded")
    got = parsed(fleet.router.address, False, prompt=prompts, max_tokens=4, stream=stream)
    assert texts(got) == {i: expect.text(p, 4) for i, p in enumerate(prompts)}
    assert total(fleet.d, "kv_loaded") == before + 2
    if not stream:
        want, = parsed(fleet.direct.address, False, prompt=prompts, max_tokens=4)
        assert got == [want], "also its usage"


def test_more_branches_than_allowed(world, old):
    r, _, d = pd(world, old, n=1)
    a = r.complete([f"{i}" for i in range(9)])
    assert a.status == 200 and len(a.json()["choices"]) == 9 and r.all_ended()[-1]["direct"] == "max_fanout"
    assert d[0].counter("local_prefills") == 1


def test_n_goes_to_decode_alone_unless_it_fans_out(world, old):
    r, p, d = pd(world, old, n=1)
    a = r.complete("hi", n=2)
    assert sorted(c["index"] for c in a.json()["choices"]) == [0, 1]
    assert p[0].requests() == [] and d[0].counter("local_prefills") == 1 and "kv_transfer_params" not in d[0].last().json()


def test_members_and_headers_that_choose_a_peer_never_pass(fleet):
    evil = {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "10.6.6.6", "transfer_id": "x"},
            "data_parallel_rank": 3, "routed_dp_rank": 3, "request_id": "mine", "rid": "mine"}
    a = fleet.router.complete("hi", headers=[("X-Data-Parallel-Rank", "7"), ("X-Request-Id", "my-id")], **evil)
    assert a.status == 200 and a["x-request-id"] == "my-id"
    sent = [x for e in [*fleet.p, *fleet.d] for x in e.requests() if (x["x-request-id"] or "").startswith("my-id-")]
    assert len(sent) == 2 and len({x["x-request-id"] for x in sent}) == 1
    for x in sent:
        assert x["x-data-parallel-rank"] is None and b"10.6.6.6" not in x.body
        assert "data_parallel_rank" not in x.json() and x.json()["request_id"] == x["x-request-id"]


# --- what goes over the wire ---------------------------------------------------------------------------


def test_both_legs_at_once(world):
    """Neither waits for the other; one transfer id, the bootstrap server, its engine id with all its escapes."""
    body = b'{"model":"sim-model","prompt":"x","max_tokens":7,"min_tokens":2,"stop":["a"],"stream":true,"u":1e400}'
    r, p, d = scripts(world, query=ids('e"\\1'))
    c = r.client().request("POST", URL, body, [("X-Request-Id", "abc")])
    pre, dec = p.expect(), d.expect()
    asked, told = pre.json()["kv_transfer_params"], dec.json()["kv_transfer_params"]
    assert asked == {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": asked["transfer_id"]}
    assert asked["transfer_id"].startswith("xfer-abc-")
    assert told == {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": asked["transfer_id"],
                    "remote_bootstrap_addr": f"http://127.0.0.1:{p.port}", "remote_engine_id": 'e"\\1'}
    assert kept(dec.body, {"kv_transfer_params"}) == [(k, v) for _, k, v in members(body)]
    assert values(pre.body, "max_tokens") == ["1"] and values(pre.body, "ignore_eos") == ["true"]
    assert not {"stop", "min_tokens", "stream_options"} & set(pre.json()) and not pre.json()["stream"]
    dec.stream_head().event("a")
    assert next(c.events()).data, "relayed without waiting for prefill"
    pre.prefilled("null")
    dec.event("b").chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert r.end()["reason"] == "ok"


def test_decode_is_told_the_configured_bootstrap_host(world):
    p, d = world.script(probes={"/query": json.dumps(ids("e")).encode()}), world.script()
    r = world.router(world.pool([{"url": p.url, "bootstrap_port": p.port, "bootstrap_host": "rdma-1.example.net"}], [d], **NEW))
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    dec = d.expect()
    assert dec.json()["kv_transfer_params"]["remote_bootstrap_addr"] == f"http://rdma-1.example.net:{p.port}"
    p.expect().prefilled("null")
    dec.reply(body={"choices": []})
    assert c.read().status == 200


def test_ipv6(world):
    p = world.engine("prefill", host="::1", handshake="mooncake", bootstrap_port=0)
    d = world.engine("decode", host="::1", handshake="mooncake")
    r = world.router(world.pool([entry(p)], [d], **NEW))
    assert r.complete("hi").status == 200 and d.counter("kv_loaded") == 1
    assert d.last().json()["kv_transfer_params"]["remote_bootstrap_addr"] == f"http://[::1]:{p.bootstrap}"


@pytest.mark.parametrize("ranks", [3, None], ids=["dp_ranks", "learned"])
def test_data_parallel_ranks(world, ranks):
    """Round robin over P's ranks, decode told the engine id of the same; where none are configured, /query says
    how many there are."""
    r, p, d = pd(world, n=1, ranks=ranks, engine={"dp_size": 3}, workers=1)
    for i in range(6):
        assert r.complete(f"p{i}").status == 200
    assert [x["x-data-parallel-rank"] for x in p[0].requests()] == ["0", "1", "2"] * 2
    told = [x.json()["kv_transfer_params"]["remote_engine_id"] for x in d[0].requests()]
    assert len(set(told)) == 3 and told[:3] == told[3:]
    assert all(x["x-data-parallel-rank"] is None for x in d[0].requests())
    assert d[0].counter("kv_loaded") == 6


def test_short_prompts_go_to_decode_alone(world, old):
    r, p, d = pd(world, old, n=1, pool={"routing_threshold": 10})
    assert r.complete("short").status == 200 and p[0].requests() == []
    assert r.complete("long enough " * 5).status == 200 and len(p[0].requests()) == 1


# --- engine ids ----------------------------------------------------------------------------------------


def queries(p):
    """The router's lookups; those of decode engines have no id."""
    with p.client() as c:
        asked = c.get("/sim/last?other=1&n=64").json()["requests"]
    return [x for x in asked if x["path"] == "/query" and "X-Request-Id" in dict(x["headers"])]


def test_engine_ids_are_asked_for_once(world):
    r, p, d = pd(world, n=1, workers=1)
    for i in range(5):
        assert r.complete(f"p{i}").status == 200
    assert len(queries(p[0])) == 1


def test_requests_wait_for_one_lookup(world):
    """Several requests that need the same engine's id ask once."""
    asked, go = [], threading.Event()

    def query(ex):
        asked.append(ex)
        go.wait(10)
        ex.reply(body=ids("e-1"))
    p, d = world.script(probes={"/query": query}), world.script()
    r = world.router(world.pool([{"url": p.url, "bootstrap_port": p.port}], [d], **NEW, learn_timeout="10s"), workers=1)
    clients = [r.client().request("POST", URL, {"model": MODEL, "prompt": "x"}) for _ in range(4)]
    wait("all are there", lambda: r.metric("requests_in_flight") == 5)
    assert d.quiet(0.2) and len(asked) == 1
    go.set()
    for _ in clients:
        p.expect().prefilled("null")
        d.expect().reply(body={"choices": []})
    assert [c.read().status for c in clients] == [200] * 4 and len(asked) == 1


def bad_query(world, probe, **pool):
    p, d = world.script(probes={"/query": probe}), world.script()
    keys = {**NEW, "learn_timeout": "300ms", **pool}
    return world.router(world.pool([{"url": p.url, "bootstrap_port": p.port}], [d], **keys)), p, d


BAD_IDS = {"garbage": b"oops", "list": b"[1]", "empty": b"", "no_rank": b'{"7":{"engine_id":"x"}}', "no_id": b'{"0":{"worker_addr":{}}}',
           "number": b'{"0":{"engine_id":17}}', "status": (503, b"starting"), "large": b'{"0":{"engine_id":"' + b"x" * 70000 + b'"}}',
           "silent": lambda ex: ex.gone(10), "closes": lambda ex: None, "http": lambda ex: ex.write(b"\x00\x01garbage\r\n\r\n")}


@pytest.fixture(scope="module")
def vague(request):
    """A router whose prefill engine does not say who it is."""
    w = World()
    yield from lasting(request, w, bad_query(w, b"", learn_timeout="150ms"))


@pytest.mark.parametrize("what", BAD_IDS)
def test_no_usable_engine_id_is_503(vague, what):
    r, p, d = vague
    p.probes["/query"] = BAD_IDS[what]
    a = r.complete("hi")
    assert (a.status, a.error["code"]) == (503, "not_learned")
    line = r.end_of(a["x-request-id"])
    assert line["detail"] and line["detail"] in a.error["message"]
    assert 100 < line["total_ms"] < 1500 and line["states"] == "hbpad"
    assert p.quiet(0.02) and d.quiet(0.02), "no leg has been sent"


def test_bootstrap_server_down_is_503(world):
    p, d = world.script(), world.script()
    gone = world.script()
    gone.close()
    r = world.router(world.pool([{"url": p.url, "bootstrap_port": gone.port}], [d], **NEW, learn_timeout="300ms"))
    assert r.complete("hi").error["code"] == "not_learned" and p.quiet(0.05)
    assert len(r.lines("attempt failed")) == 1, "one engine has failed, however often it was asked"


def test_a_silent_bootstrap_server_is_one_failure_for_all_who_wait(world):
    """Four requests wait for one lookup: their engine is charged once, and they go to the other one."""
    silent = world.script(probes={"/query": lambda ex: ex.gone(10)})
    (p,), (d,) = engines(world, False, "prefill", 1), engines(world, False, "decode", 1)
    pool = world.pool([{"url": silent.url, "bootstrap_port": silent.port}, entry(p)], [d], **NEW, learn_timeout="300ms", retries=1,
                      retry_budget=100, eject_failures=2)
    r = world.router(pool, workers=1).wait_all_up()
    clients = [r.client().request("POST", URL, {"model": MODEL, "prompt": f"x{i}"}) for i in range(8)]
    assert [c.read().status for c in clients] == [200] * 8
    assert len(r.lines("attempt failed")) == 4 and r.metric("ejections_total") == 0


def test_bootstrap_server_that_comes_up_in_time(world):
    """Asked again until learn_timeout."""
    r, p, d = bad_query(world, (503, b"starting"), learn_timeout="5s")
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    wait("it was asked", lambda: "/query" in p.probed)
    p.probes["/query"] = json.dumps(ids("late")).encode()
    dec = d.expect()
    assert dec.json()["kv_transfer_params"]["remote_engine_id"] == "late"
    dec.reply(body={"choices": []})
    assert c.read().status == 200


def again(world, p, role="prefill"):
    """The engine dies and starts again on the same ports, with another engine id."""
    p.stop()
    world.engines.remove(p)
    keys = {"bootstrap_port": p.bootstrap} if p.bootstrap else {}
    return world.engine(role, handshake="mooncake", port=p.port, **keys)


def test_engine_ids_are_read_again_after_a_failure(world):
    """P dies with a request in it: an honest error; after its restart nothing asks for the old engine."""
    r, (p,), (d,) = pd(world, n=1, workers=1)
    assert r.complete("one").status == 200
    p.fault("no_answer")
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "two"})
    wait("it is there", lambda: len(p.requests()) == 2)
    p = again(world, p)
    a = c.read()
    assert (a.status, a.error["code"]) in ((502, "prefill_broken"), (500, 500)), "whoever says so first"
    d.refuses_on_purpose = True
    r.wait_for("ready")
    assert r.complete("three").status == 200
    first, _, last = [x.json()["kv_transfer_params"]["remote_engine_id"] for x in d.requests()]
    assert first != last and len(queries(p)) == 1


def test_engine_ids_are_read_again_after_an_unseen_restart(world):
    """No request was there when it died; that its connections are gone is enough to ask again."""
    r, (p,), (d,) = pd(world, n=1, workers=1)
    assert r.complete("one").status == 200
    p = again(world, p)
    r.wait_all_up().wait_for("ready")
    assert r.complete("two").status == 200
    assert len(queries(p)) == 1 and d.counter("kv_refused") == 0


WHOLE = {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": []}


def served(r, p, d, n):
    """n requests at once, all well."""
    clients = [r.client().request("POST", URL, {"model": MODEL, "prompt": "x"}) for _ in range(n)]
    for ex in [p.expect() for _ in clients]:
        ex.prefilled("null")
    for ex in [d.expect() for _ in clients]:
        ex.reply(body=WHOLE)
    assert [c.read().status for c in clients] == [200] * n


def fail(what, pre, dec):
    error = {"error": {"message": "no", "type": "x", "param": None, "code": 500}}
    if what == "status":
        pre.reply(500, error)
    elif what == "answer":
        pre.reply(body=b"oops")
    elif what == "decode":
        dec.write(b"HTTP/1.1 2").reset()  # a byte, or it would be sent once more
    elif what == "decode_status":
        dec.reply(500, error)
    elif what == "decode_event":
        dec.reply(body=b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(error).encode(), headers=[("Content-Type", "text/event-stream")])


@pytest.mark.parametrize("source", ["decode", "prefill"], ids=["as_it_comes", "rewritten"])
@pytest.mark.parametrize("what, status", [("status", 500), ("answer", 502), ("timeout", 504), ("decode", 502), ("decode_status", 500),
                                          ("decode_event", 200)])
def test_any_failure_makes_it_ask_again(world, what, status, source):
    """Of decode too, which fails where it was told an engine that is no more."""
    r, p, d = scripts(world, pool={"timeouts": {"prefill": "300ms"}, "cached_tokens_from": source}, workers=1)
    served(r, p, d, 2)  # one connection to P stays, whatever happens to the other
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "stream": True})
    pre, dec = p.expect(), d.expect()
    p.probes["/query"] = json.dumps(ids("e-2")).encode()
    if what == "decode_event":
        pre.prefilled("null")
    fail(what, pre, dec)
    assert c.read().status == status
    for ex in (pre, dec):
        ex.end(keep=False)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    dec = d.expect()
    assert dec.json()["kv_transfer_params"]["remote_engine_id"] == "e-2"
    p.expect().prefilled("null")
    dec.reply(body=WHOLE)
    serve_again(c, {p: lambda ex: ex.prefilled("null"), d: lambda ex: ex.reply(body=WHOLE)})
    assert c.read().status == 200


def test_a_clients_mistake_makes_nobody_ask(world):
    """A 400 is no failure of the engine's: it would make all others wait for an answer."""
    r, p, d = scripts(world, workers=1)
    for _ in range(3):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
        pre, dec = p.expect(), d.expect()
        p.probes["/query"] = json.dumps(ids("e-2")).encode()
        pre.reply(400, {"error": {"message": "no", "type": "x", "param": None, "code": 400}})
        assert c.read().status == 400 and dec.json()["kv_transfer_params"]["remote_engine_id"] == "e-1"
        dec.end(keep=False)


# --- failures ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("what", FAULTS_OF_P)
def test_failure_of_p(strained, what):
    """The client hears of it at once with an honest status, decode is released, and the next request is served."""
    r, (p,), (d,) = strained.router, strained.p, strained.d
    fault, status, code = FAULTS_OF_P[what]
    loaded = d.counter("kv_loaded")
    p.fault(**fault)
    p.refuses_on_purpose = True  # truncated: it has handed off as far as it knows
    a = r.complete("hi", stream=True)
    if what == "truncated" and a.status == 200:
        return  # both legs ran at once, and decode had fetched it already
    assert (a.status, a.error["code"]) == (status, code)
    assert r.end_of(a["x-request-id"])["total_ms"] < 1500
    d.wait_metric("pdsim:running_requests", 0)
    # truncated: both legs ran at once, so decode may have fetched before it was ended
    assert d.counter("kv_loaded") - loaded <= (what == "truncated")
    assert r.complete("hi").status == 200


@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_refused_connection(world, old, who):
    r, (p,), (d,) = pd(world, old, n=1, health_interval="60s", **{"pool": {} if old else {"learn_timeout": "300ms"}})
    (p if who == "prefill" else d).stop()
    world.check_engines = False  # what P holds for a decode engine that is dead
    a = r.complete("hi")
    assert a.status in (502, 503) and a.error["code"] in (f"{who}_broken", "not_learned")


def test_what_never_comes_is_decodes_timeout(strained):
    """Prefill is done and holds nothing: from 0.17 on nobody tells decode, before it is asked to do it alone."""
    r, (p,), (d,) = strained.router, strained.p, strained.d
    p.fault("null_kv")
    a = r.complete("hi")
    assert a.status == 200 if "handoff" in r.config["pools"][0] else (a.status, a.error["code"]) == (504, "whole_answer_timeout")
    d.wait_metric("pdsim:running_requests", 0)


def test_one_branch_of_several_fails_all(world, old):
    r, p, d = pd(world, old, n=1)
    p[0].fault("fail")
    a = r.complete(["a", "b", "c"], stream=True)
    assert a.status == 500
    p[0].refuses_on_purpose = True  # the others' KV
    d[0].wait_metric("pdsim:running_requests", 0)
    assert r.end()["reason"] == "engine_status"


def test_p_that_ended_hands_off_nothing(world):
    """A prefill engine that gave up answers 200 and holds nothing: decode would wait for ever, so it is asked
    again without a handoff."""
    r, p, d = scripts(world)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    first = d.expect()
    p.expect().reply(body={"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "abort"}]})
    assert first.gone()
    first.close()
    second = d.expect()
    assert "kv_transfer_params" not in second.json() and second["x-request-id"] != first["x-request-id"]
    second.reply(body={"choices": []})
    assert c.read().status == 200 and r.metric("kv_handoff_missing_total") == 1


def test_nothing_handed_off_is_decoded_alone(world):
    r, (p,), (d,) = pd(world, True, n=1)
    p.fault("null_kv")
    assert r.complete("hi").json()["choices"][0]["text"] == expect.text("hi", 4)
    assert d.counter("local_prefills") == 1 and r.metric("kv_handoff_missing_total") == 1


def test_decode_is_not_late_while_prefill_works(world):
    """Those limits are of decode's own silence: with both legs at once it begins with prefill's answer."""
    r, p, d = pd(world, n=1, engine={"prefill_delay": 700}, pool={"timeouts": {**silence("300ms"), "prefill": "5s"}})
    assert r.complete("hi").status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_prefill_fails_when_decode_has_answered(world, stream):
    """The answer waits for the prefill engine's part of the usage: the client has nothing yet, so another branch is asked."""
    p = [world.script(probes={"/query": json.dumps(ids("e-1")).encode()}) for _ in range(2)]
    d = world.script()
    r = world.router(world.pool([{"url": e.url, "bootstrap_port": e.port} for e in p], [d], **NEW, cached_tokens_from="prefill", retries=1,
                                retry_budget=100), workers=1)
    r.wait_all_up()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "stream": stream, "max_tokens": 1})
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}

    def decode():
        ex = d.expect()
        one = {"id": "x", "choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}
        ex.stream("b") if stream else ex.reply(body={**one, "usage": usage})
    pre, _ = taken(p)
    decode()
    assert c.silent(0.1)
    pre.reset()
    pre, _ = taken(p)
    decode()
    pre.reply(body={"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage})
    assert (text_of(c.events()) if stream else c.read().json()["choices"][0]["text"]) == "b"
    assert r.end()["rescued"] == "retry"


def test_decode_that_has_failed_is_released(world):
    """Its prefill engine goes on by itself, to be released; the decode engine's place is free at once."""
    p = [world.script(probes={"/query": json.dumps(ids("e-1")).encode()}) for _ in range(2)]
    d = [world.script() for _ in range(2)]
    r = world.router(world.pool([{"url": e.url, "bootstrap_port": e.port} for e in p], d, **NEW, retries=1, retry_budget=100), workers=1)
    r.wait_all_up()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    (pre1, p1), (dec1, d1) = taken(p), taken(d)
    pre1.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n")
    time.sleep(0.1)  # it is read: this engine is waited for
    dec1.reply(500, {"error": {"message": "no"}})
    (pre2, _), (dec2, _) = taken(p), taken(d)
    r.wait_metric("endpoint_in_flight", 0, engine=d1.url, timeout=1)
    assert r.metric("endpoint_in_flight", engine=p1.url) == 1
    pre2.prefilled("null")
    dec2.reply(body=WHOLE)
    assert c.read().status == 200
    pre1.reset()


# --- the client leaves ---------------------------------------------------------------------------------


def test_client_gone_while_prefill_answers(world):
    """Decode, asked at the same time for an answer in one piece, has 5 s to fetch from then on, and not what an answer may take."""
    r, p, d = scripts(world)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    pre, dec = p.expect(), d.expect()
    body = b'{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}'
    pre.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
    c.silent(0.05)
    c.close()
    pre.write(body).end()
    assert not dec.gone(1) and dec.gone(6)
    dec.close()
    assert r.end()["reason"] == "client_gone"


def test_client_gone_while_decode_is_sent_its_request(world):
    """Prefill answers after all: decode is sent the whole of it again, under the transfer id that the prefill engine knows."""
    r, p, d = scripts(world)
    d.deaf = True
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x" * (12 << 20)})
    pre, dec = p.expect(), d.expect()
    c.silent(0.1)
    d.deaf = False
    c.close()
    time.sleep(0.1)
    dec.close()
    pre.reply(body={"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]})
    fetch = d.expect()
    assert fetch.json()["kv_transfer_params"]["transfer_id"] == pre.json()["kv_transfer_params"]["transfer_id"]
    fetch.reply(body={"choices": []})
    assert r.end()["reason"] == "client_gone"


STAGES = {"asking": {}, "prefilling": {"prefill_delay": 400}, "answering": {}, "fetching": {"fetch_delay": 200}, "streaming": {"token_delay": 10}}


@pytest.mark.parametrize("old, stage", [(old, stage) for old in (False, True) for stage in STAGES if (old, stage) != (True, "asking")])
def test_client_gone(world, old, stage):
    """At each stage; nothing is held, nothing runs on, no engine's timeout is needed."""
    r, (p,), (d,) = pd(world, old, n=1, engine=STAGES[stage], pool={} if old else {"learn_timeout": "5s"})
    for i, (stream, how) in enumerate([(False, "close"), (False, "reset"), (True, "close"), (True, "reset")]):
        if stage == "asking":
            fault_at(p, "/query", kind="no_answer")
        elif stage == "answering":
            p.fault("slow", delay_ms=200)
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "hi", "stream": stream, "max_tokens": 25})
        if stage == "asking":
            wait("it asks", lambda: r.metric("requests_in_flight") == 2)
        elif stage in ("prefilling", "answering"):
            p.wait_requests(i + 1)
        elif stage == "fetching":
            wait("decode waits", lambda: d.metric("pdsim:running_requests") == 1 or len(d.requests()) > i)
        else:
            wait("decode runs", lambda: d.counter("kv_loaded") == i + 1)
        leave(c, how)
        assert r.end(i + 1)["reason"] == "client_gone"
        for e in (p, d):
            e.wait_metric("pdsim:running_requests", 0, 5)
        p.wait_metric("pdsim:held_blocks", 0, 5)
    assert p.counter("kv_expired") == 0 and (stage != "asking" or p.requests() == [])


@pytest.mark.parametrize("stream", [False, True])
def test_client_gone_at_any_moment(world, old, stream):
    r, (p,), (d,) = pd(world, old, n=1, engine={"prefill_delay": 8, "fetch_delay": 8, "token_delay": 2})
    for i in range(15):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": f"p{i}" * 50, "stream": stream, "max_tokens": 20})
        c.silent(0.002 * i + 0.0005)
        leave(c, "reset")
    r.end(15)
    p.wait_metric("pdsim:held_blocks", 0, 5)
    assert p.counter("kv_expired") == 0


def test_requests_that_wait_for_a_lookup_which_fails_leave_together(world):
    """The bootstrap port takes the connection and closes it: not one request after the other finds that out."""
    p, d = (engines(world, False, role, 2) for role in ("prefill", "decode"))
    closing = socket.create_server(("127.0.0.1", 0))

    def accept():
        with suppress(OSError):
            while True:
                threading.Timer(0.05, closing.accept()[0].close).start()

    threading.Thread(target=accept, daemon=True).start()
    each = [{"url": p[0].url, "bootstrap_port": closing.getsockname()[1]}, entry(p[1])]
    r = world.router(world.pool(each, d, retries=2, retry_budget=100, eject_failures=255, **NEW), workers=1)
    r.wait_all_up()
    with ThreadPoolExecutor(40) as many:
        from_ = time.monotonic()
        assert {a.status for a in many.map(lambda i: r.complete(f"hi {i}"), range(40))} == {200}
    assert time.monotonic() - from_ < 1 * SLOW, "a tick for each would take 2 s"
    assert r.metric("attempts_failed_total") >= 15
    closing.close()
