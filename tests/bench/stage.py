"""What a benchmark stands on: engines, the router and the proxies beside it, all on free loopback ports,
in one directory, ended when the stage is left."""
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / os.environ.get("VARIANT", "release")
LANES = ("fast", "paced", "idle")  # one engine each: no delay, an event every 16 ms, an event an hour
ALONE = ("resume", "sglang", "lmcache")  # lanes of the router alone: `resume: true`; other hand-shakes
PACE_MS = 16
TLS_LANES = {"tls fast": "fast", "tls paced": "paced", "tls stream": "fast"}  # the same engines, over TLS in front of the proxy
CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256"  # of TLS 1.2; pdload speaks TLS 1.3 and one of its ciphers alone
DELAY_MS = {"fast": 0, "paced": PACE_MS, "idle": 3600000}

NGINX = """
worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/nginx.log error; user {user};
worker_rlimit_nofile {fds};
events {{ worker_connections {fds}; }}
http {{
  access_log off;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  keepalive_requests 100000000; client_max_body_size 64m; client_body_buffer_size 256k;
  {tls}
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 1h;
{servers}
}}
"""
NGINX_SERVER = """
  upstream {name} {{ server 127.0.0.1:{engine}; keepalive 64; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port} {tls}backlog=4096; location / {{ proxy_pass http://{name}; {more} }} }}
"""
HAPROXY = """
global
  nbthread 1
  maxconn {conns}
defaults
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  {all}
{servers}
"""
HAPROXY_HTTP = "mode http\n  option http-no-delay\n  http-reuse always"
HAPROXY_TCP = "mode tcp"  # bytes as they come: a connection of a client has one to the engine
HAPROXY_SERVER = """
frontend f_{name}
  bind 127.0.0.1:{port} {tls}
  default_backend b_{name}
backend b_{name}
  server s 127.0.0.1:{engine}
"""
# pdload connects all before it sends, from one address: on a busy machine that takes more than a second
ROUTER = """
listen: ["127.0.0.1:{port}"]
client: {{max_silent_connections: 0}}
workers: {workers}
control_socket: ""
sandbox: {sandbox}
pools:
{pools}
"""
ROUTER_POOL = """
  - name: {lane}
    models: [{lane}]
    connector: {connector}
    prefill: [{prefill}]
    decode: [{decode}]
    {more}
"""


def free_port(given=set()):
    """Below the kernel's own range, so that no outgoing connection takes it before its server does."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in given:
            given.add(port)
            return port


def tree(*pids):
    """Processes and all their descendants."""
    parents = {}
    for p in Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                parents[int(p.name)] = int((p / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found = list(pids)
    for one in found:
        found += [p for p, parent in parents.items() if parent == one]
    return found


def pss_kib(*pids):
    total = 0
    for p in tree(*pids):
        for line in Path(f"/proc/{p}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def get(port, path):
    """Status of a GET, or 0."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as s:
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
            return int(s.recv(64).split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def metrics(port):
    """The page of that path."""
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: s.recv(1 << 20), b"")).decode()


def post(port, path, body):
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        if b" 200 " not in s.recv(4096):
            raise SystemExit(f"bench: {path} was refused")


def key_of(number):
    return f"pdr-bench-key-of-forty-seven-characters-{number:06d}"


class Stage:
    """`ports[who][lane]` is where to send; `pid[who]` the root of a process tree, `pids[peer]` the roots of a peer's."""

    def __init__(self, proxies=("router", "nginx", "haproxy", "tcp"), router_under=(), fds=20000, workers=1, legs=2, keys=0, more="", pool="", tls=False, alone=False, addresses=1):
        self.dir = Path(tempfile.mkdtemp(prefix="pdrouter-bench."))
        self.ports, self.pid, self.pids, self.started = {}, {}, {}, []
        self.fds, self.workers, self.legs, self.keys = fds, workers, legs, keys
        self.more = more  # lines of the router's configuration
        self.pool = pool  # a line of each of its pools
        self.tls = tls  # the lanes of TLS_LANES, too
        self.alone = alone  # those of ALONE
        self.sglang = {}  # engines of sglang's hand-shake by lane
        self.addresses = addresses  # endpoints of the router that an engine of the lane `fast` stands for
        try:
            if tls:
                self.certificate()
            self.engines()
            for who in proxies:
                if who == "router":
                    self.router(list(router_under))
                elif "-" in who:
                    self.peer(who)
                else:
                    getattr(self, who)()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        for p in reversed(self.started):
            p.send_signal(signal.SIGTERM)
            try:
                p.wait(5)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def run(self, name, args):
        err = open(self.dir / f"{name}.err", "wb")
        p = subprocess.Popen([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        self.started.append(p)
        return p

    def until(self, name, p, good, seconds=20):
        end = time.monotonic() + seconds
        while not good():
            if p.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"bench: {name} does not come up:\n" +
                                 (self.dir / f"{name}.err").read_text(errors="replace")[-3000:])
            time.sleep(0.02)

    def roots(self, who):
        return self.pids.get(who) or [self.pid[who]]

    def engine(self, name, role, models, delay_ms=0, more=()):
        port = free_port()
        args = [BIN / "pdsim", "--role", role, "--name", name, "--port", port, "--idle-timeout", 0,
                "--token-delay", delay_ms, "--keep-body", 0, "--max-model-len", 10000000, "--blocks", 100000000,
                "--host", "0.0.0.0" if self.addresses > 1 else "127.0.0.1", "--advertise-host", "127.0.0.1", *more]
        for m in models:
            args += ["--model", m]
        p = self.run(name, args)
        self.until(name, p, lambda: get(port, "/health") == 200)
        return port

    def certificate(self):
        """One for all proxies; haproxy wants the key in the same file."""
        cert, key = self.dir / "cert.pem", self.dir / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9",
                        "-subj", "/CN=bench", "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=20)
        (self.dir / "both.pem").write_text(cert.read_text() + key.read_text())

    def side_port(self, name, what):
        """A port that an engine's first line names."""
        return re.search(rf" {what}=(\d+)", (self.dir / f"{name}.err").read_text())[1]

    def engines(self):
        caches = ["--cache-blocks", 1 << 20] if "cache_aware" in self.pool else []
        self.prefill = self.engine("prefill", "prefill", [*LANES, "resume"], more=caches)
        self.direct = {lane: self.engine(lane, "both", [lane, "resume"], DELAY_MS[lane]) for lane in LANES}
        self.ports["direct"] = dict(self.direct, stream=self.direct["fast"])
        if self.alone:
            self.other_shakes()

    def other_shakes(self):
        how = ["--handshake", "sglang"]
        self.sglang_prefill = self.engine("sglang-prefill", "prefill", [*LANES, "sglang"], more=how)
        self.sglang = {lane: self.engine("sglang-" + lane, "decode", [lane, "sglang"], DELAY_MS[lane], how) for lane in LANES}
        self.notices = free_port()
        how = ["--handshake", "lmcache"]
        self.lmcache_prefill = self.engine("lmcache-prefill", "prefill", ["lmcache"], more=[*how, "--proxy", f"127.0.0.1:{self.notices}"])
        self.lmcache = self.engine("lmcache-decode", "decode", ["lmcache"],
                                   more=[*how, "--skip-last", 1, "--receiver-ports", 0, "--refuse-local"])

    def stepped(self, who):
        """The engine whose streams of the lane `stream` may be paused."""
        return (self.sglang if who == "sglang-router" else self.direct)["fast"]

    def api_keys(self):
        """So many keys of clients, key_of() by number; none: clients need none."""
        if not self.keys:
            return ""
        rows = [f"- {{name: key{i}, sha256: {hashlib.sha256(key_of(i).encode()).hexdigest()}, models: [\"f*\", idle, paced]}}\n"
                for i in range(self.keys)]
        (self.dir / "keys.yaml").write_text("".join(rows))
        return f"api_keys_file: keys.yaml\nshared_memory: {{max_api_keys: {self.keys}}}\n"

    def router(self, under):
        port = free_port()
        threshold = 0 if self.legs == 2 else 1000000  # a prompt below it goes to decode alone

        def pool(lane, engine, more=self.pool, connector="nixl", prefill=self.prefill, ports=""):
            if connector == "nixl":
                more = f"routing_threshold: {threshold}\n    {more}"
            urls = [", ".join(f'{{url: "http://127.0.{k // 250}.{k % 250 + 1}:{port}"{side}}}'
                              for k in range(self.addresses if lane == "fast" else 1))
                    for port, side in ((prefill, ""), (engine, ports))]
            return ROUTER_POOL.format(lane=lane, prefill=urls[0], decode=urls[1], connector=connector, more=more)

        pools, lmcache = "".join(pool(x, self.direct[x]) for x in LANES), ""
        if self.alone:
            ports = ", ".join(f"receiver_{x}_port: {self.side_port('lmcache-decode', x)}" for x in ("init", "alloc"))
            pools += (pool("resume", self.direct["fast"], "resume: true") +
                      pool("sglang", self.sglang["fast"], "engine: sglang", "sglang", self.sglang_prefill) +
                      pool("lmcache", self.lmcache, "", "lmcache", self.lmcache_prefill, ", " + ports))
            lmcache = f"lmcache: {{listen: 'tcp://127.0.0.1:{self.notices}'}}\n"
        conf = self.dir / "pdrouter.yaml"
        sandbox = "false" if under else "true"  # valgrind writes files in the worker
        tls_port = free_port()
        tls = f"tls: {{listen: ['127.0.0.1:{tls_port}'], ciphers: {CIPHERS}, certificates: [{{cert: cert.pem, key: key.pem}}]}}\n"
        conf.write_text(ROUTER.format(port=port, pools=pools, workers=self.workers, sandbox=sandbox) + self.api_keys() + lmcache +
                        self.more + (tls if self.tls else ""))
        p = self.run("router", [*under, BIN / "pdrouter", "-c", conf])
        self.until("router", p, lambda: get(port, "/ready") == 200, 60)
        if self.addresses > 1:  # without a page of the worker, which would be counted
            self.until("router", p, lambda: (self.dir / "router.err").read_text().count('"endpoint up"') >= 2 * self.addresses, 120)
        self.pid["router"] = p.pid
        self.ports["router"] = {**dict.fromkeys([*LANES, "stream"], port), **dict.fromkeys(TLS_LANES, tls_port),
                                **(dict.fromkeys(ALONE, port) if self.alone else {})}

    def beside(self, who, template, server, args, more, tls, tls_all="", for_all=""):
        """A proxy with one port for each lane, and `stream`: the fast engine again, not buffered."""
        engine_of = {**{x: x for x in LANES}, "stream": "fast", **(TLS_LANES if self.tls else {})}
        ports = {x: free_port() for x in engine_of}
        servers = "".join(server.format(name=x.replace(" ", "_"), port=port, engine=self.direct[engine_of[x]],
                                        more="" if x.endswith("fast") else more, tls=tls if x in TLS_LANES else "")
                          for x, port in ports.items())
        conf = self.dir / f"{who}.conf"
        conf.write_text(template.format(dir=self.dir, servers=servers, fds=self.fds, conns=self.fds // 2 - 100,
                                        user="root" if os.getuid() == 0 else "nobody", tls=tls_all if self.tls else "", all=for_all))
        p = self.run(who, [*args, conf])
        self.until(who, p, lambda: all(get(port, "/health") == 200 for x, port in ports.items() if x not in TLS_LANES))
        self.pid[who] = p.pid
        self.ports[who] = {x: port for x, port in ports.items() if x not in TLS_LANES or for_all != HAPROXY_TCP}

    def nginx(self):
        exe = shutil.which("nginx") or "/usr/sbin/nginx"
        self.beside("nginx", NGINX, NGINX_SERVER, [exe, "-p", self.dir, "-e", self.dir / "nginx.err", "-c"],
                    "proxy_buffering off;", "ssl ",
                    f"ssl_certificate {self.dir}/cert.pem; ssl_certificate_key {self.dir}/key.pem; ssl_ciphers {CIPHERS}; "
                    "ssl_protocols TLSv1.2 TLSv1.3;")

    def haproxy(self, who="haproxy", for_all=HAPROXY_HTTP):
        self.beside(who, HAPROXY, HAPROXY_SERVER, [shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f"], "",
                    f"ssl crt {self.dir}/both.pem ciphers {CIPHERS}", for_all=for_all)

    def tcp(self):
        self.haproxy("tcp", HAPROXY_TCP)

    def peer(self, who):
        """A process for each lane, since such a router has one pool."""
        import peers  # it needs this module

        self.ports[who], self.pids[who] = {}, []
        for lane in LANES:
            port = free_port()
            sides = (["--pd-disaggregation", "--prefill", f"http://127.0.0.1:{self.sglang_prefill}",
                      self.side_port("sglang-prefill", "bootstrap"), "--decode", f"http://127.0.0.1:{self.sglang[lane]}"]
                     if who == "sglang-router" else
                     ["--vllm-pd-disaggregation", "--prefill", f"http://127.0.0.1:{self.prefill}",
                      "--decode", f"http://127.0.0.1:{self.direct[lane]}"])
            name = f"{who}-{lane}"
            p = self.run(name, peers.command(who, port, "--policy", "round_robin", *sides))
            self.until(name, p, lambda: get(port, "/health") == 200, 60)
            self.ports[who][lane] = port
            self.pids[who].append(p.pid)
        self.ports[who]["stream"] = self.ports[who]["fast"]
