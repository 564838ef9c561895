"""A collector of spans that takes nothing that OTLP/HTTP does not allow: each body is read by opentelemetry-proto, unknown
members are errors, and so are ids that are no lower-case hex."""
import base64
import json
import re
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from procs import wait

IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}
TAKEN = (200, {}, b"{}")


def hex_to_base64(obj):
    """OTLP writes ids as hex, where protobuf's own JSON has base64."""
    if isinstance(obj, list):
        return [hex_to_base64(x) for x in obj]
    if not isinstance(obj, dict):
        return obj
    out = {}
    for key, value in obj.items():
        if key in IDS:
            assert re.fullmatch(f"[0-9a-f]{{{IDS[key]}}}", value) and set(value) != {"0"}, (key, value)
            out[key] = base64.b64encode(bytes.fromhex(value)).decode()
        else:
            assert key not in ("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "intValue") or isinstance(value, str), (key, value)
            out[key] = hex_to_base64(value)
    return out


def values(attributes):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


class Span:
    def __init__(self, span, resource):
        assert len({a.key for a in span.attributes}) == len(span.attributes)
        assert span.name and span.kind in (1, 2, 3) and 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.state = span.trace_state
        self.name, self.kind, self.flags, self.status = span.name, span.kind, span.flags, span.status
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attrs, self.resource = values(span.attributes), resource
        self.events = {e.name: e.time_unix_nano for e in span.events}

    def __repr__(self):
        return f"{self.name} {self.attrs}"

    def __getitem__(self, key):
        return self.attrs.get(key)


class Collector:
    def __init__(self):
        self.answers, self.bodies, self.faults = deque(), [], []
        self.go_on = threading.Event()
        self.go_on.set()
        self.posts = self.final = 0  # `final`: spans that were taken or refused for good
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.take(self)

            def log_message(self, *_):
                pass
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, http):
        body = http.rfile.read(int(http.headers["Content-Length"]))
        self.posts += 1
        self.go_on.wait(30)
        answer = self.answers.popleft() if self.answers else TAKEN
        if isinstance(answer, bytes):
            http.wfile.write(answer)
            http.close_connection = True
            return
        status, headers, text = answer
        try:
            assert http.path == "/v1/traces" and http.headers["Content-Type"] == "application/json", http.path
            spans = self.read(body)
            if status == 200:
                self.bodies.append(spans)
            if status in (200, 400):
                self.final += len(spans)
        except Exception as e:  # noqa: BLE001: whatever it is, the test shall see it
            self.faults.append(f"{e!r}: {body[:2000]}")
        http.send_response(status)
        for name, value in {"Content-Length": len(text), **headers}.items():
            http.send_header(name, str(value))
        http.end_headers()
        http.wfile.write(text)

    @staticmethod
    def read(body):
        request = json_format.ParseDict(hex_to_base64(json.loads(body)), ExportTraceServiceRequest(), ignore_unknown_fields=False)
        return [Span(s, values(r.resource.attributes)) for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]

    @property
    def spans(self):
        assert self.faults == []
        return [s for body in list(self.bodies) for s in body]

    def of(self, trace, n=1):
        """The spans of a trace by name, once there are n of them and among them the request's."""
        def here():
            got = [s for s in self.spans if s.trace == trace]
            return got if len(got) >= n and any(s.kind == 2 for s in got) else None
        out = {}
        for s in wait(f"{n} spans of {trace}", here):
            out.setdefault(s.name, []).append(s)
        return out

    def close(self):
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()
