"""Steps that an operator takes: the configuration changes, engines are drained."""
import asyncio
import json
import signal

from fleet import OF_POOL, OF_ROUTER

OF_ROUTER_DRAIN = float(OF_ROUTER["drain_timeout"].removesuffix("s"))


async def reload(storm):
    """Endpoints come and go, keys change."""
    keys = storm.rng.choice(({}, {"retries": storm.rng.randrange(3)}, {"queue_size": storm.rng.choice((5, 40))}, {"eject_failures": storm.rng.choice((2, 5))},
                             {"decode_policy": storm.rng.choice(("round_robin", "random", "least_loaded", "power_of_two"))},
                             {"timeouts": {**OF_POOL["timeouts"], "stream_idle": "4s", "whole_answer": "4s"}}))
    fleet = storm.fleet
    for name in fleet.names:
        for role in ("prefill", "decode"):
            group = fleet.of(name, role)
            if storm.rng.random() < 0.25:
                out = storm.rng.choice(group)
                if out in fleet.removed:
                    fleet.removed.discard(out)
                elif len([e for e in group if e not in fleet.removed]) > 1:
                    fleet.removed.add(out)
    fleet.router.change(pools=fleet.pools(**keys))
    if storm.rng.random() < 0.5:
        fleet.router.kill(signal.SIGHUP)
    else:
        await storm.tell("reload")
    storm.note("reload", keys, "without", *sorted(e.name for e in fleet.removed))


async def new_generation(storm):
    workers = storm.rng.choice((2, 3, 4))
    storm.clients.excused_until = storm.clock() + OF_ROUTER_DRAIN
    storm.fleet.router.change(workers=workers)
    await storm.tell("reload")
    storm.note("new generation", workers)


async def upgrade(storm):
    """The same program in a new instance.  What is in flight stays in the older one, whose lines are in the same log."""
    router = storm.fleet.router
    storm.clients.excused_until = storm.clock() + OF_ROUTER_DRAIN
    if await storm.tell("upgrade"):
        _, out = await storm.fleet.ctl("status", "--json")
        router.follow(json.loads(out)["pid"])
        storm.note("upgrade", "pid", router.pid)


async def wrong_file(storm):
    """A file that is wrong changes nothing."""
    router = storm.fleet.router
    router.write("pools: [")
    router.kill(signal.SIGHUP)
    await asyncio.sleep(0.05)
    router.write(router.config)
    storm.note("wrong configuration")


async def drain(storm):
    e = storm.engine(drained=False)
    if e is None or e in storm.fleet.removed:
        return
    url, e.drained = e.entry()["url"], True
    if not await storm.tell("drain", url):
        e.drained = False
        return

    async def back():
        await storm.tell("undrain", url)
        e.drained = False
    storm.later(storm.rng.uniform(0.3, 3), back)
    storm.note("drained", e.name)


async def drain_and_stop(storm):
    """As an operator replaces an engine."""
    e = storm.engine(drained=False)
    if e is None or e in storm.fleet.removed:
        return
    url, e.drained = e.entry()["url"], True

    async def replace():
        if await storm.tell("drain", url, "--wait", "--timeout", "15") and e.up() and not e.stopped:
            storm.note("drained and stopped", e.name)
            e.end(signal.SIGTERM)
            e.start()
        await storm.tell("undrain", url)
        e.drained = False
    storm.later(0, replace)
    storm.note("drained to be stopped", e.name)
