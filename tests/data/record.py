#!/usr/bin/env python3
"""Records what the openai Python SDK sends, into tests/data/python/: the body as raw bytes (NAME.body) and
method, path and headers (NAME.json).  Run with build/venv/bin/python; versions in README.md."""
import base64
import http.server
import json
import random
import sys
import threading
from pathlib import Path

import openai
from pydantic import BaseModel

HERE = Path(__file__).resolve().parent
MODEL = "sim-model"
REFUSED = {"completion_string_list": '"router_status": {"orchestrated": 500}, '}
SECRET = ("authorization", "host", "content-length", "connection")  # of the run, not of the client


class Recorder(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    got = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.command, self.path, [(k, v) for k, v in self.headers.items() if k.lower() not in SECRET], body))
        answer = b'{"id":"x","object":"x","created":1,"model":"m","choices":[]}'
        if json.loads(body).get("stream"):
            answer, kind = b"data: [DONE]\n\n", "text/event-stream"
        else:
            kind = "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def noise(n, seed):
    """A small valid PNG is not needed: engines of the simulator do not decode it.  Bytes that do not
    compress, as a photograph's would not."""
    return base64.b64encode(random.Random(seed).randbytes(n)).decode()


TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather at a place \u2013 now",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
                   "required": ["city"], "additionalProperties": False}, "strict": True}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"K\u00f6ln","unit":"C"}'}}
USER = [{"role": "user", "content": "What is the weather in K\u00f6ln?"}]
UNICODE = "na\u00efve \u65e5\u672c\u8a9e \u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0639\u0631\u0628\u064a \U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0301 \\ \" / \b\f\n\r\t \u2028 \x7f"


class Answer(BaseModel):
    city: str
    degrees: float
    notes: list[str]


def calls(c):
    chat, comp = c.chat.completions, c.completions
    image = [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + noise(600, 1), "detail": "low"}}]}]
    large = json.loads(json.dumps(image))
    large[0]["content"][1]["image_url"]["url"] = "data:image/jpeg;base64," + noise(150_000, 2)
    return {
        "chat": lambda: chat.create(model=MODEL, messages=USER),
        "chat_system_params": lambda: chat.create(
            model=MODEL, messages=[{"role": "system", "content": "Be brief."}, *USER], temperature=0.7, top_p=0.95,
            frequency_penalty=0.1, presence_penalty=-0.1, max_tokens=24, seed=9007199254740993, stop=["\n\n", "END"],
            user="u-1", logit_bias={"50256": -100}),
        "chat_stream_usage": lambda: list(chat.create(model=MODEL, messages=USER, max_tokens=12, stream=True,
                                                      stream_options={"include_usage": True})),
        "chat_max_completion_tokens": lambda: chat.create(model=MODEL, messages=USER, max_completion_tokens=9),
        "chat_logprobs": lambda: chat.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=3, max_tokens=5),
        "chat_n": lambda: chat.create(model=MODEL, messages=USER, n=2, max_tokens=5),
        "chat_tools": lambda: chat.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="auto", parallel_tool_calls=False),
        "chat_tool_results": lambda: chat.create(model=MODEL, tools=TOOLS, messages=[
            *USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": 21.5}'}]),
        "chat_json_schema": lambda: chat.create(model=MODEL, messages=USER, response_format={
            "type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": Answer.model_json_schema()}}),
        "chat_json_object": lambda: chat.create(model=MODEL, messages=USER, response_format={"type": "json_object"}),
        "chat_image_small": lambda: chat.create(model=MODEL, messages=image, max_tokens=8),
        "chat_image_200k": lambda: chat.create(model=MODEL, messages=large, max_tokens=8),
        "chat_unicode": lambda: chat.create(model=MODEL, messages=[{"role": "user", "content": UNICODE, "name": "J\u00fcrgen"}],
                                            max_tokens=20),
        "chat_extra_body": lambda: chat.create(model=MODEL, messages=USER, max_tokens=6, extra_body={
            "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 4,
            "chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "s-1", "priority": 3},
            extra_headers={"X-Trace": "abc"}),
        "chat_metadata_reasoning": lambda: chat.create(model=MODEL, messages=USER, reasoning_effort="low", store=False,
                                                       metadata={"k": "v"}, max_completion_tokens=7),
        "completion": lambda: comp.create(model=MODEL, prompt="Once upon a time"),
        "completion_stream": lambda: list(comp.create(model=MODEL, prompt="Once upon a time", max_tokens=11, stream=True,
                                                      stream_options={"include_usage": True})),
        "completion_tokens": lambda: comp.create(model=MODEL, prompt=[1, 15043, 3186, 29991, 128000], max_tokens=6),
        "completion_string_list": lambda: comp.create(model=MODEL, prompt=["first", "second"], max_tokens=4),
        "completion_one_string_list": lambda: comp.create(model=MODEL, prompt=["only one"], max_tokens=6),
        "completion_one_token_list": lambda: comp.create(model=MODEL, prompt=[[1, 2, 3]], max_tokens=6),
        "completion_echo_logprobs": lambda: comp.create(model=MODEL, prompt="x", max_tokens=3, logprobs=2, suffix="!", seed=3),
        "completion_128k": lambda: comp.create(model=MODEL, prompt="All work and no play. " * 5958, max_tokens=4),
        "completion_unicode": lambda: comp.create(model=MODEL, prompt=UNICODE, max_tokens=9, stop=["\u65e5"]),
    }


def main():
    out = HERE / "python"
    out.mkdir(exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="sk-test", max_retries=0)
    for name, call in calls(client).items():
        call()
        method, path, headers, body = Recorder.got.pop()
        (out / f"{name}.body").write_bytes(body)
        lines = ",\n  ".join(json.dumps(h) for h in headers)
        (out / f"{name}.json").write_text(
            f'{{"method": "{method}", "path": "{path}", {REFUSED.get(name, "")}"headers": [\n  {lines}]}}\n')
        print(f"{name}: {len(body)} bytes")


if __name__ == "__main__":
    sys.exit(main())
