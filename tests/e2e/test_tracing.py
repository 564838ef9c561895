"""Spans of sampled traces reach a collector, which reads them strictly; one that is slow, dead, refuses or answers nonsense
costs spans, which are counted, and no request."""
import contextlib
import itertools
import os
import signal
import time

import pytest

from collector import Collector
from fleets import build
from procs import free_port, wait
from segment import Segment
from stages import Stage, lasting
from test_upgrade import Instances

NUMBERS = itertools.count(1)
PATH = "POST /v1/completions"
CLIENT = "00f067aa0ba902b7"


class Desk(Stage):
    def __init__(self):
        super().__init__()
        self.c = Collector()
        w = self.world
        self.p, self.d = [w.engine("prefill"), w.engine("prefill")], w.engine("decode")
        self.pool = w.pool(self.p, [{"url": self.d.url, "max_inflight": 1}], retries=1, retry_budget=100, queue_size=9, fallback="none")
        self.r = w.router(self.pool, workers=2, tracing={"otlp": self.c.url})
        self.r.wait_all_up()

    def close(self):
        self.c.close()
        super().close()


    def counts(self):
        """Once all that the collector has answered for is counted."""
        wait("the counts", lambda: sum(counts(self.r).values()) == self.c.final)
        return counts(self.r)


@pytest.fixture(scope="module")
def shared_desk(request):
    yield from lasting(request, Desk())


@pytest.fixture
def desk(shared_desk):
    yield shared_desk
    assert shared_desk.c.faults == []
    shared_desk.r.lives()


@pytest.fixture
def collector():
    with contextlib.closing(Collector()) as c:
        yield c


def traced(r, flags="01", **members):
    """The trace of a request, and its answer."""
    trace = f"{next(NUMBERS):032x}"
    return trace, r.complete(headers=[("traceparent", f"00-{trace}-{CLIENT}-{flags}"), ("X-Request-Id", trace)], **members)


def sent_parents(engine, trace):
    """The span ids by which an engine was called."""
    return engine.last()["traceparent"].split("-")[2] if trace in engine.last()["traceparent"] else None


def counts(r):
    return {k: int(r.metric(f"spans_{k}_total")) for k in ("exported", "failed", "dropped")}


def test_a_request_and_its_legs(desk):
    trace, a = traced(desk.r, stream=True, max_tokens=6, stream_options={"include_usage": True})
    assert a.status == 200
    got = desk.c.of(trace, 4)
    assert {k: len(v) for k, v in got.items()} == {PATH: 1, "prefill": 1, "decode": 1, "kv_transfer": 1}
    (root,), (p,), (d,), (kv,) = (got[k] for k in (PATH, "prefill", "decode", "kv_transfer"))
    assert (root.parent, root.kind, root.flags) == (CLIENT, 2, 0x301) and {s.parent for s in (p, d, kv)} == {root.id}
    assert {s.kind for s in (p, d)} == {3} and kv.kind == 1
    assert d.id == sent_parents(desk.d, trace) and p.id in [sent_parents(e, trace) for e in desk.p if e.requests()]
    assert root.start <= p.start <= p.end <= kv.start <= kv.end <= d.end <= root.end and abs(root.end / 1e9 - time.time()) < 60
    assert d.start <= d.events["first token"] <= d.end
    assert root.attrs.items() >= {
        "http.request.method": "POST", "url.path": "/v1/completions", "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion", "gen_ai.request.model": "sim-model", "gen_ai.usage.output_tokens": 6,
        "pdrouter.reason": "ok", "pdrouter.request_id": trace}.items()
    assert root["gen_ai.usage.input_tokens"] > 0 and root["pdrouter.pool"] == desk.r.end_of(trace)["pool"] and root.status.code == 0
    assert p["url.full"] in [e.url for e in desk.p] and d["url.full"] == desk.d.url
    assert root.resource["service.name"] == "pdrouter" and root.resource["service.version"] and root.resource["service.instance.id"]


def test_only_sampled_traces_are_exported(desk):
    (unsampled, _), (sampled, _) = traced(desk.r, flags="00"), traced(desk.r)
    desk.r.complete()
    desk.c.of(sampled, 3)
    assert unsampled not in {s.trace for s in desk.c.spans}


def test_a_retry_says_what_failed(desk):
    desk.p[0].fault("status", status=500, count=1, contains="fail once")
    for n in range(20):
        trace, a = traced(desk.r, prompt=f"fail once {n}")
        assert a.status == 200
        if desk.r.metric("attempts_failed_total") > 0:
            break
    got = desk.c.of(trace, 4)
    failed, good = sorted(got["prefill"], key=lambda s: s.start)
    assert failed["url.full"] == desk.p[0].url and good["url.full"] == desk.p[1].url
    assert (failed["error.type"], failed["http.response.status_code"], failed.status.code) == ("5xx", 500, 2)
    assert failed.status.message == failed["pdrouter.detail"] == "its status was 5xx"
    assert (good["error.type"], good["http.request.resend_count"], good.status.code) == (None, 1, 0)
    (root,) = got[PATH]
    assert (root["pdrouter.tries"], root["pdrouter.rescued"], root.status.code) == (1, "retry", 0)


def test_time_in_the_queue(desk):
    desk.d.pause()
    first = desk.r.open_stream(n=4)
    wait("the first one", lambda: desk.r.in_flight() == 1)
    trace = f"{next(NUMBERS):032x}"
    with desk.r.client() as c:
        c.request("POST", "/v1/completions", {"model": "sim-model", "prompt": "x", "max_tokens": 2}, [("traceparent", f"00-{trace}-{CLIENT}-01")])
        wait("it waits", lambda: desk.r.metric("queue_waiting") == 1)
        desk.d.go_on()
        assert c.read().status == 200
    first.read()
    first.close()
    got = desk.c.of(trace, 4)
    (queue,), (root,), (p,) = got["queue"], got[PATH], got["prefill"]
    assert queue.parent == root.id and root.start <= queue.start < queue.end <= p.start


def test_errors(desk):
    trace, a = traced(desk.r, model="none")
    (root,) = desk.c.of(trace)[PATH]
    assert a.status == root["http.response.status_code"] == 404 and root["error.type"] == "model_not_found" and root.status.code == 0
    desk.d.fault("fail", contains="fail twice", count=2)
    trace, a = traced(desk.r, prompt="fail twice")
    got = desk.c.of(trace, 3)
    (root,) = got[PATH]
    assert a.status == root["http.response.status_code"] == 500 and root.status.code == 2
    assert got["decode"][-1]["error.type"] == "5xx"


def open_traced(r, **members):
    trace = f"{next(NUMBERS):032x}"
    return trace, r.open_stream(headers=[("traceparent", f"00-{trace}-{CLIENT}-01")], **members)


def test_a_client_that_leaves_the_stream(desk):
    desk.d.pause()
    trace, c = open_traced(desk.r)
    desk.d.wait_requests()
    c.close()
    desk.d.go_on()
    got = desk.c.of(trace, 3)
    assert got["decode"][0]["error.type"] == "cancelled" and got[PATH][0]["pdrouter.reason"] == "client_gone"


def leaves_too_soon(r, p):
    """The trace of a request whose client leaves when half of the prefill answer is here; None: it was not here yet."""
    body = b'{"kv_transfer_params":{"remote_block_ids":[1]}}'
    trace, c = open_traced(r)
    ex = p.expect().write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body[:10]))
    c.close()
    if ex.gone(0.3):
        return ex.close()
    ex.write(body[10:]).end()
    return trace


def test_a_leg_that_only_frees_kv(world, collector):
    r, (p,), (d,) = world.scripts(tracing={"otlp": collector.url})
    trace = next(filter(None, (leaves_too_soon(r, p) for _ in range(10))))
    sent = d.expect()
    sent.reply(body={"choices": []})
    got = collector.of(trace, 3)
    (release,), (root,), (prefill,) = got["release"], got[PATH], got["prefill"]
    assert release.parent == root.id and release.id == sent["traceparent"].split("-")[2] and release["url.full"] == d.url
    assert release.start >= root.end > prefill.start and prefill["error.type"] is None


def test_spans_have_the_clients_tracestate(desk):
    def states(*headers):
        trace = f"{next(NUMBERS):032x}"
        desk.r.complete(headers=[("traceparent", f"00-{trace}-{CLIENT}-01"), *(("tracestate", h) for h in headers)])
        return {s.state for spans in desk.c.of(trace, 3).values() for s in spans}
    assert states("a=1, t@v=2", "c=" + "x" * 250) == {"a=1,t@v=2"}, "what does not fit is left out whole"
    assert states("a=1", "no member") == states() == {""}


@pytest.mark.parametrize("answer", [(503, {"Retry-After": 1}, b"later"), b"nonsense\r\n\r\n", b""], ids=["503", "garbage", "closed"])
def test_a_batch_is_sent_again(desk, answer):
    had, posts, tries = desk.counts(), desk.c.posts, desk.r.metric("collector_failures_total")
    desk.c.answers.append(answer)
    trace, _ = traced(desk.r)
    assert len(desk.c.of(trace, 3)) == 3
    assert desk.counts() == {**had, "exported": had["exported"] + 3} and desk.c.posts > posts + 1
    if answer:  # a kept connection may end: then the batch is sent once more at once
        assert desk.r.metric("collector_failures_total") == tries + 1
        wait("it is said", lambda: desk.r.lines("the collector takes spans again"))


def test_spans_that_a_collector_refuses_are_counted(desk):
    had = desk.counts()
    desk.c.answers.append((400, {}, b"no"))
    traced(desk.r)
    wait("a refusal", lambda: counts(desk.r)["failed"] > had["failed"])
    desk.c.of(traced(desk.r)[0], 3)
    had = desk.counts()
    desk.c.answers.append((200, {}, b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"one"}}'))
    trace, _ = traced(desk.r)
    desk.c.of(trace, 3)
    assert desk.counts() == {**had, "exported": had["exported"] + 2, "failed": had["failed"] + 1}


def test_a_killed_exporter_is_replaced_and_its_batch_sent_again(desk):
    desk.c.go_on.clear()
    posts, (pid,) = desk.c.posts, desk.r.children("exporter")
    trace, _ = traced(desk.r)
    wait("it is on its way", lambda: desk.c.posts > posts)
    desk.r.murder(pid)
    desk.c.go_on.set()
    wait("its successor", lambda: desk.r.children("exporter") not in ([], [pid]))
    assert len(desk.c.of(trace, 3)) == 3 and desk.r.metric("exporter_restarts_total") == 1


def test_reloads_turn_it_on_and_off(desk):
    desk.r.reload(tracing={})
    wait("it ends", lambda: desk.r.children("exporter") == [])
    off, _ = traced(desk.r)
    desk.r.reload(tracing={"otlp": desk.c.url})
    wait("another", lambda: len(desk.r.children("exporter")) == 1)
    on, _ = traced(desk.r)
    desk.c.of(on, 3)
    assert off not in {s.trace for s in desk.c.spans}


def test_a_resumed_stream(world, collector):
    r, _, d = build(world, "nixl", pool={"resume": True}, tracing={"otlp": collector.url})
    d[0].fault("reset_mid_stream", count=1)
    for _ in d:  # in turn
        trace, c = open_traced(r, n=6)
        assert c.read().status == 200
        if r.metric("rescued_total", by="resume"):
            break
    got = collector.of(trace, 6)
    (resume,), (root,), (first, second) = got["resume"], got[PATH], sorted(got["decode"], key=lambda s: s.start)
    assert (first["error.type"], first.status.code, second.status.code) == ("reset", 2, 0) and root["pdrouter.rescued"] == "resume"
    assert first.end <= resume.start <= second.start < resume.end <= second.end and resume.parent == root.id


def test_a_lookup(world, collector):
    r, (p,), _ = build(world, "mooncake", 1, 1, tracing={"otlp": collector.url})
    trace, _ = traced(r)
    (lookup,) = collector.of(trace, 4)["lookup"]
    assert lookup["url.full"] == p.url and lookup["http.response.status_code"] == 200 and lookup.kind == 3


def test_what_does_not_fit_is_dropped_and_counted(world, collector):
    """A collector that stands still: requests are answered as before, and no span is lost uncounted."""
    collector.go_on.clear()
    r, _, _ = world.pd(tracing={"otlp": collector.url, "ring": "16KiB"}, workers=1)
    for _ in range(60):
        assert traced(r)[1].status == 200
    r.wait_idle()
    assert counts(r)["dropped"] > 0 and counts(r)["exported"] == 0
    collector.go_on.set()
    wait("all are counted", lambda: sum(counts(r).values()) == 180)
    assert counts(r)["failed"] == 0 and len(collector.spans) == counts(r)["exported"] > 20
    assert len(collector.of(traced(r)[0], 3)) == 3, "there is room again"


@pytest.mark.parametrize("word", [0, 128], ids=["written", "read"])
def test_a_scribbled_position_is_repaired(world, collector, word):
    """The ring's worker would find no room any more."""
    r, _, _ = world.pd(tracing={"otlp": collector.url, "ring": "16KiB"}, workers=1, log_level="debug")
    assert len(collector.of(traced(r)[0], 3)) == 3
    r.excused = ("had impossible values",)
    wait("the exporter has moved on", lambda: counts(r)["exported"] == 3)
    with contextlib.closing(Segment(r)) as seg:
        seg.write(seg.parts["spans"] + word, "=Q", 1 << 40)
    wait("the repair", lambda: r.metric("memory_repaired_total", where="spans") == 1)
    assert len(collector.of(traced(r)[0], 3)) == 3


def test_a_dead_collector(world):
    r, _, _ = world.pd(tracing={"otlp": f"http://127.0.0.1:{free_port()}", "sample": 1})
    began = time.monotonic()
    for _ in range(30):
        assert r.complete().status == 200
    assert time.monotonic() - began < 10
    wait("it is said", lambda: r.lines("the collector does not take spans, further ones are only counted for a minute"))
    (line,) = r.lines("the collector does not take spans, further ones are only counted for a minute")
    assert line["error"] == "the connection failed"
    wait("it is counted", lambda: r.metric("collector_failures_total") > 0)


@pytest.mark.usefixtures("reaper")
def test_each_instance_of_an_upgrade_exports_its_own(world, collector):
    p, d = world.engine("prefill"), world.engine("decode")
    i = Instances(world, world.pool([p], [d]), workers=1, tracing={"otlp": collector.url})
    d.pause()
    old, c = open_traced(i.r)
    d.wait_requests()
    i.upgrade()
    d.go_on()
    assert c.read().status == 200
    new, _ = traced(i.r)
    assert len(collector.of(new, 3)["decode"]) == len(collector.of(old, 4)["decode"]) == 1
    assert len({s.resource["service.instance.id"] for s in collector.spans}) == 2
    i.only_one_left()


def test_the_last_spans_are_sent_at_the_end(world, collector):
    r, _, _ = world.pd(tracing={"otlp": collector.url})
    os.kill(r.children("exporter")[0], signal.SIGSTOP)
    trace, _ = traced(r)
    r.kill(signal.SIGTERM)
    os.kill(r.children("exporter")[0], signal.SIGCONT)
    r.p.wait(10)
    assert len(collector.of(trace, 3)) == 3
