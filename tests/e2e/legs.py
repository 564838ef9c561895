"""What the stories of several connectors ask for and break: the SDK's view of an answer, ways for an engine to fail, a
client that leaves."""
import json

import openai

from procs import MODEL

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 日本語? 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
REFUSAL = json.dumps({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})
REFUSED = {"kind": "status", "status": 400, "body": REFUSAL}

# what an engine does (pdsim's faults), status and code the client gets; limits of 300 ms.  A reset waits until TCP has
# acknowledged the request, or it is sent once more (worker/README.md, W7)
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
    "timeout": ({"kind": "no_answer"}, 504, "decode_timeout")}
SHORT = {"timeouts": {"prefill": "300ms", "decode": "300ms"}}


def parsed(address, chat, **kw):
    """What the SDK makes of an answer: one object, or those of a stream; without what differs from call to call."""
    with openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="sk-test", max_retries=0) as c:
        got = (c.chat.completions if chat else c.completions).create(model=MODEL, **kw)
        out = [x.model_dump() for x in got] if kw.get("stream") else [got.model_dump()]
    assert len({x["id"] for x in out}) == 1, "one id in all of a stream"
    return [{k: v for k, v in x.items() if k not in ("id", "created")} for x in out]


def texts(answer):
    """{index: text} of parsed completions."""
    out = {}
    for x in answer:
        for c in x["choices"]:
            out[c["index"]] = out.get(c["index"], "") + c["text"]
    return out


def total(engines, counter):
    return sum(e.counter(counter) for e in engines)


def leave(c, how):
    c.reset() if how == "reset" else c.close()


def fault_at(engine, path, **what):
    """A fault of another path than those that generate."""
    with engine.client() as c:
        assert c.post("/sim/fault", {"path": path, **what}).status == 200
