"""The requests of tests/data: a body byte for byte, and how it came."""
import itertools
import json
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
CASES = sorted(str(p.relative_to(DATA))[:-5] for p in DATA.glob("*/*.json"))

FRESH = itertools.count()


class Case:
    def __init__(self, name):
        meta = json.loads((DATA / f"{name}.json").read_text())
        self.method, self.path, self.headers = meta["method"], meta["path"], [tuple(h) for h in meta["headers"]]
        self.status = meta.get("status", 200)  # what an engine says to it
        self.body = (DATA / f"{name}.body").read_bytes()

    def request(self):
        """The request's bytes; Host, framing and the end of an id (engines want it fresh) are of this connection."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: test"]
        lines += [f"{k}: {v}" for k, v in self.headers if k.lower() not in ("host", "content-length", "connection",
                                                                              "transfer-encoding", "accept-encoding")]
        lines = [f"{x}-{next(FRESH)}" if x.lower().startswith("x-request-id") else x for x in lines]
        lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def load(name):
    return Case(name)
