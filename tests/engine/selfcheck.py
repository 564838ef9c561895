#!/usr/bin/env python3
"""Checks the engine simulator by itself: python3 tests/engine/selfcheck.py [path of pdsim [word of a check ...]]

Starts engines on free ports and does the hand-shakes by hand.  Standard library only.
"""

import base64
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expect  # noqa: E402

PDSIM = sys.argv[1] if len(sys.argv) > 1 else "build/release/pdsim"
SKELETON = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PROMPT = "Once upon a time there was a router with a very long name, and it was happy."
CHECKS = 0
NEXT = 0


def check(cond, *what):
    global CHECKS
    CHECKS += 1
    if not cond:
        raise AssertionError(what)


def same(got, want):
    check(got == want, "got", got, "want", want)


def fresh():
    global NEXT
    NEXT += 1
    return "rid-%d-%d" % (os.getpid(), NEXT)


class Engine:
    def __init__(self, *args):
        self.p = subprocess.Popen([PDSIM, *args], stdout=subprocess.PIPE, text=True)
        m = re.match(r"pdsim listening http=(\d+) side=(\d+) bootstrap=(\d+)(.*)\n", self.p.stdout.readline())
        self.port, self.side, self.bootstrap = int(m[1]), int(m[2]), int(m[3])
        self.ports = {k: [int(p) for p in v.split(",")] for k, v in re.findall(r" (\w+)=([\d,]+)", m[4])}
        self.host = "::1" if "::1" in args else "127.0.0.1"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.p.send_signal(signal.SIGTERM)
        code = self.p.wait(10)
        if exc[0] is None:
            same(code, 0)

    def call(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection(self.host, self.port, timeout=10)
        raw = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        c.request(method, path, raw, headers or {})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, data, dict(r.getheaders())

    def post(self, path, body, rid=None, headers=None, want=200):
        status, data, _ = self.call("POST", path, body, {"X-Request-Id": rid or fresh(), **(headers or {})})
        same((status, data[:300] if status != want else b""), (want, b""))
        return json.loads(data)

    def fault(self, **spec):
        self.post("/sim/fault", spec)

    def metric(self, name):
        text = self.call("GET", "/metrics")[1].decode()
        m = re.search(r"^%s(?:\{[^}]*\})? (\S+)$" % re.escape(name), text, re.M)
        check(m, "no metric", name)
        return float(m[1])

    def why(self):
        """Why the last request could not have its KV; its client is told what the real engine tells."""
        return json.loads(self.call("GET", "/sim/last?n=1")[1])["requests"][0]["failed"]

    def until(self, name, value, seconds=5):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric(name) == value:
                check(True)
                return
            time.sleep(0.01)
        same((name, self.metric(name)), (name, value))

    def raw(self, data):
        s = socket.create_connection((self.host, self.port), 10)
        s.sendall(data)
        return s

    def raw_post(self, path, body, headers=""):
        b = json.dumps(body).encode()
        return self.raw(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s" % (
            path.encode(), len(b), headers.encode(), b))


def events(data):
    """The SSE data lines of a stream's body"""
    out = data.decode().split("\n\n")
    same(out.pop(), "")
    for e in out:
        check(e.startswith("data: "), e)
    return [e[6:] for e in out]


def read_all(s):
    out = b""
    try:
        while True:
            b = s.recv(65536)
            if not b:
                return out, None
            out += b
    except ConnectionResetError:
        return out, "reset"
    finally:
        s.close()


def prefill_body(**more):
    return {"model": "sim-model", "prompt": PROMPT, "max_tokens": 1, "stream": False,
            "kv_transfer_params": SKELETON, **more}


def handoff(p, d, **more):
    rid = fresh()
    kv = p.post("/v1/completions", prefill_body(), rid)["kv_transfer_params"]
    return rid, d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv, **more}, rid)


def check_plain():
    with Engine("--model", "a", "--model", "b") as e:
        r = e.post("/v1/completions", {"model": "b", "prompt": PROMPT, "max_tokens": 200}, "r1")
        same(r["choices"][0]["text"], expect.text(PROMPT, 200))
        same((r["id"], r["model"], r["choices"][0]["finish_reason"]), ("cmpl-r1", "b", "length"))
        same(r["usage"], {"prompt_tokens": 26, "completion_tokens": 200, "total_tokens": 226})
        chat = {"messages": [{"role": "user", "content": "h\u00e9 \"x\"\n\U0001f600"}], "tools": [{"a": [1, 2.5, None]}]}
        r = e.post("/v1/chat/completions", chat)
        same(r["choices"][0]["message"]["content"], expect.text_chat(chat))
        spaced = json.dumps({**chat, "max_tokens": 16}, indent=3, ensure_ascii=False).encode()
        same(json.loads(e.call("POST", "/v1/chat/completions", spaced)[1])["choices"], r["choices"])
        ids = json.loads(e.call("POST", "/tokenize", {"prompt": PROMPT})[1])["tokens"]
        same(ids, expect.token_ids(PROMPT))
        same(e.post("/v1/completions", {"prompt": ids})["choices"][0]["text"], expect.text(PROMPT))
        w = expect.words(ids, 5)
        more = ids + [expect.WORD + expect.VOCAB.index(w[0][1:])]
        same(e.post("/v1/completions", {"prompt": [more], "max_tokens": 4})["choices"][0]["text"], "".join(w[1:]))
        same(json.loads(e.call("POST", "/detokenize", {"tokens": more})[1])["prompt"], PROMPT + w[0])
        ids = json.loads(e.call("POST", "/tokenize", chat)[1])["tokens"]
        same(ids, expect.chat_ids(chat))
        r = e.post("/v1/completions", {"prompt": ["x", "y"], "n": 2, "max_tokens": 3, "echo": True, "logprobs": 1})
        same([c["text"] for c in r["choices"]], [p + expect.text(p, 3, k) for p in "xy" for k in (0, 1)])
        same(len(r["choices"][0]["logprobs"]["tokens"]), 3)
        same([m["id"] for m in json.loads(e.call("GET", "/v1/models")[1])["data"]], ["a", "b"])
        for path in "/health", "/health/ready", "/ready", "/version", "/ping", "/load", "/metrics":
            same(e.call("GET", path)[0], 200)
        same(e.call("GET", "/nothing")[0], 404)
        same(e.call("GET", "/v1/completions")[0], 405)


def check_refusals():
    ok = {"prompt": "x"}
    with Engine() as e:
        for body, status in (
            (b"{", 400), (b'{"prompt":"x"} x', 400), (b"[]", 400), (b'{"prompt":"\xff"}', 400),
            ({"model": "x", **ok}, 404), ({}, 400), ({"prompt": 3}, 400), ({"prompt": []}, 400),
            ({"prompt": ["a", 1]}, 400), ({"prompt": [1, -1]}, 400), ({"prompt": ""}, 400),
            ({**ok, "stream_options": {"include_usage": True}}, 400), ({**ok, "max_tokens": 0}, 400),
            ({**ok, "max_tokens": 2, "min_tokens": 3}, 400), ({**ok, "n": 0}, 400),
            ({**ok, "stream": 1}, 400), ({**ok, "max_tokens": "5"}, 400),
            (b'{"prompt":"x","big":1e400,"id":123456789012345678901234567890,"max_tokens":9,"max_tokens":2}', 200),
        ):
            s, data, _ = e.call("POST", "/v1/completions", body)
            same((body, s), (body, status))
            if s != 200:
                same(json.loads(data)["error"]["code"], s)
        for messages in "x", [1], [{"content": "x"}], [{"role": "user", "content": 5}], [{"role": "user", "content": [{}]}]:
            same(e.call("POST", "/v1/chat/completions", {"messages": messages})[0], 400)
        parts = [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
        e.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
        e.post("/v1/completions", ok, "again")
        e.post("/v1/completions", ok, "again", want=400)
        same(e.metric("pdsim:duplicate_request_ids_total"), 1)
        data, _ = read_all(e.raw(b"nonsense\r\n\r\n"))
        check(data.startswith(b"HTTP/1.1 400 "), data)
    with Engine("--api-key", "k", "--flat-errors", "--max-body", "100") as e:
        same(e.call("GET", "/v1/models")[0], 401)
        same(e.call("GET", "/v1/models", None, {"Authorization": "Bearer k"})[0], 200)
        same(e.call("GET", "/metrics")[0], 200)
        auth = {"Authorization": "Bearer k"}
        same(e.post("/v1/completions", {}, None, auth, 400)["object"], "error")
        same(e.call("POST", "/v1/completions", b"x" * 101, auth)[0], 413)
        same(e.call("GET", "/version")[0], 200)
        same(e.call("GET", "/server_info", None, auth)[0], 404)
    with Engine("--api-key", "k", "--engine", "sglang", "--role", "decode", "--bootstrap-port", "9") as e:
        same([e.call("GET", p)[0] for p in ("/ready", "/server_info", "/health", "/metrics", "/sim/last")], [401, 401, 200, 200, 200])
        info = json.loads(e.call("GET", "/server_info", None, auth)[1])
        same((info["disaggregation_mode"], info["disaggregation_bootstrap_port"]), ("decode", 9))
        same(e.call("GET", "/get_server_info", None, auth)[0], 200)
        same(e.call("GET", "/version", None, auth)[0], 404)
    with Engine("--engine", "sglang", "--old-server-info") as e:
        same([e.call("GET", p)[0] for p in ("/server_info", "/get_server_info")], [404, 200])


def check_stream():
    with Engine() as e:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 60, "n": 2,
                "stream_options": {"include_usage": True}}
        s, data, head = e.call("POST", "/v1/chat/completions", body)
        ev = events(data)
        same((s, head["content-type"]), (200, "text/event-stream; charset=utf-8"))
        same(ev.pop(), "[DONE]")
        ev = [json.loads(x) for x in ev]
        same((ev[-1]["choices"], ev.pop()["usage"]["completion_tokens"]), ([], 120))
        same([x["choices"][0]["delta"]["role"] for x in ev[:2]], ["assistant"] * 2)
        for k in 0, 1:
            mine = [x["choices"][0] for x in ev[2:] if x["choices"][0]["index"] == k]
            same("".join(c["delta"]["content"] for c in mine), expect.text_chat(body, 60, k))
            same([c["finish_reason"] for c in mine], [None] * 59 + ["length"])
        body = {"prompt": ["x<<eos>>", "y"], "stream": True, "max_tokens": 3, "pdsim": {"tokens": 5, "event_bytes": 1000}}
        ev = events(e.call("POST", "/v1/completions", body)[1])
        same([len(x.encode()) + 8 for x in ev], [1000] * 6 + [14])
        mine = [json.loads(x)["choices"][0] for x in ev[:-1]]
        same("".join(c["text"] for c in mine if c["index"]), expect.text("y", 5))
        same([c["finish_reason"] for c in mine if not c["index"]], ["stop"])
        # one event, one chunk; two requests pipelined; HTTP/1.0 without chunks
        s = e.raw_post("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 2})
        b = b'{"prompt":"x","max_tokens":1}'
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(b), b))
        data, _ = read_all(s)
        first, second = data.split(b"\r\n0\r\n\r\n")
        sizes = [int(x, 16) for x in re.findall(rb"\r\n([0-9a-f]+)\r\ndata: ", first)]
        same(len(sizes), 3)
        check(second.startswith(b"HTTP/1.1 200 OK\r\n") and b"connection: close" in second, second)
        data, _ = read_all(e.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 26\r\n\r\n" b'{"prompt":"x","stream":1 }'))
        check(b" 400 " in data)
        data, _ = read_all(e.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 28\r\n\r\n" b'{"prompt":"x","stream":true}'))
        same(len(events(data.split(b"\r\n\r\n", 1)[1])), 17)
        # pace
        e.post("/sim/pause_stream", {})
        s = e.raw_post("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 9}, "Connection: close\r\n")
        e.until("pdsim:streams_running", 1)
        before = e.metric("pdsim:events_total")
        e.post("/sim/pause_stream", {"step": 3})
        e.until("pdsim:events_total", before + 3)
        e.post("/sim/pause_stream", {"pause": False})
        same(read_all(s)[0].count(b"data: "), 10)
    with Engine("--token-delay", "20", "--prefill-delay", "50") as e:
        t = time.monotonic()
        e.call("POST", "/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 6})
        t1 = time.monotonic()
        e.call("POST", "/v1/completions", {"prompt": "x", "max_tokens": 6})
        check(0.145 <= t1 - t < 2, "stream took", t1 - t)
        check(0.145 <= time.monotonic() - t1 < 2, "answer took", time.monotonic() - t1)


def check_back_pressure():
    with Engine("--sndbuf", "100000") as e:
        body = {"prompt": "x", "stream": True, "pdsim": {"tokens": 5000, "event_bytes": 4000}}
        s = e.raw_post("/v1/completions", body, "Connection: close\r\n")
        e.until("pdsim:paused_streams", 1)
        e.until("vllm:num_requests_running", 1)
        before, now = -1, e.metric("pdsim:events_total")
        while now != before:  # until both sockets are full
            time.sleep(0.2)
            before, now = now, e.metric("pdsim:events_total")
        check(now < 4900, now)
        same(read_all(s)[0].count(b"data: "), 5001)
        same(e.metric("pdsim:paused_streams"), 0)
        s = e.raw_post("/v1/completions", body)
        e.until("pdsim:paused_streams", 1)
        s.close()
        e.until("pdsim:aborted_total", 1)
        same((e.metric("pdsim:paused_streams"), e.metric("vllm:num_requests_running")), (0, 0))
        same(e.metric("vllm:kv_cache_usage_perc"), 0)


def check_hand_shake():
    for form in ["ints"], ["strings", "--big-ids"], ["nested", "--big-ids"]:
        with Engine("--role", "prefill", "--block-ids", *form) as p, Engine("--role", "decode") as d:
            rid = fresh()
            r = p.post("/v1/completions", prefill_body(), rid)
            kv = r["kv_transfer_params"]
            check(re.fullmatch("cmpl-" + rid + "-0-[0-9a-f]{8}", kv["remote_request_id"]), kv)
            ids = kv["remote_block_ids"]
            ids = ids[0] if form[0] == "nested" else ids
            same(len(ids), 2)
            same({type(i) for i in ids}, {str if form[0] == "strings" else int})
            same(int(ids[0]) > 2**53, "--big-ids" in form)
            same((kv["remote_num_tokens"], kv["remote_host"], kv["remote_port"]), (26, "127.0.0.1", p.side))
            same((p.metric("pdsim:held_blocks"), p.metric("pdsim:held_requests")), (2, 1))
            check(p.metric("vllm:kv_cache_usage_perc") > 0)
            leg = {"prompt": PROMPT, "kv_transfer_params": kv, "stream": True, "max_tokens": 4}
            _, data, _ = d.call("POST", "/v1/completions", leg, {"X-Request-Id": rid})
            got = "".join(json.loads(x)["choices"][0]["text"] for x in events(data)[:-1])
            same(got, expect.text(PROMPT, 4))
            same((p.metric("pdsim:held_blocks"), p.metric("vllm:kv_cache_usage_perc")), (0, 0))
            same((p.metric("pdsim:kv_fetched_total"), d.metric("pdsim:kv_loaded_total")), (1, 1))
            r = d.post("/v1/completions", leg, None, None, 500)  # single use
            same((r["error"]["type"], r["error"]["code"]), ("InternalServerError", 500))
            same((r["error"]["message"], d.why()), ("Internal server error", "MISSING"))
            same((d.metric("pdsim:kv_refused_total"), d.metric("pdsim:request_id_mismatch_total")), (1, 0))


def check_mix_ups():
    with Engine("--role", "prefill") as p, Engine("--role", "decode") as d:
        def leg(want, change=None, **more):
            rid = fresh()
            kv = p.post("/v1/completions", prefill_body(), rid)["kv_transfer_params"]
            (change or (lambda kv: None))(kv)
            return d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv, **more}, rid, None, want)

        for why, change, more in (
                ("DIFFER prompt", None, {"prompt": PROMPT + "!"}), ("DIFFER prompt", None, {"cache_salt": "s"}),
                ("DIFFER kv_transfer_params", lambda kv: kv.update(remote_block_ids=[1, 2]), {}),
                ("DIFFER kv_transfer_params", lambda kv: kv.pop("tp_size"), {}),
                ("DIFFER engine_id", lambda kv: kv.update(remote_engine_id="x"), {}),
                ("MISSING", lambda kv: kv.update(remote_request_id="x y%"), {})):
            leg(500, change, **more)
            same(d.why(), why)
        rid = fresh()
        kv = p.post("/v1/completions", prefill_body(), rid)["kv_transfer_params"]
        held = json.loads(p.call("GET", "/sim/held")[1])
        same(([(h["id"], h["request_id"]) for h in held["held"]][-1], held["running"]), ((kv["remote_request_id"], rid), []))
        again = {"prompt": PROMPT, "kv_transfer_params": kv}
        d.post("/v1/completions", again, rid)
        same(p.metric("pdsim:kv_replayed_total"), 0)
        d.post("/v1/completions", again, None, None, 500)
        same(p.metric("pdsim:kv_replayed_total"), 1)
        leg(500, lambda kv: kv.update(remote_port=1))
        same(d.why(), "UNREACHABLE")
        leg(500, lambda kv: kv.pop("remote_host"))
        same(p.metric("pdsim:held_requests"), 8)  # a mix-up is not hidden
        leg(200, lambda kv: kv.update(remote_host="localhost", added_by_somebody=1))
        leg(400, max_tokens=0)  # refused: the prefill engine is told
        p.until("pdsim:held_requests", 8)
        leg(500, prompt=[PROMPT, "x"])
        p.until("pdsim:held_requests", 8)
        same(p.metric("pdsim:kv_released_total"), 2)
        rid, kv = fresh(), p.post("/v1/completions", prefill_body(), fresh())["kv_transfer_params"]
        d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv}, rid)
        same(d.metric("pdsim:request_id_mismatch_total"), 1)
        d.post("/v1/completions", prefill_body(), None, None, 400)
        same(d.metric("pdsim:role_violations_total"), 1)
        d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": None})
        same(d.metric("pdsim:local_prefills_total"), 1)
        for bad in ({"max_tokens": 2}, {"max_completion_tokens": 2}, {"stream": True}, {"min_tokens": 0},
                    {"stream_options": None}, {"stream": True, "stream_options": {}}, {"max_tokens": None}):
            p.post("/v1/completions", prefill_body(**bad), None, None, 400)
        same(p.metric("pdsim:prefill_violations_total"), 7)
        r = p.post("/v1/completions", prefill_body(prompt="x<<eos>>"))
        same((r["choices"][0]["finish_reason"], r["kv_transfer_params"]), ("stop", None))
        r = p.post("/v1/completions", prefill_body(prompt="x<<eos>>", ignore_eos=True))
        same(r["kv_transfer_params"]["do_remote_prefill"], True)
        p.fault(kind="null_kv")
        same(p.post("/v1/completions", prefill_body())["kv_transfer_params"], None)
        same(p.metric("pdsim:kv_null_total"), 2)


def check_refusals():
    """What a decode engine that refuses, resets or dies leaves at P, and how another one frees it."""
    def leg(e, want, **more):
        rid = fresh()
        kv = p.post("/v1/completions", prefill_body(), rid)["kv_transfer_params"]
        body = {"prompt": PROMPT, "kv_transfer_params": kv, **more}
        if want:
            e.post("/v1/completions", body, rid, None, want)
        else:
            check(read_all(e.raw_post("/v1/completions", body, "X-Request-Id: %s\r\nConnection: close\r\n" % rid))[0] == b"")
        return kv

    def left(held, released):
        p.until("pdsim:kv_released_total", released)
        same(p.metric("pdsim:held_requests"), held)

    def free(kv):
        """What a router can do: a decode engine has to refuse what it cannot have."""
        d.post("/v1/completions", {"model": "no such", "prompt": "x", "kv_transfer_params": kv}, None, None, 404)

    with Engine("--role", "prefill") as p, Engine("--role", "decode", "--api-key", "key") as closed, \
            Engine("--role", "decode", "--vllm", "0.19") as old, Engine("--role", "decode") as d:
        # by the engine's own code: P is told
        leg(d, 404, model="no such")
        leg(d, 400, max_tokens=0)
        leg(d, 400, min_tokens=9, max_tokens=2)
        leg(d, 400, max_tokens=1 << 30)
        d.fault(kind="refuse")
        leg(d, 500)
        d.fault(kind="refuse", status=503)
        leg(d, 503)
        left(0, 6)
        # a chat's too
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        kv = p.post("/v1/chat/completions", {**chat, "max_tokens": 1, "kv_transfer_params": SKELETON})["kv_transfer_params"]
        d.post("/v1/chat/completions", {**chat, "model": "no such", "kv_transfer_params": kv}, None, None, 404)
        left(0, 7)
        # before that code, or by an engine that is too old: the blocks stay
        kept = [leg(d, 400, max_tokens="5"), leg(d, 400, prompt=None, model="no such"), leg(d, 400, stream_options={"include_usage": True}),
                leg(closed, 401), leg(old, 404, model="no such")]
        d.fault(kind="status", status=503)
        kept.append(leg(d, 503))
        d.fault(kind="reset")
        kept.append(leg(d, None))
        left(7, 7)
        for n, one in enumerate(kept):
            free(one)
            left(6 - n, 8 + n)
        free(kept[0])  # nothing is there any more: no error
        same((p.metric("pdsim:held_blocks"), p.metric("pdsim:kv_fetched_total"), p.metric("pdsim:kv_expired_total")), (0, 0, 0))
        same((d.metric("pdsim:kv_refused_total"), d.metric("pdsim:kv_loaded_total"), d.metric("pdsim:local_prefills_total")), (0, 0, 0))
    # admitted, and killed before it has fetched
    with Engine("--role", "prefill") as p, Engine("--role", "decode") as d:
        victim = Engine("--role", "decode", "--fetch-delay", "5000")
        kv = p.post("/v1/completions", prefill_body())["kv_transfer_params"]
        s = victim.raw_post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv})
        victim.until("vllm:num_requests_waiting", 1)
        victim.p.kill()
        victim.p.wait()
        s.close()
        left(1, 0)
        free(kv)
        left(0, 1)


def check_leaving():
    with Engine("--role", "prefill", "--prefill-delay", "150") as p, Engine("--role", "decode", "--fetch-delay", "300") as d:
        s = p.raw_post("/v1/completions", prefill_body())
        p.until("vllm:num_requests_running", 1)
        s.close()
        p.until("pdsim:aborted_total", 1)
        kv = p.post("/v1/completions", prefill_body())["kv_transfer_params"]
        same((p.metric("pdsim:held_requests"), p.metric("pdsim:kv_held_total")), (1, 1))
        s = d.raw_post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv})
        d.until("vllm:num_requests_waiting", 1)
        s.close()
        p.until("pdsim:held_requests", 0)
        same((p.metric("pdsim:kv_released_total"), d.metric("pdsim:aborted_total")), (1, 1))
    with Engine("--role", "prefill", "--kv-timeout", "0.2") as p:
        p.post("/v1/completions", prefill_body())
        p.until("pdsim:kv_expired_total", 1)
        same((p.metric("pdsim:held_blocks"), p.metric("vllm:kv_cache_usage_perc")), (0, 0))
    with Engine("--role", "prefill", "--blocks", "3", "--kv-timeout", "0.3") as p:
        p.post("/v1/completions", prefill_body())
        t = time.monotonic()
        p.post("/v1/completions", prefill_body())  # waits for the first one's blocks
        check(time.monotonic() - t > 0.1)
        p.post("/v1/completions", prefill_body(prompt="x" * 1000), None, None, 400)
    with Engine("--max-running", "1", "--prefill-delay", "200") as e:
        a, b = (e.raw_post("/v1/completions", {"prompt": "x"}, "Connection: close\r\n") for _ in "ab")
        e.until("vllm:num_requests_waiting", 1)
        check(b"200 OK" in read_all(a)[0] and b"200 OK" in read_all(b)[0])


def check_left_unread():
    """An engine that reads a request late, when its client has left, fetches nothing: by then its KV may be another engine's."""
    with Engine("--role", "prefill") as p, Engine("--role", "decode") as d:
        kv = p.post("/v1/completions", prefill_body())["kv_transfer_params"]
        d.p.send_signal(signal.SIGSTOP)
        while open("/proc/%d/stat" % d.p.pid).read().split()[2] != "T":
            time.sleep(0.001)
        d.raw_post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv}).close()
        d.p.send_signal(signal.SIGCONT)
        p.until("pdsim:kv_released_total", 1)
        same((p.metric("pdsim:kv_fetched_total"), d.metric("pdsim:aborted_total")), (0, 1))


def check_leaving_late():
    """An answer that is written is sent to its end, also when the client has shut down its sending side meanwhile, as uvicorn's
    transports do: else KV would be held of which the client has half the names.  Not if the client has closed."""
    with Engine("--role", "prefill", "--sndbuf", "4096", "--prefill-delay", "100") as p:
        for shut in (True, False):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect((p.host, p.port))
            b = json.dumps(prefill_body(prompt="x" * 1000000)).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(b), b))
            s.recv(1, socket.MSG_PEEK)
            same(p.metric("pdsim:aborted_total"), 0)
            if not shut:
                s.close()
                p.until("pdsim:open_connections", 1)
                break
            s.shutdown(socket.SHUT_WR)
            time.sleep(0.1)  # the engine's end has seen it
            head, _, body = read_all(s)[0].partition(b"\r\n\r\n")
            check(b"200 OK" in head and json.loads(body)["kv_transfer_params"]["remote_block_ids"])
        same((p.metric("pdsim:held_requests"), p.metric("pdsim:aborted_total")), (2, 0))


def check_response_form():
    extra = ["--handoff", "disagg_prefill_resp"]
    with Engine("--role", "prefill", *extra) as p, Engine("--role", "decode", *extra) as d:
        body = {"messages": [{"role": "user", "content": PROMPT}]}
        rid = fresh()
        r = p.post("/v1/chat/completions", {**body, "max_tokens": 1}, rid)
        same(p.metric("pdsim:held_requests"), 1)
        r2 = d.post("/v1/chat/completions", {**body, "max_tokens": 7, "disagg_prefill_resp": r}, rid)
        same(r2["choices"][0]["message"]["content"], expect.text_chat(body, 7))
        same((p.metric("pdsim:held_blocks"), d.metric("pdsim:request_id_mismatch_total")), (0, 0))
        d.post("/v1/chat/completions", body, None, None, 500)
        r = p.post("/v1/chat/completions", {**body, "max_tokens": 1})
        r["created"] += 1
        d.post("/v1/chat/completions", {**body, "disagg_prefill_resp": r}, None, None, 500)
        p.post("/v1/chat/completions", body, None, None, 400)
        r = p.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "<<eos>>"}], "max_tokens": 1})
        d.post("/v1/chat/completions", {**body, "disagg_prefill_resp": r})
        same(d.metric("pdsim:local_prefills_total"), 1)


def check_faults():
    b, st = {"prompt": "x"}, {"prompt": "x", "stream": True}
    with Engine() as e:
        e.fault(kind="status", status=429, headers={"Retry-After": "3"})
        s, data, head = e.call("POST", "/v1/completions", b)
        same((s, head["Retry-After"], json.loads(data)["error"]["code"]), (429, "3", 429))
        e.fault(kind="fail", body="raw {", headers={"Content-Type": "text/x"}, count=2)
        for _ in "ab":
            s, data, head = e.call("POST", "/v1/completions", b)
            same((s, data, head["Content-Type"]), (500, b"raw {", "text/x"))
        e.post("/v1/completions", b)
        e.fault(kind="empty200")
        same(e.call("POST", "/v1/completions", b)[:2], (200, b""))
        e.fault(kind="reset")
        same(read_all(e.raw_post("/v1/completions", b)), (b"", "reset"))
        e.fault(kind="half_head")
        data, err = read_all(e.raw_post("/v1/completions", b))
        check(data.startswith(b"HTTP/1.1 200 OK") and b"\r\n\r\n" not in data and err is None, data)
        e.fault(kind="garbage", body_b64=base64.b64encode(b"\x00\xff\n").decode())
        same(read_all(e.raw_post("/v1/completions", b)), (b"\x00\xff\n", None))
        for kind, err in ("reset_mid_stream", "reset"), ("truncate", None), ("bad_chunk", None):
            e.fault(kind=kind, after_events=3)
            data, got = read_all(e.raw_post("/v1/completions", st))
            same((data.count(b"data: {"), got, b"0\r\n\r\n" in data), (3, err, False))
            same(b"zz\r\n" in data, kind == "bad_chunk")
            e.fault(kind=kind)
            data, got = read_all(e.raw_post("/v1/completions", b))
            check(got == err and b"\r\n\r\n" in data, data)
        e.fault(kind="error_event", after_events=2)
        ev = events(e.call("POST", "/v1/completions", st)[1])
        same((len(ev), "error" in json.loads(ev[2]), ev[3]), (4, True, "[DONE]"))
        for kind, body, want in ("stall", st, 1), ("stall", b, 0), ("no_answer", b, 0):
            e.fault(kind=kind)
            s = e.raw_post("/v1/completions", body)
            s.settimeout(0.2)
            data = b""
            try:
                while True:
                    data += s.recv(9999)
            except socket.timeout:
                pass
            same((data.count(b"data: "), data == b""), (want, kind == "no_answer"))
            s.close()
        e.until("pdsim:open_connections", 1)
        same(e.metric("vllm:num_requests_running"), 0)
        e.fault(kind="slow", delay_ms=40)
        t = time.monotonic()
        e.call("POST", "/v1/completions", {**st, "max_tokens": 4})
        check(0.15 < time.monotonic() - t < 0.5)
        e.fault(kind="pace", events=[{"after_ms": 0, "data": "a"}, {"after_ms": 50, "data": "bc\n\n"}])
        t = time.monotonic()
        same(e.call("POST", "/v1/completions", st)[1], b"abc\n\n")
        check(time.monotonic() - t > 0.04)
        e.fault(kind="pace", events=[{"data": "a"}], end="reset")
        same(read_all(e.raw_post("/v1/completions", st))[1], "reset")
        e.fault(kind="status", path="/health", count=-1)
        same([e.call("GET", "/health")[0], e.call("GET", "/health")[0], e.call("GET", "/ready")[0]], [503, 503, 200])
        e.fault(kind="none")
        e.post("/sim/health", {"ready": 503})
        same([e.call("GET", "/health")[0], e.call("GET", "/health/ready")[0]], [200, 503])
        e.post("/sim/fault", {"kind": "what"}, None, None, 400)
        e.post("/sim/load", {"running": 7, "waiting": 2})
        same((e.metric("vllm:num_requests_running"), e.metric("vllm:num_requests_waiting")), (7, 2))
        e.post("/sim/reset", {})
        same((e.metric("pdsim:faults_total"), e.call("GET", "/ready")[0]), (0, 200))


def check_misbehaviour():
    """What a router has to find out: KV that nobody can fetch, an engine that is slow, figures that cannot be, one poisonous body, a new life."""
    with Engine("--role", "prefill") as p, Engine("--role", "prefill") as other, Engine("--role", "decode") as d, \
            Engine("--role", "decode", "--late-errors", "--kv-load-failure", "fail") as late, Engine("--role", "decode", "--kv-load-failure", "recompute") as again:
        for fault, why in ({}, "UNREACHABLE"), ({"host": "localhost", "port": other.side}, "DIFFER engine_id"):
            p.fault(kind="kv_unreachable", count=3, **fault)
            legs = [(r, p.post("/v1/completions", prefill_body(), r)["kv_transfer_params"]) for r in (fresh(), fresh(), fresh())]
            same({(kv["remote_port"], kv["remote_host"]) for _, kv in legs}, {(fault.get("port", 1), fault.get("host", "127.0.0.1"))})
            rid, kv = legs[0]
            r = d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv}, rid, None, 500)
            same((r["error"]["message"], r["error"]["type"], r["error"]["code"], d.why()), ("Internal server error", "InternalServerError", 500, why))
            body = {"prompt": PROMPT, "kv_transfer_params": legs[1][1], "stream": True}
            status, data, _ = late.call("POST", "/v1/completions", body, {"X-Request-Id": legs[1][0]})
            ev = events(data)
            same((status, json.loads(ev[0])["error"]["message"], ev[1:]), (200, "Internal server error", ["[DONE]"]))
            r = again.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": legs[2][1]}, legs[2][0])
            same(r["choices"][0]["text"], expect.text(PROMPT))
        same((again.metric("pdsim:kv_recomputed_total"), again.metric("pdsim:kv_refused_total")), (2, 0))
        same((d.metric("pdsim:kv_refused_total"), p.metric("pdsim:held_requests"), p.metric("pdsim:kv_replayed_total")), (2, 6, 0))
        handoff(p, d)
        check(abs(p.metric("process_start_time_seconds") - time.time()) < 60)
        check(p.metric("process_start_time_seconds") < other.metric("process_start_time_seconds") < d.metric("process_start_time_seconds"))
    with Engine("--token-delay", "10", "--prefill-delay", "20") as e:
        def took(n):
            t = time.monotonic()
            same(e.post("/v1/completions", {"prompt": PROMPT, "max_tokens": n})["choices"][0]["text"], expect.text(PROMPT, n))
            return time.monotonic() - t
        e.fault(kind="slow", factor=5, count=2)
        check(0.1 <= took(1) < 0.3 and 0.35 <= took(6) and took(6) < 0.3)  # a prompt of 20 ms, gaps of 10 ms
        e.fault(kind="status", status=500, contains="poison\"", count=-1)
        e.post("/v1/completions", {"prompt": "poison"}, None, None, 500)
        e.post("/v1/completions", {"prompt": "poisonless"})
        e.fault(kind="none")
        e.post("/sim/load", {"waiting": 20, "running": 3, "fixed": True})
        e.fault(kind="slow", delay_ms=200)
        j = later(e, "/v1/completions", {"prompt": "x", "max_tokens": 1})
        same((e.metric("vllm:num_requests_waiting"), e.metric("vllm:num_requests_running")), (20, 3))
        same(j()[0], 200)
        e.post("/sim/load", {"waiting": 1000000000, "running": 0})
        check(e.metric("vllm:num_requests_waiting") >= 1e9)
    with Engine("--engine", "sglang") as e, Engine("--engine", "sglang", "--start-time", "yes") as shown, Engine("--start-time", "no") as hidden:
        names = ["process_start_time_seconds " in x.call("GET", "/metrics")[1].decode() for x in (e, shown, hidden)]
        seeds = [json.loads(x.call("GET", "/server_info")[1])["random_seed"] for x in (e, shown)]
        check(names == [False, True, False] and seeds[0] != seeds[1], names, seeds)


def check_variants():
    with Engine("--role", "prefill") as p, Engine("--role", "decode", "--late-errors", "--echo-request-id") as d:
        kv = p.post("/v1/completions", prefill_body())["kv_transfer_params"]
        body = {"prompt": "other", "stream": True, "kv_transfer_params": kv}
        s, data, head = d.call("POST", "/v1/completions", body, {"X-Request-Id": "mine"})
        ev = events(data)
        same((s, head["x-request-id"], json.loads(ev[0])["error"]["code"], ev[1:]), (200, "mine", 500, ["[DONE]"]))
        # a connection that vanishes without a word: the kernel resets the next request
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=5)
        c.request("GET", "/health")
        c.getresponse().read()
        status, data, _ = p.call("POST", "/sim/fault", {"kind": "vanish"})
        if status == 200:
            try:
                c.request("GET", "/health")
                c.getresponse()
                check(False, "the vanished connection answered")
            except ConnectionResetError:
                check(True)
        else:
            check(b"CAP_NET_ADMIN" in data, data)
        c.close()
    with Engine("--advertise-host", "wrong.invalid", "--role", "prefill") as p:
        same(p.post("/v1/completions", prefill_body())["kv_transfer_params"]["remote_host"], "wrong.invalid")
    for args in ["--role", "x"], ["--port", "70000"], ["--what"], ["--blocks"]:
        r = subprocess.run([PDSIM, *args], capture_output=True, text=True)
        check(r.returncode == 2 and r.stderr.startswith("pdsim: "), r)


def check_connections():
    with Engine("--idle-timeout", "0.2", "--sndbuf", "4096") as e:
        c = http.client.HTTPConnection("127.0.0.1", e.port, timeout=5)

        def ask():
            c.request("POST", "/v1/completions", b'{"prompt":"x"}')
            return len(c.getresponse().read())

        check(ask() and ask())
        same(e.metric("pdsim:connections_total"), 2)
        e.fault(kind="close_keepalive")
        try:
            ask()
            check(False, "the stale connection answered")
        except (ConnectionResetError, http.client.RemoteDisconnected):
            c.close()
        check(ask())
        time.sleep(0.05)
        s = c.sock
        s.settimeout(2)
        t = time.monotonic()
        same(s.recv(1), b"")
        check(time.monotonic() - t > 0.05)
        c.close()
        e.call("POST", "/v1/completions", b'{ "prompt" : "\\u0078", "k": 1e400}', {"X-A": "b", "x-a": ""})
        last = json.loads(e.call("GET", "/sim/last?n=1")[1])["requests"]
        same(len(last), 1)
        same(base64.b64decode(last[0]["body"]), b'{ "prompt" : "\\u0078", "k": 1e400}')
        same([h for h in last[0]["headers"] if h[0].lower() == "x-a"], [["X-A", "b"], ["x-a", ""]])
        same((last[0]["method"], last[0]["path"], last[0]["status"]), ("POST", "/v1/completions", 200))
        other = json.loads(e.call("GET", "/sim/last?n=2&other=1")[1])["requests"]
        same(other[-1]["path"], "/metrics")
        # a large body, in and out; chunked in
        big = {"prompt": "y" * 3000000, "max_tokens": 2, "echo": True}
        same(e.post("/v1/completions", big)["choices"][0]["text"], big["prompt"] + expect.text(big["prompt"], 2))
        b = b'{"prompt":"x","max_tokens":2}'
        s = e.raw(b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(len(b)):
            s.sendall(b"1\r\n" + b[i : i + 1] + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        check(json.loads(read_all(s)[0].split(b"\r\n\r\n", 1)[1])["choices"][0]["text"] == expect.text("x", 2))
    with Engine("--host", "::1", "--role", "prefill") as p, Engine("--host", "::1", "--role", "decode") as d:
        handoff(p, d)
        same(p.metric("pdsim:held_requests"), 0)
    with Engine("--engine", "sglang") as e:
        same(e.metric("sglang:num_running_reqs"), 0)


# ---- engines that meet ----


def later(e, path, body, headers=None):
    """Asks in the background; join() returns what call() would."""
    out = []
    t = threading.Thread(target=lambda: out.append(e.call("POST", path, body, headers or {})), daemon=True)
    t.start()

    def join(timeout=10):
        t.join(timeout)
        check(out, "no answer from", path)
        return out[0]
    join.done = lambda: bool(out)
    return join


def pair(handshake, *more, p=(), d=()):
    return (Engine("--role", "prefill", "--handshake", handshake, *more, *p),
            Engine("--role", "decode", "--handshake", handshake, *more, *d))


ROOM = 9223372036854700000  # near the end of its range, where a double would round


def room():
    global NEXT
    NEXT += 1
    return ROOM + 16 * NEXT  # the next few are this one's when it is alone for a list


def meeting(p, rooms=None, **body):
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": p.bootstrap, "bootstrap_room": rooms or room(), **body}


def both(p, d, path, body):
    first, second = later(p, path, body), later(d, path, body)
    return first(), second()


def check_sglang_meets():
    p, d = pair("sglang")
    with p, d:
        text = {"text": PROMPT, "sampling_params": {"max_new_tokens": 5}}
        body = meeting(p, rid="mine", return_logprob=True, logprob_start_len=3, **text)
        a, b = (json.loads(x[1]) for x in both(p, d, "/generate", body))
        same((a["text"], b["text"]), (expect.text(PROMPT, 1), expect.text(PROMPT, 5)))
        same((a["meta_info"]["finish_reason"], b["meta_info"]["id"]), ({"type": "length", "length": 1}, "mine"))
        ids = expect.token_ids(PROMPT)
        same([x[1] for x in a["meta_info"]["input_token_logprobs"]], ids[3:])
        same((a["meta_info"]["input_token_logprobs"][0][0], b["meta_info"]["input_token_logprobs"]), (None, []))
        same(a["meta_info"]["output_token_logprobs"], b["meta_info"]["output_token_logprobs"][:1])
        same(len(b["meta_info"]["output_token_logprobs"]), 5)
        # P answers when D has pulled and not before; D waits for P, who comes first does not matter
        for first, second in (p, d), (d, p):
            body = meeting(p, prompt=["x", "y"], stream=True, max_tokens=3)
            slow = later(first, "/v1/completions", body)
            first.until("pdsim:open_rooms", 2)
            check(not slow.done())
            fast = later(second, "/v1/completions", body)
            got = {e: events(j()[1]) for e, j in ((first, slow), (second, fast))}
            same([len(got[p]), len(got[d])], [3, 7])
            for k in 0, 1:
                mine = [json.loads(x)["choices"][0] for x in got[d][:-1]]
                same("".join(c["text"] for c in mine if c["index"] == k), expect.text("xy"[k], 3))
            same({json.loads(x)["choices"][0]["finish_reason"] for x in got[p][:-1]}, {"length"})
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        a, b = both(p, d, "/v1/chat/completions", meeting(p, **chat))
        same(json.loads(b[1])["choices"][0]["message"]["content"], expect.text_chat(chat))
        a, b = both(p, d, "/generate", meeting(p, [room(), room()], input_ids=[[1, 2], [3]], stream=True, rid=["r-1", "s-1"]))
        same([json.loads(x)["meta_info"]["id"] for x in events(a[1])[:-1]], ["r-1", "s-1"])
        last = {x["index"]: x for x in map(json.loads, events(b[1])[:-1])}
        same([last[k]["text"] for k in (0, 1)], [expect.text(i, 128) for i in ([1, 2], [3])])
        same((p.metric("pdsim:kv_fetched_total"), d.metric("pdsim:kv_loaded_total")), (8, 8))
        for e in p, d:
            same((e.metric("pdsim:open_rooms"), e.metric("pdsim:running_requests"), e.metric("sglang:token_usage")), (0, 0, 0))
    # a P that waits for D takes no place from another; both have a key, the bootstrap server has none
    p, d = pair("sglang", "--api-key", "k", p=["--max-running", "1"])
    with p, d:
        auth = {"Authorization": "Bearer k"}
        bodies = [meeting(p, prompt=x) for x in "ab"]
        js = [later(p, "/v1/completions", b, auth) for b in bodies]
        p.until("sglang:num_prefill_inflight_queue_reqs", 2)
        for b in reversed(bodies):
            same(json.loads(d.call("POST", "/v1/completions", b, auth)[1])["choices"][0]["text"], expect.text(b["prompt"]))
        same([j()[0] for j in js], [200, 200])


def check_sglang_refusals():
    p, d = pair("sglang", "--bootstrap-timeout", "0.3")
    with p, d:
        def ask(e, want, path="/v1/completions", **body):
            s, data, _ = e.call("POST", path, {"prompt": "x", "text": "x", **body})
            same((s, data if s != want else b""), (want, b""))
            return json.loads(data)
        for e in p, d:
            same(ask(e, 400)["object"], "error")
            check("without bootstrap room" in ask(e, 400, "/generate")["error"]["message"])
            for wrong in 0, 2**63, -1, 1.5, "7", [], [1, 2], [[1]]:
                ask(e, 500, **{**meeting(p), "bootstrap_room": wrong})
            same((e.metric("pdsim:rooms_missing_total"), e.metric("pdsim:rooms_invalid_total")), (2, 8))
            ask(e, 500, **meeting(p, n=2))
            same(e.metric("pdsim:rooms_shared_total"), 1)
            same(e.metric("pdsim:open_rooms"), 0)
        for wrong in {"bootstrap_host": None}, {"bootstrap_port": 0}, {"bootstrap_port": "x"}, {"bootstrap_host": ["a", "b"]}:
            ask(d, 400, **{**meeting(p), **wrong})
        # a room is good once, whoever has used it, and whatever became of it
        body = meeting(p, prompt="x")
        same([x[0] for x in both(p, d, "/v1/completions", body)], [200, 200])
        ask(p, 500, **body)
        ask(d, 500, **body)
        same((p.metric("pdsim:duplicate_rooms_total"), d.metric("pdsim:duplicate_rooms_total")), (1, 1))
        # nobody comes: both give up, D in a stream after its 200
        check(re.match("Prefill bootstrap failed for request rank=0 req.rid=.*KVPoll.Bootstrapping$", ask(p, 500, **meeting(p))["message"]))
        check(re.match("Decode transfer failed for request rank=0 decode_req.req.rid=.*it might be dead$", ask(d, 500, **meeting(p))["message"]))
        same(d.why(), "TIMEOUT")
        ev = events(d.call("POST", "/v1/completions", meeting(p, prompt="x", stream=True))[1])
        same((json.loads(ev[0])["error"]["code"], ev[1:]), (500, ["[DONE]"]))
        ev = events(d.call("POST", "/generate", meeting(p, text="x", stream=True))[1])
        same((json.loads(ev[0])["meta_info"]["finish_reason"]["type"], ev[1:]), ("abort", ["[DONE]"]))
        # another's prompt, and another's bootstrap server
        body = meeting(p, prompt="x")
        j = later(p, "/v1/completions", body)
        ask(d, 500, **{**body, "prompt": "y"})
        same(d.why(), "DIFFER prompt")
        same(j()[0], 500)
        for why, port in ("UNREACHABLE", 1), ("STATUS 404", p.port):
            got = ask(d, 500, **{**meeting(p), "bootstrap_port": port})["message"]
            check(re.match("Decode handshake failed for .*bootstrap_addr: 127.0.0.1:%d$" % port, got), got)
            same(d.why(), why)
        p.fault(kind="status", path="/route", status=503)
        ask(d, 500, **meeting(p))
        same(d.why(), "STATUS 503")
        same(p.call("GET", "/route?prefill_dp_rank=-1")[0], 404)
        p.until("pdsim:open_rooms", 0)
        d.until("pdsim:open_rooms", 0)
    with Engine("--handshake", "sglang") as e:  # no pair: fields of the hand-shake mean nothing
        same(json.loads(e.call("POST", "/v1/completions", {"prompt": "x", "bootstrap_room": 1})[1])["choices"][0]["text"], expect.text("x"))


def check_sglang_failures():
    p, d = pair("sglang")
    with p, d:
        # a client leaves, either side: that engine's room is gone, the other hears nothing
        for e, o in (p, d), (d, p):
            body = meeting(p, prompt="x", rid=fresh())
            s = e.raw_post("/v1/completions", body)
            e.until("pdsim:open_rooms", 1)
            s.close()
            e.until("pdsim:open_rooms", 0)
            j = later(o, "/v1/completions", body)
            o.until("pdsim:open_rooms", 1)
            time.sleep(0.05)
            check(not j.done())
            same(o.call("POST", "/abort_request", {"rid": body["rid"][:-1]})[0], 200)
            reason = json.loads(j()[1])["choices"][0]["finish_reason"]
            same((j()[0], reason), (200, "abort" if o is d else "length"))
            same(o.metric("pdsim:aborted_by_rid_total"), 1)
        # a stream that is aborted says so, and one rid is not twice at work
        d.post("/sim/pause_stream", {})
        body = meeting(p, text="x", rid="abc-1", stream=True, sampling_params={"max_new_tokens": 50})
        j, k = later(p, "/generate", body), later(d, "/generate", body)
        j()
        d.until("pdsim:streams_running", 1)
        same(d.call("POST", "/generate", {**body, "bootstrap_room": room()})[0], 400)
        d.post("/sim/pause_stream", {"step": 3})
        d.call("POST", "/abort_request", {"rid": "other"})
        d.until("pdsim:events_total", 3)
        d.call("POST", "/abort_request", {"rid": "abc"})
        ev = events(k()[1])
        same((len(ev), json.loads(ev[3])["meta_info"]["finish_reason"]["type"]), (5, "abort"))
        d.post("/sim/pause_stream", {"pause": False})
        j = later(d, "/generate", meeting(p, text=["x", "y"], rid=["u", "v"]))  # one of a batch ends all of it
        d.until("pdsim:open_rooms", 2)
        d.call("POST", "/abort_request", {"rid": "v"})
        same([x["meta_info"]["finish_reason"]["type"] for x in json.loads(j()[1])], ["abort"] * 2)
        # P's process dies: D learns it from the connection
        j = later(d, "/v1/completions", meeting(p, prompt="x"))
        d.until("pdsim:open_rooms", 1)
        time.sleep(0.05)
        p.p.kill()
        same(j()[0], 500)
        p.p.wait()
        p.p.returncode = 0
        p.p.send_signal = lambda *a: None
        d.until("pdsim:open_rooms", 0)
    with Engine("--handshake", "sglang", "--prefill-delay", "5000", "--max-running", "1") as e:
        js = [later(e, "/generate", {"text": "x", "rid": "r%d" % i}) for i in range(3)]
        e.until("sglang:num_queue_reqs", 2)
        e.call("POST", "/abort_request", {"rid": "r"})
        for j in js:
            m = json.loads(j()[1])["meta_info"]
            same((j()[0], m["finish_reason"]["type"], m["completion_tokens"]), (200, "abort", 0))
        e.until("pdsim:running_requests", 0)
    with Engine() as e:
        same([e.call("POST", path, {})[0] for path in ("/generate", "/abort_request")], [404, 404])


def check_sglang_ranks_and_streams():
    p, d = pair("sglang", "--follow-bootstrap-room", "--dp-size", "4")
    with p, d:
        boot = http.client.HTTPConnection("127.0.0.1", p.bootstrap, timeout=5)

        def get(path):
            boot.request("GET", path)
            r = boot.getresponse()
            return r.status, r.read()
        info = json.loads(get("/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1")[1])
        same((info["dp_size"], info["follow_bootstrap_room"]), (4, True))
        same(json.loads(get("/route?engine_rank=3&target_dp_group=0")[1]), {"rank_ip": "127.0.0.1", "rank_port": p.side})
        same([get("/route")[0], get("/route?prefill_dp_rank=4")[0], get("/query")[0], get("/health")[0]], [400, 404, 404, 200])
        same(json.loads(p.call("GET", "/server_info")[1])["dp_size"], 4)
        four = 4 * (ROOM // 8)
        body = meeting(p, four + 1, prompt="x", routed_dp_rank=1, disagg_prefill_dp_rank=1)
        same([x[0] for x in both(p, d, "/v1/completions", body)], [200, 200])
        same(p.call("POST", "/v1/completions", meeting(p, four + 2, prompt="x"), {"X-Data-Parallel-Rank": "1"})[0], 500)
        same(d.call("POST", "/v1/completions", meeting(p, four + 3, prompt="x", disagg_prefill_dp_rank=2))[0], 500)
        same((p.metric("pdsim:rank_mismatch_total"), d.metric("pdsim:rank_mismatch_total")), (1, 1))
    p, d = pair("sglang", p=["--bootstrap-stream"])
    with p, d:
        for prompt in "x", ["x", "y"]:
            s = p.raw_post("/v1/completions", {"prompt": prompt}, "Connection: close\r\n")
            data = b""
            while b"\n\n" not in data.split(b"\r\n\r\n", 1)[-1]:
                data += s.recv(65536)
            params = json.loads(re.search(rb"data: (.*)\n", data)[1])["disaggregated_params"]
            same((params["bootstrap_host"], params["bootstrap_port"]), ("127.0.0.1", p.bootstrap))
            same(type(params["bootstrap_room"]), type(prompt) if isinstance(prompt, list) else int)
            same(p.metric("pdsim:open_rooms"), len(prompt))
            r = d.post("/v1/completions", {"prompt": prompt, **params})
            same([c["text"] for c in r["choices"]], [expect.text(x) for x in prompt])
            data += read_all(s)[0]
            same((data.count(b"data: "), data.count(b'"length"')), (len(prompt) + 2, len(prompt)))
        same(p.metric("pdsim:open_rooms"), 0)


def query(p):
    c = http.client.HTTPConnection("127.0.0.1", p.bootstrap, timeout=5)
    c.request("GET", "/query")
    return json.loads(c.getresponse().read())


def check_mooncake():
    p, d = pair("mooncake", "--fetch-timeout", "0.4", p=["--dp-size", "2", "--kv-timeout", "1"])
    with p, d:
        ranks = query(p)
        same(sorted(ranks), ["0", "1"])
        same(ranks["1"]["worker_addr"], {"0": {"0": "tcp://127.0.0.1:%d" % p.side}})
        same(p.call("GET", "/query")[0], 404)

        def pre(name, rank=0, want=200, **more):
            kv = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
            body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": kv, **more}
            return p.post("/v1/completions", body, None, {"X-data-parallel-rank": str(rank)}, want)

        def dec(name, rank="0", want=200, prompt=PROMPT, **more):
            kv = {"do_remote_decode": False, "do_remote_prefill": True, "transfer_id": name,
                  "remote_bootstrap_addr": "http://127.0.0.1:%d" % p.bootstrap, "remote_engine_id": ranks[rank]["engine_id"], **more}
            return d.post("/v1/completions", {"prompt": prompt, "kv_transfer_params": kv}, None, None, want)
        same(pre("a")["kv_transfer_params"], None)
        same(p.metric("pdsim:held_blocks"), 2)
        same(dec("a")["choices"][0]["text"], expect.text(PROMPT))
        same((p.metric("pdsim:held_blocks"), d.metric("pdsim:kv_loaded_total")), (0, 1))
        dec("a", want=500)  # once
        same(d.why(), "TIMEOUT")
        got = []
        t = threading.Thread(target=lambda: got.append(dec("b", "1")))  # D comes first
        t.start()
        d.until("vllm:num_requests_waiting", 1)
        time.sleep(0.05)
        pre("b", 1)
        t.join()
        same(got[0]["choices"][0]["text"], expect.text(PROMPT))
        pre("c", 1)
        dec("c", "0", 500)
        same(d.why(), "DIFFER engine_id")
        dec("c", "1", 500, "other")
        same(d.why(), "DIFFER prompt")
        same(p.metric("pdsim:held_requests"), 1)
        dec("c", "1")
        same(pre("d", prompt="<<eos>>")["choices"][0]["finish_reason"], "stop")
        dec("d", prompt="<<eos>>", want=500)
        pre("e", 2, 400)
        pre("a", want=400)
        pre("", want=500)
        for wrong in {"transfer_id": ""}, {"remote_engine_id": "x"}, {"remote_bootstrap_addr": "x"}, {"remote_bootstrap_addr": "http://127.0.0.1:1"}:
            dec("f", want=500, **wrong)
        p.fault(kind="status", path="/query", status=500)
        dec("g", want=500)
        same(d.why(), "STATUS 500")
        dec("h", prompt=["x", "y"], want=500)
        pre("i")
        p.until("pdsim:held_blocks", 0)
        same(p.metric("pdsim:kv_expired_total"), 1)
    with Engine("--role", "prefill", "--handshake", "mooncake") as p2:
        check(query(p2)["0"]["engine_id"] not in (ranks["0"]["engine_id"], ranks["1"]["engine_id"]))


def check_mooncake_old():
    p, d = pair("mooncake_old", "--fetch-timeout", "0.3")
    with p, d:
        kv = p.post("/v1/completions", prefill_body(), "one")["kv_transfer_params"]
        same(kv, {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": "127.0.0.1", "remote_port": p.side})
        body = {"prompt": PROMPT, "kv_transfer_params": kv}
        d.post("/v1/completions", body, "two", None, 500)  # another id
        same(d.post("/v1/completions", body, "one")["choices"][0]["text"], expect.text(PROMPT))
        same(p.metric("pdsim:held_requests"), 0)
        same(p.post("/v1/completions", prefill_body(prompt="<<eos>>"), "three")["kv_transfer_params"], None)


def p2p_id(p, d):
    return "___prefill_addr_127.0.0.1:%d___decode_addr_127.0.0.1:%d_%032x" % (p, d, int(fresh().split("-")[-1]))


def check_p2p():
    p, d = pair("p2p_nccl", "--fetch-timeout", "0.3", "--kv-port", "0", d=["--kv-timeout", "1"])
    with p, d:
        leg = {"prompt": PROMPT, "max_tokens": 1}
        rid = p2p_id(p.side, d.side)
        p.post("/v1/completions", leg, rid)
        d.until("pdsim:held_blocks", 2)
        p.until("pdsim:held_blocks", 0)
        same(d.post("/v1/completions", {"prompt": PROMPT}, rid)["choices"][0]["text"], expect.text(PROMPT))
        same(d.metric("pdsim:held_blocks"), 0)
        rid = p2p_id(p.side, d.side)  # D comes first; two prompts
        body = {"prompt": ["x", "y"], "max_tokens": 3, "stream": True}
        j = later(d, "/v1/completions", body, {"X-Request-Id": rid})
        d.until("vllm:num_requests_waiting", 1)
        p.post("/v1/completions", {"prompt": ["x", "y"], "max_tokens": 1}, rid)
        same(len(events(j()[1])), 7)
        for wrong in p2p_id(p.side + 1, d.side), p2p_id(p.side, d.side)[30:], fresh():
            p.post("/v1/completions", leg, wrong, None, 500)
            d.post("/v1/completions", leg, wrong, None, 500)
        d.post("/v1/completions", leg, p2p_id(p.side, d.side + 1), None, 500)
        same((p.metric("pdsim:kv_foreign_total"), d.metric("pdsim:kv_foreign_total")), (3, 3))
        p.post("/v1/completions", leg, p2p_id(p.side, 1))  # its D is not there: nobody tells
        p.until("pdsim:kv_push_failed_total", 1)
        same(p.metric("pdsim:held_blocks"), 0)
        rid = p2p_id(p.side, d.side)
        p.post("/v1/completions", leg, rid)
        d.post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}, rid, None, 500)
        rid = p2p_id(p.side, d.side)
        p.post("/v1/completions", leg, rid)
        d.post("/v1/completions", {"prompt": "other"}, rid, None, 500)
        same(d.why(), "DIFFER prompt")
        p.fault(kind="null_kv")
        rid = p2p_id(p.side, d.side)
        p.post("/v1/completions", leg, rid)
        d.post("/v1/completions", leg, rid, None, 500)
        p.post("/v1/completions", {"prompt": PROMPT}, p2p_id(p.side, d.side), None, 400)
        d.until("pdsim:held_blocks", 0)


def read_exactly(s, n):
    out = b""
    while len(out) < n:
        b = s.recv(n - len(out))
        check(b, "closed early")
        out += b
    return out


def check_p2p_announces():
    with socket.create_server(("127.0.0.1", 0)) as server:
        to = "127.0.0.1:%d" % server.getsockname()[1]
        with Engine("--role", "decode", "--handshake", "p2p_nccl", "--announce", to, "--announce-interval", "50") as d:
            s, _ = server.accept()
            s.settimeout(5)
            # ZMTP 3: greetings, READY of both, messages
            s.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31))
            greeting = read_exactly(s, 64)
            same((greeting[0], greeting[9], greeting[12:16]), (0xFF, 0x7F, b"NULL"))
            ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
            s.sendall(b"\x04" + bytes([len(ready)]) + ready)
            kind, n = read_exactly(s, 2)
            theirs = read_exactly(s, n)
            check(kind == 4 and b"DEALER" in theirs and b"127.0.0.1:%d" % d.side in theirs, theirs)
            http_address, zmq_address = (b"127.0.0.1:%d" % x for x in (d.port, d.side))
            want = b"\x83\xa4type\xa1D\xachttp_address" + bytes([0xA0 + len(http_address)]) + http_address + \
                b"\xabzmq_address" + bytes([0xA0 + len(zmq_address)]) + zmq_address
            for _ in "ab":
                kind, n = read_exactly(s, 2)
                same((kind, read_exactly(s, n)), (0, want))
            s.close()


def check_forms():
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    tool = {**chat, "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]}
    with Engine("--prompt-tokens-details") as e:
        r = e.post("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2})
        same(r["usage"].pop("prompt_tokens_details"), None)
        one = r["choices"][0]["logprobs"]["content"]
        same("".join(x["token"] for x in one), expect.text_chat(chat, 4))
        same(["".join(map(chr, x["bytes"])).encode("latin-1").decode() for x in one], [x["token"] for x in one])
        same([(x["token"], x["logprob"]) for x in one], [(x["top_logprobs"][0]["token"], x["top_logprobs"][0]["logprob"]) for x in one])
        same({len(x["top_logprobs"]) for x in one}, {2})
        check(all(x["top_logprobs"][1]["logprob"] < x["logprob"] for x in one))
        e.post("/v1/chat/completions", {**chat, "top_logprobs": 2}, None, None, 400)
        e.post("/v1/completions", {"prompt": "x", "logprobs": 21}, None, None, 400)
        for k in 0, 3:
            body = {"prompt": "q", "max_tokens": 9, "logprobs": k}
            lp = e.post("/v1/completions", body)["choices"][0]["logprobs"]
            words = expect.words(expect.token_ids("q"), 9)
            same((lp["tokens"], lp["text_offset"]), (words, [sum(map(len, words[:i])) for i in range(9)]))
            same(([len(d) for d in lp["top_logprobs"]], [max(d, key=d.get) for d in lp["top_logprobs"]]), ([max(k, 1)] * 9, words))
            same(lp["token_logprobs"], [max(d.values()) for d in lp["top_logprobs"]])
            ev = [json.loads(x)["choices"][0]["logprobs"] for x in events(e.call("POST", "/v1/completions", {**body, "stream": True})[1])[:-1]]
            same({m: sum((x[m] for x in ev), []) for m in lp}, lp)
        for choice in {"tool_choice": "required"}, {"tool_choice": {"type": "function", "function": {"name": "look_up"}}}, {"pdsim": {"tool": True}}:
            r = e.post("/v1/chat/completions", {**tool, **choice})["choices"][0]
            call = r["message"]["tool_calls"][0]
            same((r["finish_reason"], r["message"]["content"], call["function"]["name"]), ("tool_calls", None, "look_up"))
            same(json.loads(call["function"]["arguments"]), {"words": expect.text_chat(tool, 4)})
            _, data, _ = e.call("POST", "/v1/chat/completions", {**tool, **choice, "stream": True})
            ev = [json.loads(x)["choices"][0] for x in events(data)[:-1]]
            parts = [x["delta"]["tool_calls"][0] for x in ev[1:]]
            same((parts[0]["id"], ev[-1]["finish_reason"]), (call["id"], "tool_calls"))
            same("".join(x["function"]["arguments"] for x in parts), call["function"]["arguments"])
        same(e.post("/v1/chat/completions", tool)["choices"][0]["message"]["content"], expect.text_chat(tool, 4))
        doc = {"prompt": PROMPT, "max_tokens": 40, "response_format": {"type": "json_schema"}}
        whole = e.post("/v1/completions", doc)["choices"][0]
        same((json.loads(whole["text"]), whole["finish_reason"]), ({"words": expect.text(PROMPT, 40)}, "stop"))
        ids = expect.token_ids(PROMPT)
        first = expect.WORD + expect.VOCAB.index(expect.words(ids, 1)[0][1:])
        rest = e.post("/v1/completions", {**doc, "prompt": ids + [first], "max_tokens": 39})["choices"][0]["text"]
        with Engine("--role", "prefill") as p:
            r = p.post("/v1/completions", {**doc, **prefill_body()})["choices"][0]
            same((r["text"] + rest, r["finish_reason"]), (whole["text"], "length"))
        body = {**chat, "n": 2, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        ev = [json.loads(x)["usage"] for x in events(e.call("POST", "/v1/chat/completions", body)[1])[:-1]]
        same([u["completion_tokens"] for u in ev], [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 8])
        r = e.post("/v1/completions", {"prompt": PROMPT, "pdsim": {"cached_tokens": 7}})
        same(r["usage"]["prompt_tokens_details"], {"cached_tokens": 7})
    with Engine("--role", "prefill", "--prompt-tokens-details") as p, Engine("--role", "decode", "--prompt-tokens-details") as d:
        same(handoff(p, d)[1]["usage"]["prompt_tokens_details"], {"cached_tokens": 26})


def check_going_on():
    """A text that the model has begun, given back, is gone on with as if nobody had interrupted."""
    with Engine() as e:
        chat = {"messages": [{"role": "user", "content": "tell me of the"}], "max_tokens": 12}
        said = expect.words(expect.chat_ids(chat), 12)
        same(e.post("/v1/chat/completions", {**chat, "add_generation_prompt": True, "continue_final_message": False})["choices"][0]["message"]["content"], "".join(said))
        for k in range(12):
            open_ = {"continue_final_message": True, "add_generation_prompt": False, "max_tokens": 12 - k,
                     "messages": chat["messages"] + [{"role": "assistant", "content": "".join(said[:k])}]}
            same(e.post("/v1/chat/completions", open_)["choices"][0]["message"]["content"], "".join(said[k:]))
            same(expect.text_chat(open_, 12 - k), "".join(said[k:]))
            ids = e.post("/tokenize", open_)["tokens"]
            same((ids, len(ids)), (expect.chat_ids(open_), len(expect.chat_ids(chat)) + k))
        own = {"continue_final_message": True, "add_generation_prompt": False, "max_tokens": 6,
               "messages": chat["messages"] + [{"role": "assistant", "content": "So, in the"}]}
        same(e.post("/v1/chat/completions", own)["choices"][0]["message"]["content"], expect.text_chat(own, 6))
        later = {**own, "max_tokens": 3, "messages": chat["messages"] + [{"role": "assistant", "content": "So, in the" + expect.text_chat(own, 3)}]}
        same(expect.text_chat(own, 6), expect.text_chat(own, 3) + e.post("/v1/chat/completions", later)["choices"][0]["message"]["content"])
        for wrong in ({"add_generation_prompt": True}, {"messages": chat["messages"]}, {"messages": own["messages"][:1] + [{"role": "assistant"}]}):
            e.post("/v1/chat/completions", {**own, **wrong}, None, None, 400)
            e.post("/tokenize", {**own, **wrong}, None, None, 400)
        e.post("/v1/chat/completions", {k: v for k, v in own.items() if k != "add_generation_prompt"}, None, None, 400)
        for prompt in "tell me of the", "x", " the of and":
            body = {"prompt": prompt, "max_tokens": 9, "pdsim": {"words": True}}
            said = expect.words(expect.word_ids(prompt), 9)
            for k in range(9):
                r = e.post("/v1/completions", {**body, "prompt": prompt + "".join(said[:k]), "max_tokens": 9 - k})
                same(r["choices"][0]["text"], "".join(said[k:]))
                same(r["usage"]["prompt_tokens"], len(expect.word_ids(prompt)) + k)
                same(e.post("/tokenize", {**body, "prompt": prompt + "".join(said[:k])})["count"], r["usage"]["prompt_tokens"])
    with Engine("--engine", "sglang") as e:
        said = expect.words(expect.chat_ids(chat), 12)
        for begin in {}, {"add_generation_prompt": True}, {"add_generation_prompt": False}:
            open_ = {"continue_final_message": True, **begin, "max_tokens": 8, "messages": chat["messages"] + [{"role": "assistant", "content": "".join(said[:4])}]}
            same(e.post("/v1/chat/completions", open_)["choices"][0]["message"]["content"], "".join(said[4:]))


def check_one_leg():
    with Engine("--name", "this one") as e:
        for path, more in (("/v1/embeddings", {"input": ["a", "b"]}), ("/pooling", {"input": "a"}), ("/v1/classify", {"input": "a"}),
                           ("/score", {"text_1": "a", "text_2": ["b", "c"]}), ("/v2/rerank", {"query": "q", "documents": ["x", "y\n"]}),
                           ("/v1/responses", {"input": "a"}), ("/v1/messages", {"messages": [], "max_tokens": 3}), ("/v1/messages/count_tokens", {}),
                           ("/v2/embed", {}), ("/invocations", {}), ("/v1/audio/transcriptions", None)):
            raw = b"--x\r\nform" if more is None else json.dumps({"model": "sim-model", **more}).encode()
            status, data, _ = e.call("POST", path, raw)
            r = json.loads(data)
            same((status, r["pdsim"]), (200, {"path": path, "hash": expect.request_hash(raw), "name": "this one"}))
            if more is not None:
                same((e.call("POST", path, b"{")[0], e.call("POST", path, {"model": "no"})[0]), (400, 404))
            if "data" in r:
                same(len(r["data"]), max(len(v) if isinstance(v, list) else 1 for v in more.values()))
            if "results" in r:
                same([x["document"]["text"] for x in r["results"]], more["documents"])
        for path, kinds in (("/v1/responses", ["response.created", "response.output_text.delta", "response.completed"]),
                            ("/v1/messages", ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"])):
            raw = json.dumps({"stream": True}).encode()
            ev = e.call("POST", path, raw)[1].decode().split("\n\n")
            same([x.split("\n")[0] for x in ev], ["event: " + k for k in kinds] + [""])
            same([json.loads(x.split("\ndata: ")[1])["type"] for x in ev[:-1]], kinds)
            check(path + " " + expect.request_hash(raw) in "".join(ev), ev)
        same((json.loads(e.call("GET", "/v1/models/sim-model")[1])["id"], e.call("GET", "/v1/models/x")[0]), ("sim-model", 404))
        same((e.call("GET", "/v1/embeddings")[0], e.call("POST", "/tokenize", {"model": "x", "prompt": ""})[0]), (405, 404))
        for path in "/sleep", "/update_weights_from_disk":
            e.call("POST", path)
        same(e.metric("pdsim:controlled_total"), 2)
        e.fault(kind="status", status=503, path="/v1/embeddings")
        same(e.call("POST", "/v1/embeddings", {"input": "x"})[0], 503)


def check_responses():
    """Kept by --store alone; by the id that was named; in the background for three tokens."""
    def ask(e, method, path, body=None):
        status, data, _ = e.call(method, "/v1/responses" + path, body)
        return status, json.loads(data)
    raw = b'{"model": "sim-model", "input": "a"%s}'
    with Engine("--store", "--token-delay", "60000") as e:
        status, r = ask(e, "POST", "", raw % b', "request_id": "resp_1"')
        same((status, r["id"], r["status"], r["pdsim"]["hash"]), (200, "resp_1", "completed", expect.request_hash(raw % b"")))
        same((ask(e, "GET", "/resp_1"), ask(e, "POST", "/resp_1/cancel", {})[0], ask(e, "GET", "/resp_2")[1]["error"]),
             ((200, r), 400, {"message": "Response with id 'resp_2' not found.", "type": "invalid_request_error", "param": "response_id", "code": 404}))
        same((ask(e, "POST", "", raw % b', "request_id": "resp_1"')[0], e.metric("pdsim:duplicate_request_ids_total")), (400, 1))
        same([ask(e, "POST", "", raw % b', "previous_response_id": "%s"' % x)[0] for x in (b"resp_1", b"resp_2")], [200, 404])
        made = ask(e, "POST", "", raw % b"")[1]["id"]
        check(len(made) == 37 and made.startswith("resp_"), made)
        status, r = ask(e, "POST", "", raw % b', "background": true')
        same((status, r["status"], r["output"], ask(e, "GET", "/" + r["id"])), (200, "queued", [], (200, r)))
        same((ask(e, "POST", f"/{r['id']}/cancel", {})[1]["status"], ask(e, "GET", "/" + r["id"])[1]["status"]), ("cancelled", "cancelled"))
        same((e.call("DELETE", "/v1/responses/resp_1")[0], e.call("POST", "/v1/responses/resp_1")[0], e.call("GET", "/v1/responses/")[0]), (405, 405, 404))
        same(ask(e, "POST", "", raw % b', "store": false, "request_id": "resp_3"')[0], 200)
        same(ask(e, "GET", "/resp_3")[0], 404)
    with Engine() as e:
        same((ask(e, "GET", "/" + ask(e, "POST", "", raw % b"")[1]["id"])[0], ask(e, "POST", "", raw % b', "background": true')[0]), (404, 400))
    with Engine("--engine", "sglang") as e:
        same([ask(e, "GET", "/" + x)[0] for x in (ask(e, "POST", "", raw % b"")[1]["id"], "resp_x", "x")], [200, 404, 400])


def check_versions():
    for v, last in ("0.33", "remote_registration_generation"), ("0.19", "tp_size"), ("0.13", "tp_size"), ("0.11", "tp_size"):
        with Engine("--role", "prefill", "--vllm", v) as p, Engine("--role", "decode", "--vllm", v) as d:
            check(json.loads(p.call("GET", "/version")[1])["version"].startswith(v))
            for path, body in ("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}):
                rid = fresh()
                kv = p.post(path, {**body, "max_tokens": 1, "kv_transfer_params": SKELETON}, rid)["kv_transfer_params"]
                same((list(kv)[-1], "remote_request_id" in kv), (last, v != "0.11"))
                d.post(path, {**body, "kv_transfer_params": kv}, rid)
            kv = p.post("/v1/completions", prefill_body())["kv_transfer_params"]
            d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv}, None, None, 500 if v == "0.11" else 200)
            same(p.metric("pdsim:held_requests"), v == "0.11")


def check_push():
    with Engine("--role", "prefill", "--transfer", "push", "--no-id-suffix", "--prefill-delay", "200") as p, \
            Engine("--role", "decode", "--transfer", "push", "--fetch-timeout", "0.4") as d:
        first = p.post("/v1/completions", prefill_body(), "one")["kv_transfer_params"]
        same((first["remote_request_id"], first["transfer_mode"]), ("cmpl-one-0", "push"))
        d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": first}, "one")
        known = {k: first[k] for k in ("remote_engine_id", "remote_host", "remote_port", "tp_size")}
        known = {"do_remote_prefill": True, "remote_request_id": "cmpl-two-0", **known}
        s = d.raw_post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": known}, "X-Request-Id: two\r\nConnection: close\r\n")
        p.until("pdsim:open_rooms", 1)  # D is first
        p.post("/v1/completions", prefill_body(), "two")
        check(json.loads(read_all(s)[0].split(b"\r\n\r\n", 1)[1])["choices"][0]["text"] == expect.text(PROMPT))
        same((p.metric("pdsim:open_rooms"), p.metric("pdsim:held_blocks"), d.metric("pdsim:kv_loaded_total")), (0, 0, 2))
        known["remote_request_id"] = "cmpl-three-0"
        d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": known}, None, None, 500)
        same(d.why(), "TIMEOUT")
        p.until("pdsim:open_rooms", 0)
        s = d.raw_post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": known})
        p.until("pdsim:open_rooms", 1)
        s.close()
        p.until("pdsim:open_rooms", 0)
        known["remote_engine_id"] = "before the restart"
        d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": known}, None, None, 500)
        same(d.why(), "DIFFER engine_id")


class Pull:
    """A router's end of LMCache's notices: just enough of ZMTP 3.0 (NULL) to take frames off PUSH sockets."""

    def __init__(self):
        self.s = socket.create_server(("127.0.0.1", 0))
        self.at = "127.0.0.1:%d" % self.s.getsockname()[1]
        self.got, self.lock = [], threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            threading.Thread(target=self.read, args=(c.makefile("rwb"),), daemon=True).start()

    def read(self, f):
        f.write(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
        f.write(bytes.fromhex("041a0552454144590b536f636b65742d547970650000000450554c4c"))
        f.flush()
        f.read(64)
        while True:
            head = f.read(2)
            if len(head) < 2:
                return
            n = int.from_bytes(head[1:] + f.read(7), "big") if head[0] & 2 else head[1]
            body = f.read(n)
            if not head[0] & 4:
                with self.lock:
                    self.got.append(body)

    def take(self, n, seconds=5):
        end = time.monotonic() + seconds
        while len(self.got) < n and time.monotonic() < end:
            time.sleep(0.005)
        with self.lock:
            got, self.got = self.got, []
        same(len(got), n)
        return got

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.s.close()


def spec(d, rid, **more):
    return {"ret_first_tok": True, "disagg_spec": {
        "req_id": rid, "receiver_host": "127.0.0.1", "receiver_init_port": d.ports["init"],
        "receiver_alloc_port": d.ports["alloc"], **more}}


def cached_of(usage):
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def tokens(text, n):
    """A prompt of n tokens that begins with this text and differs from others behind it."""
    return (text + fresh() + "-").ljust(3 * n, "x")


def check_prefix_cache():
    first = "a" * 96  # two blocks of 16 tokens
    with Engine("--cache-blocks", "8", "--prompt-tokens-details") as e:
        def ask(prompt, **more):
            return cached_of(e.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **more})["usage"])

        whole = tokens(first, 64)
        same([ask(whole), ask(whole), ask(whole + "y"), ask(tokens(first, 64))], [0, 48, 64, 32])
        same(e.metric("pdsim:cached_blocks"), 6)
        # the last token is always computed; another salt or model is another prompt
        same([ask(first), ask(first + "!"), ask(whole, cache_salt="s")], [16, 32, 0])
        # the deepest blocks of what was not used for the longest time are gone: of 8 blocks, 4 are the salted ones
        same([ask(first + "!"), ask(whole + "y")], [32, 32])
        same(e.metric("vllm:prefix_cache_queries_total"), 64 + 64 + 65 + 64 + 32 + 33 + 64 + 33 + 65)
        same(e.metric("vllm:prefix_cache_hits_total"), 48 + 64 + 32 + 16 + 32 + 32 + 32)
        same(e.metric("pdsim:cached_blocks"), 8)
        check(e.metric("pdsim:blocks_evicted_total") > 0)
        page = e.call("GET", "/metrics")[1].decode()
        check(re.search(r'^vllm:cache_config_info\{block_size="16",.*enable_prefix_caching="True",.*num_gpu_blocks="8",', page, re.M))
        # ids, chat, several prompts, a stream; a prompt that is larger than the cache
        ids = json.loads(e.call("POST", "/tokenize", {"prompt": tokens("ids", 40)})[1])["tokens"]
        same([ask(ids), ask([ids, ids + [7]])], [0, 64])
        chat = {"messages": [{"role": "user", "content": "z" * 200}], "max_tokens": 1}
        same([cached_of(e.post("/v1/chat/completions", chat)["usage"]) for _ in "12"], [0, 64])
        body = {"prompt": ids, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
        events_of = [events(e.call("POST", "/v1/completions", {**body, "pdsim": more})[1]) for more in ({}, {"cached_tokens": 3})]
        same([cached_of(json.loads(v[-2])["usage"]) for v in events_of], [32, 3])
        same([ask("v" * 3 * 500), ask("v" * 3 * 500)], [0, 128])
        same(e.call("POST", "/reset_prefix_cache")[0], 200)
        same([ask("v" * 3 * 500), e.metric("pdsim:cached_blocks")], [0, 8])
    with Engine("--engine", "sglang", "--cache-blocks", "8", "--block-size", "512") as e:
        same(e.metric("sglang:max_total_num_tokens"), 4096)
        def cached():
            return e.post("/generate", {"text": "n" * 3 * 1100, "sampling_params": {"max_new_tokens": 1}})["meta_info"]["cached_tokens"]
        same([cached(), cached()], [0, 1024])
        same(e.call("POST", "/flush_cache")[0], 200)
        same(cached(), 0)
    with Engine() as e:  # without the option nothing is cached
        same([cached_of(e.post("/v1/completions", {"prompt": whole})["usage"]) for _ in "12"], [0, 0])
        check('enable_prefix_caching="False"' in e.call("GET", "/metrics")[1].decode())


def check_prefill_takes_turns():
    """1 ms a token that is not cached, one prompt after the other."""
    with Engine("--cache-blocks", "1000", "--prefill-us-per-token", "1000", "--prefill-delay", "20") as e:
        def ask(prompt):
            began = time.monotonic()
            e.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
            return time.monotonic() - began

        def least(took, seconds):  # a busy machine is late, but never early
            check(took >= seconds - 0.001, took, seconds)

        small = tokens("small", 16)
        least(ask(tokens("long", 160)), 0.18)
        cached = tokens("cached", 9601)  # more than 9 s, but for its last token
        e.fault(kind="slow", factor=0.001)
        least(ask(cached), 0.0096)
        took = ask(cached)
        least(took, 0.021)
        check(took < 5, took)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            began = time.monotonic()
            for t in [pool.submit(ask, tokens("other", 80)) for _ in "123"]:
                t.result()
            least(time.monotonic() - began, 0.3)
        # those that wait for their turn count as waiting; who leaves makes room for the next one
        e.fault(kind="slow", factor=1000)
        first = e.raw_post("/v1/completions", {"prompt": tokens("first", 160)})
        e.until("vllm:num_requests_running", 1)
        second = e.raw_post("/v1/completions", {"prompt": small, "max_tokens": 1})
        e.until("vllm:num_requests_waiting", 1)
        third = e.raw_post("/v1/completions", {"prompt": small, "max_tokens": 1})
        e.until("vllm:num_requests_waiting", 2)
        third.close()
        e.until("vllm:num_requests_waiting", 1)
        first.close()
        head = second.recv(65536)
        same(head[:15], b"HTTP/1.1 200 OK")
        second.close()
        e.until("pdsim:running_requests", 0)
    p, d = "--role prefill".split(), "--role decode".split()
    with Engine(*p, "--cache-blocks", "9", "--prompt-tokens-details") as p, \
            Engine(*d, "--cache-blocks", "9", "--prefill-us-per-token", "1000000", "--prompt-tokens-details") as d:
        for cached in 0, 16:  # D computes nothing, and keeps what it was given
            rid = fresh()
            r = p.post("/v1/completions", prefill_body(), rid)
            same(cached_of(r["usage"]), cached)
            r = d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": r["kv_transfer_params"]}, rid)
            same(cached_of(r["usage"]), 26)
        same(d.metric("pdsim:cached_blocks"), 1)


def unpack(b, at=0):
    """A msgpack value, and where the next one begins."""
    t = b[at]
    at += 1

    def number(n):
        return int.from_bytes(b[at:at + n], "big")

    def items(n, at):
        out = []
        for _ in range(n):
            v, at = unpack(b, at)
            out.append(v)
        return out, at
    if t < 0x80:
        return t, at
    if t < 0x90 or t == 0xde:
        n, at = (t & 15, at) if t < 0x90 else (number(2), at + 2)
        out, at = items(2 * n, at)
        return dict(zip(out[::2], out[1::2])), at
    if t < 0xa0 or t in (0xdc, 0xdd):
        n, at = (t & 15, at) if t < 0xa0 else (number(2), at + 2) if t == 0xdc else (number(4), at + 4)
        return items(n, at)
    if t < 0xc0:
        return b[at:at + (t & 31)].decode(), at + (t & 31)
    if t == 0xc0:
        return None, at
    if t == 0xc4:
        return b[at + 1:at + 1 + b[at]], at + 1 + b[at]
    if t == 0xcb:
        return struct.unpack(">d", b[at:at + 8])[0], at + 8
    size = {0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8}[t]
    return number(size), at + size


class Zmq:
    """A socket that connects: just enough of ZMTP 3.0 (NULL) to subscribe, or to ask."""

    def __init__(self, port, kind):
        self.s = socket.create_connection(("127.0.0.1", port), 10)
        self.f = self.s.makefile("rwb")
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self.f.write(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04" + bytes([len(ready)]) + ready)
        self.f.flush()
        self.f.read(64)
        head = self.f.read(2)
        self.f.read(head[1])

    def send(self, *frames):
        for i, frame in enumerate(frames):
            self.f.write(bytes([i + 1 < len(frames), len(frame)]) + frame)
        self.f.flush()

    def take(self):
        out, more = [], True
        while more:
            head = self.f.read(2)
            n = int.from_bytes(head[1:] + self.f.read(7), "big") if head[0] & 2 else head[1]
            out.append(self.f.read(n))
            more = head[0] & 1
        return out

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.f.close()
        self.s.close()


def check_kv_events():
    args = "--cache-blocks 4 --kv-events 0 --kv-replay 0 --kv-buffer 3 --kv-form".split()
    for form in "bytes", "ints", "map":
        with Engine(*args, form) as e, Zmq(e.ports["events"][0], b"SUB") as sub:
            sub.send(b"\x01")

            def ask(prompt):
                e.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})

            def batch(number=None):
                topic, got, body = sub.take()
                same((topic, number is None or int.from_bytes(got, "big") == number), (b"", True))
                v, end = unpack(body)
                same(end, len(body))
                if form == "map":
                    same((sorted(v), v["data_parallel_rank"]), (["data_parallel_rank", "events", "ts"], 0))
                    check(all(isinstance(i, dict) for i in v["events"]))
                    v = [v["ts"], [[i.pop("type"), *i.values()] for i in v["events"]], 0]
                same(len(v), 2 if form == "ints" else 3)
                check(abs(v[0] - time.time()) < 60)
                return v[1]
            sub.s.settimeout(0.2)
            for _ in range(50):  # until the subscription is there
                e.post("/sim/kv_events", {"batches": 1, "blocks": 1})
                try:
                    first = batch()
                    break
                except TimeoutError:
                    sub.f = sub.s.makefile("rwb")
            sub.s.settimeout(10)
            sub.f = sub.s.makefile("rwb")
            same((first[0][0], first[0][4]), ("BlockStored", 16))
            e.post("/sim/kv_events", {"restart": True})
            prompt = tokens("", 40)
            ask(prompt)
            (stored,) = batch(0)
            same(stored[:1] + stored[2:6], ["BlockStored", None, expect.token_ids(prompt)[:32], 16, None])
            same((len(stored[1]), {type(h) for h in stored[1]}), (2, {int if form == "ints" else bytes}))
            # newer ones name the adapter, and what else each block's hash depends on
            same(stored[6:], {"ints": [], "bytes": ["GPU"], "map": ["GPU", None, [None, None]]}[form])
            ask(prompt + "z" * 60)  # 20 tokens more: its third block
            (more,) = batch(1)
            same((more[2], more[3]), (stored[1][1], expect.token_ids(prompt + "z" * 60)[32:48]))
            ask(tokens("", 64))
            events_of = batch(2)
            same(sorted(i[0] for i in events_of), ["BlockRemoved"] * 3 + ["BlockStored"])
            same({i[1][0] for i in events_of if i[0] == "BlockRemoved"}, {*stored[1], more[1][0]})
            same(e.call("POST", "/reset_prefix_cache")[0], 200)
            same(batch(3), [["AllBlocksCleared"]])
            e.post("/sim/kv_events", {"drop": 1})
            ask(prompt)
            ask(tokens("", 16))
            batch(5)
            with Zmq(e.ports["replay"][0], b"DEALER") as dealer:
                dealer.send(b"", (4).to_bytes(8, "big"))
                same([int.from_bytes(dealer.take()[1], "big") for _ in range(3)], [4, 5, 2**64 - 1])
                dealer.send(b"", bytes(8))  # only the last three are kept
                same([int.from_bytes(dealer.take()[1], "big") for _ in range(4)], [3, 4, 5, 2**64 - 1])
                dealer.send(b"no empty frame", bytes(8))
                dealer.send(b"", (9).to_bytes(8, "big"))
                same(dealer.take()[1:], [b"\xff" * 8, b""])
            same(e.metric("pdsim:kv_replays_total"), 3)


def check_lmcache():
    ids = expect.token_ids(PROMPT)
    words = expect.words(ids, 9)
    first = expect.WORD + expect.VOCAB.index(words[0][1:])
    base = ["--handshake", "lmcache", "--role"]
    with Pull() as z, Engine(*base, "prefill", "--proxy", z.at, "--tp", "2") as p, \
            Engine(*base, "decode", "--receiver-ports", "0,0", "--skip-last", "1", "--refuse-local") as d:
        body = {"prompt": ids, "max_tokens": 1}
        uid = "3f2c1b9a-5d7e-4c8b-9a10-0f1e2d3c4b5a"
        r = p.post("/v1/completions", {**body, "kv_transfer_params": spec(d, uid)})
        same((r["kv_transfer_params"], r["choices"][0]["text"]), ({"first_tok": first}, words[0]))
        sample = "82a474797065aa50726f78794e6f746966a67265715f6964d92433663263316239612d356437652d346338622d396131302d306631653264336334623561"
        same([b.hex() for b in z.take(2)], [sample] * 2)  # one a rank
        same((p.metric("pdsim:held_blocks"), d.metric("pdsim:held_blocks"), d.metric("pdsim:held_requests")), (0, 2, 2))
        d.post("/v1/completions", {"prompt": ids, "max_tokens": 8}, None, None, 500)  # --skip-last 1 cuts into the prompt
        r = d.post("/v1/completions", {"prompt": ids + [first], "max_tokens": 8})
        same(r["choices"][0]["text"], "".join(words[1:]))
        same((d.metric("pdsim:held_requests"), d.metric("pdsim:kv_loaded_total"), d.metric("pdsim:local_prefills_total")), (0, 1, 1))
        d.post("/v1/completions", {"prompt": ids + [first]}, None, None, 500)  # it is there once
        for bad, why in (({"receiver_init_port": 7300}, "subscriptable"), ({"receiver_alloc_port": [1]}, "IndexError"),
                         ({"req_id": None}, "req_id"), ({"receiver_host": None}, "receiver_host"), ({"receiver_init_port": None}, "missing")):
            r = p.post("/v1/completions", {**body, "kv_transfer_params": spec(d, "x", **bad)}, None, None, 500)
            check(why in r["error"]["message"], r)
        p.post("/v1/completions", body, None, None, 500)
        same(p.metric("pdsim:spec_violations_total"), 6)
        r = p.post("/v1/completions", {**body, "kv_transfer_params": {"disagg_spec": spec(d, "a")["disagg_spec"]}})
        same(r["kv_transfer_params"], None)
        z.take(2)
        # ports the wrong way round: nothing arrives and nothing is told
        wrong = spec(d, "y", receiver_init_port=d.ports["alloc"], receiver_alloc_port=d.ports["init"])
        p.post("/v1/completions", {**body, "kv_transfer_params": wrong})
        same(p.metric("pdsim:kv_push_failed_total"), 1)
        for kind, n in ("no_push", 0), ("notice_none", 0), ("notice_twice", 4), ("notice_unknown", 2), ("notice_garbage", 4):
            p.fault(kind=kind)
            p.post("/v1/completions", {**body, "kv_transfer_params": spec(d, "z")})
            got = z.take(n)
            same(sum(b"unknown-z" in b for b in got), 2 if kind == "notice_unknown" else 0)
        p.post("/v1/completions", {"prompt": expect.token_ids("x<<eos>>"), "max_tokens": 1, "kv_transfer_params": spec(d, "e")})
        same(json.loads(base64.b64decode(json.loads(p.call("GET", "/sim/last?n=1")[1])["requests"][0]["body"]))["max_tokens"], 1)
        z.take(2)
        r = p.post("/v1/completions", {"prompt": expect.token_ids("y<<eos>>"), "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": spec(d, "e")})
        same(r["choices"][0]["finish_reason"], "length")
        z.take(2)
    with Pull() as z, Engine(*base, "prefill", "--proxy", z.at, "--notices", "1", "--notice-form", "dict", "--notice-late", "--kv-delay", "300") as p, \
            Engine(*base, "decode", "--receiver-ports", "0", "--kv-timeout", "0.4") as d:
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        t = time.monotonic()
        p.post("/v1/chat/completions", {**chat, "max_tokens": 1, "kv_transfer_params": spec(d, "q")})
        check(time.monotonic() - t < 0.25)
        same((d.metric("pdsim:held_requests"), p.metric("pdsim:held_requests")), (0, 1))
        same(z.take(1), [b"\x82\xa4rank\x00\xa6req_id\xa1q"])
        r = d.post("/v1/chat/completions", {**chat, "max_tokens": 5})  # the first token is D's
        same((r["choices"][0]["message"]["content"], d.metric("pdsim:kv_loaded_total")), (expect.text_chat(chat, 5), 1))
        p.post("/v1/chat/completions", {**chat, "max_tokens": 1, "kv_transfer_params": spec(d, "r")})
        z.take(1)
        d.until("pdsim:kv_expired_total", 1)
        same((d.metric("pdsim:held_blocks"), p.metric("pdsim:held_blocks")), (0, 0))
    with Pull() as z, Engine(*base, "prefill", "--proxy", z.at, "--notice-form", "nixlproxynotif", "--tp", "2", "--notice-gap", "200") as p, \
            Engine(*base, "decode", "--receiver-ports", "0,0") as d:
        s = p.raw_post("/v1/completions", {**body, "kv_transfer_params": spec(d, "1")}, "Connection: close\r\n")
        same(z.take(1), [bytes.fromhex("82a474797065ae4e69786c50726f78794e6f746966a67265715f6964a131")])
        d.post("/v1/completions", {"prompt": ids})  # too early: one rank has nothing yet
        same((d.metric("pdsim:local_prefills_total"), d.metric("pdsim:kv_loaded_total")), (1, 0))
        check(b" 200 " in read_all(s)[0])
        z.take(1)
        d.post("/v1/completions", {"prompt": ids})
        same((d.metric("pdsim:kv_loaded_total"), d.metric("pdsim:held_requests")), (1, 0))


def check_shared_storage():
    with tempfile.TemporaryDirectory() as folder:
        base = ["--handshake", "shared_storage", "--storage", folder, "--role"]
        with Engine(*base, "prefill") as p, Engine(*base, "decode", "--refuse-local") as d:
            d.post("/v1/completions", {"prompt": PROMPT}, None, None, 500)
            body = {"prompt": PROMPT, "cache_hit_threshold": 0.8}
            r = d.post("/v1/completions", body)
            same((r["choices"][0]["text"], r["choices"][0]["finish_reason"]), ("", "cache_threshold"))
            _, data, _ = d.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True, "cache_hit_threshold": 1})
            same([json.loads(e)["choices"][0]["finish_reason"] for e in events(data)[:-1]], [None, "cache_threshold"])
            r = p.post("/v1/completions", {**body, "max_tokens": 1})  # left in P's leg: P does not begin either
            same((r["choices"][0]["finish_reason"], p.metric("pdsim:kv_stored_total")), ("cache_threshold", 0))
            p.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "cache_hit_threshold": 0})
            same(d.post("/v1/completions", body)["choices"][0]["text"], expect.text(PROMPT))
            d.post("/v1/completions", {"prompt": PROMPT, "cache_salt": "x"}, None, None, 500)
            d.post("/v1/completions", {"prompt": PROMPT, "cache_hit_threshold": "x"}, None, None, 400)
            same((d.metric("pdsim:kv_loaded_total"), d.metric("pdsim:local_prefills_total")), (1, 2))
            p.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2}, None, None, 400)
        with Engine(*base, "prefill", "--kv-delay", "200") as p, Engine(*base, "decode") as d:
            p.post("/v1/completions", {"prompt": "late", "max_tokens": 1})
            d.post("/v1/completions", {"prompt": "late"})
            same(d.metric("pdsim:local_prefills_total"), 1)
            p.until("pdsim:kv_stored_total", 1)
            d.post("/v1/completions", {"prompt": "late"})
            same((d.metric("pdsim:local_prefills_total"), d.metric("pdsim:kv_loaded_total")), (1, 1))
    r = subprocess.run([PDSIM, "--handshake", "shared_storage"], capture_output=True, text=True, timeout=5)
    check(r.returncode == 2 and "--storage" in r.stderr, r)


def run(name):
    """One check; how many comparisons it has made."""
    before, t = CHECKS, time.monotonic()
    globals()[name]()
    print("ok %-22s %.2f s" % (name, time.monotonic() - t), flush=True)
    return CHECKS - before


def main():
    names = sorted(n for n in globals() if n.startswith("check_") and any(w in n for w in sys.argv[2:] or [""]))
    with concurrent.futures.ProcessPoolExecutor(4) as pool:  # they wait more than they compute
        print("%d checks passed" % sum(pool.map(run, names)))


if __name__ == "__main__":
    main()
