"""What an operator asks and sets with pdctl: weights, whole hosts and groups, the log's level, where requests are."""
import contextlib
import json
import os
import re
import signal
import subprocess

import pytest

from procs import BIN, MODEL, ROOT, Load, again, wait
from test_upgrade import Instances


def said(r, *args, code=0):
    done = r.ctl(*args)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def shown(r, url):
    return next(e for e in r.status()["fleet"]["endpoints"] if e["url"] == url)


def asked(engine):
    return engine.metric("pdsim:requests_total", path="/v1/completions") or 0


def shares(r, d, n):
    """How many of n requests each engine gets."""
    before = [asked(e) for e in d]
    for _ in range(n):
        assert r.complete(max_tokens=1).status == 200
    return [asked(e) - b for e, b in zip(d, before)]


def test_a_weight_counts_at_once_in_all_workers(world):
    """Without a new generation; the metric and the status have it."""
    r, _, d = world.pd(1, 2, workers=3, pool={"policy": "round_robin"})
    generation, pids = r.metric("generation"), r.children()
    assert said(r, "weight", d[0].url, "9") == f"weight 9: {d[0].url}, decode of pool sim-model: was 1\n"
    got = shares(r, d, 60)
    assert got[0] >= 48 and sum(got) == 60, got
    assert r.metric("generation") == generation and r.children() == pids
    assert r.metric("endpoint_weight", engine=d[0].url) == 9
    assert (shown(r, d[0].url)["weight"], shown(r, d[0].url)["configured_weight"]) == (9, 1)
    assert " 9 (1) " in said(r, "status")
    assert said(r, "weight", d[0].url, "default") == f"weight 1 as configured: {d[0].url}, decode of pool sim-model: was 9\n"
    got = shares(r, d, 40)
    assert abs(got[0] - got[1]) <= 6, got
    assert "a weight of 1 to 100 is needed" in r.ctl("weight", d[0].url, "101").stderr


def test_a_weight_outlives_reload_and_restart_until_the_configuration_has_another(world):
    r, p, d = world.pd(1, 2, state_file=str(world.dir / "state.json"))
    said(r, "weight", d[0].url, "9")
    assert json.loads((world.dir / "state.json").read_text())["weights"] == [
        {"pool": "sim-model", "role": "decode", "url": d[0].url, "weight": 9, "configured": 1}]
    r.reload(client={"id_header": "X-A"})
    assert shown(r, d[0].url)["weight"] == 9
    for sig in (signal.SIGTERM, signal.SIGKILL):
        r = again(world, r, sig).wait_all_up()
        assert shown(r, d[0].url)["weight"] == 9 and r.metric("endpoint_weight", engine=d[0].url) == 9
    r.reload(pools=[world.pool(p, [{"url": d[0].url, "weight": 3}, d[1]])])
    assert shown(r, d[0].url)["weight"] == 3
    assert len(r.lines("weight of pdctl ended: the configuration has another one than before")) == 1
    # a process of its own writes the file, and a reload does not wait for its end
    wait("the file forgets it", lambda: "weights" not in json.loads((world.dir / "state.json").read_text()))


@pytest.mark.usefixtures("reaper")
def test_a_weight_outlives_an_upgrade(world):
    p, d = world.engine("prefill"), [world.engine("decode") for _ in range(2)]
    one = Instances(world, world.pool([p], d))
    said(one.r, "weight", d[0].url, "9")
    one.upgrade()
    assert shown(one.r, d[0].url)["weight"] == 9 and one.r.metric("endpoint_weight", engine=d[0].url) == 9
    one.only_one_left()


def test_all_engines_of_a_host_and_of_a_group(world):
    p, d = [world.engine("prefill") for _ in range(2)], [world.engine("decode") for _ in range(2)]
    a, b = [[{"url": e.url, "group": g} for e, g in zip(es, "ab")] for es in (p, d)]
    r = world.router(world.pool(a, b)).wait_all_up()
    out = said(r, "drain", "--group", "a", "--wait", "--timeout", "20")
    assert f"draining: {p[0].url}" in out and f"draining: {d[0].url}" in out and p[1].url not in out
    assert "They get no new requests" in out and "Nothing is in flight there any more" in out
    assert [shown(r, e.url)["drained"] for e in (*p, *d)] == [True, False, True, False]
    assert said(r, "undrain", "--group", "a", "--when-up", "--timeout", "20").endswith("s.\n")
    assert [shown(r, e.url)["state"] for e in (*p, *d)] == ["up"] * 4
    out = said(r, "drain", "--host", "127.0.0.1", "--role", "decode")
    assert d[0].url in out and d[1].url in out and "new requests get 503" in out and p[0].url not in out
    said(r, "undrain", "--host", "127.0.0.1")
    assert not any(shown(r, e.url)["drained"] for e in (*p, *d))
    assert "no endpoint of host 10.9.9.9" in r.ctl("drain", "--host", "10.9.9.9").stderr
    assert "no endpoint of group c" in r.ctl("drain", "--group", "c").stderr


def test_undrained_when_up_gets_no_request_before(world):
    """The command returns when the engine is up, or says after --timeout that it is not."""
    r, _, d = world.pd(1, 2)
    said(r, "drain", d[0].url)
    d[0].stop()
    wait("down", lambda: shown(r, d[0].url)["else"] == "down")
    done = r.ctl("undrain", d[0].url, "--when-up", "--timeout", "0.2")
    assert done.returncode == 3 and "0 of 1 up after 0.2 s; it gets requests as soon as it is up" in done.stderr
    load = Load(2, lambda _: r.complete(max_tokens=1).status == 200)
    wait("requests", lambda: load.done > 20)
    load.stop()
    assert load.bad == []


def test_explain_says_who_could_be_chosen_and_why_the_others_could_not(world):
    """Without sending anything; a drained, a down and a full engine."""
    p, d = [world.engine("prefill") for _ in range(2)], [world.engine("decode", token_delay=100) for _ in range(4)]
    pool = world.pool(p, [{"url": d[0].url, "max_inflight": 1}, {"url": d[1].url, "weight": 4}, d[2], d[3]], policy="least_loaded")
    r = world.router(pool).wait_all_up()
    said(r, "weight", d[0].url, "100")  # it is chosen first
    said(r, "drain", d[2].url)
    d[3].stop()
    wait("down", lambda: shown(r, d[3].url)["state"] == "down")
    c = r.open_stream(n=100)
    c.head()
    before = [len(e.requests()) for e in (*p, *d[:3])]
    got = json.loads(said(r, "explain", MODEL, "--json"))
    decode = {e["url"]: e for e in got["roles"]["decode"]["engines"]}
    assert (got["model"], got["pool"], got["roles"]["prefill"]["can_be_chosen"], got["roles"]["decode"]["can_be_chosen"]) == (MODEL, MODEL, 2, 1)
    assert [decode[e.url]["why"] for e in d] == ["full", None, "drained", "down"]
    assert decode[d[1].url]["can_be_chosen"] and (decode[d[1].url]["weight"], decode[d[1].url]["weighted_load"]) == (4, 0.25)
    assert (decode[d[0].url]["in_flight"], decode[d[0].url]["max_inflight"]) == (1, 1) and decode[d[3].url]["detail"]
    text = said(r, "explain", MODEL)
    assert "decode: policy least_loaded, load requests; 1 of 4 can be chosen\n" in text and f"  full          {d[0].url}  in-flight 1/1" in text
    assert [len(e.requests()) for e in (*p, *d[:3])] == before
    c.reset()
    assert r.ctl("explain", "none").stderr == "no pool serves the model none\n"
    prompt = world.file("prompt.txt")
    prompt.write_text("x" * 4000)
    assert json.loads(said(r, "explain", MODEL, "--prompt", str(prompt), "--json"))["tokens"] == 1000


def test_explain_with_groups_that_must_match(world):
    """The other model of the pool, and a group without an engine of the other role."""
    p, d = [world.engine("prefill") for _ in range(2)], [world.engine("decode") for _ in range(2)]
    a, b = [[{"url": e.url, "group": g} for e, g in zip(es, "ab")] for es in (p, d)]
    r = world.router(world.pool(a, b, pairing="require")).wait_all_up()
    said(r, "drain", d[0].url)
    got = json.loads(said(r, "explain", MODEL, "--json"))["roles"]
    assert [(e["url"], e["why"], e["group"]) for e in got["prefill"]["engines"]] == [(p[0].url, "group", "a"), (p[1].url, None, "b")]
    assert [(e["url"], e["why"]) for e in got["decode"]["engines"]] == [(d[0].url, "drained"), (d[1].url, None)]


def requests(r, *args):
    return json.loads(said(r, "requests", *args, "--json"))["requests"]


def test_where_a_request_is_now_and_how_it_ended(world):
    """In the queue, at its engines, in its answer; then among the last that have ended."""
    p, d = world.engine("prefill"), world.engine("decode", token_delay=20)
    r = world.router(world.pool([p], [{"url": d.url, "max_inflight": 1}], queue_size=10, queue_timeout="60s"), workers=2).wait_all_up()
    ids = [("X-Request-Id", "first")], [("X-Request-Id", "second")]
    first = r.open_stream(n=10000, headers=ids[0])
    first.head()
    second = r.open_stream(n=2, headers=ids[1], stream_options={"include_usage": True})
    wait("it to wait", lambda: [x["state"] for x in requests(r)] == ["answer", "queue"])
    one, two = requests(r)
    assert (one["id"], one["model"], one["pool"], one["prefill"], one["decode"], one["tries"]) == ("first", MODEL, MODEL, p.url, d.url, 0)
    assert (two["id"], two["model"], two["prefill"], two["decode"]) == ("second", MODEL, None, None)
    assert re.match(rf"answer for=\S+s total=\S+s req=first model={MODEL} pool={MODEL} prefill={p.url} decode={d.url} worker=\d\n$", said(r, "request", "first"))
    assert requests(r, "--slower", "1h") == []
    first.reset()
    assert second.head().status == 200 and list(second.events())
    second.close()
    wait("both to end", lambda: requests(r) == [])
    (end,) = json.loads(said(r, "request", "second", "--json"))["requests"]
    assert (end["state"], end["status"], end["reason"], end["prefill"], end["decode"], end["completion_tokens"]) == ("ended", 200, "ok", p.url, d.url, 2)
    assert end["queued_ms"] > 0 and end["total_ms"] >= end["first_ms"] and end["states"].startswith("hbp")
    assert " reason=client_gone " in said(r, "request", "first")
    assert {x["id"] for x in requests(r, "--slower", "0ms")} == {"first", "second"} and requests(r, "--slower", "1h") == []
    assert "no request third runs" in r.ctl("request", "third").stderr
    assert r.ctl("requests", "--slower", "soon").returncode == 2


def test_more_requests_than_are_listed_are_counted(world):
    r, _, d = world.pd(1, 1, workers=1, engine={"token_delay": 50}, shared_memory={"running_requests": 2, "recent_requests": 3})
    streams = [r.open_stream(n=100) for _ in range(3)]
    for c in streams:
        c.head()
    assert len(requests(r)) == 2 and r.metric("requests_unlisted_total") == 1
    for c in streams:
        c.reset()
    wait("all to end", lambda: r.in_flight() == 0)
    for _ in range(4):
        assert r.complete(max_tokens=1).status == 200
    assert len(requests(r, "--slower", "0ms")) == 3


def test_a_dead_workers_requests_are_not_listed(world):
    r, _, d = world.pd(1, 1, workers=1, engine={"token_delay": 50})
    assert r.complete(max_tokens=1, headers=[("X-Request-Id", "before")]).status == 200
    c = r.open_stream(n=100)
    c.head()
    assert [x["state"] for x in requests(r)] == ["answer"]
    r.murder(r.children()[0])
    wait("another worker", lambda: "state=ready" in r.ctl("workers").stdout and requests(r) == [])
    assert r.complete(max_tokens=1).status == 200
    assert " reason=ok " in said(r, "request", "before"), "its ring goes on"


class Screen:
    """pdctl top in a terminal of 80 x 24, or wider."""

    def __init__(self, world, r, columns=80):
        self.columns = columns
        self.tmux = ["tmux", "-S", str(world.file(f"tmux-{columns}")), "-f", "/dev/null"]
        # ncurses would believe pytest-xdist's LINES and COLUMNS more than the terminal
        env = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
        subprocess.run([*self.tmux, "new-session", "-d", "-x", str(columns), "-y", "24", f"{BIN}/pdctl -s {r.control} top; echo over; read x"], check=True,
                       env={**env, "TERM": "screen", "LC_ALL": "C.UTF-8"})

    def lines(self):
        text = subprocess.run([*self.tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(text) <= 24 and all(len(x) <= self.columns for x in text)
        return text

    def shows(self, what):
        return wait(lambda: f"{what!r} on the screen:\n" + "\n".join(self.lines()),
                    lambda: next((x for x in self.lines() if what in x), None))

    def keys(self, *keys):
        subprocess.run([*self.tmux, "send-keys", *keys], check=True)

    def close(self):
        subprocess.run([*self.tmux, "kill-server"], check=False)


def test_top_shows_engines_and_requests(world):
    r, p, d = world.pd(1, 2, engine={"token_delay": 50})
    c = r.open_stream(n=10000, headers=[("X-Request-Id", "held")])
    c.head()
    assert r.complete(max_tokens=1).status == 200
    busy = next(e for e in d if shown(r, e.url)["in_flight"])
    with contextlib.closing(Screen(world, r)) as s:
        s.shows("in flight 1  queue 0/0")
        row = s.shows(busy.url.partition("//")[2])
        assert "#####" in row and row.split()[-2:] == ["0", "0"], "the last columns fit: ejections and failures"
        assert s.lines()[2].split()[-4:] == ["gap", "gap99", "eje", "fail"] and s.shows(p[0].url.partition("//")[2]).startswith("pre up")
        s.keys("/")
        s.keys("prefill", "Enter")
        s.shows("filter: prefill  (Esc: none)  1 shown")
        assert not any(e.url.partition("//")[2] in x for e in d for x in s.lines())
        s.keys("Escape")
        s.shows("3 shown")
        s.keys("s")
        s.shows("sort: in-flight")
        s.keys("r")
        assert "answer" in s.shows("held")
        c.reset()
        s.shows("in flight 0 ")
        s.keys("q")
        s.shows("over")
    with contextlib.closing(Screen(world, r, 120)) as s:
        assert s.shows("tok/s p50ms").split()[:3] == ["pool", "rol", "state"] and s.shows("pre up").startswith(MODEL)
    assert r.ctl("top").stderr == "pdctl: top needs a terminal\n"


def test_the_log_level_is_set_without_the_file(world):
    """In all processes, also in workers that start later; a reload sets that of the file again."""
    r, _, _ = world.pd(workers=2, log_level="info")
    assert said(r, "log-level", "error") == "log_level error until the next reload; configured: info\n"
    assert "log_level=error by pdctl\n" in said(r, "status") and r.status()["log_level_set"] == "error"
    ended = len(r.lines("request"))
    killed = r.children()[0]
    r.murder(killed)
    wait("another worker", lambda: killed not in r.children() and r.ctl("workers").stdout.count("state=ready") >= 2)
    for _ in range(8):
        assert r.complete(max_tokens=1).status == 200
    assert len(r.lines("request")) == ended
    said(r, "log-level", "info")
    assert r.status()["log_level_set"] is None and r.complete(max_tokens=1).status == 200
    wait("its line", lambda: len(r.lines("request")) > ended)
    said(r, "log-level", "error")
    r.reload()
    assert r.status()["log_level_set"] is None and "by pdctl" not in said(r, "status")
    assert "error, warn, info or debug is needed, not loud" in r.ctl("log-level", "loud").stderr


def completed(line):
    """What bash offers behind a command line."""
    script = (f'source {ROOT}/etc/completion/pdctl.bash; COMP_WORDS=({line} "$1"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); '
              '_pdctl; printf "%s\\n" "${COMPREPLY[@]}"')
    return subprocess.run(["bash", "-c", script, "-", ""], capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_options_and_values():
    assert {"status", "drain", "weight", "explain", "requests"} <= set(completed("pdctl"))
    assert "--wait" in completed("pdctl drain") and "--when-up" not in completed("pdctl -s /x drain")
    assert completed("pdctl drain --role") == ["prefill", "decode"] and "debug" in completed("pdctl log-level")


def test_every_command_answers_in_json(world):
    r, _, d = world.pd(1, 2)
    for args in (["ping"], ["workers"], ["check"], ["config", "diff"], ["reload", "--dry-run"], ["drain", d[0].url, "--wait"],
                 ["undrain", d[0].url], ["weight", d[0].url, "2"], ["log-level", "debug"], ["version"], ["reload"]):
        got = json.loads(said(r, *args, "--json"))
        assert got["error"] is None and isinstance(got["lines"], list), got
    assert json.loads(said(r, "check", "--json"))["lines"] == ["ok"]
    assert json.loads(said(r, "status", "--json"))["fleet"]["endpoints"]
    failed = json.loads(said(r, "drain", "h:1", "--json", code=1))
    assert failed["error"].startswith("no such endpoint: h:1") and failed["lines"] == []
