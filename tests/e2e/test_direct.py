"""What a client gets where the router answers in place of an engine: as a direct call to vLLM would be answered."""
import json

import pytest

from procs import MODEL

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
def test_errors_of_messages(router, body, status):
    for path in (MESSAGES, "/v1/messages/count_tokens"):
        a = router.post(path, body)
        assert a.status == status and a.json()["type"] == "error" and a.error["type"] and a.error["message"]


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
