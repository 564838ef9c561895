"""The command line of production-stack's router moves over unchanged."""
import subprocess

import pytest

import expect
from procs import BIN, MODEL, Router, free_port, wait


def line(world, backends, labels, prefill="P", decode="D", models=None, extra=()):
    port = free_port()
    models = models or [MODEL] * len(backends)
    args = ["--host", "127.0.0.1", "--port", str(port), "--service-discovery", "static",
            "--static-backends", ",".join(backends), "--static-models", ",".join(models),
            "--static-model-labels", ",".join(labels), "--routing-logic", "disaggregated_prefill_orchestrated",
            "--prefill-model-labels", prefill, "--decode-model-labels", decode, *extra]
    r = Router(world, {}, wait_for=None, binary_args=args)
    world.routers.append(r)
    r.port = port
    return r


def test_orchestrated(world):
    p, d = world.engine("prefill", advertise_host="localhost.invalid"), world.engine("decode")
    r = line(world, [p.url, d.url], ["P", "D"])
    r.wait_for("ready")
    a = r.complete("hello", max_tokens=4)
    assert a.json()["choices"][0]["text"] == expect.text("hello", 4)
    assert d.last().json()["kv_transfer_params"]["remote_host"] == "127.0.0.1"


def test_labels_are_compared_whole(world):
    """`p` is part of `p-2` and the other way round: as substrings every engine would be both."""
    p, d = world.engine("prefill"), world.engine("decode")
    r = line(world, [p.url, d.url], ["p", "p-2"], prefill="p", decode="p-2")
    r.wait_for("ready")
    for _ in range(6):
        assert r.complete().status == 200
    assert len(p.requests()) == len(d.requests()) == 6


def test_label_lists(world):
    p, q, d = world.engine("prefill"), world.engine("prefill"), world.engine("decode")
    r = line(world, [p.url, q.url, d.url], ["a", "b", "c"], prefill="a,b", decode="c")
    r.wait_for("ready")
    wait("both prefill engines", lambda: r.metric("endpoint_up", role="prefill") == 2, 15)
    for _ in range(6):
        assert r.complete().status == 200
    assert p.requests() and q.requests()


ORCHESTRATED = ["--routing-logic", "disaggregated_prefill_orchestrated", "--prefill-model-labels", "a",
                "--decode-model-labels", "b"]
TWO = ["--static-backends", "http://127.0.0.1:1,http://127.0.0.1:2"]


@pytest.mark.parametrize("args, word", [
    ([*TWO, *ORCHESTRATED, "--static-models", "m,m"], "static-model-labels"),
    ([*TWO, *ORCHESTRATED, "--static-models", "m", "--static-model-labels", "a,b"], "static-models"),
    ([*TWO, *ORCHESTRATED, "--static-models", "m,m", "--static-model-labels", "a"], "static-model-labels"),
    ([*TWO, *ORCHESTRATED, "--static-models", "m,m", "--static-model-labels", "a,b", "--port", "x"], "port"),
    (["--static-backends", "nonsense,b", *ORCHESTRATED, "--static-models", "m,m", "--static-model-labels", "a,b"], "nonsense"),
    (["--static-backends", "http://127.0.0.1:1", "--routing-logic", "roundrobin"], "routing-logic"),
    ([*TWO], "routing-logic"), (["--service-discovery", "k8s"], "service-discovery"),
    (["--static-backends"], "static-backends"), (["--no-such-flag"], "no-such-flag"),
])
def test_wrong_command_lines_are_explained(args, word):
    done = subprocess.run([BIN / "pdrouter", *args], capture_output=True, text=True, timeout=10, check=False)
    assert done.returncode != 0 and word in done.stderr, done.stderr


def test_host_and_port_beside_a_file(world):
    p, d = world.engine("prefill"), world.engine("decode")
    port = free_port()
    r = world.router(world.pool([p], [d]), wait_for=None, args=["--host", "127.0.0.1", "--port", str(port)])
    r.port = port
    r.wait_for("ready")
