"""What happens when engines fail or are full, changed while the router runs: the same workers do it differently from the next
request on.  Only what a worker is born with takes a new generation, and then streams go on."""

from procs import SLOW, wait

ALWAYS = {"kind": "fail", "count": -1}


def set_pool(r, world, p, d, **keys):
    """Puts keys of the pool in force; the workers stay who they are."""
    before = sorted(r.children())
    r.reload(pools=[world.pool(p, d, **keys)])
    assert sorted(r.children()) == before, "the same workers"


def ends(r, n, **labels):
    """n requests: how many of them ended well, how many not."""
    got = [r.complete(max_tokens=1, **labels).status for _ in range(n)]
    return got.count(200), n - got.count(200)


def test_retries(world):
    keys = {"policy": "round_robin"}
    r, p, d = world.pd(2, 1, workers=1, pool=keys)
    r.wait_all_up()
    p[0].fault(**ALWAYS)
    assert ends(r, 8)[1] == 4, "PLAIN: nothing is tried again"
    set_pool(r, world, p, d, **keys, retries=1)
    assert ends(r, 8) == (8, 0)
    assert r.metric("rescued_total", by="retry") == r.metric("attempts_failed_total") - 4 > 0
    set_pool(r, world, p, d, **keys, retries=0)
    assert ends(r, 8)[1] == 4


def test_defaults_come_with_a_reload(world):
    """A file that says nothing of it, as an operator's does who has never read about it."""
    r, p, d = world.pd(2, 1)
    r.wait_all_up()
    p[0].fault(**ALWAYS)
    pool = {k: v for k, v in world.pool(p, d).items() if k not in ("retries", "fallback", "eject_failures", "eject_rate", "queue_size")}
    r.reload(pools=[pool])
    assert ends(r, 12) == (12, 0)
    assert r.metric("rescued_total", by="retry") > 0


def test_retry_budget(world):
    """A fleet that fails as a whole: ten tries are free, then what the budget allows."""
    r, p, d = world.pd(2, 1, workers=1, pool={"retries": 1, "retry_budget": 0})
    r.wait_all_up()
    for e in p:
        e.fault(**ALWAYS)
    assert ends(r, 15) == (0, 15)
    assert r.metric("retry_budget_spent_total") == 5
    set_pool(r, world, p, d, retries=1, retry_budget=100)
    assert ends(r, 5) == (0, 5)
    assert r.metric("retry_budget_spent_total") == 5, "all of them were tried again"


def test_fallback(world):
    r, p, d = world.pd()
    p[0].fault(**ALWAYS)
    assert ends(r, 2) == (0, 2)
    set_pool(r, world, p, d, fallback="direct")
    assert ends(r, 2) == (2, 0)
    r.wait_metric("rescued_total", 2, by="fallback")
    set_pool(r, world, p, d, fallback="none")
    assert ends(r, 2) == (0, 2)


def test_fallback_budget(world):
    r, p, d = world.pd(pool={"fallback": "direct", "fallback_budget": 1})
    p[0].fault(**ALWAYS)
    assert ends(r, 3, prompt="x" * 400) == (1, 2)
    set_pool(r, world, p, d, fallback="direct", fallback_budget=0)
    assert ends(r, 3) == (3, 0)


def test_fallback_that_cannot_be_is_refused(world):
    """And what was in force stays."""
    p, d = world.engine("prefill", handshake="sglang"), world.engine("decode", handshake="sglang")
    r = world.router(world.pool([p], [d], "sglang"))
    assert r.complete().status == 200
    r.change(pools=[world.pool([p], [d], "sglang", fallback="direct")])
    done = r.ctl("reload")
    assert done.returncode != 0 and "pools[0].fallback" in done.stdout + done.stderr
    assert r.complete().status == 200 and r.metric("reloads_failed_total") == 1


def test_eject_failures(world):
    """Counted only from when it is asked for; taken back, failures count for nothing again."""
    keys = {"policy": "round_robin", "retries": 1, "retry_budget": 100}
    r, p, d = world.pd(2, 1, pool=keys)
    r.wait_all_up()
    p[0].fault(**ALWAYS)
    assert ends(r, 8) == (8, 0) and r.metric("ejections_total", engine=p[0].url) == 0
    set_pool(r, world, p, d, **keys, eject_failures=2, eject_time="1h", eject_max_time="1h")
    assert ends(r, 8) == (8, 0)
    wait("it is ejected", lambda: r.metric("endpoint_ejected", engine=p[0].url) == 1)
    seen = len(p[0].requests())
    assert ends(r, 8) == (8, 0) and len(p[0].requests()) == seen, "it is left alone"
    assert r.metric("ejections_total", engine=p[0].url) == 1


def test_queue_size(world):
    keys = {"queue_timeout": "120s"}
    r, p, d = world.pd()
    one = [{"url": d[0].url, "max_inflight": 1}]
    set_pool(r, world, p, one, **keys)

    def hold():
        """A stream that keeps the one place until go_on()."""
        wait("the place is free", lambda: not r.in_flight())
        d[0].pause()
        c = r.open_stream(n=4)
        wait("it has the place", lambda: r.metric("endpoint_in_flight", role="decode") == 1)
        return c

    held = hold()
    assert r.complete(max_tokens=1).status == 429, "PLAIN: none waits"
    set_pool(r, world, p, one, **keys, queue_size=1)
    waiting = r.open_stream("waits", n=2)
    wait("it waits", lambda: r.metric("queue_waiting") == 1)
    assert r.complete(max_tokens=1).status == 429, "one may wait, not two"
    set_pool(r, world, p, one, **keys, queue_size=0)
    d[0].go_on()
    assert len(list(held.events())) == 5
    assert waiting.head().status == 200 and len(list(waiting.events())) == 3, "who waited already is served"
    held = hold()
    assert r.complete(max_tokens=1).status == 429
    d[0].go_on()
    assert len(list(held.events())) == 5


def test_first_byte_and_request(world):
    r, p, d = world.scripts(pool={"timeouts": {"first_byte": "60s"}})
    set_pool(r, world, p, d, timeouts={"stream_idle": "60s", "first_byte": "200ms"})
    c = r.open_stream()
    p[0].expect("POST /v1/completions").prefilled()
    x = d[0].expect("POST /v1/completions")
    assert c.head().status == 504
    assert r.end()["reason"] == "first_byte_timeout"
    x.over.set()
    wait("the prefill engine's blocks are free", lambda: d[0].refused)
    set_pool(r, world, p, d, timeouts={"stream_idle": "60s", "request": f"{SLOW}s"})
    c = r.open_stream()
    p[0].expect("POST /v1/completions").prefilled()
    x = d[0].expect("POST /v1/completions")
    x.stream_head().event("a")
    assert c.head().status == 200
    last = list(c.events())[-1]
    assert last.json()["error"]["code"] == "request_timeout", last.data
    x.over.set()


def test_client_limits_take_no_generation(world):
    """Streams go on, and the same workers hold every client to the limit."""
    r, p, d = world.pd(engine={"token_delay": 10})
    old = sorted(r.children())
    stream = r.open_stream(n=100)
    stream.head()
    r.reload(client={"rate": 1, "burst": 2})
    got = [r.complete(max_tokens=1, headers=[("Authorization", "Bearer k1")]).status for _ in range(3)]
    assert got == [200, 200, 429] and sorted(r.children()) == old
    wait("its line", lambda: "client_rate" in r.log())
    assert len(list(stream.events())) == 101
