#!/usr/bin/env python3
"""How long a turn of a worker's loop takes at most beside large bodies, in CPU time: as long do all other streams of
the worker wait.  See README.md."""
import argparse
import json
import socket
import struct
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from stage import BIN, Stage, tree

MOST_US = 1500
MIB = 1 << 20
BODIES = {  # what a body is made of, and what is repeated in it
    "prompt of plain text": ('{"model":"fast","max_tokens":2,"prompt":"', "Tell me about routers. ", '"}'),
    "token ids": ('{"model":"fast","max_tokens":2,"prompt":[1', ",12345", "]}"),
    "short messages": ('{"model":"fast","max_tokens":2,"messages":[{"role":"user","content":"a"}',
                       ',{"role":"user","content":"Tell me \\"about\\" ' + "\u00e9" + ' routers.\\n"}', "]}"),
}


def made(kind, size):
    begin, again, end = BODIES[kind]
    text = (begin + again * (size // len(again.encode())) + end).encode()
    json.loads(text)
    return text


def ask(port, text):
    """The engine may refuse it: the router has read and sent it all the same."""
    path = "chat/completions" if b"messages" in text[:100] else "completions"
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        s.sendall(f"POST /v1/{path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
        s.recv(4096)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--sizes", default="4,20,60", help="MiB")
    ap.add_argument("--times", type=int, default=3)
    opt = ap.parse_args()
    missed = 0
    more = "limits: {max_body: 128MiB, max_buffered: 1GiB}\n"
    with TemporaryDirectory() as where, Stage(
            proxies=("router",), more=more,
            router_under=["env", f"LD_PRELOAD={BIN}/turns.so", f"TURNS={where}/turns"]) as stage:
        files = [p for p in (Path(where) / f"turns.{pid}" for pid in tree(stage.pid["router"])[1:]) if p.exists()]
        print(f"{'body':<22} {'MiB':>4} {'turns':>6} {'longest, us':>11}   >1 ms  >2  >5 >10")
        for kind in BODIES:
            for size in map(int, opt.sizes.split(",")):
                text = made(kind, size * MIB)
                for p in files:
                    with p.open("r+b") as f:
                        f.write(bytes(48))
                for _ in range(opt.times):
                    ask(stage.ports["router"]["fast"], text)
                turns = max((struct.unpack("6q", p.read_bytes()) for p in files), key=lambda t: t[1])
                missed += turns[1] > MOST_US
                print(f"{kind:<22} {size:4} {turns[0]:6} {turns[1]:11}   {turns[2]:5} {turns[3]:3} {turns[4]:3} "
                      f"{turns[5]:3} {'ok' if turns[1] <= MOST_US else 'MISS'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
