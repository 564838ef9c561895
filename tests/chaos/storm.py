"""The storm: takes one step of the plan after the other, at random from the seed, and writes each down with its time."""
import asyncio
import random
from collections import Counter

import step_router
from plan import PLAN


def chosen(only, without):
    """The plan's steps with these names, or all but those; a few are to be named.  An unknown name is a mistake."""
    names = {step.run.__name__ for step in PLAN}
    if unknown := {*only, *without} - names:
        raise SystemExit(f"no such step: {' '.join(sorted(unknown))}; there are: {' '.join(sorted(names))}")
    return [step for step in PLAN if step.run.__name__ not in without and (step.run.__name__ in only if only else not step.asked)]


class Storm:
    """What steps use.  A step is a function `async def step(storm)` that notes what it did; it notes nothing if it found nobody to do it to."""

    def __init__(self, fleet, clients, seed, clock, every, kill_workers=0, only=(), without=()):
        self.fleet, self.clients, self.clock, self.every, self.kill_workers = fleet, clients, clock, every, kill_workers
        self.plan, self.until = chosen(only, without), 0
        self.rng, self.log, self.counts, self.tasks = random.Random(f"{seed} faults"), [], Counter(), set()
        self.killed = {}  # pid of a worker: when
        self.dead = set()  # all we have killed
        self.wrong = []  # what steps have found

    # --- for steps ---
    def note(self, what, *whom):
        """Counts and logs what befell whom.  The ledger excuses by these lines, so an engine is named by its name alone."""
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
            self.log.append((round(self.clock(), 3), "a step failed", repr(task.exception())))

    def longest_shed(self):
        """Seconds for which all engines of a role may have no room."""
        return max(5, self.until / 10)

    def lasting(self, low, high):
        """Seconds that a step may last: at random, and no longer than the storm, so that a short run has long steps too."""
        return max(0.1, min(self.rng.uniform(low, high), self.until - self.clock()))

    def engine(self, **where):
        """One that runs, or None; `where`: attributes it must have."""
        found = [e for e in self.fleet.engines if e.up() and not e.stopped and all(getattr(e, k) == v for k, v in where.items())]
        return self.rng.choice(found) if found else None

    async def process(self, kind):
        pids = (await self.fleet.processes()).get(kind)
        return self.rng.choice(pids) if pids else None

    async def tell(self, *args):
        """pdctl; whether it has done what it was told."""
        code, out = await self.fleet.ctl(*args)
        if code != 0:
            self.log.append((round(self.clock(), 3), "pdctl says no", *args, out.strip()[:200]))
        return code == 0

    # --- the whole of it ---
    async def take(self, step):
        """What befalls an engine may find it in trouble already: then the step fails, which is no finding."""
        try:
            await asyncio.wait_for(step.run(self), 45)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, AssertionError) as e:
            self.log.append((round(self.clock(), 3), "a step failed", step.run.__name__, repr(e)))

    async def run(self, until):
        """Each step once, in random order; then by their weights."""
        self.until = until
        killer = asyncio.ensure_future(step_router.keep_killing(self)) if self.kill_workers else None
        first = self.rng.sample(self.plan, len(self.plan))
        while self.clock() < until:
            await asyncio.sleep(min(self.rng.expovariate(1 / self.every), 2))
            await self.take(first.pop() if first else self.rng.choices(self.plan, [s.weight for s in self.plan])[0])
        if killer is not None:
            await killer
        while self.tasks:
            await asyncio.wait(list(self.tasks))
