"""What the router learns of its engines by itself, the key it shows them, how they come back, and what
becomes of broken load pages."""
import os
import signal
import socket
import threading
import time

import pytest
from procs import MODEL, SLOW, free_port, silence, wait

URL = "/v1/completions"
GOOD_LOAD = b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"


def shown(r, url, role=None):
    """An endpoint as `pdctl status` shows it to programs."""
    (e,) = [x for x in r.status()["fleet"]["endpoints"] if x["url"] == url and role in (None, x["role"])]
    return e


def line(r, url):
    """... and to people."""
    (text,) = [x for x in r.ctl("status").stdout.splitlines() if url in x]
    return text


# --- what is learned ---

@pytest.mark.parametrize("old", [False, True])
def test_bootstrap_port_of_sglang_need_not_be_configured(world, old):
    options = {"engine": "sglang", "max_model_len": 32768, **({"old_server_info": True} if old else {})}
    p, d = world.engine("prefill", bootstrap_port=9123, **options), world.engine("decode", **options)
    r = world.router(world.pool([p], [d], engine="sglang"))
    assert {**shown(r, p.url), "version": ""}.items() >= {"bootstrap_port": 9123, "mode": "prefill", "max_context": 32768,
                                                          "contradiction": ""}.items()
    assert shown(r, p.url)["version"] == "0.5.23+pdsim"
    assert {**shown(r, d.url)}.items() >= {"bootstrap_port": 0, "mode": "decode", "contradiction": ""}.items()
    assert r.complete().status == 200


def test_vllm_is_asked_beside_its_work(world):
    r, (p,), (d,) = world.pd(engine={"max_model_len": 8192})
    wait("version and context", lambda: shown(r, d.url)["version"] == "0.33.0+pdsim" and shown(r, d.url)["max_context"] == 8192)
    assert shown(r, p.url)["mode"] == "" and not r.lines("endpoint contradicts the configuration, configured values are used")


def test_an_engine_serves_several_models_and_adapters_come_later(world):
    p, d = world.engine("prefill", model=["base", "lora-a"]), world.engine("decode", model=["base", "lora-a"])
    s = world.script()  # the same, in another pool: its adapters change
    t = world.script(probes={"/v1/models": b'{"data":[{"id":"other"}]}'})
    s.probes["/v1/models"] = b'{"data":[{"id":"other"}]}'
    r = world.router({**world.pool([p], [d]), "models": [], "name": "a"}, {**world.pool([s], [t]), "models": [], "name": "b"})
    assert [r.complete(model=m).status for m in ("base", "lora-a", "lora-b")] == [200, 200, 404]
    s.probes["/v1/models"] = t.probes["/v1/models"] = b'{"data":[{"id":"other"},{"id":"lora-b","parent":"other"}]}'
    wait("the adapter", lambda: "lora-b" in [m["id"] for m in r.get("/v1/models").json()["data"]])


def test_models_that_no_engine_has_listed_yet(world):
    """Down since the start: nobody knows whether they serve the model.  Later it is known that none does."""
    p, d, ports = world.script(), world.script(), [free_port() for _ in range(2)]
    learns = {**world.pool(*([f"http://127.0.0.1:{port}"] for port in ports)), "models": [], "name": "learns"}
    r = world.router(learns, {**world.pool([p], [d]), "name": "named"}, wait_for="health")
    wait("both are given up", lambda: len(r.lines("endpoint does not answer yet, still probing")) == 2)
    a = r.complete(model="other")
    assert (a.status, a.error["code"]) == (503, "no_decode_endpoint") and "has listed its models" in a.error["message"]
    assert r.post("/v1/completions", {"prompt": "x"}).error["code"] == 404, "it names none"
    for role, port in zip(("prefill", "decode"), ports):
        world.engine(role, port=port, model="another")
    r.wait_all_up()
    assert r.complete(model="another").status == 200 and r.complete(model="other").status == 404


def test_contradictions_are_told_once_and_shown(world):
    """An adapter may be loaded later, so the engine stays up.  What it must not be: test_life.py."""
    p, d = (world.script(probes={"/server_info": b'{"disaggregation_mode":"%s","version":"1"}' % role}) for role in (b"prefill", b"decode"))
    d.probes["/v1/models"] = b'{"data":[{"id":"%s"},{"id":"lora"}]}' % MODEL.encode()
    r = world.router(world.pool([p], [d], engine="sglang", models=[MODEL, "lora"]), health_interval="50ms").wait_all_up()
    told = wait("the warning", lambda: r.lines("endpoint contradicts the configuration, configured values are used"))
    assert told[0]["url"] == p.url and told[0]["level"] == "warn"
    assert told[0]["contradiction"] == shown(r, p.url)["contradiction"] == "does not serve the configured model lora"
    assert "does not serve the configured model lora" in line(r, p.url) and not shown(r, d.url)["contradiction"]
    first = p.probed["/server_info"]
    wait("another round", lambda: p.probed["/server_info"] is not first)
    r.reload(rise=2)
    second = p.probed["/server_info"]
    wait("and another", lambda: p.probed["/server_info"] is not second)
    assert len(r.lines("endpoint contradicts the configuration, configured values are used")) == 1
    p.probes["/server_info"] = b'{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9123,"version":"1"}'
    r.reload(pools=[world.pool([{"url": p.url, "bootstrap_port": 7000}], [d], engine="sglang")])
    wait("the next contradiction", lambda: "bootstrap_port is configured as 7000" in line(r, p.url))


def test_configured_bootstrap_port_wins(world):
    p, d = (world.engine(x, engine="sglang", bootstrap_port=9123) for x in ("prefill", "decode"))
    r = world.router(world.pool([{"url": p.url, "bootstrap_port": 7000}], [d], engine="sglang"))
    assert shown(r, p.url)["bootstrap_port"] == 7000
    assert "bootstrap_port is configured as 7000, but it says 9123" in line(r, p.url)
    r.reload(pools=[world.pool([p], [d], engine="sglang")])
    assert shown(r, p.url)["bootstrap_port"] == 9123 and not shown(r, p.url)["contradiction"]


def test_engines_that_say_nothing_are_used_as_configured(world):
    p, d = world.script(), world.script(probes={"/server_info": (401, b'{"error":"Unauthorized"}')})
    r = world.router(world.pool([{"url": p.url, "bootstrap_port": 7000}], [d], engine="sglang"))
    said = r.lines("endpoint reports nothing about itself, configured values are used")
    assert {(x["url"], x["reason"]) for x in said} == {(p.url, "GET /get_server_info: status 404"),
                                                        (d.url, "GET /server_info: status 401, engine refuses our key: Unauthorized")}
    assert shown(r, p.url)["bootstrap_port"] == 7000
    again = d.probed["/server_info"]
    wait("another round", lambda: d.probed["/server_info"] is not again)
    assert len(r.lines("endpoint reports nothing about itself, configured values are used")) == 2


def test_what_an_engine_says_breaks_no_line(world):
    evil = b'{"disaggregation_mode":"\\u001b[31m","version":"1\\n2","disaggregation_bootstrap_port":1e9}'
    p, d = world.script(probes={"/server_info": evil}), world.script(probes={"/server_info": b"\xff" * 70000})
    r = world.router(world.pool([p], [d], engine="sglang"))
    assert {**shown(r, p.url)}.items() >= {"version": "", "mode": "", "bootstrap_port": 0}.items()
    assert "\x1b" not in r.log() + r.ctl("status").stdout


def test_version_and_context_are_metrics(world):
    p = world.script(probes={"/server_info": rb'{"version":"0.5\"}7\\"}'})
    p.probes["/v1/models"] = b'{"data":[{"id":"%s","max_model_len":32768}]}' % MODEL.encode()
    d = world.script(probes={"/server_info": b'{"disaggregation_mode":"decode"}'})
    r = world.router(world.pool([p], [d], engine="sglang", name="main"))

    def info(e):
        return [labels for n, labels, v in r.metrics() if n == "pdrouter_endpoint_info" and v == 1 and labels["engine"] == e.url]
    wait("the version", lambda: info(p)[0]["version"] != "")
    assert info(p) == [{"engine": p.url, "role": "prefill", "pool": "main", "version": r'0.5\"}7\\'}], "escaped"
    assert [x["version"] for x in info(d)] == [""], "a series for each endpoint, known or not"
    assert r.metric("endpoint_max_context_tokens", engine=p.url, role="prefill", pool="main") == 32768
    assert r.metric("endpoint_max_context_tokens", engine=d.url) is None


# --- the gate ---

def silence(ex):
    """Takes the lookup and says nothing until the connection is given up."""
    ex.gone(60)
    ex.close()


def test_an_engine_not_yet_learned_is_not_chosen(world):
    info = b'{"disaggregation_mode":"%s","disaggregation_bootstrap_port":8998,"version":"1"}'
    p = [world.script(probes={"/server_info": info % b"prefill"}), world.script(probes={"/server_info": silence})]
    d = world.script(probes={"/server_info": info % b"decode"})
    r = world.router(world.pool(p, [d], engine="sglang"))
    for _ in range(4):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
        p[0].expect().prefilled()
        d.expect().reply(body={})
        assert c.read().status == 200
    assert shown(r, p[1].url)["state"] == "starting" and p[1].quiet(0.1)
    p[1].probes["/server_info"] = info % b"prefill"
    r.wait_metric("endpoint_up", 1, engine=p[1].url)
    assert shown(r, p[1].url)["bootstrap_port"] == 8998


def test_not_ready_until_each_pool_can_serve(world):
    p, d = world.engine("prefill"), world.engine("decode")
    s, t = world.script(), world.script()
    s.probes["/v1/models"] = (503, b"")
    r = world.router(world.pool([p], [d]), {**world.pool([s], [t]), "models": [], "name": "learns"}, wait_for="live")
    wait("the first pool", lambda: r.get(f"/health?pool={MODEL}").status == 200)
    wait("the other's reason", lambda: "GET /v1/models: status 503" in line(r, s.url))
    assert r.get("/ready").status == 503 and r.complete().status == 200
    s.probes["/v1/models"] = t.probes["/v1/models"] = b'{"data":[{"id":"m2"}]}'
    r.wait_for("ready")


def test_everything_is_learned_anew_after_down(world):
    p, d = (world.engine(x, engine="sglang", bootstrap_port=9001) for x in ("prefill", "decode"))
    r = world.router(world.pool([p], [d], engine="sglang"))
    assert shown(r, p.url)["bootstrap_port"] == 9001
    p.stop(9)
    r.wait_metric("endpoint_up", 0, role="prefill")
    world.engine("prefill", engine="sglang", bootstrap_port=9002, port=p.port)
    r.wait_metric("endpoint_up", 1, role="prefill")
    assert shown(r, p.url)["bootstrap_port"] == 9002


# --- the key ---

def key_file(world, text):
    path = world.file("key")
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_engines_that_want_a_key(world, kind):
    p, d = (world.engine(x, engine=kind, api_key="sk-secret", load=2) for x in ("prefill", "decode"))
    key = key_file(world, "sk-secret\n")
    keys = {"models": [], "name": "keyed", "engine": kind}
    r = world.router({**world.pool([p], [d]), **keys}, wait_for="live", log_level="debug")
    wait("a refusal", lambda: "status 401, engine refuses our key" in line(r, p.url))
    assert r.get("/ready").status == 503
    r.reload(pools=[{**world.pool([p], [d]), **keys, "engine_api_key_file": str(key)}])
    r.wait_for("ready")
    wait("the load", lambda: r.metric("endpoint_running", role="decode") == 2)
    wait("the version", lambda: "pdsim" in shown(r, d.url)["version"])
    assert r.complete().status == 200, "engines are sent the router's key"
    assert r.complete(headers=[("Authorization", "Bearer another")]).status == 200
    everything = r.log() + r.ctl("status", "--json").stdout + r.get("/health").body.decode() + r.get("/metrics").body.decode()
    assert "sk-secret" not in everything


def test_a_key_that_is_missing_is_told_where_nothing_waits_for_it(world):
    """The pool names its models, so both are up without; the log says why their context is not known."""
    p, d = (world.engine(x, api_key="sk-secret") for x in ("prefill", "decode"))
    r = world.router(world.pool([p], [d]))
    r.wait_log("engine refuses our key")
    r.wait_log(f'engine refuses our key.*"url":"{d.url}"')
    time.sleep(2)
    lines = [x for x in r.log().splitlines() if "engine refuses our key" in x]
    assert len(lines) == 2 and all('"level":"warn"' in x for x in lines), "once for each"
    said = "GET /v1/models: status 401, engine refuses our key"
    assert shown(r, d.url)["reason"].startswith(said) and f"  {said}; " in line(r, p.url)
    r.reload(pools=[{**world.pool([p], [d]), "engine_api_key_file": str(key_file(world, "sk-secret"))}])
    wait("nothing to say", lambda: shown(r, d.url)["reason"] == shown(r, p.url)["reason"] == "")


def test_every_lookup_carries_the_key(world):
    p, d = world.script(), world.script()
    key = key_file(world, "sk-1")
    r = world.router(world.pool([p], [d], engine="sglang", engine_api_key_file=str(key)))
    wait("a scrape", lambda: "/metrics" in p.probed)
    for path in "/ready", "/v1/models", "/server_info", "/get_server_info", "/metrics":
        assert p.probed[path]["authorization"] == "Bearer sk-1", path
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"}, [("Authorization", "Bearer mine")])
    ex = p.expect()
    assert ex["authorization"] == "Bearer sk-1"
    ex.prefilled()
    ex = d.expect()
    assert ex["authorization"] == "Bearer sk-1"
    ex.reply(body={})
    assert c.read().status == 200


def test_a_rotated_key_is_taken_by_sighup(world):
    p, d = world.script(), world.script()
    key = key_file(world, "sk-1\n")
    r = world.router(world.pool([p], [d], engine_api_key_file=str(key)))
    key.write_text("sk-2\n")
    r.kill(signal.SIGHUP)
    r.told_to_stop = False
    wait("the new key", lambda: p.probed["/health"]["authorization"] == "Bearer sk-2")
    key.write_text("sk-3 and more\n")
    done = r.ctl("reload")
    assert done.returncode != 0 and "engine_api_key_file" in done.stdout + done.stderr and "no header may carry" in done.stdout + done.stderr
    assert "sk-3" not in r.log() + done.stdout + done.stderr
    last = p.probed["/health"]
    wait("another probe", lambda: p.probed["/health"] is not last)
    assert p.probed["/health"]["authorization"] == "Bearer sk-2", "the old configuration stays"


# --- states and slow start ---

def test_slow_start_after_recovery(world):
    r, _, d = world.pd(1, 2, pool={"slow_start": "60s", "decode_policy": "round_robin"})
    assert not any("slow start" in line(r, x.url) for x in d), "a first start is at full weight"
    d[0].tell("/sim/health", status=503)
    r.wait_metric("endpoint_up", 0, engine=d[0].url)
    d[0].tell("/sim/health", status=200)
    r.wait_metric("endpoint_up", 1, engine=d[0].url)
    assert "  up  " in line(r, d[0].url) and "slow start " in line(r, d[0].url)
    assert 0 <= shown(r, d[0].url)["slow_start_percent"] < 50 and "slow_start_percent" not in shown(r, d[1].url)
    before = len(d[0].requests()), len(d[1].requests())
    for _ in range(20):
        assert r.complete().status == 200
    assert len(d[0].requests()) - before[0] <= 6 < 14 <= len(d[1].requests()) - before[1]


def test_states_in_table_and_metrics(world):
    r, _, d = world.pd(1, 2)
    late = world.script(probes={"/health": (503, b"")})
    r.reload(fall=1000, pools=[world.pool([r.config["pools"][0]["prefill"][0]["url"]], [*d, late])])

    def state(e):
        (name,) = [labels["state"] for n, labels, v in r.metrics() if n == "pdrouter_endpoint_state" and v == 1
                   and labels["engine"] == e.url]
        assert name == shown(r, e.url)["state"]
        return name
    assert state(late) == "starting" and state(d[0]) == "up"
    r.reload(fall=2)
    d[1].tell("/sim/health", status=503)
    wait("down", lambda: shown(r, d[1].url)["state"] == "down")
    assert state(d[1]) == "down"
    d[0].pause()
    s = r.open_stream(n=4)
    d[0].wait_requests()
    d[1].tell("/sim/health", status=200)
    wait("up", lambda: shown(r, d[1].url)["state"] == "up")
    assert state(d[1]) == "up"
    r.reload(pools=[world.pool([r.config["pools"][0]["prefill"][0]["url"]], [d[1], late])])
    assert shown(r, d[0].url)["state"] == "draining" and r.metric("endpoints_draining") == 1
    d[0].go_on()
    assert len(list(s.events())) == 5
    wait("drained", lambda: not [x for x in r.status()["fleet"]["endpoints"] if x["url"] == d[0].url])
    assert r.metric("endpoints_draining") == 0


# --- load pages ---

def page_head(ex, n=None):
    ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n" +
             (b"Content-Length: %d\r\n\r\n" % n if n else b"\r\n"))


FILLER = b'vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 123456.0\n' * 700


def endless(ex):
    page_head(ex)
    while True:  # until the router has had enough and closes
        ex.write(FILLER)


def mid_page(ex):
    page_head(ex, 100000)
    ex.write(FILLER[:30000])
    silence(ex)


def drip(ex):
    page_head(ex, 5000)
    for i in range(5000):
        ex.write(FILLER[i:i + 1])
        if ex.gone(0.005):
            break
    ex.close()


def garbage(ex):
    ex.write(b"\x00\xffvllm:num_requests_running 9\n" * 100)
    ex.close()


def no_figures(ex):
    ex.reply(body=b"# nothing\nvllm:num_requests_running{ NaN\n\xff{{{ \n")


def broken_off(ex):
    page_head(ex, 100000)
    ex.write(GOOD_LOAD % 77)
    ex.close()


@pytest.mark.parametrize("broken", [endless, mid_page, drip, garbage, no_figures, broken_off])
def test_a_load_page_that_is_broken(world, broken):
    """Bounded and counted; health is not touched, old figures age out, and choosing goes on by own requests."""
    d = [world.script(probes={"/metrics": GOOD_LOAD % 50}), world.script(probes={"/metrics": GOOD_LOAD % 0})]
    p = world.script()
    r = world.router(world.pool([p], d, decode_load="requests"))
    wait("figures", lambda: shown(r, d[0].url)["score"] == 50 and shown(r, d[1].url)["scrape_age_ms"] is not None)
    failed = r.metric("scrapes_failed_total")
    d[0].probes["/metrics"] = d[1].probes["/metrics"] = broken
    wait("old figures count no more", lambda: shown(r, d[0].url)["score"] == 0)
    chosen = set()
    for _ in range(4):
        c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
        p.expect().prefilled()
        wait("a decode leg", lambda: not (d[0].asked.empty() and d[1].asked.empty()))
        e = d[1] if d[0].asked.empty() else d[0]
        chosen.add(e)
        e.expect().reply(body={})
        assert c.read().status == 200
    assert len(chosen) == 2, "ties take turns"
    wait("it is counted", lambda: r.metric("scrapes_failed_total") >= failed + 2, 15)
    assert shown(r, d[0].url)["state"] == shown(r, d[1].url)["state"] == "up"
    d[0].probes["/metrics"] = GOOD_LOAD % 9
    wait("good again", lambda: shown(r, d[0].url)["score"] == 9, 15)


def test_names_of_other_engines(world):
    page = b"tgi_batch_current_size 4\ntgi_queue_size 3\nvllm:num_requests_running 99\n"
    p, d = world.script(probes={"/metrics": page}), world.script(probes={"/metrics": page})
    names = {"running": "tgi_batch_current_size", "waiting": "tgi_queue_size"}
    r = world.router(world.pool([p], [d], load_metrics=names))
    wait("the scrape", lambda: shown(r, d.url)["running"] == 4 and shown(r, d.url)["waiting"] == 3)


class Pings:
    """Turns of the master's loop, seen from the control socket."""

    def __init__(self, r):
        self.ms, self.stop_now = [], threading.Event()
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(10 * SLOW)
        self.s.connect(str(r.control))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.stop_now.is_set():
            at = time.monotonic()
            self.s.sendall(b"ping\n")
            assert self.s.recv(100) == b"OK\n"
            self.ms.append(1000 * (time.monotonic() - at))
            time.sleep(0.001)

    def stop(self):
        self.stop_now.set()
        self.thread.join()
        self.s.close()
        return sorted(self.ms)


class PageServer:
    """Serves one page, each connection from a process of its own: Python's threads would stand in each other's way."""

    def __init__(self, page):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                s, _ = self.listener.accept()
                if os.fork() == 0:
                    self.serve(s, page)
                s.close()

    def serve(self, s, page):
        try:
            while asked := s.recv(4096):
                body = page if b"GET /metrics" in asked else b'{"data":[{"id":"%s"}]}' % MODEL.encode()
                s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        finally:
            os._exit(0)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.mark.timing
def test_a_page_of_5_mb_does_not_hold_up_the_master(world):
    """Beside a master whose engines have short pages, in the same seconds; a machine that is busy with other things gets some more."""
    lines = 5 * 1024 * 1024 // (len(FILLER) // 700)
    page = FILLER[:len(FILLER) // 700] * lines + GOOD_LOAD % 7
    servers = [PageServer(x) for x in (page, page, GOOD_LOAD % 7, GOOD_LOAD % 7)]
    try:
        long, short = [world.router(world.pool([p.url], [d.url]), stats_interval="200ms") for p, d in (servers[:2], servers[2:])]
        wait("the last line of it", lambda: shown(long, servers[1].url)["running"] == 7)
        rounds = []
        while not rounds or (rounds[-1][0] >= rounds[-1][1] + 5 and len(rounds) < 6):
            pings = Pings(long), Pings(short)
            time.sleep(3)
            ms = [x.stop() for x in pings]
            rounds.append([x[int(len(x) * 0.99)] for x in ms])
            assert long.metric("scrapes_failed_total") == 0 and shown(long, servers[1].url)["scrape_age_ms"] < 1000
        assert rounds[-1][0] < rounds[-1][1] + 5, f"p99, ms: {rounds}; a turn of the loop with 64 KiB of page in it takes well under one"
    finally:
        for s in servers:
            s.close()
