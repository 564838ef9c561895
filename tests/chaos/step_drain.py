"""Steps that an operator takes: engines are drained, and replaced."""
import signal


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
