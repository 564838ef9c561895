"""The line of a request: the engines' tokens, and where the time went."""
import re
import socket
import subprocess
import threading

import pytest

from procs import BIN, MODEL, wait

FIGURES = {"prompt_tokens", "cached_tokens", "completion_tokens", "tokens_per_s", "kv_ms", "decode_ms", "connect_ms"}


def ended(r, path, body, name):
    with r.client() as c:
        c.request("POST", path, {"model": MODEL, "max_tokens": 20, **body}, [("X-Request-Id", name)])
        a = c.read()
    assert a.status == 200
    return a, wait("its line", lambda: [x for x in r.lines("request") if x["req"] == name])[0]


@pytest.mark.parametrize("path, text", [
    ("/v1/completions", {"prompt": "one two three"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "what is it?"}]}),
])
def test_tokens_are_those_of_the_engines(shared, router, path, text):
    a, line = ended(router, path, text, f"whole{path}")
    want = (a.json()["usage"]["prompt_tokens"], 20)
    assert (line["prompt_tokens"], line["completion_tokens"]) == want
    assert line["tokens_per_s"] > 0 and line["decode_ms"] > 0 and "kv_ms" not in line
    _, line = ended(router, path, {**text, "stream": True, "stream_options": {"include_usage": True}}, f"stream{path}")
    assert (line["prompt_tokens"], line["completion_tokens"]) == want
    assert line["first_ms"] + line["decode_ms"] <= line["total_ms"] + 0.3 and line["kv_ms"] <= line["first_ms"]


def test_tokens_by_anthropics_names(shared, router):
    ask = {"messages": [{"role": "user", "content": "what is it?"}]}
    a, line = ended(router, "/v1/messages", ask, "messages")
    usage = a.json()["usage"]
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["input_tokens"], usage["output_tokens"])
    _, line = ended(router, "/v1/messages", {**ask, "stream": True}, "message-stream")
    assert line["completion_tokens"] == usage["output_tokens"]


def test_what_no_engine_says_is_left_out(shared, router):
    _, line = ended(router, "/v1/completions", {"prompt": "hi", "stream": True}, "unsaid")
    assert line["prompt_tokens"] > 0, "the prefill engine said it"
    assert not {"cached_tokens", "completion_tokens", "tokens_per_s"} & set(line)
    router.post("/v1/completions", {"model": "none", "prompt": "hi"}, [("X-Request-Id", "refused")])
    assert not FIGURES & set(router.end_of("refused"))


def test_cached_tokens_are_those_of_prefill_and_connecting_takes_time(world):
    r, _, _ = world.pd(engine={"prompt_tokens_details": True}, workers=1)
    ask = {"prompt": "one two three", "pdsim": {"cached_tokens": 2}}
    _, first = ended(r, "/v1/completions", ask, "first")
    _, again = ended(r, "/v1/completions", {**ask, "n": 3}, "samples")
    assert "connect_ms" in first and first["cached_tokens"] == 2 and first["completion_tokens"] == 20
    assert "connect_ms" not in again, "the connections are kept"
    assert again["completion_tokens"] == 60 and again["prompt_tokens"] == first["prompt_tokens"]
    tokens = [r.metric(f"{kind}_tokens_total", pool=MODEL) for kind in ("prompt", "cached", "completion")]
    assert tokens == [2 * first["prompt_tokens"], 4, 80]
    assert r.metric("time_per_output_token_seconds_count") == 1, "of the other one, prefill is in the time"


def test_logfmt_lines(world):
    r, _, _ = world.pd(log_format="logfmt")
    r.complete(headers=[("X-Request-Id", "kv-line")])
    line = r.wait_log("req=kv-line")
    assert re.match(r"ts=20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info msg=request process=worker slot=\d+ req=kv-line ", line)
    assert re.search(r"\breason=ok\b", line) and " status=200 " in line and " pool=sim-model " in line
    assert "=-" not in line and " rescued=" not in line


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def parents(*engines):
    return [dict(e.last().headers).get("traceparent") for e in engines]


def test_a_trace_passes_with_a_span_for_each_engine(shared, router):
    router.complete(headers=[("X-Request-Id", "traced"), ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"), ("tracestate", "a=1")])
    got = parents(shared.p, shared.d)
    spans = {re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", x)[1] for x in got}
    assert len(spans) == 2 and "00f067aa0ba902b7" not in spans and router.end_of("traced")["trace"] == TRACE
    assert dict(shared.d.last().headers)["tracestate"] == "a=1"


@pytest.mark.parametrize("wrong", ["00-" + "0" * 32 + "-00f067aa0ba902b7-01", f"ff-{TRACE}-00f067aa0ba902b7-01", "x", ""])
def test_a_traceparent_that_cannot_be_read_ends_here(shared, router, wrong):
    router.complete(headers=[("X-Request-Id", f"x{wrong}"), ("traceparent", wrong), ("tracestate", "a=1")])
    assert parents(shared.p, shared.d) == [None, None] and "tracestate" not in dict(shared.d.last().headers)
    assert router.end_of(f"x{wrong}")["trace"] is None


def test_traces_begin_here_if_a_sample_is_configured(world):
    r, (p,), (d,) = world.pd(tracing={"sample": 1})
    r.complete(headers=[("X-Request-Id", "begun"), ("tracestate", "a=1")])
    trace = r.end_of("begun")["trace"]
    assert [x.split("-")[1] for x in parents(p, d)] == [trace] * 2 and "tracestate" not in dict(d.last().headers)
    r.reload(tracing={"sample": 0})
    r.complete()
    assert parents(p, d) == [None, None]


def test_good_requests_are_sampled_and_failed_ones_logged(world):
    r, _, _ = world.pd(log_sample=0)
    for _ in range(5):
        assert r.complete().status == 200
    assert r.post("/v1/completions", {"model": "none", "prompt": "x"}).status == 404
    wait("its line", lambda: r.lines("request"))
    assert [x["reason"] for x in r.lines("request")] == ["model_not_found"]
    r.reload(log_sample=0.5)
    for _ in range(60):
        r.complete()
    assert len(wait("lines", lambda: len(r.ends()) > 5 and r.ends())) < 57


JOURNALD = """#!/bin/sh
# the router where journald's socket is another one
exec unshare -m sh -c 'mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/journal &&
	ln -s {sock} /run/systemd/journal/socket && exec "$0" "$@"' {binary} "$@"
"""


def read_to_end(journal, entries):
    while (entry := journal.recv(65536)) != b"end":
        entries.append(entry)


def test_the_lines_of_all_processes_go_to_the_journal(world):
    """To its socket, which a child keeps; to stderr when it is gone."""
    probe = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no mount namespace: {probe.stderr.strip()}")
    script, path = world.dir / "under-journald", world.dir / "journal"
    script.write_text(JOURNALD.format(sock=path, binary=BIN / "pdrouter"))
    script.chmod(0o755)
    entries = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(path))
        reader = threading.Thread(target=read_to_end, args=(journal, entries), daemon=True)
        reader.start()  # now: the kernel keeps ten entries for a reader that is late
        r, _, _ = world.pd(program=script, log_to="journald")
        assert r.complete(headers=[("X-Request-Id", "to-the-journal")]).status == 200
        (entry,) = wait("its entry", lambda: [e for e in entries if b"PDR_REQ=to-the-journal\n" in e])
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", str(path))
        reader.join()
    assert b"PRIORITY=6\n" in entry and b"SYSLOG_IDENTIFIER=pdrouter\n" in entry and b"PDR_REASON=ok\n" in entry
    assert r.complete(headers=[("X-Request-Id", "to-stderr")]).status == 200
    wait("its line", lambda: "to-stderr" in r.log())
    assert "to-the-journal" not in r.log()
