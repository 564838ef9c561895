"""vLLM's P2pNcclConnector, 2P2D: the request's id carries the addresses both engines' caches travel by, and decode takes
what prefill pushed under that id.  A decode engine of pdsim answers nothing else, as vLLM's.  All of an answer equals a
direct call's but its id, which is the client's own; and decode computes no prompt, so samples are branches whatever `fanout` says."""
import re

import pytest

import expect
from legs import FAULTS_OF_P, MESSAGES, SHORT, leave, parsed, same_as_direct, texts, total
from members import kept, members
from procs import MODEL, free_port, wait
from rows import (  # lint: run here, for this file's fleets
    test_chat, test_completions, test_every_engine_is_used, test_failure_of_d, test_failure_of_d_in_the_stream, test_logprobs, test_n,
    test_non_stream, test_stream, test_structured_output, test_token_ids, test_tools)
from stages import BaseFleet, lasting
from test_announce import Announcer

URL, CHAT = "/v1/completions", "/v1/chat/completions"
POOL = {"connector": "p2p_nccl", "policy": "round_robin"}
ID = re.compile(r"___prefill_addr_(.*):(\d+)___decode_addr_(.*):(\d+)_([0-9a-f]{32})$")


def entry(e):
    return {"url": e.url, "kv_addr": f":{e.side}"}


def pd(world, n=1, engine=None, pool=None, **keys):
    """n prefill and n decode engines with a router before them."""
    p, d = ([world.engine(role, handshake="p2p_nccl", **(engine or {})) for _ in range(n)] for role in ("prefill", "decode"))
    r = world.router(world.pool(map(entry, p), map(entry, d), **{**POOL, **(pool or {})}), **keys)
    return r.wait_all_up(), p, d


def scripts(world, pool=None, kv=(":21001", "10.0.1.3:22001"), **keys):
    p, d = world.script(), world.script()
    each = [{"url": e.url, "kv_addr": k} for e, k in zip((p, d), kv)]
    return world.router(world.pool(each[:1], each[1:], **{**POOL, **(pool or {})}), **keys), p, d


class Fleet(BaseFleet):
    def __init__(self, n, **kw):
        super().__init__()
        self.direct = self.world.engine("both")
        self.router, self.p, self.d = pd(self.world, n, **kw)
        self.holder = self.d[0]  # what was pushed there


@pytest.fixture(scope="module")
def fleet(request):
    yield from lasting(request, Fleet(2))


@pytest.fixture(scope="module")
def strained(request):
    """One engine of each role, whose every failure is over in 300 ms."""
    yield from lasting(request, Fleet(1, pool=SHORT))


# --- what clients ask for ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [["ab", "cde"], [[1, 2], [3, 4, 5]]], ids=["strings", "ids"])
def test_list_prompts(fleet, prompts, stream):
    """One branch serves them all: both engines number them alike, so decode finds each."""
    got = same_as_direct(fleet, False, prompt=prompts, max_tokens=4, stream=stream)
    assert texts(got) == {i: expect.text(p, 4) for i, p in enumerate(prompts)}


@pytest.mark.parametrize("stream", [False, True])
def test_n_of_list_prompts(fleet, stream):
    got = parsed(fleet.router.address, False, prompt=["ab", "cde"], n=2, max_tokens=4, stream=stream)
    assert texts(got) == {0: expect.text("ab", 4), 1: expect.text("ab", 4), 2: expect.text("cde", 4), 3: expect.text("cde", 4)}


def test_more_branches_than_allowed(fleet):
    a = fleet.router.complete("a", n=9)
    assert (a.status, a.error["code"]) == (400, "too_many_choices")


# --- ids -----------------------------------------------------------------------------------------------


def test_ids_name_both_engines_and_never_come_twice(fleet):
    """The same on both legs, of the engines that were chosen, each with a random end."""
    for _ in range(6):
        fleet.router.complete("same", headers=[("X-Request-Id", "always-this")])
    seen = {}
    for role, engines in (("P", fleet.p), ("D", fleet.d)):
        for e in engines:
            for x in e.requests():
                found = ID.match(x["x-request-id"])
                assert found.group(*((1, 2) if role == "P" else (3, 4))) == ("127.0.0.1", str(e.side))
                assert (role, found[5]) not in seen, "an id comes once"
                seen[role, found[5]] = found[0]
    assert all(seen["D", tail] == x for (role, tail), x in seen.items() if role == "P")


@pytest.mark.parametrize("path, prefix", [(URL, "cmpl"), (CHAT, "chatcmpl")])
@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_own_id_in_the_answer(fleet, path, prefix, stream):
    """In header and body, of every event too: an engine's id would tell the addresses."""
    body = {"model": MODEL, "prompt": "x", "messages": MESSAGES, "max_tokens": 4, "stream": stream, "stream_options": None}
    body.pop("messages" if path == URL else "prompt")
    c = fleet.router.client().request("POST", path, body, [("X-Request-Id", "my-own.id")])
    if stream:
        events = list(c.events())
        shown = [e.json()["id"] for e in events if e.data != "[DONE]"]
        assert len(shown) >= 4 and events[-1].data == "[DONE]"
    else:
        shown = [c.read().json()["id"]]
    assert set(shown) == {f"{prefix}-my-own.id"} and c.answer["x-request-id"] == "my-own.id"
    assert b"_addr_" not in c.answer.raw + c.answer.body


def test_nothing_in_the_bodies(world):
    """Prefill's has the limits of its leg, decode's is the client's own; the client's ids and ranks stay out."""
    r, p, d = scripts(world)
    body = b'{"model":"sim-model","prompt":"x","max_tokens":7,"stream":true,"stop":["a"],"u":1e400,"kv_transfer_params":{"a":1}}'
    c = r.client().request("POST", URL, body, [("X-Request-Id", "___prefill_addr_10.6.6.6:1___"), ("X-Data-Parallel-Rank", "1")])
    pre = p.expect()
    assert pre.json() == {"model": "sim-model", "prompt": "x", "max_tokens": 1, "stream": False, "stop": ["a"], "u": float("inf")}
    assert d.quiet(0.1), "decode comes after prefill's answer"
    pre.prefilled("null")
    dec = d.expect()
    assert kept(dec.body, ()) == [(k, v) for key, k, v in members(body) if key != "kv_transfer_params"]
    assert ID.match(dec["x-request-id"]).group(1, 2, 3, 4) == ("127.0.0.1", "21001", "10.0.1.3", "22001")
    assert pre["x-request-id"] == dec["x-request-id"] and pre["x-data-parallel-rank"] is None
    dec.stream("a", "b")
    events = list(c.events())
    assert {e.json()["id"] for e in events[:-1]} == {"cmpl-___prefill_addr_10.6.6.6:1___"}, "the client's, though it looks like ours"


def test_members_and_headers_that_choose_a_peer_never_pass(fleet):
    evil = {"kv_transfer_params": {"remote_host": "10.6.6.6"}, "data_parallel_rank": 3, "routed_dp_rank": 3,
            "request_id": "mine", "rid": "___decode_addr_10.6.6.6:1"}
    a = fleet.router.complete("not to be seen twice", headers=[("X-Data-Parallel-Rank", "7")], **evil)
    assert a.status == 200
    sent = [x for e in [*fleet.p, *fleet.d] for x in e.requests() if x.json().get("prompt") == "not to be seen twice"]
    assert len(sent) == 2
    for x in sent:
        assert b"10.6.6.6" not in x.body and x["x-data-parallel-rank"] is None and "data_parallel_rank" not in x.json()
        assert x.json()["rid"] == x.json()["request_id"] == x["x-request-id"]


# --- where the engines' caches are ----------------------------------------------------------------------


def test_ipv6(world):
    p, d = (world.engine(role, host="::1", handshake="p2p_nccl") for role in ("prefill", "decode"))
    r = world.router(world.pool([entry(p)], [entry(d)], **POOL))
    assert r.complete("hi").json()["choices"][0]["text"] == expect.text("hi", 4)
    assert d.last()["x-request-id"].startswith(f"___prefill_addr_[::1]:{p.side}___decode_addr_[::1]:{d.side}_")
    assert d.counter("kv_loaded") == 1


def test_announced_engines(world):
    """Registered over ZMQ by pdsim itself, as vLLM's engines do; what it calls its cache's address is in the ids."""
    port = free_port()
    options = {"handshake": "p2p_nccl", "announce": f"127.0.0.1:{port}", "announce_interval": 100}
    pool = {"name": "found", "models": [MODEL], "announce_networks": ["127.0.0.0/8"], **POOL}
    r = world.router(pool, announce={"listen": f"tcp://127.0.0.1:{port}", "forget": "2s"}, wait_for="live")
    engines = [world.engine(role, **options) for role in ("prefill", "decode") for _ in range(2)]
    r.wait_for("ready")
    wait("all four", lambda: r.status()["fleet"]["endpoints"][3:])
    r.wait_all_up()
    for i in range(6):
        assert r.complete(f"p{i}").json()["choices"][0]["text"] == expect.text(f"p{i}", 4)
    assert total(engines[2:], "kv_loaded") == 6 and all(e.requests() for e in engines)


def test_listed_and_announced_together(world):
    """A listed engine that also announces itself is one endpoint; its kv_addr stays the configured one."""
    port = free_port()
    p, d = (world.engine(role, handshake="p2p_nccl") for role in ("prefill", "decode"))
    pool = world.pool([entry(p)], [], **POOL, announce_networks=["127.0.0.0/8"])
    r = world.router(pool, announce={"listen": f"tcp://127.0.0.1:{port}", "forget": "60s"}, wait_for="live")
    said = [Announcer(port, "P", p.url.removeprefix("http://"), "127.0.0.1:9"),
            Announcer(port, "D", d.url.removeprefix("http://"), f"127.0.0.1:{d.side}")]
    for one in said:
        one.speak()
    wait("ready", lambda: r.get("/ready").status == 200)
    assert r.complete("hi").status == 200 and d.counter("kv_loaded") == 1
    for one in said:
        one.close()


def test_an_engine_whose_address_is_not_known_is_503(world):
    """Listed beside announced ones, without a kv_addr, and it has not announced itself."""
    port = free_port()
    p, d = (world.engine(role, handshake="p2p_nccl") for role in ("prefill", "decode"))
    pool = world.pool([p], [entry(d)], **POOL, announce_networks=["127.0.0.0/8"])
    r = world.router(pool, announce={"listen": f"tcp://127.0.0.1:{port}", "forget": "60s"})
    a = r.complete("hi")
    assert (a.status, a.error["code"]) == (503, "not_learned") and "kv_addr" in a.error["message"]
    assert p.requests() == [] and d.requests() == []
    one = Announcer(port, "P", p.url.removeprefix("http://"), f"127.0.0.1:{p.side}")
    one.speak()
    wait("it is known", lambda: r.complete("hi").status == 200)
    one.close()


# --- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", FAULTS_OF_P)
def test_failure_of_p(strained, what):
    """An honest status; decode is not even asked, and the next request is served."""
    r, (p,), (d,) = strained.router, strained.p, strained.d
    fault, status, code = FAULTS_OF_P[what]
    asked = d.counter("kv_loaded")
    p.fault(**fault)
    d.refuses_on_purpose = True  # truncated: what was pushed stays there
    a = r.complete("hi", stream=True)
    assert (a.status, a.error["code"]) == (status, code)
    assert r.end_of(a["x-request-id"])["total_ms"] < 1500 and d.counter("kv_loaded") == asked
    assert r.complete("hi").status == 200


@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_refused_connection(world, who):
    r, (p,), (d,) = pd(world, health_interval="60s")
    (p if who == "prefill" else d).stop()
    a = r.complete("hi")
    assert (a.status, a.error["code"]) == (502, f"{who}_broken")


def test_an_error_event_passes(strained):
    strained.d[0].fault("error_event", after_events=2)
    events = list(strained.router.open_stream(n=8).events())
    assert "error" in events[2].json() and all("_addr_" not in e.data for e in events)


def test_what_never_comes_is_decodes_timeout(strained):
    """Prefill pushed nothing: decode waits for its timeout."""
    r, (p,), (d,) = strained.router, strained.p, strained.d
    p.fault("null_kv")
    a = r.complete("hi")
    assert (a.status, a.error["code"]) == (504, "whole_answer_timeout")
    d.wait_metric("pdsim:running_requests", 0)


def test_one_branch_of_several_fails_all(strained):
    r, (p,), (d,) = strained.router, strained.p, strained.d
    p.fault("fail")
    d.refuses_on_purpose = True  # what the others pushed
    assert r.complete("a", n=3, stream=True).status == 500
    d.wait_metric("pdsim:running_requests", 0)


# --- the client leaves ----------------------------------------------------------------------------------

STAGES = {"prefilling": {"prefill_delay": 400}, "answering": {}, "fetching": {"fetch_delay": 200}, "streaming": {"token_delay": 10}}


@pytest.mark.parametrize("stage", STAGES)
def test_client_gone(world, stage):
    """At each stage; what prefill pushed is taken by decode for one token, nothing is held on either side."""
    r, (p,), (d,) = pd(world, engine=STAGES[stage])
    for i, (stream, how) in enumerate([(False, "close"), (False, "reset"), (True, "close"), (True, "reset")]):
        if stage == "answering":
            p.fault("slow", delay_ms=200)
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "hi", "stream": stream, "max_tokens": 25})
        if stage in ("prefilling", "answering"):
            p.wait_requests(i + 1)
        elif stage == "fetching":
            d.wait_requests(i + 1)
        else:
            wait("decode runs", lambda: d.counter("kv_loaded") == i + 1)
        leave(c, how)
        assert r.end(i + 1)["reason"] == "client_gone"
        for e in (p, d):
            e.wait_metric("pdsim:running_requests", 0, 5)
            e.wait_metric("pdsim:held_blocks", 0, 5)
    assert total([p, d], "kv_expired") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_client_gone_at_any_moment(world, stream):
    r, (p,), (d,) = pd(world, engine={"prefill_delay": 8, "fetch_delay": 8, "token_delay": 2})
    for i in range(15):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": f"p{i}" * 50, "stream": stream, "max_tokens": 20})
        c.silent(0.002 * i + 0.0005)
        leave(c, "reset")
    r.end(15)
    for e in (p, d):
        e.wait_metric("pdsim:held_blocks", 0, 5)
    assert total([p, d], "kv_expired") == 0
