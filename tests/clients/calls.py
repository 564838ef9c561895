"""Runs the calls of one library: `of_NAME.py URL` prints as JSON, by name, what each call returns or raises.  Ids and times are
left out: they differ from call to call."""
import json
import sys

MODEL, KEY = "sim-model", "sk-test"
ASK = [{"role": "user", "content": "What is 日本語?"}]
CALLS = {}
URL = sys.argv[1]
V1 = URL + "/v1"
VARIES = ("id", "created", "created_at", "permission", "response_id", "previous_response_id", "completed_at")


def call(fn):
    CALLS[fn.__name__] = fn
    return fn


def plain(obj):
    """Without what differs from call to call."""
    if hasattr(obj, "model_dump"):
        obj = obj.model_dump()
    if isinstance(obj, dict):
        return {k: plain(v) for k, v in obj.items() if k not in VARIES}
    return [plain(x) for x in obj] if isinstance(obj, (list, tuple)) else obj


def outcome(fn):
    try:
        return {"returns": fn()}
    except Exception as e:  # what a library raises is what is compared
        return {"raises": type(e).__name__, "status": getattr(e, "status_code", None), "body": plain(getattr(e, "body", None)), "text": str(e)}


def run():
    json.dump({name: outcome(fn) for name, fn in CALLS.items()}, sys.stdout, default=str)
