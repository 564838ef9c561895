"""Keys of clients: the api_keys_file, what a request without a good key gets, and what a key allows."""
import hashlib
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
import yaml

from nameserver import NameServer
from procs import BIN, MODEL, free_port, wait
from raw import Client


def secret(name):
    return f"pdr-{name}"


def row(name, **terms):
    return {"name": name, "sha256": hashlib.sha256(secret(name).encode()).hexdigest(), **terms}


def bearer(name):
    return [("Authorization", f"Bearer {secret(name)}")]


def write(world, *rows):
    path = world.dir / "keys.yaml"
    path.write_text(yaml.safe_dump(list(rows)))
    return str(path)


def with_keys(world, *rows, **keys):
    """A pool of one model in front of two engines, and the router with these keys."""
    return world.pd(api_keys_file=write(world, *rows), **keys)


def code(a):
    return a.status if a.status == 200 else (a.status, a.error["code"])


# --- who may ask --------------------------------------------------------------------------------------------------------


def test_without_a_good_key_nothing_is_served(world):
    r, (p,), _ = with_keys(world, row("alice"), row("old", expires="2020-01-01"))
    for headers, why in ([], "send Authorization"), (bearer("eve"), "no such key"), (bearer("old"), "expired"):
        a = r.complete(headers=headers)
        assert code(a) == (401, "invalid_api_key") and why in a.error["message"]
        assert a["www-authenticate"] == "Bearer"
    assert code(r.get("/v1/models")) == (401, "invalid_api_key") and p.requests() == []
    assert [r.get(path).status for path in ("/live", "/ready", "/health", "/metrics", "/version")] == [200] * 5
    assert r.metric("requests_total", reason="invalid_api_key") == 4


def test_a_key_in_either_header(world):
    r, _, _ = with_keys(world, row("alice"))
    assert r.complete(headers=bearer("alice")).status == 200
    assert r.complete(headers=[("authorization", f"bearer  {secret('alice')}")]).status == 200
    assert r.complete(headers=[("X-Api-Key", secret("alice"))]).status == 200
    assert code(r.complete(headers=[("Authorization", f"Basic {secret('alice')}")])) == (401, "invalid_api_key")
    assert r.get("/v1/models", bearer("alice")).status == 200
    wait("the lines", lambda: [x["key"] for x in r.lines("request") if x["status"] == 200] == ["alice"] * 3)
    assert secret("alice") not in r.log()


@pytest.mark.parametrize("host, said", [("0.0.0.0", 1), ("127.0.0.1", 0)])
def test_a_router_without_keys_says_so_unless_it_is_on_loopback(world, host, said):
    r, _, _ = world.pd(args=["--host", host])
    assert len(r.lines("clients need no key: who reaches this address may use the engines")) == said


def test_the_sdk_raises_its_own_error(world):
    r, _, _ = with_keys(world, row("alice"))
    with openai.OpenAI(base_url=f"http://127.0.0.1:{r.port}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as e:
            client.completions.create(model=MODEL, prompt="hi")
    assert e.value.code == "invalid_api_key"


# --- the file changes ---------------------------------------------------------------------------------------------------


def test_a_reload_counts_at_once_on_open_connections(world):
    r, _, _ = with_keys(world, row("alice"), row("bob"))
    pids = r.children()
    with Client(r.address) as c:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 1}
        assert c.post("/v1/completions", body, bearer("alice")).status == 200
        write(world, row("bob"))
        assert r.ctl("reload").returncode == 0
        assert c.post("/v1/completions", body, bearer("bob")).status == 200
        assert c.post("/v1/completions", body, bearer("bob")).status == 200
        assert code(c.post("/v1/completions", body, bearer("alice"))) == (401, "invalid_api_key")
    r.reload(api_keys_file="")
    assert r.complete().status == 200
    assert r.children() == pids and r.metric("generation") == 1
    r.look_over()


def test_a_watched_file_counts_without_a_signal(world):
    r, _, _ = with_keys(world, row("alice"), watch=True)
    write(world, row("bob"))
    wait("bob's key", lambda: r.complete(headers=bearer("bob")).status == 200)
    assert r.complete(headers=bearer("alice")).status == 401
    (world.dir / "keys.yaml").write_text("- {name: carol, sha256: 12}\n")
    line = wait("what is wrong", lambda: r.lines("reload refused, the configuration in force stays"))[0]
    assert "keys.yaml:1: [0].sha256: is not 64 hex digits" in line["error"]
    assert r.complete(headers=bearer("bob")).status == 200


def test_a_revoked_key_does_not_wait_with_a_reload(world):
    """Two worker slots: the third generation waits for streams, the keys do not."""
    alice, bob, carol = row("alice"), row("bob"), row("carol")
    r, _, _ = with_keys(world, alice, bob, workers=1, engine={"token_delay": 50}, drain_timeout="60s", shared_memory={"max_workers": 1})
    streams = []
    for name in "X-A", "X-B":
        c = r.open_stream(n=1000, headers=bearer("alice"))
        c.head()
        streams.append(c)
        if name == "X-A":
            r.reload(client={"id_header": name})
    write(world, bob)
    r.change(client={"id_header": "X-B"})
    r.kill(signal.SIGHUP)
    wait("the file", lambda: r.complete(headers=bearer("alice")).status == 401)
    write(world, carol)
    r.kill(signal.SIGHUP)
    wait("the file again", lambda: r.complete(headers=bearer("carol")).status == 200)
    assert r.complete(headers=bearer("bob")).status == 401
    assert len(r.lines("reload waits: old generations of workers have all process slots")) == 2 and r.status()["generations"] == 2
    r.look_over()


# --- what a key may use -------------------------------------------------------------------------------------------------


def models_of(r, name):
    return sorted(m["id"] for m in r.get("/v1/models", bearer(name)).json()["data"])


def test_a_key_uses_its_models_and_pools_alone(world):
    p, d, q, e = (world.engine(role, model=name) for name in (MODEL, "qwen-7b") for role in ("prefill", "decode"))
    keys = write(world, row("all"), row("qwen", models=["qwen*"]), row("a", pools=["a"]))
    r = world.router(world.pool([p], [d], name="a"), world.pool([q], [e], name="b", models=["qwen-7b"]), api_keys_file=keys)
    refused = (403, "model_not_allowed")
    for name, sim, qwen in ("all", 200, 200), ("qwen", refused, 200), ("a", 200, refused):
        assert code(r.complete(headers=bearer(name))) == sim
        assert code(r.complete(headers=bearer(name), model="qwen-7b")) == qwen
        assert models_of(r, name) == [m for m, may in (("qwen-7b", qwen), (MODEL, sim)) if may == 200]
        assert r.get(f"/v1/models/{MODEL}", bearer(name)).status == (200 if sim == 200 else 404)
    assert code(r.complete(headers=bearer("all"), model="none")) == (404, 404)
    assert code(r.complete(headers=bearer("qwen"), model="none")) == refused


def test_a_request_without_a_model_needs_all_of_the_pool(world):
    r, _, _ = with_keys(world, row("sim", models=["sim-*"]), row("other", models=["other"]))
    for name, want in ("sim", 200), ("other", (403, "model_not_allowed")):
        assert code(r.post("/v1/completions", {"prompt": "hi", "max_tokens": 1}, bearer(name))) == want


def test_an_adapter_and_a_path_that_reads_no_model(world):
    """What a restricted key may use is not said by `model` alone."""
    rows = row("all"), row("sim", models=[MODEL]), row("both", models=[MODEL, "adapter"])
    sglang = {"engine": {"handshake": "sglang"}, "pool": {"connector": "sglang", "models": [MODEL, "adapter"]}}
    r, _, _ = world.pd(**sglang, api_keys_file=write(world, *rows))
    refused = (403, "model_not_allowed")
    for lora in '"adapter"', '["adapter"]', 'null,"lora\\u005fpath":"adapter"':
        body = f'{{"model":"{MODEL}","prompt":"hi","max_tokens":1,"lora_path":{lora}}}'.encode()
        assert [code(r.post("/v1/completions", body, bearer(x))) for x in ("all", "sim", "both")] == [200, refused, refused]
    assert code(r.complete(headers=bearer("sim"), lora_path=None)) == 200
    ask = {"model": MODEL, "text": "hi", "sampling_params": {"max_new_tokens": 1}}
    assert [code(r.post("/generate", ask, bearer(x))) for x in ("all", "sim", "both")] == [200, refused, 200]


# --- what engines get ---------------------------------------------------------------------------------------------------


def engine_key(world):
    path = world.dir / "engine.key"
    path.write_text("sk-engine")
    return str(path)


def sent(*engines):
    """The key headers of the last request at each."""
    return [[e.last()[name] for name in ("authorization", "x-api-key")] for e in engines]


BOTH = [*bearer("alice"), ("X-Api-Key", secret("alice")), ("X-Other", "1")]


def test_a_key_of_the_router_is_none_of_an_engine(world):
    r, (p,), (d,) = with_keys(world, row("alice"))
    assert r.complete(headers=BOTH).status == 200
    assert sent(p, d) == [[None, None]] * 2 and p.last()["x-other"] == d.last()["x-other"] == "1"


def test_the_engines_own_key_replaces_the_clients(world):
    r, (p,), (d,) = world.pd(engine={"api_key": "sk-engine"}, pool={"engine_api_key_file": engine_key(world)})
    for headers in [], BOTH:
        assert r.complete(headers=headers).status == 200
        assert sent(p, d) == [["Bearer sk-engine", None]] * 2
    r.reload(api_keys_file=write(world, row("alice")))
    assert r.complete(headers=BOTH).status == 200 and sent(p, d) == [["Bearer sk-engine", None]] * 2


def test_without_either_the_clients_key_passes(world):
    r, (p,), (d,) = world.pd()
    assert r.complete(headers=BOTH).status == 200
    assert sent(p, d) == [["Bearer pdr-alice", "pdr-alice"]] * 2


def test_a_found_engine_is_sent_no_key_unless_it_is_trusted(world):
    p, d, names = world.engine("prefill", host="127.0.0.2", port=free_port()), world.engine("decode"), NameServer()
    names.set("p.test", "127.0.0.2")
    pool = world.pool([], [d], dns=[{"name": "p.test", "port": p.port, "role": "prefill"}], engine_api_key_file=engine_key(world))
    r = world.router(pool, dns_servers=[names.address])
    assert r.complete(headers=BOTH).status == 200
    assert sent(p, d) == [[None, None], ["Bearer sk-engine", None]]
    r.reload(pools=[{**pool, "trust_found": True}])
    assert r.complete(headers=BOTH).status == 200
    assert sent(p, d) == [["Bearer sk-engine", None]] * 2
    names.close()


# --- limits of a key ----------------------------------------------------------------------------------------------------


def test_a_keys_own_rate_and_slots_come_before_those_of_all(world):
    rows = row("two", rate="2/h"), row("one", max_inflight=1), row("any")
    r, _, (d,) = with_keys(world, *rows, client={"rate": "3/h"})
    for name, n in ("two", 2), ("any", 3):
        assert [code(r.complete(headers=bearer(name))) for _ in range(n + 1)] == [200] * n + [(429, "client_rate")]
    d.pause()
    s = r.open_stream(headers=bearer("one"))
    d.wait_requests(6)
    assert code(r.complete(headers=bearer("one"))) == (429, "client_inflight")
    d.go_on()
    assert s.read().status == 200


def in_debt(r):
    """The refusal; a request is charged when it has ended, a moment after its answer has."""
    def refused():
        a = r.post("/v1/completions", {"model": "none"}, bearer("alice"))
        return a if a.status == 429 else None
    return wait("its debt", refused)


def test_tokens_that_engines_report_are_a_minutes(world):
    """Twice as many as a minute has: whichever worker the key asks, it is in debt for about a minute."""
    r, _, _ = with_keys(world, row("alice", tokens_per_minute=10), row("bob"))
    used = r.complete(headers=bearer("alice"), max_tokens=19).json()["usage"]["total_tokens"]
    a = in_debt(r)
    assert a.error["code"] == "client_tokens" and abs(int(a["retry-after"]) - 6 * (used - 10)) <= 2
    assert r.complete(headers=bearer("bob")).status == 200


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_counts_with_its_usage_or_its_events(world, options):
    r, _, _ = with_keys(world, row("alice", tokens_per_minute=60), workers=1)
    s = r.open_stream(headers=bearer("alice"), prompt="hi", n=100, **options)
    assert s.read().status == 200
    a = in_debt(r)
    assert 30 <= int(a["retry-after"]) <= 60  # 100 tokens and the prompt's, of which 60 are paid


def test_a_client_that_leaves_pays_for_its_prompt(world):
    r, _, (d,) = with_keys(world, row("alice", tokens_per_minute=60))
    d.pause()
    with r.client() as c:
        c.request("POST", "/v1/completions", {"model": MODEL, "prompt": "word " * 400, "max_tokens": 9}, bearer("alice"))
        d.wait_requests(1)
    assert int(in_debt(r)["retry-after"]) > 60
    d.go_on()


def test_an_answer_whose_usage_is_not_at_its_end_counts_by_its_bytes(world):
    r, _, (d,) = world.scripts(api_keys_file=write(world, row("alice", tokens_per_minute=60)))
    with ThreadPoolExecutor(1) as pool:
        a = pool.submit(r.post, "/v1/messages", {"model": MODEL, "messages": [], "max_tokens": 9}, bearer("alice"))
        d.expect().reply(body={"usage": {"input_tokens": 1, "output_tokens": 1}, "content": "x" * 4000})
        assert a.result().status == 200
    assert 900 <= int(in_debt(r)["retry-after"]) <= 1000


def test_reading_a_response_and_counting_tokens_is_free(world):
    p, d = world.engine("prefill"), world.engine("decode", store=True)
    r = world.router(world.pool([p], [d]), api_keys_file=write(world, row("alice", tokens_per_minute=60)))
    made = r.post("/v1/responses", {"model": MODEL, "input": "x"}, bearer("alice")).json()
    assert [r.get(f"/v1/responses/{made['id']}", bearer("alice")).status for _ in range(30)] == [200] * 30
    long = {"model": MODEL, "prompt": "word " * 400, "messages": [{"role": "user", "content": "word " * 400}]}
    for path in "/tokenize", "/v1/messages/count_tokens", "/v1/completions/render":
        assert [code(r.post(path, long, bearer("alice"))) for _ in range(3)] == [200] * 3


# --- pdctl key new ------------------------------------------------------------------------------------------------------


def new_key(name):
    return subprocess.run([BIN / "pdctl", "key", "new", name], capture_output=True, text=True)


def test_a_new_key_and_its_row(world):
    key, line = new_key("a,b:{c}").stdout.splitlines()
    assert key.startswith("pdr-") and len(key) == 47 and key != new_key("a").stdout.split()[0]
    [entry] = yaml.safe_load(line)
    assert entry == {"name": "a,b:{c}", "sha256": hashlib.sha256(key.encode()).hexdigest()}
    r, _, _ = with_keys(world, entry)
    assert r.complete(headers=[("Authorization", f"Bearer {key}")]).status == 200
    for wrong in "", "a b", "x" * 65:
        assert new_key(wrong).returncode == 2


def test_requests_and_tokens_are_counted_by_key_and_model(world):
    r, _, _ = with_keys(world, row("alice"), row("bob", rate="1/h"), row("carol", models=["another"]))
    for name, status in ("alice", 200), ("bob", 200), ("bob", 429), ("carol", 403):
        assert r.complete(headers=bearer(name)).status == status
    assert r.complete(model="unheard-of", headers=bearer("alice")).status == 404
    r.wait_metric("key_requests_total", 2, key="alice")
    said = {k: {n: r.metric(f"key_{n}_total", key=k) for n in ("requests", "refused")} for k in ("bob", "carol")}
    assert said == {"bob": {"requests": 2, "refused": 1}, "carol": {"requests": 1, "refused": 1}}
    for what in ("prompt_tokens", "completion_tokens"):
        of_one = r.metric(f"key_{what}_total", key="alice")
        assert of_one > 0 and r.metric(f"key_{what}_total", key="bob") == of_one
        assert r.metric(f"model_{what}_total", model=MODEL) == r.metric(f"{what}_total", pool=MODEL) == 2 * of_one
    write(world, row("alice"))
    r.reload()
    page = r.get("/metrics").body.decode()
    assert 'key="alice"' in page and "bob" not in page and "carol" not in page and "unheard-of" not in page
    assert not any(secret(name) in page or row(name)["sha256"] in page for name in ("alice", "bob", "carol"))


def test_without_keys_there_are_no_metrics_of_them(world):
    r, _, _ = world.pd()
    assert r.complete().status == 200
    assert r.wait_metric("model_requests_total", 1, model=MODEL) is None
    assert "pdrouter_key_" not in r.get("/metrics").body.decode()


# --- operators ----------------------------------------------------------------------------------------------------------


def of_operators(world, *rows, **keys):
    path = world.dir / "operators.yaml"
    path.write_text(yaml.safe_dump(list(rows)))
    return {"admin": {"listen": [f"127.0.0.1:{free_port()}"], "api_keys_file": str(path)}, **keys}


def test_operators_have_keys_of_their_own(world):
    """No other key is good; /live and /ready, which supervisors ask, need none."""
    r, _, _ = with_keys(world, row("alice"), **of_operators(world, row("grafana"), row("old", expires="2020-01-01")))
    r.operator_headers = bearer("grafana")

    def status(path, *headers):
        with r.operator() as c:
            return c.get(path, *headers).status
    paths = ["/metrics", "/health", "/version", "/live", "/ready"]
    for headers in [], bearer("alice"), bearer("old"):
        assert [status(path, headers) for path in paths] == [401, 401, 401, 200, 200]
    with r.operator() as c:
        assert (a := c.get("/metrics"))["www-authenticate"] == "Bearer" and code(a) == (401, "invalid_api_key")
        assert [c.get(path, bearer("grafana")).status for path in paths] == [200] * 5
    assert code(r.complete(headers=bearer("grafana"))) == (401, "invalid_api_key")
    assert r.complete(headers=bearer("alice")).status == 200


def test_keys_of_operators_follow_their_file(world):
    """Clients need none here.  What counts at once counts on open connections, too."""
    r, _, _ = world.pd(**of_operators(world, row("one")), watch=True)
    file = world.dir / "operators.yaml"
    with r.operator() as c:
        assert c.get("/metrics", bearer("one")).status == 200 and r.complete().status == 200
        file.write_text(yaml.safe_dump([row("two")]))
        wait("the other key", lambda: c.get("/metrics", bearer("two")).status == 200)
        assert code(c.get("/metrics", bearer("one"))) == (401, "invalid_api_key")
        r.operator_headers = bearer("two")
        assert r.metric("generation") == 1
        r.reload(watch=False, admin={"listen": r.config["admin"]["listen"]})
        assert c.get("/metrics").status == 200
