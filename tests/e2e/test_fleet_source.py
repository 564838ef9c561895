"""The fleet file as a source of endpoints: the router takes its engines from the plan that pdctl fleet renders, and follows
the file."""
import subprocess

import pytest
import yaml

from procs import BIN, MODEL, ROOT, Load, wait
from test_discovery import ok, states, wait_up


def write(path, *engines, **keys):
    """A fleet file of engines that run already, each with its port; the templates stand beside it."""
    if not (path.parent / "fleet.d").exists():
        (path.parent / "fleet.d").symlink_to(ROOT / "etc" / "fleet")

    def group(role):
        of = [e for e in engines if e.role == role]
        return {"replicas": len(of), "ports": {"api": of[-1].port - len(of) + 1},
                "overrides": [{"replica": i, "ports": {"api": e.port}} for i, e in enumerate(of[:-1])]}
    path.with_suffix(".new").write_text(yaml.safe_dump({
        "fleet": "f", "model": {"path": MODEL}, "engine": {"kind": "vllm", "version": "0.21", "command": ["/bin/true"]},
        "connector": "nixl", "hosts": {"here": {"address": "127.0.0.1", "group": "rack-1"}},
        "prefill": group("prefill"), "decode": group("decode"), **keys}, sort_keys=False))
    path.with_suffix(".new").rename(path)


def followed(world, path, connector="nixl"):
    return world.router({"models": [MODEL], "connector": connector, "fleet_file": str(path), "watch": True})


def two_and_one(world):
    return world.file("fleet", "yaml"), [world.engine("prefill") for _ in range(2)], world.engine("decode")


def test_a_scaled_fleet_is_found_by_all_routers(world):
    path, p, d = two_and_one(world)
    write(path, p[0], d)
    routers = [followed(world, path) for _ in range(2)]
    for r in routers:
        wait_up(r, p[0])
    load = Load(3, lambda i: ok(routers[i % 2]))
    for some in (p, p[1:], p):
        write(path, *some, d)
        for r in routers:
            wait_up(r, *some)
    seen = load.done
    wait("some more requests", lambda: load.done > seen + 20 or load.bad)
    load.stop()
    assert load.bad == [] and all(r.metric("reloads_failed_total") == 0 for r in routers)
    assert {e["group"] for e in routers[0].status()["fleet"]["endpoints"]} == {"rack-1"}


@pytest.mark.parametrize("keys, word", [
    ({"prefill": {"replica": 2}}, ":15: prefill.replica: unknown"),
    ({"prefill": {"hosts": ["none"]}}, ": prefill.hosts[0]: no host is named none"),
    ({"connector": "orchestrated"}, ": pools[0].connector: is nixl, but the engines of"),
])
def test_a_broken_file_keeps_the_former_list(world, keys, word):
    path, p, d = two_and_one(world)
    write(path, p[0], d)
    router = followed(world, path)
    wait_up(router, p[0])
    write(path, *p, d, **keys)
    said = wait("a line", lambda: router.lines("reload refused, the configuration in force stays"))
    assert word in said[0]["error"] and ("is nixl" in word or said[0]["error"].startswith(str(path)))
    assert states(router) == {p[0].url: "up"}
    ok(router)
    write(path, *p, d)
    wait_up(router, *p)


def test_a_wrong_file_prevents_a_start(world):
    path, p, d = two_and_one(world)
    write(path, *p, d, prefill={"hosts": ["none"]})
    main = world.file("main", "yaml")
    main.write_text(yaml.safe_dump({"pools": [{"connector": "nixl", "fleet_file": path.name}]}))
    done = subprocess.run([BIN / "pdrouter", "-t", "-c", main], capture_output=True, text=True)
    assert done.returncode == 1 and f"{path}:" in done.stderr and "no host is named none" in done.stderr
    write(path, *p, d)
    assert subprocess.run([BIN / "pdrouter", "-t", "-c", main], capture_output=True).returncode == 0


def test_a_rendered_router_follows_the_file(world):
    """What pdctl fleet renders for a router's host names the fleet file, which then need not be rendered again."""
    path, p, d = two_and_one(world)
    router = {"hosts": ["here"], "fleet_file": str(path)}
    write(path, *p, d, router=router)
    done = subprocess.run([BIN / "pdctl", "fleet", "plan", "-f", path, "--output", world.dir / "out"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    conf = yaml.safe_load((world.dir / "out/here/etc/pdrouter/pdrouter.yaml").read_text())
    assert conf["pools"][0]["fleet_file"] == str(path) and conf["pools"][0]["watch"] and "prefill" not in conf["pools"][0]
    said = subprocess.run([BIN / "pdctl", "fleet", "check", "-f", path, "-t", ROOT / "etc" / "fleet"], capture_output=True, text=True)
    assert said.returncode == 1 and ": router.fleet_file: its routers do not know -t" in said.stderr
    r = world.router(*conf["pools"])
    wait_up(r, *p)
    write(path, p[0], d, router=router)
    wait_up(r, p[0])
    ok(r)
