"""Upgrade storms: an upgrade every few seconds, in turn to a program with another layout of the shared memory, under streams of
1 to 60 s and short requests, on a pool of nixl, of sglang and of lmcache.  No request fails, no stream is cut, no connection is reset.

PDR_UPGRADE_S is how long the storm lasts; `make upgrade-storm SECONDS=120` prints its figures, which are in tests/bench/README.md."""
import os
import random
import shutil
import signal
import threading
import time

import pytest

import expect
from procs import BIN, ROOT, Load, free_port, tree, wait
from raw import text_of
from test_upgrade import Instances

pytestmark = pytest.mark.usefixtures("reaper")

STORM_S = float(os.environ.get("PDR_UPGRADE_S", "3"))
EVERY_S = 5 if STORM_S > 30 else 1
LONGEST_S = 60 if STORM_S > 30 else 2
STREAMS = 30 if STORM_S > 30 else 10
TOKENS_A_SECOND = 20
MODELS = ["nixl", "sglang", "lmcache"]
OTHER_LAYOUT = ROOT / "build" / "layout" / "pdrouter"  # of `make upgrade-storm`


def fleet(world):
    port = free_port()
    slow = {"token_delay": 1000 // TOKENS_A_SECOND}
    of = {m: {"model": m, **({} if m == "nixl" else {"handshake": m}), **slow} for m in MODELS}
    p = {m: world.engine("prefill", **of[m], **({"proxy": f"127.0.0.1:{port}"} if m == "lmcache" else {})) for m in MODELS}
    d = {m: world.engine("decode", **of[m], **({"receiver_ports": "0", "skip_last": 1} if m == "lmcache" else {})) for m in MODELS}
    receiver = {"url": d["lmcache"].url, "receiver_init_port": d["lmcache"].ports["init"],
                "receiver_alloc_port": d["lmcache"].ports["alloc"]}
    pools = [world.pool([p[m]], [receiver if m == "lmcache" else d[m]], connector=m, models=[m], name=m) for m in MODELS]
    return Instances(world, *pools, lmcache={"listen": f"tcp://127.0.0.1:{port}"}, workers=2, drain_timeout="2m",
                     upgrade_trial="1s" if STORM_S > 30 else "100ms", state_file=str(world.dir / "state.json"))


class Streams(Load):
    """Each thread has one stream after the other."""

    def __init__(self, r):
        self.r, self.rnd, self.lengths = r, random.Random(5), []
        self.until = time.monotonic() + STORM_S
        super().__init__(STREAMS, self.one)

    def one(self, i):
        seconds = self.rnd.uniform(1, LONGEST_S)
        if time.monotonic() > self.until:
            self.stop_now.set()
            return
        prompt, n = f"stream {i} {seconds}", int(seconds * TOKENS_A_SECOND)
        with self.r.client(timeout=30) as c:
            c.request("POST", "/v1/completions", {"model": MODELS[i % 3], "prompt": prompt, "max_tokens": n, "stream": True})
            events = list(c.events())
            assert c.answer.status == 200 and events[-1].data == "[DONE]" and text_of(events) == expect.text(prompt, n)
        self.lengths.append(seconds)


def short(r, i):
    prompt = f"short {i} {time.monotonic()}"
    a = r.complete(prompt, model=MODELS[i % 3], max_tokens=2)
    assert a.status == 200 and a.json()["choices"][0]["text"] == expect.text(prompt, 2), a.body
    time.sleep(0.05)


def test_upgrades_lose_nothing(world):
    i = fleet(world)
    programs = [BIN / "pdrouter", OTHER_LAYOUT if OTHER_LAYOUT.exists() else BIN / "pdrouter"]
    streams, shorts = Streams(i.r), Load(6, lambda n: short(i.r, n))
    upgrades, most, took = 0, 0, []
    while time.monotonic() < streams.until - EVERY_S:
        shutil.copy(programs[(upgrades + 1) % 2], i.path.with_suffix(".new"))
        i.path.with_suffix(".new").rename(i.path)
        at = time.monotonic()
        i.r.kill(signal.SIGUSR2)
        i.follow()
        took.append(time.monotonic() - at)
        upgrades += 1
        threading.Event().wait(EVERY_S - took[-1] if took[-1] < EVERY_S else 0)
        most = max(most, i.r.metric("old_instances"))
    for t in streams.threads:
        t.join()
    shorts.stop()
    print(f"{upgrades} upgrades in {STORM_S:g} s, each {1000 * sum(took) / len(took):.0f} ms (at most {1000 * max(took):.0f}); "
          f"{len(streams.lengths)} streams of {min(streams.lengths):.1f} to {max(streams.lengths):.1f} s, {shorts.done} short requests, "
          f"at most {most:g} older instances; failed: {len(streams.bad) + len(shorts.bad)}")
    assert streams.bad == [] and shorts.bad == []
    assert "not all notices of its KV came" not in i.r.log() and i.r.metric("upgrades_failed_total") == 0
    wait("the older instances to go", lambda: i.r.metric("old_instances") == 0)
    assert upgrades >= 1 and len(tree(i.r.pid)) == 3
