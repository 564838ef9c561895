"""Web pages of other origins: what the router tells a browser (Fetch Standard, "CORS protocol")."""
import pytest

from procs import free_port

URL, PAGE = "/v1/chat/completions", "https://chat.example.net"
ASKED = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization, content-type")]
BODY = {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def lines(answer):
    """The lines of CORS of an answer, each once."""
    found = [(k.lower().removeprefix("access-control-"), v) for k, v in answer.headers if k.lower().startswith("access-control-")]
    assert len(found) == len(dict(found))
    return dict(found)


def preflight(r, origin=PAGE, path=URL, asked=None):
    with r.client() as c:
        return c.request("OPTIONS", path, headers=[("Origin", origin), *(ASKED if asked is None else asked)]).read(head_only=True)


def ask(r, origin=PAGE, **members):
    return r.post(URL, {**BODY, **members}, [("Origin", origin)])


@pytest.fixture
def any_origin(world):
    return world.pd(cors={"origins": ["*"]})[0]


def test_a_page_of_any_origin(any_origin):
    a = preflight(any_origin)
    assert a.status == 204 and lines(a) == {"allow-origin": "*", "allow-methods": "POST", "allow-headers": ASKED[1][1], "max-age": "600"}
    for stream in True, False:
        a = ask(any_origin, stream=stream)
        assert a.status == 200 and lines(a) == {"allow-origin": "*", "expose-headers": "X-Request-Id, Retry-After"}
    assert lines(any_origin.post(URL, BODY)) == {}, "no page asks"


def test_a_page_can_read_errors(any_origin):
    a = any_origin.post(URL, {**BODY, "model": "none"}, [("Origin", PAGE)])
    assert a.status == 404 and lines(a)["allow-origin"] == "*"
    a = any_origin.post("/nowhere", BODY, [("Origin", PAGE)])
    assert a.status == 404 and lines(a)["allow-origin"] == "*"


def test_pages_of_named_origins(world):
    r, _, _ = world.pd(cors={"origins": [PAGE, "http://localhost:3000"], "headers": ["Authorization"], "credentials": True})
    a = preflight(r, asked=[ASKED[0], ("Access-Control-Request-Headers", "authorization")])
    assert lines(a) == {"allow-origin": PAGE, "allow-credentials": "true", "allow-methods": "POST", "allow-headers": "authorization", "max-age": "600"}
    assert a["vary"] == "Origin" and "allow-headers" not in lines(preflight(r)), "content-type is not allowed"
    a = ask(r, "http://localhost:3000")
    assert (lines(a)["allow-origin"], a["vary"]) == ("http://localhost:3000", "Origin")
    for other in "https://chat.example.net.evil.org", "https://CHAT.example.net", "null", "http://chat.example.net":
        assert ask(r, other).status == 200 and lines(ask(r, other)) == {} and preflight(r, other).status == 405, other


@pytest.mark.parametrize("path, methods", [("/v1/models", "GET, HEAD"), ("/generate", "POST, PUT"), ("/v1/responses/resp_1", "GET")])
def test_the_methods_of_a_path(any_origin, path, methods):
    assert lines(preflight(any_origin, path=path))["allow-methods"] == methods


def test_what_is_no_preflight(any_origin):
    assert preflight(any_origin, path="/nowhere").status == 404
    assert preflight(any_origin, asked=[]).status == 405
    assert "allow-headers" not in lines(preflight(any_origin, asked=[ASKED[0], ("Access-Control-Request-Headers", "x" * 513)]))
    any_origin.wait_metric("requests_total", 1, path="preflight", reason="local")


def test_operators_addresses_are_not_for_pages(world):
    r, _, _ = world.pd(cors={"origins": ["*"]}, admin={"listen": [f"127.0.0.1:{free_port()}"]})
    with r.operator() as c:
        assert lines(c.get("/health", [("Origin", PAGE)])) == lines(c.get("/metrics", [("Origin", PAGE)])) == {}
        assert c.request("OPTIONS", "/metrics", headers=[("Origin", PAGE), *ASKED]).read().status == 405
    assert preflight(r, path="/metrics").status == 404


def test_an_engines_own_lines(world):
    """They take the place of the router's where it is not configured, and only there."""
    theirs = [("Access-Control-Allow-Origin", "https://theirs"), ("Vary", "Origin")]
    for keys, origin in ({}, "https://theirs"), ({"cors": {"origins": ["*"]}}, "*"):
        r, p, d = world.scripts(**keys)
        c = r.client().request("POST", "/v1/embeddings", {"model": "sim-model", "input": "a"}, [("Origin", PAGE)])
        p[0].expect().reply(headers=theirs, body={"data": []})
        a = c.read()
        assert lines(a)["allow-origin"] == origin and a["vary"] == "Origin"
        c.close()
