"""The fleet under fire: pools of simulated engines on fixed ports, so that a killed one comes back where it was; the bad wire to some
of them; the router; and what each process is made of (file descriptors, memory, sockets)."""
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from faraway import Host
from procs import BIN, LIBC, PR_SET_CHILD_SUBREAPER, Process, World, die_with_us, free_port, parse_metrics
from segment import layout

FOR_EVER = 36000  # seconds an engine waits for its partner: nothing of a run may end by that
TOKEN_MS, PREFILL_MS = 3, 8
POOLS = {  # prefill and decode engines, what both are started with, what the pool is told
    "nixl": (2, 3, {}, {}),
    "sglang": (2, 2, {"handshake": "sglang", "bootstrap-timeout": FOR_EVER}, {"fallback": "none"}),
    "lmcache": (2, 2, {"handshake": "lmcache", "tp": 2}, {}),
    "shared_storage": (2, 2, {"handshake": "shared_storage"}, {}),
    "mooncake": (2, 2, {"handshake": "mooncake", "fetch-timeout": FOR_EVER}, {}),
    "p2p_nccl": (2, 2, {"handshake": "p2p_nccl", "fetch-timeout": FOR_EVER}, {"fallback": "none"}),
}
USUAL = ("nixl", "sglang", "lmcache", "shared_storage")
OF_POOL = {
    "retries": 2, "retry_budget": 20, "resume": True, "eject_failures": 5, "eject_rate": 50, "max_ejected": 50, "eject_time": "1s",
    "eject_max_time": "4s", "queue_size": 40, "queue_timeout": "4s", "allow_priority": True, "allow_timeout_header": True,
    "timeouts": {"connect": "2s", "prefill": "8s", "first_byte": "6s", "stream_idle": "5s", "whole_answer": "5s",
                 "down_grace": "1s", "tcp_user": "3s"},
}
OF_ROUTER = {
    "workers": 3, "log_format": "json", "health_interval": "200ms", "health_timeout": "1s", "stats_interval": "500ms", "rise": 1, "fall": 3,
    "drain_timeout": "20s", "upgrade_trial": "500ms", "client": {"max_inflight": 40, "rate": 60, "burst": 120, "tcp_user": "3s"},
    "shared_memory": {"max_workers": 8, "max_endpoints": 64, "flags_per_worker": 256, "recent_requests": 512},
}
MAX_INFLIGHT = 6  # of an engine: few enough that requests wait in the queue


FAR_PORTS = iter(random.sample(range(10000, 32000), 22000))  # in the other namespace, where nobody else listens; none twice


class Engine(Process):
    """One simulated engine of a pool.  `ns`: pid whose network namespace it lives in."""

    def __init__(self, fleet, pool, role, number, host, ns=None, **options):
        self.fleet, self.pool, self.role, self.name = fleet, pool, role, f"{pool}-{role[0]}{number}"
        self.host, self.ns, self.starts, self.stopped, self.drained = host, ns, 0, False, False
        port = self.free_port = free_port if ns is None else lambda host: next(FAR_PORTS)
        self.port, side = port(host), port(host)
        self.address = (host, self.port)
        args = {"role": role, "host": host, "port": self.port, "side-port": side, "model": pool, "kv-timeout": FOR_EVER, "max-body": 64 << 20,
                "token-delay": TOKEN_MS, "prefill-delay": PREFILL_MS, "max-model-len": 4 << 20, "blocks": 1 << 20, **options}
        if pool in ("sglang", "mooncake") and role == "prefill":
            args["bootstrap-port"] = self.bootstrap = port(host)
        if pool == "lmcache":
            if role == "prefill":
                args["proxy"] = f"{fleet.notices[0]}:{fleet.notices[1]}"
            else:
                self.init, self.alloc = [port(host), port(host)], [port(host), port(host)]
                args.update({"receiver-ports": ",".join(map(str, self.init)), "alloc-ports": ",".join(map(str, self.alloc)), "skip-last": 1})
        self.program = [BIN / "pdsim"] if ns is None else ["nsenter", f"--net=/proc/{ns}/ns/net", BIN / "pdsim"]
        self.args = args
        self.start()

    def start(self, **changed):
        """A new process; `changed`: options that this life alone has."""
        self.starts += 1
        args = [x for k, v in {**self.args, **changed}.items() for x in (f"--{k}", str(v))]
        super().__init__([*self.program, *args], self.fleet.world.file(f"{self.name}.log"), self.fleet.world.dir)
        line = self.p.stdout.readline().decode()
        assert "listening" in line, f"{self.name} does not start: {self.log()}"
        self.p.stdout.close()
        self.stopped = False

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def entry(self):
        more = {}
        if self.pool == "lmcache" and self.role == "decode":
            more = {"receiver_init_port": self.init, "receiver_alloc_port": self.alloc}
        if self.pool == "mooncake" and self.role == "prefill":
            more = {"bootstrap_port": self.bootstrap}
        if self.pool == "p2p_nccl":
            more = {"kv_addr": f":{self.args['side-port']}"}
        return {"url": self.fleet.seen_at.get(self, self.url), "max_inflight": MAX_INFLIGHT, **more}

    def up(self):
        return self.p.poll() is None

    def end(self, how):
        """This life, by a signal."""
        self.kill(how)
        self.p.wait()

    def stop_for_now(self, on):
        if self.up():
            self.kill(signal.SIGSTOP if on else signal.SIGCONT)
            self.stopped = on

    async def ask(self, method, path, what=None):
        return await ask(self.address, method, path, what)

    async def metrics(self):
        return {n: v for n, labels, v in parse_metrics((await self.ask("GET", "/metrics")).decode()) if not labels or n.startswith("vllm")}


async def ask(address, method, path, what=None, seconds=5):
    """The body of a 200, for what is not part of the load."""
    async def talk():
        r, w = await asyncio.open_connection(*address)
        try:
            body = b"" if what is None else json.dumps(what).encode()
            w.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            data = await r.read()
        finally:
            w.close()
        head, _, body = data.partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            out, rest = b"", body
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                n = int(size or b"0", 16)
                out, rest = out + rest[:n], rest[n + 2:]
                if n == 0:
                    break
            body = out
        assert b" 200 " in head.split(b"\r\n")[0] + b" ", f"{address} {path}: {head[:60]!r} {body[:200]!r}"
        return body
    return await asyncio.wait_for(talk(), seconds)


class Wire:
    """How some engines are reached: a network namespace behind netem or behind our own wire (wire.c), or a TCP proxy."""

    def __init__(self):
        self.kind, self.p, self.device, self.proxies = "proxy", None, None, []
        self.delay, self.cut = 0.0, False
        net = f"10.{random.randrange(200, 250)}.{random.randrange(1, 250)}"
        self.here, self.there = f"{net}.1", f"{net}.2"
        self.why = self.netem()
        if self.kind == "proxy":
            self.why += "; " + self.tun()
        if self.kind == "proxy":
            self.here = self.there = "127.0.0.1"

    def netem(self):
        """Its namespace is that of a process which does nothing: with that process it ends, and with it the devices."""
        self.device = f"pdc{os.getpid()}"
        p = subprocess.Popen(["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 86400"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, preexec_fn=die_with_us)
        steps = [f"ip link add {self.device} type veth peer name pdc0 netns {p.pid}", f"ip addr add {self.here}/24 dev {self.device}",
                 f"ip link set {self.device} up", f"nsenter --net=/proc/{p.pid}/ns/net ip addr add {self.there}/24 dev pdc0",
                 f"nsenter --net=/proc/{p.pid}/ns/net ip link set pdc0 up", f"tc qdisc add dev {self.device} root netem delay 1ms"]
        why = "no network namespace" if p.stdout.readline() != b"up\n" else None
        for step in steps:
            if why is None and (done := subprocess.run(step.split(), capture_output=True, text=True, check=False)).returncode:
                why = f"{step.split()[0]}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
        if why is not None:
            p.kill()
            p.wait()
            return f"no netem ({why})"
        self.kind, self.p = "netem", p
        return "netem"

    def tun(self):
        p = subprocess.Popen([BIN / "pdwire", self.here, self.there], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if p.stdout.readline() != b"ready\n":
            p.wait()
            return "no wire (" + p.stderr.read().decode().strip() + ")"
        self.kind, self.p = "wire", p
        return "wire of our own"

    def link(self, up):
        """The host at the other end vanishes, and is there again.  False: behind a proxy there is no host."""
        if self.kind == "proxy":
            return False
        if self.kind == "netem":
            subprocess.run(["nsenter", f"--net=/proc/{self.p.pid}/ns/net", "ip", "link", "set", "pdc0", "up" if up else "down"], check=True,
                           capture_output=True)
        self.cut = False
        self.set(*((0, 1, 0) if up else (100, 0, 0)))
        self.cut = not up
        return True

    def set(self, loss, delay_ms, jitter_ms):
        if self.cut:
            return
        self.delay = delay_ms / 1000
        if self.kind == "wire":
            self.p.stdin.write(f"{loss} {delay_ms} {jitter_ms}\n".encode())
            self.p.stdin.flush()
        elif self.kind == "netem":
            subprocess.run(["tc", "qdisc", "change", "dev", self.device, "root", "netem", "delay", f"{delay_ms + 1}ms", f"{jitter_ms}ms",
                            "loss", f"{loss}%"], check=False, capture_output=True)
        elif loss >= 100:
            for w in list(self.proxies):
                w.transport.abort()

    async def proxy(self, engine):
        """An address that leads to the engine, late, and that breaks off when told to."""
        async def pump(r, w):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while data := await r.read(65536):
                    await asyncio.sleep(self.delay)
                    w.write(data)
                    await w.drain()
                w.write_eof()

        async def serve(r, w):
            try:
                r2, w2 = await asyncio.open_connection(*engine.address)
            except OSError:
                w.transport.abort()
                return
            self.proxies += [w, w2]
            await asyncio.gather(pump(r, w2), pump(r2, w), return_exceptions=True)
            for one in (w, w2):
                one.close()
                self.proxies.remove(one)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def close(self):
        if self.p is not None:
            self.p.kill()
            self.p.wait()


def clients_host():
    """A host that some clients are on, which can vanish; None where no namespace may be made.  Its clients' ports are none of ours."""
    try:
        host = Host()
    except pytest.skip.Exception:
        return None
    host.inside("sh", "-c", "echo 10000 30000 > /proc/sys/net/ipv4/ip_local_port_range")
    return host


class Fleet:
    """`away`: engines behind the wire.  With a proxy only decode engines are: of a prefill engine's answer that breaks off nobody can
    know which blocks it means."""

    def __init__(self, names):
        self.world, self.wire, self.engines, self.seen_at = World(), Wire(), [], {}
        self.names, self.removed = names, set()
        self.notices = (self.wire.here, free_port(self.wire.here))
        self.host, self.router, self.layout = clients_host(), None, None

    async def start(self, router_class):
        storage = self.world.dir / "storage"
        storage.mkdir()
        for name in self.names:
            np, nd, _, _ = POOLS[name]
            away = {("prefill", 0), ("decode", nd - 1)} if self.wire.kind != "proxy" and name in ("nixl", "lmcache", "sglang") else set()
            for role, n in (("prefill", np), ("decode", nd)):
                for i in range(n):
                    out = (role, i) in away
                    self.add(name, role, out)
            if self.wire.kind == "proxy":
                last = self.engines[-1]
                self.seen_at[last] = await self.wire.proxy(last)
        self.first = list(self.engines)
        config = {**OF_ROUTER, "pools": self.pools()}
        if "lmcache" in self.names:
            config["lmcache"] = {"listen": f"tcp://{self.notices[0]}:{self.notices[1]}"}
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)  # new instances of the router are ours
        self.router = router_class(self.world, {**config, "log_level": "debug"})
        self.router.murdered = True
        self.world.routers.append(self.router)
        self.layout = layout(self.router)
        self.config = {k: v for k, v in config.items() if k != "pools"}  # as it is in fair weather
        self.config["listen"] = [f"{host}:{self.router.port}" for host in (self.router.host, *([self.host.here] if self.host else []))]
        self.router.change(log_level="info", listen=self.config["listen"])
        code, out = await self.ctl("reload")
        assert code == 0, "the first reload: " + out
        await asyncio.get_running_loop().run_in_executor(None, self.router.wait_all_up)  # the proxies are of this loop

    def add(self, pool, role, away=False):
        """Starts one more engine; pools() has it from now on."""
        options = dict(POOLS[pool][2])
        if pool == "shared_storage":
            options["storage"] = self.world.dir / "storage"
        host, ns = (self.wire.there, self.wire.p.pid) if away else (self.wire.here, None)
        self.engines.append(Engine(self, pool, role, len(self.of(pool, role)), host, ns, **options))

    def of(self, pool, role):
        return [e for e in self.engines if (e.pool, e.role) == (pool, role)]

    def pools(self, **keys):
        """As the configuration has them now; `removed` engines are left out."""
        out = []
        for name in self.names:
            entries = {role: [e.entry() for e in self.of(name, role) if e not in self.removed] for role in ("prefill", "decode")}
            kv_ready = {"kv_ready_timeout": "2s"} if name == "lmcache" else {}
            out.append({"name": name, "models": [name], "connector": name, **OF_POOL, **kv_ready, **POOLS[name][3], **keys, **entries})
        return json.loads(json.dumps(out))  # no part of it twice: YAML would write anchors

    async def revive(self):
        """All as it was: everybody lives, nobody has a fault, nobody is drained or missing."""
        self.wire.link(True)
        self.wire.set(0, 0, 0)
        if self.host is not None:
            self.host.come_back()
        for e in self.engines:
            if not e.up():
                e.start()
            e.stop_for_now(False)
            await e.ask("POST", "/sim/fault", {"kind": "none"})
            await e.ask("POST", "/sim/health", {"status": 200})
            await e.ask("POST", "/sim/load", {"waiting": 0})
            if e.drained:
                await self.ctl("undrain", e.entry()["url"])
                e.drained = False
        self.removed = set(self.engines) - set(self.first)
        self.router.config = {"control_socket": self.router.config["control_socket"]}
        self.router.change(**self.config, pools=self.pools())
        code, out = await self.ctl("reload")
        assert code == 0, "the last reload: " + out

    async def ctl(self, *args):
        p = await asyncio.create_subprocess_exec(BIN / "pdctl", "-s", self.router.control, *args, stdout=subprocess.PIPE,
                                                 stderr=subprocess.STDOUT, preexec_fn=die_with_us)
        try:
            out, _ = await asyncio.wait_for(p.communicate(), 40)
        except asyncio.TimeoutError:
            p.kill()
            return -1, "pdctl does not come back: " + " ".join(args)
        return p.returncode, out.decode()

    async def processes(self):
        """{kind: [pid]} of the router."""
        _, out = await self.ctl("workers")
        found = {"master": [self.router.pid]}
        for kind, pid in re.findall(r"^(\w+)\b.*?pid[= ]([1-9]\d*)", out, re.M):  # 0: one that is being started
            found.setdefault(kind, []).append(int(pid))
        return found

    def close(self):
        for p in [self.router, *self.engines]:
            if p is not None:
                with contextlib.suppress(OSError):
                    p.stop(signal.SIGKILL)
        self.wire.close()
        if self.host is not None:
            self.host.close()
        self.world.temp.cleanup()


# --- what /proc says ---

def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def pss_kib(pid):
    return int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1])


def private_kib(pid):
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(x) for x in re.findall(r"^(?:Private_Dirty|Private_Clean):\s+(\d+)", text, re.M))


def peer_ports(pid, port):
    """The clients' ports of all connections to our `port` that a process holds."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if m := re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")):
                inodes.add(m[1])
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        f = line.split()
        if f[9] in inodes and int(f[1].split(":")[1], 16) == port:
            found.add(int(f[2].split(":")[1], 16))
    return found


def ports_of(host):
    """The ports at that address which somebody here has an established connection with."""
    rows, there = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]], socket.inet_aton(host)[::-1].hex().upper()
    return {int(f[2].split(":")[1], 16) for f in rows if f[2].startswith(there + ":") and f[3] == "01"}


def big_buffers(sock, n):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, n)
