"""Clients: what they ask, how they behave, and whether what they got is right, an honest error, or neither."""
import asyncio
import contextlib
import json
import random
import socket
import string
import time
from collections import Counter

import expect

PATIENCE = 30  # seconds a client waits for its whole answer; nothing of ours takes that long
CUTS = (0, 300, 999, 3000, 9999, 30000, 99999, 300000, 1020000)  # bytes of the common text in a prompt; multiples of 3
CHAT_HEAD = 'messages:[{"role":"user","content":"'
CHAT_PAD = "." * (-len(CHAT_HEAD) % 3)
CHAT_TAIL = '"}]\n'


class Stock:
    """A long text, and the state of pdsim's hash (expect.py) after some of it: each prompt is a beginning of the text and something of its
    own, so what a megabyte is answered costs no more to know than what a line is."""

    def __init__(self):
        rng = random.Random(5)
        self.text = "".join(rng.choices(string.ascii_letters + "     ", k=CUTS[-1]))
        self.plain = self.states("")
        self.chat = self.states(CHAT_HEAD + CHAT_PAD)

    def states(self, head):
        ids, at, state, out = expect.token_ids(head + self.text), len(head) // 3, expect.FNV0, {}
        want = {at + cut // 3: cut for cut in CUTS}
        for i, one in enumerate(ids):
            if i in want:
                out[want[i]] = state
            state = ((state ^ one) * expect.PRIME) & expect.MASK
        out[CUTS[-1]] = state
        return out

    @staticmethod
    def words(state, own, n, child):
        """What follows a state and some more text; expect.words() from there."""
        for one in expect.token_ids(own):
            state = ((state ^ one) * expect.PRIME) & expect.MASK
        state, out = (state + child * expect.GOLDEN) & expect.MASK, []
        for _ in range(n):
            x = state
            x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & expect.MASK
            x = ((x ^ x >> 27) * 0x94D049BB133111EB) & expect.MASK
            out.append(" " + expect.VOCAB[x >> 58])
            state = ((state ^ (expect.WORD + (x >> 58))) * expect.PRIME) & expect.MASK
        return "".join(out)


STOCK = Stock()
BEHAVIOURS = (  # weight, how the client behaves
    (70, "patient"), (3, "slow body"), (2, "slow reader"), (2, "leaves in the head"), (2, "leaves in the body"), (4, "leaves in prefill"),
    (4, "leaves before the first byte"), (6, "leaves in the stream"), (3, "leaves at the last event"), (2, "hurries"), (1, "nonsense"))
SIZES = ((55, (0,)), (25, (300, 999)), (12, (3000, 9999)), (6, (30000, 99999)), (2, (300000, 1020000)))
ERRORS_OF_OURS = {  # what is an honest answer to a good request
    429: {"queue_full", "no_capacity", "client_rate", "client_inflight"},
    502: {"prefill_broken", "prefill_bad_answer", "decode_broken", "decode_bad_answer", "engine_broken", "tokenize_failed",
          "prefill_down", "decode_down", "engine_down"},
    503: {"no_prefill_endpoint", "no_decode_endpoint", "queue_timeout", "not_learned", "shutdown", "overloaded", "fallback_budget"},
    504: {"prefill_connect_timeout", "prefill_timeout", "decode_connect_timeout", "first_byte_timeout", "stream_idle_timeout",
          "whole_answer_timeout", "engine_connect_timeout", "request_timeout"},
}


def pick(rng, table):
    return rng.choices([v for _, v in table], [w for w, _ in table])[0]


class Request:
    """One request, made from the seed and its number alone."""

    def __init__(self, seed, number, pools, calm=False, hosts=False):
        """`hosts`: some clients are on a host that may vanish."""
        rng = random.Random(f"{seed}/{number}")
        self.number, self.id = number, f"c{seed}-{number}"
        self.pool, self.chat, self.stream = rng.choice(pools), rng.random() < 0.5, rng.random() < 0.6
        self.how = "patient" if calm else pick(rng, BEHAVIOURS)
        self.n = rng.choice((2, 3)) if rng.random() < 0.04 else 1
        self.tokens = rng.randrange(60, 250) if rng.random() < 0.06 else rng.randrange(1, 24)
        apart = random.Random(f"{seed}/{number} host")
        self.away = hosts and apart.random() < 0.1
        if large := self.away and apart.random() < 0.3:  # more than the kernel takes while nobody reads
            self.stream, self.tokens = True, 250
        cut = rng.choice(pick(rng, SIZES))
        own = f" {self.id} " + "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(1, 40))) + "."  # no word of the model's at its end
        self.usage = self.stream and rng.random() < 0.5
        self.key = f"key-{rng.randrange(8)}" if rng.random() < 0.9 else None
        body = {"model": self.pool, "stream": self.stream}
        if self.chat:
            body["messages"] = [{"role": "user", "content": CHAT_PAD + STOCK.text[:cut] + own}]
            body["max_completion_tokens" if rng.random() < 0.5 else "max_tokens"] = self.tokens
            state, own = STOCK.chat[cut], own + CHAT_TAIL
        else:
            body["prompt"], state = STOCK.text[:cut] + own, STOCK.plain[cut]
            if cut < 1000 and rng.random() < 0.1:
                body["prompt"] = expect.token_ids(body["prompt"])
            body["max_tokens"] = self.tokens
            body["pdsim"] = {"words": True}  # should a router go on with its text
        # of an attempt for each sample none is the second: which it is depends on how the connector splits them
        self.texts = [{STOCK.words(state, own, self.tokens, k), STOCK.words(state, own, self.tokens, 0)} for k in range(self.n)]
        if self.n > 1:
            body["n"] = self.n
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.2:
            body["priority"] = rng.randrange(-5, 6)
        if self.how == "slow reader" or large:
            body.setdefault("pdsim", {})["event_bytes"] = 30000 if large else 2000
        self.path = "/v1/chat/completions" if self.chat else "/v1/completions"
        self.body = json.dumps(body).encode()
        if self.how == "nonsense":
            self.body = rng.choice((b"{", b'{"model": "none", "prompt": "x", "messages": []}', b"[]", self.body[:-1]))
        self.timeout_ms = rng.choice((1, 20, 100, 400)) if self.how == "hurries" else None
        self.chunked_body, self.reset = rng.random() < 0.2, rng.random() < 0.5
        self.wait, self.events = rng.random(), rng.randrange(1, self.tokens + 1)
        self.keep = rng.random() < 0.7

    def head(self):
        lines = [f"POST {self.path} HTTP/1.1", "Host: router", "Content-Type: application/json", f"X-Request-Id: {self.id}",
                 f"Content-Length: {len(self.body)}"]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if self.timeout_ms:
            lines.append(f"X-Request-Timeout-Ms: {self.timeout_ms}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


class Broken(Exception):
    """The connection ended before the answer did."""


class Conn:
    """A connection of a client; `killed`: the worker that had it was killed."""

    def __init__(self, sock, registry, away):
        self.sock, self.buf, self.killed, self.asked, self.away = sock, b"", None, [], away
        self.ended_badly = False
        self.port, self.registry = sock.getsockname()[1], registry
        registry[self.port] = self
        self.loop = asyncio.get_running_loop()
        self.bite = 65536

    def alive(self):
        """Nothing has come on it since its last answer, nor its end: as HTTP libraries look before they use it again."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def send(self, data):
        try:
            await self.loop.sock_sendall(self.sock, data)
        except OSError as e:
            raise Broken(type(e).__name__) from None

    async def more(self):
        try:
            data = await self.loop.sock_recv(self.sock, self.bite)
        except OSError as e:
            raise Broken(type(e).__name__) from None
        if not data:
            raise Broken("closed")
        self.buf += data

    async def until(self, mark):
        while mark not in self.buf:
            await self.more()
        got, self.buf = self.buf.split(mark, 1)
        return got

    async def take(self, n):
        while len(self.buf) < n:
            await self.more()
        got, self.buf = self.buf[:n], self.buf[n:]
        return got

    def close(self, reset=False):
        if self.sock.fileno() == -1:
            return
        if reset:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if self.registry.get(self.port) is self:
            del self.registry[self.port]
        self.sock.close()


class Answer:
    def __init__(self):
        self.status, self.headers, self.body, self.events, self.whole = None, {}, b"", 0, False


class Clients:
    """Asks and checks the answers.  `bad` is what no router may do, each with its request and what it got; `outcomes` counts all."""

    def __init__(self, seed, pools, address, clock, host=None):
        """`host`: where some clients are, or None."""
        self.seed, self.pools, self.address, self.clock, self.host = seed, pools, address, clock, host
        self.registry, self.idle, self.tasks = {}, [], set()
        self.outcomes, self.errors, self.bad, self.lost, self.kinds = Counter(), Counter(), [], {}, Counter()
        self.calm, self.calm_outcomes = False, Counter()
        self.gone, self.number, self.in_flight_max, self.slowest = {}, 0, 0, (0, None)
        self.refused_until = 0  # an engine refuses what it should serve until then, and its partners may be away
        self.excused_until = 0  # idle connections may be closed under us until then: a generation drains
        self.off = []  # [from, to] of the times when the host was off; to: None while it is

    # --- the host of some clients ---
    def host_is_off(self):
        return bool(self.off) and self.off[-1][1] is None

    def under_way_there(self):
        """{port: id} of the host's requests."""
        return {c.port: c.asked[-1] for c in self.registry.values() if c.away and c.asked and c not in self.idle}

    def host_goes(self):
        self.off.append([self.clock(), None])
        for c in [c for c in self.idle if c.away]:
            self.idle.remove(c)
            c.close()

    def host_comes_back(self):
        self.off[-1][1] = self.clock()

    def was_off(self, req, began):
        """Its host was, at some time since `began`: the router may have ended what it had of it."""
        return req.away and any(to is None or to >= began for _, to in self.off)

    def new_socket(self, req):
        """An unconnected one, and where it is to be connected to."""
        if not req.away:
            s = socket.socket()
            s.bind((self.address[0], 0))
            return s, self.address
        with self.host.sockets():
            s = socket.socket()
        s.bind((self.host.there, 0))
        return s, (self.host.here, self.address[1])

    # --- one request ---
    async def connect(self, req):
        idle = [c for c in self.idle if c.away == req.away]
        while req.keep and idle and req.how != "slow reader":
            c = idle.pop()
            self.idle.remove(c)
            if c.alive():
                return c
            c.close()
        s, address = self.new_socket(req)
        s.setblocking(False)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if req.how == "slow reader":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        c = Conn(s, self.registry, req.away)
        try:
            await loop.sock_connect(s, address)
        except OSError as e:
            c.close()
            raise Broken("connect: " + type(e).__name__) from None
        return c

    async def send(self, c, req):
        """False: the client has left in the midst of it."""
        if req.how == "leaves in the head":
            head = req.head()
            await c.send(head[:int(len(head) * req.wait)])
            return False
        if req.how == "leaves in the body":
            await c.send(req.head() + req.body[:int(len(req.body) * req.wait)])
            await asyncio.sleep(req.wait / 20)
            return False
        if req.how == "slow body":
            await c.send(req.head())
            step = max(1, len(req.body) // 8)
            for i in range(0, len(req.body), step):
                await c.send(req.body[i:i + step])
                await asyncio.sleep(req.wait / 20)
            return True
        await c.send(req.head() + req.body)
        return True

    async def read(self, c, req, a):
        """False: the client has left."""
        if req.how == "leaves in prefill":
            await asyncio.sleep(req.wait * 0.02)
            return False
        if req.how == "leaves before the first byte":
            await asyncio.sleep(req.wait * 0.1)
            return False
        if req.how == "slow reader":
            c.bite = 4096
        lines = (await c.until(b"\r\n\r\n")).split(b"\r\n")
        a.status = int(lines[0].split(b" ")[1])
        a.headers = {k.lower(): v for k, _, v in (x.decode("latin-1").partition(": ") for x in lines[1:])}
        if "content-length" in a.headers:
            a.body = await c.take(int(a.headers["content-length"]))
        elif a.headers.get("transfer-encoding") == "chunked":
            while size := int((await c.until(b"\r\n")).split(b";")[0], 16):
                a.body += await c.take(size)
                await c.take(2)
                a.events = a.body.count(b"\n\n")
                if req.how == "leaves in the stream" and a.events >= req.events:
                    return False
                if req.how == "leaves at the last event" and b"[DONE]" in a.body:
                    return False
                if req.how == "slow reader":
                    await asyncio.sleep(req.wait / 30)
            await c.take(2)
        else:
            with contextlib.suppress(Broken):
                while True:
                    await c.more()
            a.body = c.buf
            a.headers["connection"] = "close"
        a.whole = True
        return True

    async def ask(self, req):
        began = self.clock()
        for again in (False, True):
            a, c, stays = Answer(), None, True
            try:
                c = await self.connect(req)
                c.asked.append(req.id)
                stays = await self.send(c, req) and await self.read(c, req, a)
                outcome = self.check(req, a) if stays else self.left(req, a)
            except Broken as e:
                # an answer that came before the body was sent, as 429 may: it is there to be read
                if a.status is None and stays and c is not None and await self.late_answer(c, req, a):
                    outcome = self.check(req, a)
                elif self.was_off(req, began):
                    outcome, stays = "left", False
                elif c is not None and c.killed is not None:
                    outcome = "lost with its worker"
                    self.lost[req.id] = c.killed
                elif a.status is None and c is not None and not c.buf and len(c.asked) > 1 and not again and (
                        c.ended_badly or self.clock() < self.excused_until):
                    outcome = "stale"  # an idle connection that a draining worker has closed, or that is closed after an error event
                elif req.how in ("nonsense",) and a.status is None and c is not None:
                    outcome = "refused nonsense"
                else:
                    outcome = self.wrong(req, a, f"broken off: {e}", c)
            if c is not None and (not a.whole or not stays or a.headers.get("connection") == "close" or not req.keep or req.how == "slow reader"):
                c.close(reset=req.reset)
            elif c is not None and len(self.idle) < 40 and not self.was_off(req, began):
                c.ended_badly = req.stream and b"[DONE]" not in a.body
                self.idle.append(c)
            elif c is not None:
                c.close()
            if not stays:
                self.gone[req.id] = began
            if outcome != "stale":
                break
            self.outcomes["stale"] += 1
        self.outcomes[outcome] += 1
        if self.calm:
            self.calm_outcomes[outcome] += 1
        took = self.clock() - began
        if took > self.slowest[0]:
            self.slowest = (took, req.id)

    async def late_answer(self, c, req, a):
        with contextlib.suppress(Broken, ValueError):
            return await self.read(c, req, a)
        return False

    async def one(self, req):
        self.kinds[f"{req.pool} {'chat' if req.chat else 'text'} {'stream' if req.stream else 'whole'}"] += 1
        self.kinds[req.how] += 1
        began = self.clock()
        try:
            await asyncio.wait_for(self.ask(req), PATIENCE)
        except asyncio.TimeoutError:
            if self.was_off(req, began):  # the end of its connection went to nobody
                self.gone[req.id] = began
                self.outcomes["left"] += 1
                return
            self.outcomes[self.wrong(req, Answer(), f"no end for {PATIENCE} s", None)] += 1
        except Exception as e:
            self.outcomes[self.wrong(req, Answer(), f"{type(e).__name__}: {e}", None)] += 1

    # --- outcomes ---
    def wrong(self, req, a, why, c=None):
        self.bad.append({"at": round(self.clock(), 3), "req": req.id, "pool": req.pool, "how": req.how, "stream": req.stream, "chat": req.chat, "n": req.n,
                         "tokens": req.tokens, "body": len(req.body), "why": why, "status": a.status,
                         "got": a.body[-300:].decode(errors="replace"), "connection": c and (c.port, c.asked)})
        return "WRONG"

    def left(self, req, a):
        """What had come before the client left must have been right so far."""
        if a.status == 200 and req.stream:
            events = a.body.split(b"\n\n")[:-1]
            texts, _, error, _ = self.parse(req, events)
            if error is None:
                for k, got in enumerate(texts):
                    if not any(t.startswith(got) for t in req.texts[k]):
                        return self.wrong(req, a, f"another text in choice {k}")
        return "left"

    @staticmethod
    def parse(req, events):
        """Texts of the choices, the usage, the error event, whether [DONE] came."""
        texts, usage, error, done = [""] * req.n, None, None, False
        for e in events:
            data = e.removeprefix(b"data: ")
            if data == b"[DONE]":
                done = True
                continue
            obj = json.loads(data)
            if "error" in obj:
                error = obj["error"]
            usage = obj.get("usage") or usage
            for choice in obj.get("choices") or []:
                delta = choice.get("delta")
                texts[choice["index"]] += (choice.get("text") or "") if delta is None else (delta.get("content") or "")
        return texts, usage, error, done

    def check(self, req, a):
        if req.how == "nonsense":
            return "refused nonsense" if a.status in (400, 404, 429) else self.wrong(req, a, "nonsense is not refused")
        if a.headers.get("x-request-id") != req.id:
            return self.wrong(req, a, f"X-Request-Id of another: {a.headers.get('x-request-id')}")
        if a.status != 200:
            return self.refused(req, a)
        try:
            if req.stream:
                texts, usage, error, done = self.parse(req, a.body.split(b"\n\n")[:-1])
            else:
                obj = json.loads(a.body)
                texts, usage, error, done = [""] * req.n, obj.get("usage"), obj.get("error"), True
                for choice in obj.get("choices", []):
                    texts[choice["index"]] = choice["message"]["content"] if req.chat else choice["text"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
            return self.wrong(req, a, f"not readable: {e!r}")
        if error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            for k, got in enumerate(texts):
                if not any(t.startswith(got) for t in req.texts[k]):
                    return self.wrong(req, a, f"another text in choice {k} before the error")
            if done and code != 500:  # an engine's own event goes through with what it sends after it
                return self.wrong(req, a, "[DONE] after an error of ours")
            self.errors[f"event {code}"] += 1
            return "honest error"
        if not done:
            return self.wrong(req, a, "no [DONE] and no error: silently cut")
        for k, got in enumerate(texts):
            if got not in req.texts[k]:
                return self.wrong(req, a, f"another text in choice {k}: {got!r}, not {sorted(req.texts[k])[0]!r}")
        if req.usage or not req.stream:
            if not usage or usage.get("completion_tokens") != req.tokens * req.n:
                return self.wrong(req, a, f"usage {usage}, not of {req.tokens * req.n} tokens")
        return "ok"

    def refused(self, req, a):
        try:
            obj = json.loads(a.body)
        except ValueError:
            return self.wrong(req, a, f"{a.status} without an error body")
        error = obj.get("error") if isinstance(obj.get("error"), dict) else obj
        code = error.get("code")
        if not error.get("message"):
            return self.wrong(req, a, f"{a.status} without a message")
        if code in ERRORS_OF_OURS.get(a.status, ()):
            if a.status in (429, 503) and "retry-after" not in a.headers:
                return self.wrong(req, a, f"{a.status} without Retry-After")
            self.errors[f"{a.status} {code}"] += 1
        elif a.status in (400, 401, 403, 404) and self.clock() < self.refused_until:
            self.errors[f"{a.status} of an engine"] += 1
        elif a.status in (429, 500, 503) and code in (a.status, str(a.status), None):
            self.errors[f"{a.status} of an engine"] += 1
        else:
            return self.wrong(req, a, f"refused: {a.status} {code}")
        return "honest error"

    # --- the load ---
    def worker_killed(self, pid, ports):
        for port in ports:
            if port in self.registry:
                self.registry[port].killed = pid
        self.idle = [c for c in self.idle if c.killed is None or c.close()]

    async def run(self, rate, until, most=250):
        """Requests at a bounded rate that goes up and down, until the clock says so."""
        rng = random.Random(f"{self.seed} arrivals")
        pace, change = rate, 0
        while (now := self.clock()) < until:
            if now >= change:
                pace, change = rate * rng.choice((0.3, 0.7, 1, 1.3, 2.2)), now + rng.uniform(1, 4)
            await asyncio.sleep(rng.expovariate(pace))
            if len(self.tasks) >= most:
                continue
            self.number += 1
            task = asyncio.ensure_future(self.one(Request(self.seed, self.number, self.pools, self.calm, self.host is not None)))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            self.in_flight_max = max(self.in_flight_max, len(self.tasks))

    async def settle(self):
        while self.tasks:
            await asyncio.wait(list(self.tasks), timeout=1)
        for c in self.idle:
            c.close()
        self.idle = []


def clock():
    began = time.monotonic()
    return lambda: time.monotonic() - began
