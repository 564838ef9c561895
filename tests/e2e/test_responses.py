"""Responses that an engine keeps (/v1/responses): the id says which engine has one, so every router finds it."""
import re

import openai
import pytest

from procs import MODEL, wait
from stages import Stage, lasting

URL = "/v1/responses"
ASK = {"model": MODEL, "input": "x"}
LATER = {**ASK, "background": True}


class Kept(Stage):
    """A router, three decode engines that keep responses, and one to be asked directly."""

    def __init__(self):
        super().__init__()
        w = self.world
        self.p, self.d = w.engine("prefill"), [w.engine("decode", store=True, name=f"d{i}", token_delay=60000) for i in range(3)]
        self.pool = w.pool([self.p], self.d, policy="round_robin")
        self.router = w.router(self.pool, workers=2)
        self.direct = w.engine("both", store=True, token_delay=60000)
        self.router.wait_all_up()

    def asked(self, path):
        """The engines that were asked for it."""
        return [e.options["name"] for e in self.d if path in paths(e)]


@pytest.fixture(scope="module")
def kept(request):
    k = Kept()
    yield from lasting(request, k, k)


def paths(e):
    """What it was asked for, but for generations."""
    with e.client() as c:
        return [x["path"] for x in c.get("/sim/last?other=1").json()["requests"]]


def line_of(r, answer):
    return wait("its line", lambda: [x for x in r.lines("request") if x["req"] == answer["x-request-id"]])[0]


def call(at, method, path, body=None):
    with at.client() as c:
        c.request(method, path, body)
        return c.read()


def plain(answer):
    """Without what two calls never share."""
    return answer.status, re.sub(rb'resp_\w+|"name":"[^"]*"', b"", answer.body)


def test_each_response_is_found(kept):
    made = [kept.router.post(URL, ASK).json() for _ in range(9)]
    assert {m["pdsim"]["name"] for m in made} == {"d0", "d1", "d2"}
    assert len({m["id"] for m in made}) == 9 and all(re.fullmatch("resp_[0-9a-f]{48}", m["id"]) for m in made)
    for m in made:
        a = kept.router.get(f"{URL}/{m['id']}")
        assert (a.status, a.json()) == (200, m) and kept.asked(f"{URL}/{m['id']}") == [m["pdsim"]["name"]]
        assert line_of(kept.router, a)["route"] == "/v1/responses/{id}"


def test_a_conversation_stays_with_its_engine(kept):
    first = kept.router.post(URL, ASK).json()
    for _ in range(4):
        next_ = kept.router.post(URL, {**ASK, "previous_response_id": first["id"]}).json()
        assert (next_["pdsim"]["name"], next_["previous_response_id"]) == (first["pdsim"]["name"], first["id"]) and next_["id"] != first["id"]
        first = next_


def test_in_the_background(kept):
    made = kept.router.post(URL, LATER).json()
    assert (made["status"], kept.router.get(f"{URL}/{made['id']}").json()["status"]) == ("queued", "queued")
    assert kept.router.post(f"{URL}/{made['id']}/cancel", b"").json()["status"] == "cancelled"
    assert kept.router.get(f"{URL}/{made['id']}").json()["status"] == "cancelled"


def test_as_a_direct_call(kept):
    """The same answers and errors, whole or as events, by the SDK and byte by byte."""
    got = []
    for at in (kept.router, kept.direct):
        with openai.OpenAI(base_url=f"http://127.0.0.1:{at.port}/v1", api_key="k", max_retries=0) as c:
            last = list(c.responses.create(**ASK, stream=True))[-1].response
            assert c.responses.retrieve(last.id).output_text == last.output_text
            with pytest.raises(openai.NotFoundError) as e:
                c.responses.retrieve("resp_none")
            later = c.responses.create(**LATER)
        got.append([plain(call(at, *x)) for x in (
            ("POST", URL, ASK), ("POST", URL, LATER), ("GET", f"{URL}/{last.id}"), ("POST", f"{URL}/{last.id}/cancel", b""),
            ("POST", f"{URL}/{later.id}/cancel"), ("POST", f"{URL}/resp_none/cancel", {}), ("GET", f"{URL}/resp_none"),
            ("POST", URL, {**ASK, "previous_response_id": "none"}), ("POST", URL, {**LATER, "store": False}))] + [e.value.body])
    assert got[0] == got[1] and [x[0] for x in got[0][:-1]] == [200, 200, 200, 400, 200, 404, 404, 404, 400]


@pytest.mark.parametrize("method, path, status", [("DELETE", "resp_1", 405), ("POST", "resp_1", 405), ("GET", "resp_1/cancel", 405),
                                                  ("HEAD", "resp_1", 405), ("GET", "resp_1/input_items", 404), ("GET", "..", 404),
                                                  ("GET", "%2e%2e", 404), ("GET", "", 404), ("GET", "resp_" + "a" * 200, 404)])
def test_nothing_else_reaches_an_engine(kept, method, path, status):
    with kept.router.client() as c:
        c.request(method, f"{URL}/{path}")
        assert c.read(head_only=method == "HEAD").status == status
    assert not kept.asked(f"{URL}/{path}")


def test_a_clients_own_id_is_replaced(kept):
    """As on every path: two clients could name the same."""
    made = [kept.router.post(URL, {**ASK, "request_id": "mine"}).json() for _ in range(2)]
    assert made[0]["id"] != made[1]["id"] and [kept.router.get(f"{URL}/{m['id']}").json() for m in made] == made
    assert kept.router.get(f"{URL}/mine").status == 404


def test_another_router_finds_it(kept):
    """Nothing is kept in a router.  Another pool's engines are found without a model's name."""
    made, w = kept.router.post(URL, ASK).json(), kept.world
    p, d = w.engine("prefill", model="other"), w.engine("decode", model="other", store=True)
    r = w.router({**w.pool([p], [d]), "models": ["other"], "name": "a"}, {**kept.pool, "name": "b"})
    r.wait_all_up()
    theirs = r.post(URL, {**ASK, "model": "other"}).json()
    assert r.get(f"{URL}/{made['id']}").json() == made and r.get(f"{URL}/{theirs['id']}").json() == theirs
    a = r.post(URL, {**ASK, "model": "other", "previous_response_id": made["id"]})
    assert a.status == 404 and a.error["param"] == "response_id", "the engine of another model does not have it"


def of_two(world, options=("store",), entry=(), **pool):
    """A router and two decode engines: options of both, keys of their entries and of the pool."""
    d = [world.engine("decode", name=f"d{i}", **dict.fromkeys(options, True)) for i in range(2)]
    r = world.router(world.pool([world.engine("prefill")], [{"url": e.url, **dict(entry)} for e in d], policy="round_robin", **pool), workers=1)
    return r.wait_all_up(), d


def test_its_engine_has_gone(world):
    r, d = of_two(world, retries=2, eject_failures=1)
    made = {m["pdsim"]["name"]: m["id"] for m in (r.post(URL, ASK).json() for _ in d)}
    where = f"{URL}/{made['d0']}"
    assert r.ctl("drain", d[1].url).returncode == 0
    a = r.get(f"{URL}/{made['d1']}")
    assert (a.status, a.error["code"]) == (503, "no_decode_endpoint") and "has the response" in a.error["message"]
    with r.unwatched():
        d[0].stop()
        codes = [(a.status, a.error["code"]) for a in (r.get(where), r.get(where))]
        assert codes == [(502, "engine_broken")] * 2, "no other engine is asked, and it is, ejected or not"
    wait("it is down", lambda: r.get(where).status == 503)
    r.reload(pools=[world.pool([world.engines[-1]], d[1:])])
    a = r.get(where)
    assert (a.status, a.error["code"]) == (404, 404) and line_of(r, a)["reason"] == "response_not_found" and not set(paths(d[1])) & {where}


def test_another_engine_another_id(world):
    """A request that is tried again names the engine that serves it."""
    r, d = of_two(world, retries=2)
    d[1].fault(kind="fail", count=-1, path=URL)
    made = [r.post(URL, ASK).json() for _ in range(4)]
    assert {m["pdsim"]["name"] for m in made} == {"d0"} and r.metric("rescued_total", by="retry") == 2
    assert [r.get(f"{URL}/{m['id']}").json() for m in made] == made


def test_answers_of_404_charge_no_engine(world):
    """Engines that keep nothing say 404: nobody else is asked, nobody is ejected, however often a client asks."""
    r, d = of_two(world, options=(), retries=2, eject_failures=5, eject_rate=20)
    for _ in range(4):
        made = r.post(URL, ASK).json()
    assert [r.get(f"{URL}/{made['id']}").status for _ in range(40)] == [404] * 40
    assert sum(paths(e).count(f"{URL}/{made['id']}") for e in d) == 40
    assert r.metric("ejections_total") == r.metric("second_opinions_total") == 0


def test_a_full_engine_is_waited_for(world):
    """The other has room, and is of no use."""
    r, d = of_two(world, entry={"max_inflight": 1}, queue_size=4)
    made = r.post(URL, ASK).json()
    (e,) = (e for e in d if e.options["name"] == made["pdsim"]["name"])
    e.fault(kind="no_answer", path=URL)
    c = r.client().request("POST", URL, {**ASK, "previous_response_id": made["id"]})
    wait("it is there", lambda: r.metric("endpoint_in_flight", role="decode") == 1)
    poll = r.client().request("GET", f"{URL}/{made['id']}")
    wait("the other waits", lambda: r.metric("queue_waiting") == 1)
    assert r.post(URL, ASK).json()["pdsim"]["name"] != made["pdsim"]["name"]
    c.close()
    assert poll.read().json() == made


def test_events_since(world):
    """The query passes, and each event as it comes: vLLM gives the events of a background stream again."""
    r, _, (d,) = world.scripts()
    c = r.client().request("POST", URL, LATER)
    ex = d.expect("POST " + URL)
    where = f"{URL}/{ex.json()['request_id']}?stream=true&starting_after=3"
    ex.reply(body={})
    assert c.read().status == 200
    c.request("GET", where)
    ex = d.expect("GET " + where).stream_head()
    assert ex.body == b"" and ex["content-length"] == "0"
    events = [b'event: response.output_text.delta\ndata: {"delta":"%d"}\n\n' % i for i in range(2)]
    ex.chunk(events[0])
    got = c.events()
    assert next(got).raw == events[0]
    ex.chunk(events[1]).write(b"0\r\n\r\n").end()
    assert [e.raw for e in got] == events[1:]
