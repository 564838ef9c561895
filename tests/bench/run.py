#!/usr/bin/env python3
"""`make bench`: what the router costs, beside nginx, haproxy and other routers in the same run.  See README.md."""
import argparse
import json
import subprocess
import sys
import time
from typing import NamedTuple, Optional

import connect
import peers
from loads import Loads, body, raise_files
from stage import PACE_MS, Stage, post, pss_kib

PROXIES = ["router", "nginx", "haproxy", "tcp"]  # the last one: haproxy, which reads no HTTP
FIGURES = ["connections", "idle", "requests", "shakes", "paced", "burst", "resume", "unpaced", "first_event", "low_rate", "delay",
           "tls_requests", "tls_paced", "tls_delay", "handshakes"]  # of main(); methods of Bench
TLS = {"tls_requests", "tls_paced", "tls_delay", "handshakes"}
ALONE = {"shakes", "resume"}  # need lanes that the router alone serves
IDLE = {"": 2000, ", 5,000": 5000, ", 10,000": 10000}  # streams, and what their figures' names end with
OPENINGS = 2
PACED = 64
WINDOW_S = 2.5
LOW_RATE = 50  # requests a second
BUDGET_S, BUDGET_PEERS_S = 330, 420  # no new round is begun after that
FILES = 32000


class Most(NamedTuple):
    """At most so many times what another has, or so much."""
    value: float
    against: Optional[str] = None

    def met(self, v):
        return self.against is not None and v.get(self.against) is None or v["router"] <= self.of(v)

    def of(self, v):
        return self.value * v[self.against] if self.against else self.value

    def __str__(self):
        return f"{self.value:g} x {self.against}" if self.against else f"{self.value:g}"


class Figure(NamedTuple):
    unit: str
    mark: Optional[Most] = None   # what is wanted: a miss is shown
    bound: Optional[Most] = None  # what must not be lost: a miss makes the exit code 1


TABLE = {
    "request of 1 KiB": Figure("us of CPU", Most(1.45, "nginx"), Most(3.0, "nginx")),
    "request of 128 KiB": Figure("us of CPU", Most(1.6, "nginx")),
    "SGLang, 1 KiB": Figure("us of CPU"),
    "LMCache, 1 KiB": Figure("us of CPU"),
    "event, paced": Figure("us of CPU", Most(1.0, "tcp"), Most(1.5, "nginx")),
    "event, burst": Figure("us of CPU", Most(0.85, "haproxy"), Most(1.5, "nginx")),
    "event, burst, resume": Figure("us of CPU"),
    "event, unpaced": Figure("us of CPU"),
    "idle stream": Figure("KiB of PSS", Most(3.4), Most(16)),
    "idle stream, 5,000": Figure("KiB of PSS", Most(3.4), Most(16)),
    "idle stream, 10,000": Figure("KiB of PSS", None, Most(16)),
    "opened": Figure("ms"),
    "opened, 5,000": Figure("ms", Most(300)),
    "opened, 10,000": Figure("ms"),
    "first event, p50": Figure("us added"),
    "first event, p99": Figure("us added"),
    "low rate, p50": Figure("us added", Most(200)),
    "low rate, p99": Figure("us added"),
    "event delay, p50": Figure("us added"),
    "TLS, 1 KiB": Figure("us of CPU", None, Most(3.0, "nginx")),
    "TLS, 128 KiB": Figure("us of CPU"),
    "TLS, event, paced": Figure("us of CPU", None, Most(1.5, "nginx")),
    "TLS, event delay, p50": Figure("us added", None, Most(1.2, "haproxy")),
    "TLS, full handshake": Figure("us of CPU", None, Most(1.5, "nginx")),
    "TLS, resumed": Figure("us of CPU", None, Most(1.5, "nginx")),
}
PLOTTED = ("request of 1 KiB", "request of 128 KiB", "event, paced", "event, burst")


class Bench(Loads):
    failed = []  # what went wrong and did not end the run

    def who(self, lane):
        """Those that serve it."""
        return [who for who in self.stage.ports if who != "direct" and lane in self.stage.ports[who]]

    def requests(self, figure="request of", lane="fast", **options):
        for size, n in ((1, 3000), (128, 300)):
            for who in self.who(lane):
                r = self.load(who, lane, body("fast", size << 10), conns=32, requests=n, warm=n // 5, **options)
                self.note(f"{figure} {size} KiB", who, r["cpu_us"] / r["requests"])

    def shakes(self):
        for figure, lane in (("SGLang, 1 KiB", "sglang"), ("LMCache, 1 KiB", "lmcache")):
            r = self.load("router", lane, body(lane), conns=32, requests=3000, warm=600)
            self.note(figure, "router", r["cpu_us"] / r["requests"])

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

    def burst(self, figure="event, burst", lane="stream", model="fast"):
        """64 streams, 64 events of each at once, in one read of the proxy's."""
        for who in self.who(lane):
            engine = self.stage.stepped(who)
            post(engine, "/sim/pause_stream", "{}")
            r = self.load(who, lane, body(model, stream=True, tokens=100000), conns=64, step_port=engine,
                          steps=15, step_size=64, freeze=True)
            self.note(figure, who, r["cpu_us"] / r["events"])
            post(engine, "/sim/reset", "{}")

    def resume(self):
        self.burst("event, burst, resume", "resume", "resume")

    def unpaced(self):
        """As fast as the engine can; how many events a read finds is up to the scheduler."""
        for who in self.who("stream"):
            r = self.load(who, "stream", body("fast", stream=True, tokens=2000), conns=16, requests=32, warm=16,
                          events=2002)
            self.note("event, unpaced", who, r["cpu_us"] / r["events"])

    def first_event(self):
        for who in ["direct", *self.who("stream")]:
            r = self.load(who, "stream", body("fast", stream=True, tokens=4), conns=32, requests=600, warm=50,
                          rate=200, events=6)
            self.note("first event, p50", who, r["first_us"]["p50"])
            self.note("first event, p99", who, r["first_us"]["p99"])

    def low_rate(self):
        """Each request is due at its time, whether the former ones are answered or not, and counts from then on."""
        for who in ["direct", *self.who("fast")]:
            r = self.load(who, "fast", body("fast", 256), conns=16, requests=100, warm=5, rate=LOW_RATE)
            self.note("low rate, p50", who, r["whole_us"]["p50"])
            self.note("low rate, p99", who, r["whole_us"]["p99"])

    def delay(self, figure="event delay, p50", lane="stream", **options):
        """Eight streams stand still; each step lets the engine write one event to each.  The direct call is plain."""
        for who in ["direct", *self.who(lane)]:
            engine = self.stage.stepped(who)
            post(engine, "/sim/pause_stream", "{}")
            how = (lane, options) if who != "direct" else ("stream", {})
            r = self.load(who, how[0], body("fast", stream=True, tokens=100000), conns=8, step_port=engine, steps=200, **how[1])
            self.note(figure, who, r["step_us"]["p50"])
            post(engine, "/sim/reset", "{}")

    def tls_delay(self):
        self.delay("TLS, event delay, p50", "tls stream", tls=True)

    def idle(self, n, suffix):
        """Streams are opened at once; the time until the last one has its first event."""
        for who in self.who("idle"):
            self.load(who, "idle", body("idle", tokens=1), conns=64, requests=200)
            before = settled_kib(*self.stage.roots(who))
            args = self.args(who, "idle", body("idle", stream=True, tokens=16), conns=n, hold=True)
            begun = time.monotonic()
            p = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                if b"held" not in p.stdout.readline():
                    self.failed.append(f"{n} streams through {who} could not be opened")
                    continue
                self.note("opened" + suffix, who, (time.monotonic() - begun) * 1000)
                time.sleep(0.5)
                self.note("idle stream" + suffix, who, (pss_kib(*self.stage.roots(who)) - before) / n)
            finally:
                p.stdin.close()
                p.wait()


def settled_kib(*pids):
    """The PSS when it stands still: the router's master reads its whole segment for the first time in two seconds."""
    kib = pss_kib(*pids)
    for _ in range(10):
        time.sleep(0.5)
        before, kib = kib, pss_kib(*pids)
        if abs(kib - before) < 64:
            break
    return kib


def outcome(most, v):
    return "" if most is None else f"{'ok  ' if most.met(v) else 'MISS'} {most}"


def table(bench, proxies):
    """Prints it; returns the names of the figures that miss their mark, and of those above their bound."""
    missed, lost = [], []
    print(f"\n{'figure':<22} {'unit':<11}" + "".join(f"{who[:13]:>{max(9, len(who[:13]) + 1)}}" for who in proxies) +
          f"   router/nginx   {'mark':<20}bound")
    for name, figure in TABLE.items():
        v = {who: bench.best(name, who) for who in proxies}
        if v["router"] is None:
            continue
        if figure.unit == "us added":
            v = {who: v[who] - bench.best(name, "direct") if v[who] is not None else None for who in v}
        ratio = f"{v['router'] / v['nginx']:.2f}" if v.get("nginx") else "-"
        missed += [name] if figure.mark and not figure.mark.met(v) else []
        lost += [name] if figure.bound and not figure.bound.met(v) else []
        print(f"{name:<22} {figure.unit:<11}" +
              "".join((f"{v[who]:.2f}" if v[who] is not None else "-").rjust(max(9, len(who[:13]) + 1)) for who in proxies) +
              f"   {ratio:>12}   {outcome(figure.mark, v):<20}{outcome(figure.bound, v)}".rstrip())
    return missed, lost


def write_plot(bench, proxies, path):
    """Data for run_plot.gp: a row for each proxy, a column for each figure."""
    with open(path, "w") as f:
        print("proxy", *(f'"{name}"' for name in PLOTTED), sep="\t", file=f)
        for who in proxies:
            values = [bench.best(name, who) for name in PLOTTED]
            print(who, *(f"{x:.3f}" if x is not None else "NaN" for x in values), sep="\t", file=f)


def idle_figures(values, proxies, fds):
    for suffix, n in IDLE.items():
        idle = min(n, (fds - 2000) // 3)  # a client's, and for a moment one for each leg
        if idle < n:
            print(f"only {fds} file descriptors are allowed: {idle} idle streams instead of {n}")
        for _ in range(OPENINGS):
            # processes of their own: freed memory would be used again, and haproxy keeps streams that clients have left
            with Stage(proxies, fds=fds, alone=len(proxies) > len(PROXIES)) as stage:
                Bench(stage, values).idle(idle, suffix)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--only", default=",".join(FIGURES), help="some of " + ",".join(FIGURES))
    ap.add_argument("--peers", action="store_true", help="beside other routers, too, which pip installs")
    ap.add_argument("--json", help="file for all values of all rounds")
    ap.add_argument("--plot", help="file for what run_plot.gp draws")
    opt = ap.parse_args()
    wanted = opt.only.split(",")
    if not set(wanted) <= set(FIGURES):
        ap.error(f"--only: {opt.only}")
    fds = raise_files(FILES)
    proxies = PROXIES + (peers.install() if opt.peers else [])
    begun, values, bursts = time.monotonic(), {}, []
    if "connections" in wanted:
        wanted.remove("connections")
        bursts = [(workers, connect.measure(workers, 2, min(fds, 20000))) for workers in (2, 8)]
    if "idle" in wanted:
        wanted.remove("idle")
        idle_figures(values, proxies, fds)
    with Stage(proxies, fds=min(fds, 20000), tls=any(name in TLS for name in wanted),
               alone=len(proxies) > len(PROXIES) or any(name in ALONE for name in wanted)) as stage:
        bench = Bench(stage, values)
        rounds, budget = 0, BUDGET_PEERS_S if opt.peers else BUDGET_S
        while wanted and rounds < opt.rounds and time.monotonic() - begun < budget:
            for name in wanted:
                getattr(bench, name)()
            rounds += 1
            print(f"round {rounds} of {opt.rounds}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    missed, lost = table(bench, proxies)
    print(f"\nthe lowest of {rounds} rounds; two legs through routers, one through nginx and haproxy; one worker each")
    if bursts:
        missed += connect.table(bursts)
    if opt.json:
        with open(opt.json, "w") as f:
            json.dump(bench.got, f, indent=1)
    if opt.plot:
        write_plot(bench, proxies, opt.plot)
    if missed:
        print(f"marks that are missed (the exit code does not count them): {', '.join(missed)}")
    if lost:
        print(f"above their bound: {', '.join(lost)}")
    for what in Bench.failed:
        print(what)
    return 1 if lost or Bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
