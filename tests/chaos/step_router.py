"""Steps that befall the router's own processes."""
import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

from fleet import OF_ROUTER, peer_ports
from scribbler import Stores
from segment import Segment

STORES = 400  # a second


async def kill_worker(storm):
    pid = await storm.process("worker")
    if pid is not None:
        await murder(storm, pid)


async def murder(storm, pid):
    """Stopped first, so that whose connections it has is known: those and no others may be lost."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + 1
        while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text() and time.monotonic() < end:
            await asyncio.sleep(0.002)
        ports = peer_ports(pid, storm.fleet.router.port)
        storm.killed[pid] = storm.clock()
        storm.dead.add(pid)
        storm.clients.worker_killed(pid, ports)
        os.kill(pid, signal.SIGKILL)
        storm.note("worker killed", pid, f"{len(ports)} connections")


async def keep_killing(storm):
    """KILL_WORKERS: two workers every so many seconds, beside the plan."""
    while storm.clock() + storm.kill_workers < storm.until:
        await asyncio.sleep(storm.kill_workers)
        pids = (await storm.fleet.processes()).get("worker", [])
        for pid in storm.rng.sample(pids, min(2, len(pids))):
            await murder(storm, pid)


async def hold(storm, kind, most):
    pid, seconds = await storm.process(kind), storm.rng.uniform(0.1, most)
    if pid is None:
        return
    os.kill(pid, signal.SIGSTOP)

    async def go_on():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    storm.later(seconds, go_on)
    storm.note(kind + " stopped", pid, f"{seconds:.2f} s")


async def stop_worker(storm):
    return await hold(storm, "worker", 2)


async def stop_notifier(storm):
    return await hold(storm, "notifier", 1)


async def kill_notifier(storm):
    pid = await storm.process("notifier")
    if pid is None:
        return
    storm.dead.add(pid)
    os.kill(pid, signal.SIGKILL)
    storm.note("notifier killed", pid)


async def scribble(storm):
    """Stray stores at random places of the shared memory, as those of a process gone mad.  No process ends by them, and no request."""
    seg, seconds = Segment(storm.fleet.router, storm.fleet.layout), storm.lasting(0.2, 2)
    began, stores = storm.clock(), 0
    with contextlib.closing(seg):
        places = Stores(seg, storm.rng.random())
        while storm.clock() < began + seconds:
            await asyncio.sleep(1 / STORES)
            places.one()
            stores += 1
    storm.note("scribble", f"{stores} stores", f"{seconds:.2f} s")


async def upgrade(storm):
    """The same program in a new instance.  What is in flight stays in the older one, whose lines are in the same log."""
    router = storm.fleet.router
    storm.clients.excused_until = storm.clock() + float(OF_ROUTER["drain_timeout"].removesuffix("s"))
    if await storm.tell("upgrade"):
        _, out = await storm.fleet.ctl("status", "--json")
        router.follow(json.loads(out)["pid"])
        storm.note("upgrade", "pid", router.pid)
