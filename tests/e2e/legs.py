"""What the tests of several connectors ask for and break: the SDK's view of an answer, ways for an engine to fail, a
client that leaves."""
import itertools
import json
import socket
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

import openai
import pytest

from procs import MODEL, silence, wait
from raw import Closed

# --- what the SDK makes of an answer --------------------------------------------------------------------

STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
SHAPE = pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
FRESH = itertools.count()
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 日本語? 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}

# all that chooses a peer of some connector's: nothing of it may reach an engine
PEERS = {"ec_transfer_params": {"0": {"peer_host": "evil", "peer_port": 80}}, "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 80,
                                "disagg_spec": {"receiver_host": "evil"}, "ret_first_tok": True}, "rid": "evil",
         "disagg_prefill_resp": {"id": "evil"}, "disagg_spec": {"receiver_host": "evil"}, "bootstrap_host": "evil",
         "bootstrap_port": 1, "bootstrap_room": 7, "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1, "data_parallel_rank": 3,
         "request_id": "evil"}
PEER_HEADERS = [("X-Data-Parallel-Rank", "3"), ("x-override-rid", "evil"), ("X-Override-Bootstrap-Host", "evil")]


@cache
def sdk(address):
    return openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="sk-test", max_retries=0, timeout=20)


def parsed(address, chat, **members):
    """What the SDK makes of an answer: one object, or those of a stream; without what differs from call to call."""
    got = (sdk(address).chat.completions if chat else sdk(address).completions).create(model=MODEL, **members)
    out = [x.model_dump() for x in (got if members.get("stream") else [got])]
    assert len({x["id"] for x in out}) == 1, "one id in all of a stream"
    return [{k: v for k, v in x.items() if k not in ("id", "created")} for x in out]


def ask(address, stream, chat=False, **members):
    """The same for 12 tokens: the object of a whole answer, or the list of a stream's."""
    got = parsed(address, chat, **{"max_tokens": 12, **members}, stream=stream)
    return got if stream else got[0]


def by_choice(got):
    """Of a stream: the objects of each choice in their order, the choices one after the other."""
    if isinstance(got, dict):
        return got
    return sorted(got, key=lambda x: x["choices"][0]["index"] if x["choices"] else 1 << 30)


def unseen(chat):
    """A prompt that no engine has seen."""
    n = next(FRESH)
    return {"messages": [*MESSAGES, {"role": "assistant", "content": str(n)}]} if chat else {"prompt": f"Once upon a time {n}"}


def same(fleet, stream, chat=False, **members):
    """Through the router as directly; of a new prompt unless one is given."""
    members = {**unseen(chat), **members}
    direct = fleet.view(ask(fleet.direct.address, stream, chat, **members))
    assert fleet.view(ask(fleet.router.address, stream, chat, **members)) == direct
    return direct


def chooses_no_peer(fleet, more, own=()):
    """A request with all of PEERS and `more`: no leg has any of it.  `own` are the members that this connector sets itself."""
    a = fleet.router.complete(**{"prompt": f"mine {next(FRESH)}", **PEERS, **more}, headers=PEER_HEADERS)
    assert a.status == 200, a.body
    for leg in sum(fleet.legs(), []):
        assert b"evil" not in leg.body and "evil" not in str(leg.headers) and leg["x-data-parallel-rank"] is None
        assert not set(leg.json()) & (set(PEERS) - {"rid", "request_id", *own})
        assert leg.json()["rid"] == leg.json()["request_id"] == leg["x-request-id"]


def same_as_direct(fleet, chat, **members):
    """The same of parsed(), of an answer that decode had one handoff for."""
    before = total(fleet.d, "kv_loaded")
    through = parsed(fleet.router.address, chat, **members)
    assert through == parsed(fleet.direct.address, chat, **members)
    assert total(fleet.d, "kv_loaded") == before + 1
    return through


def texts(answer):
    """{index: text} of parsed completions."""
    out = {}
    for x in answer:
        for c in x["choices"]:
            out[c["index"]] = out.get(c["index"], "") + c["text"]
    return out


def total(engines, counter):
    return sum(e.counter(counter) for e in engines)


def call_a_tool(ex, stream):
    """A scripted engine's answer to a chat: CALL."""
    head = {"id": "chatcmpl-1", "created": 1, "model": MODEL}
    if not stream:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        ex.reply(body={**head, "object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
        return
    ex.stream_head()
    for delta in ({"role": "assistant", "content": ""}, {"tool_calls": [{"index": 0, **CALL}]},
                  {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}):
        obj = {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        ex.chunk(b"data: " + json.dumps(obj).encode() + b"\n\n")
    ex.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()


def tool_called(got, stream):
    """What the SDK makes of it, to the byte."""
    calls = (got[1]["choices"][0]["delta"] if stream else got["choices"][0]["message"])["tool_calls"]
    assert calls[0]["function"] == CALL["function"] and calls[0]["id"] == "call-1"


# --- simulated engines that fail ------------------------------------------------------------------------

REFUSAL = json.dumps({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})
REFUSED = {"kind": "status", "status": 400, "body": REFUSAL}

# what an engine does (pdsim's faults), status and code the client gets; limits of 300 ms.  A reset waits until TCP has
# acknowledged the request, or it is sent once more (worker/net/README.md, N5)
RESET = {"kind": "reset", "delay_ms": 60}
FAULTS_OF_P = {
    "reset": (RESET, 502, "prefill_broken"), "half_head": ({"kind": "half_head"}, 502, "prefill_broken"),
    "truncated": ({"kind": "truncate"}, 502, "prefill_broken"), "garbage": ({"kind": "garbage"}, 502, "prefill_bad_answer"),
    "empty": ({"kind": "empty200"}, 502, "prefill_bad_answer"), "5xx": ({"kind": "fail"}, 500, 500),
    "503": ({"kind": "status"}, 503, 503), "4xx": (REFUSED, 400, 400), "timeout": ({"kind": "no_answer"}, 504, "prefill_timeout"),
    "no_json": ({"kind": "status", "status": 200, "body": "oops"}, 502, "prefill_bad_answer")}
FAULTS_OF_D = {
    "reset": (RESET, 502, "decode_broken"), "half_head": ({"kind": "half_head"}, 502, "decode_broken"),
    "garbage": ({"kind": "garbage"}, 502, "decode_broken"), "5xx": ({"kind": "fail"}, 500, 500), "4xx": (REFUSED, 400, 400),
    "timeout": ({"kind": "no_answer"}, 504, "first_byte_timeout")}
SHORT = {"timeouts": {"prefill": "300ms", **silence("300ms")}}


def fault_at(engine, path, **what):
    """A fault of another path than those that generate."""
    with engine.client() as c:
        assert c.post("/sim/fault", {"path": path, **what}).status == 200


# --- scripted engines that fail -------------------------------------------------------------------------

# how: what the engine does with its request, status and code the client gets
PREFILL_FAILS = {
    "reset": (lambda ex: ex.reset(), 502, "prefill_broken"),
    "closed": (lambda ex: ex.close(), 502, "prefill_broken"),
    "half": (lambda ex: ex.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\"").close(), 502, "prefill_broken"),
    "garbage": (lambda ex: ex.write(b"SSH-2.0-x\r\n\r\n").close(), 502, "prefill_bad_answer"),
    "202": (lambda ex: ex.reply(202, {"kv_transfer_params": {}}), 502, "prefill_bad_answer"),
    "late": (lambda ex: None, 504, "prefill_timeout"),
}
UNREADABLE = {  # where something of prefill's answer is needed
    "no json": (lambda ex: ex.reply(body=b"oops"), 502, "prefill_bad_answer"),
    "list": (lambda ex: ex.reply(body=b"[1]"), 502, "prefill_bad_answer"),
    "empty": (lambda ex: ex.reply(body=b""), 502, "prefill_bad_answer"),
}
DECODE_FAILS = {
    "reset": (lambda ex: ex.reset(), 502, "decode_broken"),
    "closed": (lambda ex: ex.close(), 502, "decode_broken"),
    "garbage": (lambda ex: ex.write(b"SSH-2.0-x\r\n\r\n").close(), 502, "decode_broken"),
    "late": (lambda ex: None, 504, "late"),
}


def code_of(code, stream, begun=False):
    """The code of a failure of decode: of an engine that is late, the limit that has ended."""
    limit = "stream_idle" if begun else "first_byte" if stream else "whole_answer"
    return f"{limit}_timeout" if code == "late" else code


IN_THE_STREAM = ["reset", "closed", "late", "error event"]


def taken(engines, aborts=None):
    """(request, engine) that comes next to any of them.  What is to be aborted is, and noted in `aborts`."""
    def one():
        for e in engines:
            if e.asked.empty():
                continue
            ex = e.expect()
            if ex.path != "/abort_request":
                return ex, e
            ex.reply()
            aborts.append((ex, e))
        return None
    return wait("a request", one)


def fresh(*engines):
    """Gives up their kept connections: a request on one may be sent again where nothing of it was acknowledged.  Not those of the
    master: two probes that break off make an engine unavailable."""
    for e in engines:
        for c in [c for c in list(e.conns) if c.served]:
            with suppress(OSError):  # it is closing anyway
                c.sock.shutdown(socket.SHUT_RDWR)


def serve_again(c, acts):
    """Where a connection was kept all the same: of one that is reset TCP has acknowledged nothing, so another attempt asks all
    engines anew.  acts: what each engine does with its request, until the client hears something."""
    while c.silent(0.05):
        for e, act in acts.items():
            while not e.asked.empty():
                act(e.expect())


@contextmanager
def unaccepting(engine):
    """In a scripted engine's place a host that answers nothing: a listening socket with a full backlog."""
    engine.close()
    with socket.create_server(engine.address, backlog=0), ExitStack() as full:
        for _ in range(4):
            s = full.enter_context(socket.socket())
            s.setblocking(False)
            s.connect_ex(engine.address)
        yield


def says(ex, status):
    """A status in an engine's own words, and what the client must get: own_words() of its answer."""
    body = b'{"error": {"message":"no \\u0041",  "code":%d}}' % status
    ex.reply(status, body, headers=[("Content-Type", "application/json"), ("X-Why", "because")])
    return status, body, "because", "application/json"


def own_words(a):
    return a.status, a.body, a["x-why"], a["content-type"]


def fails_in_the_stream(router, c, events, ex, how, passes=True):
    """After the first event: another says so, and no [DONE] of ours pretends.  What `passes` through ends as the engine ends it."""
    if how == "error event":
        ex.chunk(b'data: {"error":{"message":"KV load failed","code":500}}\n\ndata: [DONE]\n\n').write(b"0\r\n\r\n").end()
        assert next(events).json()["error"]["message"] == "KV load failed"
        assert router.end_of(c.answer["x-request-id"])["reason"] == "engine_status"
        assert [e.data for e in events] == (["[DONE]"] if passes else [])
        return
    does, _, code = DECODE_FAILS[how]
    does(ex)
    assert next(events).json()["error"]["code"] == code_of(code, True, begun=True)
    assert list(events) == []


def fails_in_a_whole_answer(c, ex):
    """The missing bytes are never made up for."""
    ex.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"id"').reset()
    with suppress(Closed):
        a = c.read()
        assert (a.status, a.error["code"]) == (502, "decode_broken")


# --- clients that leave ---------------------------------------------------------------------------------


def leave(c, how):
    c.reset() if how == "reset" else c.close()
