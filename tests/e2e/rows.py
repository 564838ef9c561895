"""Tests that are the same of several connectors: a file imports those that hold for its own `fleet`, and for its `strained`
one: an engine of each role behind limits of 300 ms, of which `holder` keeps what nobody fetches."""
import pytest

import expect
from legs import FAULTS_OF_D, MESSAGES, SCHEMA, TOOLS, parsed, same_as_direct, texts, total

STREAM = pytest.mark.parametrize("stream", [False, True])


def test_stream(fleet):
    kw = {"prompt": "Once upon a time", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}
    assert texts(same_as_direct(fleet, False, **kw)) == {0: expect.text("Once upon a time", 9)}


def test_non_stream(fleet):
    assert texts(same_as_direct(fleet, False, prompt="Once upon a time", max_tokens=9)) == {0: expect.text("Once upon a time", 9)}


@STREAM
def test_chat(fleet, stream):
    same_as_direct(fleet, True, messages=MESSAGES, max_completion_tokens=7, stream=stream)


@STREAM
def test_completions(fleet, stream):
    same_as_direct(fleet, False, prompt="2 + 2 =", stop=["\n"], temperature=0, seed=7, stream=stream)


@STREAM
def test_tools(fleet, stream):
    """Tools change the prompt: they must reach both engines, or decode refuses the KV."""
    same_as_direct(fleet, True, messages=MESSAGES, tools=TOOLS, tool_choice="auto", max_tokens=6, stream=stream)


def test_structured_output(fleet):
    same_as_direct(fleet, True, messages=MESSAGES, max_tokens=6, response_format=SCHEMA)


@STREAM
@pytest.mark.parametrize("chat", [False, True])
def test_logprobs(fleet, chat, stream):
    kw = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2} if chat else {"prompt": "hi", "logprobs": 2}
    got = same_as_direct(fleet, chat, max_tokens=5, stream=stream, **kw)
    assert any(c["logprobs"] for x in got for c in x["choices"])


@STREAM
def test_token_ids(fleet, stream):
    got = same_as_direct(fleet, False, prompt=[1, 2, 3, 70000], max_tokens=5, stream=stream)
    assert texts(got) == {0: expect.text([1, 2, 3, 70000], 5)}


@STREAM
def test_n(fleet, stream):
    """A branch for each sample: fanout, or where it must be so.  Differs from a direct call: each is an engine's first sample, and a stream's usage comes once,
    at its end."""
    before = total(fleet.d, "kv_loaded")
    got = parsed(fleet.router.address, False, prompt="hi", n=3, max_tokens=4, stream=stream, seed=5)
    assert texts(got) == {i: expect.text("hi", 4) for i in range(3)}
    assert total(fleet.d, "kv_loaded") == before + 3
    if not stream:
        assert got[0]["usage"]["prompt_tokens"] == 1 and got[0]["usage"]["completion_tokens"] == 12


def test_every_engine_is_used(fleet):
    for i in range(8):
        assert fleet.router.complete(f"prompt {i}").status == 200
    assert all(len(e.requests()) > 0 for e in [*fleet.p, *fleet.d])


@pytest.mark.parametrize("fault", ["reset_mid_stream", "truncate", "bad_chunk"])
def test_failure_of_d_in_the_stream(strained, fault):
    strained.d[0].fault(fault, after_events=2)
    events = list(strained.router.open_stream(n=8).events())
    assert events[-1].json()["error"]["code"] == "decode_broken" and len(events) == 3
    assert strained.router.all_ended()[-1]["reason"] == "decode_broken"


@pytest.mark.parametrize("what", FAULTS_OF_D)
def test_failure_of_d(strained, what):
    """Before its first byte: an honest status.  What was handed off stays with `holder` until its own timeout."""
    fault, status, code = FAULTS_OF_D[what]
    strained.holder.refuses_on_purpose = True
    strained.d[0].fault(**fault)
    a = strained.router.complete("hi", stream=True)
    assert (a.status, a.error["code"]) == (status, code)
    assert strained.router.complete("hi").status == 200
