"""A name server that answers as a test wants it to: a few records over UDP and TCP, or worse."""
import socket
import struct
import threading
import time

A, NS, CNAME, SOA, AAAA, SRV = 1, 2, 5, 6, 28, 33
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5
TO_QUERY_NAME = b"\xc0\x0c"


def labels(name):
    return b"".join(bytes([len(x)]) + x.encode() for x in name.split(".") if x) + b"\0"


def record(rtype, ttl, data, owner=TO_QUERY_NAME):
    return owner + struct.pack(">HHIH", rtype, 1, ttl, len(data)) + data


def address(text):
    return (AAAA, socket.inet_pton(socket.AF_INET6, text)) if ":" in text else (A, socket.inet_aton(text))


def service(target, port, priority=0, weight=0):
    return SRV, struct.pack(">HHH", priority, weight, port) + labels(target)


class NameServer:
    """`zone` is {name: [(type, data), ...]}; a name that is not there is NXDOMAIN.  `mode` is "answer",
    "silent", "garbage", "broken", or a code such as SERVFAIL for everything."""

    def __init__(self, host="127.0.0.1"):
        self.host = host
        self.zone, self.ttl, self.negative_ttl, self.mode = {}, 1, 1, "answer"
        self.asked = []  # (monotonic time, name, type, "udp" or "tcp")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.tcp = socket.create_server((host, 0), family=family)
        self.port = self.tcp.getsockname()[1]
        self.udp = socket.socket(family, socket.SOCK_DGRAM)
        self.udp.bind((host, self.port))
        for run in (self._udp, self._tcp):
            threading.Thread(target=run, daemon=True).start()

    @property
    def address(self):
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def set(self, name, *what):
        """The records of a name: addresses as texts, services as service() makes them."""
        self.zone = {**self.zone, name: [address(x) if isinstance(x, str) else x for x in what]}

    def times(self, name, rtype):
        """When it was asked for that."""
        return [t for t, n, r, _ in list(self.asked) if n == name and r == rtype]

    def close(self):
        for s in (self.udp, self.tcp):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def answer(self, query, transport):
        """The bytes of the answer, or None."""
        name, at = [], 12
        while query[at]:
            name.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, (rtype,), end = ".".join(name), struct.unpack(">H", query[at + 1:at + 3]), at + 5
        self.asked.append((time.monotonic(), name, rtype, transport))
        mode, known = self.mode, self.zone.get(name)
        if mode == "silent":
            return None
        if mode == "garbage":
            return query[:2] + b"\x81\x80" + b"\xff" * 40
        code = mode if isinstance(mode, int) else NOERROR if known is not None else NXDOMAIN
        records = [record(t, self.ttl, data) for t, data in known or [] if t == rtype and code == NOERROR]
        authority = []
        if not records and code in (NOERROR, NXDOMAIN) and self.negative_ttl is not None:
            soa = TO_QUERY_NAME + TO_QUERY_NAME + struct.pack(">5I", 1, 1, 1, 1, self.negative_ttl)
            authority = [record(SOA, 3600, soa)]
        if mode == "broken" and records:  # the last one is cut in its data
            records[-1] = records[-1][:-1]
        flags, count = 0x8180 | code, len(records)
        if transport == "udp" and len(b"".join(records)) > 400:
            flags, count, records = flags | 0x0200, 0, []  # truncated: ask again over TCP
        head = struct.pack(">HHHHH", flags, 1, count, len(authority), 0)
        return query[:2] + head + query[12:end] + b"".join(records + authority)

    def _udp(self):
        while True:
            try:
                query, peer = self.udp.recvfrom(4096)
                if not query:  # closed
                    return
                answer = self.answer(query, "udp")
                if answer is not None:
                    self.udp.sendto(answer, peer)
            except OSError:
                return

    def _tcp(self):
        while True:
            try:
                conn, _ = self.tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._conn, args=(conn,), daemon=True).start()

    def _conn(self, conn):
        with conn, conn.makefile("rb") as f:
            while True:
                try:
                    size = f.read(2)
                    if len(size) < 2:
                        return
                    answer = self.answer(f.read(struct.unpack(">H", size)[0]), "tcp")
                    if answer is not None:
                        conn.sendall(struct.pack(">H", len(answer)) + answer)
                except OSError:
                    return
