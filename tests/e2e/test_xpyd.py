"""The router before engines nobody here wrote: xpyd-sim in its prefill and decode modes.  It knows no
kv_transfer_params, so this shows plain HTTP of another hand (uvicorn) and the answer without a handoff."""
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

from procs import SLOW, Process, free_port, wait
from raw import Client


@pytest.fixture(scope="module")
def xpyd():
    """(router, its world) with two foreign engines; they take seconds to start, so once for all."""
    from procs import World
    world = World()
    ports = [free_port(), free_port()]
    program = Path(sys.executable).parent / "xpyd-sim"
    for mode, port in zip(("prefill", "decode"), ports):
        world.others.append(Process([program, "serve", "--mode", mode, "--host", "127.0.0.1", "--port", port, "--model", "foreign",
                                     "--prefill-delay-ms", "1", "--decode-delay-per-token-ms", "1", "--kv-transfer-delay-ms", "1"],
                                    world.file(mode), world.dir, stdout=subprocess.DEVNULL))
    try:
        pool = world.pool([f"http://127.0.0.1:{ports[0]}"], [f"http://127.0.0.1:{ports[1]}"])
        del pool["models"]
        r = world.router(pool, wait_for="live")
        r.wait_for("ready", timeout=40)
        wait("the model", lambda: "foreign" in str(r.get("/v1/models").json()))
        yield r, ports
        world.finish()
    finally:
        world.close()


def sdk(r):
    return openai.OpenAI(base_url=r.base_url, api_key="none", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_chat(xpyd, stream):
    r, _ = xpyd
    answer = sdk(r).chat.completions.create(model="foreign", messages=[{"role": "user", "content": "hello"}], max_tokens=8,
                                            stream=stream)
    if stream:
        chunks = list(answer)
        assert chunks[-1].choices[0].finish_reason and len(chunks) > 2
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
    else:
        text = answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0
    assert text.strip()


@pytest.mark.parametrize("stream", [False, True])
def test_completion(xpyd, stream):
    r, _ = xpyd
    answer = sdk(r).completions.create(model="foreign", prompt="hello", max_tokens=8, stream=stream)
    text = "".join(c.choices[0].text for c in answer) if stream else answer.choices[0].text
    assert text.strip()


def test_an_engines_error_passes(xpyd):
    r, ports = xpyd
    body = {"model": "foreign", "messages": [], "max_tokens": -1}
    with Client(("127.0.0.1", ports[0])) as c:
        direct = c.post("/v1/chat/completions", body)
    through = r.post("/v1/chat/completions", body)
    assert through.status == direct.status or direct.status < 400


def test_their_idle_limit_loses_no_request(xpyd):
    """uvicorn closes idle connections at 5 s; ours are given up before that."""
    r, _ = xpyd
    for _ in range(2):
        assert sdk(r).completions.create(model="foreign", prompt="x", max_tokens=2).choices
        time.sleep(5.5)  # their limit is what is tested
    assert sdk(r).completions.create(model="foreign", prompt="x", max_tokens=2).choices
    assert r.metric("upstream_stale_total") == 0 and SLOW
