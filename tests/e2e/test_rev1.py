"""Findings of a review."""
import json

import pytest

from legs import taken
from members import values
from procs import MODEL
from raw import text_of
from fleets import LATE
from test_release import half, rest, told
from test_retry import HAND, begin, nobody, scripts


def test_a_late_prefill_whose_request_is_released_after_its_stream_has_begun_elsewhere(world):
    """The text that a detached attempt still needs has its members until that attempt has ended."""
    r, p, d = scripts(world, pool={"resume": True, "retries": 1, "timeouts": {"prefill": LATE}})
    c = begin(r, True)
    ex, _ = taken(p)
    later = half(ex)
    taken(p)[0].prefilled(HAND % 2)
    leg, _ = taken(d)
    leg.stream_head().chunk(b'data: {"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n')
    it = c.events()
    next(it)
    rest(ex, later)
    told(d)
    leg.chunk(b'data: {"id":"x","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"b","finish_reason":"length"}]}\n\ndata: [DONE]\n\n').write(b"0\r\n\r\n").end()
    assert text_of(it) == "b"
    r.wait_metric("kv_released_total", 1, reason="prefill_late")


def test_a_stored_response_of_two_engines(world):
    """single_engine_role does not say who keeps the responses that two engines have made."""
    r, (p,), (d,) = world.scripts(pool={"disaggregate_agent_paths": True, "single_engine_role": "prefill"})
    c = r.client().request("POST", "/v1/responses", {"model": MODEL, "input": "x"})
    p.expect().reply(body=json.dumps({"id": "x", "output": [], "kv_transfer_params": json.loads(HAND % 1)}, separators=(",", ":")).encode())
    ex = d.expect()
    name = ex.json()["request_id"]
    ex.reply(body={"id": name})
    assert c.read().status == 200
    c = r.client().request("GET", f"/v1/responses/{name}")
    d.expect().reply(body={"id": name})
    assert c.read().json() == {"id": name}


def test_an_aborted_answer_that_is_rewritten(world):
    """The client has nothing of it: another engine is asked, as where an answer passes unchanged."""
    from test_retry_more import DONE, aborted
    r, p, d = scripts(world, pool={"cached_tokens_from": "prefill"})
    c = begin(r)
    taken(p)[0].prefilled(HAND % 1)
    taken(d)[0].reply(body=aborted("half"))
    taken(p)[0].prefilled(HAND % 2)
    taken(d)[0].reply(body=DONE)
    assert c.read().json()["choices"][0]["text"] == "ab"


def test_an_aborted_branch(world):
    """One of two samples: it alone is generated again."""
    from test_retry_more import DONE, aborted
    r, p, d = scripts(world, pool={"fanout": True})
    c = begin(r, n=2)
    for i in 1, 2:
        taken(p)[0].prefilled(HAND % i)
    one, two = taken(d)[0], taken(d)[0]
    one.reply(body=aborted("half"))
    taken(p)[0].prefilled(HAND % 3)
    taken(d)[0].reply(body=DONE)
    two.reply(body=DONE)
    assert [x["text"] for x in c.read().json()["choices"]] == ["ab", "ab"]


def test_an_aborted_answer_that_is_rewritten_without_another_engine(world):
    from test_retry_more import aborted
    r, p, (d,) = scripts(world, 1, 1, pool={"cached_tokens_from": "prefill"})
    c = begin(r)
    taken(p)[0].prefilled()
    taken([d])[0].reply(body=aborted("half"))
    assert c.read().json()["choices"][0]["text"] == "half"
    assert (r.end()["reason"], r.end()["detail"]) == ("ok", "the decode engine has aborted the request")
