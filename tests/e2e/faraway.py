"""A host that can vanish: a network namespace behind a veth.  Its link goes down without a FIN or an RST, as when a host is switched
off, and comes up again.  Sockets that the test makes `there` belong to that host."""
import ctypes
import random
import subprocess
from contextlib import contextmanager

import pytest

from procs import die_with_us

CLONE_NEWNET = 0x40000000


def enter(namespace):
    """This thread.  os.setns() is of Python 3.12."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True)


class Host:
    """`here` is our address on the wire, `there` the host's.  The namespace ends with its process, and the devices with it."""

    def __init__(self):
        self.p = subprocess.Popen(["unshare", "-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 3600"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, preexec_fn=die_with_us)
        if self.p.stdout.readline() != b"up\n":
            why = self.p.stderr.read().decode().strip()
            self.close()
            pytest.skip(f"no network namespace: {why}")
        net = f"10.{random.randrange(100, 200)}.{random.randrange(1, 250)}"
        self.here, self.there, self.device = f"{net}.1", f"{net}.2", f"pdv{self.p.pid}"
        try:
            run("ip", "link", "add", self.device, "type", "veth", "peer", "name", "pdv", "netns", str(self.p.pid))
            run("ip", "addr", "add", f"{self.here}/24", "dev", self.device)
            run("ip", "link", "set", self.device, "up")
            self.inside("ip", "addr", "add", f"{self.there}/24", "dev", "pdv")
            self.inside("ip", "link", "set", "pdv", "up")
        except (OSError, subprocess.CalledProcessError) as e:
            self.close()
            pytest.skip(f"no veth: {getattr(e, 'stderr', '') or e}")

    def inside(self, *words):
        return run("nsenter", f"--net=/proc/{self.p.pid}/ns/net", *words)

    @contextmanager
    def sockets(self):
        """What this thread makes meanwhile is the host's."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.p.pid}/ns/net") as theirs:
            enter(theirs)
            try:
                yield
            finally:
                enter(ours)

    def vanish(self):
        self.inside("ip", "link", "set", "pdv", "down")

    def come_back(self):
        self.inside("ip", "link", "set", "pdv", "up")

    def close(self):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()
        self.p.stderr.close()
