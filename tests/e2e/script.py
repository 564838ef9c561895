"""A scripted engine, for what the simulator cannot do: answer exactly these bytes, reset here, stall
there.  Probes are answered by itself; every other request waits until the test takes it with
expect() and says what happens, so a test runs in one thread, in the order it is written.  What the router sends only to
have it refused (a handoff that is spent) is refused by itself too."""
import json
import queue
import socket
import struct
import threading
from contextlib import suppress

from raw import Answer, Client, Closed

PROBES = {"/health": b"", "/ready": b"", "/metrics": b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n",
          "/version": (404, b""), "/server_info": (404, b""), "/get_server_info": (404, b"")}

RELEASE = b'"pdrouter-release"'


class Exchange:
    """One request that has come, and the ways to answer it.  Every way but write() ends it."""

    def __init__(self, conn, head, body):
        self.conn = conn
        self.raw_head, self.body = head, body
        lines = head[:-4].decode("latin-1").split("\r\n")
        self.method, self.path, _ = lines[0].split(" ")
        self.headers = [tuple(x.split(": ", 1)) for x in lines[1:]]
        self.over = threading.Event()
        self.keep = False

    def __getitem__(self, name):
        found = [v for k, v in self.headers if k.lower() == name.lower()]
        return found[0] if found else None

    def json(self):
        return json.loads(self.body)

    def write(self, data):
        """Exactly these bytes, in one write."""
        self.conn.sock.sendall(data)
        return self

    def end(self, keep=True):
        self.keep = keep
        self.over.set()

    def reply(self, status=200, body=b"", headers=(), keep=True):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers = [("Content-Type", "application/json"), *headers]
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers)]
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.end(keep)

    def prefilled(self, params='{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_engine_id":"e"}'):
        """What a prefill engine answers; `params` is raw JSON, put there as it is."""
        self.reply(body=b'{"id":"x","object":"text_completion","choices":[{"index":0,"text":"a",'
                   b'"finish_reason":"length"}],"kv_transfer_params":' + params.encode() + b"}",
                   headers=[("Content-Type", "application/json")])

    def stream_head(self, headers=()):
        extra = "".join(f"{k}: {v}\r\n" for k, v in headers)
        return self.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                          b"Transfer-Encoding: chunked\r\n" + extra.encode() + b"\r\n")

    def chunk(self, data):
        return self.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, text):
        """One completion event, as one write."""
        obj = {"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": None}]}
        return self.chunk(b"data: " + json.dumps(obj).encode() + b"\n\n")

    def stream(self, *texts):
        """A whole stream, [DONE] included."""
        self.stream_head()
        for t in texts:
            self.event(t)
        self.chunk(b"data: [DONE]\n\n").write(b"0\r\n\r\n")
        self.end()

    def reset(self):
        self.conn.reset()
        self.end(keep=False)

    def close(self):
        self.end(keep=False)

    def gone(self, timeout=5):
        """True once the router has closed this connection."""
        return self.conn.closed(timeout)


class ScriptedEngine:
    """`probes`: by path what it answers by itself: a body, (status, body), or a function of the Exchange."""

    def __init__(self, models=("m",), host="127.0.0.1", probes=None, port=0):
        self.probes = dict(PROBES, **(probes or {}))
        models = [{"id": m, "object": "model"} for m in models]
        self.probes["/v1/models"] = json.dumps({"object": "list", "data": models}).encode()
        self.asked = queue.Queue()
        self.probed = {}  # the last lookup of each path
        self.refused = []  # requests for a model that nobody has, oldest first
        self.deaf = False  # reads no bodies
        self.conns = []
        self.listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.host, self.port = host, self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self):
        return (self.host, self.port)

    @property
    def url(self):
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def expect(self, what=None, timeout=10):
        """The next request that is not a probe, oldest first."""
        try:
            ex = self.asked.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"engine {self.port}: no request came in {timeout} s") from None
        assert what is None or f"{ex.method} {ex.path}" == what
        return ex

    def quiet(self, seconds=0.3):
        """True if no request comes for that long."""
        try:
            self.asked.get(timeout=seconds)
            return False
        except queue.Empty:
            return True

    def finish(self):
        """Releases requests that the test has not answered to their end."""
        while not self.asked.empty():
            self.asked.get().end(keep=False)

    def forget(self):
        """Whatever is under way breaks off, and whatever comes of that."""
        with suppress(queue.Empty):
            while True:
                for c in list(self.conns):
                    with suppress(OSError):
                        c.sock.shutdown(socket.SHUT_RDWR)
                self.asked.get(timeout=0.2).end(keep=False)

    def close(self):
        """Dies: no new connection, the old ones are reset."""
        if self.listener.fileno() != -1:
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which would keep the port open
            self.listener.close()
        for c in list(self.conns):
            with suppress(OSError):
                c.reset()

    # --- the threads: one accepts, one per connection reads ---
    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            conn = Client.__new__(Client)
            conn.sock, conn.buf, conn.at = sock, b"", 0
            conn.served = False  # a request that is no probe has come on it
            self.conns.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        try:
            while True:
                head = conn.until(b"\r\n\r\n")
                a = Answer(b"HTTP/1.1 200 request\r\n" + head.split(b"\r\n", 1)[1])
                body = b"" if self.deaf else conn.take(int(a["content-length"] or 0))
                if (a["transfer-encoding"] or "").lower() == "chunked":
                    conn.answer = a
                    body = b"".join(data for _, data in conn.chunks())
                ex = Exchange(conn, head, body)
                if ex.path in self.probes:
                    self.probed[ex.path] = ex
                    answer = self.probes[ex.path]
                    if callable(answer):
                        answer(ex)
                        if not ex.keep:
                            break
                    else:
                        ex.reply(*answer) if isinstance(answer, tuple) else ex.reply(200, answer)
                elif RELEASE in ex.body:
                    self.refused.append(ex)
                    # it comes when it likes: the next request of a test is not to find its connection
                    ex.reply(404, {"error": {"message": "no such model", "type": "NotFoundError", "param": "model", "code": 404}},
                             headers=[("Connection", "close")], keep=False)
                    break
                else:
                    conn.served = True
                    self.asked.put(ex)
                    ex.over.wait()
                    if not ex.keep:
                        break
        except (Closed, OSError, struct.error):
            pass
        finally:
            conn.close()
            self.conns.remove(conn)
