"""Each 429 and 503 of the router says when another request is worth the try: seconds from 1 to 60, estimated from what the router
sees, and not the same for all who are refused together."""
import re
import signal
import time
from pathlib import Path

from procs import MODEL, wait
from test_api_keys import bearer, in_debt, row, with_keys

URL = "/v1/completions"
LIST = Path(__file__).parents[2] / "worker/base/end_list.h"
DEAD = "http://127.0.0.1:1"


def ask(r, model, prompt="hi", headers=()):
    return r.client().request("POST", URL, {"model": model, "prompt": prompt, "max_tokens": 1}, headers)


def key(name):
    return [("Authorization", f"Bearer {name}")]


def told(a, seen):
    seen[a.error["code"]] = int(a["retry-after"])


def test_every_429_and_503_has_one(world):
    seen = {}
    a_pool_for_each(world, seen)
    limits(world, seen)
    tokens(world, seen)
    ends = set(re.findall(r'X\(\w+, "(\w+)", (?:429|503),', LIST.read_text()))
    assert ends == set(seen) and len(ends) >= 11
    assert all(1 <= s <= 60 for s in seen.values())


def a_pool_for_each(world, seen):
    """A router whose pools, named as their models, are each in trouble of their own."""
    names = ("full", "queue", "no_p", "no_d", "budget", "unknown")
    p, d, silent = (world.script(models=names, probes={"/query": lambda ex: ex.gone(10)}) for _ in range(3))
    pools = {"full": world.pool([p], [{"url": d.url, "max_inflight": 1}]),
             "queue": world.pool([p], [{"url": d.url, "max_inflight": 1}], queue_size=1, queue_timeout="400ms"),
             "no_p": world.pool([DEAD], [d]), "no_d": world.pool([d], [DEAD]),
             "budget": world.pool([DEAD], [d], fallback="direct", fallback_budget=1000),
             "unknown": world.pool([{"url": silent.url, "bootstrap_port": silent.port}], [d], "mooncake", learn_timeout="100ms")}
    r = world.router(*({**pool, "models": [m], "name": m} for m, pool in pools.items()), workers=1, wait_for="live", drain_timeout="100ms")
    wait("engines are up", lambda: r.metric("endpoint_up") == 9)
    r.clients = [ask(r, "full"), ask(r, "queue")]
    for _ in range(2):
        p.expect().prefilled()
    r.clients += [ask(r, "budget", "x" * 40000), *(d.expect() for _ in range(3))]
    waits = ask(r, "queue")
    r.wait_metric("queue_waiting", 1)
    for model in pools:
        told(ask(r, model).read(), seen)
    told(waits.read(), seen)
    assert 8 <= seen["fallback_budget"] <= 15, "10,000 tokens at 1,000 a second"
    assert 1 <= int(r.get("/ready")["retry-after"]) <= 60
    stops(r, seen)


def stops(r, seen):
    with r.client() as c:
        assert c.get("/live").status == 200
        r.kill(signal.SIGTERM)
        time.sleep(0.5)  # past the drain time, within the worker's last second
        told(c.request("POST", URL, {"model": "full", "prompt": "x"}).read(), seen)


def limits(world, seen):
    """Two requests a minute and one at once of each client, and 1 MiB for all bodies."""
    r, _, (d,) = world.pd(client={"max_inflight": 1}, limits={"max_buffered": "1MiB", "max_body": "1MiB"}, workers=1)
    d.pause()
    stream = r.open_stream(headers=key("a"))
    told(ask(r, MODEL, headers=key("a")).read(), seen)
    large = r.client()
    large.send(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 900000\r\n\r\n" + b"x" * 800000)
    wait("it is kept", lambda: (r.metric("request_buffer_bytes") or 0) >= 700000)
    told(ask(r, MODEL, "x" * 300000, key("b")).read(), seen)
    d.go_on()
    assert stream.events()
    r.reload(client={"rate": "2/m", "burst": 1})
    assert ask(r, MODEL, headers=key("c")).read().status == 200
    told(ask(r, MODEL, headers=key("c")).read(), seen)
    assert 29 <= seen["client_rate"] <= 30, "this one is exact"


def tokens(world, seen):
    """A key that has used more tokens than its minute has.  Not a whole minute's more: the clock of the worker that refuses
    may be some ms behind that of the one that has counted."""
    r, _, _ = with_keys(world, row("alice", tokens_per_minute=10))
    assert r.complete(headers=bearer("alice"), max_tokens=18).status == 200
    told(in_debt(r), seen)


def test_the_length_of_the_queue_at_its_pace(world):
    """Some two requests a second get engines, and eight wait."""
    d = world.script()
    r = world.router(world.pool([world.script(probes={URL: lambda ex: ex.prefilled()})], [{"url": d.url, "max_inflight": 2}], queue_size=8))
    clients = [ask(r, MODEL) for _ in range(2)]
    held = [d.expect() for _ in range(2)]
    for n in range(8):
        clients.append(ask(r, MODEL))
        r.wait_metric("queue_waiting", n + 1)
    a = [ask(r, MODEL).read() for _ in range(20)]
    waits = [int(x["retry-after"]) for x in a]
    assert {x.error["code"] for x in a} == {"queue_full"}
    assert all(4 <= s <= 9 for s in waits) and len(set(waits)) > 1, waits
    assert held
