#!/usr/bin/env python3
"""The check itself, without a network: fixture/ has sources in the manner of vLLM and SGLang.  Each row is a command line or a
variable, and what must be said of it ("" is nothing)."""
import os
import sys

from check import Engine, commands, unquoted
from wheel import Folder, number

TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_port":"21001","kv_connector_extra_config":{"backends":[]}}'
VLLM = [
    ("--host 0.0.0.0 --port 8100 --served-model-name a b --block-size 32 -bs 16 --kv-cache-dtype fp8 --quiet --middleware []", ""),
    ("--no-enable-prefix-caching --origins [1] --kv-transfer-config " + TRANSFER, ""),
    ("--prot 8100", "unrecognized arguments: --prot 8100"),
    ("--served-model a", "unrecognized arguments: --served-model a"),  # no abbreviations: a later version may have two such flags
    ("--limit 3", "unrecognized arguments"),
    ("--port", "argument --port: expected one argument"),
    ("--port http", "argument --port: invalid int value"),
    ("--quiet yes extra", "unrecognized arguments"),
    ("--block-size 48", "invalid choice: 48"),
    ("--kv-cache-dtype fp9", "invalid choice: 'fp9'"),
    ("--kv-transfer-config {", "argument --kv-transfer-config: invalid parse value"),
    ("--kv-transfer-config " + TRANSFER.replace("kv_role", "kv_rule"), "KVTransferConfig has no field kv_rule"),
    ("--kv-transfer-config " + TRANSFER.replace("kv_both", "kv_none"), "KVTransferConfig.kv_role cannot be 'kv_none'"),
    ("--kv-transfer-config " + TRANSFER.replace("21001", "http"), "KVTransferConfig.kv_port cannot be 'http'"),
    ("--kv-transfer-config " + TRANSFER.replace("backends", "backend"), "no key backend in"),
    ("--kv-transfer-config " + TRANSFER.replace("Nixl", "Nixxl"), "no connector is named NixxlConnector"),
]
SGLANG = [
    ("--model-path m --tp-size 2 --disaggregation-mode decode --enable-metrics --devices 0 1 --sampling-backend flashinfer", ""),
    ("--model m --tensor-parallel-size 2 --nnodes 2", ""),
    ("--model m --nnodes two", "argument --nnodes: invalid int value: 'two'"),
    ("--tp-size 2", "the following arguments are required: --model-path"),
    ("--model m --internal 1", "unrecognized arguments"),
    ("--model m --rank 1", "unrecognized arguments"),
    ("--model m --devices", "argument --devices: expected at least one argument"),
    ("--model m --disaggregation-mode prefil", "invalid choice: 'prefil'"),
    ("--model m --sampling-backend torch", "invalid choice: 'torch'"),
]
VARIABLES = [
    ("vllm", "VLLM_NIXL_SIDE_CHANNEL_PORT", ""), ("vllm", "CUDA_VISIBLE_DEVICES", ""), ("sglang", "SGLANG_HEALTH_CHECK_TIMEOUT", ""),
    ("vllm", "VLLM_NIXL_SIDE_CHANEL_PORT", "no variable VLLM_NIXL_SIDE_CHANEL_PORT"),
    ("sglang", "SGLANG_NONE", "no variable SGLANG_NONE"), ("vllm", "CUDA_DEVICES", "nobody knows the variable CUDA_DEVICES"),
]


def main():
    home = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixture")
    engines = {kind: Engine(Folder(kind, home), []) for kind in ("vllm", "sglang")}
    rows = [("vllm", ["vllm", "serve", "model", *line.split()], [], said) for line, said in VLLM]
    rows += [("sglang", ["python", "-m", "sglang.launch_server", *line.split()], [], said) for line, said in SGLANG]
    rows += [(kind, {"vllm": ["vllm", "serve"], "sglang": ["sglang.launch_server", "--model", "m"]}[kind], [name], said)
             for kind, name, said in VARIABLES]
    bad = 0
    for kind, command, env, wanted in rows:
        engines[kind].wrong = []
        engines[kind].check("", command, env)
        said = "; ".join(engines[kind].wrong)
        if (wanted == "") != (said == "") or wanted not in said:
            bad += 1
            print(f"{kind} {command} {env}: {said!r} was said, {wanted!r} expected")
    assert [e.arguments.unclear for e in engines.values()] == [["--computed: computed()"], []]
    text = "# A_B=1 \\\n  vllm serve m --x '{\"a\":1,\n   \"b\":2}'\n# vllm serve n\n"
    assert list(commands(text)) == [(["vllm", "serve", "m", "--x", '{"a":1,\n   "b":2}'], ["A_B"]), (["vllm", "serve", "n"], [])]
    assert unquoted(r'"a" "b \"c\" \\ $$d %%"') == ["a", r'b "c" \ $d %']
    assert number("0.4.10.post2") > number("0.4.9") == (0, 4, 9)
    print(f"{len(rows) - bad} passed, {bad} failed")
    return bad != 0


sys.exit(main())
