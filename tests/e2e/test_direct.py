"""What a client gets where the router answers in place of an engine: as a direct call to vLLM would be answered."""
import json

import pytest

from fleets import build
from procs import MODEL, wait

CHAT, URL, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def direct(e, path, body):
    with e.client() as c:
        return c.post(path, body)


@pytest.mark.parametrize("path", [URL, CHAT])
def test_unknown_model(shared, router, path):
    body = {"model": "nope", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    a, want = router.post(path, body, [("X-Request-Id", "nope" + path[-4:])]), direct(shared.d, path, body)
    assert (a.status, a.json()) == (want.status, want.json()) and a.error["code"] == 404 and "`nope`" in a.error["message"]
    assert router.end_of("nope" + path[-4:])["reason"] == "model_not_found"


def test_unknown_model_of_the_list(router):
    a = router.get("/v1/models/no%2Fpe")
    assert a.status == 404 and a.error == {"message": "The model `no/pe` does not exist.", "type": "NotFoundError", "param": "model",
                                           "code": 404}


@pytest.mark.parametrize("path", [URL, "/v1/embeddings", MESSAGES])
def test_post_without_a_body(router, path):
    with router.client() as c:
        c.send(b"POST %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        a = c.read()
        assert a.status == 400 and a.error["code"] == "bad_json"
        assert c.get("/live").status == 200, "nothing follows the head, so the connection is kept"


@pytest.mark.parametrize("body, status", [({"model": "nope"}, 404), (b"[]", 400)])
def test_errors_of_messages(shared, router, body, status):
    for path in (MESSAGES, "/v1/messages/count_tokens"):
        a = router.post(path, body)
        assert status == 400 or a.json() == direct(shared.d, path, body).json()
        assert a.status == status and a.json()["type"] == "error" and a.json()["error"]["type"] and a.json()["error"]["message"]


def test_error_event_of_messages(world):
    r, _, (d,) = world.scripts()
    c = r.client().request("POST", MESSAGES, {"model": MODEL, "stream": True, "max_tokens": 9, "messages": []})
    ex = d.expect("POST " + MESSAGES).stream_head()
    ex.chunk(b'event: ping\ndata: {"type":"ping"}\n\n').reset()
    *_, last = c.read().body.strip().split(b"\n\n")
    name, data = last.split(b"\n")
    assert name == b"event: error" and json.loads(data[6:])["type"] == "error" and json.loads(data[6:])["error"]["message"]


@pytest.mark.parametrize("path", [URL, CHAT])
def test_nginx_does_not_buffer_a_stream(router, path):
    """nginx (proxy_buffering) passes an answer on at once if it has this line."""
    body = {"model": MODEL, "prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    assert router.post(path, {**body, "stream": True})["x-accel-buffering"] == "no"
    assert router.post(path, body)["x-accel-buffering"] is None


def told(r, **want):
    """The entries of /v1/models by name, once each has what is wanted of it."""
    def get():
        found = {m["id"]: m for m in r.get("/v1/models").json()["data"]}
        return all(found.get(k, {}).get("max_model_len", 0) == v for k, v in want.items()) and found
    return wait("what the engines tell", get)


def test_a_model_is_listed_as_the_engine_lists_it(shared, router):
    with shared.d.client() as c:
        (want,) = c.get("/v1/models").json()["data"]
    got = told(router, **{MODEL: want["max_model_len"]})[MODEL]
    assert want.pop("permission")[0]["id"].startswith("modelperm-"), "drawn by the engine, and left out by the router"
    assert {**got, "created": 0} == {**want, "created": 0} and want["owned_by"] == "vllm"
    assert router.get("/v1/models/" + MODEL).json() == got


def test_adapters_and_lengths_of_several_engines(world):
    """An adapter's `parent`; of two lengths the smaller one, since a request must fit into both engines."""
    p, d = world.script(), world.script()
    for e, n in ((p, 8192), (d, 4096)):
        base = {"id": "base", "owned_by": "vllm", "root": "/models/b\u00e4se", "parent": None, "max_model_len": n}
        lora = {"id": "lora", "owned_by": "vllm", "root": "/adapters/" + "x" * 300, "parent": "base", "max_model_len": None}
        e.probes["/v1/models"] = json.dumps({"data": [base, lora]}).encode()
    r = world.router({**world.pool([p], [d]), "models": []})
    got = told(r, base=4096, lora=None)
    assert [got["base"][k] for k in ("root", "parent", "owned_by")] == ["/models/b\u00e4se", None, "vllm"]
    assert [got["lora"][k] for k in ("root", "parent")] == ["lora", "base"], "a root of over 256 bytes is left out"
    assert r.get("/v1/models/lora").json() == got["lora"]


@pytest.mark.parametrize("kind", ["nixl", "push", "orchestrated", "lmcache", "lmcache decode", "mooncake", "mooncake old"])
def test_prompt_logprobs_go_to_one_engine(world, kind):
    """A decode engine that has fetched the KV has no logits of the prompt: pdsim answers 500 where vLLM dies."""
    r, p, d = build(world, kind, 1, 1)
    for path, more in ((URL, {"prompt_logprobs": 0}), (CHAT, {"prompt_logprobs": 1}), (URL, {"echo": True, "logprobs": 1})):
        body = {"model": MODEL, "max_tokens": 2, "prompt": "x", "messages": [{"role": "user", "content": "x"}], **more}
        body.pop("prompt" if path == CHAT else "messages")
        assert r.post(path, body).status == 200 and r.end()["direct"] in ("prompt_logprobs", "echo")
    assert p[0].requests() == [] and len(d[0].requests()) == 3
    assert r.post(URL, {**body, "prompt": "y", "echo": False}).status == 200 and len(p[0].requests()) == 1


@pytest.mark.parametrize("prompt", [["a", [1, 2]], [[1, 2], "a"], ["a", 1], ["a", None]])
def test_a_list_of_unlike_prompts(shared, router, prompt):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
    a, want = router.post(URL, body), direct(shared.d, URL, body)
    assert (a.status, a.json()) == (want.status, want.json()) and a.status == 400
    assert router.post(URL, {**body, "prompt": ["a", "b,[", "\"],["]}).json()["choices"][2]["index"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_beyond_the_context_costs_no_prefill(world, stream):
    """A decode engine refuses it, in its own words; one that clamps it would serve it."""
    r, (p,), (d,) = world.pd(engine={"max_model_len": 64})
    told(r, **{MODEL: 64})
    for path, more in ((URL, {"prompt": "x", "max_tokens": 65}), (URL, {"prompt": [1, 2, 3], "max_tokens": 62}),
                       (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 65})):
        body = {"model": MODEL, "stream": stream, **more}
        a, want = r.post(path, body), direct(d, path, body)
        assert (a.status, a.json()) == (400, want.json()) and r.end()["direct"] == "limit"
    assert p.requests() == []
    assert r.post(URL, {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 61}).status == 200 and len(p.requests()) == 1


def test_blocks_of_a_request_that_decode_refuses_are_released(world):
    """FastAPI refuses `stream_options` of a whole answer at decode only: the prefill leg has none."""
    r, (p,), _ = world.pd()
    a = r.post(URL, {"model": MODEL, "prompt": "x", "max_tokens": 2, "stream_options": {"include_usage": True}})
    assert a.status == 400 and p.counter("kv_held") == 1
    p.wait_metric("pdsim:held_blocks", 0)
    assert p.counter("kv_released") == 1 and p.counter("kv_expired") == 0
