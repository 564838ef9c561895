"""The processes a test needs: simulated engines and the router, started on free ports, watched, and
looked at again when the test is over."""
import base64
import contextlib
import copy
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import yaml

from raw import Client

ROOT = Path(__file__).resolve().parents[2]
VARIANT = os.environ.get("PDR_VARIANT", "release")
BIN = Path(os.environ.get("PDR_BIN", ROOT / "build" / VARIANT))  # PDR_BIN: programs built elsewhere
SLOW = 1 if VARIANT == "release" else 4  # how much longer everything may take under a sanitizer
# what no log may say; "invariant broken": debug builds look over their shared memory every second; what is repaired
# there was broken by a fault of ours, unless the test has stored there
BAD_WORDS = re.compile(r"ERROR: \w+Sanitizer|runtime error:|SUMMARY: \w+Sanitizer|Assertion .* failed|invariant broken|had impossible values")
MODEL = "sim-model"


def silence(limit):
    """Time limits of a decode engine that sends nothing, whatever it is asked for."""
    return {"first_byte": limit, "stream_idle": limit, "whole_answer": limit}


def wait(what, get, timeout=10):
    """Polls until get() returns something true, and returns that.  `what`: words, or a function that finds them."""
    end = time.monotonic() + timeout * SLOW
    while True:
        got = get()
        if got:
            return got
        assert time.monotonic() < end, f"waited {timeout * SLOW} s for: {what() if callable(what) else what}"
        time.sleep(0.005)


RESERVED = []  # sockets that keep a port for us: bound and never listening, so a router may still listen there


def free_port(host="127.0.0.1"):
    """Below the kernel's own range, so that no outgoing connection takes it before the router does; kept
    until we end, so that no test that runs beside this one is given it too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket(family, socket.SOCK_STREAM) as s:
            try:
                s.bind((host, port))  # without SO_REUSEADDR: fails if anybody has it
            except OSError:
                continue
        s = socket.socket(family, socket.SOCK_STREAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, port))
        RESERVED.append(s)
        return port


SAMPLE = re.compile(r'([\w:]+)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text, *prefixes):
    """[(name, labels, value)] of a Prometheus page, of the lines that begin so; without prefixes all.  A page has some hundred
    lines, and a test asks for a few of them twenty times: the others are not looked at."""
    out, text = [], f"\n{text}\n"
    for prefix in prefixes or [""]:
        at = 0
        while (at := text.find("\n" + prefix, at)) != -1 and at + 1 < len(text):
            end = text.index("\n", at + 1)
            if m := SAMPLE.match(text, at + 1, end):
                out.append((m[1], dict(LABEL.findall(m[2])) if m[2] else {}, float(m[3])))
            at = end
    return out


def metric_sum(rows, name, labels):
    found = [v for n, have, v in rows if n == name and all(have.get(k) == str(x) for k, x in labels.items())]
    return sum(found) if found else None


def tree(pid):
    """Pids of all descendants of a process."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as f:
                parents[int(name)] = int(f.read(1024).rpartition(b")")[2].split(maxsplit=2)[1])
        except OSError:
            pass
    found = [pid]
    for one in found:
        found += [p for p, parent in parents.items() if parent == one]
    return found[1:]


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_us():
    """Whatever ends the run, a time-out or a kill -9, nothing of it stays behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One started program, its standard error in a file."""
    excused = ()  # words of bad lines that the test provokes

    def __init__(self, args, log, cwd, stdout=subprocess.PIPE):
        self.log_path = Path(log)
        with open(log, "wb") as err:
            self.p = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=stdout,
                                      stderr=err, cwd=cwd, preexec_fn=die_with_us)
        self.pid = self.p.pid

    def log(self):
        return self.log_path.read_text(errors="replace")

    def kill(self, sig):
        self.p.send_signal(sig)

    def stop(self, sig=signal.SIGTERM, timeout=10):
        if self.p.poll() is None:
            self.kill(sig)
        try:
            return self.p.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
            return "killed: it did not stop"

    def check_log(self):
        found = [x for x in self.log().splitlines() if BAD_WORDS.search(x) and not any(e in x for e in self.excused)]
        assert not found, f"{self.log_path.name}: {found}\n{self.log()[-6000:]}"


class Seen:
    """One request as GET /sim/last shows it: what an engine was sent, byte for byte."""

    def __init__(self, obj):
        self.method, self.path, self.status, self.aborted = obj["method"], obj["path"], obj["status"], obj["aborted"]
        self.time = obj["time"]  # as time.time() has it
        self.headers = [tuple(h) for h in obj["headers"]]
        self.body = base64.b64decode(obj["body"])

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def __getitem__(self, name):
        found = self.all(name)
        return found[0] if found else None

    def json(self):
        return json.loads(self.body)


class Engine(Process):
    """One simulated engine (tests/engine)."""

    def __init__(self, world, role, host="127.0.0.1", port=0, **options):
        self.role, self.host, self.world, self.options = role, host, world, dict(options)
        self.refuses_on_purpose = False  # a decode engine of the test refuses a handoff: its blocks stay held
        self.resent = 0  # requests whose id is not their prefill leg's: told_anew() in test_retry.py has looked at each
        self.args = [BIN / "pdsim", "--role", role, "--host", host]
        models = options.pop("model", MODEL)
        for m in [models] if isinstance(models, str) else models:
            self.args += ["--model", m]
        for k, v in options.items():
            self.args += [f"--{k.replace('_', '-')}"] + ([] if v is True else [str(v)])
        super().__init__([*self.args, "--port", port], world.file(f"engine-{role}.log"), world.dir)
        line = self.p.stdout.readline().decode()
        self.port, self.side, self.bootstrap = map(int, re.search(r"http=(\d+) side=(\d+) bootstrap=(\d+)", line).groups())
        self.ports = {k: [int(x) for x in v.split(",")] for k, v in re.findall(r"(init|alloc|events|replay)=([\d,]+)", line)}  # LMCache's listener, KV events

    def next_life(self, sig=signal.SIGKILL, after=0, **changed):
        """Ends it and starts another process on its port, perhaps with another role, model or bootstrap port.  For a port of
        free_port(): one that the kernel chose may be an outgoing connection's by then."""
        self.stop(sig)
        time.sleep(after)
        return self.world.engine(changed.pop("role", self.role), host=self.host, port=self.port, **{**self.options, **changed})

    @property
    def address(self):
        return (self.host, self.port)

    @property
    def url(self):
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def client(self, **kw):
        return Client(self.address, **kw)

    def tell(self, path, /, **what):
        with self.client() as c:
            a = c.post(path, what)
        assert a.status == 200, a.body

    def fault(self, kind, **what):
        """The next generation request meets it (count=-1: every one from now on)."""
        self.tell("/sim/fault", kind=kind, **what)

    def pause(self):
        """Streams stand still before their next event; step(n) lets n events out."""
        self.tell("/sim/pause_stream")

    def step(self, n=1):
        self.tell("/sim/pause_stream", step=n)

    def go_on(self):
        self.tell("/sim/pause_stream", pause=False)

    def requests(self):
        """The generation requests it has seen, oldest first."""
        with self.client() as c:
            return [Seen(r) for r in c.get("/sim/last").json()["requests"]]

    def last(self):
        return self.requests()[-1]

    def metrics(self, prefix="pdsim:"):
        with self.client() as c:
            return parse_metrics(c.get("/metrics").body.decode(), prefix)

    def metric(self, name, **labels):
        return metric_sum(self.metrics(name), name, labels)

    def counter(self, name):
        return self.metric(f"pdsim:{name}_total")

    def wait_metric(self, name, value, timeout=10):
        wait(f"{self.role}: {name} == {value}", lambda: self.metric(name) == value, timeout)

    def wait_requests(self, n=1):
        return wait(f"{n} requests at {self.role}", lambda: len(self.requests()) >= n and self.requests())

    def at_rest(self, timeout=10):
        """Waits until nothing runs and no block is held.  The page that says so."""
        zero = ["pdsim:running_requests", "pdsim:open_rooms"] + ["pdsim:held_blocks"] * (not self.refuses_on_purpose)
        last = []

        def rest():
            last[:] = self.metrics()
            return all(metric_sum(last, name, {}) == 0 for name in zero)
        wait(lambda: f"{self.role} at rest: {[row for row in last if row[0] in zero]}", rest, timeout)
        return last

    def check(self):
        """No block is held, nothing runs, and nobody broke the handoff's rules."""
        page = self.at_rest()
        names = ["duplicate_request_ids", "prefill_violations", "decode_violations", "role_violations",
                 "rooms_missing", "rooms_invalid", "rooms_shared", "duplicate_rooms", "rank_mismatch", "kv_foreign"]
        wanted = {"request_id_mismatch": self.resent, **dict.fromkeys(names, 0)}
        if not self.refuses_on_purpose:
            wanted |= {"kv_expired": 0, "kv_refused": 0}
        assert {name: metric_sum(page, f"pdsim:{name}_total", {}) for name in wanted} == wanted, self.role


def keys_of_connectors():
    """Keys that stand in the map of the pool's connector."""
    text = (ROOT / "shm/base/connector_list.h").read_text()
    return {key for keys in re.findall(r"\.keys = \{(.*?)\}", text, re.S) for key in re.findall(r'"(\w+)"', keys)}


OF_CONNECTOR = keys_of_connectors()


def with_map(pool):
    """A pool as it is written: tests give keys of the connector like any other key."""
    own = {k: v for k, v in pool.items() if k in OF_CONNECTOR}
    rest = {k: v for k, v in pool.items() if k not in OF_CONNECTOR}
    return {**rest, pool["connector"]: own} if own else rest


class Adopted:
    """A process that another one of ours has started; we are its reaper.  As subprocess.Popen has it."""

    def __init__(self, pid, before):
        self.pid, self.before, self.returncode = pid, before, None

    def poll(self):
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self.returncode is None else (0, 0)
        if pid == self.pid:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, sig):
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("pdrouter", timeout)
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):  # an older one waits for nothing but its requests
            self.before.wait(timeout)
        return self.returncode


class Router(Process):
    def __init__(self, world, config, args=(), wait_for="ready", binary_args=None, program=BIN / "pdrouter"):
        self.world = world
        self.told_to_stop = self.murdered = False
        self.host = world.listen_host
        self.port = free_port(self.host)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.control = world.file("ctl", "sock")
        self.config_path = world.file("router", "yaml")
        self.config = {"listen": [f"{shown}:{self.port}"], "control_socket": str(self.control), **config}
        self.write(self.config)
        if binary_args is None:
            binary_args = ["-c", self.config_path]
        else:
            binary_args = [*binary_args, "--control-socket", self.control]
        super().__init__([program, *binary_args, *args], world.file("router", "log"), world.dir)
        if wait_for:
            self.wait_for(wait_for)

    def write(self, config):
        """Puts a configuration in its file; reload() makes it count."""
        if not isinstance(config, str):
            if isinstance(config.get("pools"), list):
                config = {**config, "pools": [with_map(p) if isinstance(p, dict) else p for p in config["pools"]]}
            config = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        text = config
        self.config_path.write_text(text)

    def change(self, **keys):
        """Changes top-level keys of the running configuration's file."""
        self.config = {**self.config, **keys}
        self.write(self.config)

    def kill(self, sig):
        self.told_to_stop |= sig in (signal.SIGTERM, signal.SIGINT)
        super().kill(sig)

    @contextlib.contextmanager
    def unwatched(self):
        """The master stands still: nobody notices what becomes of engines but requests."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def murder(self, pid, sig=signal.SIGKILL):
        """Kills one of its children; without this a restart is a failure of the test."""
        self.murdered = True
        assert pid > 0, "0 would be all of this run"
        os.kill(pid, sig)

    # --- talking to it ---
    @property
    def address(self):
        return (self.host, self.port)

    @property
    def base_url(self):
        return f"http://{self.host}:{self.port}/v1"

    def client(self, **kw):
        return Client(self.address, **kw)

    def get(self, path, headers=()):
        with self.client() as c:
            return c.get(path, headers)

    def post(self, path, body, headers=()):
        with self.client() as c:
            return c.post(path, body, headers)

    def complete(self, prompt="hi", headers=(), path="/v1/completions", **members):
        return self.post(path, {"model": MODEL, "prompt": prompt, "max_tokens": 4, **members}, headers)

    def open_stream(self, prompt="hi", headers=(), n=8, rcvbuf=None, **members):
        """A stream that has been asked for; nothing is read yet."""
        c = self.client(rcvbuf=rcvbuf)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": n, "stream": True, **members}
        return c.request("POST", "/v1/completions", body, headers)

    def wait_for(self, what, timeout=15):
        def up():
            assert self.p.poll() is None, f"pdrouter exited with {self.p.returncode}:\n{self.log()}"
            try:
                return self.get(f"/{what}").status == 200
            except OSError:
                return False
            except Exception:  # an answer cut short by a worker that starts or ends
                return False
        wait(f"/{what}", up, timeout)

    # --- what it says about itself ---
    def operator(self):
        """A connection to the address for operators, if it has one."""
        listen = (self.config.get("admin") or {}).get("listen") if isinstance(self.config, dict) else None
        if not listen:
            return self.client()
        host, _, port = listen[0].rpartition(":")
        return Client(port if host == "unix" else (host, int(port)))

    operator_headers = ()

    def metrics(self, *prefixes):
        with self.operator() as c:
            return parse_metrics(c.get("/metrics", self.operator_headers).body.decode(), *prefixes)

    def metric(self, name, **labels):
        """The sum over all series that carry these labels; None if there is none."""
        return metric_sum(self.metrics(f"pdrouter_{name}"), f"pdrouter_{name}", labels)

    def wait_metric(self, name, value, timeout=10, **labels):
        wait(f"{name}{labels} == {value}", lambda: self.metric(name, **labels) == value, timeout)

    def wait_all_up(self):
        """Ready is who has one engine of each role up; a test that counts needs them all."""
        def ups():
            return [v for name, _, v in self.metrics("pdrouter_endpoint_up") if name == "pdrouter_endpoint_up"]
        wait("all engines up", lambda: all(ups()))
        return self

    def in_flight(self):
        return self.metric("endpoint_in_flight")

    def all_ended(self):
        """Waits until no request is in flight but the one that asks: a client may read the end of its answer before the worker
        logs and counts that.  The lines of all of them."""
        self.wait_metric("requests_in_flight", 1)
        return self.ends()

    def left(self):
        """What is not at rest yet: {} when no request is in flight but the one that asks, nothing is reserved, armed or kept."""
        names = ["requests_in_flight", "endpoint_in_flight", "kv_flags_armed", "request_buffer_bytes", "kv_released_total", "endpoint_kv_outstanding"]
        rows = self.metrics(*(f"pdrouter_{name}" for name in names))

        def value(name, **labels):
            return metric_sum(rows, f"pdrouter_{name}", labels)
        left = {"requests_in_flight": value("requests_in_flight") - 1, "endpoint_in_flight": value("endpoint_in_flight") or 0,
                "kv_flags_armed": value("kv_flags_armed"), "request_buffer_bytes": value("request_buffer_bytes")}
        if not value("kv_released_total", reason="decode_failed"):  # such KV is named to engines until its lease is over
            left["endpoint_kv_outstanding"] = value("endpoint_kv_outstanding") or 0
        return {name: n for name, n in left.items() if n != 0}

    def wait_idle(self):
        wait("no reservation", lambda: not self.in_flight())

    def lives(self):
        assert self.p.poll() is None, "the router died:\n" + self.log()[-5000:]

    def lines(self, msg=None):
        """Log lines as dicts, those with this message."""
        out = []
        for line in self.log().splitlines():
            try:
                obj = json.loads(line)
            except ValueError:
                continue
            if isinstance(obj, dict) and (msg is None or obj.get("msg") == msg):
                out.append(obj)
        return out

    def ends(self):
        """The lines at the end of requests for engines, oldest first."""
        return [x for x in self.lines("request") if x.get("route") in ("/v1/completions", "/v1/chat/completions", "other")]

    def end(self, n=1):
        """The line of the n-th request that ended; waits for it."""
        return wait(f"{n} request lines", lambda: len(self.ends()) >= n and self.ends())[n - 1]

    def end_of(self, req):
        """The one line of the request with this id."""
        return wait(f"the line of {req}", lambda: [x for x in self.ends() if x["req"] == req])[0]

    def wait_log(self, word, timeout=10):
        return wait(f"a log line with {word!r}", lambda: re.search(f"^.*{word}.*$", self.log(), re.M), timeout)[0]

    def follow(self, pid):
        """An upgrade has replaced the process: the other one is meant from now on."""
        self.p, self.pid = Adopted(pid, self.p), pid

    # --- its processes ---
    def ctl(self, *args, timeout=30):
        return subprocess.run([BIN / "pdctl", "-s", self.control, *args], capture_output=True, text=True,
                              timeout=timeout * SLOW, check=False)

    def status(self):
        done = self.ctl("status", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def reload(self, **keys):
        """Puts changed keys in force and waits for it."""
        self.change(**keys)
        done = self.ctl("reload")
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def look_over(self):
        """No invariant of the shared memory is broken (shm/check.c), whatever its processes are doing."""
        done = self.ctl("check")
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr

    def children(self, kind="worker"):
        """Pids of the processes of one kind that run."""
        out = self.ctl("workers").stdout
        return [int(m[1]) for m in re.finditer(rf"^{kind}\b.*? pid=([1-9]\d*)", out, re.M)]  # 0: it is to be started again

    def rss_kib(self):
        """Memory of all its processes together, shared pages counted once."""
        total = 0
        for pid in [self.pid, *tree(self.pid)]:
            rollup = (Path("/proc") / str(pid) / "smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", rollup, re.M)[1])
        return total

    def check(self):
        """Nothing is in flight, the shared memory is sound; it stops when told to and leaves nothing behind."""
        if self.p.poll() is None and not self.told_to_stop:
            wait(lambda: f"nothing left of {self.left()}", lambda: not self.left())
            if self.control.exists():
                self.look_over()
            if not self.murdered:
                restarts = [f"pdrouter_{kind}_restarts_total" for kind in ("worker", "notifier", "exporter")]
                assert [value for _, _, value in self.metrics(*restarts)] == [0, 0, 0], "something crashed"
        pids = tree(self.pid) if self.p.poll() is None else []
        code = self.stop(timeout=15)
        assert code == 0, f"pdrouter exited with {code}:\n{self.log()[-4000:]}"
        wait("children gone", lambda: not any(alive(p) for p in pids), 3)
        self.check_log()


class Load:
    """Threads that ask the same again and again; whatever goes wrong is kept in `bad`."""

    def __init__(self, n, ask):
        self.stop_now, self.bad, self.done, self.ask = threading.Event(), [], 0, ask
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def _run(self, i):
        while not self.stop_now.is_set():
            try:
                self.ask(i)
                self.done += 1
            except Exception as e:  # kept: the test decides
                self.bad.append((type(e).__name__, str(e)[:300]))
                if len(self.bad) >= 10_000:  # nor the machine's memory
                    return

    def stop(self):
        self.stop_now.set()
        for t in self.threads:
            t.join()
        return self


FAST = {"workers": 2, "health_interval": "100ms", "health_timeout": "1s", "stats_interval": "200ms", "rise": 1, "fall": 2,
        "drain_timeout": "5s", "log_format": "json", "shared_memory": {"max_endpoints": 64, "flags_per_worker": 64}}


# an engine's failure is what the test is about, not what the router makes good: tests of rescue, ejection and waiting say so;
# equal prompts go to equal engines in turn: tests of caches say so
PLAIN = {"policy": "least_loaded", "retries": 0, "fallback": "none", "eject_failures": 0, "eject_rate": 0, "queue_size": 0, "outlier": {"factor": 0}}


class World:
    """All that a test starts; finish() looks after it."""

    def __init__(self):
        self.temp = tempfile.TemporaryDirectory(prefix="pdr-")  # short: a control socket's path has 107 bytes
        self.dir = Path(self.temp.name)
        self.engines, self.routers, self.scripted, self.others = [], [], [], []
        self.listen_host = "127.0.0.1"
        self.check_engines = True  # off when the test makes an engine lose its blocks on purpose
        self.count = 0
        self.saved = None

    def file(self, name, ext=None):
        self.count += 1
        return self.dir / (f"{self.count}-{name}.{ext}" if ext else f"{self.count}-{name}")

    def engine(self, role, **options):
        e = Engine(self, role, **options)
        self.engines.append(e)
        return e

    def script(self, models=(MODEL,), **kw):
        from script import ScriptedEngine
        s = ScriptedEngine(models=models, **kw)
        self.scripted.append(s)
        return s

    def pool(self, prefill, decode, connector="nixl", **keys):
        def entry(e):
            return e if isinstance(e, dict) else {"url": e if isinstance(e, str) else e.url}
        return {"models": [MODEL], "connector": connector, **copy.deepcopy(PLAIN), **keys,
                "prefill": [entry(e) for e in prefill], "decode": [entry(e) for e in decode]}

    def router(self, *pools, wait_for="ready", args=(), program=BIN / "pdrouter", **keys):
        config = {**FAST, **keys}
        if pools:
            config["pools"] = list(pools)
        r = Router(self, config, wait_for=wait_for, args=args, program=program)
        self.routers.append(r)
        if wait_for == "ready":
            self.own_up(r, pools)
        return r

    def own_up(self, r, pools):
        """A router is ready with one engine of each role.  Those that this test runs and names are up soon after, or, for at
        most a second, are not: a test may have made one that cannot be."""
        own = {e.url for e in [*self.engines, *self.scripted]}
        named = {e["url"] for pool in pools for role in ("prefill", "decode") for e in pool.get(role) or [] if "url" in e}
        want, end = own & named, time.monotonic() + SLOW
        while len(want) > 2 and time.monotonic() < end:
            up = {labels["engine"] for _, labels, v in r.metrics("pdrouter_endpoint_up") if v == 1}
            if want <= up:
                return
            time.sleep(0.01)

    def pd(self, np=1, nd=1, engine=None, pool=None, **keys):
        """np prefill and nd decode engines with a router before them: (router, [p...], [d...])."""
        p = [self.engine("prefill", **(engine or {})) for _ in range(np)]
        d = [self.engine("decode", **(engine or {})) for _ in range(nd)]
        r = self.router(self.pool(p, d, **(pool or {})), **keys)
        if np * nd > 1 and keys.get("wait_for", "ready") == "ready":
            r.wait_all_up()
        return r, p, d

    def scripts(self, np=1, nd=1, pool=None, **keys):
        """The same with scripted engines."""
        p, d = [self.script() for _ in range(np)], [self.script() for _ in range(nd)]
        return self.router(self.pool(p, d, **(pool or {})), **keys), p, d

    def finish(self):
        try:
            for s in self.scripted:
                s.finish()
            if self.check_engines:
                for e in self.engines:
                    if e.p.poll() is None:
                        e.check()
            for r in self.routers:
                r.check()
        finally:
            for p in [*self.routers, *self.engines, *self.others]:
                p.stop(signal.SIGKILL)
            for s in self.scripted:
                s.close()
        for e in self.engines:
            e.check_log()

    def close(self):
        for p in [*self.routers, *self.engines, *self.others]:
            p.stop(signal.SIGKILL)
        self.saved = self.logs()
        self.temp.cleanup()

    def logs(self):
        """What the processes said, without the lines every start has."""
        if self.saved is not None:
            return self.saved
        text = "\n".join(f"--- {p.log_path.name}\n{p.log()[-3000:]}" for p in [*self.routers, *self.engines])
        return "\n".join(x for x in text.splitlines() if "shared memory" not in x and "pdrouter starts" not in x)


def again(world, r, sig=signal.SIGTERM, **keys):
    """Ends the router and starts it with the same configuration."""
    if sig == signal.SIGTERM:
        r.check()
    else:
        r.stop(sig)
        world.routers.remove(r)
    r.config.pop("listen"), r.config.pop("control_socket")
    return world.router(**{**r.config, **keys})
