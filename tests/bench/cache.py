"""Prefix caches over real HTTP: a part of Mooncake's conversation trace, sped up, through this router and others.

    python3 tests/bench/cache.py [--seconds 50] [--engines 4,8] [--only NAME,...] [--json FILE]

The engines keep an LRU of blocks of 512 tokens, compute one prompt at a time, and serve whole requests: in that form the
policies of all routers work. Each router gets the same requests at the same times and engines of its own. The requests are those of some
conversations of the whole hour. Other routers: peers.py; one that cannot be installed is left out. Exit status 1 if
cache_aware has fewer hits or a longer mean TTFT than another router of its kind.
"""
import argparse
import asyncio
import json
import lzma
import random
import re
import sys
import time

import peers
from stage import BIN, ROOT, Stage, free_port, get, metrics

TRACE = ROOT / "tests/data/mooncake/conversation_trace.jsonl.xz"
STEP_S = 3  # the trace's clock advances in such steps: requests are spread over a step
BLOCK = 512  # tokens
TOKEN_BYTES = 3  # of a simulated engine
HELD = 0.2  # share of all blocks that the caches of all engines together hold
LOAD = 0.7  # of engines without caches
RATE = 20  # requests a second: what the clients of one machine can do beside everything else
FIXED = 200  # what a prompt takes beside its tokens, in tokens
OUTPUT = 4  # tokens

POOL = """
listen: ["127.0.0.1:{port}"]
workers: 2
control_socket: ""
pools:
  - name: bench
    models: [bench]
    connector: nixl
    routing_threshold: 1000000
    decode_policy: {policy}
    decode_load: tokens
    prefix_bytes: 4KiB
    decode: [{engines}]
    prefill: [{{url: "{spare}"}}]  # a pool has one, but all prompts are below the threshold
"""


def read():
    """The trace, spread over its steps."""
    dice = random.Random(18)
    with lzma.open(TRACE, "rt") as f:
        rows = [json.loads(line) for line in f]
    for row in rows:
        row["at"] = row["timestamp"] / 1000 + dice.random() * STEP_S
    return sorted(rows, key=lambda r: r["at"])


def requests(seconds):
    """(when, prompt, tokens) of some conversations, at RATE on average; how many blocks they have.  All prompts of the trace
    have their first block in common, those of a conversation the second."""
    rows = read()
    among = len(rows) / (seconds * RATE)
    rows = [r for r in rows if random.Random(r["hash_ids"][min(1, len(r["hash_ids"]) - 1)]).random() * among < 1]
    scale = len(rows) / RATE / (rows[-1]["at"] - rows[0]["at"])
    blocks = len({i for r in rows for i in r["hash_ids"]})
    return [((r["at"] - rows[0]["at"]) * scale, prompt_of(r), r["input_length"]) for r in rows], blocks


def prompt_of(row):
    """Each block's text follows from its id; the last one is cut."""
    text = []
    for i in row["hash_ids"]:
        word = f"{i:x}-{i * 2654435761 % 2**32:08x} "
        text.append((word * (BLOCK * TOKEN_BYTES // len(word) + 1))[:BLOCK * TOKEN_BYTES])
    return "".join(text)[:row["input_length"] * TOKEN_BYTES]


class CacheStage(Stage):
    """`n` engines, and one router on `self.port`."""

    def __init__(self, who, n, us_per_token, blocks):
        self.n, self.us_per_token, self.blocks = n, us_per_token, blocks
        self.port = free_port()
        super().__init__(proxies=(who.replace("-", "_"),))

    def engines(self):
        self.http = [free_port() for _ in range(self.n)]
        for port in self.http:
            p = self.run(f"engine{port}", [
                BIN / "pdsim", "--role", "both", "--port", port, "--idle-timeout", 0, "--keep-body", 0, "--model", "bench",
                "--max-model-len", 10000000, "--blocks", 100000000, "--prompt-tokens-details", "--block-size", BLOCK,
                "--cache-blocks", self.blocks, "--prefill-us-per-token", f"{self.us_per_token:.3f}",
                "--prefill-delay", f"{self.us_per_token * FIXED / 1000:.3f}"])
            self.until("pdsim", p, lambda: get(port, "/health") == 200)
        self.ports["direct"] = {}

    def urls(self):
        return [f"http://127.0.0.1:{port}" for port in self.http]

    def up(self, name, args, path):
        p = self.run(name, args)
        self.until(name, p, lambda: get(self.port, path) == 200, 60)

    def ours(self, policy):
        conf = self.dir / "pdrouter.yaml"
        spare = self.run("spare", [BIN / "pdsim", "--role", "prefill", "--model", "bench", "--port", port := free_port()])
        self.until("pdsim", spare, lambda: get(port, "/health") == 200)
        conf.write_text(POOL.format(port=self.port, policy=policy, spare=f"http://127.0.0.1:{port}", engines=", ".join(f'{{url: "{url}"}}' for url in self.urls())))
        self.up("pdrouter", [BIN / "pdrouter", "-c", conf], "/ready")

    def least_loaded(self):
        self.ours("least_loaded")

    def prefix(self):
        self.ours("prefix")

    def cache_aware(self):
        self.ours("cache_aware")

    def peer(self, name):
        self.up(name, peers.command(name, self.port, "--policy", "cache_aware", "--worker-urls", *self.urls()), "/health")

    def sglang_router(self):
        self.peer("sglang-router")

    def vllm_router(self):
        self.peer("vllm-router")

    def tokens(self):
        """Prompt tokens that the engines looked up, and found."""
        sums = [0, 0]
        for port in self.http:
            page = metrics(port)
            for k, name in enumerate(("queries", "hits")):
                sums[k] += float(re.search(rf"^pdsim:prefix_{name}_total(?:{{.*}})? (\S+)$", page, re.M)[1])
        return sums


async def ask(port, prompt):
    """Seconds from the request to the first event of the stream; None: no good answer."""
    body = json.dumps({"model": "bench", "messages": [{"role": "user", "content": prompt}], "max_tokens": OUTPUT, "stream": True}).encode()
    begin = time.monotonic()
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        if b" 200 " not in head.split(b"\r\n")[0]:
            return None
        await asyncio.wait_for(reader.readuntil(b"data: "), 60)
        first = time.monotonic() - begin
        rest = await asyncio.wait_for(reader.read(), 60)
        return first if b"[DONE]" in rest else None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.close()


async def play(port, rows):
    begin = time.monotonic() + 0.1

    async def one(at, prompt):
        await asyncio.sleep(begin + at - time.monotonic())
        return await ask(port, prompt)
    return await asyncio.gather(*(one(at, prompt) for at, prompt, _ in rows))


def measure(who, n, rows, blocks):
    mean = sum(tokens for _, _, tokens in rows) / len(rows)
    us_per_token = LOAD * n / RATE * 1e6 / (mean + FIXED)
    with CacheStage(who, n, us_per_token, blocks) as stage:
        before = stage.tokens()
        times = asyncio.run(play(stage.port, rows))
        looked, found = (after - b for after, b in zip(stage.tokens(), before))
    good = sorted(t for t in times if t is not None)
    if not good:
        raise SystemExit(f"cache: {who} answered nothing")
    return {"hit": found / looked, "mean": sum(good) / len(good), "p99": good[int(0.99 * len(good))], "failed": len(times) - len(good)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--engines", default="4,8")
    parser.add_argument("--only")
    parser.add_argument("--json")
    args = parser.parse_args()
    ours = ["least_loaded", "prefix", "cache_aware"]
    who = args.only.split(",") if args.only else peers.install() + ours
    rows, distinct = requests(args.seconds)
    results = {}
    for n in map(int, args.engines.split(",")):
        blocks = int(HELD * distinct / n)
        print(f"\n{n} engines of {blocks} blocks, {len(rows)} requests, {RATE} a second\n"
              f"{'router':26}{'hit rate, %':>12}{'mean TTFT, ms':>15}{'p99':>8}{'failed':>8}")
        for name in who:
            r = results.setdefault(str(n), {})[name] = measure(name, n, rows, blocks)
            print(f"{name if name in peers.PEERS else 'pdrouter ' + name:26}{100 * r['hit']:12.1f}{1000 * r['mean']:15.0f}{1000 * r['p99']:8.0f}{r['failed']:8}",
                  flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)
    missed = 0
    for n, of in results.items():
        for name in [x for x in peers.PEERS if x in of and "cache_aware" in of]:
            us, them = of["cache_aware"], of[name]
            for ok, what in ((us["mean"] < them["mean"] and us["failed"] == 0,
                              f"mean TTFT {1000 * us['mean']:.0f} ms, {name} {1000 * them['mean']:.0f} (less)"),
                             (us["hit"] > them["hit"], f"hits {100 * us['hit']:.1f}%, {name} {100 * them['hit']:.1f}% (more)")):
                missed += not ok
                print(f"  {'ok  ' if ok else 'MISS'} {n} engines: {what}")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
