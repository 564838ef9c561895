"""The status page at admin.listen: its files, its stream, who may see them.  test_status_browser.py shows it to a browser."""
import base64
import json

import pytest

from procs import MODEL, ROOT, SLOW, free_port, wait
from test_api_keys import bearer, row, secret, write

FILES = {"/": "text/html", "/status": "text/html", "/status/page.css": "text/css", "/status/page.js": "text/javascript",
         "/status/runbook": "text/plain"}
KINDS = {"fleet", "now"}


def admin(**keys):
    return {"listen": [f"127.0.0.1:{free_port()}"], **keys}


class Viewer:
    """An open stream; its events one by one."""

    def __init__(self, router, headers=()):
        self.client = router.operator()
        self.client.request("GET", "/status/events", headers=headers)
        self.head = self.client.head()
        self.fleet = self.now = None
        self.events = self.client.events() if self.head.status == 200 else iter(())

    def next(self):
        """The next figures, with the names that they are of."""
        for event in self.events:
            kind, data = lines(event)
            if kind == "fleet":
                self.fleet = data
            elif kind == "now":
                self.now = data
                assert data["fleet"] == self.fleet["number"] and len(data["engines"]) == len(self.fleet["engines"])
                return data
        raise EOFError

    def until(self, what, test):
        return wait(what, lambda: test(self.next()) and self.now)

    def states(self):
        return {url: row[0] for (_, _, url, _), row in zip(self.fleet["engines"], self.now["engines"])}

    def close(self):
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def lines(event):
    text = event.raw.decode()
    if text.startswith(":"):
        return None, None
    kind, data = text.rstrip("\n").split("\n")
    assert kind.removeprefix("event: ") in KINDS and data.startswith("data: ")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.fixture
def router(world):
    return world.pd(2, 2, admin=admin(), workers=1)[0]


def test_the_files(router):
    for path, kind in FILES.items():
        with router.operator() as c:
            a = c.get(path)
        assert a.status == 200 and a["content-type"] == f"{kind}; charset=utf-8" and a["cache-control"] == "no-store"
        policy = dict(x.strip().split(" ", 1) for x in a["content-security-policy"].split(";"))
        assert policy == {"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
                          "img-src": "data:", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
        assert a["x-content-type-options"] == "nosniff" and a["cross-origin-resource-policy"] == "same-origin"
        assert router.get(path).status == 404, "it is not for clients"
    with router.operator() as c:
        assert c.get("/status/runbook").body == (ROOT / "etc/docs/runbook.md").read_bytes()
        assert c.get("/status").body == (ROOT / "worker/request/status.html").read_bytes()
        assert c.request("HEAD", "/status/events").read(head_only=True)["content-type"] == "text/event-stream"
    assert router.get("/status/events").status == 404


def test_without_an_address_for_operators_there_is_none(world):
    r, _, _ = world.pd()
    assert r.get("/metrics").status == 200 and [r.get(p).status for p in [*FILES, "/status/events"]] == [404] * 6


def test_the_stream_shows_a_drain(world, router):
    with Viewer(router) as v:
        assert v.head["content-type"] == "text/event-stream" and v.head["cache-control"] == "no-store"
        first = v.next()
        assert v.fleet["pools"] == [MODEL] and set(v.states().values()) == {"up"} and first["viewers"] == 1
        roles = [role for _, role, _, _ in v.fleet["engines"]]
        assert sorted(roles) == ["decode", "decode", "prefill", "prefill"]
        gone = world.engines[0].url
        assert router.ctl("drain", gone).returncode == 0
        v.until("the drain", lambda _: v.states()[gone] == "draining")
        assert sorted(v.states().values()) == ["draining", "up", "up", "up"]
        number = v.fleet["number"]
        router.reload(pools=[world.pool(world.engines[:2], world.engines[2:3])])
        v.until("the new table", lambda _: v.fleet["number"] > number and len(v.fleet["engines"]) == 3)


def test_the_stream_shows_requests(world, router):
    decode = world.engines[2:]
    for d in decode:
        d.pause()
    streams = [router.open_stream() for _ in range(3)]
    with Viewer(router) as v:
        now = v.until("their flows", lambda now: sum(n for _, _, n in now["flows"]) == 3)
        assert now["in_flight"] == 3, "a viewer is none of them"
        for p, d, _ in now["flows"]:
            assert [v.fleet["engines"][p][1], v.fleet["engines"][d][1]] == ["prefill", "decode"]
        assert sum(row[1] for e, row in zip(v.fleet["engines"], now["engines"]) if e[1] == "decode") == 3
        for d in decode:
            d.go_on()
        for s in streams:
            assert s.read().status == 200
            s.close()
        now = v.until("their end", lambda now: not now["flows"] and now["in_flight"] == 0)
        pool, = now["pools"]
        assert sum(pool["ttft"]) == 3 and len(pool["gap"]) == len(pool["ttft"]) == len(v.fleet["bounds_us"]) + 1
        assert now["events"] > 3 and now["failures"] == []


def test_the_stream_shows_failures(world):
    r, _, d = world.pd(admin=admin(), pool={"retries": 0, "fallback": "none"})
    d[0].fault("fail")
    hostile = 'a"</script><b>\n\u2028'
    assert r.complete(headers=[("X-Request-Id", "first-of-two")]).status >= 500
    with Viewer(r) as v:
        one, = v.until("the failure", lambda now: now["failures"])["failures"]
        assert one["id"].startswith("first-of-two") and one["status"] >= 500 and one["model"] == MODEL and one["pool"] == MODEL
        assert v.fleet["engines"][one["decode"]][2] == d[0].url and 0 <= one["age_ms"] < 20000 * SLOW
        assert r.post("/v1/completions", {"model": hostile, "prompt": "x"}).status == 404
        d[0].fault("fail")
        assert r.complete(headers=[("X-Request-Id", "second-of-two")]).status >= 500
        now = v.until("the second one", lambda now: len(now["failures"]) > 1)
        assert [f["id"][:6] for f in now["failures"]] == ["second", "first-"], "not the client's own mistake"


def test_viewers_have_a_bound_over_all_workers(world):
    r, _, _ = world.pd(admin=admin(), workers=2)
    viewers = [Viewer(r) for _ in range(16)]
    assert all(v.head.status == 200 for v in viewers) and r.metric("status_viewers") == 16
    with Viewer(r) as late:
        assert late.head.status == 503 and late.head["retry-after"] == "10"
    assert r.complete().status == 200 and r.metric("status_viewers") == 16
    for v in viewers[:2]:
        v.until("all of them", lambda now: now["viewers"] == 16)
    viewers.pop().close()
    wait("room", lambda: r.metric("status_viewers") == 15)
    viewers.append(Viewer(r))
    assert viewers[-1].next()
    for v in viewers:
        v.close()
    wait("none", lambda: r.metric("status_viewers") == 0)


def test_a_reload_ends_the_stream_and_another_worker_goes_on(world, router):
    with Viewer(router) as v:
        assert v.next()
        router.reload(workers=2)
        with pytest.raises(EOFError):
            while True:
                v.next()
    with Viewer(router) as v:
        assert v.next()["viewers"] >= 1


# --- who may see it -----------------------------------------------------------------------------------------------------


def basic(name, user="operator"):
    return [("Authorization", f"Basic {base64.b64encode(f'{user}:{secret(name)}'.encode()).decode()}")]


def code(router, path, headers=()):
    with router.operator() as c:
        return c.get(path, headers).status


def test_a_browser_is_asked_for_the_key(world):
    keys = write(world, row("ops"), row("old", expires="2020-01-01"))
    r = world.router(world.pool([world.engine("prefill")], [world.engine("decode")]), admin=admin(api_keys_file=keys))
    r.operator_headers = bearer("ops")
    for path in [*FILES, "/status/events"]:
        with r.operator() as c:
            a = c.get(path)
        assert a.status == 401 and a["www-authenticate"] == 'Basic realm="pdrouter"', "the browser shows its dialogue"
    for path in FILES:
        assert [code(r, path, h) for h in (basic("ops"), basic("ops", user=""), bearer("ops"))] == [200] * 3
    for bad in basic("eve"), basic("old"):
        assert code(r, "/status", bad) == 401
    for what in "", "=", "b3Bz", "b3BzOg==", "!!!!", "b" * 4000, base64.b64encode(b"x:" + b"y" * 600).decode():
        assert code(r, "/status", [("Authorization", f"Basic {what}")]) == 401
    assert code(r, "/metrics", basic("ops")) == 200, "the page's links work, too"
    with Viewer(r, basic("ops")) as v:
        assert v.next()
    with r.operator() as c:
        a = c.get("/metrics")
    assert (a.status, a["www-authenticate"]) == (401, "Bearer"), "programs are told what they were told"


def test_clients_give_no_key_as_a_password(world):
    keys = write(world, row("alice"))
    r, _, _ = world.pd(api_keys_file=keys)
    assert r.complete(headers=basic("alice")).status == 401 and r.complete(headers=bearer("alice")).status == 200


def test_a_key_that_is_removed_ends_its_stream(world):
    both, one = [row("ops"), row("other")], [row("other")]
    path = write(world, *both)
    r = world.router(world.pool([world.engine("prefill")], [world.engine("decode")]), admin=admin(api_keys_file=path))
    r.operator_headers = bearer("other")
    with Viewer(r, bearer("ops")) as gone, Viewer(r, bearer("other")) as stays:
        assert gone.next() and stays.next()
        write(world, *one)
        r.reload()
        with pytest.raises(EOFError):
            while True:
                gone.next()
        assert stays.until("the other one alone", lambda now: now["viewers"] == 1)
