"""Every status of ours in OpenAI's shape, engines' own errors unchanged, and what happens at which
stage when an engine misbehaves."""
import json
import time

import pytest

from legs import unaccepting
from procs import MODEL, free_port, silence, wait
from raw import Closed

OK = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2}).encode()
URL = "/v1/completions"


def refused(a, status, reason):
    assert a.status == status, (a.status, a.body)
    assert a.error["code"] == reason and a.error["message"] and a["x-request-id"]
    return a


def counted(r, reason):
    """True once one request has ended so."""
    r.wait_metric("requests_total", 1, reason=reason)
    return True


# --- requests the router refuses ---

BODIES = {
    "empty": b"", "array": b"[1]", "string": b'"x"', "number": b"1", "cut": OK[:-1], "trailing": OK + b"x", "two": OK + OK,
    "single_quotes": b"{'model':'m'}", "trailing_comma": b'{"model":"sim-model",}', "bare_key": b'{model:"sim-model"}',
    "control_in_string": b'{"model":"sim-model","prompt":"a\nb"}', "bad_escape": rb'{"model":"sim-model","prompt":"\x"}',
    "bad_utf8": b'{"model":"sim-model","prompt":"\xff"}', "leading_zero": b'{"model":"sim-model","a":01}',
    "nan": b'{"model":"sim-model","a":NaN}', "nul": OK + b"\0", "bom": b"\xef\xbb\xbf" + OK,
    "too_deep": b'{"model":"sim-model","a":' + b"[" * 100000 + b"]" * 100000 + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_body_that_is_no_json_object(shared, router, name):
    before = len(shared.p.requests())
    refused(router.post(URL, BODIES[name]), 400, "bad_json")
    assert len(shared.p.requests()) == before, "no engine may see it"


@pytest.mark.parametrize("body", [b'{"model":"nope","prompt":"x"}', b'{"model":"sim-mode","prompt":"x"}',
                                  b'{"model":"sim-model2","prompt":"x"}'])
def test_unknown_model(shared, router, body):
    a = refused(router.post(URL, body), 404, 404)
    assert json.loads(body)["model"] in a.error["message"]


def test_name_of_an_unknown_model_is_escaped(shared, router):
    a = refused(router.post(URL, {"model": '<">\\\n' + "é" * 20, "prompt": "x"}), 404, 404)
    assert '<">\\' in a.error["message"]


def test_model_that_is_no_string(shared, router):
    refused(router.post(URL, b'{"model":7,"prompt":"x"}'), 400, "bad_json")


@pytest.mark.parametrize("body", [b'{"prompt":"x"}', b'{"model":null,"prompt":"x"}', b'{"model":"","prompt":"x"}'])
def test_without_a_model_the_only_pool_is_meant(shared, router, body):
    """As engines have it: vLLM takes a request without `model` for the one it serves."""
    before = len(shared.p.requests())
    router.post(URL, body)
    assert len(shared.p.requests()) == before + 1


def test_without_a_model_one_of_several_pools_is_not_guessed(world):
    p, d = world.engine("prefill", model=[MODEL, "other"]), world.engine("decode", model=[MODEL, "other"])
    other = {**world.pool([p], [d]), "models": ["other"]}
    r = world.router(world.pool([p], [d]), other)
    refused(r.post(URL, b'{"prompt":"x"}'), 404, 404)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/v1/completions/", "/v1/embedding", "/abort_requests", "/sim/last",
                                  "/V1/completions", "/v1/completions%00", "/v1//completions", "/metrics/x"])
def test_path_that_is_not_there(shared, router, path):
    refused(router.get(path), 404, "not_found")
    refused(router.post(path, OK), 404, "not_found")


@pytest.mark.parametrize("method, path, allow", [("GET", URL, "POST"), ("PUT", URL, "POST"), ("DELETE", "/v1/models", "GET"),
                                                 ("POST", "/metrics", "GET"), ("POST", "/live", "GET"),
                                                 ("PATCH", "/v1/chat/completions", "POST"), ("OPTIONS", URL, "POST")])
def test_method_not_allowed(shared, router, method, path, allow):
    with router.client() as c:
        a = refused(c.request(method, path, b"{}" if method != "GET" else None).read(), 405, "method_not_allowed")
        assert allow in a["allow"] and f"this path takes {a['allow']}" in a.error["message"]


@pytest.fixture(scope="module")
def small():
    """A router with small limits."""
    from conftest import Shared

    class Small(Shared):
        def __init__(self):
            from procs import World
            self.world = World()
            self.router, (self.p,), (self.d,) = self.world.pd(
                limits={"max_body": "4KiB", "max_head": "2KiB"}, client={"head_timeout": "400ms", "body_timeout": "400ms"})
    s = Small()
    try:
        yield s.router
        s.world.finish()
    finally:
        s.world.close()


def body_of(n):
    base = json.dumps({"model": MODEL, "max_tokens": 1, "prompt": ""}).encode()
    return json.dumps({"model": MODEL, "max_tokens": 1, "prompt": "x" * (n - len(base))}).encode()


def test_body_too_large(small):
    assert small.post(URL, body_of(4096)).status == 200
    with small.client() as c:  # refused by its length, before the body has been sent
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4097\r\n\r\n")
        refused(c.read(), 413, "body_too_large")


def test_chunked_body_too_large(small):
    with small.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        c.send(b"800\r\n" + b"x" * 2048 + b"\r\n" + b"801\r\n" + b"x" * 2049)
        refused(c.read(), 413, "body_too_large")


def test_expectation_of_a_body_too_large(small):
    with small.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        refused(c.read(head_only=False), 413, "body_too_large")


def test_client_that_goes_on_sending_sees_the_413(small):
    """The answer must not be lost to a reset because the client was still writing."""
    with small.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n")
        try:
            for _ in range(30):
                c.send(b"x" * 100000)
        except OSError:
            pass
        refused(c.read(), 413, "body_too_large")


@pytest.mark.parametrize("head", [b"GET /live HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 4000 + b"\r\n\r\n",
                                  b"GET /live HTTP/1.1\r\nHost: x\r\n" + b"X-B: b\r\n" * 500 + b"\r\n",
                                  b"GET /" + b"a" * 4000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_head_too_large(small, head):
    with small.client() as c:
        c.send(head)
        refused(c.read(), 431, "head_too_large")


def test_head_that_never_ends(small):
    with small.client() as c:
        c.send(b"GET /live HTTP/1.1\r\nHost: x\r\n")
        refused(c.read(), 408, "head_timeout")
        assert c.closed()


def test_body_that_never_ends(small):
    with small.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        refused(c.read(), 408, "body_timeout")
        assert c.closed()


def test_content_encoding_is_refused(shared, router):
    refused(router.post(URL, OK, [("Content-Encoding", "gzip")]), 415, "bad_encoding")
    assert router.post(URL, OK, [("Content-Encoding", "identity")]).status == 200


# --- requests no two parsers read alike: one table, each row refused and the connection closed ---

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
LEN = b"Content-Length: %d\r\n" % len(OK)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(OK), OK)
SMUGGLED = {
    "length_and_chunked": (HEAD + LEN + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED, 400),
    "two_lengths": (HEAD + LEN + b"Content-Length: 3\r\n\r\n" + OK, 400),
    "two_equal_lengths": (HEAD + LEN + LEN + b"\r\n" + OK, 400),
    "length_list": (HEAD + b"Content-Length: 3, 3\r\n\r\n{ }", 400),
    "length_plus": (HEAD + b"Content-Length: +3\r\n\r\n{ }", 400),
    "length_minus": (HEAD + b"Content-Length: -3\r\n\r\n{ }", 400),
    "length_hex": (HEAD + b"Content-Length: 0x3\r\n\r\n{ }", 400),
    "length_blank_inside": (HEAD + b"Content-Length: 1 3\r\n\r\n{ }", 400),
    "length_empty": (HEAD + b"Content-Length:\r\n\r\n{ }", 400),
    "length_overflow": (HEAD + b"Content-Length: 18446744073709551619\r\n\r\n{ }", 413),
    "gzip_chunked": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED, 501),
    "chunked_gzip": (HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + CHUNKED, 501),
    "chunked_twice": (HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNKED, 400),
    "two_codings": (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED, 400),
    "xchunked": (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED, 501),
    "chunked_on_1_0": (b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED, 400),
    "coding_blank_before_colon": (HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED, 400),
    "name_with_blank": (HEAD + LEN + b"X Y: 1\r\n\r\n" + OK, 400),
    "folded_line": (HEAD + LEN + b"X-A: 1\r\n 2\r\n\r\n" + OK, 400),
    "bare_lf": (HEAD + LEN + b"X-A: 1\nX-B: 2\r\n\r\n" + OK, 400),
    "bare_lf_end": (b"POST /v1/completions HTTP/1.1\nHost: x\n" + LEN[:-2] + b"\n\n" + OK, 400),
    "bare_cr": (HEAD + LEN + b"X-A: 1\rX-B: 2\r\n\r\n" + OK, 400),
    "nul_in_value": (HEAD + LEN + b"X-A: 1\x002\r\n\r\n" + OK, 400),
    "no_host": (b"POST /v1/completions HTTP/1.1\r\n" + LEN + b"\r\n" + OK, 400),
    "two_hosts": (HEAD + b"Host: y\r\n" + LEN + b"\r\n" + OK, 400),
    "empty_name": (HEAD + LEN + b": 1\r\n\r\n" + OK, 400),
    "no_colon": (HEAD + LEN + b"nonsense\r\n\r\n" + OK, 400),
    "version_1_2": (b"POST /v1/completions HTTP/1.2\r\nHost: x\r\n" + LEN + b"\r\n" + OK, 505),
    "version_2_0": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "version_0_9": (b"GET /live\r\n\r\n", 400),
    "lower_case_version": (b"POST /v1/completions http/1.1\r\nHost: x\r\n" + LEN + b"\r\n" + OK, 400),
    "two_blanks": (b"POST  /v1/completions HTTP/1.1\r\nHost: x\r\n" + LEN + b"\r\n" + OK, 400),
    "connect": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "chunk_size_blank": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3 \r\n{ }\r\n0\r\n\r\n", 400),
    "chunk_size_plus": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n+3\r\n{ }\r\n0\r\n\r\n", 400),
    "chunk_size_prefix": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\n{ }\r\n0\r\n\r\n", 400),
    "chunk_size_empty": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n{ }\r\n0\r\n\r\n", 400),
    "chunk_size_overflow": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\n{ }\r\n0\r\n\r\n", 413),
    "chunk_bare_lf": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\n{ }\r\n0\r\n\r\n", 400),
    "chunk_ext_lf": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\n{ }\r\n0\r\n\r\n", 400),
    "chunk_without_end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{ }X\r\n0\r\n\r\n", 400),
    "trailer_bare_lf": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{ }\r\n0\r\nA: b\n\r\n", 400),
    "tls_hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", 400),
    "garbage": (b"\r\n\r\n\x00\xff\xfe garbage\r\n\r\n", 400),
}
REFUSED = {400: "bad_http", 413: "body_too_large", 501: "bad_coding", 505: "bad_version"}
TAIL = b"GET /live HTTP/1.1\r\nHost: smuggled\r\n\r\n"


@pytest.mark.parametrize("name", SMUGGLED)
def test_ambiguous_requests_are_refused(shared, router, name):
    raw, status = SMUGGLED[name]
    before = len(shared.p.requests())
    with router.client() as c:
        c.send(raw + TAIL)
        a = refused(c.read(), status, REFUSED[status])
        assert a["connection"].lower() == "close"
        assert c.closed(), "what follows must not be taken for a request"
    assert len(shared.p.requests()) == before


# --- no engine ---

def test_no_prefill_endpoint(world):
    d = world.engine("decode")
    r = world.router(world.pool([f"http://127.0.0.1:{free_port()}"], [d], name="main"), wait_for="live")
    wait("the decode engine", lambda: r.metric("endpoint_up", role="decode") == 1)
    a = refused(r.complete(), 503, "no_prefill_endpoint")
    assert "main" in a.error["message"] and counted(r, "no_prefill_endpoint")


def test_no_decode_endpoint(world):
    p = world.engine("prefill")
    r = world.router(world.pool([p], [f"http://127.0.0.1:{free_port()}"], name="main"), wait_for="live")
    wait("the prefill engine", lambda: r.metric("endpoint_up", role="prefill") == 1)
    refused(r.complete(), 503, "no_decode_endpoint")
    assert p.requests() == [], "no prefill without a decode engine to follow"


# --- engines' own errors ---

@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
def test_an_engines_4xx_passes_unchanged(world, role, stream, status):
    r, (p,), (d,) = world.scripts()
    body = b'{"object":"error","message":"no \\u0041","type":"BadRequestError","code":%d}' % status
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "stream": stream})
    if role == "decode":
        p.expect().prefilled()
    (p if role == "prefill" else d).expect().reply(status, body, [("Content-Type", "application/json"), ("Retry-After", "3")])
    a = c.read()
    assert (a.status, a.body, a["retry-after"]) == (status, body, "3") and a["x-request-id"]
    line = r.end()
    assert (line["reason"], line["detail"]) == ("engine_status", f"the {role} engine's") and counted(r, "engine_status")
    assert c.get("/live").status == 200, "the connection is kept"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engines_5xx_is_not_hidden(world, role):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x"})
    if role == "decode":
        p.expect().prefilled()
    (p if role == "prefill" else d).expect().reply(500, {"error": {"message": "boom"}})
    a = c.read()
    assert a.status in (500, 502) and "error" in a.json()
    assert role == "decode" or d.quiet(0.1), "no decode after a failed prefill"


# --- engines that break off, by stage: (what the engine does, status, reason) ---

HALF = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
BROKEN = {
    "reset_before_head": lambda ex: ex.reset(),
    "close_before_head": lambda ex: ex.close(),
    "half_head": lambda ex: ex.write(HALF[:30]).close(),
    "garbage": lambda ex: ex.write(b"\x16\x03\x01\x02 no http\r\n\r\n").close(),
    "bad_length": lambda ex: ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\n{ }").close(),
}


@pytest.mark.parametrize("how", [*BROKEN, "half_body", "not_json", "empty_body"])
def test_prefill_engine_breaks_off(world, how):
    acts = {**BROKEN, "half_body": lambda ex: ex.write(HALF).close(), "not_json": lambda ex: ex.reply(body=b"{oops"),
            "empty_body": lambda ex: ex.reply(body=b"")}
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, OK)
    acts[how](p.expect())
    if how == "empty_body":  # an oversize body may be answered so: decoded without a handoff, or refused
        a = c.read()
        refused(a, 502, "prefill_bad_answer")
        return
    refused(c.read(), 502, "prefill_bad_answer" if how in ("not_json", "garbage", "bad_length") else "prefill_broken")
    assert d.quiet(0.1)
    assert r.end()["reason"].startswith("prefill_")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", BROKEN)
def test_decode_engine_breaks_off_before_the_first_byte(world, how, stream):
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "stream": stream})
    p.expect().prefilled()
    BROKEN[how](d.expect())
    refused(c.read(), 502, "decode_broken")
    assert r.end()["reason"] == "decode_broken" and counted(r, "decode_broken")


@pytest.mark.parametrize("how", ["reset", "close", "bad_chunk"])
def test_decode_engine_breaks_off_in_the_stream(world, how):
    """After the first byte: an error event, no [DONE], and a proper end."""
    r, (p,), (d,) = world.scripts()
    c = r.open_stream(headers=[("X-Request-Id", "cut")])
    p.expect().prefilled()
    ex = d.expect().stream_head().event("a")
    events = c.events()
    assert next(events).json()["choices"][0]["text"] == "a"
    {"reset": ex.reset, "close": ex.close, "bad_chunk": lambda: ex.write(b"zz\r\n").close()}[how]()
    last = list(events)
    assert len(last) == 1 and last[0].json()["error"]["code"] == "decode_broken"
    assert r.end()["reason"] == "decode_broken"


def test_decode_engine_breaks_off_inside_an_event(world):
    """The error event must not become part of the half event before it."""
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().event("a").chunk(b'data: {"choi')
    events = c.events()
    next(events)
    ex.reset()
    last = list(events)[-1]
    assert json.loads(last.data.split("\n")[-1])["error"]["code"] == "decode_broken"


def test_decode_engine_breaks_off_inside_a_huge_event(world):
    """Part of it has gone out: the error event must still stand alone."""
    r, (p,), (d,) = world.scripts()
    c = r.open_stream()
    p.expect().prefilled()
    d.expect().stream_head().chunk(b"data: " + b"x" * 300000).close()
    c.head()
    body = b"".join(x for _, x in c.chunks())
    assert json.loads(body.rsplit(b"\n\ndata: ", 1)[1])["error"]["code"] == "decode_broken"


def test_decode_engine_breaks_off_inside_a_short_answer(world):
    """Nothing of it has gone out yet: the status can still be honest."""
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled()
    d.expect().write(HALF).close()
    refused(c.read(), 502, "decode_broken")


def test_decode_engine_breaks_off_inside_a_long_answer(world):
    """No status is left to give: the client must see a cut, not a short answer."""
    r, (p,), (d,) = world.scripts()
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled()
    ex = d.expect().write(b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + b"x" * 300000)
    assert c.head().status == 200
    ex.close()
    with pytest.raises(Closed):
        list(c.body_parts())
    assert r.end()["reason"] == "decode_broken"


def test_an_engines_own_error_event_passes(world):
    r, (p,), (d,) = world.pd()
    d.fault("error_event", after_events=2)
    events = list(r.open_stream(n=9).events())
    assert events[-2].json()["error"]["code"] == 500 and events[-1].data == "[DONE]"


# --- timeouts ---

SHORT = {"timeouts": {"connect": "300ms", "prefill": "300ms", **silence("300ms")}}


def test_prefill_timeout(world):
    r, (p,), (d,) = world.scripts(pool=SHORT)
    c = r.client().request("POST", URL, OK)
    ex = p.expect()
    refused(c.read(), 504, "prefill_timeout")
    assert ex.gone() and d.quiet(0.1) and r.end()["reason"] == "prefill_timeout"


def test_prefill_timeout_counts_to_the_full_answer(world):
    r, (p,), _ = world.scripts(pool=SHORT)
    c = r.client().request("POST", URL, OK)
    p.expect().write(HALF)
    refused(c.read(), 504, "prefill_timeout")


def test_whole_answer_timeout(world):
    r, (p,), (d,) = world.scripts(pool=SHORT)
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled()
    ex = d.expect()
    refused(c.read(), 504, "whole_answer_timeout")
    assert ex.gone()


def test_stream_idle_timeout(world):
    r, (p,), (d,) = world.scripts(pool=SHORT)
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head().event("a")
    events = list(c.events())
    assert events[-1].json()["error"]["code"] == "stream_idle_timeout" and len(events) == 2 and ex.gone()


@pytest.mark.timing
def test_stream_idle_timeout_is_of_silence_not_in_total(world):
    r, (p,), (d,) = world.scripts(pool={"timeouts": {"stream_idle": "600ms"}})
    c = r.open_stream()
    p.expect().prefilled()
    ex = d.expect().stream_head()
    for i in range(6):
        ex.event(str(i))
        time.sleep(0.2)  # the pace of the engine is what is tested
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert [e.data for e in c.events()][-1] == "[DONE]"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_connect_timeout(world, role):
    p, d = world.script(), world.script()
    r = world.router(world.pool([p], [d], **SHORT), fall=1000, health_interval="1h")
    with unaccepting(p if role == "prefill" else d):
        c = r.client().request("POST", URL, OK)
        if role == "decode":
            p.expect().prefilled()
        refused(c.read(), 504, "prefill_connect_timeout" if role == "prefill" else "decode_connect_timeout")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_that_refuses_the_connection(world, role):
    """Up by its last probe, dead since: 502 at once, not after a timeout."""
    r, (p,), (d,) = world.scripts(fall=1000, health_interval="1h")
    (p if role == "prefill" else d).close()
    c = r.client().request("POST", URL, OK)
    if role == "decode":
        p.expect().prefilled()
    refused(c.read(), 502, f"{role}_broken")


def test_oversize_prefill_answer(world):
    r, (p,), (d,) = world.scripts(limits={"max_answer": "64KiB"})
    c = r.client().request("POST", URL, OK)
    p.expect().prefilled("[" + "1," * 50000 + "1]")
    refused(c.read(), 502, "prefill_bad_answer")
    assert d.quiet(0.1)


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("rewritten", [False, True])
def test_status_without_a_body_has_none(world, status, rewritten):
    """A body without a length would be taken for the next answer on the connection."""
    r, (p,), (d,) = world.scripts(pool={"cached_tokens_from": "prefill"} if rewritten else {})
    c = r.client()
    for _ in range(2):
        c.request("POST", URL, OK)
        p.expect().prefilled()
        ex = d.expect()
        ex.write(b"HTTP/1.1 %d Nothing\r\nETag: x\r\n\r\n" % status).end()
        a = c.read()
        assert a.status == status and a.body == b"" and a["content-length"] is None and a["etag"] == "x"
        assert c.silent(0.1)
    assert r.end()["reason"] == ("engine_status" if rewritten or status == 304 else "ok")
