"""What one client may have: requests per second and in flight, whichever workers serve it."""
import threading
import time

import openai
import pytest

from procs import FAST, MODEL, SLOW, Load, wait
from raw import Client

SMALL = {**FAST["shared_memory"], "clients": 8}  # one set of the table


def key(name):
    return [("Authorization", f"Bearer {name}")]


def code(a):
    return a.status if a.status == 200 else (a.status, a.error["code"])


def ask(r, headers=(), source=None):
    """One request on a connection of its own: any worker may take it."""
    with Client(r.address, source=source) as c:
        return c.post("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 1}, headers)


def refused(r, reason):
    return r.metric("requests_total", reason=reason) or 0


# --- requests per second ----------------------------------------------------------------------------------


def test_burst_and_rate_hold_over_all_workers(world):
    """Six threads ask as fast as they can: burst + rate x time get through, not one more."""
    r, (p,), _ = world.pd(workers=4, client={"rate": 20, "burst": 10})
    got, lock = [], threading.Lock()

    def one(_):
        sent = time.monotonic()
        a = ask(r, key("a"))
        with lock:
            got.append((sent, time.monotonic(), code(a)))
    load = Load(6, one)
    wait("two seconds of it", lambda: got and got[-1][1] - got[0][0] > 2)
    load.stop()
    assert not load.bad
    assert {c for _, _, c in got} == {200, (429, "client_rate")}
    admitted = [x for x in got if x[2] == 200]
    longest = max(e for _, e, _ in got) - min(s for s, _, _ in got)
    shortest = max(s for s, _, _ in got) - min(e for _, e, _ in got)
    assert 10 + int(20 * shortest) - 1 <= len(admitted) <= 10 + int(20 * longest) + 1, (shortest, longest)
    assert p.metric("pdsim:requests_total", path="/v1/completions") == len(admitted)
    assert refused(r, "client_rate") == len(got) - len(admitted)


def test_burst_is_rate_where_it_is_not_said(world):
    r, _, _ = world.pd(client={"rate": 3})
    assert [code(ask(r, key("a"))) for _ in range(4)] == [200] * 3 + [(429, "client_rate")]


def test_retry_after_is_when_the_next_one_is_in_order(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 3})
    assert [code(ask(r, key("a"))) for _ in range(3)] == [200] * 3
    began = time.monotonic()
    a = ask(r, key("a"))
    assert (code(a), a["retry-after"], a.error["type"]) == ((429, "client_rate"), "1", "rate_limit_error")
    wait("the next one", lambda: ask(r, key("a")).status == 200)
    assert time.monotonic() - began <= 1.5 * SLOW
    refused = [x for x in r.all_ended() if x["reason"] == "client_rate"]  # the lines of two workers may change places
    assert refused and refused[0]["states"] == "hd"


def test_the_sdk_sees_a_rate_limit_and_waits_as_told(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1})

    def sdk(retries):
        return openai.OpenAI(base_url=r.base_url, api_key="sk-limited", max_retries=retries)

    def complete(client):
        return client.completions.create(model=MODEL, prompt="hi", max_tokens=1)
    impatient, patient = sdk(0), sdk(2)
    with pytest.raises(openai.RateLimitError) as e:
        for _ in range(20):  # the second one, if this machine has the time
            assert complete(impatient).choices[0].text
    assert e.value.response.headers["retry-after"] == "1" and e.value.code == "client_rate"
    began = time.monotonic()
    assert complete(patient).choices[0].text
    assert time.monotonic() - began < 4 * SLOW


# --- who is a client ---------------------------------------------------------------------------------------


def test_each_key_is_a_client(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1})
    for name in ("a", "b", "c"):
        assert code(ask(r, key(name))) == 200
        assert code(ask(r, key(name))) == (429, "client_rate")


@pytest.mark.parametrize("headers", [
    [("X-Api-Key", "k")], [("authorization", "bearer k")], [("Authorization", "k")], [("Authorization", "Bearer   k")],
    [("Authorization", "Bearer k"), ("X-API-Key", "other")], [("Authorization", "Bearer "), ("x-api-key", "k")]])
def test_a_key_is_the_same_client_wherever_it_stands(world, headers):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1})
    assert code(ask(r, key("k"))) == 200
    assert code(ask(r, headers)) == (429, "client_rate")


def test_without_a_key_each_address_is_a_client(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1})
    for source in ("127.0.0.2", "127.0.0.3"):
        assert code(ask(r, source=source)) == 200
        assert code(ask(r, source=source)) == (429, "client_rate")
        assert code(ask(r, key(source), source=source)) == 200, "a key that spells an address"


def test_what_the_router_answers_itself_is_not_limited(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1, "max_inflight": 1})
    assert code(ask(r)) == 200
    for path in ("/metrics", "/health", "/v1/models", "/version"):
        for _ in range(5):
            assert r.get(path).status == 200
    assert r.post("/nowhere", {}).status == 404
    assert code(ask(r)) == (429, "client_rate")


# --- before the body ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("expect", [False, True])
def test_the_body_of_a_refused_request_is_not_waited_for(world, expect):
    r, (p,), _ = world.pd(client={"rate": 1, "burst": 1})
    assert code(ask(r, key("a"))) == 200
    with r.client() as c:
        c.send(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer a\r\nContent-Length: 50000000\r\n"
               + (b"Expect: 100-continue\r\n" if expect else b"") + b"\r\n")
        a = c.head()
        assert a.status == 429 and a["connection"] == "close"
    assert len(p.requests()) == 1
    assert r.metric("client_protocol_errors_total") == 0


def test_a_wrong_request_costs_nothing(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1})
    with r.client() as c:
        assert c.request("GET", "/v1/completions", headers=key("a")).read().status == 405
    with r.client() as c:
        assert c.post("/v1/completions", b"x" * 10, [*key("a"), ("Content-Encoding", "gzip")]).status == 415
    assert code(ask(r, key("a"))) == 200


# --- in flight ----------------------------------------------------------------------------------------------


def streams(r, d, n, name, beside=0):
    """n streams that stand still at the decode engine, beside others that do."""
    r.wait_metric("requests_in_flight", 1 + beside)  # and this very one
    d.pause()
    out = [r.open_stream(headers=key(name)) for _ in range(n)]
    r.wait_metric("requests_in_flight", 1 + beside + n)
    return out


def workers(r):
    return [pid for pid in r.children() if pid > 0]  # 0: one that is about to be started


def finish(s):
    assert [e.data for e in s.events()][-1] == "[DONE]"
    s.close()


def test_requests_in_flight_are_of_all_workers(world):
    r, _, (d,) = world.pd(workers=4, client={"max_inflight": 3})
    held = streams(r, d, 3, "a")
    for _ in range(12):
        a = ask(r, key("a"))
        assert code(a) == (429, "client_inflight") and a["retry-after"] in ("1", "2")
    d.go_on()
    assert code(ask(r, key("b"))) == 200
    for s in held:
        finish(s)
    wait("room", lambda: code(ask(r, key("a"))) == 200)
    assert refused(r, "client_inflight") >= 12


def test_leaving_and_failing_give_back(world):
    r, (p,), (d,) = world.pd(client={"max_inflight": 1})
    for _ in range(5):
        (s,) = streams(r, d, 1, "a")
        s.reset()
        d.go_on()
        wait("given back", lambda: code(ask(r, key("a"))) == 200)
    for _ in range(5):
        p.fault("status", status=500)
        wait("given back", lambda: ask(r, key("a")).status == 500)
    for _ in range(5):
        wait("given back", lambda: r.post("/v1/completions", b"{", key("a")).status == 400)
    wait("given back", lambda: code(ask(r, key("a"))) == 200)


def test_a_killed_workers_are_given_back(world):
    world.check_engines = False  # whose blocks a killed worker leaves to their time-out
    r, _, (d,) = world.pd(workers=2, client={"max_inflight": 4})
    held = streams(r, d, 4, "a")
    assert code(ask(r, key("a"))) == (429, "client_inflight")
    for worker in workers(r):
        r.murder(worker)
    d.go_on()

    def back():
        try:
            return code(ask(r, key("a"))) == 200
        except OSError:
            return False
        except Exception:  # an answer cut short
            return False
    wait("given back", back)
    again = streams(r, d, 4, "a")
    assert code(ask(r, key("a"))) == (429, "client_inflight")
    d.go_on()
    for s in again:
        finish(s)
    for s in held:
        s.close()


def test_workers_killed_again_and_again_leave_nothing_counted(world):
    """Load of three clients while workers die; then each has all of its room."""
    world.check_engines = False  # whose blocks a killed worker leaves to their time-out
    r, _, (d,) = world.pd(workers=3, client={"max_inflight": 2})
    names = ["a", "b", "c"]

    def one(i):
        try:
            assert ask(r, key(names[i % 3])).status in (200, 429)
        except AssertionError:
            raise
        except Exception:  # its worker died
            pass
    load = Load(9, one)
    killed = []  # who may be named until the master has noticed
    for _ in range(12):
        for worker in [w for w in workers(r) if w not in killed][:1]:
            r.murder(worker)
            killed.append(worker)
        done = load.done
        wait("traffic", lambda: load.done > done + 30)
    load.stop()
    assert not load.bad, load.bad[:3]
    wait("all workers", lambda: len(workers(r)) == 3 and r.metric("requests_in_flight") == 1)
    for name in names:
        held = streams(r, d, 2, name)
        assert code(ask(r, key(name))) == (429, "client_inflight")
        d.go_on()
        for s in held:
            finish(s)


# --- the table ----------------------------------------------------------------------------------------------


def test_a_full_table_forgets_the_idle_and_never_the_busy(world):
    """8 entries, 1,000 clients."""
    r, _, (d,) = world.pd(workers=2, shared_memory=SMALL, client={"max_inflight": 1})
    (busy,) = streams(r, d, 1, "busy")
    with r.client() as c:
        for i in range(1000):
            a = c.post("/tokenize", {"model": MODEL, "prompt": "hi"}, key(f"k{i}"))
            assert a.status == 200
            if i % 50 == 0:
                assert code(ask(r, key("busy"))) == (429, "client_inflight")
    assert r.metric("clients_forgotten_total") >= 990
    assert r.metric("clients_uncounted_total") == 0
    d.go_on()
    finish(busy)


def test_the_oldest_idle_client_is_the_one_forgotten(world):
    r, _, _ = world.pd(shared_memory=SMALL, client={"rate": 1, "burst": 1})
    began = time.monotonic()
    with r.client() as c:
        def tokenize(name):
            return c.post("/tokenize", {"model": MODEL, "prompt": "hi"}, key(name)).status
        assert [tokenize(f"k{i}") for i in range(9)] == [200] * 9
        assert r.metric("clients_forgotten_total") == 1
        assert ask(r, key("k8")).status == 429 and ask(r, key("k1")).status == 429
        assert tokenize("k0") == 200, "it was forgotten, and k1 is now"
    if time.monotonic() - began < 0.9:
        assert ask(r, key("k2")).status == 429
    assert r.metric("clients_forgotten_total") == 2


def test_more_busy_clients_than_entries_are_let_through_and_counted(world):
    r, _, (d,) = world.pd(workers=2, shared_memory=SMALL, client={"max_inflight": 1})
    held = [streams(r, d, 1, f"k{i}", i)[0] for i in range(8)]
    more = streams(r, d, 3, "k9", 8)
    assert r.metric("clients_uncounted_total") == 3
    assert code(ask(r, key("k3"))) == (429, "client_inflight")
    d.go_on()
    for s in held + more:
        finish(s)


# --- settings, secrets --------------------------------------------------------------------------------------


def test_limits_change_at_a_reload(world):
    r, _, _ = world.pd(workers=2)
    assert [code(ask(r, key("a"))) for _ in range(6)] == [200] * 6
    r.reload(client={"rate": 1, "burst": 2})
    wait("the new limits", lambda: ask(r, key("a")).status == 429)
    r.reload(client={"rate": 0})
    wait("no limits", lambda: [code(ask(r, key("a"))) for _ in range(6)] == [200] * 6)


def test_a_reload_that_allows_more_forgets_the_past(world):
    """An hour's allowance was spent in advance: under the new limits that is nothing."""
    r, _, _ = world.pd(workers=2, client={"rate": "3/h"})
    assert [code(ask(r, key("a"))) for _ in range(4)] == [200] * 3 + [(429, "client_rate")]
    r.reload(client={"rate": 20, "burst": 5})
    wait("the new limits", lambda: ask(r, key("a")).status == 200)
    assert int(ask(r, key("a"))["Retry-After"] or 1) <= 1
    time.sleep(0.5)
    assert [code(ask(r, key("a"))) for _ in range(5)] == [200] * 5


def test_no_key_is_kept(world):
    secret = "sk-no-one-may-read-this"
    r, _, _ = world.pd(client={"rate": 1, "burst": 1}, log_level="debug")
    assert code(ask(r, key(secret))) == 200
    assert code(ask(r, key(secret))) == (429, "client_rate")
    wait("its line", lambda: len(r.ends()) >= 2)
    assert secret not in r.log()
    memfds = [x for x in open(f"/proc/{r.pid}/maps", encoding="utf-8") if "memfd:pdrouter" in x]
    assert len(memfds) == 2
    for line in memfds:
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
        with open(f"/proc/{r.pid}/mem", "rb") as mem:
            mem.seek(begin)
            assert secret.encode() not in mem.read(end - begin)


def test_a_rate_of_minutes(world):
    """Two a minute: two at once, and the third hears of half a minute."""
    r, _, _ = world.pd(client={"rate": "2/m"})
    assert [code(ask(r, key("a"))) for _ in range(2)] == [200, 200]
    a = ask(r, key("a"))
    assert code(a) == (429, "client_rate") and 28 <= int(a["Retry-After"]) <= 30


# --- behind a proxy ---------------------------------------------------------------------------------------


def via(*values):
    return [("X-Forwarded-For", v) for v in values]


def test_a_proxy_says_who_it_is(world):
    """Its own last word of a list: what a client has written before that counts for nothing."""
    r, _, _ = world.pd(client={"rate": 1, "burst": 1, "id_header": "X-Forwarded-For"})
    assert code(ask(r, via("10.1.1.1"))) == 200
    for again in (via("10.1.1.1"), via("6.6.6.6, 10.1.1.1"), via("7.7.7.7", "8.8.8.8,10.1.1.1"), key("mine") + via("9.9.9.9,  10.1.1.1")):
        assert code(ask(r, again)) == (429, "client_rate"), again
    assert code(ask(r, via("10.1.1.1, 10.1.1.2"))) == 200, "another one"
    assert code(ask(r, key("mine"))) == 200, "who comes past the proxy is known by its key"
    assert code(ask(r)) == 200, "or by its address"
    assert code(ask(r, via(""))) == (429, "client_rate"), "an empty name is none"


def test_without_id_header_nobody_names_himself(world):
    r, _, _ = world.pd(client={"rate": 1, "burst": 1})
    assert code(ask(r, via("10.1.1.1"))) == 200
    assert code(ask(r, via("10.1.1.2"))) == (429, "client_rate")
