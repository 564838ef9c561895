"""Steps that change the configuration: a key of each kind, the list of engines, all engines of a role at once, a file that is wrong."""
import asyncio
import signal

from fleet import OF_POOL, OF_ROUTER
from procs import free_port

OF_ROUTER_DRAIN = float(OF_ROUTER["drain_timeout"].removesuffix("s"))
OF_CLIENTS = OF_ROUTER["client"]
# Keys that running workers follow, with values under which every request of load.py is still served.
LIVE = {
    "log_level": ("info", "debug"),
    "client": ({"tcp_user": OF_CLIENTS["tcp_user"]}, {**OF_CLIENTS, "max_inflight": 20}, {**OF_CLIENTS, "rate": 40, "burst": 60},
               {**OF_CLIENTS, "head_timeout": "5s", "body_timeout": "5s", "idle_timeout": "30s", "write_timeout": "20s"}),
    "limits": ({}, {"max_body": "8MiB", "max_head": "16KiB"}, {"max_connections": 1000}, {"max_fanout": 4}, {"max_buffered": "128MiB"},
               {"max_answer": "1MiB"}),
    "upstream": ({}, {"max_idle": 1}, {"idle_timeout": "1s"}),
    "health_interval": ("100ms", "200ms", "500ms"), "health_timeout": ("1s", "2s"), "stats_interval": ("300ms", "500ms", "1s"),
    "fall": (2, 3), "rise": (1, 2), "worker_watchdog": ("5s", "10s"), "drain_timeout": ("15s", "20s"), "reload_drain_timeout": ("0s", "60s"),
}
OF_POOLS = ({"retries": 0}, {"retries": 1}, {"queue_size": 5}, {"eject_failures": 2}, {"retry_budget": 50}, {"resume": False},
            {"decode_policy": "round_robin"}, {"decode_policy": "random"}, {"policy": "power_of_two"}, {"policy": "prefix"}, {"slow_start": "3s"},
            {"routing_threshold": 100})


async def put_in_force(storm, what, *notes):
    if storm.rng.random() < 0.2:
        await storm.tell("config", "diff")
    if storm.rng.random() < 0.2:
        await storm.tell("reload", "--dry-run")
    if storm.rng.random() < 0.5:
        storm.fleet.router.kill(signal.SIGHUP)
    else:
        await storm.tell("reload")
    storm.note(what, *notes)


async def reload_live(storm):
    """Running workers follow: no request and no connection ends by it."""
    keys = storm.rng.sample(sorted(LIVE), storm.rng.choice((1, 1, 3, len(LIVE))))
    changed = {k: storm.rng.choice(LIVE[k]) for k in keys}
    storm.fleet.router.change(**changed)
    await put_in_force(storm, "live keys", changed)


async def reload_pools(storm):
    """Keys of all pools, from the next request on; among them a time limit."""
    limits = dict(OF_POOL["timeouts"])
    which = storm.rng.choice(sorted(limits))
    limits[which] = f"{float(limits[which].removesuffix('s')) * storm.rng.choice((0.8, 1.5)):g}s"
    keys = storm.rng.choice((*OF_POOLS, {"timeouts": limits}, {"timeouts": limits}, {}))
    storm.fleet.router.change(pools=storm.fleet.pools(**keys))
    await put_in_force(storm, "keys of pools", keys)


async def reload_engines(storm):
    """Engines are added and removed; one of each role stays."""
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
    fleet.router.change(pools=fleet.pools())
    await put_in_force(storm, "list of engines", "without", *sorted(e.name for e in fleet.removed))


async def exchange(storm):
    """All engines of a role at once: the former ones serve until one of the others is up."""
    fleet = storm.fleet
    pool, role = storm.rng.choice(fleet.names), storm.rng.choice(("prefill", "decode"))
    before = [e for e in fleet.of(pool, role) if e not in fleet.removed]
    while len(fleet.of(pool, role)) < 2 * len(before):
        fleet.add(pool, role)
    after = [e for e in fleet.of(pool, role) if e not in before and e.up()]
    if not after or any(e.drained for e in fleet.of(pool, role)):
        return
    fleet.removed.update(fleet.of(pool, role))
    fleet.removed.difference_update(after)
    fleet.router.change(pools=fleet.pools())
    await put_in_force(storm, "all engines of a role", *sorted(e.name for e in before), "by", *sorted(e.name for e in after))


async def new_generation(storm):
    """Keys that workers are born with: how many there are, or where they listen."""
    router = storm.fleet.router
    usual = storm.fleet.config["listen"]
    changed = storm.rng.choice((
        {"workers": storm.rng.choice((2, 3, 4))}, {"listen": usual}, {"listen": [*usual, f"127.0.0.1:{free_port()}"]},
        {"client": {**OF_CLIENTS, "id_header": storm.rng.choice(("", "X-User"))}}))
    storm.clients.excused_until = storm.clock() + OF_ROUTER_DRAIN
    router.change(**changed)
    await put_in_force(storm, "new generation", changed)


async def wrong_file(storm):
    """A file that is wrong changes nothing."""
    router = storm.fleet.router
    router.write("pools: [")
    router.kill(signal.SIGHUP)
    await asyncio.sleep(0.05)
    router.write(router.config)
    storm.note("wrong configuration")
