#!/usr/bin/env python3
"""The router's parsers beside others: request heads beside h11, JSON beside Python's, notices beside msgspec (LMCache's own).

What the router accepts, the other one must accept and read alike: two readings of one message are what smuggling is made of.
JSON documents that Python accepts the router must accept as well.  The compare_*() functions say where they may differ, and why.

differential.py TELL SECONDS [SEED]   build/release/tell; inputs are those of tests/fuzz/corpus, those that libFuzzer has found by
                                      coverage (build/fuzz/*/new), and mutations of both for so many seconds
"""
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import time

import h11
import msgspec

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = {"Q": "http", "J": "splice", "M": "notif"}
BATCH = 2000
SHOWN = 10
DEEPEST = 60  # Python and the router have limits of their own
HEADS = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
         b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
         b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n",
         b"OPTIONS * HTTP/1.0\r\nX-A:\t b \r\n\r\n"]
TEXTS = [b'{"model":"m","prompt":[1,-2.5e3,true,null],"a":{"b":"\\u00e9\\ud83d\\ude00"}}', b' { "x" : [ ] } ', b'{"a":"\xc3\xa9"}',
         b'{"ids":[' + b",".join(b"%d" % (i * 37 % 1013) for i in range(30)) + b", 0, " + b", ".join(b"%d" % i for i in range(30)) + b"]}"]
NOTICES = [msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": "a-1"}), msgspec.msgpack.encode({"req_id": "b", "n": [1, -5, 2.5, None, b"x"]})]
PIECES = {"Q": [b"\r\n", b"\n", b" ", b"\t", b":", b",", b"\0", b"chunked", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n",
                b"Transfer-Encoding: identity, chunked\r\n", b"HTTP/1.0", b"http://b/c", b"Host: b\r\n", b"+3", b"0x3", b"\x80", b";"],
          "J": [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"1e9", b"-0", b"01", b"NaN", b"\\ud800", b"\xff", b"\xed\xa0\x80", b"\0", b"\x7f", b"\t"],
          "M": [b"\x81", b"\xdf\0\0\0\1", b"\xd9\x06req_id", b"\xa6req_id", b"\xc1", b"\xc0", b"\xdc\0\1", b"\xd4\1\2", b"\xcb" + bytes(8)]}


def read_head(data):
    """What h11 reads, in the words of tell.c; None: it refuses."""
    c = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    try:
        c.receive_data(data)
        event = c.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.Request):
        return None
    headers = [(bytes(n), bytes(v)) for n, v in event.headers]
    length = [v for n, v in headers if n == b"content-length"]
    framing = "chunked" if any(n == b"transfer-encoding" for n, _ in headers) else "length" if length else "none"
    return [bytes(event.method), bytes(event.target), event.http_version[-1:].decode(), framing, length[0].decode() if framing == "length" else "0",
            headers]


def told_head(line):
    words = line.split()
    texts = [b"" if w == "." else bytes.fromhex(w) for w in words[6:]]
    headers = [(n.lower(), v) for n, v in zip(texts[::2], texts[1::2], strict=True)]
    return [bytes.fromhex(words[1]), bytes.fromhex(words[2]), words[3], words[4], words[5], headers]


def plain(head):
    """Without what both may write in their own way: a length of 0 is no body."""
    method, target, minor, framing, length, headers = head
    if framing == "length" and int(length) == 0:
        framing = "none"
    names = [h for h in headers if h[0] not in (b"content-length", b"transfer-encoding")]
    return [method, target, minor, framing, str(int(length)), names]


def compare_head(data, line):
    other = read_head(data)
    if line == "-":
        return None  # the router is stricter: proto/http/http_rules.h
    told = told_head(line)
    if other is None:
        return None if excused(told) else "h11 refuses it"
    return None if plain(told) == plain(other) else f"h11 reads {plain(other)}, the router {plain(told)}"


def excused(told):
    """h11 wants a Host; no engine chooses by it, and the router writes its own."""
    return told[2] == "1" and not any(n == b"host" for n, _ in told[5])


def no_constant(word):
    raise ValueError(word)


def depth(text):
    level = most = 0
    for c in re.sub(rb'"(?:\\.|[^"\\])*"', b"", text, flags=re.S):
        level += (c in b"[{") - (c in b"]}")
        most = max(most, level)
    return most


def read_json(data):
    try:
        return isinstance(json.loads(data.decode(), parse_constant=no_constant), dict)
    except (ValueError, RecursionError):
        return False


def compare_json(data, line):
    if read_json(data) == (line == "+") or depth(data) > DEEPEST:
        return None
    return f"Python {'refuses' if line == '+' else 'accepts'} it"


def compare_notice(data, line):
    """Texts that are no UTF-8, and keys that are bytes, pass: an id counts only if it is one of the router's own, which are ASCII.
    A map as a key is a limit of Python's.  The router passes over all extensions alike; msgspec looks into times."""
    if line == "-":
        return None  # it may be whole and of another type
    try:
        other = msgspec.msgpack.decode(data)
    except UnicodeDecodeError:
        return None
    except msgspec.DecodeError as e:
        return None if any(x in str(e) for x in ("map keys must be hashable", "MessagePack timestamp")) else f"msgspec refuses it: {e}"
    ids = [v for k, v in other.items() if k in ("req_id", b"req_id")]
    told = bytes.fromhex(line.strip())
    return None if told in [v if isinstance(v, bytes) else str(v).encode() for v in ids] else f"msgspec reads {other}, the router {told}"


COMPARE = {"Q": compare_head, "J": compare_json, "M": compare_notice}


def seeds():
    found = {"Q": list(HEADS), "J": list(TEXTS), "M": list(NOTICES)}
    for kind, target in TARGETS.items():
        for folder in (ROOT / "tests/fuzz/corpus" / target, ROOT / "build/fuzz" / target / "new"):
            for path in sorted(folder.glob("*")):
                data = path.read_bytes()
                if kind == "Q" and data[:1] == b"Q":
                    found[kind].append(data[2:])  # the bytes before choose the kind and the cuts
                elif kind != "Q":
                    found[kind].append(data)
    return found


def mutated(rng, kind, data, others):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        step = rng.randrange(5)
        if step == 0:
            data[at:at] = rng.choice(PIECES[kind])
        elif step == 1:
            del data[at:at + rng.choice((1, 1, 2, 8))]
        elif step == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif step == 3 and at < len(data):
            data[at] = rng.randrange(256)
        else:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            data[at:at] = other[begin:begin + rng.randrange(1, 40)]
    return bytes(data[:1 << 16])


def tell(program, batch):
    records = b"".join(kind.encode() + struct.pack("<I", len(data)) + data for kind, data in batch)
    lines = subprocess.run([program], input=records, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    assert len(lines) == len(batch), "one line for each"
    return lines


def main():
    program, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    rng, inputs = random.Random(seed), seeds()
    batch, end, n, bad, taken = [(k, d) for k in inputs for d in inputs[k]], time.monotonic() + seconds, 0, [], dict.fromkeys(inputs, 0)
    while batch and len(bad) < SHOWN:
        for (kind, data), line in zip(batch, tell(program, batch), strict=True):
            taken[kind] += line != "-"
            fault = COMPARE[kind](data, line)
            if fault:
                bad.append(f"{kind} {data[:300]!r}: {fault}")
        n += len(batch)
        batch = [] if time.monotonic() > end else [(k, mutated(rng, k, rng.choice(inputs[k]), inputs[k])) for k in rng.choices("QJM", (2, 1, 1), k=BATCH)]
    print("\n".join(bad[:SHOWN]))
    print(f"differential: {n} inputs (the router took {taken['Q']} heads, {taken['J']} documents, {taken['M']} notices), seed {seed}, "
          f"{len(bad)} read otherwise")
    return 1 if bad or min(taken.values()) == 0 else 0


sys.exit(main())
