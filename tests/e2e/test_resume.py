"""After the first byte: a stream goes on although its decode engine dies, at whatever event and in whatever way, under every
hand-shake; the client sees one stream.  And what cannot be gone on with ends honestly."""
import json
import time

import openai
import pytest

import expect
from fleets import FAILS_OF_D, FAR, KINDS, LATE, Fleet, build, engines
from legs import FRESH, MESSAGES, PREFILL_FAILS, SHAPE, TOOLS, says, taken
from procs import MODEL, SLOW, silence, wait
from raw import text_of
from stages import lasting
from test_nixl import PUSH, params

N = 6
POOL = {"resume": True, "retries": 2, "retry_budget": 100, "timeouts": silence(LATE)}
DIES = {
    "reset": {"kind": "reset_mid_stream"}, "close": {"kind": "truncate"}, "bad chunk": {"kind": "bad_chunk"},
    "error event": {"kind": "error_event"}, "stall": {"kind": "stall"},
}
USAGE = pytest.mark.parametrize("usage", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
                                ids=["no usage", "usage", "usage each"])


def body_of(chat, usage=None, n=N, **members):
    """A prompt of its own, that ends with words of the model."""
    fresh = f"tell me {next(FRESH)} of the"
    own = {"messages": [*MESSAGES, {"role": "user", "content": fresh}]} if chat else {"prompt": fresh, "pdsim": {"words": True}}
    return {"model": MODEL, "max_tokens": n, "stream": True, **own, **({"stream_options": usage} if usage else {}), **members}


def ids_of(body):
    return expect.chat_ids(body) if "messages" in body else expect.word_ids(body["prompt"])


def path_of(body):
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def ask(router, body):
    """The events of the answer."""
    c = router.client()
    a = c.request("POST", path_of(body), body).head()
    assert (a.status, a["content-type"].split(";")[0]) == (200, "text/event-stream"), a.raw
    return list(c.events()), a["x-request-id"]


def delta(choice):
    return choice.get("delta", choice)


def is_whole(body, events):
    """Those of a stream that nothing has happened to: one id, one role, all words once, one end, the usage that was asked for."""
    n, ids, usage = body["max_tokens"], ids_of(body), body.get("stream_options") or {}
    data = [e.data for e in events]
    assert data.count("[DONE]") == 1 and data[-1] == "[DONE]", data[-3:]
    said = [e.json() for e in events[:-1]]
    assert not [x for x in said if "error" in x]
    assert len({(x["id"], x["created"], x["model"]) for x in said}) == 1, "one stream"
    choices = [x["choices"][0] for x in said if x["choices"]]
    assert "".join(delta(c).get("content") or c.get("text") or "" for c in choices) == "".join(expect.words(ids, n))
    assert [c["finish_reason"] for c in choices if c.get("finish_reason")] == ["length"]
    assert choices[-1]["finish_reason"] == "length", "the end is the last"
    if "messages" in body:
        assert [delta(c).get("role") for c in choices if delta(c).get("role")] == ["assistant"]
    told = [x["usage"] for x in said if x["choices"] and x.get("usage")]
    last = [x["usage"] for x in said if not x["choices"]]
    assert len(last) == bool(usage.get("include_usage")) and bool(told) == bool(usage.get("continuous_usage_stats"))
    counts = [u["completion_tokens"] for u in told]
    assert counts == sorted(counts)
    for u in told + last:
        assert (u["prompt_tokens"], u["total_tokens"]) == (len(ids), len(ids) + u["completion_tokens"])
    assert all(u["completion_tokens"] == n for u in last)


class Dying(Fleet):
    def __init__(self, kind, **how):
        # what is read at once with the failure is not out: that is a try, not a stream that goes on
        super().__init__(kind, pool={**POOL, **how.pop("pool", {})}, **FAR, **{"decode": {"token_delay": 2}, **how})

    def settled(self):
        if self.kind == "mooncake old":  # handoffs that name the engine alone: the id tells which is meant
            self.d, d = [], self.d
            super().settled()
            self.d = d
        else:
            super().settled()

    def dies(self, body, how, after, engine=None):
        """Asks until that engine has died after so many events; every answer is whole.  The request's id."""
        (engine or self.d[0]).fault(**DIES[how], after_events=after)
        before = self.faults()
        for _ in range(4):
            events, rid = ask(self.router, body)
            is_whole(body, events)
            if self.faults() > before:
                return rid
        raise AssertionError("the engine was not asked in four requests")


@pytest.fixture(scope="module", params=list(KINDS))
def of_kind(request):
    fleet = Dying(request.param)
    for e in fleet.d:
        e.refuses_on_purpose = True
    yield from lasting(request, fleet)


@pytest.fixture
def dying(of_kind):
    of_kind.mark()
    yield of_kind
    of_kind.settled()


# --- every event, every way, every hand-shake ---------------------------------------------------------------


@SHAPE
@pytest.mark.parametrize("how", DIES)
def test_dies_at_every_event(dying, how, chat):
    """Text, ids, finish and usage are an undisturbed stream's."""
    events = N + chat + 2  # of the role, the words, the usage, [DONE]
    some = (1, events // 2, events - 1)  # where each costs its timeout
    for i, after in enumerate(range(1, events) if how != "stall" else some):
        usage = [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}][i % 3]
        rid = dying.dies(body_of(chat, usage), how, after)
        assert dying.router.end_of(rid)["reason"] == "ok"
    wait("counted", lambda: dying.count("rescued_total", by="resume") > 0)


# --- what the next engine is asked --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nixl(request):
    yield from lasting(request, Dying("nixl", nd=3))


@pytest.fixture
def fleet(nixl):
    nixl.mark()
    yield nixl
    for e in nixl.d:
        e.tell("/sim/fault", kind="none")
    nixl.settled()


def last_two(fleet, rid):
    """What the decode engines were sent for the last request: by the one that died, and by the one that went on."""
    sent = [r for e in fleet.d for r in e.requests() if r["x-request-id"].startswith(rid)]
    return sorted((r.json() for r in sent), key=lambda b: -b["max_tokens"])


def test_chat_is_continued(fleet):
    body = body_of(True, n=9, min_tokens=8, temperature=0.5, seed=3, unknown={"a": [1]})
    first, then = last_two(fleet, fleet.dies(body, "close", 4))
    said = "".join(expect.words(ids_of(body), 3))
    assert then.pop("messages") == [*body["messages"], {"role": "assistant", "content": said}]
    assert (then.pop("continue_final_message"), then.pop("add_generation_prompt")) == (True, False)
    assert (then.pop("max_tokens"), then.pop("min_tokens")) == (6, 5)
    assert (first.pop("messages"), first.pop("max_tokens"), first.pop("min_tokens")) == (body["messages"], 9, 8)
    assert first.pop("kv_transfer_params") != then.pop("kv_transfer_params")
    assert first == then, "nothing else is changed"


def test_a_prompt_is_lengthened(fleet):
    body = body_of(False)
    del body["max_tokens"]  # 16
    fleet.d[0].fault(**DIES["close"], after_events=5)
    before = fleet.faults()
    while fleet.faults() == before:
        events, rid = ask(fleet.router, body)
        is_whole({**body, "max_tokens": 16}, events)
    sent = [r.json() for e in fleet.d for r in e.requests() if r["x-request-id"].startswith(rid)]
    then = next(b for b in sent if "max_tokens" in b)
    assert (then["prompt"], then["max_tokens"]) == (body["prompt"] + "".join(expect.words(ids_of(body), 5)), 11)


def test_nothing_said_yet_is_asked_again(fleet):
    """Only the role has come: the client's own request once more."""
    body = body_of(True)
    first, then = last_two(fleet, fleet.dies(body, "close", 1))
    assert "continue_final_message" not in then and first["messages"] == then["messages"]


def test_a_message_the_client_left_open(fleet):
    body = body_of(True, continue_final_message=True, add_generation_prompt=False)
    body["messages"].append({"role": "assistant", "content": "Well, of the"})
    fleet.dies(body, "close", 3)


def test_both_limits_of_chat(fleet):
    body = body_of(True, max_completion_tokens=N)
    body["max_tokens"] = N
    then = last_two(fleet, fleet.dies(body, "close", 4))[1]
    assert (then["max_tokens"], then["max_completion_tokens"]) == (N - 3, N - 3)


@SHAPE
def test_logprobs_go_on(fleet, chat):
    """Each token's, once; offsets of completions count from the start."""
    body = body_of(chat, logprobs=True if chat else 1)
    fleet.d[0].fault(**DIES["reset"], after_events=4)
    before = fleet.faults()
    while fleet.faults() == before:
        events, _ = ask(fleet.router, body)
        is_whole(body, events)
        words = expect.words(ids_of(body), N)
        of = [e.json()["choices"][0]["logprobs"] for e in events[:-1] if e.json()["choices"]]
        if chat:
            assert [t["token"] for lp in of if lp for t in lp["content"]] == words
        else:
            assert [o for lp in of for o in lp["text_offset"]] == [sum(map(len, words[:i])) for i in range(N)]


@SHAPE
@USAGE
def test_two_die(fleet, chat, usage):
    """Each at another place of the same stream; each is another attempt."""
    fleet.d[0].fault(**DIES["reset"], after_events=2, count=1)
    fleet.d[1].fault(**DIES["close"], after_events=3, count=1)
    before = fleet.faults()
    lines = []
    while fleet.faults() < before + 2:
        body = body_of(chat, usage)
        events, rid = ask(fleet.router, body)
        is_whole(body, events)
        lines.append(fleet.router.end_of(rid))
    assert max(x["tries"] or 0 for x in lines) in (1, 2)


@SHAPE
def test_the_openai_sdk_sees_one_stream(fleet, chat):
    client = openai.OpenAI(base_url=fleet.router.base_url, api_key="sk-test", max_retries=0, timeout=20)
    for after in range(1, N + 1):
        body = body_of(chat)
        extra = {"pdsim": body.pop("pdsim")} if not chat else {}
        fleet.d[0].fault(**DIES["reset"], after_events=after)
        before = fleet.faults()
        while fleet.faults() == before:
            of = client.chat.completions if chat else client.completions
            got = list(of.create(**body, stream_options={"include_usage": True}, extra_body=extra))
            assert len({x.id for x in got}) == 1
            text = "".join((x.choices[0].delta.content if chat else x.choices[0].text) or "" for x in got if x.choices)
            assert text == "".join(expect.words(ids_of(body), N))
            assert [x.choices[0].finish_reason for x in got if x.choices and x.choices[0].finish_reason] == ["length"]
            assert (got[-1].usage.completion_tokens, got[-1].usage.prompt_tokens) == (N, len(ids_of(body)))


def test_a_long_stream(fleet):
    """Events of many reads, and a client that reads them late."""
    body = body_of(False, {"include_usage": True}, n=3000)
    fleet.dies(body, "close", 1500)


def test_log_and_metrics(fleet):
    n = fleet.count("rescued_total", by="resume")
    line = fleet.router.end_of(fleet.dies(body_of(True), "reset", 3))
    assert (line["reason"], line["tries"], line["rescued"]) == ("ok", 1, "resume")
    wait("counted", lambda: fleet.count("rescued_total", by="resume") == n + 1)


# --- what engines do that pdsim does not ----------------------------------------------------------------------


def event(content, usage=None, **choice):
    obj = {"id": "x", "created": 1, "model": MODEL, "choices": [{"index": 0, "delta": {"content": content}, **choice}]}
    return b"data: " + json.dumps({**obj, **({"usage": usage} if usage else {})}).encode() + b"\n\n"


class Scripted:
    """A chat before one prefill engine and some decode engines that are told what to say."""

    def __init__(self, world, pool=None, nd=2, rcvbuf=None, **members):
        self.r, self.p, self.d = world.scripts(1, nd, pool={**POOL, **(pool or {})}, workers=1)
        self.r.wait_all_up()
        self.c = self.r.client(rcvbuf=rcvbuf)
        self.c.request("POST", "/v1/chat/completions", body_of(True, **members))
        self.events = self.c.events()

    def engine(self):
        """The decode engine that is asked next, its stream's head out."""
        self.p[0].expect().reply(body={"choices": [], "kv_transfer_params": {"remote_block_ids": [next(FRESH)]}})
        ex = wait("a decode leg", lambda: next((e for e in self.d if not e.asked.empty()), None)).expect()
        return ex.stream_head()

    def says(self, ex, *words):
        for word in words:
            ex.chunk(event(word))
            assert next(self.events).json()["choices"][0]["delta"]["content"] == word

    def goes_on(self, *said):
        """The other engine is asked for what follows, and ends the stream."""
        ex = self.engine()
        assert ex.json()["messages"][-1]["content"] == "".join(said)
        ex.chunk(event(" end", finish_reason="stop")).chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
        last = list(self.events)
        assert [e.data for e in last[1:]] == ["[DONE]"] and last[0].json()["choices"][0]["delta"]["content"] == " end"
        assert self.r.end_of(self.c.answer["x-request-id"])["rescued"] == "resume"


@pytest.mark.parametrize("how", ["no json", "no [DONE]", "aborted", "half an event", "an error in pieces", "no HTTP"])
def test_ways_to_die(world, how):
    s = Scripted(world)
    ex = s.engine()
    s.says(ex, "", "one", " 🙂")
    if how == "no json":
        ex.chunk(b"data: {oops\n\n")
    elif how == "no [DONE]":
        ex.write(b"0\r\n\r\n").end()
    elif how == "aborted":
        ex.chunk(event("", finish_reason="abort") + b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    elif how == "half an event":
        ex.chunk(event(" two")[:-9]).reset()
    elif how == "an error in pieces":
        ex.chunk(b'data: {"err').chunk(b'or":{"message":"x","code":500}}\n').chunk(b"\n")
    else:
        ex.write(b"zz\r\n")
    s.goes_on("one", " 🙂")


def test_the_next_one_dies_in_its_first_event(world):
    """What the client has is kept, so a third goes on."""
    s = Scripted(world, nd=3)
    ex = s.engine()
    s.says(ex, "", "one")
    ex.reset()
    ex = s.engine()
    ex.chunk(event(" two")[:-9])
    s.c.silent(0.05)  # it is read
    ex.reset()
    s.goes_on("one")


@pytest.mark.parametrize("retries", [1, 2])
@pytest.mark.parametrize("how", ["500", "reset", "late"])
def test_the_next_ones_prefill_fails_after_decode_has_answered(world, how, retries):
    """NixlPush: what the next decode engine says is withheld until its prefill engine confirms it, which does not happen."""
    r, p, d = world.scripts(2, 2, pool={**POOL, **PUSH, "policy": "round_robin", "retries": retries,
                                        "timeouts": {"prefill": LATE, **silence("20s")}}, workers=1)
    r.wait_all_up()
    body = body_of(True)
    for _ in p:  # the prefill engines' identities are learned
        c = r.client().request("POST", path_of(body), body)
        ex = taken(p)[0]
        ex.prefilled(params(ex))
        taken(d)[0].stream("b")
        list(c.events())
    c = r.client().request("POST", path_of(body), body)
    ex, leg = taken(p)[0], taken(d)[0]
    ex.prefilled(params(ex))
    leg.stream_head().chunk(event("one"))
    events = c.events()
    assert text_of([next(events)]) == "one"
    leg.reset()
    ex, leg = taken(p)[0], taken(d)[0]
    leg.stream_head().chunk(event(" withheld"))
    assert c.silent(0.1)
    says(ex, 500) if how == "500" else PREFILL_FAILS[how][0](ex)
    if retries == 2:
        again = taken(p)[0]
        again.prefilled(params(again))
        taken(d)[0].stream_head().chunk(event(" end", finish_reason="stop")).chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
        assert text_of(events) == " end"
    else:
        assert [e.json()["error"]["code"] for e in events] == [500 if how == "500" else PREFILL_FAILS[how][2]]
    assert leg.gone()
    for x in (ex, leg):
        x.close()


def test_an_engine_that_counts_nothing(world):
    """One event is one token."""
    s = Scripted(world, n=5)
    ex = s.engine()
    s.says(ex, "", "one", " two")
    ex.close()
    ex = s.engine()
    assert ex.json()["max_tokens"] == 3
    ex.chunk(event(" 3", finish_reason="stop")).chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert len(list(s.events)) == 2


def test_an_engine_that_says_it_is_the_clients_fault(world):
    """Nobody else is asked what one has understood and refused."""
    s = Scripted(world)
    ex = s.engine()
    s.says(ex, "", "one")
    ex.chunk(b'data: {"error":{"message":"no","code":400}}\n\n').chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
    assert next(s.events).json()["error"]["message"] == "no"
    assert s.r.end_of(s.c.answer["x-request-id"])["reason"] == "engine_status"
    assert all(e.asked.empty() for e in s.d)


@pytest.mark.parametrize("chat", [False, True])
def test_a_refusal_is_no_stream_without_an_end(world, chat):
    """The client has the refusal whole, and its connection goes on."""
    r, _, d = world.pd(1, 2, pool=POOL)
    for e in d:
        e.fault("refuse", status=400, count=-1)
    with r.client() as c:
        for _ in range(3):
            a = c.post(path_of(body_of(chat)), body_of(chat))
            assert (a.status, a.error["message"]) == (400, "simulated refusal") and not c.buf
        for e in d:
            e.tell("/sim/fault", kind="none")
        body = body_of(chat)
        assert c.request("POST", path_of(body), body).head().status == 200
        is_whole(body, list(c.events()))


def test_only_the_end_is_missing(world):
    """Nobody is asked for an end."""
    s = Scripted(world, usage={"include_usage": True})
    ex = s.engine()
    use = {"prompt_tokens": 7, "total_tokens": 8, "completion_tokens": 1}
    ex.chunk(event("one", use)).chunk(event("", {**use, "completion_tokens": 2, "total_tokens": 9}, finish_reason="stop"))
    assert [next(s.events).json()["usage"] for _ in range(2)] == [None, None]
    ex.reset()
    last = list(s.events)
    assert last[0].json()["usage"] == {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": 2} and last[1].data == "[DONE]"
    assert s.r.end_of(s.c.answer["x-request-id"])["rescued"] == "resume"


def test_the_client_leaves_while_others_take_over(world):
    """The next prefill engine's work is for nobody: hung up on, or a decode engine is told."""
    s = Scripted(world)
    ex = s.engine()
    s.says(ex, "", "one")
    ex.reset()
    again = s.p[0].expect()
    s.c.reset()
    assert s.r.end_of(s.c.answer["x-request-id"])["reason"] == "client_gone"
    again.close()
    s.r.wait_metric("endpoint_in_flight", 0)


def test_a_first_token_that_was_sent_already(world):
    """LMCache: the prefill engine's token is out, then every way of decode to fail before its first byte."""
    r, _, d = build(world, "lmcache", pool=POOL, **FAR)
    for how in ("reset", "half head", "500", "503", "timeout", "error event", "cut"):
        d[0].fault(**FAILS_OF_D[how])
        for _ in range(2):
            body = body_of(False, {"include_usage": True})
            is_whole(body, ask(r, body)[0])
    assert d[0].counter("faults") == 7
    world.check_engines = False  # what was written for one that failed


def test_a_slow_client(world):
    """Whole events wait for it when the engine dies: none is lost, none comes twice."""
    r, _, d = build(world, "nixl", pool={**POOL, "timeouts": silence("5s")})
    for e in d[:1]:
        e.fault(**DIES["close"], after_events=400)
    for _ in range(2):
        body = body_of(False, {"include_usage": True}, n=600)
        body["pdsim"]["event_bytes"] = 20000
        c = r.client(rcvbuf=4096)
        c.request("POST", path_of(body), body).head()
        wait("it waits for the client", lambda: c.silent(0) or True)
        is_whole(body, list(c.events()))
        c.close()
    assert d[0].counter("faults") == 1


@pytest.mark.parametrize("how", ["no [DONE]", "[DONE], then no HTTP"])
def test_a_slow_client_and_a_stream_that_ends_badly(world, how):
    """One event is large, and what came with its end waits for the client to read: it is not taken for a good end, nor lost."""
    s = Scripted(world, pool={"timeouts": silence("9s")}, rcvbuf=4096)
    ex = s.engine()
    large = event("x" * (6 << 20))
    ex.chunk(large[:-50])
    time.sleep(0.5 * SLOW)  # the router has read it: what follows comes in one piece
    rest, end = large[-50:] + event(" two", finish_reason="stop"), b"zz\r\n"
    if how == "no [DONE]":
        rest, end = large[-50:] + event(" two"), b"0\r\n\r\n"
    else:
        rest += b"data: [DONE]\n\n"
    ex.write(b"%x\r\n%s\r\n%s" % (len(rest), rest, end)).end()
    words = [" two"]
    if how == "no [DONE]":
        ex = s.engine()
        assert len(ex.json()["messages"][-1]["content"]) == 6 << 20
        ex.chunk(event(" end", finish_reason="stop")).chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n").end()
        words = [" end"]
    got = [e.data for e in s.events]
    assert got[-1] == "[DONE]" and [json.loads(x)["choices"][0]["delta"]["content"] for x in got[1:-1]] == words
    assert s.r.end_of(s.c.answer["x-request-id"])["reason"] == "ok"


# --- what is not gone on with -------------------------------------------------------------------------------


def is_cut(router, events, rid, code="decode_broken"):
    """An honest error, and no end that pretends."""
    assert [e.json()["error"]["code"] for e in events if e.data != "[DONE]" and "error" in e.json()] == [code], events[-1].data
    assert "[DONE]" not in [e.data for e in events]
    line = router.end_of(rid)
    assert line["reason"] == code
    return line


def broken(fleet, body, how="reset", after=3):
    """The events and the request's id when it has met its fault."""
    for e in fleet.d:
        e.tell("/sim/fault", kind="none")
        e.fault(**DIES[how], after_events=after, count=-1)  # what only releases of KV meets one, too
    got = ask(fleet.router, body)
    for e in fleet.d:
        e.tell("/sim/fault", kind="none")
    return got


REFUSED = {
    "several": ("several_choices", {"n": 2}), "best_of": ("several_choices", {"best_of": 2}),
    "structured": ("structured_output", {"response_format": {"type": "json_object"}}),
    "guided": ("structured_output", {"guided_regex": "a*"}), "regex": ("structured_output", {"regex": "a*"}),
    "beams": ("beam_search", {"use_beam_search": True}), "echo": ("echo", {"echo": True}),
    "tool": ("tool_choice", {"tools": TOOLS, "tool_choice": "required"}), "ids": ("token_ids", {"return_token_ids": True}),
    "cut": ("truncation", {"truncate_prompt_tokens": 500}), "begun": ("template", {"add_generation_prompt": False}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_asks_for_more_than_text(fleet, what):
    why, members = REFUSED[what]
    n = fleet.count("resume_refused_total")
    events, rid = broken(fleet, {**body_of(True, n=40), **members})
    assert is_cut(fleet.router, events, rid)["not_resumed"] == why
    wait("counted", lambda: fleet.count("resume_refused_total") == n + 1)


@pytest.mark.parametrize("prompt", [[104, 105], ["a", "b"], [[1, 2]]], ids=["ids", "two", "list of ids"])
def test_prompts_that_cannot_be_lengthened(fleet, prompt):
    body = body_of(False, n=40)
    body["prompt"] = prompt
    events, rid = broken(fleet, body)
    assert is_cut(fleet.router, events, rid)["not_resumed"] in ("prompt", "several_choices")


def test_a_call_under_way(fleet):
    """Tools that are only listed do no harm; once one is called nobody can go on."""
    fleet.dies(body_of(True, tools=TOOLS), "reset", 4)
    events, rid = broken(fleet, body_of(True, n=40, tools=TOOLS, pdsim={"tool": True}))
    assert is_cut(fleet.router, events, rid)["not_resumed"] == "tool_call"


def test_an_answer_longer_than_is_kept(world):
    r, _, d = build(world, "nixl", pool=POOL, limits={"max_answer": "1KiB"})
    body = body_of(False, n=800)
    d[0].fault(**DIES["close"], after_events=700)
    while not d[0].counter("faults"):
        events, rid = ask(r, body)
    assert is_cut(r, events, rid)["not_resumed"] == "long_answer"


def test_bodies_that_are_kept_give_way(world):
    """A worker whose room for bodies is half full keeps none for streams: new requests need it."""
    r, _, d = build(world, "nixl", pool=POOL, limits={"max_body": "1MiB", "max_buffered": "1MiB"}, **FAR)
    for size, why in (100000, None), (700000, "no_room"):
        body = body_of(False, n=40)
        body["prompt"] = "a" * size + body["prompt"]
        for e in d:
            e.fault(**DIES["close"], after_events=20)
        events, rid = ask(r, body)
        assert r.metric("request_buffer_bytes") == 0
        if why is None:
            is_whole(body, events)
        else:
            assert is_cut(r, events, rid)["not_resumed"] == why
        for e in d:
            e.tell("/sim/fault", kind="none")


def test_no_other_engine_is_left(fleet):
    """Every decode engine dies: what the last one's end was is told."""
    n = fleet.count("attempts_failed_total")
    events, rid = broken(fleet, body_of(True, n=40))
    line = is_cut(fleet.router, events, rid)
    assert (line["tries"], line["not_resumed"]) == (2, None)
    wait("counted", lambda: fleet.count("attempts_failed_total") == n + 3)


def test_an_engine_that_says_why_it_dies(fleet):
    events, rid = broken(fleet, body_of(True, n=40), "error event")
    is_cut(fleet.router, events, rid, "engine_status")


def test_off_by_default(world):
    r, _, d = build(world, "nixl", pool={"retries": 2})
    d[0].fault(**DIES["reset"], after_events=3)
    for _ in range(2):
        events, rid = ask(r, body_of(True))
        if d[0].counter("faults"):
            break
    assert is_cut(r, events, rid)["not_resumed"] is None
    assert d[0].requests()[-1].json().get("stream_options") is None, "nothing is added"


def test_the_budget(world):
    """Tries for streams are tries."""
    r, _, d = build(world, "nixl", pool={**POOL, "retry_budget": 0}, nd=2)
    for e in d:
        e.fault(**DIES["reset"], after_events=3, count=-1)
    ends = [is_cut(r, *ask(r, body_of(True, n=40))) for _ in range(14)]
    wait("spent", lambda: r.metric("retry_budget_spent_total") > 0)
    assert (ends[0]["tries"], ends[-1]["tries"]) == (1, None)


@pytest.mark.parametrize("kind", ["nixl", "decode first"])
def test_the_request_for_the_rest_is_refused(world, kind):
    """An engine whose template cannot leave a message open: its words, in the stream."""
    r, p, d = world.scripts(1, 2, pool={**POOL, **KINDS[kind][0]}, workers=1)
    r.wait_all_up()
    with r.client() as c:
        c.request("POST", "/v1/chat/completions", body_of(True))

        def prefill():
            if kind == "nixl":
                p[0].expect().reply(body={"choices": [], "kv_transfer_params": {"remote_block_ids": [1]}})

        def decode():
            return wait("a decode leg", lambda: next((e for e in d if not e.asked.empty()), None)).expect()
        prefill()
        ex = decode()
        ex.stream_head()
        events = c.events()
        for content in "", "Hello":
            ex.chunk(b"data: " + json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": content}}]}).encode() + b"\n\n")
        assert [next(events).json()["choices"][0]["delta"]["content"] for _ in range(2)] == ["", "Hello"]
        ex.reset()
        prefill()
        ex = decode()
        assert ex.json()["messages"][-1] == {"role": "assistant", "content": "Hello"}
        ex.reply(400, {"error": {"message": "no such member", "code": 400}})
        last = list(events)
        assert [e.json()["error"]["message"] for e in last] == ["no such member"]
        assert r.end_of(c.answer["x-request-id"])["reason"] == "engine_status"


def test_the_engines_own_headers_pass(fleet):
    """Though events are followed."""
    with fleet.router.client() as c:
        a = c.request("POST", "/v1/chat/completions", body_of(True)).head()
        assert a["content-type"].startswith("text/event-stream") and a["transfer-encoding"] == "chunked"
        list(c.events())


def test_more_than_decode_engines(world):
    """Short prompts, which a decode engine does alone: as well."""
    r, _, d = build(world, "nixl", pool={**POOL, "routing_threshold": 100000})
    d[0].fault(**DIES["reset"], after_events=3)
    for _ in range(2):
        body = body_of(True, {"include_usage": True})
        is_whole(body, ask(r, body)[0])
    assert d[0].counter("faults") == 1


def test_unified_engines_are_enough(world):
    """One engine a role, `both`: the other one goes on."""
    e = [*engines(world, "nixl", "both", 2)]
    r = world.router(world.pool([e[0]], e, **{**POOL, "routing_threshold": 100000, "policy": "round_robin"}), workers=1).wait_all_up()
    e[1].fault(**DIES["close"], after_events=4)
    for _ in range(2):
        body = body_of(False)
        is_whole(body, ask(r, body)[0])
    assert e[1].counter("faults") == 1
