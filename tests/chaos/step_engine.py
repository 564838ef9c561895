"""Steps that befall engines, and the wire to them."""
import asyncio
import signal

BEFORE_THE_ANSWER = ("fail", "status", "no_answer", "reset", "half_head", "garbage", "empty200", "slow", "close_keepalive", "vanish", "refuse")
IN_THE_ANSWER = ("stall", "reset_mid_stream", "truncate", "bad_chunk", "error_event")
REFUSALS = (400, 401, 403, 404)  # a wrong key, another model, a role that is not this engine's
OF_NOTICES = ("notice_none", "notice_twice", "notice_unknown", "notice_garbage")
MISBEHAVES = 10  # seconds from a fault that refuses requests until no client hears of it any more


async def fail_requests(storm):
    """Some requests of an engine go wrong."""
    e = storm.engine()
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
    kind = storm.rng.choice(kinds)
    more = {"count": storm.rng.choice((1, 1, 2, 3, 6))}
    if kind == "reset" and more["count"] > 1:
        kind = "reset_unacked"
    if kind == "status":
        more["status"] = storm.rng.choice((503, 429, 500))
    if kind in IN_THE_ANSWER:
        more["after_events"] = storm.rng.randrange(0, 12)
    if kind == "slow":
        more["delay_ms"] = storm.rng.choice((20, 50, 100))  # of each token: 250 come within a client's patience
    await e.ask("POST", "/sim/fault", {"kind": kind, **more})
    storm.note("fault " + kind, e.name, more)


async def for_a_while(storm, e, seconds, path, on, off, refuses=False):
    """Tells the engine `on`, and some seconds later `off`: as soon as its host is there, if the same process runs then."""
    life = e.starts

    def refused():
        if refuses:
            storm.clients.refused_until = storm.clock() + MISBEHAVES

    async def well():
        try:
            if e.starts == life and e.up():
                await e.ask("POST", path, off)
        except (OSError, asyncio.TimeoutError):
            storm.later(0.5, well)
        except AssertionError:
            pass  # the process has ended meanwhile
        refused()
    refused()
    storm.later(seconds, well)  # also if no answer to `on` comes
    await e.ask("POST", path, on)


async def misbehave(storm):
    """An engine answers, and what it answers is of no use: for seconds, not for some requests."""
    e = storm.engine()
    if e is None:
        return
    kinds = [{"kind": "slow", "factor": 10}, {"kind": "status", "status": 429}]
    kinds += [{"kind": "status", "status": status} for status in REFUSALS]
    if e.role == "prefill" and e.pool == "nixl":
        kinds += [{"kind": "null_kv"}, {"kind": "kv_unreachable"}, {"kind": "kv_unreachable"}]
    kind = storm.rng.choice(kinds)
    if e.role == "decode" and kind.get("status") in (400, 404):
        kind["kind"] = "refuse"  # by the engine itself, which then has its KV released; 401 and 403 come from before it
    await for_a_while(storm, e, storm.rng.uniform(1, 5), "/sim/fault", {**kind, "count": -1}, {"kind": "none"},
                      refuses=kind.get("status") in REFUSALS)
    storm.note(" ".join(str(v) for v in kind.values()) + " for a while", e.name)


async def shed(storm):
    """All engines of one role have no room, for up to a tenth of the run; some say for how long."""
    first = storm.engine()
    if first is None:
        return
    seconds, status = storm.lasting(2, storm.longest_shed()), storm.rng.choice((429, 503))
    says = {"Retry-After": "1"} if status == 503 or storm.rng.random() < 0.5 else {}
    fault = {"kind": "status", "status": status, "headers": says, "count": -1}
    for e in storm.fleet.engines:
        if (e.pool, e.role) == (first.pool, first.role) and e.up() and not e.stopped:
            await for_a_while(storm, e, seconds, "/sim/fault", fault, {"kind": "none"})
            storm.note("sheds", e.name, status, says, f"{seconds:.1f} s")


async def absurd_load(storm):
    e = storm.engine()
    if e is None:
        return
    figures = storm.rng.choice(({"waiting": 10**9}, {"waiting": 20, "fixed": True}))
    await for_a_while(storm, e, storm.rng.uniform(1, 5), "/sim/load", figures, {"waiting": 0})
    storm.note("absurd load", e.name, figures)


async def fail_probes(storm):
    e = storm.engine()
    if e is None:
        return
    await for_a_while(storm, e, storm.rng.uniform(0.3, 2), "/sim/health", {"status": 503}, {"status": 200})
    storm.note("health 503", e.name)


async def next_life(storm):
    """An engine restarts as something else, and later as what it was."""
    e = storm.engine()
    if e is None:
        return
    changed = {"model": "another-model"}
    if e.pool == "sglang" and storm.rng.random() < 0.6:
        changed = {"bootstrap-port": e.free_port(e.host)}
        changed.update({} if e.role == "prefill" else {"role": "prefill"})
    e.end(signal.SIGKILL)
    storm.clients.refused_until = storm.clock() + MISBEHAVES

    async def other():
        e.start(**changed)
        storm.later(storm.rng.uniform(1, 4), former)

    async def former():
        if e.up():
            e.end(signal.SIGKILL)
            e.start()
    storm.later(storm.rng.choice((0.1, 1)), other)
    storm.note("next life", e.name, changed)


async def stop_engine(storm):
    e, seconds = storm.engine(), storm.rng.uniform(0.1, 3)
    if e is None:
        return
    e.stop_for_now(True)

    async def go_on():
        e.stop_for_now(False)
    storm.later(seconds, go_on)
    storm.note("engine stopped", e.name, f"{seconds:.2f} s")


async def kill_engine(storm):
    e, seconds = storm.engine(), storm.rng.choice((0.2, 0.5, 2))
    if e is None:
        return
    e.end(signal.SIGKILL)

    async def again():
        e.start()
    storm.later(seconds, again)
    storm.note("engine killed", e.name, f"{seconds} s")


async def host_vanishes(storm):
    """The host at the other end of the wire is off for longer than timeouts.tcp_user and down_grace."""
    wire, seconds = storm.fleet.wire, storm.lasting(2, 8)
    if wire.cut or not wire.link(up=False):
        return

    async def again():
        wire.link(up=True)
    storm.later(seconds, again)
    storm.note("host vanished", f"{seconds:.2f} s", *(e.name for e in storm.fleet.engines if e.ns))


async def bad_wire(storm):
    how = storm.rng.choice(((1, 5, 10), (5, 2, 5), (0, 40, 20), (100, 0, 0), (20, 10, 10)))
    seconds = storm.rng.uniform(0.3, 1.5) if how[0] == 100 else storm.rng.uniform(1, 4)
    storm.fleet.wire.set(*how)

    async def good():
        storm.fleet.wire.set(0, 1, 0)
    storm.later(seconds, good)
    storm.note(f"{storm.fleet.wire.kind} {how[0]}% {how[1]}+{how[2]} ms", f"{seconds:.2f} s")
