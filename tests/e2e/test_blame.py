"""KV that cannot be used: which of the two engines is at fault is decided by what each does with others, and only that one is
ejected and named.  vLLM says only "Internal server error" then; SGLang says more."""
import pytest

from fleets import build
from legs import FRESH
from procs import SLOW, Load, wait

POOL = {"policy": "round_robin", "eject_failures": 5, "eject_time": "60s", "retries": 2}
GONE = {"kind": "kv_unreachable", "count": -1}
# what vLLM says of each KV that it could not load
SAYS = '{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}'
SGLANG_SAYS = ('{"object":"error","message":"Decode transfer failed for request rank=0 decode_req.req.rid=\'a\' '
               'Failed to get kvcache from prefill instance, it might be dead"}')
# the defaults
DEFAULT = {"retries": 2, "fallback": "direct", "eject_failures": 5, "eject_rate": 50, "queue_size": 1024}


@pytest.fixture(autouse=True)
def blocks_are_not_checked(world):
    """KV that cannot be fetched stays until its time is over."""
    world.check_engines = False


def ejected(r):
    """(url, last) of each line, oldest first."""
    return [(x["url"], x["last"]) for x in r.lines("endpoint ejected, its requests fail")]


def failures(r, e, cause):
    return r.metric("endpoint_failures_total", engine=e.url, cause=cause)


def one(r):
    """One request; its status."""
    return r.complete(f"Prompt {next(FRESH)}").status


def asked(e):
    return len(e.requests())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [2, 3])
def test_a_prefill_engine_with_unusable_kv_is_ejected_and_named(world, n, stream):
    """Not one of the decode engines that report it; and the clients see nothing."""
    r, p, d = world.pd(n, n, pool=POOL, engine={"late_errors": True} if stream else None, workers=1)
    p[0].fault(**GONE)
    for _ in range(10 * n):
        assert (r.open_stream().read().status if stream else one(r)) == 200
    assert ejected(r) == [(p[0].url, "kv_unusable")]
    assert asked(p[0]) == 5 and 3 <= failures(r, p[0], "kv_unusable") <= 5
    assert r.metric("kv_failures_total") == 5


def test_from_the_middle_of_good_traffic(world):
    """Both engines have just worked with others: the first failure of two shows nothing, and counts nevertheless."""
    r, p, d = world.pd(3, 3, pool=POOL, workers=4)
    assert {one(r) for _ in range(18)} == {200}
    before = asked(p[0])
    p[0].fault(**GONE)
    assert {one(r) for _ in range(36)} == {200}
    assert ejected(r) == [(p[0].url, "kv_unusable")] and before + 5 <= asked(p[0]) <= before + 8


def test_a_decode_engine_that_cannot_fetch_from_any(world):
    """Its text is the same; what differs is that others fetch from those prefill engines."""
    r, p, d = world.pd(3, 3, pool=POOL, workers=1)
    d[0].fault("status", status=500, count=-1, body=SAYS)
    assert {one(r) for _ in range(40)} == {200}
    assert ejected(r) == [(d[0].url, "5xx")]
    assert sum(failures(r, e, "kv_unusable") for e in p) <= 1


def test_under_sglang(world):
    """Its texts are others, and both engines are asked at once."""
    r, p, d = build(world, "sglang", 3, 3, pool={**POOL, "retry_budget": 100})
    assert {one(r) for _ in range(6)} == {200}
    for e in d:
        e.fault("status", status=500, count=-1, body=SGLANG_SAYS, contains=f'"bootstrap_port":{p[0].bootstrap}')
    assert {one(r) for _ in range(30)} == {200}
    assert ejected(r) == [(p[0].url, "kv_unusable")]


def test_sglang_prefill_engines_for_which_no_decode_engine_comes(world):
    """A decode engine takes requests and fetches no KV: the prefill engines fail, each with `Prefill bootstrap failed`."""
    r, p, d = build(world, "sglang", 3, 3, prefill={"bootstrap_timeout": 0.1}, pool={**POOL, "retry_budget": 100})
    assert {one(r) for _ in range(6)} == {200}
    d[0].fault("no_answer", count=-1)
    assert {one(r) for _ in range(30)} == {200}
    assert ejected(r) == [(d[0].url, "kv_unusable")] and sum(failures(r, e, "5xx") for e in p) == 0
    line = r.lines("decode failed with the KV of a prefill engine")[-1]
    assert (line["said_by"], line["seen"], line["at_fault"]) == ("prefill", "5xx", "decode")


def test_two_engines_that_fail_only_together(world):
    """A broken network between two hosts: both work with all others, and neither is ejected."""
    r, p, d = world.pd(2, 2, pool={**POOL, "policy": "random", "retry_budget": 100}, workers=1)
    wait("each engine has served", lambda: one(r) == 200 and all(map(asked, p)) and all(map(asked, d)))
    d[0].fault("status", status=500, count=-1, body=SAYS, contains=f'"remote_port":{p[0].side}')
    assert {one(r) for _ in range(60)} == {200}
    assert ejected(r) == [] and r.metric("kv_failures_total", at_fault="neither") > 3
    line = r.lines("decode failed with the KV of a prefill engine")[-1]
    assert (line["prefill"], line["decode"]) == (p[0].url, d[0].url)


def test_one_decode_engine_tries_another_prefill_engine(world):
    """It is not at fault, so that it is asked again with another prefill engine's KV."""
    r, p, (d,) = world.pd(2, 1, pool=POOL, workers=1)
    p[0].fault(**GONE)
    assert {one(r) for _ in range(20)} == {200}
    assert ejected(r) == [(p[0].url, "kv_unusable")] and failures(r, d, "5xx") == 0


def test_the_only_prefill_engine(world):
    """It stays, as a role's only engine does; decode engines serve alone, and none of them is ejected."""
    r, (p,), d = world.pd(1, 3, pool={**POOL, "fallback": "direct"}, workers=1)
    p.fault(**GONE)
    assert {one(r) for _ in range(8)} == {200}
    assert ejected(r) == [] and failures(r, p, "kv_unusable") > 0
    assert r.metric("rescued_total", by="fallback") > 0


def test_an_ejected_one_is_back_when_its_kv_is_fetched(world):
    """A good prefill answer is not enough: the trial ends when a decode engine has used the KV."""
    r, p, d = world.pd(2, 2, pool={**POOL, "eject_time": f"{200 * SLOW}ms"}, workers=1)
    p[0].fault(**GONE)
    wait("a failed trial", lambda: one(r) == 200 and len(ejected(r)) == 2, 20)
    assert {url for url, _ in ejected(r)} == {p[0].url} and not r.lines("endpoint back, its trial request succeeded")
    p[0].tell("/sim/fault", kind="none")
    wait("back", lambda: one(r) == 200 and r.lines("endpoint back, its trial request succeeded"), 20)
    assert r.lines("endpoint back, its trial request succeeded")[0]["last"] == "kv_unusable"


@pytest.mark.parametrize("n", [2, 3])
def test_with_the_default_configuration(world, n):
    """The engine that fails fastest looks idlest, and gets most requests: no client sees it, no decode engine is ejected."""
    r, p, d = world.pd(n, n, pool=DEFAULT)
    p[0].fault(**GONE)
    bad = []
    load = Load(4, lambda k: bad.extend({one(r)} - {200}))
    wait("it is ejected", lambda: ejected(r), 5)
    done = load.done
    wait("more requests", lambda: load.done > done + 200)
    load.stop()
    assert not load.bad and not bad and {url for url, _ in ejected(r)} == {p[0].url}
