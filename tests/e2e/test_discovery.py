"""Endpoints that stand in no list: from DNS, and from a file that is watched."""
import shutil
import signal
import time

import pytest
import yaml

from nameserver import A, AAAA, REFUSED, SERVFAIL, SRV, NameServer, service
from procs import MODEL, SLOW, Engine, Load, free_port, wait

P, D = "prefill.test", "decode.test"


@pytest.fixture
def names():
    server = NameServer()
    yield server
    server.close()


def at_one_port(world, role, hosts):
    """Engines at several addresses that share a port, as the records of one name do."""
    while True:
        port, engines = free_port(), []
        try:
            for host in hosts:
                engines.append(Engine(world, role, host=host, port=port))
        except AttributeError:  # no port line: somebody has it at one of the addresses
            for e in engines:
                e.stop()
            continue
        world.engines += engines
        return engines


def dns_router(world, names, decode, dns, **keys):
    pool = world.pool([], decode, dns=dns)
    return world.router(pool, dns_servers=[names.address], **keys)


def endpoints(router):
    return router.status()["fleet"]["endpoints"]


def states(router, role="prefill"):
    return {e["url"]: e["state"] for e in endpoints(router) if e["role"] == role and e["state"] != "draining"}


def wait_up(router, *engines, role="prefill", timeout=10):
    """Exactly these, and all of them serve."""
    want = {e if isinstance(e, str) else e.url: "up" for e in engines}
    wait(f"{want}", lambda: states(router, role) == want, timeout)


def one_name(world, names, hosts=("127.0.0.2", "127.0.0.3"), **keys):
    """A router whose prefill engines are the addresses of P: (router, [p...], d)."""
    p, d = at_one_port(world, "prefill", hosts), world.engine("decode")
    names.set(P, *hosts)
    router = dns_router(world, names, [d], [{"name": P, "port": p[0].port, "role": "prefill"}], **keys)
    wait_up(router, *p)
    return router, p, d


def ok(router):
    assert router.complete().status == 200


# --- addresses ---

def test_addresses_are_endpoints(world, names):
    router, p, _ = one_name(world, names)
    for _ in range(4):
        ok(router)
    assert all(e.requests() for e in p)
    found = [e for e in endpoints(router) if e["role"] == "prefill"]
    assert [e["source"] for e in found] == [f"dns {P}"] * 2
    assert [e["source"] for e in endpoints(router) if e["role"] == "decode"] == ["config"]
    assert f"dns {P}" in router.ctl("status").stdout


def test_ipv6_beside_ipv4(world, names):
    hosts = ("127.0.0.2", "::1")
    router, p, _ = one_name(world, names, hosts)
    assert f"http://[::1]:{p[1].port}" in states(router)
    names.set(P, "::1")
    wait_up(router, p[1])
    ok(router)


def test_scaled_up_and_down_under_load(world, names):
    hosts = [f"127.0.0.{i}" for i in range(2, 6)]
    p, d = at_one_port(world, "prefill", hosts), at_one_port(world, "decode", hosts)
    names.set(P, hosts[0])
    names.set(D, hosts[0])
    router = dns_router(world, names, [], [{"name": P, "port": p[0].port, "role": "prefill"},
                                           {"name": D, "port": d[0].port, "role": "decode"}])

    def one(i):
        a = router.complete(f"hi {i}", stream=i % 2 == 0)
        assert a.status == 200, a.body
    load = Load(4, one)
    for some in (hosts, hosts[1:3], hosts[:1], hosts[::-1], hosts[3:]):
        names.set(P, *some)
        names.set(D, *some)
        for role, engines in (("prefill", p), ("decode", d)):
            wait_up(router, *[e for e in engines if e.host in some], role=role)
        seen = load.done
        wait("some more requests", lambda seen=seen: load.done > seen + 20 or load.bad)
    load.stop()
    assert load.bad == []
    assert all(e.requests() for e in p + d)
    assert len(router.lines("configuration in force")) == 1, "found ones need no reload"


def test_all_exchanged_at_once(world, names):
    """The new engine is not up when the old one's address goes: that one serves until it is."""
    p, d = at_one_port(world, "prefill", ["127.0.0.2"]), [world.engine("decode")]
    names.set(P, "127.0.0.2")
    router = dns_router(world, names, d, [{"name": P, "port": p[0].port, "role": "prefill"}])
    load = Load(2, lambda i: ok(router))
    names.set(P, "127.0.0.3")  # nobody there yet
    wait("the new one", lambda: f"http://127.0.0.3:{p[0].port}" in states(router))
    seen = load.done
    wait("some more requests", lambda: load.done > seen + 20 or load.bad)
    assert states(router)[p[0].url] == "up"
    p.append(world.engine("prefill", host="127.0.0.3", port=p[0].port))
    wait_up(router, p[1])
    load.stop()
    assert load.bad == []


def more_answers(names, n):
    asked = len(names.times(P, A))
    wait(f"{n} more answers", lambda: len(names.times(P, A)) >= asked + n)


def test_the_order_of_answers_does_not_matter(world, names):
    router, _, _ = one_name(world, names)
    more_answers(names, 2)  # what is learned of engines that have come up is published by now
    published = router.metric("tables_published_total")
    names.set(P, "127.0.0.3", "127.0.0.2", "127.0.0.3")
    more_answers(names, 2)
    assert len(router.lines("endpoint added")) == 3 and not router.lines("endpoint removed")
    assert published > 0 and router.metric("tables_published_total") == published


def test_ttl_is_followed(world, names):
    router, p, _ = one_name(world, names)
    wait("asked four times", lambda: len(names.times(P, A)) >= 4)
    times = names.times(P, A)
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert all(0.9 <= g < 1.5 * SLOW for g in gaps), gaps
    names.ttl = 3600
    names.set(P, "127.0.0.2")
    wait_up(router, p[0])
    asked = len(names.times(P, A))
    names.set(P, "127.0.0.3")
    time.sleep(2.5)  # nothing to wait for: the point is that nothing happens
    assert len(names.times(P, A)) == asked and list(states(router)) == [p[0].url]


def test_addresses_nobody_can_have_are_left_out(world, names):
    router, p, _ = one_name(world, names)
    names.set(P, "0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1", "127.0.0.3")
    wait_up(router, p[1])


def test_more_than_fits_a_datagram(world, names):
    hosts = [f"127.0.0.{i}" for i in range(2, 42)]
    p = at_one_port(world, "prefill", hosts[:1])
    names.set(P, *hosts)
    router = dns_router(world, names, [world.engine("decode")], [{"name": P, "port": p[0].port, "role": "prefill"}])
    assert len(states(router)) == 40
    assert (P, A, "tcp") in {x[1:] for x in names.asked}


def test_more_than_a_name_may_have(world, names):
    hosts = [f"127.0.{i // 100}.{i % 100 + 1}" for i in range(300)]
    p = at_one_port(world, "prefill", ["127.0.0.1"])
    names.set(P, *hosts)
    router = dns_router(world, names, [world.engine("decode")], [{"name": P, "port": p[0].port, "role": "prefill"}],
                        shared_memory={"max_endpoints": 20, "flags_per_worker": 64})
    found = endpoints(router)
    assert len(found) == 257 and len([e for e in found if e["state"] != "waiting"]) == 20
    assert router.lines("more addresses of a name than are used, the last ones are left out")[0]["left_out"] == 44
    assert router.lines("endpoints left out until others have drained: max_endpoints are in use")[0]["endpoints"] == 237


# --- name servers that fail ---

@pytest.mark.parametrize("mode", [SERVFAIL, REFUSED, "silent", "garbage", "broken"])
def test_no_answer_keeps_the_fleet(world, names, mode):
    router, p, _ = one_name(world, names)
    names.mode = mode
    line = wait("a line", lambda: router.lines("a name could not be looked up, its endpoints stay as they are"), 20)[0]
    assert line["name"] == P and line["pool"] and line["reason"]
    ok(router)
    assert sorted(states(router)) == sorted(e.url for e in p)
    names.mode = "answer"
    names.set(P, "127.0.0.3")
    wait_up(router, p[1], timeout=20)
    assert router.lines("a name can be looked up again")


def test_a_server_that_is_gone_keeps_the_fleet(world, names):
    router, p, _ = one_name(world, names)
    names.close()
    router.wait_log("a name could not be looked up", 20)
    ok(router)
    other = NameServer("::1")
    other.set(P, "127.0.0.3")
    router.reload(dns_servers=[other.address])
    wait_up(router, p[1])
    other.close()


def test_other_name_servers_are_asked_at_once(world, names):
    names.ttl = 3600
    router, p, _ = one_name(world, names)
    other = NameServer()
    other.set(P, "127.0.0.3")
    router.reload(dns_servers=[other.address])
    wait_up(router, p[1])
    other.close()


def test_an_ipv6_name_server_without_its_port(world, names):
    """Nobody answers at [::1]:53 here; the next one does."""
    p, d = at_one_port(world, "prefill", ["127.0.0.2"]), world.engine("decode")
    names.set(P, "127.0.0.2")
    pool = world.pool([], [d], dns=[{"name": P, "port": p[0].port, "role": "prefill"}])
    router = world.router(pool, dns_servers=["[::1]", names.address])
    wait_up(router, *p)
    assert not router.lines("name servers cannot be used")


def test_what_was_asked_of_the_former_name_servers(world, names):
    """Questions that are open when the name servers change are put to the new ones."""
    p, d, other = at_one_port(world, "prefill", ["127.0.0.2"]), world.engine("decode"), NameServer()
    names.mode = "silent"
    router = dns_router(world, names, [f"http://{D}:{d.port}"], [{"name": P, "port": p[0].port, "role": "prefill"}],
                        wait_for=None)
    wait("both queries", lambda: names.times(P, A) and names.times(D, A))
    other.set(P, "127.0.0.2")
    other.set(D, "127.0.0.1")
    router.reload(dns_servers=[other.address])
    wait_up(router, *p, timeout=4)  # less than it takes to give up on a silent one
    wait_up(router, f"http://{D}:{d.port}", role="decode", timeout=4)
    ok(router)
    assert not router.lines("a name could not be looked up, its endpoints stay as they are")
    other.close()


@pytest.mark.parametrize("how", ["no such name", "no usable record"])
def test_an_empty_answer_counts_when_it_is_repeated(world, names, how):
    router, p, _ = one_name(world, names, fall=3)
    asked = len(names.times(P, A))
    if how == "no such name":
        names.zone = {}
    else:
        names.set(P)
    stays = wait("a line", lambda: router.lines("a name has no addresses now, its endpoints stay until the answer repeats"))
    assert stays[0]["reason"] == how and stays[0]["times"] == 3
    assert len(states(router)) == 2
    gone = wait("a line", lambda: router.lines("a name has no addresses any more, its endpoints are removed"))
    assert gone[0]["answers"] == 3 and gone[0]["reason"] == how
    assert len(names.times(P, A)) >= asked + 3 and states(router) == {}
    names.set(P, "127.0.0.2")
    wait_up(router, p[0])
    ok(router)


def test_a_name_that_never_had_an_address_is_told(world, names):
    """One line an operator looks for when /ready stays 503; neither one at the start nor one for each answer."""
    router = dns_router(world, names, [world.engine("decode")], [{"name": P, "port": 8100, "role": "prefill"}], fall=2,
                        wait_for=None)
    told = wait("the warning", lambda: router.lines("a name has no addresses, it gives no endpoints"))
    assert told[0]["level"] == "warn" and told[0]["name"] == P and told[0]["reason"] == "no such name"
    wait("more answers", lambda: len(names.times(P, A)) >= 4)
    assert len(router.lines("a name has no addresses, it gives no endpoints")) == 1


def test_one_empty_answer_is_a_mistake(world, names):
    router, p, _ = one_name(world, names, fall=2)
    names.set(P)
    router.wait_log("its endpoints stay until the answer repeats")
    names.set(P, "127.0.0.2", "127.0.0.3")
    more_answers(names, 2)
    wait_up(router, *p)
    assert not router.lines("endpoint removed")


# --- services ---

S = "_http._tcp.prefill.test"


def services(world, names, records, engines, **entry):
    """A router whose prefill engines are the services S."""
    for i, e in enumerate(engines):
        names.set(f"p{i}.test", e.host)
    names.set(S, *records)
    router = dns_router(world, names, [world.engine("decode")], [{"name": S, "role": "prefill", **entry}])
    return router


def test_services_have_ports_of_their_own(world, names):
    p = [world.engine("prefill") for _ in range(2)]
    router = services(world, names, [service(f"P{i}.Test", e.port) for i, e in enumerate(p)], p)
    urls = [f"http://p{i}.test:{e.port}" for i, e in enumerate(p)]
    wait_up(router, *urls)
    for _ in range(4):
        ok(router)
    assert all(e.requests() for e in p)
    assert {e["source"] for e in endpoints(router)} == {"config", f"dns {S}"}
    assert len(names.times(S, SRV)) >= 1 and not names.times(S, A) and not names.times(S, AAAA)
    names.set(S, service("p1.test", p[1].port))
    wait_up(router, urls[1])


def test_services_of_the_best_priority_alone(world, names):
    p = [world.engine("prefill") for _ in range(3)]
    router = services(world, names, [service("p0.test", p[0].port, priority=10), service("p1.test", p[1].port, priority=5),
                                     service("p2.test", p[2].port, priority=5), service("p2.test", 0, priority=1)], p)
    urls = [f"http://p{i}.test:{e.port}" for i, e in enumerate(p)]
    wait_up(router, *urls[1:])
    names.set(S, service("p0.test", p[0].port, priority=10))
    wait_up(router, urls[0])


def test_weights_of_services(world, names):
    p = [world.engine("prefill") for _ in range(2)]
    router = services(world, names, [service("p0.test", p[0].port, weight=30), service("p1.test", p[1].port, weight=10)], p)
    router.reload(pools=[{**router.config["pools"][0], "policy": "round_robin"}])
    wait_up(router, *[f"http://p{i}.test:{e.port}" for i, e in enumerate(p)])
    before = [len(e.requests()) for e in p]
    for _ in range(40):
        ok(router)
    got = [len(e.requests()) - b for e, b in zip(p, before)]
    assert sum(got) == 40 and 26 <= got[0] <= 34, got


@pytest.mark.parametrize("said, ours", [
    ((30, 10), [30, 10]), ((50000, 1, 0), [100, 1, 1]), ((1000, 500), [100, 50]), ((0, 0), [7, 7]), ((33, 33, 33), [7, 7, 7])])
def test_what_weights_of_services_mean(world, names, said, ours):
    """As they are, from 1 to 100; where all are equal they say nothing, and the entry's own holds."""
    p = world.engine("prefill")
    services(world, names, [service(f"p{i}.test", p.port, weight=w) for i, w in enumerate(said)], [p], weight=7)
    router = world.routers[0]
    got = {e["url"]: e["weight"] for e in endpoints(router) if e["role"] == "prefill"}
    assert got == {f"http://p{i}.test:{p.port}": w for i, w in enumerate(ours)}


def test_targets_that_are_no_hosts(world, names):
    p = [world.engine("prefill")]
    router = services(world, names, [service("a b.test", 80), service("p0.test", p[0].port), service(".", 80),
                                     service("x/../y.test", 80)], p)
    wait_up(router, f"http://p0.test:{p[0].port}")


# --- reloads ---

def test_a_reload_keeps_what_dns_has_found(world, names):
    router, p, _ = one_name(world, names)
    names.mode = "silent"  # no new answer comes
    slots = {e["url"]: (e["slot"], e["tag"]) for e in endpoints(router)}
    router.reload(rise=2)
    assert {e["url"]: (e["slot"], e["tag"]) for e in endpoints(router)} == slots
    assert set(states(router).values()) == {"up"}
    ok(router)
    pool = router.config["pools"][0]
    router.reload(pools=[{**pool, "dns": [], "prefill": [{"url": p[0].url}]}])
    wait_up(router, p[0])
    slot = next(e for e in endpoints(router) if e["url"] == p[0].url)
    assert (slot["slot"], slot["tag"]) == slots[p[0].url] and slot["source"] == "config"
    ok(router)


def test_another_limit_of_a_dns_entry(world, names):
    router, p, _ = one_name(world, names)
    pool = router.config["pools"][0]
    entry = {**pool["dns"][0], "max_inflight": 5}
    names.mode = "silent"
    router.reload(pools=[{**pool, "dns": [entry]}])
    lines = router.lines("endpoint changed")
    assert sorted(x["url"] for x in lines) == sorted(e.url for e in p) and {x["max_inflight"] for x in lines} == {5}


# --- a file that is watched ---

def entries(*engines):
    return yaml.safe_dump([{"url": e.url, "role": e.role} for e in engines])


def replace(path, text):
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def in_place(path, text):
    path.write_text(text)


def file_router(world, path, *engines, watch=True, **keys):
    """A router whose engines stand in a file."""
    path.write_text(entries(*engines))
    return world.router({"models": [MODEL], "connector": "nixl", "endpoints_file": str(path), "watch": watch}, **keys)


def in_force(router):
    return len(router.lines("configuration in force"))


@pytest.mark.parametrize("write", [replace, in_place])
def test_a_changed_file_counts_by_itself(world, write):
    path, p, d = world.file("endpoints", "yaml"), [world.engine("prefill") for _ in range(3)], world.engine("decode")
    router = file_router(world, path, p[0], d)
    load = Load(3, lambda i: ok(router))
    for some in (p, p[1:], p[1:2], p):
        write(path, entries(*some, d))
        wait_up(router, *some)
        seen = load.done
        wait("some more requests", lambda seen=seen: load.done > seen + 20 or load.bad)
    load.stop()
    assert load.bad == []
    assert all(e.requests() for e in p)
    assert in_force(router) == 5 and router.metric("reloads_failed_total") == 0


def test_a_config_map(world):
    """As the kubelet does it: a new directory, and a link renamed over the old one."""
    p, d = [world.engine("prefill") for _ in range(2)], world.engine("decode")
    mount = world.dir / "map"
    mount.mkdir()

    def version(n, *engines):
        (mount / f"..{n}").mkdir()
        (mount / f"..{n}" / "endpoints.yaml").write_text(entries(*engines))
        (mount / "..data_tmp").symlink_to(f"..{n}")
        (mount / "..data_tmp").rename(mount / "..data")
    version(1, p[0], d)
    path = mount / "endpoints.yaml"
    path.symlink_to("..data/endpoints.yaml")
    router = world.router({"models": [MODEL], "connector": "nixl", "endpoints_file": str(path), "watch": True})
    wait_up(router, p[0])
    for n, some in ((2, p), (3, p[1:])):
        version(n, *some, d)
        shutil.rmtree(mount / f"..{n - 1}")
        wait_up(router, *some)
    ok(router)


@pytest.mark.parametrize("text, line, word", [
    ("- {url: 'http://127.0.0.1:1', role: prefill}\n- {url: 'http://127.0.0.1:1', role: cook}\n", 2, "role"),
    ("- {url: 'http://127.0.0.1:1', role: prefill}\n- {url: ", 3, "not YAML"),
    ("", 0, "empty"),
    (None, 0, "No such file"),
])
def test_a_wrong_file_changes_nothing(world, text, line, word):
    path, p, d = world.file("endpoints", "yaml"), [world.engine("prefill") for _ in range(2)], world.engine("decode")
    router = file_router(world, path, p[0], d)
    if text is None:
        path.unlink()
    else:
        replace(path, text)
    said = wait("a line", lambda: router.lines("reload refused, the configuration in force stays"))
    assert word in said[0]["error"] and (f"{path}:{line}:" in said[0]["error"] if line else str(path) in said[0]["error"])
    router.wait_metric("reloads_failed_total", 1)
    assert states(router) == {p[0].url: "up"}
    ok(router)
    replace(path, entries(p[1], d))
    wait_up(router, p[1])
    assert router.metric("reloads_failed_total") == 1


def test_a_list_without_entries_is_meant(world):
    path, p, d = world.file("endpoints", "yaml"), world.engine("prefill"), world.engine("decode")
    router = file_router(world, path, p, d)
    replace(path, "[]\n")
    wait("none", lambda: states(router) == {} and states(router, "decode") == {})
    replace(path, entries(p, d))
    wait_up(router, p)


def test_nothing_but_the_watched_file_counts(world):
    """What else has been edited waits for SIGHUP, right or wrong."""
    path, other = world.file("endpoints", "yaml"), world.file("other", "yaml")
    p, d, q = [world.engine("prefill") for _ in range(2)], world.engine("decode", model=[MODEL, "other"]), world.engine("prefill", model="other")
    other.write_text(entries(q, d))
    pools = [{"name": "a", "models": [MODEL], "connector": "nixl", "endpoints_file": str(path), "watch": True},
             {"name": "b", "models": ["other"], "connector": "nixl", "endpoints_file": str(other)}]
    path.write_text(entries(p[0], d))
    router = world.router(*pools, health_interval="100ms")
    for wrong in ("pools: [", "workers: 1\npools: []\n"):
        router.config_path.write_text(wrong)
        other.write_text("- nonsense")
        path.write_text(entries(*p, d))
        wait("both", lambda: set(states(router)) == {e.url for e in [*p, q]})
        path.write_text(entries(p[0], d))
        wait("one", lambda: set(states(router)) == {e.url for e in [p[0], q]})
    assert router.metric("reloads_failed_total") == 0
    assert router.ctl("reload").returncode != 0
    router.write(router.config)
    other.write_text(entries(p[1], d))
    assert router.ctl("reload").returncode == 0
    assert set(states(router)) - {q.url} == {p[0].url, p[1].url}  # q serves for want of another one


def test_a_file_that_is_not_watched_waits_for_sighup(world):
    path, p, d = world.file("endpoints", "yaml"), [world.engine("prefill") for _ in range(2)], world.engine("decode")
    router = file_router(world, path, p[0], d, watch=False)
    replace(path, entries(p[1], d))
    time.sleep(0.5)  # nothing to wait for: the point is that nothing happens
    assert states(router) == {p[0].url: "up"}
    router.kill(signal.SIGHUP)
    wait_up(router, p[1])


def test_watching_begins_and_ends_with_a_reload(world):
    path, p, d = world.file("endpoints", "yaml"), [world.engine("prefill") for _ in range(2)], world.engine("decode")
    router = file_router(world, path, p[0], d, watch=False)
    pool = router.config["pools"][0]
    router.reload(pools=[{**pool, "watch": True}])
    replace(path, entries(p[1], d))
    wait_up(router, p[1])
    router.reload(pools=[{**pool, "watch": False}])
    replace(path, entries(p[0], d))
    time.sleep(0.5)
    assert states(router) == {p[1].url: "up"}


def test_a_file_changes_while_a_configuration_waits(world):
    """A configuration waits for the slots of old workers: endpoints do not, and it does not undo them."""
    path, p, d = world.file("endpoints", "yaml"), [world.engine("prefill") for _ in range(2)], world.engine("decode")
    router = file_router(world, path, p[0], d, workers=1, shared_memory={"max_workers": 1}, drain_timeout="60s")
    d.pause()
    held = router.open_stream()
    d.wait_requests()
    router.reload(client={"id_header": "X-A"})
    router.change(client={"id_header": "X-B"})
    router.kill(signal.SIGHUP)
    router.wait_log("reload waits: old generations of workers have all process slots")
    replace(path, entries(p[1], d))
    wait_up(router, p[1])
    d.go_on()
    assert list(held.events())[-1].data == "[DONE]"
    wait("the reload in the end", lambda: router.metric("generation") == 3)
    wait_up(router, p[1])
    ok(router)
