"""What befalls the fleet, at random from the seed; every blow is written down with its time."""
import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter

from fleet import OF_POOL, OF_ROUTER, peer_ports
from procs import free_port

BEFORE_THE_ANSWER = ("fail", "status", "no_answer", "reset", "half_head", "garbage", "empty200", "slow", "close_keepalive", "vanish", "refuse")
IN_THE_ANSWER = ("stall", "reset_mid_stream", "truncate", "bad_chunk", "error_event")
REFUSALS = (400, 401, 403, 404)  # a wrong key, another model, a role that is not this engine's
OF_NOTICES = ("notice_none", "notice_twice", "notice_unknown", "notice_garbage")


class Storm:
    def __init__(self, fleet, clients, seed, clock, every, kill_workers=0):
        self.fleet, self.clients, self.clock, self.every, self.kill_workers = fleet, clients, clock, every, kill_workers
        self.rng, self.log, self.counts, self.tasks = random.Random(f"{seed} faults"), [], Counter(), set()
        self.killed = {}  # pid of a worker: when
        self.dead = set()  # all we have killed
        self.missing = set()  # what this router or machine cannot
        self.table = (
            (14, self.sim_fault), (4, self.misbehave), (1, self.absurd_load), (2, self.next_life), (1, self.drain_and_stop),
            (4, self.stop_engine), (3, self.kill_engine), (2, self.stop_worker), (1, self.stop_notifier), (2, self.bad_wire),
            (2, self.sick_health), (2, self.drain), (2, self.reload), (1, self.kill_notifier), (0.3, self.new_generation), (1, self.garbage_reload),
            *(() if kill_workers else ((1, self.kill_one_worker),)))

    def note(self, what, *whom):
        self.counts[what] += 1
        self.log.append((round(self.clock(), 3), what, *map(str, whom)))

    def later(self, seconds, what):
        """Runs a coroutine function after a while; all are awaited when the storm is over."""
        async def run():
            await asyncio.sleep(seconds)
            await what()
        task = asyncio.ensure_future(run())
        self.tasks.add(task)
        task.add_done_callback(self.over)

    def over(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.append((round(self.clock(), 3), "a blow failed", repr(task.exception())))

    async def run(self, until):
        killer = asyncio.ensure_future(self.keep_killing(until)) if self.kill_workers else None
        while self.clock() < until:
            await asyncio.sleep(min(self.rng.expovariate(1 / self.every), 2))
            blow = self.rng.choices([b for _, b in self.table], [w for w, _ in self.table])[0]
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, AssertionError):
                await asyncio.wait_for(blow(), 45)
        if killer is not None:
            await killer
        while self.tasks:
            await asyncio.wait(list(self.tasks))

    # --- engines ---
    def engine(self, **where):
        found = [e for e in self.fleet.engines if e.up() and not e.stopped and all(getattr(e, k) == v for k, v in where.items())]
        return self.rng.choice(found) if found else None

    async def sim_fault(self):
        e = self.engine()
        if e is None:
            return
        # whose blocks are held at a prefill engine after half an answer nobody can know: that ends by its timeout alone
        kinds = BEFORE_THE_ANSWER
        if e.role == "decode" or e.pool in ("sglang", "shared_storage"):
            kinds += IN_THE_ANSWER
        if e.role == "prefill" and e.pool == "nixl":
            kinds += ("null_kv",)
        if e.role == "prefill" and e.pool == "lmcache":
            kinds += OF_NOTICES + ("no_push",)
        kind = self.rng.choice(kinds)
        more = {"count": self.rng.choice((1, 1, 2, 3, 6))}
        if kind == "reset" and more["count"] > 1:
            kind = "reset_unacked"
        if kind == "status":
            more["status"] = self.rng.choice((503, 429, 500))
        if kind in IN_THE_ANSWER:
            more["after_events"] = self.rng.randrange(0, 12)
        if kind == "slow":
            more["delay_ms"] = self.rng.choice((20, 50, 100))  # of each token: 250 come within a client's patience
        await e.ask("POST", "/sim/fault", {"kind": kind, **more})
        self.note("fault " + kind, e.name, more)

    async def for_a_while(self, e, path, on, off):
        """Tells the engine `on`, and some seconds later `off`."""
        await e.ask("POST", path, on)

        async def well():
            with contextlib.suppress(OSError, asyncio.TimeoutError, AssertionError):
                await e.ask("POST", path, off)
        self.later(self.rng.uniform(1, 5), well)

    async def misbehave(self):
        """An engine answers, and what it answers is of no use: for seconds, not for some requests."""
        e = self.engine()
        if e is None:
            return
        kinds = [{"kind": "slow", "factor": 10}, {"kind": "status", "status": 429}]
        kinds += [{"kind": "status", "status": status} for status in REFUSALS]
        if e.role == "prefill" and e.pool == "nixl":
            kinds += [{"kind": "null_kv"}, {"kind": "kv_unreachable"}, {"kind": "kv_unreachable"}]
        fault = self.rng.choice(kinds)
        if fault.get("status") in REFUSALS:
            self.clients.refused_until = self.clock() + MISBEHAVES
        if e.role == "decode" and fault.get("status") in (400, 404):
            fault["kind"] = "refuse"  # by the engine itself, which then has its KV released; 401 and 403 come from before it
        await self.for_a_while(e, "/sim/fault", {**fault, "count": -1}, {"kind": "none"})
        self.note(" ".join(str(v) for v in fault.values()) + " for a while", e.name)

    async def absurd_load(self):
        e = self.engine()
        if e is None:
            return
        figures = self.rng.choice(({"waiting": 10**9}, {"waiting": 20, "fixed": True}))
        await self.for_a_while(e, "/sim/load", figures, {"waiting": 0})
        self.note("absurd load", e.name, figures)

    async def next_life(self):
        """An engine restarts as something else, and later as what it was."""
        e = self.engine()
        if e is None:
            return
        changed = {"model": "another-model"}
        if e.pool == "sglang" and self.rng.random() < 0.6:
            changed = {"bootstrap-port": free_port(self.fleet.wire.here)}
            changed.update({} if e.role == "prefill" else {"role": "prefill"})
        e.kill(signal.SIGKILL)
        e.p.wait()
        self.note("next life", e.name, changed)
        self.clients.refused_until = self.clock() + MISBEHAVES

        async def other():
            e.start(**changed)
            self.later(self.rng.uniform(1, 4), former)

        async def former():
            if e.up():
                e.kill(signal.SIGKILL)
                e.p.wait()
                e.start()
        self.later(self.rng.choice((0.1, 1)), other)

    async def drain_and_stop(self):
        """As an operator replaces an engine."""
        e = self.engine(drained=False)
        if e is None or e in self.fleet.removed:
            return
        url, e.drained = e.entry()["url"], True

        async def replace():
            if await self.tell("drain", url, "--wait", "--timeout", "15") and e.up() and not e.stopped:
                self.note("drained and stopped", e.name)
                e.kill(signal.SIGTERM)
                e.p.wait()
                e.start()
            await self.tell("undrain", url)
            e.drained = False
        self.later(0, replace)

    async def stop_engine(self):
        e, seconds = self.engine(), self.rng.uniform(0.1, 3)
        if e is None:
            return
        e.stop_for_now(True)
        self.note("engine stopped", e.name, f"{seconds:.2f} s")

        async def go_on():
            e.stop_for_now(False)
        self.later(seconds, go_on)

    async def kill_engine(self):
        e, seconds = self.engine(), self.rng.choice((0.2, 0.5, 2))
        if e is None:
            return
        e.kill(signal.SIGKILL)
        e.p.wait()
        self.note("engine killed", e.name, f"{seconds} s")

        async def again():
            e.start()
        self.later(seconds, again)

    async def sick_health(self):
        e = self.engine()
        if e is None:
            return
        await e.ask("POST", "/sim/health", {"status": 503})
        self.note("health 503", e.name)

        async def well():
            with contextlib.suppress(OSError, asyncio.TimeoutError, AssertionError):
                await e.ask("POST", "/sim/health", {"status": 200})
        self.later(self.rng.uniform(0.3, 2), well)

    async def bad_wire(self):
        how = self.rng.choice(((1, 5, 10), (5, 2, 5), (0, 40, 20), (100, 0, 0), (20, 10, 10)))
        seconds = self.rng.uniform(0.3, 1.5) if how[0] == 100 else self.rng.uniform(1, 4)
        self.fleet.wire.set(*how)
        self.note(f"{self.fleet.wire.kind} {how[0]}% {how[1]}+{how[2]} ms", f"{seconds:.2f} s")

        async def good():
            self.fleet.wire.set(0, 1, 0)
        self.later(seconds, good)

    # --- the router's processes ---
    async def one_of(self, kind):
        pids = (await self.fleet.processes()).get(kind)
        return self.rng.choice(pids) if pids else None

    async def kill_one_worker(self):
        pid = await self.one_of("worker")
        if pid is not None:
            await self.murder(pid)

    async def murder(self, pid):
        """Stopped first, so that whose connections it has is known: those and no others may be lost."""
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGSTOP)
            end = time.monotonic() + 1
            while "\nState:\tT" not in open(f"/proc/{pid}/status").read() and time.monotonic() < end:
                await asyncio.sleep(0.002)
            ports = peer_ports(pid, self.fleet.router.port)
            self.killed[pid] = self.clock()
            self.dead.add(pid)
            self.clients.worker_killed(pid, ports)
            os.kill(pid, signal.SIGKILL)
            self.note("worker killed", pid, f"{len(ports)} connections")

    async def keep_killing(self, until):
        while self.clock() + self.kill_workers < until:
            await asyncio.sleep(self.kill_workers)
            pids = (await self.fleet.processes()).get("worker", [])
            for pid in self.rng.sample(pids, min(2, len(pids))):
                await self.murder(pid)

    async def hold(self, kind, most):
        pid, seconds = await self.one_of(kind), self.rng.uniform(0.1, most)
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)
        self.note(kind + " stopped", pid, f"{seconds:.2f} s")

        async def go_on():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
        self.later(seconds, go_on)

    async def stop_worker(self):
        await self.hold("worker", 2)

    async def stop_notifier(self):
        await self.hold("notifier", 1)

    async def kill_notifier(self):
        pid = await self.one_of("notifier")
        if pid is not None:
            self.dead.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.note("notifier killed", pid)

    # --- configuration ---
    async def reload(self):
        """Endpoints come and go, keys change."""
        keys = self.rng.choice(({}, {"retries": self.rng.randrange(3)}, {"queue_size": self.rng.choice((5, 40))}, {"eject_failures": self.rng.choice((2, 5))},
                                {"decode_policy": self.rng.choice(("round_robin", "random", "least_loaded", "power_of_two"))},
                                {"timeouts": {**OF_POOL["timeouts"], "decode": "4s"}}))
        for name in self.fleet.names:
            for role in ("prefill", "decode"):
                group = self.fleet.of(name, role)
                if self.rng.random() < 0.25:
                    out = self.rng.choice(group)
                    if out in self.fleet.removed:
                        self.fleet.removed.discard(out)
                    elif len([e for e in group if e not in self.fleet.removed]) > 1:
                        self.fleet.removed.add(out)
        self.fleet.router.change(pools=self.fleet.pools(**keys))
        if self.rng.random() < 0.5:
            self.fleet.router.kill(signal.SIGHUP)
        else:
            await self.tell("reload")
        self.note("reload", keys, "without", *sorted(e.name for e in self.fleet.removed))

    async def new_generation(self):
        workers = self.rng.choice((2, 3, 4))
        self.clients.excused_until = self.clock() + OF_ROUTER_DRAIN
        self.fleet.router.change(workers=workers)
        await self.tell("reload")
        self.note("new generation", workers)

    async def garbage_reload(self):
        """A file that is wrong changes nothing."""
        self.fleet.router.write("pools: [")
        self.fleet.router.kill(signal.SIGHUP)
        await asyncio.sleep(0.05)
        self.fleet.router.write(self.fleet.router.config)
        self.note("wrong configuration")

    async def drain(self):
        e = self.engine(drained=False)
        if e is None or e in self.fleet.removed or "pdctl drain" in self.missing:
            return
        url, e.drained = e.entry()["url"], True
        if not await self.tell("drain", url):
            e.drained = False
            return
        self.note("drained", e.name)

        async def back():
            await self.tell("undrain", url)
            e.drained = False
        self.later(self.rng.uniform(0.3, 3), back)

    async def tell(self, *args):
        code, out = await self.fleet.ctl(*args)
        if code == 2:
            self.missing.add("pdctl " + args[0])
        elif code != 0:
            self.log.append((round(self.clock(), 3), "pdctl says no", *args, out.strip()[:200]))
        return code == 0


MISBEHAVES = 10  # seconds from a fault that refuses requests until no client hears of it any more
OF_ROUTER_DRAIN = float(OF_ROUTER["drain_timeout"].removesuffix("s"))
