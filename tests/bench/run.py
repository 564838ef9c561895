#!/usr/bin/env python3
"""`make bench`: what the router costs, beside nginx and haproxy in the same run.  See README.md."""
import argparse
import json
import resource
import subprocess
import sys
import time

from stage import BIN, PACE_MS, Stage, post, pss_kib, tree

PROXIES = ("router", "nginx", "haproxy", "tcp")  # the last one: haproxy, which reads no HTTP
FIGURES = ["idle", "requests", "paced", "burst", "unpaced", "first_event", "delay", "tls_requests", "tls_paced",
           "tls_delay", "handshakes"]  # methods of Bench
TLS = {"tls_requests", "tls_paced", "tls_delay", "handshakes"}
IDLE = {"": 2000, ", 4,000": 4000}  # streams, and what their figures' names end with; 4,096 connections wait at most
PACED = 64
WINDOW_S = 2.5
BUDGET_S = 200  # no new round is begun after that

# figure, its unit, whom the router is held against, at most so many times (or so much)
MARKS = {
    "request of 1 KiB": ("us of CPU", "nginx", 3.0),
    "request of 128 KiB": ("us of CPU", "nginx", None),
    "event, paced": ("us of CPU", "nginx", 1.5),
    "event, burst": ("us of CPU", "nginx", 1.5),
    "event, unpaced": ("us of CPU", "nginx", None),
    "idle stream": ("KiB of PSS", None, 16.0),
    "idle stream, 4,000": ("KiB of PSS", None, 16.0),
    "opened": ("ms", None, None),
    "opened, 4,000": ("ms", None, None),
    "first event, p50": ("us added", None, None),
    "first event, p99": ("us added", None, None),
    "event delay, p50": ("us added", None, None),
    "TLS, 1 KiB": ("us of CPU", "nginx", 3.0),
    "TLS, 128 KiB": ("us of CPU", "nginx", None),
    "TLS, event, paced": ("us of CPU", "nginx", 1.5),
    "TLS, event delay, p50": ("us added", "haproxy", 1.2),
    "TLS, full handshake": ("us of CPU", "nginx", 1.5),
    "TLS, resumed": ("us of CPU", "nginx", 1.5),
}


def body(lane, size=1024, stream=False, tokens=8):
    """A chat request of exactly `size` bytes."""
    doc = {"model": lane, "messages": [{"role": "user", "content": ""}], "stream": stream, "max_tokens": tokens}
    room = size - len(json.dumps(doc))
    doc["messages"][0]["content"] = ("Tell me about routers. " * (room // 23 + 1))[:room]
    return json.dumps(doc)


class Bench:
    def __init__(self, stage, values):
        self.stage, self.got, self.nfiles = stage, values, 0
        self.pids = {who: ",".join(map(str, tree(pid))) for who, pid in stage.pid.items()}

    def args(self, who, lane, text, **options):
        self.nfiles += 1
        path = self.stage.dir / f"body{self.nfiles}"
        path.write_text(text)
        args = [BIN / "pdload", "--port", self.stage.ports[who][lane], "--body", path]
        if who in self.pids:
            args += ["--pids", self.pids[who]]
        for k, v in options.items():
            args += [f"--{k.replace('_', '-')}"] + ([] if v is True else [v])
        return [str(a) for a in args]

    def load(self, *args, **options):
        p = subprocess.run(self.args(*args, **options), stdout=subprocess.PIPE, timeout=60)
        if p.returncode != 0:
            raise SystemExit(f"bench: the load against {args[0]} failed (above); "
                             f"{(self.stage.dir / 'router.err').read_text(errors='replace')[-1500:]}")
        return json.loads(p.stdout)

    def note(self, figure, who, value):
        self.got.setdefault(figure, {}).setdefault(who, []).append(value)

    def best(self, figure, who):
        return min(self.got[figure][who]) if who in self.got.get(figure, {}) else None

    def who(self, lane):
        """Those that serve it."""
        return [who for who in PROXIES if lane in self.stage.ports[who]]

    def requests(self, figure="request of", lane="fast", **options):
        for size, n in ((1, 3000), (128, 300)):
            for who in self.who(lane):
                r = self.load(who, lane, body("fast", size << 10), conns=32, requests=n, warm=n // 5, **options)
                self.note(f"{figure} {size} KiB", who, r["cpu_us"] / r["requests"])

    def paced(self, figure="event, paced", lane="paced", **options):
        tokens = int((WINDOW_S + 1.0) * 1000 / PACE_MS)
        for who in self.who(lane):
            r = self.load(who, lane, body("paced", stream=True, tokens=tokens), conns=PACED, window=WINDOW_S,
                          events=tokens + 2, **options)  # the role, the tokens, [DONE]
            if r["events"] < 0.9 * PACED * WINDOW_S * 1000 / PACE_MS:
                raise SystemExit(f"bench: only {r['events']} events came in {WINDOW_S} s")
            self.note(figure, who, r["cpu_us"] / r["events"])

    def tls_requests(self):
        self.requests("TLS,", "tls fast", tls=True)

    def tls_paced(self):
        self.paced("TLS, event, paced", "tls paced", tls=True)

    def handshakes(self):
        """One after the other, without a request; each ends with close_notify of both sides."""
        for who in self.who("tls fast"):
            for figure, options in (("TLS, full handshake", {}), ("TLS, resumed", {"resume": True})):
                r = self.load(who, "tls fast", "", tls=True, shakes=500, **options)
                self.note(figure, who, r["cpu_us"] / r["requests"])

    def burst(self):
        """64 streams, 64 events of each at once, in one read of the proxy's."""
        engine = self.stage.direct["fast"]
        for who in PROXIES:
            post(engine, "/sim/pause_stream", "{}")
            r = self.load(who, "stream", body("fast", stream=True, tokens=100000), conns=64, step_port=engine,
                          steps=15, step_size=64, freeze=True)
            self.note("event, burst", who, r["cpu_us"] / r["events"])
            post(engine, "/sim/reset", "{}")

    def unpaced(self):
        """As fast as the engine can; how many events a read finds is up to the scheduler."""
        for who in PROXIES:
            r = self.load(who, "stream", body("fast", stream=True, tokens=2000), conns=16, requests=32, warm=16,
                          events=2002)
            self.note("event, unpaced", who, r["cpu_us"] / r["events"])

    def first_event(self):
        for who in ("direct",) + PROXIES:
            r = self.load(who, "stream", body("fast", stream=True, tokens=4), conns=32, requests=600, warm=50,
                          rate=200, events=6)
            self.note("first event, p50", who, r["first_us"]["p50"])
            self.note("first event, p99", who, r["first_us"]["p99"])

    def delay(self, figure="event delay, p50", lane="stream", **options):
        """Eight streams stand still; each step lets the engine write one event to each.  The direct call is plain."""
        engine = self.stage.direct["fast"]
        for who in ["direct", *self.who(lane)]:
            post(engine, "/sim/pause_stream", "{}")
            how = (lane, options) if who in PROXIES else ("stream", {})
            r = self.load(who, how[0], body("fast", stream=True, tokens=100000), conns=8, step_port=engine, steps=200, **how[1])
            self.note(figure, who, r["step_us"]["p50"])
            post(engine, "/sim/reset", "{}")

    def tls_delay(self):
        self.delay("TLS, event delay, p50", "tls stream", tls=True)

    def idle(self, n, suffix):
        """Streams are opened at once; the time until the last one has its first event."""
        for who in PROXIES:
            self.load(who, "idle", body("idle", tokens=1), conns=64, requests=200)
            before = pss_kib(self.stage.pid[who])
            args = self.args(who, "idle", body("idle", stream=True, tokens=16), conns=n, hold=True)
            begun = time.monotonic()
            p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                if b"held" not in p.stdout.readline():
                    raise SystemExit(f"bench: {n} streams through {who} could not be opened")
                self.note("opened" + suffix, who, (time.monotonic() - begun) * 1000)
                time.sleep(0.5)
                self.note("idle stream" + suffix, who, (pss_kib(self.stage.pid[who]) - before) / n)
            finally:
                p.stdin.close()
                p.wait()


def table(bench):
    """Prints it; returns the names of the figures that miss their mark."""
    missed = []
    print(f"\n{'figure':<22} {'unit':<11}" + "".join(f"{who:>9}" for who in PROXIES) + "   router/other   mark")
    for figure, (unit, against, mark) in MARKS.items():
        v = {who: bench.best(figure, who) for who in PROXIES}
        if v["router"] is None:
            continue
        if unit == "us added":
            v = {who: v[who] - bench.best(figure, "direct") for who in v if v[who] is not None}
        other = v[against or "nginx"]
        ratio = v["router"] / other if other > 0 else 0
        outcome = ""
        if mark is not None:
            ok = (ratio if against else v["router"]) <= mark
            outcome = f"{'ok  ' if ok else 'MISS'} at most {mark:g} {f'x {against}' if against else unit}"
            if not ok:
                missed.append(figure)
        print(f"{figure:<22} {unit:<11}" + "".join(f"{v[who]:9.2f}" if v.get(who) is not None else f"{'-':>9}" for who in PROXIES) +
              f"   {ratio:12.2f}   {outcome}")
    return missed


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--only", default=",".join(FIGURES), help="some of " + ",".join(FIGURES))
    ap.add_argument("--json", help="file for all values of all rounds")
    opt = ap.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fds = min(hard, 20000)
    begun = time.monotonic()
    wanted = opt.only.split(",")
    if not set(wanted) <= set(FIGURES):
        ap.error(f"--only: {opt.only}")
    values = {}
    if "idle" in wanted:
        wanted.remove("idle")
        for suffix, n in IDLE.items():
            idle = min(n, (fds - 400) // 4)
            if idle < n:
                print(f"only {hard} file descriptors are allowed: {idle} idle streams instead of {n}")
            with Stage(fds=fds) as stage:  # processes of their own: memory that was freed before would be used again
                Bench(stage, values).idle(idle, suffix)
    with Stage(fds=fds, tls=any(name in TLS for name in wanted)) as stage:
        bench = Bench(stage, values)
        rounds = 0
        while rounds < opt.rounds and time.monotonic() - begun < BUDGET_S:
            for name in wanted:
                getattr(bench, name)()
            rounds += 1
            print(f"round {rounds} of {opt.rounds}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    missed = table(bench)
    print(f"\nthe lowest of {rounds} rounds; two legs through the router, one through nginx and haproxy; one worker each")
    if opt.json:
        with open(opt.json, "w") as f:
            json.dump(bench.got, f, indent=1)
    if missed:
        print(f"missed: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
