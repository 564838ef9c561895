"""The notifier's socket: whatever engines say there is read, counted, and never stops it."""
import msgspec
import pytest
import zmq

from procs import free_port, wait


class ProxyNotif(msgspec.Struct, tag=True):
    """As LMCache defines it."""
    req_id: str


@pytest.fixture
def notices(world):
    port = free_port()
    r, _, _ = world.pd(notices={"listen": f"tcp://127.0.0.1:{port}"})
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
        wait("the other to be heard", lambda: r.metric("notices_bad_total") >= 1)
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


def test_no_notifier_unless_asked_for(world):
    r, _, _ = world.pd()
    assert r.children("notifier") == []
