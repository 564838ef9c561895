#!/usr/bin/env python3
"""A large fleet: 1,024 endpoints, 64 workers, 1,000 models in 4 pools, 10,000 open streams.  How long start, reload, /metrics and
`pdctl status` take, and what the master costs.

Eight simulated engines, two for each pool, play all endpoints: each listens on 0.0.0.0, and every address of 127.0.0.0/8 is this machine.  A time is
CPU time of the process that does the work (/proc/PID/schedstat): what else the machine does is not in it.  A worker does all its
work in one loop, so an event waits for as long as the longest callback takes."""
import argparse
import json
import os
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

from stage import BIN, Stage, free_port, get, metrics, tree

# figure: its mark
MARKS = {"start, ms": 1000, "reload, ms": 50, "/metrics, ms that an event waits": 2, "pdctl status, ms that an event waits": 2,
         "master, asking 5 times more seldom, %": 2}
POOLS = 4
CONF = """
listen: ["127.0.0.1:{port}"]
workers: {workers}
control_socket: {dir}/control.sock
drain_timeout: 1s
shared_memory: {{max_workers: 64, max_endpoints: {max_endpoints}}}
health_interval: {health}s
stats_interval: {stats}s
pools:
{pools}
"""
POOL = """
  - name: pool{i}
    models: [{models}]
    connector: nixl
    max_ejected: {max_ejected}
    prefill: [{prefill}]
    decode: [{decode}]
"""


def cpu_ms(pid):
    """CPU time of all threads of a process."""
    return time.clock_gettime(~pid << 3 | 2) * 1000  # clock_getcpuclockid(3), which Python lacks


class Fleet(Stage):
    def __init__(self, opt):
        self.opt = opt
        super().__init__(proxies=(), fds=opt.streams * 2 + 4000)

    def engines(self):
        n = self.opt.models
        self.models = [f"model-{i:04}" for i in range(n)]
        self.sims = {}
        for role, i in ((role, i) for role in ("prefill", "decode") for i in range(POOLS)):
            port = free_port()
            args = [BIN / "pdsim", "--role", role, "--port", port, "--host", "0.0.0.0", "--advertise-host", "127.0.0.1", "--idle-timeout", 0,
                    "--keep-body", 0, "--blocks", 100000000, "--token-delay", 3600000 if role == "decode" else 0]
            p = self.run(f"{role}{i}", args + [x for m in self.models[i::POOLS] for x in ("--model", m)])
            self.until(f"{role}{i}", p, lambda port=port: get(port, "/health") == 200)
            self.sims[role, i] = port

    def write(self, max_ejected=50, seldom=1):
        pools, per = "", self.opt.endpoints // 2 // POOLS
        for i in range(POOLS):
            urls = {role: ", ".join(f'{{url: "http://127.0.{i}.{1 + k}:{port}"}}' for k in range(per))
                    for (role, pool), port in self.sims.items() if pool == i}
            pools += POOL.format(i=i, models=", ".join(self.models[i::POOLS]), max_ejected=max_ejected, **urls)
        self.conf.write_text(CONF.format(port=self.port, workers=self.nworkers, dir=self.dir, pools=pools,
                                         max_endpoints=self.opt.endpoints, health=2 * seldom, stats=seldom))

    def start(self, workers):
        """Milliseconds until the first answer, and until all endpoints are up."""
        self.port, self.conf, self.nworkers = free_port(), self.dir / "pdrouter.yaml", workers
        self.write()
        began = time.monotonic()
        p = self.run("router", [BIN / "pdrouter", "-c", self.conf])
        self.master = p.pid
        self.until("router", p, lambda: get(self.port, "/live") == 200, 60)
        live = (time.monotonic() - began) * 1000
        self.until("router", p, lambda: self.up() == self.opt.endpoints, 60)
        return live, (time.monotonic() - began) * 1000

    def up(self):
        text = metrics(self.port)
        self.page = len(text)
        return sum(x.endswith(" 1") for x in text.splitlines() if x.startswith("pdrouter_endpoint_up{"))

    def stop(self):
        p = self.started.pop()
        p.send_signal(signal.SIGTERM)
        p.wait(20)

    def worker_pids(self):
        return [p for p in tree(self.master) if p != self.master]

    def ctl(self, *args):
        return subprocess.run([BIN / "pdctl", "-s", self.dir / "control.sock", *args], capture_output=True, check=True)


def open_streams(fleet, n):
    """n streams that have begun, opened a few hundred at a time."""
    sel, streams, begun = selectors.DefaultSelector(), [], 0
    while begun < n:
        while len(streams) < min(n, begun + 300):
            model = fleet.models[len(streams) % len(fleet.models)]
            body = json.dumps({"model": model, "prompt": f"p{len(streams)}", "max_tokens": 50, "stream": True})
            s = socket.create_connection(("127.0.0.1", fleet.port))
            s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: b\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            streams.append(s)
            sel.register(s, selectors.EVENT_READ)
        for key, _ in sel.select(10):
            head = key.fileobj.recv(4096)
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"scale: a stream was refused: {head[:200]}")
            sel.unregister(key.fileobj)
            begun += 1
    return streams


def reloads(fleet, n=20):
    """Milliseconds from SIGHUP to the configuration in force, less what the master stood in line for a CPU."""
    took, log = [], fleet.dir / "router.err"
    for i in range(n):
        pos = log.stat().st_size
        fleet.write(max_ejected=50 + i % 2)
        with open(f"/proc/{fleet.master}/schedstat") as f:
            queued = int(f.read().split()[1])
        began = time.monotonic()
        os.kill(fleet.master, signal.SIGHUP)
        while "configuration in force" not in (text := tail(log, pos)):
            if time.monotonic() > began + 10:
                raise SystemExit(f"scale: no reload: {text}")
            time.sleep(0.001)
        with open(f"/proc/{fleet.master}/schedstat") as f:
            queued = int(f.read().split()[1]) - queued
        took.append((time.monotonic() - began) * 1000 - queued / 1e6)
        time.sleep(0.2)
    return statistics.median(took)


def tail(path, pos):
    with open(path, "rb") as f:
        f.seek(pos)
        return f.read().decode(errors="replace")


def longest_wait(fleet, do, rounds=30):
    """The longest answer to /live in ms while one thing is done beside it, by the only worker: the lowest of some rounds, as
    what else the machine does only adds time."""
    longest = []
    with socket.create_connection(("127.0.0.1", fleet.port)) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            worst, beside = 0, threading.Thread(target=do)
            beside.start()
            while beside.is_alive():
                began = time.monotonic()
                s.sendall(b"GET /live HTTP/1.1\r\nHost: b\r\n\r\n")
                s.recv(4096)
                worst = max(worst, time.monotonic() - began)
            beside.join()
            longest.append(worst * 1000)
    return min(longest)


def read_page(fleet):
    """/metrics, by a process of its own: this one watches the clock."""
    subprocess.run(["curl", "-so", "/dev/null", f"http://127.0.0.1:{fleet.port}/metrics"], check=True)


def cost(pids, n, do):
    """CPU of the processes for each of n times, in ms."""
    before = sum(map(cpu_ms, pids))
    for _ in range(n):
        do()
    return (sum(map(cpu_ms, pids)) - before) / n


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--endpoints", type=int, default=1024)
    ap.add_argument("--workers", type=int, default=64)
    ap.add_argument("--models", type=int, default=1000)
    ap.add_argument("--streams", type=int, default=10000)
    opt = ap.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    got = {}
    with Fleet(opt) as fleet:
        got["start, ms"], got["all up, ms"] = fleet.start(opt.workers)
        streams = open_streams(fleet, opt.streams)
        time.sleep(3)
        got["master, % of a core"] = cost([fleet.master], 1, lambda: time.sleep(10)) / 100
        got["all workers, % of a core"] = cost(fleet.worker_pids(), 1, lambda: time.sleep(5)) / 50
        got["/metrics, ms of a worker"] = cost(fleet.worker_pids(), 20, fleet.up)
        got["/metrics, KiB"] = fleet.page / 1024
        got["pdctl status, ms of the master"] = cost([fleet.master], 10, lambda: fleet.ctl("status"))
        got["reload, ms"] = reloads(fleet)
        fleet.write(seldom=5)
        os.kill(fleet.master, signal.SIGHUP)
        time.sleep(12)
        # minutes: each engine is asked for its models once in one; other work on the machine only adds time
        got["master, asking 5 times more seldom, %"] = min(cost([fleet.master], 1, lambda: time.sleep(60)) for _ in range(2)) / 600
        for s in streams:
            s.close()
        fleet.stop()
        fleet.start(1)
        got["nothing, ms that an event waits"] = longest_wait(fleet, lambda: time.sleep(0.05))
        got["/metrics, ms that an event waits"] = longest_wait(fleet, lambda: read_page(fleet))
        got["pdctl status, ms that an event waits"] = longest_wait(fleet, lambda: fleet.ctl("status"))
    missed = 0
    for figure, value in got.items():
        mark = MARKS.get(figure)
        bad = mark is not None and value > mark
        missed += bad
        print(f"{figure:34} {value:10.2f}" + (f"   mark {mark}" if mark is not None else "") + ("   MISSED" if bad else ""))
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
