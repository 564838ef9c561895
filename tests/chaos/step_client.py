"""Steps that befall clients."""
import asyncio

from fleet import ports_of

NOTICED = 8  # seconds after which no request of theirs is left: client.tcp_user, and workers that are stopped meanwhile
SPANS = (1, 5), (NOTICED + 0.1, NOTICED + 2)


async def client_vanishes(storm):
    """The host of some clients is off.  When that lasts, the router has ended all that they asked for."""
    host, seconds = storm.fleet.host, storm.lasting(*storm.rng.choice(SPANS))
    if host is None or storm.clients.host_is_off():
        return
    for _ in range(100):
        if len(storm.clients.under_way_there()) > 1:
            break
        await asyncio.sleep(0.02)
    host.vanish()
    storm.clients.host_goes()
    asked = storm.clients.under_way_there()

    async def again():
        if seconds > NOTICED and (left := unended(storm.fleet, asked)):
            storm.wrong.append(("requests of clients whose host is off", left, f"{seconds:.2f} s"))
        host.come_back()
        storm.clients.host_comes_back()
    storm.later(seconds, again)
    storm.note("clients' host vanished", f"{seconds:.2f} s", f"{len(asked)} requests")


def unended(fleet, asked):
    """Of these {port: id} those that the router still serves.  A connection without a request may stay until client.idle_timeout."""
    left = [asked[port] for port in ports_of(fleet.host.there) & set(asked)]
    lines = [x for x in fleet.router.log_path.read_text(errors="replace").splitlines() if left and '"msg":"request"' in x]
    return [one for one in left if not any(f'"req":"{one}"' in x for x in lines)]
