"""A paced load: so many requests a second, whatever becomes of them.  Each answer is compared with expect.py, and the router's log
tells which engines served it.  Figures say what a fault cost the clients."""
import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass

import expect
from procs import MODEL

RATE = 30  # requests a second
TOKENS = 12
PATIENCE = 120  # seconds until a client that has no whole answer counts as failed
GRACE = 5  # seconds after a fault in which more may fail
AT_FIRST, AFTER = 0.05, 0.01  # shares of requests that may fail in GRACE and after it


@dataclass
class Ask:
    """One request and what came of it."""
    req: str
    at: float  # seconds of time.monotonic()
    stream: bool
    status: int = 0
    wrong: str = "no answer"  # "": the whole answer was right
    took: float = 0.0
    engines: tuple = ()  # role and url of each engine that was tried, as often as it was


def unchunked(data):
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size or b"0", 16)
        if n == 0:
            return out, True
        out, data = out + data[:n], data[n + 2:]
    return out, False


def wrong_with(stream, status, body, whole, text):
    """Why this is not the answer; "" if it is."""
    if status != 200:
        return str(status)
    if not whole:
        return "cut off"
    if not stream:
        return "" if json.loads(body)["choices"][0]["text"] == text else "another text"
    events = [e.removeprefix("data: ") for e in body.decode().split("\n\n") if e]
    if events[-1:] != ["[DONE]"] or any('"error"' in e for e in events):
        return "error event"
    return "" if "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]) == text else "another text"


class Paced:
    """The load, from a thread of its own, until stop()."""

    def __init__(self, router, rate=RATE, model=MODEL, tokens=TOKENS, name="paced"):
        self.router, self.rate, self.model, self.tokens, self.name = router, rate, model, tokens, name
        self.asks, self.stopping = [], False
        self.thread = threading.Thread(target=lambda: asyncio.run(self.pace()), daemon=True)
        self.thread.start()

    async def pace(self):
        began, tasks = time.monotonic(), []
        for n in itertools.count():
            await asyncio.sleep(max(0.0, began + n / self.rate - time.monotonic()))
            if self.stopping:
                break
            tasks.append(asyncio.ensure_future(self.one(n)))
        await asyncio.gather(*tasks)

    async def one(self, n):
        ask = Ask(f"{self.name}-{n}", time.monotonic(), n % 2 == 0)
        self.asks.append(ask)
        prompt = f"Request {n} of {self.name}: " + "and so on, " * (n % 10)
        body = {"model": self.model, "prompt": prompt, "max_tokens": self.tokens, "stream": ask.stream}
        try:
            status, data, whole = await asyncio.wait_for(self.exchange(ask.req, json.dumps(body).encode()), PATIENCE)
            ask.status, ask.wrong = status, wrong_with(ask.stream, status, data, whole, expect.text(prompt, self.tokens))
        except (OSError, ValueError, LookupError, asyncio.TimeoutError) as e:
            ask.wrong = type(e).__name__
        ask.took = time.monotonic() - ask.at

    async def exchange(self, req, body):
        """Status, body, and whether all of the body came."""
        r, w = await asyncio.open_connection(*self.router.address)
        try:
            w.write(f"POST /v1/completions HTTP/1.1\r\nHost: router\r\nConnection: close\r\nX-Request-Id: {req}\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            data = await r.read()
        finally:
            w.close()
        head, _, data = data.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            data, whole = unchunked(data)
        else:
            whole = b"content-length: %d\r\n" % len(data) in head.lower() + b"\r\n"
        return int(head.split(b" ")[1]), data, whole

    def stop(self):
        """No request more; returns when the last one has its answer."""
        self.stopping = True
        self.thread.join(PATIENCE + 10)
        assert not self.thread.is_alive(), "a client waits without end"
        self.name_engines()

    def name_engines(self):
        tried = {}
        for line in self.router.lines():
            if line.get("msg") == "attempt failed":
                tried.setdefault(line.get("req"), []).append((line.get("role"), line.get("url")))
            elif line.get("msg") == "request":
                tried.setdefault(line.get("req"), []).extend((role, line.get(role)) for role in ("prefill", "decode"))
        for ask in self.asks:
            ask.engines = tuple(tried.get(ask.req, ()))


def failed(asks):
    return sum(bool(a.wrong) for a in asks) / max(1, len(asks))


class Figures:
    """Of the requests since the fault, which begins now; to be read when the load has stopped."""

    def __init__(self, load):
        self.load, self.at = load, time.monotonic()

    def since(self, seconds, until=float("inf")):
        return [a for a in self.load.asks if self.at + seconds <= a.at < self.at + until]

    def failed(self):
        """The shares of requests that failed in GRACE, and after it."""
        return failed(self.since(0, GRACE)), failed(self.since(GRACE))

    def why(self):
        return dict(Counter(a.wrong for a in self.since(0) if a.wrong))

    def share(self, *engines, since=0):
        """The part of all tries of requests that went to these engines, of all that went to engines of their role."""
        asks, urls, role = self.since(since), {e.url for e in engines}, engines[0].role if engines else None
        tried = [url for a in asks for of, url in a.engines if of == role]
        return sum(url in urls for url in tried) / max(1, len(tried))

    def percentile(self, p, since=0):
        took = sorted(a.took for a in self.since(since))
        return took[min(len(took) - 1, int(len(took) * p / 100))] if took else 0.0

    def first_at(self, engine, since=0):
        """Seconds from the fault to the first request that this engine was tried for, not counting the first `since`."""
        return next((a.at - self.at for a in self.since(since) if engine.url in [url for _, url in a.engines]), None)


def table(rows):
    """The figures of tests of misbehaving engines, [(name, {figure: value})], as lines."""
    shown = {"failed in 5 s": "{:.1%}", "failed after": "{:.1%}", "share": "{:.0%}", "share after": "{:.1%}", "p50": "{:.2f}", "p99": "{:.2f}",
             "healthy ejected": "{}", "why": "{}"}
    width = max((len(name) for name, _ in rows), default=0)
    head = " ".join(f"{name:>15}" for name in shown)
    lines = [f"{name:{width}} " + " ".join(f"{form.format(f[key]):>15}" for key, form in shown.items()) for name, f in sorted(rows)]
    return [f"{'':{width}} {head}", *lines] if rows else []
