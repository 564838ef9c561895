"""A live router's shared memory, looked at and written from outside: for what no request can bring about.
Where its parts lie is what a debug log says at the start (log_level: debug)."""
import contextlib
import os
import re
import signal
import struct
from pathlib import Path

from procs import wait

FREE, ARMED, READY = range(3)  # of a flag's word, shm/flags.c: gen:48 | left:8 | state:8


@contextlib.contextmanager
def still_worker(r):
    """The slot of a worker that stands still, so that it repairs nothing; it is killed at the end."""
    slot, pid = map(int, re.search(r"^worker slot=(\d+) pid=(\d+)", r.ctl("workers").stdout, re.M).groups())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield slot
    finally:
        if pid in r.children():
            r.murder(pid)
            wait("its successor", lambda: len(r.children()) > 1 and pid not in r.children())


def layout(r):
    """Where the parts lie, and how many bytes there are: the same in each instance that has the same sizes."""
    return {x["part"]: x["offset"] for x in r.lines("shared memory part")}, r.lines("shared memory")[0]["bytes"]


class Segment:
    def __init__(self, r, known=None):
        """`known`: layout(r), for one whose log is long."""
        maps = (Path("/proc") / str(r.pid) / "maps").read_text()
        self.base = int(re.search(r"^([0-9a-f]+)-.*memfd:pdrouter", maps, re.M)[1], 16)
        self.parts, self.bytes = known or layout(r)
        self.flags_per_worker = r.config["shared_memory"]["flags_per_worker"]
        self.fd = os.open(f"/proc/{r.pid}/mem", os.O_RDWR)

    def close(self):
        os.close(self.fd)

    def read(self, at, fmt):
        return struct.unpack(fmt, os.pread(self.fd, struct.calcsize(fmt), self.base + at))

    def write(self, at, fmt, *values):
        os.pwrite(self.fd, struct.pack(fmt, *values), self.base + at)

    def flag(self, worker, slot):
        return Flag(self, worker, slot)


class Flag:
    """One completion flag, as its worker would use it."""

    def __init__(self, seg, worker, slot):
        self.seg, self.worker, self.slot = seg, worker, slot
        self.at = seg.parts["flags"] + (worker * seg.flags_per_worker + slot) * 16

    @property
    def word(self):
        return self.seg.read(self.at, "=Q")[0]

    @property
    def gen(self):
        return self.word >> 16

    @property
    def left(self):
        return self.word >> 8 & 0xff

    @property
    def state(self):
        return self.word & 0xff

    def arm(self, notices):
        """Returns the id that engines are told."""
        gen, nonce = self.gen + 1, int.from_bytes(os.urandom(8), "big")
        self.seg.write(self.at + 8, "=Q", nonce)
        self.seg.write(self.at, "=Q", gen << 16 | notices << 8 | ARMED)
        return f"{self.worker:02x}-{self.slot:04x}-{gen:012x}-{nonce:016x}"

    def free(self):
        self.seg.write(self.at, "=Q", self.gen << 16 | FREE)
