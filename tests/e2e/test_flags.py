"""The command line of production-stack's router moves over unchanged."""
import json
import subprocess

import pytest

import expect
from procs import BIN, MODEL, Router, free_port, wait


def line(world, backends, labels, prefill="P", decode="D", models=None, extra=()):
    port = free_port()
    models = models or [MODEL] * len(backends)
    args = ["--host", "127.0.0.1", "--port", str(port), "--service-discovery", "static",
            "--static-backends", ",".join(backends), "--static-models", ",".join(models),
            "--static-model-labels", ",".join(labels), "--routing-logic", "disaggregated_prefill_orchestrated",
            "--prefill-model-labels", prefill, "--decode-model-labels", decode, *extra]
    r = Router(world, {}, wait_for=None, binary_args=args)
    world.routers.append(r)
    r.port = port
    return r


def test_orchestrated(world):
    p, d = world.engine("prefill", advertise_host="localhost.invalid"), world.engine("decode")
    r = line(world, [p.url, d.url], ["P", "D"])
    r.wait_for("ready")
    a = r.complete("hello", max_tokens=4)
    assert a.json()["choices"][0]["text"] == expect.text("hello", 4)
    assert d.last().json()["kv_transfer_params"]["remote_host"] == "127.0.0.1"


def test_labels_are_compared_whole(world):
    """`p` is part of `p-2` and the other way round: as substrings every engine would be both."""
    p, d = world.engine("prefill"), world.engine("decode")
    r = line(world, [p.url, d.url], ["p", "p-2"], prefill="p", decode="p-2")
    r.wait_for("ready")
    for _ in range(6):
        assert r.complete().status == 200
    assert len(p.requests()) == len(d.requests()) == 6


def test_label_lists(world):
    p, q, d = world.engine("prefill"), world.engine("prefill"), world.engine("decode")
    r = line(world, [p.url, q.url, d.url], ["a", "b", "c"], prefill="a,b", decode="c")
    r.wait_for("ready")
    wait("both prefill engines", lambda: r.metric("endpoint_up", role="prefill") == 2, 15)
    for _ in range(6):
        assert r.complete().status == 200
    assert p.requests() and q.requests()


ORCHESTRATED = ["--routing-logic", "disaggregated_prefill_orchestrated", "--prefill-model-labels", "a",
                "--decode-model-labels", "b"]
TWO = ["--static-backends", "http://127.0.0.1:1,http://127.0.0.1:2"]


@pytest.mark.parametrize("args, word", [
    ([*TWO, *ORCHESTRATED, "--static-models", "m,m"], "static-model-labels"),
    ([*TWO, *ORCHESTRATED, "--static-models", "m", "--static-model-labels", "a,b"], "static-models"),
    ([*TWO, *ORCHESTRATED, "--static-models", "m,m", "--static-model-labels", "a"], "static-model-labels"),
    ([*TWO, *ORCHESTRATED, "--static-models", "m,m", "--static-model-labels", "a,b", "--port", "x"], "port"),
    (["--static-backends", "nonsense,b", *ORCHESTRATED, "--static-models", "m,m", "--static-model-labels", "a,b"], "nonsense"),
    (["--static-backends", "http://127.0.0.1:1", "--routing-logic", "roundrobin"], "static-models"),
    (["--static-backends", "http://127.0.0.1:1", "--routing-logic", "ttft"], "use policy: least_loaded"),
    ([*TWO], "routing-logic"), (["--service-discovery", "k8s"], "use static, or in a configuration file dns"),
    (["--prefill", "http://127.0.0.1:1", "8998", "x"], "--prefill"), (["--decode", "http://127.0.0.1:1", "8998"], "8998"),
    (["--static-backends"], "static-backends"), (["--no-such-flag"], "no-such-flag"),
])
def test_wrong_command_lines_are_explained(args, word):
    done = subprocess.run([BIN / "pdrouter", *args], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode != 0 and word in done.stderr, done.stderr


def test_host_and_port_beside_a_file(world):
    p, d = world.engine("prefill"), world.engine("decode")
    port = free_port()
    r = world.router(world.pool([p], [d]), wait_for=None, args=["--host", "127.0.0.1", "--port", str(port)])
    r.port = port
    r.wait_for("ready")


SHARED = ["--service-discovery", "static", "--routing-logic", "disaggregated_prefill", "--prefill-model-labels", "P",
          "--decode-model-labels", "D"]


def pdrouter(*args):
    return subprocess.run([BIN / "pdrouter", *map(str, args)], capture_output=True, text=True, timeout=10, check=False)


def printed(tmp_path, *args):
    """The YAML that a command line amounts to, in a file that is good in itself and amounts to the same."""
    done = pdrouter("--print-config", *args)
    assert done.returncode == 0 and not done.stderr, done.stderr
    path = tmp_path / "printed.yaml"
    path.write_text(done.stdout)
    again = pdrouter("--print-config", "-c", path)
    assert again.stdout == done.stdout and pdrouter("-t", "-c", path).returncode == 0
    return path


def test_what_flags_amount_to_serves_like_them(world, tmp_path):
    p, d = world.engine("prefill", advertise_host="localhost.invalid"), world.engine("decode")
    port = free_port()
    path = printed(tmp_path, "--host", "127.0.0.1", "--port", port, *ORCHESTRATED, "--static-backends", f"{p.url},{d.url}",
                   "--static-models", f"{MODEL},{MODEL}", "--static-model-labels", "a,b")
    r = Router(world, {}, wait_for=None, binary_args=["-c", str(path)])
    world.routers.append(r)
    r.port = port
    r.wait_for("ready")
    assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert d.last().json()["kv_transfer_params"]["remote_host"] == "127.0.0.1"


def test_print_config_of_a_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("rise: 2\npools: [{connector: nixl, prefill: [{url: 'http://p'}], decode: [{url: 'http://d'}]}]\n")
    assert pdrouter("--print-config", "-c", path, "--port", 80).stdout == (
        'listen: ["0.0.0.0:80"]\npools:\n  - connector: nixl\n    prefill:\n      - {url: "http://p"}\n'
        '    decode:\n      - {url: "http://d"}\n')
    path.write_text("rise: 0\n")
    wrong = pdrouter("--print-config", "-c", path)
    assert wrong.returncode != 0 and not wrong.stdout and "rise" in wrong.stderr


def test_flags_with_nothing_to_do_are_noted(world):
    p, d = world.engine("prefill"), world.engine("decode")
    idle = ["--nixl-finished-req-ttl", "120.0", "--initial-backoff-ms", "3", "--static-backend-health-checks"]
    r = line(world, [p.url, d.url], ["P", "D"], extra=idle)
    r.wait_for("ready")
    for flag in ("--nixl-finished-req-ttl", "--initial-backoff-ms", "--static-backend-health-checks"):
        assert f"flag={flag} " in r.log() or f'flag="{flag}" ' in r.log()
    done = pdrouter("-t", *SHARED, "--static-backends", f"{p.url},{d.url}", "--static-models", "m,m", "--static-model-labels",
                    "P,D", *idle)
    assert done.returncode == 0 and "--nixl-finished-req-ttl: notices without a waiting request are dropped at once" in done.stderr


def test_roundrobin_serves_whole_requests(world):
    """Every engine is asked alone, in turn, with the client's own body."""
    engines = [world.engine("decode"), world.engine("decode")]
    port = free_port()
    r = Router(world, {}, wait_for=None, binary_args=[
        "--host", "127.0.0.1", "--port", str(port), "--service-discovery", "static", "--routing-logic", "roundrobin",
        "--static-backends", ",".join(e.url for e in engines), "--static-models", f"{MODEL},{MODEL}"])
    world.routers.append(r)
    r.port = port
    r.wait_for("ready")
    wait("both engines", lambda: r.metric("endpoint_up", role="decode") == 2, 15)
    for _ in range(6):
        assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert [len(e.requests()) for e in engines] == [3, 3]
    assert "kv_transfer_params" not in engines[0].last().json()


@pytest.mark.parametrize("registry", [True, False], ids=["registry", "static"])
def test_lmcache_with_notices(world, registry):
    proxy = free_port()
    p = world.engine("prefill", handshake="lmcache", proxy=f"127.0.0.1:{proxy}", tp=2)
    d = world.engine("decode", handshake="lmcache", receiver_ports="0,0", skip_last=1)
    init, alloc = (",".join(map(str, d.ports[k])) for k in ("init", "alloc"))
    spec = {d.url: {"receiver_host": "127.0.0.1", "receiver_init_port": d.ports["init"], "receiver_alloc_port": d.ports["alloc"]}}
    where = (["--decoder-registry", json.dumps(spec)] if registry else
             ["--nixl-peer-host", "0.0.0.0", "--decoder-init-port", init, "--nixl-peer-alloc-port", alloc])
    r = line(world, [p.url, d.url], ["P", "D"], extra=[
        "--routing-logic", "disaggregated_prefill", "--nixl-proxy-host", "localhost", "--nixl-proxy-port", str(proxy), *where])
    r.wait_for("ready")
    r.wait_all_up()
    assert r.complete("hello there", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello there", 4)
    assert d.counter("kv_loaded") == 1 and p.counter("spec_violations") == 0
    assert r.metric("kv_ready_timeouts_total") == 0


def test_lmcache_without_notices(world):
    """--disagg-connector-type lmcache alone: nobody is told anything, the prefill engine's answer is the signal."""
    p = world.engine("prefill", handshake="lmcache", proxy="127.0.0.1:1", notices=0)
    d = world.engine("decode", handshake="lmcache", receiver_ports="0", skip_last=1)
    r = line(world, [p.url, d.url], ["P", "D"], extra=[
        "--routing-logic", "disaggregated_prefill", "--disagg-connector-type", "lmcache", "--decoder-host", "127.0.0.1",
        "--decoder-init-port", str(d.ports["init"][0]), "--decoder-alloc-port", str(d.ports["alloc"][0])])
    r.wait_for("ready")
    r.wait_all_up()
    assert r.complete("hello there", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello there", 4)
    assert d.counter("kv_loaded") == 1


@pytest.mark.parametrize("logic, word", [
    (["disaggregated_prefill"], None), (["disaggregated_prefill", "--disagg-connector-type", "nixl"], "do_remote_decode")])
def test_disaggregated_prefill(world, logic, word):
    """From shared storage unless something else is asked for: then the prefill leg says nothing of a handoff."""
    hs = {} if word else {"handshake": "shared_storage", "storage": world.dir / "storage"}
    (world.dir / "storage").mkdir()
    p, d = world.engine("prefill", **hs), world.engine("decode", refuse_local=True, **hs)
    r = line(world, [p.url, d.url], ["P", "D"], extra=["--routing-logic", *logic])
    r.wait_for("ready")
    r.wait_all_up()
    assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert ("kv_transfer_params" in p.last().json()) == bool(word)


def test_sglang_router(world):
    p, q, d = world.engine("prefill", handshake="sglang"), world.engine("prefill", handshake="sglang"), world.engine(
        "decode", handshake="sglang")
    port = free_port()
    r = Router(world, {}, wait_for=None, binary_args=[
        "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation", "--policy", "round_robin", "--prefill", p.url,
        str(p.bootstrap), "--prefill", q.url, "none", "--decode", d.url])
    world.routers.append(r)
    r.port = port
    r.wait_for("ready")
    r.wait_all_up()
    for _ in range(4):
        assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert [len(e.requests()) for e in (p, q, d)] == [2, 2, 4]
    assert {x.last().json()["bootstrap_port"] for x in (p, q)} == {p.bootstrap, q.bootstrap}


def test_the_help_tells_every_flag_and_what_becomes_of_it():
    text = pdrouter("--help").stdout
    for word in ("--print-config", "--nixl-proxy-host HOST\n        disaggregated_prefill: connector: lmcache",
                 "--static-aliases ALIAS:MODEL,...\n        give the engines all their names",
                 "--nixl-cleanup-interval SECONDS\n        notices without a waiting request are dropped at once"):
        assert word in text


# --- what happens when engines fail or are full -----------------------------------------------------------


def gateway(world, *args):
    port = free_port()
    r = Router(world, {}, wait_for=None, binary_args=["--host", "127.0.0.1", "--port", str(port), *map(str, args)])
    world.routers.append(r)
    r.port = port
    r.wait_for("ready")
    return r.wait_all_up()


def until_met(r, engine, n):
    """Requests until the engine has seen n of them, however many workers there are: what became of all."""
    got = []
    while len(engine.requests()) < n and len(got) < 200:
        got.append(r.complete(max_tokens=1).status)
    return got


@pytest.mark.parametrize("flags, saved", [([], True), (["--retry-max-retries", 2], True), (["--retry-max-retries", 1], False),
                                          (["--disable-retries"], False)])
def test_retries_of_sglang_router(world, flags, saved):
    """The first try counts there: 2 is another one, 1 is none."""
    p, q = world.engine("prefill", handshake="sglang"), world.engine("prefill", handshake="sglang")
    d, e = world.engine("decode", handshake="sglang"), world.engine("decode", handshake="sglang")
    r = gateway(world, "--pd-disaggregation", "--prefill", p.url, p.bootstrap, "--prefill", q.url, q.bootstrap, "--decode", d.url,
                "--decode", e.url, "--policy", "round_robin", *flags)
    p.fault("fail", count=1)
    got = until_met(r, p, 1)
    assert (set(got) == {200}) is saved, got


@pytest.mark.parametrize("flags, by", [([], "retry"), (["--max-instance-failover-reroute-attempts", "1"], "retry"),
                                       (["--max-instance-failover-reroute-attempts", "0"], "fallback"),
                                       (["--enable-retries", "--max-retries", "2"], "retry"), (["--max-retries", "1"], "retry")])
def test_retries_of_production_stack(world, flags, by):
    """Without another prefill engine to try the decode engine does it alone: no flag says that it should not."""
    p, q, d = world.engine("prefill"), world.engine("prefill"), world.engine("decode")
    r = line(world, [p.url, q.url, d.url], ["P", "P", "D"], extra=flags)
    r.wait_for("ready")
    r.wait_all_up()
    p.fault("fail", count=2)
    assert set(until_met(r, p, 2)) == {200}
    r.wait_metric("rescued_total", 2, by=by)
    assert r.metric("rescued_total") == 2


def test_one_at_once_and_one_that_waits(world):
    """sglang-router's --max-concurrent-requests and its queue, before an engine that does whole requests."""
    e = world.engine("decode")
    r = gateway(world, "--worker-urls", e.url, "--policy", "round_robin", "--max-concurrent-requests", 1, "--queue-size", 1,
                "--queue-timeout-secs", 20)
    e.pause()
    held = r.open_stream(n=4)
    wait("it has the place", lambda: r.metric("endpoint_in_flight", role="decode") == 1)
    waits = r.open_stream("waits", n=1)
    wait("it waits", lambda: r.metric("queue_waiting") == 1)
    a = r.complete(max_tokens=1)
    assert a.status == 429 and a.error["code"] == "queue_full" and a["Retry-After"]
    e.go_on()
    assert len(list(held.events())) == 5
    assert waits.head().status == 200 and len(list(waits.events())) == 2


def test_the_breaker_of_sglang_router(world):
    """--cb-failure-threshold failures in a row, then the engine is left alone; --disable-circuit-breaker: it is not."""
    for flags, left in ((["--cb-failure-threshold", 3, "--cb-timeout-duration-secs", 600], True), (["--disable-circuit-breaker"], False)):
        e, f = world.engine("decode"), world.engine("decode")
        r = gateway(world, "--worker-urls", e.url, f.url, "--policy", "round_robin", "--retry-max-retries", 1, *flags)
        e.fault("fail", count=-1)
        got = [r.complete(max_tokens=1).status for _ in range(40)]
        assert got.count(500) == (3 if left else len(e.requests())) == len(e.requests()), got
        assert (r.metric("endpoint_ejected", engine=e.url, role="decode") == 1) is left
