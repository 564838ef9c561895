"""state_file: a drain outlives the master, however it ends, and what is wrong with the file is said and never fatal."""
import json
import random
import signal
import subprocess
import threading
import time

import pytest

from nameserver import NameServer
from procs import BIN, SLOW, Load, again, wait
from test_discovery import P, at_one_port, dns_router, entries, file_router, replace


@pytest.fixture
def path(world):
    return world.dir / "state.json"


def drained(r):
    return sorted(e["url"] for e in r.status()["fleet"]["endpoints"] if e["drained"])


def said(r, *args):
    done = r.ctl(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def served(r):
    try:
        assert r.complete(max_tokens=1).status == 200
    except ConnectionRefusedError:  # it does not listen yet
        time.sleep(0.005)
        raise


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_no_request_after_a_restart_under_load(world, path, sig):
    r, p, d = world.pd(2, 2, workers=2, pool={"policy": "round_robin"}, state_file=str(path))
    assert said(r, "drain", d[0].url).endswith("until `pdctl undrain` or its removal from the configuration.\n")
    said(r, "drain", p[0].url)
    asked = [len(e.requests()) for e in (p[0], d[0])]
    r = again(world, r, sig, wait_for=None)
    load = Load(4, lambda _: served(r))
    r.wait_for("ready")
    wait("requests", lambda: load.done > 100)
    load.stop()
    assert {what for what, _ in load.bad} <= {"ConnectionRefusedError"}, load.bad[-3:]
    assert [len(e.requests()) for e in (p[0], d[0])] == asked
    assert drained(r) == sorted([p[0].url, d[0].url])
    assert len(r.lines("endpoint is still drained by pdctl")) == 2
    said(r, "undrain", d[0].url)
    r = again(world, r)
    assert drained(r) == [p[0].url]


def test_roles_and_pools_are_kept_one_by_one(world, path):
    e = world.script(models=["a", "b"])
    pools = [{**world.pool([e], [e]), "name": "a", "models": ["a"]}, {**world.pool([e], [e]), "name": "b", "models": ["b"]}]
    r = world.router(*pools, state_file=str(path), wait_for="live")
    said(r, "drain", e.url, "--pool", "b", "--role", "decode")
    said(r, "drain", e.url, "--pool", "a", "--role", "prefill")
    assert json.loads(path.read_text()) == {"pdrouter_state": 1, "drained": [
        {"pool": "a", "role": "prefill", "url": e.url}, {"pool": "b", "role": "decode", "url": e.url}]}
    r = again(world, r, wait_for="live")
    assert sorted((x["pool"], x["role"]) for x in r.status()["fleet"]["endpoints"] if x["drained"]) == [("a", "prefill"), ("b", "decode")]


def test_removed_while_pdrouter_does_not_run_it_is_forgotten(world, path):
    """As by a reload."""
    r, p, d = world.pd(1, 2, state_file=str(path))
    said(r, "drain", d[0].url)
    r = again(world, r, pools=[world.pool(p, d[1:])])
    (line,) = r.lines("drain forgotten")
    assert (line["url"], line["reason"]) == (d[0].url, "it is no longer configured")
    r = again(world, r, pools=[world.pool(p, d)])
    assert drained(r) == []


@pytest.mark.parametrize("text, why", [
    (b"{\"pdrouter_state\": 1, \"drained\": [", "no JSON object"), (b"\0" * 100, "no JSON object"), (b"{" * 2_000_000, "too large"),
    (b"{\"pdrouter_state\": 7}", "newer version"), (b"{\"pdrouter_state\": 1, \"drained\": [{}]}", "lacks a url")],
    ids=["cut", "zeros", "large", "newer", "entry"])
def test_a_broken_file_is_set_aside(world, path, text, why):
    path.write_bytes(text)
    r, _, d = world.pd(state_file=str(path), wait_for="live")
    (line,) = r.lines("state_file cannot be used: no endpoint is drained")
    assert line["level"] == "warn" and why in line["error"] and line["set_aside_as"] == f"{path}.broken"
    assert path.with_name("state.json.broken").read_bytes() == text and not path.exists()
    assert r.metric("state_file_failures_total") == 1 and drained(r) == []
    said(r, "drain", d[0].url)
    r = again(world, r, wait_for="live")
    assert drained(r) == [d[0].url]


def test_a_file_that_cannot_be_written(world, path):
    """Said once in the log, in each answer and in the status; tried again until it works."""
    r, p, d = world.pd(1, 2, state_file=str(path))
    in_the_way = path.with_name("state.json.new")
    in_the_way.mkdir()
    for e in d:
        assert "The state_file cannot be written (Is a directory): after a restart of pdrouter the former drains hold.\n" in said(r, "drain", e.url)
    assert f"state_file {path} cannot be written: Is a directory\n" in said(r, "status")
    assert r.status()["fleet"]["state_file"] == {"path": str(path), "error": "Is a directory"}
    assert r.metric("state_file_failures_total") == 2
    assert len(r.lines("state_file not written: drains will not outlive this process")) == 1
    in_the_way.rmdir()
    assert "cannot be written" not in said(r, "undrain", d[1].url)
    assert r.status()["fleet"]["state_file"]["error"] is None and len(r.lines("state_file written again")) == 1
    r = again(world, r)
    assert drained(r) == [d[0].url]


def test_a_second_pdrouter_with_the_file_does_not_write_it(world, path):
    r, p, d = world.pd(1, 2, state_file=str(path))
    said(r, "drain", d[0].url)
    before = path.read_bytes()
    other = world.router(world.pool(p, d), state_file=str(path))
    assert drained(other) == [d[0].url], "it is not asked by either"
    assert "another process has this state_file" in said(other, "undrain", d[0].url)
    assert path.read_bytes() == before
    r = again(world, r)
    assert drained(r) == [d[0].url] and "another process" not in said(r, "status")


def test_a_found_engine_comes_back_drained(world, path):
    """DNS does not name an engine that is restarted during its drain."""
    names = NameServer()
    p, d = at_one_port(world, "prefill", ["127.0.0.2", "127.0.0.3"]), world.engine("decode")
    names.set(P, "127.0.0.2", "127.0.0.3")
    r = dns_router(world, names, [d], [{"name": P, "port": p[0].port, "role": "prefill"}], state_file=str(path))
    wait("both", lambda: len(r.status()["fleet"]["endpoints"]) == 3)
    said(r, "drain", p[0].url)
    names.set(P, "127.0.0.3")
    wait("away", lambda: r.status()["fleet"]["drained_away"])
    assert f"drained and away: {p[0].url}, prefill of pool " in said(r, "status")
    r = again(world, r)
    assert [e["url"] for e in r.status()["fleet"]["drained_away"]] == [p[0].url] and drained(r) == []
    names.set(P, "127.0.0.2", "127.0.0.3")
    wait("back", lambda: drained(r) == [p[0].url])
    assert r.complete(max_tokens=1).status == 200 and p[0].requests() == []
    names.close()


def test_an_engine_of_a_watched_file_comes_back_drained(world, path):
    eps, (p, d) = world.file("endpoints", "yaml"), [[world.engine(role) for _ in range(2)] for role in ("prefill", "decode")]
    r = file_router(world, eps, *p, *d, state_file=str(path)).wait_all_up()
    said(r, "drain", p[0].url)
    replace(eps, entries(p[1], *d))
    wait("away", lambda: r.status()["fleet"]["drained_away"])
    r = again(world, r)
    replace(eps, entries(*p, *d))
    wait("back", lambda: drained(r) == [p[0].url])
    assert r.complete(max_tokens=1).status == 200 and p[0].requests() == []


class Operator:
    """Drains and undrains engines without a pause, and knows what each answer promises."""

    def __init__(self, r, urls, drained):
        self.r, self.urls, self.known = r, urls, set(drained)
        self.under_way = None  # the state after a command that is not answered yet
        self.answers = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        rnd = random.Random(len(self.r.log()))
        while True:
            url = rnd.choice(self.urls)
            self.under_way = self.known ^ {url}
            done = subprocess.run([BIN / "pdctl", "-s", self.r.control, "undrain" if url in self.known else "drain", url],
                                  capture_output=True, check=False)
            if done.returncode != 0:
                return  # the master is dead
            self.known, self.under_way = self.under_way, None
            self.answers += 1


def test_kill_9_at_any_moment_leaves_the_old_state_or_the_new_one(world, path):
    """What was answered is kept; what was under way is done or not."""
    urls = [f"http://127.0.0.1:{port}" for port in range(1, 9)]
    rnd, known = random.Random(7), set()
    r = world.router(world.pool(urls[:4], urls[4:]), state_file=str(path), wait_for="live")
    for _ in range(12):
        o = Operator(r, urls, known)
        wait("answers", lambda o=o: o.answers > 1)
        time.sleep(rnd.uniform(0, 0.02) * SLOW)
        r.kill(signal.SIGKILL)
        o.thread.join()
        r = again(world, r, signal.SIGKILL, wait_for="live")
        known = set(drained(r))
        assert known in (o.known, o.known if o.under_way is None else o.under_way)
    assert r.metric("state_file_failures_total") == 0
    assert not path.with_name("state.json.broken").exists()
