"""A client on a bare socket: sends exactly the bytes it is told to, reads heads and chunks one at a
time and notes when each came.  HTTP libraries hide what these tests are about."""
import json
import socket
import time


class Closed(Exception):
    """The peer closed or reset before what was asked for was complete; `got` is what had come."""

    def __init__(self, got=b""):
        super().__init__(got)
        self.got = got


class Answer:
    def __init__(self, raw):
        lines = raw[:-4].split(b"\r\n")
        self.raw = raw
        self.version, status, self.reason = (lines[0].split(b" ", 2) + [b""])[:3]
        self.status = int(status)
        self.headers = [tuple(x.decode("latin-1").split(": ", 1)) if b": " in x else (x.decode("latin-1").rstrip(":"), "")
                        for x in lines[1:]]
        self.body = b""
        self.complete = False

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]

    def __getitem__(self, name):
        values = self.all(name)
        return values[0] if values else None

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object in OpenAI's shape; anything else is a failed test."""
        err = self.json()["error"]
        assert set(err) >= {"message", "type", "param", "code"}, err
        assert self["content-type"].startswith("application/json")
        return err


class Event:
    def __init__(self, raw, at):
        self.raw, self.at = raw, at
        lines = raw.decode().splitlines()
        self.data = "\n".join(x[5:].removeprefix(" ") for x in lines if x.startswith("data:"))
        self.name = next((x[6:].strip() for x in lines if x.startswith("event:")), None)

    def json(self):
        return json.loads(self.data)


def text_of(events):
    """The text a list of chat or completion events carries."""
    out = ""
    for e in events:
        if e.data == "[DONE]":
            continue
        for c in e.json().get("choices", []):
            out += (c.get("delta", {}).get("content") or "") if "delta" in c else c.get("text", "")
    return out


class Client:
    """One connection.  `buf` holds what was read and not yet taken."""

    def __init__(self, address, timeout=20, rcvbuf=None, source=None):
        """`address`: (host, port), or the path of a unix socket."""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        if source:
            self.sock.bind((source, 0))
        if family != socket.AF_UNIX:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect(address)
        self.buf = b""
        self.answer = None
        self.at = time.monotonic()  # when the last bytes came

    # --- out ---
    def send(self, data):
        self.sock.sendall(data)
        return self

    def request(self, method, path, body=None, headers=(), version="1.1"):
        """Writes a whole request; `body` may be bytes or what json.dumps takes."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "Host: router"]
        if body is not None:
            names = [h[0].lower() for h in headers]
            if "content-type" not in names:
                lines.append("Content-Type: application/json")
            if "content-length" not in names:
                lines.append(f"Content-Length: {len(body)}")
        lines += [f"{k}: {v}" for k, v in headers]
        return self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))

    def get(self, path, headers=()):
        return self.request("GET", path, headers=headers).read()

    def post(self, path, body, headers=()):
        return self.request("POST", path, body, headers).read()

    # --- in ---
    def _more(self):
        try:
            data = self.sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        self.at = time.monotonic()
        if not data:
            raise Closed(self.buf)
        self.buf += data

    def until(self, mark):
        """Bytes up to and including `mark`."""
        while mark not in self.buf:
            self._more()
        at = self.buf.index(mark) + len(mark)
        taken, self.buf = self.buf[:at], self.buf[at:]
        return taken

    def take(self, n):
        while len(self.buf) < n:
            self._more()
        taken, self.buf = self.buf[:n], self.buf[n:]
        return taken

    def head(self):
        self.answer = Answer(self.until(b"\r\n\r\n"))
        return self.answer

    def chunks(self):
        """The chunks of a chunked body, each as (time, bytes), until the last one."""
        while True:
            size = int(self.until(b"\r\n").split(b";")[0], 16)
            data = self.take(size)
            assert self.take(2) == b"\r\n"
            if size == 0:
                self.answer.complete = True
                return
            yield self.at, data

    def body_parts(self):
        a = self.answer
        if (a["transfer-encoding"] or "").lower() == "chunked":
            yield from self.chunks()
        elif a["content-length"] is not None:
            left = int(a["content-length"])
            while left:
                if not self.buf:
                    self._more()
                data = self.take(min(left, len(self.buf)))
                left -= len(data)
                yield self.at, data
            a.complete = True
        elif a.status >= 200 and a.status not in (204, 304):
            while True:  # ends with the connection
                data, self.buf = self.buf, b""
                if data:
                    yield self.at, data
                try:
                    self._more()
                except Closed:
                    a.complete = True
                    return

    def read(self, head_only=False):
        """The whole answer; an answer that breaks off raises Closed."""
        a = self.head()
        while a.status // 100 == 1:
            a = self.head()
        if not head_only:
            for _, data in self.body_parts():
                a.body += data
        return a

    def events(self):
        """Events of the stream, each as soon as its last byte is here."""
        if self.answer is None or self.answer.complete:
            self.head()
        pending = b""
        for at, data in self.body_parts():
            self.answer.body += data
            pending += data
            while b"\n\n" in pending:
                one, pending = pending.split(b"\n\n", 1)
                yield Event(one + b"\n\n", at)
        assert pending == b"", f"the stream ended inside an event: {pending!r}"

    # --- ends ---
    def silent(self, seconds):
        """True if nothing comes for that long."""
        if self.buf:
            return False
        old = self.sock.gettimeout()
        self.sock.settimeout(seconds)
        try:
            self._more()
            return False
        except socket.timeout:
            return True
        finally:
            self.sock.settimeout(old)

    def closed(self, seconds=5):
        """True if the peer closes within that time without a further byte."""
        old = self.sock.gettimeout()
        self.sock.settimeout(seconds)
        try:
            self._more()
            return False
        except Closed as c:
            return c.got == b""
        except socket.timeout:
            return False
        finally:
            self.sock.settimeout(old)

    def close(self):
        self.sock.close()

    def reset(self):
        """Leaves with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
