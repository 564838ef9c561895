"""The openai SDK through the router, compared with the same call made straight to one engine; and
every recorded body of tests/data through both connectors."""
import json

import openai
import pytest

from procs import MODEL
from recorded import CASES, load
from raw import Client, text_of
from stages import Stage, lasting

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 日本語? 🙂"}]


class Both(Stage):
    """One engine asked directly, and a router of each connector before engines of the same kind."""

    def __init__(self):
        super().__init__()
        w = self.world
        self.direct = w.engine("both", model=MODEL)
        self.routers = {}
        for name, handoff, pool in (("nixl", "nixl", {}),
                                    ("orchestrated", "disagg_prefill_resp",
                                     {"connector": "orchestrated", "handoff": "disagg_prefill_resp"})):
            p, d = w.engine("prefill", handoff=handoff), w.engine("decode", handoff=handoff)
            self.routers[name] = w.router(w.pool([p], [d], **pool))


@pytest.fixture(scope="module")
def both(request):
    yield from lasting(request, Both())


def sdk(address):
    return openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="sk-test", max_retries=0)


@pytest.mark.parametrize("name", ["nixl", "orchestrated"])
@pytest.mark.parametrize("stream", [False, True])
def test_chat_text_is_the_engines_own(both, name, stream):
    def ask(address):
        a = sdk(address).chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=40, stream=stream, seed=7)
        if stream:
            return "".join(c.choices[0].delta.content or "" for c in a if c.choices)
        return a.choices[0].message.content
    text = ask(both.routers[name].address)
    assert text and text == ask(both.direct.address)


@pytest.mark.parametrize("name", ["nixl", "orchestrated"])
@pytest.mark.parametrize("stream", [False, True])
def test_completion_text_is_the_engines_own(both, name, stream):
    def ask(address):
        a = sdk(address).completions.create(model=MODEL, prompt="Once upon a time", max_tokens=30, stream=stream)
        return "".join(c.choices[0].text for c in a) if stream else a.choices[0].text
    text = ask(both.routers[name].address)
    assert text and text == ask(both.direct.address)


def test_usage_in_a_stream(both):
    a = sdk(both.routers["nixl"].address).chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True})
    assert list(a)[-1].usage.completion_tokens == 5


def test_errors_are_the_sdks_own_exceptions(both):
    c = sdk(both.routers["nixl"].address)
    with pytest.raises(openai.NotFoundError) as e:
        c.completions.create(model="nope", prompt="x")
    assert e.value.status_code == 404 and e.value.param == "model" and e.value.request_id
    with pytest.raises(openai.BadRequestError):
        c.completions.create(model=MODEL, prompt="x", max_tokens=-1)
    assert [m.id for m in c.models.list()] == [MODEL]


def outcome(address, case):
    """What a client makes of the answer: status, and the text, usage and end of each choice."""
    with Client(address) as c:
        c.send(case.request())
        a = c.head()
        if (a["content-type"] or "").startswith("text/event-stream"):
            events = list(c.events())
            last = events[-2].json() if len(events) > 1 else {}
            return a.status, text_of(events), last.get("usage"), [e.data for e in events][-1]
        for _, data in c.body_parts():
            a.body += data
        obj = json.loads(a.body)
        parts = [(x.get("text") or x["message"]["content"], x["finish_reason"], x.get("logprobs")) for x in obj.get("choices", [])]
        return a.status, parts, obj.get("usage"), obj.get("error")


@pytest.mark.parametrize("connector", ["nixl", "orchestrated"])
@pytest.mark.parametrize("name", CASES)
def test_recorded_bodies_get_the_engines_own_answer(both, name, connector):
    case = load(name)
    direct, through = outcome(both.direct.address, case), outcome(both.routers[connector].address, case)
    assert direct[0] == case.status and through == direct
