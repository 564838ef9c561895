"""IPv6 literals and host names, everywhere an address may stand."""
import json

import expect
from procs import MODEL
from raw import Client

KV = {"connector": "orchestrated", "handoff": "kv_transfer_params"}


def test_everything_on_ipv6(world):
    world.listen_host = "::1"
    p, d = world.engine("prefill", host="::1"), world.engine("decode", host="::1")
    r = world.router(world.pool([p], [d]))
    assert r.complete("hello", max_tokens=4).json()["choices"][0]["text"] == expect.text("hello", 4)
    assert d.last()["host"] == f"[::1]:{d.port}"


def test_remote_host_of_an_ipv6_url_has_no_brackets(world):
    p, d = world.script(host="::1"), world.script()
    r = world.router(world.pool([p], [d], **KV))
    c = r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "x"})
    p.expect().prefilled('{"remote_host":"localhost"}')
    ex = d.expect()
    assert ex.json()["kv_transfer_params"] == {"remote_host": "::1"}
    ex.reply(body={})
    assert c.read().status == 200


def test_host_names(world):
    p, d = world.engine("prefill"), world.engine("decode")
    r = world.router(world.pool([f"http://localhost:{p.port}"], [f"http://localhost:{d.port}"]))
    assert r.complete().status == 200


def test_several_listeners(world):
    from procs import free_port
    more, six = free_port(), free_port("::1")
    p, d = world.engine("prefill"), world.engine("decode")
    main = free_port()
    r = world.router(world.pool([p], [d]), listen=[f"127.0.0.1:{main}", f"localhost:{more}", f"[::1]:{six}"], wait_for=None)
    r.port = main
    r.wait_for("ready")
    for address in (("127.0.0.1", more), ("::1", six)):
        with Client(address) as c:
            assert json.loads(c.get("/live").body)["status"] == "ok"


def test_url_with_a_prefix(world):
    p, d = world.script(), world.script()
    p.probes |= {f"/engine{path}": answer for path, answer in p.probes.items()}
    r = world.router(world.pool([p.url + "/engine"], [d]))
    c = r.client().request("POST", "/v1/completions", {"model": MODEL, "prompt": "x"})
    p.expect("POST /engine/v1/completions").prefilled()
    d.expect("POST /v1/completions").reply(body={})
    assert c.read().status == 200
