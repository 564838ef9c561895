#!/usr/bin/env python3
"""Checks the engine simulator by itself: python3 tests/engine/selfcheck.py [path of pdsim]

Starts engines on free ports and does the hand-shakes by hand.  Standard library only.
"""

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
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
        m = re.match(r"pdsim listening http=(\d+) side=(\d+) bootstrap=(\d+)\n", self.p.stdout.readline())
        self.port, self.side, self.bootstrap = int(m[1]), int(m[2]), int(m[3])
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


def hand_over(p, d, **more):
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
            check("MISSING" in r["error"]["message"], r)
            same((d.metric("pdsim:kv_refused_total"), d.metric("pdsim:request_id_mismatch_total")), (1, 0))


def check_mix_ups():
    with Engine("--role", "prefill") as p, Engine("--role", "decode") as d:
        def leg(want, change=None, **more):
            rid = fresh()
            kv = p.post("/v1/completions", prefill_body(), rid)["kv_transfer_params"]
            (change or (lambda kv: None))(kv)
            return d.post("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": kv, **more}, rid, None, want)

        check("DIFFER prompt" in leg(500, prompt=PROMPT + "!")["error"]["message"])
        check("DIFFER prompt" in leg(500, cache_salt="s")["error"]["message"])
        check("DIFFER kv" in leg(500, lambda kv: kv.update(remote_block_ids=[1, 2]))["error"]["message"])
        check("DIFFER kv" in leg(500, lambda kv: kv.pop("tp_size"))["error"]["message"])
        check("DIFFER engine" in leg(500, lambda kv: kv.update(remote_engine_id="x"))["error"]["message"])
        check("MISSING" in leg(500, lambda kv: kv.update(remote_request_id="x y%"))["error"]["message"])
        check("UNREACHABLE" in leg(500, lambda kv: kv.update(remote_port=1))["error"]["message"])
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
        hand_over(p, d)
        same(p.metric("pdsim:held_requests"), 0)
    with Engine("--engine", "sglang") as e:
        same(e.metric("sglang:num_running_reqs"), 0)


def main():
    for name, fn in sorted(globals().items()):
        if name.startswith("check_"):
            t = time.monotonic()
            fn()
            print("ok %-22s %.2f s" % (name, time.monotonic() - t), flush=True)
    print("%d checks passed" % CHECKS)


if __name__ == "__main__":
    main()
