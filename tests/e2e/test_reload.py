"""SIGHUP and `pdctl reload`: what is in flight is not touched, and a wrong file changes nothing."""
import hashlib
import re
import signal
import socket
import time
from pathlib import Path

import pytest
import yaml

import expect
from certs import Cert
from procs import MODEL, ROOT, SLOW, Load, free_port, wait
from raw import text_of

URL = "/v1/completions"


def hup(r):
    before = (r.metric("reloads_total") or 0) + (r.metric("reloads_failed_total") or 0)
    r.kill(signal.SIGHUP)
    wait("the reload", lambda: (r.metric("reloads_total") or 0) + (r.metric("reloads_failed_total") or 0) > before)


def test_endpoint_added(world):
    r, p, d = world.pd()
    more = world.engine("decode")
    r.change(pools=[world.pool(p, [*d, more])])
    hup(r)
    r.wait_metric("endpoint_up", 1, engine=more.url)
    for _ in range(8):
        assert r.complete().status == 200
    assert more.requests() and r.metric("reloads_total") == 1


def test_endpoint_removed_lets_its_stream_finish(world):
    r, p, d = world.pd(1, 2, engine={"token_delay": 10}, upstream={"idle_timeout": "500ms"}, workers=1,
                       pool={"policy": "round_robin"})  # two streams each, whatever a scrape says
    r.wait_all_up()
    streams = [r.open_stream(f"s{i}", n=60) for i in range(4)]
    for c in streams:
        c.head()
    r.reload(pools=[world.pool(p, d[:1])])
    before = len(d[1].requests())
    for _ in range(6):
        assert r.complete(max_tokens=1).status == 200
    assert len(d[1].requests()) == before == 2, "nothing new for the removed one"
    for i, c in enumerate(streams):
        assert text_of(list(c.events())) == expect.text(f"s{i}", 60)
    wait("it is gone", lambda: d[1].url not in r.ctl("status").stdout)
    wait("and its connections", lambda: d[1].metric("pdsim:open_connections") == 1)


def test_endpoint_removed_and_added_again(world):
    r, p, d = world.pd(1, 2)
    for _ in range(3):
        r.reload(pools=[world.pool(p, d[:1])])
        assert r.complete().status == 200
        r.reload(pools=[world.pool(p, d)])
        r.wait_metric("endpoint_up", 1, engine=d[1].url)
    for _ in range(8):
        assert r.complete().status == 200
    assert d[1].requests()


def test_all_engines_exchanged_the_former_serve_until_one_is_up(world):
    r, p, d = world.pd()
    more = world.engine("prefill"), world.engine("decode")
    for e in more:
        e.tell("/sim/health", status=503)
    r.reload(pools=[world.pool(more[:1], more[1:])])
    assert [r.complete().status for _ in range(4)] == [200] * 4 and len(d[0].requests()) == 4
    assert {e["url"]: e["source"] for e in r.status()["fleet"]["endpoints"]}[d[0].url] == "former"
    for e in more:
        e.tell("/sim/health", status=200)
    wait("the former to go", lambda: d[0].url not in r.ctl("status").stdout and p[0].url not in r.ctl("status").stdout)
    assert r.complete().status == 200 and len(more[1].requests()) == 1


@pytest.mark.parametrize("keys", [{"connector": "orchestrated"}, {"models": ["another"]}])
def test_former_engines_of_another_kind_do_not_serve(world, keys):
    """They could not serve the requests that the pool now gets."""
    r, p, d = world.pd(rise=8)
    more = world.engine("prefill"), world.engine("decode")
    r.reload(pools=[world.pool(more[:1], more[1:], name=MODEL, **keys)])
    assert d[0].url not in {e["url"] for e in r.status()["fleet"]["endpoints"] if e["state"] != "draining"}


def test_former_engines_beside_one_that_is_up_go_at_once(world):
    r, p, d = world.pd(1, 2, rise=8)
    r.reload(pools=[world.pool(p, [d[0], world.engine("decode")])])
    assert d[1].url not in {e["url"] for e in r.status()["fleet"]["endpoints"] if e["state"] != "draining"}
    assert r.complete().status == 200


def test_former_engines_through_a_second_reload(world):
    """The reload back finds them as they were; the engines between go at once, since they were never up."""
    r, p, d = world.pd(rise=8)
    for between in "http://127.0.0.1:1", "http://127.0.0.1:2":
        r.reload(pools=[world.pool(p, [between])])
        assert r.complete().status == 200
    r.reload(pools=[world.pool(p, d)])
    assert r.complete().status == 200
    wait("those of the configuration", lambda: {e["source"] for e in r.status()["fleet"]["endpoints"]} == {"config"})
    assert len(d[0].requests()) == 3


def test_max_inflight_changed(world):
    r, p, d = world.pd(engine={"token_delay": 20})
    held = r.open_stream(n=100 * SLOW)
    held.head()
    r.reload(pools=[world.pool(p, [{"url": d[0].url, "max_inflight": 1}])])
    assert r.complete().status == 429
    r.reload(pools=[world.pool(p, [{"url": d[0].url, "max_inflight": 5}])])
    assert r.complete().status == 200
    assert len(list(held.events())) == 100 * SLOW + 1


def test_pool_added_and_removed(world):
    r, p, d = world.pd()
    p2, d2 = world.engine("prefill", model="b"), world.engine("decode", model="b")
    second = {**world.pool([p2], [d2]), "models": ["b"], "name": "b"}
    assert r.complete(model="b").status == 404
    r.reload(pools=[world.pool(p, d), second])
    wait("the pool", lambda: r.get("/health?pool=b").status == 200)
    assert r.complete(model="b").status == 200
    r.reload(pools=[world.pool(p, d)])
    wait("it is gone", lambda: r.complete(model="b").status == 404)
    assert r.complete().status == 200


def test_connector_and_policy_changed(world):
    r, (p,), (d,) = world.scripts()
    r.reload(pools=[world.pool([p], [d], connector="orchestrated", handoff="disagg_prefill_resp", policy="round_robin")])
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    ask = p.expect()
    assert "kv_transfer_params" not in ask.json()
    ask.reply(body={"id": 1})
    ex = d.expect()
    assert ex.json()["disagg_prefill_resp"] == {"id": 1}
    ex.reply(body={})
    assert c.read().status == 200


def test_workers_changed_starts_a_new_generation(world):
    r, p, d = world.pd(workers=2, engine={"token_delay": 10})
    c = r.open_stream(n=80)
    c.head()
    old = set(r.children())
    r.reload(workers=3)
    wait("three new workers", lambda: len(set(r.children()) - old) == 3)
    assert r.complete().status == 200
    assert len(list(c.events())) == 81, "the old generation finishes its stream"
    c.close()
    wait("the old ones are gone", lambda: not old & set(r.children()))
    assert r.metric("generation") == 2


def test_a_replaced_generation_finishes_without_a_limit(world):
    """drain_timeout is SIGTERM's: four generations finish their streams beside the one in force."""
    r, _, _ = world.pd(workers=1, engine={"token_delay": 10}, drain_timeout="100ms")
    streams = []
    for n in (2, 1, 2, 1):
        streams.append(r.open_stream(n=200 * SLOW))
        streams[-1].head()
        r.reload(workers=n)
    assert r.status()["generations"] >= 4 and r.metric("workers_draining") >= 4
    assert [len(list(c.events())) for c in streams] == [200 * SLOW + 1] * 4
    for c in streams:
        c.close()
    wait("one generation", lambda: r.status()["generations"] == 1)
    assert r.metric("workers_draining") == 0


def stopped_between_fork_and_force(r):
    """The master is stopped when it has started a new worker, and that worker's configuration is not in force yet."""
    children = Path("/proc") / str(r.pid) / "task" / str(r.pid) / "children"
    for n in [3, 1] * 20:
        count, before = len(r.lines("configuration in force")), set(children.read_text().split())
        old = {p["slot"] for p in r.status()["processes"] if p["kind"] == "worker"}
        r.change(workers=n)
        r.kill(signal.SIGHUP)
        while not set(children.read_text().split()) - before:
            pass
        r.kill(signal.SIGSTOP)
        wait("the master to be stopped", lambda: (Path("/proc") / str(r.pid) / "stat").read_text().split()[2] == "T")
        if len(r.lines("configuration in force")) == count and n > 1:
            return old
        r.kill(signal.SIGCONT)
        wait("that reload", lambda c=count: len(r.lines("configuration in force")) > c)
        wait("the old ones to go", lambda: r.status()["generations"] == 1)
    raise AssertionError("the master was never stopped in time")


def test_new_workers_serve_when_their_configuration_is_in_force(world):
    """Ready workers wait for the table of their configuration: the old ones go on until then."""
    r, _, _ = world.pd(workers=1)
    old = stopped_between_fork_and_force(r)
    time.sleep(0.3)  # the new workers are ready
    done = len(r.lines("request"))
    try:
        assert all(r.complete().status == 200 for _ in range(20))
    finally:
        r.kill(signal.SIGCONT)
    wait("the lines", lambda: len(r.lines("request")) == done + 20)
    assert {x["slot"] for x in r.lines("request")[done:]} <= old
    wait("the reload", lambda: len(r.children()) == 3)
    assert r.complete().status == 200


def test_reload_drain_timeout_ends_what_the_old_workers_have(world):
    r, _, _ = world.pd(workers=1, engine={"token_delay": 50}, reload_drain_timeout="200ms", drain_timeout="60s")
    c = r.open_stream(n=1000)
    c.head()
    r.reload(workers=2)
    assert list(c.events())[-1].json()["error"]
    wait("one generation", lambda: r.status()["generations"] == 1)


def test_a_reload_without_a_slot_ends_the_oldest_generation(world):
    """Two worker slots: the third generation waits until drain_timeout has ended the first one."""
    r, _, _ = world.pd(workers=1, engine={"token_delay": 50}, drain_timeout="200ms", shared_memory={"max_workers": 1})
    oldest, newer = r.open_stream(n=1000), None
    oldest.head()
    r.reload(client={"id_header": "X-A"})
    newer = r.open_stream(n=30)
    newer.head()
    r.change(client={"id_header": "X-B"})
    assert r.ctl("reload", "--dry-run").stdout.endswith("It would cut requests: old generations have all slots, the oldest must end in drain_timeout.\n")
    r.reload(client={"id_header": "X-B"})
    assert list(oldest.events())[-1].json()["error"]
    assert len(list(newer.events())) == 31
    assert [x["generation"] for x in r.lines("an old generation of workers must end: a reload needs its process slots")] == [1]
    assert len(r.lines("reload waits: old generations of workers have all process slots")) == 1


def test_a_live_limit_ends_old_generations(world):
    """An operator who wants them gone: reload_drain_timeout counts from the reload that replaced them."""
    r, _, _ = world.pd(workers=1, engine={"token_delay": 50})
    c = r.open_stream(n=1000)
    c.head()
    r.reload(workers=2)
    assert r.status()["generations"] == 2
    r.reload(reload_drain_timeout="1ms")
    assert list(c.events())[-1].json()["error"]


def test_limits_change_in_running_workers(world):
    """The next request has them, also on a connection that is kept; streams go on."""
    r, _, _ = world.pd(engine={"token_delay": 10})
    c, kept, big = r.open_stream(n=100), r.client(), "x" * 8000
    c.head()
    assert kept.post("/v1/completions", {"model": MODEL, "prompt": big, "max_tokens": 1}).status == 200
    pids = r.children()
    r.reload(limits={"max_body": "4KiB"})
    assert kept.post("/v1/completions", {"model": MODEL, "prompt": big, "max_tokens": 1}).status == 413
    assert [r.complete(big).status for _ in range(8)] == [413] * 8
    r.reload(limits={"max_body": "64MiB"})
    assert [r.complete(big).status for _ in range(8)] == [200] * 8
    assert len(list(c.events())) == 101
    assert (r.children(), r.metric("generation")) == (pids, 1)


def test_a_body_beyond_a_limit_that_was_lowered_meanwhile(world):
    r, _, _ = world.pd(workers=1)
    c, piece = r.client(), b"186a0\r\n" + b" " * 100000 + b"\r\n"
    c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + piece)
    r.get("/health")  # by then the only worker has read the piece
    r.reload(limits={"max_body": "4KiB"})
    c.send(piece)
    assert c.read().status == 413


def test_an_answer_beyond_a_limit_that_was_lowered_meanwhile(world):
    r, (p,), _ = world.scripts(workers=1)
    c = r.open_stream("x")
    ex = p.expect()
    ex.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    ex.chunk(b" " * 100000)
    r.get("/health")  # by then the only worker has read the piece
    r.reload(limits={"max_answer": "4KiB"})
    r.get("/health")  # and has the limit
    ex.chunk(b" ")
    assert ex.gone() and c.read().status == 502


def test_what_a_reload_would_change(world):
    r, p, d = world.pd(workers=1, shared_memory={"max_pools": 4})
    assert r.ctl("config", "diff").stdout == ""
    assert r.ctl("reload", "--dry-run").stdout == "A reload would change nothing.\n"
    new = "http://127.0.0.1:1"
    r.change(workers=2, limits={"max_body": "4KiB"}, shared_memory={"max_pools": 5},
             pools=[world.pool(p, [{"url": d[0].url, "max_inflight": 3}, new], retries=1), world.pool(p, d, name="b", models=["b"])])
    lines = r.ctl("config", "diff").stdout.splitlines()
    assert sorted(lines) == sorted([
        "workers: 1 -> 2 (new generation)", "limits.max_body: 64MiB -> 4KiB (live)", "shared_memory.max_pools: 4 -> 5 (restart)",
        f"pools[{MODEL}].retries: 0 -> 1 (live)", f"pools[{MODEL}].decode[{d[0].url}].max_inflight: 0 -> 3 (live)",
        f"pools[{MODEL}].decode[{new}]: added (live)", "pools[b]: added (live)"])
    said = r.ctl("reload", "--dry-run").stdout.splitlines()
    assert said[:7] == lines and [x.split(":")[0] for x in said[7:]] == ["5 live", "1 new generation", "1 restart"]
    assert len(r.status()["fleet"]["endpoints"]) == 2 and r.metric("generation") == 1 and not r.metric("reloads_total")
    assert r.ctl("reload").returncode == 0
    assert r.ctl("config", "diff").stdout == "shared_memory.max_pools: 4 -> 5 (restart)\n"


def table_of_keys():
    """The table of what a reload does: [(class, key)]."""
    rows = re.findall(r"^  \| `(\w+)`: [^|]*\| ([^|]*) \|$", (ROOT / "etc/docs/configuration.md").read_text(), re.M)
    return [(klass, key) for klass, keys in rows for key in re.findall(r"`([\w.]+)`", keys)]


def no_keys(r):
    path = r.config_path.with_name("keys.yaml")
    path.write_text("[]\n")
    return str(path)


OPERATORS_KEY = "pdr-operators"


def an_operators_key(r):
    path = r.config_path.with_name("operators.yaml")
    path.write_text(yaml.safe_dump([{"name": "one", "sha256": hashlib.sha256(OPERATORS_KEY.encode()).hexdigest()}]))
    return str(path)


def a_secret(world, name):
    path = world.file(f"secret-{name}")
    path.write_text(f"the secret called {name} of two routers\n")
    return str(path)


def other_values(r):
    """For each key a value that it does not have."""
    pool, cert = {**r.config["pools"][0], "retries": 3}, Cert(r.world.dir, "localhost")
    return {
        "listen": [*r.config["listen"], f"127.0.0.1:{free_port()}"], "workers": 1,
        "admin.listen": [f"127.0.0.1:{free_port()}"], "admin.socket_mode": "0660", "admin.api_keys_file": an_operators_key(r), "admin.socket_group": "no-such-group", "metrics_on_client_port": True, "tls.certificates": [cert.row()], "tls.listen": [f"127.0.0.1:{free_port()}"],
        "tls.client_ca": cert.cert, "tls.min_version": 1.3, "tls.ciphers": "ECDHE-ECDSA-AES128-GCM-SHA256", "tls.max_handshakes": 9, "tls.watch": True, "cors.origins": ["https://a"], "cors.headers": ["X-A"], "cors.credentials": True, "limits.max_body": "1MiB", "limits.max_head": "16KiB",
        "limits.max_connections": 99, "limits.max_answer": "1MiB", "limits.max_fanout": 3, "limits.max_buffered": "256MiB",
        "client.head_timeout": "7s", "client.body_timeout": "7s", "client.idle_timeout": "7s", "client.write_timeout": "7s", "client.tcp_user": "7s",
        "client.max_inflight": 50, "client.rate": 500, "client.burst": 60, "client.proxy_networks": ["10.9.0.0/16"], "client.proxy_protocol": True, "client.forward_address": True, "client.max_silent_connections": 200, "client.id_header": "X-A", "upstream.idle_timeout": "3s",
        "upstream.max_idle": 5, "drain_timeout": "7s", "reload_drain_timeout": "9s",
        "upgrade_drain_timeout": "9s", "upgrade_trial": "9s", "worker_watchdog": "9s", "stats_interval": "300ms",
        "health_interval": "150ms", "health_timeout": "900ms", "rise": 2, "fall": 4, "dns_servers": ["127.0.0.1:5"], "log_level": "debug",
        "log_format": "logfmt", "log_to": "journald", "log_sample": 0.5, "tracing.sample": 0.25, "tracing.otlp": "http://127.0.0.1:9", "tracing.ring": "64KiB", "user": "nobody", "group": "nogroup",
        "sandbox": False, "control_socket": "/nowhere", "control_socket_mode": "0660",
        "control_socket_group": "no-such-group", "state_file": "/nowhere",
        "lmcache.networks": ["127.0.0.0/8"], "lmcache.listen": f"tcp://127.0.0.1:{free_port()}",
        "announce.listen": f"tcp://127.0.0.1:{free_port()}", "announce.forget": "11s",
        "siblings.listen": f"tcp://127.0.0.1:{free_port()}", "siblings.routers": ["tcp://127.0.0.1:9"], "siblings.networks": ["127.0.0.0/8"],
        "siblings.secret_file": a_secret(r.world, "another"), "siblings.ring": "64KiB", "shared_memory.max_workers": 17,
        "shared_memory.max_endpoints": 65, "shared_memory.max_pools": 17, "shared_memory.flags_per_worker": 128,
        "shared_memory.queue": 1000, "shared_memory.clients": 4104, "shared_memory.max_api_keys": 1000, "shared_memory.prefix_index": "1MiB",
        "shared_memory.recent_requests": 1000, "shared_memory.running_requests": 100,
        "api_keys_file": no_keys(r), "watch": True, "pools": [pool]}


COSTS = {"live": "live", "generation": "new generation", "restart": "restart"}


@pytest.mark.timeout(120 * SLOW)  # some hundred reloads
def test_every_key_does_what_the_table_says(world):
    siblings = {"listen": f"tcp://127.0.0.1:{free_port()}", "secret_file": a_secret(world, "one")}  # each of them needs the other
    r, _, _ = world.pd(admin={"listen": [f"127.0.0.1:{free_port()}"]}, siblings=siblings)
    r.operator_headers = [("Authorization", f"Bearer {OPERATORS_KEY}")]
    values, table = other_values(r), table_of_keys()
    assert sorted(key for _, key in table) == sorted(values)
    generation = r.metric("generation")
    for klass, key in table:
        section, _, member = key.partition(".")
        before = r.config
        r.change(**{section: {**r.config.get(section, {}), member: values[key]} if member else values[key]})
        shown = r.ctl("config", "diff").stdout
        assert re.fullmatch(rf"{key}.*: .* -> .* \({COSTS[klass]}\)\n({key}\[one\]: added \(live\)\n)?", shown), (klass, key, shown)
        assert r.ctl("reload").returncode == 0
        generation += klass == "generation"
        assert r.metric("generation") == generation, (klass, key)
        assert r.ctl("config", "diff").stdout == (shown if klass == "restart" else ""), key
        if klass == "restart":
            r.config = before
            r.write(before)
    assert r.complete().error["code"] == "invalid_api_key"  # its file has none


def test_a_dry_run_says_that_a_reload_would_be_refused(world):
    r, p, d = world.pd(pool={"name": "a"}, shared_memory={"max_pools": 2})
    for wrong in ({"colour": "red"}, {"pools": [world.pool(p, d, name=n, models=[n]) for n in "bc"]}):
        config = dict(r.config)
        r.change(**wrong)
        for command in (["reload", "--dry-run"], ["config", "diff"], ["reload"]):
            done = r.ctl(*command)
            assert done.returncode == 1 and f"{r.config_path}:" in done.stderr, (command, done)
        r.config = config
    assert r.metric("reloads_failed_total") == 2 and r.complete().status == 200


def test_log_level_and_format_change_in_running_workers(world):
    r, _, _ = world.pd(workers=1)
    r.reload(log_level="warn", log_format="logfmt")
    assert r.complete("quiet").status == 200
    r.reload(log_level="info", log_format="json")
    assert r.complete("logged").status == 200
    wait("its line", lambda: len(r.lines("request")) == 1)
    assert r.metric("generation") == 1


def test_client_limits_change_in_running_workers(world):
    r, _, _ = world.pd(client={"head_timeout": "60s", "idle_timeout": "60s"})
    r.reload(client={"head_timeout": "60s", "idle_timeout": "60s", "rate": 1, "burst": 2})
    assert sorted(r.complete().status for _ in range(3)) == [200, 200, 429]
    r.reload(client={"head_timeout": "60s", "idle_timeout": "100ms"})
    with r.client() as c:
        assert c.get("/live").status == 200
        assert c.closed(2)
    assert r.metric("generation") == 1


# Each: what replaces the file's text, the word the message must name beside file and line.
def wrong_files(config):
    text = yaml.safe_dump(config, sort_keys=False)
    return {
        "unknown key": (text + "colour: red\n", "colour"),
        "doubled key": (text + "workers: 3\n", "workers"),
        "wrong type": (text.replace("workers: 2", "workers: [2]"), "workers"),
        "no unit": (text.replace("health_interval: 100ms", "health_interval: 100"), "health_interval"),
        "wrong unit": (text.replace("health_interval: 100ms", "health_interval: 100MiB"), "health_interval"),
        "out of bounds": (text.replace("workers: 2", "workers: 1000"), "workers"),
        "unknown connector": (text.replace("connector: nixl", "connector: magic"), "connector"),
        "bad url": (text.replace("http://127.0.0.1", "ftp://127.0.0.1", 1), "url"),
        "second document": (text + "---\na: 1\n", ""),
        "alias": (text.replace("workers: 2", "workers: &x 2") + "fall: *x\n", ""),
        "tab": (text + "\tx: 1\n", ""),
        "not yaml": ("{ [", ""),
        "empty": ("", ""),
        "no pools": (text[:text.index("pools:")], "pools"),
    }


CASES = list(wrong_files({"pools": 1}))


@pytest.mark.parametrize("name", CASES)
def test_wrong_file_changes_nothing(reloading, name):
    r, d = reloading
    text, key = wrong_files(r.config)[name]
    assert text != yaml.safe_dump(r.config, sort_keys=False)
    r.write(text)
    done = r.ctl("reload")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and str(r.config_path) in said and key in said, said
    if name != "empty":
        line = int(said.split(str(r.config_path) + ":")[1].split(":")[0])
        assert 1 <= line <= len(text.splitlines()) + 1
    assert r.complete().status == 200 and len(r.children()) == 2
    failed = r.metric("reloads_failed_total")
    r.kill(signal.SIGHUP)
    wait("SIGHUP to say so too", lambda: r.metric("reloads_failed_total") == failed + 1)
    r.write(r.config)


@pytest.fixture(scope="module")
def reloading(shared):
    return shared.router, shared.d


def test_pool_name_without_a_number_is_refused(world):
    r, p, d = world.pd(pool={"name": "a"}, shared_memory={"max_pools": 2})
    r.reload(pools=[world.pool(p, d, name="b")])
    r.change(pools=[world.pool(p, d, name="c")])
    done = r.ctl("reload")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and f"{r.config_path}:" in said and "pools[0].name" in said, said
    assert r.complete().status == 200 and r.metric("reloads_failed_total") == 1
    r.reload(pools=[world.pool(p, d, name="a")])
    assert r.complete().status == 200


def test_file_that_cannot_be_read(world):
    r, _, _ = world.pd()
    r.config_path.unlink()
    done = r.ctl("reload")
    assert done.returncode == 1 and str(r.config_path) in done.stdout + done.stderr
    assert r.complete().status == 200
    r.write(r.config)
    assert r.ctl("reload").returncode == 0


def test_key_that_needs_a_restart_keeps_its_value(world):
    r, _, _ = world.pd()
    done = r.reload(shared_memory={"max_endpoints": 128, "flags_per_worker": 64})
    assert "max_endpoints" in done.stdout + done.stderr + r.log()
    assert r.complete().status == 200


def test_too_many_endpoints_for_the_shared_memory(world):
    r, p, d = world.pd(shared_memory={"max_endpoints": 3, "flags_per_worker": 64})
    r.change(pools=[world.pool(p, [d[0], "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"])])
    done = r.ctl("reload")
    assert done.returncode == 1, done.stdout + done.stderr
    assert r.complete().status == 200


def test_endpoints_file(world):
    p, d, more = world.engine("prefill"), world.engine("decode"), world.engine("decode")
    path = world.file("endpoints", "yaml")
    path.write_text(yaml.safe_dump([{"url": p.url, "role": "prefill"}, {"url": d.url, "label": "D"}]))
    r = world.router({"models": [MODEL], "connector": "nixl", "endpoints_file": str(path), "decode_labels": ["D"]})
    assert r.complete().status == 200
    path.write_text(yaml.safe_dump([{"url": p.url, "role": "prefill"}, {"url": more.url, "label": "D"}]))
    hup(r)
    r.wait_metric("endpoint_up", 1, engine=more.url)
    wait("the old one to go", lambda: r.metric("endpoint_up", engine=d.url) is None)
    assert r.complete().status == 200 and len(more.requests()) == 1
    path.write_text(yaml.safe_dump([{"url": p.url, "role": "prefill"}, {"url": more.url, "label": "E"}]))
    done = r.ctl("reload")
    assert done.returncode == 1 and str(path) in done.stdout + done.stderr, done.stdout + done.stderr
    assert r.complete().status == 200


def test_50_hups_under_load_fail_no_request(world):
    r, p, d = world.pd(2, 2)
    pools = [[world.pool(p, d)], [world.pool(p[:1], d)], [world.pool(p, d[1:])], [world.pool(p, d, policy="round_robin")]]
    def ask(i):
        assert r.complete(f"p{i}", max_tokens=3).status == 200
        assert text_of(list(r.open_stream(f"s{i}", n=5).events())) == expect.text(f"s{i}", 5)

    load = Load(8, ask)
    for i in range(50):
        r.change(pools=pools[i % 4])
        r.kill(signal.SIGHUP)
        r.look_over()
        load.stop_now.wait(0.03)
    wait("all to be in force", lambda: r.metric("reloads_total") >= 40, 20)
    load.stop()
    assert not load.bad and load.done > 50
    r.wait_metric("requests_total", 2 * load.done, reason="ok")


def test_generations_follow_each_other_under_load(world):
    """Workers are replaced while requests run on the same sockets: none is lost."""
    r, p, d = world.pd(workers=2)

    def ask(i):
        assert r.complete(f"p{i}", max_tokens=3).status == 200

    load = Load(4, ask)
    for n in (1, 3, 2, 4, 2):
        r.reload(workers=n)
        r.look_over()
        wait("the new generation", lambda: len(r.children()) == n)
    load.stop()
    assert not load.bad and load.done


@pytest.mark.parametrize("before, after", [("0.0.0.0", ""), ("127.0.0.1", "localhost"), ("", "0.0.0.0"), ("localhost", "127.0.0.1")])
def test_addresses_that_overlap_are_kept(world, before, after):
    """An entry that says the open address in other words, then another generation: nothing is closed."""
    port = free_port()
    r, _, _ = world.pd(wait_for=None, listen=[f"{before}:{port}"], workers=1)
    r.port = port
    r.wait_for("ready")
    for host, workers in (after, 1), (after, 2), (before, 2), (before, 1):
        wait("one generation", lambda: len({p["generation"] for p in r.status()["processes"]}) == 1)
        r.reload(listen=[f"{host}:{r.port}"], workers=workers)
        assert r.complete().status == 200
        with socket.socket(socket.AF_INET6) as six:
            # what localhost stands for is the machine's own affair
            assert "localhost" in (before, after) or (six.connect_ex(("::1", r.port)) == 0) == (host == "")
