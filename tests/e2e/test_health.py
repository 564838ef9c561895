"""What the router says about itself and its engines: /live /health /ready /v1/models /version
/metrics, and engines that come and go."""
import os
import shutil
import socket
import subprocess
import time

from prometheus_client import parser
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from procs import BIN, MODEL, SLOW, free_port, wait

URL = "/v1/completions"


def test_live_ready_version(shared, router):
    assert router.get("/live").json()["status"] == "ok"
    assert router.get("/ready").json()["status"] == "ok"
    version = subprocess.run([BIN / "pdrouter", "--version"], capture_output=True, text=True, check=True).stdout
    assert router.get("/version").json()["version"] in version


def test_health_says_what_is_there(shared, router):
    pool = router.get("/health").json()["pools"][MODEL]
    assert pool["can_serve"] and pool["prefill"]["up"] == pool["decode"]["up"] == 1
    assert router.get(f"/health?pool={MODEL}").status == 200
    assert router.get("/health?pool=nope").status == 404


def test_models(shared, router):
    m = router.get("/v1/models").json()
    assert m["object"] == "list" and [x["id"] for x in m["data"]] == [MODEL] and m["data"][0]["object"] == "model"


def test_metrics_page_is_clean(shared, router):
    router.complete()
    page = router.get("/metrics")
    assert page["content-type"].startswith("text/plain; version=0.0.4")
    promtool = shutil.which("promtool")
    assert promtool, "the package `prometheus` (tests/tools/deps.sh test) has it"
    done = subprocess.run([promtool, "check", "metrics"], input=page.body, capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == b"", done.stderr


def test_openmetrics_page_is_clean(shared, router):
    router.complete()
    prometheus = ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
                  "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1")
    page = router.get("/metrics", headers=[("Accept", prometheus)])
    assert page["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert page.body.endswith(b"\n# EOF\n")
    families = {f.name: f for f in text_string_to_metric_families(page.body.decode())}
    plain = {f.name: f for f in parser.text_string_to_metric_families(router.get("/metrics").body.decode())}
    assert {n: f.type for n, f in families.items()} == {n: f.type for n, f in plain.items()}
    assert families["pdrouter_events_relayed"].type == "counter" and families["pdrouter_prefill_seconds"].unit == "seconds"


def test_a_slow_bucket_leads_to_a_trace(shared, router):
    traces = {flags: os.urandom(16).hex() for flags in ("01", "00")}
    for flags, trace in traces.items():
        router.complete(headers=[("X-Request-Id", trace), ("traceparent", f"00-{trace}-00f067aa0ba902b7-{flags}")])
        assert router.end_of(trace)
    page = router.get("/metrics", headers=[("Accept", "application/openmetrics-text")]).body.decode()
    families = {f.name: f for f in text_string_to_metric_families(page)}
    for name in ("pdrouter_request_duration_seconds", "pdrouter_time_to_first_token_seconds"):
        shown = [s.exemplar for s in families[name].samples if s.exemplar]
        mine = [x for x in shown if x.labels == {"trace_id": traces["01"]}]
        assert len(mine) == 1 and 0 < mine[0].value < 60 and abs(float(mine[0].timestamp) - time.time()) < 60
        assert not [x for x in shown if x.labels["trace_id"] == traces["00"]], "it was not sampled"
    assert traces["01"] not in router.get("/metrics").body.decode()


def test_metrics_from_any_worker_are_the_same(shared, router):
    router.complete(headers=[("X-Request-Id", "counted")])
    assert router.end_of("counted")
    seen = {router.metric("requests_total", reason="ok", path=URL) for _ in range(20)}
    assert len(seen) == 1


def test_a_request_waits_for_engines_that_have_just_been_added(world):
    p, d = world.engine("prefill"), world.engine("decode")
    r = world.router(world.pool([p], [d]), wait_for="live")
    assert r.complete().status == 200
    p2, d2 = world.engine("prefill"), world.engine("decode")
    r.change(pools=[world.pool([p2], [d2], name="another")])  # the former engines were another pool's
    r.reload()
    assert r.complete().status == 200 and len(d2.requests()) == 1
    assert r.complete(model="nope").status == 404


def test_counters_add_up(world):
    r, (p,), (d,) = world.pd()
    for _ in range(5):
        list(r.open_stream(n=9).events())
    r.complete()
    r.wait_metric("requests_total", 6, reason="ok", status=200, path=URL, pool=MODEL)  # counted behind the answer
    assert r.metric("requests_total", reason="local", status=200, path="/ready") >= 1
    assert r.metric("events_relayed_total") == d.counter("events") == 50  # [DONE] is an event too
    for h in ("time_to_first_token_seconds", "prefill_seconds", "request_duration_seconds"):
        assert r.metric(f"{h}_count", pool=MODEL) == r.metric(f"{h}_bucket", pool=MODEL, le="+Inf") == 6, h
    assert r.metric("request_duration_seconds_sum") > 0
    for engine, role in ((p, "prefill"), (d, "decode")):
        of = {"engine": engine.url, "role": role, "pool": MODEL}
        assert r.metric("endpoint_time_to_first_byte_seconds_count", **of) == 6
        assert 0 < r.metric("endpoint_time_to_first_byte_seconds_sum", **of) < 60
        assert 1 <= r.metric("endpoint_connect_seconds_count", **of) <= 6
    assert r.metric("upstream_connections_opened_total") <= 12 and r.metric("client_connections_accepted_total") >= 6


def test_health_is_200_while_one_pool_can_serve(world):
    p, d = world.engine("prefill", model="a"), world.engine("decode", model="a")
    dead = f"http://127.0.0.1:{free_port()}"
    r = world.router({**world.pool([p], [d]), "models": ["a"], "name": "good"},
                     {**world.pool([dead], [d]), "models": ["b"], "name": "bad"}, wait_for="health")
    h = r.get("/health")
    assert h.status == 200 and h.json()["pools"]["bad"]["prefill"]["up"] == 0
    assert dead in str(h.json()["pools"]["bad"]["prefill"]["not_up"])
    assert r.get("/ready").status == 503
    assert r.get("/health?pool=bad").status == 503 and r.get("/health?pool=good").status == 200


def test_ready_counts_the_fallback(world):
    """A load balancer sends requests where they are served: by decode engines alone, if the pool allows that."""
    r, (p,), (d,) = world.pd(pool={"fallback": "direct"})
    assert "reason" not in r.get("/ready").json()["pools"][MODEL]
    p.tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=p.url)
    page = r.get("/ready")
    pool = page.json()["pools"][MODEL]
    assert (page.status, pool["can_serve"], pool["prefill"]["up"]) == (200, True, 0) and "decode engines serve alone" in pool["reason"]
    assert r.complete().status == 200 and r.end()["direct"] == "no_prefill"
    d.tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=d.url)
    assert (r.get("/ready").status, r.complete().status) == (503, 503)


def test_a_request_does_not_wait_for_another_pools_engines(world):
    p, d = world.engine("prefill", model="a"), world.engine("decode", model="a")
    dead = f"http://127.0.0.1:{free_port()}"  # starting, for ever
    r = world.router({**world.pool([p], [d]), "models": ["a"], "name": "good"},
                     {**world.pool([dead], [d]), "models": ["b"], "name": "bad"}, wait_for="health", health_timeout="30s")
    p.tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=p.url)
    assert r.complete(model="a").status == 503 and r.end()["total_ms"] < 10_000


def test_nobody_waits_for_an_engine_that_does_not_come(world):
    """After `fall` failed probes it is none of those that have just been added."""
    p, d = world.engine("prefill", model="a"), world.engine("decode", model="a")
    dead = f"http://127.0.0.1:{free_port()}"
    r = world.router({**world.pool([p], [d]), "models": ["a"], "name": "good"},
                     {**world.pool([dead], [d]), "models": ["b"], "name": "bad"}, wait_for="health", health_timeout="30s")
    wait("it is given up", lambda: r.lines("endpoint does not answer yet, still probing"))
    for n, (model, status) in enumerate((("nobody", 404), ("b", 503)), 1):
        assert r.complete(model=model).status == status
        assert r.end(n)["total_ms"] < 10_000


def test_engine_goes_down_and_comes_back(world):
    r, p, d = world.pd(2, 1)
    p[0].tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=p[0].url)
    before = len(p[0].requests())
    for _ in range(6):
        assert r.complete().status == 200
    assert len(p[0].requests()) == before
    p[0].tell("/sim/health", status=200)
    r.wait_metric("endpoint_up", 1, engine=p[0].url)
    for _ in range(6):
        assert r.complete().status == 200
    assert len(p[0].requests()) > before


def test_engine_dies_and_returns_on_its_port(world):
    r, (p,), (d,) = world.pd()
    p.stop(9)
    r.wait_metric("endpoint_up", 0, role="prefill")
    assert r.get("/health").status == 503 and r.complete().status == 503
    world.engine("prefill", port=p.port)
    r.wait_metric("endpoint_up", 1, role="prefill")
    assert r.complete().status == 200 and r.get("/health").status == 200


def test_engine_that_starts_after_the_router(world):
    d = world.engine("decode")
    port = free_port()
    r = world.router(world.pool([f"http://127.0.0.1:{port}"], [d]), wait_for="live")
    assert r.get("/ready").status == 503
    world.engine("prefill", port=port)
    r.wait_for("ready")
    assert r.complete().status == 200


def test_probe_without_an_answer_takes_it_down(world):
    """A stopped process accepts connections and says nothing."""
    import signal
    r, p, (d,) = world.pd(2, 1, health_timeout="200ms", fall=9)  # for some seconds some have failed

    def shown(state):
        e = next(e for e in r.status()["fleet"]["endpoints"] if e["url"] == p[0].url)
        return e["state"] == state and [e["reason"] or ""]
    assert shown("up") == [""]
    p[0].kill(signal.SIGSTOP)
    wait("some probes have failed", lambda: "of 9 probes failed: GET /health: no answer in time" in (shown("up") or [""])[0])
    assert wait("it is down", lambda: shown("down")) == ["GET /health: no answer in time"]
    assert r.complete().status == 200
    p[0].kill(signal.SIGCONT)
    assert wait("it is up", lambda: shown("up")) == [""], "no reason is left"


def test_rise_and_fall(world):
    r, (p,), _ = world.pd(rise=3, fall=3)
    p.tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, role="prefill")
    assert r.metric("probes_failed_total") >= 3


def test_sglang_is_asked_for_ready(world):
    p = world.engine("prefill", engine="sglang", load=3)
    d = world.engine("decode", engine="sglang")
    r = world.router(world.pool([p], [d], engine="sglang"))
    wait("the scrape", lambda: r.metric("endpoint_running", role="prefill") == 3)
    p.tell("/sim/health", ready=503)
    r.wait_metric("endpoint_up", 0, role="prefill")


def test_health_path(world):
    p, d = world.script(probes={"/my/health": b"ok", "/health": (500, b"")}), world.script(probes={"/my/health": b"ok"})
    world.router(world.pool([p], [d], health_path="/my/health"))


def test_scrape_that_cannot_be_read(world):
    """Load is then unknown, not wrong: the endpoint is still used."""
    p, d = world.script(probes={"/metrics": (404, b"")}), world.script(probes={"/metrics": b"\xff\x00{{{ garbage\n" * 100})
    r = world.router(world.pool([p], [d]))
    wait("failed scrapes", lambda: r.metric("scrapes_failed_total") > 0)
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    p.expect().prefilled()
    d.expect().reply(body={})
    assert c.read().status == 200


def test_probes_never_generate(world):
    r, (p,), (d,) = world.scripts()
    wait("a few probes", lambda: r.metric("probes_ok_total") > 6)
    assert p.quiet(0.3) and d.quiet(0.1)


def test_pdctl_status(world):
    r, (p,), (d,) = world.pd()
    text = r.ctl("status").stdout
    assert p.url in text and d.url in text and "up" in text
    fleet = r.status()["fleet"]["endpoints"]
    assert {(e["url"], e["role"], e["state"]) for e in fleet} == {(p.url, "prefill", "up"), (d.url, "decode", "up")}
    assert r.ctl("ping").returncode == 0 and r.ctl("nonsense").returncode == 2
    assert len(r.children("worker")) == 2


def test_how_long_requests_wait_for_new_engines_follows_a_reload(world):
    """health_timeout is live: workers that were born with another take the new one with the table."""
    r, p, d = world.pd(health_timeout="200ms")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        r.reload(pools=[world.pool([url], d, name="another")], health_timeout="2s")
        began = time.monotonic()
        assert r.complete().status == 503
        assert 1.5 < time.monotonic() - began < 6 * SLOW
