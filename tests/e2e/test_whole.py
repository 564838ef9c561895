"""Answers in one piece that run into their time limit: one limit for the request, nothing is generated twice, and an engine that
answers others is not charged."""
import time

import pytest

from fleets import AT_ONCE, KINDS, LATE, admitted, build, right
from legs import taken
from procs import MODEL, SLOW, silence

URL = "/v1/completions"
POOL = {"policy": "round_robin", "retries": 2, "retry_budget": 100, "timeouts": silence(LATE)}
ROOM = f"{1500 * SLOW}ms"  # another request is served meanwhile, on a loaded machine too
ANSWER = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}


def ask(r, **members):
    return r.client().request("POST", URL, {"model": MODEL, "prompt": "x", "max_tokens": 4, **members})


def decoding(r, p, d, **members):
    """A request of which a decode engine knows: (client, exchange, engine)."""
    c = ask(r, **members)
    taken(p)[0].prefilled()
    return c, *taken(d)


def late(r, c, code="whole_answer_timeout"):
    """It ends by its limit; returns its line."""
    a = c.read()
    assert (a.status, a.error["code"]) == (504, code), a.body
    return r.end_of(a["x-request-id"])


def charged(r, e):
    return r.metric("endpoint_failures_total", engine=e.url, cause="timeout")


def test_it_is_not_generated_again(world):
    """Two more engines could, and two tries are left; nobody was answered meanwhile, so the silent one is charged."""
    r, p, d = world.scripts(2, 3, pool=POOL)
    c, ex, e = decoding(r, p, d)
    line = late(r, c)
    assert (line["tries"], line["detail"]) == (None, None) and ex.gone()
    assert all(x.quiet(0.05) for x in (*p, *d))
    assert charged(r, e) == r.metric("attempts_failed_total") == 1


@pytest.mark.parametrize("answers", ["whole", "stream", "older stream"])
def test_an_engine_that_answers_others_is_not_charged(world, answers):
    """Of whichever worker; an event of a stream that began before is an answer too."""
    r, p, (d,) = world.scripts(pool={**POOL, "timeouts": silence(ROOM)}, workers=4)
    if answers == "older stream":
        other, ex, _ = decoding(r, p, [d], stream=True)
        ex.stream_head().event("a")
        events = other.events()
        next(events)  # it is stamped
    c = decoding(r, p, [d])[0]
    if answers != "older stream":
        other, ex, _ = decoding(r, p, [d], stream=answers == "stream")
    time.sleep(0.2)  # the stamp is exact to 100 ms, and workers read their clocks one after the other
    if answers == "whole":
        ex.reply(body=ANSWER)
        other.read()
    else:
        ex.stream_head() if answers == "stream" else None
        ex.event("b")
        events = events if answers == "older stream" else other.events()
        assert any(e.json()["choices"][0]["text"] == "b" for e in events)
    other.close()  # or its own time would end
    assert late(r, c)["detail"] == "the engine has answered other requests meanwhile"
    assert charged(r, d) == 0


def test_a_refusal_is_no_answer(world):
    """Proxies before dead engines refuse too."""
    r, p, (d,) = world.scripts(pool={**POOL, "retries": 0, "timeouts": silence(ROOM)})
    c = decoding(r, p, [d])[0]
    for status in (500, 429, 400):
        other, ex, _ = decoding(r, p, [d])
        ex.reply(status, {"error": {"message": "no"}})
        assert other.read().status == status
    assert late(r, c)["detail"] is None and charged(r, d) == 1


@pytest.mark.parametrize("others", [False, True])
def test_prefill_that_answers_others_is_not_charged(world, others):
    """Its request waits there behind others'; another prefill engine is tried all the same."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "fallback": "none", "timeouts": {"prefill": ROOM}})
    c = ask(r)
    silent = p.expect()
    if others:
        other, ex, _ = decoding(r, [p], [d])
        ex.reply(body=ANSWER)
        other.read()
    late(r, c, "prefill_timeout")
    assert charged(r, p) == (not others)
    silent.close()


def test_decodes_answer_is_not_the_prefill_engines(world):
    """Decode answers what was prefilled before; the prefill engine has been silent since."""
    r, (p,), (d,) = world.scripts(pool={**POOL, "fallback": "none", "timeouts": {"prefill": ROOM}})
    other, ex, _ = decoding(r, [p], [d])
    c = ask(r)
    silent = p.expect()
    time.sleep(0.15)  # such times are kept to 100 ms
    ex.reply(body=ANSWER)
    other.read()
    late(r, c, "prefill_timeout")
    assert charged(r, p) == 1
    silent.close()


@pytest.mark.timing
def test_all_tries_share_one_limit(world):
    """And who had the lesser part of it is not charged."""
    r, p, d = world.scripts(2, 2, pool={**POOL, "timeouts": silence(f"{1000 * SLOW}ms")})
    c, ex, _ = decoding(r, p, d)
    time.sleep(0.6 * SLOW)
    ex.reset()
    taken(p)[0].prefilled()
    _, last = taken(d)
    line = late(r, c)
    assert 950 * SLOW < line["total_ms"] < 1500 * SLOW and line["tries"] == 1
    assert charged(r, last) == 0


def test_the_limit_ends_while_another_prefill_engine_works(world):
    r, p, d = world.scripts(2, 2, pool={**POOL, "fallback": "none"})
    c, ex, _ = decoding(r, p, d)
    ex.reset()
    silent, _ = taken(p)
    assert late(r, c)["detail"] == "no other engine could answer within timeouts.whole_answer"
    assert not any(charged(r, e) for e in (*p, *d)) and all(e.quiet(0.05) for e in d)
    silent.close()


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "sglang"])  # where the prefill engine says first that decode does not come
def test_under_every_hand_shake(world, kind):
    """One decode engine was sent it, once; nothing stays held, and the next request is served."""
    r, p, d = build(world, kind, pool={"timeouts": silence(LATE)}, prefill={"kv_timeout": 1}, decode={"kv_timeout": 1})
    for e in d:
        e.fault("no_answer")
    a = r.complete("hi")
    assert (a.status, a.error["code"]) == (504, "whole_answer_timeout")
    assert sum(len(admitted(e)) for e in d) == 1 and r.end()["tries"] is None
    for e in (*p, *d):
        e.refuses_on_purpose = True  # blocks of some kinds end by their time alone
        e.fault("none")
    assert r.complete("hi").status == 200


@pytest.mark.parametrize("kind", [*sorted(AT_ONCE), "decode first"])
def test_the_limit_begins_when_prefill_has_answered(world, kind):
    """Where decode is asked at once, or first; prefill has a time limit of its own."""
    r, _, _ = build(world, kind, 1, 1, prefill={"prefill_delay": 800 * SLOW}, pool={"timeouts": silence(LATE)})
    for _ in range(2):  # a push's decode engine is asked at once from the second on
        right(r, False)
