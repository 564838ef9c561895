"""Routers from PyPI that are measured beside this one, in a virtual environment of their own: build/peers."""
import subprocess
import sys

from stage import ROOT, free_port

VENV = ROOT / "build/peers"
PEERS = {"sglang-router": "sglang-router==0.3.2", "vllm-router": "vllm-router==0.1.17"}


def install():
    """Those that are there, or can be installed."""
    if not (VENV / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    there = []
    for name, what in PEERS.items():
        done = subprocess.run([VENV / "bin/pip", "install", "-q", "--disable-pip-version-check", what], capture_output=True)
        if done.returncode == 0:
            there.append(name)
        else:
            print(f"{name} is left out: {what} cannot be installed")
    return there


def command(name, port, *more):
    return [VENV / "bin/python", "-m", name.replace("-", "_") + ".launch_router", "--host", "127.0.0.1", "--port", port,
            "--prometheus-port", free_port(), "--worker-startup-check-interval", 1, "--log-level", "error", *more]
