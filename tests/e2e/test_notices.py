"""The notifier's socket: whatever engines say there is read, counted, and never stops it."""
import msgspec
import pytest
import zmq

from procs import free_port, wait
from segment import ARMED, FREE, READY, Segment, still_worker


class ProxyNotif(msgspec.Struct, tag=True):
    """As LMCache defines it."""
    req_id: str


@pytest.fixture
def notices(world):
    port = free_port()
    r, _, _ = world.pd(lmcache={"listen": f"tcp://127.0.0.1:{port}"})
    ctx = zmq.Context()
    s = ctx.socket(zmq.PUSH)
    s.linger = 0
    s.connect(f"tcp://127.0.0.1:{port}")
    yield r, s
    s.close()
    ctx.term()


def test_unknown_ids_are_counted_and_dropped(notices):
    r, push = notices
    for req_id in ("1", "3f2c1b9a-5d7e-4c8b-9a10-0f1e2d3c4b5a", "", "x" * 3000):
        push.send(msgspec.msgpack.encode(ProxyNotif(req_id)))
    push.send(bytes.fromhex("82a474797065ae4e69786c50726f78794e6f746966a67265715f6964a131"))
    wait("all counted", lambda: r.metric("notices_bad_total") + r.metric("notices_stale_total") == 5)
    assert r.metric("notices_total") == 0 and len(r.children("notifier")) == 1


def test_garbage_does_not_stop_it(notices):
    r, push = notices
    garbage = [b"", b"\xff", b"\xdf\xff\xff\xff\xff", b"\x82\xa4type", b"\xc1" * 100, b"\x91\xa1x", b"\xdb\xff\xff\xff\xffabc",
               b"\x81\xa6req_id\x07", b"[" * 4000]
    for one in garbage:
        push.send(one)
    push.send_multipart([b"\x81\xa6req_id\xa11", b"second frame"])
    wait("all counted", lambda: r.metric("notices_bad_total") + r.metric("notices_stale_total") >= len(garbage) + 1)
    assert len(r.children("notifier")) == 1 and r.metric("notifier_restarts_total") == 0
    assert r.complete().status == 200


def test_a_message_beyond_all_measure_cuts_off_its_sender_alone(notices):
    r, push = notices
    push.send(b"x" * 1000000)
    with zmq.Context() as ctx, ctx.socket(zmq.PUSH) as other:
        other.linger = 0
        other.connect(push.get_string(zmq.LAST_ENDPOINT))
        other.send(b"bad")
        wait("the other to be read", lambda: r.metric("notices_bad_total") >= 1)
    assert r.metric("notifier_restarts_total") == 0


def test_a_flood_is_read_to_its_end(notices):
    """ZMQ's descriptor is edge-triggered: a level loop would leave messages unread."""
    r, push = notices
    one = msgspec.msgpack.encode(ProxyNotif("3f2c1b9a-5d7e-4c8b-9a10-0f1e2d3c4b5a"))
    for _ in range(5000):
        push.send(one)
    wait("all counted", lambda: r.metric("notices_bad_total") + r.metric("notices_stale_total") == 5000)


def test_id_of_our_own_form_but_never_armed(notices):
    r, push = notices
    r.complete(headers=[("X-Request-Id", "a")])
    attempt = r.end()["attempt"]
    push.send(msgspec.msgpack.encode(ProxyNotif(attempt)))
    wait("it is counted", lambda: r.metric("notices_bad_total") + r.metric("notices_stale_total") == 1)


# --- flags: armed here as a worker would, since no hand-shake of today's connectors waits for a notice ---

@pytest.fixture
def flags(world):
    """A router, what sends it a notice and waits until it is counted, and a flag of a worker that stands still."""
    port = free_port()
    r, _, _ = world.pd(lmcache={"listen": f"tcp://127.0.0.1:{port}"}, log_level="debug")
    seg, ctx = Segment(r), zmq.Context()
    push = ctx.socket(zmq.PUSH)
    push.linger = 0
    push.connect(f"tcp://127.0.0.1:{port}")

    def say(req_id, kind):
        before = r.metric(f"notices{kind}_total")
        push.send(msgspec.msgpack.encode(ProxyNotif(req_id)))
        r.wait_metric(f"notices{kind}_total", before + 1)
        r.look_over()
    with still_worker(r) as slot:
        yield r, say, seg.flag(slot, seg.flags_per_worker - 1)
    push.close()
    ctx.term()
    seg.close()


COUNTS, STALE, BAD = "", "_stale", "_bad"


def test_notices_in_time_too_many_and_too_late(flags):
    _, say, flag = flags
    one = flag.arm(2)
    say(one, COUNTS)
    assert (flag.state, flag.left) == (ARMED, 1)
    say(one, COUNTS)
    assert (flag.state, flag.left) == (READY, 0)
    say(one, STALE)  # once more than it waits for
    assert flag.state == READY
    flag.free()
    say(one, STALE)
    assert flag.state == FREE


def test_notices_of_a_slots_former_transfer(flags):
    _, say, flag = flags
    old = flag.arm(1)
    flag.free()
    new = flag.arm(1)
    say(old, STALE)
    say(new[:20] + old[20:], BAD)  # its gen has come, with another's random part
    assert flag.state == ARMED
    say(new, COUNTS)
    assert flag.state == READY
    flag.free()


def test_notices_before_a_flag_is_armed(flags):
    _, say, flag = flags
    say(f"{flag.worker:02x}-{flag.slot:04x}-{flag.gen + 1:012x}-{0:016x}", STALE)
    flag.arm(1)
    assert flag.state == ARMED
    flag.free()


def test_notices_for_a_dead_worker(flags):
    """It is given back with all that it held; its successor's flags are not its own."""
    r, say, flag = flags
    one = flag.arm(2)
    say(one, COUNTS)
    pids = {x["slot"]: x["pid"] for x in r.status()["processes"] if x["kind"] == "worker"}
    r.murder(pids[flag.worker])
    wait("it to be reaped", lambda: r.lines("resources of a dead process released"))
    assert [x["flags"] for x in r.lines("resources of a dead process released")] == [1]
    say(one, STALE)
    wait("its successor", lambda: r.ctl("workers").stdout.count("state=ready") == 3)
    say(one, STALE)
    assert flag.state == FREE


def test_notices_that_never_come(flags):
    """A transfer that waits for ever costs its flag and nothing else; it dies with its worker."""
    r, _, flag = flags
    flag.arm(1)
    assert all(r.complete().status == 200 for _ in range(5))
    r.look_over()
    pids = {x["slot"]: x["pid"] for x in r.status()["processes"] if x["kind"] == "worker"}
    r.murder(pids[flag.worker])
    wait("it to be given back", lambda: flag.state == FREE)
    assert [x["flags"] for x in r.lines("resources of a dead process released")] == [1]


def test_notices_go_on_behind_a_killed_notifier(flags):
    r, say, flag = flags
    one = flag.arm(2)
    say(one, COUNTS)
    (pid,) = r.children("notifier")
    r.murder(pid)
    r.look_over()
    wait("its successor", lambda: r.children("notifier") not in ([], [pid]))
    say(one, COUNTS)
    assert flag.state == READY
    flag.free()


def test_no_notifier_unless_asked_for(world):
    r, _, _ = world.pd()
    assert r.children("notifier") == []


@pytest.mark.parametrize("host, networks, said", [("*", ["0.0.0.0/0"], 1), ("*", [], 0), ("*", ["127.0.0.0/8"], 0), ("127.0.0.1", [], 0)])
def test_a_socket_for_all_is_named_at_the_start(world, host, networks, said):
    r, _, _ = world.pd(lmcache={"listen": f"tcp://{host}:{free_port()}", "networks": networks})
    wait("the notifier", lambda: r.lines("listening for notices"))
    wait("it is ready", lambda: "ready" in next(x for x in r.ctl("workers").stdout.splitlines() if x.startswith("notifier")))
    assert len(r.lines("any peer may send KV notices, and take the connections of engines")) == said
